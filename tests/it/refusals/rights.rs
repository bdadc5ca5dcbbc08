//! What a user of the server may do.

use super::*;

/// The least that a user needs for locks whose names begin with `lk:`.
///
/// * The channel of a lock is among the KEYS of the releasing scripts, so it needs a key pattern
///   besides the channel pattern. The channel of a name with a `{` has no braces of its own: for
///   such names add `~redisson_lock__channel:lk:*` and `&redisson_lock__channel:lk:*`.
/// * What scripts run is checked against the same user.
/// * `client|info` and `client|kill` fence off broken connections: without them an abandoned
///   lock may stay for a lease. Without `unsubscribe` channels stay subscribed to; without
///   `hrandfield` no warning names a foreign holder. All else fails without its right.
/// * `hlen` and `del` are for `force_unlock`, `hgetall` is for `is_locked`, `holder` and
///   `remaining_lease` alone. Where an operator has loaded the scripts, `eval` can go.
/// * With a database in the URL add `+select`; in a cluster see [`IN_A_CLUSTER`].
const LEAST: [&str; 22] = [
    "resetchannels",
    "~lk:*",
    "~redisson_lock__channel:{lk:*",
    "&redisson_lock__channel:{lk:*",
    "+evalsha",
    "+eval",
    "+pttl",
    "+pexpire",
    "+hget",
    "+hincrby",
    "+hdel",
    "+hexists",
    "+hrandfield",
    "+publish",
    "+subscribe",
    "+unsubscribe",
    "+ping",
    "+hlen",
    "+del",
    "+hgetall",
    "+client|info",
    "+client|kill",
];

/// What it takes in a cluster besides [`LEAST`], of which `publish`, `subscribe` and `unsubscribe`
/// can go. Without `pubsub|shardnumsub` the cluster is taken for one without sharded channels.
const IN_A_CLUSTER: [&str; 9] = [
    "+cluster|slots",
    "+cluster|info",
    "+pubsub|shardnumsub",
    "+spublish",
    "+ssubscribe",
    "+sunsubscribe",
    "-publish",
    "-subscribe",
    "-unsubscribe",
];

/// The steps of a life that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Lock,
    Nest,
    LeaveNested,
    Extend,
    Look,
    Wait,
    Unlock,
    Force,
}
use Step::*;

/// What fails, and nothing else, without each of the rights.
const WITHOUT: [(&str, &[Step]); 21] = [
    ("~lk:*", &[Lock]),
    ("~redisson_lock__channel:{lk:*", &[LeaveNested, Wait, Unlock, Force]),
    ("&redisson_lock__channel:{lk:*", &[Wait, Unlock, Force]),
    ("+evalsha", &[Lock]),
    ("+eval", &[Lock]),
    ("+pttl", &[Lock]),
    ("+pexpire", &[Lock]),
    ("+hget", &[Nest, Wait]),
    ("+hincrby", &[Lock]),
    ("+hdel", &[Wait, Unlock]),
    ("+hexists", &[Extend]),
    ("+hrandfield", &[]),
    // Nobody is told; who waits finds it free when its wait ends.
    ("+publish", &[Unlock, Force]),
    ("+subscribe", &[Wait]),
    ("+unsubscribe", &[]),
    ("+ping", &[Wait]),
    ("+hlen", &[Force]),
    ("+del", &[Force]),
    ("+hgetall", &[Look]),
    ("+client|info", &[]),
    ("+client|kill", &[]),
];

/// Gives the user all rights but one.
fn grant_all_but(raw: &Raw, missing: Option<&str>) {
    let mut command = vec!["ACL", "SETUSER", "locker", "reset", "on", ">s3cret"];
    command.extend(LEAST.iter().filter(|right| Some(**right) != missing));
    raw.cmd(&command).ok();
}

fn url(port: u16) -> String {
    format!("redis://locker:s3cret@127.0.0.1:{port}/")
}

async fn locker(port: u16) -> Client {
    Client::connect(url(port)).await.unwrap()
}

/// The steps that failed, each for want of a right and for nothing else.
#[derive(Default)]
struct Failed(Vec<Step>);

impl Failed {
    fn note<T>(&mut self, step: Step, result: Result<T, leasehold::Error>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{step:?}: {error}");
        assert!(!error.is_indeterminate(), "{step:?}: {error}");
        self.0.push(step);
        None
    }
}

async fn live(raw: &Raw, client: &Client, other: &Client, patience: Duration) -> Vec<Step> {
    live_at(raw, client, other, "lk:a", patience).await
}

/// All that can be done with a lock; `patience` is how long a waiter waits that is not woken.
async fn live_at(
    raw: &Raw,
    client: &Client,
    other: &Client,
    name: &str,
    patience: Duration,
) -> Vec<Step> {
    let (mut failed, handle) = (Failed::default(), client.lock(name));
    let count = |holder: &str| raw.cmd(&["HGET", name, holder]);
    let Some(guard) = failed.note(Lock, lock(&handle).await) else {
        assert_no_keys(raw);
        return failed.0;
    };
    let holder = guard.holder();
    match failed.note(Nest, lock(&handle).await) {
        Some(inner) => drop(failed.note(LeaveNested, within(inner.unlock()).await)),
        None => assert_eq!(count(holder.as_str()).int(), 1, "nothing is half-done"),
    }
    failed.note(Extend, within(guard.extend(LEASE + LEASE)).await);
    failed.note(Look, within(handle.is_locked()).await);
    raw.cmd(&["CONFIG", "RESETSTAT"]).ok();
    let waiter = tokio::spawn(other.lock(name).try_lock(patience, LEASE));
    // It tries, listens, and tries again; a first try that is denied is the last.
    eventually("the waiter sleeps, or has failed", async || {
        waiter.is_finished() || statistic(raw, "pttl", "calls") >= 2
    })
    .await;
    let unlocked = failed.note(Unlock, within(guard.unlock()).await).is_some();
    assert_every_key_has_ttl(raw);
    match within(waiter).await.unwrap() {
        Ok(Some(guard)) => drop(within(guard.detach().unlock()).await),
        Ok(None) => failed.0.push(Wait),
        Err(error) => drop(failed.note::<()>(Wait, Err(error))),
    }
    assert!(!unlocked || count(holder.as_str()).is_nil(), "what was given back is gone");
    let handle = client.lock("lk:b");
    let guard = lock(&handle).await.unwrap();
    failed.note(Force, within(handle.force_unlock()).await);
    drop(guard);
    failed.0.sort_by_key(|step| *step as u8);
    failed.0
}

/// What was denied to anybody, but for what the library below us asks for when it connects and
/// can do without: its id and the server's version.
fn denied(raw: &Raw) -> Vec<String> {
    let log = raw.cmd(&["ACL", "LOG"]).ok();
    let denied = log.items().iter().map(|entry| entry.items()[7].text());
    denied.filter(|command| command != "info" && command != "client|id").collect()
}

/// and the renewals, on a connection of their own.
#[tokio::test]
async fn the_least_rights_carry_a_whole_life() {
    let server = RedisServer::start();
    let raw = server.raw();
    grant_all_but(&raw, None);
    let (client, other) = (locker(server.port()).await, locker(server.port()).await);
    assert_eq!(live(&raw, &client, &other, SOON).await, []);
    let builder = Client::builder(url(server.port())).unwrap();
    let client = builder.watchdog(Duration::from_secs(3)).connect().await.unwrap();
    let guard = within(client.lock("lk:c").lock()).await.unwrap();
    let before = guard.valid_until();
    eventually("it is renewed", async || guard.valid_until() > before).await;
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&raw);
    assert_eq!(denied(&raw), [""; 0]);
}

///
#[tokio::test]
async fn the_least_rights_in_a_cluster_carry_a_whole_life() {
    let cluster = blocking(ClusterSetup::start).await;
    for node in &cluster.nodes {
        grant_all_but(&node.raw(), None);
        let command = ["ACL", "SETUSER", "locker"].into_iter().chain(IN_A_CLUSTER);
        node.raw().cmd(&command.collect::<Vec<_>>()).ok();
    }
    let url = cluster.url().replace("://", "://locker:s3cret@");
    let clients = [Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap()];
    for name in ["lk:a", "lk:b", "lk:c", "lk:d", "lk:e"] {
        let node = cluster.node_of(name).raw();
        let [client, other] = &clients;
        assert_eq!(live_at(&node, client, other, name, SOON).await, [], "{name}");
    }
    for node in &cluster.nodes {
        assert_eq!(denied(&node.raw()), [""; 0]);
    }
}

/// R-21, I6: a typed error or a documented loss, and never half an effect.
#[tokio::test]
async fn without_a_right_only_what_needs_it_fails() {
    let server = RedisServer::start();
    let raw = server.raw();
    let table: Vec<_> = WITHOUT.iter().map(|(right, _)| *right).collect();
    assert_eq!(table, LEAST[1..]);
    for (right, fails) in WITHOUT {
        raw.cmd(&["SCRIPT", "FLUSH"]).ok();
        grant_all_but(&raw, Some(right));
        let (client, other) = (locker(server.port()).await, locker(server.port()).await);
        let in_vain = fails.contains(&Wait) || right == "+publish";
        let patience = if in_vain { Duration::from_millis(300) } else { SOON };
        let failed = live(&raw, &client, &other, patience).await;
        assert_eq!(failed, fails, "without {right}");
        assert_every_key_has_ttl(&raw);
        // Releases that were refused are tried on behind the scenes.
        grant_all_but(&raw, None);
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
        client.close().await;
        other.close().await;
        eventually("nobody listens", async || subscriptions(&raw) == 0).await;
    }
}

#[tokio::test]
async fn scripts_that_an_operator_has_loaded_need_no_right_to_eval() {
    let server = RedisServer::start();
    let raw = server.raw();
    for script in [
        include_str!("../../../lua/lock/acquire.lua"),
        include_str!("../../../lua/lock/release.lua"),
        include_str!("../../../lua/lock/renew.lua"),
        include_str!("../../../lua/lock/force_release.lua"),
        include_str!("../../../lua/lock/inspect.lua"),
    ] {
        raw.cmd(&["SCRIPT", "LOAD", script]).ok();
    }
    grant_all_but(&raw, Some("+eval"));
    let (client, other) = (locker(server.port()).await, locker(server.port()).await);
    assert_eq!(live(&raw, &client, &other, SOON).await, []);
}

/// A refused UNSUBSCRIBE answers nobody's question: the next waiter must not get its error.
#[tokio::test]
async fn without_the_right_to_unsubscribe_waiting_goes_on_working() {
    let server = RedisServer::start();
    let raw = server.raw();
    grant_all_but(&raw, Some("+unsubscribe"));
    let proxy = Proxy::start(server.port());
    let (client, other) = (locker(server.port()).await, locker(proxy.port()).await);
    for round in 1..=2 {
        for name in ["lk:a", "lk:b"] {
            let guard = lock(&client.lock(name)).await.unwrap();
            let theirs = other.lock(name);
            let waiter = tokio::spawn(async move { theirs.lock_with(LEASE).await });
            // The server still has the channels of the round before: it must be asked anew.
            let channel = Redisson::channel(name);
            let asked = both(named("SUBSCRIBE"), mentioning(&channel));
            proxy.wait_for(asked, round).await;
            within(guard.unlock()).await.unwrap();
            let guard = within(waiter).await.unwrap().unwrap();
            within(guard.detach().unlock()).await.unwrap();
        }
        for name in ["lk:a", "lk:b"] {
            let channel = Redisson::channel(name);
            let ended = both(named("UNSUBSCRIBE"), mentioning(&channel));
            proxy.wait_for(ended, round).await;
        }
    }
}

/// documented: what a broken connection left behind then ends with its lease.
#[tokio::test]
async fn without_the_right_to_kill_a_broken_connection_costs_a_warning() {
    let capture = crate::support::Capture::new();
    let _recording = capture.install();
    let server = RedisServer::start();
    grant_all_but(&server.raw(), Some("+client|kill"));
    let proxy = Proxy::start(server.port());
    let client = locker(proxy.port()).await;
    let guard = lock(&client.lock("lk:a")).await.unwrap();
    proxy.cut_client_side_only().await;
    within(guard.unlock()).await.unwrap();
    within(lock(&client.lock("lk:a")).await.unwrap().unlock()).await.unwrap();
    capture.wait_for("the warning", |event| event.message.contains("CLIENT KILL")).await;
    assert_no_keys(&server.raw());
}

/// R-21, I8: the right to renew is taken away from a holder.
#[tokio::test]
async fn a_hold_that_may_not_be_renewed_any_more_is_lost_at_its_deadline() {
    let server = RedisServer::start();
    let raw = server.raw();
    grant_all_but(&raw, None);
    let builder = Client::builder(url(server.port())).unwrap();
    let client = builder.watchdog(Duration::from_secs(1)).connect().await.unwrap();
    let guard = within(client.lock("lk:a").lock()).await.unwrap();
    raw.cmd(&["ACL", "SETUSER", "locker", "-pexpire"]).ok();
    assert_eq!(within(guard.lost()).await, LostReason::Expired);
    assert!(std::time::Instant::now() >= guard.valid_until());
    drop(guard);
    eventually("the key is gone", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

/// R-21, I8, I10: the user is deleted under a holder, and made again later.
#[tokio::test]
async fn a_deleted_user_loses_its_holds_and_comes_back_with_its_rights() {
    let server = RedisServer::start();
    let raw = server.raw();
    grant_all_but(&raw, None);
    let builder = Client::builder(url(server.port())).unwrap();
    let builder = builder.watchdog(Duration::from_secs(1)).patience(Duration::from_millis(500));
    let client = builder.connect().await.unwrap();
    let guard = within(client.lock("lk:a").lock()).await.unwrap();
    raw.cmd(&["ACL", "DELUSER", "locker"]).ok();
    assert_eq!(within(guard.lost()).await, LostReason::Expired);
    let error = lock(&client.lock("lk:b")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    grant_all_but(&raw, None);
    eventually("the client is let in again", async || lock(&client.lock("lk:b")).await.is_ok())
        .await;
    drop(guard);
    eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

#[tokio::test]
async fn a_login_that_is_refused_is_told() {
    let server = RedisServer::builder().args(["--requirepass", "other"]).start();
    for user in ["locker:s3cret", ":s3cret"] {
        let url = format!("redis://{user}@127.0.0.1:{}/", server.port());
        let error = within(Client::connect(&url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{error}");
        let client = within(impatient(&url).connect_lazy()).await.unwrap();
        let error = lock(&client.lock("lk:a")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
    let error = within(Client::connect(server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{error}");
}

/// I1: one error for a whole list says nothing about the others in it.
#[tokio::test]
async fn of_many_acquires_at_once_only_the_forbidden_one_fails() {
    const LOCKS: usize = 64;
    const BAD: usize = 31;
    let server = RedisServer::start();
    let raw = server.raw();
    grant_all_but(&raw, None);
    let proxy = Proxy::start(server.port());
    let client = locker(proxy.port()).await;
    within(lock(&client.lock("lk:first")).await.unwrap().unlock()).await.unwrap();
    let first = proxy.hold_command(named("EVALSHA"));
    let name = |i| if i == BAD { "other".to_owned() } else { format!("lk:{i}") };
    let acquires = (0..LOCKS).map(|i| tokio::spawn(client.lock(name(i)).lock_with(LEASE)));
    let acquires: Vec<_> = acquires.collect();
    first.held().await;
    first.release();
    let mut guards = Vec::new();
    for (i, acquire) in acquires.into_iter().enumerate() {
        match within(acquire).await.unwrap() {
            Ok(guard) => guards.push(guard),
            Err(error) => {
                assert_eq!((i, error.lock()), (BAD, Some("other")));
                assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied));
            }
        }
    }
    assert_eq!(guards.len(), LOCKS - 1);
    assert!(guards.iter().all(|guard| guard.is_held() && pttl(&raw, guard.name()) > 0));
    let listed = |command: &Vec<Vec<u8>>| {
        let keys = String::from_utf8_lossy(&command[2.min(command.len() - 1)]).parse();
        keys.is_ok_and(|keys: usize| keys > 1) && command.iter().any(|arg| arg == b"other")
    };
    assert!(proxy.commands().iter().any(listed), "they went as a list");
    for guard in guards {
        within(guard.detach().unlock()).await.unwrap();
    }
    assert_no_keys(&raw);
}

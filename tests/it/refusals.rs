//! What the server refuses, and what is refused before it is asked.

use std::time::Duration;

use leasehold::{Builder, Client, ErrorKind, Lock, LockGuard, LostReason, Refusal};

use crate::support::{
    assert_every_key_has_ttl, assert_no_keys, blocking, eventually,
    proxy::{Proxy, both, mentioning, named},
    redisson::Redisson,
    server::{ClusterSetup, Raw, RedisServer, until},
    subscriptions,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

async fn client(server: &RedisServer) -> Client {
    Client::connect(server.url()).await.unwrap()
}

async fn lock(lock: &Lock) -> Result<LockGuard, leasehold::Error> {
    within(lock.lock_with(LEASE)).await
}

/// For a client that is not let in, and has only to find that out.
fn impatient(url: &str) -> Builder {
    let time = Duration::from_millis(100);
    Client::builder(url).unwrap().patience(time).command_timeout(time)
}

fn pttl(raw: &Raw, name: &str) -> i64 {
    raw.cmd(&["PTTL", name]).int()
}

fn set(raw: &Raw, parameter: &str, value: &str) {
    raw.cmd(&["CONFIG", "SET", parameter, value]).ok();
}

/// What a server has counted of a command: its `calls`, or its `rejected_calls`.
fn statistic(raw: &Raw, command: &str, what: &str) -> u64 {
    let stats = raw.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let mut fields = line.into_iter().flat_map(|line| line.split(','));
    let value = fields.find_map(|field| field.strip_prefix(&format!("{what}=")));
    value.map_or(0, |value| value.trim().parse().unwrap())
}

/// What a server is not in a state to do.
mod states {
    use super::*;

    fn kind(refusal: Refusal) -> ErrorKind {
        ErrorKind::Refused(refusal)
    }

    /// R-17, I6.
    #[tokio::test]
    async fn without_memory_nothing_is_taken_but_what_is_held_is_kept_and_given_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
        let client = builder.connect().await.unwrap();
        let handle = client.lock("held");
        let outer = within(handle.lock()).await.unwrap();
        let inner = within(handle.lock()).await.unwrap();
        let spare = lock(&client.lock("spare")).await.unwrap();
        set(&raw, "maxmemory", "1");
        for name in ["free", "held"] {
            let error = lock(&client.lock(name)).await.unwrap_err();
            assert_eq!(error.kind(), kind(Refusal::OutOfMemory), "{error}");
            assert_eq!(error.lock(), Some(name));
        }
        assert_eq!(raw.cmd(&["EXISTS", "free"]).int(), 0);
        assert_eq!(outer.hold_count(), 2);
        let before = outer.valid_until();
        eventually("it is renewed", async || outer.valid_until() > before).await;
        within(inner.unlock()).await.unwrap();
        assert_eq!(raw.cmd(&["HGET", "held", outer.holder().as_str()]).int(), 1);
        within(outer.unlock()).await.unwrap();
        drop(spare);
        eventually("the spare is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
        set(&raw, "maxmemory", "0");
        within(lock(&client.lock("free")).await.unwrap().unlock()).await.unwrap();
    }

    ///
    #[tokio::test]
    async fn a_key_that_is_no_lock_is_left_alone() {
        let server = RedisServer::start();
        let (raw, client) = (server.raw(), client(&server).await);
        let keys: [&[&str]; 3] =
            [&["SET", "text", "x"], &["RPUSH", "list", "x"], &["ZADD", "zset", "1", "x"]];
        for key in keys {
            raw.cmd(key).ok();
            let handle = client.lock(key[1]);
            let errors = [
                lock(&handle).await.map(drop).unwrap_err(),
                within(handle.try_lock_now()).await.map(drop).unwrap_err(),
                within(handle.force_unlock()).await.map(drop).unwrap_err(),
                within(handle.is_locked()).await.map(drop).unwrap_err(),
            ];
            for error in errors {
                assert_eq!((error.kind(), error.lock()), (ErrorKind::WrongType, Some(key[1])));
                assert!(!error.is_indeterminate(), "{error}");
            }
            assert_eq!(pttl(&raw, key[1]), -1, "it keeps its own time");
        }
        assert_eq!(raw.cmd(&["GET", "text"]).text(), "x");
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 3);
    }

    /// under a holder the key changes its type.
    #[tokio::test]
    async fn a_lock_replaced_by_another_type_is_told_and_not_touched() {
        let server = RedisServer::start();
        let (raw, client) = (server.raw(), client(&server).await);
        let guard = lock(&client.lock("job")).await.unwrap();
        raw.cmd(&["SET", "job", "x", "PX", "600000"]).ok();
        assert_eq!(lock(&client.lock("job")).await.unwrap_err().kind(), ErrorKind::WrongType);
        assert_eq!(within(guard.unlock()).await.unwrap_err().kind(), ErrorKind::WrongType);
        assert_eq!(raw.cmd(&["GET", "job"]).text(), "x");
    }

    ///
    #[tokio::test]
    async fn a_corrupt_count_is_told_and_can_still_be_given_back_or_forced() {
        let server = RedisServer::start();
        let (raw, client) = (server.raw(), client(&server).await);
        for (count, force) in
            [("notanumber", false), ("9223372036854775807", false), ("1e3", true), (" 1", true)]
        {
            let handle = client.lock("job");
            let guard = lock(&handle).await.unwrap();
            raw.cmd(&["HSET", "job", guard.holder().as_str(), count]).ok();
            let error = lock(&handle).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{count}: {error}");
            let left = raw.cmd(&["HGET", "job", guard.holder().as_str()]).text();
            assert_eq!(left, count, "nothing is half-written");
            assert_every_key_has_ttl(&raw);
            if force {
                assert!(within(handle.force_unlock()).await.unwrap());
                assert_eq!(within(guard.lost()).await, LostReason::Removed);
            } else {
                within(guard.unlock()).await.unwrap();
            }
            assert_no_keys(&raw);
        }
    }

    /// R-22, I10: what a demoted primary refuses is ridden out until there is a primary again.
    #[tokio::test]
    async fn a_replica_is_ridden_out() {
        let server = RedisServer::start();
        let (raw, proxy) = (server.raw(), Proxy::start(server.port()));
        let client = Client::connect(proxy.url()).await.unwrap();
        let guard = lock(&client.lock("held")).await.unwrap();
        raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        let tried = client.lock("free").try_lock(Duration::from_millis(100), LEASE);
        let error = within(tried).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        proxy.forget_commands();
        let waiting = tokio::spawn({
            let handle = client.lock("free");
            async move { handle.lock_with(LEASE).await }
        });
        let leaving = tokio::spawn(guard.unlock());
        proxy.wait_for(named("EVALSHA"), 4).await;
        assert!(!waiting.is_finished() && !leaving.is_finished());
        assert_eq!(raw.cmd(&["EXISTS", "held", "free"]).int(), 1);
        raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
        within(leaving).await.unwrap().unwrap();
        within(within(waiting).await.unwrap().unwrap().unlock()).await.unwrap();
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
    }

    /// While a server accepts no writes: what it says is told at once, what was to be given back is
    /// given back as soon as it lets us.
    async fn while_writes_are_refused(
        server: &RedisServer,
        refusal: Refusal,
        refuse: impl Fn(),
        accept: impl Fn(),
    ) {
        let (raw, client) = (server.raw(), client(server).await);
        let unlocked = lock(&client.lock("unlocked")).await.unwrap();
        let dropped = lock(&client.lock("dropped")).await.unwrap();
        let nested = [(); 2].map(|()| client.lock("nested"));
        let nested = [lock(&nested[0]).await.unwrap(), lock(&nested[1]).await.unwrap()];
        refuse();
        for name in ["free", "nested"] {
            let error = lock(&client.lock(name)).await.unwrap_err();
            assert_eq!(error.kind(), kind(refusal), "{error}");
        }
        let error = within(unlocked.unlock()).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (kind(refusal), Some("unlocked")));
        drop(dropped);
        let [outer, inner] = nested;
        let error = within(inner.unlock()).await.unwrap_err();
        assert_eq!(error.kind(), kind(refusal), "{error}");
        assert!(outer.is_held(), "the outer hold stands");
        assert_eq!(raw.cmd(&["EXISTS", "unlocked", "dropped", "nested", "free"]).int(), 3);
        assert_every_key_has_ttl(&raw);
        accept();
        eventually("both are given back", async || {
            raw.cmd(&["EXISTS", "unlocked", "dropped"]).int() == 0
        })
        .await;
        eventually("the nested hold is given back", async || {
            raw.cmd(&["HGET", "nested", outer.holder().as_str()]).int() == 1
        })
        .await;
        within(outer.unlock()).await.unwrap();
        assert_no_keys(&raw);
        assert!(pttl(&raw, "free") == -2);
    }

    /// Makes the server unable to save, and so unwilling to write.
    fn misconfigure(server: &RedisServer) {
        let raw = server.raw();
        std::fs::create_dir_all(server.dir().join("dump.rdb")).unwrap();
        set(&raw, "save", "3600 1");
        raw.cmd(&["BGSAVE"]).ok();
        until("the save has failed", || {
            raw.cmd(&["INFO", "persistence"]).text().contains("rdb_last_bgsave_status:err")
        });
    }

    ///
    #[tokio::test]
    async fn a_server_that_cannot_save_refuses_and_is_asked_again_for_releases() {
        let server = RedisServer::start();
        let raw = server.raw();
        let (refuse, accept) = (|| misconfigure(&server), || set(&raw, "save", ""));
        while_writes_are_refused(&server, Refusal::Misconfigured, refuse, accept).await;
    }

    ///
    #[tokio::test]
    async fn a_server_without_its_replicas_refuses_and_is_asked_again_for_releases() {
        let server = RedisServer::start();
        let raw = server.raw();
        let replicas = |n: &str| set(&raw, "min-replicas-to-write", n);
        let (refuse, accept) = (|| replicas("1"), || replicas("0"));
        while_writes_are_refused(&server, Refusal::NoReplicas, refuse, accept).await;
    }

    /// R-16, I8: renewals are refused, though the server answers every PING.
    #[tokio::test]
    async fn a_hold_whose_renewals_are_refused_is_lost_at_its_deadline() {
        let server = RedisServer::start();
        let raw = server.raw();
        let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(1));
        let client = builder.connect().await.unwrap();
        let guard = within(client.lock("job").lock()).await.unwrap();
        set(&raw, "min-replicas-to-write", "1");
        assert_eq!(within(guard.lost()).await, LostReason::Expired);
        assert!(std::time::Instant::now() >= guard.valid_until());
        let error = within(guard.unlock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
        eventually("its lease has ended", async || pttl(&raw, "job") == -2).await;
        set(&raw, "min-replicas-to-write", "0");
        assert!(within(client.lock("job").try_lock_now()).await.unwrap().is_some());
    }

    /// R-16, I8: one that is healed in time is never lost.
    #[tokio::test]
    async fn a_hold_is_kept_if_renewals_are_accepted_again_in_time() {
        let server = RedisServer::start();
        let raw = server.raw();
        let proxy = Proxy::start(server.port());
        let builder = Client::builder(proxy.url()).unwrap().watchdog(Duration::from_secs(6));
        let client = builder.connect().await.unwrap();
        let guard = within(client.lock("job").lock()).await.unwrap();
        set(&raw, "min-replicas-to-write", "1");
        proxy.forget_commands();
        proxy.wait_for(named("EVALSHA"), 2).await;
        let before = guard.valid_until();
        set(&raw, "min-replicas-to-write", "0");
        eventually("it is renewed", async || guard.valid_until() > before).await;
        assert!(guard.is_held());
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&raw);
    }

    /// somebody's endless script passes.
    #[tokio::test]
    async fn a_busy_server_is_ridden_out() {
        let server = RedisServer::start();
        let (raw, proxy) = (server.raw(), Proxy::start(server.port()));
        let client = Client::connect(proxy.url()).await.unwrap();
        let guard = lock(&client.lock("held")).await.unwrap();
        set(&raw, "busy-reply-threshold", "10");
        let busy = server.raw();
        busy.send(&[b"EVAL", b"while true do end", b"0"]).unwrap();
        until("the server is busy", || {
            raw.cmd(&["PING"]).error().is_some_and(|text| text.starts_with("BUSY"))
        });
        let tried = within(client.lock("free").try_lock_now()).await;
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unavailable);
        proxy.forget_commands();
        let waiting = tokio::spawn({
            let handle = client.lock("free");
            async move { handle.lock_with(LEASE).await }
        });
        let leaving = tokio::spawn(guard.unlock());
        proxy.wait_for(named("EVALSHA"), 4).await;
        raw.cmd(&["SCRIPT", "KILL"]).ok();
        within(leaving).await.unwrap().unwrap();
        within(within(waiting).await.unwrap().unwrap().unlock()).await.unwrap();
        assert!(statistic(&raw, "evalsha", "rejected_calls") >= 3, "it was busy all the time");
        assert_no_keys(&raw);
    }

    /// a server that reads its data answers, but not yet to us.
    #[tokio::test]
    async fn a_server_that_loads_its_data_is_ridden_out() {
        let slow = ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"];
        let mut server = RedisServer::builder().args(slow).start();
        let fill = "for i = 1, 3000 do redis.call('SET', 'key:' .. i, 'x', 'PX', 600000) end";
        server.raw().cmd(&["EVAL", fill, "0"]).ok();
        server.raw().cmd(&["SAVE"]).ok();
        let builder = Client::builder(server.url()).unwrap().patience(SOON * 2);
        let client = builder.connect().await.unwrap();
        server.kill();
        let waiting = tokio::spawn({
            let handle = client.lock("job");
            async move { handle.lock_with(LEASE).await }
        });
        let server = blocking(move || {
            server.restart();
            server
        })
        .await;
        let guard = within(waiting).await.unwrap().unwrap();
        let raw = server.raw();
        assert!(statistic(&raw, "evalsha", "rejected_calls") >= 1, "it was asked while it loaded");
        within(guard.unlock()).await.unwrap();
        assert_eq!(raw.cmd(&["EXISTS", "job"]).int(), 0);
    }
}

/// What a user of the server may do.
mod rights {
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
            include_str!("../../lua/lock/acquire.lua"),
            include_str!("../../lua/lock/release.lua"),
            include_str!("../../lua/lock/renew.lua"),
            include_str!("../../lua/lock/force_release.lua"),
            include_str!("../../lua/lock/inspect.lua"),
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
}

/// Durations that cannot be used.
mod durations {
    use super::*;

    /// nothing is sent for them.
    #[tokio::test]
    async fn a_lease_out_of_bounds_is_refused_before_anything_is_sent() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let client = Client::connect(proxy.url()).await.unwrap();
        let guard = lock(&client.lock("held")).await.unwrap();
        proxy.forget_commands();
        let leases = [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(1),
            leasehold::SHORTEST_LEASE - Duration::from_nanos(1),
            leasehold::LONGEST_LEASE + Duration::from_nanos(1),
            Duration::from_millis(i64::MAX as u64),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ];
        for lease in leases {
            let handle = client.lock("job");
            let errors = [
                within(handle.lock_with(lease)).await.map(drop).unwrap_err(),
                within(handle.try_lock(SOON, lease)).await.map(drop).unwrap_err(),
                within(handle.clone().lease(lease).lock()).await.map(drop).unwrap_err(),
                within(handle.clone().lease(lease).try_lock_now()).await.map(drop).unwrap_err(),
                within(handle.try_with(SOON, lease, |_| async {})).await.map(drop).unwrap_err(),
                within(guard.extend(lease)).await.unwrap_err(),
                Client::builder(proxy.url()).unwrap().watchdog(lease).connect().await.unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidDuration, "{lease:?}: {error}");
            }
        }
        let error = within(client.lock("job").max_hold(Duration::ZERO).lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidDuration);
        assert!(proxy.commands().is_empty(), "{:?}", proxy.commands());
    }

    /// R-24, I6.
    #[tokio::test]
    async fn the_shortest_and_the_longest_lease_are_kept() {
        let server = RedisServer::start();
        let (raw, client) = (server.raw(), client(&server).await);
        let longest = client.lock("longest").lock_with(leasehold::LONGEST_LEASE);
        let guard = within(longest).await.unwrap();
        assert!(pttl(&raw, "longest") > 315_575_000_000);
        assert!(guard.is_held());
        within(guard.unlock()).await.unwrap();
        // It may be over before it is told; it must be over soon in any case.
        let shortest = client.lock("shortest").try_lock(SOON, leasehold::SHORTEST_LEASE);
        drop(within(shortest).await.unwrap());
        eventually("it is over", async || pttl(&raw, "shortest") == -2).await;
    }

    ///
    #[tokio::test]
    async fn a_wait_may_be_of_any_length() {
        let server = RedisServer::start();
        let client = client(&server).await;
        let lock = client.lock("job");
        let waits = [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(u64::MAX)];
        for wait in waits.into_iter().chain([Duration::MAX]) {
            let guard = within(lock.try_lock(wait, LEASE)).await.unwrap().expect("it is free");
            let theirs = lock.clone().owned_by(leasehold::Owner::new());
            if wait < SOON {
                assert!(within(theirs.try_lock(wait, LEASE)).await.unwrap().is_none());
                within(guard.unlock()).await.unwrap();
            } else {
                let waiter = tokio::spawn(theirs.try_lock(wait, LEASE));
                within(guard.unlock()).await.unwrap();
                let guard = within(waiter).await.unwrap().unwrap().expect("it became free");
                within(guard.unlock()).await.unwrap();
            }
        }
        assert_no_keys(&server.raw());
    }
}

/// Names of every kind.
mod names {
    use super::*;

    #[tokio::test]
    async fn a_name_that_cannot_be_used_is_refused_before_anything_is_sent() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let client = Client::connect(proxy.url()).await.unwrap();
        proxy.wait_for(named("CLIENT"), 1).await;
        eventually("all is quiet", async || proxy.count(named("CLIENT")) >= 2).await;
        proxy.forget_commands();
        let long = "x".repeat(leasehold::LONGEST_NAME + 1);
        for name in ["", &long, &"ü".repeat(257)] {
            let handle = client.lock(name);
            let errors = [
                lock(&handle).await.map(drop).unwrap_err(),
                within(handle.try_lock_now()).await.map(drop).unwrap_err(),
                within(handle.unlock()).await.unwrap_err(),
                within(handle.force_unlock()).await.map(drop).unwrap_err(),
                within(handle.is_locked()).await.map(drop).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
                assert!(error.to_string().len() < 400, "a long name is not repeated in full");
            }
            assert!(!handle.is_held_by_me());
        }
        let empty = client.prefixed("prefix:").lock("");
        assert_eq!(lock(&empty).await.unwrap_err().kind(), ErrorKind::InvalidName);
        assert!(proxy.commands().is_empty(), "{:?}", proxy.commands());
    }

    /// What is strange to people, to Redis' patterns, and to a client that takes any array which
    /// begins with "message" for a message.
    #[tokio::test]
    async fn any_other_name_is_just_bytes() {
        let server = RedisServer::start();
        let raw = server.raw();
        let (client, other) = (client(&server).await, client(&server).await);
        let longest = "ü".repeat(leasehold::LONGEST_NAME / 2);
        let names = [
            "{",
            "}",
            "{}",
            "}{",
            "a{b",
            "a}b",
            "{a}",
            "x{}y",
            "{{a}}",
            "nul\0byte",
            "line\r\nfeed",
            "$5\r\nx",
            "*",
            "?",
            "[a-z]",
            "h*llo",
            "\\",
            "ключ",
            "🔒",
            "e\u{301}",
            " ",
            "-1",
            "0",
            "message",
            "smessage",
            "pmessage",
            "subscribe",
            "unsubscribe",
            "invalidate",
            "OK",
            &longest,
        ];
        for name in names {
            let guard = lock(&client.lock(name)).await.unwrap();
            let left = raw.cmd(&["HGET", name, guard.holder().as_str()]);
            assert_eq!(left.int(), 1, "{name:?}");
            let theirs = other.lock(name);
            assert!(within(theirs.try_lock_now()).await.unwrap().is_none());
            let seen = within(theirs.holder()).await.unwrap();
            assert_eq!(seen, Some(guard.holder()), "{name:?}");
            let waiter = tokio::spawn(theirs.lock_with(LEASE));
            eventually("the waiter listens", async || {
                let channel = Redisson::channel(name);
                raw.cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int() == 1
            })
            .await;
            within(guard.unlock()).await.unwrap();
            let guard = within(waiter).await.unwrap().unwrap();
            assert_eq!(guard.name(), name);
            within(guard.unlock()).await.unwrap();
            assert_no_keys(&raw);
        }
    }

    /// The prefix and the mapper make the name that Redis sees.
    #[tokio::test]
    async fn a_name_made_too_long_by_its_mapper_is_refused() {
        let server = RedisServer::start();
        let builder = Client::builder(server.url()).unwrap();
        let client = builder.name_mapper(|name| name.repeat(100)).connect().await.unwrap();
        let guard = lock(&client.lock("short")).await.unwrap();
        assert_eq!(guard.name().len(), 500);
        let error = lock(&client.lock("longer")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&server.raw());
    }
}

/// A password is nobody's business.
mod passwords {
    use super::*;
    use crate::support::Capture;
    use std::fmt::{Debug, Display, Write};

    const PASSWORD: &str = "s3ntinel-pw";

    /// An error, and whatever it says is behind it, in both forms.
    fn chain(error: &leasehold::Error) -> String {
        let mut text = format!("{error} {error:?} {error:#?}");
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            write!(text, " {error} {error:?}").unwrap();
            source = error.source();
        }
        text
    }

    #[track_caller]
    fn assert_hidden(what: impl Display) {
        let text = what.to_string();
        assert!(!text.contains(PASSWORD), "{text}");
    }

    #[track_caller]
    fn assert_debug_hides(what: &impl Debug) {
        assert_hidden(format!("{what:?} {what:#?}"));
    }

    /// All that was logged, at every level.
    fn logged(capture: &Capture) -> String {
        format!("{:?}", capture.events())
    }

    fn protect(raw: &Raw) {
        raw.cmd(&["ACL", "SETUSER", "u", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]).ok();
    }

    #[tokio::test]
    async fn a_password_is_in_no_debug_output_and_no_event() {
        let capture = Capture::global();
        let server = RedisServer::start();
        protect(&server.raw());
        let proxy = Proxy::start(server.port());
        let url = format!("redis://u:{PASSWORD}@127.0.0.1:{}/0", proxy.port());
        let name = crate::support::unique("secret");
        let builder = Client::builder(&url).unwrap().watchdog(Duration::from_secs(3));
        assert_debug_hides(&builder);
        let client = builder.connect().await.unwrap();
        let lock = client.lock(&name);
        let guard = within(lock.lock()).await.unwrap();
        assert_debug_hides(&client);
        assert_debug_hides(&lock);
        assert_debug_hides(&guard);
        assert_debug_hides(&guard.owner());
        assert_debug_hides(&guard.holder());
        let before = guard.valid_until();
        eventually("it is renewed", async || guard.valid_until() > before).await;
        proxy.cut_all().await;
        within(guard.unlock()).await.unwrap();
        client.close().await;
        let error = within(lock.lock()).await.unwrap_err();
        assert_hidden(chain(&error));
        let ours = |event: &crate::support::Event| event.field("lock") == Some(&*name);
        assert!(capture.events().iter().any(ours), "something was logged");
        assert_hidden(logged(capture));
    }

    #[tokio::test]
    async fn a_password_is_in_no_error_of_a_failed_login() {
        let capture = Capture::global();
        let server = RedisServer::builder().args(["--requirepass", "other"]).start();
        let nobody = crate::support::server::free_port();
        for port in [server.port(), nobody] {
            for user in ["u", "", "default", PASSWORD] {
                let url = format!("redis://{user}:{PASSWORD}@127.0.0.1:{port}/");
                let error = within(Client::connect(&url)).await.unwrap_err();
                assert_hidden(chain(&error));
                let client = within(impatient(&url).connect_lazy()).await.unwrap();
                assert_debug_hides(&client);
                let name = crate::support::unique("secret");
                let error = lock(&client.lock(name)).await.unwrap_err();
                assert_hidden(chain(&error));
            }
        }
        assert_hidden(logged(capture));
    }

    #[test]
    fn a_password_is_in_no_error_of_a_bad_url() {
        let bad = [
            "http://u:PW@host/",
            "redis//u:PW@host",
            "PW",
            "redis:PW",
            "PW://host",
            "redis://u:PW@host:99999999/",
            "redis://u:PW@host:PW/",
            "redis://u:PW@/",
            "redis://u:PW@host/PW",
            "redis://u:PW@host/notanumber",
            "redis://u:PW@host/999",
            "redis://u:PW@[::1/",
            "redis-cluster://u:PW@",
            "redis-sentinel://u:PW@host:1",
            "redis-sentinel://u:PW@host:1/0?sentinelServiceName=",
            "redis-sentinel://u:x@host:1/0?sentinelServiceName=m&sentinelPassword=PW",
            "redis-sentinel://u:x@host:1/0?sentinelServiceName=m&sentinelUsername=PW",
            "rediss://u:PW@host",
            "redis+unix:///tmp/none?password=PW",
            "redis://u:%50W@ho st",
        ];
        for url in bad.map(|url| url.replace("PW", PASSWORD)) {
            match Client::builder(&url) {
                Ok(builder) => assert_debug_hides(&builder),
                Err(error) => assert_hidden(chain(&error)),
            }
        }
    }
}

//! Rights that are taken away while something is held, and users that are not let in.

use leasehold::{Builder, LockGuard, LostReason};

use super::{locks::STEPS, *};
use crate::support::{
    Capture, assert_no_keys,
    proxy::{Proxy, both, mentioning, named},
    redisson::Redisson,
};

fn grant_all_but(raw: &Raw, missing: Option<&str>) {
    let mut command = vec!["ACL", "SETUSER", "locker", "reset", "on", ">s3cret"];
    command.extend(readme::lock().into_iter().filter(|right| Some(*right) != missing));
    raw.cmd(&command).ok();
}

fn url(port: u16) -> String {
    format!("redis://locker:s3cret@127.0.0.1:{port}/")
}

async fn locker(port: u16) -> Client {
    Client::connect(url(port)).await.unwrap()
}

async fn lock(lock: &leasehold::Lock) -> Result<LockGuard, Error> {
    within(lock.lock_with(LEASE)).await
}

fn pttl(raw: &Raw, name: &str) -> i64 {
    raw.cmd(&["PTTL", name]).int()
}

/// For a client that is not let in, and has only to find that out.
fn impatient(url: &str) -> Builder {
    let time = Duration::from_millis(100);
    Client::builder(url).unwrap().patience(time).command_timeout(time)
}

#[tokio::test]
async fn scripts_that_an_operator_has_loaded_need_no_right_to_eval() {
    let mut bench = Bench::start("lock");
    for script in [
        include_str!("../../../lua/lock/acquire.lua"),
        include_str!("../../../lua/lock/release.lua"),
        include_str!("../../../lua/lock/renew.lua"),
        include_str!("../../../lua/lock/force_release.lua"),
        include_str!("../../../lua/lock/inspect.lua"),
    ] {
        bench.nodes[0].cmd(&["SCRIPT", "LOAD", script]).ok();
    }
    bench.rules.retain(|rule| rule != "+eval");
    let outcomes = bench.live(STEPS, None, "app:loaded").await;
    assert!(outcomes.iter().all(|outcome| *outcome == Done));
    assert_eq!(bench.denied(), [""; 0]);
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
        for name in ["app:a", "app:b"] {
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
        for name in ["app:a", "app:b"] {
            let channel = Redisson::channel(name);
            let ended = both(named("UNSUBSCRIBE"), mentioning(&channel));
            proxy.wait_for(ended, round).await;
        }
    }
}

/// documented: what a broken connection left behind then ends with its lease.
#[tokio::test]
async fn without_the_right_to_kill_a_broken_connection_costs_a_warning() {
    let capture = Capture::new();
    let _recording = capture.install();
    let server = RedisServer::start();
    grant_all_but(&server.raw(), Some("+client|kill"));
    let proxy = Proxy::start(server.port());
    let client = locker(proxy.port()).await;
    let guard = lock(&client.lock("app:a")).await.unwrap();
    proxy.cut_client_side_only().await;
    within(guard.unlock()).await.unwrap();
    within(lock(&client.lock("app:a")).await.unwrap().unlock()).await.unwrap();
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
    let guard = within(client.lock("app:a").lock()).await.unwrap();
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
    let guard = within(client.lock("app:a").lock()).await.unwrap();
    raw.cmd(&["ACL", "DELUSER", "locker"]).ok();
    assert_eq!(within(guard.lost()).await, LostReason::Expired);
    let error = lock(&client.lock("app:b")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    grant_all_but(&raw, None);
    eventually("the client is let in again", async || lock(&client.lock("app:b")).await.is_ok())
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
        let error = lock(&client.lock("app:a")).await.unwrap_err();
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
    within(lock(&client.lock("app:first")).await.unwrap().unlock()).await.unwrap();
    let first = proxy.hold_command(named("EVALSHA"));
    let name = |i| if i == BAD { "other".to_owned() } else { format!("app:{i}") };
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

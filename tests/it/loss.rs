//! How a hold ends before its owner gives it back, and how the owner hears of it.
use std::time::{Duration, Instant};

use futures::FutureExt;
use leasehold::{Client, ErrorKind, Held, LostReason, Owner};
use tokio::{runtime::Handle, task::JoinSet, time::timeout};

use crate::support::{
    assert_no_keys, eventually,
    proxy::Proxy,
    redisson::Redisson,
    server::{Raw, RedisServer},
    subscriptions, unique,
};

/// When a test that should be long over is taken for hanging.
const HANG: Duration = Duration::from_secs(20);

/// A lease of which a third is soon over, and that outlasts a machine that stalls for a moment.
const SHORT: Duration = Duration::from_secs(1);

/// R-47, I8: `DEL`, `FLUSHALL` and `RENAME`.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_by_an_operator_is_told_by_the_next_renewal() {
    let server = RedisServer::start();
    let (raw, name, other) = (server.raw(), unique("a"), unique("b"));
    let client = client(&server.url()).await;
    let removals = [&["DEL", &name][..], &["FLUSHALL"], &["RENAME", &name, &other]];
    for removal in removals {
        let guard = client.lock(&name).lock().await.expect("it is free");
        raw.cmd(removal).ok();
        assert_eq!(lost(&guard).await, LostReason::Removed, "{removal:?}");
        assert!(!guard.is_held() && guard.valid_until() <= Instant::now(), "{removal:?}");
        let error = guard.unlock().await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed), "{removal:?}");
    }
    // What was moved away is not renewed either.
    eventually("it ends", async || raw.cmd(&["EXISTS", &other]).int() == 0).await;
    assert_no_keys(&raw);
}

/// I8: between looking whether it is lost and waiting for that, nothing may be missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_to_whoever_begins_to_ask_for_it_at_that_moment() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let lock = client.lock(unique("a"));
    for _ in 0..200 {
        let guard = lock.lock().await.expect("it is free");
        let held: Held = (*guard).clone();
        let asking = tokio::task::spawn_blocking(move || {
            let mut before = None;
            loop {
                let mut lost = Box::pin(held.lost());
                if lost.as_mut().now_or_never().is_some() {
                    return before;
                }
                before = Some(lost);
            }
        });
        assert!(lock.force_unlock().await.expect("the server is up"));
        if let Some(lost) = asking.await.expect("it does not panic") {
            let reason = timeout(HANG, lost).await.expect("the holder is told");
            assert_eq!(reason, LostReason::Removed);
        }
    }
}

/// R-04, I4.
#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_lease_ends_and_its_holder_is_told() {
    let server = RedisServer::start();
    let name = unique("a");
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let guard = one.lock(&name).lock_with(SHORT / 3).await.expect("it is free");
    let deadline = guard.valid_until();
    assert_eq!(lost(&guard).await, LostReason::Expired);
    assert!(Instant::now() >= deadline);
    assert!(!guard.is_held() && !one.lock(&name).is_held_by_me());
    let next = timeout(HANG, two.lock(&name).lock()).await.expect("it comes free");
    let next = next.expect("the server is up");
    let error = guard.unlock().await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    next.unlock().await.expect("nobody touched it");
}

/// I2, I8: whoever gets the lock finds that the last holder knows already, although the server was
/// silent to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_knows_of_the_end_of_its_lease_before_anyone_else_holds_the_lock() {
    let server = RedisServer::start();
    let (name, proxy) = (unique("a"), Proxy::start(server.port()));
    let (one, two) = (client(&proxy.url()).await, client(&server.url()).await);
    for fixed in [false, true] {
        let lock = one.lock(&name);
        let lock = if fixed { lock.lease(SHORT) } else { lock };
        let guard = lock.owned_by(Owner::new()).lock().await.expect("it is free");
        proxy.half_open(true);
        let next = timeout(HANG, two.lock(&name).lock()).await.expect("the lease ends");
        let (held, told) = (guard.is_held(), guard.lost().now_or_never());
        assert!(!held, "fixed: {fixed}");
        assert_eq!(told, Some(LostReason::Expired), "fixed: {fixed}");
        assert!(guard.valid_until() <= Instant::now(), "fixed: {fixed}");
        proxy.half_open(false);
        drop(guard);
        next.expect("the server is up").unlock().await.expect("nobody touched it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_force_unlock_is_told_at_once() {
    let server = RedisServer::start();
    let name = unique("a");
    let client = Client::connect(server.url()).await.expect("the server is up");
    let guard = client.lock(&name).lock().await.expect("it is free");
    let waiting = tokio::spawn(client.lock(&name).lock());
    assert!(client.lock(&name).force_unlock().await.expect("the server is up"));
    assert_eq!(guard.lost().now_or_never(), Some(LostReason::Removed));
    let next = timeout(HANG, waiting).await.expect("it is free").expect("no panic");
    assert!(next.expect("the server is up").is_held());

    let nobody = client.lock(unique("b")).force_unlock().await.expect("the server is up");
    assert!(!nobody, "nobody held it");
}

/// R-47, I8.
#[tokio::test(flavor = "multi_thread")]
async fn a_force_unlock_by_others_is_told_by_the_next_renewal() {
    let server = RedisServer::start();
    let name = unique("a");
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let java = Redisson::connect(server.port());
    for by_java in [false, true] {
        let guard = one.lock(&name).lock().await.expect("it is free");
        if by_java {
            assert!(java.force_unlock(&name));
        } else {
            assert!(two.lock(&name).force_unlock().await.expect("the server is up"));
        }
        assert_eq!(lost(&guard).await, LostReason::Removed);
    }
}

/// I4.
#[tokio::test(flavor = "multi_thread")]
async fn a_force_unlock_of_one_holder_frees_the_lock_from_no_other() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let guard = one.lock(&name).lock().await.expect("it is free");
    let first = guard.holder();
    guard.unlock().await.expect("it is held");
    let guard = one.lock(&name).lock().await.expect("it is free");
    for client in [&one, &two] {
        let freed = client.lock(&name).force_unlock_if(&first).await;
        assert!(!freed.expect("the server is up"), "it is not that holder's any more");
    }
    assert!(guard.is_held());
    assert_eq!(guard.lost().now_or_never(), None);
    let holder = two.lock(&name).holder().await.expect("the server is up").expect("it is held");
    assert_eq!(holder, guard.holder());
    assert!(two.lock(&name).force_unlock_if(&holder).await.expect("the server is up"));
    assert_no_keys(&raw);
    assert_eq!(lost(&guard).await, LostReason::Removed);
}

/// I4: the classic. The stale guard does not know yet that its hold is gone, or it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_guard_never_touches_the_next_holder() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let one = Client::connect(server.url()).await.expect("the server is up");
    let two = client(&server.url()).await;
    for (by_drop, told) in [(false, false), (false, true), (true, false), (true, true)] {
        let stale = one.lock(&name).lock().await.expect("it is free");
        let freed = if told { &one } else { &two }.lock(&name).force_unlock().await;
        assert!(freed.expect("the server is up"));
        let guard = two.lock(&name).lock().await.expect("it is free");
        if by_drop {
            drop(stale);
            one.lock(&name).is_locked().await.expect("the server is up"); // behind the release
        } else {
            let error = stale.unlock().await.expect_err("it is lost");
            assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
        }
        let fields = raw.cmd(&["HGETALL", &name]).map();
        assert_eq!(fields.get(guard.holder().as_str()).map(|count| &**count), Some("1"));
        assert!(raw.cmd(&["PTTL", &name]).int() > 0);
        guard.unlock().await.expect("it is held");
    }
}

/// I5: a nested acquisition of a lost hold is never a silent fresh one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_hold_is_not_entered_again() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = Client::connect(server.url()).await.expect("the server is up");
    let lock = client.lock(&name).owned_by(Owner::new());
    let guard = lock.lock().await.expect("it is free");
    assert_eq!(raw.cmd(&["DEL", &name]).int(), 1);
    for attempt in ["the server says it", "it is known"] {
        let error = lock.lock().await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed), "{attempt}");
        assert_no_keys(&raw);
    }
    drop(guard);
    lock.lock().await.expect("it is free").unlock().await.expect("it is held");
}

/// Whoever has no guard is told by the next call, and only by that.
#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_forgotten_hold_is_told_once() {
    let server = RedisServer::start();
    let name = unique("a");
    let client = Client::connect(server.url()).await.expect("the server is up");
    let lock = client.lock(&name).owned_by(Owner::new());
    lock.lock().await.expect("it is free").forget();
    assert!(lock.is_held_by_me());
    assert!(lock.force_unlock().await.expect("the server is up"));
    let error = lock.unlock().await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    let error = lock.unlock().await.expect_err("it was told");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    lock.lock().await.expect("it is free").unlock().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shuts_down_lets_nobody_in_and_keeps_what_is_held() {
    let server = RedisServer::start();
    let (raw, ours, theirs) = (server.raw(), unique("a"), unique("b"));
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let owner = Owner::new();
    let guard = client.lock(&ours).owned_by(owner.clone()).lock().await.expect("it is free");
    let their_guard = other.lock(&theirs).lock().await.expect("it is free");
    let mut waiting = JoinSet::new();
    waiting.spawn(client.lock(&ours).lock());
    waiting.spawn(client.lock(&theirs).lock());
    waiting.spawn(client.lock(&theirs).lock());
    eventually("they wait", async || subscriptions(&raw) == 2).await;

    let leaving = client.clone();
    let leaving = tokio::spawn(async move { leaving.shutdown(HANG * 2).await });
    let ends = timeout(HANG, waiting.join_all()).await.expect("nobody waits on");
    assert!(ends.into_iter().all(|end| end.is_err_and(|e| e.kind() == ErrorKind::Closed)));
    let error = client.lock(unique("c")).lock().await.expect_err("nobody new");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let nested = client.lock(&ours).owned_by(owner).lock().await.expect("it is held already");
    outlives(&guard, SHORT * 2).await;
    nested.unlock().await.expect("it is held");
    assert!(!leaving.is_finished());
    drop(guard);
    timeout(HANG, leaving).await.expect("nothing is held any more").expect("no panic");
    assert_eq!(raw.cmd(&["EXISTS", &ours]).int(), 0);
    their_guard.unlock().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_under_a_living_guard_is_lost_but_not_released_when_grace_ends() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let builder = Client::builder(server.url()).expect("a URL").watchdog(SHORT * 5);
    let client = builder.connect().await.expect("the server is up");
    let guard = client.lock(&name).lock().await.expect("it is free");
    client.shutdown(SHORT / 2).await;
    assert_eq!(guard.lost().now_or_never(), Some(LostReason::ClientClosed));
    assert!(!guard.is_held());
    assert!(raw.cmd(&["PTTL", &name]).int() > 0, "the guard lives");
    let error = guard.unlock().await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::ClientClosed));
    eventually("its lease ends", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
}

/// I12.
#[tokio::test(flavor = "multi_thread")]
async fn closing_sends_the_releases_of_guards_that_were_just_dropped() {
    let server = RedisServer::start();
    let (raw, prefix) = (server.raw(), unique("a"));
    let client = Client::connect(server.url()).await.expect("the server is up");
    let mut guards = Vec::new();
    for number in 0..500 {
        let lock = client.lock(format!("{prefix}-{number}"));
        guards.push(lock.lock().await.expect("it is free"));
    }
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 500);
    drop(guards);
    client.close().await;
    assert_no_keys(&raw);
}

/// I12: also of a client that was never closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_client_leaves_no_task_and_no_socket() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    for closed in [false, true] {
        let (one, two) = (client(&server.url()).await, client(&server.url()).await);
        let guard = one.lock(&name).lock().await.expect("it is free");
        let waiting = tokio::spawn(two.lock(&name).lock());
        eventually("it waits", async || subscriptions(&raw) == 1).await;
        outlives(&guard, SHORT).await;
        assert!(sockets(&raw) >= 4, "commands of both, subscriptions, renewals");
        drop(guard);
        let guard = timeout(HANG, waiting).await.expect("it is free").expect("no panic");
        if closed {
            one.close().await;
            two.close().await;
        }
        drop((one, two, guard));
        eventually("all sockets are closed", async || sockets(&raw) == 0).await;
        eventually("all tasks have ended", async || alive() == before).await;
    }
    eventually("what was held is free", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

/// A client whose locks are renewed so often that a loss is soon noticed.
async fn client(url: &str) -> Client {
    let builder = Client::builder(url).expect("a URL").watchdog(SHORT);
    builder.connect().await.expect("the server is up")
}

async fn lost(held: &Held) -> LostReason {
    timeout(HANG, held.lost()).await.expect("the holder is told")
}

/// Waits until a hold would have ended without its renewals.
async fn outlives(held: &Held, lease: Duration) {
    let then = held.valid_until() + lease;
    eventually("it is renewed", async || {
        assert!(held.is_held());
        held.valid_until() > then
    })
    .await;
}

/// How many clients are connected besides the one that asks.
fn sockets(raw: &Raw) -> usize {
    raw.cmd(&["CLIENT", "LIST"]).text().lines().count() - 1
}

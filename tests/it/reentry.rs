//! Nested critical sections: who re-enters, how it is counted, and what becomes of the lease.

use crate::support::{
    assert_no_keys, eventually,
    server::{Raw, RedisServer},
    unique,
};
use leasehold::{Client, ErrorKind, Lease, Lock, LockGuard, LostReason, Owner};
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime;
use tokio::task::LocalSet;
use tokio::time::timeout;

/// Far longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// A server with a client, and a lock of it.
struct Setup {
    server: RedisServer,
    raw: Raw,
    lock: Lock,
}

impl Setup {
    async fn new() -> Arc<Self> {
        Self::renewing(Duration::from_secs(30)).await
    }

    async fn renewing(watchdog: Duration) -> Arc<Self> {
        let server = RedisServer::start();
        let raw = server.raw();
        let client = Client::builder(server.url()).unwrap().watchdog(watchdog);
        let client = client.connect().await.unwrap();
        let lock = client.lock(unique("nested"));
        Arc::new(Self { server, raw, lock })
    }

    /// The hold count at Redis; 0 if nobody holds the lock.
    fn count(&self) -> i64 {
        let held = self.raw.cmd(&["HVALS", self.lock.name()]).ok();
        assert!(held.items().len() <= 1, "more than one holder: {held:?}");
        held.items().first().map_or(0, |count| count.int())
    }

    fn ttl(&self) -> i64 {
        self.raw.cmd(&["PTTL", self.lock.name()]).int()
    }

    async fn count_becomes(&self, count: i64) {
        eventually(&format!("the count is {count}"), async || self.count() == count).await;
    }
}

/// Enters layer upon layer of critical sections, down to the fourth, and looks at Redis each time.
fn layer(setup: &Setup, depth: i64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let guard = setup.lock.lock().await.unwrap();
        assert_eq!(setup.count(), depth);
        assert_eq!((guard.hold_count(), setup.lock.hold_count()), (depth as u32, depth as u32));
        let field = guard.holder();
        let at_redis = setup.raw.cmd(&["HGET", setup.lock.name(), field.as_str()]);
        assert_eq!(at_redis.int(), depth);
        // Comes back to the executor between, and perhaps on another thread.
        tokio::task::yield_now().await;
        if depth < 4 {
            layer(setup, depth + 1).await;
            assert_eq!(setup.count(), depth);
        }
        guard.unlock().await.unwrap();
        assert_eq!(setup.count(), depth - 1);
    })
}

async fn within_bounds(work: impl Future<Output = ()>) {
    timeout(SOON, work).await.expect("a nested acquisition waits for itself");
}

/// I5.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn layers_of_calls_in_a_spawned_task_reenter() {
    let setup = Setup::new().await;
    let task = tokio::spawn(async move {
        within_bounds(layer(&setup, 1)).await;
        assert_no_keys(&setup.raw);
    });
    task.await.unwrap();
}

/// I5.
#[test]
fn layers_of_calls_in_the_root_future_of_one_thread_reenter() {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let setup = Setup::new().await;
        within_bounds(layer(&setup, 1)).await;
        assert_no_keys(&setup.raw);
    });
}

/// I5.
#[test]
fn layers_of_calls_in_the_root_future_of_many_threads_reenter() {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let setup = Setup::new().await;
        within_bounds(layer(&setup, 1)).await;
        assert_no_keys(&setup.raw);
    });
}

/// I5.
#[test]
fn one_thread_stays_one_owner_from_one_block_on_to_the_next() {
    let many = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let single = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runtime in [many, single] {
        let setup = runtime.block_on(Setup::new());
        let guard = runtime.block_on(setup.lock.lock()).unwrap();
        runtime.block_on(within_bounds(layer_inside(&setup)));
        assert_eq!(setup.count(), 1);
        runtime.block_on(guard.unlock()).unwrap();
        assert_no_keys(&setup.raw);
    }
}

/// The layers below one that is there already.
async fn layer_inside(setup: &Setup) {
    layer(setup, 2).await;
}

/// I5.
#[tokio::test]
async fn layers_of_calls_in_a_local_set_reenter() {
    let setup = Setup::new().await;
    let local = LocalSet::new();
    within_bounds(local.run_until(layer(&setup, 1))).await;
    let inside = setup.clone();
    let task = local.spawn_local(async move { layer(&inside, 1).await });
    local.run_until(async { within_bounds(async { task.await.unwrap() }).await }).await;
    assert_no_keys(&setup.raw);
}

/// I5.
#[tokio::test]
async fn a_section_inside_a_timeout_reenters() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    timeout(SOON, layer_inside(&setup)).await.unwrap();
    timeout(SOON, timeout(SOON, layer_inside(&setup))).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I5.
#[tokio::test]
async fn a_section_inside_a_select_reenters() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    for _ in 0..4 {
        tokio::select! {
            () = layer_inside(&setup) => {}
            reason = guard.lost() => panic!("lost: {reason}"),
            () = pending() => {}
            () = tokio::time::sleep(SOON) => panic!("a nested acquisition waits for itself"),
        }
    }
    guard.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I5: in every order, whether dropped or unlocked, the last release is the one that frees it.
#[tokio::test]
async fn as_many_releases_are_needed_as_acquisitions_in_any_order() {
    let setup = Setup::new().await;
    let other = Client::connect(setup.server.url()).await.unwrap();
    let other = other.lock(setup.lock.name());
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut guards: Vec<Option<LockGuard>> = Vec::new();
        for n in 1..=4 {
            guards.push(Some(setup.lock.lock().await.unwrap()));
            assert_eq!(setup.count(), n);
        }
        for (released, at) in order.into_iter().enumerate() {
            assert!(other.try_lock_now().await.unwrap().is_none(), "free after {released}");
            let guard = guards[at].take().unwrap();
            if at % 2 == 0 {
                guard.unlock().await.unwrap();
                assert_eq!(setup.count(), 3 - released as i64);
            } else {
                drop(guard);
                setup.count_becomes(3 - released as i64).await;
            }
        }
        assert_no_keys(&setup.raw);
    }
}

/// I5: without a guard it is the same.
#[tokio::test]
async fn releases_without_a_guard_count_as_well() {
    let setup = Setup::new().await;
    for n in 1..=3 {
        setup.lock.lock().await.unwrap().forget();
        assert_eq!(setup.count(), n);
    }
    for n in (0..3).rev() {
        setup.lock.unlock().await.unwrap();
        assert_eq!(setup.count(), n);
    }
    let error = setup.lock.unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

/// I5, R-47: a nested acquisition that finds the lock gone is not a fresh one in disguise.
#[tokio::test]
async fn a_nested_acquisition_after_a_removal_is_an_error() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    setup.raw.cmd(&["DEL", setup.lock.name()]).ok();
    let error = setup.lock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    assert_no_keys(&setup.raw);
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LostReason::Removed);
    let again = setup.lock.try_lock_now().await.unwrap_err();
    assert!(again.is_lost(), "while the guard of the lost hold lives: {again}");
    drop(guard);
    let fresh = setup.lock.lock().await.unwrap();
    assert_eq!(setup.count(), 1);
    fresh.unlock().await.unwrap();
}

/// I5, I4, R-47.
#[tokio::test]
async fn a_nested_acquisition_does_not_touch_who_took_over() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    setup.raw.cmd(&["DEL", setup.lock.name()]).ok();
    setup.raw.cmd(&["HSET", setup.lock.name(), "java:1", "1"]).ok();
    let error = setup.lock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    drop(guard);
    let fields = setup.raw.cmd(&["HGETALL", setup.lock.name()]).map();
    assert_eq!(fields.into_iter().collect::<Vec<_>>(), [("java:1".into(), "1".into())]);
}

/// I5, I8, R-47: the same when the loss was told before.
#[tokio::test]
async fn a_nested_acquisition_after_a_told_loss_is_an_error() {
    let setup = Setup::renewing(Duration::from_secs(1)).await;
    let guard = setup.lock.lock().await.unwrap();
    setup.raw.cmd(&["DEL", setup.lock.name()]).ok();
    let reason = timeout(SOON, guard.lost()).await.unwrap();
    let error = setup.lock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(reason));
    assert_no_keys(&setup.raw);
}

/// I5, I8, R-04.
#[tokio::test]
async fn a_nested_acquisition_after_the_end_of_a_fixed_lease_is_an_error() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock_with(Duration::from_millis(300)).await.unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LostReason::Expired);
    let error = setup.lock.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    let error = guard.unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    let fresh = setup.lock.lock().await.unwrap();
    assert_eq!(setup.count(), 1);
    fresh.unlock().await.unwrap();
}

/// I5, R-24.
#[tokio::test]
async fn a_nested_short_lease_does_not_shorten_a_renewed_one() {
    let setup = Setup::new().await;
    let outer = setup.lock.lock().await.unwrap();
    let before = outer.valid_until();
    let inner = setup.lock.lock_with(Duration::from_millis(50)).await.unwrap();
    assert_eq!(setup.count(), 2);
    assert!(setup.ttl() > 5_000, "{}", setup.ttl());
    assert!(inner.valid_until() >= before - Duration::from_millis(1));
    inner.unlock().await.unwrap();
    assert!(setup.ttl() > 5_000, "{}", setup.ttl());
    assert!(outer.is_held());
    outer.unlock().await.unwrap();
}

/// I5: also when both are fixed.
#[tokio::test]
async fn a_nested_longer_lease_raises_the_one_around_it() {
    let setup = Setup::new().await;
    for outer in [Lease::Renewed, Duration::from_secs(40).into()] {
        let outer = setup.lock.lock_with(outer).await.unwrap();
        let before = outer.valid_until();
        assert!(setup.ttl() < 60_000);
        let inner = setup.lock.lock_with(Duration::from_secs(120)).await.unwrap();
        assert!(setup.ttl() > 60_000);
        assert!(inner.valid_until() > before + Duration::from_secs(30));
        assert!(outer.valid_until() > before + Duration::from_secs(30));
        // A partial release leaves the lease alone.
        inner.unlock().await.unwrap();
        assert!(setup.ttl() > 60_000);
        outer.unlock().await.unwrap();
    }
}

/// I5, I7: while the nested guard lives its hold is renewed, whichever of the leases is longer,
/// and after it no more.
async fn renewed_inside_fixed(fixed: Duration, watchdog: Duration) {
    let setup = Setup::renewing(watchdog).await;
    let outer = setup.lock.lock_with(fixed).await.unwrap();
    let end_of_fixed = outer.valid_until();
    // By now nothing looks at the hold until its lease ends.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let inner = setup.lock.lock_with(Lease::Renewed).await.unwrap();
    let first = inner.valid_until();
    eventually("a renewal has come", async || {
        assert!(outer.is_held(), "lost in spite of a renewed guard");
        outer.valid_until() > first.max(end_of_fixed) + Duration::from_millis(100)
    })
    .await;
    inner.unlock().await.unwrap();
    assert!(outer.is_held());
    assert_eq!(timeout(SOON, outer.lost()).await.unwrap(), LostReason::Expired);
}

#[tokio::test]
async fn a_renewed_section_keeps_a_shorter_fixed_lease_alive() {
    renewed_inside_fixed(Duration::from_secs(2), Duration::from_secs(3)).await;
}

#[tokio::test]
async fn a_renewed_section_keeps_a_longer_fixed_lease_alive() {
    renewed_inside_fixed(Duration::from_secs(4), Duration::from_secs(3)).await;
}

/// I5.
#[tokio::test]
async fn the_hold_count_is_the_owners_and_of_the_scopes_inside_it() {
    let setup = Setup::new().await;
    let lock = &setup.lock;
    assert_eq!((lock.hold_count(), lock.is_held_by_me()), (0, false));
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    assert_eq!((lock.hold_count(), lock.is_held_by_me()), (2, true));
    let seen = Owner::scope(async { (lock.hold_count(), lock.is_held_by_me()) }).await;
    assert_eq!(seen, (2, true), "a scope inside the owner");
    let other = lock.clone();
    let seen = tokio::spawn(async move { (other.hold_count(), other.is_held_by_me()) });
    assert_eq!(seen.await.unwrap(), (0, false), "another task");
    let stranger = lock.clone().owned_by(Owner::new());
    assert_eq!((stranger.hold_count(), stranger.is_held_by_me()), (0, false));
    assert!(stranger.is_locked().await.unwrap());
    inner.unlock().await.unwrap();
    assert_eq!((lock.hold_count(), outer.hold_count()), (1, 1));
    outer.unlock().await.unwrap();
    assert_eq!((lock.hold_count(), lock.is_held_by_me()), (0, false));
}

/// I2.
#[tokio::test]
async fn a_hold_of_a_scope_is_not_its_parents() {
    let setup = Setup::new().await;
    let guard = Owner::scope(async {
        let guard = setup.lock.lock().await.unwrap();
        assert_eq!(setup.lock.hold_count(), 1);
        guard
    })
    .await;
    assert_eq!((setup.lock.hold_count(), setup.lock.is_held_by_me()), (0, false));
    assert!(setup.lock.try_lock_now().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

/// I2.
#[tokio::test]
async fn a_spawned_task_does_not_reenter_what_its_parent_holds() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    let child = tokio::spawn(setup.lock.try_lock_now()).await.unwrap().unwrap();
    assert!(child.is_none());
    let lock = setup.lock.clone();
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    assert_eq!(setup.count(), 1);
    guard.unlock().await.unwrap();
    timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
}

/// I2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_child_does_not_reenter_what_its_parent_holds() {
    let setup = Setup::new().await;
    let holder = setup.clone();
    let child = tokio::spawn(async move {
        let guard = holder.lock.lock().await.unwrap();
        let (lock, handle) = (holder.lock.clone(), runtime::Handle::current());
        let child = tokio::task::spawn_blocking(move || handle.block_on(lock.try_lock_now()));
        let child = child.await.unwrap().unwrap();
        assert_eq!(holder.count(), 1);
        guard.unlock().await.unwrap();
        child.is_none()
    });
    assert!(child.await.unwrap(), "the blocking child got in");
    // Alone it can lock like anyone else.
    let (lock, handle) = (setup.lock.clone(), runtime::Handle::current());
    let alone = tokio::task::spawn_blocking(move || {
        handle.block_on(async {
            let guard = lock.lock().await.unwrap();
            let nested = lock.lock().await.unwrap();
            nested.unlock().await.unwrap();
            guard.unlock().await
        })
    });
    timeout(SOON, alone).await.unwrap().unwrap().unwrap();
}

/// I10: what a guard that was just dropped gives back is on its way, and no reason to fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_right_after_a_drop_gets_the_lock() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let shared = client.read_write_lock(unique("shared"));
    for lock in [client.lock(unique("plain")), shared.write(), shared.read()] {
        for round in 0..100 {
            let guard = lock.try_lock_now().await.unwrap().expect("it is free");
            drop(lock.try_lock_now().await.unwrap().expect("it is ours"));
            let nested = lock.try_lock_now().await.unwrap().expect("it is still ours");
            drop((nested, guard));
            if round % 2 == 0 {
                let other = lock.clone().owned_by(Owner::new());
                drop(other.try_lock_now().await.unwrap().expect("it is free again"));
            }
        }
    }
    client.close().await;
    assert_no_keys(&server.raw());
}

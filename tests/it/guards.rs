//! How a hold is kept and given back: guards, holds without one, leases, bodies of `with`.

use crate::support::{
    Capture, assert_no_keys, eventually,
    proxy::{Proxy, mentioning},
    server::{Raw, RedisServer, until},
    unique,
};
use leasehold::{
    Client, Error, ErrorKind, Held, Lease, Lock, LockGuard, LostReason, Owner, SHORTEST_LEASE,
};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::Level;

/// Far longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// For leases that are to end.
const SHORT: Duration = Duration::from_millis(400);

/// A server, and a lock of one client of it.
struct Setup {
    server: RedisServer,
    raw: Raw,
    lock: Lock,
}

impl Setup {
    async fn new() -> Self {
        Self::renewing(Duration::from_secs(30)).await
    }

    async fn renewing(watchdog: Duration) -> Self {
        let server = RedisServer::start();
        let client = Client::builder(server.url()).unwrap().watchdog(watchdog);
        let lock = client.connect().await.unwrap().lock(unique("guarded"));
        Self { raw: server.raw(), server, lock }
    }

    /// The same lock as another process sees it.
    async fn elsewhere(&self) -> Lock {
        Client::connect(self.server.url()).await.unwrap().lock(self.lock.name())
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

    fn remove(&self) {
        assert_eq!(self.raw.cmd(&["DEL", self.lock.name()]).int(), 1);
    }

    async fn becomes_free(&self) {
        eventually("the lock is free", async || self.count() == 0).await;
    }
}

async fn within_bounds<T>(work: impl Future<Output = T>) -> T {
    timeout(SOON, work).await.expect("this hangs")
}

#[track_caller]
fn assert_kind<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

const NOT_HELD: ErrorKind = ErrorKind::NotHeld;
const EXPIRED: ErrorKind = ErrorKind::LeaseLost(LostReason::Expired);
const REMOVED: ErrorKind = ErrorKind::LeaseLost(LostReason::Removed);

// ---- giving back -----------------------------------------------------------------------------

/// I12.
#[tokio::test]
async fn a_dropped_guard_gives_the_lock_back() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    assert_eq!(setup.count(), 1);
    drop(guard);
    setup.becomes_free().await;
}

/// I12.
#[tokio::test]
async fn unlock_ends_when_the_lock_is_free() {
    let setup = Setup::new().await;
    for _ in 0..20 {
        setup.lock.lock().await.unwrap().unlock().await.unwrap();
        assert_no_keys(&setup.raw);
    }
}

/// I12, R-38: also when its future is dropped before or between polls.
#[tokio::test]
async fn an_unlock_that_is_not_awaited_gives_the_lock_back() {
    let setup = Setup::new().await;
    drop(setup.lock.lock().await.unwrap().unlock());
    setup.becomes_free().await;
    let guard = setup.lock.lock().await.unwrap();
    let _ = futures::poll!(std::pin::pin!(guard.unlock()));
    setup.becomes_free().await;
    assert!(!setup.lock.is_held_by_me());
}

/// I4: a hold is given back once, whoever tries again.
#[tokio::test]
async fn nothing_is_released_twice() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    // Without the guard, which is left empty.
    setup.lock.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
    assert!(!guard.is_held());
    assert_kind(setup.lock.unlock().await, NOT_HELD);
    let other = setup.elsewhere().await.lock().await.unwrap();
    assert_kind(guard.unlock().await, NOT_HELD);
    assert_eq!(setup.count(), 1);
    other.unlock().await.unwrap();
}

/// I4, I5: an empty guard does not take a later hold of its own owner with it.
#[tokio::test]
async fn an_empty_guard_releases_nothing_of_the_next_hold() {
    let setup = Setup::new().await;
    let empty = setup.lock.lock().await.unwrap();
    setup.lock.unlock().await.unwrap();
    let next = setup.lock.lock().await.unwrap();
    drop(empty);
    let nested = setup.lock.lock().await.unwrap();
    assert_eq!(setup.count(), 2);
    nested.unlock().await.unwrap();
    assert!(next.is_held());
    next.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
}

/// I5.
#[tokio::test]
async fn the_last_guard_of_a_hold_frees_it_not_the_first() {
    let setup = Setup::new().await;
    let outer = setup.lock.lock().await.unwrap();
    let inner = setup.lock.lock().await.unwrap();
    drop(outer);
    eventually("the count is 1", async || setup.count() == 1).await;
    assert!(inner.is_held() && setup.lock.is_held_by_me());
    drop(inner);
    setup.becomes_free().await;
}

/// I4: a release by whoever does not hold it changes nothing.
#[tokio::test]
async fn an_unlock_by_another_owner_has_no_effect() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    let lock = setup.lock.clone();
    assert_kind(tokio::spawn(async move { lock.unlock().await }).await.unwrap(), NOT_HELD);
    assert_kind(setup.lock.clone().owned_by(Owner::new()).unlock().await, NOT_HELD);
    assert_kind(Owner::scope(setup.lock.unlock()).await, NOT_HELD);
    assert_kind(setup.elsewhere().await.unlock().await, NOT_HELD);
    assert!(guard.is_held());
    assert_eq!(setup.count(), 1);
    guard.unlock().await.unwrap();
}

/// I4: what this process does not hold it need not ask about.
#[tokio::test]
async fn an_unlock_of_what_is_not_held_sends_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let lock = Client::connect(proxy.url()).await.unwrap().lock(unique("not-held"));
    assert_kind(lock.unlock().await, NOT_HELD);
    assert_eq!(proxy.count(mentioning(lock.name())), 0);
    lock.lock().await.unwrap().unlock().await.unwrap();
    let sent = proxy.count(mentioning(lock.name()));
    assert!(sent >= 2, "the proxy sees what is sent");
    assert_kind(lock.unlock().await, NOT_HELD);
    assert_eq!(proxy.count(mentioning(lock.name())), sent);
}

///
#[tokio::test]
async fn a_panic_in_a_critical_section_gives_the_lock_back() {
    let setup = Setup::new().await;
    let lock = setup.lock.clone();
    let task = tokio::spawn(async move {
        let _outer = lock.lock().await.unwrap();
        let _inner = lock.lock().await.unwrap();
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    setup.becomes_free().await;
    let lock = setup.lock.clone();
    let task = tokio::spawn(async move { lock.with(|_| async { panic!("on purpose") }).await });
    assert!(task.await.unwrap_err().is_panic());
    setup.becomes_free().await;
}

///
#[tokio::test]
async fn an_aborted_task_gives_its_lock_back() {
    let setup = Setup::new().await;
    let lock = setup.lock.clone();
    let task = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        pending::<()>().await;
    });
    eventually("it is held", async || setup.count() == 1).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    setup.becomes_free().await;
}

// ---- elsewhere -------------------------------------------------------------------------------

const ELSEWHERE: &str = "a guard was dropped in another task";

/// I12.
#[tokio::test]
async fn a_guard_dropped_in_another_task_is_given_back_and_logged() {
    let capture = Capture::new();
    let _recording = capture.install();
    let setup = Setup::new().await;
    drop(setup.lock.lock().await.unwrap());
    assert!(capture.saying(ELSEWHERE).is_empty(), "in its own task that is no matter");
    setup.becomes_free().await;
    let guard = setup.lock.lock().await.unwrap();
    tokio::spawn(async move { drop(guard) }).await.unwrap();
    setup.becomes_free().await;
    let events = capture.saying(ELSEWHERE);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].level, Level::WARN);
    assert_eq!(events[0].field("lock"), Some(setup.lock.name()));
}

/// I12: with an owner of its own it may go anywhere.
#[tokio::test]
async fn a_detached_guard_may_be_dropped_anywhere() {
    let capture = Capture::new();
    let _recording = capture.install();
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap().detach();
    tokio::spawn(async move { drop(guard) }).await.unwrap();
    setup.becomes_free().await;
    assert!(capture.saying(ELSEWHERE).is_empty());
}

/// I12, R-39.
#[tokio::test]
async fn a_guard_dropped_on_a_plain_thread_is_given_back_and_logged() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock().await.unwrap();
    let capture = Capture::new();
    let recorder = capture.clone();
    let thread = thread::spawn(move || {
        let _recording = recorder.install();
        drop(guard);
    });
    thread.join().unwrap();
    setup.becomes_free().await;
    assert_eq!(capture.saying(ELSEWHERE).len(), 1);
}

/// R-39, I6, I7: nobody is there to send the release; the lease runs out.
fn after_the_runtimes_end(runtime: tokio::runtime::Runtime) {
    let setup = runtime.block_on(Setup::renewing(Duration::from_secs(2)));
    let (first, second) = runtime
        .block_on(async { (setup.lock.lock().await.unwrap(), setup.lock.lock().await.unwrap()) });
    let (done, wait) = mpsc::channel();
    let lock = setup.lock.clone();
    thread::spawn(move || {
        drop(runtime);
        let seen = (first.is_held(), first.hold_count(), lock.hold_count());
        drop(first);
        second.forget();
        drop(lock);
        done.send(seen).unwrap();
    });
    let (is_held, own, _) = wait.recv_timeout(SOON).expect("no panic, and no hang");
    assert!(is_held && own == 2);
    // The handle that is left keeps the client, but nothing renews.
    until("the lease has ended", || setup.count() == 0);
    drop(setup.lock);
}

#[test]
fn a_guard_outlives_its_runtime_of_many_threads() {
    after_the_runtimes_end(tokio::runtime::Runtime::new().unwrap());
}

#[test]
fn a_guard_outlives_its_runtime_of_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    after_the_runtimes_end(runtime.unwrap());
}

// ---- without a guard -------------------------------------------------------------------------

async fn begin_work(lock: &Lock) {
    lock.lock().await.unwrap().forget();
}

async fn end_work(lock: &Lock) -> Result<(), Error> {
    lock.unlock().await
}

/// I4, I5.
#[tokio::test]
async fn a_forgotten_hold_is_given_back_by_another_function() {
    let setup = Setup::new().await;
    begin_work(&setup.lock).await;
    assert_eq!((setup.count(), setup.lock.hold_count()), (1, 1));
    let nested = setup.lock.lock().await.unwrap();
    // What has no guard goes first, however old it is.
    end_work(&setup.lock).await.unwrap();
    assert!(nested.is_held());
    assert_eq!(setup.count(), 1);
    nested.unlock().await.unwrap();
    assert_no_keys(&setup.raw);
    assert_kind(end_work(&setup.lock).await, NOT_HELD);
}

/// I7: nothing tells us that a task has ended, so nothing renews what it forgot. Returns when the
/// lease is over, and what told so is yet to be asked.
async fn forgotten_and_lost() -> Setup {
    let setup = Setup::renewing(SHORT).await;
    begin_work(&setup.lock).await;
    assert!(setup.lock.is_held_by_me());
    setup.becomes_free().await;
    setup
}

/// I7, I8.
#[tokio::test]
async fn the_loss_of_a_forgotten_hold_is_told_once_by_unlock() {
    let setup = forgotten_and_lost().await;
    assert_kind(end_work(&setup.lock).await, EXPIRED);
    assert_kind(end_work(&setup.lock).await, NOT_HELD);
    setup.lock.lock().await.unwrap().unlock().await.unwrap();
}

/// I7, I8.
#[tokio::test]
async fn the_loss_of_a_forgotten_hold_is_told_once_by_the_next_acquisition() {
    let setup = forgotten_and_lost().await;
    assert_kind(setup.lock.lock().await, EXPIRED);
    assert_no_keys(&setup.raw);
    let fresh = setup.lock.lock().await.unwrap();
    assert_eq!((setup.count(), fresh.hold_count()), (1, 1));
    fresh.unlock().await.unwrap();
}

/// I7, I8.
#[tokio::test]
async fn the_loss_of_a_forgotten_hold_is_told_once_by_is_held_by_me() {
    let setup = forgotten_and_lost().await;
    assert!(!setup.lock.is_held_by_me());
    assert_kind(end_work(&setup.lock).await, NOT_HELD);
    setup.lock.lock().await.unwrap().unlock().await.unwrap();
}

/// I7, I8: to its own owner, not to others.
#[tokio::test]
async fn the_loss_of_a_forgotten_hold_is_told_to_its_owner() {
    let setup = forgotten_and_lost().await;
    let lock = setup.lock.clone();
    let other = tokio::spawn(async move {
        assert_kind(lock.unlock().await, NOT_HELD);
        lock.lock().await.unwrap().unlock().await
    });
    other.await.unwrap().unwrap();
    assert_kind(end_work(&setup.lock).await, EXPIRED);
}

/// I7: renewed for as long as somebody keeps its owner, and no longer.
#[tokio::test]
async fn a_forgotten_hold_lives_as_long_as_its_explicit_owner() {
    let server = RedisServer::start();
    let (raw, proxy) = (server.raw(), Proxy::start(server.port()));
    let client = Client::builder(proxy.url()).unwrap().watchdog(Duration::from_secs(1));
    let client = client.connect().await.unwrap();
    let (name, owner) = (unique("kept"), Owner::new());
    client.lock(&name).owned_by(owner.clone()).lock().await.unwrap().forget();
    // As many renewals as take longer than the lease.
    let sent = proxy.count(mentioning(&name));
    proxy.wait_for(mentioning(&name), sent + 6).await;
    assert_eq!(raw.cmd(&["EXISTS", &name]).int(), 1);
    drop(owner);
    eventually("the lease has ended", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
}

/// I7: the owner of a scope ends with it.
#[tokio::test]
async fn a_hold_forgotten_in_a_scope_ends_after_it() {
    let setup = Setup::renewing(SHORT).await;
    Owner::scope(begin_work(&setup.lock)).await;
    setup.becomes_free().await;
}

// ---- the lease -------------------------------------------------------------------------------

/// I5, R-24.
#[tokio::test]
async fn extend_raises_the_lease_and_never_shortens_it() {
    let setup = Setup::new().await;
    let guard = setup.lock.lock_with(Duration::from_secs(10)).await.unwrap();
    let before = guard.valid_until();
    guard.extend(Duration::from_secs(100)).await.unwrap();
    assert!(setup.ttl() > 50_000);
    let raised = guard.valid_until();
    assert!(raised > before + Duration::from_secs(50));
    guard.extend(SHORTEST_LEASE).await.unwrap();
    assert!(setup.ttl() > 50_000);
    assert!(guard.valid_until() + Duration::from_millis(1) >= raised);
    for bad in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        assert_kind(guard.extend(bad).await, ErrorKind::InvalidDuration);
    }
    assert!(setup.ttl() > 50_000 && guard.is_held());
    guard.unlock().await.unwrap();
}

/// I4, I8.
#[tokio::test]
async fn extend_says_so_when_there_is_nothing_to_extend() {
    let setup = Setup::new().await;
    let lease = Duration::from_secs(30);
    let guard = setup.lock.lock().await.unwrap();
    let held: Held = guard.clone();
    guard.unlock().await.unwrap();
    assert_kind(held.extend(lease).await, NOT_HELD);
    assert_no_keys(&setup.raw);
    let guard = setup.lock.lock_with(SHORT).await.unwrap();
    within_bounds(guard.lost()).await;
    assert_kind(guard.extend(lease).await, EXPIRED);
    drop(guard);
    let guard = setup.lock.lock().await.unwrap();
    setup.remove();
    assert_kind(guard.extend(lease).await, REMOVED);
    assert_eq!(within_bounds(guard.lost()).await, LostReason::Removed);
    assert_no_keys(&setup.raw);
}

/// What a view says of a hold that is over.
#[track_caller]
fn assert_over(held: &Held) {
    assert!(!held.is_held());
    assert!(held.valid_until() <= Instant::now());
    assert_eq!(held.hold_count(), 0);
}

/// I2, I8.
#[tokio::test]
async fn a_view_follows_its_hold_to_the_end() {
    let setup = Setup::new().await;
    for lease in [Lease::Renewed, Duration::from_secs(30).into()] {
        let guard = setup.lock.lock_with(lease).await.unwrap();
        let held = guard.clone();
        assert!(held.is_held());
        assert!(held.valid_until() > Instant::now() + Duration::from_secs(10));
        assert_eq!((held.hold_count(), held.name()), (1, setup.lock.name()));
        assert_eq!(setup.lock.holder().await.unwrap(), Some(held.holder()));
        guard.unlock().await.unwrap();
        assert_over(&held);
    }
    let guard = setup.lock.lock_with(SHORT).await.unwrap();
    let held = guard.clone();
    assert_eq!(within_bounds(held.lost()).await, LostReason::Expired);
    assert_over(&held);
    assert_kind(guard.unlock().await, EXPIRED);
    assert_over(&held);
}

/// I8, R-47.
#[tokio::test]
async fn a_removal_ends_the_hold_in_every_view() {
    let setup = Setup::renewing(Duration::from_secs(1)).await;
    let guard = setup.lock.lock().await.unwrap();
    let nested = setup.lock.lock().await.unwrap();
    setup.remove();
    assert_eq!(within_bounds(guard.lost()).await, LostReason::Removed);
    assert_eq!(within_bounds(nested.lost()).await, LostReason::Removed);
    assert_over(&guard);
    assert_over(&nested);
    assert!(!setup.lock.is_held_by_me());
    assert_kind(nested.unlock().await, REMOVED);
    assert_kind(guard.unlock().await, REMOVED);
    assert_kind(setup.lock.unlock().await, NOT_HELD);
}

/// I8: the end of a lease that does not matter any more is not a loss.
#[tokio::test]
async fn lost_never_resolves_for_a_lock_that_was_given_back() {
    let setup = Setup::renewing(SHORT).await;
    let fixed = Duration::from_millis(500).into();
    for lease in [Lease::Renewed, fixed] {
        let guard = setup.lock.lock_with(lease).await.unwrap();
        let (before, held) = (guard.lost(), guard.clone());
        let early = tokio::spawn(before);
        guard.unlock().await.unwrap();
        let both = async {
            tokio::select! { r = early => r.unwrap(), r = held.lost() => r }
        };
        // Twice the lease.
        let told = timeout(Duration::from_secs(1), both).await;
        assert!(told.is_err(), "{told:?}");
    }
}

// ---- bodies ----------------------------------------------------------------------------------

async fn a_function(held: Held) -> u32 {
    held.hold_count()
}

/// I5: what users write compiles, runs once, and under the lock.
#[tokio::test]
async fn every_form_of_body_runs_under_the_lock() {
    let setup = Setup::new().await;
    let lock = &setup.lock;
    lock.with(|_| async {}).await.unwrap();
    let held = lock.with(|held| async move { (held.is_held(), held.hold_count()) });
    assert_eq!(held.await.unwrap(), (true, 1));
    assert_eq!(lock.with(async |held| held.hold_count()).await.unwrap(), 1);
    assert_eq!(lock.with(a_function).await.unwrap(), 1);
    let (mut runs, seen) = (0, AtomicUsize::new(0));
    lock.with(|_| async { runs += setup.count() }).await.unwrap();
    lock.with(async |_| seen.fetch_add(1, SeqCst)).await.unwrap();
    assert_eq!((runs, seen.into_inner()), (1, 1));
    let text = String::from("moved");
    assert_eq!(lock.with(move |_| async move { text.len() }).await.unwrap(), 5);
    let fails = lock.with(|_| async { "x".parse::<u8>() }).await.unwrap();
    assert!(fails.is_err());
    let boxed: Box<dyn FnOnce(Held) -> futures::future::BoxFuture<'static, u32> + Send> =
        Box::new(|held| Box::pin(a_function(held)));
    assert_eq!(lock.with(boxed).await.unwrap(), 1);
    assert_no_keys(&setup.raw);
}

/// I10.
#[tokio::test]
async fn try_with_runs_the_body_if_the_lock_is_free_and_not_else() {
    let setup = Setup::new().await;
    let (lock, lease) = (&setup.lock, Duration::from_secs(10));
    let ran = lock.try_with(Duration::ZERO, lease, async |held| held.hold_count()).await;
    assert_eq!(ran.unwrap(), Some(1));
    let other = setup.elsewhere().await.lock().await.unwrap();
    let ran = lock.try_with(Duration::from_millis(50), Lease::Renewed, |_| async { 1 }).await;
    assert_eq!(ran.unwrap(), None);
    other.unlock().await.unwrap();
    let invalid = lock.try_with(Duration::ZERO, Duration::ZERO, |_| async {}).await;
    assert_kind(invalid, ErrorKind::InvalidDuration);
}

/// A wrapper as a service may have one.
fn in_a_task<F, Fut, T>(lock: Lock, body: F) -> tokio::task::JoinHandle<Result<T, Error>>
where
    F: FnOnce(Held) -> Fut + Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(lock.with(body))
}

async fn bounded<F, Fut, T>(lock: &Lock, body: F) -> Result<Option<T>, Error>
where
    F: FnOnce(Held) -> Fut,
    Fut: Future<Output = T>,
{
    lock.try_with(Duration::from_secs(1), Duration::from_secs(10), body).await
}

#[tokio::test]
async fn generic_code_can_spawn_and_wrap_a_body() {
    let setup = Setup::new().await;
    assert_eq!(in_a_task(setup.lock.clone(), a_function).await.unwrap().unwrap(), 1);
    let number = in_a_task(setup.lock.clone(), |_| async { 7 });
    assert_eq!(number.await.unwrap().unwrap(), 7);
    let lock = setup.lock.clone();
    let nested = in_a_task(setup.lock.clone(), |_| async move { lock.lock().await.is_ok() });
    assert!(within_bounds(nested).await.unwrap().unwrap());
    let local = std::rc::Rc::new(8);
    assert_eq!(bounded(&setup.lock, |_| async { *local }).await.unwrap(), Some(8));
}

/// I5.
#[tokio::test]
async fn a_lock_inside_a_body_reenters() {
    let setup = &Setup::new().await;
    let lock = &setup.lock;
    let body = lock.with(|held| async move {
        let nested = lock.lock().await.unwrap();
        let deeper = lock.with(|_| async { setup.count() }).await.unwrap();
        nested.unlock().await.unwrap();
        (deeper, held.hold_count(), lock.is_held_by_me())
    });
    assert_eq!(within_bounds(body).await.unwrap(), (3, 1, true));
    assert_no_keys(&setup.raw);
    // The body is a scope: it cannot give back what is around it.
    let unlocked = lock.with(|_| lock.unlock()).await.unwrap();
    assert_kind(unlocked, NOT_HELD);
    assert_no_keys(&setup.raw);
}

/// Says when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// I2, I8, R-47.
#[tokio::test]
async fn a_body_is_dropped_when_its_lock_is_removed() {
    let setup = Setup::renewing(Duration::from_secs(1)).await;
    let (dropped, after) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let flag = Flag(dropped.clone());
    let body = setup.lock.with(async |held| {
        let _flag = flag;
        setup.remove();
        held.lost().await;
        // Told in the same poll as the end of the body, at the latest.
        tokio::task::yield_now().await;
        after.store(true, SeqCst);
    });
    assert_kind(within_bounds(body).await, REMOVED);
    assert!(dropped.load(SeqCst) && !after.load(SeqCst));
    setup.lock.lock().await.unwrap().unlock().await.unwrap();
}

/// I2, I8, R-04: busy or not, it is not polled past the deadline.
#[tokio::test]
async fn a_body_is_not_polled_after_its_lease() {
    let setup = Setup::new().await;
    for idle in [true, false] {
        let late = AtomicBool::new(false);
        let body = setup.lock.try_with(SOON, SHORT, |held| async move {
            loop {
                // The end may come amid a poll; that one then was the last.
                let over = !held.is_held() && held.valid_until() < Instant::now();
                assert!(!late.fetch_or(over, SeqCst), "polled after the end");
                if idle {
                    pending::<()>().await;
                }
                tokio::task::yield_now().await;
            }
        });
        let result: Result<Option<()>, Error> = within_bounds(body).await;
        assert_kind(result, EXPIRED);
        setup.becomes_free().await;
    }
}

///
#[tokio::test]
async fn dropping_the_future_of_with_drops_the_body_and_gives_the_lock_back() {
    let setup = Setup::new().await;
    let (started, dropped) = (Notify::new(), Arc::new(AtomicBool::new(false)));
    let flag = Flag(dropped.clone());
    let body = async |_| {
        let _flag = flag;
        started.notify_one();
        pending::<()>().await;
    };
    tokio::select! {
        ended = setup.lock.with(body) => panic!("ended: {ended:?}"),
        () = started.notified() => {}
    }
    assert!(dropped.load(SeqCst));
    setup.becomes_free().await;
    // Before its first poll it has done nothing.
    drop(setup.lock.with(|_| async { panic!("runs") }));
    assert_no_keys(&setup.raw);
}

/// I4, I8: the lease ended while the body was in its last breath: that is not success.
#[tokio::test]
async fn a_body_that_ends_too_late_is_an_error() {
    let setup = Setup::new().await;
    let body = setup.lock.try_with(SOON, SHORT, |held| async move {
        while held.is_held() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert_kind(within_bounds(body).await, EXPIRED);
}

/// The type says it already: a guard is given back by being consumed.
#[test]
fn a_guard_cannot_be_unlocked_twice() {
    fn consumes<Fut>(_: impl FnOnce(LockGuard) -> Fut) {}
    consumes(LockGuard::unlock);
}

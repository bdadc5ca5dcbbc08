//! A future may be dropped, or left alone, at any point: nothing stays behind, and nobody waits
//! for it.
use std::{
    future::{self, Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use futures::poll;
use leasehold::{Client, Error, Lock, LockGuard, Owner};
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};

use crate::support::{
    assert_no_keys, eventually,
    history::History,
    proxy::{Command, Proxy, mentioning, named},
    server::{Raw, RedisServer},
    subscriptions, unique,
};

/// When a test that should be long over is taken for hanging.
const HANG: Duration = Duration::from_secs(20);

/// A lease that does not end within a test, but is renewed within one.
const LEASE: Duration = Duration::from_secs(5);

/// When a call that is not woken any more has come to its last point.
const STUCK: Duration = Duration::from_millis(150);

/// A server, a client behind a proxy whose futures are dropped, and another client.
struct Rig {
    server: RedisServer,
    raw: Raw,
    proxy: Proxy,
    client: Client,
    other: Client,
    name: String,
}

type Locking = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;

/// The calls that are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Lock,
    TryLock,
    With,
    Unlock,
}

const CALLS: [Call; 4] = [Call::Lock, Call::TryLock, Call::With, Call::Unlock];

/// R-38, I7, I12.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_at_any_point_leaves_nothing_behind() {
    let rig = Rig::start().await;
    // Else a machine that stalls between two instructions may see a call through in one poll.
    rig.proxy.delay_replies(Duration::from_millis(2));
    for call in CALLS {
        let mut dropped = 0;
        for _ in 0..5 {
            let mut point = 0;
            while cancel_at(point, rig.call(call).await).await != End::Finished {
                rig.assert_free(&format!("after {call:?} at {point}")).await;
                (point, dropped) = (point + 1, dropped + 1);
            }
            rig.assert_free(&format!("after {call:?} to its end")).await;
        }
        assert!(dropped > 0, "{call:?} was never pending");
    }
    rig.assert_nothing_left().await;
}

/// R-38, I7, I12.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_while_it_waits_leaves_nothing_behind() {
    let rig = Rig::start().await;
    for call in [Call::Lock, Call::TryLock, Call::With] {
        for point in 0.. {
            let guard = rig.other.lock(&rig.name).lock().await.expect("it comes free");
            let end = cancel_at(point, rig.call(call).await).await;
            assert_ne!(end, End::Finished, "somebody else holds it");
            guard.unlock().await.expect("it is held");
            rig.assert_free(&format!("after {call:?} at {point}")).await;
            if end == End::Stuck {
                break;
            }
        }
    }
    rig.assert_nothing_left().await;
}

/// R-38, I7, I12: also if the server only answers after the clients have given it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_while_the_server_stands_still_leaves_nothing_behind() {
    let rig = Rig::start().await;
    for call in CALLS {
        for silence in [Duration::ZERO, Rig::COMMAND_TIMEOUT * 3 / 2] {
            for point in 0..2 {
                let future = rig.call(call).await;
                rig.server.pause();
                let end = cancel_at(point, future).await;
                tokio::time::sleep(silence).await;
                rig.server.resume();
                assert_ne!(end, End::Finished, "nobody answered");
                rig.assert_free(&format!("after {call:?} at {point}, silent for {silence:?}"))
                    .await;
            }
        }
    }
    rig.assert_nothing_left().await;
}

/// dropped at each step of the conversation, both before and after the server has done
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_at_any_step_of_its_subscription_leaves_nothing_behind() {
    let rig = Rig::start().await;
    for step in ["EVALSHA", "SUBSCRIBE", "PING"] {
        for done in [false, true] {
            let guard = rig.other.lock(&rig.name).lock().await.expect("it comes free");
            let held = match done {
                false => rig.proxy.hold_command(named(step)),
                true => rig.proxy.hold_reply(named(step)),
            };
            let waiting = tokio::spawn(rig.client.lock(&rig.name).lock());
            held.held().await;
            waiting.abort();
            let _ = waiting.await;
            guard.unlock().await.expect("it is held");
            held.release();
            // Else nobody may seem to listen because the server has not heard of it yet.
            held.answered().await;
            rig.assert_free(&format!("after {step}, done: {done}")).await;
            eventually("nobody listens", async || subscriptions(&rig.raw) == 0).await;
        }
    }
    rig.assert_nothing_left().await;
}

/// R-38, I1, I2, I7, I12.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_futures_dropped_at_random_leave_nothing_behind() {
    let (rig, history) = (Rig::start().await, History::new());
    let (dropped, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for task in 0..8 {
        let (lock, history, dropped) =
            (rig.client.lock(&rig.name), history.clone(), dropped.clone());
        tasks.spawn(async move {
            let mut random = Rng::with_seed(task);
            while dropped.load(Ordering::Relaxed) < 1_000 {
                let Some(guard) = at_random(&mut random, lock.lock()).await else {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let guard = guard.expect("the server is up");
                hold(&history, &guard, &format!("task {task}")).await;
                at_random(&mut random, guard.unlock()).await;
            }
        });
    }
    let (contender, theirs) = (rig.other.lock(&rig.name), history.clone());
    let contending = tokio::spawn(async move {
        loop {
            let guard = contender.lock().await.expect("it comes free");
            hold(&theirs, &guard, "contender").await;
            guard.unlock().await.expect("it is held");
        }
    });
    timeout(HANG, tasks.join_all()).await.expect("all come to their end");
    contending.abort();
    let _ = contending.await;
    history.assert_exclusive(100);
    rig.assert_free("after all that").await;
    rig.assert_nothing_left().await;
}

/// the clean-up of one future is under way when the next is dropped, and the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_dropped_during_the_clean_up_of_another_leaves_nothing_behind() {
    let rig = Rig::start().await;
    let lock = rig.client.lock(&rig.name);
    let granted = rig.proxy.hold_reply(named("EVALSHA"));
    drop(start(&lock).await);
    granted.held().await;
    let field = rig.raw.cmd(&["HKEYS", &rig.name]).items()[0].text();
    let release = rig.proxy.hold_command(mentioning("PUBLISH"));
    // One joins while the acquire is cleaned up, one while the release is under way.
    let second = start(&lock).await;
    granted.release();
    release.held().await;
    drop(second);
    let third = start(&lock).await;
    let fourth = start(&lock.clone().owned_by(Owner::new())).await;
    drop(third);
    assert_eq!(rig.raw.cmd(&["HKEYS", &rig.name]).items()[0].text(), field);
    release.release();
    let guard = timeout(HANG, fourth).await.expect("it comes free").expect("the server is up");
    guard.unlock().await.expect("it is held");
    rig.assert_free("after all that").await;
    rig.assert_nothing_left().await;
}

/// A body that is dropped with its call holds nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_dropped_midway_gives_the_lock_back() {
    let rig = Rig::start().await;
    let (lock, name) = (rig.client.lock(&rig.name), &rig.name);
    let in_body = Arc::new(tokio::sync::Notify::new());
    let entered = in_body.clone();
    let body = move |_| async move {
        entered.notify_one();
        future::pending::<()>().await;
    };
    let mut working = Box::pin(lock.with(body));
    tokio::select! {
        _ = &mut working => unreachable!("the body never ends"),
        () = in_body.notified() => {}
    }
    assert_eq!(rig.raw.cmd(&["EXISTS", name]).int(), 1);
    drop(working);
    rig.assert_free("after the drop").await;
    rig.assert_nothing_left().await;
}

/// Nobody needs to poll it for others to go on: neither on an idle lock nor on one that comes free.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_left_alone_keeps_no_other_client_waiting() {
    let rig = Rig::start().await;
    for contended in [true, false] {
        let holder = rig.other.lock(&rig.name).owned_by(Owner::new());
        let first = match contended {
            true => Some(holder.lock().await.expect("it comes free")),
            false => None,
        };
        let left_alone = rig.leave_alone(&rig.client.lock(&rig.name)).await;
        if let Some(first) = first {
            eventually("it listens", async || subscriptions(&rig.raw) > 0).await;
            first.unlock().await.expect("it is held");
            let granted = async || rig.holder_is(&rig.client) || rig.holder_is_nobody();
            eventually("its turn comes", granted).await;
        }
        let next = timeout(HANG, holder.lock()).await.expect("it goes back to the server");
        let next = next.expect("the server is up");
        let mut left_alone = left_alone;
        assert!(poll!(&mut left_alone).is_pending());
        next.unlock().await.expect("it is held");
        let guard = timeout(HANG, left_alone).await.expect("it still gets its turn");
        guard.expect("the server is up").unlock().await.expect("it is held");
    }
    assert_eq!(rig.expired(), 0);
    rig.assert_nothing_left().await;
}

/// Those behind it in its own process go on as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_left_alone_keeps_its_place_and_nobody_waiting() {
    let rig = Rig::start().await;
    let lock = || rig.client.lock(&rig.name).owned_by(Owner::new());
    let mut first = rig.leave_alone(&lock()).await;
    let mut second = start(&lock()).await;
    let guard = timeout(HANG, &mut second).await.expect("the first is passed over");
    let guard = guard.expect("the server is up");
    guard.unlock().await.expect("it is held");
    let theirs = rig.other.lock(&rig.name).lock().await.expect("it is free");
    // It asks in vain, which puts its place behind the first to the test.
    let third = tokio::spawn(rig.leave_alone(&lock()).await);

    assert!(poll!(&mut first).is_pending());
    let first = tokio::spawn(first);
    theirs.unlock().await.expect("it is held");
    let guard = timeout(HANG, first).await.expect("it is its turn").expect("no panic");
    assert!(!third.is_finished(), "it came later");
    guard.expect("the server is up").unlock().await.expect("it is held");
    let guard = timeout(HANG, third).await.expect("it is its turn").expect("no panic");
    guard.expect("the server is up").unlock().await.expect("it is held");
    rig.assert_free("after all that").await;
    rig.assert_nothing_left().await;
}

/// A lease that ends before anybody has taken the grant is not asked for again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_left_alone_does_not_take_one_short_lease_after_the_other() {
    let rig = Rig::start().await;
    let lease = Duration::from_millis(33);
    let lock = rig.client.lock(&rig.name).owned_by(Owner::new()).lease(lease);
    let left_alone = rig.leave_alone(&lock).await;
    let asks = |command: &Command| command.args.iter().any(|arg| arg == b"33");
    eventually("the lease has ended", async || rig.holder_is_nobody()).await;
    // Time for a dozen more.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(rig.proxy.count(asks) <= 3, "asked for {} times", rig.proxy.count(asks));
    let guard = timeout(HANG, left_alone).await.expect("it still gets its turn");
    drop(guard.expect("the server is up"));
    eventually("it is given back", async || rig.holder_is_nobody()).await;
    rig.assert_nothing_left().await;
}

/// A branch that is always ready starves the future, and a loop that makes it anew drops it again
/// and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_select_loop_takes_the_lock_from_nobody() {
    let rig = Rig::start().await;
    let lock = rig.client.lock(&rig.name);
    let mut locking = rig.leave_alone(&lock).await;
    let other = tokio::spawn(rig.other.lock(&rig.name).lock());
    while !other.is_finished() {
        tokio::select! {
            biased;
            () = yield_now() => {}
            () = future::ready(()) => yield_now().await,
            _ = &mut locking => unreachable!("the branch before it is ready"),
        }
    }
    let guard = other.await.expect("no panic").expect("the server is up");
    guard.unlock().await.expect("it is held");
    let guard = timeout(HANG, locking).await.expect("it still gets its turn");
    guard.expect("the server is up").unlock().await.expect("it is held");

    let mut dropped = 0;
    while dropped < 200 {
        tokio::select! {
            biased;
            guard = lock.lock() => guard.expect("the server is up").unlock().await.expect("held"),
            () = yield_now() => dropped += 1,
        }
    }
    rig.assert_free("after the loop").await;
    rig.assert_nothing_left().await;
}

impl Rig {
    const COMMAND_TIMEOUT: Duration = Duration::from_millis(400);

    async fn start() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Client::builder(proxy.url()).expect("a URL");
        let builder = builder.watchdog(LEASE).command_timeout(Self::COMMAND_TIMEOUT);
        let client = builder.connect().await.expect("the server is up");
        let other = Client::connect(server.url()).await.expect("the server is up");
        let (raw, name) = (server.raw(), unique("a"));
        let rig = Self { server, raw, proxy, client, other, name };
        // The server knows the scripts from here on.
        rig.assert_free("at first").await;
        rig
    }

    /// A call that has not been polled yet.
    async fn call(&self, call: Call) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let lock = self.client.lock(&self.name).owned_by(Owner::new());
        match call {
            Call::Lock => Box::pin(async move { drop(lock.lock().await) }),
            Call::TryLock => Box::pin(async move { drop(lock.try_lock_for(HANG).await) }),
            Call::With => Box::pin(async move {
                let _ = lock.with(|_| yield_now()).await;
            }),
            Call::Unlock => {
                let guard = lock.lock().await.expect("it comes free");
                Box::pin(async move { drop(guard.unlock().await) })
            }
        }
    }

    /// An acquisition that has been polled once, and that the server has had time to answer.
    async fn leave_alone(&self, lock: &Lock) -> Locking {
        let reply = self.proxy.hold_reply(named("EVALSHA"));
        let locking = start(lock).await;
        reply.held().await;
        reply.release();
        locking
    }

    /// Asserts that others can have the lock, and that nobody's lease had to end for that.
    async fn assert_free(&self, when: &str) {
        let guard = timeout(HANG, self.other.lock(&self.name).lock()).await;
        let guard = guard.unwrap_or_else(|_| panic!("the lock is not free {when}"));
        guard.expect("the server is up").unlock().await.expect("it is held");
        eventually(&format!("no key is left {when}"), async || self.holder_is_nobody()).await;
        assert_eq!(self.expired(), 0, "a lease had to end {when}");
    }

    /// Asserts that there is no key, no subscription, and no renewal but of what is held.
    async fn assert_nothing_left(&self) {
        eventually("nobody listens", async || subscriptions(&self.raw) == 0).await;
        assert_no_keys(&self.raw);
        self.proxy.forget_commands();
        let held = self.client.lock(unique("held")).lock().await.expect("it is free");
        for _ in 0..2 {
            let before = held.valid_until() + Duration::from_millis(20);
            eventually("it is renewed", async || held.valid_until() > before).await;
        }
        let name = held.name().to_owned();
        // A release may still be under way, if the connection broke.
        let others = move |command: &Command| {
            command.is("EVALSHA") && !command.mentions(&name) && !command.mentions("PUBLISH")
        };
        assert_eq!(self.proxy.count(others), 0, "something else is renewed or asked for");
    }

    fn holder_is_nobody(&self) -> bool {
        self.raw.cmd(&["EXISTS", &self.name]).int() == 0
    }

    fn holder_is(&self, client: &Client) -> bool {
        let fields = self.raw.cmd(&["HKEYS", &self.name]).ok();
        fields.items().iter().any(|field| field.text().starts_with(client.id()))
    }

    /// How many keys have ever gone because their time was over.
    fn expired(&self) -> u64 {
        let stats = self.raw.cmd(&["INFO", "stats"]).text();
        let expired = stats.lines().find_map(|line| line.strip_prefix("expired_keys:"));
        expired.and_then(|count| count.trim().parse().ok()).expect("the server counts them")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Finished,
    Dropped,
    /// It was not woken any more before it came to the point, and then dropped.
    Stuck,
}

/// Drops a future when it is pending for the time after `point` times.
async fn cancel_at<F: Future>(point: usize, future: F) -> End {
    let mut future = pin!(future);
    let mut pending = 0;
    let driving = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(End::Finished),
        Poll::Pending if pending == point => Poll::Ready(End::Dropped),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    });
    timeout(STUCK, driving).await.unwrap_or(End::Stuck)
}

/// Drops a future after a few points or a few milliseconds, unless it is through by then.
async fn at_random<F: Future>(random: &mut Rng, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = if random.bool() { random.usize(..3) } else { usize::MAX };
    let driving = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    });
    timeout(Duration::from_micros(random.u64(..3000)), driving).await.unwrap_or(None)
}

/// An acquisition that has been polled once.
async fn start(lock: &Lock) -> Locking {
    let mut locking = Box::pin(lock.lock());
    assert!(poll!(&mut locking).is_pending());
    locking
}

async fn hold(history: &History, guard: &LockGuard, owner: &str) {
    let mut held = history.held(guard.name(), owner);
    yield_now().await;
    held.valid_until(guard.valid_until());
    held.end();
}

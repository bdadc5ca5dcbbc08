//! Waiting for a lock: woken by a message, by a timer where there is none, in order, for nothing
//! in between, and not in silence.
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::poll;
use leasehold::{Builder, Client, Error, Lock, LockGuard, NamesInLogs, Owner};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::support::{
    Capture, Event, assert_no_keys, eventually,
    proxy::{Command, Proxy, mentioning, named},
    redisson::Redisson,
    server::{Raw, RedisServer},
    subscriptions, unique,
};

/// When a test that should be long over is taken for hanging. Well below the lease of a renewed
/// lock: whoever gets one within this did not wait for its end.
const HANG: Duration = Duration::from_secs(15);

/// well before its lease would have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_a_waiter_of_another_client_by_message() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let holder = client(&server.url()).await;
    let waiter = client(&server.url()).await;
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let waiting = tokio::spawn(waiter.lock(&name).lock());
    listened_to(&raw, &name).await;

    assert_long_lease(&raw, &name);
    guard.unlock().await.expect("it is held");
    let guard = got(waiting).await;
    assert!(guard.is_held());
}

/// R-35, I9: nothing is published when a lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_what_a_dead_holder_never_gave_back() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let proxy = Proxy::start(server.port());
    let dead = Redisson::connect(server.port());
    assert_eq!(dead.try_lock(&name, 1, 1500), None);
    let waiter = client(&proxy.url()).await;
    let waiting = tokio::spawn(waiter.lock(&name).lock());
    listened_to(&raw, &name).await;

    let guard = got(waiting).await;
    assert_eq!(dead.hold_count(&name, 1), 0);
    // One try at once (twice, the script is new), one behind the subscription, one or two at the
    // end of the lease, and a few more if the machine stalls: anything but polling.
    assert!(proxy.count(script) <= 20, "{} tries", proxy.count(script));
    guard.unlock().await.expect("it is held");
}

/// R-32, I9: whoever subscribes anew looks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_during_a_lost_subscription_is_not_missed() {
    let server = RedisServer::start();
    let raw = server.raw();
    let holder = client(&server.url()).await;
    let waiter = client(&server.url()).await;
    for round in 0..5 {
        let name = unique("a");
        let guard = holder.lock(&name).lock().await.expect("it is free");
        let waiting = tokio::spawn(waiter.lock(&name).lock());
        listened_to(&raw, &name).await;
        assert_long_lease(&raw, &name);
        let killed = raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
        assert_eq!(killed, 1, "round {round}");
        guard.unlock().await.expect("it is held");
        got(waiting).await.unlock().await.expect("it is held");
    }
}

/// I9: the fallback timer bounds what lost messages cost.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_never_hears_a_message_gets_the_lock_by_its_timer() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let proxy = Proxy::start(server.port());
    proxy.eat_messages(true);
    let holder = client(&server.url()).await;
    let waiter = builder(&proxy.url()).fallback_cap(Duration::from_millis(700));
    let waiter = waiter.connect().await.expect("the server is up");
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let waiting = tokio::spawn(waiter.lock(&name).lock());
    listened_to(&raw, &name).await;

    assert_long_lease(&raw, &name);
    guard.unlock().await.expect("it is held");
    let guard = got(waiting).await;
    assert!(guard.is_held());
    eventually("the message is eaten", async || proxy.messages_eaten() > 0).await;
}

/// the second try, behind the subscription, sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_between_the_first_try_and_the_subscription_is_not_missed() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let proxy = Proxy::start(server.port());
    let holder = client(&server.url()).await;
    let waiter = client(&proxy.url()).await;
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let subscription = proxy.hold_command(named("SUBSCRIBE"));
    let waiting = tokio::spawn(waiter.lock(&name).lock());
    subscription.held().await;

    assert_long_lease(&raw, &name);
    guard.unlock().await.expect("it is held");
    assert_eq!(subscriptions(&raw), 0, "the message went to nobody");
    subscription.release();
    assert!(got(waiting).await.is_held());
}

/// The head of the queue speaks for all, and it does not poll.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_somebody_else_holds_the_lock() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let proxy = Proxy::start(server.port());
    let holder = client(&server.url()).await;
    let waiter = client(&proxy.url()).await;
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let waiting = waiter.lock(&name).lock();
        tasks.spawn(async move { waiting.await?.unlock().await });
    }
    listened_to(&raw, &name).await;
    until_quiet(&proxy).await;

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(proxy.count(script), 0);
    assert_eq!(proxy.count(not_a_ping), 0, "{:?}", proxy.commands());
    guard.unlock().await.expect("it is held");
    let served = timeout(HANG, tasks.join_all()).await.expect("each gets its turn");
    assert!(served.iter().all(Result::is_ok), "{served:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_process_are_served_in_the_order_they_came() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = other.lock(&name).lock().await.expect("it is free");
    let (order, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for number in 0..50 {
        let waiting = queued(&client.lock(&name)).await;
        let order = order.clone();
        tasks.spawn(async move {
            let guard = waiting.await.expect("it comes free");
            order.lock().expect("no panic").push(number);
            guard
        });
    }
    listened_to(&raw, &name).await;
    guard.unlock().await.expect("it is held");
    while let Some(guard) = timeout(HANG, tasks.join_next()).await.expect("each gets its turn") {
        guard.expect("no panic").unlock().await.expect("it is held");
    }
    let order = order.lock().expect("no panic");
    assert_eq!(*order, (0..50).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_is_refused_only_when_its_wait_is_over() {
    let server = RedisServer::start();
    let name = unique("a");
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let _guard = one.lock(&name).lock().await.expect("it is free");
    let wait = Duration::from_millis(300);
    for (client, who) in [(&one, "behind a local holder"), (&two, "behind another client")] {
        let lock = client.lock(&name).owned_by(Owner::new());
        let begin = Instant::now();
        let tried = timeout(HANG, lock.try_lock_for(wait)).await.expect("a try comes to its end");
        assert!(tried.expect("the server is up").is_none(), "{who}");
        assert!(begin.elapsed() >= wait, "{who} it gave up after {:?}", begin.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_gets_what_comes_free_in_time() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let guard = one.lock(&name).lock().await.expect("it is free");
    let foreign = tokio::spawn(two.lock(&name).try_lock_for(HANG));
    listened_to(&raw, &name).await;
    guard.unlock().await.expect("it is held");
    let guard = got(foreign).await.expect("it came free in time");

    let local = tokio::spawn(two.lock(&name).try_lock_for(HANG));
    assert_long_lease(&raw, &name);
    guard.unlock().await.expect("it is held");
    assert!(got(local).await.expect("it came free in time").is_held());
}

/// And of a lock that this process holds it asks nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_does_not_wait_asks_once() {
    let server = RedisServer::start();
    let name = unique("a");
    let proxy = Proxy::start(server.port());
    let (holder, client) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let lock = client.lock(&name).owned_by(Owner::new());
    // The first one may have to send the script itself as well.
    assert!(lock.try_lock_now().await.expect("the server is up").is_none());
    proxy.forget_commands();
    assert!(lock.try_lock_now().await.expect("the server is up").is_none());
    assert_eq!(proxy.count(mentioning(&name)), 1);

    guard.unlock().await.expect("it is held");
    let guard = lock.try_lock_now().await.expect("the server is up").expect("it is free");
    proxy.forget_commands();
    let other = client.lock(&name).owned_by(Owner::new());
    assert!(other.try_lock_now().await.expect("the server is up").is_none());
    assert_eq!(proxy.count(mentioning(&name)), 0);
    assert_eq!(proxy.count(named("SUBSCRIBE")), 0);
    guard.unlock().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_what_another_task_gives_back() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url()).await;
    let lock = client.lock(&name).owned_by(Owner::new());
    for by_drop in [false, true] {
        let guard = lock.lock().await.expect("it is free");
        let waiting = tokio::spawn(queued(&client.lock(&name)).await);
        assert_long_lease(&raw, &name);
        if by_drop {
            drop(guard);
        } else {
            guard.unlock().await.expect("it is held");
        }
        got(waiting).await.unlock().await.expect("it is held");
    }
    assert_no_keys(&raw);
}

/// A try at the head of the queue takes the others with it neither when it gives up nor when it
/// wins; and one behind a patient waiter gives up by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_gives_up_leaves_the_queue_as_it_was() {
    let server = RedisServer::start();
    let name = unique("a");
    let (holder, client) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock(&name).lock().await.expect("it is free");
    let wait = Duration::from_millis(300);
    let mut head = Box::pin(client.lock(&name).owned_by(Owner::new()).try_lock_for(wait));
    assert!(poll!(&mut head).is_pending());
    let second = queued(&client.lock(&name)).await;
    let third = tokio::spawn(client.lock(&name).try_lock_for(wait));
    let fourth = queued(&client.lock(&name)).await;
    let (second, fourth) = (tokio::spawn(second), tokio::spawn(fourth));
    let head = timeout(HANG, head).await.expect("it gives up");
    assert!(head.expect("the server is up").is_none());
    assert!(got(third).await.is_none());

    assert!(!second.is_finished() && !fourth.is_finished());
    guard.unlock().await.expect("it is held");
    got(second).await.unlock().await.expect("it is held");
    got(fourth).await.unlock().await.expect("it is held");
}

/// one subscription a name on one connection, silence while nothing happens, and everyone
/// is served in the end.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_are_quiet_and_all_are_served() {
    const NAMES: usize = 1_000;
    const EACH: usize = 10;
    let server = RedisServer::start();
    let (raw, proxy, prefix) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let minutes = Duration::from_secs(300);
    let holder = builder(&server.url()).watchdog(minutes).connect().await.expect("it is up");
    let waiter = builder(&proxy.url()).fallback_cap(minutes).connect().await.expect("it is up");
    let locks = |client: &Client| -> Vec<Lock> {
        (0..NAMES).map(|number| client.lock(format!("{prefix}-{number}"))).collect()
    };
    let guards = futures::future::try_join_all(locks(&holder).iter().map(Lock::lock)).await;
    let guards = guards.expect("they are free");
    let (served, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for lock in locks(&waiter).iter().flat_map(|lock| std::iter::repeat_n(lock, EACH)) {
        let (waiting, served) = (lock.lock(), served.clone());
        tasks.spawn(async move {
            let guard = waiting.await.expect("it comes free");
            served.fetch_add(1, Ordering::Relaxed);
            guard.unlock().await.expect("it is held");
        });
    }
    eventually("all are listened to", async || subscriptions(&raw) == NAMES).await;
    until_quiet(&proxy).await;
    assert_eq!(raw.cmd(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().lines().count(), 1);

    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(proxy.count(not_a_ping), 0, "{:?}", proxy.commands().first());
    assert!(proxy.count(named("PING")) <= 1);
    assert_eq!(served.load(Ordering::Relaxed), 0);
    drop(guards);
    let all = async { while tasks.join_next().await.is_some_and(|done| done.is_ok()) {} };
    timeout(HANG * 2, all).await.expect("all are served");
    assert_eq!(served.load(Ordering::Relaxed), NAMES * EACH);
    eventually("nobody listens", async || subscriptions(&raw) == 0).await;
    assert_no_keys(&raw);
}

/// Of a lock held elsewhere the holder's field is known, of one held here the line that took it.
#[tokio::test]
async fn a_long_wait_is_told_with_the_holder_and_the_line() {
    let capture = Capture::new();
    let _recording = capture.install();
    let (server, foreign, local) = (RedisServer::start(), unique("a"), unique("b"));
    let other = client(&server.url()).await;
    let one = builder(&server.url()).label("billing").connect().await.expect("it is up");
    let theirs = other.lock(&foreign).lock().await.expect("it is free");
    let line = line!() + 1;
    let ours = one.lock(&local).label("nightly").lock().await.expect("it is free");
    let waiting = [
        tokio::spawn(one.lock(&foreign).lock()),
        tokio::spawn(one.lock(&local).label("hourly").lock()),
    ];
    let long = |name: &str, event: &Event| {
        event.message.starts_with("waiting long") && event.field("lock") == Some(name)
    };
    capture.wait_for("the wait for another client", |event| long(&foreign, event)).await;
    capture.wait_for("the wait for a task", |event| long(&local, event)).await;

    let events = capture.saying("waiting long");
    let [of_foreign, of_local] = [&foreign, &local].map(|name| {
        let event = events.iter().find(|event| long(name, event)).expect("waited for");
        assert_eq!(event.level, tracing::Level::WARN);
        assert!(event.field("asked_at").is_some_and(|at| at.contains(file!())), "{event:?}");
        event
    });
    assert_eq!(of_foreign.field("holder"), Some(theirs.holder().as_str()));
    assert_eq!(of_foreign.field("label"), Some("billing"));
    let held_at = of_local.field("held_at").expect("it is held here");
    assert!(held_at.contains(&format!("{}:{line}:", file!())), "{held_at}");
    assert_eq!(of_local.field("held_label"), Some("nightly"));
    assert_eq!(of_local.field("label"), Some("hourly"));
    drop((theirs, ours));
    for waiting in waiting {
        drop(got(waiting).await);
    }
    assert_eq!(capture.saying("waiting long").len(), 2, "each wait is told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_and_hashed_names_are_in_no_event() {
    let capture = Capture::global();
    let server = RedisServer::start();
    for mode in [NamesInLogs::Hidden, NamesInLogs::Hashed, NamesInLogs::Full] {
        let name = unique("secret");
        let make = async || builder(&server.url()).names_in_logs(mode).connect().await;
        let (one, two) = (make().await.expect("it is up"), make().await.expect("it is up"));
        go_through_everything(&server.raw(), &one, &two, &name).await;
        one.close().await;
        two.close().await;

        let events = capture.events();
        let telling = |event: &&Event| format!("{event:?}").contains(&name);
        let telling: Vec<_> = events.iter().filter(telling).collect();
        if mode == NamesInLogs::Full {
            assert!(telling.len() > 5, "what was done is logged: {telling:?}");
        } else {
            assert!(telling.is_empty(), "{mode:?}: {telling:#?}");
        }
    }
}

/// Takes, waits for, nests, loses and gives back a lock in all ways that are logged.
async fn go_through_everything(raw: &Raw, one: &Client, two: &Client, name: &str) {
    let guard = one.lock(name).lock().await.expect("it is free");
    let waiting = tokio::spawn(two.lock(name).lock());
    listened_to(raw, name).await;
    guard.unlock().await.expect("it is held");
    let guard = got(waiting).await;
    drop(guard);
    let guard = one.lock(name).lock().await.expect("it comes free");
    assert_eq!(raw.cmd(&["DEL", name]).int(), 1);
    assert!(guard.unlock().await.is_err_and(|error| error.is_lost()));
    let lease = Duration::from_millis(50);
    let guard = one.lock(name).lock_with(lease).await.expect("it is free");
    timeout(HANG, guard.lost()).await.expect("the lease ends");
    drop(guard);
    let guard = two.lock(name).lock().await.expect("it is free");
    let of_a_task = tokio::spawn(two.lock(name).lock());
    assert!(two.lock(name).force_unlock().await.expect("the server is up"));
    drop(guard);
    let dropped_elsewhere = got(of_a_task).await;
    drop(dropped_elsewhere);
    assert_eq!(raw.cmd(&["SET", name, "no lock", "PX", "60000"]).text(), "OK");
    one.lock(name).lock().await.expect_err("the key is of another type");
    assert_eq!(raw.cmd(&["DEL", name]).int(), 1);
}

fn builder(url: &str) -> Builder {
    Client::builder(url).expect("a URL")
}

/// R-47, I9: nothing was published, and the lease had long to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_looks_once_more_when_its_wait_ends() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let holder = Redisson::connect(server.port());
    assert_eq!(holder.try_lock(&name, 1, 60_000), None);
    let client = client(&server.url()).await;
    let trying = tokio::spawn(client.lock(&name).try_lock_for(Duration::from_secs(1)));
    listened_to(&raw, &name).await;
    raw.cmd(&["DEL", &name]).ok();
    let guard = got(trying).await.expect("it is free by then");
    guard.unlock().await.expect("it is held");
}

/// The log says what ended a wait.
#[tokio::test]
async fn an_acquisition_says_what_woke_it() {
    let server = RedisServer::start();
    let (raw, name, capture) = (server.raw(), unique("a"), Capture::new());
    let _recording = capture.install();
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = client.lock(&name).lock().await.expect("it is free");
    let waiting = tokio::spawn(other.lock(&name).lock());
    listened_to(&raw, &name).await;
    // Whatever the subscription found, it found before this.
    eventually("it sleeps", async || !capture.saying("woken").is_empty()).await;
    guard.unlock().await.expect("it is held");
    let guard = got(waiting).await;
    let waiting = queued(&client.lock(&name)).await;
    guard.unlock().await.expect("it is held");
    drop(timeout(HANG, waiting).await.expect("no hang").expect("it comes free"));
    let acquired = capture.saying("acquired");
    let woken_by: Vec<_> = acquired.iter().filter_map(|event| event.field("woken_by")).collect();
    assert_eq!(woken_by[..2], ["nothing", "message"]);
    assert_eq!(woken_by.len(), 3);
}

async fn client(url: &str) -> Client {
    Client::connect(url).await.expect("the server is up")
}

/// An acquisition that has its place in the queue of its process, behind the earlier ones.
async fn queued(lock: &Lock) -> Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>> {
    let mut waiting = Box::pin(lock.clone().owned_by(Owner::new()).lock());
    assert!(poll!(&mut waiting).is_pending());
    waiting
}

/// What a task that waits for a lock got.
async fn got<T>(waiting: JoinHandle<Result<T, Error>>) -> T {
    let waited = timeout(HANG, waiting).await.expect("it waits no longer");
    waited.expect("no panic").expect("the server is up")
}

/// Waits until somebody listens for the release of a lock.
async fn listened_to(raw: &Raw, name: &str) {
    let channel = Redisson::channel(name);
    let listeners = || raw.cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int();
    eventually("the waiters listen", async || listeners() > 0).await;
}

/// Whoever gets the lock soon does not get it by the end of this lease.
#[track_caller]
fn assert_long_lease(raw: &Raw, name: &str) {
    let left = raw.cmd(&["PTTL", name]).int();
    assert!(left > HANG.as_millis() as i64, "the lease ends in {left} ms");
}

/// Waits until nothing but pings has been sent for half a second, and forgets what was.
async fn until_quiet(proxy: &Proxy) {
    let quiet = async || {
        proxy.forget_commands();
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.count(not_a_ping) == 0
    };
    eventually("the waiters are settled", quiet).await;
}

fn script(command: &Command) -> bool {
    command.is("EVALSHA") || command.is("EVAL")
}

fn not_a_ping(command: &Command) -> bool {
    !command.is("PING")
}

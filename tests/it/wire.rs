//! What is in Redis after each operation, key by key, and that Java's Redisson and this crate keep
//! each other out, wake each other up and read each other's holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Lock, LockGuard, LostReason};

use crate::support::{
    assert_no_keys, blocking, eventually,
    history::History,
    keys_without_ttl,
    redisson::Redisson,
    server::{Raw, RedisServer},
    subscriptions,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);
const LEASE_MS: i64 = 30_000;
const THREAD: i64 = 17;

/// How long a busy machine may take from one line of a test to the next.
const STALL_MS: i64 = 5_000;

/// Names as users have them, and the channel that belongs to each.
const NAMES: [(&str, &str); 7] = [
    ("job", "redisson_lock__channel:{job}"),
    ("{job}", "redisson_lock__channel:{job}"),
    ("app:{job}:1", "redisson_lock__channel:app:{job}:1"),
    ("a{b}c{d}", "redisson_lock__channel:a{b}c{d}"),
    ("ab{c", "redisson_lock__channel:ab{c"),
    ("x}y", "redisson_lock__channel:{x}y}"),
    ("ü 1", "redisson_lock__channel:{ü 1}"),
];

async fn client(server: &RedisServer) -> Client {
    Client::connect(server.url()).await.unwrap()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

async fn lock(lock: &Lock) -> LockGuard {
    within(lock.lock_with(LEASE)).await.unwrap()
}

fn keys(raw: &Raw) -> BTreeSet<String> {
    raw.cmd(&["KEYS", "*"]).ok().items().iter().map(|key| key.text()).collect()
}

fn pttl(raw: &Raw, name: &str) -> i64 {
    raw.cmd(&["PTTL", name]).int()
}

/// Asserts that Redis has this lock and nothing else: one field, its count, and a TTL of the lease.
#[track_caller]
fn assert_only(raw: &Raw, name: &str, holder: &str, count: u32, lease_ms: i64) {
    assert_eq!(keys(raw), [name.to_owned()].into(), "no helper key of any kind");
    assert_eq!(raw.cmd(&["TYPE", name]).text(), "hash");
    let fields = raw.cmd(&["HGETALL", name]).map();
    assert_eq!(fields, BTreeMap::from([(holder.to_owned(), count.to_string())]));
    let ttl = pttl(raw, name);
    assert!(ttl > lease_ms - STALL_MS && ttl <= lease_ms, "{name}: {ttl} of {lease_ms}");
}

/// What was published on a channel since it was subscribed to, up to now.
fn published(server: &RedisServer, listener: &Raw, channel: &str) -> Vec<String> {
    server.raw().cmd(&["PUBLISH", channel, "end"]).ok();
    let next = || listener.next_message(SOON).expect("the end is published").payload;
    std::iter::from_fn(|| Some(next()).filter(|payload| payload != "end")).collect()
}

/// Redisson's table of states: absent, held once, held twice, once, absent and told.
#[tokio::test]
async fn a_lock_is_in_redis_what_it_is_for_redisson() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    for (name, channel) in NAMES {
        let listener = server.raw();
        listener.subscribe(channel);
        let handle = client.lock(name);
        let outer = lock(&handle).await;
        let holder = outer.holder();
        assert_only(&raw, name, holder.as_str(), 1, LEASE_MS);
        let inner = lock(&handle).await;
        assert_eq!(inner.holder(), holder);
        assert_only(&raw, name, holder.as_str(), 2, LEASE_MS);
        within(inner.unlock()).await.unwrap();
        assert_only(&raw, name, holder.as_str(), 1, LEASE_MS);
        assert_eq!(published(&server, &listener, channel), [""; 0], "it is still held");
        within(outer.unlock()).await.unwrap();
        assert_no_keys(&raw);
        assert_eq!(published(&server, &listener, channel), ["0"], "{name}");
    }
}

/// I6: a renewed lock stands for the client's watchdog, a fixed one for its lease.
#[tokio::test]
async fn the_ttl_is_the_lease_or_the_watchdog() {
    let server = RedisServer::start();
    let raw = server.raw();
    let client = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(45));
    let client = client.connect().await.unwrap();
    let renewed = within(client.lock("job").lock()).await.unwrap();
    assert_only(&raw, "job", renewed.holder().as_str(), 1, 45_000);
    within(renewed.unlock()).await.unwrap();
    let fixed = lock(&client.lock("job")).await;
    assert_only(&raw, "job", fixed.holder().as_str(), 1, LEASE_MS);
    within(fixed.unlock()).await.unwrap();
    let handle = client.lock("job").lease(Duration::from_secs(5));
    let fixed = within(handle.lock()).await.unwrap();
    assert_only(&raw, "job", fixed.holder().as_str(), 1, 5_000);
}

/// Redisson sets a TTL anew with each nested acquire and partial release; ours only ever grow.
#[tokio::test]
async fn no_operation_of_ours_shortens_a_ttl() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let handle = client.lock("job");
    let outer = within(handle.lock_with(Duration::from_secs(100))).await.unwrap();
    let holder = outer.holder();
    let inner = within(handle.lock_with(Duration::from_secs(10))).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 2, 100_000);
    within(inner.unlock()).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 1, 100_000);
    within(outer.extend(Duration::from_secs(20))).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 1, 100_000);
    within(outer.extend(Duration::from_secs(200))).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 1, 200_000);
    let inner = within(handle.lock_with(Duration::from_secs(300))).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 2, 300_000);
    within(inner.unlock()).await.unwrap();
    assert_only(&raw, "job", holder.as_str(), 1, 300_000);
}

/// A dropped guard leaves the same as an awaited unlock.
#[tokio::test]
async fn a_dropped_guard_deletes_the_key_and_says_so_once() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let listener = server.raw();
    listener.subscribe("redisson_lock__channel:{job}");
    drop(lock(&client.lock("job")).await);
    eventually("the key is gone", async || keys(&raw).is_empty()).await;
    assert_eq!(published(&server, &listener, "redisson_lock__channel:{job}"), ["0"]);
}

/// The queries send what Redisson's would, and change nothing.
#[tokio::test]
async fn looking_at_a_lock_changes_nothing() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let handle = client.lock("job");
    assert!(!handle.is_locked().await.unwrap());
    assert_eq!(handle.holder().await.unwrap(), None);
    assert_eq!(handle.remaining_lease().await.unwrap(), None);
    assert_no_keys(&raw);
    let guard = lock(&handle).await;
    assert!(handle.is_locked().await.unwrap());
    assert_eq!(handle.holder().await.unwrap(), Some(guard.holder()));
    assert_eq!(guard.holder().client(), client.id());
    let left = handle.remaining_lease().await.unwrap().unwrap();
    assert!(left > Duration::from_secs(20) && left <= LEASE, "{left:?}");
    assert_only(&raw, "job", guard.holder().as_str(), 1, LEASE_MS);
}

/// Only compared by Redisson, but its form is that of a Java thread's; one id for each hold.
#[tokio::test]
async fn the_id_of_a_hold_is_a_positive_decimal_and_never_comes_again() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let uuid = client.id();
    let form: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!((form, uuid.to_lowercase()), (vec![8, 4, 4, 4, 12], uuid.to_owned()));
    let mut ids = BTreeSet::new();
    for i in 0..30 {
        let guard = lock(&client.lock(format!("job:{}", i % 3))).await;
        let holder = guard.holder();
        let (client_id, id) = holder.as_str().rsplit_once(':').unwrap();
        assert_eq!(client_id, uuid);
        assert!(id.parse::<i64>().unwrap() > 0 && !id.starts_with(['0', '+']), "{id}");
        assert_eq!(raw.cmd(&["HEXISTS", guard.name(), holder.as_str()]).int(), 1);
        assert!(ids.insert(holder.to_string()), "{holder} came again");
        within(guard.unlock()).await.unwrap();
    }
}

/// A wait must leave nothing in Redis but its subscription: no queue, no latch.
#[tokio::test]
async fn a_waiter_adds_no_key_and_ends_its_subscription() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (holding, waiting) = (client(&server).await, client(&server).await);
    let held = lock(&holding.lock("job")).await;
    let handle = waiting.lock("job");
    let waiter = tokio::spawn(async move { handle.try_lock(SOON, LEASE).await });
    eventually("the waiter listens", async || subscriptions(&raw) == 1).await;
    assert_only(&raw, "job", held.holder().as_str(), 1, LEASE_MS);
    within(held.unlock()).await.unwrap();
    let guard = within(waiter).await.unwrap().unwrap().unwrap();
    assert_only(&raw, "job", guard.holder().as_str(), 1, LEASE_MS);
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&raw);
    eventually("the subscription is gone", async || subscriptions(&raw) == 0).await;
}

#[tokio::test]
async fn our_force_unlock_deletes_and_tells_whoever_holds_it() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    for (name, channel) in NAMES {
        let listener = server.raw();
        listener.subscribe(channel);
        let handle = client.lock(name);
        assert!(!handle.force_unlock().await.unwrap(), "nobody holds it");
        assert_eq!(published(&server, &listener, channel), [""; 0]);
        assert_eq!(java.try_lock(name, THREAD, 60_000), None);
        assert!(handle.force_unlock().await.unwrap());
        assert_no_keys(&raw);
        assert_eq!(published(&server, &listener, channel), ["0"], "{name}");
        assert_eq!(java.unlock(name, THREAD, 60_000), None, "Java learns that it lost it");
    }
}

#[tokio::test]
async fn force_unlock_if_frees_only_from_the_holder_that_was_seen() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    let handle = client.lock("job");
    assert_eq!(java.try_lock("job", THREAD, 60_000), None);
    let seen = handle.holder().await.unwrap().unwrap();
    assert_eq!((seen.as_str(), seen.client()), (&*java.owner(THREAD), java.id()));
    assert_eq!(java.unlock("job", THREAD, 60_000), Some(true));
    assert_eq!(java.try_lock("job", THREAD + 1, 60_000), None);
    assert!(!handle.force_unlock_if(&seen).await.unwrap());
    assert_only(&raw, "job", &java.owner(THREAD + 1), 1, 60_000);
    let seen = handle.holder().await.unwrap().unwrap();
    assert!(handle.force_unlock_if(&seen).await.unwrap());
    assert_no_keys(&raw);
}

/// I1: refused, and nothing of the other's hold touched.
#[tokio::test]
async fn what_redisson_holds_is_refused() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    for (name, _) in NAMES {
        assert_eq!(java.try_lock(name, THREAD, 60_000), None);
        let handle = client.lock(name);
        assert!(handle.try_lock_now().await.unwrap().is_none());
        assert!(handle.try_lock(Duration::from_millis(50), LEASE).await.unwrap().is_none());
        assert_eq!(handle.unlock().await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_only(&raw, name, &java.owner(THREAD), 1, 60_000);
        assert_eq!(java.unlock(name, THREAD, 60_000), Some(true));
        let guard = handle.try_lock_now().await.unwrap().expect("it is free");
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&raw);
    }
}

/// I9: by its message, for its lease would last an hour.
#[tokio::test]
async fn redissons_unlock_wakes_our_waiter() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    for (name, _) in NAMES {
        for force in [false, true] {
            assert_eq!(java.try_lock(name, THREAD, 3_600_000), None);
            let handle = client.lock(name);
            let waiter = tokio::spawn(async move { handle.lock_with(LEASE).await });
            let channel = Redisson::channel(name);
            eventually("the waiter listens", async || {
                raw.cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int() == 1
            })
            .await;
            let freed = if force {
                java.force_unlock(name).then_some(true)
            } else {
                java.unlock(name, THREAD, 3_600_000)
            };
            assert_eq!(freed, Some(true));
            let guard = within(waiter).await.unwrap().unwrap();
            assert_only(&raw, name, guard.holder().as_str(), 1, LEASE_MS);
            within(guard.unlock()).await.unwrap();
        }
    }
}

/// nothing is published when a lease ends.
#[tokio::test]
async fn a_lock_of_a_dead_redisson_is_had_when_its_lease_ends() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    assert_eq!(java.try_lock("job", THREAD, 700), None);
    let guard = lock(&client.lock("job")).await;
    assert_only(&raw, "job", guard.holder().as_str(), 1, LEASE_MS);
    assert_eq!(java.unlock("job", THREAD, 700), None);
    assert!(!java.renew("job", THREAD, 60_000));
    assert_only(&raw, "job", guard.holder().as_str(), 1, LEASE_MS);
}

/// I1, I4.
#[tokio::test]
async fn what_we_hold_redisson_is_refused_with_the_time_it_has_left() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    for (name, channel) in NAMES {
        let guard = lock(&client.lock(name)).await;
        let left = java.try_lock(name, THREAD, 60_000).expect("it is held");
        assert!(left > LEASE_MS - 10_000 && left <= LEASE_MS, "{left}");
        assert_eq!(java.unlock(name, THREAD, 60_000), None, "it is not Java's");
        assert!(!java.renew(name, THREAD, 60_000));
        assert_eq!(java.hold_count(name, THREAD), 0);
        assert_only(&raw, name, guard.holder().as_str(), 1, LEASE_MS);
        let listener = server.raw();
        listener.subscribe(channel);
        within(guard.unlock()).await.unwrap();
        assert_eq!(published(&server, &listener, channel), ["0"], "what wakes Java's waiters");
        assert_eq!(java.try_lock(name, THREAD, 60_000), None);
        assert_eq!(java.unlock(name, THREAD, 60_000), Some(true));
    }
}

/// I8, R-47: by the next renewal at the latest.
#[tokio::test]
async fn redissons_force_unlock_is_told_to_our_holder() {
    let server = RedisServer::start();
    let client = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = client.connect().await.unwrap();
    let java = Redisson::connect(server.port());
    let guard = within(client.lock("job").lock()).await.unwrap();
    assert!(guard.is_held());
    assert!(java.force_unlock("job"));
    // Java goes on with it: our hold is not merely seen to be absent.
    assert_eq!(java.try_lock("job", THREAD, 60_000), None);
    assert_eq!(within(guard.lost()).await, LostReason::Removed);
    assert!(!guard.is_held());
    let error = within(guard.unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    assert_only(&server.raw(), "job", &java.owner(THREAD), 1, 60_000);
}

/// R-47, I8: whatever an operator does to the key.
#[tokio::test]
async fn a_removal_by_hand_is_told_to_the_holder() {
    let server = RedisServer::start();
    let raw = server.raw();
    let client = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = client.connect().await.unwrap();
    let removals: [&[&str]; 4] =
        [&["DEL", "job"], &["FLUSHALL"], &["RENAME", "job", "jobs"], &["HSET", "job", "x:1", "1"]];
    for removal in removals {
        let guard = within(client.lock("job").lock()).await.unwrap();
        raw.cmd(removal).ok();
        if removal[0] == "HSET" {
            raw.cmd(&["HDEL", "job", guard.holder().as_str()]).ok();
        }
        assert_eq!(within(guard.lost()).await, LostReason::Removed, "{removal:?}");
        assert!(within(guard.unlock()).await.unwrap_err().is_lost());
        raw.cmd(&["FLUSHALL"]).ok();
    }
}

/// I6: the wheel renews at a third.
#[tokio::test]
async fn the_ttl_of_a_renewed_lock_comes_back_up() {
    let server = RedisServer::start();
    let raw = server.raw();
    let client = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = client.connect().await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    let (mut last, mut rises) = (pttl(&raw, "job"), 0);
    eventually("it was renewed three times", async || {
        let now = pttl(&raw, "job");
        assert!(now > 0 && now <= 3_000, "{now}");
        rises += u32::from(now > last);
        last = now;
        rises == 3
    })
    .await;
    assert!(guard.is_held());
    assert_eq!(raw.cmd(&["HGETALL", "job"]).map().len(), 1);
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&raw);
}

/// R-47, I6.
#[tokio::test]
async fn the_next_renewal_heals_a_persist() {
    let server = RedisServer::start();
    let raw = server.raw();
    let client = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = client.connect().await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    assert_eq!(raw.cmd(&["PERSIST", "job"]).int(), 1);
    eventually("it has its TTL again", async || pttl(&raw, "job") > 0).await;
    assert!(guard.is_held());
    assert!(pttl(&raw, "job") <= 3_000);
}

/// a lock that somebody else's PERSIST made endless is waited for like any other.
#[tokio::test]
async fn an_endless_lock_of_redisson_is_refused_and_its_release_still_heard() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let java = Redisson::connect(server.port());
    assert_eq!(java.try_lock("job", THREAD, 60_000), None);
    raw.cmd(&["PERSIST", "job"]).ok();
    let handle = client.lock("job");
    assert!(handle.try_lock_now().await.unwrap().is_none());
    assert_eq!(handle.remaining_lease().await.unwrap(), Some(Duration::MAX));
    let waiter = tokio::spawn(async move { handle.lock_with(LEASE).await });
    eventually("the waiter listens", async || subscriptions(&raw) == 1).await;
    assert_eq!(java.unlock("job", THREAD, 60_000), Some(true));
    let guard = within(waiter).await.unwrap().unwrap();
    assert_only(&raw, "job", guard.holder().as_str(), 1, LEASE_MS);
}

/// Looks at every key as fast as it can until told to stop; returns how often it looked.
fn audit(raw: &Raw, stop: &AtomicBool) -> usize {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(keys_without_ttl(raw), [""; 0], "after {looks} looks");
        looks += 1;
    }
    looks
}

/// A thread of Java's that takes and gives back the same locks as we do, without waiting.
fn java_at_work(port: u16, history: &History, stop: &AtomicBool) -> usize {
    let java = Redisson::connect(port);
    let mut holds = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("busy:{}", holds % 4);
        // Noted before the lease begins, as we note our own.
        let began = Instant::now();
        if java.try_lock(&name, THREAD, 10_000).is_none() {
            let mut held = history.held(&name, &java.owner(THREAD));
            held.valid_until(began + Duration::from_secs(10));
            thread::sleep(Duration::from_micros(200));
            held.end();
            java.unlock(&name, THREAD, 10_000);
            holds += 1;
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
    holds
}

/// Takes, re-enters and gives back, now by unlock and now by drop.
async fn rust_at_work(lock: Lock, history: History, turns: usize) {
    for turn in 0..turns {
        let guard = within(lock.lock_with(Duration::from_secs(10))).await.unwrap();
        let mut held = history.held(guard.name(), guard.holder().as_str());
        if turn % 3 == 0 {
            let inner = within(lock.lock_with(Duration::from_secs(5))).await.unwrap();
            within(inner.unlock()).await.unwrap();
        }
        tokio::task::yield_now().await;
        held.valid_until(guard.valid_until());
        held.end();
        if turn % 2 == 0 {
            within(guard.unlock()).await.unwrap();
        }
    }
}

/// I1, I2, I6: with two clients of ours, Java, and an auditor that never finds a lock without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_java_and_rust_exclude_each_other_and_every_key_has_a_ttl() {
    const TURNS: usize = 40;
    let server = RedisServer::start();
    let (port, history) = (server.port(), History::new());
    let clients = [client(&server).await, client(&server).await];
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let (stop_audit, stop_java, seen) = (stop.clone(), stop.clone(), history.clone());
    let auditor = tokio::spawn(blocking(move || audit(&Raw::connect(port), &stop_audit)));
    let java = tokio::spawn(blocking(move || java_at_work(port, &seen, &stop_java)));
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let lock = clients[i % 2].lock(format!("busy:{}", i / 2 % 4));
            tokio::spawn(rust_at_work(lock, history.clone(), TURNS))
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(SOON * 3, task).await.expect("it hangs").unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let (looks, java) = (within(auditor).await.unwrap(), within(java).await.unwrap());
    assert!(looks >= 10 && java >= 10, "{looks} looks, {java} holds of Java's");
    history.assert_exclusive(16 * TURNS + java);
    eventually("all is given back", async || keys(&server.raw()).is_empty()).await;
}

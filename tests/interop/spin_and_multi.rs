//! `RSpinLock` and ours, which nobody tells anything, and `RedissonMultiLock` and ours, which lock
//! several.

use std::time::Duration;

use leasehold::{Client, LostReason, MultiLock};

use crate::{
    kinds::{SPIN, cases},
    loss::{KILLED_MS, assert_free_within_lease, wait_until_renewed},
    pair::{KEPT_MS, LEASE, LEASE_MS, Pair, assert_woken_before, granted, soon},
    peer::{Java, Jvm, Settings},
    process::Process,
    support::{eventually, redisson::Redisson},
};

cases!(SPIN);

/// Both names of the multi locks, for Java.
const BOTH: &str = "a,b";

fn both(client: &Client) -> MultiLock {
    MultiLock::new(["a", "b"].map(|name| client.lock(name)))
}

/// Waits until Java's multi lock waits for this one of its locks.
async fn listened(pair: &Pair, name: &str) {
    eventually("somebody listens", async || pair.listeners(name) > 0).await;
}

/// Neither side says anything, and each finds the lock free all the same.
#[tokio::test]
async fn nobody_is_told_of_a_spin_lock() {
    if !SPIN.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, listener) = (SPIN.java(&pair), pair.server.raw());
    listener.subscribe(&Redisson::channel("job"));
    java.lock("job", 1, LEASE_MS).await.unwrap();
    java.unlock("job", 1).await.unwrap();
    soon(granted(&SPIN.rust(&pair, "job")).await.unlock()).await.unwrap();
    assert_eq!(listener.next_message(Duration::from_millis(200)), None);
    pair.assert_nothing_left().await;
}

/// §7.1 of what Redisson writes: a plain lock excludes a spin lock and the other way round, but who
/// waits for the plain one sleeps until the lease ends. Ours looks after its cap.
#[tokio::test]
async fn a_plain_wait_behind_a_spin_lock_of_java_ends_with_the_cap() {
    if !SPIN.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let builder = Client::builder(pair.server.url()).unwrap().fallback_cap(Duration::from_secs(1));
    let client = soon(builder.connect()).await.unwrap();
    let java = SPIN.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let lock = client.lock("job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    pair.wait_for_listeners("job", 1).await;
    java.unlock("job", 1).await.unwrap();
    let guard = soon(waiting).await.unwrap();
    assert_woken_before(end);
    assert!(!java.try_lock("job", 1, 0, 1_000).await);
    soon(guard.unlock()).await.unwrap();
}

#[tokio::test]
async fn multi_locks_of_both_sides_exclude_and_wake_each_other() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("multi"), both(&pair.client));
    java.lock(BOTH, 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("b");
    for name in ["a", "b"] {
        assert!(soon(pair.client.lock(name).try_lock_now()).await.unwrap().is_none(), "{name}");
    }
    assert!(soon(ours.try_lock_now()).await.unwrap().is_none());
    let waiting = tokio::spawn(ours.lock_with(LEASE));
    listened(&pair, "a").await;
    java.unlock(BOTH, 1).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);

    assert!(!java.try_lock(BOTH, 1, 100, 1_000).await);
    for name in ["a", "b"] {
        assert!(!pair.java.try_lock(name, 1, 0, 1_000).await, "{name}");
        pair.wait_until_nobody_listens(name).await;
    }
    let waiting = tokio::spawn(java.locking(BOTH, 1, LEASE_MS));
    listened(&pair, "a").await;
    let end = pair.lease_end("b");
    soon(guard.unlock()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);
    java.unlock(BOTH, 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// One lock that a third holds keeps them both waiting, and nobody keeps the other one meanwhile.
#[tokio::test]
async fn a_multi_lock_that_is_refused_leaves_nothing_to_java() {
    let pair = Pair::start().await;
    pair.java.lock("b", 1, LEASE_MS).await.unwrap();
    let wait = Duration::from_millis(300);
    assert!(soon(both(&pair.client).try_lock(wait, LEASE)).await.unwrap().is_none());
    eventually("Java can have the other one", async || {
        pair.java.try_lock("a", 1, 0, LEASE_MS).await
    })
    .await;
    pair.java.unlock("a", 1).await.unwrap();
    pair.java.unlock("b", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #1160: two that name the same locks in opposite orders wait for each other. Ours takes them in one
/// order and waits; Java's gives up what it has after 1.5 s for each lock, and begins again. (With a
/// lease, after up to this lease.)
#[tokio::test]
async fn issue_1160_opposite_orders_do_not_wait_for_each_other_for_ever() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("multi"), both(&pair.client));
    let javas = async |java: Java| {
        for _ in 0..3 {
            java.locking("b,a", 1, 0).await.unwrap();
            java.unlock("b,a", 1).await.unwrap();
        }
    };
    let rusts = async {
        for _ in 0..3 {
            soon(ours.lock_with(LEASE).await.unwrap().unlock()).await.unwrap();
        }
    };
    // Java asks again the moment it has let go, so it may take some rounds, of 3 s each.
    let both = async { tokio::join!(javas(java), rusts) };
    tokio::time::timeout(Duration::from_secs(90), both).await.expect("they get past each other");
    pair.assert_nothing_left().await;
}

/// Without a number: a lease in seconds is a thousand times as long after each round of waiting.
#[tokio::test]
async fn a_multi_locks_lease_is_what_was_asked_for_also_after_a_wait() {
    let pair = Pair::start().await;
    pair.java.lock("b", 1, LEASE_MS).await.unwrap();
    let lease = Duration::from_secs(20);
    let waiting = tokio::spawn(both(&pair.client).lock_with(lease));
    listened(&pair, "b").await;
    pair.java.unlock("b", 1).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    for name in ["a", "b"] {
        let left = pair.java.ttl(name).await;
        assert!((10_000..=20_000).contains(&left), "{name} has {left} ms left");
    }
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// Each of its locks is kept, and it is lost with the first of them.
#[tokio::test]
async fn a_multi_lock_is_kept_and_lost_with_the_first_that_java_takes_away() {
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let guard = soon(both(&pair.client).lock()).await.unwrap();
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        for name in ["a", "b"] {
            assert!(!pair.java.try_lock(name, 1, 0, 1_000).await, "{name}");
        }
    }
    assert!(guard.is_held());
    assert!(pair.java.force_unlock("b").await);
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    drop(guard);
    pair.assert_nothing_left().await;
}

/// all its locks are free for the other side, each within its lease.
#[tokio::test]
async fn all_locks_of_a_killed_jvms_multi_lock_are_free_within_their_leases() {
    let pair = Pair::start().await;
    let settings = Settings { watchdog_ms: KILLED_MS, ..Settings::default() };
    let victim = Java::open(Jvm::start(), pair.server.port(), settings).await.of("multi");
    victim.lock(BOTH, 1, 0).await.unwrap();
    for name in ["a", "b"] {
        wait_until_renewed(&pair.raw, name).await;
    }
    let waiting = tokio::spawn(both(&pair.client).lock_with(LEASE));
    listened(&pair, "a").await;
    victim.jvm.kill();
    assert_free_within_lease(&pair.raw, &["a", "b"], &waiting).await;
    soon(waiting.await.unwrap().unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

///
#[tokio::test]
async fn all_locks_of_a_killed_rust_process_multi_lock_are_free_within_their_leases() {
    let pair = Pair::start().await;
    let mut victim = Process::hold(&pair.server, "multi", BOTH, KILLED_MS);
    victim.wait_for_line("held").await;
    for name in ["a", "b"] {
        wait_until_renewed(&pair.raw, name).await;
    }
    let waiting = tokio::spawn(pair.java.of("multi").locking(BOTH, 1, LEASE_MS));
    listened(&pair, "a").await;
    victim.kill();
    assert_free_within_lease(&pair.raw, &["a", "b"], &waiting).await;
    waiting.await.unwrap().unwrap();
    pair.java.of("multi").unlock(BOTH, 1).await.unwrap();
    pair.assert_nothing_left().await;
}

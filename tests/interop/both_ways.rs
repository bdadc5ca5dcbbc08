//! Java holds and Rust asks, Rust holds and Java asks.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{ErrorKind, LostReason};

use crate::{
    pair::{KEPT_MS, LEASE, LEASE_MS, Pair, assert_woken_before, granted, soon},
    peer::{Jvm, version},
    support::{assert_every_key_has_ttl, redisson::Redisson},
};

/// The tests are about this version and no other, and its clock is ours.
#[tokio::test]
async fn the_jvm_runs_the_version_that_was_asked_for_on_the_same_clock() {
    let jvm = Jvm::shared();
    let jar = soon(jvm.ask("jar", &[])).await.unwrap();
    assert!(jar.ends_with(&format!("/redisson-{}.jar", version())), "{jar}");
    let before = crate::process::nanos();
    let there = soon(jvm.ask("nano", &[])).await.unwrap().parse().unwrap();
    let after = crate::process::nanos();
    assert!((before..=after).contains(&there), "{before} <= {there} <= {after}");
}

#[tokio::test]
async fn rust_is_refused_and_told_how_long_java_has_left() {
    let pair = Pair::start().await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let lock = pair.client.lock("job");
    assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
    let wait = Duration::from_millis(100);
    assert!(soon(lock.try_lock(wait, wait)).await.unwrap().is_none());
    let left = soon(lock.remaining_lease()).await.unwrap().unwrap();
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    let holder = soon(lock.holder()).await.unwrap().unwrap();
    assert_eq!(holder.as_str(), pair.java.field(1).await);
    assert_eq!(holder.client(), pair.java.id);
    pair.java.unlock("job", 1).await.unwrap();
    assert!(!soon(lock.is_locked()).await.unwrap());
    pair.assert_nothing_left().await;
}

#[tokio::test]
async fn java_is_refused_and_told_how_long_rust_has_left() {
    let pair = Pair::start().await;
    let guard = pair.take("job").await;
    assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
    assert!(!pair.java.try_lock("job", 1, 100, 1_000).await);
    let left = pair.java.ttl("job").await;
    assert!(left > LEASE_MS as i64 / 2 && left <= LEASE_MS as i64, "{left}");
    assert!(pair.java.is_locked("job").await);
    assert_eq!(pair.java.hold_count("job", 1).await, 0);
    soon(guard.unlock()).await.unwrap();
    assert!(!pair.java.is_locked("job").await);
    assert!(pair.java.try_lock("job", 1, 0, LEASE_MS).await);
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// I9. Several rounds: in some of them the unlock comes while Rust makes its second try.
#[tokio::test]
async fn javas_unlock_wakes_rust() {
    let pair = Pair::start().await;
    for round in 0..10 {
        let name = format!("job {round}");
        pair.java.lock(&name, 1, LEASE_MS).await.unwrap();
        let waiting = pair.wait_in_rust(&name).await;
        let end = pair.lease_end(&name);
        pair.java.unlock(&name, 1).await.unwrap();
        let guard = waiting.await.unwrap();
        assert_woken_before(end);
        assert!(!pair.java.try_lock(&name, 1, 0, 1_000).await);
        soon(guard.unlock()).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

#[tokio::test]
async fn rusts_unlock_wakes_java() {
    let pair = Pair::start().await;
    for round in 0..10 {
        let name = format!("job {round}");
        let guard = pair.take(&name).await;
        let waiting = pair.wait_in_java(&name, 1).await;
        let end = pair.lease_end(&name);
        soon(guard.unlock()).await.unwrap();
        waiting.await.unwrap().unwrap();
        assert_woken_before(end);
        assert!(soon(pair.client.lock(&name).try_lock_now()).await.unwrap().is_none());
        pair.java.unlock(&name, 1).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

/// A dropped guard tells Java as an unlocked one does.
#[tokio::test]
async fn a_dropped_guard_wakes_java_within_its_wait() {
    let pair = Pair::start().await;
    let guard = pair.take("job").await;
    let trying = tokio::spawn(pair.java.trying("job", 1, 15_000, LEASE_MS));
    pair.wait_for_listeners("job", 1).await;
    let end = pair.lease_end("job");
    drop(guard);
    assert_eq!(soon(trying).await.unwrap().unwrap(), "true");
    assert_woken_before(end);
    let lock = pair.client.lock("job");
    let trying = tokio::spawn(lock.try_lock(Duration::from_secs(15), LEASE));
    pair.wait_for_listeners("job", 1).await;
    pair.java.unlock("job", 1).await.unwrap();
    assert!(soon(trying).await.unwrap().unwrap().is_some());
}

/// The queue sleeps until Java's lease ends when a newcomer joins it for a moment.
#[tokio::test]
async fn a_short_wait_behind_a_long_one_is_refused() {
    let pair = Pair::start().await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let waiting = pair.wait_in_rust("job").await;
    for _ in 0..3 {
        let lock = pair.client.lock("job");
        let trying =
            tokio::spawn(async move { lock.try_lock_for(Duration::from_millis(50)).await });
        assert!(soon(trying).await.unwrap().unwrap().is_none());
    }
    pair.java.unlock("job", 1).await.unwrap();
    soon(waiting.await.unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

#[tokio::test]
async fn waiters_of_both_sides_are_all_served() {
    let pair = Pair::start().await;
    pair.java.lock("job", 0, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let rust = (0..6).map(|_| {
        let lock = pair.client.lock("job");
        tokio::spawn(async move { soon(granted(&lock).await.unlock()).await.unwrap() })
    });
    let rust: Vec<_> = rust.collect();
    let java = (1..=6).map(async |thread| {
        pair.java.lock("job", thread, LEASE_MS).await.unwrap();
        pair.java.unlock("job", thread).await.unwrap();
    });
    let unlock = async {
        pair.wait_for_listeners("job", 2).await;
        pair.java.unlock("job", 0).await.unwrap();
    };
    futures::join!(futures::future::join_all(java), unlock);
    for turn in rust {
        soon(turn).await.unwrap();
    }
    assert_woken_before(end);
    pair.assert_nothing_left().await;
}

/// I5: each side sees the other's nested holds, and that they are not over before the last.
#[tokio::test]
async fn both_sides_count_re_entries() {
    let pair = Pair::start().await;
    let lock = pair.client.lock("job");
    for _ in 0..3 {
        pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    }
    assert_eq!(pair.java.hold_count("job", 1).await, 3);
    assert_eq!(pair.holds("job"), BTreeMap::from([(pair.java.field(1).await, "3".to_owned())]));
    assert_eq!(lock.hold_count(), 0);
    for _ in 0..3 {
        assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
        pair.java.unlock("job", 1).await.unwrap();
    }

    let guards = [granted(&lock).await, granted(&lock).await, granted(&lock).await];
    assert_eq!(lock.hold_count(), 3);
    let field = guards[0].holder().as_str().to_owned();
    assert_eq!(pair.holds("job"), BTreeMap::from([(field, "3".to_owned())]));
    for guard in guards {
        assert_eq!(pair.java.hold_count("job", 1).await, 0);
        assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
        soon(guard.unlock()).await.unwrap();
    }
    assert!(pair.java.try_lock("job", 1, 0, LEASE_MS).await);
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// I4.
#[tokio::test]
async fn who_does_not_hold_it_cannot_unlock_it() {
    let pair = Pair::start().await;
    let listener = pair.server.raw();
    listener.subscribe(&Redisson::channel("job"));

    let guard = pair.take("job").await;
    let (holds, end) = (pair.holds("job"), pair.expires("job"));
    let thrown = pair.java.unlock("job", 1).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    assert_eq!(pair.holds("job"), holds);
    assert!(guard.is_held());
    assert_eq!(pair.expires("job"), end, "the lease was not begun anew");
    assert_eq!(listener.next_message(Duration::from_millis(100)), None);
    soon(guard.unlock()).await.unwrap();
    assert_eq!(listener.next_message(Duration::from_secs(20)).unwrap().payload, "0");

    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let holds = pair.holds("job");
    let error = soon(pair.client.lock("job").unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    let thrown = pair.java.unlock("job", 2).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    assert_eq!(pair.holds("job"), holds);
    assert_eq!(listener.next_message(Duration::from_millis(100)), None);
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// For longer than two leases, both with the same short one.
#[tokio::test]
async fn each_watchdog_keeps_its_own_lock() {
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    pair.java.lock("javas", 1, 0).await.unwrap();
    let guard = soon(pair.client.lock("rusts").lock()).await.unwrap();
    for _ in 0..35 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_every_key_has_ttl(&pair.raw);
        for name in ["javas", "rusts"] {
            assert!(pair.java.ttl(name).await <= KEPT_MS as i64, "{name}");
        }
    }
    assert!(soon(pair.client.lock("javas").try_lock_now()).await.unwrap().is_none());
    assert!(!pair.java.try_lock("rusts", 2, 0, 1_000).await);
    assert!(guard.is_held());
    pair.java.unlock("javas", 1).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// R-35, with nobody who would say anything: the lease of one side ends for the other.
#[tokio::test]
async fn a_fixed_lease_ends_for_the_other_side() {
    let pair = Pair::start().await;
    pair.java.lock("job", 1, 500).await.unwrap();
    let guard = granted(&pair.client.lock("job")).await;
    let thrown = pair.java.unlock("job", 1).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    soon(guard.unlock()).await.unwrap();

    let lease = Duration::from_millis(500);
    let guard = soon(pair.client.lock("job").lock_with(lease)).await.unwrap();
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    let error = soon(guard.unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    assert_eq!(pair.java.hold_count("job", 1).await, 1);
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

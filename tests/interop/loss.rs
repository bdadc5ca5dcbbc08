//! Locks that are taken away, and holders that are killed.

use std::time::{Duration, Instant};

use leasehold::LostReason;

use crate::{
    pair::{LEASE_MS, Pair, SOON, assert_woken_before, granted, soon},
    peer::{Java, Jvm, Settings},
    process::Process,
    support::{eventually, server::Raw},
};

/// The watchdog of those who are killed.
pub const KILLED_MS: u64 = 2_000;

#[tokio::test]
async fn javas_force_unlock_is_told_to_the_holder_in_rust() {
    let pair = Pair::with_watchdogs(1_500).await;
    let guard = soon(pair.client.lock("job").lock()).await.unwrap();
    assert!(pair.java.force_unlock("job").await);
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(!guard.is_held());
    assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    assert!(!pair.java.force_unlock("job").await);
    pair.assert_nothing_left().await;
}

#[tokio::test]
async fn rusts_force_unlock_is_told_to_the_holder_in_java() {
    let pair = Pair::with_watchdogs(1_500).await;
    pair.java.lock("job", 1, 0).await.unwrap();
    assert!(soon(pair.client.lock("job").force_unlock()).await.unwrap());
    let thrown = pair.java.unlock("job", 1).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    assert!(!soon(pair.client.lock("job").force_unlock()).await.unwrap());
    pair.assert_nothing_left().await;
}

#[tokio::test]
async fn a_force_unlock_wakes_the_other_side() {
    let pair = Pair::start().await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let waiting = pair.wait_in_rust("job").await;
    let end = pair.lease_end("job");
    assert!(pair.java.force_unlock("job").await);
    let guard = waiting.await.unwrap();
    assert_woken_before(end);

    let waiting = pair.wait_in_java("job", 2).await;
    let end = pair.lease_end("job");
    assert!(soon(pair.client.lock("job").force_unlock()).await.unwrap());
    waiting.await.unwrap().unwrap();
    assert_woken_before(end);
    assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    assert_eq!(pair.java.hold_count("job", 2).await, 1, "the late unlock did nothing");
    pair.java.unlock("job", 2).await.unwrap();
    pair.assert_nothing_left().await;
}

/// An operator's call from Rust that names the holder it saw does nothing to the next one.
#[tokio::test]
async fn a_force_unlock_of_one_holder_spares_the_next() {
    let pair = Pair::start().await;
    let lock = pair.client.lock("job");
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let seen = soon(lock.holder()).await.unwrap().unwrap();
    pair.java.unlock("job", 1).await.unwrap();
    pair.java.lock("job", 2, LEASE_MS).await.unwrap();
    assert!(!soon(lock.force_unlock_if(&seen)).await.unwrap());
    assert_eq!(pair.java.hold_count("job", 2).await, 1);
    let seen = soon(lock.holder()).await.unwrap().unwrap();
    assert!(soon(lock.force_unlock_if(&seen)).await.unwrap());
    assert_eq!(pair.java.unlock("job", 2).await.unwrap_err().class, "IllegalMonitorStateException");
}

///
#[tokio::test]
async fn a_lock_of_a_killed_jvm_is_free_within_its_lease() {
    let pair = Pair::start().await;
    let settings = Settings { watchdog_ms: KILLED_MS, ..Settings::default() };
    let victim = Java::open(Jvm::start(), pair.server.port(), settings).await;
    victim.lock("job", 1, 0).await.unwrap();
    wait_until_renewed(&pair.raw, "job").await;
    let waiting = pair.wait_in_rust("job").await;
    victim.jvm.kill();
    assert_free_within_lease(&pair.raw, &["job"], &waiting).await;
    soon(waiting.await.unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

///
#[tokio::test]
async fn a_lock_of_a_killed_rust_process_is_free_within_its_lease() {
    let pair = Pair::start().await;
    let mut victim = Process::hold(&pair.server, "lock", "job", KILLED_MS);
    victim.wait_for_line("held").await;
    wait_until_renewed(&pair.raw, "job").await;
    let waiting = pair.wait_in_java("job", 1).await;
    victim.kill();
    assert_free_within_lease(&pair.raw, &["job"], &waiting).await;
    waiting.await.unwrap().unwrap();
    let lock = pair.client.lock("job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    pair.java.unlock("job", 1).await.unwrap();
    soon(waiting.await.unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// Waits until a lock is held, and has been renewed.
pub async fn wait_until_renewed(raw: &Raw, name: &str) {
    let mut least = i64::MAX;
    let renewed = async || {
        let left = raw.cmd(&["PTTL", name]).int();
        let renewed = left > least.saturating_add(100);
        least = if left > 0 { least.min(left) } else { least };
        renewed
    };
    eventually("the holder has renewed it", renewed).await;
}

/// From now on nobody makes the leases longer, and whoever waits gets the locks at the end of the
/// last, not before.
pub async fn assert_free_within_lease<T>(
    raw: &Raw,
    names: &[&str],
    waiting: &tokio::task::JoinHandle<T>,
) {
    let seen = Instant::now();
    let left = names.iter().map(|name| raw.cmd(&["PTTL", name]).int()).max();
    let left = left.and_then(|left| u64::try_from(left).ok()).expect("the lease goes on");
    assert!(left <= KILLED_MS, "nothing makes it longer than the watchdog: {left}");
    while !waiting.is_finished() {
        assert!(seen.elapsed() < SOON, "nobody got it after the lease of the dead");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let early = Duration::from_millis(left.saturating_sub(2));
    assert!(seen.elapsed() >= early, "it was given away under the lease of the dead");
}

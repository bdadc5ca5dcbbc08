//! `RReadWriteLock` and ours: readers of both sides together, writers of both sides alone.

use std::time::Duration;

use leasehold::{Client, ErrorKind};

use crate::{
    kinds::{READ, WRITE},
    loss::KILLED_MS,
    pair::{KEPT_MS, LEASE_MS, Pair, assert_woken_before, granted, soon},
    peer::{Java, Jvm, Settings, at_least},
    process::Process,
    support::eventually,
};

mod readers {
    use crate::kinds::{READ, cases};

    cases!(READ);
}

mod writers {
    use crate::kinds::{WRITE, cases};

    cases!(WRITE);
}

/// A writer of either side waits for the last of them, whose ever that is.
#[tokio::test]
async fn readers_of_both_sides_read_together() {
    let pair = Pair::start().await;
    let (reads, writes) = (READ.java(&pair), WRITE.java(&pair));
    for last in ["java", "rust"] {
        reads.lock("job", 1, LEASE_MS).await.unwrap();
        let reading = granted(&READ.rust(&pair, "job")).await;
        assert!(reads.try_lock("job", 2, 0, LEASE_MS).await);
        assert_eq!(pair.holds("job").len(), 4, "three readers and the mode");
        assert!(!writes.try_lock("job", 3, 0, 1_000).await);
        let write = WRITE.rust(&pair, "job").owned_by(leasehold::Owner::new());
        assert!(soon(write.try_lock_now()).await.unwrap().is_none());
        let waiting = WRITE.wait_in_java(&pair, "job", 3).await;
        let end = pair.lease_end("job");
        reads.unlock("job", 2).await.unwrap();
        if last == "java" {
            soon(reading.unlock()).await.unwrap();
            assert!(!waiting.is_finished());
            reads.unlock("job", 1).await.unwrap();
        } else {
            reads.unlock("job", 1).await.unwrap();
            assert!(!waiting.is_finished());
            soon(reading.unlock()).await.unwrap();
        }
        soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        writes.unlock("job", 3).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

/// Without a number: a writer that goes on reading tells nobody, so readers sleep until the lease
/// ends that they saw. Ours tells them.
#[tokio::test]
async fn our_downgrade_wakes_the_readers_of_java() {
    let pair = Pair::start().await;
    let writing = granted(&WRITE.rust(&pair, "job")).await;
    let reading = granted(&READ.rust(&pair, "job")).await;
    let waiting = READ.wait_in_java(&pair, "job", 1).await;
    let end = pair.lease_end("job");
    soon(writing.unlock()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);
    assert!(reading.is_held());
    READ.java(&pair).unlock("job", 1).await.unwrap();
    soon(reading.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// The same the other way round: Java tells nobody, and ours look after their cap.
#[tokio::test]
async fn a_downgrade_of_java_is_seen_within_the_cap() {
    let pair = Pair::start().await;
    let builder = Client::builder(pair.server.url()).unwrap().fallback_cap(Duration::from_secs(1));
    let client = soon(builder.connect()).await.unwrap();
    let (reads, writes) = (READ.java(&pair), WRITE.java(&pair));
    writes.lock("job", 1, LEASE_MS).await.unwrap();
    reads.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let read = client.read_write_lock("job").read();
    let waiting = || async move { granted(&read).await };
    let waiting = READ.until_it_waits(&pair, "job", waiting).await;
    writes.unlock("job", 1).await.unwrap();
    let reading = soon(waiting).await.unwrap();
    assert_woken_before(end);
    soon(reading.unlock()).await.unwrap();
    reads.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #4796: a reader that asks to write waits for itself.
#[tokio::test]
async fn issue_4796_a_reader_that_asks_to_write_is_told() {
    let pair = Pair::start().await;
    let reading = granted(&READ.rust(&pair, "job")).await;
    let error = soon(WRITE.rust(&pair, "job").lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OwnHold);
    assert!(READ.java(&pair).try_lock("job", 1, 0, LEASE_MS).await, "Java may read");
    READ.java(&pair).unlock("job", 1).await.unwrap();
    soon(reading.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// Without a number: each nested write adds its lease to the TTL; and a read that is given back
/// inside a write leaves the writer only as long as the other reads have.
#[tokio::test]
async fn what_is_nested_in_a_write_neither_lengthens_nor_shortens_it() {
    let pair = Pair::start().await;
    let (write, read) = (WRITE.rust(&pair, "job"), READ.rust(&pair, "job"));
    let outer = granted(&write).await;
    let inner = granted(&write).await;
    assert!(pair.java.ttl("job").await <= LEASE_MS as i64);
    let long = soon(read.lock_with(Duration::from_secs(5))).await.unwrap();
    let short = soon(read.lock_with(Duration::from_secs(5))).await.unwrap();
    soon(short.unlock()).await.unwrap();
    soon(inner.unlock()).await.unwrap();
    assert!(pair.java.ttl("job").await > LEASE_MS as i64 / 2);
    soon(long.unlock()).await.unwrap();
    assert!(pair.java.ttl("job").await > LEASE_MS as i64 / 2);
    assert!(!READ.java(&pair).try_lock("job", 1, 0, 1_000).await);
    soon(outer.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #4217, and §4.3 of what Redisson writes: after a downgrade, or after giving back what was read
/// inside a write, nothing is renewed any more.
#[tokio::test]
async fn issue_4217_renewal_goes_on_inside_a_write_and_after_a_downgrade() {
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let (write, read) = (WRITE.rust(&pair, "job"), READ.rust(&pair, "job"));
    let (reads, writes) = (READ.java(&pair), WRITE.java(&pair));
    let writing = soon(write.lock()).await.unwrap();
    soon(soon(read.lock()).await.unwrap().unlock()).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(!reads.try_lock("job", 1, 0, 1_000).await);
    }
    let reading = soon(read.lock()).await.unwrap();
    soon(writing.unlock()).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(!writes.try_lock("job", 1, 0, 1_000).await);
    }
    assert!(reading.is_held());
    soon(reading.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// who dies while reading is in a writer's way for a lease, although others read on. Before 4.4,
/// Redisson renews the reads of all it finds in the hash, the dead ones too.
#[tokio::test]
async fn a_dead_reader_is_not_kept_by_the_living_ones() {
    let pair = Pair::start().await;
    let settings = Settings { watchdog_ms: KILLED_MS, ..Settings::default() };
    let mut victim = Process::hold(&pair.server, "read", "job", KILLED_MS);
    victim.wait_for_line("held").await;
    let java = Java::open(Jvm::start(), pair.server.port(), settings).await.of("read");
    if at_least(4, 4) {
        java.lock("job", 1, 0).await.unwrap();
    } else {
        eprintln!("not with a reader in Java: this Redisson renews the reads of the dead");
    }
    let dead_keys = || pair.raw.cmd(&["KEYS", "{job}:*:rwlock_timeout:*"]).ok().items().len();
    let reading = soon(READ.rust(&pair, "job").lock()).await.unwrap();
    let all = dead_keys();
    victim.kill();
    eventually("the dead reader's lease is over", async || dead_keys() == all - 1).await;
    let waiting = WRITE.wait_in_java(&pair, "job", 1).await;
    if at_least(4, 4) {
        java.unlock("job", 1).await.unwrap();
    }
    soon(reading.unlock()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    WRITE.java(&pair).unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

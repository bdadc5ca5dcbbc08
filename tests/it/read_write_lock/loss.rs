//! Leases of both halves, and who is told when they end or are taken away.
use std::time::Duration;

use leasehold::{ErrorKind, LockGuard, LostReason};
use tokio::time::timeout;

use super::{LONG, NAME, Setup, asked, assert_refused, given_back, granted, locked};
use crate::{
    rig::soon,
    support::{eventually, redisson_read_write::RedissonReadWrite},
};

const SECOND: Duration = Duration::from_secs(1);

/// A name, and what takes a lock from the holder of this field.
type Removal<'a> = (&'a str, &'a dyn Fn(&str));

/// Asserts that a hold is not lost for so long.
async fn assert_kept(guard: &LockGuard, time: Duration) {
    let lost = timeout(time, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "{lost:?}");
}

/// I14: giving back what one reads neither shortens the writer's lease nor ends its renewal.
#[tokio::test(flavor = "multi_thread")]
async fn giving_back_a_read_hold_leaves_the_writers_lease_alone() {
    let setup = Setup::with(|builder| builder.watchdog(SECOND)).await;
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    given_back(locked(&read).await).await;
    given_back(locked(&read.clone().lease(Duration::from_millis(200))).await).await;
    for _ in 0..6 {
        assert_kept(&writing, SECOND / 2).await;
        assert_refused(&setup.theirs().0).await;
    }
    given_back(writing).await;
    // Of fixed leases, too: the writer's is the longer one.
    let writing = locked(&write.lease(LONG)).await;
    let reading = locked(&read.lease(Duration::from_millis(300))).await;
    assert!(setup.pttl(NAME) > 50_000);
    given_back(reading).await;
    assert!(setup.pttl(NAME) > 50_000, "{}", setup.pttl(NAME));
    assert_kept(&writing, Duration::from_millis(500)).await;
    given_back(writing).await;
    setup.assert_nothing_left().await;
}

/// I14, R-45: each reader's lease is its own, whoever comes and goes beside it.
#[tokio::test(flavor = "multi_thread")]
async fn readers_with_other_leases_do_not_disturb_each_other() {
    let setup = Setup::start().await;
    let short = locked(&setup.ours().0.lease(SECOND)).await;
    let long = locked(&setup.theirs().0.lease(LONG)).await;
    assert!(setup.pttl(&Setup::life(&short)) <= 1000);
    assert!(setup.pttl(NAME) > 50_000);
    assert_eq!(soon(short.lost()).await, LostReason::Expired);
    assert!(soon(short.unlock()).await.expect_err("its lease has ended").is_lost());
    assert!(long.is_held() && setup.pttl(NAME) > 50_000);
    assert_refused(&setup.ours().1).await;
    // The lock stands for no longer than the readers that are left.
    let short = locked(&setup.ours().0.lease(SECOND)).await;
    given_back(long).await;
    assert!(setup.pttl(NAME) <= 1000, "{}", setup.pttl(NAME));
    let writing = tokio::spawn(setup.theirs().1.lock());
    assert_eq!(soon(short.lost()).await, LostReason::Expired);
    given_back(granted(writing).await).await;
    drop(short);
    setup.assert_nothing_left().await;
}

/// nobody keeps a dead reader alive, and it keeps a writer out for its own lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_dies_is_in_the_way_for_one_lease_at_most() {
    let setup = Setup::with(|builder| builder.watchdog(SECOND)).await;
    let dies = locked(&setup.ours().0).await;
    let lives = locked(&setup.theirs().0.lease(Duration::from_secs(2))).await;
    let renewed = setup.rig.running(super::SCRIPTS[4]);
    soon(setup.rig.proxy.wait_for(renewed, 2)).await;
    // All that the server sees of a process that is killed.
    setup.rig.proxy.refuse(true);
    setup.rig.proxy.cut_all().await;
    let life = Setup::life(&dies);
    lives.extend(LONG).await.expect("it is held");
    eventually("the dead one's lease ends", async || setup.pttl(&life) == -2).await;
    assert!(lives.is_held() && setup.pttl(NAME) > 40_000);
    let writing = tokio::spawn(setup.theirs().1.lock());
    tokio::time::sleep(Duration::from_millis(50)).await;
    given_back(lives).await;
    given_back(granted(writing).await).await;
    setup.rig.proxy.refuse(false);
    assert_eq!(soon(dies.lost()).await, LostReason::Expired);
    drop(dies);
    setup.assert_nothing_left().await;
}

/// R-47, I8: of whatever half, by whomever: a hold goes as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_reads_is_told_that_either_half_was_taken() {
    let setup = Setup::with(|builder| builder.watchdog(SECOND)).await;
    let peer = RedissonReadWrite::connect(setup.rig.server.port());
    let raw = setup.rig.server.raw();
    let by_peer = || assert!(peer.force_unlock(NAME, "write"));
    let removals: [Removal<'_>; 5] = [
        ("FLUSHALL", &|_| drop(raw.cmd(&["FLUSHALL"]).ok())),
        ("DEL", &|_| drop(raw.cmd(&["DEL", NAME]).ok())),
        ("Java's forceUnlock", &|_| by_peer()),
        ("HDEL of the write", &|field| drop(raw.cmd(&["HDEL", NAME, &format!("{field}:write")]))),
        ("HDEL of the read", &|field| drop(raw.cmd(&["HDEL", NAME, field]))),
    ];
    for (what, remove) in removals {
        let (read, write) = setup.ours();
        let writing = locked(&write).await;
        let reading = locked(&read).await;
        remove(writing.holder().as_str());
        let told = soon(async { tokio::join!(writing.lost(), reading.lost()) }).await;
        assert_eq!(told, (LostReason::Removed, LostReason::Removed), "{what}");
        for half in [&read, &write] {
            let error = soon(half.lock()).await.expect_err("its owner has lost it");
            assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed), "{what}");
        }
        assert!(soon(reading.unlock()).await.expect_err("it is lost").is_lost());
        drop(writing);
        // Whatever was left of it is given back.
        given_back(locked(&setup.theirs().1).await).await;
        given_back(locked(&write).await).await;
    }
    setup.assert_nothing_left().await;
}

/// R-47, I4: nested acquisitions find out by themselves that their hold is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_acquisition_of_a_hold_that_was_taken_is_refused() {
    let setup = Setup::start().await;
    for nested_read in [false, true] {
        for both in [false, true] {
            let (read, write) = setup.ours();
            let writing = locked(&write).await;
            let reading = if both { Some(locked(&read).await) } else { None };
            setup.rig.raw.cmd(&["DEL", NAME]).ok();
            let nested = if nested_read { &read } else { &write };
            let error = soon(nested.lock()).await.expect_err("nothing of it is left");
            assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
            assert!(setup.hash().is_empty(), "a lost hold became a new one");
            assert!(!writing.is_held() && reading.as_ref().is_none_or(|held| !held.is_held()));
        }
    }
    setup.rig.raw.cmd(&["FLUSHALL"]).ok();
    setup.assert_nothing_left().await;
}

/// I8, I4: our own force_unlock tells our own holders at once, and only those that it hits.
#[tokio::test(flavor = "multi_thread")]
async fn forcing_one_half_takes_what_is_held_in_it() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.read_write_lock(NAME);
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    // In the mode that writes, nothing is held that could be taken from readers: as in Redisson.
    assert!(!soon(lock.read().force_unlock()).await.unwrap());
    assert!(!soon(lock.read().force_unlock_if(&reading.holder())).await.unwrap());
    assert!(reading.is_held() && writing.is_held() && setup.hash().len() == 3);
    assert!(soon(lock.write().force_unlock()).await.unwrap());
    assert!(!reading.is_held() && !writing.is_held());
    assert_eq!(soon(reading.lost()).await, LostReason::Removed);
    drop((reading, writing));
    let [one, two] = [locked(&setup.ours().0).await, locked(&setup.ours().0).await];
    let theirs = locked(&setup.theirs().0).await;
    assert!(!soon(lock.write().force_unlock()).await.unwrap());
    assert!(soon(lock.read().force_unlock_if(&one.holder())).await.unwrap());
    assert!(!one.is_held() && two.is_held() && setup.hash().len() == 3);
    assert!(soon(lock.read().force_unlock()).await.unwrap());
    assert!(!two.is_held() && setup.hash().is_empty());
    drop((one, two, theirs));
    setup.assert_nothing_left().await;
}

/// I8: who gets the lock by a force_unlock has it, though its own client has forced it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forcing_does_not_hit_whom_it_lets_in() {
    let setup = Setup::start().await;
    for _ in 0..50 {
        let theirs = locked(&setup.theirs().1).await;
        let waiting = tokio::spawn(asked(&setup.ours().1).await);
        tokio::time::sleep(Duration::from_millis(3)).await;
        let forced = soon(setup.ours().1.force_unlock()).await.unwrap();
        let guard = granted(waiting).await;
        assert!(forced && guard.is_held(), "{:?}", guard.is_held());
        given_back(guard).await;
        drop(theirs);
    }
    setup.rig.raw.cmd(&["FLUSHALL"]).ok();
    setup.assert_nothing_left().await;
}

/// R-47, I8: a downgraded hold is a reader's, and is told as one.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgraded_reader_is_told_that_readers_were_thrown_out() {
    let setup = Setup::with(|builder| builder.watchdog(SECOND)).await;
    let peer = RedissonReadWrite::connect(setup.rig.server.port());
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    given_back(writing).await;
    assert!(!peer.force_unlock(NAME, "write") && reading.is_held());
    assert!(peer.force_unlock(NAME, "read"));
    assert_eq!(soon(reading.lost()).await, LostReason::Removed);
    drop(reading);
    given_back(locked(&write).await).await;
    setup.assert_nothing_left().await;
}

//! `RFairLock` and ours: one queue for both sides.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{
    kinds::{FAIR, cases},
    loss::KILLED_MS,
    pair::{LEASE, LEASE_MS, Pair, assert_woken_before, granted, soon},
    peer::{Java, Jvm, Settings},
    process::Process,
    support::eventually,
};

cases!(FAIR);

/// Who stands in the queue, by the ids of their clients.
fn queue(pair: &Pair) -> Vec<String> {
    let queue = pair.raw.cmd(&["LRANGE", "redisson_lock_queue:{job}", "0", "-1"]).ok();
    let owners = queue.items().iter().map(|owner| owner.text());
    owners.map(|owner| owner.split(':').next().unwrap().to_owned()).collect()
}

/// a mixed queue is served in the order in which it came.
#[tokio::test]
async fn order_holds_in_a_mixed_queue() {
    let pair = Pair::start().await;
    let (java, (served, mut order)) = (FAIR.java(&pair), mpsc::unbounded_channel());
    java.lock("job", 0, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let (mut turns, mut ids) = (Vec::new(), Vec::new());
    for (turn, side) in (1..).zip("RJJRRJRJ".chars()) {
        let (served, java, lock) = (served.clone(), java.clone(), FAIR.rust(&pair, "job"));
        ids.push(if side == 'R' { pair.client.id().to_owned() } else { java.id.clone() });
        let wait = async move {
            if side == 'R' {
                let guard = granted(&lock).await;
                served.send(turn).unwrap();
                soon(guard.unlock()).await.unwrap();
            } else {
                java.lock("job", turn, LEASE_MS).await.unwrap();
                served.send(turn).unwrap();
                java.unlock("job", turn).await.unwrap();
            }
        };
        turns.push(FAIR.until_it_waits(&pair, "job", || wait).await);
    }
    assert_eq!(queue(&pair), ids);
    java.unlock("job", 0).await.unwrap();
    for turn in turns {
        soon(turn).await.unwrap();
    }
    assert_woken_before(end);
    drop(served);
    let mut seen = Vec::new();
    while let Some(turn) = order.recv().await {
        seen.push(turn);
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
    pair.assert_nothing_left().await;
}

/// Who was not there first does not get in before the others, on either side.
#[tokio::test]
async fn a_single_try_does_not_overtake_the_queue_of_the_other_side() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let first = FAIR.wait_in_rust(&pair, "job").await;
    let second = FAIR.wait_in_java(&pair, "job", 2).await;
    java.unlock("job", 1).await.unwrap();
    let guard = soon(first).await.unwrap();
    assert!(
        soon(FAIR.rust(&pair, "job").owned_by(leasehold::Owner::new()).try_lock_now())
            .await
            .unwrap()
            .is_none()
    );
    assert!(!java.try_lock("job", 3, 0, 1_000).await);
    soon(guard.unlock()).await.unwrap();
    soon(second).await.unwrap().unwrap();
    java.unlock("job", 2).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #2714, #4368, and §5.3 of what Redisson writes: who stops waiting stays in the queue until its
/// deadline, five minutes later, and nobody behind it gets the lock.
#[tokio::test]
async fn issue_2714_a_dropped_wait_leaves_the_queue_at_once() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let dropped = FAIR.wait_in_rust(&pair, "job").await;
    let behind = FAIR.wait_in_java(&pair, "job", 2).await;
    dropped.abort();
    eventually("it has left", async || queue(&pair) == [java.id.clone()]).await;
    java.unlock("job", 1).await.unwrap();
    soon(behind).await.unwrap().unwrap();
    assert_woken_before(end);
    java.unlock("job", 2).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #5019: who gave up at its deadline stays in the queue.
#[tokio::test]
async fn issue_5019_a_wait_that_ends_leaves_the_queue_to_those_behind() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let lock = FAIR.rust(&pair, "job");
    let trying = || async move { lock.try_lock(Duration::from_secs(1), LEASE).await };
    let trying = FAIR.until_it_waits(&pair, "job", trying).await;
    let behind = FAIR.wait_in_java(&pair, "job", 2).await;
    assert!(soon(trying).await.unwrap().unwrap().is_none());
    eventually("it has left", async || queue(&pair) == [java.id.clone()]).await;
    java.unlock("job", 1).await.unwrap();
    soon(behind).await.unwrap().unwrap();
    assert_woken_before(end);
    java.unlock("job", 2).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #4705, #6427, #4743: a wait behind another waiter fails although the lock is free in time.
#[tokio::test]
async fn issue_4705_a_wait_behind_another_gets_the_lock_that_is_free_in_time() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let ahead = FAIR.wait_in_java(&pair, "job", 2).await;
    let lock = FAIR.rust(&pair, "job");
    let trying = || async move { lock.try_lock(Duration::from_secs(15), LEASE).await };
    let trying = FAIR.until_it_waits(&pair, "job", trying).await;
    java.unlock("job", 1).await.unwrap();
    soon(ahead).await.unwrap().unwrap();
    java.unlock("job", 2).await.unwrap();
    let guard = soon(trying).await.unwrap().unwrap().expect("it was free in time");
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #3829, #2883, #1104: a dead waiter keeps the queue for five minutes. One of ours, for seconds, as
/// long as another of ours waits.
#[tokio::test]
async fn issue_3829_a_killed_waiter_of_ours_is_passed_over_and_java_is_next() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let mut victim = Process::hold(&pair.server, "fair", "job", KILLED_MS);
    eventually("it waits", async || FAIR.waiting(&pair.raw, "job") == 1).await;
    let second = FAIR.wait_in_java(&pair, "job", 2).await;
    victim.kill();
    let lock = FAIR.rust(&pair, "job");
    let third = tokio::spawn(async move { granted(&lock).await });
    eventually("three are in the queue", async || queue(&pair).len() == 3).await;
    java.unlock("job", 1).await.unwrap();
    soon(second).await.unwrap().unwrap();
    assert_woken_before(end);
    java.unlock("job", 2).await.unwrap();
    soon(soon(third).await.unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #5989, and §5 of what Redisson writes: a waiter whose deadline is missing stays at the head for
/// ever if it is dead, and its queue is of no use to others. Our beats give it one.
#[tokio::test]
async fn issue_5989_a_waiter_without_a_deadline_gets_one_and_its_turn() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let first = FAIR.wait_in_java(&pair, "job", 2).await;
    let second = FAIR.wait_in_rust(&pair, "job").await;
    let deadlines = "redisson_lock_timeout:{job}";
    let waiter = pair.raw.cmd(&["LINDEX", "redisson_lock_queue:{job}", "0"]).text();
    assert_eq!(pair.raw.cmd(&["ZREM", deadlines, &waiter]).int(), 1);
    let healed = async || !pair.raw.cmd(&["ZSCORE", deadlines, &waiter]).is_nil();
    eventually("it has a deadline again", healed).await;
    java.unlock("job", 1).await.unwrap();
    soon(first).await.unwrap().unwrap();
    java.unlock("job", 2).await.unwrap();
    let guard = soon(second).await.unwrap();
    assert_woken_before(end);
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// §5.5 of what Redisson writes: while the lock is free but another's turn it is, Redisson asks
/// without a pause. A dead waiter of Java's is such another, and is left to its deadline.
#[tokio::test]
async fn a_free_lock_that_is_a_dead_waiters_is_asked_for_now_and_then() {
    let pair = Pair::start().await;
    let java = FAIR.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let victim = Java::open(Jvm::start(), pair.server.port(), Settings::default()).await.of("fair");
    drop(victim.locking("job", 1, LEASE_MS)); // never answered
    eventually("it waits", async || FAIR.waiting(&pair.raw, "job") == 1).await;
    victim.jvm.kill();
    let lock = FAIR.rust(&pair, "job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    eventually("two are in the queue", async || queue(&pair).len() == 2).await;
    java.unlock("job", 1).await.unwrap();
    let before = crate::kinds::SPIN.waiting(&pair.raw, "job");
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = crate::kinds::SPIN.waiting(&pair.raw, "job") - before;
    assert!(asked < 100, "asked {asked} times in {:?}", begin.elapsed());
    assert!(!waiting.is_finished(), "the turn of Java's waiter was taken before its deadline");
    waiting.abort();
    eventually("only the dead one is left", async || queue(&pair) == [victim.id.clone()]).await;
}

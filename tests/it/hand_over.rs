//! A release hands the lock to the next waiter of the process in memory, for a window; then it
//! goes back to the server, where other processes have their turn.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{Client, Lock, LockGuard, LostReason};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use crate::{
    rig::{Rig, acquiring, held_by, releasing, soon},
    support::{eventually, history::History, server::RedisServer, unique},
};

/// Long enough that no stall of the machine ends it within a test.
const WINDOW: Duration = Duration::from_secs(8);

async fn rig(window: Duration) -> Rig {
    Rig::with(|builder| builder.hand_over_window(window)).await
}

/// A task that asks for the lock; returns when it stands in the queue.
async fn waiter(lock: &Lock) -> JoinHandle<LockGuard> {
    let lock = lock.clone();
    let (asked, asking) = oneshot::channel();
    let task = tokio::spawn(async move {
        let mut locking = Box::pin(lock.lock());
        assert!(futures::poll!(&mut locking).is_pending(), "somebody holds it");
        asked.send(()).expect("the test waits for it");
        locking.await.expect("it comes round")
    });
    soon(asking).await.expect("it asks");
    task
}

/// I1, I2, I12: many turns, one hold; the server sees one acquire and one release.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_hand_the_lock_on_without_a_command() {
    let (rig, name, history) = (rig(WINDOW).await, unique("hot"), History::new());
    let first = soon(rig.client.lock(&name).lock()).await.expect("free");
    let mut tasks = JoinSet::new();
    for task in 0..20 {
        let waiting = waiter(&rig.client.lock(&name)).await;
        let (name, history) = (name.clone(), history.clone());
        tasks.spawn(async move {
            let guard = waiting.await.expect("no panic");
            assert!(guard.is_held());
            let interval = history.held(&name, &format!("task {task}"));
            tokio::task::yield_now().await;
            interval.end();
            guard.unlock().await.expect("it is held");
        });
    }
    first.unlock().await.expect("it is held");
    soon(tasks.join_all()).await;
    history.assert_exclusive(20);
    rig.assert_nothing_left().await;
    assert_eq!(rig.proxy.count(acquiring(&name)), 1);
    assert_eq!(rig.proxy.count(releasing(&name)), 1);
}

/// I1: without a window, and after one, each release goes to the server.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_window_every_release_goes_to_the_server() {
    let (rig, name) = (rig(Duration::ZERO).await, unique("cold"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let second = waiter(&lock).await;
    let holder = first.holder();
    first.unlock().await.expect("it is held");
    let second = soon(second).await.expect("no panic");
    assert_ne!(second.holder(), holder, "a hold of its own");
    second.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
    assert_eq!(rig.proxy.count(releasing(&name)), 2);
}

/// I7, I8: whoever had an earlier turn sees it as over, whatever happens to the hold later.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_turn_is_over_and_never_lost() {
    let (rig, name) = (rig(WINDOW).await, unique("turns"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let (view, mut first_lost) = ((*first).clone(), Box::pin(first.lost()));
    let second = waiter(&lock).await;
    first.unlock().await.expect("it is held");
    let second = soon(second).await.expect("no panic");
    assert_eq!(second.holder(), view.holder(), "the same hold");
    assert!(second.is_held() && !view.is_held());
    assert_eq!((second.hold_count(), view.hold_count()), (1, 0));
    assert!(view.extend(Duration::from_secs(60)).await.is_err(), "it was given back");
    rig.raw.cmd(&["DEL", &name]);
    lock.force_unlock().await.expect("the server answers");
    assert_eq!(soon(second.lost()).await, LostReason::Removed);
    assert!(futures::poll!(&mut first_lost).is_pending(), "it was given back, not lost");
    assert!(second.unlock().await.expect_err("it was lost").is_lost());
}

/// I5: a nested turn is counted at the server as ever, and goes on when it is single again.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_may_nest() {
    let (rig, name) = (rig(WINDOW).await, unique("nested"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let next = {
        let (lock, name) = (lock.clone(), name.clone());
        let raw = rig.server.raw();
        let (asked, asking) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut locking = Box::pin(lock.lock());
            assert!(futures::poll!(&mut locking).is_pending());
            asked.send(()).expect("the test waits for it");
            let outer = locking.await.expect("it comes round");
            let inner = lock.lock().await.expect("nested");
            assert_eq!(raw.cmd(&["HGETALL", &name]).map(), held_by(&outer.holder(), 2));
            inner.unlock().await.expect("it is held");
            outer.unlock().await.expect("it is held");
        });
        soon(asking).await.expect("it asks");
        task
    };
    let last = waiter(&lock).await;
    first.unlock().await.expect("it is held");
    soon(next).await.expect("no panic");
    soon(last).await.expect("no panic").unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
    assert_eq!(rig.proxy.count(acquiring(&name)), 1);
}

/// I7: neither a fixed lease nor one that wants a fixed lease is handed on.
#[tokio::test(flavor = "multi_thread")]
async fn fixed_leases_are_not_handed_on() {
    let (rig, name) = (rig(WINDOW).await, unique("fixed"));
    let fixed = rig.client.lock(&name).lease(Duration::from_secs(30));
    let renewed = rig.client.lock(&name);
    for (first, second) in [(&fixed, &renewed), (&renewed, &fixed)] {
        let first = soon(first.lock()).await.expect("free");
        let holder = first.holder();
        let second = waiter(second).await;
        first.unlock().await.expect("it is held");
        let second = soon(second).await.expect("no panic");
        assert_ne!(second.holder(), holder, "a hold of its own");
        second.unlock().await.expect("it is held");
    }
    rig.assert_nothing_left().await;
}

/// R-38, I12: a waiter that goes when it was just handed the lock passes it on.
#[tokio::test(flavor = "multi_thread")]
async fn an_heir_that_goes_passes_the_lock_on() {
    let (rig, name) = (rig(WINDOW).await, unique("heirs"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let outside = leasehold::Owner::new();
    let mut heir = Box::pin(lock.clone().owned_by(outside).lock());
    assert!(futures::poll!(&mut heir).is_pending());
    let last = waiter(&lock).await;
    first.unlock().await.expect("it is held");
    // It was granted, and is dropped before it looks.
    drop(heir);
    soon(last).await.expect("no panic").unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// one that is never polled again keeps nobody waiting, and keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_heir_that_is_left_alone_keeps_nobody_waiting() {
    let (rig, name) = (rig(WINDOW).await, unique("sleepers"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let mut heir = Box::pin(lock.clone().owned_by(leasehold::Owner::new()).lock());
    assert!(futures::poll!(&mut heir).is_pending());
    let last = waiter(&lock).await;
    first.unlock().await.expect("it is held");
    let last = soon(last).await.expect("no panic");
    assert!(futures::poll!(&mut heir).is_pending(), "its turn has passed");
    last.unlock().await.expect("it is held");
    soon(heir).await.expect("it kept its place").unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I8: `max_hold` counts for each turn by itself.
#[tokio::test(flavor = "multi_thread")]
async fn max_hold_begins_anew_with_each_turn() {
    let (rig, name) = (rig(WINDOW).await, unique("long"));
    let short = rig.client.lock(&name).max_hold(Duration::from_millis(800));
    let long = rig.client.lock(&name);
    let first = soon(long.lock()).await.expect("free");
    let second = waiter(&short).await;
    let third = waiter(&long).await;
    first.unlock().await.expect("it is held");
    let second = soon(second).await.expect("no panic");
    assert_eq!(soon(second.lost()).await, LostReason::MaxHold);
    drop(second);
    let third = soon(third).await.expect("no panic");
    assert!(third.is_held());
    third.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I9: other processes get their turn after each window, however busy this one is.
#[tokio::test(flavor = "multi_thread")]
async fn other_processes_have_their_turn_after_a_window() {
    let rig = rig(Duration::from_millis(10)).await;
    let (name, history) = (unique("shared"), History::new());
    let mut busy = JoinSet::new();
    for task in 0..8 {
        let (lock, name, history) = (rig.client.lock(&name), name.clone(), history.clone());
        busy.spawn(async move {
            loop {
                let guard = lock.lock().await.expect("it comes round");
                let interval = history.held(&name, &format!("task {task}"));
                tokio::task::yield_now().await;
                interval.end();
                guard.unlock().await.expect("it is held");
            }
        });
    }
    let other = rig.bystander().await;
    // Also when this process is stopped for a while, each side has its share of them.
    for turn in 0.. {
        if turn >= 10 && history.intervals().len() >= 20 {
            break;
        }
        let guard = soon(other.lock(&name).lock()).await.expect("it comes round");
        history.held(&name, "other").end();
        guard.unlock().await.expect("it is held");
    }
    busy.shutdown().await;
    history.assert_exclusive(20);
    let raw = rig.server.raw();
    eventually("it is free", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
    rig.assert_nothing_left().await;
}

/// I9: the server tells its subscribers of a release in one order, and who is told first must not be
/// served first each time: each process goes behind those who waited when it gave the lock back.
#[tokio::test(flavor = "multi_thread")]
async fn processes_that_wait_have_a_turn_each() {
    const TURNS: usize = 120;
    let server = RedisServer::start();
    let (name, turns) = (unique("shared"), Arc::new(Mutex::new(Vec::new())));
    // Until all of them listen: who has come is told of no release before.
    let first = Client::connect(server.url()).await.expect("the server is up").lock(&name);
    let first = soon(first.lock()).await.expect("free");
    let mut busy = JoinSet::new();
    for process in 0..4 {
        let builder = Client::builder(server.url()).expect("a plain URL");
        let client = builder.hand_over_window(Duration::ZERO).connect();
        let client = soon(client).await.expect("the server is up");
        // Two tasks each: so one waits whenever the other gives it back.
        for _ in 0..2 {
            let (lock, turns) = (client.lock(&name), turns.clone());
            busy.spawn(async move {
                while turns.lock().unwrap().len() < TURNS {
                    let guard = lock.lock().await.expect("it comes round");
                    turns.lock().unwrap().push(process);
                    guard.unlock().await.expect("it is held");
                }
            });
        }
    }
    let raw = server.raw();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let listening = async || raw.cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int();
    eventually("all listen", async || listening().await == 4).await;
    first.unlock().await.expect("it is held");
    soon(busy.join_all()).await;
    let turns = turns.lock().unwrap();
    for process in 0..4 {
        let own = turns.iter().filter(|turn| **turn == process).count();
        assert!(own >= TURNS / 4 / 3, "process {process} had {own} turns of {turns:?}");
    }
}

/// R-47, I8: a hold that is removed while it goes round is told to whoever has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_removed_between_turns_is_told() {
    let rig =
        Rig::with(|builder| builder.watchdog(Duration::from_secs(1)).hand_over_window(WINDOW));
    let (rig, name) = (rig.await, unique("removed"));
    let lock = rig.client.lock(&name);
    let first = soon(lock.lock()).await.expect("free");
    let second = waiter(&lock).await;
    rig.raw.cmd(&["DEL", &name]).ok();
    first.unlock().await.ok();
    let second = soon(second).await.expect("no panic");
    // Handed over within the window, or taken anew: in either case what it says is true in time.
    if rig.holds(&name).is_empty() {
        assert_eq!(soon(second.lost()).await, LostReason::Removed);
    } else {
        assert!(second.is_held());
        second.unlock().await.expect("it is held");
    }
    rig.assert_nothing_left().await;
}

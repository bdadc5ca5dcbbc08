//! Served in order of arrival, over all processes, those in Java among them.
use std::sync::{Arc, Mutex};

use leasehold::{Client, WaitMode};
use tokio::task::JoinSet;

use super::{LOCK, Setup, granted, soon, until_in_line};
use crate::support::{
    assert_no_keys, blocking,
    history::History,
    proxy::named,
    redisson_fair::{FairNames, RedissonFair},
    server::{Raw, RedisServer},
};

type Served = Arc<Mutex<Vec<usize>>>;

/// I13: the waiters of two clients and of Java, mixed.
#[tokio::test(flavor = "multi_thread")]
async fn everyone_is_served_in_order_of_arrival() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let (served, mut tasks) = (Served::default(), JoinSet::new());
    for nth in 0..12 {
        let served = served.clone();
        if nth % 3 == 2 {
            let (port, names) = (setup.rig.server.port(), setup.names.clone());
            tasks.spawn(blocking(move || serve_java(port, &names, nth, &served)));
        } else {
            let lock = if nth % 3 == 0 { setup.lock() } else { setup.theirs() };
            tasks.spawn(async move {
                let guard = soon(lock.lock()).await.expect("its turn comes");
                served.lock().unwrap().push(nth);
                soon(guard.unlock()).await.expect("it is held");
            });
        }
        setup.until_in_line(nth + 1).await;
    }
    held.unlock().await.expect("it is held");
    soon(tasks.join_all()).await;
    assert_eq!(*served.lock().unwrap(), Vec::from_iter(0..12));
    setup.assert_nothing_left().await;
}

/// Waits as a Java thread does, notes its turn, and unlocks.
fn serve_java(port: u16, names: &FairNames, nth: usize, served: &Served) {
    const LEASE: i64 = 30_000;
    let (peer, ears) = (RedissonFair::connect(port, &format!("java{nth}")), Raw::connect(port));
    ears.subscribe(&names.mailbox(&peer.owner(1)));
    while peer.acquire(names, 1, LEASE, RedissonFair::WAIT_MS).is_some() {
        assert!(ears.next_message(super::LONG).is_some(), "it is never called");
    }
    served.lock().unwrap().push(nth);
    assert_eq!(peer.unlock(names, 1, LEASE), Some(true));
}

/// I13: also where nobody can be told, and each tries again and again.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_spin_are_served_in_order_and_subscribe_to_nothing() {
    let spin = |builder: leasehold::Builder| builder.wait_mode(WaitMode::Spin);
    let setup = Setup::with(spin).await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let (served, mut tasks) = (Served::default(), JoinSet::new());
    for nth in 0..6 {
        let (lock, served) = (setup.lock(), served.clone());
        tasks.spawn(async move {
            let guard = soon(lock.lock()).await.expect("its turn comes");
            served.lock().unwrap().push(nth);
            soon(guard.unlock()).await.expect("it is held");
        });
        setup.until_in_line(nth + 1).await;
    }
    held.unlock().await.expect("it is held");
    soon(tasks.join_all()).await;
    assert_eq!(*served.lock().unwrap(), Vec::from_iter(0..6));
    assert_eq!(setup.rig.proxy.count(named("SUBSCRIBE")), 0);
    setup.assert_nothing_left().await;
}

/// I13: a free lock is not for one that came later, and a single try joins no line.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_try_neither_queues_nor_passes_others_by() {
    let setup = Setup::start().await;
    let java = RedissonFair::connect(setup.rig.server.port(), "java");
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    assert!(soon(setup.lock().try_lock_now()).await.expect("no error").is_none());
    assert_eq!(setup.line(), Vec::<String>::new());
    assert!(java.acquire(&setup.names, 1, 30_000, RedissonFair::WAIT_MS).is_some());
    held.unlock().await.expect("it is held");
    assert!(soon(setup.lock().try_lock_now()).await.expect("no error").is_none());
    assert_eq!(setup.line(), [java.owner(1)]);
    assert_eq!(java.acquire(&setup.names, 1, 30_000, RedissonFair::WAIT_MS), None);
    assert_eq!(java.unlock(&setup.names, 1, 30_000), Some(true));
    let guard = soon(setup.lock().try_lock_now()).await.expect("no error").expect("it is free");
    guard.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I13, R-37: a waiter that is let down by its future comes after those behind it, and comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_nobody_collects_goes_to_the_next() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let left_alone = super::start(&setup.lock()).await;
    setup.until_in_line(1).await;
    let behind = setup.queue(&setup.theirs()).await;
    held.unlock().await.expect("it is held");
    granted(behind).await.unlock().await.expect("it is held");
    let guard = soon(left_alone).await.expect("it still gets its turn");
    guard.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// A plain lock of this name heeds no line, and excludes. Who waits hears of its end within a
/// second or so, long before its lease would have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_lock_of_the_same_name_excludes_it() {
    let setup = Setup::start().await;
    let held = soon(setup.other.lock(LOCK).lock_with(super::LONG)).await.expect("it is free");
    let waiting = setup.queue(&setup.lock()).await;
    held.unlock().await.expect("it is held");
    granted(waiting).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I1, I2, I13: 16 tasks of each of two clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_lock_is_held_by_one_at_a_time() {
    let server = RedisServer::start();
    let (history, mut tasks, mut clients) = (History::new(), JoinSet::new(), Vec::new());
    for number in 0..2 {
        let client = Client::connect(server.url()).await.expect("the server is up");
        for task in 0..16 {
            let (lock, history) = (client.fair_lock(LOCK), history.clone());
            tasks.spawn(async move {
                for _ in 0..8 {
                    let guard = lock.lock().await.expect("its turn comes");
                    let mut held = history.held(LOCK, &format!("{number}-{task}"));
                    tokio::task::yield_now().await;
                    held.valid_until(guard.valid_until());
                    held.end();
                    guard.unlock().await.expect("it is held");
                }
            });
        }
        clients.push(client);
    }
    soon(tasks.join_all()).await;
    history.assert_exclusive(2 * 16 * 8);
    for client in clients {
        client.close().await;
    }
    assert_no_keys(&server.raw());
}

/// R-35, I9: a holder that dies tells nobody; each that waits knows when its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_gets_it_when_the_lease_of_a_dead_holder_ends() {
    let setup = Setup::start().await;
    setup.rig.raw.cmd(&["HSET", LOCK, "gone:1", "1"]).ok();
    setup.rig.raw.cmd(&["PEXPIRE", LOCK, "1000"]).ok();
    let first = setup.queue(&setup.lock()).await;
    let second = setup.queue(&setup.theirs()).await;
    let guard = granted(first).await;
    assert!(!second.is_finished());
    guard.unlock().await.expect("it is held");
    granted(second).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I13: a handle that is used again and again has no advantage over who waits.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_back_goes_to_the_end() {
    let setup = Setup::start().await;
    let ours = setup.lock();
    let held = soon(ours.lock()).await.expect("it is free");
    let theirs = setup.queue(&setup.theirs()).await;
    held.unlock().await.expect("it is held");
    let again = tokio::spawn(ours.lock());
    let guard = granted(theirs).await;
    until_in_line(&setup.rig.raw, &setup.names, 1).await;
    assert!(!again.is_finished());
    guard.unlock().await.expect("it is held");
    granted(again).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

//! Nobody asks more often than there is a reason to.
use std::time::Duration;

use tokio::task::JoinSet;

use super::{LOCK, LONG, Setup, acquiring, granted, renewing, soon};
use crate::support::{
    eventually,
    proxy::{any, named},
    redisson_fair::RedissonFair,
};

/// the lock is free, but another is first and takes its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_that_is_not_ours_to_take_is_not_asked_for_in_vain() {
    let setup = Setup::start().await;
    let java = RedissonFair::connect(setup.rig.server.port(), "java");
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let told = java.acquire(&setup.names, 1, 30_000, RedissonFair::WAIT_MS);
    assert!(told.is_some());
    let waiting = [setup.queue(&setup.lock()).await, setup.queue(&setup.lock()).await];
    held.unlock().await.expect("it is held");
    setup.rig.proxy.wait_for(renewing(), 1).await;
    let (asked, all) = (setup.rig.proxy.count(acquiring()), setup.rig.proxy.count(any()));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(setup.rig.proxy.count(acquiring()), asked, "asked in vain");
    let all = setup.rig.proxy.count(any()) - all;
    assert!(all <= 8, "{all} commands in 2.5 s");
    assert_eq!(java.acquire(&setup.names, 1, 30_000, RedissonFair::WAIT_MS), None);
    assert_eq!(java.unlock(&setup.names, 1, 30_000), Some(true));
    for waiting in waiting {
        granted(waiting).await.unlock().await.expect("it is held");
    }
    setup.assert_nothing_left().await;
}

/// one list a second for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_that_wait_send_one_command_a_second() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock_with(LONG)).await.expect("it is free");
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let lock = setup.lock();
        tasks.spawn(async move {
            let guard = soon(lock.lock()).await.expect("its turn comes");
            guard.unlock().await.expect("it is held");
        });
    }
    setup.until_in_line(100).await;
    let all_listen = async || crate::support::subscriptions(&setup.rig.raw) == 100;
    eventually("all listen", all_listen).await;
    let beats = setup.rig.proxy.count(renewing());
    setup.rig.proxy.wait_for(renewing(), beats + 2).await;
    let before = setup.rig.proxy.count(any());
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let all = setup.rig.proxy.count(any()) - before;
    assert!((2..=8).contains(&all), "{all} commands in 2.5 s");
    held.unlock().await.expect("it is held");
    soon(tasks.join_all()).await;
    setup.assert_nothing_left().await;
}

/// a hand-over wakes the first, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_makes_only_the_first_ask() {
    let setup = Setup::start().await;
    let mut held = soon(setup.lock().lock()).await.expect("it is free");
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let before = setup.rig.proxy.count(acquiring());
        waiting.push(setup.queue(&setup.lock()).await);
        let looked = async || setup.rig.proxy.count(acquiring()) == before + 2;
        eventually("it has looked again", looked).await;
    }
    let before = setup.rig.proxy.count(acquiring());
    for waiting in waiting {
        held.unlock().await.expect("it is held");
        held = granted(waiting).await;
    }
    held.unlock().await.expect("it is held");
    let asked = setup.rig.proxy.count(acquiring()) - before;
    assert!(asked <= 16 + 4, "{asked} tries for 16 hand-overs");
    setup.assert_nothing_left().await;
}

/// a flood on the channel of one that waits causes a bounded number of tries.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_forged_messages_is_bounded() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock_with(LONG)).await.expect("it is free");
    let waiting = setup.queue(&setup.lock()).await;
    eventually("it has looked again", async || setup.rig.proxy.count(acquiring()) == 2).await;
    let mailbox = setup.names.mailbox(&setup.line()[0]);
    let begin = std::time::Instant::now();
    let flood = vec![["PUBLISH", &mailbox, "0"]; 20_000];
    for message in flood {
        setup.rig.raw.cmd(&message).ok();
    }
    let windows = begin.elapsed().as_millis() as usize / 16 + 2;
    let asked = setup.rig.proxy.count(acquiring()) - 2;
    assert!(asked > 0 && asked <= windows * 17, "{asked} tries in {windows} windows");
    held.unlock().await.expect("it is held");
    granted(waiting).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// An uncontended lock costs a command to take and one to give back, and no subscription.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_two_commands() {
    let setup = Setup::start().await;
    let before = setup.rig.proxy.count(any());
    for _ in 0..5 {
        let guard = soon(setup.lock().lock()).await.expect("it is free");
        guard.unlock().await.expect("it is held");
    }
    assert_eq!(setup.rig.proxy.count(any()) - before, 10);
    assert_eq!(setup.rig.proxy.count(named("SUBSCRIBE")), 0);
    assert_eq!(setup.rig.raw.cmd(&["EXISTS", LOCK]).int(), 0);
    setup.assert_nothing_left().await;
}

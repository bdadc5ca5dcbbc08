//! Lost messages, lost replies, broken connections, servers that come back with and without data.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::LostReason;

use super::{LOCK, LONG, Setup, Waiting, acquiring, granted, releasing, renewing, soon};
use crate::{
    rig::held_by,
    support::{eventually, proxy::Fault, server::RedisServer},
};

/// I9, R-32: the next sign of life of anybody who waits tells the first again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_is_said_again() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock_with(LONG)).await.expect("it is free");
    let waiting = setup.queue(&setup.lock()).await;
    eventually("it has looked again", async || setup.rig.proxy.count(acquiring()) == 2).await;
    setup.rig.proxy.eat_messages(true);
    held.unlock().await.expect("it is held");
    eventually("it is eaten", async || setup.rig.proxy.messages_eaten() > 0).await;
    assert!(!waiting.is_finished());
    setup.rig.proxy.eat_messages(false);
    granted(waiting).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I9: without any message, the time that the holder's lease had left.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_needed() {
    let setup = Setup::start().await;
    setup.rig.proxy.eat_messages(true);
    let lease = Duration::from_secs(2);
    let held = soon(setup.theirs().lock_with(lease)).await.expect("it is free");
    let waiting = [setup.queue(&setup.lock()).await, setup.queue(&setup.lock()).await];
    held.unlock().await.expect("it is held");
    for waiting in waiting {
        granted(waiting).await.unlock().await.expect("it is held");
    }
    setup.assert_nothing_left().await;
}

async fn joins_once(lost: impl Fn(&Setup) -> Fault) {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let lost = lost(&setup);
    let first = tokio::spawn(setup.lock().lock());
    lost.happened(1).await;
    setup.until_in_line(1).await;
    let second = setup.queue(&setup.theirs()).await;
    held.unlock().await.expect("it is held");
    let guard = granted(first).await;
    assert_eq!((setup.line().len(), second.is_finished()), (1, false));
    guard.unlock().await.expect("it is held");
    granted(second).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// R-25, I13.
#[tokio::test(flavor = "multi_thread")]
async fn who_joins_and_hears_nothing_has_its_place() {
    joins_once(|setup| setup.rig.proxy.drop_reply(acquiring(), 1)).await;
}

/// R-25, I13.
#[tokio::test(flavor = "multi_thread")]
async fn who_joins_and_loses_its_connection_has_its_place() {
    joins_once(|setup| setup.rig.proxy.drop_reply_and_cut(acquiring())).await;
}

/// I5: the replies to winning and to giving back are lost, with and without connection.
#[tokio::test(flavor = "multi_thread")]
async fn winning_and_giving_back_without_a_reply_count_once() {
    let setup = Setup::start().await;
    for cut in [false, true] {
        let held = soon(setup.theirs().lock()).await.expect("it is free");
        let before = setup.rig.proxy.count(acquiring());
        let waiting = setup.queue(&setup.lock()).await;
        let looked = async || setup.rig.proxy.count(acquiring()) == before + 2;
        eventually("it has looked again", looked).await;
        let lost = match cut {
            false => setup.rig.proxy.drop_reply(acquiring(), 1),
            true => setup.rig.proxy.drop_reply_and_cut(acquiring()),
        };
        held.unlock().await.expect("it is held");
        lost.happened(1).await;
        let guard = granted(waiting).await;
        assert_eq!(setup.rig.holds(LOCK), held_by(&guard.holder(), 1));
        let lost = match cut {
            false => setup.rig.proxy.drop_reply(releasing(), 1),
            true => setup.rig.proxy.drop_reply_and_cut(releasing()),
        };
        soon(guard.unlock()).await.expect("it is given back");
        lost.happened(1).await;
    }
    setup.assert_nothing_left().await;
}

/// Waiters in order of arrival, each of which notes its turn.
async fn twenty(setup: &Setup) -> (Vec<Waiting>, Arc<Mutex<Vec<usize>>>) {
    let (mut waiting, served) = (Vec::new(), Arc::new(Mutex::new(Vec::new())));
    for nth in 0..20 {
        let (lock, served) = (setup.lock(), served.clone());
        waiting.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            served.lock().unwrap().push(nth);
            Ok(guard)
        }));
        setup.until_in_line(nth + 1).await;
    }
    (waiting, served)
}

async fn give_back_all(waiting: Vec<Waiting>) {
    let all = waiting.into_iter().map(|waiting| async {
        granted(waiting).await.unlock().await.expect("it is held");
    });
    futures::future::join_all(all).await;
}

/// R-32, I13.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_costs_nobody_its_place() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let (waiting, served) = twenty(&setup).await;
    let before = setup.line();
    setup.rig.proxy.cut_all().await;
    let again = setup.queue(&setup.lock()).await;
    assert_eq!(setup.line()[..20], before);
    held.unlock().await.expect("it is held");
    give_back_all(waiting).await;
    assert_eq!(*served.lock().unwrap(), Vec::from_iter(0..20));
    granted(again).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// R-07, I8: an empty server has no line. They queue anew, and nobody waits for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_came_back_empty_is_queued_at_anew() {
    let mut setup = Setup::start().await;
    let held = soon(setup.lock().lock()).await.expect("it is free");
    let (waiting, _) = twenty(&setup).await;
    setup.rig.server.restart();
    setup.rig.raw = setup.rig.server.raw();
    assert_eq!(soon(held.lost()).await, LostReason::Removed);
    drop(held);
    give_back_all(waiting).await;
    setup.assert_nothing_left().await;
}

/// R-08, I13.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_kept_its_data_keeps_the_line() {
    let server = RedisServer::builder().appendonly().args(["--appendfsync", "always"]).start();
    let timeout = Duration::from_millis(400);
    let mut setup = Setup::before(server, |builder| builder.command_timeout(timeout)).await;
    let held = soon(setup.lock().lock()).await.expect("it is free");
    let (waiting, served) = twenty(&setup).await;
    let before = setup.line();
    setup.rig.server.restart();
    setup.rig.raw = setup.rig.server.raw();
    assert_eq!(setup.line(), before);
    soon(held.unlock()).await.expect("it is held");
    give_back_all(waiting).await;
    assert_eq!(*served.lock().unwrap(), Vec::from_iter(0..20));
    setup.assert_nothing_left().await;
}

/// whoever lost its place by the hand of an operator queues anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_was_deleted_forms_anew() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock_with(LONG)).await.expect("it is free");
    let waiting = [setup.queue(&setup.lock()).await, setup.queue(&setup.theirs()).await];
    let beats = format!("leasehold_fair:{{{LOCK}}}");
    let keys = [&setup.names.queue, &setup.names.deadlines, &beats];
    for key in keys {
        setup.rig.raw.cmd(&["DEL", key]).ok();
    }
    setup.until_in_line(2).await;
    held.unlock().await.expect("it is held");
    give_back_all(waiting.into()).await;
    setup.assert_nothing_left().await;
}

/// R-47, I8: holders are told, and the first of the line is.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_freed_by_force_goes_to_the_first() {
    let setup = Setup::start().await;
    let held = soon(setup.lock().lock()).await.expect("it is free");
    let first = setup.queue(&setup.theirs()).await;
    let second = setup.queue(&setup.lock()).await;
    assert!(soon(setup.lock().force_unlock()).await.expect("the server is up"));
    assert_eq!(soon(held.lost()).await, LostReason::Removed);
    let guard = granted(first).await;
    assert!(!second.is_finished());
    guard.unlock().await.expect("it is held");
    granted(second).await.unlock().await.expect("it is held");
    drop(held);
    setup.assert_nothing_left().await;
}

/// I8, R-47: also while others wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_deleted_is_told_as_lost() {
    let setup = Setup::with(|builder| builder.watchdog(Duration::from_secs(2))).await;
    let held = soon(setup.lock().lock()).await.expect("it is free");
    let waiting = setup.queue(&setup.lock()).await;
    setup.rig.raw.cmd(&["DEL", LOCK]).ok();
    assert_eq!(soon(held.lost()).await, LostReason::Removed);
    granted(waiting).await.unlock().await.expect("it is held");
    drop(held);
    setup.assert_nothing_left().await;
}

/// I7, I8: the answer to a sign of life comes after the grant, and says nothing of the hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_to_a_sign_of_life_does_not_end_the_renewal() {
    let setup = Setup::with(|builder| builder.watchdog(Duration::from_secs(2))).await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let waiting = setup.queue(&setup.lock()).await;
    let beat = setup.rig.proxy.hold_reply(renewing());
    beat.held().await;
    held.unlock().await.expect("it is held");
    let guard = granted(waiting).await;
    let before = guard.valid_until();
    beat.release();
    let renewed = async || guard.valid_until() > before + Duration::from_secs(1);
    eventually("it has been renewed more than once", renewed).await;
    guard.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I6: a sign of life that runs after the grant does not make a fixed lease longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_sign_of_life_makes_no_lease_longer() {
    let setup = Setup::with(|builder| builder.command_timeout(Duration::from_secs(5))).await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let waiting = setup.queue(&setup.lock().lease(Duration::from_secs(4))).await;
    eventually("it has looked again", async || setup.rig.proxy.count(acquiring()) == 2).await;
    let won = setup.rig.proxy.hold_reply(acquiring());
    held.unlock().await.expect("it is held");
    won.held().await;
    let beats = setup.rig.proxy.count(renewing());
    setup.rig.proxy.wait_for(renewing(), beats + 2).await;
    let left = setup.rig.raw.cmd(&["PTTL", LOCK]).int();
    assert!(left < 4000, "{left} ms are left of 4 s");
    won.release();
    granted(waiting).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

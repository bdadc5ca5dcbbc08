//! Whoever waits no longer leaves the line at once, however it ends.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use leasehold::ErrorKind;
use tokio::{task::yield_now, time::timeout};

use super::{LOCK, LONG, Setup, acquiring, granted, releasing, soon};
use crate::support::{eventually, history::History, proxy::named};

/// When a call that is not woken any more has come to its last point.
const STUCK: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug)]
enum Call {
    Lock,
    TryLock,
    With,
}

fn call(setup: &Setup, call: Call) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let lock = setup.lock();
    match call {
        Call::Lock => Box::pin(async move { drop(lock.lock().await) }),
        Call::TryLock => Box::pin(async move { drop(lock.try_lock_for(LONG).await) }),
        Call::With => Box::pin(async move { drop(lock.with(|_| yield_now()).await) }),
    }
}

/// Drops a future when it is pending for the time after `point` times; whether it came to that.
async fn cancel_at(point: usize, future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    let mut pending = 0;
    let driving = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(()) => panic!("somebody else holds it"),
        Poll::Pending if pending == point => Poll::Ready(()),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    });
    timeout(STUCK, driving).await.is_ok()
}

/// I12.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_dropped_at_any_point_leaves_the_line() {
    let setup = Setup::start().await;
    for which in [Call::Lock, Call::TryLock, Call::With] {
        for point in 0.. {
            let held = soon(setup.theirs().lock()).await.expect("it is free");
            let came = cancel_at(point, call(&setup, which)).await;
            let alone = async || setup.rig.raw.cmd(&["DBSIZE"]).int() == 1;
            eventually(&format!("{which:?} at {point} left the line"), alone).await;
            held.unlock().await.expect("it is held");
            if !came {
                break;
            }
        }
    }
    setup.assert_nothing_left().await;
}

/// dropped at each step of the conversation, before and after the server has done it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_at_any_step_leaves_the_line() {
    let setup = Setup::start().await;
    for step in ["EVALSHA", "SUBSCRIBE", "PING"] {
        for done in [false, true] {
            let held = soon(setup.theirs().lock()).await.expect("it is free");
            let stopped = match done {
                false => setup.rig.proxy.hold_command(named(step)),
                true => setup.rig.proxy.hold_reply(named(step)),
            };
            let waiting = tokio::spawn(setup.lock().lock());
            stopped.held().await;
            waiting.abort();
            let _ = waiting.await;
            stopped.release();
            stopped.answered().await;
            let alone = async || setup.rig.raw.cmd(&["DBSIZE"]).int() == 1;
            eventually(&format!("it left the line after {step}, {done}"), alone).await;
            held.unlock().await.expect("it is held");
        }
    }
    setup.assert_nothing_left().await;
}

/// a place in the line outlasts the lease that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_long_after_its_short_lease_leaves_the_line() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock_with(LONG)).await.expect("it is free");
    let waiting = setup.queue(&setup.lock().lease(Duration::from_millis(100))).await;
    // Leaving was given up a second after the lease that was asked for last: only time shows it.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    waiting.abort();
    setup.until_in_line(0).await;
    held.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I10, R-37.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_ends_leaves_the_line() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    for lock in [setup.lock(), setup.theirs()] {
        let tried = soon(lock.try_lock_for(Duration::from_millis(100))).await;
        assert!(tried.expect("no error").is_none());
        setup.until_in_line(0).await;
    }
    assert_eq!(setup.rig.raw.cmd(&["DBSIZE"]).int(), 1);
    held.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I10, R-25: their time ends while the server cannot be reached.
#[tokio::test(flavor = "multi_thread")]
async fn tries_that_end_during_an_outage_leave_the_line_after_it() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let locks: Vec<_> = (0..16).map(|_| setup.lock()).collect();
    // In one task, so that their time ends at once.
    let tries = locks.iter().map(|lock| lock.try_lock_for(Duration::from_secs(2)));
    let tries = tokio::spawn(futures::future::join_all(tries));
    setup.until_in_line(16).await;
    // Behind all their replies, on the same connection: they know it, too.
    assert!(soon(setup.lock().is_locked()).await.expect("it answers"));
    setup.rig.proxy.refuse(true);
    setup.rig.proxy.cut_all().await;
    for tried in soon(tries).await.expect("no panic") {
        assert!(tried.expect("they have been refused").is_none());
    }
    setup.rig.proxy.refuse(false);
    setup.until_in_line(0).await;
    held.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// the reply to leaving is lost, with or without its connection.
#[tokio::test(flavor = "multi_thread")]
async fn leaving_whose_reply_is_lost_is_through() {
    let setup = Setup::start().await;
    for cut in [false, true] {
        let held = soon(setup.theirs().lock()).await.expect("it is free");
        let waiting = setup.queue(&setup.lock()).await;
        let lost = match cut {
            false => setup.rig.proxy.drop_reply(releasing(), 1),
            true => setup.rig.proxy.drop_reply_and_cut(releasing()),
        };
        waiting.abort();
        lost.happened(1).await;
        setup.until_in_line(0).await;
        held.unlock().await.expect("it is held");
    }
    setup.assert_nothing_left().await;
}

/// the winner is dropped before it hears of it; the next gets its turn at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_is_dropped_makes_way() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let first = setup.queue(&setup.lock()).await;
    let second = setup.queue(&setup.theirs()).await;
    eventually("it has looked again", async || setup.rig.proxy.count(acquiring()) == 2).await;
    let won = setup.rig.proxy.hold_reply(acquiring());
    held.unlock().await.expect("it is held");
    won.held().await;
    first.abort();
    let _ = first.await;
    assert!(!second.is_finished());
    won.release();
    granted(second).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// R-38, I1, I2, I12.
#[tokio::test(flavor = "multi_thread")]
async fn futures_dropped_at_random_leave_nothing_behind() {
    let (setup, history) = (Setup::start().await, History::new());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u64 {
        let lock = if task % 2 == 0 { setup.lock() } else { setup.theirs() };
        let history = history.clone();
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..60 {
                let limit = Duration::from_micros(random.u64(..20_000));
                let Ok(guard) = timeout(limit, lock.lock()).await else { continue };
                let guard = guard.expect("the server is up");
                let mut held = history.held(LOCK, &task.to_string());
                yield_now().await;
                held.valid_until(guard.valid_until());
                held.end();
                let limit = Duration::from_micros(random.u64(..2_000));
                let _ = timeout(limit, guard.unlock()).await;
            }
        });
    }
    soon(tasks.join_all()).await;
    history.assert_exclusive(20);
    setup.assert_nothing_left().await;
}

/// closing ends all waits, and they leave the line; holders have their grace.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_leaves_the_line() {
    let setup = Setup::start().await;
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    let mut waiting = vec![setup.queue(&setup.lock()).await, setup.queue(&setup.lock()).await];
    let theirs = setup.queue(&setup.theirs()).await;
    waiting.push(setup.queue(&setup.lock()).await);
    soon(setup.rig.client.close()).await;
    for waiting in waiting {
        let error = soon(waiting).await.expect("no panic").expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    setup.until_in_line(1).await;
    held.unlock().await.expect("it is held");
    granted(theirs).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// a holder that shuts down keeps its hold for the grace, its waiters go.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shuts_down_keeps_its_hold_and_leaves_the_line() {
    let setup = Setup::start().await;
    let held = soon(setup.lock().lock()).await.expect("it is free");
    let ours = setup.queue(&setup.lock()).await;
    let theirs = setup.queue(&setup.theirs()).await;
    let client = setup.rig.client.clone();
    let closing = tokio::spawn(async move { client.shutdown(LONG).await });
    let error = soon(ours).await.expect("no panic").expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    setup.until_in_line(1).await;
    assert!(held.is_held() && !closing.is_finished());
    held.unlock().await.expect("it is held");
    granted(theirs).await.unlock().await.expect("it is held");
    soon(closing).await.expect("no panic");
    setup.assert_nothing_left().await;
}

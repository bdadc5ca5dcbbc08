//! Replies that are lost, futures that are dropped, servers that go, clients that close.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use leasehold::{Lock, LostReason};
use tokio::time::timeout;

use super::{Setup, calls, given_back, granted, locked};
use crate::{
    rig::soon,
    support::{assert_every_key_has_ttl, eventually},
};

/// Takes both halves twice and gives them back one by one; before each call, `before` gets its
/// number.
async fn up_and_down(setup: &Setup, before: impl Fn(usize)) {
    let (read, write) = setup.ours();
    let (mut guards, mut call) = (Vec::new(), 0);
    for half in [&write, &read, &write, &read] {
        before(call);
        guards.push(locked(half).await);
        call += 1;
    }
    let field = guards[0].holder().to_string();
    // The writing first, then the reading: a downgrade on the way.
    for (at, left) in [(0, [2, 1]), (1, [2, 0]), (0, [1, 0]), (0, [0, 0])] {
        before(call);
        given_back(guards.remove(at)).await;
        let hash = setup.hash();
        let count = |field: &str| hash.get(field).map_or(0, |n| n.parse::<u32>().unwrap());
        assert_eq!([count(&field), count(&format!("{field}:write"))], left, "after call {call}");
        assert_eq!([read.hold_count(), write.hold_count()], left);
        call += 1;
    }
    assert_eq!(call, CALLS);
}

const CALLS: usize = 8;

/// I5: whichever call it was the reply to, and whether its connection went with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_of_any_call_counts_once() {
    let setup = Setup::with(|builder| builder.command_timeout(Duration::from_millis(200))).await;
    for cut in [false, true] {
        for at in 0..CALLS {
            let fault = std::cell::RefCell::new(None);
            up_and_down(&setup, |call| {
                if call == at {
                    let proxy = &setup.rig.proxy;
                    let lost = if cut {
                        proxy.drop_reply_and_cut(calls())
                    } else {
                        proxy.drop_reply(calls(), 1)
                    };
                    *fault.borrow_mut() = Some(lost);
                }
            })
            .await;
            let fault = fault.borrow_mut().take().expect("it was armed");
            fault.happened(1).await;
        }
    }
    setup.assert_nothing_left().await;
}

/// the last of a hold is sent again as its last, whatever else was given back meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_whose_give_back_was_not_answered_is_given_back_when_the_other_goes_too() {
    let setup = Setup::with(|builder| builder.command_timeout(Duration::from_millis(200))).await;
    for write_first in [false, true] {
        let (read, write) = setup.ours();
        let writing = locked(&write).await;
        let reading = locked(&read).await;
        let lost = setup.rig.proxy.drop_reply(calls(), 1);
        let (first, second) = if write_first { (writing, reading) } else { (reading, writing) };
        let giving = tokio::spawn(first.unlock());
        lost.happened(1).await;
        drop(second);
        soon(giving).await.expect("no panic").expect("the server has done it");
        eventually("it is free", async || setup.hash().is_empty()).await;
    }
    setup.assert_nothing_left().await;
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Drops a future when it is pending for the time after `point` times; whether it got that far.
async fn dropped_at(point: usize, call: Call) -> bool {
    let mut call = pin!(call);
    let mut pending = 0;
    let driving = poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending if pending == point => Poll::Ready(true),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    });
    timeout(Duration::from_millis(200), driving).await.unwrap_or(false)
}

fn locking(half: &Lock) -> Call {
    let locking = half.lock();
    Box::pin(async move { drop(locking.await.expect("it is ours or free")) })
}

/// R-38, I5, I7, I12: in both halves, fresh and nested in each other, at every point.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_dropped_at_any_point_leaves_the_hold_as_it_was() {
    let setup = Setup::start().await;
    setup.rig.proxy.delay_replies(Duration::from_millis(2));
    let outer: [fn(&Lock, &Lock) -> Vec<Lock>; 5] = [
        |_, _| vec![],
        |read, _| vec![read.clone()],
        |_, write| vec![write.clone()],
        |read, write| vec![write.clone(), read.clone()],
        |read, write| vec![write.clone(), write.clone(), read.clone()],
    ];
    for around in outer {
        for reads in [true, false] {
            let (read, write) = setup.ours();
            let mut guards = Vec::new();
            for half in around(&read, &write) {
                guards.push(locked(&half).await);
            }
            let inner = if reads { &read } else { &write };
            let upgrade = !reads && guards.len() == 1 && read.is_held_by_me();
            let before = setup.hash();
            let mut point = 0;
            while !upgrade && dropped_at(point, locking(inner)).await {
                point += 1;
                eventually("all is as it was", async || setup.hash() == before).await;
                assert!(guards.iter().all(|guard| guard.is_held()));
            }
            assert!(upgrade || point > 0, "it was never pending");
            drop(guards);
            eventually("it is free", async || setup.rig.raw.cmd(&["DBSIZE"]).int() == 0).await;
        }
    }
    setup.assert_nothing_left().await;
}

/// R-38, I5: it is given back all the same, and only it.
#[tokio::test(flavor = "multi_thread")]
async fn a_give_back_dropped_at_any_point_is_done_and_the_other_half_stays() {
    let setup = Setup::start().await;
    setup.rig.proxy.delay_replies(Duration::from_millis(2));
    for write_first in [false, true] {
        for point in 0.. {
            let (read, write) = setup.ours();
            let writing = locked(&write).await;
            let reading = locked(&read).await;
            let (first, second) = if write_first { (writing, reading) } else { (reading, writing) };
            let giving = first.unlock();
            let dropped = dropped_at(point, Box::pin(async { giving.await.expect("held") })).await;
            eventually("one half is left", async || setup.hash().len() == 2).await;
            assert!(second.is_held());
            given_back(second).await;
            if !dropped {
                assert!(point > 0, "it was never pending");
                break;
            }
        }
    }
    setup.assert_nothing_left().await;
}

/// R-38, I9: who waits to write or to read behind others is gone without a trace.
#[tokio::test(flavor = "multi_thread")]
async fn waits_dropped_at_any_point_leave_nothing_behind() {
    let setup = Setup::start().await;
    for reads in [true, false] {
        for point in 0..8 {
            let theirs = locked(&setup.theirs().1).await;
            let half = if reads { setup.ours().0 } else { setup.ours().1 };
            let before = tokio::spawn(super::asked(&setup.ours().0).await);
            dropped_at(point, locking(&half)).await;
            given_back(theirs).await;
            given_back(granted(before).await).await;
            given_back(locked(&setup.theirs().1).await).await;
        }
    }
    setup.assert_nothing_left().await;
}

/// I8: after a cut all is as before; after a restart all is gone, and told at once.
#[tokio::test(flavor = "multi_thread")]
async fn both_halves_outlast_a_cut_and_are_told_of_a_restart() {
    let mut setup = Setup::start().await;
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    setup.rig.proxy.cut_all().await;
    let nested = [locked(&read).await, locked(&write).await];
    assert_eq!([read.hold_count(), write.hold_count()], [2, 2]);
    drop(nested);
    eventually("each is held once", async || setup.hash().values().all(|n| n != "2")).await;
    let waiting = tokio::spawn(super::asked(&setup.ours().0).await);
    setup.rig.server.restart();
    let told = soon(async { tokio::join!(writing.lost(), reading.lost()) }).await;
    assert_eq!(told, (LostReason::Removed, LostReason::Removed));
    assert!(soon(read.lock()).await.expect_err("it is lost").is_lost());
    drop((writing, reading));
    given_back(granted(waiting).await).await;
    let raw = setup.rig.server.raw();
    eventually("nothing is left", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

/// I7, I12: a client that closes tells both, and renews neither.
#[tokio::test(flavor = "multi_thread")]
async fn closing_tells_both_halves() {
    let setup = Setup::start().await;
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    let other = tokio::spawn(super::asked(&setup.ours().0).await);
    soon(setup.rig.client.close()).await;
    let told = soon(async { tokio::join!(writing.lost(), reading.lost()) }).await;
    assert_eq!(told, (LostReason::ClientClosed, LostReason::ClientClosed));
    assert_every_key_has_ttl(&setup.rig.raw);
    let error = soon(other).await.expect("no panic").expect_err("the client is closed");
    assert_eq!(error.kind(), leasehold::ErrorKind::Closed);
    drop((writing, reading));
}

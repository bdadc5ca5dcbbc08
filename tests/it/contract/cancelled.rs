//! A call may be dropped at any point: nothing stays behind.
use std::{future::Future, pin::Pin, time::Duration};

use super::{
    setup::{End, HANG, Setup, cancel_at, got},
    subjects::{Synchronizer, Taken},
};

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// R-38, I7, I12: at each point where it is pending.
pub async fn a_dropped_future_leaves_nothing_behind<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    // Else a machine that stalls between two instructions may see a call through in one poll.
    setup.proxy.delay_replies(Duration::from_millis(2));
    for trying in [false, true] {
        let mut point = 0;
        while cancel_at(point, call::<S>(&setup, trying)).await != End::Finished {
            point += 1;
        }
        assert!(point > 0, "it was never pending");
        setup.assert_free::<S>(&format!("after {point} futures, trying: {trying}")).await;
    }
}

/// R-38, I7, I12: while somebody else has it, and again while that one gives it back.
pub async fn a_dropped_wait_leaves_nothing_behind<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    for trying in [false, true] {
        for point in 0.. {
            let occupied = setup.occupy::<S>().await;
            let end = cancel_at(point, call::<S>(&setup, trying)).await;
            assert_ne!(end, End::Finished, "somebody else has it");
            occupied.give_back().await.expect("it is held");
            // Whether or not the one that is dropped gets it on the way.
            setup.assert_free::<S>(&format!("at {point}, trying: {trying}")).await;
            if end == End::Stuck || point > 20 {
                break;
            }
        }
    }
    let occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    let (given_back, ()) = tokio::join!(occupied.give_back(), async { waiting.abort() });
    given_back.expect("it is held");
    drop(waiting.await);
    let occupied = setup.occupy::<S>().await;
    let wait = Duration::from_millis(50);
    let tried = got(S::of(&setup.one, &setup.name).try_take(wait)).await;
    assert!(tried.is_none(), "somebody else has it");
    occupied.give_back().await.expect("it is held");
    setup.assert_free::<S>("after a drop beside the release").await;
    setup.assert_nobody_listens().await;
}

/// R-38, I5: it is given back, and once.
pub async fn a_dropped_give_back_is_done_all_the_same<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    setup.proxy.delay_replies(Duration::from_millis(2));
    for point in 0.. {
        let taken = got(S::of(&setup.one, &setup.name).take()).await;
        let end = cancel_at(point, taken.give_back()).await;
        setup.assert_free::<S>(&format!("after {end:?} at {point}")).await;
        if end == End::Finished {
            assert!(point > 0, "it was never pending");
            break;
        }
    }
    // Nor need it be called at all.
    drop(got(S::of(&setup.one, &setup.name).take()).await);
    setup.assert_free::<S>("after a guard was dropped").await;
}

/// the server answers too late for the caller, and in time for the clean-up.
pub async fn a_call_dropped_before_its_answer_is_undone<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    for delivered in [false, true] {
        let asked = super::setup::scripts_for(&setup.name);
        let held = match delivered {
            false => setup.proxy.hold_command(asked),
            true => setup.proxy.hold_reply(asked),
        };
        let taking = tokio::spawn(S::of(&setup.one, &setup.name).take());
        held.held().await;
        taking.abort();
        drop(taking.await);
        held.release();
        held.answered().await.expect("the server is up");
        setup.assert_free::<S>(&format!("delivered: {delivered}")).await;
    }
}

fn call<S: Synchronizer>(setup: &Setup, trying: bool) -> Call {
    let handle = S::of(&setup.one, &setup.name);
    match trying {
        false => {
            let taking = handle.take();
            Box::pin(async move { drop(taking.await) })
        }
        true => {
            let taking = handle.try_take(HANG);
            Box::pin(async move { drop(taking.await) })
        }
    }
}

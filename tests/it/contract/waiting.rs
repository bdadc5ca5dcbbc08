//! Who waits is woken, by message or by timer, and leaves nothing if it waits in vain.
use std::time::{Duration, Instant};

use futures::poll;
use tokio::time::timeout;

use super::{
    setup::{HANG, Setup, got, joined, scripts_for},
    subjects::{Read, Synchronizer, Taken, Write},
};
use crate::support::{eventually, proxy::named};

/// well before any lease or timer.
pub async fn a_waiter_is_woken<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    occupied.give_back().await.expect("it is held");
    joined(waiting).await.give_back().await.expect("it is held");
    setup.assert_free::<S>("after the waiter").await;
}

/// I9: should every message be lost.
pub async fn a_waiter_that_hears_nothing_goes_on_by_its_timer<S: Synchronizer>() {
    let cap = Duration::from_millis(300);
    let setup = Setup::with::<S>(|builder| builder.fallback_cap(cap)).await;
    setup.proxy.eat_messages(true);
    let occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    occupied.give_back().await.expect("it is held");
    joined(waiting).await.give_back().await.expect("it is held");
}

/// R-32, I9: what was said while its connections were broken it did not hear.
pub async fn a_waiter_survives_broken_connections<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    setup.proxy.refuse(true);
    setup.proxy.cut_all().await;
    occupied.give_back().await.expect("it is held");
    setup.proxy.refuse(false);
    joined(waiting).await.give_back().await.expect("it is held");
    setup.assert_free::<S>("after an outage").await;
}

/// Many of two clients, one after the other or all at once, as it has room for them.
pub async fn all_who_wait_are_served<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let mut waiting = Vec::new();
    for number in 0..12 {
        let client = if number % 2 == 0 { &setup.one } else { &setup.two };
        let taking = S::of(client, &setup.name).take();
        waiting.push(tokio::spawn(async move { taking.await?.give_back().await }));
    }
    tokio::task::yield_now().await;
    occupied.give_back().await.expect("it is held");
    for waiting in waiting {
        joined(waiting).await;
    }
    setup.assert_free::<S>("after all were served").await;
}

/// I10: it asks once, does not listen, and does not queue.
pub async fn a_try_that_does_not_wait_asks_once<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let before = setup.dump();
    setup.proxy.forget_commands();
    let tried = got(S::of(&setup.one, &setup.name).try_take(Duration::ZERO)).await;
    assert!(tried.is_none(), "somebody else has it");
    setup.assert_soon(&before).await;
    assert_eq!(setup.asked(), S::TRIES, "{:?}", setup.proxy.commands());
    assert_eq!(setup.proxy.count(named("SUBSCRIBE")), 0);
    occupied.give_back().await.expect("it is held");
    let tried = got(S::of(&setup.one, &setup.name).try_take(Duration::ZERO)).await;
    tried.expect("it is free").give_back().await.expect("it is held");
}

/// I10, I12: what is on its way back goes first, also if nobody has been polled since.
pub async fn a_try_right_behind_a_give_back_gets_it<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    for _ in 0..20 {
        drop(got(S::of(&setup.one, &setup.name).take()).await);
        let tried = got(S::of(&setup.one, &setup.name).try_take(Duration::ZERO)).await;
        let taken = tried.expect("nobody has it");
        let giving = tokio::spawn(taken.give_back());
        tokio::task::yield_now().await;
        let tried = got(S::of(&setup.one, &setup.name).try_take(HANG)).await;
        drop(tried.expect("nobody has it"));
        joined(giving).await;
    }
}

/// I10, I12: it is `None`, not before its time, and leaves no place in a queue.
pub async fn a_wait_that_ends_is_refused_and_leaves_nothing<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let before = setup.dump();
    let wait = Duration::from_millis(150);
    let begin = Instant::now();
    let trying = timeout(HANG, S::of(&setup.one, &setup.name).try_take(wait)).await;
    let tried = trying.expect("it ends").expect("the server is up");
    assert!(tried.is_none() && begin.elapsed() >= wait);
    let after = || {
        let mut after = setup.dump();
        after.retain(|key, _| before.contains_key(key) || !S::stay(&setup.name).contains(key));
        after
    };
    eventually("it left nothing", async || after() == before).await;
    occupied.give_back().await.expect("it is held");
    setup.assert_free::<S>("after a wait in vain").await;
}

/// I10: a wait too long for any clock is one without an end.
pub async fn a_wait_may_be_as_long_as_it_likes<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let occupied = setup.occupy::<S>().await;
    let trying = tokio::spawn(S::of(&setup.one, &setup.name).try_take(Duration::MAX));
    tokio::task::yield_now().await;
    occupied.give_back().await.expect("it is held");
    let taken = joined(trying).await.expect("it came free in time");
    taken.give_back().await.expect("it is held");
}

/// I10: a writer that our own reader keeps out has seen the holder, and so has who is behind it;
/// also if they came while the reader was only asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_behind_a_writer_is_refused_in_time() {
    let setup = Setup::of::<Read>().await;
    let wait = Duration::from_millis(100);
    for read_ends in [false, true] {
        let granted = setup.proxy.hold_reply(scripts_for(&setup.name));
        let reading = tokio::spawn(Read::of(&setup.one, &setup.name).take());
        granted.held().await;
        let mut writing = Write::of(&setup.one, &setup.name).try_take(wait);
        assert!(poll!(&mut writing).is_pending());
        let mut behind = Read::of(&setup.one, &setup.name).try_take(wait);
        assert!(poll!(&mut behind).is_pending());
        // Their waits end before the reader is in, or after.
        let early = timeout(if read_ends { wait * 2 } else { Duration::ZERO }, &mut behind).await;
        assert!(early.is_err(), "nothing is known of it yet");
        granted.release();
        let reader = joined(reading).await;
        assert!(got(writing).await.is_none(), "our reader is in");
        got(behind).await;
        reader.give_back().await.expect("it is held");
    }
}

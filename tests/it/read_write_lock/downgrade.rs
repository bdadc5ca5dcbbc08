//! A writer that reads too, and gives its halves back one after the other.
use std::time::Duration;

use super::{LONG, Setup, asked, assert_refused, given_back, granted, locked};
use crate::{rig::soon, support::eventually};

/// I14, I9: when the writer goes first, readers of both processes come in, and writers do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_lets_readers_in_and_keeps_writers_out() {
    for waits in [false, true] {
        let setup = Setup::start().await;
        let (read, write) = setup.ours();
        let writing = locked(&write).await;
        let reading = locked(&read).await;
        let our_reader = tokio::spawn(asked(&setup.ours().0).await);
        let our_writer = tokio::spawn(asked(&setup.ours().1).await);
        let their_reader = tokio::spawn(setup.theirs().0.lock());
        eventually("they listen", async || crate::support::subscriptions(&setup.rig.raw) > 0).await;
        if waits {
            given_back(writing).await
        } else {
            drop(writing)
        }
        let (ours, theirs) = (granted(our_reader).await, granted(their_reader).await);
        assert!(!our_writer.is_finished() && reading.is_held());
        assert_refused(&setup.theirs().1).await;
        assert_eq!(setup.hash()["mode"], "read");
        drop((ours, reading));
        given_back(theirs).await;
        given_back(granted(our_writer).await).await;
        setup.assert_nothing_left().await;
    }
}

/// I9: readers of the writer's own process need no message for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_lets_readers_of_the_process_in_without_a_message() {
    let setup = Setup::start().await;
    let (read, write) = setup.ours();
    let theirs = locked(&setup.theirs().1).await;
    let writing = tokio::spawn(asked(&write).await);
    eventually("it listens", async || crate::support::subscriptions(&setup.rig.raw) > 0).await;
    // Refused, it would look again in half a minute.
    given_back(theirs).await;
    let writing = granted(writing).await;
    let reading = locked(&read).await;
    setup.rig.proxy.eat_messages(true);
    let waiting = tokio::spawn(asked(&setup.ours().0).await);
    given_back(writing).await;
    drop(granted(waiting).await);
    drop(reading);
    setup.assert_nothing_left().await;
}

/// I14: when the reading goes first, nobody comes in before the writer goes too.
#[tokio::test(flavor = "multi_thread")]
async fn giving_back_the_reading_first_lets_nobody_in() {
    let setup = Setup::start().await;
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    let ours = tokio::spawn(asked(&setup.ours().0).await);
    let theirs = tokio::spawn(setup.theirs().0.lock());
    given_back(reading).await;
    assert!(!read.is_held_by_me() && write.is_held_by_me());
    assert_refused(&setup.ours().0).await;
    assert_refused(&setup.theirs().0).await;
    assert_eq!(setup.hash()["mode"], "write");
    assert!(!ours.is_finished() && !theirs.is_finished());
    drop(writing);
    drop((granted(ours).await, granted(theirs).await));
    setup.assert_nothing_left().await;
}

/// I9: both at once, in both orders, with writers that wait in both processes.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_writers_get_it_when_both_halves_are_dropped() {
    let setup = Setup::start().await;
    for write_first in [false, true] {
        let (read, write) = setup.ours();
        let writing = locked(&write).await;
        let reading = locked(&read).await;
        let ours = tokio::spawn(asked(&setup.ours().1).await);
        let theirs = tokio::spawn(setup.theirs().1.lock());
        if write_first {
            drop((writing, reading))
        } else {
            drop((reading, writing))
        }
        let (ours, theirs) = tokio::join!(async { given_back(granted(ours).await).await }, async {
            given_back(granted(theirs).await).await
        });
        let ((), ()) = (ours, theirs);
    }
    setup.assert_nothing_left().await;
}

/// I8, R-40: a renewal that was sent before a downgrade, and runs after it, finds no loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_meets_a_downgrade_on_its_way_is_no_loss() {
    let setup = Setup::with(|builder| builder.watchdog(Duration::from_secs(3))).await;
    let (read, write) = setup.ours();
    let writing = locked(&write).await;
    let reading = locked(&read).await;
    let renewing = setup.rig.running(super::SCRIPTS[4]);
    let held = setup.rig.proxy.hold_command(renewing.clone());
    held.held().await;
    given_back(writing).await;
    held.release();
    let answer = held.answered().await.expect("the server is up");
    assert_eq!(answer.items()[0].int(), -1, "it did not ask for what is gone: {answer:?}");
    let before = setup.rig.proxy.count(renewing.clone());
    soon(setup.rig.proxy.wait_for(renewing, before + 1)).await;
    let lost = tokio::time::timeout(Duration::from_millis(500), reading.lost()).await;
    assert!(lost.is_err() && reading.is_held(), "{lost:?}");
    given_back(reading).await;
    setup.assert_nothing_left().await;
}

/// I14: what the reader keeps has its own lease from then on, also in the server.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_downgrade_the_reader_is_renewed_as_a_reader() {
    let setup = Setup::with(|builder| builder.watchdog(Duration::from_secs(1))).await;
    let (read, write) = setup.ours();
    let writing = locked(&write.lease(LONG)).await;
    let reading = locked(&read).await;
    given_back(writing).await;
    let life = Setup::life(&reading);
    // It keeps what the write hold had left, and what is longer is not cut.
    assert!(setup.pttl(&life) > 50_000);
    let other = locked(&setup.ours().0).await;
    let theirs = Setup::life(&other);
    let lost = tokio::time::timeout(Duration::from_millis(2500), other.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!((1..=1000).contains(&setup.pttl(&theirs)), "its own lease is its own");
    drop((reading, other));
    setup.assert_nothing_left().await;
}

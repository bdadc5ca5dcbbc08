//! What an error says of the server: whether it could be reached, and whether a command may have
//! run. Each way to fail says both.
use std::time::Duration;

use leasehold::{Error, ErrorKind, LostReason, Refusal};

use crate::{
    rig::{Rig, acquiring, releasing, renewing, soon},
    support::eventually,
};

const LONG: Duration = Duration::from_secs(60);

async fn impatient() -> Rig {
    let (timeout, patience) = (Duration::from_millis(400), Duration::from_secs(1));
    Rig::with(|builder| builder.command_timeout(timeout).patience(patience)).await
}

/// Asserts what an error says: its kind, whether the server could be reached, and whether it is
/// known what has become of the call.
#[track_caller]
fn says(error: &Error, kind: ErrorKind, unavailable: bool, indeterminate: bool) {
    let said = (error.kind(), error.is_unavailable(), error.is_indeterminate());
    assert_eq!(said, (kind, unavailable, indeterminate), "{error:?}");
    assert_eq!(error.is_lost(), matches!(kind, ErrorKind::LeaseLost(_)), "{error:?}");
}

/// Breaks all connections and lets no new ones through, and waits until the client knows.
async fn cut_off(rig: &Rig) {
    rig.proxy.refuse(true);
    rig.proxy.cut_all().await;
    let refused = async || {
        let looked = rig.client.lock("nothing").is_locked().await;
        looked.is_err_and(|error| !error.is_indeterminate())
    };
    eventually("the client knows that nobody is there", refused).await;
}

/// R-31, I11: what was never sent has surely not run.
#[tokio::test]
async fn without_a_connection_nothing_is_left_open() {
    let rig = impatient().await;
    let lock = rig.client.lock("job");
    let guard = soon(rig.client.lock("held").lock()).await.expect("it is free");
    cut_off(&rig).await;
    let away = |error| says(&error, ErrorKind::Unavailable, true, false);
    away(soon(lock.lock()).await.expect_err("nobody is there"));
    away(soon(lock.try_lock_now()).await.expect_err("nobody is there"));
    away(soon(lock.try_lock_for(Duration::from_millis(50))).await.expect_err("nobody is there"));
    away(soon(lock.is_locked()).await.expect_err("nobody is there"));
    away(soon(lock.holder()).await.expect_err("nobody is there"));
    away(soon(lock.force_unlock()).await.expect_err("nobody is there"));
    away(soon(guard.extend(LONG)).await.expect_err("nobody is there"));
    rig.proxy.refuse(false);
    soon(guard.unlock()).await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I10, I11: what was sent and got no answer may have run.
#[tokio::test]
async fn without_a_reply_it_is_open_what_has_run() {
    let rig = impatient().await;
    let lock = rig.client.lock("job").lease(LONG);
    let held = rig.proxy.hold_reply(acquiring("job"));
    says(
        &soon(lock.try_lock_now()).await.expect_err("no reply came"),
        ErrorKind::Unavailable,
        true,
        true,
    );
    held.release();
    let guard = soon(lock.lock()).await.expect("the first is undone");
    let held = rig.proxy.hold_reply(renewing("job"));
    let error = soon(guard.extend(2 * LONG)).await.expect_err("no reply came");
    says(&error, ErrorKind::NoReply, true, true);
    held.release();
    eventually("the server can be reached", async || lock.is_locked().await.is_ok()).await;
    rig.proxy.half_open(true);
    let error = soon(lock.force_unlock()).await.expect_err("no reply came");
    says(&error, ErrorKind::NoReply, true, true);
    rig.proxy.half_open(false);
    let _ = soon(guard.unlock()).await;
    rig.assert_nothing_left().await;
}

/// I11, R-26: a release without an answer goes on in the background.
#[tokio::test]
async fn an_unlock_that_ran_out_of_patience_is_done_later() {
    let rig = impatient().await;
    let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
    rig.proxy.half_open(true);
    let error = soon(guard.unlock()).await.expect_err("nobody answers");
    says(&error, ErrorKind::NoReply, true, true);
    rig.proxy.half_open(false);
    eventually("it is released", async || rig.holds("job").is_empty()).await;
    rig.assert_nothing_left().await;
}

/// I11: also where the release could not even be sent, the lock is not surely free.
#[tokio::test]
async fn an_unlock_that_could_not_be_sent_is_done_later() {
    let rig = impatient().await;
    let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
    cut_off(&rig).await;
    let error = soon(guard.unlock()).await.expect_err("nobody is there");
    says(&error, ErrorKind::NoReply, true, true);
    assert_eq!(rig.proxy.count(releasing("job")), 0);
    rig.proxy.refuse(false);
    eventually("it is released", async || rig.holds("job").is_empty()).await;
    rig.assert_nothing_left().await;
}

/// I10: patience counts the server's silence, not the wait for another holder.
#[tokio::test]
async fn a_lock_that_is_held_for_long_is_waited_for_beyond_patience() {
    let rig = impatient().await;
    let other = rig.bystander().await;
    let guard = soon(other.lock("job").lease(LONG).lock()).await.expect("it is free");
    let waiting = tokio::spawn(rig.client.lock("job").lock());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!waiting.is_finished());
    soon(guard.unlock()).await.expect("it is held");
    drop(soon(waiting).await.expect("no panic").expect("it is free"));
    rig.assert_nothing_left().await;
}

/// I10: somebody behind makes the engine take the call over; the wait still has its end.
#[tokio::test]
async fn a_wait_ends_also_if_others_wait_behind() {
    let rig = Rig::start().await;
    let other = rig.bystander().await;
    let guard = soon(other.lock("job").lease(10 * LONG).lock()).await.expect("it is free");
    for _ in 0..10 {
        let first = rig.proxy.hold_reply(acquiring("job"));
        let trying = tokio::spawn(rig.client.lock("job").try_lock_for(Duration::from_millis(300)));
        first.held().await;
        let behind = tokio::spawn(rig.client.lock("job").lock());
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.release();
        assert!(soon(trying).await.expect("no panic").expect("an answer").is_none());
        behind.abort();
        let _ = soon(behind).await;
    }
    soon(guard.unlock()).await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I10, R-20, R-21: the server answered, and nothing has run.
#[tokio::test]
async fn a_refusal_is_neither_an_outage_nor_open() {
    let rig = impatient().await;
    rig.raw.cmd(&["SET", "text", "x"]).ok();
    let error = soon(rig.client.lock("text").lock()).await.expect_err("it is no lock");
    says(&error, ErrorKind::WrongType, false, false);
    rig.raw.cmd(&["DEL", "text"]).ok();
    let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
    rig.raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let full = ErrorKind::Refused(Refusal::OutOfMemory);
    let error = soon(rig.client.lock("other").lock()).await.expect_err("no memory is left");
    says(&error, full, false, false);
    let error = soon(rig.client.lock("other").try_lock_now()).await.expect_err("the same");
    says(&error, full, false, false);
    rig.raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    rig.raw.cmd(&["DEL", "job"]).ok();
    let error = soon(guard.unlock()).await.expect_err("somebody took it away");
    says(&error, ErrorKind::LeaseLost(LostReason::Removed), false, false);
    let error = soon(rig.client.lock("job").unlock()).await.expect_err("nobody holds it");
    says(&error, ErrorKind::NotHeld, false, false);
    soon(rig.client.close()).await;
    let error = soon(rig.client.lock("job").lock()).await.expect_err("it is closed");
    says(&error, ErrorKind::Closed, false, false);
}

/// I11: the reply that says no may be that of a repetition.
#[tokio::test]
async fn what_was_granted_unheard_is_undone_although_its_repetition_is_refused() {
    let rig = impatient().await;
    let lost = rig.proxy.drop_reply_and_cut(acquiring("job"));
    let locking = tokio::spawn(rig.client.lock("job").lease(LONG).lock());
    lost.happened(1).await;
    rig.raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    // It comes back as a refusal, or, if it was repeated before, as a hold.
    let _ = soon(locking).await.expect("no panic");
    eventually("nothing is held", async || rig.holds("job").is_empty()).await;
    rig.assert_nothing_left().await;
}

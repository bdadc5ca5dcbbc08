//! The end of a lease is told to who has it, whatever ends it.
use std::time::{Duration, Instant};

use futures::FutureExt;
use leasehold::{Error, ErrorKind, Lease, LostReason};
use tokio::time::timeout;

use super::{
    setup::{HANG, SHORT, Setup, got, is_one_of, joined},
    subjects::{Hold, Leased, Taken},
};
use crate::support::eventually;

/// R-04, I2, I4, I8: before anybody else has it, and what is then given back disturbs nobody.
pub async fn the_end_of_a_fixed_lease_is_told<S: Leased>() {
    let setup = Setup::of::<S>().await;
    let lease = Lease::Fixed(Duration::from_millis(300));
    let taken = got(S::of(&setup.one, &setup.name).lease(lease).take()).await;
    assert!(taken.is_held());
    let occupying = tokio::spawn(S::occupy(&setup.two, &setup.name));
    let occupied = joined(occupying).await;
    assert!(!taken.is_held() && taken.valid_until() <= Instant::now());
    assert_eq!(taken.lost().now_or_never(), Some(LostReason::Expired));
    assert_lost(taken.give_back().await, LostReason::Expired);
    setup.assert_taken::<S>(S::CAPACITY).await;
    occupied.give_back().await.expect("nobody touched it");
    setup.assert_free::<S>("after a lease has ended").await;
}

/// R-47, I8: `DEL` and `FLUSHALL`, told by the next renewal.
pub async fn a_removal_by_others_is_told<S: Leased>() {
    let setup = Setup::with::<S>(|builder| builder.watchdog(SHORT)).await;
    let [deleted, flushed] = ["deleted", "flushed"].map(|name| S::of(&setup.one, name).take());
    let (deleted, flushed) = (got(deleted).await, got(flushed).await);
    let keys = setup.keys();
    for key in keys.iter().filter(|key| key.contains("deleted")) {
        setup.raw.cmd(&["DEL", key]).ok();
    }
    lost(&deleted, LostReason::Removed).await;
    assert!(flushed.is_held(), "nobody touched it");
    assert_lost(deleted.give_back().await, LostReason::Removed);
    setup.raw.cmd(&["FLUSHALL"]).ok();
    lost(&flushed, LostReason::Removed).await;
    assert_lost(flushed.give_back().await, LostReason::Removed);
    setup.assert_free::<S>("after all that").await;
    assert!(setup.keys().iter().all(|key| is_one_of(key, &S::stay(&setup.name))), "{keys:?}");
}

/// R-47, I8: what is given back finds out as well, if it comes before the renewal.
pub async fn a_give_back_of_what_was_removed_says_so<S: Leased>() {
    let setup = Setup::of::<S>().await;
    let taken = got(S::of(&setup.one, &setup.name).take()).await;
    setup.raw.cmd(&["FLUSHALL"]).ok();
    let occupied = setup.occupy::<S>().await;
    let before = setup.dump();
    assert_lost(taken.give_back().await, LostReason::Removed);
    assert_eq!(setup.dump(), before, "the next holder is not touched");
    occupied.give_back().await.expect("nobody touched it");
}

/// I8, I2: what is held for longer than its `max_hold` is lost.
pub async fn what_is_held_for_too_long_is_lost<S: Leased>() {
    let setup = Setup::with::<S>(|builder| builder.watchdog(SHORT)).await;
    let max = Duration::from_millis(100);
    let taken = got(S::of(&setup.one, &setup.name).max_hold(max).take()).await;
    lost(&taken, LostReason::MaxHold).await;
    assert_lost(taken.give_back().await, LostReason::MaxHold);
    setup.assert_free::<S>("after its max hold").await;
}

/// I6, I8: the guard lives, so its lease just runs out.
pub async fn closing_the_client_is_told_and_gives_nothing_back<S: Leased>() {
    let setup = Setup::with::<S>(|builder| builder.watchdog(SHORT)).await;
    let taken = got(S::of(&setup.one, &setup.name).take()).await;
    let stay = S::stay(&setup.name);
    let others = || setup.keys().iter().filter(|key| !is_one_of(key, &stay)).count();
    let before = others();
    setup.one.close().await;
    assert_eq!(taken.lost().now_or_never(), Some(LostReason::ClientClosed));
    assert!(!taken.is_held());
    assert_lost(taken.give_back().await, LostReason::ClientClosed);
    assert_eq!(others(), before, "nobody gives it back");
}

/// I6, I7: also by who has it alone, and by who shares it; and not after it was given back.
pub async fn what_is_held_is_renewed_until_it_is_given_back<S: Leased>() {
    let setup = Setup::with::<S>(|builder| builder.watchdog(SHORT)).await;
    let taken = got(S::of(&setup.one, &setup.name).take()).await;
    let beyond = taken.valid_until() + SHORT / 2;
    eventually("it is renewed", async || {
        assert!(taken.is_held());
        taken.valid_until() > beyond
    })
    .await;
    setup.assert_taken::<S>(1).await;
    taken.give_back().await.expect("it is held");
    setup.assert_free::<S>("after it was given back").await;
    // Another hold is renewed twice, and by then nothing was sent for the first.
    let other = got(S::of(&setup.one, "other").take()).await;
    setup.proxy.forget_commands();
    let beyond = other.valid_until() + SHORT / 2;
    eventually("the other is renewed", async || other.valid_until() > beyond).await;
    assert_eq!(setup.asked(), 0, "{:?}", setup.proxy.commands());
}

/// I8, I11.
pub async fn what_is_extended_lasts_longer<S: Leased>() {
    let setup = Setup::of::<S>().await;
    let taken = got(S::of(&setup.one, &setup.name).lease(Lease::Fixed(SHORT * 5)).take()).await;
    let before = taken.valid_until();
    taken.extend(SHORT * 60).await.expect("it is held");
    assert!(taken.valid_until() > before + SHORT * 30);
    taken.extend(SHORT * 5).await.expect("it is held");
    assert!(taken.valid_until() > before + SHORT * 30, "no lease is shortened");
    let extending = taken.extend(SHORT);
    taken.give_back().await.expect("it is held");
    let error = extending.await.expect_err("it was given back");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    setup.assert_free::<S>("after an extension in vain").await;
}

async fn lost<T: Hold>(taken: &T, reason: LostReason) {
    let told = timeout(HANG, taken.lost()).await.expect("it is told");
    assert_eq!(told, reason);
    assert!(!taken.is_held() && taken.valid_until() <= Instant::now());
}

#[track_caller]
fn assert_lost(given_back: Result<(), Error>, reason: LostReason) {
    let error = given_back.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(reason), "{error}");
}

//! What cannot be: it is refused with an error of its own kind, and changes nothing.
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, Error, ErrorKind, LONGEST_LEASE, LONGEST_NAME, Lease, SHORTEST_LEASE};
use tokio::time::timeout;

use super::{
    setup::{HANG, Setup, got, is_one_of, joined},
    subjects::{Leased, Synchronizer, Taken},
};

/// each of its keys, in turn, holds something that no synchronizer has.
pub async fn a_key_of_another_type_is_refused_and_left_alone<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    for keys in S::keys(&setup.name) {
        spoil(&setup, &keys);
        let (before, what) = (setup.dump(), format!("{keys:?}"));
        for client in [&setup.one, &setup.two] {
            let handle = S::of(client, &setup.name);
            refused(handle.take(), ErrorKind::WrongType, &what).await;
            refused(handle.try_take(Duration::ZERO), ErrorKind::WrongType, &what).await;
            let wait = Duration::from_millis(50);
            refused(handle.try_take(wait), ErrorKind::WrongType, &what).await;
        }
        setup.assert_soon(&before).await;
        for key in &keys {
            assert_eq!(setup.raw.cmd(&["PTTL", key]).int(), -1, "{key}");
            setup.raw.cmd(&["DEL", key]).ok();
        }
        setup.assert_free::<S>(&format!("after {keys:?} were mended")).await;
        setup.raw.cmd(&["FLUSHALL"]).ok();
    }
}

/// who waits is told as well.
pub async fn a_waiter_is_told_of_a_key_of_another_type<S: Synchronizer>() {
    let setup = Setup::with::<S>(|b| b.fallback_cap(Duration::from_millis(200))).await;
    let _occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    let keys = S::keys(&setup.name).concat();
    spoil(&setup, &keys);
    refused(async { waiting.await.expect("no panic") }, ErrorKind::WrongType, "wait").await;
    for key in &keys {
        assert_eq!(setup.raw.cmd(&["XLEN", key]).int(), 1, "{key}");
    }
}

/// Puts something else into keys, at one stroke each.
fn spoil(setup: &Setup, keys: &[String]) {
    for key in keys {
        setup.raw.cmd(&["XADD", "stream", "*", "a", "b"]).ok();
        setup.raw.cmd(&["RENAME", "stream", key]).ok();
    }
}

///
pub async fn a_number_that_is_none_is_refused_and_left_alone<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let handle = S::of(&setup.one, &setup.name);
    let taken = got(handle.take()).await;
    S::corrupt(&setup.raw, &setup.name);
    let before = setup.dump();
    refused(handle.take(), ErrorKind::Corrupt, "take").await;
    refused(handle.try_take(Duration::ZERO), ErrorKind::Corrupt, "try").await;
    assert_eq!(setup.dump(), before);
    drop(taken);
}

/// I6: strange to people, but bytes like any other to Redis; with a prefix and without.
pub async fn strange_names_are_names_like_any_other<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let longest = "x".repeat(LONGEST_NAME - 10);
    let names = [
        "{",
        "}",
        "{}",
        "}{",
        "a{b",
        "a}b",
        "{a}b",
        "a{b}{c}",
        "nul\0nul",
        "\r\n*1\r\n$4\r\nPING",
        "Ω≈ç√∫",
        "🦀",
        "\u{202e}",
        " ",
        "\"'\\",
        "*?[a-z]",
        "a:b",
        "..",
        "KEYS[1]",
        "%s",
        &longest,
    ];
    let prefixed =
        [(&setup.one, &setup.two), (&setup.one.prefixed("p{:"), &setup.two.prefixed("p{:"))]
            .map(|(one, two)| (one.clone(), two.clone()));
    for (one, two) in prefixed {
        // All at once: none of them is in the way of another.
        let taken = join_all(names.map(|name| got(S::of(&one, name).take()))).await;
        let occupying = names.map(|name| tokio::spawn(S::occupy(&two, name)));
        for taken in taken {
            got(taken.give_back()).await;
        }
        for occupying in occupying {
            joined(occupying).await.give_back().await.expect("it is held");
        }
    }
}

/// before anything is sent, with a prefix and without.
pub async fn names_that_are_none_are_refused_and_nothing_is_sent<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    setup.proxy.forget_commands();
    let names = [String::new(), "x".repeat(LONGEST_NAME + 1), "x".repeat(1 << 20)];
    for client in [setup.one.clone(), setup.one.prefixed("p")] {
        for name in &names {
            let handle = S::of(&client, name);
            refused(handle.take(), ErrorKind::InvalidName, "take").await;
            refused(handle.try_take(Duration::ZERO), ErrorKind::InvalidName, "try").await;
            refused(handle.try_take(HANG), ErrorKind::InvalidName, "wait").await;
        }
    }
    let sent = setup.proxy.count(|command: &crate::support::proxy::Command| !command.is("PING"));
    assert_eq!(sent, 0, "{:?}", setup.proxy.commands());
    assert_eq!(setup.keys(), Vec::<String>::new());
}

/// before anything is sent.
pub async fn durations_that_cannot_be_are_refused_and_nothing_is_sent<S: Leased>() {
    let setup = Setup::of::<S>().await;
    setup.proxy.forget_commands();
    let handle = S::of(&setup.one, &setup.name);
    let nanosecond = Duration::from_nanos(1);
    let leases =
        [Duration::ZERO, SHORTEST_LEASE - nanosecond, LONGEST_LEASE + nanosecond, Duration::MAX];
    for lease in leases {
        let handle = handle.clone().lease(Lease::Fixed(lease));
        let what = format!("{lease:?}");
        refused(handle.take(), ErrorKind::InvalidDuration, &what).await;
        refused(handle.try_take(HANG), ErrorKind::InvalidDuration, &what).await;
    }
    let zero = handle.clone().max_hold(Duration::ZERO);
    refused(zero.take(), ErrorKind::InvalidDuration, "max hold").await;
    assert_eq!(setup.asked(), 0, "{:?}", setup.proxy.commands());
    // The longest is one like any other.
    let taken = got(handle.clone().lease(Lease::Fixed(LONGEST_LEASE)).take()).await;
    taken.give_back().await.expect("it is held");
    let taken = got(handle.max_hold(Duration::MAX).take()).await;
    taken.give_back().await.expect("it is held");
    setup.assert_free::<S>("after all that").await;
}

/// I10: new calls and waiting ones; whatever it held comes free all the same.
pub async fn a_closed_client_refuses<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let taken = got(S::of(&setup.one, "taken").take()).await;
    let occupied = setup.occupy::<S>().await;
    let waiting = setup.wait_in_vain::<S>().await;
    let closing: Client = setup.one.clone();
    let closing = tokio::spawn(async move { closing.shutdown(HANG * 2).await });
    let waiting = async { waiting.await.expect("no panic") };
    refused(waiting, ErrorKind::Closed, "wait").await;
    let handle = S::of(&setup.one, "new");
    refused(handle.take(), ErrorKind::Closed, "take").await;
    refused(handle.try_take(Duration::ZERO), ErrorKind::Closed, "try").await;
    got(taken.give_back()).await;
    timeout(HANG, closing).await.expect("nobody holds anything").expect("no panic");
    refused(handle.take(), ErrorKind::Closed, "take after").await;
    for key in setup.keys().iter().filter(|key| key.contains("taken")) {
        assert!(is_one_of(key, &S::stay("taken")), "it is not given back: {key}");
        setup.raw.cmd(&["DEL", key]).ok();
    }
    occupied.give_back().await.expect("it is held");
    setup.assert_free::<S>("after a close").await;
}

async fn refused<T>(call: impl Future<Output = Result<T, Error>>, kind: ErrorKind, what: &str) {
    let called = timeout(HANG, call).await.unwrap_or_else(|_| panic!("it hangs: {what}"));
    let Err(error) = called else { panic!("it is not refused: {what}") };
    assert_eq!(error.kind(), kind, "{what}: {error}");
}

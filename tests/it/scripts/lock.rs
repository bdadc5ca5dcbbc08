//! The scripts of the reentrant lock.

use super::*;
use crate::support::{assert_every_key_has_ttl, assert_no_keys};

const ACQUIRE: &str = include_str!("../../../lua/lock/acquire.lua");
const RELEASE: &str = include_str!("../../../lua/lock/release.lua");
const RENEW: &str = include_str!("../../../lua/lock/renew.lua");
const FORCE_RELEASE: &str = include_str!("../../../lua/lock/force_release.lua");
const INSPECT: &str = include_str!("../../../lua/lock/inspect.lua");

#[track_caller]
fn acquire(raw: &Raw, lock: &str, lease_ms: &str, owner: &str, count: &str) -> Answer {
    Answer::read(&eval(raw, ACQUIRE, &[lock], &[lease_ms, owner, count]))
}

#[track_caller]
fn release(raw: &Raw, lock: &str, owner: &str, count: &str) -> Answer {
    Answer::read(&eval(raw, RELEASE, &[lock, "ch"], &[owner, count, "PUBLISH"]))
}

#[track_caller]
fn renew(raw: &Raw, lock: &str, lease_ms: &str, owner: &str) -> Answer {
    Answer::read(&eval(raw, RENEW, &[lock], &[lease_ms, owner]))
}

#[track_caller]
fn force_release(raw: &Raw, lock: &str, holder: &str) -> Answer {
    Answer::read(&eval(raw, FORCE_RELEASE, &[lock, "ch"], &[holder, "PUBLISH"]))
}

#[track_caller]
fn inspect(raw: &Raw, lock: &str) -> Answer {
    Answer::read(&eval(raw, INSPECT, &[lock], &[]))
}

/// The whole of a lock: its fields, and that its TTL is what `lease_ms` allows.
#[track_caller]
fn assert_lock(raw: &Raw, lock: &str, owner: &str, count: &str, lease_ms: i64) {
    let fields = raw.cmd(&["HGETALL", lock]).map();
    assert_eq!(fields, [(owner.to_owned(), count.to_owned())].into(), "{lock}");
    let ttl = raw.cmd(&["PTTL", lock]).int();
    assert!(ttl > lease_ms - 10_000 && ttl <= lease_ms, "{lock}: {ttl} of {lease_ms}");
}

mod acquire {
    use super::*;

    /// I6.
    #[test]
    fn a_free_lock_is_taken_to_the_count_with_its_lease() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "a", LEASE, A, "1").is(0));
        assert_lock(&raw, "a", A, "1", 30_000);
        assert!(acquire(&raw, "b", LONGEST_MS, A, "1").is(0));
        assert_lock(&raw, "b", A, "1", LONGEST_MS.parse().unwrap());
    }

    /// I5: a nested acquire of a lost hold must not become a silent fresh one.
    #[test]
    fn a_reentry_of_a_hold_that_is_gone_does_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "2").is(-1));
        assert_no_keys(&raw);
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        assert!(acquire(&raw, "l", LEASE, A, "2").is(-1));
        assert_lock(&raw, "l", B, "1", 30_000);
    }

    /// R-20, I6.
    #[test]
    fn what_cannot_be_tried_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        assert!(acquire(&raw, "text", LEASE, A, "1").failed("WRONGTYPE"));
        assert_eq!(raw.cmd(&["GET", "text"]).text(), "x");
        assert_eq!(ttl(&raw, "text"), -1, "somebody else's key keeps its own time");
        for count in ["0", "-1", "1.5", "x", "", "nan", "inf"] {
            assert!(acquire(&raw, "l", LEASE, A, count).failed("count"), "{count}");
        }
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
    }

    /// R-24, I6.
    #[test]
    fn a_lease_that_is_none_is_refused_before_anything_is_written() {
        let server = RedisServer::start();
        let raw = server.raw();
        for lease in BAD_LEASES {
            assert!(acquire(&raw, "l", lease, A, "1").failed("lease_ms"), "{lease}");
            assert_no_keys(&raw);
        }
    }

    /// R-24, I6: upstream, `1e3` makes a lock that never ends.
    #[test]
    fn a_lease_is_passed_on_as_the_number_it_was_checked_as() {
        let server = RedisServer::start();
        let raw = server.raw();
        for (lease, millis) in [("1e5", 100_000), (" 60000", 60_000), ("0x7530", 30_000)] {
            assert!(acquire(&raw, lease, lease, A, "1").is(0), "{lease}");
            assert_lock(&raw, lease, A, "1", millis);
        }
    }

    /// I1.
    #[test]
    fn another_owners_lock_is_refused_with_its_holder_and_the_time_it_has() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        let Answer(codes, texts) = acquire(&raw, "l", "60000", A, "1");
        assert!(codes.len() == 1 && codes[0] > 20_000 && codes[0] <= 30_001, "{codes:?}");
        assert_eq!(texts, [B]);
        assert_lock(&raw, "l", B, "1", 30_000);
    }

    ///
    #[test]
    fn another_owners_lock_without_an_end_is_refused_as_such() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["HSET", "l", B, "1"]).ok();
        assert_eq!(acquire(&raw, "l", LEASE, A, "1"), Answer(vec![-3], vec![B.to_owned()]));
        assert_eq!(raw.cmd(&["HGETALL", "l"]).map().len(), 1);
    }

    /// I5.
    #[test]
    fn a_reentry_counts_on_and_never_shortens_the_time() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", "60000", A, "1").is(0));
        assert!(acquire(&raw, "l", "1000", A, "2").is(0));
        assert_lock(&raw, "l", A, "2", 60_000);
        assert!(acquire(&raw, "l", "90000", A, "3").is(0));
        assert_lock(&raw, "l", A, "3", 90_000);
        assert!(ttl(&raw, "l") > 60_000);
    }

    /// R-47, I6.
    #[test]
    fn a_reentry_gives_a_lock_without_an_end_its_end_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        raw.cmd(&["PERSIST", "l"]).ok();
        assert!(acquire(&raw, "l", LEASE, A, "2").is(0));
        assert_lock(&raw, "l", A, "2", 30_000);
    }

    /// R-25, I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        for count in ["1", "2", "3"] {
            for _ in 0..2 {
                assert!(acquire(&raw, "l", LEASE, A, count).is(0));
                assert_lock(&raw, "l", A, count, 30_000);
            }
        }
        // A failed or refused one as well.
        raw.cmd(&["SET", "text", "x"]).ok();
        for _ in 0..2 {
            assert!(acquire(&raw, "text", LEASE, A, "1").failed("WRONGTYPE"));
            assert_eq!(acquire(&raw, "l", LEASE, B, "1").1, [A]);
            assert!(acquire(&raw, "l", LEASE, B, "2").is(-1));
        }
        assert_lock(&raw, "l", A, "3", 30_000);
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 2);
    }
}

mod release {
    use super::*;

    #[test]
    fn the_last_release_frees_the_lock_and_says_how_many_were_told() {
        let server = RedisServer::start();
        let raw = server.raw();
        let listeners = [server.raw(), server.raw()];
        for told in 0..=listeners.len() {
            assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
            assert!(release(&raw, "l", A, "0").is(told as i64));
            assert_no_keys(&raw);
            if let Some(listener) = listeners.get(told) {
                listener.subscribe("ch");
            }
        }
    }

    /// no count has to be read, nor kept, to give back.
    #[test]
    fn the_last_release_gives_back_whatever_the_count_says() {
        let server = RedisServer::start();
        let raw = server.raw();
        for count in CORRUPT.into_iter().chain(["3", "-7"]) {
            raw.cmd(&["HSET", "l", A, count]).ok();
            assert!(release(&raw, "l", A, "0").is(0), "{count}");
            assert_no_keys(&raw);
        }
    }

    /// As the spin lock does, and a client in a mode without pub/sub.
    #[test]
    fn with_an_empty_command_nobody_is_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        let silent = |script, args: &[&str]| Answer::read(&eval(&raw, script, &["l", "ch"], args));
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        assert!(acquire(&raw, "l", LEASE, A, "2").is(0));
        assert!(silent(RELEASE, &[A, "1", ""]).is(-3));
        assert!(silent(RELEASE, &[B, "0", ""]).is(-1));
        assert!(silent(RELEASE, &[A, "0", ""]).is(0));
        assert!(silent(RELEASE, &[A, "0", ""]).is(-1), "its resend says gone");
        for holder in ["", A] {
            assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
            assert!(silent(FORCE_RELEASE, &[holder, ""]).is(0));
            assert!(silent(FORCE_RELEASE, &[holder, ""]).is(-1));
        }
        assert_no_keys(&raw);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        let soon = std::time::Duration::from_secs(10);
        assert_eq!(listener.next_message(soon).unwrap().payload, "end");
    }

    /// who tells nobody needs no right to.
    #[test]
    fn with_an_empty_command_a_release_cannot_be_refused_to_publish() {
        let server = RedisServer::start();
        let raw = mute(&server);
        for (script, args) in [(RELEASE, &[A, "0", ""][..]), (FORCE_RELEASE, &["", ""])] {
            assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
            assert!(Answer::read(&eval(&raw, script, &["l", "ch"], args)).is(0));
        }
    }

    /// I4.
    #[test]
    fn who_holds_nothing_gives_nothing_back() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        for count in ["0", "1"] {
            assert!(release(&raw, "l", A, count).is(-1));
        }
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        for count in ["0", "1"] {
            assert!(release(&raw, "l", A, count).is(-1));
        }
        assert_lock(&raw, "l", B, "1", 30_000);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        let first = listener.next_message(std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(first.payload, "end", "nobody is told of a release that was none");
    }

    ///
    #[test]
    fn what_cannot_be_given_back_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        for count in ["0", "1"] {
            assert!(release(&raw, "text", A, count).failed("WRONGTYPE"));
        }
        assert!(acquire(&raw, "l", LEASE, A, "3").is(-1));
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        for count in ["-1", "1.5", "x", "", "nan"] {
            assert!(release(&raw, "l", A, count).failed("count"), "{count}");
        }
        assert_lock(&raw, "l", A, "1", 30_000);
        for corrupt in CORRUPT {
            raw.cmd(&["HSET", "l", A, corrupt]).ok();
            assert!(release(&raw, "l", A, "2").failed("not an integer"), "{corrupt}");
            assert_lock(&raw, "l", A, corrupt, 30_000);
        }
    }

    #[test]
    fn a_partial_release_counts_down_and_leaves_the_time_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        assert!(acquire(&raw, "l", LEASE, A, "3").is(0));
        raw.cmd(&["PEXPIRE", "l", "90000"]).ok();
        assert!(release(&raw, "l", A, "2").is(-3));
        assert_lock(&raw, "l", A, "2", 90_000);
        assert!(release(&raw, "l", A, "1").is(-3));
        assert_lock(&raw, "l", A, "1", 90_000);
        assert!(ttl(&raw, "l") > 80_000);
    }

    /// a denied PUBLISH must not look like a lock that is still held.
    #[test]
    fn a_release_that_cannot_be_told_says_that_it_released() {
        let server = RedisServer::start();
        let raw = mute(&server);
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        let Answer(codes, texts) = release(&raw, "l", A, "0");
        assert_eq!((codes, texts.len()), (vec![-4], 1));
        assert!(says_denied(&texts[0]), "{texts:?}");
        assert_no_keys(&server.raw());
    }

    /// R-26, I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        assert!(acquire(&raw, "l", LEASE, A, "3").is(0));
        for count in ["2", "1"] {
            for _ in 0..2 {
                assert!(release(&raw, "l", A, count).is(-3));
                assert_lock(&raw, "l", A, count, 30_000);
            }
        }
        listener.subscribe("ch");
        assert!(release(&raw, "l", A, "0").is(1));
        assert!(release(&raw, "l", A, "0").is(-1), "its resend says gone");
        // Behind another's acquire it still touches nothing.
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        assert!(release(&raw, "l", A, "0").is(-1));
        assert_lock(&raw, "l", B, "1", 30_000);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        let soon = std::time::Duration::from_secs(10);
        let told = [(); 2].map(|()| listener.next_message(soon).unwrap().payload);
        assert_eq!(told, ["0", "end"], "told once");
    }
}

mod renew {
    use super::*;

    #[test]
    fn a_hold_gets_the_lease_anew() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        assert!(renew(&raw, "l", "90000", A).is(0));
        assert_lock(&raw, "l", A, "1", 90_000);
        assert!(ttl(&raw, "l") > 30_000);
    }

    #[test]
    fn a_hold_is_never_shortened() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", "90000", A, "1").is(0));
        assert!(renew(&raw, "l", LEASE, A).is(0));
        assert!(ttl(&raw, "l") > 30_000);
    }

    /// R-47, I6.
    #[test]
    fn a_lock_that_lost_its_end_gets_it_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        raw.cmd(&["PERSIST", "l"]).ok();
        assert!(renew(&raw, "l", LEASE, A).is(0));
        assert_lock(&raw, "l", A, "1", 30_000);
    }

    /// I4, I7.
    #[test]
    fn a_hold_that_is_gone_is_not_renewed() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(renew(&raw, "l", LEASE, A).is(-1));
        assert_no_keys(&raw);
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        assert!(renew(&raw, "l", "90000", A).is(-1));
        assert_lock(&raw, "l", B, "1", 30_000);
    }

    ///
    #[test]
    fn what_cannot_be_renewed_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        assert!(renew(&raw, "text", LEASE, A).failed("WRONGTYPE"));
        assert_eq!(ttl(&raw, "text"), -1);
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        for lease in BAD_LEASES {
            assert!(renew(&raw, "l", lease, A).failed("lease_ms"), "{lease}");
        }
        assert_lock(&raw, "l", A, "1", 30_000);
    }

    ///
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        for _ in 0..2 {
            assert!(renew(&raw, "l", "60000", A).is(0));
            assert_lock(&raw, "l", A, "1", 60_000);
        }
        // Late, behind the release: no key comes of it.
        assert!(release(&raw, "l", A, "0").is(0));
        assert!(renew(&raw, "l", "60000", A).is(-1));
        assert_no_keys(&raw);
    }
}

mod force_release {
    use super::*;

    #[test]
    fn whoever_holds_it_the_lock_is_freed_and_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        for holder in ["", A] {
            assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
            assert!(force_release(&raw, "l", holder).is(1));
            assert_no_keys(&raw);
            let soon = std::time::Duration::from_secs(10);
            assert_eq!(listener.next_message(soon).unwrap().payload, "0");
        }
    }

    /// I4.
    #[test]
    fn a_free_lock_and_that_of_another_holder_are_left_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        for holder in ["", A] {
            assert!(force_release(&raw, "l", holder).is(-1));
        }
        assert!(acquire(&raw, "l", LEASE, B, "1").is(0));
        for _ in 0..2 {
            assert!(force_release(&raw, "l", A).is(-1));
            assert_lock(&raw, "l", B, "1", 30_000);
        }
    }

    ///
    #[test]
    fn a_key_that_is_no_lock_is_not_deleted() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        for holder in ["", A] {
            assert!(force_release(&raw, "text", holder).failed("WRONGTYPE"));
        }
        assert_eq!(raw.cmd(&["GET", "text"]).text(), "x");
    }

    ///
    #[test]
    fn a_release_that_cannot_be_told_says_that_it_released() {
        let server = RedisServer::start();
        let raw = mute(&server);
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        let Answer(codes, texts) = force_release(&raw, "l", "");
        assert_eq!((codes, texts.len()), (vec![-4], 1));
        assert_no_keys(&server.raw());
    }
}

mod inspect {
    use super::*;

    #[test]
    fn it_says_what_stands_and_changes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(inspect(&raw, "l").is(-1));
        assert_no_keys(&raw);
        assert!(acquire(&raw, "l", LEASE, A, "1").is(0));
        assert!(acquire(&raw, "l", LEASE, A, "2").is(0));
        for _ in 0..2 {
            let Answer(codes, texts) = inspect(&raw, "l");
            assert!(codes.len() == 1 && codes[0] > 20_000 && codes[0] <= 30_000, "{codes:?}");
            assert_eq!(texts, [A, "2"]);
        }
        assert_lock(&raw, "l", A, "2", 30_000);
        raw.cmd(&["PERSIST", "l"]).ok();
        assert_eq!(inspect(&raw, "l"), Answer(vec![-3], vec![A.to_owned(), "2".to_owned()]));
        assert_eq!(ttl(&raw, "l"), -1);
        raw.cmd(&["SET", "text", "x"]).ok();
        assert!(inspect(&raw, "text").failed("WRONGTYPE"));
    }
}

/// Lists of 64 entries, one of them bad, in the middle.
mod lists {
    use super::*;

    const LENGTH: usize = 64;
    const BAD: usize = 31;

    fn names() -> Vec<String> {
        (0..LENGTH).map(|i| format!("lock:{i}")).collect()
    }

    /// Sends a list: entry i has the keys and arguments that `entry` says.
    fn list(raw: &Raw, script: &str, entry: impl Fn(usize) -> (Vec<String>, Vec<String>)) -> Reply {
        let (keys, args): (Vec<_>, Vec<_>) = (0..LENGTH).map(entry).unzip();
        let [keys, args] = [keys, args].map(|texts| texts.concat());
        let [keys, args] =
            [&keys, &args].map(|texts| texts.iter().map(String::as_str).collect::<Vec<_>>());
        eval(raw, script, &keys, &args)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn acquire_all(raw: &Raw, bad_lease: Option<&str>, count: &str) -> Answer {
        let names = names();
        let lease = |i| if i == BAD { bad_lease.unwrap_or(LEASE) } else { LEASE };
        Answer::read(&list(raw, ACQUIRE, |i| (words(&[&names[i]]), words(&[lease(i), A, count]))))
    }

    fn release_all(raw: &Raw, count: &str) -> Answer {
        let names = names();
        let entry = |i: usize| (words(&[&names[i], "ch"]), words(&[A, count, "PUBLISH"]));
        Answer::read(&list(raw, RELEASE, entry))
    }

    fn renew_all(raw: &Raw, bad_lease: Option<&str>) -> Answer {
        let names = names();
        let lease = |i| if i == BAD { bad_lease.unwrap_or("90000") } else { "90000" };
        Answer::read(&list(raw, RENEW, |i| (words(&[&names[i]]), words(&[lease(i), A]))))
    }

    /// Asserts that only the bad entry failed, for a reason that contains `why`, and that all
    /// others answered `code`.
    #[track_caller]
    fn assert_one_failed(answer: &Answer, code: i64, why: &str) {
        let expected: Vec<_> = (0..LENGTH).map(|i| if i == BAD { -2 } else { code }).collect();
        assert_eq!(answer.0, expected, "{why}");
        assert!(answer.1.len() == 1 && answer.1[0].contains(why), "{why}: {:?}", answer.1);
    }

    /// Asserts that all locks but the bad one stand with this count and lease.
    #[track_caller]
    fn assert_others(raw: &Raw, count: &str, lease_ms: i64) {
        for name in names().iter().filter(|name| **name != bad_name()) {
            assert_lock(raw, name, A, count, lease_ms);
        }
    }

    fn bad_name() -> String {
        names().swap_remove(BAD)
    }

    /// R-20, I6.
    #[test]
    fn a_key_of_another_type_fails_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", &bad_name(), "x", "PX", "600000"]).ok();
        assert_one_failed(&acquire_all(&raw, None, "1"), 0, "WRONGTYPE");
        assert_others(&raw, "1", 30_000);
        assert_one_failed(&acquire_all(&raw, None, "2"), 0, "WRONGTYPE");
        assert_one_failed(&renew_all(&raw, None), 0, "WRONGTYPE");
        assert_others(&raw, "2", 90_000);
        assert_one_failed(&release_all(&raw, "1"), -3, "WRONGTYPE");
        assert_others(&raw, "1", 90_000);
        assert_every_key_has_ttl(&raw);
        assert_one_failed(&release_all(&raw, "0"), 0, "WRONGTYPE");
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
        assert_eq!(raw.cmd(&["GET", &bad_name()]).text(), "x");
    }

    /// R-23, I6.
    #[test]
    fn a_count_that_is_none_fails_alone_and_stays_as_it_was() {
        let server = RedisServer::start();
        let raw = server.raw();
        for corrupt in CORRUPT {
            raw.cmd(&["FLUSHALL"]).ok();
            assert_eq!(acquire_all(&raw, None, "1"), Answer(vec![0; LENGTH], vec![]));
            raw.cmd(&["HSET", &bad_name(), A, corrupt]).ok();
            assert_one_failed(&acquire_all(&raw, None, "3"), 0, "not an integer");
            assert_lock(&raw, &bad_name(), A, corrupt, 30_000);
            assert_others(&raw, "3", 30_000);
            assert_one_failed(&release_all(&raw, "2"), -3, "not an integer");
            assert_lock(&raw, &bad_name(), A, corrupt, 30_000);
            assert_others(&raw, "2", 30_000);
            // To renew and to give back, no count is needed.
            assert_eq!(renew_all(&raw, None), Answer(vec![0; LENGTH], vec![]));
            assert_lock(&raw, &bad_name(), A, corrupt, 90_000);
            assert_every_key_has_ttl(&raw);
            assert_eq!(release_all(&raw, "0"), Answer(vec![0; LENGTH], vec![]));
            assert_no_keys(&raw);
        }
    }

    /// R-24, I6.
    #[test]
    fn a_lease_that_is_none_fails_alone_and_writes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        for lease in BAD_LEASES {
            raw.cmd(&["FLUSHALL"]).ok();
            assert_one_failed(&acquire_all(&raw, Some(lease), "1"), 0, "lease_ms");
            assert_eq!(raw.cmd(&["EXISTS", &bad_name()]).int(), 0, "{lease}");
            assert_others(&raw, "1", 30_000);
            assert!(acquire(&raw, &bad_name(), LEASE, A, "1").is(0));
            assert_one_failed(&acquire_all(&raw, Some(lease), "2"), 0, "lease_ms");
            assert_one_failed(&renew_all(&raw, Some(lease)), 0, "lease_ms");
            assert_lock(&raw, &bad_name(), A, "1", 30_000);
            assert_others(&raw, "2", 90_000);
            assert_every_key_has_ttl(&raw);
        }
    }

    /// I1: refused, gone and failed entries each keep their own text.
    #[test]
    fn every_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        raw.cmd(&["HSET", "endless", B, "1"]).ok();
        assert!(acquire(&raw, "held", LEASE, B, "1").is(0));
        let keys = ["text", "free", "held", "gone", "endless", "lease"];
        let entry = |lease: &str, count: &str| words(&[lease, A, count]);
        let args =
            [("1", LEASE), ("1", LEASE), ("1", LEASE), ("2", LEASE), ("1", LEASE), ("1", "0")];
        let args = args.map(|(count, lease)| entry(lease, count)).concat();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let Answer(codes, texts) = Answer::read(&eval(&raw, ACQUIRE, &keys, &args));
        assert!(codes[2] > 20_000, "{codes:?}");
        assert_eq!([&codes[..2], &codes[3..]].concat(), [-2, 0, -1, -3, -2]);
        assert!(texts[0].starts_with("WRONGTYPE") && texts[3].contains("lease_ms"), "{texts:?}");
        assert_eq!(texts[1..3], [B, B]);
        assert_lock(&raw, "free", A, "1", 30_000);
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 4);
    }

    /// R-17, I6: an entry that gets no TTL must not stay.
    #[test]
    fn a_lock_that_cannot_get_its_ttl_is_not_taken() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "held", LEASE, A, "1").is(0));
        let rules = ["on", "nopass", "~*", "&*", "+@all", "-pexpire"];
        let command: Vec<_> = ["ACL", "SETUSER", "u"].into_iter().chain(rules).collect();
        raw.cmd(&command).ok();
        let user = server.raw();
        user.cmd(&["AUTH", "u", "x"]).ok();
        assert!(acquire(&user, "free", LEASE, A, "1").is_denied());
        assert!(acquire(&user, "held", "90000", A, "2").is_denied());
        assert_lock(&raw, "held", A, "1", 30_000);
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
    }
}

/// The client reads any array that begins with a word like "message" as a message.
#[test]
fn every_reply_begins_with_an_integer_in_resp2_and_resp3() {
    let server = RedisServer::start();
    for version in ["2", "3"] {
        let raw = server.raw();
        raw.cmd(&["HELLO", version]).ok();
        raw.cmd(&["FLUSHALL"]).ok();
        raw.cmd(&["SET", "message", "x"]).ok();
        raw.cmd(&["HSET", "endless", "message", "subscribe"]).ok();
        let calls: [(&str, &[&str], &[&str]); 14] = [
            (ACQUIRE, &["l"], &[LEASE, "message", "1"]),
            (ACQUIRE, &["l"], &[LEASE, "subscribe", "1"]),
            (ACQUIRE, &["message"], &[LEASE, "message", "1"]),
            (ACQUIRE, &["endless"], &[LEASE, "smessage", "1"]),
            (ACQUIRE, &["none"], &[LEASE, "message", "2"]),
            (RENEW, &["l"], &[LEASE, "message"]),
            (RENEW, &["l"], &[LEASE, "x"]),
            (RENEW, &["message"], &[LEASE, "message"]),
            (INSPECT, &["l"], &[]),
            (INSPECT, &["endless"], &[]),
            (INSPECT, &["message"], &[]),
            (RELEASE, &["l", "message"], &["message", "0", "PUBLISH"]),
            (RELEASE, &["message", "message"], &["message", "1", "PUBLISH"]),
            (FORCE_RELEASE, &["endless", "message"], &["", "PUBLISH"]),
        ];
        for (script, keys, args) in calls {
            let reply = eval(&raw, script, keys, args);
            let first = reply.items().first();
            assert!(matches!(first, Some(Reply::Int(_))), "RESP{version} {keys:?}: {reply:?}");
            Answer::read(&reply);
        }
    }
}

/// said as an error of the whole list, so that the client looks for the primary.
#[test]
fn a_replica_refuses_the_whole_list() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(acquire(&raw, "held", LEASE, A, "1").is(0));
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let calls: [(&str, &[&str], &[&str]); 6] = [
        (ACQUIRE, &["free"], &[LEASE, A, "1"]),
        (ACQUIRE, &["held"], &[LEASE, A, "2"]),
        (RENEW, &["held"], &["90000", A]),
        (RELEASE, &["held", "ch"], &[A, "0", "PUBLISH"]),
        (RELEASE, &["held", "ch"], &[A, "1", "PUBLISH"]),
        (FORCE_RELEASE, &["held", "ch"], &["", "PUBLISH"]),
    ];
    for (script, keys, args) in calls {
        let reply = eval(&raw, script, keys, args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    }
    assert_lock(&raw, "held", A, "1", 30_000);
    raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
    assert!(release(&raw, "held", A, "0").is(0));
}

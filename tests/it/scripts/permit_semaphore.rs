//! The scripts of the semaphore whose permits have ids and end.

use super::*;
use crate::support::redisson_permits::{NEVER, PermitId, RedissonPermits};
use crate::support::{assert_no_keys, keys_without_ttl};
use std::time::Duration;

const ACQUIRE: &str = include_str!("../../../lua/permit_semaphore/acquire.lua");
const RENEW: &str = include_str!("../../../lua/permit_semaphore/renew.lua");
const RELEASE: &str = include_str!("../../../lua/permit_semaphore/release.lua");
const TRY_SET: &str = include_str!("../../../lua/permit_semaphore/try_set.lua");
const SET: &str = include_str!("../../../lua/permit_semaphore/set.lua");
const ADD: &str = include_str!("../../../lua/permit_semaphore/add.lua");
const INSPECT: &str = include_str!("../../../lua/permit_semaphore/inspect.lua");

/// Ids that are no text, that end strings, and that look like options.
const IDS: [PermitId; 6] = [
    [0; 16],
    [0xff; 16],
    *b"\r\n$-1\r\n*0\r\n\0\0\0\0\0",
    *b"GT XX NX CH INCR",
    [b'%'; 16],
    [b'1'; 16],
];

const CORRUPT_PERMITS: [&str; 8] =
    ["x", "", " 1", "1e3", "nan", "9007199254740992", "-9007199254740993", "1.5"];

const BAD_PERMITS: [&str; 7] = ["-1", "1.5", "x", "", "nan", "inf", "2147483648"];

/// As `eval`, for arguments that are not text.
fn eval_bytes(raw: &Raw, script: &str, keys: &[&str], args: &[&[u8]]) -> Reply {
    let count = keys.len().to_string();
    let mut command: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
    command.extend(keys.iter().map(|key| key.as_bytes()));
    command.extend(args);
    raw.cmd_bytes(&command)
}

#[track_caller]
fn acquire(raw: &Raw, lease_ms: &str, ids: &[PermitId], size: &str) -> Answer {
    let args: [&[u8]; 4] = [lease_ms.as_bytes(), &ids.concat(), size.as_bytes(), b"PUBLISH"];
    Answer::read(&eval_bytes(raw, ACQUIRE, &["s", "z", "ch"], &args))
}

#[track_caller]
fn renew(raw: &Raw, lease_ms: &str, ids: &[PermitId]) -> Answer {
    let args: [&[u8]; 3] = [lease_ms.as_bytes(), &ids.concat(), b"PUBLISH"];
    Answer::read(&eval_bytes(raw, RENEW, &["s", "z", "ch"], &args))
}

#[track_caller]
fn release(raw: &Raw, ids: &[PermitId]) -> Answer {
    let args: [&[u8]; 2] = [&ids.concat(), b"PUBLISH"];
    Answer::read(&eval_bytes(raw, RELEASE, &["s", "ch", "z"], &args))
}

#[track_caller]
fn try_set(raw: &Raw, permits: &str, id: &str) -> Answer {
    Answer::read(&eval(raw, TRY_SET, &["s", "z", "ch", "once"], &[permits, id, "PUBLISH", ""]))
}

#[track_caller]
fn set(raw: &Raw, permits: &str) -> Answer {
    Answer::read(&eval(raw, SET, &["s", "z", "ch"], &[permits, "PUBLISH"]))
}

#[track_caller]
fn add(raw: &Raw, permits: &str, id: &str) -> Answer {
    Answer::read(&eval(raw, ADD, &["s", "ch", "once"], &[permits, id, "PUBLISH", ""]))
}

#[track_caller]
fn inspect(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, INSPECT, &["s", "z"], &[]))
}

fn told(code: i64, text: &str) -> Answer {
    Answer(vec![code], vec![text.to_owned()])
}

fn text_of(answer: &Answer) -> &str {
    assert_eq!((answer.0.len(), answer.1.len()), (1, 1), "{answer:?}");
    &answer.1[0]
}

/// Asserts how many permits can be taken, and how many are in use.
#[track_caller]
fn assert_counts(raw: &Raw, available: i64, in_use: i64) {
    let counts = [available, in_use, available + in_use].map(|count| count.to_string());
    assert_eq!(inspect(raw), Answer(vec![0], counts.into()));
}

/// The deadline of a permit by the server's clock, from now.
fn ends_in(raw: &Raw, id: &PermitId) -> Option<i64> {
    let score = raw.cmd_bytes(&[b"ZSCORE", b"z", id]).ok();
    (!score.is_nil()).then(|| score.int() - now(raw))
}

fn now(raw: &Raw) -> i64 {
    let time = raw.cmd(&["TIME"]).ok();
    time.items()[0].int() * 1000 + time.items()[1].int() / 1000
}

/// Lets the deadline of a permit be in the past.
fn end(raw: &Raw, id: &PermitId) {
    assert_eq!(raw.cmd_bytes(&[b"ZADD", b"z", b"XX", b"CH", b"1000", id]).int(), 1);
}

/// What a listener has heard until now on a channel.
fn heard(listener: &Raw, raw: &Raw, channel: &str) -> Vec<String> {
    raw.cmd(&["PUBLISH", channel, "end"]).ok();
    let next = || listener.next_message(Duration::from_secs(10)).unwrap().payload;
    std::iter::repeat_with(next).take_while(|payload| payload != "end").collect()
}

mod acquire {
    use super::*;

    /// I15.
    #[test]
    fn permits_are_taken_all_or_none_with_their_deadlines() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, &IDS[..2], "").failed("UNINITIALISED"));
        assert_no_keys(&raw);
        assert!(try_set(&raw, "3", "1").is(0));
        assert!(acquire(&raw, LEASE, &IDS[..2], "").is(0));
        assert_counts(&raw, 1, 2);
        let refused = acquire(&raw, "90000", &IDS[2..4], "");
        assert!(refused.0[0] > 20_000 && refused.0[0] <= 30_001, "{refused:?}");
        assert_eq!(text_of(&refused), "1");
        assert!(acquire(&raw, LONGEST_MS, &IDS[2..3], "").is(0));
        assert_counts(&raw, 0, 3);
        for (id, lease_ms) in [(&IDS[0], 30_000), (&IDS[2], 315_576_000_000)] {
            let left = ends_in(&raw, id).unwrap();
            assert!(left > lease_ms - 10_000 && left <= lease_ms, "{left} of {lease_ms}");
        }
        assert_eq!(raw.cmd(&["ZCARD", "z"]).int(), 3);
    }

    #[test]
    fn permits_without_an_end_are_refused_as_such() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "0", &IDS[..1], "1").is(0));
        let score = raw.cmd_bytes(&[b"ZSCORE", b"z", &IDS[0]]).ok();
        assert_eq!(score.int(), NEVER);
        assert_eq!(acquire(&raw, LEASE, &IDS[1..2], ""), told(-3, "0"));
        raw.cmd(&["SET", "s", "-4"]).ok();
        assert_eq!(acquire(&raw, LEASE, &IDS[1..2], ""), told(-3, "-4"));
    }

    /// I15: the next one to ask gets what has ended, and others hear of what is left.
    #[test]
    fn permits_past_their_deadline_are_taken_back_first() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        assert!(acquire(&raw, LEASE, &IDS[..4], "4").is(0));
        listener.subscribe("ch");
        for id in &IDS[..3] {
            end(&raw, id);
        }
        assert_counts(&raw, 3, 1);
        assert_eq!(raw.cmd(&["GET", "s"]).int(), 0, "to look changes nothing");
        assert!(acquire(&raw, LEASE, &IDS[4..5], "").is(0));
        assert_counts(&raw, 2, 2);
        assert_eq!((raw.cmd(&["GET", "s"]).int(), raw.cmd(&["ZCARD", "z"]).int()), (2, 2));
        end(&raw, &IDS[4]);
        let others = [2, 3, 4, 5].map(|byte| [byte; 16]);
        assert_eq!(text_of(&acquire(&raw, LEASE, &others, "")), "3", "also by one that is refused");
        assert_eq!(raw.cmd(&["GET", "s"]).int(), 3);
        assert_eq!(heard(&listener, &raw, "ch"), ["2", "3"]);
    }

    #[test]
    fn a_size_sets_up_what_is_missing_and_counts_what_outlived_it() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, LEASE, &IDS[..2], "5").is(0));
        assert_counts(&raw, 3, 2);
        let four = [2, 3, 4, 5].map(|byte| [byte; 16]);
        assert_eq!(text_of(&acquire(&raw, LEASE, &four, "9")), "3");
        raw.cmd(&["DEL", "s"]).ok();
        assert!(acquire(&raw, LEASE, &IDS[2..3], "").failed("UNINITIALISED"));
        end(&raw, &IDS[0]);
        assert!(acquire(&raw, LEASE, &IDS[2..3], "5").is(0));
        assert_counts(&raw, 3, 2);
        assert_eq!(heard(&listener, &raw, "ch"), ["3", "3"]);
        raw.cmd(&["FLUSHALL"]).ok();
        assert_eq!(acquire(&raw, LEASE, &IDS[..4], "3"), told(-3, "3"));
        assert_eq!(contents(&raw).len(), 1);
    }

    /// R-25, I5.
    #[test]
    fn sent_twice_it_takes_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        for _ in 0..2 {
            assert!(acquire(&raw, LEASE, &IDS[..2], "3").is(0));
            assert_counts(&raw, 1, 2);
        }
        assert!(acquire(&raw, LEASE, &IDS[2..3], "").is(0));
        assert!(acquire(&raw, LEASE, &IDS[..2], "").is(0), "there would be none left");
        assert!(release(&raw, &IDS[..1]).is(0));
        assert!(acquire(&raw, LEASE, &IDS[..2], "").is(-1), "one of the two was given back");
        assert_counts(&raw, 1, 2);
        end(&raw, &IDS[1]);
        assert!(acquire(&raw, LEASE, &IDS[..2], "").is(0), "what has ended is taken anew");
        assert_counts(&raw, 0, 3);
    }

    /// I6: both keys end at the same time, or neither does.
    #[test]
    fn the_deadlines_end_with_the_semaphore() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "s", "5", "PX", "90000"]).ok();
        assert!(acquire(&raw, LEASE, &IDS[..1], "").is(0));
        let ends = || ["s", "z"].map(|key| raw.cmd(&["PEXPIRETIME", key]).int());
        assert!(ends()[0] > 0 && ends()[0] == ends()[1], "{:?}", ends());
        raw.cmd(&["PERSIST", "s"]).ok();
        assert!(acquire(&raw, LEASE, &IDS[1..2], "").is(0));
        assert_eq!(ends(), [-1, -1]);
        raw.cmd(&["PEXPIRE", "s", "60000"]).ok();
        assert!(acquire(&raw, LEASE, &IDS[2..3], "").is(0));
        assert!(ends()[0] > 0 && ends()[0] == ends()[1], "{:?}", ends());
    }

    ///
    #[test]
    fn what_cannot_be_tried_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, &IDS[..1], "5").is(0));
        let before = contents(&raw);
        for lease_ms in BAD_LEASES.iter().filter(|lease_ms| **lease_ms != "0") {
            assert!(acquire(&raw, lease_ms, &IDS[1..2], "").failed("lease_ms"), "{lease_ms}");
        }
        for size in BAD_PERMITS.iter().filter(|size| !size.is_empty()) {
            assert!(acquire(&raw, LEASE, &IDS[1..2], size).failed("size"), "{size}");
        }
        let many: Vec<_> = (1..=1001_u128).map(u128::to_le_bytes).collect();
        for ids in [&[][..], &IDS.concat()[..15], &IDS.concat()[..33], &many.concat()] {
            let args: [&[u8]; 4] = [LEASE.as_bytes(), ids, b"", b"PUBLISH"];
            let answer = Answer::read(&eval_bytes(&raw, ACQUIRE, &["s", "z", "ch"], &args));
            assert!(answer.failed("ids"), "{answer:?}");
        }
        assert!(acquire(&raw, LEASE, &[IDS[1], IDS[1]], "").failed("ids"));
        assert_eq!(contents(&raw), before);
        for corrupt in CORRUPT_PERMITS {
            raw.cmd(&["SET", "s", corrupt]).ok();
            assert!(acquire(&raw, LEASE, &IDS[1..2], "").failed("not an integer"), "{corrupt}");
            assert!(inspect(&raw).failed("not an integer"), "{corrupt}");
            assert!(set(&raw, "5").failed("not an integer") && ends_in(&raw, &IDS[1]).is_none());
        }
        raw.cmd(&["SET", "s", "1000"]).ok();
        assert!(acquire(&raw, LEASE, &many[..1000], "").is(0), "so many go at once");
        assert!(renew(&raw, LEASE, &many[..1000]).is(0));
        assert!(release(&raw, &many[..1000]).is(0));
        assert_counts(&raw, 1000, 1);
    }
}

mod renew {
    use super::*;

    #[test]
    fn a_deadline_is_put_off_and_never_brought_forward() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, &IDS[..2], "3").is(0));
        assert!(renew(&raw, "90000", &IDS[..2]).is(0));
        for lease_ms in ["1", "90000", LEASE] {
            assert!(renew(&raw, lease_ms, &IDS[..1]).is(0));
            assert!(ends_in(&raw, &IDS[0]).unwrap() > 80_000);
        }
        assert!(renew(&raw, "0", &IDS[..1]).is(0) && renew(&raw, LEASE, &IDS[..1]).is(0));
        assert_eq!(raw.cmd_bytes(&[b"ZSCORE", b"z", &IDS[0]]).int(), NEVER);
        assert_counts(&raw, 1, 2);
    }

    /// I4, I7.
    #[test]
    fn a_permit_that_is_gone_is_not_renewed_nor_are_those_with_it() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        assert!(renew(&raw, LEASE, &IDS[..1]).is(-1));
        assert!(acquire(&raw, LEASE, &IDS[..3], "3").is(0));
        listener.subscribe("ch");
        end(&raw, &IDS[0]);
        for _ in 0..2 {
            assert!(renew(&raw, "90000", &IDS[..2]).is(-1));
            assert!(renew(&raw, "90000", &IDS[..1]).is(-1));
            assert!(renew(&raw, "90000", &[IDS[1], IDS[4]]).is(-1));
        }
        assert!(ends_in(&raw, &IDS[1]).unwrap() <= 30_000);
        assert_eq!(raw.cmd(&["GET", "s"]).int(), 1, "what has ended is taken back, once");
        assert_counts(&raw, 1, 2);
        assert_eq!(heard(&listener, &raw, "ch"), ["1"]);
        raw.cmd(&["DEL", "s"]).ok();
        assert!(renew(&raw, LEASE, &IDS[1..2]).is(-1), "there is no semaphore any more");
        assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
    }

    /// to keep a permit, no number is needed.
    #[test]
    fn a_number_that_is_none_does_not_end_a_permit() {
        let server = RedisServer::start();
        let raw = server.raw();
        for corrupt in CORRUPT_PERMITS.iter().filter(|text| !text.contains("900")) {
            raw.cmd(&["FLUSHALL"]).ok();
            assert!(acquire(&raw, LEASE, &IDS[..2], "3").is(0));
            end(&raw, &IDS[1]);
            raw.cmd(&["SET", "s", corrupt]).ok();
            assert!(renew(&raw, "90000", &IDS[..1]).is(0), "{corrupt}");
            assert!(ends_in(&raw, &IDS[0]).unwrap() > 80_000);
            assert!(release(&raw, &IDS[..1]).failed("not an integer"), "{corrupt}");
            assert_eq!(raw.cmd(&["ZCARD", "z"]).int(), 2);
        }
    }

    ///
    #[test]
    fn a_lease_that_is_none_renews_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, &IDS[..1], "1").is(0));
        let before = contents(&raw);
        for lease_ms in BAD_LEASES.iter().filter(|lease_ms| **lease_ms != "0") {
            assert!(renew(&raw, lease_ms, &IDS[..1]).failed("lease_ms"), "{lease_ms}");
        }
        assert!(renew(&raw, LEASE, &[]).failed("ids"));
        assert_eq!(contents(&raw), before);
    }
}

mod release {
    use super::*;

    /// R-26, I5.
    #[test]
    fn a_permit_is_given_back_once_and_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        assert!(acquire(&raw, LEASE, &IDS[..4], "4").is(0));
        listener.subscribe("ch");
        assert!(release(&raw, &IDS[..1]).is(1) && release(&raw, &IDS[..1]).is(-1));
        assert!(release(&raw, &IDS[1..3]).is(1) && release(&raw, &IDS[1..3]).is(-1));
        assert_counts(&raw, 3, 1);
        assert!(release(&raw, &IDS[2..4]).is(-1), "what still stood of them is given back");
        assert_counts(&raw, 4, 0);
        assert_eq!(heard(&listener, &raw, "ch"), ["1", "3", "4"]);
        assert!(release(&raw, &[]).failed("ids") && release(&raw, &[IDS[0]; 2]).failed("ids"));
    }

    /// I4, I15.
    #[test]
    fn a_permit_past_its_deadline_comes_back_once_and_is_said_to_be_gone() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        for others in [0, 1] {
            raw.cmd(&["FLUSHALL"]).ok();
            assert!(acquire(&raw, LEASE, &IDS[..3], "3").is(0));
            end(&raw, &IDS[0]);
            if others == 1 {
                // It was taken back, and somebody else has it by now.
                assert!(acquire(&raw, LEASE, &IDS[5..6], "").is(0));
            }
            for _ in 0..2 {
                assert!(release(&raw, &IDS[..1]).is(-1));
                assert_counts(&raw, 1 - others, 2 + others);
            }
            // What ended of others comes back along with one that is given back.
            end(&raw, &IDS[1]);
            assert!(release(&raw, &IDS[2..3]).is(1));
            assert_eq!(raw.cmd(&["GET", "s"]).int(), 3 - others);
        }
        assert_eq!(heard(&listener, &raw, "ch"), ["1", "3", "2"]);
    }

    #[test]
    fn a_semaphore_that_was_deleted_is_not_made_anew() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, &IDS[..2], "2").is(0));
        raw.cmd(&["DEL", "s"]).ok();
        assert!(release(&raw, &IDS[..1]).is(-1));
        assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
        assert!(try_set(&raw, "2", "1").is(0));
        assert_counts(&raw, 1, 1);
        assert!(release(&raw, &IDS[..1]).is(-1) && release(&raw, &IDS[1..2]).is(0));
        assert_counts(&raw, 2, 0);
    }

    /// Java's listener throws at a negative number.
    #[test]
    fn nobody_is_told_of_a_number_that_none_can_be_taken_from() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, LEASE, &IDS[..3], "3").is(0));
        assert!(set(&raw, "1").is(0));
        assert_counts(&raw, -2, 3);
        end(&raw, &IDS[0]);
        assert_eq!(acquire(&raw, LEASE, &IDS[3..4], "").1, ["-1"]);
        assert!(release(&raw, &IDS[1..2]).is(0));
        assert!(heard(&listener, &raw, "ch").is_empty());
        assert!(release(&raw, &IDS[2..3]).is(1));
        assert_eq!(heard(&listener, &raw, "ch"), ["1"]);
    }
}

mod others {
    use super::*;

    #[test]
    fn only_a_missing_semaphore_is_set_by_trying() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(inspect(&raw).is(-1));
        assert!(try_set(&raw, "2", "1").is(1) && try_set(&raw, "2", "1").is(0));
        assert!(try_set(&raw, "3", "2").is(-1));
        raw.cmd(&["DEL", "s"]).ok();
        assert!(try_set(&raw, "0", "3").is(0));
        assert_counts(&raw, 0, 0);
        assert_eq!(heard(&listener, &raw, "ch"), ["2"]);
        raw.cmd(&["DEL", "s"]).ok();
        for permits in BAD_PERMITS {
            assert!(try_set(&raw, permits, "4").failed("permits"), "{permits}");
            assert!(set(&raw, permits).failed("permits"), "{permits}");
        }
        assert!(try_set(&raw, "1", "").failed("id") && add(&raw, "1", "").failed("id"));
        assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
    }

    #[test]
    fn setting_counts_permits_in_use_and_keeps_the_ttl() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(set(&raw, "3").is(1));
        assert!(acquire(&raw, LEASE, &IDS[..2], "").is(0));
        raw.cmd(&["PEXPIRE", "s", "90000"]).ok();
        for (total, code) in [("5", 1), ("5", 0), ("1", 0), ("2", 0), ("6", 1)] {
            assert!(set(&raw, total).is(code), "{total}");
            assert_counts(&raw, total.parse::<i64>().unwrap() - 2, 2);
        }
        assert!(ttl(&raw, "s") > 80_000);
        end(&raw, &IDS[0]);
        assert!(set(&raw, "6").is(0));
        assert_counts(&raw, 5, 1);
        assert_eq!(heard(&listener, &raw, "ch"), ["3", "3", "4"]);
        raw.cmd(&["DEL", "s"]).ok();
        assert!(set(&raw, "2").is(0), "permits that outlived it count");
        assert_counts(&raw, 1, 1);
    }

    #[test]
    fn adding_changes_the_number_once_both_ways() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert_eq!([add(&raw, "2", "1"), add(&raw, "2", "1")], [told(1, "2"), told(0, "2")]);
        assert!(acquire(&raw, LEASE, &IDS[..1], "").is(0));
        raw.cmd(&["PEXPIRE", "s", "90000"]).ok();
        assert_eq!([add(&raw, "-4", "2"), add(&raw, "-4", "2")], [told(0, "-3"), told(0, "-3")]);
        assert_eq!(add(&raw, "2", "3"), told(0, "-1"));
        assert_eq!(add(&raw, "2", "4"), told(1, "1"));
        assert_counts(&raw, 1, 1);
        assert!(ttl(&raw, "s") > 80_000);
        assert_eq!(heard(&listener, &raw, "ch"), ["2", "1"]);
        for permits in BAD_PERMITS.iter().filter(|permits| **permits != "-1") {
            assert!(add(&raw, permits, "5").failed("permits"), "{permits}");
        }
        assert_eq!(keys_without_ttl(&raw), ["z"]);
    }
}

/// A verb with its keys and arguments, for a semaphore of 4 permits.
type Call<'a> = (&'static str, &'static str, &'static [&'static str], Vec<&'a [u8]>);

/// Of the permits, the first three are in use, and the third of them is past its deadline.
fn calls() -> [Call<'static>; 7] {
    let (lease, publish) = (LEASE.as_bytes(), &b"PUBLISH"[..]);
    [
        ("acquire", ACQUIRE, &["s", "z", "ch"], vec![lease, &IDS[3], b"", publish]),
        ("first", ACQUIRE, &["t", "z", "ch"], vec![lease, &IDS[3], b"9", publish]),
        ("renew", RENEW, &["s", "z", "ch"], vec![b"90000", &IDS[0], publish]),
        ("release", RELEASE, &["s", "ch", "z"], vec![&IDS[0], publish]),
        ("set", SET, &["s", "z", "ch"], vec![b"9", publish]),
        ("add", ADD, &["s", "ch", "once"], vec![b"1", b"9", publish, b""]),
        ("try_set", TRY_SET, &["t", "z", "ch", "once"], vec![b"9", b"9", publish, b""]),
    ]
}

fn three_of_four(raw: &Raw) {
    raw.cmd(&["FLUSHALL"]).ok();
    assert!(acquire(raw, LEASE, &IDS[..3], "4").is(0));
    end(raw, &IDS[2]);
}

///
#[test]
fn a_key_of_another_type_fails_whichever_it_is() {
    let server = RedisServer::start();
    let raw = server.raw();
    let inspect = ("inspect", INSPECT, &["s", "z"][..], vec![]);
    for (verb, script, keys, args) in calls().into_iter().chain([inspect]) {
        for key in keys.iter().filter(|key| **key != "ch") {
            three_of_four(&raw);
            raw.cmd(&["DEL", key]).ok();
            raw.cmd(&["RPUSH", key, "x"]).ok();
            let before = contents(&raw);
            let answer = Answer::read(&eval_bytes(&raw, script, keys, &args));
            assert!(answer.failed("WRONGTYPE"), "{verb} {key}: {answer:?}");
            assert_eq!(contents(&raw), before, "{verb} {key}");
        }
    }
}

/// nothing is half done for want of a right.
#[test]
fn a_right_that_is_missing_leaves_all_as_it_was() {
    let server = RedisServer::start();
    let raw = server.raw();
    let commands = "time get set incrby zmscore zcard zcount zrange zadd zrem pexpiretime persist \
                    hget hset pexpire";
    for command in commands.split(' ') {
        let user = without_right(&server, command);
        for (verb, script, keys, args) in calls() {
            three_of_four(&raw);
            let before = contents(&raw);
            let answer = Answer::read(&eval_bytes(&user, script, keys, &args));
            if answer.0 == [-2] {
                assert!(answer.is_denied(), "{verb} without {command}: {answer:?}");
                assert_eq!(contents(&raw), before, "{verb} without {command}");
            } else {
                assert!(answer.0[0] >= 0, "{verb} without {command}: {answer:?}");
            }
        }
    }
}

/// what has ended stays where it is, for one who may.
#[test]
fn without_the_right_to_take_back_no_permit_is_lost() {
    let server = RedisServer::start();
    let raw = server.raw();
    let user = without_right(&server, "zremrangebyscore");
    for (verb, script, keys, args) in calls() {
        three_of_four(&raw);
        let Answer(codes, _) = Answer::read(&eval_bytes(&user, script, keys, &args));
        assert_eq!(codes[0] == -2, ["acquire", "first"].contains(&verb), "{verb} {codes:?}");
        if codes[0] == -2 || keys[0] == "s" {
            let total = match verb {
                "set" => 9,
                "add" => 5,
                _ => 4,
            };
            assert_eq!(inspect(&raw).1[2], total.to_string(), "{verb}");
        }
    }
}

/// also if the ids that it wants anew are past their deadline.
#[test]
fn an_acquire_that_fails_late_puts_back_what_it_changed() {
    let server = RedisServer::start();
    let raw = server.raw();
    for command in ["pexpireat", "pexpiretime", "zremrangebyscore", "zadd"] {
        let user = without_right(&server, command);
        for ids in [&IDS[3..4], &IDS[2..3], &IDS[2..4]] {
            three_of_four(&raw);
            for key in ["s", "z"] {
                raw.cmd(&["PEXPIRE", key, "90000"]).ok();
            }
            let before = [contents(&raw), inspect(&raw).1];
            assert!(acquire(&user, LEASE, ids, "").is_denied(), "{command} {ids:?}");
            assert_eq!([contents(&raw), inspect(&raw).1], before, "{command} {ids:?}");
        }
    }
}

/// R-21, and clients in a mode without pub/sub.
#[test]
fn what_cannot_be_told_is_done_all_the_same() {
    let server = RedisServer::start();
    let (raw, user, listener) = (server.raw(), mute(&server), server.raw());
    listener.subscribe("ch");
    for (verb, script, keys, args) in calls() {
        three_of_four(&raw);
        let before = contents(&raw);
        let Answer(codes, texts) = Answer::read(&eval_bytes(&user, script, keys, &args));
        let untold = ["release", "set", "add", "try_set"].contains(&verb);
        assert_eq!(codes, [if untold { -4 } else { 0 }], "{verb}");
        assert!(!untold || says_denied(&texts[0]), "{verb}: {texts:?}");
        assert_ne!(contents(&raw), before, "{verb}");
        three_of_four(&raw);
        heard(&listener, &raw, "ch");
        let silent = args.iter().map(|arg| if *arg == b"PUBLISH" { b"" } else { *arg });
        let silent: Vec<_> = silent.collect();
        assert_eq!(Answer::read(&eval_bytes(&raw, script, keys, &silent)).0, [0], "{verb}");
        assert!(heard(&listener, &raw, "ch").is_empty(), "{verb}");
    }
}

///
#[test]
fn permits_are_kept_and_given_back_when_the_memory_is_full_but_not_on_a_replica() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(acquire(&raw, LEASE, &IDS[..3], "4").is(0));
    let limit_memory = |bytes| raw.cmd(&["CONFIG", "SET", "maxmemory", bytes]).ok();
    limit_memory("1");
    assert!(acquire(&raw, LEASE, &IDS[3..4], "").failed("OOM"));
    assert_counts(&raw, 1, 3);
    limit_memory("0");
    end(&raw, &IDS[2]);
    limit_memory("1");
    assert!(renew(&raw, "90000", &IDS[..2]).is(0) && release(&raw, &IDS[..1]).is(0));
    assert_counts(&raw, 3, 1);
    limit_memory("0");
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    for (verb, script, keys, args) in calls().into_iter().filter(|call| call.2[0] == "s").take(3) {
        let reply = eval_bytes(&raw, script, keys, &args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{verb} {reply:?}");
    }
    assert_counts(&raw, 3, 1);
}

mod lists {
    use super::*;

    #[test]
    fn every_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["MSET", "a", "1", "b", "x", "c", "0"]).ok();
        let names = ["a", "b", "c", "none", "a", "a", "new"];
        let zsets = ["az", "bz", "cz", "dz", "az", "az", "nz"];
        let keys: Vec<_> = names.iter().zip(zsets).flat_map(|(n, z)| [*n, z, "ch"]).collect();
        let sizes = ["", "", "", "", "", "", "2"].map(str::as_bytes);
        let ids = [0, 1, 2, 3, 4, 0, 5];
        let args = ids.iter().zip(sizes).flat_map(|(id, size)| {
            let args: [&[u8]; 4] = [LEASE.as_bytes(), &IDS[*id as usize], size, b"PUBLISH"];
            args
        });
        let args: Vec<_> = args.collect();
        for _ in 0..2 {
            let Answer(codes, texts) = Answer::read(&eval_bytes(&raw, ACQUIRE, &keys, &args));
            assert_eq!([&codes[..4], &codes[5..]].concat(), [0, -2, -3, -2, 0, 0]);
            assert!(codes[4] > 20_000, "{codes:?}");
            assert!(texts[0].contains("not an integer") && texts[2].starts_with("UNINIT"));
            assert_eq!((texts.len(), &*texts[1], &*texts[3]), (4, "0", "0"));
        }
        assert_eq!(raw.cmd(&["GET", "new"]).int(), 1);
    }

    #[test]
    fn renewals_and_releases_of_a_list_do_not_disturb_each_other() {
        let server = RedisServer::start();
        let raw = server.raw();
        three_of_four(&raw);
        raw.cmd(&["RPUSH", "list", "x"]).ok();
        let pairs = [("s", "z", 0), ("s", "list", 0), ("s", "z", 2), ("s", "z", 1), ("s", "z", 4)];
        let keys: Vec<_> = pairs.iter().flat_map(|(name, z, _)| [*name, z, "ch"]).collect();
        let args = pairs.iter().flat_map(|(_, _, id)| {
            let args: [&[u8]; 3] = [b"90000", &IDS[*id], b"PUBLISH"];
            args
        });
        let answer = Answer::read(&eval_bytes(&raw, RENEW, &keys, &args.collect::<Vec<_>>()));
        assert_eq!((answer.0, answer.1.len()), (vec![0, -2, -1, 0, -1], 1));
        let keys: Vec<_> = pairs.iter().flat_map(|(name, z, _)| [*name, "ch", z]).collect();
        let args = pairs.iter().flat_map(|(_, _, id)| {
            let args: [&[u8]; 2] = [&IDS[*id], b"PUBLISH"];
            args
        });
        let answer = Answer::read(&eval_bytes(&raw, RELEASE, &keys, &args.collect::<Vec<_>>()));
        assert_eq!((answer.0, answer.1.len()), (vec![0, -2, -1, 0, -1], 1));
        assert_counts(&raw, 4, 0);
    }
}

/// I15.
#[test]
fn redisson_and_this_client_take_permits_of_the_same_semaphore() {
    let server = RedisServer::start();
    let (raw, java) = (server.raw(), RedissonPermits::connect(server.port()));
    for name in ["jobs", "a{b}c", "x:y z\r\n", "%s -- '"] {
        let (z, channel) = (RedissonPermits::deadlines(name), RedissonPermits::channel(name));
        let run = |script, keys: &[&str], args: &[&[u8]]| {
            Answer::read(&eval_bytes(&raw, script, keys, args))
        };
        let take = |id| run(ACQUIRE, &[name, &z, &channel], &[b"90000", id, b"", b"PUBLISH"]);
        let keep = |id| run(RENEW, &[name, &z, &channel], &[b"90000", id, b"PUBLISH"]);
        let give = |id| run(RELEASE, &[name, &channel, &z], &[id, b"PUBLISH"]);
        let listener = server.raw();
        listener.subscribe(&channel);
        assert!(java.try_set_permits(name, 2, Some(90_000)));
        assert!(
            take(&IDS[0]).is(0) && java.try_acquire_ids(name, &IDS[1..2], Some(30_000)).is_ok()
        );
        let ends = [name, &z].map(|key| raw.cmd(&["PTTL", key]).int());
        assert!(ends[1] > 80_000 && ends[1] <= 90_000, "{ends:?}");
        let refused = take(&IDS[2]);
        assert!(refused.0[0] > 20_000 && refused.0[0] <= 30_001, "{refused:?}");
        let first = java.try_acquire_ids(name, &IDS[2..3], None).unwrap_err().unwrap();
        assert!(first > now(&raw) && first <= now(&raw) + 30_000);
        assert_eq!(java.counts(name), (0, 2));
        // Each may keep and give back what the other has taken: an id is all it needs.
        assert!(java.update_lease_time(name, &IDS[0], 120_000) && keep(&IDS[1]).is(0));
        assert!(java.try_release(name, &IDS[0]) && give(&IDS[0]).is(-1));
        assert!(give(&IDS[1]).is(1) && !java.try_release(name, &IDS[1]));
        assert!(!java.update_lease_time(name, &IDS[1], 1) && keep(&IDS[0]).is(-1));
        java.set_permits(name, 3);
        assert_eq!(java.counts(name), (3, 0));
        assert_eq!(heard(&listener, &raw, &channel), ["2", "1", "2", "3"]);
    }
}

#[test]
fn permits_that_ended_are_taken_back_by_whoever_comes_first() {
    let server = RedisServer::start();
    let (raw, java) = (server.raw(), RedissonPermits::connect(server.port()));
    let z = RedissonPermits::deadlines("s");
    let run =
        |script, keys: &[&str], args: &[&[u8]]| Answer::read(&eval_bytes(&raw, script, keys, args));
    let past = |id: &[u8]| raw.cmd_bytes(&[b"ZADD", z.as_bytes(), b"XX", b"5", id]).int();
    let ours = |id: &[u8]| run(ACQUIRE, &["s", &z, "ch"], &[b"0", id, b"2", b"PUBLISH"]);
    assert!(ours(&IDS[0]).is(0) && java.try_acquire_ids("s", &IDS[1..2], Some(30_000)).is_ok());
    past(&IDS[0]);
    assert!(java.try_acquire_ids("s", &IDS[2..3], None).is_ok(), "ours, by Java");
    assert!(run(RELEASE, &["s", "ch", &z], &[&IDS[0], b"PUBLISH"]).is(-1));
    past(&IDS[1]);
    assert!(ours(&IDS[3]).is(0), "Java's, by us");
    assert!(!java.try_release("s", &IDS[1]));
    assert_eq!(ours(&IDS[4]), told(-3, "0"), "neither of the two ever ends");
    assert_eq!(java.try_acquire_ids("s", &IDS[4..5], None), Err(None));
    past(&IDS[2]);
    assert!(run(RENEW, &["s", &z, "ch"], &[LEASE.as_bytes(), &IDS[2], b"PUBLISH"]).is(-1));
    assert_eq!(java.counts("s"), (1, 1));
    assert_eq!(run(INSPECT, &["s", &z], &[]).1, ["1", "1", "2"]);
    assert!(run(SET, &["s", &z, "ch"], &[b"5", b"PUBLISH"]).is(0));
    java.set_permits("s", 7);
    assert_eq!(java.counts("s"), (6, 1));
}

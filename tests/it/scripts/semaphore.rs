//! The scripts of the semaphore.

use super::*;
use crate::support::redisson_permits::RedissonPermits;
use crate::support::{assert_no_keys, keys_without_ttl};
use std::time::Duration;

const ACQUIRE: &str = include_str!("../../../lua/semaphore/acquire.lua");
const RELEASE: &str = include_str!("../../../lua/semaphore/release.lua");
const GIVE: &str = include_str!("../../../lua/semaphore/give.lua");
const ADD: &str = include_str!("../../../lua/semaphore/add.lua");
const TRY_SET: &str = include_str!("../../../lua/semaphore/try_set.lua");
const DRAIN: &str = include_str!("../../../lua/semaphore/drain.lua");
const INSPECT: &str = include_str!("../../../lua/semaphore/inspect.lua");

/// Numbers of permits that are none, or more than Java has.
const BAD_PERMITS: [&str; 8] = ["-1", "1.5", "x", "", "nan", "inf", "2147483648", "1e308"];

/// Numbers in Redis that cannot be counted with.
const CORRUPT_PERMITS: [&str; 9] =
    ["x", "", " 1", "1e3", "nan", "9007199254740992", "-9007199254740993", "1.5", "0x1"];

#[track_caller]
fn acquire(raw: &Raw, permits: &str, id: &str, size: &str) -> Answer {
    acquire_acked(raw, permits, id, size, "")
}

#[track_caller]
fn acquire_acked(raw: &Raw, permits: &str, id: &str, size: &str, ack: &str) -> Answer {
    let args = [permits, id, size, "PUBLISH", ack];
    Answer::read(&eval(raw, ACQUIRE, &["s", "once", "ch"], &args))
}

#[track_caller]
fn release(raw: &Raw, permits: &str, id: &str, sure: &str) -> Answer {
    let args = [permits, id, sure, "PUBLISH", ""];
    Answer::read(&eval(raw, RELEASE, &["s", "ch", "once"], &args))
}

#[track_caller]
fn give(raw: &Raw, permits: &str, id: &str, if_exists: &str) -> Answer {
    let args = [permits, id, if_exists, "PUBLISH", ""];
    Answer::read(&eval(raw, GIVE, &["s", "ch", "once"], &args))
}

#[track_caller]
fn add(raw: &Raw, permits: &str, id: &str) -> Answer {
    Answer::read(&eval(raw, ADD, &["s", "ch", "once"], &[permits, id, "PUBLISH", ""]))
}

#[track_caller]
fn try_set(raw: &Raw, permits: &str, ttl_ms: &str, id: &str) -> Answer {
    let args = [permits, ttl_ms, id, "PUBLISH", ""];
    Answer::read(&eval(raw, TRY_SET, &["s", "ch", "once"], &args))
}

#[track_caller]
fn drain(raw: &Raw, id: &str) -> Answer {
    Answer::read(&eval(raw, DRAIN, &["s", "once"], &[id, ""]))
}

#[track_caller]
fn inspect(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, INSPECT, &["s"], &[]))
}

fn told(code: i64, text: &str) -> Answer {
    Answer(vec![code], vec![text.to_owned()])
}

fn set(raw: &Raw, permits: &str) {
    raw.cmd(&["SET", "s", permits]).ok();
}

#[track_caller]
fn assert_permits(raw: &Raw, permits: &str) {
    assert_eq!(raw.cmd(&["GET", "s"]).text(), permits);
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
    fn permits_are_taken_all_or_none() {
        let server = RedisServer::start();
        let raw = server.raw();
        set(&raw, "5");
        assert!(acquire(&raw, "3", "1", "").is(0));
        assert_permits(&raw, "2");
        assert_eq!(acquire(&raw, "3", "2", ""), told(-3, "2"));
        assert_permits(&raw, "2");
        assert!(acquire(&raw, "2", "3", "").is(0));
        assert_eq!(acquire(&raw, "1", "4", ""), told(-3, "0"));
        assert_permits(&raw, "0");
        assert_eq!(ttl(&raw, "s"), -1, "as in Redisson, it stands until somebody deletes it");
    }

    #[test]
    fn a_number_below_zero_is_refused_and_told() {
        let server = RedisServer::start();
        let raw = server.raw();
        set(&raw, "-9007199254740991");
        assert_eq!(acquire(&raw, "1", "1", ""), told(-3, "-9007199254740991"));
        assert_eq!(inspect(&raw), told(0, "-9007199254740991"));
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1, "a refusal writes nothing");
    }

    #[test]
    fn a_missing_semaphore_is_an_error_unless_it_has_a_size() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, "1", "1", "").failed("UNINITIALISED"));
        assert_no_keys(&raw);
        assert!(acquire(&raw, "1", "1", "3").is(0));
        assert_permits(&raw, "2");
        assert!(acquire(&raw, "1", "2", "9").is(0));
        assert_permits(&raw, "1");
        assert_eq!(heard(&listener, &raw, "ch"), ["2"], "others may wait for it to be set");
        assert_eq!(keys_without_ttl(&raw), ["s"]);
    }

    #[test]
    fn a_size_that_does_not_suffice_is_set_up_and_refused() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert_eq!(acquire(&raw, "4", "1", "3"), told(-3, "3"));
        assert_eq!(contents(&raw).len(), 1);
        assert_permits(&raw, "3");
        assert_eq!(heard(&listener, &raw, "ch"), ["3"]);
        raw.cmd(&["DEL", "s"]).ok();
        assert_eq!(acquire(&raw, "1", "1", "0"), told(-3, "0"));
        assert_permits(&raw, "0");
        assert!(heard(&listener, &raw, "ch").is_empty());
    }

    /// R-25, I5.
    #[test]
    fn sent_twice_it_takes_once_also_when_things_have_moved_on() {
        let server = RedisServer::start();
        let raw = server.raw();
        for size in ["", "5"] {
            raw.cmd(&["FLUSHALL"]).ok();
            if size.is_empty() {
                set(&raw, "5");
            }
            for _ in 0..2 {
                assert!(acquire(&raw, "2", "1", size).is(0));
                assert_permits(&raw, "3");
            }
            assert!(acquire(&raw, "3", "2", size).is(0));
            assert!(acquire(&raw, "2", "1", size).is(0), "there would be none left");
            raw.cmd(&["DEL", "s"]).ok();
            assert!(acquire(&raw, "2", "1", size).is(0));
            assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
        }
    }

    /// A refused call has done nothing: its resend is a try like any other.
    #[test]
    fn the_resend_of_a_refused_call_may_succeed_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        set(&raw, "0");
        assert_eq!(acquire(&raw, "1", "1", ""), told(-3, "0"));
        set(&raw, "2");
        assert!(acquire(&raw, "1", "1", "").is(0));
        assert!(acquire(&raw, "1", "1", "").is(0));
        assert_permits(&raw, "1");
    }

    /// I6.
    #[test]
    fn records_end_by_themselves_and_those_of_settled_calls_at_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        set(&raw, "9");
        for (id, ack) in [("1", ""), ("2", ""), ("3", "1 2"), ("4", ""), ("5", "77  3 ")] {
            assert!(acquire_acked(&raw, "1", id, "", ack).is(0));
            let left = raw.cmd(&["PTTL", "once"]).int();
            assert!(left > 50_000 && left <= 60_000, "{left}");
        }
        let ones = ["4", "5"].map(|id| (id.to_owned(), "1".to_owned()));
        assert_eq!(raw.cmd(&["HGETALL", "once"]).map(), ones.into());
        raw.cmd(&["PEXPIRE", "once", "1000"]).ok();
        assert_eq!(acquire_acked(&raw, "9", "6", "", "4 5"), told(-3, "4"));
        assert_eq!(contents(&raw).len(), 1, "a refused call takes the settled ones along too");
    }

    ///
    #[test]
    fn what_cannot_be_tried_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        for corrupt in CORRUPT_PERMITS {
            set(&raw, corrupt);
            assert!(acquire(&raw, "1", "1", "5").failed("not an integer"), "{corrupt}");
            assert!(inspect(&raw).failed("not an integer"), "{corrupt}");
        }
        set(&raw, "01");
        assert!(acquire(&raw, "1", "1", "").failed("not an integer"), "the server says it");
        assert_eq!(contents(&raw).len(), 1);
        set(&raw, "5");
        for permits in BAD_PERMITS.into_iter().chain(["0"]) {
            assert!(acquire(&raw, permits, "1", "").failed("permits"), "{permits}");
        }
        for size in BAD_PERMITS.into_iter().filter(|size| !size.is_empty()) {
            assert!(acquire(&raw, "1", "1", size).failed("size"), "{size}");
        }
        for id in ["", "x", "-1", "1 2", "1.5"] {
            assert!(acquire(&raw, "1", id, "").failed("id"), "{id}");
        }
        assert_permits(&raw, "5");
        assert_eq!(contents(&raw).len(), 1);
    }
}

mod release {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_and_the_new_number_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        set(&raw, "5");
        for id in ["1", "2"] {
            assert!(acquire(&raw, "2", id, "").is(0));
        }
        assert!(release(&raw, "2", "1", "1").is(0));
        listener.subscribe("ch");
        assert!(release(&raw, "2", "2", "1").is(1));
        assert_permits(&raw, "5");
        assert_eq!(heard(&listener, &raw, "ch"), ["5"]);
    }

    /// R-26, I5.
    #[test]
    fn sent_twice_it_gives_back_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        // With the record of the acquire, and long after it, when there is none any more.
        for keep_record in [true, false] {
            for sure in ["1", "0"] {
                raw.cmd(&["FLUSHALL"]).ok();
                assert!(acquire(&raw, "2", "1", "5").is(0));
                if !keep_record {
                    raw.cmd(&["DEL", "once"]).ok();
                }
                let known = keep_record || sure == "1";
                assert!(release(&raw, "2", "1", sure).is(if known { 0 } else { -1 }));
                for sure in ["1", "0"] {
                    assert!(release(&raw, "2", "1", sure).is(-1));
                }
                assert_permits(&raw, if known { "5" } else { "3" });
                assert!(acquire(&raw, "2", "1", "5").is(-1), "nor is it taken again");
            }
        }
    }

    /// the undo of an acquire that never ran, or runs only later.
    #[test]
    fn a_call_that_is_undone_before_it_runs_takes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        for id in ["1", "2"] {
            set(&raw, "5");
            assert!(release(&raw, "2", id, "0").is(-1));
            for _ in 0..2 {
                assert!(acquire(&raw, "2", id, "").is(-1));
                assert!(drain(&raw, id).is(-1));
            }
            assert_permits(&raw, "5");
        }
        assert_eq!(keys_without_ttl(&raw), ["s"]);
        let left = raw.cmd(&["PTTL", "once"]).int();
        assert!(left > 50_000 && left <= 60_000, "{left}");
    }

    #[test]
    fn an_undo_gives_back_what_was_taken_whatever_it_says_itself() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        set(&raw, "7");
        assert!(acquire(&raw, "3", "1", "").is(0));
        assert_eq!(drain(&raw, "2"), told(0, "4"));
        assert!(release(&raw, "9", "2", "0").is(1));
        assert_permits(&raw, "4");
        assert!(release(&raw, "9", "1", "0").is(1));
        assert_permits(&raw, "7");
        assert_eq!(heard(&listener, &raw, "ch"), ["4", "7"]);
    }

    #[test]
    fn a_semaphore_that_was_deleted_is_not_made_anew() {
        let server = RedisServer::start();
        let raw = server.raw();
        for (id, sure) in [("1", "1"), ("2", "0")] {
            assert!(acquire(&raw, "2", id, "5").is(0));
            raw.cmd(&["DEL", "s"]).ok();
            assert!(release(&raw, "2", id, sure).is(-1));
            assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
            set(&raw, "5");
            assert!(release(&raw, "2", id, sure).is(-1), "not to the next one either");
            assert_permits(&raw, "5");
            raw.cmd(&["DEL", "s"]).ok();
        }
    }

    /// Java's listener throws at a negative number.
    #[test]
    fn nobody_is_told_of_a_number_that_none_can_be_taken_from() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, "3", "1", "3").is(0));
        assert_eq!(add(&raw, "-4", "2"), told(0, "-4"));
        assert!(give(&raw, "1", "3", "0").is(0));
        assert!(release(&raw, "3", "1", "1").is(0));
        assert_permits(&raw, "0");
        assert!(heard(&listener, &raw, "ch").is_empty());
        assert!(give(&raw, "1", "4", "0").is(1));
        assert_eq!(heard(&listener, &raw, "ch"), ["1"]);
    }

    ///
    #[test]
    fn what_cannot_be_given_back_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, "1", "1", "5").is(0));
        for permits in BAD_PERMITS.into_iter().chain(["0"]) {
            assert!(release(&raw, permits, "1", "1").failed("permits"), "{permits}");
        }
        for id in ["", "x", "-1"] {
            assert!(release(&raw, "1", id, "1").failed("id"), "{id}");
        }
        for sure in ["", "2", "yes"] {
            assert!(release(&raw, "1", "1", sure).failed("sure"), "{sure}");
        }
        assert_permits(&raw, "4");
        for corrupt in CORRUPT_PERMITS {
            set(&raw, corrupt);
            for sure in ["0", "1"] {
                assert!(release(&raw, "1", "1", sure).failed("not an integer"), "{corrupt}");
            }
        }
        raw.cmd(&["HSET", "once", "1", "x"]).ok();
        assert!(release(&raw, "1", "1", "0").failed("record"));
        set(&raw, "4");
        assert!(release(&raw, "1", "1", "1").is(0));
        assert_permits(&raw, "5");
    }
}

mod others {
    use super::*;

    #[test]
    fn giving_makes_a_missing_semaphore_unless_it_must_not() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(give(&raw, "2", "1", "1").is(-1));
        assert_no_keys(&raw);
        for _ in 0..2 {
            let first = raw.cmd(&["EXISTS", "s"]).int() == 0;
            assert!(give(&raw, "2", "1", "0").is(i64::from(first)), "sent twice, given once");
        }
        assert_permits(&raw, "2");
        assert!(give(&raw, "3", "2", "1").is(1));
        assert_permits(&raw, "5");
        assert_eq!(heard(&listener, &raw, "ch"), ["2", "5"]);
        assert_eq!(keys_without_ttl(&raw), ["s"]);
        for permits in BAD_PERMITS.into_iter().chain(["0"]) {
            assert!(give(&raw, permits, "3", "0").failed("permits"), "{permits}");
        }
        assert!(give(&raw, "1", "", "0").failed("id"));
        assert!(give(&raw, "1", "3", "").failed("if_exists"));
    }

    #[test]
    fn adding_changes_the_number_both_ways_and_keeps_the_ttl() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(try_set(&raw, "3", LEASE, "1").is(1));
        assert_eq!(add(&raw, "2", "2"), told(1, "5"));
        assert_eq!(add(&raw, "-7", "3"), told(0, "-2"));
        assert_eq!(add(&raw, "1", "4"), told(0, "-1"));
        assert_eq!(add(&raw, "4", "5"), told(1, "3"));
        assert_eq!(add(&raw, "-1", "6"), told(0, "2"));
        assert!(ttl(&raw, "s") > 20_000);
        // Sent again they say what they said, and add nothing.
        assert_eq!([add(&raw, "2", "2"), add(&raw, "-7", "3")], [told(0, "5"), told(0, "-2")]);
        assert_permits(&raw, "2");
        assert_eq!(heard(&listener, &raw, "ch"), ["3", "5", "3"]);
        raw.cmd(&["DEL", "s"]).ok();
        assert_eq!(add(&raw, "4", "7"), told(1, "4"));
        for permits in BAD_PERMITS.iter().filter(|permits| **permits != "-1") {
            assert!(add(&raw, permits, "8").failed("permits"), "{permits}");
        }
    }

    #[test]
    fn only_a_missing_semaphore_is_set() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(try_set(&raw, "3", "0", "1").is(1));
        assert_eq!(ttl(&raw, "s"), -1);
        assert!(try_set(&raw, "3", "0", "1").is(0), "sent again, it says that it has set it");
        assert!(try_set(&raw, "4", "0", "2").is(-1));
        assert!(acquire(&raw, "3", "3", "").is(0));
        assert!(try_set(&raw, "4", "0", "4").is(-1), "with 0 permits it is there");
        raw.cmd(&["DEL", "s"]).ok();
        assert!(try_set(&raw, "0", LEASE, "5").is(0));
        assert!(ttl(&raw, "s") > 20_000);
        assert_permits(&raw, "0");
        assert_eq!(heard(&listener, &raw, "ch"), ["3"]);
        raw.cmd(&["DEL", "s"]).ok();
        for permits in BAD_PERMITS {
            assert!(try_set(&raw, permits, "0", "6").failed("permits"), "{permits}");
        }
        for ttl_ms in BAD_LEASES.iter().filter(|ttl_ms| **ttl_ms != "0") {
            assert!(try_set(&raw, "1", ttl_ms, "6").failed("ttl_ms"), "{ttl_ms}");
        }
        assert_eq!(raw.cmd(&["EXISTS", "s"]).int(), 0);
    }

    #[test]
    fn draining_takes_all_once_and_keeps_the_ttl() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(drain(&raw, "1").is(-1));
        assert_no_keys(&raw);
        assert!(try_set(&raw, "3", LEASE, "2").is(1));
        assert_eq!(drain(&raw, "3"), told(0, "3"));
        assert!(ttl(&raw, "s") > 20_000);
        assert!(give(&raw, "2", "4", "0").is(1));
        assert_eq!(drain(&raw, "3"), told(0, "3"), "sent again, it takes nothing more");
        assert_permits(&raw, "2");
        assert_eq!(add(&raw, "-5", "5"), told(0, "-3"));
        assert_eq!(drain(&raw, "6"), told(0, "-3"));
        assert_permits(&raw, "0");
        assert_eq!(drain(&raw, "7"), told(0, "0"));
        assert_eq!(heard(&listener, &raw, "ch"), ["3", "2"], "a drain tells nobody");
        assert!(release(&raw, "1", "6", "0").is(0));
        assert_permits(&raw, "-3");
        assert!(drain(&raw, "").failed("id"));
    }

    #[test]
    fn inspecting_says_what_stands_and_changes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(inspect(&raw).is(-1));
        for permits in ["5", "0", "-2"] {
            set(&raw, permits);
            assert_eq!(inspect(&raw), told(0, permits));
        }
        assert_eq!(contents(&raw).len(), 1);
    }
}

/// A verb with keys that begin with the semaphore and arguments, as sent for a semaphore of 3.
const CALLS: [(&str, &str, &[&str], &[&str]); 8] = [
    ("acquire", ACQUIRE, &["s", "once", "ch"], &["1", "9", "", "PUBLISH", ""]),
    ("release", RELEASE, &["s", "ch", "once"], &["1", "1", "1", "PUBLISH", ""]),
    ("undo", RELEASE, &["s", "ch", "once"], &["1", "1", "0", "PUBLISH", ""]),
    ("give", GIVE, &["s", "ch", "once"], &["1", "9", "0", "PUBLISH", ""]),
    ("add", ADD, &["s", "ch", "once"], &["1", "9", "PUBLISH", ""]),
    ("drain", DRAIN, &["s", "once"], &["9", ""]),
    ("first", ACQUIRE, &["t", "once", "ch"], &["1", "9", "4", "PUBLISH", ""]),
    ("try_set", TRY_SET, &["t", "ch", "once"], &["1", "0", "9", "PUBLISH", ""]),
];

/// A semaphore of 4 permits, one of which call 1 has.
fn one_of_four(raw: &Raw) {
    raw.cmd(&["FLUSHALL"]).ok();
    assert!(acquire(raw, "1", "1", "4").is(0));
}

///
#[test]
fn a_key_of_another_type_fails_whichever_it_is() {
    let server = RedisServer::start();
    let raw = server.raw();
    for (verb, script, keys, args) in CALLS {
        for key in keys.iter().filter(|key| **key != "ch") {
            one_of_four(&raw);
            raw.cmd(&["DEL", key]).ok();
            raw.cmd(&["RPUSH", key, "x"]).ok();
            let before = contents(&raw);
            let answer = Answer::read(&eval(&raw, script, keys, args));
            assert!(answer.failed("WRONGTYPE"), "{verb} {key}: {answer:?}");
            assert_eq!(contents(&raw), before, "{verb} {key}");
        }
    }
    set(&raw, "1");
    raw.cmd(&["LPUSH", "list", "x"]).ok();
    assert!(Answer::read(&eval(&raw, INSPECT, &["list"], &[])).failed("WRONGTYPE"));
}

///
#[test]
fn a_number_that_is_none_stays_as_it_was() {
    let server = RedisServer::start();
    let raw = server.raw();
    let there = CALLS.into_iter().filter(|(_, _, keys, _)| keys[0] == "s");
    for (verb, script, keys, args) in there {
        for corrupt in CORRUPT_PERMITS.into_iter().chain(["01"]) {
            one_of_four(&raw);
            set(&raw, corrupt);
            let before = contents(&raw);
            let answer = Answer::read(&eval(&raw, script, keys, args));
            if (verb, corrupt) == ("drain", "01") {
                continue; // what INCRBY would not count with can still be replaced
            }
            assert!(answer.failed("not an integer"), "{verb} {corrupt}: {answer:?}");
            assert_eq!(contents(&raw), before, "{verb} {corrupt}");
        }
    }
}

/// nothing is half done for want of a right.
#[test]
fn a_right_that_is_missing_leaves_all_as_it_was() {
    let server = RedisServer::start();
    let raw = server.raw();
    let commands = ["hget", "hset", "pexpire", "get", "set", "incrby", "decrby"];
    for command in commands {
        let user = without_right(&server, command);
        for (verb, script, keys, args) in CALLS {
            one_of_four(&raw);
            let before = contents(&raw);
            let answer = Answer::read(&eval(&user, script, keys, args));
            if answer.is_denied() {
                assert_eq!(contents(&raw), before, "{verb} without {command}");
            } else {
                let unused = ["set", "incrby", "decrby"].contains(&command);
                assert!(unused && answer.0[0] >= 0, "{verb} without {command}: {answer:?}");
            }
        }
    }
    // To drop records of settled calls is a part of each.
    let user = without_right(&server, "hdel");
    one_of_four(&raw);
    assert!(acquire_acked(&user, "1", "9", "", "1").is_denied());
    assert_permits(&raw, "3");
}

///
#[test]
fn what_cannot_be_told_is_done_and_said_to_be_untold() {
    let server = RedisServer::start();
    let (raw, user) = (server.raw(), mute(&server));
    for (verb, script, keys, args) in CALLS {
        one_of_four(&raw);
        let before = contents(&raw);
        let Answer(codes, texts) = Answer::read(&eval(&user, script, keys, args));
        if ["acquire", "first", "drain"].contains(&verb) {
            assert_eq!(codes, [0], "{verb}: who takes tells nobody, or need not");
        } else {
            assert_eq!((&codes[..], texts.len()), (&[-4][..], 1), "{verb}");
            assert!(says_denied(&texts[0]), "{verb}: {texts:?}");
        }
        assert_ne!(contents(&raw), before, "{verb}");
    }
}

/// For clients in a mode without pub/sub.
#[test]
fn nobody_is_told_if_publish_is_empty() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    listener.subscribe("ch");
    for (verb, script, keys, args) in CALLS {
        one_of_four(&raw);
        assert_eq!(heard(&listener, &raw, "ch"), ["3"], "{verb}");
        let args: Vec<_> =
            args.iter().map(|arg| if *arg == "PUBLISH" { "" } else { arg }).collect();
        assert_eq!(Answer::read(&eval(&raw, script, keys, &args)).0, [0], "{verb}");
        assert!(heard(&listener, &raw, "ch").is_empty(), "{verb}");
    }
}

/// giving back works when the memory is full, taking does not.
#[test]
fn permits_are_given_back_when_the_memory_is_full() {
    let server = RedisServer::start();
    let raw = server.raw();
    for sure in ["0", "1"] {
        one_of_four(&raw);
        raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        let before = contents(&raw);
        let answer = Answer::read(&eval(&raw, ACQUIRE, &["s", "once", "ch"], CALLS[0].3));
        assert!(answer.failed("OOM"), "{answer:?}");
        assert_eq!(contents(&raw), before);
        assert!(release(&raw, "1", "1", sure).is(0));
        assert_permits(&raw, "4");
        raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    }
}

///
#[test]
fn a_replica_refuses_the_whole_list() {
    let server = RedisServer::start();
    let raw = server.raw();
    one_of_four(&raw);
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    for (verb, script, keys, args) in CALLS.into_iter().take(3) {
        let reply = eval(&raw, script, keys, args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{verb}");
    }
    assert_permits(&raw, "3");
}

mod lists {
    use super::*;

    /// I5: entries share the record's key, and one that is bad disturbs no other.
    #[test]
    fn every_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["MSET", "a", "3", "b", "x", "c", "0"]).ok();
        let names = ["a", "b", "c", "a", "none", "a", "new"];
        let keys: Vec<_> = names.iter().flat_map(|name| [*name, "once", "ch"]).collect();
        let entry = |permits, id, size| [permits, id, size, "PUBLISH", ""];
        let args = [
            entry("1", "1", ""),
            entry("1", "2", ""),
            entry("1", "3", ""),
            entry("2", "4", ""),
            entry("1", "5", ""),
            entry("1", "1", ""),
            entry("1", "6", "2"),
        ];
        for _ in 0..2 {
            let Answer(codes, texts) = Answer::read(&eval(&raw, ACQUIRE, &keys, &args.concat()));
            assert_eq!(codes, [0, -2, -3, 0, -2, 0, 0]);
            assert!(texts[0].contains("not an integer") && texts[2].starts_with("UNINIT"));
            assert_eq!((&*texts[1], texts.len()), ("0", 3));
        }
        let counts = raw.cmd(&["MGET", "a", "b", "c", "none", "new"]).ok();
        assert_eq!(counts.items()[0].text() + &counts.items()[4].text(), "01");
    }

    #[test]
    fn releases_of_a_list_do_not_disturb_each_other() {
        let server = RedisServer::start();
        let raw = server.raw();
        set(&raw, "9");
        for id in ["1", "2"] {
            assert!(acquire(&raw, "2", id, "").is(0));
        }
        raw.cmd(&["RPUSH", "list", "x"]).ok();
        let keys = ["s", "list", "s", "s", "s"].map(|name| [name, "ch", "once"]).concat();
        let entry = |id, sure| ["2", id, sure, "PUBLISH", ""];
        let ids = [("1", "1"), ("3", "1"), ("1", "0"), ("2", "0"), ("4", "0")];
        let args = ids.map(|(id, sure)| entry(id, sure)).concat();
        let Answer(codes, texts) = Answer::read(&eval(&raw, RELEASE, &keys, &args));
        assert_eq!(codes, [0, -2, -1, 0, -1]);
        assert!(texts.len() == 1 && texts[0].starts_with("WRONGTYPE"), "{texts:?}");
        assert_permits(&raw, "9");
    }
}

mod redisson {
    use super::*;

    /// Names that Redisson takes as they are: no script looks into them.
    const NAMES: [&str; 4] = ["jobs", "a{b}c", "x:y z\r\n", "%s -- '"];

    /// I15.
    #[test]
    fn permits_of_either_count_for_both() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), RedissonPermits::connect(server.port()));
        for name in NAMES {
            let channel = RedissonPermits::channel(name);
            let listener = server.raw();
            listener.subscribe(&channel);
            let (keys, back) = ([name, "once", &channel], [name, &channel, "once"]);
            raw.cmd(&["DEL", "once"]).ok();
            let take = |permits, id| {
                Answer::read(&eval(&raw, ACQUIRE, &keys, &[permits, id, "", "PUBLISH", ""]))
            };
            assert!(take("1", "1").failed("UNINITIALISED"));
            assert!(!java.try_acquire(name, 1));
            assert!(java.try_set_permits(name, 3, None) && !java.try_set_permits(name, 9, None));
            assert!(
                take("2", "1").is(0) && java.try_acquire(name, 1) && !java.try_acquire(name, 1)
            );
            assert_eq!(take("1", "2"), told(-3, "0"));
            let args = ["2", "1", "1", "PUBLISH", ""];
            assert!(Answer::read(&eval(&raw, RELEASE, &back, &args)).is(1));
            assert!(java.try_acquire(name, 2) && java.available_permits(name) == 0);
            java.release(name, 3);
            assert!(take("3", "3").is(0));
            java.add_permits(name, -2);
            assert_eq!(take("1", "4"), told(-3, "-2"));
            assert_eq!(heard(&listener, &raw, &channel), ["3", "2", "3", "-2"]);
        }
    }

    #[test]
    fn what_java_sets_drains_and_gives_is_read_here_and_the_other_way_round() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), RedissonPermits::connect(server.port()));
        assert!(try_set(&raw, "5", "0", "1").is(0) && !java.try_set_permits("s", 9, None));
        assert_eq!(java.drain_permits("s"), 5);
        assert_eq!(drain(&raw, "2"), told(0, "0"));
        assert!(java.release_if_exists("s", 2) && give(&raw, "2", "3", "1").is(0));
        assert_eq!(java.available_permits("s"), 4);
        assert_eq!(add(&raw, "-6", "4"), told(0, "-2"));
        assert_eq!((java.available_permits("s"), java.drain_permits("s")), (-2, -2));
        raw.cmd(&["DEL", "s"]).ok();
        assert!(java.try_set_permits("s", 2, Some(30_000)) && !java.release_if_exists("t", 1));
        assert!(acquire(&raw, "1", "5", "").is(0));
        assert_eq!(add(&raw, "1", "6"), told(0, "2"));
        assert!(ttl(&raw, "s") > 20_000, "kept here");
        java.add_permits("s", 1);
        assert_eq!((ttl(&raw, "s"), inspect(&raw)), (-1, told(0, "3")), "dropped there");
    }
}

//! The scripts of the count-down latch.

use super::*;
use crate::support::redisson_permits::RedissonPermits;
use crate::support::{assert_no_keys, keys_without_ttl};
use std::time::Duration;

const WAIT: &str = include_str!("../../../lua/count_down_latch/wait.lua");
const COUNT_DOWN: &str = include_str!("../../../lua/count_down_latch/count_down.lua");
const TRY_SET: &str = include_str!("../../../lua/count_down_latch/try_set.lua");
const DELETE: &str = include_str!("../../../lua/count_down_latch/delete.lua");
const INSPECT: &str = include_str!("../../../lua/count_down_latch/inspect.lua");

/// Counts that are none.
const CORRUPT_COUNTS: [&str; 7] = ["x", "", " 1", "1e3", "nan", "9007199254740992", "1.5"];

#[track_caller]
fn wait(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, WAIT, &["l"], &[]))
}

#[track_caller]
fn count_down(raw: &Raw, id: &str) -> Answer {
    count_down_acked(raw, id, "")
}

#[track_caller]
fn count_down_acked(raw: &Raw, id: &str, ack: &str) -> Answer {
    Answer::read(&eval(raw, COUNT_DOWN, &["l", "ch", "once"], &[id, "PUBLISH", ack]))
}

#[track_caller]
fn try_set(raw: &Raw, count: &str) -> Answer {
    Answer::read(&eval(raw, TRY_SET, &["l", "ch"], &[count, "PUBLISH"]))
}

#[track_caller]
fn delete(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, DELETE, &["l", "ch"], &["PUBLISH"]))
}

#[track_caller]
fn inspect(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, INSPECT, &["l"], &[]))
}

fn closed(count: &str) -> Answer {
    Answer(vec![-3], vec![count.to_owned()])
}

/// What a listener has heard until now on a channel.
fn heard(listener: &Raw, raw: &Raw, channel: &str) -> Vec<String> {
    raw.cmd(&["PUBLISH", channel, "end"]).ok();
    let next = || listener.next_message(Duration::from_secs(10)).unwrap().payload;
    std::iter::repeat_with(next).take_while(|payload| payload != "end").collect()
}

/// I16.
#[test]
fn a_latch_opens_when_it_has_been_counted_down() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    listener.subscribe("ch");
    assert!(wait(&raw).is(0) && inspect(&raw).is(-1), "what was never set is open");
    assert!(try_set(&raw, "3").is(1));
    assert_eq!(ttl(&raw, "l"), -1, "as in Redisson, it stands until it opens");
    for (id, left) in [("1", 2), ("2", 1)] {
        assert!(count_down(&raw, id).is(left));
        assert_eq!(wait(&raw), closed(&left.to_string()));
        assert!(inspect(&raw).is(left));
    }
    assert_eq!(heard(&listener, &raw, "ch"), ["1"]);
    assert!(count_down(&raw, "3").is(0));
    assert!(wait(&raw).is(0) && inspect(&raw).is(-1));
    assert_eq!(heard(&listener, &raw, "ch"), ["0"]);
    assert_eq!(raw.cmd(&["EXISTS", "l"]).int(), 0);
    assert!(keys_without_ttl(&raw).is_empty());
}

#[test]
fn what_is_open_is_not_counted_down() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    listener.subscribe("ch");
    assert!(count_down(&raw, "1").is(-1));
    assert_no_keys(&raw);
    for count in ["0", "-3"] {
        raw.cmd(&["SET", "l", count]).ok();
        assert!(wait(&raw).is(0) && inspect(&raw).is(0));
        assert!(count_down(&raw, "2").is(-1));
        assert_no_keys(&raw);
    }
    assert!(heard(&listener, &raw, "ch").is_empty());
}

/// R-25, I5.
#[test]
fn sent_twice_it_counts_once_also_when_the_latch_was_set_anew() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    assert!(try_set(&raw, "2").is(0));
    for _ in 0..2 {
        assert!(count_down(&raw, "1").is(1));
    }
    listener.subscribe("ch");
    for _ in 0..2 {
        assert!(count_down(&raw, "2").is(0));
    }
    assert_eq!(heard(&listener, &raw, "ch"), ["0"], "told once");
    assert!(try_set(&raw, "5").is(1));
    assert!(count_down(&raw, "1").is(1) && count_down(&raw, "2").is(0), "as they said before");
    assert_eq!(wait(&raw), closed("5"));
}

/// I6.
#[test]
fn records_end_by_themselves_and_those_of_settled_calls_at_once() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(try_set(&raw, "9").is(0));
    for (id, ack) in [("1", ""), ("2", ""), ("3", "2 1"), ("4", " 3  8")] {
        assert_eq!(count_down_acked(&raw, id, ack).0.len(), 1);
        let left = raw.cmd(&["PTTL", "once"]).int();
        assert!(left > 50_000 && left <= 60_000, "{left}");
    }
    let record = [("4".to_owned(), "5".to_owned())];
    assert_eq!(raw.cmd(&["HGETALL", "once"]).map(), record.into());
}

#[test]
fn only_a_latch_that_is_not_set_is_set() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    listener.subscribe("ch");
    assert!(try_set(&raw, "0").is(1));
    assert!(wait(&raw).is(0), "set, and open");
    assert!(try_set(&raw, "2").is(-1) && delete(&raw).is(1) && try_set(&raw, "2").is(1));
    for _ in 0..2 {
        assert!(try_set(&raw, "2").is(-1), "sent again, it says that it is set");
    }
    assert_eq!(heard(&listener, &raw, "ch"), ["1"; 3]);
    for count in ["-1", "1.5", "x", "", "nan", "inf", "2147483648"] {
        assert!(try_set(&raw, count).failed("count"), "{count}");
    }
    assert_eq!(wait(&raw), closed("2"));
}

/// Java's waiters stay asleep at this message; ours look again, and find the latch open.
#[test]
fn deleting_opens_and_tells() {
    let server = RedisServer::start();
    let (raw, listener) = (server.raw(), server.raw());
    listener.subscribe("ch");
    assert!(delete(&raw).is(-1));
    for count in ["2", "0", "notanumber"] {
        raw.cmd(&["SET", "l", count]).ok();
        assert!(delete(&raw).is(1), "{count}");
        assert!(wait(&raw).is(0));
        assert!(delete(&raw).is(-1), "sent again, there is none");
    }
    assert_eq!(heard(&listener, &raw, "ch"), ["1"; 3]);
    assert_no_keys(&raw);
}

///
#[test]
fn what_cannot_be_read_is_left_alone_and_said() {
    let server = RedisServer::start();
    let raw = server.raw();
    for corrupt in CORRUPT_COUNTS {
        raw.cmd(&["SET", "l", corrupt]).ok();
        for answer in [wait(&raw), inspect(&raw), count_down(&raw, "1")] {
            assert!(answer.failed("not an integer"), "{corrupt}: {answer:?}");
        }
    }
    raw.cmd(&["SET", "l", "01"]).ok();
    assert!(count_down(&raw, "1").is(0), "the last one deletes whatever stands");
    raw.cmd(&["SET", "l", "02"]).ok();
    raw.cmd(&["DEL", "once"]).ok();
    assert!(count_down(&raw, "1").failed("not an integer"), "the server says it");
    for id in ["", "x", "-1"] {
        assert!(count_down(&raw, id).failed("id"), "{id}");
    }
    assert_eq!(contents(&raw).len(), 1);
    raw.cmd(&["DEL", "l"]).ok();
    raw.cmd(&["RPUSH", "l", "x"]).ok();
    let before = contents(&raw);
    let answers = [wait(&raw), inspect(&raw), count_down(&raw, "1"), try_set(&raw, "1")];
    for answer in answers.into_iter().chain([delete(&raw)]) {
        assert!(answer.failed("WRONGTYPE"), "{answer:?}");
    }
    assert_eq!(contents(&raw), before);
    raw.cmd(&["DEL", "l"]).ok();
    assert!(try_set(&raw, "1").is(0));
    raw.cmd(&["RPUSH", "once", "x"]).ok();
    assert!(count_down(&raw, "1").failed("WRONGTYPE"));
    assert_eq!(wait(&raw), closed("1"));
    raw.cmd(&["DEL", "once"]).ok();
    raw.cmd(&["HSET", "once", "1", "x"]).ok();
    assert!(count_down(&raw, "1").failed("record"));
}

///
#[test]
fn a_right_that_is_missing_leaves_all_as_it_was() {
    let server = RedisServer::start();
    let raw = server.raw();
    for command in ["hget", "hset", "pexpire", "get", "decr", "del", "set"] {
        let user = without_right(&server, command);
        for count in ["1", "2"] {
            raw.cmd(&["FLUSHALL"]).ok();
            assert!(try_set(&raw, count).is(0));
            let before = contents(&raw);
            let unused = if count == "1" { ["decr", "set"] } else { ["del", "set"] };
            if !unused.contains(&command) {
                assert!(count_down(&user, "1").is_denied(), "{command}");
                assert_eq!(contents(&raw), before, "{command}");
            }
            if command == "del" {
                assert!(delete(&user).is_denied());
                assert_eq!(contents(&raw), before);
            }
        }
        raw.cmd(&["DEL", "l"]).ok();
        if command == "set" {
            assert!(try_set(&user, "1").is_denied());
            assert_no_keys(&raw);
        }
    }
}

/// R-21, and clients in a mode without pub/sub.
#[test]
fn what_cannot_be_told_is_done_all_the_same() {
    let server = RedisServer::start();
    let (raw, user, listener) = (server.raw(), mute(&server), server.raw());
    let denied = |answer: Answer| answer.0 == [-4] && says_denied(&answer.1[0]);
    assert!(denied(try_set(&user, "2")));
    assert!(count_down(&user, "1").is(1), "nobody is to be told of this one");
    assert!(denied(count_down(&user, "2")) && wait(&raw).is(0));
    assert!(denied(try_set(&user, "2")) && denied(delete(&user)) && wait(&raw).is(0));
    listener.subscribe("ch");
    let run = |script, keys: &[&str], args: &[&str]| Answer::read(&eval(&raw, script, keys, args));
    assert!(run(TRY_SET, &["l", "ch"], &["1", ""]).is(0));
    assert!(run(COUNT_DOWN, &["l", "ch", "once"], &["3", "", ""]).is(0) && wait(&raw).is(0));
    assert!(run(TRY_SET, &["l", "ch"], &["1", ""]).is(0));
    assert!(run(DELETE, &["l", "ch"], &[""]).is(0) && wait(&raw).is(0));
    assert!(heard(&listener, &raw, "ch").is_empty());
}

///
#[test]
fn it_is_counted_down_when_the_memory_is_full_but_not_on_a_replica() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(try_set(&raw, "3").is(0));
    raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert!(count_down(&raw, "1").is(2));
    raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let reply = eval(&raw, COUNT_DOWN, &["l", "ch", "once"], &["2", "PUBLISH", ""]);
    assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    assert_eq!(wait(&raw), closed("2"), "to look is allowed there");
}

#[test]
fn every_latch_of_a_list_has_its_own_answer() {
    let server = RedisServer::start();
    let raw = server.raw();
    raw.cmd(&["MSET", "a", "3", "b", "x", "c", "0"]).ok();
    raw.cmd(&["RPUSH", "list", "x"]).ok();
    let before = contents(&raw);
    let keys = ["none", "a", "b", "c", "list", "a"];
    let Answer(codes, texts) = Answer::read(&eval(&raw, WAIT, &keys, &[]));
    assert_eq!(codes, [0, -3, -2, 0, -2, -3]);
    assert!(texts[1].contains("not an integer") && texts[2].starts_with("WRONGTYPE"));
    assert_eq!((texts.len(), &*texts[0], &*texts[3]), (4, "3", "3"));
    assert_eq!(contents(&raw), before);
}

/// I16.
#[test]
fn redisson_and_this_client_count_down_the_same_latch() {
    let server = RedisServer::start();
    let (raw, java) = (server.raw(), RedissonPermits::connect(server.port()));
    for name in ["start", "a{b}c", "x:y z\r\n", "%s -- '"] {
        let (channel, listener) = (RedissonPermits::latch_channel(name), server.raw());
        listener.subscribe(&channel);
        raw.cmd(&["DEL", "once"]).ok();
        let run = |script, args: &[&str]| {
            let keys = [name, &channel, "once"];
            let keys = if script == COUNT_DOWN { &keys[..] } else { &keys[..2] };
            Answer::read(&eval(&raw, script, keys, args))
        };
        let wait = || Answer::read(&eval(&raw, WAIT, &[name], &[]));
        assert!(java.try_set_count(name, 3) && run(TRY_SET, &["9", "PUBLISH"]).is(-1));
        assert!(run(COUNT_DOWN, &["1", "PUBLISH", ""]).is(2));
        java.count_down(name);
        assert_eq!((java.count(name), wait()), (1, closed("1")));
        assert!(run(COUNT_DOWN, &["2", "PUBLISH", ""]).is(0) && java.count(name) == 0);
        assert!(run(TRY_SET, &["1", "PUBLISH"]).is(1) && !java.try_set_count(name, 1));
        java.count_down(name);
        assert!(wait().is(0) && java.try_set_count(name, 0) && wait().is(0));
        java.count_down(name);
        assert!(run(DELETE, &["PUBLISH"]).is(-1) && java.try_set_count(name, 2));
        assert!(run(DELETE, &["PUBLISH"]).is(1) && run(TRY_SET, &["2", "PUBLISH"]).is(1));
        assert!(java.delete_latch(name) && !java.delete_latch(name) && wait().is(0));
        let expected = ["1", "0", "1", "0", "1", "1", "1", "1", "1"];
        assert_eq!(heard(&listener, &raw, &channel), expected);
    }
}

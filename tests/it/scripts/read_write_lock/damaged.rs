//! What is not as it should be: values, types, arguments, rights.

use super::*;

/// a hash without a mode is somebody's plain lock. Redisson takes it for free.
#[test]
fn what_is_no_read_write_lock_is_left_alone_and_said() {
    let server = RedisServer::start();
    let raw = server.raw();
    raw.cmd(&["SET", "text", "x"]).ok();
    raw.cmd(&["HSET", "plain", B, "1"]).ok();
    raw.cmd(&["HSET", "odd", "mode", "shared", B, "1"]).ok();
    raw.cmd(&["HSET", "bare", "mode", ""]).ok();
    let before = state(&raw);
    for lock in ["text", "plain", "odd", "bare"] {
        let rw = Rw { raw: &raw, lock };
        for count in ["1", "2"] {
            assert!(rw.read(LEASE, A, count).failed("WRONGTYPE"), "{lock}");
            assert!(rw.write(LEASE, A, count).failed("WRONGTYPE"), "{lock}");
        }
        for answer in [rw.unread(A, "0"), rw.unwrite(A, "0"), rw.renew(LEASE, A)] {
            let right = if lock == "text" { answer.failed("WRONGTYPE") } else { answer.is(-1) };
            assert!(right, "{lock}: {answer:?}");
        }
    }
    assert_eq!(state(&raw), before);
}

/// what has lost its mode can still be kept and given back, and takes nobody with it.
#[test]
fn without_its_mode_a_hold_can_still_be_given_back() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    for mode in ["shared", "", "gone"] {
        for (owner, field) in [(A, A.to_owned()), (A, writer(A))] {
            rw.hset("mode", mode);
            rw.hset(&field, "1");
            rw.hset(B, "1");
            if mode == "gone" {
                raw.cmd(&["HDEL", "l", "mode"]).ok();
            }
            let answer = if field == A { rw.unread(owner, "0") } else { rw.unwrite(owner, "0") };
            assert!(answer.is(0), "{mode}: {answer:?}");
            assert!(raw.cmd(&["HGET", "l", B]).text() == "1", "another's field stays");
            raw.cmd(&["DEL", "l"]).ok();
        }
    }
    // Nobody but the mode is left: that holds nothing.
    rw.hset("mode", "write");
    rw.hset(A, "1");
    assert!(rw.unread(A, "0").is(0));
    assert_no_keys(&raw);
    rw.hset("mode", "read");
    assert_eq!(rw.write(LEASE, A, "1"), Answer(vec![-3], vec![String::new()]));
}

///
#[test]
fn a_count_that_is_none_is_said_and_the_hold_can_still_be_kept_and_given_back() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    for count in NO_COUNTS {
        assert!(rw.write(LEASE, A, "1").is(0) && rw.read(LEASE, A, "1").is(0));
        rw.hset(A, count);
        rw.hset(&writer(A), count);
        let before = state(&raw);
        for target in ["1", "2", "3"] {
            for answer in [rw.read(LEASE, A, target), rw.write(LEASE, A, target)] {
                assert!(answer.failed("hold count is not an integer"), "{count}: {answer:?}");
            }
            for answer in [rw.unread(A, target), rw.unwrite(A, target)] {
                assert!(answer.failed("hold count is not an integer"), "{count}: {answer:?}");
            }
        }
        assert_eq!(state(&raw), before);
        assert!(rw.renew("60000", A).is(0));
        rw.reads(A, &[60_000]);
        assert!(rw.unwrite(A, "0").is(0));
        rw.stands(&[("mode", "read"), (A, count)], 60_000);
        assert!(rw.renew("90000", A).is(0));
        assert!(rw.unread(A, "0").is(0));
        assert_no_keys(&raw);
    }
}

/// I14: whoever has the first of its keys is alive, whatever its count says.
#[test]
fn the_count_of_another_reader_that_is_none_does_not_cost_it_the_lock() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    for count in NO_COUNTS {
        assert!(rw.read("90000", B, "1").is(0) && rw.read(LEASE, A, "1").is(0));
        rw.hset(B, count);
        assert!(rw.unread(A, "0").is(0), "{count}");
        rw.stands(&[("mode", "read"), (B, count)], 90_000);
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(rw.force(A, "read").is(0), "{count}");
        rw.stands(&[("mode", "read"), (B, count)], 90_000);
        raw.cmd(&["FLUSHALL"]).ok();
    }
}

/// R-24, I6.
#[test]
fn arguments_that_are_none_are_refused_before_anything_is_written() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (free, held) = (Rw { raw: &raw, lock: "free" }, Rw { raw: &raw, lock: "held" });
    assert!(held.write(LEASE, A, "1").is(0) && held.read(LEASE, A, "1").is(0));
    let before = state(&raw);
    for rw in [&free, &held] {
        for lease in BAD_LEASES {
            for count in ["1", "2"] {
                assert!(rw.read(lease, A, count).failed("lease_ms"), "{lease}");
                assert!(rw.write(lease, A, count).failed("lease_ms"), "{lease}");
            }
            assert!(rw.renew(lease, A).failed("lease_ms"), "{lease}");
        }
        for count in BAD_COUNTS {
            assert!(rw.unread(A, count).failed("count"), "{count}");
            assert!(rw.unwrite(A, count).failed("count"), "{count}");
        }
        for count in BAD_COUNTS.into_iter().chain(["0"]) {
            assert!(rw.read(LEASE, A, count).failed("count"), "{count}");
            assert!(rw.write(LEASE, A, count).failed("count"), "{count}");
        }
        for owner in ["mode", &writer(A)] {
            assert!(rw.read(LEASE, owner, "1").failed("owner"), "{owner}");
            assert!(rw.unread(owner, "0").failed("owner"), "{owner}");
        }
    }
    assert_eq!(state(&raw), before);
    assert_near(&raw, "held", 30_000);
    assert!(free.read("1e5", A, "1").is(0));
    assert_near(&raw, "free", 100_000);
    free.reads(A, &[100_000]);
}

/// the key of a read hold is named after a fresh id; whatever stands there is not ours.
#[test]
fn a_foreign_key_in_the_place_of_a_read_hold_is_an_error_and_stays() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    for i in [1, 3] {
        raw.cmd(&["RPUSH", &rw.timeout(A, i), "x"]).ok();
        let before = state(&raw);
        assert!(rw.read(LEASE, A, "1").failed("WRONGTYPE") == (i == 1));
        let all_or_nothing = if i == 1 { before } else { state(&raw) };
        assert!(rw.read(LEASE, A, "4").failed("WRONGTYPE") == (i == 3));
        assert_eq!(state(&raw), all_or_nothing);
        raw.cmd(&["DEL", &rw.timeout(A, i)]).ok();
    }
    assert!(rw.write(LEASE, B, "1").1 == [A] && rw.unread(A, "0").is(0));
    // What is needed again at the end of a write hold.
    assert!(rw.write("60000", A, "1").is(0) && rw.read(LEASE, A, "1").is(0));
    raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
    raw.cmd(&["RPUSH", &rw.timeout(A, 1), "x"]).ok();
    assert!(rw.unwrite(A, "0").failed("WRONGTYPE"));
    rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "1")], 60_000);
}

/// R-21, I6: what cannot be done as a whole is not done.
#[test]
fn an_acquire_without_a_right_it_needs_changes_nothing() {
    let server = RedisServer::start();
    let raw = server.raw();
    let [held, shared] = ["held", "shared"].map(|lock| Rw { raw: &raw, lock });
    assert!(held.write(LEASE, A, "1").is(0) && held.read(LEASE, A, "1").is(0));
    assert!(shared.read(LEASE, A, "1").is(0) && shared.read("90000", B, "1").is(0));
    let before = state(&raw);
    for right in ["pttl", "hmget", "set", "hset", "pexpire"] {
        let user = without_right(&server, right);
        let [free, held, shared] = ["free", "held", "shared"].map(|lock| Rw { raw: &user, lock });
        let mut answers = vec![held.read("60000", A, "2"), shared.read("120000", C, "1")];
        if right != "set" {
            answers.push(held.write("60000", A, "2"));
        }
        if right != "set" && right != "hmget" {
            answers.push(free.write(LEASE, A, "1"));
        }
        if right != "hmget" {
            answers.push(free.read(LEASE, A, "1"));
        }
        for answer in answers {
            assert!(answer.is_denied(), "{right}: {answer:?}");
        }
        assert_eq!(state(&raw), before, "{right}");
        assert_near(&raw, "held", 30_000);
        assert_near(&raw, "shared", 90_000);
    }
}

///
#[test]
fn a_release_or_a_renewal_without_a_right_it_needs_is_none() {
    let server = RedisServer::start();
    let raw = server.raw();
    let [both, shared, single] = ["both", "shared", "single"].map(|lock| Rw { raw: &raw, lock });
    assert!(both.write(LEASE, A, "1").is(0) && both.read(LEASE, A, "1").is(0));
    assert!(both.write(LEASE, A, "2").is(0) && both.read(LEASE, A, "2").is(0));
    assert!(shared.read(LEASE, A, "1").is(0) && shared.read("60000", B, "1").is(0));
    assert!(single.read(LEASE, A, "1").is(0));
    let before = state(&raw);
    for right in ["hmget", "hlen", "hset", "hdel", "pexpire", "del", "pttl", "hgetall"] {
        let user = without_right(&server, right);
        let [both, shared, single] =
            ["both", "shared", "single"].map(|lock| Rw { raw: &user, lock });
        let answers = match right {
            "hmget" => vec![both.unread(A, "1"), both.unwrite(A, "0"), both.renew("60000", A)],
            "hlen" | "hdel" => vec![shared.unread(A, "0"), both.unwrite(A, "0")],
            "hset" => vec![both.unread(A, "1"), both.unwrite(A, "1"), both.unwrite(A, "0")],
            "pexpire" => vec![shared.unread(A, "0"), both.renew("60000", A)],
            "del" => vec![single.unread(A, "0"), single.force("", "read")],
            "hgetall" => vec![shared.unread(A, "0"), single.force("", "read")],
            _ => vec![shared.unread(A, "0"), shared.force(A, "read")],
        };
        for answer in answers {
            assert!(answer.is_denied(), "{right}: {answer:?}");
        }
        assert_eq!(state(&raw), before, "{right}");
        assert_near(&raw, "shared", 60_000);
    }
}

/// a denied PUBLISH must not look like a lock that is still held.
#[test]
fn a_release_that_cannot_be_told_says_that_it_released() {
    let server = RedisServer::start();
    let raw = mute(&server);
    let rw = Rw { raw: &raw, lock: "l" };
    let untold = |answer: Answer| {
        assert!(answer.0 == [-4] && says_denied(&answer.1[0]), "{answer:?}");
    };
    assert!(rw.read(LEASE, A, "1").is(0));
    untold(rw.unread(A, "0"));
    assert!(rw.write(LEASE, A, "1").is(0));
    untold(rw.unwrite(A, "0"));
    assert!(rw.write(LEASE, A, "1").is(0) && rw.read(LEASE, A, "1").is(0));
    untold(rw.unwrite(A, "0"));
    rw.stands(&[("mode", "read"), (A, "1")], 30_000);
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.unread(A, "0").is(0), "nobody was to be told");
    untold(rw.unread(B, "0"));
    assert_no_keys(&server.raw());
}

/// I1, R-23: a count of the other mode gives nobody a way in, and a stray reader no say.
#[test]
fn what_does_not_belong_to_the_mode_is_not_believed() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.write("90000", B, "1").is(0) && rw.read(LEASE, B, "1").is(0));
    rw.hset(A, "1");
    raw.cmd(&["SET", &rw.timeout(A, 1), "1", "PX", "5000"]).ok();
    let before = state(&raw);
    assert_eq!(rw.read(LEASE, A, "1").0.len(), 1);
    assert!(rw.read(LEASE, A, "1").0[0] > 80_000 && rw.read(LEASE, A, "2").is(-1));
    assert_eq!(state(&raw), before);
    assert!(rw.unread(B, "0").is(0));
    rw.stands(&[("mode", "write"), (&writer(B), "1"), (A, "1")], 90_000);
    raw.cmd(&["DEL", "l"]).ok();
    assert!(rw.read(LEASE, A, "1").is(0));
    rw.hset(&writer(B), "1");
    let before = state(&raw);
    assert!(rw.write(LEASE, B, "1").0[0] > 20_000 && rw.write(LEASE, B, "2").is(-1));
    assert!(rw.inspect("write").is(-1));
    assert_eq!(state(&raw), before);
    assert!(rw.unwrite(B, "0").is(0), "it can be given back");
    rw.stands(&[("mode", "read"), (A, "1")], 30_000);
}

/// who is removed by name takes nobody along, and leaves nothing of itself.
#[test]
fn a_forced_release_by_name_keeps_a_reader_whose_time_has_no_end() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read("60000", A, "1").is(0) && rw.read(LEASE, B, "1").is(0));
    raw.cmd(&["PERSIST", &rw.timeout(B, 1)]).ok();
    rw.hset(&writer(A), "1");
    assert!(rw.force(A, "read").is(0));
    rw.stands(&[("mode", "read"), (B, "1")], 60_000);
    rw.reads(A, &[]);
    assert!(rw.renew(LEASE, B).is(0));
    rw.reads(B, &[30_000]);
}

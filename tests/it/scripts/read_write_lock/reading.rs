//! Read holds: taken, shared, re-entered, kept and given back.

use super::*;

/// I6, I14.
#[test]
fn a_free_lock_is_taken_and_others_may_join_each_with_its_own_lease() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "1").is(0));
    rw.stands(&[("mode", "read"), (A, "1")], 30_000);
    assert!(rw.read("60000", B, "1").is(0));
    assert!(rw.read("10000", C, "1").is(0));
    rw.stands(&[("mode", "read"), (A, "1"), (B, "1"), (C, "1")], 60_000);
    assert_near(&raw, "l", 60_000);
    for (owner, lease_ms) in [(A, 30_000), (B, 60_000), (C, 10_000)] {
        rw.reads(owner, &[lease_ms]);
    }
    assert!(Rw { raw: &raw, lock: "long" }.read(LONGEST_MS, A, "1").is(0));
    assert_near(&raw, "long", LONGEST_MS.parse().unwrap());
    assert_every_key_has_ttl(&raw);
}

/// I1, I14.
#[test]
fn readers_keep_writers_out_and_a_writer_keeps_readers_out() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "1").is(0));
    let before = state(&raw);
    rw.refused(rw.write(LEASE, B, "1"), A, 30_000);
    rw.refused(rw.write(LEASE, A, "1"), A, 30_000);
    assert!(rw.write(LEASE, A, "2").is(-1), "a re-entry of a write hold that it does not have");
    assert_eq!(state(&raw), before);
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.write(LEASE, B, "1").is(0));
    let before = state(&raw);
    rw.refused(rw.read("60000", A, "1"), B, 30_000);
    assert!(rw.read(LEASE, A, "2").is(-1));
    assert_eq!(state(&raw), before);
    raw.cmd(&["PERSIST", "l"]).ok();
    assert_eq!(rw.read(LEASE, A, "1"), Answer(vec![-3], vec![B.to_owned()]));
    assert_eq!(rw.write(LEASE, A, "1"), Answer(vec![-3], vec![B.to_owned()]));
}

/// I5: a nested acquire of a lost hold must not become a silent fresh one.
#[test]
fn a_reentry_of_a_hold_that_is_gone_does_nothing() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "2").is(-1));
    assert_no_keys(&raw);
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.read(LEASE, A, "2").is(-1));
    // A reader whose keys are gone is dead for Redisson, and so for us.
    raw.cmd(&["DEL", &rw.timeout(B, 1)]).ok();
    assert!(rw.read(LEASE, B, "2").is(-1));
    rw.stands(&[("mode", "read"), (B, "1")], 30_000);
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
}

/// I5. Each key of a hold stands for all of its lease: whichever goes, the rest says how long.
#[test]
fn a_reentry_counts_on_and_gives_every_key_of_the_hold_its_lease() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "1").is(0));
    assert!(rw.read("60000", A, "2").is(0));
    rw.stands(&[("mode", "read"), (A, "2")], 60_000);
    rw.reads(A, &[60_000, 60_000]);
    assert!(rw.read("10000", A, "3").is(0));
    rw.stands(&[("mode", "read"), (A, "3")], 60_000);
    rw.reads(A, &[60_000, 60_000, 10_000]);
    assert!(rw.read("90000", A, "5").is(0));
    rw.reads(A, &[90_000; 5]);
    assert!(rw.unread(A, "2").is(-3));
    rw.stands(&[("mode", "read"), (A, "2")], 90_000);
    rw.reads(A, &[90_000; 2]);
}

/// R-25, I5.
#[test]
fn an_acquire_sent_twice_leaves_what_it_leaves_sent_once() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    for (count, reads) in [("1", 1), ("2", 2), ("4", 4)] {
        for _ in 0..2 {
            assert!(rw.read(LEASE, A, count).is(0));
            rw.stands(&[("mode", "read"), (A, count)], 30_000);
            rw.reads(A, &vec![30_000; reads]);
        }
    }
    // Beside another reader, and for a lower count.
    assert!(rw.read("90000", B, "1").is(0));
    for _ in 0..2 {
        assert!(rw.read(LEASE, A, "1").is(0));
        rw.stands(&[("mode", "read"), (A, "1"), (B, "1")], 90_000);
        rw.reads(A, &[30_000]);
    }
    // A resend of the first whose key has ended is a grant: no writer can have been let in.
    raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
    assert!(rw.read(LEASE, A, "1").is(0));
    rw.reads(A, &[30_000]);
}

#[test]
fn the_last_reader_frees_the_lock_and_tells_zero() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.read(LEASE, A, "1").is(0));
    assert!(rw.read(LEASE, A, "3").is(0));
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.unread(A, "2").is(-3));
    assert!(rw.unread(A, "0").is(0), "others read on");
    rw.stands(&[("mode", "read"), (B, "1")], 30_000);
    rw.reads(A, &[]);
    told.heard(&[]);
    assert!(rw.unread(B, "0").is(1));
    assert_no_keys(&raw);
    told.heard(&["0"]);
    for publish in ["", "PUBLISH"] {
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(rw.unread_telling(A, "0", publish).is(i64::from(!publish.is_empty())));
    }
    told.heard(&["0"]);
}

/// I14: the lock stands as long as the longest of those that are left, be that more or less.
#[test]
fn when_a_reader_goes_the_lock_lasts_as_long_as_the_longest_of_the_others() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read("90000", A, "1").is(0));
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.read("60000", C, "1").is(0));
    assert!(rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "read"), (B, "1"), (C, "1")], 60_000);
    assert!(rw.unread(C, "0").is(0));
    rw.stands(&[("mode", "read"), (B, "1")], 30_000);
    // Nested holds of another count each.
    assert!(rw.read(LEASE, A, "1").is(0));
    raw.cmd(&["HSET", "l", B, "3"]).ok();
    raw.cmd(&["SET", &rw.timeout(B, 3), "1", "PX", "80000"]).ok();
    assert!(rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "read"), (B, "3")], 80_000);
    // A lock that lost its end gets it back.
    assert!(rw.read(LEASE, A, "1").is(0));
    raw.cmd(&["PERSIST", "l"]).ok();
    assert!(rw.unread(A, "0").is(0));
    assert_near(&raw, "l", 80_000);
}

/// as Redisson has it, the last of the living takes the dead with it.
#[test]
fn the_dead_do_not_keep_the_lock() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.read("90000", A, "1").is(0));
    assert!(rw.read("90000", B, "1").is(0));
    raw.cmd(&["DEL", &rw.timeout(B, 1)]).ok();
    for foreign in ["numeric", "another:9", "x:write"] {
        rw.hset(foreign, "7");
    }
    assert!(rw.renew("120000", A).is(0));
    rw.reads(B, &[]);
    assert!(rw.renew("120000", B).is(-1), "the dead are told so");
    assert!(rw.unread(A, "0").is(1));
    assert_no_keys(&raw);
    told.heard(&["0"]);
}

/// I4.
#[test]
fn who_reads_nothing_gives_nothing_back() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    let refused = || {
        let before = state(&raw);
        for count in ["0", "1"] {
            assert!(rw.unread(A, count).is(-1));
            assert!(rw.unwrite(A, count).is(-1));
        }
        assert!(rw.renew("90000", A).is(-1));
        assert_eq!(state(&raw), before);
    };
    refused();
    assert!(rw.read(LEASE, B, "1").is(0));
    refused();
    assert!(rw.unread(B, "0").is(1) && rw.write(LEASE, B, "1").is(0));
    refused();
    assert_near(&raw, "l", 30_000);
    told.heard(&["0"]);
}

/// R-26, I5.
#[test]
fn a_release_sent_twice_leaves_what_it_leaves_sent_once() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read(LEASE, A, "3").is(0));
    for (count, reads) in [("2", 2), ("1", 1)] {
        for _ in 0..2 {
            assert!(rw.unread(A, count).is(-3));
            rw.stands(&[("mode", "read"), (A, count)], 30_000);
            rw.reads(A, &vec![30_000; reads]);
        }
    }
    assert!(rw.unread(A, "0").is(1));
    assert!(rw.unread(A, "0").is(-1), "its resend says gone");
    // Behind the acquires of others it still touches nothing.
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.unread(A, "0").is(-1));
    assert!(rw.unread(B, "0").is(1) && rw.write(LEASE, B, "1").is(0));
    assert!(rw.unread(A, "0").is(-1));
    rw.stands(&[("mode", "write"), (&writer(B), "1")], 30_000);
    told.heard(&["0", "0"]);
}

/// I14.
#[test]
fn a_renewal_raises_its_own_holds_and_the_lock_and_nothing_else() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read(LEASE, A, "2").is(0));
    assert!(rw.read(LEASE, B, "1").is(0));
    for _ in 0..2 {
        assert!(rw.renew("60000", A).is(0));
        rw.stands(&[("mode", "read"), (A, "2"), (B, "1")], 60_000);
        rw.reads(A, &[60_000; 2]);
        rw.reads(B, &[30_000]);
    }
    assert!(rw.renew("1000", A).is(0));
    rw.reads(A, &[60_000; 2]);
    assert_near(&raw, "l", 60_000);
    // One key that was lost is put back while another says that the reader lives.
    raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
    assert!(rw.renew("60000", A).is(0));
    rw.reads(A, &[60_000; 2]);
    // Late, behind the release: no key comes of it.
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.renew("60000", A).is(-1));
    rw.stands(&[("mode", "read"), (B, "1")], 30_000);
    rw.reads(A, &[]);
}

/// R-47, I6, I14: but not an end that comes before that of another reader.
#[test]
fn what_lost_its_end_gets_it_back_from_whoever_comes_next() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read("90000", B, "1").is(0));
    raw.cmd(&["PERSIST", "l"]).ok();
    raw.cmd(&["PERSIST", &rw.timeout(A, 1)]).ok();
    assert!(rw.renew(LEASE, A).is(0));
    rw.reads(A, &[30_000]);
    assert_near(&raw, "l", 90_000);
    raw.cmd(&["PERSIST", "l"]).ok();
    assert!(rw.read(LEASE, C, "1").is(0));
    assert_near(&raw, "l", 90_000);
    raw.cmd(&["PERSIST", "l"]).ok();
    raw.cmd(&["PERSIST", &rw.timeout(A, 1)]).ok();
    assert!(rw.read("120000", A, "2").is(0));
    rw.reads(A, &[120_000; 2]);
    assert_near(&raw, "l", 120_000);
    // A reader whose key has no end is alive; how long, nobody knows.
    raw.cmd(&["PERSIST", &rw.timeout(B, 1)]).ok();
    raw.cmd(&["DEL", &rw.timeout(C, 1)]).ok();
    assert!(rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "read"), (B, "1"), (C, "1")], 120_000);
    assert!(rw.renew(LEASE, B).is(0));
    assert_every_key_has_ttl(&raw);
}

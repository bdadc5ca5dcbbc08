//! Write holds, and read holds inside them.

use super::*;

/// I6. Redisson adds the lease to what is left; the larger of the two is enough.
#[test]
fn a_write_hold_is_taken_and_counts_on_and_its_time_never_shrinks() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    let field = writer(A);
    for (lease, count, expected) in
        [("60000", "1", 60_000), ("1000", "2", 60_000), ("90000", "3", 90_000)]
    {
        for _ in 0..2 {
            assert!(rw.write(lease, A, count).is(0));
            rw.stands(&[("mode", "write"), (&field, count)], expected);
        }
    }
    raw.cmd(&["PERSIST", "l"]).ok();
    assert!(rw.write(LEASE, A, "4").is(0));
    rw.stands(&[("mode", "write"), (&field, "4")], 30_000);
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
}

/// I5.
#[test]
fn a_reentry_of_a_write_hold_that_is_gone_does_nothing() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.write(LEASE, A, "2").is(-1));
    assert_no_keys(&raw);
    assert!(rw.write(LEASE, B, "1").is(0));
    assert!(rw.write(LEASE, A, "2").is(-1));
    rw.refused(rw.write("60000", A, "1"), B, 30_000);
    rw.stands(&[("mode", "write"), (&writer(B), "1")], 30_000);
}

#[test]
fn the_last_release_frees_the_lock_and_tells_one() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.write(LEASE, A, "1").is(0) && rw.write("90000", A, "3").is(0));
    for count in ["2", "1"] {
        for _ in 0..2 {
            assert!(rw.unwrite(A, count).is(-3));
            rw.stands(&[("mode", "write"), (&writer(A), count)], 90_000);
        }
    }
    told.heard(&[]);
    assert!(rw.unwrite(A, "0").is(1));
    assert_no_keys(&raw);
    assert!(rw.unwrite(A, "0").is(-1), "its resend says gone");
    assert!(rw.read(LEASE, B, "1").is(0));
    assert!(rw.unwrite(A, "0").is(-1));
    told.heard(&["1"]);
    assert!(rw.unread(B, "0").is(1) && rw.write(LEASE, A, "1").is(0));
    assert!(rw.unwrite_telling(A, "0", "").is(0));
    assert_no_keys(&raw);
    told.heard(&["0"]);
}

/// Other readers may come in, so they are told: Redisson lets them sleep.
#[test]
fn a_writer_that_reads_on_is_a_reader_and_waiters_are_told_one() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.write(LEASE, A, "1").is(0));
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read(LEASE, A, "2").is(0));
    rw.refused(rw.read(LEASE, B, "1"), A, 30_000);
    assert!(rw.unwrite(A, "0").is(1));
    rw.stands(&[("mode", "read"), (A, "2")], 30_000);
    rw.reads(A, &[30_000; 2]);
    told.heard(&["1"]);
    assert!(rw.unwrite(A, "0").is(-1), "its resend says gone");
    assert!(rw.read(LEASE, B, "1").is(0));
    let named = rw.write(LEASE, A, "1").1;
    assert!(named == [A] || named == [B], "one of the readers: {named:?}");
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.unread(B, "0").is(1));
    assert_no_keys(&raw);
    told.heard(&["0"]);
}

/// I14: after the last write hold the readers keep the time that the hold was promised, whichever
/// of the two modes it was promised in.
#[test]
fn what_a_writer_reads_with_outlasts_its_write_hold() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.write("600000", A, "1").is(0));
    assert!(rw.read("10000", A, "1").is(0) && rw.read("10000", A, "2").is(0));
    raw.cmd(&["DEL", &rw.timeout(A, 2)]).ok();
    assert!(rw.unwrite(A, "0").is(0));
    rw.reads(A, &[600_000; 2]);
    // A Java reader that comes and goes does not take it for dead.
    let java = RedissonReadWrite::connect(server.port());
    assert_eq!(java.try_read("l", 1, 30_000), None);
    assert_eq!(java.unlock_read("l", 1), Some(false));
    rw.stands(&[("mode", "read"), (A, "2")], 600_000);
}

/// I14: the writer's lease is not the reader's to shorten.
#[test]
fn giving_back_what_a_writer_reads_with_leaves_its_lease_alone() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
    assert!(rw.write("90000", A, "1").is(0));
    assert!(rw.read("10000", A, "1").is(0) && rw.read("10000", A, "2").is(0));
    rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "2")], 90_000);
    rw.reads(A, &[10_000; 2]);
    assert!(rw.unread(A, "1").is(-3));
    rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "1")], 90_000);
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.unread(A, "0").is(-1));
    rw.stands(&[("mode", "write"), (&writer(A), "1")], 90_000);
    rw.reads(A, &[]);
    assert!(rw.renew("120000", A).is(0), "it is renewed as before");
    rw.stands(&[("mode", "write"), (&writer(A), "1")], 120_000);
    told.heard(&[]);
    // A longer read lease makes the lock last longer, as in Redisson.
    assert!(rw.read("300000", A, "1").is(0));
    rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "1")], 300_000);
}

/// a hold is one, whatever its modes.
#[test]
fn a_renewal_keeps_both_modes_of_a_hold() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.write(LEASE, A, "1").is(0) && rw.read(LEASE, A, "1").is(0));
    for _ in 0..2 {
        assert!(rw.renew("60000", A).is(0));
        rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "1")], 60_000);
        rw.reads(A, &[60_000]);
    }
    // Nobody else can have come in, so keys that were lost are put back.
    raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
    raw.cmd(&["PERSIST", "l"]).ok();
    assert!(rw.renew("60000", A).is(0));
    rw.stands(&[("mode", "write"), (&writer(A), "1"), (A, "1")], 60_000);
    rw.reads(A, &[60_000]);
    raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
    assert!(rw.read(LEASE, A, "2").is(0), "a re-entry as well");
    rw.reads(A, &[30_000; 2]);
    // Either of them may be given back between two renewals.
    assert!(rw.unwrite(A, "0").is(0));
    assert!(rw.renew("90000", A).is(0));
    rw.stands(&[("mode", "read"), (A, "2")], 90_000);
    rw.reads(A, &[90_000; 2]);
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.renew("90000", A).is(-1));
    assert_no_keys(&raw);
}

//! Java and Rust on one lock, in both directions, with what Redisson is known to do.

use super::*;

/// A Java process and the fields of its first two threads.
struct Java {
    peer: RedissonReadWrite,
    one: String,
    two: String,
}

impl Java {
    fn start(server: &RedisServer) -> Self {
        let peer = RedissonReadWrite::connect(server.port());
        let [one, two] = [1, 2].map(|thread| peer.owner(thread));
        Self { peer, one, two }
    }
}

/// I1, I14.
#[test]
fn each_keeps_the_other_out_as_it_would_its_own() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    assert!(rw.write(LEASE, A, "1").is(0));
    let near = |left: Option<i64>| assert!(left.is_some_and(|ms| ms > 20_000), "{left:?}");
    near(java.peer.try_read("l", 1, 30_000));
    near(java.peer.try_write("l", 1, 30_000));
    assert!(java.peer.unlock_read("l", 1).is_none() && !java.peer.renew_write("l", 1, 1));
    assert!(java.peer.unlock_write("l", 1, 30_000).is_none());
    rw.stands(&[("mode", "write"), (&writer(A), "1")], 30_000);
    assert!(rw.unwrite(A, "0").is(0));
    assert_eq!(java.peer.try_write("l", 1, 30_000), None);
    rw.refused(rw.read(LEASE, A, "1"), &java.one, 30_000);
    rw.refused(rw.write(LEASE, A, "1"), &java.one, 30_000);
    assert!(rw.unwrite(A, "0").is(-1) && rw.renew("90000", A).is(-1));
    rw.stands(&[("mode", "write"), (&writer(&java.one), "1")], 30_000);
    assert_eq!(java.peer.unlock_write("l", 1, 30_000), Some(true));
    assert!(rw.read(LEASE, A, "1").is(0));
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    near(java.peer.try_write("l", 2, 30_000));
    rw.stands(&[("mode", "read"), (A, "1"), (&java.one, "1")], 30_000);
}

/// What each leaves for the same calls is the same, but that ours has one lease a hold, never adds
/// leases up and tells of a downgrade.
#[test]
fn what_one_leaves_for_a_call_is_what_the_other_leaves() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    let owner = java.one.as_str();
    let (theirs, ours) = (&java.peer, &rw);
    let mut expected = None;
    type Step<'a> = (&'a dyn Fn() -> bool, &'a dyn Fn() -> bool);
    let steps: [Step<'_>; 8] = [
        (&|| theirs.try_write("l", 1, 30_000).is_none(), &|| ours.write(LEASE, owner, "1").is(0)),
        (&|| theirs.try_write("l", 1, 30_000).is_none(), &|| ours.write(LEASE, owner, "2").is(0)),
        (&|| theirs.try_read("l", 1, 30_000).is_none(), &|| ours.read(LEASE, owner, "1").is(0)),
        (&|| theirs.try_read("l", 1, 30_000).is_none(), &|| ours.read(LEASE, owner, "2").is(0)),
        (&|| theirs.unlock_write("l", 1, 30_000) == Some(false), &|| {
            ours.unwrite(owner, "1").is(-3)
        }),
        (&|| theirs.unlock_write("l", 1, 30_000) == Some(true), &|| ours.unwrite(owner, "0").is(0)),
        (&|| theirs.unlock_read("l", 1) == Some(false), &|| ours.unread(owner, "1").is(-3)),
        (&|| theirs.unlock_read("l", 1) == Some(true), &|| ours.unread(owner, "0").is(0)),
    ];
    // Each step by one of the two, in all combinations.
    for mix in 0..1 << steps.len() {
        let mut fields = Vec::new();
        for (at, (theirs, ours)) in steps.iter().enumerate() {
            let done = if mix >> at & 1 == 0 { theirs() } else { ours() };
            assert!(done, "step {at} of {mix:08b}");
            fields.push(state(&raw));
        }
        assert_eq!(fields, *expected.get_or_insert_with(|| fields.clone()), "{mix:08b}");
        assert_no_keys(&raw);
    }
}

/// Java's readers go: the lock lasts as long as ours, and no longer.
#[test]
fn a_rust_reader_outlasts_java_readers() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    let told = Listener::start(&server, &raw, "l");
    assert_eq!(java.peer.try_read("l", 1, 90_000), None);
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read("60000", A, "2").is(0));
    assert_eq!(java.peer.try_read("l", 1, 10_000), None);
    assert_eq!(java.peer.unlock_read("l", 1), Some(false));
    assert_near(&raw, "l", 90_000);
    assert_eq!(java.peer.unlock_read("l", 1), Some(false));
    rw.stands(&[("mode", "read"), (A, "2")], 60_000);
    // Redisson deletes the highest key of its own only: ours all stand.
    rw.reads(A, &[60_000; 2]);
    assert!(rw.unread(A, "1").is(-3));
    assert_eq!(java.peer.try_read("l", 2, 5_000), None);
    assert_eq!(java.peer.unlock_read("l", 2), Some(false));
    rw.stands(&[("mode", "read"), (A, "1")], 60_000);
    told.heard(&[]);
    assert!(rw.unread(A, "0").is(1));
    assert_no_keys(&raw);
    told.heard(&["0"]);
}

/// Ours go: the lock lasts as long as Java's longest, and is freed by whoever is last.
#[test]
fn a_java_reader_outlasts_rust_readers() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    let told = Listener::start(&server, &raw, "l");
    assert!(rw.read("90000", A, "1").is(0));
    assert_eq!(java.peer.try_read("l", 1, 40_000), None);
    assert_eq!(java.peer.try_read("l", 1, 20_000), None);
    assert_eq!(java.peer.try_read("l", 2, 20_000), None);
    assert!(rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "read"), (&java.one, "2"), (&java.two, "1")], 40_000);
    rw.reads(&java.one, &[40_000, 20_000]);
    assert!(java.peer.renew_read("l", 1, 60_000));
    rw.reads(&java.one, &[60_000; 2]);
    rw.reads(&java.two, &[20_000]);
    for freed in [false, false] {
        assert_eq!(java.peer.unlock_read("l", 1), Some(freed));
    }
    rw.stands(&[("mode", "read"), (&java.two, "1")], 20_000);
    told.heard(&[]);
    assert_eq!(java.peer.unlock_read("l", 2), Some(true));
    told.heard(&["0"]);
    assert_eq!(java.peer.try_read("l", 2, 20_000), None);
    assert!(rw.read(LEASE, A, "1").is(0));
    assert_eq!(java.peer.unlock_read("l", 2), Some(false));
    assert!(rw.unread(A, "0").is(1));
    assert_no_keys(&raw);
}

/// neither keeps the other's dead alive, and the last of the living takes them with it.
#[test]
fn the_dead_of_either_do_not_keep_the_lock() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    assert!(rw.read(LEASE, A, "1").is(0) && rw.read(LEASE, A, "2").is(0));
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    raw.cmd(&["DEL", &rw.timeout(A, 1), &rw.timeout(A, 2)]).ok();
    assert!(java.peer.renew_read("l", 1, 60_000));
    rw.reads(A, &[]);
    assert!(rw.renew(LEASE, A).is(-1) && rw.read(LEASE, A, "3").is(-1));
    assert_eq!(java.peer.unlock_read("l", 1), Some(true), "ours is dropped");
    assert_no_keys(&raw);
    assert!(rw.unread(A, "0").is(-1));
    assert!(rw.read(LEASE, A, "1").is(0));
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    raw.cmd(&["DEL", &rw.timeout(&java.one, 1)]).ok();
    assert!(!java.peer.renew_read("l", 1, 60_000));
    assert!(rw.renew("60000", A).is(0));
    rw.reads(&java.one, &[]);
    assert!(rw.unread(A, "0").is(0));
    assert_no_keys(&raw);
    assert_eq!(java.peer.unlock_read("l", 1), None);
}

/// Redisson: giving a read lock back may shorten the writer's time. It is its own only, for in
/// write mode nobody else reads. Its next renewal makes up for it.
#[test]
fn a_java_writer_that_shortens_its_own_time_is_believed() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    assert_eq!(java.peer.try_write("l", 1, 60_000), None);
    assert_eq!(java.peer.try_read("l", 1, 5_000), None);
    assert_eq!(java.peer.try_read("l", 1, 5_000), None);
    rw.refused(rw.read(LEASE, A, "1"), &java.one, 60_000);
    assert_eq!(java.peer.unlock_read("l", 1), Some(false));
    rw.stands(&[("mode", "write"), (&writer(&java.one), "1"), (&java.one, "1")], 5_000);
    rw.refused(rw.write(LEASE, A, "1"), &java.one, 5_000);
    assert!(java.peer.renew_write("l", 1, 30_000));
    rw.refused(rw.write(LEASE, A, "1"), &java.one, 30_000);
    // Nested write locks add up their leases; ours do not, and both are believed.
    assert_eq!(java.peer.try_write("l", 1, 60_000), None);
    rw.refused(rw.write(LEASE, A, "1"), &java.one, 90_000);
    // The same for an owner of ours keeps the time.
    assert!(rw.force("", "write").is(0));
    assert!(rw.write("60000", A, "1").is(0));
    assert!(rw.read("5000", A, "1").is(0) && rw.read("5000", A, "2").is(0));
    assert!(rw.unread(A, "1").is(-3) && rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "write"), (&writer(A), "1")], 60_000);
}

/// Java downgrades in silence; ours tells. Afterwards both may read, and both may end it.
#[test]
fn a_downgrade_by_either_lets_the_other_read() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    let told = Listener::start(&server, &raw, "l");
    assert_eq!(java.peer.try_write("l", 1, 90_000), None);
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    assert_eq!(java.peer.unlock_write("l", 1, 30_000), Some(true));
    told.heard(&[]);
    assert!(rw.read(LEASE, A, "1").is(0));
    rw.stands(&[("mode", "read"), (&java.one, "1"), (A, "1")], 90_000);
    assert!(rw.unread(A, "0").is(0));
    rw.stands(&[("mode", "read"), (&java.one, "1")], 30_000);
    assert_eq!(java.peer.unlock_read("l", 1), Some(true));
    told.heard(&["0"]);
    assert!(rw.write("90000", A, "1").is(0) && rw.read(LEASE, A, "1").is(0));
    assert!(java.peer.try_read("l", 1, 30_000).is_some());
    assert!(rw.unwrite(A, "0").is(1));
    told.heard(&["1"]);
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    assert!(rw.unread(A, "0").is(0));
    assert_eq!(java.peer.unlock_read("l", 1), Some(true));
    assert_no_keys(&raw);
}

/// Redisson's watchdog sets the lock's time to its own, also when another reader's was longer. The
/// next renewal of that reader, or release of any, makes up for it; see the limits.
#[test]
fn a_java_watchdog_that_shortens_the_lock_is_made_up_for() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    assert!(rw.read("90000", A, "1").is(0));
    assert_eq!(java.peer.try_read("l", 1, 30_000), None);
    assert!(java.peer.renew_read("l", 1, 30_000));
    assert_near(&raw, "l", 30_000);
    rw.reads(A, &[90_000]);
    assert!(rw.renew("90000", A).is(0));
    assert_near(&raw, "l", 90_000);
    assert!(java.peer.renew_read("l", 1, 30_000));
    assert!(rw.read(LEASE, B, "1").is(0) && rw.unread(B, "0").is(0));
    assert_near(&raw, "l", 90_000);
    assert!(java.peer.renew_read("l", 1, 30_000));
    assert_eq!(java.peer.unlock_read("l", 1), Some(false));
    rw.stands(&[("mode", "read"), (A, "1")], 90_000);
}

/// Neither takes a forced release for a hold that stands.
#[test]
fn a_forced_release_by_either_is_told_to_the_other() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (rw, java) = (Rw { raw: &raw, lock: "l" }, Java::start(&server));
    let told = Listener::start(&server, &raw, "l");
    for mode in ["read", "write"] {
        let take = || match mode {
            "read" => assert!(rw.read(LEASE, A, "1").is(0)),
            _ => assert!(rw.write(LEASE, A, "1").is(0) && rw.read(LEASE, A, "1").is(0)),
        };
        take();
        let other = if mode == "read" { "write" } else { "read" };
        assert!(!java.peer.force_unlock("l", other));
        assert!(java.peer.force_unlock("l", mode));
        // Keys of read holds that Redisson left belong to nobody.
        rw.reads(A, &[30_000]);
        assert!(rw.renew(LEASE, A).is(-1));
        assert!(rw.unread(A, "0").is(-1) && rw.unwrite(A, "0").is(-1));
        raw.cmd(&["DEL", &rw.timeout(A, 1)]).ok();
        match mode {
            "read" => assert_eq!(java.peer.try_read("l", 1, 30_000), None),
            _ => assert_eq!(java.peer.try_write("l", 1, 30_000), None),
        }
        assert!(rw.force(&java.one, other).is(-1) && rw.force(A, mode).is(-1));
        assert!(rw.force(&java.one, mode).is(1));
        assert!(java.peer.unlock_read("l", 1).is_none());
        assert_no_keys(&raw);
    }
    told.heard(&["0", "0", "0", "1", "1", "0"]);
}

//! Both halves in one hold: entering again, and what may not be entered.
use std::time::Duration;

use leasehold::{Client, ErrorKind, Lock, Owner};

use super::{LONG, NAME, Setup, asked, assert_refused, given_back, halves, locked};
use crate::{
    rig::soon,
    support::{
        assert_no_keys, eventually, redisson_read_write::RedissonReadWrite, server::RedisServer,
    },
};

/// I5: n acquisitions need n releases, in whatever order.
#[tokio::test(flavor = "multi_thread")]
async fn both_halves_are_entered_again_and_again() {
    let setup = Setup::start().await;
    let (read, write) = setup.ours();
    let mut guards = vec![(true, locked(&write).await)];
    for round in 1..60 {
        let writes = round % 2 == 0;
        guards.push((writes, locked(if writes { &write } else { &read }).await));
    }
    let field = guards[0].1.holder().to_string();
    let mut counts = [30, 30];
    while !guards.is_empty() {
        assert_eq!([read.hold_count(), write.hold_count()], counts);
        let count = |field: &str| setup.hash().get(field).map_or(0, |n| n.parse().unwrap());
        assert_eq!([count(&field), count(&format!("{field}:write"))], counts);
        let (writes, guard) = guards.swap_remove(fastrand::usize(..guards.len()));
        let left = counts[usize::from(writes)] - 1;
        assert_eq!(guard.hold_count(), left + 1);
        given_back(guard).await;
        counts[usize::from(writes)] = left;
        if counts[1] == 0 {
            // Now it only reads: writing again would be an upgrade.
            break;
        }
    }
    drop(guards);
    setup.assert_nothing_left().await;
}

/// What a half says of itself: who holds it, how long, how often here, and by us.
async fn says(half: &Lock) -> (Option<String>, bool, bool, u32, bool) {
    let holder = half.holder().await.unwrap().map(|holder| holder.to_string());
    let left = half.remaining_lease().await.unwrap();
    assert!(left.is_none_or(|left| left > Duration::from_secs(5) && left < LONG), "{left:?}");
    let locked = half.is_locked().await.unwrap();
    (holder, left.is_some(), locked, half.hold_count(), half.is_held_by_me())
}

/// I14: each half answers for itself.
#[tokio::test(flavor = "multi_thread")]
async fn each_half_says_what_is_held_of_it() {
    let setup = Setup::start().await;
    let (read, write) = setup.ours();
    let none = (None, false, false, 0, false);
    assert_eq!((says(&read).await, says(&write).await), (none.clone(), none.clone()));
    let writing = locked(&write).await;
    let held = |count| (Some(writing.holder().to_string()), true, true, count, count > 0);
    assert_eq!((says(&read).await, says(&write).await), (none.clone(), held(1)));
    let reading = [locked(&read).await, locked(&read).await];
    assert_eq!((says(&read).await, says(&write).await), (held(2), held(1)));
    // By somebody else, and seen from another process.
    let (their_read, their_write) = setup.theirs();
    assert_eq!((says(&their_read).await, says(&their_write).await), (held(0), held(0)));
    let (read_held, write_held) = (held(2), none.clone());
    given_back(writing).await;
    assert_eq!((says(&read).await, says(&write).await), (read_held, write_held));
    assert_eq!([reading[0].hold_count(), reading[1].hold_count()], [2, 2]);
    drop(reading);
    setup.assert_nothing_left().await;
}

/// A scope that writes inside a reader's and writer's hold does not make the reader a writer.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_child_writes_its_parent_does_not_hold() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.read_write_lock(NAME);
    let writing = locked(&lock.write()).await;
    let reading = locked(&lock.read()).await;
    let child = Owner::scope(async { locked(&lock.write()).await }).await;
    given_back(writing).await;
    assert!(lock.read().is_held_by_me() && !lock.write().is_held_by_me());
    assert_eq!(lock.write().hold_count(), 0);
    assert_eq!(child.hold_count(), 1);
    drop((child, reading));
    setup.assert_nothing_left().await;
}

async fn assert_own_hold(write: &Lock) {
    let asked = soon(write.lock()).await.expect_err("it would wait for itself");
    let now = soon(write.try_lock_now()).await.expect_err("it would wait for itself");
    let tried = soon(write.try_lock(LONG, LONG)).await.expect_err("it would wait for itself");
    let body = soon(write.with(|_| async {})).await.expect_err("it would wait for itself");
    for error in [asked, now, tried, body] {
        assert_eq!(error.kind(), ErrorKind::OwnHold, "{error:?}");
        assert!(error.to_string().contains("nesting.rs"), "{error} does not say where");
    }
}

/// I14, I10: an error at once, however it is asked, whoever else reads, and not a wait for itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_refused_at_once_when_it_asks_to_write() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.read_write_lock(NAME);
    let theirs = locked(&setup.theirs().0).await;
    let ours = locked(&setup.ours().0).await;
    let reading = locked(&lock.read()).await;
    assert_own_hold(&lock.write()).await;
    Owner::scope(assert_own_hold(&lock.write())).await;
    // Also while a sibling reads on, which would never end.
    let sibling = Owner::scope(async { locked(&lock.read()).await }).await;
    Owner::scope(Owner::scope(assert_own_hold(&lock.write()))).await;
    assert_own_hold(&lock.write()).await;
    // And behind others that wait.
    let waiting = asked(&setup.ours().1).await;
    assert_own_hold(&lock.write()).await;
    assert_eq!(lock.read().hold_count(), 2);
    drop((waiting, sibling, theirs, ours));
    assert!(reading.is_held());
    given_back(reading).await;
    let writing = locked(&lock.write()).await;
    given_back(locked(&lock.read()).await).await;
    drop(writing);
    setup.assert_nothing_left().await;
}

/// I10: a child that waits to write is told when its parent begins to read.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_waits_to_write_is_told_that_its_parent_reads() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.read_write_lock(NAME);
    let (parent, child) =
        Owner::scope(async { (Owner::current(), Owner::scope(async { Owner::current() }).await) })
            .await;
    let theirs = locked(&setup.theirs().1).await;
    let reading = asked(&lock.read().owned_by(parent)).await;
    let writing = asked(&lock.write().owned_by(child)).await;
    given_back(theirs).await;
    let reading = soon(reading).await.expect("it is free");
    let error = soon(writing).await.expect_err("it would wait for its parent");
    assert_eq!(error.kind(), ErrorKind::OwnHold, "{error:?}");
    drop(reading);
    setup.assert_nothing_left().await;
}

/// I10: a nested future that is left alone for a while waits for no end of what it is nested in.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_grant_that_nobody_collects_can_be_had_later() {
    let server = RedisServer::start();
    let builder = Client::builder(server.url()).unwrap();
    let client = builder.collect_within(Duration::from_millis(300)).connect().await.unwrap();
    let (raw, plain) = (server.raw(), client.lock("plain").owned_by(Owner::new()));
    let (read, write) = halves(&client.read_write_lock(NAME));
    for (outer, inner) in [(&plain, &plain), (&write, &write), (&write, &read), (&read, &read)] {
        let guard = locked(outer).await;
        let hash = || raw.cmd(&["HGETALL", outer.name()]).ok().map();
        let before = hash();
        // Somebody waits, so that the engine sees through what its caller does not.
        let waiting = asked(&outer.clone().owned_by(Owner::new())).await;
        let nested = asked(inner).await;
        eventually("it is granted", async || hash() != before).await;
        eventually("it goes back", async || hash() == before).await;
        let nested = soon(nested).await.expect("it is in its own hold");
        drop((nested, guard, waiting));
        eventually("it is free", async || hash().is_empty()).await;
    }
    client.close().await;
    assert_no_keys(&server.raw());
}

/// Names with braces are Redisson's problem, and none of ours: in one server all of them work.
#[tokio::test(flavor = "multi_thread")]
async fn strange_names_work_in_both_halves() {
    let setup = Setup::start().await;
    let peer = RedissonReadWrite::connect(setup.rig.server.port());
    for name in ["{a}b", "a{b}c", "a{b", "}{", "{}x", "a:write", "mode", "ü \r\n:rwlock_timeout:1"]
    {
        let (read, write) = halves(&setup.rig.client.read_write_lock(name));
        let theirs = setup.other.read_write_lock(name);
        let writing = locked(&write).await;
        let reading = locked(&read).await;
        assert_refused(&theirs.read()).await;
        assert!(peer.try_read(name, 1, 60_000).is_some(), "{name}");
        let waiting = tokio::spawn(theirs.read().lock());
        given_back(writing).await;
        let beside = super::granted(waiting).await;
        assert_eq!(peer.try_read(name, 1, 60_000), None, "{name}");
        assert_refused(&theirs.write()).await;
        drop((reading, beside));
        eventually("only Java reads", async || setup.rig.holds(name).len() == 2).await;
        assert_eq!(peer.unlock_read(name, 1), Some(true), "{name}");
        drop(locked(&theirs.write()).await);
    }
    setup.assert_nothing_left().await;
}

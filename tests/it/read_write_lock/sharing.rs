//! Many readers or one writer, and who goes first.
use std::{sync::Arc, time::Duration};

use leasehold::{Client, Owner};
use tokio::{
    sync::Barrier,
    task::{JoinSet, yield_now},
};

use super::{LONG, NAME, Setup, asked, assert_refused, given_back, granted, locked};
use crate::{
    rig::soon,
    support::{
        assert_no_keys, blocking, cluster::ClusterSetup, eventually, history::History,
        redisson_read_write::RedissonReadWrite, server::RedisServer, subscriptions,
    },
};

/// Asserts that writers were alone, and that readers were not always.
fn assert_shared(history: &History, writes: usize) {
    let of = |name: &str| {
        history.intervals().into_iter().filter(|hold| hold.name == name).collect::<Vec<_>>()
    };
    let alone = History::new();
    for write in of("write") {
        alone.record("write", &write.owner, write.acquired, write.end);
        for read in of("read") {
            let apart = read.end <= write.acquired || write.end <= read.acquired;
            assert!(apart || read.owner == write.owner, "{read:?} beside {write:?}");
        }
    }
    alone.assert_exclusive(writes);
    assert!(history.peak("read") > 1, "readers were never side by side");
}

/// One owner that now reads, now writes, and then also reads.
async fn in_turns(client: Client, history: History, owner: String, rounds: usize) {
    let lock = client.read_write_lock(NAME);
    for round in 0..rounds {
        if round % 3 > 0 {
            let guard = locked(&lock.read()).await;
            let held = history.held("read", &owner);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
            held.end();
            given_back(guard).await;
            continue;
        }
        let writing = locked(&lock.write()).await;
        let writes = history.held("write", &owner);
        let reading = locked(&lock.read()).await;
        let reads = history.held("read", &owner);
        yield_now().await;
        writes.end();
        given_back(writing).await;
        reads.end();
        drop(reading);
    }
}

/// A thread of Java's that now reads, now writes.
fn in_turns_as_java(peer: &RedissonReadWrite, history: &History, rounds: usize) {
    const MS: i64 = 60_000;
    let pause = || std::thread::sleep(Duration::from_millis(1));
    for _ in 0..rounds / 2 {
        while peer.try_read(NAME, 1, MS).is_some() {
            pause();
        }
        let held = history.held("read", "java");
        pause();
        held.end();
        peer.unlock_read(NAME, 1).expect("it is held");
        while peer.try_write(NAME, 1, MS).is_some() {
            pause();
        }
        let held = history.held("write", "java");
        pause();
        held.end();
        peer.unlock_write(NAME, 1, MS).expect("it is held");
    }
}

/// I1, I2, I14.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_is_never_beside_anybody_and_readers_are_side_by_side() {
    let server = RedisServer::start();
    let (history, mut tasks) = (History::new(), JoinSet::new());
    for client in 0..2 {
        let a_client = Client::connect(server.url()).await.unwrap();
        for task in 0..8 {
            let owner = format!("client {client}, task {task}");
            tasks.spawn(in_turns(a_client.clone(), history.clone(), owner, 24));
        }
    }
    let (peer, of_java) = (RedissonReadWrite::connect(server.port()), history.clone());
    tasks.spawn(blocking(move || in_turns_as_java(&peer, &of_java, 10)));
    while let Some(done) = tokio::time::timeout(LONG, tasks.join_next()).await.expect("it ends") {
        done.expect("no panic");
    }
    assert_shared(&history, 2 * 8 * 8 + 5);
    assert_no_keys(&server.raw());
}

/// I10, I14: whatever else goes on, each try ends with a guard or without one, never with an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_try_never_fails_and_never_hangs() {
    let setup = Setup::start().await;
    let mut tasks = JoinSet::new();
    for task in 0..12 {
        let client = if task < 10 { &setup.rig.client } else { &setup.other };
        let lock = client.read_write_lock(NAME);
        tasks.spawn(async move {
            for _ in 0..80 {
                let half = if fastrand::u8(..3) == 0 { lock.write() } else { lock.read() };
                let wait = Duration::from_micros(fastrand::u64(..4000) * fastrand::u64(..2));
                let tried = soon(half.try_lock(wait, LONG)).await.expect("no reason to fail");
                let Some(guard) = tried else { continue };
                if fastrand::bool() {
                    drop(soon(lock.read().try_lock_now()).await.expect("no reason to fail"));
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..2000))).await;
                if fastrand::bool() { drop(guard) } else { given_back(guard).await }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    setup.assert_nothing_left().await;
}

/// I14, I9: who came first goes first; and then all readers at once.
#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_process_wait_behind_its_waiting_writer() {
    let setup = Setup::start().await;
    let reading = locked(&setup.ours().0).await;
    let writing = asked(&setup.ours().1).await;
    let (together, mut readers) = (Arc::new(Barrier::new(10)), JoinSet::new());
    for _ in 0..10 {
        let (later, together) = (asked(&setup.ours().0).await, together.clone());
        readers.spawn(async move {
            let guard = later.await.expect("its turn comes");
            together.wait().await;
            given_back(guard).await;
        });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(reading);
    let writing = soon(writing).await.expect("it is first");
    assert_eq!(setup.hash().len(), 2, "somebody is beside the writer: {:?}", setup.hash());
    given_back(writing).await;
    while let Some(done) = soon(readers.join_next()).await {
        done.expect("all ten read at the same time");
    }
    setup.assert_nothing_left().await;
}

/// I10: it has as much as seen the reader that keeps the writer out.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_to_read_behind_a_waiting_writer_ends() {
    let setup = Setup::start().await;
    for reader in [setup.ours().0, setup.theirs().0] {
        let reading = locked(&reader).await;
        let writing = asked(&setup.ours().1).await;
        // Before the writer can have been refused, and after.
        for wait in [0, 0, 50, 300] {
            let trying = setup.ours().0.try_lock(Duration::from_millis(wait), LONG);
            assert!(soon(trying).await.expect("a holder was seen").is_none(), "after {wait} ms");
        }
        let waiting = asked(&setup.ours().0).await;
        drop(writing);
        let beside = soon(waiting).await.expect("no writer is in its way any more");
        assert!(soon(setup.ours().0.try_lock_now()).await.expect("a reply").is_some());
        drop((beside, reading));
    }
    setup.assert_nothing_left().await;
}

/// I10: also of those that begin while the writer's first call is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn tries_beside_a_call_that_is_on_its_way_take_its_answer() {
    let setup = Setup::start().await;
    let reading = locked(&setup.theirs().0).await;
    let held = setup.rig.proxy.hold_reply(super::calls());
    let writing = tokio::spawn(setup.ours().1.lock());
    held.held().await;
    let tries = [setup.ours().0, setup.ours().1].map(|half| tokio::spawn(half.try_lock_now()));
    tokio::time::sleep(Duration::from_millis(20)).await;
    held.release();
    for tried in tries {
        let tried = soon(tried).await.expect("no panic").expect("somebody was seen");
        assert!(tried.is_none());
    }
    given_back(reading).await;
    drop(soon(writing).await);
    setup.assert_nothing_left().await;
}

/// I10: it waited for one of our holds to be given back, and meanwhile another was granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_to_write_ends_when_another_reader_of_the_process_comes_in() {
    let setup = Setup::with(|builder| builder.command_timeout(Duration::from_secs(5))).await;
    let (read, _) = setup.ours();
    let reading = locked(&read).await;
    let nested = locked(&read).await;
    let held = setup.rig.proxy.hold_reply(super::calls());
    let beside = tokio::spawn(setup.ours().0.lock());
    held.held().await;
    // A call that is on its way keeps the hold from being given back at once.
    let sent = setup.rig.proxy.count(super::calls());
    drop(nested);
    setup.rig.proxy.wait_for(super::calls(), sent + 1).await;
    drop(reading);
    let trying = tokio::spawn(setup.ours().1.try_lock_now());
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.release();
    let beside = granted(beside).await;
    let tried = soon(trying).await.expect("no panic").expect("a holder was seen");
    assert!(tried.is_none() && beside.is_held());
    drop(beside);
    setup.assert_nothing_left().await;
}

/// I14, I9: the write half goes from hand to hand, but past nobody who came before.
#[tokio::test(flavor = "multi_thread")]
async fn readers_do_not_starve_beside_writers_that_hand_over() {
    let setup = Setup::start().await;
    let mut writers = JoinSet::new();
    for _ in 0..4 {
        let write = setup.ours().1;
        writers.spawn(async move {
            loop {
                drop(write.lock().await.expect("its turn comes"));
                yield_now().await;
            }
        });
    }
    for round in 0..20 {
        let half = if round % 2 == 0 { setup.ours().0 } else { setup.theirs().0 };
        drop(locked(&half).await);
    }
    writers.shutdown().await;
    setup.assert_nothing_left().await;
}

/// I14: siblings exclude each other only where one of them writes.
#[tokio::test(flavor = "multi_thread")]
async fn scopes_inside_a_hold_read_side_by_side() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.read_write_lock(NAME);
    for around in [lock.read(), lock.write()] {
        let outer = locked(&around).await;
        let together = Barrier::new(3);
        let reader = || {
            Owner::scope(async {
                let guard = locked(&lock.read()).await;
                together.wait().await;
                given_back(guard).await;
            })
        };
        soon(async { tokio::join!(reader(), reader(), reader()) }).await;
        assert_eq!(around.hold_count(), 1);
        given_back(outer).await;
    }
    let outer = locked(&lock.write()).await;
    let (inside, leave) = (Barrier::new(2), Barrier::new(2));
    let reader = Owner::scope(async {
        let reading = locked(&lock.read()).await;
        inside.wait().await;
        leave.wait().await;
        given_back(reading).await;
    });
    let writer = Owner::scope(async {
        inside.wait().await;
        assert_refused(&lock.write()).await;
        leave.wait().await;
        given_back(locked(&lock.write()).await).await;
    });
    soon(async { tokio::join!(reader, writer) }).await;
    given_back(outer).await;
    setup.assert_nothing_left().await;
}

/// I9, I14: in a cluster, all keys of a lock are on one node, and so are its messages.
#[tokio::test(flavor = "multi_thread")]
async fn both_halves_work_in_a_cluster() {
    let cluster = blocking(ClusterSetup::start).await;
    let client = soon(Client::connect(cluster.url())).await.unwrap();
    let other = soon(Client::connect(cluster.url())).await.unwrap();
    let hour = Duration::from_secs(3600);
    for name in ["a", "b", "c", "{tag}:1", "x{tag}", "a{b}c{d}"] {
        let (ours, theirs) = (client.read_write_lock(name), other.read_write_lock(name));
        let writing = soon(ours.write().lock_with(hour)).await.unwrap();
        let reading = soon(ours.read().lock_with(hour)).await.unwrap();
        let reader = tokio::spawn(theirs.read().lock_with(hour));
        eventually("it listens", async || {
            cluster.nodes.iter().any(|node| subscriptions(&node.raw()) > 0)
        })
        .await;
        given_back(writing).await;
        let reader = granted(reader).await;
        let writer = tokio::spawn(theirs.write().lock_with(hour));
        given_back(reading).await;
        given_back(reader.detach()).await;
        given_back(granted(writer).await).await;
    }
    client.close().await;
    other.close().await;
    cluster.nodes.iter().for_each(|node| assert_no_keys(&node.raw()));
}

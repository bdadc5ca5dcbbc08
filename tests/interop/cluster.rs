//! In a cluster, both sides choose the same kind of channel.

use std::{collections::BTreeSet, time::Duration};

use leasehold::{Client, PublishMode};

use crate::{
    kinds::{FAIR, FENCED, READ, WRITE},
    pair::{KEPT_MS, LEASE, LEASE_MS, assert_woken_before, lease_end, locks, soon},
    peer::{Java, Jvm, Settings, at_least},
    support::{cluster::ClusterSetup, eventually, redisson::Redisson, server::Raw},
};

/// Since 3.22, Redisson uses sharded channels where the server has them, and so do we by default.
#[tokio::test]
async fn unlocks_wake_the_other_side_in_a_cluster() {
    let cluster = ClusterSetup::start();
    let sharded = at_least(3, 22);
    let settings = Settings { kind: "cluster", ..Settings::default() };
    let java = Java::open(Jvm::shared(), cluster.nodes[0].port(), settings).await;
    let builder = Client::builder(cluster.url()).unwrap();
    let builder = if sharded { builder } else { builder.publish(PublishMode::Plain) };
    let client = soon(builder.connect()).await.unwrap();

    let mut nodes = BTreeSet::new();
    for name in ["a", "b", "c", "d", "{a}:1", "x{b}", "ü"] {
        let lock = client.lock(name);
        let node = cluster.node_of(name);
        nodes.insert(node.port());
        let raw = node.raw();
        let all: Vec<_> = cluster.nodes.iter().map(|node| node.raw()).collect();

        let guard = soon(lock.lock_with(LEASE)).await.unwrap();
        assert!(!java.try_lock(name, 1, 0, 1_000).await, "{name}");
        let waiting = tokio::spawn(java.locking(name, 1, LEASE_MS));
        wait_for_listener(&all, name, sharded).await;
        let end = lease_end(&raw, name);
        soon(guard.unlock()).await.unwrap();
        soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        eventually("Java is through with its channel", async || !listens(&all, name, sharded))
            .await;

        assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
        let waiting = tokio::spawn(lock.lock_with(LEASE));
        wait_for_listener(&all, name, sharded).await;
        java.unlock(name, 1).await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        soon(guard.unlock()).await.unwrap();
    }
    assert_eq!(nodes.len(), 3, "the names are on all nodes");
    java.close().await;
    for node in &cluster.nodes {
        assert_eq!(locks(&node.raw()), [""; 0]);
    }
}

/// Each kind has channels of its own, and those of fair waiters, of semaphores and of latches too are
/// of the kind that the other side listens on.
#[tokio::test]
async fn every_kind_wakes_the_other_side_in_a_cluster() {
    let cluster = ClusterSetup::start();
    let sharded = at_least(3, 22);
    let settings = Settings { kind: "cluster", ..Settings::default() };
    let java = Java::open(Jvm::shared(), cluster.nodes[0].port(), settings).await;
    let builder = Client::builder(cluster.url()).unwrap();
    let builder = if sharded { builder } else { builder.publish(PublishMode::Plain) };
    let client = soon(builder.connect()).await.unwrap();
    let all: Vec<_> = cluster.nodes.iter().map(|node| node.raw()).collect();
    for kind in [&FAIR, &READ, &WRITE, &FENCED].into_iter().filter(|kind| kind.is_there()) {
        let (name, rival) = (kind.name, kind.rival());
        let raw = cluster.node_of(name).raw();
        let (lock, javas) = ((rival.of)(&client, name), java.of(rival.name));
        let guard = soon((kind.of)(&client, name).lock_with(LEASE)).await.unwrap();
        let waiting = tokio::spawn(javas.locking(name, 1, LEASE_MS));
        wait_for_channels(&all, sharded, true).await;
        let end = lease_end(&raw, name);
        soon(guard.unlock()).await.unwrap();
        soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        wait_for_channels(&all, sharded, false).await;

        let waiting = tokio::spawn(lock.lock_with(LEASE));
        wait_for_channels(&all, sharded, true).await;
        javas.unlock(name, 1).await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        soon(guard.unlock()).await.unwrap();
        wait_for_channels(&all, sharded, false).await;
    }

    let (javas, ours) = (java.of("semaphore"), client.semaphore("sem").sized(1));
    let permit = soon(ours.acquire()).await.unwrap();
    let waiting = tokio::spawn(javas.call(Some(1), "sem", "acquire", &[]));
    wait_for_channels(&all, sharded, true).await;
    soon(permit.release()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    wait_for_channels(&all, sharded, false).await;
    let waiting = tokio::spawn(ours.acquire());
    wait_for_channels(&all, sharded, true).await;
    javas.ask("sem", "release", &[]).await;
    drop(soon(waiting).await.unwrap().unwrap());
    wait_for_channels(&all, sharded, false).await;

    let (javas, ours) = (java.of("latch"), client.count_down_latch("latch"));
    assert!(soon(ours.try_set(1)).await.unwrap());
    let waiting = tokio::spawn(javas.call(Some(1), "latch", "await", &[]));
    wait_for_channels(&all, sharded, true).await;
    soon(ours.count_down()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    wait_for_channels(&all, sharded, false).await;
    assert!(soon(ours.try_set(1)).await.unwrap());
    let waiting = tokio::spawn(ours.wait());
    wait_for_channels(&all, sharded, true).await;
    javas.ask("latch", "countDown", &[]).await;
    soon(waiting).await.unwrap().unwrap();
    java.close().await;
}

/// #6867, #7116: renewing many locks at once broke where their slots differ. Here both sides hold
/// locks of many slots on all nodes for longer than two leases. What neither of them
/// renews ends, so neither keeps the other's.
#[tokio::test]
async fn issue_6867_each_watchdog_keeps_its_own_locks_of_all_slots() {
    let watchdog = Duration::from_millis(KEPT_MS);
    let cluster = ClusterSetup::start();
    let settings = Settings { kind: "cluster", watchdog_ms: KEPT_MS, ..Settings::default() };
    let java = Java::open(Jvm::shared(), cluster.nodes[0].port(), settings).await;
    let builder = Client::builder(cluster.url()).unwrap().watchdog(watchdog);
    let client = soon(builder.connect()).await.unwrap();
    let (mut held, mut guards) = (Vec::new(), Vec::new());
    for i in 0..12 {
        let [javas, rusts] = ["java", "rust"].map(|side| format!("{side} {i}"));
        java.lock(&javas, 1, 0).await.unwrap();
        guards.push(soon(client.lock(&rusts).lock()).await.unwrap());
        held.extend([javas, rusts]);
    }
    for side in ["java", "rust"] {
        let its = held.iter().filter(|name| name.starts_with(side));
        let nodes: BTreeSet<_> = its.map(|name| cluster.node_of(name).port()).collect();
        assert_eq!(nodes.len(), 3, "those of {side} are on all nodes");
    }
    java.lock("java's end", 1, KEPT_MS).await.unwrap();
    let lapsing = soon(client.lock("rust's end").lock_with(watchdog)).await.unwrap();
    let left = |name: &str| cluster.node_of(name).raw().cmd(&["PTTL", name]).int();
    for _ in 0..33 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for name in &held {
            assert!((1..=KEPT_MS as i64).contains(&left(name)), "{name}: {}", left(name));
        }
    }
    assert_eq!(["java's end", "rust's end"].map(left), [-2, -2], "nobody keeps them");
    drop(lapsing);
    for (i, guard) in guards.into_iter().enumerate() {
        let [javas, rusts] = ["java", "rust"].map(|side| format!("{side} {i}"));
        assert!(soon(client.lock(&javas).try_lock_now()).await.unwrap().is_none());
        assert!(!java.try_lock(&rusts, 2, 0, 1_000).await);
        java.unlock(&javas, 1).await.unwrap();
        soon(guard.unlock()).await.unwrap();
    }
    java.close().await;
    for node in &cluster.nodes {
        eventually("no lock is left", async || locks(&node.raw()).is_empty()).await;
    }
}

/// Waits until there are channels on which somebody listens, or none.
async fn wait_for_channels(nodes: &[Raw], sharded: bool, some: bool) {
    let ask = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
    let empty = |raw: &Raw| raw.cmd(&["PUBSUB", ask]).ok().items().is_empty();
    eventually("the channels change", async || some != nodes.iter().all(empty)).await;
}

/// Waits until somebody listens on the right kind of channel.
async fn wait_for_listener(nodes: &[Raw], name: &str, sharded: bool) {
    eventually("somebody listens", async || listens(nodes, name, sharded)).await;
    assert!(!listens(nodes, name, !sharded), "it listens on the wrong kind of channel");
}

fn listens(nodes: &[Raw], name: &str, sharded: bool) -> bool {
    let ask = if sharded { "SHARDNUMSUB" } else { "NUMSUB" };
    let channel = Redisson::channel(name);
    nodes.iter().any(|raw| raw.cmd(&["PUBSUB", ask, &channel]).ok().items()[1].int() > 0)
}

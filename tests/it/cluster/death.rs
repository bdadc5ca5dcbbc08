//! Nodes that die, for good or until a replica takes over.

use leasehold::{ErrorKind, LostReason};

use super::*;

/// Several times as long as a failover takes, also where much else goes on.
const WATCHDOG: Duration = Duration::from_secs(45);

/// Nodes that serve what they have, whatever becomes of the others.
async fn partial(start: fn() -> ClusterSetup) -> ClusterSetup {
    let cluster = blocking(start).await;
    for node in every_node(&cluster) {
        node.cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).ok();
    }
    cluster
}

async fn watched(cluster: &ClusterSetup) -> Client {
    let builder = Client::builder(cluster.url()).unwrap().watchdog(WATCHDOG);
    within(builder.patience(Duration::from_secs(60)).connect()).await.unwrap()
}

/// here it never comes back. I10: who wants one of its locks is told after its patience.
#[tokio::test]
async fn a_node_that_dies_takes_no_other_along() {
    let cluster = partial(ClusterSetup::start).await;
    let builder = || Client::builder(cluster.url()).unwrap().patience(Duration::from_secs(2));
    let client = within(builder().connect()).await.unwrap();
    let other = within(builder().connect()).await.unwrap();
    let names: Vec<_> = (0..3).map(|node| cluster.name_at(node, "job")).collect();
    for name in &names {
        live(&client, &other, name).await;
    }
    // That of the URL: where it is, nobody can be asked for the others any more.
    let mut cluster = cluster;
    cluster.kill(0);
    for _ in 0..5 {
        live(&client, &other, &names[1]).await;
        live(&client, &other, &names[2]).await;
    }
    let error = within(client.lock(&names[0]).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    live(&client, &other, &names[1]).await;
    let cluster = blocking(move || {
        cluster.nodes[0].restart();
        cluster
    })
    .await;
    eventually("it is used again", async || client.lock(&names[0]).is_locked().await.is_ok()).await;
    live(&client, &other, &names[0]).await;
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

/// I9, R-12: who begins to wait while a node is dead is woken by message. No timer is to help.
#[tokio::test]
async fn waiters_at_living_nodes_are_woken_while_one_is_dead() {
    let mut cluster = partial(ClusterSetup::start).await;
    let patient = || Client::builder(cluster.url()).unwrap().fallback_cap(HOUR);
    let client = within(patient().connect()).await.unwrap();
    // One has a connection for subscriptions by then, the other has yet to make it.
    let (early, late) =
        (within(patient().connect()).await.unwrap(), within(patient().connect()).await.unwrap());
    let names: Vec<_> = (0..3).map(|node| cluster.name_at(node, "job")).collect();
    live(&client, &early, &names[0]).await;
    cluster.kill(0);
    for (other, name) in [(&early, &names[1]), (&late, &names[1]), (&late, &names[2])] {
        let guard = within(client.lock(name).lock_with(HOUR)).await.unwrap();
        let waiter = tokio::spawn(other.lock(name).lock_with(LEASE));
        eventually("it listens", async || listening(&cluster) > 0).await;
        within(guard.unlock()).await.unwrap();
        within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
        eventually("nobody listens", async || listening(&cluster) == 0).await;
    }
}

/// I8: told after the reconnection, long before the next renewal.
#[tokio::test]
async fn a_node_that_came_back_empty_is_noticed_at_once_while_another_is_dead() {
    let mut cluster = partial(ClusterSetup::start).await;
    let builder = Client::builder(cluster.url()).unwrap().watchdog(HOUR);
    let client = within(builder.connect()).await.unwrap();
    let names: Vec<_> = (1..3).map(|node| cluster.name_at(node, "job")).collect();
    let lost = within(client.lock(&names[0]).lock()).await.unwrap();
    let kept = within(client.lock(&names[1]).lock()).await.unwrap();
    cluster.kill(0);
    let cluster = blocking(move || {
        cluster.nodes[1].restart();
        cluster
    })
    .await;
    assert_eq!(within(lost.lost()).await, LostReason::Removed);
    assert!(kept.is_held());
    within(kept.unlock()).await.unwrap();
    drop(lost);
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

/// I8: renewals for a node that stands still take no room from those of others.
#[tokio::test]
async fn a_node_that_stands_still_keeps_no_lease_of_another_from_its_renewal() {
    let cluster = partial(ClusterSetup::start).await;
    let builder = Client::builder(cluster.url()).unwrap().watchdog(Duration::from_secs(10));
    let client = within(builder.connect()).await.unwrap();
    let locks: Vec<_> = (0..600).map(|i| client.lock(format!("job:{i}"))).collect();
    let guards =
        within(futures::future::try_join_all(locks.iter().map(|l| l.lock()))).await.unwrap();
    let still = cluster.nodes[0].port();
    let (dead, alive): (Vec<_>, Vec<_>) = {
        let slots = cluster.nodes[1].raw();
        let slot = |name: &str| slots.cmd(&["CLUSTER", "KEYSLOT", name]).int() as u16;
        guards.into_iter().partition(|guard| slot(guard.name()) < 16384 / 3)
    };
    assert!(dead.len() > 100 && alive.len() > 300, "they are at all nodes, also at {still}");
    cluster.nodes[0].pause();
    let begun = alive.iter().map(|guard| guard.valid_until()).max().unwrap();
    soon_true("all others outlive their leases", || {
        let lost: Vec<_> = alive.iter().filter(|guard| !guard.is_held()).collect();
        assert!(lost.is_empty(), "{} were lost, such as {:?}", lost.len(), lost[0]);
        alive.iter().all(|guard| guard.valid_until() > begun + Duration::from_secs(10))
    })
    .await;
    assert!(dead.iter().all(|guard| !guard.is_held()), "those are over, and it is known");
    cluster.nodes[0].resume();
    for released in
        within(futures::future::join_all(alive.into_iter().map(LockGuard::unlock))).await
    {
        released.unwrap();
    }
    drop(dead);
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

/// I8: `lost` is not at the new primary, for its replica stood still when it was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_takes_over_keeps_what_it_knows_and_the_rest_is_told() {
    let cluster = partial(ClusterSetup::with_replicas).await;
    let (client, other) = (watched(&cluster).await, watched(&cluster).await);
    let names: Vec<_> = (0..3).map(|node| cluster.name_at(node, "job")).collect();
    let load = Load::start(&[client.clone(), other.clone()], &names, 2);
    let kept = within(client.lock(format!("{{{}}}:kept", names[0])).lock()).await.unwrap();
    let waiter = tokio::spawn(other.lock(kept.name()).lock_with(LEASE));
    let replica = cluster.nodes[3].raw();
    replica.cmd(&["READONLY"]).ok();
    eventually("it is replicated", async || replica.cmd(&["EXISTS", kept.name()]).int() == 1).await;
    // Else what the primary says is in its buffers, for when it goes on.
    cluster.nodes[3].pause();
    cluster.nodes[0].raw().cmd(&["CLIENT", "KILL", "TYPE", "replica"]).ok();
    let lost = within(client.lock(format!("{{{}}}:lost", names[0])).lock()).await.unwrap();
    let cluster = blocking(move || {
        let mut cluster = cluster;
        cluster.kill(0);
        cluster.nodes[3].resume();
        cluster.wait_failed_over(3);
        cluster
    })
    .await;
    let after = load.rounds();
    assert_eq!(within(lost.lost()).await, LostReason::Removed);
    let later = kept.valid_until() + Duration::from_secs(1);
    soon_true("the other is renewed", || kept.valid_until() > later).await;
    assert!(kept.is_held() && !waiter.is_finished());
    within(kept.unlock()).await.unwrap();
    within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    for name in &names {
        live(&client, &other, &format!("{{{name}}}:new")).await;
    }
    soon_true("all work on", || load.rounds() > after + 50).await;
    load.end().await;
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

//! Leases over all slots: none is forgotten, and what can travel together does.

use futures::future::{join_all, try_join_all};

use super::*;
use crate::support::assert_every_key_has_ttl;

const WATCHDOG: Duration = Duration::from_secs(12);

fn scripts(cluster: &ClusterSetup) -> u64 {
    let calls = |stats: String, name: &str| -> u64 {
        let prefix = format!("cmdstat_{name}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    let stats = every_node(cluster).map(|node| node.cmd(&["INFO", "commandstats"]).text());
    stats.map(|stats| calls(stats.clone(), "evalsha") + calls(stats, "eval")).sum()
}

async fn hold(client: &Client, names: impl Iterator<Item = String>) -> Vec<LockGuard> {
    let locks: Vec<_> = names.map(|name| client.lock(name)).collect();
    within(try_join_all(locks.iter().map(|lock| lock.lock()))).await.unwrap()
}

/// Waits until each lease has been renewed often enough to be longer by this.
async fn renewed(guards: &[LockGuard], by: Duration) {
    let ends: Vec<_> = guards.iter().map(|guard| guard.valid_until() + by).collect();
    soon_true("all are renewed", || {
        assert!(guards.iter().all(|guard| guard.is_held()), "one was lost");
        guards.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end)
    })
    .await;
}

async fn give_back(cluster: &ClusterSetup, guards: Vec<LockGuard>) {
    for released in within(join_all(guards.into_iter().map(LockGuard::unlock))).await {
        released.unwrap();
    }
    assert_eq!(keys(cluster), 0);
}

async fn watched(cluster: &ClusterSetup) -> Client {
    let builder = Client::builder(cluster.url()).unwrap().watchdog(WATCHDOG);
    within(builder.connect()).await.unwrap()
}

/// one or two to a slot, for longer than a lease.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_leases_over_all_slots_are_kept() {
    let cluster = start().await;
    let client = watched(&cluster).await;
    let guards = hold(&client, (0..2000).map(|i| format!("job:{i}"))).await;
    renewed(&guards, WATCHDOG).await;
    assert_eq!(keys(&cluster), 2000);
    every_node(&cluster).for_each(|node| assert_every_key_has_ttl(&node));
    give_back(&cluster, guards).await;
}

/// Those of one slot travel in lists, those of many cannot: at most one command for each.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_one_slot_are_renewed_in_lists() {
    let cluster = start().await;
    let client = watched(&cluster).await;
    let guards = hold(&client, (0..500).map(|i| format!("{{tag}}:{i}"))).await;
    // The first renewals are spread by chance; from then on they come together.
    renewed(&guards, Duration::from_millis(1)).await;
    let before = scripts(&cluster);
    renewed(&guards, WATCHDOG / 3).await;
    let commands = scripts(&cluster) - before;
    assert!(commands < 400, "{commands} commands for twice 500 leases");
    give_back(&cluster, guards).await;
}

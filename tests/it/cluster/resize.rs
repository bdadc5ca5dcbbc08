//! Clusters that grow and shrink under load.

use super::*;

/// Names on all nodes, and the slots they are in.
fn spread(cluster: &ClusterSetup) -> (Vec<String>, Vec<u16>) {
    let names: Vec<_> = (0..6).map(|i| cluster.name_at(i % 3, &format!("job:{i}"))).collect();
    let slots = names.iter().map(|name| cluster.slot_of(name)).collect();
    (names, slots)
}

/// I1, I2, I9, I12, R-12: a fourth node takes slots, gives them back, and is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_and_goes_is_not_noticed() {
    let cluster = start().await;
    let builder = || Client::builder(cluster.url()).unwrap().watchdog(Duration::from_secs(6));
    let (client, other) =
        (within(builder().connect()).await.unwrap(), within(builder().connect()).await.unwrap());
    let (names, slots) = spread(&cluster);
    let held = names.iter().map(|name| client.lock(format!("{{{name}}}:held")).lock());
    let held = within(futures::future::try_join_all(held)).await.unwrap();
    let waiters: Vec<_> =
        held.iter().map(|guard| tokio::spawn(other.lock(guard.name()).lock_with(LEASE))).collect();
    let load = Load::start(&[client.clone(), other], &names, 3);
    let (cluster, slots) = blocking(move || {
        let mut cluster = cluster;
        let fourth = cluster.add_node();
        slots.iter().for_each(|slot| cluster.move_slot(*slot, fourth));
        (cluster, slots)
    })
    .await;
    let before = load.rounds();
    soon_true("work goes on", || load.rounds() > before + 50).await;
    assert!(cluster.nodes[3].raw().cmd(&["DBSIZE"]).int() > 0, "at the new node");
    let cluster = blocking(move || {
        let mut cluster = cluster;
        slots.iter().enumerate().for_each(|(i, slot)| cluster.move_slot(*slot, i % 3));
        cluster.remove_node();
        cluster
    })
    .await;
    let before = load.rounds();
    soon_true("work goes on", || load.rounds() > before + 50).await;
    load.stop(100).await;
    let ends: Vec<_> = held.iter().map(|guard| guard.valid_until()).collect();
    eventually("what is held is renewed", async || {
        held.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end)
    })
    .await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "it is held");
    for (guard, waiter) in held.into_iter().zip(waiters) {
        within(guard.unlock()).await.unwrap();
        within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    }
    eventually("nothing is left", async || keys(&cluster) == 0).await;
    within(client.close()).await;
}

/// those that are left are asked who serves what, not the one of the URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_left_a_node_before_its_death_is_found() {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, connect(&cluster).await);
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    live(&client, &other, &name).await;
    let cluster = blocking(move || {
        let mut cluster = cluster;
        // All that is left to the first node is what nobody here uses.
        cluster.move_slot(slot, 1);
        cluster.kill(0);
        cluster
    })
    .await;
    for node in &cluster.nodes[1..] {
        node.raw().cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).ok();
    }
    for client in [&client, &other] {
        let guard = within(client.lock(&name).lock_with(LEASE)).await.unwrap();
        assert_eq!(cluster.nodes[1].raw().cmd(&["EXISTS", &name]).int(), 1);
        within(guard.unlock()).await.unwrap();
    }
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

//! Slots that move while their locks are held and waited for.

use leasehold::PublishMode;

use super::*;
use crate::support::redisson::Redisson;

/// Woken by messages alone: no timer fires within the hour.
async fn patient(cluster: &ClusterSetup, publish: PublishMode) -> Client {
    let builder = Client::builder(cluster.url()).unwrap().fallback_cap(HOUR).publish(publish);
    within(builder.connect()).await.unwrap()
}

/// Whether somebody listens to a name's sharded channel at a node.
fn heard_at(node: &RedisServer, name: &str) -> bool {
    let channel = Redisson::channel(name);
    node.raw().cmd(&["PUBSUB", "SHARDNUMSUB", &channel]).items()[1].int() > 0
}

/// I9, R-12, R-32: the server ends the subscription with the slot, and fred passes over that. Here
/// nothing else of the waiter's process goes to the slot.
#[tokio::test]
async fn a_waiter_listens_again_where_its_slot_has_gone() {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, patient(&cluster, PublishMode::Auto).await);
    let name = cluster.name_at(0, "job");
    let guard = within(client.lock(&name).lock_with(HOUR)).await.unwrap();
    let waiter = tokio::spawn(other.lock(&name).lock_with(LEASE));
    eventually("it listens", async || heard_at(&cluster.nodes[0], &name)).await;
    cluster.move_slot(cluster.slot_of(&name), 1);
    assert!(!heard_at(&cluster.nodes[0], &name), "the server has ended the subscription");
    eventually("it listens at the new node", async || heard_at(&cluster.nodes[1], &name)).await;
    assert!(!waiter.is_finished(), "it is still held");
    within(guard.unlock()).await.unwrap();
    within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    assert_eq!(keys(&cluster), 0);
}

/// A lock whose slot goes this way, from the first node, and is given back while its waiter is
/// subscribed nowhere.
async fn is_noticed_after(way: &[usize]) {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, patient(&cluster, PublishMode::Auto).await);
    let name = cluster.name_at(0, "job");
    let guard = within(client.lock(&name).lock_with(HOUR)).await.unwrap();
    let waiter = tokio::spawn(other.lock(&name).lock_with(LEASE));
    eventually("it listens", async || heard_at(&cluster.nodes[0], &name)).await;
    for node in way {
        cluster.move_slot(cluster.slot_of(&name), *node);
    }
    assert!(!heard_at(&cluster.nodes[0], &name), "the server has ended the subscription");
    within(guard.unlock()).await.unwrap();
    within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    assert_eq!(keys(&cluster), 0);
}

/// I9, R-34.
#[tokio::test]
async fn a_release_right_behind_a_move_is_noticed() {
    is_noticed_after(&[1]).await;
}

/// I9, R-12: nobody who is asked who serves what can tell that the slot was away.
#[tokio::test]
async fn a_release_behind_a_move_to_and_fro_is_noticed() {
    is_noticed_after(&[1, 0]).await;
}

/// I9: messages of the whole cluster do not care where a slot is.
#[tokio::test]
async fn a_waiter_on_a_plain_channel_does_not_mind_a_move() {
    let cluster = start().await;
    let client = patient(&cluster, PublishMode::Plain).await;
    let other = patient(&cluster, PublishMode::Plain).await;
    let name = cluster.name_at(0, "job");
    let guard = within(client.lock(&name).lock_with(HOUR)).await.unwrap();
    let waiter = tokio::spawn(other.lock(&name).lock_with(LEASE));
    eventually("it listens", async || listening(&cluster) == 1).await;
    cluster.move_slot(cluster.slot_of(&name), 1);
    within(guard.unlock()).await.unwrap();
    within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
}

/// Trap: a SUNSUBSCRIBE of a channel whose slot has gone is refused, and fred would take that for
/// the answer to the next command.
#[tokio::test]
async fn a_subscription_that_ends_after_a_move_disturbs_no_other() {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, patient(&cluster, PublishMode::Auto).await);
    let (moving, staying) = (cluster.name_at(0, "moving"), cluster.name_at(0, "staying"));
    let first = within(client.lock(&moving).lock_with(HOUR)).await.unwrap();
    let waiter = tokio::spawn(other.lock(&moving).lock_with(LEASE));
    eventually("it listens", async || heard_at(&cluster.nodes[0], &moving)).await;
    cluster.move_slot(cluster.slot_of(&moving), 1);
    waiter.abort();
    // Refused by the old node, unless a heartbeat has just found out where the new one is.
    let ends = |node: Raw| node.cmd(&["INFO", "commandstats"]).text().contains("sunsubscribe");
    eventually("its end is sent", async || every_node(&cluster).any(ends)).await;
    for _ in 0..5 {
        let guard = within(client.lock(&staying).lock_with(HOUR)).await.unwrap();
        let waiter = tokio::spawn(other.lock(&staying).lock_with(LEASE));
        eventually("it listens", async || heard_at(&cluster.nodes[0], &staying)).await;
        within(guard.unlock()).await.unwrap();
        within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    }
    within(first.unlock()).await.unwrap();
    assert_eq!(keys(&cluster), 0);
}

/// Trap: two channels in one SSUBSCRIBE have fred give replies to the wrong callers, also when it
/// subscribes anew by itself.
#[tokio::test]
async fn sharded_channels_are_subscribed_to_one_by_one() {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, patient(&cluster, PublishMode::Auto).await);
    let names: Vec<_> = (0..20).map(|i| format!("{{tag}}:{i}")).collect();
    let node = cluster.node_of("{tag}").raw();
    let mut held = Vec::new();
    for name in &names {
        let guard = within(client.lock(name).lock_with(HOUR)).await.unwrap();
        held.push((guard, tokio::spawn(other.lock(name).lock_with(LEASE))));
    }
    let subscribes = || {
        let stats = node.cmd(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|l| l.strip_prefix("cmdstat_ssubscribe:calls="));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse::<usize>().unwrap())
    };
    eventually("all listen", async || subscriptions(&node) == names.len()).await;
    assert_eq!(subscribes(), names.len(), "each by itself");
    node.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).ok();
    eventually("all listen anew", async || {
        subscribes() >= 2 * names.len() && subscriptions(&node) == names.len()
    })
    .await;
    for (guard, waiter) in held {
        within(guard.unlock()).await.unwrap();
        within(within(waiter).await.unwrap().unwrap().unlock()).await.unwrap();
    }
    assert_eq!(keys(&cluster), 0);
}

/// I1, I2, I9, R-12: nobody is told of any of it.
#[tokio::test(flavor = "multi_thread")]
async fn slots_move_to_and_fro_under_load_and_nobody_notices() {
    let cluster = start().await;
    let builder = || Client::builder(cluster.url()).unwrap().watchdog(Duration::from_secs(6));
    let (client, other) =
        (within(builder().connect()).await.unwrap(), within(builder().connect()).await.unwrap());
    let names: Vec<_> = (0..6).map(|i| cluster.name_at(i % 3, &format!("job:{i}"))).collect();
    let held: Vec<_> = names.iter().map(|name| format!("{{{name}}}:held")).collect();
    let held = held.iter().map(|name| client.lock(name).lock());
    let held = within(futures::future::try_join_all(held)).await.unwrap();
    let ends: Vec<_> = held.iter().map(|guard| guard.valid_until()).collect();
    let load = Load::start(&[client.clone(), other], &names, 4);
    let cluster = blocking(move || {
        for round in 0..12 {
            for name in &names {
                let slot = cluster.slot_of(name);
                cluster.move_slot(slot, (cluster.owner_of(slot) + 1 + round % 2) % 3);
            }
            std::thread::sleep(Duration::from_millis(50)); // work between the moves
        }
        cluster
    })
    .await;
    load.stop(100).await;
    let renewed = async || held.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end);
    eventually("what is held was renewed", renewed).await;
    for guard in held {
        within(guard.unlock()).await.unwrap();
    }
    eventually("nothing is left", async || keys(&cluster) == 0).await;
}

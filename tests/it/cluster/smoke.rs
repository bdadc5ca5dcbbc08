//! The whole life of a lock in a cluster, and how its waiters are told.

use std::collections::BTreeSet;

use leasehold::{ErrorKind, PublishMode};

use super::*;
use crate::support::{assert_every_key_has_ttl, redisson::Redisson};

/// Names for every node, some with tags.
const NAMES: [&str; 9] = ["a", "b", "c", "d", "{tag}:1", "{tag}:2", "x{tag}", "a{b}c{d}", "ключ 1"];

#[tokio::test]
async fn locks_live_on_every_node() {
    let cluster = blocking(ClusterSetup::start).await;
    let client = within(Client::connect(cluster.url())).await.unwrap();
    let other = within(Client::connect(cluster.url())).await.unwrap();
    for name in NAMES {
        live(&client, &other, name).await;
    }
    eventually("all is given back", async || keys(&cluster) == 0).await;
    let ports: BTreeSet<_> = NAMES.map(|name| cluster.node_of(name).port()).into();
    assert_eq!(ports.len(), 3, "the names reach every node");
}

/// Many at once: a list is of one slot, a connection of one node.
#[tokio::test]
async fn many_locks_are_held_and_renewed_over_all_slots() {
    let cluster = blocking(ClusterSetup::start).await;
    let builder = Client::builder(cluster.url()).unwrap().watchdog(Duration::from_secs(6));
    let client = within(builder.connect()).await.unwrap();
    let tagged = (0..20).map(|i| format!("{{tag}}:{i}"));
    let names: Vec<_> = (0..40).map(|i| format!("job:{i}")).chain(tagged).collect();
    let acquires = names.iter().map(|name| client.lock(name).lock());
    let guards = within(futures::future::join_all(acquires)).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    for guard in &guards {
        let holder = guard.holder();
        let node = cluster.node_of(guard.name()).raw();
        let count = node.cmd(&["HGET", guard.name(), holder.as_str()]);
        assert_eq!(count.int(), 1, "{}", guard.name());
    }
    let before: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    eventually("all are renewed", async || {
        guards.iter().zip(&before).all(|(guard, before)| guard.valid_until() > *before)
    })
    .await;
    every_node(&cluster).for_each(|node| assert_every_key_has_ttl(&node));
    let releases = guards.into_iter().map(LockGuard::unlock);
    for released in within(futures::future::join_all(releases)).await {
        released.unwrap();
    }
    assert_eq!(keys(&cluster), 0);
}

/// Refused by the server it would be: key and channel are in different slots.
#[tokio::test]
async fn a_name_whose_braces_do_not_pair_is_refused_before_it_is_sent() {
    let cluster = blocking(ClusterSetup::start).await;
    let client = within(Client::connect(cluster.url())).await.unwrap();
    for name in ["ab{c", "x}y", "{}x", "{", "}{", "x{}y{z}"] {
        let lock = client.lock(name);
        let errors = [
            within(lock.lock()).await.map(drop).unwrap_err(),
            within(lock.force_unlock()).await.map(drop).unwrap_err(),
            within(lock.is_locked()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}: {error}");
        }
    }
    assert_eq!(scripts_called(&cluster), 0);
    within(within(client.lock("{a}").lock()).await.unwrap().unlock()).await.unwrap();
    assert!(scripts_called(&cluster) > 0, "the count counts");
}

/// A release is told by SPUBLISH, as by a Redisson that is configured for a cluster.
#[tokio::test]
async fn a_release_is_published_in_the_shard_of_the_lock() {
    let cluster = blocking(ClusterSetup::start).await;
    let client = within(Client::connect(cluster.url())).await.unwrap();
    for name in NAMES {
        let channel = Redisson::channel(name);
        let listener = cluster.node_of(name).raw();
        listener.cmd(&["HELLO", "3"]).ok();
        listener.cmd(&["SSUBSCRIBE", &channel]).ok();
        within(within(client.lock(name).lock()).await.unwrap().unlock()).await.unwrap();
        let message = listener.next_message(SOON).expect("a message");
        assert_eq!((message.channel, message.payload), (channel, "0".to_owned()));
    }
}

/// For fleets whose Java peers publish so: any node tells it to all.
#[tokio::test]
async fn a_release_is_published_to_all_nodes_if_that_is_asked_for() {
    let cluster = blocking(ClusterSetup::start).await;
    let plain = || Client::builder(cluster.url()).unwrap().publish(PublishMode::Plain);
    let client = within(plain().connect()).await.unwrap();
    let other = within(plain().connect()).await.unwrap();
    for name in NAMES {
        let channel = Redisson::channel(name);
        let listeners: Vec<_> = every_node(&cluster).collect();
        listeners.iter().for_each(|listener| listener.subscribe(&channel));
        within(within(client.lock(name).lock()).await.unwrap().unlock()).await.unwrap();
        for listener in listeners {
            let message = listener.next_message(SOON).expect("a message");
            assert_eq!((message.channel, message.payload), (channel.clone(), "0".to_owned()));
        }
        live(&client, &other, name).await;
    }
}

/// I9: woken by the message, for the lease would last an hour.
#[tokio::test]
async fn waiters_on_every_node_are_woken_by_message() {
    for mode in [PublishMode::Auto, PublishMode::Plain] {
        let cluster = blocking(ClusterSetup::start).await;
        let built = || Client::builder(cluster.url()).unwrap().publish(mode);
        let client = within(built().connect()).await.unwrap();
        let other = within(built().connect()).await.unwrap();
        let hour = Duration::from_secs(3600);
        let mut held = Vec::new();
        for name in NAMES {
            let guard = within(client.lock(name).lock_with(hour)).await.unwrap();
            held.push((guard, tokio::spawn(other.lock(name).lock_with(LEASE))));
        }
        eventually("all listen", async || {
            every_node(&cluster).map(|node| subscriptions(&node)).sum::<usize>() == NAMES.len()
        })
        .await;
        for (guard, waiter) in held {
            within(guard.unlock()).await.unwrap();
            let guard = within(waiter).await.unwrap().unwrap();
            within(guard.detach().unlock()).await.unwrap();
        }
        assert_eq!(keys(&cluster), 0);
    }
}

//! Which names each synchronizer takes in a cluster, with which of its keys and channels.

use futures::future::{BoxFuture, FutureExt};
use leasehold::{ErrorKind, MultiLock};

use super::*;

/// Names for every node, some with tags.
const NAMES: [&str; 6] = ["a", "b", "c", "{tag}:1", "x{tag}", "ключ 1"];

/// Braces that do not pair, or hold nothing: key and helpers would be in several slots.
const TORN: [&str; 6] = ["ab{c", "x}y", "{}x", "{", "}{", "x{}y{z}"];

type Life = for<'a> fn(&'a Client, &'a str) -> BoxFuture<'a, Result<(), Error>>;

/// Each takes, uses and gives back; whatever comes first tells what is wrong with the name.
const LIVES: [(&str, Life); 9] = [
    ("lock", |client, name| async move { client.lock(name).lock().await?.unlock().await }.boxed()),
    ("fair lock", |client, name| {
        async move { client.fair_lock(name).lock().await?.unlock().await }.boxed()
    }),
    ("fenced lock", |client, name| {
        async move { client.fenced_lock(name).lock().await?.unlock().await }.boxed()
    }),
    ("spin lock", |client, name| {
        async move { client.spin_lock(name).lock().await?.unlock().await }.boxed()
    }),
    ("token lock", |client, name| {
        async move { client.token_lock(name).lock().await?.unlock().await }.boxed()
    }),
    ("read/write lock", |client, name| {
        async move {
            let lock = client.read_write_lock(name);
            lock.read().lock().await?.unlock().await?;
            let write = lock.write().lock().await?;
            lock.read().lock().await?.unlock().await?;
            write.unlock().await
        }
        .boxed()
    }),
    ("semaphore", |client, name| {
        async move {
            let semaphore = client.semaphore(name);
            semaphore.try_set(2).await?;
            semaphore.acquire().await?.release().await?;
            semaphore.drain().await.map(drop)
        }
        .boxed()
    }),
    ("permit semaphore", |client, name| {
        async move {
            let semaphore = client.permit_semaphore(name);
            semaphore.try_set(2).await?;
            let permit = semaphore.acquire().await?;
            semaphore.permits().await?;
            permit.release().await
        }
        .boxed()
    }),
    ("latch", |client, name| {
        async move {
            let latch = client.count_down_latch(name);
            latch.try_set(1).await?;
            latch.count_down().await?;
            latch.wait().await
        }
        .boxed()
    }),
];

/// Scripts go to the slot of their keys, and declare each key that they touch.
#[tokio::test]
async fn every_synchronizer_lives_on_every_node_by_names_with_and_without_tags() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    for (kind, life) in LIVES {
        for name in NAMES {
            let name = format!("{name}:{kind}");
            if kind == "latch" && name.contains('{') {
                // Redisson wraps a latch's channel in braces whatever its name is.
                let error = within(life(&client, &name)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
                continue;
            }
            within(life(&client, &name)).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
    }
    for node in every_node(&cluster) {
        let used = node.cmd(&["INFO", "commandstats"]).text();
        assert!(used.contains("cmdstat_evalsha"), "each has had its share");
        assert_eq!(refused(&node, "CROSSSLOT"), 0);
    }
}

/// Said before anything is sent: the server would say CROSSSLOT.
#[tokio::test]
async fn every_synchronizer_refuses_names_that_would_tear_its_keys_apart() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    for (kind, life) in LIVES {
        for name in TORN {
            let error = within(life(&client, name)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{kind} {name}: {error}");
            assert!(error.to_string().contains("braces"), "{kind} {name}: {error}");
        }
    }
    let striped = client.striped_lock("ab{c", 4);
    let error = within(striped.all().lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    assert_eq!(scripts_called(&cluster), 0);
}

/// Locks held as one may be anywhere: each is asked for by itself.
#[tokio::test]
async fn locks_held_as_one_may_be_on_several_nodes() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    let names: Vec<_> = (0..3).map(|node| cluster.name_at(node, "job")).collect();
    let multi = MultiLock::new(names.iter().map(|name| client.lock(name)));
    let guard = within(multi.lock()).await.unwrap();
    for (node, name) in cluster.nodes.iter().zip(&names) {
        assert_eq!(node.raw().cmd(&["EXISTS", name]).int(), 1);
    }
    within(guard.unlock()).await.unwrap();
    let striped = client.striped_lock("striped", 8);
    within(within(striped.all().lock()).await.unwrap().unlock()).await.unwrap();
    assert_eq!(keys(&cluster), 0);
}

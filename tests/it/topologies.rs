//! The places that Redis runs in: one smoke test of the whole life of a lock for each.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, LockGuard, PublishMode};

use crate::support::{
    assert_every_key_has_ttl, assert_no_keys, blocking, eventually,
    redisson::Redisson,
    sentinel::SentinelSetup,
    server::{ClusterSetup, Raw, RedisServer},
    subscriptions,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

/// For failovers, whose length the server decides.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

/// Takes, looks, re-enters, extends, lets another wait and wakes it, and forces.
async fn live(client: &Client, other: &Client, name: &str) {
    let lock = client.lock(name);
    let guard = within(lock.lock_with(LEASE)).await.unwrap();
    assert_eq!(within(other.lock(name).holder()).await.unwrap(), Some(guard.holder()));
    let inner = within(lock.lock_with(LEASE)).await.unwrap();
    assert_eq!(guard.hold_count(), 2);
    within(inner.unlock()).await.unwrap();
    within(guard.extend(LEASE + LEASE)).await.unwrap();
    let waiter = {
        let theirs = other.lock(name);
        assert!(within(theirs.try_lock_now()).await.unwrap().is_none());
        tokio::spawn(theirs.lock_with(LEASE))
    };
    within(guard.unlock()).await.unwrap();
    let guard = within(waiter).await.unwrap().unwrap();
    assert!(within(lock.force_unlock()).await.unwrap());
    drop(guard);
    assert!(!within(lock.is_locked()).await.unwrap());
}

mod one_server {
    use super::*;

    async fn live_at(url: &str, server: &RedisServer) {
        let client = within(Client::connect(url)).await.unwrap();
        let other = within(Client::connect(url)).await.unwrap();
        live(&client, &other, "job").await;
        eventually("all is given back", async || server.raw().cmd(&["DBSIZE"]).int() == 0).await;
    }

    #[tokio::test]
    async fn a_valkey_url_is_as_good_as_a_redis_one() {
        let server = RedisServer::start();
        live_at(&server.url().replace("redis://", "valkey://"), &server).await;
    }

    /// The key is in the database that the URL names, and in no other.
    #[tokio::test]
    async fn a_url_may_name_a_database() {
        let server = RedisServer::start();
        let raw = server.raw();
        let client = Client::connect(format!("{}3", server.url())).await.unwrap();
        let guard = within(client.lock("job").lock()).await.unwrap();
        assert_no_keys(&raw);
        raw.cmd(&["SELECT", "3"]).ok();
        assert_eq!(raw.cmd(&["EXISTS", "job"]).int(), 1);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&raw);
        live_at(&format!("{}3", server.url()), &server).await;
    }

    /// calls made before there is a server are outages like any other.
    #[tokio::test]
    async fn a_lazy_client_may_be_made_before_its_server() {
        let mut server = RedisServer::start();
        server.kill();
        let builder = Client::builder(server.url()).unwrap().patience(PATIENCE);
        let client = within(builder.connect_lazy()).await.unwrap();
        let tried = client.lock("other").try_lock(Duration::from_millis(100), LEASE);
        assert_eq!(within(tried).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let waiting = tokio::spawn(client.lock("job").lock_with(LEASE));
        let server = blocking(move || {
            server.restart();
            server
        })
        .await;
        let guard = within(waiting).await.unwrap().unwrap();
        assert_eq!(server.raw().cmd(&["EXISTS", "job"]).int(), 1);
        within(guard.unlock()).await.unwrap();
        live(&client, &Client::connect(server.url()).await.unwrap(), "job").await;
    }

    /// One that is not there is told at once, to who wants to know it at once.
    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_by_connect() {
        let url = format!("redis://127.0.0.1:{}/", crate::support::server::free_port());
        let error = within(Client::connect(&url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }

    #[cfg(feature = "unix")]
    #[tokio::test]
    async fn a_unix_socket_is_as_good_as_a_port() {
        // Below a directory of our own: a socket's path may not be long.
        let path = std::env::temp_dir().join(format!("{}.sock", crate::support::unique("lh")));
        let path = path.display().to_string();
        let server = RedisServer::builder().args(["--unixsocket", &path]).start();
        live_at(&format!("redis+unix://{path}"), &server).await;
        let client = Client::connect(format!("valkey+unix://{path}")).await.unwrap();
        let builder = Client::builder(format!("redis+unix://{path}")).unwrap();
        let renewed = builder.watchdog(Duration::from_secs(3)).connect().await.unwrap();
        let guard = within(renewed.lock("job").lock()).await.unwrap();
        assert!(within(client.lock("job").try_lock_now()).await.unwrap().is_none());
        let before = guard.valid_until();
        eventually("it is renewed", async || guard.valid_until() > before).await;
        let clients = server.raw().cmd(&["CLIENT", "LIST"]).text();
        assert!(clients.lines().any(|line| line.contains(&path)), "{clients}");
        drop(server);
        let _ = std::fs::remove_file(path);
    }

    /// Its server and login are taken, its sockets are left alone.
    #[cfg(feature = "fred")]
    #[tokio::test]
    async fn a_fred_client_says_where_to_connect() {
        use leasehold::fred::prelude::{Builder, ClientLike, Config};

        let server = RedisServer::builder().args(["--requirepass", "s3cret"]).start();
        let raw = server.raw();
        raw.cmd(&["AUTH", "s3cret"]).ok();
        let url = format!("redis://:s3cret@127.0.0.1:{}/2", server.port());
        let fred = Builder::from_config(Config::from_url(&url).unwrap()).build().unwrap();
        let client = within(Client::from_fred(&fred).connect()).await.unwrap();
        let other = within(Client::from_fred_config(fred.client_config()).connect()).await.unwrap();
        live(&client, &other, "job").await;
        let guard = within(client.lock("job").lock()).await.unwrap();
        raw.cmd(&["SELECT", "2"]).ok();
        assert_eq!(raw.cmd(&["EXISTS", "job"]).int(), 1);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&raw);
    }
}

mod cluster {
    use super::*;

    /// Names for every node, some with tags.
    const NAMES: [&str; 9] =
        ["a", "b", "c", "d", "{tag}:1", "{tag}:2", "x{tag}", "a{b}c{d}", "ключ 1"];

    fn every_node(cluster: &ClusterSetup) -> impl Iterator<Item = Raw> {
        cluster.nodes.iter().map(RedisServer::raw)
    }

    fn keys(cluster: &ClusterSetup) -> i64 {
        every_node(cluster).map(|node| node.cmd(&["DBSIZE"]).int()).sum()
    }

    fn scripts_called(cluster: &ClusterSetup) -> usize {
        let stats = every_node(cluster).map(|node| node.cmd(&["INFO", "commandstats"]).text());
        stats.map(|stats| stats.matches("cmdstat_eval").count()).sum()
    }

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
}

mod sentinel {
    use super::*;

    /// Several times as long as a failover takes.
    const WATCHDOG: Duration = Duration::from_secs(15);

    async fn start() -> SentinelSetup {
        blocking(SentinelSetup::start).await
    }

    async fn connect(setup: &SentinelSetup) -> Client {
        let builder = Client::builder(setup.url()).unwrap().watchdog(WATCHDOG);
        within(builder.patience(PATIENCE).connect()).await.unwrap()
    }

    #[tokio::test]
    async fn the_primary_is_found_and_used() {
        let setup = start().await;
        let (client, other) = (connect(&setup).await, connect(&setup).await);
        live(&client, &other, "job").await;
        let guard = within(client.lock("job").lock()).await.unwrap();
        assert_eq!(setup.primary.raw().cmd(&["EXISTS", "job"]).int(), 1);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&setup.primary.raw());
    }

    /// a lock that was replicated is kept, its waiter waits on, and gets it.
    #[tokio::test]
    async fn a_failover_is_survived_by_a_hold_and_by_who_waits_for_it() {
        let setup = start().await;
        let (client, other) = (connect(&setup).await, connect(&setup).await);
        let guard = within(client.lock("job").lock()).await.unwrap();
        let waiter = tokio::spawn(other.lock("job").lock_with(LEASE));
        let primary = setup.primary.raw();
        eventually("the waiter listens", async || subscriptions(&primary) == 1).await;
        let killed = Instant::now();
        let setup = blocking(move || {
            let mut setup = setup;
            setup.wait_replicated();
            setup.kill_primary();
            setup.wait_failed_over();
            setup
        })
        .await;
        let new = setup.replica.raw();
        let count = || new.cmd(&["HGET", "job", guard.holder().as_str()]);
        assert_eq!(count().int(), 1, "it was replicated");
        // Renewed by the new primary: the lease now ends later than it could without that.
        let (bound, unrenewed) = (Instant::now() + PATIENCE, killed + WATCHDOG);
        while guard.valid_until() < unrenewed {
            assert!(Instant::now() < bound && guard.is_held(), "{guard:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!waiter.is_finished(), "it is still held");
        assert_eq!(count().int(), 1);
        within(guard.unlock()).await.unwrap();
        let guard = within(waiter).await.unwrap().unwrap();
        within(guard.detach().unlock()).await.unwrap();
        live(&client, &other, "job").await;
        eventually("all is given back", async || new.cmd(&["DBSIZE"]).int() == 0).await;
    }
}

//! The places that Redis runs in: one smoke test of the whole life of a lock for each.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use crate::support::{
    assert_no_keys, blocking, eventually, sentinel::SentinelSetup, server::RedisServer,
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
pub async fn live(client: &Client, other: &Client, name: &str) {
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

    /// each of the three connections selects it again.
    #[tokio::test]
    async fn a_database_outlives_broken_connections() {
        let server = RedisServer::start();
        let raw = server.raw();
        let connect = || {
            let builder = Client::builder(format!("{}3", server.url())).unwrap();
            builder.watchdog(Duration::from_secs(3)).connect()
        };
        let (client, other) = (within(connect()).await.unwrap(), within(connect()).await.unwrap());
        let guard = within(client.lock("job").lock()).await.unwrap();
        let before = guard.valid_until();
        eventually("it is renewed", async || guard.valid_until() > before).await;
        raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).ok();
        let there = server.raw();
        there.cmd(&["SELECT", "3"]).ok();
        let before = guard.valid_until() + Duration::from_millis(100);
        eventually("it is renewed again", async || guard.valid_until() > before).await;
        within(within(client.lock("more").lock()).await.unwrap().unlock()).await.unwrap();
        assert!(within(other.lock("job").try_lock_now()).await.unwrap().is_none());
        assert_eq!(there.cmd(&["EXISTS", "job"]).int(), 1);
        assert_no_keys(&raw);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&there);
    }

    /// as a port of which the server is gone.
    #[cfg(feature = "unix")]
    #[tokio::test]
    async fn a_unix_socket_is_connected_anew_when_its_server_is_back() {
        let path = std::env::temp_dir().join(format!("{}.sock", crate::support::unique("lh")));
        let path = path.display().to_string();
        let mut server = RedisServer::builder().args(["--unixsocket", &path]).start();
        let builder = Client::builder(format!("redis+unix://{path}")).unwrap().patience(PATIENCE);
        let client = within(builder.connect()).await.unwrap();
        within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
        server.kill();
        let tried = within(client.lock("job").try_lock(Duration::from_millis(100), LEASE)).await;
        assert!(tried.unwrap_err().is_unavailable());
        let server = blocking(move || {
            server.restart();
            server
        })
        .await;
        within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
        drop(server);
        let _ = std::fs::remove_file(path);
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

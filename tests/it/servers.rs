//! Servers that lack something, and what a client says of it: databases, commands that were taken
//! away or renamed, proxies in front of clusters, names instead of addresses, eviction.

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, ErrorKind, LockGuard, LostReason, Refusal};

use crate::support::{
    Capture, assert_no_keys, blocking,
    cluster::ClusterSetup,
    eventually,
    server::{Builder, Raw, RedisServer, free_port, until},
    subscriptions,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

/// A server that does not know these commands, as `rename-command` makes it.
fn without(commands: &[&str]) -> RedisServer {
    let unnamed = |server: Builder, command: &&str| server.args(["--rename-command", command, ""]);
    commands.iter().fold(RedisServer::builder(), unnamed).start()
}

/// What was said in the log about a server.
fn said(server: &RedisServer, text: &str) -> usize {
    let ours = format!("127.0.0.1:{}", server.port());
    let events = Capture::global().saying(text);
    events.iter().filter(|event| event.field("server") == Some(&ours)).count()
}

/// Takes, re-enters, renews, lets another wait and wakes it by message, and forces.
async fn live(url: &str, listening: impl Fn() -> usize) {
    let connect = || Client::builder(url).unwrap().watchdog(Duration::from_secs(3)).connect();
    let (client, other) = (within(connect()).await.unwrap(), within(connect()).await.unwrap());
    let guard = within(client.lock("job").lock()).await.unwrap();
    within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
    let later = guard.valid_until() + Duration::from_millis(100);
    eventually("it is renewed", async || guard.valid_until() > later).await;
    within(guard.extend(Duration::from_secs(3600))).await.unwrap();
    let waiting = tokio::spawn(other.lock("job").lock_with(LEASE));
    eventually("it listens", async || listening() == 1).await;
    within(guard.unlock()).await.unwrap();
    let guard = within(waiting).await.unwrap().unwrap();
    assert!(within(client.lock("job").force_unlock()).await.unwrap());
    drop(guard);
    assert!(!within(client.lock("job").is_locked()).await.unwrap());
}

mod commands {
    use super::*;

    /// What managed services take away: none of it is needed.
    #[tokio::test]
    async fn a_lock_lives_without_what_managed_services_take_away() {
        let server = without(&[
            "ACL",
            "BGSAVE",
            "CONFIG",
            "DEBUG",
            "FLUSHALL",
            "FLUSHDB",
            "FUNCTION",
            "INFO",
            "KEYS",
            "MONITOR",
            "REPLICAOF",
            "ROLE",
            "SAVE",
            "SCRIPT",
            "SHUTDOWN",
            "SLAVEOF",
            "SWAPDB",
        ]);
        let raw = server.raw();
        assert!(raw.cmd(&["INFO"]).error().is_some(), "it was taken away");
        live(&server.url(), || subscriptions(&raw)).await;
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
    }

    /// who cannot end broken connections says what that costs.
    #[tokio::test]
    async fn a_lock_lives_without_client_and_the_log_says_what_is_lost() {
        Capture::global();
        let server = without(&["CLIENT"]);
        let raw = server.raw();
        live(&server.url(), || subscriptions(&raw)).await;
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
        // For the commands of both, the renewals of one, the subscriptions of the other.
        eventually("it is said", async || said(&server, "cannot be killed") == 4).await;
    }

    /// And takes nothing. Servers do not tell which command it was that a script lacks.
    #[tokio::test]
    async fn a_lock_that_cannot_do_without_a_command_says_so() {
        let renamed = "renamed or taken away";
        for (missing, words) in [
            ("EVALSHA", "'EVALSHA'"),
            ("EVAL", "'EVAL'"),
            ("PTTL", renamed),
            ("PEXPIRE", renamed),
            ("HINCRBY", renamed),
        ] {
            let server = without(&[missing]);
            let client = within(Client::connect(server.url())).await.unwrap();
            let error = within(client.lock("job").lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{missing}: {error}");
            assert!(error.to_string().contains(words), "{missing}: {error}");
            assert_no_keys(&server.raw());
        }
    }

    /// A free lock is taken and given back; only who would wait is told.
    #[tokio::test]
    async fn a_waiter_that_cannot_listen_says_so() {
        for missing in ["SUBSCRIBE", "PING"] {
            let server = without(&[missing]);
            let client = within(Client::connect(server.url())).await.unwrap();
            let other = within(Client::connect(server.url())).await.unwrap();
            let guard = within(client.lock("job").lock()).await.unwrap();
            let error = within(other.lock("job").lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{missing}: {error}");
            assert!(error.to_string().contains(missing), "{missing}: {error}");
            within(guard.unlock()).await.unwrap();
            assert_no_keys(&server.raw());
        }
    }

    #[tokio::test]
    async fn a_release_that_cannot_be_published_says_so() {
        let server = without(&["PUBLISH"]);
        let client = within(Client::connect(server.url())).await.unwrap();
        let guard = within(client.lock("job").lock()).await.unwrap();
        let error = within(guard.unlock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{error}");
        assert!(error.to_string().contains("would not tell"), "{error}");
        assert_no_keys(&server.raw());
    }

    /// A server or a proxy of before RESP3: said by connect, in words.
    #[tokio::test]
    async fn a_server_that_speaks_resp2_only_is_refused_with_the_reason() {
        let server = without(&["HELLO"]);
        let error = within(Client::connect(server.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{error}");
        assert!(error.to_string().contains("RESP3"), "{error}");
        assert!(error.to_string().contains("Redis 7.0"), "{error}");
    }
}

mod addresses {
    use super::*;

    #[tokio::test]
    async fn a_name_is_as_good_as_an_address() {
        let server = RedisServer::start();
        let raw = server.raw();
        let url = server.url().replace("127.0.0.1", "localhost");
        live(&url, || subscriptions(&raw)).await;
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
    }

    /// `.invalid` is for names that never resolve.
    #[tokio::test]
    async fn a_name_of_nothing_is_told_by_connect_and_named() {
        for scheme in ["redis", "redis-cluster"] {
            let url = format!("{scheme}://no-such-host.invalid:6379");
            let error = within(Client::connect(url)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
            assert!(!error.to_string().contains("Custom {"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_database_that_is_not_there_is_told_by_connect() {
        let server = RedisServer::start();
        let error = within(Client::connect(format!("{}99", server.url()))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{error}");
        assert!(error.to_string().contains("DB index"), "{error}");
    }

    /// Else it would be passed over in silence.
    #[tokio::test]
    async fn a_database_of_a_cluster_is_refused() {
        let error = Client::builder("redis-cluster://127.0.0.1:1/3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
        for path in ["", "/", "/0"] {
            drop(Client::builder(format!("redis-cluster://127.0.0.1:1{path}")).unwrap());
        }
    }

    #[tokio::test]
    async fn a_server_with_too_many_clients_says_so() {
        let server = RedisServer::builder().args(["--maxclients", "1"]).start();
        let first = server.raw();
        first.cmd(&["PING"]).ok();
        let error = within(Client::connect(server.url())).await.unwrap_err();
        assert!(error.to_string().contains("max number of clients"), "{error}");
        drop(first);
        eventually("there is room", async || Client::connect(server.url()).await.is_ok()).await;
    }

    #[cfg(feature = "unix")]
    #[tokio::test]
    async fn a_socket_that_is_not_there_is_told_by_connect() {
        let path = std::env::temp_dir().join(crate::support::unique("no-such"));
        let url = format!("redis+unix://{}", path.display());
        let error = within(Client::connect(url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}

/// One address in front of several slots, as some services and proxies have it.
mod proxied_cluster {
    use super::*;

    fn start() -> RedisServer {
        let bus = free_port().to_string();
        let args = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let server = RedisServer::builder().args(args).start();
        let raw = server.raw();
        raw.cmd(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).ok();
        until("it serves", || raw.cmd(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok"));
        server
    }

    /// How many commands were refused for keys of several slots.
    fn refused(raw: &Raw) -> u64 {
        let stats = raw.cmd(&["INFO", "errorstats"]).text();
        let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Takes and gives back many locks at once, so that their calls meet.
    async fn crowd(client: &Client) {
        let locks: Vec<_> = (0..100).map(|i| client.lock(format!("job:{i}"))).collect();
        let guards = within(join_all(locks.iter().map(|lock| lock.lock_with(LEASE)))).await;
        let guards = guards.into_iter().map(Result::unwrap);
        for released in within(join_all(guards.map(LockGuard::unlock))).await {
            released.unwrap();
        }
    }

    #[tokio::test]
    async fn a_lock_lives_there() {
        let server = start();
        let raw = server.raw();
        live(&server.url(), || subscriptions(&raw)).await;
        eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
    }

    #[tokio::test]
    async fn calls_of_several_slots_are_refused_once_and_then_kept_apart() {
        let server = start();
        let raw = server.raw();
        let client = within(Client::connect(server.url())).await.unwrap();
        crowd(&client).await;
        let learnt = refused(&raw);
        assert!(learnt > 0, "some calls met");
        crowd(&client).await;
        crowd(&client).await;
        assert_eq!(refused(&raw), learnt);
        assert_no_keys(&raw);
    }

    /// I8: one list for all of them would lose all of them.
    #[tokio::test]
    async fn many_locks_are_renewed_there() {
        let server = start();
        let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
        let client = within(builder.connect()).await.unwrap();
        let locks: Vec<_> = (0..100).map(|i| client.lock(format!("job:{i}"))).collect();
        let guards = within(join_all(locks.iter().map(|lock| lock.lock()))).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        let ends: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
        eventually("all are renewed twice", async || {
            let longer = Duration::from_millis(1100);
            guards.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end + longer)
        })
        .await;
        for released in within(join_all(guards.into_iter().map(LockGuard::unlock))).await {
            released.unwrap();
        }
        assert_no_keys(&server.raw());
    }
}

/// what can be known of it before.
mod eviction {
    use super::*;

    const WARNING: &str = "may evict locks";

    fn start(policy: &str, limit: &str) -> RedisServer {
        let args = ["--maxmemory-policy", policy, "--maxmemory", limit];
        RedisServer::builder().args(args).start()
    }

    #[tokio::test]
    async fn who_connects_to_a_server_that_evicts_is_warned_once() {
        Capture::global();
        for policy in [
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
        ] {
            let server = start(policy, "100mb");
            let client = within(Client::connect(server.url())).await.unwrap();
            assert_eq!(said(&server, WARNING), 1, "{policy}");
            server.raw().cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).ok();
            within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
            assert_eq!(said(&server, WARNING), 1, "{policy}");
        }
    }

    #[tokio::test]
    async fn a_lazy_client_is_warned_when_it_is_connected() {
        Capture::global();
        let server = start("allkeys-lru", "100mb");
        let client = Client::connect_lazy(server.url()).await.unwrap();
        eventually("it is warned", async || said(&server, WARNING) == 1).await;
        client.close().await;
    }

    #[tokio::test]
    async fn who_connects_to_a_server_that_keeps_its_keys_is_not_warned() {
        Capture::global();
        for (policy, limit) in [("noeviction", "100mb"), ("noeviction", "0"), ("allkeys-lru", "0")]
        {
            let server = start(policy, limit);
            within(Client::connect(server.url())).await.unwrap();
            assert_eq!(said(&server, WARNING), 0, "{policy} {limit}");
        }
    }

    /// Any of them will do; behind the scenes, for there may be many.
    #[tokio::test]
    async fn one_node_of_a_cluster_that_evicts_is_enough_for_a_warning() {
        Capture::global();
        let cluster = blocking(ClusterSetup::start).await;
        let node = cluster.nodes[2].raw();
        node.cmd(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-ttl"]).ok();
        let _client = within(Client::connect(cluster.url())).await.unwrap();
        let first = format!("127.0.0.1:{}", cluster.nodes[0].port());
        eventually("it is warned", async || {
            let events = Capture::global().saying(WARNING);
            let mut servers = events.iter().filter_map(|event| event.field("server"));
            servers.any(|server| server.contains(&first))
        })
        .await;
    }

    /// INFO is for the warning alone.
    #[tokio::test]
    async fn a_user_that_may_not_ask_is_not_warned_and_lives_as_well() {
        Capture::global();
        for (right, warnings) in [("-info", 0), ("+info", 1)] {
            let server = start("allkeys-lru", "100mb");
            let user = ["ACL", "SETUSER", "u", "on", ">pw", "~*", "&*", "+@all", right];
            server.raw().cmd(&user).ok();
            let url = server.url().replace("://", "://u:pw@");
            let client = within(Client::connect(url)).await.unwrap();
            within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
            assert_eq!(said(&server, WARNING), warnings, "{right}");
        }
    }

    /// R-18, I8: what the warning warns of.
    #[tokio::test]
    async fn who_holds_an_evicted_lock_is_told_by_the_next_renewal() {
        let server = start("allkeys-random", "100mb");
        let raw = server.raw();
        let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
        let client = within(builder.connect()).await.unwrap();
        let guard = within(client.lock("job").lock()).await.unwrap();
        raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        assert!(raw.cmd(&["SET", "other", "x"]).error().is_some(), "there is no room for anything");
        assert_no_keys(&raw);
        raw.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]).ok();
        assert_eq!(within(guard.lost()).await, LostReason::Removed);
        drop(guard);
        within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
    }

    /// It is no reason to fail, nor to wait.
    #[tokio::test]
    async fn a_server_that_does_not_tell_is_used_without_a_warning() {
        Capture::global();
        let args = ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"];
        let args = args.into_iter().chain(["--rename-command", "INFO", ""]);
        let server = RedisServer::builder().args(args).start();
        let client = within(Client::connect(server.url())).await.unwrap();
        within(within(client.lock("job").lock()).await.unwrap().unlock()).await.unwrap();
        assert_eq!(said(&server, WARNING), 0);
    }
}

//! `RedissonRedLock`, deprecated there, and ours, on the same three servers. All versions that are
//! tested have it.

use std::time::Duration;

use leasehold::{Client, RedLock};

use crate::{
    pair::{KEPT_MS, LEASE, LEASE_MS, assert_woken_before, lease_end, locks, soon},
    peer::{Java, Jvm, Settings},
    support::{eventually, redisson::Redisson, server::RedisServer},
};

/// Three servers, and a client of each side at each of them.
struct Servers {
    servers: Vec<RedisServer>,
    javas: Vec<Java>,
    clients: Vec<Client>,
    java: Java,
}

impl Servers {
    async fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
        let settings = Settings { watchdog_ms: KEPT_MS, ..Settings::default() };
        let (mut javas, mut clients) = (Vec::new(), Vec::new());
        for server in &servers {
            javas.push(Java::open(Jvm::shared(), server.port(), settings).await);
            let builder = Client::builder(server.url()).expect("a URL");
            let builder = builder.watchdog(Duration::from_millis(KEPT_MS));
            clients.push(soon(builder.connect()).await.expect("the server is up"));
        }
        let java = Java::red(&javas);
        Self { servers, javas, clients, java }
    }

    fn ours(&self, name: &str) -> RedLock {
        RedLock::new(self.clients.iter().map(|client| client.lock(name)))
    }

    /// On how many servers a lock is held.
    fn held(&self, name: &str) -> usize {
        let held = |server: &&RedisServer| server.raw().cmd(&["EXISTS", name]).int() == 1;
        self.servers.iter().filter(held).count()
    }

    /// Waits until somebody waits for it on one of them, or nobody on any.
    async fn listened(&self, some: bool) {
        let channel = Redisson::channel("job");
        let listens = |server: &RedisServer| {
            server.raw().cmd(&["PUBSUB", "NUMSUB", &channel]).ok().items()[1].int() > 0
        };
        eventually("the listeners change", async || self.servers.iter().any(listens) == some).await;
    }

    async fn assert_nothing_left(&self) {
        let left = |server: &RedisServer| !locks(&server.raw()).is_empty();
        eventually("no lock is left", async || !self.servers.iter().any(left)).await;
    }
}

#[tokio::test]
async fn red_locks_of_both_sides_exclude_and_wake_each_other() {
    let all = Servers::start().await;
    let (java, ours, raw) = (&all.java, all.ours("job"), all.servers[0].raw());
    java.lock("job", 1, LEASE_MS).await.unwrap();
    assert_eq!(all.held("job"), 3);
    assert!(soon(ours.try_lock_now()).await.unwrap().is_none());
    assert!(soon(ours.try_lock(Duration::from_millis(200), LEASE)).await.unwrap().is_none());
    all.listened(false).await;
    let waiting = tokio::spawn(ours.lock_with(LEASE));
    all.listened(true).await;
    let end = lease_end(&raw, "job");
    java.unlock("job", 1).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);

    assert!(all.held("job") >= 2, "a slow third is not waited for");
    assert!(!java.try_lock("job", 1, 0, 1_000).await);
    assert!(!java.try_lock("job", 1, 300, 1_000).await);
    all.listened(false).await;
    let waiting = tokio::spawn(java.locking("job", 1, LEASE_MS));
    all.listened(true).await;
    let end = lease_end(&raw, "job");
    soon(guard.unlock()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);
    assert!(soon(ours.try_lock_now()).await.unwrap().is_none());
    java.unlock("job", 1).await.unwrap();
    all.assert_nothing_left().await;
}

/// a third party has one of the servers, and whoever has the two others has the lock.
#[tokio::test]
async fn a_majority_is_enough_for_either_side_and_keeps_the_other_out() {
    let all = Servers::start().await;
    let (java, ours, wait) = (&all.java, all.ours("job"), Duration::from_secs(3));
    all.javas[2].lock("job", 7, LEASE_MS).await.unwrap();
    assert!(java.try_lock("job", 1, 3_000, LEASE_MS).await);
    assert!(soon(ours.try_lock(Duration::from_millis(200), LEASE)).await.unwrap().is_none());
    assert!(soon(ours.try_lock_now()).await.unwrap().is_none());
    java.unlock("job", 1).await.unwrap();

    let guard = soon(ours.try_lock(wait, LEASE)).await.unwrap().expect("two are a majority");
    assert!(!java.try_lock("job", 1, 300, LEASE_MS).await);
    soon(guard.unlock()).await.unwrap();
    assert_eq!(all.held("job"), 1, "what neither of them held stays");
    assert!(java.try_lock("job", 1, 3_000, LEASE_MS).await);
    java.unlock("job", 1).await.unwrap();
    all.javas[2].unlock("job", 7).await.unwrap();
    all.assert_nothing_left().await;
}

/// For longer than two leases, on a majority at least.
#[tokio::test]
async fn each_watchdog_keeps_its_own_red_lock() {
    let all = Servers::start().await;
    all.java.lock("javas", 1, 0).await.unwrap();
    let guard = soon(all.ours("rusts").lock()).await.unwrap();
    for _ in 0..35 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for name in ["javas", "rusts"] {
            let left = |server: &RedisServer| server.raw().cmd(&["PTTL", name]).int();
            let left: Vec<_> = all.servers.iter().map(left).collect();
            let kept = left.iter().filter(|left| (1..=KEPT_MS as i64).contains(left)).count();
            // A third server that was slow is not waited for.
            assert!(kept >= 2 && !left.contains(&-1), "{name} has {left:?} ms left");
        }
    }
    assert!(soon(all.ours("javas").try_lock_now()).await.unwrap().is_none());
    assert!(!all.java.try_lock("rusts", 2, 0, 1_000).await);
    assert!(guard.is_held());
    soon(guard.unlock()).await.unwrap();
    all.java.unlock("javas", 1).await.unwrap();
    all.assert_nothing_left().await;
}

//! A server, a client of each kind, and what they have in Redis.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use leasehold::{Client, Lock, LockGuard};
use tokio::task::JoinHandle;

use crate::{
    peer::{Answer, Java, Jvm, Settings},
    support::{
        eventually,
        redisson::Redisson,
        server::{Raw, RedisServer},
    },
};

/// A hang guard, and less than any lease that is to be cut short by a message.
pub const SOON: Duration = Duration::from_secs(20);

/// The lease of holds that end by a release: who waits for it, and not for the message, hangs.
pub const LEASE: Duration = Duration::from_secs(60);
pub const LEASE_MS: u64 = 60_000;

/// Waits for something that must not hang.
#[track_caller]
pub fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let at = std::panic::Location::caller();
    async move {
        let done = tokio::time::timeout(SOON, future).await;
        done.unwrap_or_else(|_| panic!("waited {SOON:?} in vain at {at}"))
    }
}

/// The watchdog of those whose locks must be kept: on a loaded machine a JVM may stand still for a
/// second.
pub const KEPT_MS: u64 = 3_000;

/// Redisson and this crate at one server.
pub struct Pair {
    pub java: Java,
    pub client: Client,
    pub raw: Raw,
    pub server: RedisServer,
}

impl Pair {
    pub async fn start() -> Self {
        Self::with_watchdogs(30_000).await
    }

    /// Both with this lease for locks that are renewed.
    pub async fn with_watchdogs(watchdog_ms: u64) -> Self {
        let server = RedisServer::start();
        let settings = Settings { watchdog_ms, ..Settings::default() };
        let java = Java::open(Jvm::shared(), server.port(), settings).await;
        let builder = Client::builder(server.url()).expect("a URL");
        let builder = builder.watchdog(Duration::from_millis(watchdog_ms));
        let client = soon(builder.connect()).await.expect("the server is up");
        Self { java, client, raw: server.raw(), server }
    }

    /// Takes a lock in Rust, with a lease that is not renewed.
    pub async fn take(&self, name: &str) -> LockGuard {
        soon(self.client.lock(name).lock_with(LEASE)).await.expect("it can be had")
    }

    /// Begins to wait for a lock in Rust, and returns when it waits.
    pub async fn wait_in_rust(&self, name: &str) -> JoinHandle<LockGuard> {
        self.wait_until_nobody_listens(name).await;
        let lock = self.client.lock(name);
        let task = tokio::spawn(async move { granted(&lock).await });
        self.wait_for_listeners(name, 1).await;
        task
    }

    /// Begins to wait for a lock in Java, and returns when it waits.
    pub async fn wait_in_java(&self, name: &str, thread: u32) -> JoinHandle<Answer> {
        self.wait_until_nobody_listens(name).await;
        let task = tokio::spawn(self.java.locking(name, thread, LEASE_MS));
        self.wait_for_listeners(name, 1).await;
        task
    }

    /// How many clients wait for a lock, or have done so just before.
    pub fn listeners(&self, name: &str) -> i64 {
        let reply = self.raw.cmd(&["PUBSUB", "NUMSUB", &Redisson::channel(name)]).ok();
        reply.items()[1].int()
    }

    pub async fn wait_for_listeners(&self, name: &str, count: i64) {
        eventually("somebody listens", async || self.listeners(name) >= count).await;
    }

    /// Else one who waited before could be taken for one who waits now.
    pub async fn wait_until_nobody_listens(&self, name: &str) {
        eventually("nobody listens any more", async || self.listeners(name) == 0).await;
    }

    /// Who holds a lock and how often, as the server has it.
    pub fn holds(&self, name: &str) -> BTreeMap<String, String> {
        self.raw.cmd(&["HGETALL", name]).ok().map()
    }

    /// When the lock's lease ends by the server's clock, to the millisecond.
    pub fn expires(&self, name: &str) -> i64 {
        self.raw.cmd(&["PEXPIRETIME", name]).int()
    }

    /// When the lock's lease ends, if nothing happens.
    pub fn lease_end(&self, name: &str) -> Instant {
        lease_end(&self.raw, name)
    }

    /// Asserts that nothing of any lock is left but what is to stay, once Redisson has tidied up behind itself.
    pub async fn assert_nothing_left(&self) {
        let left = || locks(&self.raw).into_iter().any(|key| !stays(&key));
        eventually("no lock is left", async || !left()).await;
        eventually("no latch is left", async || may_leave_latches(&self.raw)).await;
    }
}

/// Waits for a lock and takes it with a lease.
pub async fn granted(lock: &Lock) -> LockGuard {
    soon(lock.lock_with(LEASE)).await.expect("it can be had")
}

/// When a lock's lease ends, if nothing happens.
pub fn lease_end(raw: &Raw, name: &str) -> Instant {
    let left = u64::try_from(raw.cmd(&["PTTL", name]).int()).expect("it has a lease");
    Instant::now() + Duration::from_millis(left)
}

/// Asserts that a grant came long before a lease would have ended: that a message has brought it.
#[track_caller]
pub fn assert_woken_before(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    assert!(left > LEASE / 2, "granted with {left:?} of the lease left: nobody was woken");
}

/// All keys but those by which Redisson knows an unlock that it repeats.
pub fn locks(raw: &Raw) -> Vec<String> {
    keys(raw).into_iter().filter(|key| !is_latch(key)).collect()
}

/// The last token of a fenced lock, the records of our calls, and the beats of our waiters.
pub fn stays(key: &str) -> bool {
    ["redisson_lock_token:", "leasehold_once:", "leasehold_fair:"]
        .iter()
        .any(|it| key.starts_with(it))
}

/// Redisson 3.52.0 to 4.2.0 deletes other latches than it made (#6844), so they stay for their TTL.
fn may_leave_latches(raw: &Raw) -> bool {
    let leaves = crate::peer::at_least(3, 52) && !crate::peer::at_least(4, 3);
    leaves || !keys(raw).iter().any(|key| is_latch(key))
}

fn is_latch(key: &str) -> bool {
    key.starts_with("redisson_unlock_latch:")
}

fn keys(raw: &Raw) -> Vec<String> {
    raw.cmd(&["KEYS", "*"]).ok().items().iter().map(|key| key.text()).collect()
}

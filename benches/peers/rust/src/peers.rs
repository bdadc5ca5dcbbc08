//! The locks of Rust: each with the settings of its documentation, but a lease of 30 s where one is
//! to be chosen.

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use fred::prelude::*;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::broadcast;

const LEASE: Duration = Duration::from_secs(30);

pub trait Peer: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    /// One lock as one task uses it.
    type Handle: Send + Sync + 'static;
    type Guard: Send;

    fn version() -> String {
        pinned(Self::NAME)
    }

    fn connect(url: &str) -> impl Future<Output = Self> + Send;

    fn handle(&self, name: &str) -> Self::Handle;

    /// Waits as the library waits; `None` if it gave up.
    fn lock(&self, lock: &Self::Handle) -> impl Future<Output = Option<Self::Guard>> + Send;

    fn unlock(&self, guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// Why it cannot wait for a lock, if it cannot.
    fn cannot_wait(&self) -> impl Future<Output = Option<String>> + Send {
        async { None }
    }
}

/// The version that Cargo.toml asks for.
fn pinned(name: &str) -> String {
    let manifest = include_str!("../Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    let version = line.and_then(|rest| rest.split('"').nth(1)).unwrap_or("?");
    version.trim_start_matches('=').into()
}

#[derive(Clone)]
pub struct Leasehold(leasehold::Client);

impl Peer for Leasehold {
    const NAME: &'static str = "leasehold";
    type Handle = leasehold::Lock;
    type Guard = leasehold::LockGuard;

    fn version() -> String {
        std::env::var("LEASEHOLD_VERSION").unwrap_or_else(|_| "this one".into())
    }

    async fn connect(url: &str) -> Self {
        Self(leasehold::Client::connect(url).await.expect("a server at URL"))
    }

    fn handle(&self, name: &str) -> leasehold::Lock {
        self.0.lock(name)
    }

    async fn lock(&self, lock: &leasehold::Lock) -> Option<leasehold::LockGuard> {
        Some(lock.lock().await.expect("the server answers"))
    }

    async fn unlock(&self, guard: leasehold::LockGuard) {
        guard.unlock().await.expect("we have it");
    }
}

#[derive(Clone)]
pub struct Rslock(rslock::LockManager);

impl Peer for Rslock {
    const NAME: &'static str = "rslock";
    type Handle = String;
    type Guard = rslock::LockGuard;

    async fn connect(url: &str) -> Self {
        Self(rslock::LockManager::new(vec![url]))
    }

    fn handle(&self, name: &str) -> String {
        name.into()
    }

    async fn lock(&self, name: &String) -> Option<rslock::LockGuard> {
        self.0.acquire(name.as_bytes(), LEASE).await.ok()
    }

    async fn unlock(&self, guard: rslock::LockGuard) {
        guard.release().await;
    }
}

#[derive(Clone)]
pub struct AsyncRedisLock(async_redis_lock::Locker);

impl Peer for AsyncRedisLock {
    const NAME: &'static str = "async-redis-lock";
    type Handle = String;
    type Guard = async_redis_lock::Lock;

    async fn connect(url: &str) -> Self {
        Self(async_redis_lock::Locker::from_redis_url(url).await.expect("a server at URL"))
    }

    fn handle(&self, name: &str) -> String {
        name.into()
    }

    async fn lock(&self, name: &String) -> Option<async_redis_lock::Lock> {
        self.0.acquire(name.as_str()).await.ok()
    }

    async fn unlock(&self, guard: async_redis_lock::Lock) {
        guard.release().await.expect("we have it");
    }
}

#[derive(Clone)]
pub struct DistributedLock(Arc<distributed_lock_redis::RedisLockProvider>);

impl Peer for DistributedLock {
    const NAME: &'static str = "distributed-lock-redis";
    type Handle = distributed_lock_redis::RedisDistributedLock;
    type Guard = distributed_lock_redis::RedisLockHandle;

    async fn connect(url: &str) -> Self {
        let provider = distributed_lock_redis::RedisLockProvider::new(url).await;
        Self(Arc::new(provider.expect("a server at URL")))
    }

    fn handle(&self, name: &str) -> Self::Handle {
        self.0.create_lock(name)
    }

    async fn lock(&self, lock: &Self::Handle) -> Option<Self::Guard> {
        lock.acquire(None).await.ok()
    }

    async fn unlock(&self, guard: Self::Guard) {
        guard.release().await.expect("we have it");
    }

    async fn cannot_wait(&self) -> Option<String> {
        let name = format!("bench:try:{}", std::process::id()); // others ask at the same time
        let (one, two) = (self.handle(&name), self.handle(&name));
        let guard = one.acquire(None).await.expect("nobody else has it");
        let began = Instant::now();
        let second = two.acquire(Some(Duration::from_millis(500))).await;
        let waited = began.elapsed() > Duration::from_millis(250);
        guard.release().await.expect("we have it");
        let why = "not applicable: it does not wait";
        (second.is_err() && !waited).then(|| why.into())
    }
}

/// A `tokio::sync::Mutex`: no Redis at all.
#[derive(Clone)]
pub struct Local(Arc<tokio::sync::Mutex<()>>);

impl Peer for Local {
    const NAME: &'static str = "tokio";
    type Handle = ();
    type Guard = tokio::sync::OwnedMutexGuard<()>;

    fn version() -> String {
        "sync::Mutex".into()
    }

    async fn connect(_url: &str) -> Self {
        Self(Arc::default())
    }

    fn handle(&self, _name: &str) {}

    async fn lock(&self, (): &()) -> Option<Self::Guard> {
        Some(self.0.clone().lock_owned().await)
    }

    async fn unlock(&self, guard: Self::Guard) {
        drop(guard);
    }
}

/// leasehold's two scripts as bare EVALSHAs of fred; a waiter is woken by the message alone.
///
/// The scripts are loaded by whoever starts this: `ACQUIRE` and `RELEASE` are their digests.
#[derive(Clone)]
pub struct Bare {
    client: fred::clients::Client,
    acquire: Arc<str>,
    release: Arc<str>,
    messages: Arc<broadcast::Sender<()>>,
    process: u32,
    owners: Arc<AtomicU64>,
}

pub struct BareLock {
    name: String,
    channel: String,
    owner: String,
}

impl Peer for Bare {
    const NAME: &'static str = "bare";
    type Handle = Arc<BareLock>;
    type Guard = Arc<BareLock>;

    fn version() -> String {
        format!("fred {}", pinned("fred"))
    }

    async fn connect(url: &str) -> Self {
        let config = Config::from_url(url).expect("a plain URL");
        let mut builder = Builder::from_config(config);
        builder.with_connection_config(|connection| connection.tcp.nodelay = Some(true));
        builder.with_config(|config| config.version = fred::types::RespVersion::RESP3);
        let client = builder.build().expect("a plain configuration");
        client.init().await.expect("a server at URL");
        client.subscribe("redisson_lock__channel:{bench:ball}").await.expect("it may subscribe");
        let messages = Arc::new(broadcast::channel(64).0);
        let (mut heard, told) = (client.message_rx(), messages.clone());
        tokio::spawn(async move {
            while heard.recv().await.is_ok() {
                let _ = told.send(());
            }
        });
        let digest = |name| Arc::from(std::env::var(name).expect("the digest of a script"));
        let (acquire, release) = (digest("ACQUIRE"), digest("RELEASE"));
        let (process, owners) = (std::process::id(), Arc::default());
        Self { client, acquire, release, messages, process, owners }
    }

    fn handle(&self, name: &str) -> Self::Handle {
        let id = self.owners.fetch_add(1, Ordering::Relaxed);
        Arc::new(BareLock {
            name: name.into(),
            channel: format!("redisson_lock__channel:{{{name}}}"),
            owner: format!("0b7e7d5e-7c1b-4c59-a7e0-{:012x}:{id}", self.process),
        })
    }

    async fn lock(&self, lock: &Self::Handle) -> Option<Self::Guard> {
        let mut messages = self.messages.subscribe();
        loop {
            let args = vec!["30000", &lock.owner, "1"];
            let reply = self.client.evalsha(&*self.acquire, vec![&lock.name], args).await;
            let reply: Vec<Value> = reply.expect("a script");
            if reply[0].as_i64() == Some(0) {
                return Some(lock.clone());
            }
            let _ = messages.recv().await;
        }
    }

    async fn unlock(&self, lock: Self::Guard) {
        let args = vec![lock.owner.as_str(), "0", "PUBLISH"];
        let keys = vec![&lock.name, &lock.channel];
        let reply = self.client.evalsha(&*self.release, keys, args).await;
        let reply: Vec<i64> = reply.expect("a script");
        assert!(reply[0] >= 0, "we have it");
    }
}

//! The read/write lock as clients see it: two halves of one hold, many readers or one writer. What
//! its scripts do one by one is tested with the scripts.
use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use futures::poll;
use leasehold::{Builder, Client, Error, Lock, LockGuard, Owner, ReadWriteLock};
use tokio::task::JoinHandle;

use crate::{
    rig::{Rig, soon},
    support::{
        eventually,
        proxy::{Command, Matcher},
        redisson_read_write::RedissonReadWrite,
        server::RedisServer,
        subscriptions,
    },
};

mod downgrade;
mod faults;
mod loss;
mod nesting;
mod sharing;

const NAME: &str = "catalogue";
const LONG: Duration = Duration::from_secs(60);

const SCRIPTS: [&str; 5] = [
    include_str!("../../../lua/read_write_lock/read_acquire.lua"),
    include_str!("../../../lua/read_write_lock/read_release.lua"),
    include_str!("../../../lua/read_write_lock/write_acquire.lua"),
    include_str!("../../../lua/read_write_lock/write_release.lua"),
    include_str!("../../../lua/read_write_lock/renew.lua"),
];

type Locking = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;
type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// A server, a client behind a proxy, another that goes there directly, and the lock of both.
struct Setup {
    rig: Rig,
    other: Client,
}

impl Setup {
    async fn start() -> Self {
        Self::with(|builder| builder.command_timeout(Duration::from_millis(400))).await
    }

    async fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let rig = Rig::before(RedisServer::start(), settings).await;
        let other = rig.bystander().await;
        // Else the first reply of each would be NOSCRIPT, and no fault would hit a call that ran.
        for script in SCRIPTS {
            rig.raw.cmd(&["SCRIPT", "LOAD", script]).ok();
        }
        Self { rig, other }
    }

    /// Both halves, through the proxy, for one owner.
    fn ours(&self) -> (Lock, Lock) {
        halves(&self.rig.client.read_write_lock(NAME))
    }

    /// Both halves, past the proxy, for one owner.
    fn theirs(&self) -> (Lock, Lock) {
        halves(&self.other.read_write_lock(NAME))
    }

    /// The hash, as the server has it.
    fn hash(&self) -> BTreeMap<String, String> {
        self.rig.holds(NAME)
    }

    fn pttl(&self, key: &str) -> i64 {
        self.rig.raw.cmd(&["PTTL", key]).int()
    }

    /// The key that says how long a reader lives.
    fn life(guard: &LockGuard) -> String {
        RedissonReadWrite::timeout(NAME, guard.holder().as_str(), 1)
    }

    /// Waits until nothing is left at the server, of keys or of subscriptions.
    async fn assert_nothing_left(&self) {
        let none = async || self.rig.raw.cmd(&["DBSIZE"]).int() == 0;
        eventually("nothing is left in Redis", none).await;
        eventually("nobody listens", async || subscriptions(&self.rig.raw) == 0).await;
        self.other.close().await;
        self.rig.assert_nothing_left().await;
    }
}

fn halves(lock: &ReadWriteLock) -> (Lock, Lock) {
    let owner = Owner::new();
    (lock.read().owned_by(owner.clone()), lock.write().owned_by(owner))
}

/// Locks what must come free soon.
#[track_caller]
fn locked(lock: &Lock) -> impl Future<Output = LockGuard> + use<> {
    let locking = soon(lock.lock());
    async move { locking.await.expect("it comes free") }
}

/// What a task must get soon.
async fn granted(waiting: Waiting) -> LockGuard {
    soon(waiting).await.expect("no panic").expect("its turn comes")
}

async fn given_back(guard: LockGuard) {
    soon(guard.unlock()).await.expect("it is held");
}

/// An acquisition that has been polled once: later ones come behind it.
async fn asked(lock: &Lock) -> Locking {
    let mut locking: Locking = Box::pin(lock.lock());
    assert!(poll!(&mut locking).is_pending());
    locking
}

/// Asserts that a lock is not to be had now.
#[track_caller]
fn assert_refused(lock: &Lock) -> impl Future<Output = ()> + use<> {
    let (trying, at) = (soon(lock.try_lock_now()), std::panic::Location::caller());
    async move {
        let tried = trying.await.unwrap_or_else(|error| panic!("{error} at {at}"));
        assert!(tried.is_none(), "not refused at {at}");
    }
}

/// Matches calls for the lock that are no renewals: those have two keys and three arguments.
fn calls() -> impl Matcher + Clone {
    |command: &Command| {
        let keys = command.args.get(2).map(|keys| String::from_utf8_lossy(keys).into_owned());
        let renews = keys.is_some_and(|keys| keys == "2") && command.args.len() == 8;
        (command.is("EVALSHA") || command.is("EVAL")) && command.mentions(NAME) && !renews
    }
}

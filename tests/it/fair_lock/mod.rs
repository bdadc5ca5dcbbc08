//! The fair lock as clients see it: order over all processes, and a line that only the living stand
//! in. What its scripts do one by one is tested with the scripts.
use std::{future::Future, pin::Pin, time::Duration};

use futures::poll;
use leasehold::{Builder, Client, Error, Lock, LockGuard, Owner};
use tokio::task::JoinHandle;

use crate::{
    rig::{Rig, soon},
    support::{
        assert_no_keys, eventually,
        proxy::{Command, Matcher},
        redisson_fair::FairNames,
        server::{Raw, RedisServer},
        subscriptions,
    },
};

mod faults;
mod leaving;
mod nesting;
mod order;
mod processes;
mod quiet;

const LOCK: &str = "job";
const LONG: Duration = Duration::from_secs(60);

type Locking = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;
type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// A server, a client behind a proxy, another that goes there directly, and the lock of both.
struct Setup {
    rig: Rig,
    other: Client,
    names: FairNames,
}

impl Setup {
    async fn start() -> Self {
        Self::with(|builder| builder.command_timeout(Duration::from_millis(400))).await
    }

    async fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        Self::before(RedisServer::start(), settings).await
    }

    async fn before(server: RedisServer, settings: impl FnOnce(Builder) -> Builder) -> Self {
        let rig = Rig::before(server, settings).await;
        let other = rig.bystander().await;
        // Else the first reply of each would be NOSCRIPT, and no fault would hit a call that ran.
        for script in [
            include_str!("../../../lua/fair_lock/acquire.lua"),
            include_str!("../../../lua/fair_lock/release.lua"),
            include_str!("../../../lua/fair_lock/renew.lua"),
        ] {
            rig.raw.cmd(&["SCRIPT", "LOAD", script]).ok();
        }
        Self { rig, other, names: FairNames::of(LOCK) }
    }

    /// The lock, through the proxy; each handle is an owner of its own.
    fn lock(&self) -> Lock {
        self.rig.client.fair_lock(LOCK).owned_by(Owner::new())
    }

    /// The lock, past the proxy.
    fn theirs(&self) -> Lock {
        self.other.fair_lock(LOCK).owned_by(Owner::new())
    }

    /// Who stands in line, as the server has it.
    fn line(&self) -> Vec<String> {
        line(&self.rig.raw, &self.names)
    }

    /// Waits until so many stand in line.
    async fn until_in_line(&self, count: usize) {
        until_in_line(&self.rig.raw, &self.names, count).await;
    }

    /// One more that waits, and has its place in the line.
    async fn queue(&self, lock: &Lock) -> Waiting {
        let before = self.line().len();
        let waiting = tokio::spawn(lock.lock());
        self.until_in_line(before + 1).await;
        waiting
    }

    /// Waits until nothing is left at the server, of keys or of subscriptions.
    async fn assert_nothing_left(&self) {
        let none = async || self.rig.raw.cmd(&["DBSIZE"]).int() == 0;
        eventually("nothing is left in Redis", none).await;
        eventually("nobody listens", async || subscriptions(&self.rig.raw) == 0).await;
        self.other.close().await;
        self.rig.assert_nothing_left().await;
        assert_no_keys(&self.rig.raw);
    }
}

fn line(raw: &Raw, names: &FairNames) -> Vec<String> {
    let line = raw.cmd(&["LRANGE", &names.queue, "0", "-1"]).ok();
    line.items().iter().map(|waiter| waiter.text()).collect()
}

async fn until_in_line(raw: &Raw, names: &FairNames, count: usize) {
    eventually(&format!("{count} stand in line"), async || line(raw, names).len() == count).await;
}

async fn granted(waiting: Waiting) -> LockGuard {
    soon(waiting).await.expect("no panic").expect("its turn comes")
}

/// An acquisition that has been polled once.
async fn start(lock: &Lock) -> Locking {
    let mut locking: Locking = Box::pin(lock.lock());
    assert!(poll!(&mut locking).is_pending());
    locking
}

/// Matches calls that take the lock or join its line.
fn acquiring() -> impl Matcher + Clone {
    |command: &Command| is_call(command, 4, 4)
}

/// Matches calls that give the lock or a place in its line back.
fn releasing() -> impl Matcher + Clone {
    |command: &Command| is_call(command, 5, 3)
}

/// Matches renewals and signs of life.
fn renewing() -> impl Matcher + Clone {
    |command: &Command| is_call(command, 5, 4)
}

/// Whether it calls a script with so many keys and arguments for each entry of a list.
fn is_call(command: &Command, keys: usize, args: usize) -> bool {
    if !(command.is("EVALSHA") || command.is("EVAL")) || !command.mentions(LOCK) {
        return false;
    }
    let count: usize = String::from_utf8_lossy(&command.args[2]).parse().unwrap_or(0);
    count > 0 && count % keys == 0 && (command.args.len() - 3 - count) * keys == count * args
}

//! A peer that leaves in Redis what Java's Redisson leaves there, for a plain lock.
//!
//! It is driven by hand, with plain commands in transactions: the keys, fields, times to live and
//! messages are Redisson's, the way there is not. Calls block the thread.
use std::sync::atomic::{AtomicU64, Ordering};

use super::server::{Raw, Reply};

/// One process that uses Redisson: an id, and as many threads as there are numbers.
#[derive(Debug)]
pub struct Redisson {
    raw: Raw,
    id: String,
}

impl Redisson {
    /// How long an unlock may be sent again, in milliseconds.
    const LATCH_MS: &str = "20000";

    pub fn connect(port: u16) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (process, nth) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let id = format!("{process:08x}-0000-4000-8000-{nth:012x}");
        Self { raw: Raw::connect(port), id }
    }

    /// The id of this process, in the form of a random UUID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The field of a lock's hash that stands for a thread of this process.
    pub fn owner(&self, thread: i64) -> String {
        format!("{}:{thread}", self.id)
    }

    /// Tries once to lock: `None` if that succeeded, else how many milliseconds the holder has
    /// left, where -1 says that the lock never ends.
    pub fn try_lock(&self, name: &str, thread: i64, lease_ms: u64) -> Option<i64> {
        let (owner, lease) = (self.owner(thread), lease_ms.to_string());
        self.update(name, || {
            let held = self.ask(&["EXISTS", name]).int() == 1;
            if held && !self.holds(name, &owner) {
                return (vec![], Some(self.ask(&["PTTL", name]).int()));
            }
            let count_up = words(&["HINCRBY", name, &owner, "1"]);
            (vec![count_up, words(&["PEXPIRE", name, &lease])], None)
        })
    }

    /// Unlocks once: `None` if the thread does not hold the lock, else whether that was the last
    /// of its holds, so that the lock is free and announced. A hold that stays gets the lease anew.
    pub fn unlock(&self, name: &str, thread: i64, lease_ms: u64) -> Option<bool> {
        let (owner, lease) = (self.owner(thread), lease_ms.to_string());
        let latch = Self::latch(name);
        let latched = |result| words(&["SET", &latch, result, "PX", Self::LATCH_MS]);
        let last = self.update(name, || {
            if !self.holds(name, &owner) {
                return (vec![], None);
            }
            if self.ask(&["HGET", name, &owner]).int() > 1 {
                let count_down = words(&["HINCRBY", name, &owner, "-1"]);
                let renew = words(&["PEXPIRE", name, &lease]);
                return (vec![count_down, renew, latched("0")], Some(false));
            }
            (vec![words(&["DEL", name]), Self::announcement(name), latched("1")], Some(true))
        });
        self.ask(&["DEL", &latch]);
        last
    }

    /// Frees the lock whoever holds it; returns whether somebody did.
    pub fn force_unlock(&self, name: &str) -> bool {
        self.update(name, || match self.ask(&["EXISTS", name]).int() {
            0 => (vec![], false),
            _ => (vec![words(&["DEL", name]), Self::announcement(name)], true),
        })
    }

    /// Renews as the watchdog does; returns whether the thread still holds the lock.
    pub fn renew(&self, name: &str, thread: i64, lease_ms: u64) -> bool {
        let (owner, lease) = (self.owner(thread), lease_ms.to_string());
        self.update(name, || match self.holds(name, &owner) {
            false => (vec![], false),
            true => (vec![words(&["PEXPIRE", name, &lease])], true),
        })
    }

    /// How often a thread of this process holds the lock.
    pub fn hold_count(&self, name: &str, thread: i64) -> i64 {
        match self.ask(&["HGET", name, &self.owner(thread)]) {
            Reply::Nil => 0,
            count => count.int(),
        }
    }

    /// Tries once to take a fenced lock, and answers as the server answers Java: -1 and a token if
    /// that succeeded, else the milliseconds that the holder has left and -1. Its re-entries draw
    /// a token too.
    pub fn try_fenced_lock(&self, name: &str, thread: i64, lease_ms: u64) -> [i64; 2] {
        let (owner, lease, token) = (self.owner(thread), lease_ms.to_string(), Self::token(name));
        self.update(name, || {
            let held = self.ask(&["EXISTS", name]).int() == 1;
            if held && !self.holds(name, &owner) {
                return (vec![], [self.ask(&["PTTL", name]).int(), -1]);
            }
            let last = self.ask(&["GET", &token]);
            let drawn = if last.is_nil() { 1 } else { last.int() + 1 };
            let draw = words(&["INCR", &token]);
            let count_up = words(&["HINCRBY", name, &owner, "1"]);
            (vec![draw, count_up, words(&["PEXPIRE", name, &lease])], [-1, drawn])
        })
    }

    /// The key that has the last token of a fenced lock.
    pub fn token(name: &str) -> String {
        prefixed("redisson_lock_token", name)
    }

    /// The channel that an unlock is announced on.
    pub fn channel(name: &str) -> String {
        prefixed("redisson_lock__channel", name)
    }

    fn announcement(name: &str) -> Vec<String> {
        words(&["PUBLISH", &Self::channel(name), "0"])
    }

    /// The key that remembers the result of one unlock, until the client has seen it.
    fn latch(name: &str) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let request = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("{}:{request:032x}", prefixed("redisson_unlock_latch", name))
    }

    fn holds(&self, name: &str, owner: &str) -> bool {
        self.ask(&["HEXISTS", name, owner]).int() == 1
    }

    fn ask(&self, command: &[&str]) -> Reply {
        self.raw.cmd(command).ok()
    }

    /// Looks at a lock and does at once what follows, or looks again if the lock has changed.
    fn update<T>(&self, name: &str, look: impl Fn() -> (Vec<Vec<String>>, T)) -> T {
        loop {
            self.ask(&["WATCH", name]);
            let (commands, result) = look();
            self.ask(&["MULTI"]);
            for command in commands {
                self.ask(&command.iter().map(String::as_str).collect::<Vec<_>>());
            }
            let replies = self.ask(&["EXEC"]);
            if !replies.is_nil() {
                replies.items().iter().for_each(|reply| drop(reply.clone().ok()));
                return result;
            }
        }
    }
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// A name that Redisson derives: in the slot of the lock, unless the lock's own name has a brace.
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

//! A peer that leaves in Redis what Java's Redisson leaves there, for a read/write lock.
//!
//! It is driven by hand, with plain commands in transactions: the keys, fields, times to live and
//! messages are Redisson's, its faults included; the way there is not. Calls block the thread.
use std::sync::atomic::{AtomicU64, Ordering};

use super::server::{Raw, Reply};

/// One process that uses Redisson: an id, and as many threads as there are numbers.
#[derive(Debug)]
pub struct RedissonReadWrite {
    raw: Raw,
    id: String,
}

/// Commands to send at once.
type Commands = Vec<Vec<String>>;

/// What a lock's hash says.
struct State {
    fields: Vec<(String, String)>,
}

impl State {
    fn get(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str())
    }

    fn mode(&self) -> Option<&str> {
        self.get("mode")
    }

    fn count(&self, field: &str) -> i64 {
        self.get(field).map_or(0, |count| count.parse().expect("a count"))
    }
}

impl RedissonReadWrite {
    /// How long an unlock may be sent again, in milliseconds.
    const LATCH_MS: &str = "20000";

    pub fn connect(port: u16) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (process, nth) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let id = format!("{process:08x}-0000-4000-8001-{nth:012x}");
        Self { raw: Raw::connect(port), id }
    }

    /// The field that stands for what a thread of this process reads with.
    pub fn owner(&self, thread: i64) -> String {
        format!("{}:{thread}", self.id)
    }

    /// Where the waiters of both modes listen.
    pub fn channel(name: &str) -> String {
        prefixed("redisson_rwlock", name)
    }

    /// What the keys of all read holds of a lock begin with.
    pub fn prefix(name: &str) -> String {
        if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") }
    }

    /// The key of one read hold of an owner.
    pub fn timeout(name: &str, owner: &str, i: i64) -> String {
        format!("{}:{owner}:rwlock_timeout:{i}", Self::prefix(name))
    }

    /// Tries once to read: `None` if that succeeded, else how many milliseconds the lock has left.
    pub fn try_read(&self, name: &str, thread: i64, lease_ms: i64) -> Option<i64> {
        let (owner, lease) = (self.owner(thread), lease_ms.to_string());
        self.update(name, || {
            let state = self.state(name);
            let own_write = state.get(&format!("{owner}:write")).is_some();
            let mut commands = match state.mode() {
                None => vec![words(&["HSET", name, "mode", "read", &owner, "1"])],
                Some("read") => vec![words(&["HINCRBY", name, &owner, "1"])],
                Some(_) if own_write => vec![words(&["HINCRBY", name, &owner, "1"])],
                Some(_) => return (vec![], Some(self.ttl(name))),
            };
            let key = Self::timeout(name, &owner, state.count(&owner) + 1);
            commands.push(words(&["SET", &key, "1", "PX", &lease]));
            let left = if state.mode().is_some() { self.ttl(name) } else { -2 };
            commands.push(words(&["PEXPIRE", name, &left.max(lease_ms).to_string()]));
            (commands, None)
        })
    }

    /// Tries once to write: `None` if that succeeded, else how many milliseconds the lock has left.
    pub fn try_write(&self, name: &str, thread: i64, lease_ms: i64) -> Option<i64> {
        let field = format!("{}:write", self.owner(thread));
        self.update(name, || {
            let state = self.state(name);
            let (command, left) = match state.mode() {
                None => (words(&["HSET", name, "mode", "write", &field, "1"]), 0),
                // The lease is added to what is left.
                Some("write") if state.get(&field).is_some() => {
                    (words(&["HINCRBY", name, &field, "1"]), self.ttl(name))
                }
                Some(_) => return (vec![], Some(self.ttl(name))),
            };
            let expire = words(&["PEXPIRE", name, &(left + lease_ms).to_string()]);
            (vec![command, expire], None)
        })
    }

    /// Gives one read hold back: `None` if the thread has none, else whether the lock became free.
    pub fn unlock_read(&self, name: &str, thread: i64) -> Option<bool> {
        let owner = self.owner(thread);
        self.unlatched(name, |latch| {
            let state = self.state(name);
            if state.mode().is_none() {
                return (vec![Self::message(name, "0"), latched(latch, "1")], None);
            }
            let Some(count) = state.get(&owner).map(|_| state.count(&owner)) else {
                return (vec![], None);
            };
            let mut commands = vec![words(&["HINCRBY", name, &owner, "-1"])];
            if count == 1 {
                commands.push(words(&["HDEL", name, &owner]));
            }
            commands.push(words(&["DEL", &Self::timeout(name, &owner, count)]));
            let left = state.fields.len() - usize::from(count == 1);
            let longest = if left > 1 { self.longest(name, &state, &owner, count) } else { 0 };
            if longest > 0 {
                // Also if somebody writes, whose time may have been longer.
                commands.push(words(&["PEXPIRE", name, &longest.to_string()]));
            } else if left <= 1 || state.mode() != Some("write") {
                commands.extend([words(&["DEL", name]), Self::message(name, "0")]);
                commands.push(latched(latch, "1"));
                return (commands, Some(true));
            }
            commands.push(latched(latch, "0"));
            (commands, Some(false))
        })
    }

    /// Gives one write hold back: `None` if the thread has none, else whether it was the last.
    pub fn unlock_write(&self, name: &str, thread: i64, lease_ms: i64) -> Option<bool> {
        let field = format!("{}:write", self.owner(thread));
        self.unlatched(name, |latch| {
            let state = self.state(name);
            if state.mode().is_none() {
                return (vec![Self::message(name, "1"), latched(latch, "1")], None);
            }
            if state.mode() != Some("write") || state.get(&field).is_none() {
                return (vec![], None);
            }
            if state.count(&field) > 1 {
                let down = words(&["HINCRBY", name, &field, "-1"]);
                let expire = words(&["PEXPIRE", name, &lease_ms.to_string()]);
                return (vec![down, expire, latched(latch, "0")], Some(false));
            }
            let mut commands = vec![words(&["HDEL", name, &field])];
            if state.fields.len() == 2 {
                commands.extend([words(&["DEL", name]), Self::message(name, "1")]);
            } else {
                // Nobody is told that there are readers only.
                commands.push(words(&["HSET", name, "mode", "read"]));
            }
            commands.push(latched(latch, "1"));
            (commands, Some(true))
        })
    }

    /// Renews a read hold as the watchdog does; returns whether it is still there.
    pub fn renew_read(&self, name: &str, thread: i64, lease_ms: i64) -> bool {
        let (owner, lease) = (self.owner(thread), lease_ms.to_string());
        self.update(name, || {
            let count = self.state(name).count(&owner);
            let keys = (1..=count).rev().map(|i| Self::timeout(name, &owner, i));
            let live: Vec<_> = keys.filter(|key| self.ttl(key) != -2).collect();
            let mut commands: Vec<_> =
                live.iter().map(|key| words(&["PEXPIRE", key, &lease])).collect();
            if !live.is_empty() {
                // Also if another reader's time was longer.
                commands.push(words(&["PEXPIRE", name, &lease]));
            }
            (commands, !live.is_empty())
        })
    }

    /// Renews a write hold as the watchdog does; returns whether it is still there.
    pub fn renew_write(&self, name: &str, thread: i64, lease_ms: i64) -> bool {
        let field = format!("{}:write", self.owner(thread));
        self.update(name, || match self.state(name).get(&field).is_some() {
            false => (vec![], false),
            true => (vec![words(&["PEXPIRE", name, &lease_ms.to_string()])], true),
        })
    }

    /// Frees the lock if it is held in this mode; returns whether it was.
    pub fn force_unlock(&self, name: &str, mode: &str) -> bool {
        let payload = if mode == "read" { "0" } else { "1" };
        self.update(name, || match self.state(name).mode() == Some(mode) {
            false => (vec![], false),
            true => (vec![words(&["DEL", name]), Self::message(name, payload)], true),
        })
    }

    pub fn is_read_locked(&self, name: &str) -> bool {
        let state = self.state(name);
        match state.mode() {
            Some("read") => true,
            Some("write") => state.fields.len() > 2,
            _ => false,
        }
    }

    pub fn is_write_locked(&self, name: &str) -> bool {
        self.state(name).mode() == Some("write")
    }

    /// The longest time any reader has left when `owner` has given its `released`th hold back.
    fn longest(&self, name: &str, state: &State, owner: &str, released: i64) -> i64 {
        let mut longest = 0;
        for (field, count) in &state.fields {
            let Ok(count) = count.parse::<i64>() else { continue };
            let count = if field == owner { released - 1 } else { count };
            let left = (1..=count).map(|i| self.ttl(&Self::timeout(name, field, i)));
            longest = longest.max(left.max().unwrap_or(0));
        }
        longest
    }

    fn state(&self, name: &str) -> State {
        let fields = self.ask(&["HGETALL", name]);
        let pairs = fields.items().chunks(2).map(|pair| (pair[0].text(), pair[1].text()));
        State { fields: pairs.collect() }
    }

    fn ttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key]).int()
    }

    fn message(name: &str, payload: &str) -> Vec<String> {
        words(&["PUBLISH", &Self::channel(name), payload])
    }

    /// An update that remembers its result for a while in a key of its own, which goes as soon as
    /// the client has seen the result.
    fn unlatched<T>(&self, name: &str, look: impl Fn(&str) -> (Commands, T)) -> T {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let request = NEXT.fetch_add(1, Ordering::Relaxed);
        let latch = format!("{}:{request:032x}", prefixed("redisson_unlock_latch", name));
        let result = self.update(name, || look(&latch));
        self.ask(&["DEL", &latch]);
        result
    }

    fn ask(&self, command: &[&str]) -> Reply {
        self.raw.cmd(command).ok()
    }

    /// Looks at a lock and does at once what follows, or looks again if the lock has changed.
    fn update<T>(&self, name: &str, look: impl Fn() -> (Commands, T)) -> T {
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

fn latched(latch: &str, result: &str) -> Vec<String> {
    words(&["SET", latch, result, "PX", RedissonReadWrite::LATCH_MS])
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// A name that Redisson derives: in the slot of the lock, unless the lock's own name has a brace.
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

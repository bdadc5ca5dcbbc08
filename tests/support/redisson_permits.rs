//! A peer that leaves in Redis what Java's Redisson leaves there, for semaphores, permits that
//! expire and count-down latches.
//!
//! It is driven by hand, with plain commands in transactions: keys, values, times to live and
//! messages are Redisson's, the way there is not. Calls block the thread.
use std::time::SystemTime;

use super::server::{Raw, Reply};

/// The score of a permit that never expires.
pub const NEVER: i64 = 922_337_203_685_477;

/// The id of a permit: what Redisson shows in hexadecimal, Redis has as raw bytes.
pub type PermitId = [u8; 16];

/// One process that uses Redisson.
#[derive(Debug)]
pub struct RedissonPermits {
    raw: Raw,
}

type Command = Vec<Vec<u8>>;

/// `RSemaphore`.
impl RedissonPermits {
    pub fn connect(port: u16) -> Self {
        Self { raw: Raw::connect(port) }
    }

    pub fn try_acquire(&self, name: &str, permits: i64) -> bool {
        self.update(&[name], || match self.number(name) {
            Some(there) if there >= permits => {
                (vec![words(&["DECRBY", name, &text(permits)])], true)
            }
            _ => (vec![], false),
        })
    }

    pub fn release(&self, name: &str, permits: i64) {
        self.update(&[name], || {
            let sum = self.number(name).unwrap_or(0) + permits;
            (vec![words(&["INCRBY", name, &text(permits)]), announcement(name, sum)], ())
        });
    }

    pub fn release_if_exists(&self, name: &str, permits: i64) -> bool {
        let there = self.number(name).is_some();
        if there {
            self.release(name, permits);
        }
        there
    }

    /// Also `trySetPermits` of permits that expire.
    pub fn try_set_permits(&self, name: &str, permits: i64, ttl_ms: Option<u64>) -> bool {
        self.update(&[name], || {
            if self.number(name).is_some() {
                return (vec![], false);
            }
            let mut set = words(&["SET", name, &text(permits)]);
            if let Some(ttl_ms) = ttl_ms {
                set.extend(words(&["PX", &ttl_ms.to_string()]));
            }
            (vec![set, announcement(name, permits)], true)
        })
    }

    pub fn add_permits(&self, name: &str, permits: i64) {
        self.update(&[name], || {
            let sum = self.number(name).unwrap_or(0) + permits;
            (vec![words(&["SET", name, &text(sum)]), announcement(name, sum)], ())
        });
    }

    pub fn drain_permits(&self, name: &str) -> i64 {
        self.update(&[name], || {
            let old = self.number(name).unwrap_or(0);
            (vec![words(&["SET", name, "0"])], old)
        })
    }

    pub fn available_permits(&self, name: &str) -> i64 {
        self.number(name).unwrap_or(0)
    }
}

/// `RPermitExpirableSemaphore`.
impl RedissonPermits {
    /// Tries once; if refused, says at which time of the clock the first permit expires, if any.
    pub fn try_acquire_ids(
        &self,
        name: &str,
        ids: &[PermitId],
        lease_ms: Option<u64>,
    ) -> Result<(), Option<i64>> {
        let deadlines = Self::deadlines(name);
        self.update(&[name, &deadlines], || {
            let (mut commands, there) = self.reclaim(name, ids.len());
            if there < ids.len() as i64 {
                let first = self.ask(&["ZRANGE", &deadlines, "0", "0", "WITHSCORES"]);
                let first = first.items().get(1).map(Reply::int).filter(|score| *score != NEVER);
                return (commands, Err(first));
            }
            commands.push(words(&["DECRBY", name, &ids.len().to_string()]));
            let ends = lease_ms.map_or(NEVER, |lease_ms| now() + lease_ms as i64);
            let mut add = words(&["ZADD", &deadlines]);
            for id in ids {
                add.extend([text(ends).into_bytes(), id.to_vec()]);
            }
            commands.push(add);
            let ttl = self.ask(&["PTTL", name]).int();
            if ttl > 0 {
                commands.push(words(&["PEXPIRE", &deadlines, &text(ttl)]));
            }
            (commands, Ok(()))
        })
    }

    /// Whether the permit was given back in time; one that has expired is taken back all the same.
    pub fn try_release(&self, name: &str, id: &PermitId) -> bool {
        let deadlines = Self::deadlines(name);
        self.update(&[name, &deadlines], || {
            let Some(ends) = self.score(name, id) else { return (vec![], false) };
            let sum = self.number(name).unwrap_or(0) + 1;
            let mut remove = words(&["ZREM", &deadlines]);
            remove.push(id.to_vec());
            let give = words(&["INCRBY", name, "1"]);
            (vec![remove, give, announcement(name, sum)], ends > now())
        })
    }

    /// Whether a permit stands, and now for so long.
    pub fn update_lease_time(&self, name: &str, id: &PermitId, lease_ms: u64) -> bool {
        let deadlines = Self::deadlines(name);
        self.update(&[name, &deadlines], || {
            let (mut commands, _) = self.reclaim(name, usize::MAX);
            let stands = self.score(name, id).is_some_and(|ends| ends > now());
            if stands {
                let ends = text(now() + lease_ms as i64);
                let mut add = words(&["ZADD", &deadlines, &ends]);
                add.push(id.to_vec());
                commands.push(add);
            }
            (commands, stands)
        })
    }

    /// Sets how many permits there are, those in use among them.
    pub fn set_permits(&self, name: &str, permits: i64) {
        let deadlines = Self::deadlines(name);
        self.update(&[name, &deadlines], || {
            let Some(there) = self.number(name) else {
                let set = words(&["SET", name, &text(permits)]);
                return (vec![set, announcement(name, permits)], ());
            };
            match permits - there - self.ask(&["ZCARD", &deadlines]).int() {
                0 => (vec![], ()),
                more => {
                    let change = words(&["INCRBY", name, &text(more)]);
                    (vec![change, announcement(name, permits)], ())
                }
            }
        });
    }

    /// How many can be taken, and how many are in use.
    pub fn counts(&self, name: &str) -> (i64, i64) {
        let deadlines = Self::deadlines(name);
        self.update(&[name, &deadlines], || {
            let (commands, there) = self.reclaim(name, usize::MAX);
            let standing = ["ZCOUNT", &deadlines, &format!("({}", now()), "+inf"];
            (commands, (there, self.ask(&standing).int()))
        })
    }

    /// The times at which permits end.
    pub fn deadlines(name: &str) -> String {
        if name.contains('{') { format!("{name}:timeout") } else { format!("{{{name}}}:timeout") }
    }

    /// What takes back at most so many permits that have expired, and how many there are then.
    fn reclaim(&self, name: &str, limit: usize) -> (Vec<Command>, i64) {
        let deadlines = Self::deadlines(name);
        let there = self.number(name).unwrap_or(0);
        let ended = self.ask(&["ZRANGE", &deadlines, "0", &text(now()), "BYSCORE"]);
        let ended: Vec<_> = ended.items().iter().take(limit).map(bytes).collect();
        if ended.is_empty() {
            return (vec![], there);
        }
        let sum = there + ended.len() as i64;
        let give = words(&["INCRBY", name, &ended.len().to_string()]);
        let remove = [words(&["ZREM", &deadlines]), ended].concat();
        let mut commands = vec![remove, give];
        if sum > 0 {
            commands.push(announcement(name, sum));
        }
        (commands, sum)
    }

    fn score(&self, name: &str, id: &PermitId) -> Option<i64> {
        let deadlines = Self::deadlines(name);
        let score = self.raw.cmd_bytes(&[b"ZSCORE", deadlines.as_bytes(), id]).ok();
        (!score.is_nil()).then(|| score.int())
    }
}

/// `RCountDownLatch`.
impl RedissonPermits {
    pub fn count_down(&self, name: &str) {
        self.update(&[name], || {
            let mut commands = vec![words(&["DECR", name])];
            let left = self.number(name).unwrap_or(0) - 1;
            if left <= 0 {
                commands.push(words(&["DEL", name]));
            }
            if left == 0 {
                commands.push(words(&["PUBLISH", &Self::latch_channel(name), "0"]));
            }
            (commands, ())
        });
    }

    pub fn try_set_count(&self, name: &str, count: i64) -> bool {
        self.update(&[name], || match self.number(name) {
            Some(_) => (vec![], false),
            None => {
                let told = words(&["PUBLISH", &Self::latch_channel(name), "1"]);
                (vec![words(&["SET", name, &text(count)]), told], true)
            }
        })
    }

    pub fn delete_latch(&self, name: &str) -> bool {
        self.update(&[name], || match self.number(name) {
            None => (vec![], false),
            Some(_) => {
                let told = words(&["PUBLISH", &Self::latch_channel(name), "1"]);
                (vec![words(&["DEL", name]), told], true)
            }
        })
    }

    pub fn count(&self, name: &str) -> i64 {
        self.number(name).unwrap_or(0)
    }

    /// Where waiters of a latch listen: always with braces, whatever the name has.
    pub fn latch_channel(name: &str) -> String {
        format!("redisson_countdownlatch__channel__{{{name}}}")
    }
}

impl RedissonPermits {
    /// Where waiters of a semaphore listen, permits that expire included.
    pub fn channel(name: &str) -> String {
        let prefix = "redisson_sc";
        if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
    }

    fn number(&self, name: &str) -> Option<i64> {
        let stored = self.ask(&["GET", name]);
        (!stored.is_nil()).then(|| stored.int())
    }

    fn ask(&self, command: &[&str]) -> Reply {
        self.raw.cmd(command).ok()
    }

    /// Looks at keys and does at once what follows, or looks again if they have changed.
    fn update<T>(&self, keys: &[&str], look: impl Fn() -> (Vec<Command>, T)) -> T {
        loop {
            self.ask(&[&["WATCH"], keys].concat());
            let (commands, result) = look();
            self.ask(&["MULTI"]);
            for command in commands {
                let command: Vec<_> = command.iter().map(Vec::as_slice).collect();
                self.raw.cmd_bytes(&command).ok();
            }
            let replies = self.ask(&["EXEC"]);
            if !replies.is_nil() {
                replies.items().iter().for_each(|reply| drop(reply.clone().ok()));
                return result;
            }
        }
    }
}

fn announcement(name: &str, permits: i64) -> Command {
    words(&["PUBLISH", &RedissonPermits::channel(name), &text(permits)])
}

fn words(command: &[&str]) -> Command {
    command.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn text(number: i64) -> String {
    number.to_string()
}

fn bytes(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("no bytes: {other:?}"),
    }
}

/// The client's clock, as in Redisson.
fn now() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as i64
}

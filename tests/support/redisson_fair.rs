//! A peer that leaves in Redis what Java's Redisson leaves there, for a fair lock.
//!
//! It is driven by hand, with plain commands in transactions: keys, scores, times to live and
//! messages are Redisson's, the way there is not. Its clock can be set: Redisson takes deadlines
//! from the clock of its own machine. Calls block the thread.
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::SystemTime;

use super::server::{Raw, Reply};

/// One process that uses Redisson: an id, and as many threads as there are numbers.
#[derive(Debug)]
pub struct RedissonFair {
    raw: Raw,
    id: String,
    now_ms: Cell<Option<i64>>,
}

/// The names of one fair lock.
#[derive(Clone, Debug)]
pub struct FairNames {
    pub lock: String,
    pub queue: String,
    pub deadlines: String,
    /// What the channels of the waiters begin with.
    pub channel: String,
}

/// Commands to send at once, and waiters in order, each with its deadline.
type Commands = Vec<Vec<String>>;
type Queue = VecDeque<(String, Option<i64>)>;

impl FairNames {
    pub fn of(name: &str) -> Self {
        let prefixed = |prefix: &str| match name.contains('{') {
            true => format!("{prefix}:{name}"),
            false => format!("{prefix}:{{{name}}}"),
        };
        Self {
            lock: name.to_owned(),
            queue: prefixed("redisson_lock_queue"),
            deadlines: prefixed("redisson_lock_timeout"),
            channel: prefixed("redisson_lock__channel"),
        }
    }

    /// The channel of one waiter.
    pub fn mailbox(&self, owner: &str) -> String {
        format!("{}:{owner}", self.channel)
    }
}

impl RedissonFair {
    /// How long a waiter without a limit may stay at the head: `fairLockWaitTimeout`.
    pub const WAIT_MS: i64 = 300_000;

    pub fn connect(port: u16, id: &str) -> Self {
        Self { raw: Raw::connect(port), id: id.to_owned(), now_ms: Cell::new(None) }
    }

    /// Sets the clock of this process, in milliseconds since 1970.
    pub fn set_clock(&self, now_ms: i64) {
        self.now_ms.set(Some(now_ms));
    }

    pub fn owner(&self, thread: i64) -> String {
        format!("{}:{thread}", self.id)
    }

    /// A try of `lock` or of `tryLock` with a wait, which queues: `None` if it has the lock, else
    /// what it is told of the time left.
    pub fn acquire(&self, names: &FairNames, thread: i64, lease: i64, wait: i64) -> Option<i64> {
        let owner = self.owner(thread);
        self.update(names, |now, mut queue, mut commands| {
            if self.take(names, &owner, lease, wait, &mut queue, &mut commands) {
                return (commands, None);
            }
            let ttl = self.ask(&["PTTL", &names.lock]).int();
            if !self.ask(&["ZSCORE", &names.deadlines, &owner]).is_nil() {
                return (commands, Some(ttl.max(0)));
            }
            let last = queue.back().filter(|(last, _)| *last != owner);
            let told = last.and_then(|(_, due)| *due).map_or(ttl, |due| due - now);
            let deadline = (told + wait + now).to_string();
            commands.push(words(&["ZADD", &names.deadlines, &deadline, &owner]));
            commands.push(words(&["RPUSH", &names.queue, &owner]));
            (commands, Some(told))
        })
    }

    /// `tryLock()`, which never queues.
    pub fn try_once(&self, names: &FairNames, thread: i64, lease: i64) -> bool {
        let owner = self.owner(thread);
        self.update(names, |_, mut queue, mut commands| {
            let wait = Self::WAIT_MS;
            let taken = self.take(names, &owner, lease, wait, &mut queue, &mut commands);
            (commands, taken)
        })
    }

    /// What a `tryLock` does when its wait is over.
    pub fn give_up(&self, names: &FairNames, thread: i64, wait: i64) {
        let owner = self.owner(thread);
        self.update_as_is(names, |_, queue, mut commands| {
            let behind = queue.iter().skip_while(|(waiter, _)| *waiter != owner).skip(1);
            behind.for_each(|waiter| commands.extend(Self::earlier(names, waiter, wait)));
            commands.push(words(&["ZREM", &names.deadlines, &owner]));
            commands.push(words(&["LREM", &names.queue, "0", &owner]));
            (commands, ())
        });
    }

    /// Unlocks once: `None` if the thread does not hold the lock, else whether it is free now.
    pub fn unlock(&self, names: &FairNames, thread: i64, lease: i64) -> Option<bool> {
        let owner = self.owner(thread);
        self.update(names, |_, queue, mut commands| {
            let tell = queue.front().map(|(head, _)| names.mailbox(head));
            let tell = tell.map(|mailbox| words(&["PUBLISH", &mailbox, "0"]));
            if self.ask(&["EXISTS", &names.lock]).int() == 0 {
                commands.extend(tell);
                return (commands, Some(true));
            }
            match self.ask(&["HGET", &names.lock, &owner]) {
                Reply::Nil => (commands, None),
                count if count.int() > 1 => {
                    commands.push(words(&["HINCRBY", &names.lock, &owner, "-1"]));
                    commands.push(words(&["PEXPIRE", &names.lock, &lease.to_string()]));
                    (commands, Some(false))
                }
                _ => {
                    commands.push(words(&["DEL", &names.lock]));
                    commands.extend(tell);
                    (commands, Some(true))
                }
            }
        })
    }

    /// Frees the lock whoever holds it; returns whether somebody did.
    pub fn force_unlock(&self, names: &FairNames) -> bool {
        self.update(names, |_, queue, mut commands| {
            if self.ask(&["EXISTS", &names.lock]).int() == 0 {
                return (commands, false);
            }
            commands.push(words(&["DEL", &names.lock]));
            let mailbox = queue.front().map(|(head, _)| names.mailbox(head));
            commands.extend(mailbox.map(|mailbox| words(&["PUBLISH", &mailbox, "0"])));
            (commands, true)
        })
    }

    /// Takes a lock that is free and whose queue the owner heads, or that it has already.
    fn take(
        &self,
        names: &FairNames,
        owner: &str,
        lease: i64,
        wait: i64,
        queue: &mut Queue,
        commands: &mut Commands,
    ) -> bool {
        let is_free = self.ask(&["EXISTS", &names.lock]).int() == 0;
        let is_first = queue.front().is_none_or(|(head, _)| head == owner);
        let has_it = !self.ask(&["HGET", &names.lock, owner]).is_nil();
        let may_take = has_it || is_free && is_first;
        if !may_take {
            return false;
        }
        if is_free {
            queue.pop_front();
            commands.push(words(&["LPOP", &names.queue]));
            commands.push(words(&["ZREM", &names.deadlines, owner]));
            queue.iter().for_each(|waiter| commands.extend(Self::earlier(names, waiter, wait)));
        }
        commands.push(words(&["HINCRBY", &names.lock, owner, "1"]));
        commands.push(words(&["PEXPIRE", &names.lock, &lease.to_string()]));
        true
    }

    fn earlier(names: &FairNames, waiter: &(String, Option<i64>), by: i64) -> Option<Vec<String>> {
        let (waiter, due) = waiter;
        due.map(|due| words(&["ZADD", &names.deadlines, &(due - by).to_string(), waiter]))
    }

    /// As [`Self::update_as_is`], but first removes what Redisson takes for dead: heads whose
    /// deadline is over.
    fn update<T>(
        &self,
        names: &FairNames,
        look: impl Fn(i64, Queue, Commands) -> (Commands, T),
    ) -> T {
        self.update_as_is(names, |now, mut queue, mut commands| {
            while queue.front().is_some_and(|(_, due)| due.is_some_and(|due| due <= now)) {
                let (head, _) = queue.pop_front().unwrap();
                commands.push(words(&["ZREM", &names.deadlines, &head]));
                commands.push(words(&["LPOP", &names.queue]));
            }
            look(now, queue, commands)
        })
    }

    /// Looks at a lock and its queue and does at once what follows, or looks again if they changed.
    fn update_as_is<T>(
        &self,
        names: &FairNames,
        look: impl Fn(i64, Queue, Commands) -> (Commands, T),
    ) -> T {
        loop {
            self.ask(&["WATCH", &names.lock, &names.queue, &names.deadlines]);
            let waiters = self.ask(&["LRANGE", &names.queue, "0", "-1"]);
            let queue = waiters.items().iter().map(|waiter| {
                let due = self.ask(&["ZSCORE", &names.deadlines, &waiter.text()]);
                (waiter.text(), (!due.is_nil()).then(|| score(&due)))
            });
            let (commands, result) = look(self.now_ms(), queue.collect(), vec![]);
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

    fn now_ms(&self) -> i64 {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.now_ms.get().unwrap_or_else(|| since_1970.unwrap().as_millis() as i64)
    }

    fn ask(&self, command: &[&str]) -> Reply {
        self.raw.cmd(command).ok()
    }
}

fn score(reply: &Reply) -> i64 {
    reply.text().parse::<f64>().unwrap() as i64
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

//! The scripts of the fair lock, with a server's clock that the tests set, and Java peers.

use std::cell::Cell;
use std::time::Duration;

use super::*;
use crate::support::assert_no_keys;
use crate::support::redisson_fair::{FairNames, RedissonFair};

mod acquire;
mod force_release;
mod model;
mod release;
mod renew;
mod rights;

const ACQUIRE: &str = include_str!("../../../lua/fair_lock/acquire.lua");
const RELEASE: &str = include_str!("../../../lua/fair_lock/release.lua");
const RENEW: &str = include_str!("../../../lua/fair_lock/renew.lua");
const FORCE_RELEASE: &str = include_str!("../../../lua/fair_lock/force_release.lua");

const W: i64 = 300_000;
/// When the clock of a test starts: all times are told from here.
const START: i64 = 1_700_000_000_000;
/// A third waiter that only its record tells from one of Java's, as the first two.
const C: &str = "00000000-0000-4000-8000-00000000000c:3";
/// A waiter that looks like one of ours by its id.
const OURS: &str = "00000000-0000-4000-8000-00000000000d:1000000007";
const JAVA: &str = "00000000-0000-4000-8000-0000000000ff";
const BEATS: &str = "leasehold_fair:{l}";
const ENDLESS: &[&str] = &["HSET", "l", "somebody:1", "1"];

/// The lock `l` of a server, sent by hand at times that the test sets.
struct Fair {
    server: RedisServer,
    raw: Raw,
    names: FairNames,
    now: Cell<i64>,
    /// What our places in the queue add to the deadlines behind them.
    wait: Cell<i64>,
    java: RedissonFair,
}

impl Fair {
    fn start() -> Self {
        let server = RedisServer::start();
        let raw = server.raw();
        let java = RedissonFair::connect(server.port(), JAVA);
        java.set_clock(START);
        Self {
            server,
            raw,
            names: FairNames::of("l"),
            now: Cell::new(START),
            wait: Cell::new(W),
            java,
        }
    }

    /// Lets time pass, at the server and for Java.
    fn advance(&self, ms: i64) {
        self.now.set(self.now.get() + ms);
        self.java.set_clock(self.now.get());
        for key in ["l", BEATS] {
            let left = ttl(&self.raw, key);
            match left - ms {
                _ if left < 0 => {}
                ..=0 => drop(self.raw.cmd(&["DEL", key]).ok()),
                rest => drop(self.raw.cmd(&["PEXPIRE", key, &rest.to_string()]).ok()),
            }
        }
    }

    /// The script as if it ran at the time of the test.
    fn timed(&self, script: &str) -> String {
        let (seconds, ms) = (self.now.get() / 1000, self.now.get() % 1000);
        let timed = script.replace("redis.pcall('TIME')", &format!("{{ '{seconds}', '{ms}000' }}"));
        assert_ne!(timed, script);
        timed
    }

    fn keys(&self) -> [&str; 5] {
        let FairNames { lock, queue, deadlines, channel } = &self.names;
        [lock, queue, deadlines, BEATS, channel]
    }

    #[track_caller]
    fn send(&self, raw: &Raw, script: &str, entries: &[&[&str]]) -> Answer {
        let keys = if script == ACQUIRE { &self.keys()[..4] } else { &self.keys()[..] };
        let keys: Vec<_> = entries.iter().flat_map(|_| keys.iter().copied()).collect();
        Answer::read(&eval(raw, &self.timed(script), &keys, &entries.concat()))
    }

    #[track_caller]
    fn acquire(&self, owner: &str) -> Answer {
        let wait = self.wait.get().to_string();
        self.send(&self.raw, ACQUIRE, &[&[LEASE, owner, "1", &wait]])
    }

    #[track_caller]
    fn try_once(&self, owner: &str) -> Answer {
        self.send(&self.raw, ACQUIRE, &[&[LEASE, owner, "1", "0"]])
    }

    #[track_caller]
    fn reenter(&self, owner: &str, count: &str) -> Answer {
        self.send(&self.raw, ACQUIRE, &[&[LEASE, owner, count, "300000"]])
    }

    #[track_caller]
    fn release(&self, owner: &str) -> Answer {
        self.send(&self.raw, RELEASE, &[&[owner, "0", "PUBLISH"]])
    }

    #[track_caller]
    fn renew(&self, owners: &[&str]) -> Answer {
        let wait = self.wait.get().to_string();
        let entries: Vec<_> = owners.iter().map(|owner| [LEASE, owner, &wait, "PUBLISH"]).collect();
        let entries: Vec<&[&str]> = entries.iter().map(|entry| &entry[..]).collect();
        self.send(&self.raw, RENEW, &entries)
    }

    #[track_caller]
    fn force_release(&self, holder: &str) -> Answer {
        self.send(&self.raw, FORCE_RELEASE, &[&[holder, "PUBLISH"]])
    }

    fn set(&self, command: &[&str]) -> i64 {
        self.raw.cmd(command).ok().int()
    }

    fn java(&self, thread: i64) -> String {
        self.java.owner(thread)
    }

    /// Java's thread tries, and queues if it is refused.
    fn java_queues(&self, thread: i64) -> Option<i64> {
        self.java.acquire(&self.names, thread, 30_000, W)
    }

    fn holder(&self) -> Option<String> {
        self.raw.cmd(&["HKEYS", "l"]).items().first().map(Reply::text)
    }

    fn queue(&self) -> Vec<String> {
        let queue = self.raw.cmd(&["LRANGE", &self.names.queue, "0", "-1"]);
        queue.items().iter().map(Reply::text).collect()
    }

    /// How long from now a waiter may stay for Redisson.
    fn stays(&self, owner: &str) -> Option<i64> {
        let score = self.raw.cmd(&["ZSCORE", &self.names.deadlines, owner]);
        (!score.is_nil()).then(|| score.text().parse::<f64>().unwrap() as i64 - self.now.get())
    }

    /// When this waiter of ours was last heard of, from the start on.
    fn last_beat(&self, owner: &str) -> Option<i64> {
        let record = self.raw.cmd(&["HGET", BEATS, owner]);
        let beat = |text: String| text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() - START;
        (!record.is_nil()).then(|| beat(record.text()))
    }

    /// All that is in Redis but times to live, which all have that must.
    fn everything(&self) -> String {
        let mut all = String::new();
        for key in &self.keys()[..4] {
            let read: &[&str] = match self.raw.cmd(&["TYPE", key]).text().as_str() {
                "list" => &["LRANGE", key, "0", "-1"],
                "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
                "hash" => &["HGETALL", key],
                _ => &["GET", key],
            };
            let read = self.raw.cmd(read).ok();
            let texts = match &read {
                _ if self.raw.cmd(&["TYPE", key]).text() == "hash" => {
                    assert!(*key != BEATS || ttl(&self.raw, key) > 0);
                    read.map().iter().map(|(field, value)| format!("{field} {value}")).collect()
                }
                Reply::Array(items) => items.iter().map(Reply::text).collect(),
                one => vec![format!("{one:?}")],
            };
            all += &format!("{key}: {}\n", texts.join(" | "));
        }
        all
    }

    /// One that listens where these waiters do.
    fn listener(&self, owners: &[&str]) -> Raw {
        let listener = self.server.raw();
        listener.subscribe("end");
        listener.subscribe(&self.names.channel);
        owners.iter().for_each(|owner| listener.subscribe(&self.names.mailbox(owner)));
        listener
    }

    /// Who was told since then.
    fn told(&self, listener: &Raw) -> Vec<String> {
        self.set(&["PUBLISH", "end", "end"]);
        let messages = || listener.next_message(Duration::from_secs(10)).unwrap();
        let told = std::iter::repeat_with(messages).take_while(|message| message.channel != "end");
        told.map(|message| {
            assert_eq!(message.payload, "0");
            let prefix = format!("{}:", self.names.channel);
            message.channel.strip_prefix(&prefix).unwrap_or("everybody").to_owned()
        })
        .collect()
    }

    /// A user who may do all but one command.
    fn without(&self, command: &str) -> Raw {
        let rules = ["on", "nopass", "~*", "&*", "+@all", &format!("-{command}")];
        let setuser = ["ACL", "SETUSER", "limited", "reset"];
        self.raw.cmd(&[&setuser[..], &rules[..]].concat()).ok();
        let raw = self.server.raw();
        raw.cmd(&["AUTH", "limited", "x"]).ok();
        raw
    }

    /// A holder of Java's, then A, a thread of Java's and B in the queue.
    fn queued() -> Self {
        let fair = Self::start();
        assert_eq!(fair.java.acquire(&fair.names, 1, 30_000, W), None);
        assert_eq!(fair.acquire(A).1, [fair.java(1)]);
        fair.java_queues(2);
        assert_eq!(fair.acquire(B).1, [fair.java(1)]);
        assert_eq!(fair.queue(), [A, &fair.java(2), B]);
        fair
    }
}

/// Asserts that a refusal says this, with some milliseconds lost since.
#[track_caller]
fn assert_refused(answer: &Answer, ms: i64, text: &str) {
    assert_eq!(answer.1, [text], "{answer:?}");
    let code = answer.0[0];
    assert!(answer.0.len() == 1 && code > ms - 5_000 && code <= ms + 1, "{answer:?} for {ms}");
}

/// The client reads any array that begins with a word like "message" as a message.
#[test]
fn every_reply_begins_with_an_integer_in_resp2_and_resp3() {
    let fair = Fair::start();
    for version in ["2", "3"] {
        fair.raw.cmd(&["HELLO", version]).ok();
        fair.raw.cmd(&["FLUSHALL"]).ok();
        for owner in ["message", "subscribe", "pmessage"] {
            fair.acquire(owner);
            fair.try_once(owner);
        }
        assert_eq!(fair.queue(), ["subscribe", "pmessage"]);
        fair.advance(1_000);
        assert_eq!(fair.renew(&["message", "subscribe", "pmessage", "none"]).0, [0, 0, 0, -1]);
        assert!(fair.force_release("").is(0));
        assert_eq!(fair.acquire("pmessage").1, [""]);
        for owner in ["pmessage", "subscribe", "message"] {
            fair.release(owner);
        }
        assert_no_keys(&fair.raw);
    }
}

/// Names and owners that mean something to Lua, to patterns, or to the protocol.
#[test]
fn hostile_names_are_names_like_any_other() {
    let server = RedisServer::start();
    let raw = server.raw();
    for name in ["%d+%s", "a b\r\nc", "{}", "nul\0", "\"';--", "n|m", "ü{x}"] {
        let names = FairNames::of(name);
        let beats = format!("beats of {name}");
        let keys = [&*names.lock, &names.queue, &names.deadlines, &beats, &names.channel];
        let send =
            |script, keys: &[&str], args: &[&str]| Answer::read(&eval(&raw, script, keys, args)).0;
        let join = |owner| send(ACQUIRE, &keys[..4], &[LEASE, owner, "1", "300000"]);
        let (one, two) = (format!("{name}:1"), format!("{name}:2 \0%1"));
        assert_eq!(join(&one), [0]);
        assert!(join(&two)[0] > 0);
        assert_eq!(send(RENEW, &keys, &[LEASE, &two, "300000", "PUBLISH"]), [0]);
        let listener = server.raw();
        listener.subscribe(&names.mailbox(&two));
        assert_eq!(send(RELEASE, &keys, &[&one, "0", "PUBLISH"]), [1]);
        assert_eq!(join(&two), [0]);
        assert_eq!(send(RELEASE, &keys, &[&two, "0", "PUBLISH"]), [0]);
        assert_no_keys(&raw);
    }
}

/// said as an error of the whole list, so that the client looks for the primary.
#[test]
fn a_replica_refuses_the_whole_list() {
    let fair = Fair::queued();
    fair.raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let java = fair.java(1);
    let before = fair.everything();
    let calls: [(&str, usize, &[&str]); 7] = [
        (ACQUIRE, 4, &[LEASE, C, "1", "300000"]),
        (ACQUIRE, 4, &[LEASE, A, "1", "300000"]),
        (RENEW, 5, &["90000", &java, "300000", "PUBLISH"]),
        (RENEW, 5, &[LEASE, A, "300000", "PUBLISH"]),
        (RELEASE, 5, &[&java, "0", "PUBLISH"]),
        (RELEASE, 5, &[A, "0", "PUBLISH"]),
        (FORCE_RELEASE, 5, &["", "PUBLISH"]),
    ];
    for (script, keys, args) in calls {
        let reply = eval(&fair.raw, &fair.timed(script), &fair.keys()[..keys], args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    }
    assert_eq!(fair.everything(), before);
}

/// words that do not fit into one command.
#[test]
fn a_queue_of_thousands_is_kept_in_order() {
    let fair = Fair::start();
    let owners: Vec<_> = (0..2_500).map(|n| format!("u:{}", 1_000_000_000_u64 + n)).collect();
    let all: Vec<_> = owners.iter().map(|owner| [LEASE, owner, "1", "300000"]).collect();
    let all: Vec<&[&str]> = all.iter().map(|entry| &entry[..]).collect();
    fair.send(&fair.raw, ACQUIRE, &all);
    assert_eq!(fair.queue(), owners[1..]);
    fair.raw.cmd(&["DEL", &fair.names.queue, &fair.names.deadlines]).ok();
    fair.advance(1_000);
    let waiters: Vec<_> = owners[1..].iter().map(String::as_str).collect();
    assert_eq!(fair.renew(&waiters).0, vec![0; 2_499]);
    assert_eq!(fair.queue(), waiters);
    assert!(fair.release(&owners[0]).is(0));
    assert!(fair.acquire(&owners[1]).is(0));
    assert_eq!(fair.stays(&owners[2_499]), Some(2_498 * W));
    fair.advance(4_000);
    fair.acquire(B);
    fair.advance(1_000);
    assert!(fair.renew(&[B]).is(0));
    assert_eq!(fair.queue(), [B]);
}

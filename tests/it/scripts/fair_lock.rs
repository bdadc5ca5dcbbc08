//! The scripts of the fair lock, with a server's clock that the tests set, and Java peers.

use std::cell::Cell;
use std::time::Duration;

use super::*;
use crate::support::assert_no_keys;
use crate::support::redisson_fair::{FairNames, RedissonFair};

mod model;
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

mod acquire {
    use super::*;

    #[test]
    fn a_free_lock_is_taken_and_nothing_else_is_left() {
        let fair = Fair::start();
        for take in [Fair::acquire, Fair::try_once] {
            assert!(take(&fair, A).is(0));
            assert_eq!(fair.holder().as_deref(), Some(A));
            assert!(ttl(&fair.raw, "l") > 20_000);
            assert_eq!(fair.set(&["DBSIZE"]), 1);
            assert!(fair.release(A).is(0));
            assert_no_keys(&fair.raw);
        }
    }

    /// I5.
    #[test]
    fn a_hold_is_reentered_without_a_look_at_the_queue() {
        let fair = Fair::start();
        assert!(fair.reenter(A, "2").is(-1));
        assert!(fair.acquire(A).is(0));
        fair.acquire(B);
        let before = fair.queue();
        for count in ["2", "2", "3"] {
            assert!(fair.reenter(A, count).is(0));
            assert_eq!(fair.raw.cmd(&["HGET", "l", A]).text(), count);
        }
        assert!(fair.reenter(C, "2").is(-1));
        assert!(fair.reenter(B, "2").is(-1), "who queues has nothing to enter again");
        assert_eq!(fair.queue(), before);
    }

    /// I13: what we leave is what Java would have left in our place.
    #[test]
    fn who_is_refused_queues_with_the_deadline_that_redisson_gives() {
        let fair = Fair::start();
        assert_eq!(fair.java.acquire(&fair.names, 1, 30_000, W), None);
        let answer = fair.acquire(A);
        assert_refused(&answer, 30_000, &fair.java(1));
        let first = fair.stays(A).unwrap();
        assert!(first > 325_000 && first <= 330_000, "{first}");
        // Java counts on from ours, and ours from Java's.
        assert_eq!(fair.java_queues(2), Some(first));
        assert_eq!(fair.stays(&fair.java(2)), Some(first + W));
        fair.acquire(B);
        assert_eq!(fair.stays(B), Some(first + 2 * W));
        assert_eq!(fair.queue(), [A, &fair.java(2), B]);
        assert_eq!(fair.last_beat(A), Some(0));
        let left = ttl(&fair.raw, BEATS);
        assert!(left > 50_000 && left <= 60_000, "{left}");
    }

    /// A waiter of Java's with a short wait, or a clock that is behind, must not pull ours along.
    #[test]
    fn a_deadline_is_never_nearer_than_those_ahead_may_take() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        fair.java.set_clock(START - 3_600_000);
        fair.java.acquire(&fair.names, 1, 30_000, 1_000);
        fair.java.acquire(&fair.names, 2, 30_000, 1_000);
        fair.java.set_clock(START + 3_600_000);
        let (one, two) = (fair.java(1), fair.java(2));
        fair.set(&["ZADD", &fair.names.deadlines, "XX", &(START + 5).to_string(), &one]);
        assert_eq!(fair.queue(), [&one[..], &two]);
        fair.acquire(A);
        assert_eq!(fair.stays(A), Some(3 * W));
    }

    /// R-25, I13.
    #[test]
    fn who_tries_again_keeps_its_place_and_deadline() {
        let fair = Fair::queued();
        let (before, deadline) = (fair.queue(), fair.stays(A).unwrap());
        fair.advance(1_500);
        assert_refused(&fair.acquire(A), 28_500, &fair.java(1));
        assert_eq!(fair.queue(), before);
        assert_eq!(fair.stays(A), Some(deadline - 1_500));
        assert_eq!(fair.last_beat(A), Some(1_500), "a try is a sign of life");
        assert_eq!(fair.last_beat(B), Some(0));
    }

    /// I13, and no busy loop: nobody is told to come back at once.
    #[test]
    fn a_free_lock_goes_to_the_first_only_and_others_hear_how_long_that_may_last() {
        let fair = Fair::queued();
        assert_eq!(fair.java.unlock(&fair.names, 1, 30_000), Some(true));
        fair.advance(1_000);
        for _ in 0..2 {
            assert_eq!(fair.acquire(B), Answer(vec![1 + 3_000], vec![String::new()]));
            assert_eq!(fair.try_once(C), Answer(vec![1 + 3_000], vec![String::new()]));
        }
        assert_eq!(fair.java_queues(3).map(|told| told > 0), Some(true));
        assert!(fair.acquire(A).is(0));
        assert_eq!(fair.queue()[0], fair.java(2));
        assert!(fair.release(A).is(0));
        let left = fair.stays(&fair.java(2)).unwrap();
        assert_eq!(fair.acquire(B), Answer(vec![1 + left], vec![String::new()]));
        fair.advance(left - 1);
        assert_eq!(fair.try_once(C), Answer(vec![2], vec![String::new()]));
    }

    #[test]
    fn behind_one_without_a_deadline_there_is_no_time_to_tell() {
        let fair = Fair::start();
        fair.set(&["RPUSH", &fair.names.queue, &fair.java(5)]);
        assert_eq!(fair.try_once(A), Answer(vec![-3], vec![String::new()]));
        assert_eq!(fair.acquire(A), Answer(vec![-3], vec![String::new()]));
        assert_eq!(fair.queue(), [&fair.java(5), A]);
        fair.raw.cmd(ENDLESS).ok();
        assert_eq!(fair.acquire(A), Answer(vec![-3], vec!["somebody:1".to_owned()]));
    }

    #[test]
    fn one_try_never_queues() {
        let fair = Fair::queued();
        let before = fair.everything();
        assert_refused(&fair.try_once(C), 30_000, &fair.java(1));
        fair.java.unlock(&fair.names, 1, 30_000);
        assert_eq!(fair.try_once(C).1, [""]);
        fair.java.acquire(&fair.names, 9, 30_000, W);
        fair.java.give_up(&fair.names, 9, W);
        fair.java.acquire(&fair.names, 1, 30_000, W);
        fair.set(&["HSET", "l", &fair.java(1), "1"]);
        fair.java.give_up(&fair.names, 1, W);
        assert_eq!(fair.everything(), before);
    }

    /// I13: the same queue, once won by ours and once by Java.
    #[test]
    fn who_wins_takes_its_wait_off_the_deadlines_behind_as_java_does() {
        let fair = Fair::queued();
        fair.java.unlock(&fair.names, 1, 30_000);
        let [java, last] = [&fair.java(2), B].map(|waiter| fair.stays(waiter).unwrap());
        assert!(fair.acquire(A).is(0));
        assert_eq!(fair.holder().as_deref(), Some(A));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
        assert_eq!([fair.stays(A), fair.last_beat(A)], [None, None]);
        assert_eq!(fair.stays(&fair.java(2)), Some(java - W));
        assert_eq!(fair.stays(B), Some(last - W));
        fair.release(A);
        assert_eq!(fair.java_queues(2), None);
        assert_eq!(fair.stays(B), Some(last - 2 * W));
        fair.java.unlock(&fair.names, 2, 30_000);
        assert!(fair.acquire(B).is(0));
        assert_eq!(fair.set(&["DBSIZE"]), 1);
    }

    /// one such time for all five.
    #[test]
    fn dead_heads_of_ours_are_removed_together_after_4_s() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        let dead: Vec<_> = (0..5).map(|n| format!("dead:{n}")).collect();
        dead.iter().for_each(|waiter| drop(fair.acquire(waiter)));
        fair.java_queues(1);
        let before = fair.stays(&fair.java(1)).unwrap();
        fair.advance(1_000);
        fair.acquire(B);
        assert!(fair.release(C).is(0));
        fair.advance(2_999);
        assert_eq!(fair.acquire(B).0, [1 + 1]);
        assert_eq!(fair.queue().len(), 7);
        fair.advance(1);
        assert_eq!(fair.acquire(B).1, [""]);
        assert_eq!(fair.queue(), [&fair.java(1), B]);
        assert_eq!(fair.stays(&fair.java(1)), Some(before - 4_000 - 5 * W));
        assert_eq!(fair.java_queues(1), None);
    }

    /// as Redisson does, and with nothing for those behind.
    #[test]
    fn heads_of_java_are_removed_at_their_deadline() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        fair.java_queues(1);
        fair.java_queues(2);
        let (one, two) = (fair.stays(&fair.java(1)).unwrap(), fair.stays(&fair.java(2)).unwrap());
        fair.advance(one - 1);
        fair.acquire(A);
        assert_eq!(fair.queue().len(), 3);
        fair.advance(1);
        assert_eq!(fair.try_once(B).1, [""]);
        assert_eq!(fair.queue(), [&fair.java(2), A]);
        assert_eq!(fair.stays(&fair.java(2)), Some(two - one));
    }

    /// A client died, and its records with it.
    #[test]
    fn one_of_ours_without_a_record_has_4_s_to_show_itself() {
        let fair = Fair::start();
        for id in ["1000000000", "999999999999"] {
            let owner = format!("dead:{id}");
            fair.set(&["RPUSH", &fair.names.queue, &owner]);
            fair.set(&["ZADD", &fair.names.deadlines, &(START + W).to_string(), &owner]);
            assert_eq!(fair.try_once(A).0, [1 + 4_000], "{id}");
            assert!(ttl(&fair.raw, BEATS) > 50_000);
            fair.advance(4_000);
            assert!(fair.try_once(A).is(0), "{id}");
            fair.release(A);
            fair.raw.cmd(&["DEL", BEATS]).ok();
        }
        assert_no_keys(&fair.raw);
    }

    #[test]
    fn others_ids_are_left_to_redisson() {
        let fair = Fair::start();
        let ids = ["1", "999999999", "0999999999", "1000000000000", "-1000000000", "1000000000:tx"];
        for id in ids {
            let owner = format!("java:{id}");
            fair.set(&["RPUSH", &fair.names.queue, &owner]);
            fair.set(&["ZADD", &fair.names.deadlines, &(fair.now.get() + W).to_string(), &owner]);
            assert_eq!(fair.try_once(A).0, [1 + W], "{id}");
            fair.advance(W);
            assert!(fair.try_once(A).is(0), "{id}");
            fair.release(A);
            assert_no_keys(&fair.raw);
        }
    }

    ///
    #[test]
    fn a_clock_that_goes_back_keeps_nobody_alive() {
        let fair = Fair::queued();
        fair.java.unlock(&fair.names, 1, 30_000);
        fair.now.set(START - 3_600_000);
        assert_eq!(fair.acquire(B).0, [1 + 4_000]);
        fair.advance(4_000);
        assert_eq!(fair.acquire(B).1, [""]);
        assert_eq!(fair.queue(), [&fair.java(2), B]);
    }

    /// its record says that it queues, though Java removed it. A beat puts it back.
    #[test]
    fn who_was_removed_by_others_does_not_join_at_the_end() {
        let fair = Fair::queued();
        fair.set(&["LREM", &fair.names.queue, "0", A]);
        fair.set(&["ZREM", &fair.names.deadlines, A]);
        fair.advance(100);
        assert_refused(&fair.acquire(A), 30_000, &fair.java(1));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
        assert_eq!(fair.last_beat(A), Some(100));
        assert!(fair.renew(&[A]).is(0));
        assert_eq!(fair.queue(), [A, &fair.java(2), B]);
        fair.raw.cmd(&["DEL", "l", &fair.names.queue, &fair.names.deadlines]).ok();
        assert!(fair.acquire(A).is(0), "nobody is left to wait for");
        assert_eq!(fair.last_beat(A), None);
    }

    #[test]
    fn who_lost_its_record_or_deadline_keeps_its_place() {
        let fair = Fair::queued();
        let before = fair.queue();
        fair.raw.cmd(&["DEL", BEATS]).ok();
        fair.acquire(A);
        assert_eq!(fair.queue(), before);
        fair.raw.cmd(&["DEL", &fair.names.deadlines]).ok();
        fair.acquire(A);
        fair.acquire(B);
        assert_eq!(fair.queue(), before);
        fair.java.unlock(&fair.names, 1, 30_000);
        assert!(fair.acquire(A).is(0), "the head needs neither");
    }

    /// R-25, I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let fair = Fair::start();
        for _ in 0..2 {
            assert!(fair.acquire(C).is(0));
        }
        assert_eq!(fair.raw.cmd(&["HGET", "l", C]).text(), "1");
        fair.acquire(A);
        fair.java_queues(1);
        let before = fair.everything();
        fair.acquire(A);
        assert_eq!(fair.everything(), before);
        fair.release(C);
        assert!(fair.acquire(A).is(0));
        let before = fair.everything();
        assert!(fair.acquire(A).is(0), "its turn is not counted twice");
        assert_eq!(fair.everything(), before);
    }

    ///
    #[test]
    fn what_cannot_be_tried_is_left_alone_and_said() {
        let fair = Fair::queued();
        fair.java.unlock(&fair.names, 1, 30_000);
        let before = fair.everything();
        let send = |args: [&str; 4]| fair.send(&fair.raw, ACQUIRE, &[&args]);
        for lease in BAD_LEASES {
            assert!(send([lease, A, "1", "300000"]).failed("lease_ms"), "{lease}");
        }
        for wait in BAD_LEASES.iter().filter(|wait| **wait != "0") {
            assert!(send([LEASE, A, "1", wait]).failed("wait_ms"), "{wait}");
        }
        for count in ["0", "-1", "1.5", "x", "", "nan"] {
            assert!(send([LEASE, A, count, "300000"]).failed("count"), "{count}");
        }
        assert_eq!(fair.everything(), before);
        for corrupt in CORRUPT {
            fair.raw.cmd(&["HSET", "l", A, corrupt]).ok();
            assert!(fair.reenter(A, "3").failed("not an integer"), "{corrupt}");
        }
    }

    ///
    #[test]
    fn a_key_of_another_type_fails_and_is_not_touched() {
        for key in 0..4 {
            for is_held in [true, false] {
                let fair = Fair::queued();
                if !is_held {
                    fair.java.unlock(&fair.names, 1, 30_000);
                }
                fair.raw.cmd(&["SET", fair.keys()[key], "x"]).ok();
                let before = fair.everything();
                let owner = if is_held { C } else { A };
                assert!(fair.acquire(owner).failed("WRONGTYPE"), "{key} {owner}");
                assert_eq!(fair.everything(), before);
            }
        }
    }

    /// without one of the rights it is done all the same, or not at all.
    #[test]
    fn a_right_that_is_missing_leaves_nothing_half_done() {
        let commands = "hincrby pexpire pttl hget hdel lpop zscore zrem zadd rpush hset lindex llen \
                        lpos lrange zmscore time hrandfield";
        for command in commands.split(' ') {
            // Into the queue, out of it as its head, and past it.
            for (owner, is_held) in [(C, true), (A, false), (C, false)] {
                let fair = Fair::queued();
                if !is_held {
                    fair.java.unlock(&fair.names, 1, 30_000);
                }
                let before = fair.everything();
                let limited = fair.without(command);
                // A clock that may not be asked cannot be set either.
                let script = match command {
                    "time" => ACQUIRE.to_owned(),
                    _ => fair.timed(ACQUIRE),
                };
                let args = [LEASE, owner, "1", "300000"];
                let answer = Answer::read(&eval(&limited, &script, &fair.keys()[..4], &args));
                if answer.0 == [-2] {
                    assert!(answer.is_denied(), "{command}: {answer:?}");
                    assert_eq!(fair.everything(), before, "{command} {owner}");
                }
            }
        }
    }

    /// R-17, I6.
    #[test]
    fn a_full_server_refuses_to_queue() {
        let fair = Fair::queued();
        fair.raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        let before = fair.everything();
        assert!(fair.acquire(C).failed("OOM"));
        assert_eq!(fair.everything(), before);
    }

    /// I13: of one client in one list.
    #[test]
    fn the_entries_of_a_list_arrive_in_their_order() {
        let fair = Fair::start();
        let entries = [A, B, C, "x:9", "x:10"].map(|owner| [LEASE, owner, "1", "300000"]);
        let entries: Vec<&[&str]> = entries.iter().map(|entry| &entry[..]).collect();
        let answer = fair.send(&fair.raw, ACQUIRE, &entries);
        assert_eq!(answer.0[0], 0);
        assert_eq!(answer.1, [A; 4]);
        assert_eq!(fair.queue(), [B, C, "x:9", "x:10"]);
        fair.raw.cmd(&["DEL", &fair.names.queue, &fair.names.deadlines]).ok();
        assert_eq!(fair.renew(&["x:10", "x:9", C, B, A]).0, [0; 5]);
        assert_eq!(fair.queue(), [B, C, "x:9", "x:10"]);
    }
}

mod release {
    use super::*;

    #[test]
    fn the_last_release_frees_the_lock_and_tells_the_first_of_the_queue_only() {
        let fair = Fair::start();
        for told in 0..3 {
            let listeners: Vec<_> = (0..told).map(|_| fair.listener(&[A, B, C])).collect();
            assert!(fair.reenter(C, "1").is(0));
            assert!(fair.reenter(C, "3").is(0));
            fair.acquire(A);
            fair.acquire(B);
            assert!(fair.release(C).is(told), "whatever the count was");
            assert_eq!(fair.holder(), None);
            listeners.iter().for_each(|listener| assert_eq!(fair.told(listener), [A]));
            assert_eq!(fair.queue(), [A, B]);
            fair.release(A);
            fair.release(B);
            assert_no_keys(&fair.raw);
        }
    }

    #[test]
    fn java_is_told_where_it_listens() {
        let fair = Fair::start();
        assert!(fair.acquire(A).is(0));
        fair.java_queues(7);
        let listener = fair.listener(&[&fair.java(7)]);
        assert!(fair.release(A).is(1));
        assert_eq!(fair.told(&listener), [fair.java(7)]);
        assert_eq!(fair.java_queues(7), None);
        fair.acquire(B);
        let listener = fair.listener(&[B]);
        assert_eq!(fair.java.unlock(&fair.names, 7, 30_000), Some(true));
        assert_eq!(fair.told(&listener), [B], "and ours where we listen");
    }

    #[test]
    fn a_partial_release_counts_down_and_tells_nobody() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        assert!(fair.reenter(C, "3").is(0));
        fair.acquire(A);
        let listener = fair.listener(&[A]);
        for count in ["2", "2", "1"] {
            assert!(fair.send(&fair.raw, RELEASE, &[&[C, count, "PUBLISH"]]).is(-3));
            assert_eq!(fair.raw.cmd(&["HGET", "l", C]).text(), count);
        }
        for count in ["1", "2"] {
            assert!(fair.send(&fair.raw, RELEASE, &[&[A, count, "PUBLISH"]]).is(-1));
        }
        assert_eq!((fair.told(&listener).len(), fair.queue().len()), (0, 1));
    }

    /// or it would be told in vain, and a waiter of Java's behind it not at all.
    #[test]
    fn heads_that_are_gone_are_removed_before_the_first_is_told() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        fair.java.acquire(&fair.names, 1, 30_000, 1);
        let stay = fair.stays(&fair.java(1)).unwrap();
        for dead in ["dead:1", "dead:2"] {
            fair.acquire(dead);
        }
        fair.java_queues(2);
        fair.java_queues(3);
        let before = fair.stays(&fair.java(2)).unwrap();
        fair.advance(stay);
        let listener = fair.listener(&[&fair.java(1), "dead:1", "dead:2", &fair.java(2)]);
        fair.raw.cmd(&["HSET", "l", C, "1"]).ok();
        assert!(fair.release(C).is(1));
        assert_eq!(fair.told(&listener), [fair.java(2)]);
        assert_eq!(fair.queue(), [fair.java(2), fair.java(3)]);
        assert_eq!(fair.stays(&fair.java(2)), Some(before - stay - 2 * W));
        assert_eq!(fair.java_queues(2), None);
    }

    /// I13: the same queue, once left by ours and once by Java.
    #[test]
    fn who_gives_up_takes_its_wait_off_the_deadlines_behind_as_java_does() {
        let ours = Fair::queued();
        let [before, last] = [A, B].map(|waiter| ours.stays(waiter).unwrap());
        let listener = ours.listener(&[A, B, &ours.java(2)]);
        ours.java.give_up(&ours.names, 2, W);
        assert_eq!((ours.queue(), ours.stays(B)), (vec![A.into(), B.into()], Some(last - W)));
        ours.acquire(C);
        assert!(ours.release(B).is(0));
        assert_eq!(ours.queue(), [A, C]);
        assert_eq!([ours.stays(A), ours.stays(C)], [Some(before), Some(last - W)]);
        assert_eq!([ours.stays(B), ours.last_beat(B)], [None, None]);
        assert_eq!(ours.told(&listener).len(), 0);
        assert!(ours.release(C).is(0) && ours.release(A).is(0));
        assert_eq!(ours.set(&["DBSIZE"]), 1);
    }

    #[test]
    fn a_head_that_gives_up_a_free_lock_passes_the_word_on() {
        let fair = Fair::queued();
        let listener = fair.listener(&[A, B, &fair.java(2)]);
        fair.java.unlock(&fair.names, 1, 30_000);
        assert_eq!(fair.told(&listener), [A]);
        assert!(fair.release(B).is(0), "not the head");
        assert_eq!(fair.told(&listener).len(), 0);
        fair.acquire(B);
        assert!(fair.release(A).is(1));
        assert_eq!(fair.told(&listener), [fair.java(2)]);
        assert_eq!(fair.java_queues(2), None);
    }

    /// Java removed it, and it gives up before its next beat.
    #[test]
    fn who_is_out_of_the_queue_but_on_record_can_give_up() {
        let fair = Fair::queued();
        fair.set(&["LREM", &fair.names.queue, "0", A]);
        fair.set(&["ZREM", &fair.names.deadlines, A]);
        assert!(fair.release(A).is(0));
        assert!(fair.renew(&[A]).is(-1));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
        fair.raw.cmd(&["DEL", BEATS]).ok();
        assert!(fair.release(B).is(0), "and the other way round");
        assert_eq!(fair.queue(), [fair.java(2)]);
    }

    /// I4.
    #[test]
    fn who_neither_holds_nor_queues_gives_nothing_back() {
        let fair = Fair::queued();
        let listener = fair.listener(&[A]);
        let before = fair.everything();
        for owner in [C, OURS, ""] {
            assert!(fair.release(owner).is(-1));
        }
        fair.java.unlock(&fair.names, 1, 30_000);
        assert_eq!(fair.told(&listener), [A]);
        assert!(fair.release(C).is(-1));
        assert_eq!(fair.told(&listener).len(), 0);
        fair.java.acquire(&fair.names, 8, 30_000, W);
        fair.java.give_up(&fair.names, 8, W);
        fair.raw.cmd(&["HSET", "l", &fair.java(1), "1"]).ok();
        assert_eq!(fair.everything(), before);
    }

    /// I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let fair = Fair::queued();
        assert!(fair.release(B).is(0));
        let before = fair.everything();
        assert!(fair.release(B).is(-1));
        assert_eq!(fair.everything(), before);
        fair.java.unlock(&fair.names, 1, 30_000);
        assert!(fair.acquire(A).is(0));
        assert!(fair.release(A).is(0));
        let listener = fair.listener(&[&fair.java(2)]);
        let before = fair.everything();
        assert!(fair.release(A).is(-1));
        assert_eq!((fair.everything(), fair.told(&listener).len()), (before, 0));
        // Behind another's acquire as well.
        assert_eq!(fair.java_queues(2), None);
        assert!(fair.release(A).is(-1));
        assert_eq!(fair.holder(), Some(fair.java(2)));
    }

    #[test]
    fn told_to_tell_nobody_it_does_not() {
        let fair = Fair::queued();
        let listener = fair.listener(&[A, &fair.java(2)]);
        fair.raw.cmd(&["DEL", "l"]).ok();
        assert!(fair.send(&fair.raw, RELEASE, &[&[A, "0", ""]]).is(0));
        assert_eq!(fair.java_queues(2), None);
        fair.java.unlock(&fair.names, 2, 30_000);
        assert!(fair.acquire(B).is(0));
        fair.acquire(A);
        assert!(fair.send(&fair.raw, RELEASE, &[&[B, "0", ""]]).is(0));
        assert_eq!(fair.told(&listener).len(), 0);
        assert_eq!(fair.queue(), [A]);
    }

    ///
    #[test]
    fn a_release_that_cannot_be_told_says_that_it_released() {
        let fair = Fair::queued();
        let mute = mute(&fair.server);
        fair.raw.cmd(&["DEL", "l"]).ok();
        fair.raw.cmd(&["HSET", "l", C, "1"]).ok();
        for (owner, left) in [(C, 3), (A, 2)] {
            let answer = fair.send(&mute, RELEASE, &[&[owner, "0", "PUBLISH"]]);
            assert!(answer.0 == [-4] && says_denied(&answer.1[0]), "{answer:?}");
            assert_eq!((fair.holder(), fair.queue().len()), (None, left));
        }
        fair.raw.cmd(&["HSET", "l", C, "1"]).ok();
        fair.raw.cmd(&["SET", &fair.names.queue, "x"]).ok();
        let answer = fair.release(C);
        assert!(answer.0 == [-4] && answer.1[0].starts_with("WRONGTYPE"), "{answer:?}");
        assert_eq!(fair.holder(), None);
    }

    ///
    #[test]
    fn what_cannot_be_given_back_is_left_alone_and_said() {
        for key in 0..4 {
            let fair = Fair::queued();
            fair.raw.cmd(&["SET", fair.keys()[key], "x"]).ok();
            let before = fair.everything();
            assert!(fair.release(A).failed("WRONGTYPE"), "{key}");
            assert_eq!(fair.everything(), before);
        }
        let fair = Fair::queued();
        let before = fair.everything();
        for count in ["-1", "1.5", "x", "", "nan"] {
            assert!(fair.send(&fair.raw, RELEASE, &[&[A, count, "PUBLISH"]]).failed("count"));
        }
        assert_eq!(fair.everything(), before);
        for corrupt in CORRUPT {
            fair.raw.cmd(&["HSET", "l", C, corrupt]).ok();
            let answer = fair.send(&fair.raw, RELEASE, &[&[C, "2", "PUBLISH"]]);
            assert!(answer.failed("not an integer"), "{corrupt}");
            assert_eq!(fair.release(C).0, [0], "{corrupt}");
        }
    }

    ///
    #[test]
    fn a_right_that_is_missing_leaves_nothing_half_done() {
        let commands = "hget hdel lpos zscore zrem zadd zmscore lrange lrem exists time lindex";
        for command in commands.split(' ') {
            let fair = Fair::queued();
            fair.raw.cmd(&["DEL", "l"]).ok();
            let before = fair.everything();
            let limited = fair.without(command);
            let script = match command {
                "time" => RELEASE.to_owned(),
                _ => fair.timed(RELEASE),
            };
            let args = [A, "0", "PUBLISH"];
            let answer = Answer::read(&eval(&limited, &script, &fair.keys(), &args));
            match answer.0[0] {
                -2 => assert_eq!(fair.everything(), before, "{command}"),
                _ => assert_eq!(fair.queue(), [&fair.java(2), B], "{command}"),
            }
        }
    }

    ///
    #[test]
    fn a_full_server_takes_back_what_is_given_back() {
        let fair = Fair::queued();
        fair.raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        assert!(fair.release(A).is(0));
        assert_eq!(fair.renew(&[B, &fair.java(1)]).0, [0, 0]);
        assert!(fair.release(&fair.java(1)).is(0));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
    }

    /// They have no TTL, and nobody else would remove them.
    #[test]
    fn deadlines_of_nobody_go_with_the_last_release() {
        let fair = Fair::queued();
        fair.raw.cmd(&["DEL", &fair.names.queue, BEATS, "l"]).ok();
        assert!(fair.acquire(C).is(0));
        assert!(fair.release(C).is(0));
        assert_no_keys(&fair.raw);
    }

    #[test]
    fn the_entries_of_a_list_do_not_disturb_each_other() {
        let fair = Fair::queued();
        let entries: [&[&str]; 5] = [
            &[B, "0", "PUBLISH"],
            &[C, "0", "PUBLISH"],
            &[A, "x", "PUBLISH"],
            &[&fair.java(1), "0", "PUBLISH"],
            &[A, "0", "PUBLISH"],
        ];
        let listener = fair.listener(&[A, &fair.java(2)]);
        let answer = fair.send(&fair.raw, RELEASE, &entries);
        assert_eq!((&answer.0[..], answer.1.len()), (&[0, -1, -2, 1, 1][..], 1));
        assert_eq!(fair.told(&listener), [A, &fair.java(2)]);
        assert_eq!(fair.queue(), [fair.java(2)]);
    }
}

mod force_release {
    use super::*;

    #[test]
    fn whoever_holds_it_the_lock_is_freed_and_the_first_is_told() {
        let fair = Fair::queued();
        let listener = fair.listener(&[A, B, &fair.java(2)]);
        for holder in ["", &fair.java(1)] {
            let before = fair.queue();
            assert!(fair.force_release(holder).is(1));
            assert_eq!((fair.holder(), fair.queue()), (None, before));
            assert_eq!(fair.told(&listener), [A]);
            fair.raw.cmd(&["HSET", "l", &fair.java(1), "1"]).ok();
        }
        fair.advance(4_000);
        assert!(fair.force_release("").is(1));
        assert_eq!(fair.told(&listener), [fair.java(2)], "A is dead by now");
        assert_eq!(fair.queue(), [&fair.java(2), B]);
    }

    /// I4.
    #[test]
    fn a_free_lock_and_that_of_another_holder_are_left_alone() {
        let fair = Fair::queued();
        let before = fair.everything();
        for holder in [A, B, C] {
            assert!(fair.force_release(holder).is(-1));
        }
        assert_eq!(fair.everything(), before);
        fair.raw.cmd(&["DEL", "l"]).ok();
        let before = fair.everything();
        for holder in ["", A] {
            assert!(fair.force_release(holder).is(-1));
        }
        assert_eq!(fair.everything(), before);
    }

    ///
    #[test]
    fn what_cannot_be_freed_or_told_is_said() {
        let fair = Fair::queued();
        let mute = mute(&fair.server);
        let answer = fair.send(&mute, FORCE_RELEASE, &[&["", "PUBLISH"]]);
        assert!(answer.0 == [-4] && says_denied(&answer.1[0]), "{answer:?}");
        fair.raw.cmd(&["SET", "l", "x"]).ok();
        for holder in ["", A] {
            assert!(fair.force_release(holder).failed("WRONGTYPE"));
        }
        for key in 1..4 {
            let fair = Fair::queued();
            fair.raw.cmd(&["SET", fair.keys()[key], "x"]).ok();
            let answer = fair.force_release("");
            assert!(answer.0 == [-4] && answer.1[0].starts_with("WRONGTYPE"), "{answer:?}");
            assert_eq!(fair.holder(), None);
        }
        let fair = Fair::queued();
        let listener = fair.listener(&[A]);
        assert!(fair.send(&fair.raw, FORCE_RELEASE, &[&["", ""]]).is(0));
        assert_eq!((fair.holder(), fair.told(&listener).len()), (None, 0));
    }
}

mod renew {
    use super::*;

    /// As the plain lock, with the same four answers to the same four states.
    #[test]
    fn a_hold_gets_the_lease_anew_and_is_never_shortened() {
        let fair = Fair::start();
        assert!(fair.renew(&[A]).is(-1));
        assert_no_keys(&fair.raw);
        assert!(fair.acquire(A).is(0));
        let renew = |lease| fair.send(&fair.raw, RENEW, &[&[lease, A, "0", "PUBLISH"]]).is(0);
        for (lease, least, most) in
            [("90000", 80_000, 90_000), ("1000", 80_000, 90_000), ("95000", 85_000, 95_000)]
        {
            assert!(renew(lease));
            let ttl = ttl(&fair.raw, "l");
            assert!(ttl > least && ttl <= most, "{lease}: {ttl}");
        }
        fair.raw.cmd(&["PERSIST", "l"]).ok();
        assert!(renew("90000") && ttl(&fair.raw, "l") > 80_000);
        assert!(fair.renew(&[B]).is(-1));
        assert_eq!(fair.set(&["DBSIZE"]), 1);
        fair.release(A);
        assert!(fair.renew(&[A]).is(-1));
        assert_no_keys(&fair.raw);
    }

    /// R-37, I13: the promise of the fair lock.
    #[test]
    fn a_living_waiter_is_never_removed_and_moves_those_behind_along() {
        let fair = Fair::queued();
        fair.raw.cmd(&["PERSIST", "l"]).ok();
        let java = fair.stays(&fair.java(2)).unwrap();
        for second in 1..=400 {
            fair.advance(1_000);
            assert_eq!(fair.renew(&[B, A]).0, [0, 0]);
            fair.java.try_once(&fair.names, 9, 30_000);
            assert_eq!(fair.queue(), [A, &fair.java(2), B], "after {second} s");
            assert!(fair.stays(A).unwrap() >= W && fair.stays(B).unwrap() >= 3 * W);
        }
        let moved = fair.stays(&fair.java(2)).unwrap();
        assert!(moved <= java && moved > java - 31_000, "{java} to {moved}");
        // When ours has gone, Java has its own wait left.
        fair.release(A);
        let left = fair.stays(&fair.java(2)).unwrap();
        assert!((W..W + 31_000).contains(&left), "{left}");
    }

    /// by anybody's beat, wherever they are in the queue.
    #[test]
    fn dead_waiters_are_removed_anywhere_and_those_behind_get_the_time_back() {
        let fair = Fair::queued();
        fair.acquire("dead:1");
        fair.java_queues(3);
        fair.acquire("dead:2");
        fair.acquire(OURS);
        let before = [2, 3].map(|thread| fair.stays(&fair.java(thread)).unwrap());
        for second in 1..=4 {
            assert_eq!(fair.queue().len(), 7, "before {second} s");
            fair.advance(1_000);
            assert!(fair.renew(&[B]).is(0));
        }
        assert_eq!(fair.queue(), [&fair.java(2), B, &fair.java(3)]);
        let after = [2, 3].map(|thread| fair.stays(&fair.java(thread)).unwrap());
        assert_eq!(after, [before[0] - W - 4_000, before[1] - 2 * W - 4_000]);
        assert_eq!(fair.last_beat(OURS), Some(0), "its record stays for a while");
        fair.advance(56_000);
        assert!(fair.renew(&[B]).is(0));
        assert_eq!([fair.last_beat(OURS), fair.last_beat("dead:1")], [None, None]);
    }

    /// A client died, and its records with it.
    #[test]
    fn one_of_ours_without_a_record_has_4_s_to_show_itself() {
        let fair = Fair::start();
        fair.raw.cmd(ENDLESS).ok();
        fair.set(&["RPUSH", &fair.names.queue, &fair.java(1), OURS]);
        fair.acquire(B);
        for second in 0..4 {
            assert!(fair.renew(&[B]).is(0));
            assert_eq!(fair.queue(), [&fair.java(1), OURS, B], "at {second} s");
            fair.advance(1_000);
        }
        assert!(fair.renew(&[B]).is(0));
        assert_eq!(fair.queue(), [&fair.java(1), B]);
    }

    /// A client was stopped for a minute, so that its records ended, and goes on.
    #[test]
    fn who_lost_its_record_gets_it_back_with_its_place() {
        let fair = Fair::queued();
        fair.acquire(OURS);
        let before = fair.queue();
        fair.raw.cmd(&["DEL", BEATS]).ok();
        assert_eq!(fair.renew(&[OURS, B, A]).0, [0, 0, 0]);
        assert_eq!(fair.queue(), before);
        let left = ttl(&fair.raw, BEATS);
        assert!(left > 50_000 && left <= 60_000, "{left}");
        // In their order.
        fair.raw.cmd(&["DEL", &fair.names.queue, &fair.names.deadlines]).ok();
        assert_eq!(fair.renew(&[OURS, B, A]).0, [0, 0, 0]);
        assert_eq!(fair.queue(), [A, B, OURS]);
    }

    /// A wait of Java's that is longer than ours, taken off, can cost us the place for a moment.
    #[test]
    fn who_was_removed_comes_back_to_the_front_behind_ours_of_earlier_arrival() {
        let fair = Fair::start();
        assert!(fair.acquire(C).is(0));
        for owner in [A, OURS, B] {
            fair.advance(1);
            fair.acquire(owner);
        }
        fair.java_queues(1);
        assert_eq!(fair.queue(), [A, OURS, B, &fair.java(1)]);
        fair.java.set_clock(fair.now.get() + 3 * W + 40_000);
        fair.java.try_once(&fair.names, 1, 30_000);
        assert_eq!(fair.queue(), [fair.java(1)]);
        let java = fair.stays(&fair.java(1)).unwrap();
        fair.advance(1_000);
        assert!(fair.renew(&[B]).is(0), "others are restored by their records");
        assert_eq!(fair.queue(), [A, OURS, B, &fair.java(1)]);
        let stays = [A, OURS, B].map(|waiter| fair.stays(waiter).unwrap());
        assert_eq!(stays, [W, 2 * W, 3 * W]);
        assert_eq!(fair.stays(&fair.java(1)), Some(java - 1_000 + 3 * W));
        fair.set(&["LREM", &fair.names.queue, "0", OURS]);
        fair.set(&["ZREM", &fair.names.deadlines, OURS]);
        assert!(fair.renew(&[OURS]).is(0), "at once, though somebody has just looked");
        assert_eq!(fair.queue(), [A, OURS, B, &fair.java(1)]);
    }

    /// it passes nobody of Java's, and nobody of ours who came later passes it.
    #[test]
    fn who_was_silent_for_4_s_queues_anew_before_ours_of_later_arrival() {
        let fair = Fair::queued();
        fair.advance(1);
        fair.acquire(OURS);
        fair.java_queues(3);
        fair.advance(1_000);
        assert!(fair.renew(&[OURS]).is(0));
        fair.advance(3_000);
        assert!(fair.renew(&[OURS]).is(0));
        assert_eq!(fair.queue(), [&fair.java(2), OURS, &fair.java(3)]);
        let before = fair.stays(&fair.java(3)).unwrap();
        // A try may come before the beat.
        assert_eq!(fair.acquire(A).1, [fair.java(1)]);
        assert_eq!(fair.queue(), [&fair.java(2), OURS, &fair.java(3)]);
        assert_eq!(fair.renew(&[B, A]).0, [0, 0]);
        assert_eq!(fair.queue(), [&fair.java(2), A, B, OURS, &fair.java(3)]);
        assert_eq!(fair.stays(&fair.java(3)), Some(before + 2 * W));
        fair.advance(4_000);
        fair.acquire(C);
        assert!(fair.renew(&[C]).is(0) && fair.release(C).is(0));
        assert!(fair.renew(&[B]).is(0), "with nobody of ours, at the end");
        assert_eq!(fair.queue(), [&fair.java(2), &fair.java(3), B]);
    }

    /// one pass, however many beat.
    #[test]
    fn a_queue_is_put_right_once_and_then_left_alone_for_half_a_second() {
        let fair = Fair::queued();
        fair.advance(1_000);
        assert_eq!(fair.renew(&[A, B, A]).0, [0, 0, 0]);
        let before = fair.stays(A).unwrap();
        let odd = "dead:1000000000";
        fair.set(&["RPUSH", &fair.names.queue, odd]);
        for _ in 0..3 {
            fair.advance(130);
            assert!(fair.renew(&[B]).is(0));
            assert_eq!(fair.last_beat(odd), None, "nobody looked");
        }
        assert_eq!(fair.last_beat(B), Some(1_390), "but the beat counts");
        assert_eq!(fair.stays(A), Some(before - 390));
        fair.advance(200);
        assert!(fair.renew(&[B]).is(0));
        assert_eq!(fair.last_beat(odd), Some(1_590));
    }

    /// I9: the message of the release was lost, or there was none.
    #[test]
    fn the_first_of_a_free_lock_is_told() {
        let fair = Fair::queued();
        let listener = fair.listener(&[A, B, &fair.java(2)]);
        fair.advance(1_000);
        fair.renew(&[A, B]);
        assert_eq!(fair.told(&listener).len(), 0);
        fair.raw.cmd(&["DEL", "l"]).ok();
        fair.advance(1_000);
        fair.renew(&[A, B]);
        assert_eq!(fair.told(&listener), [A]);
        fair.advance(1_000);
        fair.send(&fair.raw, RENEW, &[&[LEASE, B, "300000", ""]]);
        assert_eq!(fair.told(&listener).len(), 0);
        fair.advance(3_000);
        fair.renew(&[B]);
        assert_eq!(fair.told(&listener), [fair.java(2)], "A is dead by now");
    }

    /// Redisson waits for ever for a head without a deadline, and removes nobody who has no place.
    #[test]
    fn a_queue_and_its_deadlines_are_brought_back_into_step() {
        let fair = Fair::start();
        fair.raw.cmd(ENDLESS).ok();
        let (one, two) = (fair.java(1), fair.java(2));
        fair.acquire(A);
        fair.set(&["RPUSH", &fair.names.queue, &one, &two, &one]);
        fair.set(&["ZADD", &fair.names.deadlines, "5", "nobody:1"]);
        fair.set(&["ZREM", &fair.names.deadlines, A]);
        assert!(fair.renew(&[A]).is(0));
        assert_eq!(fair.queue(), [A, &one, &two]);
        let stays = [A, &one, &two, "nobody:1"].map(|waiter| fair.stays(waiter));
        assert_eq!(stays, [Some(W), Some(2 * W), Some(3 * W), None]);
        fair.raw.cmd(&["DEL", &fair.names.queue]).ok();
        fair.advance(1_000);
        assert!(fair.renew(&[A]).is(0));
        assert_eq!(fair.queue(), [A]);
        assert_eq!(fair.set(&["ZCARD", &fair.names.deadlines]), 1);
    }

    #[test]
    fn a_head_of_javas_is_removed_at_its_deadline() {
        let fair = Fair::queued();
        fair.release(A);
        let left = fair.stays(&fair.java(2)).unwrap();
        fair.advance(left - 1);
        assert!(fair.renew(&[B]).is(0));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
        fair.advance(1_000);
        assert!(fair.renew(&[B]).is(0));
        assert_eq!(fair.queue(), [B]);
        assert_eq!(fair.stays(B), Some(2 * W - 1_000), "what it had stays");
    }

    ///
    #[test]
    fn a_clock_that_goes_back_keeps_nobody_alive() {
        let fair = Fair::queued();
        fair.now.set(START - 3_600_000);
        for _ in 0..4 {
            fair.advance(1_000);
            assert!(fair.renew(&[B]).is(0));
            assert_eq!(fair.queue()[0], A);
        }
        fair.advance(1_000);
        assert!(fair.renew(&[B]).is(0));
        assert_eq!(fair.queue(), [&fair.java(2), B]);
    }

    ///
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let fair = Fair::queued();
        fair.advance(1_000);
        fair.renew(&[A, B]);
        let before = fair.everything();
        fair.renew(&[A, B]);
        assert_eq!(fair.everything(), before);
        // Late, behind giving up and behind the turn.
        fair.release(B);
        fair.java.unlock(&fair.names, 1, 30_000);
        assert!(fair.acquire(A).is(0));
        let before = fair.everything();
        assert_eq!(fair.renew(&[A, B]).0, [0, -1]);
        assert_eq!(fair.everything(), before);
        fair.release(A);
        let before = fair.everything();
        assert_eq!(fair.renew(&[A, B]).0, [-1, -1]);
        assert_eq!(fair.everything(), before);
    }

    ///
    #[test]
    fn what_cannot_be_renewed_is_left_alone_and_said() {
        let fair = Fair::queued();
        let before = fair.everything();
        for bad in BAD_LEASES {
            let answer = fair.send(&fair.raw, RENEW, &[&[bad, A, "300000", "PUBLISH"]]);
            assert!(answer.failed("lease_ms"), "{bad}");
        }
        for bad in BAD_LEASES.iter().filter(|bad| **bad != "0") {
            let answer = fair.send(&fair.raw, RENEW, &[&[LEASE, A, bad, "PUBLISH"]]);
            assert!(answer.failed("wait_ms"), "{bad}");
        }
        assert_eq!(fair.everything(), before);
        for key in 0..4 {
            let fair = Fair::queued();
            fair.raw.cmd(&["SET", fair.keys()[key], "x"]).ok();
            fair.advance(1_000);
            assert!(fair.renew(&[A]).failed("WRONGTYPE"), "{key}");
            assert_eq!(fair.raw.cmd(&["GET", fair.keys()[key]]).text(), "x");
        }
        let fair = Fair::queued();
        for corrupt in ["x", "", "1 2", "1 2 x", "-1 2 3"] {
            fair.raw.cmd(&["HSET", BEATS, A, corrupt, C, corrupt]).ok();
            assert!(fair.renew(&[A]).is(0), "{corrupt}");
            assert_eq!(fair.queue()[0], A);
            assert!(fair.renew(&[C]).is(-1));
        }
    }

    /// what is left undone is done by the next who may.
    #[test]
    fn a_right_that_is_missing_fails_waiters_but_no_holder() {
        let commands = "hmget zmscore hset zadd lpos lrange zrange hgetall lrem zrem pttl pexpire \
                        exists time publish linsert lpush hdel";
        for command in commands.split(' ') {
            let fair = Fair::queued();
            fair.acquire("dead:1");
            fair.advance(1_000);
            let limited = fair.without(command);
            let script = match command {
                "time" => RENEW.to_owned(),
                _ => fair.timed(RENEW),
            };
            let keys = [fair.keys(), fair.keys()].concat();
            let (java, entry) = (fair.java(1), ["300000", "PUBLISH"]);
            let args = [&[LEASE, &java][..], &entry, &[LEASE, A], &entry].concat();
            let answer = Answer::read(&eval(&limited, &script, &keys, &args));
            let holder = if matches!(command, "hmget" | "pexpire") { -2 } else { 0 };
            assert_eq!(answer.0[0], holder, "{command}: {answer:?}");
            assert!(matches!(answer.0[1], 0 | -2), "{command}: {answer:?}");
            assert_eq!(fair.queue(), [A, &fair.java(2), B, "dead:1"], "{command}");
            assert_ne!(ttl(&fair.raw, BEATS), -1, "{command}");
        }
    }

    /// A beat that brings the whole hash back, but not its time to live.
    #[test]
    fn records_never_stand_without_a_ttl() {
        let fair = Fair::queued();
        fair.raw.cmd(&["DEL", BEATS]).ok();
        let limited = fair.without("pexpire");
        let answer = fair.send(&limited, RENEW, &[&[LEASE, A, "300000", "PUBLISH"]]);
        assert!(answer.is_denied(), "{answer:?}");
        assert_eq!(ttl(&fair.raw, BEATS), -2);
        fair.raw.cmd(&["HSET", BEATS, "x", "y"]).ok();
        assert!(fair.renew(&[A]).is(0));
        assert!(ttl(&fair.raw, BEATS) > 50_000);
    }

    /// One list of a client: holders and waiters of several locks.
    #[test]
    fn each_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let fair = Fair::queued();
        fair.raw.cmd(&["SET", "text", "x"]).ok();
        let (java, own) = (fair.java(1), fair.keys());
        let other = ["text", "q2", "d2", "b2", "ch2"];
        let keys = [own, other, own, own, other, own].concat();
        let entry = |lease, owner| [lease, owner, "300000", "PUBLISH"];
        let args = [
            entry(LEASE, B),
            entry(LEASE, B),
            entry("0", A),
            entry("90000", &java),
            entry("0", B),
            entry(LEASE, C),
        ];
        let reply = eval(&fair.raw, &fair.timed(RENEW), &keys, &args.concat());
        let Answer(codes, texts) = Answer::read(&reply);
        assert_eq!(codes, [0, -2, -2, 0, -2, -1]);
        assert!(texts[0].starts_with("WRONGTYPE"), "{texts:?}");
        assert!(texts.len() == 3 && texts[1..].iter().all(|text| text.contains("lease_ms")));
        assert!(ttl(&fair.raw, "l") > 80_000);
    }
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

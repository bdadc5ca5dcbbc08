//! The scripts of the read/write lock.

use std::time::Duration;

use super::*;
use crate::support::redisson_read_write::RedissonReadWrite;
use crate::support::{assert_every_key_has_ttl, assert_no_keys};

mod damaged;
mod mixed;
mod reading;
mod writing;

const READ_ACQUIRE: &str = include_str!("../../../lua/read_write_lock/read_acquire.lua");
const WRITE_ACQUIRE: &str = include_str!("../../../lua/read_write_lock/write_acquire.lua");
const READ_RELEASE: &str = include_str!("../../../lua/read_write_lock/read_release.lua");
const WRITE_RELEASE: &str = include_str!("../../../lua/read_write_lock/write_release.lua");
const RENEW: &str = include_str!("../../../lua/read_write_lock/renew.lua");
const FORCE_RELEASE: &str = include_str!("../../../lua/read_write_lock/force_release.lua");
const INSPECT: &str = include_str!("../../../lua/read_write_lock/inspect.lua");

const C: &str = "00000000-0000-4000-8000-00000000000c:3";
const BAD_COUNTS: [&str; 9] = ["-1", "1.5", "x", "", "nan", "inf", "5001", "1e9", "-0.5"];
/// Counts in the hash that are none, or too many to look at.
const NO_COUNTS: [&str; 10] =
    ["notanumber", "9223372036854775807", "1e3", " 1", "nan", "", "0", "-3", "5001", "1.5"];

/// Calls on one lock, with the names that belong to it.
struct Rw<'a> {
    raw: &'a Raw,
    lock: &'a str,
}

impl Rw<'_> {
    fn timeouts(&self, owner: &str) -> String {
        format!("{}:{owner}:rwlock_timeout", RedissonReadWrite::prefix(self.lock))
    }

    fn call(&self, script: &str, keys: &[&str], args: &[&str]) -> Answer {
        Answer::read(&eval(self.raw, script, keys, args))
    }

    fn read(&self, lease_ms: &str, owner: &str, count: &str) -> Answer {
        let keys = [self.lock, &self.timeouts(owner)];
        self.call(READ_ACQUIRE, &keys, &[lease_ms, owner, count, ""])
    }

    fn write(&self, lease_ms: &str, owner: &str, count: &str) -> Answer {
        self.call(WRITE_ACQUIRE, &[self.lock], &[lease_ms, owner, count])
    }

    fn unread(&self, owner: &str, count: &str) -> Answer {
        self.unread_telling(owner, count, "PUBLISH")
    }

    fn unread_telling(&self, owner: &str, count: &str, publish: &str) -> Answer {
        let channel = RedissonReadWrite::channel(self.lock);
        let prefix = RedissonReadWrite::prefix(self.lock);
        let keys = [self.lock, &channel, &self.timeouts(owner), &prefix];
        self.call(READ_RELEASE, &keys, &[owner, count, publish])
    }

    fn unwrite(&self, owner: &str, count: &str) -> Answer {
        self.unwrite_telling(owner, count, "PUBLISH")
    }

    fn unwrite_telling(&self, owner: &str, count: &str, publish: &str) -> Answer {
        let channel = RedissonReadWrite::channel(self.lock);
        let keys = [self.lock, &channel, &self.timeouts(owner)];
        self.call(WRITE_RELEASE, &keys, &[owner, count, publish])
    }

    fn renew(&self, lease_ms: &str, owner: &str) -> Answer {
        self.call(RENEW, &[self.lock, &self.timeouts(owner)], &[lease_ms, owner, ""])
    }

    fn force(&self, holder: &str, mode: &str) -> Answer {
        self.force_telling(holder, mode, "PUBLISH")
    }

    fn force_telling(&self, holder: &str, mode: &str, publish: &str) -> Answer {
        let channel = RedissonReadWrite::channel(self.lock);
        let prefix = RedissonReadWrite::prefix(self.lock);
        self.call(FORCE_RELEASE, &[self.lock, &channel, &prefix], &[holder, mode, publish])
    }

    fn inspect(&self, mode: &str) -> Answer {
        self.call(INSPECT, &[self.lock], &[mode])
    }

    /// Plain command on the lock's key.
    fn hset(&self, field: &str, value: &str) {
        self.raw.cmd(&["HSET", self.lock, field, value]).ok();
    }

    fn timeout(&self, owner: &str, i: i64) -> String {
        RedissonReadWrite::timeout(self.lock, owner, i)
    }

    /// Asserts the fields of the hash, and that its TTL is what `lease_ms` allows.
    #[track_caller]
    fn stands(&self, fields: &[(&str, &str)], lease_ms: i64) {
        let found = self.raw.cmd(&["HGETALL", self.lock]).map();
        let fields = fields.iter().map(|(field, value)| (field.to_string(), value.to_string()));
        assert_eq!(found, fields.collect());
        assert_near(self.raw, self.lock, lease_ms);
    }

    /// Asserts that an owner has just these read holds, with these leases.
    #[track_caller]
    fn reads(&self, owner: &str, leases: &[i64]) {
        for (i, lease_ms) in (1..).zip(leases) {
            assert_near(self.raw, &self.timeout(owner, i), *lease_ms);
            assert_eq!(self.raw.cmd(&["GET", &self.timeout(owner, i)]).text(), "1");
        }
        let (keys, timeouts) = (self.raw.cmd(&["KEYS", "*"]), self.timeouts(owner));
        let found = keys.items().iter().filter(|key| key.text().starts_with(&timeouts)).count();
        assert_eq!(found, leases.len(), "keys of {owner}");
    }

    /// Asserts a refusal by this holder, for at most this long.
    #[track_caller]
    fn refused(&self, answer: Answer, holder: &str, lease_ms: i64) {
        let Answer(codes, texts) = answer;
        assert!(codes[0] > lease_ms - 10_000 && codes[0] <= lease_ms + 1, "{codes:?} {texts:?}");
        assert_eq!(texts, [holder]);
    }
}

/// Asserts how long a key has left, with ten seconds for a slow test.
#[track_caller]
fn assert_near(raw: &Raw, key: &str, lease_ms: i64) {
    let left = ttl(raw, key);
    assert!(left > lease_ms - 10_000 && left <= lease_ms, "{key}: {left} of {lease_ms}");
}

/// What was published on the lock's channel so far.
struct Listener<'a> {
    raw: &'a Raw,
    ears: Raw,
    channel: String,
}

impl<'a> Listener<'a> {
    fn start(server: &RedisServer, raw: &'a Raw, lock: &str) -> Self {
        let (ears, channel) = (server.raw(), RedissonReadWrite::channel(lock));
        ears.subscribe(&channel);
        Self { raw, ears, channel }
    }

    #[track_caller]
    fn heard(&self, expected: &[&str]) {
        self.raw.cmd(&["PUBLISH", &self.channel, "end"]).ok();
        let mut heard = Vec::new();
        loop {
            let message = self.ears.next_message(Duration::from_secs(10)).expect("a message");
            if message.payload == "end" {
                break;
            }
            heard.push(message.payload);
        }
        assert_eq!(heard, expected);
    }
}

/// All that a server has, whatever the order of fields: one that was put back comes last.
fn state(raw: &Raw) -> Vec<String> {
    let keys = raw.cmd(&["KEYS", "*"]).ok();
    let describe = |key: &Reply| {
        let (name, ends) = (key.text(), ttl(raw, &key.text()) >= 0);
        let fields = raw.cmd(&["HGETALL", &name]);
        match fields.error() {
            None => format!("{name} {:?} {ends}", fields.map()),
            Some(_) => format!("{name} {:?} {ends}", raw.cmd(&["DUMP", &name])),
        }
    };
    let mut state: Vec<_> = keys.items().iter().map(describe).collect();
    state.sort();
    state
}

fn writer(owner: &str) -> String {
    format!("{owner}:write")
}

mod force_release {
    use super::*;

    /// I6: Redisson leaves the keys of read holds to their leases.
    #[test]
    fn all_readers_are_removed_with_their_keys_and_waiters_are_told_zero() {
        let server = RedisServer::start();
        let raw = server.raw();
        let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(rw.read(LEASE, A, "3").is(0));
        assert!(rw.read(LEASE, B, "1").is(0));
        assert!(rw.force("", "write").is(-1), "it is not held in that mode");
        assert!(rw.force("", "read").is(1));
        assert_no_keys(&raw);
        told.heard(&["0"]);
        assert!(rw.force("", "read").is(-1));
        told.heard(&[]);
    }

    #[test]
    fn a_writer_is_removed_with_all_it_has_and_waiters_are_told_one() {
        let server = RedisServer::start();
        let raw = server.raw();
        let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
        for holder in ["", A] {
            assert!(rw.write(LEASE, A, "1").is(0));
            assert!(rw.read(LEASE, A, "1").is(0));
            assert!(rw.force(holder, "read").is(-1), "a writer is not removed as a reader");
            assert!(rw.force(B, "write").is(-1));
            assert!(rw.force(holder, "write").is(1));
            assert_no_keys(&raw);
            assert!(rw.renew(LEASE, A).is(-1), "its owner is told");
            assert!(rw.force(holder, "write").is(-1));
            told.heard(&["1"]);
        }
    }

    /// I4, I14.
    #[test]
    fn of_several_readers_only_the_named_one_is_removed() {
        let server = RedisServer::start();
        let raw = server.raw();
        let (rw, told) = (Rw { raw: &raw, lock: "l" }, Listener::start(&server, &raw, "l"));
        assert!(rw.read("90000", A, "1").is(0));
        assert!(rw.read("90000", A, "2").is(0));
        assert!(rw.read(LEASE, B, "1").is(0));
        assert!(rw.force(C, "read").is(-1));
        rw.stands(&[("mode", "read"), (A, "2"), (B, "1")], 90_000);
        assert!(rw.force(A, "read").is(0));
        rw.stands(&[("mode", "read"), (B, "1")], 30_000);
        rw.reads(A, &[]);
        assert!(rw.force(A, "read").is(-1), "its resend says gone");
        told.heard(&[]);
        // The dead do not keep it.
        rw.hset(C, "1");
        assert!(rw.force(B, "read").is(1));
        assert_no_keys(&raw);
        told.heard(&["0"]);
    }

    /// R-23, R-20.
    #[test]
    fn counts_that_are_none_are_removed_and_what_is_no_lock_is_left_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        let rw = Rw { raw: &raw, lock: "l" };
        for count in NO_COUNTS {
            for holder in ["", A] {
                assert!(rw.read(LEASE, A, "1").is(0));
                rw.hset(A, count);
                assert!(rw.force(holder, "read").is(0), "{count}");
                assert_no_keys(&raw);
                assert!(rw.write(LEASE, A, "1").is(0));
                rw.hset(&writer(A), count);
                assert!(rw.force(holder, "write").is(0), "{count}");
                assert_no_keys(&raw);
            }
        }
        raw.cmd(&["SET", "text", "x"]).ok();
        raw.cmd(&["HSET", "plain", A, "1"]).ok();
        raw.cmd(&["HSET", "odd", "mode", "shared", A, "1"]).ok();
        let before = state(&raw);
        for (lock, holder) in [("text", ""), ("text", A), ("plain", A), ("odd", ""), ("odd", A)] {
            for mode in ["read", "write"] {
                assert!(Rw { raw: &raw, lock }.force(holder, mode).failed("WRONGTYPE"), "{lock}");
            }
        }
        assert_eq!(state(&raw), before);
    }

    #[test]
    fn a_mode_or_a_holder_that_is_none_is_refused() {
        let server = RedisServer::start();
        let raw = server.raw();
        let rw = Rw { raw: &raw, lock: "l" };
        assert!(rw.read(LEASE, A, "1").is(0));
        for mode in ["", "READ", "both"] {
            assert!(rw.force("", mode).failed("mode"), "{mode}");
            assert!(rw.inspect(mode).failed("mode"), "{mode}");
        }
        assert!(rw.force("mode", "read").failed("holder"));
        assert!(rw.force(&writer(A), "read").failed("holder"));
        rw.stands(&[("mode", "read"), (A, "1")], 30_000);
    }

    /// R-21.
    #[test]
    fn what_cannot_be_told_is_released_and_said() {
        let server = RedisServer::start();
        let raw = mute(&server);
        let rw = Rw { raw: &raw, lock: "l" };
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(matches!(&rw.force("", "read"), Answer(codes, _) if *codes == [-4]));
        assert!(rw.write(LEASE, A, "1").is(0));
        assert!(matches!(&rw.force(A, "write"), Answer(codes, _) if *codes == [-4]));
        assert_no_keys(&server.raw());
        assert!(rw.write(LEASE, A, "1").is(0));
        assert!(rw.force_telling("", "write", "").is(0), "nobody is to be told");
        assert_no_keys(&server.raw());
    }
}

mod inspect {
    use super::*;

    #[test]
    fn it_names_readers_and_writers_by_their_mode_and_changes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        let rw = Rw { raw: &raw, lock: "l" };
        let nobody = |mode| assert!(rw.inspect(mode).is(-1), "{mode}");
        ["read", "write"].into_iter().for_each(nobody);
        assert_no_keys(&raw);
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(rw.read(LEASE, A, "2").is(0));
        assert!(rw.read(LEASE, B, "1").is(0));
        nobody("write");
        let before = state(&raw);
        let Answer(codes, texts) = rw.inspect("read");
        assert!(codes[0] > 20_000 && codes[0] <= 30_000, "{codes:?}");
        let mut readers: Vec<_> = texts.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
        readers.sort_unstable();
        assert_eq!(readers, [(A, "2"), (B, "1")]);
        assert_eq!(state(&raw), before);
        raw.cmd(&["PERSIST", "l"]).ok();
        assert_eq!(rw.inspect("read").0, [-3]);
    }

    #[test]
    fn a_writer_reads_only_if_it_took_a_read_hold_too() {
        let server = RedisServer::start();
        let raw = server.raw();
        let rw = Rw { raw: &raw, lock: "l" };
        let java = RedissonReadWrite::connect(server.port());
        assert!(rw.write(LEASE, A, "1").is(0));
        assert!(rw.inspect("read").is(-1));
        assert!(!java.is_read_locked("l") && java.is_write_locked("l"));
        assert_eq!(rw.inspect("write").1, [A, "1"]);
        assert!(rw.read(LEASE, A, "1").is(0));
        assert_eq!([rw.inspect("read").1, rw.inspect("write").1], [[A, "1"], [A, "1"]]);
        assert!(java.is_read_locked("l") && java.is_write_locked("l"));
        for (lock, mode) in [("text", "read"), ("plain", "write"), ("odd", "read")] {
            raw.cmd(&["SET", "text", "x"]).ok();
            raw.cmd(&["HSET", "plain", A, "1"]).ok();
            raw.cmd(&["HSET", "odd", "mode", "shared", A, "1"]).ok();
            assert!(Rw { raw: &raw, lock }.inspect(mode).failed("WRONGTYPE"), "{lock}");
        }
    }
}

/// Lists of many entries, one of them bad, in the middle.
mod lists {
    use super::*;

    const LENGTH: usize = 16;
    const BAD: usize = 7;

    fn names() -> Vec<String> {
        (0..LENGTH).map(|i| format!("lock:{i}")).collect()
    }

    /// Sends a list; of the keys of an entry, `L` is the lock, `T` and `P` are what belongs to it.
    fn list(raw: &Raw, script: &str, keys: &[&str], args: &[&str]) -> Answer {
        let (mut all_keys, mut all_args) = (Vec::new(), Vec::new());
        for name in names() {
            let rw = Rw { raw, lock: &name };
            all_keys.extend(keys.iter().map(|key| match *key {
                "L" => name.clone(),
                "T" => rw.timeouts(A),
                "P" => RedissonReadWrite::prefix(&name),
                _ => RedissonReadWrite::channel(&name),
            }));
            all_args.extend(args.iter().map(|arg| (*arg).to_owned()));
        }
        let [keys, args] =
            [&all_keys, &all_args].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        Answer::read(&eval(raw, script, &keys, &args))
    }

    #[track_caller]
    fn assert_one_failed(answer: &Answer, code: i64, why: &str) {
        let expected: Vec<_> = (0..LENGTH).map(|i| if i == BAD { -2 } else { code }).collect();
        assert_eq!(answer.0, expected, "{why}");
        assert!(answer.1.len() == 1 && answer.1[0].contains(why), "{why}: {:?}", answer.1);
    }

    /// R-20, I6.
    #[test]
    fn a_key_of_another_type_fails_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", &names()[BAD], "x", "PX", "600000"]).ok();
        let send = |script, keys: &[&str], args: &[&str], code| {
            assert_one_failed(&list(&raw, script, keys, args), code, "WRONGTYPE");
            assert_every_key_has_ttl(&raw);
        };
        send(WRITE_ACQUIRE, &["L"], &[LEASE, A, "1"], 0);
        send(READ_ACQUIRE, &["L", "T"], &[LEASE, A, "1", ""], 0);
        send(WRITE_ACQUIRE, &["L"], &[LEASE, A, "2"], 0);
        send(READ_ACQUIRE, &["L", "T"], &[LEASE, A, "2", "r"], 0);
        send(RENEW, &["L", "T"], &["60000", A, "r"], 0);
        for name in names().iter().filter(|name| **name != names()[BAD]) {
            let rw = Rw { raw: &raw, lock: name };
            rw.stands(&[("mode", "write"), (A, "2"), (&writer(A), "2")], 60_000);
            rw.reads(A, &[60_000, 60_000]);
        }
        send(WRITE_RELEASE, &["L", "C", "T"], &[A, "1", "PUBLISH"], -3);
        send(WRITE_RELEASE, &["L", "C", "T"], &[A, "0", "PUBLISH"], 0);
        send(READ_RELEASE, &["L", "C", "T", "P"], &[A, "1", "PUBLISH"], -3);
        send(READ_RELEASE, &["L", "C", "T", "P"], &[A, "0", "PUBLISH"], 0);
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1);
        assert_eq!(raw.cmd(&["GET", &names()[BAD]]).text(), "x");
    }

    /// I1: refused, gone and failed entries each keep their own text.
    #[test]
    fn every_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let server = RedisServer::start();
        let raw = server.raw();
        let all = ["text", "free", "held", "gone", "endless"];
        let [text, _, held, _, endless] = all.map(|lock| Rw { raw: &raw, lock });
        raw.cmd(&["SET", text.lock, "x"]).ok();
        assert!(held.write(LEASE, B, "1").is(0));
        assert!(endless.write(LEASE, C, "1").is(0));
        raw.cmd(&["PERSIST", "endless"]).ok();
        let counts = ["1", "1", "1", "2", "1"];
        let args = counts.map(|count| [LEASE, A, count]).concat();
        let Answer(codes, texts) = Answer::read(&eval(&raw, WRITE_ACQUIRE, &all, &args));
        assert_eq!([&codes[..2], &codes[3..]].concat(), [-2, 0, -1, -3]);
        assert!(codes[2] > 20_000 && texts[0].starts_with("WRONGTYPE"), "{codes:?} {texts:?}");
        assert_eq!(texts[1..], [B, C]);
        assert!(Rw { raw: &raw, lock: "free" }.unwrite(A, "0").is(0));
        let timeouts = all.map(|lock| Rw { raw: &raw, lock }.timeouts(A));
        let keys: Vec<_> = all.iter().zip(&timeouts).flat_map(|(l, t)| [*l, t]).collect();
        let args = counts.map(|count| [LEASE, A, count, ""]).concat();
        let Answer(codes, texts) = Answer::read(&eval(&raw, READ_ACQUIRE, &keys, &args));
        assert_eq!([&codes[..2], &codes[3..]].concat(), [-2, 0, -1, -3]);
        assert_eq!(texts[1..], [B, C]);
    }
}

/// The brace rule, and names that would mean something to a pattern or a format.
#[test]
fn hostile_names_are_names_like_any_other() {
    let server = RedisServer::start();
    let raw = server.raw();
    for lock in ["a{b}c", "%d %s%%", "mode", "a b\r\n\0c", "x:write", "ü:[*]?", "^$().%w+-"] {
        let (rw, told) = (Rw { raw: &raw, lock }, Listener::start(&server, &raw, lock));
        assert!(rw.write(LEASE, A, "1").is(0), "{lock}");
        assert!(rw.read(LEASE, A, "1").is(0));
        assert!(rw.renew("60000", A).is(0));
        assert_near(&raw, &rw.timeout(A, 1), 60_000);
        assert!(rw.unwrite(A, "0").is(1));
        assert!(rw.read(LEASE, B, "1").is(0));
        raw.cmd(&["PERSIST", lock]).ok();
        assert!(rw.renew(LEASE, B).is(0));
        assert_near(&raw, lock, 60_000);
        assert!(rw.unread(A, "0").is(0));
        assert_near(&raw, lock, 30_000);
        assert!(rw.unread(B, "0").is(1));
        assert_no_keys(&raw);
        told.heard(&["1", "0"]);
    }
}

/// R-22: said as an error of the whole list, so that the client looks for the primary.
#[test]
fn a_replica_refuses_the_whole_list() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "held" };
    assert!(rw.write(LEASE, A, "1").is(0));
    assert!(rw.read(LEASE, A, "1").is(0));
    let before = state(&raw);
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let timeouts = rw.timeouts(A);
    let calls: [(&str, &[&str], &[&str]); 8] = [
        (READ_ACQUIRE, &["free", "{free}:t"], &[LEASE, A, "1", ""]),
        (READ_ACQUIRE, &["held", &timeouts], &[LEASE, A, "2", ""]),
        (WRITE_ACQUIRE, &["free"], &[LEASE, A, "1"]),
        (WRITE_ACQUIRE, &["held"], &[LEASE, A, "2"]),
        (RENEW, &["held", &timeouts], &["90000", A, ""]),
        (READ_RELEASE, &["held", "ch", &timeouts, "{held}"], &[A, "0", "PUBLISH"]),
        (WRITE_RELEASE, &["held", "ch", &timeouts], &[A, "0", "PUBLISH"]),
        (FORCE_RELEASE, &["held", "ch", "{held}"], &["", "write", "PUBLISH"]),
    ];
    for (script, keys, args) in calls {
        let reply = eval(&raw, script, keys, args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    }
    raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
    assert_eq!(state(&raw), before);
}

/// R-17: giving back and keeping need no memory; taking does.
#[test]
fn on_a_full_server_holds_are_kept_and_given_back_but_not_taken() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    assert!(rw.write(LEASE, A, "1").is(0));
    assert!(rw.read(LEASE, A, "1").is(0));
    raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let full = |script, keys: &[&str], args: &[&str]| {
        let reply = eval(&raw, script, keys, args);
        let text = reply.error().map_or_else(|| reply.items()[1].text(), str::to_owned);
        assert!(text.contains("OOM"), "{reply:?}");
    };
    full(READ_ACQUIRE, &["free", &rw.timeouts(B)], &[LEASE, B, "1", ""]);
    full(WRITE_ACQUIRE, &["free"], &[LEASE, B, "1"]);
    assert!(rw.renew("60000", A).is(0));
    assert!(rw.unwrite(A, "0").is(0));
    rw.stands(&[("mode", "read"), (A, "1")], 60_000);
    assert!(rw.unread(A, "0").is(0));
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 0);
}

/// I8. What a hold has is part of the request: a writer that was robbed of it cannot read on as if
/// it had come to read, nor have what is left of it renewed.
#[test]
fn a_hold_that_is_not_all_there_is_gone() {
    let server = RedisServer::start();
    let raw = server.raw();
    let rw = Rw { raw: &raw, lock: "l" };
    let read =
        |count, stands| rw.call(READ_ACQUIRE, &["l", &rw.timeouts(A)], &[LEASE, A, count, stands]);
    let renew = |stands| rw.call(RENEW, &["l", &rw.timeouts(A)], &[LEASE, A, stands]);
    assert!(read("1", "w").is(-1));
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 0);
    assert!(rw.write(LEASE, A, "1").is(0));
    assert!(read("1", "w").is(0) && read("2", "rw").is(0));
    assert!(renew("rw").is(0) && renew("w").is(0) && renew("r").is(0));
    assert!(rw.unwrite(A, "0").is(0));
    assert!(read("3", "rw").is(-1) && renew("rw").is(-1) && renew("w").is(-1));
    assert!(renew("r").is(0) && read("1", "r").is(0));
    assert!(rw.unread(A, "0").is(0));
    assert!(rw.write(LEASE, B, "1").is(0));
    assert!(read("1", "w").is(-1) && read("1", "r").is(-1));
}

/// The client reads any array that begins with a word like "message" as a message.
#[test]
fn every_reply_begins_with_an_integer_in_resp2_and_resp3() {
    let server = RedisServer::start();
    for version in ["2", "3"] {
        let raw = server.raw();
        raw.cmd(&["HELLO", version]).ok();
        raw.cmd(&["FLUSHALL"]).ok();
        let rw = Rw { raw: &raw, lock: "l" };
        assert!(rw.write(LEASE, "message", "1").is(0));
        assert!(rw.read(LEASE, "message", "1").is(0));
        assert!(rw.read(LEASE, "message", "2").is(0));
        assert_eq!(rw.read(LEASE, "subscribe", "1").1, ["message"]);
        assert_eq!(rw.inspect("read").1, ["message", "2"]);
        assert!(rw.renew("60000", "message").is(0));
        assert!(rw.unread("message", "1").is(-3));
        assert!(rw.unwrite("message", "0").is(0));
        assert!(rw.read(LEASE, "subscribe", "1").is(0));
        raw.cmd(&["PERSIST", "l"]).ok();
        assert!(rw.renew(LEASE, "subscribe").is(0));
        assert_near(&raw, "l", 60_000);
        assert!(rw.force("subscribe", "read").is(0));
        assert!(rw.unread("message", "0").is(0));
        assert_no_keys(&raw);
    }
}

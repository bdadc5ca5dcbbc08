//! The Lua files by themselves, sent by hand: what each answers, what it leaves, and that a command
//! that is sent twice leaves what it leaves when sent once.

use crate::support::server::{Raw, RedisServer, Reply};

mod count_down_latch;
mod fair_lock;
mod fenced_lock;
mod lock;
mod permit_semaphore;
mod read_write_lock;
mod semaphore;
mod token_lock;

const LEASE: &str = "30000";
const LONGEST_MS: &str = "315576000000";
const A: &str = "00000000-0000-4000-8000-00000000000a:1";
const B: &str = "00000000-0000-4000-8000-00000000000b:2";

/// Values of a field that HINCRBY cannot count with.
const CORRUPT: [&str; 6] = ["notanumber", "9223372036854775807", "1e3", " 1", "nan", ""];

/// Leases that are refused: no whole number of milliseconds, or more than ten years.
const BAD_LEASES: [&str; 12] = [
    "0",
    "-1",
    "1.5",
    "abc",
    "",
    "nan",
    "inf",
    "315576000001",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e308",
];

fn eval(raw: &Raw, script: &str, keys: &[&str], args: &[&str]) -> Reply {
    let count = keys.len().to_string();
    let mut command = vec!["EVAL", script, &count];
    command.extend(keys);
    command.extend(args);
    raw.cmd(&command)
}

/// A reply: the integers in front, then the texts.
#[derive(Debug, PartialEq)]
struct Answer(Vec<i64>, Vec<String>);

impl Answer {
    #[track_caller]
    fn read(reply: &Reply) -> Self {
        assert_eq!(reply.error(), None, "nothing that one entry does is an error of the list");
        let (mut codes, mut texts) = (Vec::new(), Vec::new());
        for item in reply.items() {
            match item {
                Reply::Int(code) if texts.is_empty() => codes.push(*code),
                Reply::Bulk(_) => texts.push(item.text()),
                other => panic!("{other:?} in {reply:?}"),
            }
        }
        assert!(!codes.is_empty(), "an integer comes first: {reply:?}");
        Self(codes, texts)
    }

    fn is(&self, code: i64) -> bool {
        self.0 == [code] && self.1.is_empty()
    }

    fn is_denied(&self) -> bool {
        self.0 == [-2] && self.1.len() == 1 && says_denied(&self.1[0])
    }

    /// Whether the one entry failed for a reason that contains this.
    fn failed(&self, why: &str) -> bool {
        self.0 == [-2] && self.1.len() == 1 && self.1[0].contains(why)
    }
}

/// Redis 7.0 says it in other words than later ones and Valkey.
fn says_denied(text: &str) -> bool {
    text.contains("The user executing the script")
        || text.contains("ACL failure in script")
        || text.starts_with("NOPERM")
}

fn ttl(raw: &Raw, lock: &str) -> i64 {
    raw.cmd(&["PTTL", lock]).int()
}

/// A user who may do all that these scripts do, but publish on no channel.
fn mute(server: &RedisServer) -> Raw {
    let rules = ["on", "nopass", "~*", "resetchannels", "+@all"];
    let command: Vec<_> = ["ACL", "SETUSER", "mute"].into_iter().chain(rules).collect();
    server.raw().cmd(&command).ok();
    let raw = server.raw();
    raw.cmd(&["AUTH", "mute", "x"]).ok();
    raw
}

/// A user who may do all but one command.
fn without_right(server: &RedisServer, command: &str) -> Raw {
    let (name, minus) = (format!("no-{command}"), format!("-{command}"));
    let rules = ["ACL", "SETUSER", &name, "on", "nopass", "~*", "&*", "+@all", &minus];
    server.raw().cmd(&rules).ok();
    let raw = server.raw();
    raw.cmd(&["AUTH", &name, "x"]).ok();
    raw
}

/// All that a server has: each key, its value, and whether it ends.
fn contents(raw: &Raw) -> Vec<String> {
    let keys = raw.cmd(&["KEYS", "*"]).ok();
    let describe = |key: &Reply| {
        let Reply::Bulk(name) = key else { panic!("{key:?}") };
        let dump = raw.cmd_bytes(&[b"DUMP", name]);
        let ends = raw.cmd_bytes(&[b"PTTL", name]).int() >= 0;
        format!("{key:?} {dump:?} {ends}")
    };
    let mut contents: Vec<_> = keys.items().iter().map(describe).collect();
    contents.sort();
    contents
}

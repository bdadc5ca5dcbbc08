//! The scripts of the fenced lock; it is renewed and given back by those of the reentrant lock.

use super::*;
use crate::support::{assert_no_keys, redisson::Redisson, server::until};

const ACQUIRE: &str = include_str!("../../../lua/fenced_lock/acquire.lua");
const INSPECT: &str = include_str!("../../../lua/fenced_lock/inspect.lua");
const RELEASE: &str = include_str!("../../../lua/lock/release.lua");
const RENEW: &str = include_str!("../../../lua/lock/renew.lua");
const FORCE_RELEASE: &str = include_str!("../../../lua/lock/force_release.lua");

/// Tokens that would not survive arithmetic, or that INCR did not write.
const BAD_TOKENS: [&str; 6] =
    ["9007199254740992", "-5", "007", "+1", "1.0", "99999999999999999999999999"];

/// Twenty years ahead of the clock, in microseconds.
const AHEAD_US: i64 = 20 * 365 * 86_400 * 1_000_000;

#[track_caller]
fn acquire(raw: &Raw, owner: &str, count: &str) -> Answer {
    acquire_for(raw, LEASE, owner, count, "0")
}

#[track_caller]
fn acquire_for(raw: &Raw, lease: &str, owner: &str, count: &str, token_ttl: &str) -> Answer {
    Answer::read(&eval(raw, ACQUIRE, &["l", "t"], &[lease, owner, count, token_ttl]))
}

/// Takes the lock and returns its token.
#[track_caller]
fn take(raw: &Raw, owner: &str, count: &str) -> i64 {
    granted(&acquire(raw, owner, count))
}

#[track_caller]
fn granted(answer: &Answer) -> i64 {
    assert_eq!((&answer.0[..], answer.1.len()), (&[0][..], 1), "{answer:?}");
    answer.1[0].parse().expect("a token is a number")
}

#[track_caller]
fn release(raw: &Raw, owner: &str) {
    let answer = Answer::read(&eval(raw, RELEASE, &["l", "ch"], &[owner, "0", "PUBLISH"]));
    assert!(answer.is(0), "{answer:?}");
}

fn inspect(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, INSPECT, &["l", "t"], &[]))
}

/// The server's clock in microseconds.
fn clock(raw: &Raw) -> i64 {
    let time = raw.cmd(&["TIME"]).ok();
    time.items()[0].int() * 1_000_000 + time.items()[1].int()
}

#[track_caller]
fn assert_held(raw: &Raw, owner: &str, count: &str) {
    let fields = raw.cmd(&["HGETALL", "l"]).map();
    assert_eq!(fields, [(owner.to_owned(), count.to_owned())].into());
    assert!(ttl(raw, "l") > 0);
}

mod tokens {
    use super::*;

    /// I3.
    #[test]
    fn the_first_is_the_clock_and_stays_for_ever() {
        let server = RedisServer::start();
        let raw = server.raw();
        let before = clock(&raw);
        let token = take(&raw, A, "1");
        assert!(token >= before && token <= clock(&raw), "{token}");
        assert_held(&raw, A, "1");
        assert_eq!(raw.cmd(&["GET", "t"]).text(), token.to_string());
        assert_eq!(ttl(&raw, "t"), -1);
        release(&raw, A);
        assert_eq!(raw.cmd(&["GET", "t"]).text(), token.to_string(), "it outlives the hold");
    }

    /// I3.
    #[test]
    fn they_rise_with_each_change_of_owner() {
        let server = RedisServer::start();
        let raw = server.raw();
        let mut last = 0;
        for round in 0..200 {
            let owner = [A, B][round % 2];
            let token = take(&raw, owner, "1");
            assert!(token > last, "{token} after {last}");
            last = token;
            release(&raw, owner);
        }
    }

    /// I3: by one, where the clock does not help.
    #[test]
    fn they_rise_also_ahead_of_the_clock() {
        let server = RedisServer::start();
        let raw = server.raw();
        let ahead = clock(&raw) + AHEAD_US;
        raw.cmd(&["SET", "t", &ahead.to_string()]).ok();
        for step in 1..=3 {
            assert_eq!(take(&raw, A, "1"), ahead + step);
            assert_eq!(raw.cmd(&["GET", "t"]).int(), ahead + step);
            release(&raw, A);
        }
    }

    /// I3.
    #[test]
    fn a_reentry_has_the_token_of_its_hold() {
        let server = RedisServer::start();
        let raw = server.raw();
        let token = take(&raw, A, "1");
        for count in ["2", "3", "1"] {
            assert_eq!(take(&raw, A, count), token);
            assert_held(&raw, A, count);
        }
        assert_eq!(raw.cmd(&["GET", "t"]).int(), token);
    }

    /// I3, R-07: also without an append-only file or a snapshot.
    #[test]
    fn they_rise_over_a_restart_that_loses_everything() {
        let mut server = RedisServer::start();
        let mut last = take(&server.raw(), A, "1");
        for owner in [B, A] {
            server.restart();
            let raw = server.raw();
            assert_no_keys(&raw);
            let token = take(&raw, owner, "1");
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }

    /// I3, R-18, R-47.
    #[test]
    fn they_rise_when_the_key_is_deleted() {
        let server = RedisServer::start();
        let raw = server.raw();
        let first = take(&raw, A, "1");
        raw.cmd(&["FLUSHALL"]).ok();
        let second = take(&raw, B, "1");
        assert!(second > first);
        raw.cmd(&["DEL", "t"]).ok();
        release(&raw, B);
        assert!(take(&raw, A, "1") > second);
    }

    /// I3: never no token, never a lower one.
    #[test]
    fn a_hold_whose_token_is_gone_gets_a_higher_one() {
        let server = RedisServer::start();
        let raw = server.raw();
        let mut last = take(&raw, A, "1");
        for count in ["2", "1"] {
            for lost in [&["DEL", "t"][..], &["SET", "t", "0"]] {
                raw.cmd(lost).ok();
                let token = take(&raw, A, count);
                assert!(token > last, "{lost:?}");
                assert_eq!(take(&raw, A, count), token, "and keeps it");
                last = token;
            }
        }
    }

    /// nor is a lock granted without one.
    #[test]
    fn a_token_that_is_none_is_refused_and_stays_as_it_was() {
        let server = RedisServer::start();
        let raw = server.raw();
        for bad in BAD_TOKENS.into_iter().chain(CORRUPT) {
            raw.cmd(&["FLUSHALL"]).ok();
            raw.cmd(&["SET", "t", bad]).ok();
            assert!(acquire(&raw, A, "1").failed("token is not an integer"), "{bad}");
            assert_eq!(raw.cmd(&["DBSIZE"]).int(), 1, "{bad}");
            raw.cmd(&["DEL", "t"]).ok();
            take(&raw, A, "1");
            raw.cmd(&["SET", "t", bad]).ok();
            assert!(acquire(&raw, A, "2").failed("token is not an integer"), "{bad}");
            assert_held(&raw, A, "1");
            assert_eq!(raw.cmd(&["GET", "t"]).text(), bad);
        }
    }

    /// 2^53 - 1 can be drawn, but nothing after it.
    #[test]
    fn the_last_token_is_the_last() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "t", "9007199254740990"]).ok();
        for count in ["1", "2"] {
            assert_eq!(take(&raw, A, count), 9_007_199_254_740_991);
        }
        release(&raw, A);
        assert!(acquire(&raw, A, "1").failed("token is not an integer"));
        assert_eq!(raw.cmd(&["EXISTS", "l"]).int(), 0);
        assert_eq!(raw.cmd(&["GET", "t"]).text(), "9007199254740991");
    }
}

mod token_ttl {
    use super::*;

    /// Takes a free lock with a token key that has this TTL, and returns the TTL it has then.
    fn after(raw: &Raw, has: Option<&str>, lease: &str, token_ttl: &str) -> i64 {
        raw.cmd(&["FLUSHALL"]).ok();
        if let Some(ttl) = has {
            raw.cmd(&["SET", "t", "7"]).ok();
            raw.cmd(&["PEXPIRE", "t", ttl]).ok();
        }
        granted(&acquire_for(raw, lease, A, "1", token_ttl));
        ttl(raw, "t")
    }

    #[track_caller]
    fn assert_about(ttl: i64, expected: i64) {
        assert!(ttl > expected - 10_000 && ttl <= expected, "{ttl} of {expected}");
    }

    #[test]
    fn it_is_the_longest_of_what_is_there_and_what_is_asked_for() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert_about(after(&raw, None, LEASE, "60000"), 60_000);
        assert_about(after(&raw, None, "90000", "60000"), 90_000);
        assert_about(after(&raw, Some("20000"), LEASE, "60000"), 60_000);
        assert_about(after(&raw, Some("20000"), "90000", "60000"), 90_000);
        assert_about(after(&raw, Some("120000"), LEASE, "60000"), 120_000);
        assert_about(after(&raw, None, LEASE, LONGEST_MS), LONGEST_MS.parse().unwrap());
    }

    #[test]
    fn for_ever_is_the_longest() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert_eq!(after(&raw, Some("20000"), LEASE, "0"), -1);
        raw.cmd(&["DEL", "l"]).ok();
        granted(&acquire_for(&raw, LEASE, B, "1", "60000"));
        assert_eq!(ttl(&raw, "t"), -1);
    }

    /// I3: a key that ended before the clock reached its token would let it come again.
    #[test]
    fn a_token_ahead_of_the_clock_stays_until_the_clock_has_passed_it() {
        let server = RedisServer::start();
        let raw = server.raw();
        for has in ["20000", "0"] {
            let ahead = clock(&raw) + AHEAD_US;
            raw.cmd(&["SET", "t", &ahead.to_string()]).ok();
            if has != "0" {
                raw.cmd(&["PEXPIRE", "t", has]).ok();
            }
            granted(&acquire_for(&raw, LEASE, A, "1", "60000"));
            let ends = clock(&raw) + ttl(&raw, "t") * 1000;
            assert!(if has == "0" { ttl(&raw, "t") == -1 } else { ends > ahead }, "{has}");
            release(&raw, A);
        }
    }

    /// I3.
    #[test]
    fn tokens_rise_over_the_end_of_the_key() {
        let server = RedisServer::start();
        let raw = server.raw();
        let mut last = 0;
        for _ in 0..20 {
            let token = granted(&acquire_for(&raw, "1", A, "1", "1"));
            assert!(token > last, "{token} after {last}");
            last = token;
            until("lock and token are gone", || raw.cmd(&["EXISTS", "l", "t"]).int() == 0);
        }
    }
}

mod acquire {
    use super::*;

    /// I1.
    #[test]
    fn another_owners_lock_is_refused_and_no_token_is_drawn() {
        let server = RedisServer::start();
        let raw = server.raw();
        let token = take(&raw, B, "1");
        let Answer(codes, texts) = acquire(&raw, A, "1");
        assert!(codes.len() == 1 && codes[0] > 20_000 && codes[0] <= 30_001, "{codes:?}");
        assert_eq!(texts, [B]);
        assert_held(&raw, B, "1");
        assert_eq!(raw.cmd(&["GET", "t"]).int(), token);
    }

    /// I5.
    #[test]
    fn a_reentry_of_a_hold_that_is_gone_draws_no_token() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, A, "2").is(-1));
        assert_no_keys(&raw);
        take(&raw, B, "1");
        let before = contents(&raw);
        assert!(acquire(&raw, A, "2").is(-1));
        assert_eq!(contents(&raw), before);
    }

    /// I5, R-47.
    #[test]
    fn a_reentry_never_shortens_the_time_and_gives_an_endless_lock_its_end_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        let token = granted(&acquire_for(&raw, "90000", A, "1", "0"));
        assert_eq!(take(&raw, A, "2"), token);
        assert!(ttl(&raw, "l") > 60_000);
        raw.cmd(&["PERSIST", "l"]).ok();
        assert_eq!(take(&raw, A, "3"), token);
        assert_held(&raw, A, "3");
    }

    /// R-24, I6.
    #[test]
    fn an_argument_that_is_none_is_refused_before_anything_is_written() {
        let server = RedisServer::start();
        let raw = server.raw();
        for bad in BAD_LEASES {
            assert!(acquire_for(&raw, bad, A, "1", "0").failed("lease_ms"), "{bad}");
            if bad != "0" {
                assert!(acquire_for(&raw, LEASE, A, "1", bad).failed("token_ttl_ms"), "{bad}");
            }
        }
        for count in ["0", "-1", "1.5", "x", "", "nan", "inf"] {
            assert!(acquire(&raw, A, count).failed("count"), "{count}");
        }
        assert_no_keys(&raw);
    }

    ///
    #[test]
    fn keys_of_another_type_are_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        for foreign in [&["SET", "l", "x"][..], &["RPUSH", "t", "x"], &["HSET", "t", "f", "1"]] {
            raw.cmd(&["FLUSHALL"]).ok();
            raw.cmd(foreign).ok();
            let before = contents(&raw);
            assert!(acquire(&raw, A, "1").failed("WRONGTYPE"), "{foreign:?}");
            assert_eq!(contents(&raw), before);
        }
    }

    ///
    #[test]
    fn a_count_that_is_none_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        take(&raw, A, "1");
        for corrupt in CORRUPT {
            raw.cmd(&["HSET", "l", A, corrupt]).ok();
            for token in [&["SET", "t", "7"][..], &["DEL", "t"]] {
                raw.cmd(token).ok();
                let before = contents(&raw);
                assert!(acquire(&raw, A, "2").failed("not an integer"), "{corrupt} {token:?}");
                assert_eq!(contents(&raw), before, "{corrupt} {token:?}");
            }
        }
    }

    /// R-21, I6: neither a lock without a token, nor one without an end, nor a token for nothing.
    #[test]
    fn without_one_right_nothing_is_changed() {
        let server = RedisServer::start();
        let raw = server.raw();
        for command in ["pttl", "get", "time", "set", "hincrby", "pexpire"] {
            let user = without_right(&server, command);
            for token in [None, Some("7"), Some("1999999999999999")] {
                raw.cmd(&["FLUSHALL"]).ok();
                if let Some(token) = token {
                    raw.cmd(&["SET", "t", token, "PX", "90000"]).ok();
                }
                let before = contents(&raw);
                let answer = acquire_for(&user, LEASE, A, "1", "60000");
                assert!(answer.is_denied(), "{command} {token:?}: {answer:?}");
                assert_eq!(contents(&raw), before, "{command}");
            }
        }
    }

    /// R-21, I5: a hold whose token is gone is no worse off than before.
    #[test]
    fn without_one_right_a_reentry_changes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        for command in ["pttl", "hget", "get", "time", "set", "hincrby", "pexpire"] {
            let user = without_right(&server, command);
            raw.cmd(&["FLUSHALL"]).ok();
            take(&raw, A, "1");
            raw.cmd(&["DEL", "t"]).ok();
            let before = contents(&raw);
            let answer = acquire_for(&user, "90000", A, "2", "60000");
            assert!(answer.is_denied(), "{command}: {answer:?}");
            assert_eq!(contents(&raw), before, "{command}");
        }
    }

    ///
    #[test]
    fn on_a_full_server_nothing_is_changed() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "t", "7"]).ok();
        let before = contents(&raw);
        raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        assert!(acquire(&raw, A, "1").failed("OOM"));
        assert_eq!(contents(&raw), before);
    }

    /// R-25, I3, I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        for count in ["1", "2", "3"] {
            let token = take(&raw, A, count);
            let before = contents(&raw);
            assert_eq!(take(&raw, A, count), token);
            assert_eq!(contents(&raw), before);
        }
        // Late, behind its release and another's acquire: nothing comes of it.
        release(&raw, A);
        let token = take(&raw, B, "1");
        let before = contents(&raw);
        assert_eq!(acquire(&raw, A, "1").1, [B]);
        assert!(acquire(&raw, A, "2").is(-1));
        assert_eq!(contents(&raw), before);
        assert_eq!(take(&raw, B, "1"), token);
    }

    #[test]
    fn names_and_owners_are_bytes_like_any_other() {
        let server = RedisServer::start();
        let raw = server.raw();
        let hostile = ["a{b}c", "}{", "x y\r\nDEL z", "nul\0", "'..KEYS[1]", "%d%s", "ü"];
        for name in hostile {
            let token_key = format!("t:{name}");
            let args = [LEASE, name, "1", "0"];
            granted(&Answer::read(&eval(&raw, ACQUIRE, &[name, &token_key], &args)));
            let fields = raw.cmd(&["HGETALL", name]).map();
            assert_eq!(fields, [(name.to_owned(), "1".to_owned())].into());
        }
        assert_eq!(raw.cmd(&["DBSIZE"]).int() as usize, 2 * hostile.len());
    }
}

mod lists {
    use super::*;

    /// I1, I3: each entry has its own code, text and token, whatever the others are.
    #[test]
    fn every_entry_has_its_own_answer_and_the_texts_keep_their_order() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "text", "x"]).ok();
        raw.cmd(&["HSET", "endless", B, "1"]).ok();
        raw.cmd(&["HSET", "held", B, "1"]).ok();
        raw.cmd(&["PEXPIRE", "held", LEASE]).ok();
        raw.cmd(&["SET", "t:bad", "x"]).ok();
        raw.cmd(&["SET", "t:ahead", "1999999999999999"]).ok();
        let entries = [
            ("text", "1"),
            ("free", "1"),
            ("gone", "2"),
            ("held", "1"),
            ("bad", "1"),
            ("ahead", "1"),
            ("endless", "1"),
            ("free", "2"),
        ];
        let keys: Vec<_> = entries
            .iter()
            .flat_map(|(lock, _)| [(*lock).to_owned(), format!("t:{lock}")])
            .collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let args: Vec<_> = entries.iter().flat_map(|(_, count)| [LEASE, A, *count, "0"]).collect();
        let Answer(codes, texts) = Answer::read(&eval(&raw, ACQUIRE, &keys, &args));
        assert!(codes[3] > 20_000, "{codes:?}");
        assert_eq!([&codes[..3], &codes[4..]].concat(), [-2, 0, -1, -2, 0, -3, 0]);
        assert!(texts[0].starts_with("WRONGTYPE") && texts[3].contains("token"), "{texts:?}");
        let token = raw.cmd(&["GET", "t:free"]).text();
        assert_eq!(texts[1..3], [token.as_str(), B]);
        assert_eq!(texts[4..], ["2000000000000000", B, &token]);
        assert_eq!(raw.cmd(&["HGET", "free", A]).text(), "2");
    }

    #[test]
    fn sixty_four_locks_get_sixty_four_tokens() {
        let server = RedisServer::start();
        let raw = server.raw();
        let keys: Vec<_> = (0..128).map(|i| format!("{}:{}", ["l", "t"][i % 2], i / 2)).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let args = [LEASE, A, "1", "60000"].repeat(64);
        let first = Answer::read(&eval(&raw, ACQUIRE, &keys, &args));
        assert_eq!((&first.0, first.1.len()), (&vec![0; 64], 64));
        assert_eq!(Answer::read(&eval(&raw, ACQUIRE, &keys, &args)), first, "sent again");
        crate::support::assert_every_key_has_ttl(&raw);
    }
}

mod inspect {
    use super::*;

    #[test]
    fn it_says_what_stands_with_the_last_token_and_changes_nothing() {
        let server = RedisServer::start();
        let raw = server.raw();
        let nobody = |token: &str| Answer(vec![-1], vec![token.to_owned()]);
        for _ in 0..2 {
            assert_eq!(inspect(&raw), nobody(""));
            assert_no_keys(&raw);
        }
        let token = take(&raw, A, "1").to_string();
        take(&raw, A, "2");
        let before = contents(&raw);
        for _ in 0..2 {
            let Answer(codes, texts) = inspect(&raw);
            assert!(codes.len() == 1 && codes[0] > 20_000 && codes[0] <= 30_000, "{codes:?}");
            assert_eq!(texts, [A, "2", &token]);
        }
        assert_eq!(contents(&raw), before);
        raw.cmd(&["PERSIST", "l"]).ok();
        let endless = [A, "2", &token].map(str::to_owned).to_vec();
        assert_eq!(inspect(&raw), Answer(vec![-3], endless));
        release(&raw, A);
        assert_eq!(inspect(&raw), nobody(&token));
    }

    /// a token that is none is shown as it is.
    #[test]
    fn it_says_what_it_cannot_read() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "t", "no number"]).ok();
        assert_eq!(inspect(&raw), Answer(vec![-1], vec!["no number".to_owned()]));
        for foreign in [&["RPUSH", "t", "x"][..], &["SET", "l", "x"]] {
            raw.cmd(&["FLUSHALL"]).ok();
            raw.cmd(foreign).ok();
            assert!(inspect(&raw).failed("WRONGTYPE"), "{foreign:?}");
        }
        raw.cmd(&["FLUSHALL"]).ok();
        take(&raw, A, "1");
        for command in ["get", "pttl", "hgetall"] {
            assert!(inspect(&without_right(&server, command)).is_denied(), "{command}");
        }
    }
}

/// What Java's fenced lock does on the same keys.
mod redisson {
    use super::*;

    const NAME: &str = "job";

    /// Our side, on the names that Redisson uses.
    fn ours(raw: &Raw, owner: &str) -> Answer {
        let keys = [NAME, &Redisson::token(NAME)];
        Answer::read(&eval(raw, ACQUIRE, &keys, &[LEASE, owner, "1", "0"]))
    }

    fn give_back(raw: &Raw, owner: &str) {
        let keys = [NAME, &Redisson::channel(NAME)];
        assert!(Answer::read(&eval(raw, RELEASE, &keys, &[owner, "0", "PUBLISH"])).is(0));
    }

    /// I1, I3: by the token key both ways, also where Java's re-entries draw more.
    #[test]
    fn tokens_rise_from_us_to_java_and_back() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), Redisson::connect(server.port()));
        assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, 1]);
        let Answer(codes, texts) = ours(&raw, A);
        assert!(codes[0] > 20_000 && texts == [java.owner(1)], "{codes:?} {texts:?}");
        assert_eq!(java.unlock(NAME, 1, 30_000), Some(true));
        let mut last = 1;
        for _ in 0..3 {
            let mine = granted(&ours(&raw, A));
            assert!(mine > last);
            let [wait, none] = java.try_fenced_lock(NAME, 1, 30_000);
            assert!(wait > 20_000 && none == -1);
            give_back(&raw, A);
            assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, mine + 1]);
            assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, mine + 2]);
            assert_eq!(java.unlock(NAME, 1, 30_000), Some(false));
            assert_eq!(java.unlock(NAME, 1, 30_000), Some(true));
            last = mine + 2;
        }
    }

    /// Java takes `[-1, -1]` for a grant. We do not, and no lock of ours brings it about,
    /// for an endless one gets its end back with the next renewal.
    #[test]
    fn a_lock_without_an_end_is_never_granted_to_a_second() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), Redisson::connect(server.port()));
        assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, 1]);
        raw.cmd(&["PERSIST", NAME]).ok();
        assert_eq!(ours(&raw, A), Answer(vec![-3], vec![java.owner(1)]));
        assert_eq!(raw.cmd(&["GET", &Redisson::token(NAME)]).text(), "1");
        assert!(java.force_unlock(NAME));
        granted(&ours(&raw, A));
        raw.cmd(&["PERSIST", NAME]).ok();
        assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, -1], "the trap");
        assert!(Answer::read(&eval(&raw, RENEW, &[NAME], &[LEASE, A])).is(0));
        let [wait, none] = java.try_fenced_lock(NAME, 1, 30_000);
        assert!(wait > 20_000 && none == -1);
    }

    /// I3: with its key, Java's fenced lock starts anew at 1; our next token is above all of them.
    #[test]
    fn after_a_loss_of_data_our_next_token_is_above_all_before() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), Redisson::connect(server.port()));
        let before = granted(&ours(&raw, A));
        raw.cmd(&["FLUSHALL"]).ok();
        assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, 1], "the limit of a mixed fleet");
        assert_eq!(java.unlock(NAME, 1, 30_000), Some(true));
        assert!(granted(&ours(&raw, B)) > before);
    }

    #[test]
    fn a_forced_release_leaves_the_token() {
        let server = RedisServer::start();
        let (raw, java) = (server.raw(), Redisson::connect(server.port()));
        let token = granted(&ours(&raw, A));
        let keys = [NAME, &Redisson::channel(NAME)];
        assert!(Answer::read(&eval(&raw, FORCE_RELEASE, &keys, &["", "PUBLISH"])).is(0));
        assert_eq!(java.try_fenced_lock(NAME, 1, 30_000), [-1, token + 1]);
    }
}

/// The client reads any array that begins with a word like "message" as a message.
#[test]
fn every_reply_begins_with_an_integer_in_resp2_and_resp3() {
    let server = RedisServer::start();
    for version in ["2", "3"] {
        let raw = server.raw();
        raw.cmd(&["HELLO", version]).ok();
        raw.cmd(&["FLUSHALL"]).ok();
        take(&raw, "message", "1");
        for answer in [acquire(&raw, "subscribe", "1"), inspect(&raw), acquire(&raw, "x", "2")] {
            assert_eq!(answer.0.len(), 1, "RESP{version}");
        }
        raw.cmd(&["SET", "t", "message"]).ok();
        assert!(acquire(&raw, "message", "2").failed("token"));
        release(&raw, "message");
        assert_eq!(inspect(&raw).1, ["message"]);
    }
}

/// said as an error of the whole list, so that the client looks for the primary.
#[test]
fn a_replica_refuses_the_whole_list() {
    let server = RedisServer::start();
    let raw = server.raw();
    let token = take(&raw, A, "1");
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let before = contents(&raw);
    let calls: [(&[&str], &[&str]); 2] =
        [(&["free", "t:free"], &[LEASE, A, "1", "0"]), (&["l", "t"], &[LEASE, A, "2", "0"])];
    for (keys, args) in calls {
        let reply = eval(&raw, ACQUIRE, keys, args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    }
    assert_eq!(contents(&raw), before);
    assert_eq!(inspect(&raw).1.last(), Some(&token.to_string()), "to read is allowed");
}

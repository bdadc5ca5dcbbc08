//! The scripts of the token lock, and the clients of other languages that share it.

use super::*;
use crate::support::{assert_every_key_has_ttl, assert_no_keys, server::until};

const ACQUIRE: &str = include_str!("../../../lua/token_lock/acquire.lua");
const RELEASE: &str = include_str!("../../../lua/token_lock/release.lua");
const RENEW: &str = include_str!("../../../lua/token_lock/renew.lua");
const FORCE_RELEASE: &str = include_str!("../../../lua/token_lock/force_release.lua");
const INSPECT: &str = include_str!("../../../lua/token_lock/inspect.lua");

const SOON: std::time::Duration = std::time::Duration::from_secs(10);

#[track_caller]
fn acquire(raw: &Raw, lease_ms: &str, token: &str) -> Answer {
    Answer::read(&eval(raw, ACQUIRE, &["l"], &[lease_ms, token]))
}

#[track_caller]
fn release(raw: &Raw, token: &str) -> Answer {
    Answer::read(&eval(raw, RELEASE, &["l", "ch"], &[token, "PUBLISH"]))
}

#[track_caller]
fn renew(raw: &Raw, lease_ms: &str, token: &str) -> Answer {
    Answer::read(&eval(raw, RENEW, &["l"], &[lease_ms, token]))
}

#[track_caller]
fn force_release(raw: &Raw, holder: &str) -> Answer {
    Answer::read(&eval(raw, FORCE_RELEASE, &["l", "ch"], &[holder, "PUBLISH"]))
}

#[track_caller]
fn inspect(raw: &Raw) -> Answer {
    Answer::read(&eval(raw, INSPECT, &["l"], &[]))
}

/// The whole of the lock: its token, and that its TTL is what `lease_ms` allows.
#[track_caller]
fn assert_lock(raw: &Raw, token: &str, lease_ms: i64) {
    assert_eq!(raw.cmd(&["GET", "l"]).text(), token);
    let ttl = ttl(raw, "l");
    assert!(ttl > lease_ms - 10_000 && ttl <= lease_ms, "{ttl} of {lease_ms}");
}

#[track_caller]
fn assert_refused_by(answer: &Answer, holder: &str) {
    let [code] = answer.0[..] else { panic!("{answer:?}") };
    assert!(code > 20_000 && code <= 30_001, "{answer:?}");
    assert_eq!(answer.1, [holder]);
}

mod acquire {
    use super::*;

    /// I6.
    #[test]
    fn a_free_lock_is_taken_with_its_token_and_lease() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        assert_lock(&raw, A, 30_000);
        raw.cmd(&["DEL", "l"]).ok();
        assert!(acquire(&raw, LONGEST_MS, A).is(0));
        assert_lock(&raw, A, LONGEST_MS.parse().unwrap());
    }

    /// I1.
    #[test]
    fn anothers_lock_is_refused_with_its_token_and_the_time_it_has() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, B).is(0));
        assert_refused_by(&acquire(&raw, "60000", A), B);
        assert_lock(&raw, B, 30_000);
    }

    ///
    #[test]
    fn anothers_lock_without_an_end_is_refused_as_such() {
        let server = RedisServer::start();
        let raw = server.raw();
        for value in [B, ""] {
            raw.cmd(&["SET", "l", value]).ok();
            assert_eq!(acquire(&raw, LEASE, A), Answer(vec![-3], vec![value.to_owned()]));
            assert_eq!(ttl(&raw, "l"), -1);
        }
    }

    /// R-24, I6: the empty token would be anybody's, for a forced release.
    #[test]
    fn an_argument_that_is_none_is_refused_before_anything_is_written() {
        let server = RedisServer::start();
        let raw = server.raw();
        for lease in BAD_LEASES {
            assert!(acquire(&raw, lease, A).failed("lease_ms"), "{lease}");
        }
        assert!(acquire(&raw, LEASE, "").failed("token is empty"));
        assert_no_keys(&raw);
        for (lease, millis) in [("1e5", 100_000), (" 60000", 60_000), ("0x7530", 30_000)] {
            assert!(acquire(&raw, lease, lease).is(0), "{lease}");
            assert_lock(&raw, lease, millis);
            assert!(release(&raw, lease).is(0));
        }
    }

    /// R-20, I6.
    #[test]
    fn a_key_of_another_type_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["HSET", "l", A, "1"]).ok();
        let before = contents(&raw);
        assert!(acquire(&raw, LEASE, A).failed("WRONGTYPE"));
        assert!(renew(&raw, LEASE, A).failed("WRONGTYPE"));
        assert!(release(&raw, A).failed("WRONGTYPE"));
        for holder in ["", A] {
            assert!(force_release(&raw, holder).failed("WRONGTYPE"));
        }
        assert!(inspect(&raw).failed("WRONGTYPE"));
        assert_eq!(contents(&raw), before);
    }

    /// R-21, I6.
    #[test]
    fn without_one_right_nothing_is_changed() {
        let server = RedisServer::start();
        let raw = server.raw();
        for command in ["get", "set"] {
            assert!(acquire(&without_right(&server, command), LEASE, A).is_denied(), "{command}");
            assert_no_keys(&raw);
        }
        assert!(acquire(&raw, LEASE, A).is(0));
        let before = contents(&raw);
        for command in ["get", "pttl", "pexpire"] {
            let user = without_right(&server, command);
            assert!(acquire(&user, "60000", A).is_denied(), "{command}");
        }
        assert_eq!(contents(&raw), before);
        assert_lock(&raw, A, 30_000);
    }

    /// R-25, I5: there is no count, so the same token again is the same acquire again.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let raw = server.raw();
        for _ in 0..2 {
            assert!(acquire(&raw, LEASE, A).is(0));
            assert_lock(&raw, A, 30_000);
            assert_refused_by(&acquire(&raw, LEASE, B), A);
        }
        assert!(acquire(&raw, "1000", A).is(0));
        assert_lock(&raw, A, 30_000);
        assert!(acquire(&raw, "90000", A).is(0));
        assert_lock(&raw, A, 90_000);
        raw.cmd(&["PERSIST", "l"]).ok();
        assert!(acquire(&raw, LEASE, A).is(0));
        assert_lock(&raw, A, 30_000);
        // Late, behind another's acquire.
        assert!(release(&raw, A).is(0) && acquire(&raw, LEASE, B).is(0));
        assert_refused_by(&acquire(&raw, LEASE, A), B);
        assert_lock(&raw, B, 30_000);
    }
}

mod release {
    use super::*;

    #[test]
    fn a_release_frees_the_lock_and_says_how_many_were_told() {
        let server = RedisServer::start();
        let raw = server.raw();
        let listeners = [server.raw(), server.raw()];
        for told in 0..=listeners.len() {
            assert!(acquire(&raw, LEASE, A).is(0));
            assert!(release(&raw, A).is(told as i64));
            assert_no_keys(&raw);
            if let Some(listener) = listeners.get(told) {
                listener.subscribe("ch");
            }
        }
        assert_eq!(listeners[0].next_message(SOON).unwrap().payload, "0");
    }

    #[test]
    fn with_an_empty_command_nobody_is_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, LEASE, A).is(0));
        assert!(Answer::read(&eval(&raw, RELEASE, &["l", "ch"], &[A, ""])).is(0));
        assert!(acquire(&raw, LEASE, A).is(0));
        assert!(Answer::read(&eval(&raw, FORCE_RELEASE, &["l", "ch"], &["", ""])).is(0));
        assert_no_keys(&raw);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        assert_eq!(listener.next_message(SOON).unwrap().payload, "end");
    }

    /// I4.
    #[test]
    fn who_holds_nothing_gives_nothing_back() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(release(&raw, A).is(-1));
        assert!(acquire(&raw, LEASE, B).is(0));
        for token in [A, "", &B[..B.len() - 1], &format!("{B} ")] {
            assert!(release(&raw, token).is(-1), "{token}");
        }
        assert_lock(&raw, B, 30_000);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        assert_eq!(listener.next_message(SOON).unwrap().payload, "end");
    }

    ///
    #[test]
    fn a_release_that_cannot_be_told_says_that_it_released() {
        let server = RedisServer::start();
        let raw = mute(&server);
        for forced in [false, true] {
            assert!(acquire(&raw, LEASE, A).is(0));
            let Answer(codes, texts) =
                if forced { force_release(&raw, A) } else { release(&raw, A) };
            assert_eq!((codes, texts.len()), (vec![-4], 1));
            assert!(says_denied(&texts[0]), "{texts:?}");
            assert_no_keys(&server.raw());
        }
    }

    ///
    #[test]
    fn without_one_right_the_lock_stays() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        for command in ["get", "del"] {
            let user = without_right(&server, command);
            assert!(release(&user, A).is_denied(), "{command}");
            assert!(force_release(&user, "").is_denied(), "{command}");
            assert_lock(&raw, A, 30_000);
        }
    }

    /// R-26, I5.
    #[test]
    fn sent_twice_it_leaves_what_it_leaves_sent_once() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        assert!(acquire(&raw, LEASE, A).is(0));
        assert!(release(&raw, A).is(1));
        assert!(release(&raw, A).is(-1), "its resend says gone");
        assert!(acquire(&raw, LEASE, B).is(0));
        assert!(release(&raw, A).is(-1));
        assert_lock(&raw, B, 30_000);
        raw.cmd(&["PUBLISH", "ch", "end"]).ok();
        let told = [(); 2].map(|()| listener.next_message(SOON).unwrap().payload);
        assert_eq!(told, ["0", "end"], "told once");
    }
}

mod renew {
    use super::*;

    /// I6.
    #[test]
    fn a_hold_gets_the_lease_anew_and_is_never_shortened() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        for lease in ["90000", "90000", "1000"] {
            assert!(renew(&raw, lease, A).is(0));
            assert_lock(&raw, A, 90_000);
        }
        raw.cmd(&["PERSIST", "l"]).ok();
        assert!(renew(&raw, LEASE, A).is(0));
        assert_lock(&raw, A, 30_000);
    }

    /// I4, I7.
    #[test]
    fn a_hold_that_is_gone_is_not_renewed() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(renew(&raw, LEASE, A).is(-1));
        assert!(renew(&raw, LEASE, "").is(-1));
        assert_no_keys(&raw);
        assert!(acquire(&raw, LEASE, B).is(0));
        assert!(renew(&raw, "90000", A).is(-1));
        assert_lock(&raw, B, 30_000);
        // Late, behind the release: no key comes of it.
        assert!(release(&raw, B).is(0));
        assert!(renew(&raw, LEASE, B).is(-1));
        assert_no_keys(&raw);
    }

    ///
    #[test]
    fn what_cannot_be_renewed_is_left_alone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        for lease in BAD_LEASES {
            assert!(renew(&raw, lease, A).failed("lease_ms"), "{lease}");
        }
        for command in ["get", "pexpire"] {
            assert!(renew(&without_right(&server, command), "90000", A).is_denied(), "{command}");
        }
        assert_lock(&raw, A, 30_000);
    }

    /// and an acquire says so.
    #[test]
    fn a_full_server_renews_and_takes_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        assert_refused_by(&acquire(&raw, LEASE, B), A);
        assert!(renew(&raw, "90000", A).is(0));
        assert!(release(&raw, A).is(0));
        assert!(acquire(&raw, LEASE, A).failed("OOM"));
        assert_no_keys(&raw);
    }
}

mod force_release {
    use super::*;

    #[test]
    fn whoever_holds_it_the_lock_is_freed_and_told() {
        let server = RedisServer::start();
        let (raw, listener) = (server.raw(), server.raw());
        listener.subscribe("ch");
        for (token, holder) in [(A, ""), (A, A)] {
            assert!(acquire(&raw, LEASE, token).is(0));
            assert!(force_release(&raw, holder).is(1));
            assert_no_keys(&raw);
            assert_eq!(listener.next_message(SOON).unwrap().payload, "0");
        }
        raw.cmd(&["SET", "l", ""]).ok();
        assert!(force_release(&raw, "").is(1), "an empty value is a holder too");
    }

    /// I4.
    #[test]
    fn a_free_lock_and_that_of_another_holder_are_left_alone() {
        let server = RedisServer::start();
        let raw = server.raw();
        for holder in ["", A] {
            assert!(force_release(&raw, holder).is(-1));
        }
        assert!(acquire(&raw, LEASE, B).is(0));
        for _ in 0..2 {
            assert!(force_release(&raw, A).is(-1));
            assert_lock(&raw, B, 30_000);
        }
    }
}

#[test]
fn inspecting_says_what_stands_and_changes_nothing() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(inspect(&raw).is(-1));
    assert_no_keys(&raw);
    assert!(acquire(&raw, LEASE, A).is(0));
    for _ in 0..2 {
        let Answer(codes, texts) = inspect(&raw);
        assert!(codes.len() == 1 && codes[0] > 20_000 && codes[0] <= 30_000, "{codes:?}");
        assert_eq!(texts, [A, "1"]);
    }
    for command in ["get", "pttl"] {
        assert!(inspect(&without_right(&server, command)).is_denied(), "{command}");
    }
    assert_lock(&raw, A, 30_000);
    raw.cmd(&["PERSIST", "l"]).ok();
    assert_eq!(inspect(&raw), Answer(vec![-3], vec![A.to_owned(), "1".to_owned()]));
}

/// Lists of entries that end in every way there is.
mod lists {
    use super::*;

    const KEYS: [&str; 6] = ["hash", "free", "held", "endless", "mine", "free"];

    /// A server with one lock for each way.
    fn prepared() -> (RedisServer, Raw) {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["HSET", "hash", A, "1"]).ok();
        raw.cmd(&["SET", "held", B, "PX", LEASE]).ok();
        raw.cmd(&["SET", "endless", B]).ok();
        raw.cmd(&["SET", "mine", A, "PX", LEASE]).ok();
        (server, raw)
    }

    fn channels(keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().flat_map(|key| [*key, "ch"]).collect()
    }

    /// I1.
    #[test]
    fn every_acquire_has_its_own_answer_and_the_texts_keep_their_order() {
        let (_server, raw) = prepared();
        let Answer(codes, texts) =
            Answer::read(&eval(&raw, ACQUIRE, &KEYS, &[LEASE, A].repeat(KEYS.len())));
        assert!(codes[2] > 20_000, "{codes:?}");
        assert_eq!([&codes[..2], &codes[3..]].concat(), [-2, 0, -3, 0, 0]);
        assert!(texts[0].starts_with("WRONGTYPE"), "{texts:?}");
        assert_eq!(texts[1..], [B, B]);
    }

    #[test]
    fn every_renewal_and_every_release_has_its_own_answer() {
        let (_server, raw) = prepared();
        let args = [LEASE, A].repeat(KEYS.len());
        for _ in 0..2 {
            let renewed = Answer::read(&eval(&raw, RENEW, &KEYS, &args));
            assert_eq!(renewed.0, [-2, -1, -1, -1, 0, -1]);
            assert!(renewed.1.len() == 1 && renewed.1[0].starts_with("WRONGTYPE"));
        }
        let keys = channels(&KEYS);
        for mine in [0, -1] {
            let args = [A, "PUBLISH"].repeat(KEYS.len());
            let Answer(codes, texts) = Answer::read(&eval(&raw, RELEASE, &keys, &args));
            assert_eq!(codes, [-2, -1, -1, -1, mine, -1]);
            assert!(texts.len() == 1 && texts[0].starts_with("WRONGTYPE"));
        }
        assert_eq!(raw.cmd(&["DBSIZE"]).int(), 3, "all but ours stand");
    }

    #[test]
    fn sixty_four_locks_are_taken_renewed_and_given_back() {
        let server = RedisServer::start();
        let raw = server.raw();
        let names: Vec<_> = (0..64).map(|i| format!("l:{i}")).collect();
        let keys: Vec<_> = names.iter().map(String::as_str).collect();
        let all = Answer(vec![0; 64], vec![]);
        for script in [ACQUIRE, RENEW] {
            assert_eq!(Answer::read(&eval(&raw, script, &keys, &[LEASE, A].repeat(64))), all);
            assert_every_key_has_ttl(&raw);
        }
        let keys: Vec<_> = keys.iter().flat_map(|key| [*key, "ch"]).collect();
        assert_eq!(Answer::read(&eval(&raw, RELEASE, &keys, &[A, "PUBLISH"].repeat(64))), all);
        assert_no_keys(&raw);
    }
}

/// Clients of other languages, by the commands that they send; the texts are ours.
mod foreign {
    use super::*;

    const COMPARE_AND_DELETE: &str = "
        local mine = redis.call('GET', KEYS[1]) == ARGV[1]
        return mine and redis.call('DEL', KEYS[1]) or 0";

    /// As redsync and ShedLock extend: the TTL is set, which may shorten it.
    const COMPARE_AND_PEXPIRE: &str = "
        local mine = redis.call('GET', KEYS[1]) == ARGV[1]
        return mine and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0";

    /// As redis-py extends: by some milliseconds more than there are.
    const COMPARE_AND_ADD: &str = "
        if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
        local left = redis.call('PTTL', KEYS[1])
        return redis.call('PEXPIRE', KEYS[1], math.max(left, 0) + ARGV[2])";

    /// As node-redlock extends: the value is written anew.
    const COMPARE_AND_SET: &str = "
        if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
        return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1";

    /// As node-redlock acquires: it looks first.
    const LOOK_AND_SET: &str = "
        if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
        return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1";

    const THEIRS: &str = "b5c4f3a2e1d011ef9f1b0242ac120002";

    /// Both ways to acquire.
    fn takes(raw: &Raw, token: &str, lease_ms: &str) -> [bool; 2] {
        let set = || !raw.cmd(&["SET", "l", token, "NX", "PX", lease_ms]).ok().is_nil();
        let look = || eval(raw, LOOK_AND_SET, &["l"], &[token, lease_ms]).int() == 1;
        [set(), look()]
    }

    fn delete(raw: &Raw, token: &str) -> bool {
        eval(raw, COMPARE_AND_DELETE, &["l"], &[token]).int() == 1
    }

    /// All three ways to extend.
    fn extends(raw: &Raw, token: &str, millis: &str) -> [bool; 3] {
        [COMPARE_AND_PEXPIRE, COMPARE_AND_ADD, COMPARE_AND_SET]
            .map(|script| eval(raw, script, &["l"], &[token, millis]).int() == 1)
    }

    /// I1, I4.
    #[test]
    fn what_they_hold_we_do_not_get() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert_eq!(takes(&raw, THEIRS, LEASE), [true, false], "once");
        assert_refused_by(&acquire(&raw, LEASE, A), THEIRS);
        assert!(renew(&raw, "90000", A).is(-1) && release(&raw, A).is(-1));
        assert_eq!(inspect(&raw).1, [THEIRS, "1"]);
        assert_eq!(extends(&raw, THEIRS, "29000"), [true; 3]);
        assert_refused_by(&acquire(&raw, LEASE, A), THEIRS);
        assert!(delete(&raw, THEIRS));
        assert!(acquire(&raw, LEASE, A).is(0));
    }

    /// I1, I4.
    #[test]
    fn what_we_hold_they_do_not_get() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        assert_eq!(takes(&raw, THEIRS, "90000"), [false; 2]);
        assert_eq!(extends(&raw, THEIRS, "90000"), [false; 3]);
        assert!(!delete(&raw, THEIRS));
        assert_lock(&raw, A, 30_000);
        assert!(release(&raw, A).is(0));
        assert_eq!(takes(&raw, THEIRS, LEASE), [true, false]);
    }

    /// Whose token it is does not matter: what they do with ours is what we do.
    #[test]
    fn a_hold_can_be_passed_on_with_its_token() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        assert_eq!(extends(&raw, A, "60000"), [true; 3]);
        assert!(renew(&raw, "90000", A).is(0));
        assert_lock(&raw, A, 90_000);
        assert!(delete(&raw, A));
        assert!(renew(&raw, LEASE, A).is(-1) && release(&raw, A).is(-1), "gone is said");
        assert_eq!(takes(&raw, THEIRS, LEASE), [true, false]);
        assert!(renew(&raw, "90000", THEIRS).is(0));
        assert_lock(&raw, THEIRS, 90_000);
        assert!(release(&raw, THEIRS).is(0));
    }

    /// I8, R-47: an old ShedLock deletes without looking.
    #[test]
    fn a_lock_that_they_deleted_is_gone_and_said() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert!(acquire(&raw, LEASE, A).is(0));
        raw.cmd(&["DEL", "l"]).ok();
        assert_eq!(takes(&raw, THEIRS, LEASE), [true, false]);
        assert!(renew(&raw, "90000", A).is(-1) && release(&raw, A).is(-1));
        assert_lock(&raw, THEIRS, 30_000);
    }

    /// they publish nothing, so the time that a refusal tells is what a waiter has.
    #[test]
    fn a_lock_that_ran_out_is_free() {
        let server = RedisServer::start();
        let raw = server.raw();
        assert_eq!(takes(&raw, THEIRS, "50"), [true, false]);
        let Answer(codes, texts) = acquire(&raw, LEASE, A);
        assert!(codes == [0] || (codes[0] <= 51 && texts == [THEIRS]), "{codes:?}");
        until("the lock can be taken", || acquire(&raw, LEASE, A).is(0));
        assert!(!delete(&raw, THEIRS), "they may be late");
        assert_lock(&raw, A, 30_000);
    }

    /// Their tokens are any bytes, and come back as they are.
    #[test]
    fn a_token_of_any_bytes_is_a_holder() {
        let server = RedisServer::start();
        let raw = server.raw();
        let bytes = b"\xff\0\r\n{}\xc3";
        raw.cmd_bytes(&[b"SET", b"l", bytes, b"NX", b"PX", b"30000"]).ok();
        let reply = eval(&raw, ACQUIRE, &["l"], &[LEASE, A]).ok();
        assert_eq!(reply.items()[1], Reply::Bulk(bytes.to_vec()));
        let force = [b"EVAL", FORCE_RELEASE.as_bytes(), b"2", b"l", b"ch", bytes, b"PUBLISH"];
        assert_eq!(raw.cmd_bytes(&force).ok().items(), [Reply::Int(0)]);
        assert_no_keys(&raw);
    }

    #[test]
    fn names_and_tokens_are_bytes_like_any_other() {
        let server = RedisServer::start();
        let raw = server.raw();
        for name in ["a{b}c", "}{", "x y\r\nDEL z", "nul\0", "'..KEYS[1]", "%d%s", "ü", "%-."] {
            assert!(Answer::read(&eval(&raw, ACQUIRE, &[name], &[LEASE, name])).is(0));
            assert_eq!(raw.cmd(&["GET", name]).text(), name);
            assert!(Answer::read(&eval(&raw, RENEW, &[name], &[LEASE, name])).is(0));
            assert!(Answer::read(&eval(&raw, RELEASE, &[name, name], &[name, "PUBLISH"])).is(0));
        }
        assert_no_keys(&raw);
    }
}

/// The client reads any array that begins with a word like "message" as a message.
#[test]
fn every_reply_begins_with_an_integer_in_resp2_and_resp3() {
    let server = RedisServer::start();
    for version in ["2", "3"] {
        let raw = server.raw();
        raw.cmd(&["HELLO", version]).ok();
        assert!(acquire(&raw, LEASE, "message").is(0));
        assert_refused_by(&acquire(&raw, LEASE, "subscribe"), "message");
        assert_eq!(inspect(&raw).1, ["message", "1"]);
        assert!(renew(&raw, LEASE, "message").is(0));
        assert!(release(&raw, "smessage").is(-1));
        assert!(force_release(&raw, "message").is(0), "RESP{version}");
    }
}

/// said as an error of the whole list, so that the client looks for the primary.
#[test]
fn a_replica_refuses_the_whole_list() {
    let server = RedisServer::start();
    let raw = server.raw();
    assert!(acquire(&raw, LEASE, A).is(0));
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let calls: [(&str, &[&str], &[&str]); 5] = [
        (ACQUIRE, &["free"], &[LEASE, A]),
        (ACQUIRE, &["l"], &["90000", A]),
        (RENEW, &["l"], &["90000", A]),
        (RELEASE, &["l", "ch"], &[A, "PUBLISH"]),
        (FORCE_RELEASE, &["l", "ch"], &["", "PUBLISH"]),
    ];
    for (script, keys, args) in calls {
        let reply = eval(&raw, script, keys, args);
        assert!(reply.error().is_some_and(|text| text.starts_with("READONLY")), "{reply:?}");
    }
    assert_lock(&raw, A, 30_000);
}

//! Giving back, and leaving the line, without one of the rights.

use super::*;

/// All that the scripts send which give back.
const COMMANDS: &str = "hget hincrby hdel hlen hexists del exists time lindex lpop lpos lrange lrem \
                        zadd zmscore zrem zremrangebyrank zscore hset pexpire publish";

/// Whether a waiter is in the line, in the deadlines and in the records: in all, or in none.
fn queues(fair: &Fair, waiter: &str) -> bool {
    let everything = fair.everything();
    let noted = |command: &[&str]| !fair.raw.cmd(command).is_nil();
    let [place, deadline, record] = [
        noted(&["LPOS", &fair.names.queue, waiter]),
        noted(&["ZSCORE", &fair.names.deadlines, waiter]),
        noted(&["HGET", BEATS, waiter]),
    ];
    assert!(place == deadline && place == record, "{waiter}: {everything}");
    place
}

/// R-21, I13: it is out of the line, or where it was.
#[test]
fn without_a_right_a_waiter_leaves_as_a_whole_or_not_at_all() {
    for command in COMMANDS.split(' ') {
        for (waiter, is_held) in [(A, true), (B, true), (A, false), (B, false)] {
            let fair = Fair::queued();
            if !is_held {
                fair.raw.cmd(&["DEL", "l"]).ok();
            }
            let before = fair.everything();
            let limited = fair.without(command);
            // A clock that may not be asked cannot be set either.
            let script = if command == "time" { RELEASE.to_owned() } else { fair.timed(RELEASE) };
            let answer = eval(&limited, &script, &fair.keys(), &[waiter, "0", "PUBLISH"]);
            let answer = Answer::read(&answer);
            if answer.0 == [-2] {
                assert!(answer.is_denied(), "{command}: {answer:?}");
                assert_eq!(fair.everything(), before, "{command} {waiter}");
            } else {
                assert!(matches!(answer.0[0], 0 | -4), "{command}: {answer:?}");
                assert!(!queues(&fair, waiter), "{command} {waiter}");
            }
        }
    }
}

/// the lock is free, or held as it was; those in line stay there.
#[test]
fn without_a_right_a_holder_gives_back_as_a_whole_or_not_at_all() {
    for command in COMMANDS.split(' ') {
        for forced in [false, true] {
            let fair = Fair::queued();
            let before = fair.everything();
            let (limited, holder) = (fair.without(command), fair.java(1));
            let (script, args) = if forced {
                (FORCE_RELEASE, vec![&*holder, "PUBLISH"])
            } else {
                (RELEASE, vec![&*holder, "0", "PUBLISH"])
            };
            let timed = if command == "time" { script.to_owned() } else { fair.timed(script) };
            let answer = Answer::read(&eval(&limited, &timed, &fair.keys(), &args));
            if answer.0 == [-2] {
                assert!(answer.is_denied(), "{command}: {answer:?}");
                assert_eq!(fair.everything(), before, "{command}");
            } else {
                assert!(matches!(answer.0[0], 0 | -4), "{command}: {answer:?}");
                assert_eq!(fair.holder(), None, "{command}");
            }
            assert!(queues(&fair, A) && queues(&fair, B), "{command}");
        }
    }
}

//! Who gets the lock, who queues and with which deadline, and who is removed on the way.

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

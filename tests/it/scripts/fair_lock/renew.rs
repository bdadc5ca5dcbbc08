//! Leases of holders and signs of life of waiters, and how a queue is put right.

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

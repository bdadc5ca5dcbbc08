//! Who is told of a release, and what giving up does to those behind.

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

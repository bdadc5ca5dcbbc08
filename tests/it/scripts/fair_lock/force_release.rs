//! Freeing the lock from whoever has it.

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

//! Commands that run late: still queued in a broken connection when their repetition has been
//! answered. With the right to `CLIENT KILL` they never run; without it they change nothing that
//! lasts.
use std::time::Duration;

use leasehold::Client;

use crate::{
    rig::{Rig, acquiring, entering, held_by, lowering, releasing, renewing, soon},
    support::{
        assert_every_key_has_ttl, assert_no_keys, eventually,
        history::History,
        proxy::{Hold, Matcher},
        server::RedisServer,
    },
};

const TIMEOUT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

async fn without_kill() -> Rig {
    let server = RedisServer::start();
    Rig::with_rights(server, "-client|kill", |builder| builder.command_timeout(TIMEOUT)).await
}

/// Runs what sends a command that matches, and cuts the client's side of the connection while that
/// command is still on its way. What comes back was answered on another connection.
async fn outrun<T: Send + 'static>(
    rig: &Rig,
    late: impl Matcher,
    work: impl Future<Output = T> + Send + 'static,
) -> (T, Hold) {
    let ghost = rig.proxy.hold_command(late);
    let working = tokio::spawn(work);
    ghost.held().await;
    rig.proxy.cut_client_side_only().await;
    (soon(working).await.expect("no panic"), ghost)
}

/// The number that a late command got for an answer, if it still ran.
async fn run_late(ghost: &Hold) -> Option<i64> {
    ghost.release();
    ghost.answered().await.map(|reply| reply.items()[0].int())
}

mod that_are_killed {
    use super::*;

    /// R-25, I5, I6: the classic one.
    #[tokio::test]
    async fn a_late_acquire_does_not_run_after_its_release() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job").lease(LONG);
        let (guard, ghost) = outrun(&rig, acquiring("job"), lock.lock()).await;
        let guard = guard.expect("it is free");
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        soon(guard.unlock()).await.expect("it is held");
        assert_eq!(run_late(&ghost).await, None);
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// nobody waits any more for what was asked.
    #[tokio::test]
    async fn a_late_acquire_of_a_dropped_future_does_not_run() {
        let rig = Rig::start().await;
        let ghost = rig.proxy.hold_command(acquiring("job"));
        let lock = rig.client.lock("job").lease(LONG);
        let asking = tokio::spawn(lock.lock());
        ghost.held().await;
        asking.abort();
        let _ = soon(asking).await;
        rig.proxy.cut_client_side_only().await;
        rig.proxy.wait_for(releasing("job"), 1).await;
        assert_eq!(run_late(&ghost).await, None);
        rig.assert_nothing_left().await;
    }

    /// R-25, I5.
    #[tokio::test]
    async fn a_late_nested_acquire_does_not_count_again() {
        let rig = Rig::start().await;
        let owner = leasehold::Owner::new();
        let lock = rig.client.lock("job").owned_by(owner);
        let outer = soon(lock.lock()).await.expect("it is free");
        let (inner, ghost) = outrun(&rig, entering("job"), lock.lock()).await;
        soon(inner.expect("it is ours").unlock()).await.expect("it is held");
        assert_eq!(run_late(&ghost).await, None);
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 1));
        soon(outer.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-26, I5.
    #[tokio::test]
    async fn a_late_partial_release_does_not_undo_a_later_entry() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job").owned_by(leasehold::Owner::new());
        let outer = soon(lock.lock()).await.expect("it is free");
        let inner = soon(lock.lock()).await.expect("it is ours");
        let (left, ghost) = outrun(&rig, lowering("job"), inner.unlock()).await;
        left.expect("it is held");
        let inner = soon(lock.lock()).await.expect("it is ours");
        assert_eq!(run_late(&ghost).await, None);
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 2));
        drop((inner, outer));
        rig.assert_nothing_left().await;
    }

    /// R-26, I4.
    #[tokio::test]
    async fn a_late_release_does_not_run_under_the_next_holder() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        let guard = soon(lock.lock()).await.expect("it is free");
        let (left, ghost) = outrun(&rig, releasing("job"), guard.unlock()).await;
        left.expect("it is held");
        let next = soon(lock.lock()).await.expect("it is free");
        assert_eq!(run_late(&ghost).await, None);
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod that_cannot_be_killed {
    use super::*;

    /// R-25, I6: the id is given back once more, so that the lock is not lost for its lease.
    #[tokio::test]
    async fn a_late_acquire_is_given_back_again() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job").lease(LONG);
        let (guard, ghost) = outrun(&rig, acquiring("job"), lock.lock()).await;
        soon(guard.expect("it is free").unlock()).await.expect("it is held");
        assert_eq!(run_late(&ghost).await, Some(0), "nobody was there to stop it");
        eventually("the late hold is given back", async || rig.holds("job").is_empty()).await;
        rig.assert_nothing_left().await;
    }

    /// R-25, I6, I11.
    #[tokio::test]
    async fn a_late_acquire_of_a_try_that_failed_is_given_back_again() {
        let rig = without_kill().await;
        let ghost = rig.proxy.hold_command(acquiring("job"));
        let trying = tokio::spawn(rig.client.lock("job").lease(LONG).try_lock_now());
        ghost.held().await;
        rig.proxy.cut_client_side_only().await;
        let error = soon(trying).await.expect("no panic").expect_err("no reply came");
        assert!(error.is_indeterminate());
        rig.proxy.wait_for(releasing("job"), 1).await;
        assert_eq!(run_late(&ghost).await, Some(0), "nobody was there to stop it");
        eventually("the late hold is given back", async || rig.holds("job").is_empty()).await;
        rig.assert_nothing_left().await;
    }

    /// R-25, I4: it finds another holder, and is refused.
    #[tokio::test]
    async fn a_late_acquire_does_not_disturb_the_next_holder() {
        let rig = without_kill().await;
        let other = rig.bystander().await;
        let lock = rig.client.lock("job").lease(LONG);
        let (guard, ghost) = outrun(&rig, acquiring("job"), lock.lock()).await;
        soon(guard.expect("it is free").unlock()).await.expect("it is held");
        let next = soon(other.lock("job").lock()).await.expect("it is free");
        assert!(run_late(&ghost).await.is_some_and(|ttl| ttl > 0), "refused");
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-25, I5: the count may be too high for a while, but the last release ends it.
    #[tokio::test]
    async fn a_late_nested_acquire_ends_with_the_outer_hold() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job").owned_by(leasehold::Owner::new());
        let outer = soon(lock.lock()).await.expect("it is free");
        let (inner, ghost) = outrun(&rig, entering("job"), lock.lock()).await;
        soon(inner.expect("it is ours").unlock()).await.expect("it is held");
        assert_eq!(run_late(&ghost).await, Some(0), "nobody was there to stop it");
        assert_eq!(outer.hold_count(), 1);
        soon(outer.unlock()).await.expect("it is held");
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// R-25, I5.
    #[tokio::test]
    async fn a_late_nested_acquire_does_not_bring_back_a_lock_that_was_given_back() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job").owned_by(leasehold::Owner::new());
        let outer = soon(lock.lock()).await.expect("it is free");
        let (inner, ghost) = outrun(&rig, entering("job"), lock.lock()).await;
        soon(inner.expect("it is ours").unlock()).await.expect("it is held");
        soon(outer.unlock()).await.expect("it is held");
        assert_eq!(run_late(&ghost).await, Some(-1), "gone");
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// R-26, I5: the count may be too low for a while, but the hold stands until its last release.
    #[tokio::test]
    async fn a_late_partial_release_does_not_end_the_hold() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job").owned_by(leasehold::Owner::new());
        let outer = soon(lock.lock()).await.expect("it is free");
        let inner = soon(lock.lock()).await.expect("it is ours");
        let (left, ghost) = outrun(&rig, lowering("job"), inner.unlock()).await;
        left.expect("it is held");
        let inner = soon(lock.lock()).await.expect("it is ours");
        assert_eq!(run_late(&ghost).await, Some(-3), "nobody was there to stop it");
        soon(inner.unlock()).await.expect("it is held");
        assert!(outer.is_held());
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 1));
        soon(outer.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-26, I4.
    #[tokio::test]
    async fn a_late_release_does_not_touch_the_next_holder() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job");
        let guard = soon(lock.lock()).await.expect("it is free");
        let (left, ghost) = outrun(&rig, releasing("job"), guard.unlock()).await;
        left.expect("it is held");
        let next = soon(lock.lock()).await.expect("it is free");
        assert_eq!(run_late(&ghost).await, Some(-1), "gone");
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// I4, I7: a renewal names its hold.
    #[tokio::test]
    async fn a_late_renewal_does_not_lengthen_the_next_hold() {
        let rig = without_kill().await;
        let lock = rig.client.lock("job").lease(Duration::from_secs(30));
        let guard = soon(lock.lock()).await.expect("it is free");
        let ghost = rig.proxy.hold_command(renewing("job"));
        let extended = tokio::join!(guard.extend(10 * LONG), async {
            ghost.held().await;
            rig.proxy.cut_client_side_only().await;
        });
        assert!(extended.0.expect_err("the connection broke").is_indeterminate());
        soon(guard.unlock()).await.expect("it is held");
        let next = soon(lock.lock()).await.expect("it is free");
        assert_eq!(run_late(&ghost).await, Some(-1), "gone");
        assert!(rig.raw.cmd(&["PTTL", "job"]).int() <= 30_000);
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// Locks and unlocks until told to stop, and records every hold.
    async fn busy(client: Client, owner: usize, history: History, rounds: usize) {
        let lock = client.lock("job").lease(Duration::from_secs(2));
        for _ in 0..rounds {
            let guard = lock.lock().await.expect("no error");
            let mut held = history.held("job", &owner.to_string());
            tokio::time::sleep(Duration::from_millis(1)).await;
            held.valid_until(guard.valid_until());
            held.end();
            drop(guard);
        }
    }

    /// I1, I2.
    #[tokio::test]
    async fn late_commands_of_all_kinds_never_make_two_holders() {
        let rig = without_kill().await;
        let history = History::new();
        let mut tasks = Vec::new();
        for owner in 0..3 {
            let client = if owner == 0 { rig.client.clone() } else { rig.bystander().await };
            tasks.push(tokio::spawn(busy(client, owner, history.clone(), 150)));
        }
        for round in 0..8 {
            let ghost = match round % 2 {
                0 => rig.proxy.hold_command(acquiring("job")),
                _ => rig.proxy.hold_command(releasing("job")),
            };
            if tasks[0].is_finished() {
                break;
            }
            ghost.held().await;
            rig.proxy.cut_client_side_only().await;
            rig.proxy.wait_connections(2).await;
            ghost.release();
            assert_every_key_has_ttl(&rig.raw);
        }
        for task in tasks {
            soon(task).await.expect("no error");
        }
        history.assert_exclusive(3 * 150);
        eventually("nothing is left", async || rig.holds("job").is_empty()).await;
        rig.assert_nothing_left().await;
    }
}

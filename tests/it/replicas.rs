//! Locks that replicas must have: what counts, what does not, and that nobody else waits for it.
use std::time::Duration;

use leasehold::{
    Builder, Client, Error, ErrorKind, Lock, LostReason, MultiLock, Owner, RedLock, Refusal,
};
use tokio::task::JoinHandle;

use crate::{
    rig::{Rig, SOON, acquiring, held_by, renewing, soon},
    support::{
        assert_no_keys,
        cluster::ClusterSetup,
        eventually,
        proxy::{Command, Matcher, named},
        replicas::Replicas,
        server::RedisServer,
    },
};

/// How long is waited for replicas where none can answer.
const BRIEFLY: Duration = Duration::from_millis(300);

/// How long where some answer and some do not.
const A_WHILE: Duration = Duration::from_millis(1500);

/// How long where all answer, or a test ends the wait itself.
const LONG: Duration = Duration::from_secs(15);

/// Matches a WAIT for so many; what finds out whether there is WAIT asks for none.
fn wait_for(replicas: u8) -> impl Matcher + Clone {
    move |command: &Command| {
        command.is("WAIT") && command.args[1] == replicas.to_string().as_bytes()
    }
}

fn patient(builder: Builder) -> Builder {
    builder.command_timeout(SOON)
}

/// A primary with so many replicas.
async fn with_replicas(count: usize, settings: impl FnOnce(Builder) -> Builder) -> (Rig, Replicas) {
    let primary = RedisServer::start();
    let replicas = Replicas::of(&primary, count);
    (Rig::before(primary, settings).await, replicas)
}

fn too_few<T>(result: Result<T, Error>) -> (u8, u8) {
    let Err(error) = result else { panic!("too few replicas are there") };
    match error.kind() {
        ErrorKind::NotReplicated { acknowledged, required } => {
            let said = format!("only {acknowledged} of {required} replicas");
            assert!(error.to_string().contains(&said), "{error}");
            (acknowledged, required)
        }
        other => panic!("{other:?}: {error}"),
    }
}

/// Takes a lock in a task of its own, and waits until only the replicas are missing.
async fn waiting(rig: &Rig, lock: &Lock, replicas: u8) -> JoinHandle<Result<(), Error>> {
    let before = rig.proxy.count(wait_for(replicas));
    let lock = lock.clone();
    let taking = tokio::spawn(async move { lock.lock().await?.unlock().await });
    rig.proxy.wait_for(wait_for(replicas), before + 1).await;
    taking
}

mod taking {
    use super::*;

    ///
    #[tokio::test]
    async fn a_lock_is_on_the_replicas_when_it_is_granted() {
        let (rig, replicas) = with_replicas(2, patient).await;
        for name in ["a", "b", "c"] {
            let guard = soon(rig.client.lock(name).require_replicas(2, LONG).lock()).await;
            let guard = guard.expect("both replicas answer");
            assert_eq!(replicas.that_have(name), 2);
            soon(guard.unlock()).await.expect("it is held");
        }
        assert_eq!(rig.proxy.count(wait_for(2)), 3);
        rig.assert_nothing_left().await;
    }

    /// R-10, I12: those that have it have it no more.
    #[tokio::test]
    async fn too_few_replicas_undo_it_and_say_how_many() {
        let (rig, replicas) = with_replicas(2, |b| b.require_replicas(2, A_WHILE)).await;
        replicas.0[0].pause();
        assert_eq!(too_few(soon(rig.client.lock("job").lock()).await), (1, 2));
        let one = soon(rig.client.lock("other").require_replicas(1, A_WHILE).lock()).await;
        let none = soon(rig.client.lock("third").require_replicas(0, A_WHILE).lock()).await;
        drop((one.expect("one is enough"), none.expect("none is needed")));
        replicas.0[0].resume();
        soon(soon(rig.client.lock("job").lock()).await.expect("both answer").unlock())
            .await
            .expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-10, I10: each way to ask ends.
    #[tokio::test]
    async fn a_primary_without_replicas_refuses_whoever_requires_one() {
        let rig = Rig::with(|builder| builder.require_replicas(1, BRIEFLY)).await;
        let lock = rig.client.lock("job");
        assert_eq!(too_few(soon(lock.lock()).await), (0, 1));
        assert_eq!(too_few(soon(lock.try_lock_now()).await), (0, 1));
        assert_eq!(too_few(soon(lock.try_lock(SOON, SOON)).await), (0, 1));
        assert_eq!(too_few(soon(lock.with(|_| async {})).await), (0, 1));
        rig.assert_nothing_left().await;
    }

    /// I2: what the server has for a moment and nobody holds is no holder, and is waited for.
    #[tokio::test]
    async fn who_comes_after_a_failed_one_of_this_process_gets_the_lock() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        for _ in 0..20 {
            too_few(soon(lock.clone().require_replicas(1, BRIEFLY / 30).try_lock_now()).await);
            let guard = soon(lock.try_lock_now()).await.expect("it is free").expect("it is free");
            soon(guard.unlock()).await.expect("it is held");
        }
    }

    /// Refused by another holder, nothing was written that replicas must have.
    #[tokio::test]
    async fn who_is_refused_by_a_holder_waits_for_no_replica() {
        let rig = Rig::with(|builder| patient(builder).require_replicas(3, LONG)).await;
        let holder = rig.bystander().await;
        let guard = soon(holder.lock("job").lock()).await.expect("it is free");
        for _ in 0..3 {
            assert!(soon(rig.client.lock("job").try_lock_now()).await.expect("refused").is_none());
        }
        assert_eq!(rig.proxy.count(wait_for(3)), 0);
        drop(guard);
    }

    #[tokio::test]
    async fn times_that_cannot_be_waited_are_refused_before_anything_is_sent() {
        let server = RedisServer::start();
        let client = soon(Client::connect(server.url())).await.expect("the server is up");
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::from_millis(2001)] {
            let lock = client.lock("job").require_replicas(1, bad);
            let error = soon(lock.lock()).await.expect_err("out of bounds");
            assert_eq!(error.kind(), ErrorKind::InvalidDuration, "{bad:?}");
            let builder = Client::builder(server.url()).expect("a URL").require_replicas(1, bad);
            let error = soon(builder.connect()).await.expect_err("out of bounds");
            assert_eq!(error.kind(), ErrorKind::InvalidDuration, "{bad:?}");
        }
    }
}

mod others {
    use super::*;

    /// A WAIT is under way all the time, at a replica that does not answer.
    #[tokio::test]
    async fn who_requires_no_replica_goes_on_while_one_lags() {
        let (rig, replicas) = with_replicas(1, patient).await;
        let guard = soon(rig.client.lock("kept").lock()).await.expect("it is free");
        replicas.0[0].pause();
        let lagging = rig.client.lock("lagging").require_replicas(1, LONG);
        let taking = waiting(&rig, &lagging, 1).await;
        for round in 0..50 {
            let lock = rig.client.lock(format!("free {round}"));
            soon(soon(lock.lock()).await.expect("it is free").unlock()).await.expect("held");
        }
        soon(guard.extend(SOON * 3)).await.expect("it is held");
        assert!(!taking.is_finished(), "no replica has answered");
        replicas.0[0].resume();
        soon(taking).await.expect("no panic").expect("the replica is back");
    }

    /// nor do renewals wait for it, of locks that require no replica.
    #[tokio::test]
    async fn renewals_of_other_locks_go_on_while_a_replica_lags() {
        let settings = |builder| patient(builder).watchdog(Duration::from_secs(6));
        let (rig, replicas) = with_replicas(1, settings).await;
        let plain = soon(rig.client.lock("plain").lock()).await.expect("it is free");
        let lock = rig.client.lock("kept").require_replicas(1, LONG);
        let kept = soon(lock.lock()).await.expect("it is free");
        replicas.0[0].pause();
        // The first renewal of it waits on the connection for such renewals.
        rig.proxy.wait_for(wait_for(1), 2).await;
        let seen = rig.proxy.count(renewing("plain"));
        rig.proxy.wait_for(renewing("plain"), seen + 2).await;
        assert!(plain.is_held());
        assert_eq!(soon(kept.lost()).await, LostReason::Expired);
        assert!(plain.is_held());
        replicas.0[0].resume();
    }

    /// No connection, no command: those of commands and renewals are all there are.
    #[tokio::test]
    async fn who_requires_no_replicas_pays_nothing() {
        let rig = Rig::with(|builder| builder.watchdog(Duration::from_secs(3))).await;
        let lock = rig.client.lock("job");
        let guard = soon(lock.lock()).await.expect("it is free");
        soon(soon(lock.lock()).await.expect("it is ours").unlock()).await.expect("held");
        rig.proxy.wait_for(renewing("job"), 2).await;
        soon(guard.extend(SOON)).await.expect("it is held");
        soon(guard.unlock()).await.expect("it is held");
        assert_eq!(rig.proxy.count(named("WAIT")), 0);
        assert_eq!(rig.proxy.accepted(), 2);
        let required = lock.require_replicas(1, BRIEFLY);
        too_few(soon(required.lock()).await);
        assert_eq!(rig.proxy.accepted(), 3);
        rig.assert_nothing_left().await;
    }

    /// Those that come while one waits share the next WAIT.
    #[tokio::test]
    async fn many_at_once_share_a_wait() {
        let (rig, replicas) = with_replicas(1, patient).await;
        replicas.0[0].pause();
        let lock = |n: u32| rig.client.lock(format!("job {n}")).require_replicas(1, LONG);
        let first = waiting(&rig, &lock(0), 1).await;
        let takes = (1..=100).map(|n| lock(n).owned_by(Owner::new()).lock());
        let others: Vec<_> = takes.map(tokio::spawn).collect();
        tokio::task::yield_now().await;
        replicas.0[0].resume();
        soon(first).await.expect("no panic").expect("the replica is back");
        for other in others {
            drop(soon(other).await.expect("no panic").expect("the replica is back"));
        }
        let waits = rig.proxy.count(wait_for(1));
        assert!(waits < 30, "{waits} for a hundred locks that were asked for at once");
        rig.assert_nothing_left().await;
    }
}

mod servers_without_wait {
    use super::*;

    fn required(rig: &Rig) -> Lock {
        rig.client.lock("job").require_replicas(1, BRIEFLY)
    }

    /// nothing is written where nobody can say who has it.
    #[tokio::test]
    async fn without_the_right_nothing_is_written() {
        let rig = Rig::with_rights(RedisServer::start(), "-wait", |builder| builder).await;
        let error = soon(required(&rig).lock()).await.expect_err("it may not");
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{error}");
        assert_eq!(rig.proxy.count(acquiring("job")), 0);
        rig.raw.cmd(&["ACL", "SETUSER", "worker", "+wait"]).ok();
        too_few(soon(required(&rig).lock()).await);
        rig.assert_nothing_left().await;
    }

    /// some managed services have none.
    #[tokio::test]
    async fn where_there_is_no_wait_nothing_is_written() {
        let server = RedisServer::builder().args(["--rename-command", "WAIT", ""]).start();
        let rig = Rig::before(server, |builder| builder).await;
        let error = soon(required(&rig).lock()).await.expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Other), "{error}");
        assert!(error.to_string().to_uppercase().contains("WAIT"), "{error}");
        assert_eq!(rig.proxy.count(acquiring("job")), 0);
        rig.assert_nothing_left().await;
    }

    /// it was there, so what was written with it in mind is undone.
    #[tokio::test]
    async fn taken_away_later_it_leaves_nothing() {
        let rig = Rig::with_rights(RedisServer::start(), "+wait", |builder| builder).await;
        too_few(soon(required(&rig).lock()).await);
        rig.raw.cmd(&["ACL", "SETUSER", "worker", "-wait"]).ok();
        for _ in 0..2 {
            let error = soon(required(&rig).lock()).await.expect_err("it may not");
            assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{error}");
        }
        rig.assert_nothing_left().await;
    }
}

mod keeping {
    use super::*;

    fn renewed_soon(builder: Builder) -> Builder {
        builder.watchdog(Duration::from_secs(6)).require_replicas(1, A_WHILE)
    }

    /// I8, R-10: the server renews it, and that does not count.
    #[tokio::test]
    async fn a_renewal_that_no_replica_has_does_not_count() {
        let (rig, replicas) = with_replicas(1, renewed_soon).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let until = guard.valid_until();
        replicas.0[0].pause();
        rig.proxy.wait_for(renewing("job"), 2).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
        assert_eq!(guard.valid_until().min(until), guard.valid_until());
        assert!(std::time::Instant::now() >= until, "not before its time");
        replicas.0[0].resume();
        rig.assert_nothing_left().await;
    }

    /// I8: nothing is lost, nobody is alarmed.
    #[tokio::test]
    async fn a_replica_that_is_back_in_time_saves_the_hold() {
        let (rig, replicas) = with_replicas(1, renewed_soon).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let until = guard.valid_until();
        replicas.0[0].pause();
        rig.proxy.wait_for(wait_for(1), 2).await;
        assert_eq!(guard.valid_until(), until);
        replicas.0[0].resume();
        eventually("a renewal counts", async || guard.valid_until() > until).await;
        assert!(guard.is_held());
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// A later renewal writes again, or it would prove nothing of the extension.
    #[tokio::test]
    async fn an_extension_that_no_replica_has_changes_nothing_until_one_has() {
        let (rig, replicas) = with_replicas(1, renewed_soon).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let until = guard.valid_until();
        replicas.0[0].pause();
        assert_eq!(too_few(soon(guard.extend(SOON)).await), (0, 1));
        assert_eq!(guard.valid_until(), until);
        replicas.0[0].resume();
        let far = until + SOON / 2;
        eventually("a renewal covers it", async || guard.valid_until() > far).await;
        let ttl = || replicas.0[0].raw().cmd(&["PTTL", "job"]).int();
        assert!(ttl() > 10_000, "the replica has it: {}", ttl());
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod nesting {
    use super::*;

    /// I5.
    #[tokio::test]
    async fn an_entry_that_no_replica_has_is_undone_and_what_is_around_it_stands() {
        let (rig, replicas) = with_replicas(1, |b| b.require_replicas(1, A_WHILE)).await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let inner = soon(lock.lock()).await.expect("it is ours");
        assert_eq!(rig.proxy.count(wait_for(1)), 2);
        soon(inner.unlock()).await.expect("it is held");
        replicas.0[0].pause();
        assert_eq!(too_few(soon(lock.lock()).await), (0, 1));
        assert!(outer.is_held());
        assert_eq!(outer.hold_count(), 1);
        let once = held_by(&outer.holder(), 1);
        eventually("the count is level", async || rig.holds("job") == once).await;
        soon(outer.unlock()).await.expect("it is held");
        replicas.0[0].resume();
        rig.assert_nothing_left().await;
    }

    /// Whoever requires more raises what keeps the hold; whoever requires none does not lower it.
    #[tokio::test]
    async fn a_hold_is_kept_by_the_most_that_anybody_in_it_requires() {
        let settings = |builder: Builder| builder.watchdog(Duration::from_secs(6));
        let (rig, _replicas) = with_replicas(2, settings).await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let inner = soon(lock.clone().require_replicas(2, A_WHILE).lock()).await;
        let inner = inner.expect("both answer");
        let waits = rig.proxy.count(wait_for(2));
        let innermost = soon(lock.lock()).await.expect("it is ours");
        assert_eq!(rig.proxy.count(wait_for(2)), waits + 1);
        soon(innermost.unlock()).await.expect("it is held");
        rig.proxy.wait_for(wait_for(2), waits + 3).await;
        assert!(outer.is_held() && inner.is_held());
    }
}

mod hand_over {
    use super::*;

    /// A second task of this process waits while the first holds, which then leaves.
    async fn second_of(rig: &Rig, first: &Lock, second: &Lock) {
        let guard = soon(first.lock()).await.expect("it is free");
        let asking = tokio::spawn(second.clone().owned_by(Owner::new()).lock());
        tokio::task::yield_now().await;
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(asking).await.expect("no panic").expect("it is free");
        assert!(guard.is_held());
        soon(guard.unlock()).await.expect("it is held");
        eventually("it is free", async || rig.holds("job").is_empty()).await;
    }

    async fn rig() -> (Rig, Replicas) {
        with_replicas(2, |builder| patient(builder).hand_over_window(Duration::from_secs(10))).await
    }

    #[tokio::test]
    async fn a_lock_goes_on_in_memory_to_one_who_requires_as_many() {
        let (rig, _replicas) = rig().await;
        let lock = rig.client.lock("job").require_replicas(1, LONG);
        second_of(&rig, &lock, &lock).await;
        assert_eq!(rig.proxy.count(acquiring("job")), 1);
        assert_eq!(rig.proxy.count(wait_for(1)), 1);
    }

    #[tokio::test]
    async fn one_who_requires_more_is_not_handed_what_fewer_have() {
        let (rig, _replicas) = rig().await;
        let lock = rig.client.lock("job");
        let one = lock.clone().require_replicas(1, LONG);
        second_of(&rig, &one, &lock.clone().require_replicas(2, LONG)).await;
        assert_eq!(rig.proxy.count(wait_for(1)), 1);
        assert_eq!(rig.proxy.count(wait_for(2)), 1);
        // Nor is one who requires none made to keep it by replicas.
        rig.proxy.forget_commands();
        second_of(&rig, &one, &lock).await;
        assert!(rig.proxy.count(acquiring("job")) >= 2);
    }
}

mod cancelled_and_lost {
    use super::*;

    /// R-38, I12: dropped while only the replicas are missing.
    #[tokio::test]
    async fn a_future_dropped_in_the_wait_leaves_nothing() {
        let (rig, replicas) = with_replicas(1, patient).await;
        replicas.0[0].pause();
        let lock = rig.client.lock("job").require_replicas(1, LONG);
        waiting(&rig, &lock, 1).await.abort();
        assert!(!rig.holds("job").is_empty(), "the server has it");
        replicas.0[0].resume();
        rig.assert_nothing_left().await;
    }

    /// and so it is if no replica ever answers.
    #[tokio::test]
    async fn a_future_dropped_in_a_wait_in_vain_leaves_nothing() {
        let (rig, replicas) = with_replicas(1, |builder| builder).await;
        replicas.0[0].pause();
        let lock = rig.client.lock("job").require_replicas(1, BRIEFLY);
        waiting(&rig, &lock, 1).await.abort();
        rig.assert_nothing_left().await;
    }

    /// R-25, I5, I11: of the write, and of the WAIT; alone, and with the connection.
    #[tokio::test]
    async fn lost_replies_leave_the_lock_held_once() {
        let settings = |b: Builder| b.command_timeout(A_WHILE).require_replicas(1, A_WHILE);
        let (rig, replicas) = with_replicas(1, settings).await;
        for cut in [false, true] {
            for of in [true, false] {
                let of = move |command: &Command| match of {
                    true => acquiring("job")(command),
                    false => wait_for(1)(command),
                };
                let lost = match cut {
                    true => rig.proxy.drop_reply_and_cut(of),
                    false => rig.proxy.drop_reply(of, 1),
                };
                let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
                lost.happened(1).await;
                lost.stop();
                assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
                assert_eq!(replicas.that_have("job"), 1);
                soon(guard.unlock()).await.expect("it is held");
                assert_no_keys(&rig.raw);
            }
        }
        rig.assert_nothing_left().await;
    }

    /// R-25, I11: nobody knows whether replicas have it, and it is given back.
    #[tokio::test]
    async fn a_try_whose_wait_got_no_reply_is_undone() {
        let settings = |b: Builder| b.command_timeout(A_WHILE).require_replicas(1, A_WHILE);
        let (rig, _replicas) = with_replicas(1, settings).await;
        // A try asks once: the connection must be there.
        drop(soon(rig.client.lock("job").lock()).await.expect("it is free"));
        let lost = rig.proxy.drop_reply(wait_for(1), 1);
        let error = soon(rig.client.lock("job").try_lock_now()).await.expect_err("no reply came");
        lost.happened(1).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_indeterminate());
        rig.assert_nothing_left().await;
    }

    /// R-26, I12: it was undone, and the server does not say so.
    #[tokio::test]
    async fn a_lost_reply_to_the_undoing_leaves_nothing() {
        let settings = |b: Builder| b.command_timeout(BRIEFLY).require_replicas(1, BRIEFLY);
        let rig = Rig::with(settings).await;
        let lost = rig.proxy.drop_reply_and_cut(crate::rig::releasing("job"));
        assert_eq!(too_few(soon(rig.client.lock("job").lock()).await), (0, 1));
        lost.happened(1).await;
        rig.assert_nothing_left().await;
    }
}

mod kinds {
    use super::*;

    fn locks(client: &Client) -> Vec<Lock> {
        let both = client.read_write_lock("both");
        let locks = [client.lock("lock"), client.fair_lock("fair"), client.spin_lock("spin")];
        let others = [client.token_lock("token"), both.read(), both.write()];
        locks.into_iter().chain(others).collect()
    }

    #[tokio::test]
    async fn every_kind_of_lock_is_on_the_replica() {
        let (rig, replicas) = with_replicas(1, |b| patient(b).require_replicas(1, LONG)).await;
        for lock in locks(&rig.client) {
            let guard = soon(lock.lock()).await.expect("it is free");
            assert_eq!(replicas.that_have(lock.name()), 1, "{lock:?}");
            soon(guard.unlock()).await.expect("it is held");
        }
        let guard = soon(rig.client.fenced_lock("fenced").lock()).await.expect("it is free");
        assert_eq!(replicas.that_have("fenced"), 1);
        drop(guard);
        let joint = soon(MultiLock::new(locks(&rig.client)).lock()).await.expect("all are free");
        assert!(joint.is_held());
        drop(joint);
        let striped = rig.client.striped_lock("striped", 4);
        drop(soon(striped.any()).await.expect("it is free"));
        let permits = rig.client.permit_semaphore("permits").sized(2);
        drop(soon(permits.acquire()).await.expect("there are two"));
        let permits = rig.client.semaphore("plain").sized(2);
        drop(soon(permits.acquire()).await.expect("there are two"));
        assert!(rig.proxy.count(wait_for(1)) >= 12);
    }

    #[tokio::test]
    async fn no_kind_keeps_what_no_replica_has() {
        let rig = Rig::with(|builder| builder.require_replicas(1, BRIEFLY / 10)).await;
        for lock in locks(&rig.client) {
            assert_eq!(too_few(soon(lock.lock()).await), (0, 1), "{lock:?}");
        }
        too_few(soon(MultiLock::new(locks(&rig.client)).lock()).await);
        too_few(soon(rig.client.striped_lock("striped", 2).any()).await);
        let empty = async || rig.raw.cmd(&["DBSIZE"]).int() == 0;
        eventually("all is given back", empty).await;
        too_few(soon(rig.client.fenced_lock("fenced").lock()).await);
        let expiring = rig.client.permit_semaphore("permits").sized(2);
        let plain = rig.client.semaphore("plain").sized(2);
        for _ in 0..4 {
            too_few(soon(expiring.acquire_many(2)).await);
            too_few(soon(plain.acquire_many(2)).await);
        }
        let free = async || {
            let permits = soon(expiring.permits()).await.expect("there is one");
            soon(plain.available()).await.expect("there is one") == Some(2)
                && permits.is_some_and(|p| p.available == 2 && p.in_use == 0)
        };
        eventually("all permits are back", free).await;
        eventually("the key is free", async || rig.holds("fenced").is_empty()).await;
    }

    /// a server whose replica lags is one of those that did not grant it.
    #[tokio::test]
    async fn a_majority_of_servers_needs_the_replicas_of_each() {
        let settings = |builder: Builder| builder.require_replicas(1, A_WHILE);
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(with_replicas(1, settings).await);
        }
        let locks = servers.iter().map(|(rig, _)| rig.client.lock("job"));
        let red = RedLock::new(locks).node_timeout(SOON);
        servers[0].1.0[0].pause();
        let guard = soon(red.lock()).await.expect("two of three have it");
        assert!(guard.is_held());
        soon(guard.unlock()).await.expect("it is held");
        servers[1].1.0[0].pause();
        assert_eq!(too_few(soon(red.lock()).await), (0, 1));
        for (rig, _) in &servers {
            rig.assert_nothing_left().await;
        }
    }

    /// I13: who stands in line at the server is granted by a later call.
    #[tokio::test]
    async fn a_waiter_in_line_is_granted_with_its_replicas() {
        let (rig, replicas) = with_replicas(1, |b| patient(b).require_replicas(1, LONG)).await;
        let holder = rig.bystander().await;
        let guard = soon(holder.fair_lock("job").lock()).await.expect("it is free");
        let asking = tokio::spawn(rig.client.fair_lock("job").lock());
        let queued = async || rig.raw.cmd(&["EXISTS", "redisson_lock_queue:{job}"]).int() == 1;
        eventually("it stands in line", queued).await;
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(asking).await.expect("no panic").expect("it is its turn");
        assert_eq!(replicas.that_have("job"), 1);
        assert_eq!(rig.proxy.count(wait_for(1)), 1);
        drop(guard);
    }

    /// I16: waiting for a latch takes nothing, so it asks no replica.
    #[tokio::test]
    async fn a_latch_is_waited_for_without_replicas() {
        let rig = Rig::with(|builder| builder.require_replicas(1, BRIEFLY)).await;
        let latch = rig.client.count_down_latch("ready");
        soon(latch.try_set(1)).await.expect("there is none yet");
        soon(latch.count_down()).await.expect("there is one");
        soon(latch.wait()).await.expect("it is open");
        assert_eq!(rig.proxy.count(named("WAIT")), 0);
    }
}

/// Each node of a cluster has replicas of its own, and lags by itself.
#[tokio::test]
async fn in_a_cluster_each_node_s_own_replicas_count() {
    let cluster = ClusterSetup::with_replicas();
    let builder = Client::builder(cluster.url()).expect("a URL");
    let builder = builder.require_replicas(1, A_WHILE).command_timeout(SOON / 10);
    let client = soon(builder.connect()).await.expect("the cluster is up");
    let names: Vec<String> = (0..3).map(|node| cluster.name_at(node, "job")).collect();
    for name in &names {
        soon(soon(client.lock(name).lock()).await.expect("it is free").unlock())
            .await
            .expect("it is held");
    }
    cluster.nodes[3].pause();
    assert_eq!(too_few(soon(client.lock(&names[0]).lock()).await), (0, 1));
    for name in &names[1..] {
        soon(soon(client.lock(name).lock()).await.expect("it is free").unlock())
            .await
            .expect("it is held");
    }
    cluster.nodes[3].resume();
    let gone = async || cluster.nodes[0].raw().cmd(&["EXISTS", &names[0]]).int() == 0;
    eventually("it was undone", gone).await;
    soon(client.close()).await;
}

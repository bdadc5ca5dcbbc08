//! Replies that are lost or late: each command counts once at the server, its caller is told the
//! truth, and nothing is left behind.
use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind};

use crate::{
    rig::{Rig, acquiring, entering, held_by, lowering, releasing, renewing, soon},
    support::{
        assert_no_keys, eventually,
        history::History,
        proxy::{Fault, Matcher, Proxy, both, named},
        server::RedisServer,
    },
};

const LONG: Duration = Duration::from_secs(60);

/// Loses one reply; the connection stands.
fn lose(proxy: &Proxy, of: impl Matcher) -> Fault {
    proxy.drop_reply(of, 1)
}

/// Loses one reply, and the connection with it.
fn lose_and_cut(proxy: &Proxy, of: impl Matcher) -> Fault {
    proxy.drop_reply_and_cut(of)
}

mod of_an_acquire {
    use super::*;

    async fn holds_once(lost: impl Fn(&Rig) -> Fault) {
        let rig = Rig::start().await;
        let lost = lost(&rig);
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        lost.happened(1).await;
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        assert!(guard.is_held());
        soon(guard.unlock()).await.expect("it is held");
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// R-25, I5, I11.
    #[tokio::test]
    async fn a_lost_reply_leaves_the_lock_held_once() {
        holds_once(|rig| lose(&rig.proxy, acquiring("job"))).await;
    }

    /// R-25, I5, I11.
    #[tokio::test]
    async fn a_reply_lost_with_its_connection_leaves_the_lock_held_once() {
        holds_once(|rig| lose_and_cut(&rig.proxy, acquiring("job"))).await;
    }

    /// here the reply that says to send the whole script.
    #[tokio::test]
    async fn a_lost_noscript_is_ridden_out() {
        holds_once(|rig| {
            rig.raw.cmd(&["SCRIPT", "FLUSH"]).ok();
            lose(&rig.proxy, acquiring("job"))
        })
        .await;
    }

    /// R-25, I11.
    #[tokio::test]
    async fn a_try_without_a_reply_says_that_nobody_knows_and_is_undone() {
        let rig = Rig::start().await;
        let lost = lose(&rig.proxy, acquiring("job"));
        let error = soon(rig.client.lock("job").try_lock_now()).await.expect_err("no reply came");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_indeterminate() && error.is_unavailable());
        lost.happened(1).await;
        eventually("what was granted is given back", async || {
            rig.holds("job").is_empty() && rig.proxy.count(releasing("job")) > 0
        })
        .await;
        rig.assert_nothing_left().await;
    }

    /// R-25, I5: the next acquisition has an id of its own and waits for nobody.
    #[tokio::test]
    async fn after_a_try_without_a_reply_the_lock_can_be_taken_again() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job").lease(LONG);
        let _lost = lose_and_cut(&rig.proxy, acquiring("job"));
        soon(lock.try_lock_now()).await.expect_err("no reply came");
        let guard = soon(lock.lock()).await.expect("the first grant is undone");
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod of_a_nested_acquire {
    use super::*;

    async fn counts_once(lost: impl Fn(&Proxy) -> Fault) {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let lost = lost(&rig.proxy);
        let inner = soon(lock.lock()).await.expect("it is ours");
        lost.happened(1).await;
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 2));
        soon(inner.unlock()).await.expect("it is held");
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 1));
        soon(outer.unlock()).await.expect("it is held");
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// R-25, I5.
    #[tokio::test]
    async fn a_lost_reply_counts_once() {
        counts_once(|proxy| lose(proxy, entering("job"))).await;
    }

    /// R-25, I5.
    #[tokio::test]
    async fn a_reply_lost_with_its_connection_counts_once() {
        counts_once(|proxy| lose_and_cut(proxy, entering("job"))).await;
    }

    /// R-25, I5, I11: the outer hold is as it was.
    #[tokio::test]
    async fn a_nested_try_without_a_reply_leaves_the_outer_hold_as_it_was() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let lost = lose(&rig.proxy, entering("job"));
        let error = soon(lock.try_lock_now()).await.expect_err("no reply came");
        assert!(error.is_indeterminate() && error.is_unavailable(), "{error:?}");
        lost.happened(1).await;
        let undone = async || rig.holds("job") == held_by(&outer.holder(), 1);
        eventually("the count is what it was", undone).await;
        assert_eq!((outer.hold_count(), outer.is_held()), (1, true));
        soon(outer.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod of_a_release {
    use super::*;

    async fn lowers_once(lost: impl Fn(&Proxy) -> Fault) {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let middle = soon(lock.lock()).await.expect("it is ours");
        let inner = soon(lock.lock()).await.expect("it is ours");
        let lost = lost(&rig.proxy);
        soon(inner.unlock()).await.expect("it is held");
        lost.happened(1).await;
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 2));
        soon(middle.unlock()).await.expect("it is held");
        assert_eq!(rig.holds("job"), held_by(&outer.holder(), 1));
        assert!(outer.is_held());
        soon(outer.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-26, I5.
    #[tokio::test]
    async fn a_partial_release_without_a_reply_lowers_the_count_once() {
        lowers_once(|proxy| lose(proxy, lowering("job"))).await;
    }

    /// R-26, I5.
    #[tokio::test]
    async fn a_partial_release_that_lost_its_connection_lowers_the_count_once() {
        lowers_once(|proxy| lose_and_cut(proxy, lowering("job"))).await;
    }

    /// The message of a release counts as part of it: waiters hear of it once.
    async fn is_done_once(lost: impl Fn(&Proxy) -> Fault) {
        let rig = Rig::start().await;
        let listener = rig.server.raw();
        listener.subscribe("redisson_lock__channel:{job}");
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let lost = lost(&rig.proxy);
        soon(guard.unlock()).await.expect("done, though nobody said so");
        lost.happened(1).await;
        rig.assert_nothing_left().await;
        rig.raw.cmd(&["PUBLISH", "redisson_lock__channel:{job}", "end"]).ok();
        let heard = || listener.next_message(Duration::from_secs(10)).map(|m| m.payload);
        assert_eq!([heard(), heard()], [Some("0".into()), Some("end".into())]);
    }

    ///
    #[tokio::test]
    async fn a_final_release_without_a_reply_is_done_once() {
        is_done_once(|proxy| lose(proxy, releasing("job"))).await;
    }

    ///
    #[tokio::test]
    async fn a_final_release_that_lost_its_connection_is_done_once() {
        is_done_once(|proxy| lose_and_cut(proxy, releasing("job"))).await;
    }

    /// R-26, I4: by the time a release is sent again, somebody else may hold the lock.
    #[tokio::test]
    async fn a_release_sent_again_does_not_touch_the_next_holder() {
        let rig = Rig::start().await;
        let other = rig.bystander().await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let lost = lose(&rig.proxy, releasing("job"));
        let unlocking = tokio::spawn(guard.unlock());
        lost.happened(1).await;
        let next = soon(other.lock("job").lock()).await.expect("it is free again");
        soon(unlocking).await.expect("no panic").expect("done, though nobody said so");
        rig.proxy.wait_for(releasing("job"), 2).await;
        soon(rig.client.close()).await;
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-26, I12: nobody waits for the reply of what a dropped guard sends.
    #[tokio::test]
    async fn a_dropped_guard_whose_release_got_no_reply_leaves_nothing() {
        let rig = Rig::start().await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let lost = lose_and_cut(&rig.proxy, releasing("job"));
        drop(guard);
        lost.happened(1).await;
        rig.assert_nothing_left().await;
    }
}

mod of_a_renewal {
    use super::*;

    /// R-27, I7, I8.
    async fn is_no_loss(lost: impl Fn(&Proxy) -> Fault, losses: usize) {
        let timeout = Duration::from_millis(400);
        let watchdog = Duration::from_secs(4);
        let rig = Rig::with(|b| b.command_timeout(timeout).watchdog(watchdog)).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let lost = lost(&rig.proxy);
        let first_deadline = guard.valid_until();
        lost.happened(losses).await;
        let renewed = async || guard.valid_until() > first_deadline;
        eventually("a later renewal got through", renewed).await;
        let told = tokio::time::timeout(Duration::ZERO, guard.lost()).await;
        assert!(told.is_err() && guard.is_held(), "{told:?}");
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    #[tokio::test]
    async fn lost_replies_are_no_loss_of_the_lock() {
        is_no_loss(|proxy| proxy.drop_reply(renewing("job"), 2), 2).await;
    }

    #[tokio::test]
    async fn a_reply_lost_with_its_connection_is_no_loss_of_the_lock() {
        is_no_loss(|proxy| lose_and_cut(proxy, renewing("job")), 1).await;
    }

    async fn extends_honestly(lost: impl Fn(&Proxy) -> Fault) {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job").lease(Duration::from_secs(20));
        let guard = soon(lock.lock()).await.expect("it is free");
        let before = guard.valid_until();
        let lost = lost(&rig.proxy);
        let error = soon(guard.extend(LONG)).await.expect_err("no reply came");
        lost.happened(1).await;
        assert_eq!(error.kind(), ErrorKind::NoReply);
        assert!(error.is_indeterminate() && error.is_unavailable());
        // It ran, which its caller must not rely on.
        assert!(rig.raw.cmd(&["PTTL", "job"]).int() > 30_000);
        assert!(guard.is_held() && guard.valid_until() < before + Duration::from_secs(1));
        eventually("it can be extended", async || guard.extend(LONG).await.is_ok()).await;
        assert!(guard.valid_until() > before + Duration::from_secs(20));
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// R-27, I11.
    #[tokio::test]
    async fn an_extension_without_a_reply_is_not_counted_on() {
        extends_honestly(|proxy| lose(proxy, renewing("job"))).await;
    }

    /// R-27, I11.
    #[tokio::test]
    async fn an_extension_that_lost_its_connection_is_not_counted_on() {
        extends_honestly(|proxy| lose_and_cut(proxy, renewing("job"))).await;
    }
}

mod that_came_late {
    use super::*;

    /// R-03, I2: the lease counts from the request; a reply that comes after its end grants nothing.
    #[tokio::test]
    async fn a_grant_that_comes_after_its_lease_is_none_and_disturbs_nobody() {
        let rig = Rig::with(|builder| builder.command_timeout(Duration::from_secs(8))).await;
        let other = rig.bystander().await;
        let late = rig.proxy.hold_reply(acquiring("job"));
        let lock = rig.client.lock("job").lease(Duration::from_secs(1));
        let waiting = tokio::spawn(lock.lock());
        late.held().await;
        assert_eq!(late.answered().await.expect("a reply").items()[0].int(), 0, "granted");
        let next = soon(other.lock("job").lock()).await.expect("the lease ends");
        late.release();
        // What came late is given back, and the lock asked for anew.
        rig.proxy.wait_for(releasing("job"), 1).await;
        rig.proxy.wait_for(acquiring("job"), 2).await;
        rig.proxy.wait_for(named("SUBSCRIBE"), 1).await;
        assert!(!waiting.is_finished() && next.is_held());
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        let released = Instant::now();
        soon(next.unlock()).await.expect("it is held");
        let guard = soon(waiting).await.expect("no panic").expect("it is free");
        assert!(guard.valid_until() > released, "a lease of its own");
        drop(guard);
        rig.assert_nothing_left().await;
    }

    /// R-03, I11: a late grant of a try is no grant, and no refusal by somebody else either.
    #[tokio::test]
    async fn a_try_that_is_granted_too_late_takes_nothing() {
        let rig = Rig::with(|builder| builder.command_timeout(Duration::from_secs(8))).await;
        let late = rig.proxy.hold_reply(acquiring("job"));
        let lock = rig.client.lock("job").lease(Duration::from_secs(1));
        let trying = tokio::spawn(lock.try_lock_now());
        late.held().await;
        eventually("the lease has ended", async || rig.holds("job").is_empty()).await;
        late.release();
        if let Some(guard) = soon(trying).await.expect("no panic").expect("the server answers") {
            // Asked for once more, and granted in time.
            assert!(rig.proxy.count(acquiring("job")) > 1 && guard.is_held());
        }
        rig.assert_nothing_left().await;
    }
}

mod when_scripts_are_forgotten {
    use super::*;

    /// Locks, enters and leaves; says what it held.
    async fn rounds(client: Client, name: String, owner: String, history: History) {
        let lock = client.lock(&name);
        for _ in 0..40 {
            let outer = lock.lock().await.expect("no error");
            let held = history.held(&name, &owner);
            let inner = lock.lock().await.expect("no error");
            assert_eq!(lock.hold_count(), 2);
            inner.unlock().await.expect("no error");
            held.end();
            outer.unlock().await.expect("no error");
        }
    }

    /// R-19, I1, I5.
    #[tokio::test]
    async fn flushing_the_scripts_under_load_costs_no_more_than_round_trips() {
        let server = RedisServer::start();
        let (raw, stop) = (server.raw(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let flusher = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                raw.cmd(&["SCRIPT", "FLUSH"]).ok();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let history = History::new();
        let mut tasks = Vec::new();
        for owner in 0..12 {
            let client = soon(Client::connect(server.url())).await.expect("the server is up");
            let (name, owner) = (format!("job-{}", owner % 3), owner.to_string());
            tasks.push(tokio::spawn(rounds(client, name, owner, history.clone())));
        }
        for task in tasks {
            soon(task).await.expect("no error");
        }
        stop.store(true, Ordering::Relaxed);
        flusher.join().expect("no error");
        history.assert_exclusive(12 * 40);
        assert_no_keys(&server.raw());
    }

    /// Asks for a lock whose script the server does not know; returns once the EVAL that follows
    /// is held at the proxy and the future is gone.
    async fn dropped_between_evalsha_and_eval(rig: &Rig) -> crate::support::proxy::Hold {
        rig.raw.cmd(&["SCRIPT", "FLUSH"]).ok();
        let eval = rig.proxy.hold_command(both(named("EVAL"), acquiring("job")));
        let mut asking = Box::pin(rig.client.lock("job").lock());
        tokio::select! {
            _ = &mut asking => panic!("nothing was granted"),
            () = eval.held() => {}
        }
        assert_eq!(rig.proxy.count(both(named("EVALSHA"), acquiring("job"))), 1);
        // Once more after the event: the call is in flight, and its caller has been polled.
        poll_fn(|cx| {
            assert!(asking.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(asking);
        eval
    }

    /// I12: the clean-up waits until the fate of what it cleans up is known.
    #[tokio::test]
    async fn an_eval_does_not_slip_behind_the_clean_up_of_its_dropped_future() {
        let rig = Rig::with(|builder| builder.command_timeout(Duration::from_secs(5))).await;
        let eval = dropped_between_evalsha_and_eval(&rig).await;
        eval.release();
        assert_eq!(eval.answered().await.expect("a reply").items()[0].int(), 0, "granted");
        rig.proxy.wait_for(releasing("job"), 1).await;
        rig.assert_nothing_left().await;
    }

    /// I12.
    #[tokio::test]
    async fn an_eval_that_outlived_its_connection_is_cleaned_up_too() {
        let rig = Rig::start().await;
        let eval = dropped_between_evalsha_and_eval(&rig).await;
        rig.proxy.cut_client_side_only().await;
        rig.proxy.wait_for(releasing("job"), 1).await;
        eval.release();
        let ran = eval.answered().await;
        assert!(ran.is_none(), "the old connection was not killed first: {ran:?}");
        rig.assert_nothing_left().await;
    }
}

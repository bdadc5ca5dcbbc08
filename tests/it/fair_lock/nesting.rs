//! Those who hold the lock enter it again, whoever stands in line; scopes inside a hold need no
//! line.
use std::{sync::Arc, time::Duration};

use leasehold::{Owner, Reentry};
use tokio::sync::Notify;

use super::{LOCK, LONG, Setup, acquiring, granted, soon, start};
use crate::support::eventually;

/// I5.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_it_enters_again_past_the_line() {
    let setup = Setup::start().await;
    let lock = setup.lock();
    let outer = soon(lock.lock()).await.expect("it is free");
    let (theirs, ours) = (setup.queue(&setup.theirs()).await, setup.queue(&setup.lock()).await);
    let inner = soon(lock.lock()).await.expect("it is ours");
    let once = soon(lock.try_lock_now()).await.expect("no error").expect("it is ours");
    assert_eq!((outer.hold_count(), setup.line().len()), (3, 2));
    for guard in [once, inner, outer] {
        assert!(!theirs.is_finished());
        soon(guard.unlock()).await.expect("it is held");
    }
    granted(theirs).await.unlock().await.expect("it is held");
    granted(ours).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// I5: its own task is in the line with another branch; the hold is entered by its scopes.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_inside_a_hold_stands_in_no_line() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.fair_lock(LOCK);
    let body = Owner::scope(async {
        let outer = soon(lock.lock()).await.expect("it is free");
        let waiting = setup.queue(&setup.theirs()).await;
        let first = soon(Owner::scope(lock.lock())).await.expect("it is around");
        // A sibling waits for its turn inside, and only for as long as it wants to.
        let second = soon(Owner::scope(lock.try_lock_for(Duration::from_millis(100)))).await;
        assert!(second.expect("no error").is_none());
        assert_eq!((setup.line().len(), outer.hold_count()), (1, 2));
        soon(first.unlock()).await.expect("it is held");
        soon(outer.unlock()).await.expect("it is held");
        granted(waiting).await.unlock().await.expect("it is held");
    });
    body.await;
    setup.assert_nothing_left().await;
}

/// I5: a scope that stands in line when a hold around it is granted enters that hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_in_line_enters_the_hold_around_it() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.fair_lock(LOCK);
    let held = soon(setup.theirs().lock()).await.expect("it is free");
    Owner::scope(async {
        let parents = start(&lock).await;
        setup.until_in_line(1).await;
        let childs = Owner::scope(start(&lock)).await;
        setup.until_in_line(2).await;
        held.unlock().await.expect("it is held");
        let parents = soon(parents).await.expect("its turn comes");
        let childs = soon(childs).await.expect("it is around");
        assert_eq!(parents.hold_count(), 2);
        // Its own place goes back behind the scenes.
        setup.until_in_line(0).await;
        soon(childs.unlock()).await.expect("it is held");
        soon(parents.unlock()).await.expect("it is held");
    })
    .await;
    setup.assert_nothing_left().await;
}

/// I5: the same, where the scope's own try is under way when the hold is granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_that_asks_just_then_enters_the_hold_around_it() {
    let setup = Setup::start().await;
    let lock = setup.rig.client.fair_lock(LOCK);
    Owner::scope(async {
        let parent = Owner::current();
        let asked = setup.rig.proxy.hold_reply(acquiring());
        let parents = start(&lock.clone().owned_by(parent)).await;
        asked.held().await;
        let childs = Owner::scope(start(&lock)).await;
        eventually("both have asked", async || setup.rig.proxy.count(acquiring()) == 2).await;
        let meanwhile = tokio::spawn(childs);
        asked.release();
        let parents = soon(parents).await.expect("it is free");
        let childs = granted(meanwhile).await;
        assert_eq!(parents.hold_count(), 2);
        soon(childs.unlock()).await.expect("it is held");
        soon(parents.unlock()).await.expect("it is held");
    })
    .await;
    setup.assert_nothing_left().await;
}

/// I13: with a new owner for each acquisition, one task stands in line behind itself.
#[tokio::test(flavor = "multi_thread")]
async fn scoped_reentry_queues_behind_its_own_task() {
    let setup = Setup::with(|builder| builder.reentry(Reentry::Scoped)).await;
    let lock = setup.rig.client.fair_lock(LOCK);
    let held = soon(lock.lock()).await.expect("it is free");
    let nested = soon(lock.try_lock_for(Duration::from_millis(50))).await;
    assert!(nested.expect("no error").is_none());
    setup.until_in_line(0).await;
    held.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

/// the body of `with` is dropped when its hold is lost, whoever stands in line.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_ends_with_its_hold() {
    let setup = Setup::start().await;
    let (lock, inside) = (setup.lock(), Arc::new(Notify::new()));
    let entered = inside.clone();
    let working = tokio::spawn(async move {
        let body = |_| async move {
            entered.notify_one();
            std::future::pending::<()>().await;
        };
        lock.with(body).await
    });
    soon(inside.notified()).await;
    let waiting = setup.queue(&setup.lock().lease(LONG)).await;
    assert!(soon(setup.lock().force_unlock()).await.expect("the server is up"));
    assert!(soon(working).await.expect("no panic").expect_err("it is lost").is_lost());
    granted(waiting).await.unlock().await.expect("it is held");
    setup.assert_nothing_left().await;
}

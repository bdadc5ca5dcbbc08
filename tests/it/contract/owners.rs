//! Who has it may enter again, or is told that it would wait for itself; others wait.
use std::time::Duration;

use futures::future::join_all;
use leasehold::{ErrorKind, Owner};
use tokio::{task::yield_now, time::timeout};

use super::{
    setup::{HANG, Setup, got},
    subjects::{NO_END, Owned, Synchronizer, Taken},
};
use crate::support::history::History;

/// I5: so often in, so often out.
pub async fn an_owner_enters_again_and_leaves_as_often<S: Owned>() {
    let setup = Setup::of::<S>().await;
    let handle = S::of(&setup.one, &setup.name);
    let mut entered = Vec::new();
    for _ in 0..3 {
        entered.push(got(handle.take()).await);
        assert!(handle.is_held_by_me());
        setup.assert_taken::<S>(1).await;
    }
    let tried = got(handle.try_take(Duration::ZERO)).await;
    entered.push(tried.expect("it is ours"));
    for entry in entered.into_iter().rev() {
        assert!(handle.is_held_by_me());
        setup.assert_taken::<S>(1).await;
        got(entry.give_back()).await;
    }
    assert!(!handle.is_held_by_me());
    setup.assert_free::<S>("after the last").await;
}

/// I10: never a wait for itself.
pub async fn an_owner_that_would_wait_for_itself_is_told<S: Owned>() {
    let setup = Setup::of::<S>().await;
    let handle = S::of(&setup.one, &setup.name);
    let taken = got(handle.take()).await;
    for wait in [Duration::ZERO, HANG] {
        let tried = timeout(HANG, handle.try_take(wait)).await.expect("it is told");
        let error = tried.err().expect("it is not entered twice");
        assert_eq!(error.kind(), ErrorKind::OwnHold, "{error}");
    }
    let error = timeout(HANG, handle.take()).await.expect("it is told").err().expect("the same");
    assert_eq!(error.kind(), ErrorKind::OwnHold, "{error}");
    setup.assert_taken::<S>(1).await;
    taken.give_back().await.expect("it is held");
    setup.assert_free::<S>("after all that").await;
}

/// I15: it has no owners, so who takes again takes more, or waits as anybody would.
pub async fn whoever_takes_again_takes_more<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let handle = S::of(&setup.one, &setup.name);
    let mut taken = Vec::new();
    for _ in 0..S::CAPACITY.min(5) {
        taken.push(got(handle.take()).await);
        setup.assert_taken::<S>(taken.len()).await;
    }
    if S::CAPACITY != NO_END {
        assert!(got(handle.try_take(Duration::ZERO)).await.is_none(), "none is left");
    }
    for taken in taken {
        got(taken.give_back()).await;
    }
    setup.assert_free::<S>("after all were given back").await;
}

/// I2, I5: scopes side by side in one task are owners of their own, also inside one that has it.
pub async fn scopes_side_by_side_exclude_each_other<S: Owned>() {
    let setup = Setup::of::<S>().await;
    let history = History::new();
    let around = async {
        let scopes = (0..4).map(|number| {
            let handle = S::for_anybody(&setup.one, &setup.name);
            let history = history.clone();
            Owner::scope(async move {
                for _ in 0..3 {
                    let taken = handle.take().await.expect("it comes free");
                    let held = history.held("it", &number.to_string());
                    yield_now().await;
                    held.end();
                    taken.give_back().await.expect("it is held");
                }
            })
        });
        timeout(HANG, join_all(scopes)).await.expect("all have their turns");
    };
    around.await;
    let holds = history.intervals().len();
    assert_eq!(holds, 12);
    assert!(history.peak("it") <= S::CAPACITY, "{} were in at once", history.peak("it"));
    setup.assert_free::<S>("after the scopes").await;
}

/// I5: one inside the other, as nested calls are.
pub async fn a_scope_enters_what_is_held_around_it<S: Owned>() {
    let setup = Setup::of::<S>().await;
    let handle = S::for_anybody(&setup.one, &setup.name);
    timeout(
        HANG,
        Owner::scope(async {
            let outer = handle.take().await.expect("it is free");
            Owner::scope(async {
                let inner = handle.take().await.expect("it is held around it");
                setup.assert_taken::<S>(1).await;
                inner.give_back().await.expect("it is held");
            })
            .await;
            setup.assert_taken::<S>(1).await;
            outer.give_back().await.expect("it is held");
        }),
    )
    .await
    .expect("nobody is in the way");
    setup.assert_free::<S>("after both").await;
}

/// I4: another task is another owner.
pub async fn another_task_is_another_owner<S: Owned>() {
    let setup = Setup::of::<S>().await;
    let taken = got(S::for_anybody(&setup.one, &setup.name).take()).await;
    let other = S::for_anybody(&setup.one, &setup.name);
    let held = tokio::spawn(async move { other.is_held_by_me() }).await.expect("no panic");
    assert!(!held);
    if S::CAPACITY == 1 {
        let other = S::for_anybody(&setup.one, &setup.name);
        let tried = tokio::spawn(other.try_take(Duration::ZERO)).await.expect("no panic");
        assert!(tried.expect("the server is up").is_none(), "it is another's");
    }
    got(taken.give_back()).await;
}

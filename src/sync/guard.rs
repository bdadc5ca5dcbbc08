//! A held lock of any kind.

use crate::engine::queue::Grant;
use crate::error::Error;
use crate::owner::Owner;
use crate::sync::Held;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::task::Poll;

/// A held lock; dropping it gives the lock back.
///
/// Bind it to a name: `let _ = lock.lock().await?` drops it at once.
///
/// Dropping queues the release and returns; it is retried until the lease would have ended anyway.
/// To know that it is through, call [`unlock`](LockGuard::unlock). A guard may be dropped in
/// another task or thread, also outside a runtime; that is logged, because nested holds of the
/// task it came from may rely on it.
///
/// Everything of [`Held`] can be called on it.
#[must_use = "dropping the guard gives the lock back: bind it, `let _guard = ..`, not `let _ = ..`"]
pub struct LockGuard {
    held: Held,
    armed: bool,
}

impl LockGuard {
    pub(crate) fn new(held: Held) -> Self {
        Self { held, armed: true }
    }

    /// Gives the lock back and waits until it is free (or, nested, held once less).
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`](crate::Lock::unlock).
    ///
    /// # Cancel safety
    ///
    /// The lock is given back whether or not the future is awaited to its end.
    pub async fn unlock(mut self) -> Result<(), Error> {
        self.armed = false;
        let Held { shared, name, grant, .. } = &self.held;
        // The closure runs at once: from here on only the engine has the entry.
        shared.engine().give_back(name, |t| name.leave(shared.engine(), grant, Some(t))).await
    }

    /// Leaves the hold without a guard, to be given back by [`Lock::unlock`](crate::Lock::unlock) of the
    /// same owner.
    ///
    /// Nothing tells us that a task has ended. So a forgotten hold of a task (or thread) is not
    /// renewed any more: its lease runs out. One of an explicit [`Owner`] is renewed for as long as
    /// somebody keeps that owner.
    pub fn forget(mut self) {
        self.armed = false;
        let Held { shared, name, grant, .. } = &self.held;
        name.forget(shared.engine(), grant);
    }

    /// Gives the hold an owner of its own, before it leaves its task.
    ///
    /// The task it came from can then ask for the lock again without re-entering.
    pub fn detach(self) -> Self {
        self.detach_to(Owner::new())
    }

    /// Gives the hold to another owner.
    pub(crate) fn detach_to(mut self, owner: Owner) -> Self {
        self.held.owner = owner;
        self.held.name.hand_to(&self.held.grant, &self.held.owner);
        self
    }

    /// Runs a body under this guard, in a scope inside its owner.
    pub(crate) async fn run<F, Fut>(self, body: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(Held) -> Fut,
        Fut: Future,
    {
        let held = self.held.clone();
        let Grant { hold, turn, .. } = held.grant.clone();
        let scoped = Owner::child(&held.owner).enter(async move { body(held).await });
        let value = {
            let mut scoped = std::pin::pin!(scoped);
            let mut lost = std::pin::pin!(hold.wait_lost(turn));
            poll_fn(|cx| {
                // Looked at before every poll of the body: past the deadline it does not go on.
                if let Some(reason) = hold.lost_in(turn) {
                    return Poll::Ready(Err(reason));
                }
                if let Poll::Ready(value) = scoped.as_mut().poll(cx) {
                    return Poll::Ready(Ok(value));
                }
                lost.as_mut().poll(cx).map(Err)
            })
            .await
        };
        let value = value.map_err(|reason| Error::lost(self.name(), reason))?;
        let shown = self.shared.engine().shown(&self.name).to_string();
        match self.unlock().await {
            Err(error) if error.is_lost() => Err(error),
            Err(error) => {
                tracing::warn!(lock = shown, %error, "the release after a body got no clear answer");
                Ok(value)
            }
            Ok(()) => Ok(value),
        }
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let Held { shared, name, grant, owner } = &self.held;
        let engine = shared.engine();
        if owner.is_default() && *owner != Owner::default_here() {
            tracing::warn!(
                lock = %engine.shown(name),
                "a guard was dropped in another task than it was taken in; detach() it first"
            );
        }
        // A lost hold was told about already, and a release that fails is retried.
        drop(name.leave(engine, grant, None));
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.held).finish()
    }
}

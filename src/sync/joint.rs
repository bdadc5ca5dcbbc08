//! Several locks held as one: what the multi lock and the red lock give out.

use crate::engine::together::{Boxed, Part, Together};
use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::owner::Owner;
use crate::server::Text;
use crate::sync::{Held, Lock, LockGuard};
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A view of several holds that stand and fall together; it cannot release them.
///
/// Of a [`MultiLock`](crate::MultiLock) all are needed, of a [`RedLock`](crate::RedLock) a majority
/// of the servers. The body of `with` gets one; a [`JointGuard`] dereferences to one.
#[derive(Clone)]
pub struct JointHeld {
    members: Arc<[Held]>,
    needed: usize,
}

impl JointHeld {
    /// The single holds, in the order in which they were taken.
    ///
    /// Of a red lock those servers that granted it: a majority, or more.
    pub fn members(&self) -> &[Held] {
        &self.members
    }

    /// Whether it is certainly still held: every lock of a multi lock, a majority of a red lock.
    ///
    /// Local, without a command, as [`Held::is_held`].
    pub fn is_held(&self) -> bool {
        self.members.iter().filter(|held| held.is_held()).count() >= self.needed
    }

    /// Until when it is held if no further renewal succeeds.
    ///
    /// Of a multi lock the first end among its locks. Of a red lock the moment from which fewer
    /// than a majority stand: each of them counts from before its own last successful request was
    /// sent, less a hundredth of the lease and 2 ms for clocks that run at different rates.
    pub fn valid_until(&self) -> Instant {
        let mut ends: Vec<_> = self.members.iter().map(Held::valid_until).collect();
        ends.sort_unstable();
        ends[ends.len() - self.needed]
    }

    /// Resolves with the reason when too few of the holds are left; never if they are given back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let spare = self.spare();
        let mut all = Together::new(self.members.iter().map(Part::lost));
        async move {
            for _ in 0..spare {
                all.next().await;
            }
            match all.next().await {
                Some((_, reason)) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Makes every lease last for at least `lease` from now; never shortens one.
    ///
    /// All are asked at once. Of a red lock a majority is enough, and waited for.
    ///
    /// # Errors
    ///
    /// As for [`Held::extend`], of the lock that went wrong first. Some may have been extended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; the leases may or may not be extended.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extending = self.members.iter().map(|held| Part::extend(held, lease));
        Together::new(extending).succeed(self.needed).await
    }

    /// The owner it is held by.
    pub fn owner(&self) -> Owner {
        self.members[0].owner()
    }

    /// How many may be lost before all counts as lost.
    fn spare(&self) -> usize {
        self.members.len() - self.needed
    }

    /// Why it is lost, if it is.
    fn lost_now(&self) -> Option<LostReason> {
        let lost = self.members.iter().filter_map(|held| held.hold().lost_in(held.grant.turn));
        let lost: Vec<_> = lost.collect();
        lost.last().copied().filter(|_| lost.len() > self.spare())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(Held::name)
    }
}

impl fmt::Debug for JointHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointHeld")
            .field("members", &self.members)
            .field("needed", &self.needed)
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// Several locks held as one; dropping it gives all of them back.
///
/// Bind it to a name: `let _ = multi.lock().await?` drops it at once. Everything of [`JointHeld`]
/// can be called on it. See [`LockGuard`] for what a drop does.
#[must_use = "dropping the guard gives the locks back: bind it, `let _guard = ..`, not `let _ = ..`"]
pub struct JointGuard {
    guards: Vec<LockGuard>,
    held: JointHeld,
}

impl JointGuard {
    /// Of these guards so many are needed.
    pub(crate) fn new(guards: Vec<LockGuard>, needed: usize) -> Self {
        let members = guards.iter().map(|guard| (**guard).clone()).collect();
        Self { guards, held: JointHeld { members, needed } }
    }

    /// Gives all back at once and waits until they are free.
    ///
    /// Of a red lock only a majority is waited for: a dead server delays nothing, and is told as
    /// soon as it answers, until its lease would have ended anyway. Only where it was one of a bare
    /// majority this waits for it, as [`Lock::unlock`] does.
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`], of the lock that went wrong first; a loss is told before anything
    /// else. All are given back nevertheless, as far as they were held.
    ///
    /// # Cancel safety
    ///
    /// The locks are given back whether or not the future is awaited to its end.
    pub async fn unlock(self) -> Result<(), Error> {
        let releases =
            self.guards.into_iter().map(|guard| -> Boxed<_> { Box::pin(guard.unlock()) });
        Together::new(releases).succeed(self.held.needed).await
    }

    /// Leaves the holds without a guard, see [`LockGuard::forget`].
    pub fn forget(self) {
        self.guards.into_iter().for_each(LockGuard::forget);
    }

    /// Gives the holds an owner of their own, before they leave their task.
    pub fn detach(self) -> Self {
        let owner = Owner::new();
        let guards = self.guards.into_iter().map(|guard| guard.detach_to(owner.clone()));
        Self::new(guards.collect(), self.held.needed)
    }

    /// Runs a body under this guard, in a scope inside its owner.
    pub(crate) async fn run<F, Fut>(self, body: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(JointHeld) -> Fut,
        Fut: Future,
    {
        let held = self.held.clone();
        let inside = held.clone();
        let scoped = Owner::child(&held.owner()).enter(async move { body(inside).await });
        let value = {
            let mut scoped = std::pin::pin!(scoped);
            let mut lost = std::pin::pin!(held.lost());
            poll_fn(|cx| {
                // Looked at before every poll of the body: past the deadline it does not go on.
                if let Some(reason) = held.lost_now() {
                    return Poll::Ready(Err(reason));
                }
                if let Poll::Ready(value) = scoped.as_mut().poll(cx) {
                    return Poll::Ready(Ok(value));
                }
                lost.as_mut().poll(cx).map(Err)
            })
            .await
        };
        let first = held.names().next().unwrap_or_default();
        let value = value.map_err(|reason| Error::lost(first, reason))?;
        match self.unlock().await {
            Err(error) if error.is_lost() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the release after a body got no clear answer");
                Ok(value)
            }
            Ok(()) => Ok(value),
        }
    }
}

impl Deref for JointGuard {
    type Target = JointHeld;

    fn deref(&self) -> &JointHeld {
        &self.held
    }
}

impl fmt::Debug for JointGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JointGuard").field(&self.held).finish()
    }
}

impl Part for Held {
    fn valid_until(&self) -> Moment {
        self.hold().valid_until(self.grant.turn)
    }

    fn field(&self) -> Text {
        self.hold().field.clone()
    }

    fn lost(&self) -> Boxed<LostReason> {
        Box::pin(Held::lost(self))
    }

    fn extend(&self, lease: Duration) -> Boxed<Result<(), Error>> {
        let held = self.clone();
        Box::pin(async move { Held::extend(&held, lease).await })
    }

    fn fix(&self) {
        self.name.fix(&self.grant);
    }
}

impl Part for LockGuard {
    fn valid_until(&self) -> Moment {
        Part::valid_until(&**self)
    }

    fn field(&self) -> Text {
        Part::field(&**self)
    }

    fn lost(&self) -> Boxed<LostReason> {
        Part::lost(&**self)
    }

    fn extend(&self, lease: Duration) -> Boxed<Result<(), Error>> {
        Part::extend(&**self, lease)
    }

    fn fix(&self) {
        Part::fix(&**self);
    }
}

/// The locks that a composition is made of, and what it says to all of them.
#[derive(Clone)]
pub(crate) struct Members {
    locks: Result<Arc<[Lock]>, Error>,
}

impl Members {
    pub(crate) fn new(locks: Result<Vec<Lock>, Error>) -> Self {
        // A name that cannot be used is refused at the first use, whatever else is wrong.
        let named = |locks: Vec<Lock>| {
            let refused = locks.iter().find_map(|lock| lock.recipe().err());
            refused.map_or(Ok(locks.into()), Err)
        };
        Self { locks: locks.and_then(named) }
    }

    pub(crate) fn locks(&self) -> Result<&Arc<[Lock]>, Error> {
        self.locks.as_ref().map_err(Clone::clone)
    }

    /// The same with another setting.
    pub(crate) fn with(self, setting: impl Fn(Lock) -> Lock) -> Self {
        let locks = self.locks.map(|locks| locks.iter().cloned().map(setting).collect());
        Self { locks }
    }

    /// Whether the current owner holds so many of them.
    pub(crate) fn held_by_me(&self) -> usize {
        let locks = self.locks.as_deref().unwrap_or_default();
        locks.iter().filter(|lock| lock.is_held_by_me()).count()
    }

    /// Gives back the current owner's newest holds.
    pub(crate) async fn unlock(&self, needed: usize) -> Result<(), Error> {
        let locks = self.locks()?;
        let releases = locks.iter().map(|lock| -> Boxed<_> { Box::pin(lock.unlock()) });
        Together::new(releases).succeed(needed).await
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.locks {
            Ok(locks) => f.debug_list().entries(locks.iter()).finish(),
            Err(error) => f.debug_tuple("Members").field(error).finish(),
        }
    }
}

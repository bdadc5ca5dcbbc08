//! The multi lock: several locks, all or none.

use crate::engine::in_order::{self, Member};
use crate::engine::recipe::Mode;
use crate::engine::together::Boxed;
use crate::error::{Error, LostReason};
use crate::lease::{self, Lease, Moment};
use crate::owner::Owner;
use crate::sync::joint::Members;
use crate::sync::lock::Part;
use crate::sync::{JointGuard, JointHeld, Lock, LockGuard};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Several locks taken as one: all or none.
///
/// The locks may be of any kinds and of several clients; a [`FencedLock`](crate::FencedLock) is
/// given as `(*fenced).clone()`. They are taken one after the other, in an order of their own: by
/// name, then by server. So it does not matter in which order they are given, and two that ask for
/// the same locks never wait for each other in a circle. While the next one is waited for, those
/// that are held are kept renewed.
///
/// # When to use something else
///
/// If one lock can guard both things, use that: this one costs a round trip for each. For the same
/// lock on several independent servers there is [`RedLock`](crate::RedLock).
///
/// # What it promises
///
/// * Somebody who holds it holds each of its locks, with everything that a [`Lock`] promises:
///   whoever asks for a single one of them is kept out.
/// * An attempt that is refused, fails, is lost on the way or is dropped gives back what it got.
/// * All are needed: it is [lost](JointHeld::lost) with the first of its locks.
/// * It re-enters as its locks do. If one is held already by the same owner, and another waits for
///   that one while holding a lock of this, nothing saves them: take all that is needed at once.
///
/// A fixed lease begins when all are held (those that were asked for within the last tenth of it
/// are not asked again). Until then each has this lease too, and is renewed.
///
/// The order is by the names and addresses as the clients know them. Where processes call one
/// server by different addresses *and* take the same name on several servers, they may wait for
/// each other: give such waits an end.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// use leasehold::MultiLock;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")]);
/// both.with(|_held| async { /* move the money */ }).await?;
/// # Ok(()) }
/// ```
#[doc(alias = "RedissonMultiLock")]
#[doc(alias = "getMultiLock")]
#[derive(Clone, Debug)]
#[must_use = "a handle does nothing until it is locked"]
pub struct MultiLock {
    members: Members,
    lease: Lease,
}

impl MultiLock {
    /// Of these locks. One that is given twice counts once; of a read and a write lock of one name
    /// the write lock counts.
    ///
    /// Sends nothing and cannot fail. None at all, or one name on one server as two kinds of lock
    /// (which would wait for itself), are refused by the first use.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        Self { members: Members::new(in_one_order(locks)), lease: Lease::Renewed }
    }
}

/// Sorts by name and place, so that everybody takes them alike, and leaves out what is there twice.
fn in_one_order(locks: impl IntoIterator<Item = Lock>) -> Result<Vec<Lock>, Error> {
    let place = |lock: &Lock| {
        let address = &lock.shared().engine().wiring.address;
        (lock.name().to_owned(), address.place(), address.database())
    };
    let mut placed: Vec<_> = locks.into_iter().map(|lock| (place(&lock), lock)).collect();
    placed.sort_by(|(a, first), (b, second)| (a, first.mode()).cmp(&(b, second.mode())));
    let mut sorted: Vec<(_, Lock)> = Vec::with_capacity(placed.len());
    for (place, lock) in placed {
        match sorted.last() {
            Some((last, known)) if *last == place => {
                if let (Ok(known), Ok(other)) = (known.recipe(), lock.recipe()) {
                    if known.kind.name != other.kind.name {
                        let (a, b) = (known.kind.name, other.kind.name);
                        let why = format!("it is asked for as a {a} and as a {b}");
                        return Err(Error::invalid_members(Some(lock.name()), why));
                    }
                }
            }
            _ => sorted.push((place, lock)),
        }
    }
    if sorted.is_empty() {
        return Err(Error::invalid_members(None, "there are none"));
    }
    Ok(sorted.into_iter().map(|(_, lock)| lock).collect())
}

const _: () = assert!((Mode::Exclusive as u8) < Mode::Shared as u8, "the write lock comes first");

/// # Settings of a handle
impl MultiLock {
    /// The lease of acquisitions that name none; [`Lease::Renewed`] if this is not called. Those of
    /// the single handles are not used.
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.lease = lease.into();
        self
    }

    /// As [`Lock::max_hold`], for all.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.members = self.members.with(|lock| lock.max_hold(max));
        self
    }

    /// As [`Lock::label`], for all.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        let label = label.into();
        self.members = self.members.with(|lock| lock.label(label.clone()));
        self
    }

    /// As [`Lock::owned_by`], for all.
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.members = self.members.with(|lock| lock.owned_by(owner.clone()));
        self
    }
}

/// # Acquiring
///
/// All of these fail as those of [`Lock`] do, with the error of the lock that failed, and with
/// [`InvalidMembers`](crate::ErrorKind::InvalidMembers).
///
/// All are cancel safe: a dropped future loses its place in the queue, and what it got, or may
/// still get, is given back, as by [`Lock`]. So is what it got when it is refused.
impl MultiLock {
    /// Locks, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) when nothing was heard of one of the
    /// servers for its client's [`patience`](crate::Builder::patience).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<JointGuard, Error>> + Send + use<> {
        self.lock_with(self.lease)
    }

    /// Locks with this lease, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As for [`lock`](MultiLock::lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn lock_with<L: Into<Lease>>(
        &self,
        lease: L,
    ) -> impl Future<Output = Result<JointGuard, Error>> + Send + use<L> {
        let (this, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move {
            let guard = this.acquire(None, lease, at).await?;
            Ok(guard.expect("only a wait with an end is refused"))
        }
    }

    /// Locks with this lease, waiting for at most `wait`; `None` if somebody else still
    /// holds one of them then.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) if there was no reply within the
    /// wait; [`LeaseLost`](crate::ErrorKind::LeaseLost) if a lock was lost while the others were
    /// waited for, and the wait is over.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_lock<L: Into<Lease>>(
        &self,
        wait: Duration,
        lease: L,
    ) -> impl Future<Output = Result<Option<JointGuard>, Error>> + Send + use<L> {
        let (this, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move { this.acquire(Some(wait), lease, at).await }
    }

    /// [`try_lock`](MultiLock::try_lock) with the handle's own lease.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](MultiLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<JointGuard>, Error>> + Send + use<> {
        self.try_lock(wait, self.lease)
    }

    /// Locks if all is free, without waiting: one attempt.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](MultiLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_lock_now(
        &self,
    ) -> impl Future<Output = Result<Option<JointGuard>, Error>> + Send + use<> {
        self.try_lock(Duration::ZERO, self.lease)
    }

    /// Runs `body` under the lock and gives it back afterwards, as [`Lock::with`] does.
    ///
    /// # Errors
    ///
    /// As for [`lock`](MultiLock::lock); [`LeaseLost`](crate::ErrorKind::LeaseLost) if it was lost before
    /// the body was through, which it then may have been in part. A release that got no answer is
    /// only logged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives all back.
    #[track_caller]
    pub fn with<F, Fut>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<Fut::Output, Error>> + use<F, Fut>
    where
        F: FnOnce(JointHeld) -> Fut,
        Fut: Future,
    {
        let locking = self.lock();
        async move { locking.await?.run(body).await }
    }

    /// Runs `body` under the lock if it can be had within `wait`; `None` if not.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](MultiLock::try_lock) and [`with`](MultiLock::with).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives all back.
    #[track_caller]
    pub fn try_with<L, F, Fut>(
        &self,
        wait: Duration,
        lease: L,
        body: F,
    ) -> impl Future<Output = Result<Option<Fut::Output>, Error>> + use<L, F, Fut>
    where
        L: Into<Lease>,
        F: FnOnce(JointHeld) -> Fut,
        Fut: Future,
    {
        let locking = self.try_lock(wait, lease);
        async move {
            match locking.await? {
                Some(guard) => guard.run(body).await.map(Some),
                None => Ok(None),
            }
        }
    }

    /// Gives back the current owner's newest holds of all locks, as [`Lock::unlock`] does.
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`], of the lock that went wrong first; the others are given back.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::unlock`].
    pub fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let members = self.members.clone();
        async move { members.unlock(members.locks()?.len()).await }
    }

    /// Whether the current owner, or a scope around it, holds all of them. Local, without a
    /// command.
    pub fn is_held_by_me(&self) -> bool {
        self.members.locks().is_ok_and(|locks| self.members.held_by_me() == locks.len())
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
        at: &'static Location<'static>,
    ) -> Result<Option<JointGuard>, Error> {
        let locks = self.members.locks()?;
        let fixed = match lease {
            Lease::Renewed => None,
            Lease::Fixed(fixed) => lease::check("lease", fixed).map(|()| Some(fixed))?,
        };
        let owner = locks[0].asking_owner();
        let one = |lock: &Lock| One { lock: lock.clone(), lease, at, owner: owner.clone() };
        let all: Vec<One> = locks.iter().map(one).collect();
        let deadline = wait.map(|wait| Moment::now().saturating_add(wait));
        let guards = in_order::take(&all, deadline, fixed).await?;
        Ok(guards.map(|guards| JointGuard::new(guards, all.len())))
    }
}

/// One of the locks, for the engine.
struct One {
    lock: Lock,
    lease: Lease,
    at: &'static Location<'static>,
    owner: Owner,
}

impl Member for One {
    type Part = LockGuard;

    fn take(&self, wait: Option<Duration>) -> Boxed<Result<Option<LockGuard>, Error>> {
        let (lock, lease, at) = (self.lock.clone(), self.lease, self.at);
        let part = Part { owner: Some(self.owner.clone()), collecting: true, ..Part::default() };
        Box::pin(async move { lock.acquire_as(wait, lease, at, part).await })
    }

    fn lost(&self, reason: LostReason) -> Error {
        Error::lost(self.lock.name(), reason)
    }
}

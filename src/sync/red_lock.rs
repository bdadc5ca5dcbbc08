//! The red lock: one lock on a majority of independent servers.

use crate::engine::Engine;
use crate::engine::quorum::{self, Node, Plan};
use crate::engine::together::Boxed;
use crate::error::Error;
use crate::lease::{Lease, Moment};
use crate::owner::Owner;
use crate::server::Text;
use crate::sync::joint::Members;
use crate::sync::lock::Part;
use crate::sync::{JointGuard, JointHeld, Lock, LockGuard};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// One lock on an odd number of independent servers: whoever has a majority has it (Redlock).
///
/// It goes on while a minority of the servers is dead, slow or cut off: one of three, two of five.
/// The servers must know nothing of each other: no replicas of one, no nodes of one cluster.
///
/// # When to use something else
///
/// A single server with replicas, or a cluster, is easier to run and answers as quickly;
/// [`Client::lock`](crate::Client::lock) loses a lock there if a failover does. This one does not.
/// But it is **no fence** either: a process that was paused for longer than its lease goes on as if
/// it held the lock, and no number of servers changes that. It gives no fencing token, for the
/// servers count each for itself. Where two holders at once would corrupt data, let the store
/// check, with a [`FencedLock`](crate::FencedLock) or a version.
///
/// # What it promises
///
/// * At most one owner holds it, while the holder's leases stand on a majority of the servers. The
///   holder is told ([`lost`](JointHeld::lost)) before that ends, as far as all clocks run at nearly
///   the same rate: each server's lease counts from before it was asked for, less a hundredth and
///   2 ms, and [`valid_until`](JointHeld::valid_until) is the moment from which fewer than a majority
///   stand. A renewal counts for the server that answered it; it takes a majority of them to go on.
/// * Who gets no majority gives back everything, on all servers, what is granted too late included.
/// * A dead minority costs no more than a short wait: see [`node_timeout`](RedLock::node_timeout). A
///   dead majority is an error after a bounded time, never a hang and never a lock.
///
/// It does not promise this:
///
/// * **A server that comes back empty** (a restart without persistence, `FLUSHALL`) gives its vote
///   a second time. Keep it away for one lease, or let it write with `appendfsync always`.
/// * A server's clock that jumps ahead ends its leases early; one server may, a majority not.
/// * No order between those who wait, and no hand-over within a process. Who waits is woken by a
///   release on a server where it was refused, but may have to try more than once.
/// * There is no red semaphore: two majorities meet in one server, and that says nothing about how
///   many permits are taken in all.
///
/// # Redis
///
/// On each server what the given kind of lock has there, under the same name and, as far as it was
/// asked for at once, the same holder. Of [token locks](crate::Client::token_lock) that is Redlock
/// as its authors describe it, and other libraries' Redlocks on the same servers exclude this one.
///
/// # Examples
///
/// ```no_run
/// # async fn f(a: leasehold::Client, b: leasehold::Client, c: leasehold::Client)
/// # -> Result<(), leasehold::Error> {
/// use leasehold::RedLock;
/// let lock = RedLock::new([a.lock("job"), b.lock("job"), c.lock("job")]);
/// let guard = lock.lock().await?;
/// assert!(guard.members().len() >= 2);
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[doc(alias = "Redlock")]
#[doc(alias = "RedissonRedLock")]
#[doc(alias = "quorum")]
#[derive(Clone, Debug)]
#[must_use = "a handle does nothing until it is locked"]
pub struct RedLock {
    members: Members,
    lease: Lease,
    node_timeout: Option<Duration>,
}

impl RedLock {
    /// Of the same lock on three or more servers, an odd number, each by a client of its own.
    ///
    /// Sends nothing and cannot fail; anything else is refused by the first use. That two addresses
    /// are the same server is not seen: see to that.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let members = Members::new(independent(locks.into_iter().collect()));
        Self { members, lease: Lease::Renewed, node_timeout: None }
    }
}

/// Refuses what cannot be a quorum.
fn independent(locks: Vec<Lock>) -> Result<Vec<Lock>, Error> {
    let refuse = |why: &str| Err(Error::invalid_members(locks.first().map(Lock::name), why));
    if locks.len() < 3 || locks.len() % 2 == 0 {
        return refuse("a red lock needs three servers, or a higher odd number");
    }
    let mut places: Vec<_> =
        locks.iter().map(|lock| lock.shared().engine().wiring.address.place()).collect();
    places.sort_unstable();
    places.dedup();
    if places.len() < locks.len() {
        return refuse("each must be on a server of its own");
    }
    let what = |lock: &Lock| {
        let kind = lock.recipe().map_or("", |recipe| recipe.kind.name);
        (lock.name().to_owned(), kind, lock.mode())
    };
    if locks.iter().any(|lock| what(lock) != what(&locks[0])) {
        return refuse("a red lock is of one name and one kind");
    }
    Ok(locks)
}

/// # Settings of a handle
impl RedLock {
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

    /// How long one server may take to answer; default a tenth of the lease, and at most the
    /// clients' [`command_timeout`](crate::Builder::command_timeout).
    ///
    /// Only without a majority is it waited out: as soon as there is one, the others have as long
    /// again as that took (5 ms at least), and what they grant later is given back.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }
}

/// # Acquiring
///
/// All of these fail with [`InvalidMembers`](crate::ErrorKind::InvalidMembers) and
/// [`InvalidDuration`](crate::ErrorKind::InvalidDuration) before anything is sent. What single
/// servers answer is an error only if no majority can be had because of it: then it is the first
/// one's, as those of [`Lock`] are, or [`Unavailable`](crate::ErrorKind::Unavailable).
///
/// All are cancel safe: what a dropped future got, or may still get, is given back on each server,
/// as by [`Lock`].
impl RedLock {
    /// Locks, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) when no majority of the servers has
    /// said anything for the shortest [`patience`](crate::Builder::patience) of their clients.
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
    /// As for [`lock`](RedLock::lock).
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
    /// holds it then on so many servers that there is no majority.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) if no majority of the servers said
    /// anything in the last round. It lasts two [node timeouts](RedLock::node_timeout) longer than
    /// `wait` at most.
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

    /// [`try_lock`](RedLock::try_lock) with the handle's own lease.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](RedLock::try_lock).
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
    /// As for [`try_lock`](RedLock::try_lock).
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
    /// As for [`lock`](RedLock::lock); [`LeaseLost`](crate::ErrorKind::LeaseLost) if it was lost before
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
    /// As for [`try_lock`](RedLock::try_lock) and [`with`](RedLock::with).
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

    /// Gives back the current owner's newest holds on all servers, as [`Lock::unlock`] does; a
    /// majority is waited for.
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`], if it went wrong on so many that no majority is left.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::unlock`].
    pub fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let members = self.members.clone();
        async move { members.unlock(quorum::majority(members.locks()?.len())).await }
    }

    /// Whether the current owner, or a scope around it, holds it on a majority of the servers.
    /// Local, without a command.
    pub fn is_held_by_me(&self) -> bool {
        let majority = |servers| self.members.held_by_me() >= quorum::majority(servers);
        self.members.locks().is_ok_and(|locks| majority(locks.len()))
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
        at: &'static Location<'static>,
    ) -> Result<Option<JointGuard>, Error> {
        let locks = self.members.locks()?;
        let settings = || locks.iter().map(|lock| lock.shared().engine().settings());
        let watchdog = settings().map(|settings| settings.watchdog).min().unwrap_or_default();
        let timeout = settings().map(|settings| settings.command_timeout).min().unwrap_or_default();
        let patience = settings().map(|settings| settings.patience).min().unwrap_or_default();
        let length = lease.length(watchdog)?;
        if let Some(zero) = self.node_timeout.filter(Duration::is_zero) {
            return Err(Error::invalid_duration("node timeout", zero, "it must be above zero"));
        }
        let budget = self.node_timeout.unwrap_or((length / 10).min(timeout));
        let owner = locks[0].asking_owner();
        let server = |lock: &Lock| Server { lock: lock.clone(), lease, at, owner: owner.clone() };
        let servers: Vec<Server> = locks.iter().map(server).collect();
        let deadline = wait.map(|wait| Moment::now().saturating_add(wait));
        let guards = quorum::take(&servers, Plan { budget, deadline, patience }).await?;
        let needed = quorum::majority(servers.len());
        Ok(guards.map(|guards| JointGuard::new(guards, needed)))
    }
}

/// One of the servers, for the engine.
struct Server {
    lock: Lock,
    lease: Lease,
    at: &'static Location<'static>,
    owner: Owner,
}

impl Node for Server {
    type Part = LockGuard;

    fn engine(&self) -> &Arc<Engine> {
        self.lock.shared().engine()
    }

    fn name(&self) -> &str {
        self.lock.name()
    }

    fn take(&self, wait: Duration, field: Text) -> Boxed<Result<Option<LockGuard>, Error>> {
        let (lock, lease, at) = (self.lock.clone(), self.lease, self.at);
        let part = Part { owner: Some(self.owner.clone()), field: Some(field), ..Part::default() };
        Box::pin(async move { lock.acquire_as(Some(wait), lease, at, part).await })
    }
}

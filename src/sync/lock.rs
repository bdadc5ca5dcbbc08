//! The reentrant lock, shared with Redisson's `RLock`.

use crate::client::Shared;
use crate::config::{Reentry, Replicas};
use crate::engine::queue::Request;
use crate::engine::recipe::{
    Arg, Direct, Key, Kind, Mode, Recipe, Verb, Verbs, Waiting, client_and_id, no_key,
};
use crate::error::{Error, LostReason};
use crate::keys::Keys;
use crate::lease::{Lease, Moment};
use crate::owner::{Owner, PollContext};
use crate::server::Text;
use crate::server::script::{
    LOCK_ACQUIRE, LOCK_FORCE_RELEASE, LOCK_INSPECT, LOCK_RELEASE, LOCK_RENEW,
};
use crate::sync::{Held, Holder, LockGuard};
use std::fmt;
use std::future::poll_fn;
use std::panic::Location;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tracing::Instrument;

/// What gives back a hold of the reentrant lock, and of others that share its hash.
pub(crate) const RELEASE: Verb = Verb {
    script: &LOCK_RELEASE,
    keys: &[Key::Name, Key::Channel],
    args: &[Arg::Field, Arg::Count, Arg::Publish],
};

/// What renews it.
pub(crate) const RENEW: Verb =
    Verb { script: &LOCK_RENEW, keys: &[Key::Name], args: &[Arg::Lease, Arg::Field] };

pub(crate) const FORCE_RELEASE: Direct =
    Direct { script: &LOCK_FORCE_RELEASE, keys: &[Key::Name, Key::Channel], by_mode: false };

pub(crate) const INSPECT: Direct =
    Direct { script: &LOCK_INSPECT, keys: &[Key::Name], by_mode: false };

pub(crate) static LOCK: Kind = REENTRANT;

/// The reentrant lock, and what the other kinds of lock say only where they differ.
pub(crate) const REENTRANT: Kind = Kind {
    name: "lock",
    keys: |name, _| Keys::lock(name),
    exclusive: Some(Verbs {
        acquire: Verb {
            script: &LOCK_ACQUIRE,
            keys: &[Key::Name],
            args: &[Arg::Lease, Arg::Field, Arg::Count],
        },
        release: Some(RELEASE),
    }),
    shared: None,
    renew: Some(RENEW),
    inspect: Some(INSPECT),
    force_release: Some(FORCE_RELEASE),
    owned: true,
    reenters: true,
    hands_over: true,
    held: true,
    keeps_records: false,
    waiting: Waiting::Listen,
    look_every: None,
    channel_of: no_key,
    field: client_and_id,
    key_of_hold: no_key,
};

/// A reentrant lock, held by at most one owner in all processes that share a Redis.
///
/// The data in Redis is that of Redisson's `RLock`: Java and Rust services can share a lock.
///
/// # When to use something else
///
/// * Within one process, use `tokio::sync::Mutex`: it is a thousand times cheaper.
/// * If two holders at once would corrupt data, a lease is not enough: a paused process can go on
///   after its lease has ended. Let the store check a fencing token, or a version, as well.
///
/// # What it promises
///
/// * At most one owner holds it, as long as Redis loses no acknowledged write and its lease
///   stands. A holder is told of the end of its lease before anyone else can get the lock.
/// * A release wakes a waiter by message; a lost message costs bounded time.
/// * A holder that dies frees the lock within one lease. One that lives keeps it, if the lease is
///   [`Lease::Renewed`].
/// * Nested acquisitions by the same owner re-enter; each needs its own release.
///
/// It promises no order between waiters of different processes. Within a process they are served
/// in order of arrival.
///
/// # Owners
///
/// The owner is the current tokio task, so nested critical sections re-enter, and a spawned task
/// does not. Three things this cannot see: branches of `join!` or `select!` in one task that come
/// one after the other, a guard moved to another task without [`detach`](LockGuard::detach), and
/// two requests of one keep-alive HTTP/1 connection, which a server runs in one task. Wrap each
/// branch or request in [`Owner::scope`], or build the client with
/// [`Reentry::Scoped`](crate::Reentry::Scoped). Branches that *can* be told apart are refused with
/// [`ConcurrentOwner`](crate::ErrorKind::ConcurrentOwner).
///
/// # In Redis
///
/// The key `name`, a hash from `<uuid>:<id>` to the hold count, with the lease as its TTL; the
/// channel `redisson_lock__channel:{name}`.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// use std::time::Duration;
/// let lock = client.lock("report:daily");
///
/// // Wait as long as it takes; renewed until the guard is dropped.
/// let guard = lock.lock().await?;
/// guard.unlock().await?;
///
/// // Wait for a second, hold for ten at most.
/// if let Some(guard) = lock.try_lock(Duration::from_secs(1), Duration::from_secs(10)).await? {
///     guard.unlock().await?;
/// } else {
///     println!("somebody else is at it");
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "RLock")]
#[doc(alias = "Mutex")]
#[derive(Clone)]
#[must_use = "a handle does nothing until it is locked"]
pub struct Lock {
    shared: Arc<Shared>,
    recipe: Result<Arc<Recipe>, Error>,
    mode: Mode,
    units: u32,
    /// What the acquiring script is told beside the rest, if that can be used.
    extra: Result<Option<Arc<str>>, Error>,
    lease: Lease,
    max_hold: Option<Duration>,
    replicas: Option<Replicas>,
    label: Option<Arc<str>>,
    owner: Option<Owner>,
}

/// # Settings of a handle
impl Lock {
    /// A handle on a lock of this kind.
    pub(crate) fn new(shared: Arc<Shared>, kind: &'static Kind, mode: Mode, name: &str) -> Self {
        let settings = shared.engine().settings();
        let (max_hold, label) = (settings.max_hold, settings.label.clone());
        let recipe = shared.engine().recipe(kind, name).map(Arc::new);
        let (lease, owner, extra) = (Lease::Renewed, None, Ok(None));
        let replicas = settings.replicas;
        Self { shared, recipe, mode, units: 1, extra, lease, max_hold, replicas, label, owner }
    }

    /// Tells the acquiring script something beside the rest.
    pub(crate) fn extra(mut self, extra: impl Into<Arc<str>>) -> Self {
        self.extra = Ok(Some(extra.into()));
        self
    }

    /// Has every acquisition fail with what is wrong with its settings.
    pub(crate) fn unusable(mut self, why: Error) -> Self {
        self.extra = Err(why);
        self
    }

    /// A handle that every use of refuses.
    pub(crate) fn refused(mut self, error: Error) -> Self {
        self.recipe = Err(error);
        self
    }

    /// Asks for so many permits.
    pub(crate) fn units(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    /// The lease of acquisitions that name none; [`Lease::Renewed`] if this is not called.
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.lease = lease.into();
        self
    }

    /// How long a hold may go on being renewed; then it is
    /// [lost](crate::LostReason::MaxHold). Of nested ones, the first to end counts.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// How many replicas must have what takes the lock and what keeps it, and how long is waited for
    /// them; none turns it off. In place of the client's [setting](crate::Builder::require_replicas),
    /// which says what it means.
    pub fn require_replicas(mut self, replicas: u8, within: Duration) -> Self {
        self.replicas = Replicas::new(replicas, within);
        self
    }

    /// A word for this use in warnings about long waits and lost locks.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The owner of acquisitions and releases by this handle, instead of the current task.
    #[doc(alias = "lockAsync")]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The lock's name, as it is in Redis; empty if the name cannot be used.
    pub fn name(&self) -> &str {
        self.recipe.as_ref().map_or("", |recipe| &recipe.keys.lock)
    }
}

/// # Acquiring
///
/// All of these fail with [`InvalidName`](crate::ErrorKind::InvalidName) or
/// [`InvalidDuration`](crate::ErrorKind::InvalidDuration) before anything is sent;
/// [`ConcurrentOwner`](crate::ErrorKind::ConcurrentOwner) if another branch of the same task holds
/// or asks for the lock; [`LeaseLost`](crate::ErrorKind::LeaseLost) if the owner holds the lock,
/// but the hold was lost; [`WrongType`](crate::ErrorKind::WrongType),
/// [`Corrupt`](crate::ErrorKind::Corrupt) or [`Refused`](crate::ErrorKind::Refused) as the server
/// says; [`Unavailable`](crate::ErrorKind::Unavailable) if it says nothing; and
/// [`Closed`](crate::ErrorKind::Closed).
///
/// All are cancel safe: a dropped future loses its place in the queue, and what it got, or may
/// still get, is given back: within one round trip, or, after a broken connection, as soon as the
/// old one is known to be dead; where `CLIENT KILL` is not allowed, within one lease.
impl Lock {
    /// Locks, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) when nothing was heard of the
    /// server for the client's [`patience`](crate::Builder::patience). Shorter outages are ridden
    /// out.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<LockGuard, Error>> + Send + use<> {
        self.lock_with(self.lease)
    }

    /// Locks with this lease, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn lock_with<L: Into<Lease>>(
        &self,
        lease: L,
    ) -> impl Future<Output = Result<LockGuard, Error>> + Send + use<L> {
        let (lock, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move {
            let guard = lock.acquire(None, lease, at).await?;
            Ok(guard.expect("only a wait with an end is refused"))
        }
    }

    /// Locks with this lease, waiting for at most `wait`; `None` if somebody else still holds it
    /// then.
    ///
    /// `None` is only ever the answer when another holder was seen. Note that
    /// `if lock.try_lock(..).await?.is_some() { .. }` drops the guard before the block runs; write
    /// `if let Some(guard) = ..`.
    ///
    /// # Errors
    ///
    /// As above; [`Unavailable`](crate::ErrorKind::Unavailable) if there was no reply within the
    /// wait. An attempt that is in flight at its end is settled first, so the call may last one
    /// command timeout longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "tryLock")]
    #[track_caller]
    pub fn try_lock<L: Into<Lease>>(
        &self,
        wait: Duration,
        lease: L,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + use<L> {
        let (lock, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move { lock.acquire(Some(wait), lease, at).await }
    }

    /// [`try_lock`](Lock::try_lock) with the handle's own lease.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Lock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + use<> {
        self.try_lock(wait, self.lease)
    }

    /// Locks if it is free, without waiting: at most one attempt.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Lock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_lock_now(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + use<> {
        self.try_lock(Duration::ZERO, self.lease)
    }

    /// Runs `body` under the lock and gives it back afterwards.
    ///
    /// If the hold is lost, the body is dropped at its next await point. The body runs in a scope
    /// of its own inside the current owner: what it acquires in turn re-enters.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock); [`LeaseLost`](crate::ErrorKind::LeaseLost) if the hold was
    /// lost before the body was through, which it then may have been in part. A release that got
    /// no answer is only logged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives the lock back.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(lock: leasehold::Lock) -> Result<(), leasehold::Error> {
    /// let total = lock.with(|_held| async { 1 + 1 }).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn with<F, Fut>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<Fut::Output, Error>> + use<F, Fut>
    where
        F: FnOnce(Held) -> Fut,
        Fut: Future,
    {
        let locking = self.lock();
        async move { locking.await?.run(body).await }
    }

    /// Runs `body` under the lock if it can be had within `wait`; `None` if not.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Lock::try_lock) and [`with`](Lock::with).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives the lock back.
    #[track_caller]
    pub fn try_with<L, F, Fut>(
        &self,
        wait: Duration,
        lease: L,
        body: F,
    ) -> impl Future<Output = Result<Option<Fut::Output>, Error>> + use<L, F, Fut>
    where
        L: Into<Lease>,
        F: FnOnce(Held) -> Fut,
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
}

/// # Releasing without a guard
impl Lock {
    /// Gives back the current owner's newest hold, as Redisson's `unlock` does.
    ///
    /// Meant for a hold whose guard was [forgotten](LockGuard::forget), to be released from another
    /// function; if there is none such, a living guard's hold is given back and the guard left
    /// empty.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if the current owner does not hold the lock;
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if it did and lost it;
    /// [`Refused`](crate::ErrorKind::Refused) if the server says no; and
    /// [`NoReply`](crate::ErrorKind::NoReply) if it says nothing for the client's
    /// [`patience`](crate::Builder::patience). In the last two cases the client goes on trying until
    /// the lease would have ended anyway.
    ///
    /// A release whose first reply was lost and whose repetition finds nothing counts as done if
    /// the first left before the lease ended.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the hold is given back whether or not the future is awaited to its end.
    pub fn unlock(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let lock = self.clone();
        async move {
            let recipe = lock.recipe()?;
            let (engine, owner) = (lock.shared.engine(), lock.current_owner());
            let Some(name) = engine.known_name(recipe) else {
                return Err(Error::not_held(&recipe.keys.lock));
            };
            let leave = |ticket: &_| name.leave_as(engine, &owner, lock.mode, ticket);
            engine.give_back(&name, leave).await
        }
    }

    /// Frees the lock whoever holds it, and wakes its waiters; `false` if nobody held it.
    ///
    /// A holder of this client is told at once that it [lost](Held::lost) the lock, others by their
    /// next renewal. For operators: whoever held it does not know yet that it does not.
    ///
    /// # Errors
    ///
    /// [`WrongType`](crate::ErrorKind::WrongType), [`Refused`](crate::ErrorKind::Refused);
    /// [`NoReply`](crate::ErrorKind::NoReply) if it may or may not have been freed: it is not tried
    /// again, because by then somebody else may hold the lock.
    ///
    /// # Cancel safety
    ///
    /// The lock may or may not be freed.
    #[doc(alias = "forceUnlock")]
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.force(None).await
    }

    /// Frees the lock if this holder still has it; `false` if it has not.
    ///
    /// # Errors
    ///
    /// As for [`force_unlock`](Lock::force_unlock).
    ///
    /// # Cancel safety
    ///
    /// The lock may or may not be freed.
    pub async fn force_unlock_if(&self, holder: &Holder) -> Result<bool, Error> {
        self.force(Some(holder)).await
    }

    async fn force(&self, holder: Option<&Holder>) -> Result<bool, Error> {
        let recipe = self.recipe()?;
        let engine = self.shared.engine();
        let field = holder.map_or("", Holder::as_str);
        // Known before: what was granted meanwhile may have been granted by this very release.
        let name = engine.known_name(recipe);
        let concerned = name.iter().flat_map(|name| name.standing(self.mode));
        let concerned = concerned.filter(|hold| holder.is_none_or(|h| h.as_str() == &*hold.field));
        let concerned: Vec<_> = concerned.collect();
        let (code, texts) = engine.force_release(recipe, self.mode, field).await?;
        let text = texts.first().map_or("", String::as_str);
        if code == -2 {
            return Err(Error::server(Some(&recipe.keys.lock), text));
        }
        for hold in concerned {
            // A writer that reads as well is no reader to the server: it is left alone.
            if code != -1 || self.mode == Mode::Exclusive || !hold.stands_in(Mode::Exclusive) {
                hold.name.clone().lose(engine, &hold, LostReason::Removed);
            }
        }
        // What was granted meanwhile, or by a call that the server had before: have it looked at.
        for hold in engine.known_name(recipe).iter().flat_map(|name| name.standing(self.mode)) {
            hold.set_due(Moment::now());
            engine.renewal.watch(engine, &hold, Moment::now());
        }
        if code == -4 {
            return Err(Error::not_announced(&recipe.keys.lock, text));
        }
        Ok(code >= 0)
    }
}

/// # Looking
impl Lock {
    /// Whether anybody holds it.
    ///
    /// # Errors
    ///
    /// [`WrongType`](crate::ErrorKind::WrongType), [`Refused`](crate::ErrorKind::Refused), and
    /// [`NoReply`](crate::ErrorKind::NoReply) or [`Unavailable`](crate::ErrorKind::Unavailable).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "isLocked")]
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect().await?.is_some())
    }

    /// How long it stays held if nothing happens; `None` if nobody holds it, [`Duration::MAX`] if
    /// somebody took its TTL away.
    ///
    /// # Errors
    ///
    /// As for [`is_locked`](Lock::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "remainTimeToLive")]
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect().await?.map(|(_, left)| left))
    }

    /// Who holds it; `None` if nobody does.
    ///
    /// # Errors
    ///
    /// As for [`is_locked`](Lock::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        Ok(self.inspect().await?.map(|(holder, _)| holder))
    }

    async fn inspect(&self) -> Result<Option<(Holder, Duration)>, Error> {
        let recipe = self.recipe()?;
        let (code, texts) = self.shared.engine().inspect(recipe, self.mode).await?;
        let text = texts.first().map_or("", String::as_str);
        match u64::try_from(code) {
            Ok(left) => Ok(Some((Holder::new(text), Duration::from_millis(left)))),
            Err(_) if code == -1 => Ok(None),
            Err(_) if code == -3 => Ok(Some((Holder::new(text), Duration::MAX))),
            Err(_) => Err(Error::server(Some(&recipe.keys.lock), text)),
        }
    }

    /// Whether the current owner, or a scope around it, holds it. Local, without a command.
    #[doc(alias = "isHeldByCurrentThread")]
    pub fn is_held_by_me(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many times it is held, if the current owner or a scope around it is among the holders;
    /// else 0. Local, without a command.
    #[doc(alias = "getHoldCount")]
    pub fn hold_count(&self) -> u32 {
        let Ok(recipe) = &self.recipe else { return 0 };
        let engine = self.shared.engine();
        let name = engine.known_name(recipe);
        name.map_or(0, |name| name.count_of(engine, &self.current_owner(), self.mode))
    }
}

impl Lock {
    pub(crate) async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
        at: &'static Location<'static>,
    ) -> Result<Option<LockGuard>, Error> {
        self.acquire_as(wait, lease, at, Part::default()).await
    }

    /// Acquires it as a part of something larger.
    pub(crate) async fn acquire_as(
        &self,
        wait: Option<Duration>,
        lease: Lease,
        at: &'static Location<'static>,
        part: Part,
    ) -> Result<Option<LockGuard>, Error> {
        let recipe = self.recipe()?;
        let engine = self.shared.engine();
        let settings = engine.settings();
        let kind = recipe.kind;
        // What has no lease does not end by itself.
        let (lease, length, max_hold) = match kind.renew {
            Some(_) => (lease, lease.length(settings.watchdog)?, self.max_hold),
            None => (Lease::Fixed(Duration::MAX), Duration::MAX, None),
        };
        if let Some(max) = self.max_hold.filter(|max| max.is_zero()) {
            return Err(Error::invalid_duration("max hold", max, "it must be above zero"));
        }
        let replicas = self.replicas.filter(|_| kind.held);
        if let Some(replicas) = replicas {
            replicas.check(settings.command_timeout)?;
        }
        let since = Moment::now();
        // A wait too long for the clock is one without an end.
        let deadline = wait.map(|wait| since.saturating_add(wait));
        let request = Request {
            owner: match part.owner {
                _ if !kind.owned => Owner::new(),
                Some(owner) if self.owner.is_none() => owner,
                _ => self.asking_owner(),
            },
            // Where this future is polled: a branch of a join set has a waker of its own.
            context: poll_fn(|cx| Poll::Ready(PollContext::of(cx.waker()))).await,
            mode: self.mode,
            units: self.units,
            extra: self.extra.clone()?,
            lease,
            length,
            collecting: part.collecting,
            field: part.field,
            max_hold,
            replicas,
            label: self.label.clone(),
            at,
            since,
            deadline,
        };
        let owner = request.owner.clone();
        let lock = settings.names_in_logs.show(&recipe.keys.lock);
        let span = tracing::debug_span!("acquire", %lock, ?wait, ?length);
        let acquired = engine.acquire(recipe, request).instrument(span).await?;
        Ok(acquired.map(|(name, grant)| {
            LockGuard::new(Held { shared: self.shared.clone(), name, grant, owner })
        }))
    }

    pub(crate) fn own_lease(&self) -> Lease {
        self.lease
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn recipe(&self) -> Result<&Arc<Recipe>, Error> {
        self.recipe.as_ref().map_err(Clone::clone)
    }

    fn current_owner(&self) -> Owner {
        self.owner.clone().unwrap_or_else(Owner::current)
    }

    /// Who an acquisition belongs to.
    pub(crate) fn asking_owner(&self) -> Owner {
        let owner = self.current_owner();
        match self.shared.engine().settings().reentry {
            Reentry::Scoped if owner.is_default() => Owner::new(),
            _ => owner,
        }
    }
}

/// What an acquisition is a part of, if it is one of several.
#[derive(Default)]
pub(crate) struct Part {
    /// Who asks for all of them, where the handle names nobody.
    pub owner: Option<Owner>,
    /// What the server is to call the hold, as the other servers do.
    pub field: Option<Text>,
    /// Renewed for now, whatever the lease: others are still being collected.
    pub collecting: bool,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("lease", &self.lease)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

//! The lock with fencing tokens, shared with Redisson's `RFencedLock`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Direct, Key, Kind, Mode, Verb, Verbs};
use crate::error::Error;
use crate::keys::Keys;
use crate::lease::{self, Lease};
use crate::owner::Owner;
use crate::server::script::{FENCED_LOCK_ACQUIRE, FENCED_LOCK_INSPECT};
use crate::sync::lock::{REENTRANT, RELEASE};
use crate::sync::{Held, Lock, LockGuard};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

static FENCED_LOCK: Kind = Kind {
    name: "fenced lock",
    keys: |name, _| Keys::fenced_lock(name),
    exclusive: Some(Verbs {
        acquire: Verb {
            script: &FENCED_LOCK_ACQUIRE,
            keys: &[Key::Name, Key::Helper(0)],
            args: &[Arg::Lease, Arg::Field, Arg::Count, Arg::Extra],
        },
        release: Some(RELEASE),
    }),
    inspect: Some(Direct {
        script: &FENCED_LOCK_INSPECT,
        keys: &[Key::Name, Key::Helper(0)],
        by_mode: false,
    }),
    // Each owner has a token of its own, which only the server draws.
    hands_over: false,
    ..REENTRANT
};

impl Client {
    /// The fenced lock of this name, see [`FencedLock`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be a lock's is refused by the first use.
    #[doc(alias = "getFencedLock")]
    #[doc(alias = "RFencedLock")]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        let lock = self.handle(&FENCED_LOCK, Mode::Exclusive, name.as_ref());
        FencedLock { lock: lock.extra("0") }
    }
}

/// A reentrant lock whose every owner gets a token higher than all before it.
///
/// A lease is not a fence: a process that was paused for longer goes on as if it held the lock.
/// If it hands its token to the store with each write, and the store refuses a token lower than
/// the highest it has seen, the late write does no harm. That is what this lock is for; see
/// `examples/fenced_store.rs`.
///
/// # When to use something else
///
/// If nothing checks the token, [`Client::lock`] costs the same and is handed over within a
/// process without asking Redis; a fenced lock always asks, for the token is drawn there.
///
/// # What it promises
///
/// Everything a [`Lock`] does, and: a token rises with every change of owner, and stays the same
/// through re-entry, renewal and resends. It is the last token plus one, or the server's clock in
/// microseconds if that is more, drawn by the script that grants the lock. So it also rises where
/// Redis lost the last token: by a restart without persistence, a failover, an eviction, or after
/// a [`token_ttl`](FencedLock::token_ttl).
///
/// # Limits
///
/// * Where the last token is lost, the server's clock must not be behind it, or tokens repeat: a
///   clock that was set back, or another machine's that is late. (While the key stands, the clock
///   does not matter.)
/// * Java's `RFencedLock` shares lock and token, but counts on from what is there: from 1 after a
///   loss, until our next grant. It draws a token for each re-entry, too. And it takes a lock
///   without a TTL (an operator's `PERSIST`) for granted, with token -1; ours is refused.
/// * A plain [`lock`](Client::lock) of the same name draws no token. Use one kind for a name
///   everywhere; [`spin_lock`](Client::spin_lock) says why.
/// * Tokens are below 2<sup>53</sup>, which by the clock lasts until the year 2255. Another value in
///   the key is [`Corrupt`](crate::ErrorKind::Corrupt), and not overwritten.
/// * The store must check: a token equal to the highest it has seen is the same owner's, a lower one
///   is to be refused.
///
/// # Redis
///
/// The key `name` and its channel as for [`Lock`]; the key `redisson_lock_token:{name}`, a number,
/// which stays for ever unless there is a [`token_ttl`](FencedLock::token_ttl).
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client, store: impl Fn(u64)) -> Result<(), leasehold::Error> {
/// let lock = client.fenced_lock("ledger");
/// let guard = lock.lock().await?;
/// store(guard.token());
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is locked"]
pub struct FencedLock {
    lock: Lock,
}

/// # Settings of a handle
impl FencedLock {
    /// How long the last token is kept after a grant, from 10 ms to ten years; for ever if this is
    /// not called.
    ///
    /// For names that come and go: Redis would keep a number for each of them. The key stays for the
    /// lease, the TTL, and until the clock has passed its token, whatever is longest; so a token does
    /// not repeat all the same, unless the clock is set back by more than that. A key that has no TTL
    /// yet gets none. Not for a lock that Java shares: there it would start again at 1.
    ///
    /// A TTL out of bounds is [`InvalidDuration`](crate::ErrorKind::InvalidDuration), told by whatever
    /// acquires.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.lock = match lease::check("token TTL", ttl) {
            Ok(()) => self.lock.extra(lease::millis(ttl).to_string()),
            Err(error) => self.lock.unusable(error),
        };
        self
    }

    /// As [`Lock::lease`].
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// As [`Lock::max_hold`].
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.lock = self.lock.max_hold(max);
        self
    }

    /// As [`Lock::require_replicas`].
    pub fn require_replicas(mut self, replicas: u8, within: Duration) -> Self {
        self.lock = self.lock.require_replicas(replicas, within);
        self
    }

    /// As [`Lock::label`].
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// As [`Lock::owned_by`].
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.lock = self.lock.owned_by(owner);
        self
    }
}

/// # Acquiring
impl FencedLock {
    /// As [`Lock::lock`], with a token.
    ///
    /// # Errors
    ///
    /// As for [`Lock::lock`]; [`Corrupt`](crate::ErrorKind::Corrupt) if the token in Redis is not a
    /// number.
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::lock`].
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<FencedGuard, Error>> + Send + use<> {
        let locking = self.lock.lock();
        async move { locking.await.map(FencedGuard) }
    }

    /// As [`Lock::lock_with`], with a token.
    ///
    /// # Errors
    ///
    /// As for [`lock`](FencedLock::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::lock`].
    #[track_caller]
    pub fn lock_with<L: Into<Lease>>(
        &self,
        lease: L,
    ) -> impl Future<Output = Result<FencedGuard, Error>> + Send + use<L> {
        let locking = self.lock.lock_with(lease.into());
        async move { locking.await.map(FencedGuard) }
    }

    /// As [`Lock::try_lock`], with a token.
    ///
    /// # Errors
    ///
    /// As for [`Lock::try_lock`] and [`lock`](FencedLock::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::lock`].
    #[track_caller]
    pub fn try_lock<L: Into<Lease>>(
        &self,
        wait: Duration,
        lease: L,
    ) -> impl Future<Output = Result<Option<FencedGuard>, Error>> + Send + use<L> {
        let locking = self.lock.try_lock(wait, lease.into());
        async move { Ok(locking.await?.map(FencedGuard)) }
    }

    /// As [`Lock::try_lock_for`], with a token.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](FencedLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::lock`].
    #[track_caller]
    pub fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<FencedGuard>, Error>> + Send + use<> {
        let locking = self.lock.try_lock_for(wait);
        async move { Ok(locking.await?.map(FencedGuard)) }
    }

    /// As [`Lock::try_lock_now`], with a token.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](FencedLock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`Lock::lock`].
    #[track_caller]
    pub fn try_lock_now(
        &self,
    ) -> impl Future<Output = Result<Option<FencedGuard>, Error>> + Send + use<> {
        self.try_lock_for(Duration::ZERO)
    }

    /// The last token drawn, by anybody; `None` if Redis has none: there was none yet, it was lost, or
    /// its [`token_ttl`](FencedLock::token_ttl) has ended.
    ///
    /// # Errors
    ///
    /// As for [`Lock::is_locked`]; [`Corrupt`](crate::ErrorKind::Corrupt) if what is there is not a
    /// number.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "getToken")]
    pub async fn last_token(&self) -> Result<Option<u64>, Error> {
        let recipe = self.lock.recipe()?;
        let engine = self.lock.shared().engine();
        let (code, texts) = engine.inspect(recipe, Mode::Exclusive).await?;
        let text = texts.last().map_or("", String::as_str);
        if code == -2 {
            return Err(Error::server(Some(&recipe.keys.lock), text));
        }
        if text.is_empty() {
            return Ok(None);
        }
        let corrupt = || Error::server(Some(&recipe.keys.lock), "ERR token is not an integer");
        text.parse().map(Some).map_err(|_| corrupt())
    }
}

/// Everything else of a [`Lock`]: `with` and `try_with` (the body reads
/// [`Held::token`]), `unlock`, `force_unlock`, `is_locked`, `holder` and so on.
impl Deref for FencedLock {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

impl fmt::Debug for FencedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FencedLock").field(&self.lock).finish()
    }
}

/// A held fenced lock: a [`LockGuard`] with a token.
#[must_use = "dropping the guard gives the lock back: bind it, `let _guard = ..`, not `let _ = ..`"]
#[derive(Debug)]
pub struct FencedGuard(LockGuard);

impl FencedGuard {
    /// The token: higher than those of all owners before, the same for nested guards.
    pub fn token(&self) -> u64 {
        self.0.token().expect("the server gives every owner a token, above zero")
    }

    /// As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`].
    ///
    /// # Cancel safety
    ///
    /// As for [`LockGuard::unlock`].
    pub async fn unlock(self) -> Result<(), Error> {
        self.0.unlock().await
    }

    /// As [`LockGuard::forget`].
    pub fn forget(self) {
        self.0.forget();
    }

    /// As [`LockGuard::detach`].
    pub fn detach(self) -> Self {
        Self(self.0.detach())
    }
}

impl Deref for FencedGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

impl From<FencedGuard> for LockGuard {
    fn from(guard: FencedGuard) -> Self {
        guard.0
    }
}

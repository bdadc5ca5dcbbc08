//! The counting semaphore, shared with Redisson's `RSemaphore`.

use crate::client::Client;
use crate::engine::recipe::{
    Arg, Key, Kind, Mode, Recipe, Verb, Verbs, Waiting, client_and_id, no_key,
};
use crate::error::Error;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::server::Text;
use crate::server::script::{
    SEMAPHORE_ACQUIRE, SEMAPHORE_ADD, SEMAPHORE_DRAIN, SEMAPHORE_GIVE, SEMAPHORE_INSPECT,
    SEMAPHORE_RELEASE, SEMAPHORE_TRY_SET,
};
use crate::sync::{Lock, LockGuard};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Most permits that one call can speak of.
const MOST: u32 = i32::MAX as u32;

const NAME: Key = Key::Name;
const CHANNEL: Key = Key::Channel;
const ONCE: Key = Key::Helper(0);

static SEMAPHORE: Kind = Kind {
    name: "semaphore",
    keys: Keys::semaphore,
    exclusive: None,
    shared: Some(Verbs {
        acquire: Verb {
            script: &SEMAPHORE_ACQUIRE,
            keys: &[NAME, ONCE, CHANNEL],
            args: &[Arg::Units, Arg::Id, Arg::Extra, Arg::Publish, Arg::Settled],
        },
        release: Some(Verb {
            script: &SEMAPHORE_RELEASE,
            keys: &[NAME, CHANNEL, ONCE],
            args: &[Arg::Units, Arg::Id, Arg::Granted, Arg::Publish, Arg::Settled],
        }),
    }),
    renew: None,
    inspect: None,
    force_release: None,
    owned: false,
    reenters: false,
    hands_over: false,
    held: true,
    keeps_records: true,
    waiting: Waiting::Listen,
    look_every: None,
    channel_of: no_key,
    field: client_and_id,
    key_of_hold: no_key,
};

impl Client {
    /// The semaphore of this name, see [`Semaphore`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be used is refused by the first use.
    #[doc(alias = "getSemaphore")]
    #[doc(alias = "RSemaphore")]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore { handle: self.handle(&SEMAPHORE, Mode::Shared, name.as_ref()) }
    }
}

/// So many permits, taken and given back by anybody.
///
/// **The permits of a killed process are gone**: nothing in Redis says who has them. If processes
/// may die while they hold permits, use
/// [`permit_semaphore`](Client::permit_semaphore), whose permits end with a lease.
///
/// # When to use something else
///
/// * One permit is a lock: [`Client::lock`] has a lease, an owner, and tells of loss.
/// * To limit the work of one process, `tokio::sync::Semaphore`.
///
/// # What it promises
///
/// * Never more permits are taken than there are, as long as Redis loses no acknowledged write.
/// * Giving back wakes a waiter by message; a lost message costs at most the client's
///   [`fallback_cap`](crate::Builder::fallback_cap).
/// * A dropped future leaves nothing taken, and a command whose reply was lost counts once. Where
///   no answer comes for 45 s it is given up, for the server keeps records of calls for a minute
///   only: what it asked for may have been done or not. Of permits that were being given back the
///   log then says, as an error, that they may stay taken.
/// * Waiters of one process are served in order of arrival: one that wants many is not passed by
///   those that want one. Between processes there is no order.
///
/// It is not owned: the same task may take permits several times, and they are not re-entered.
///
/// # What it cannot promise
///
/// * A permit does not end by itself. What is not given back before its process ends or its client
///   is [closed](Client::close) stays taken, until somebody [gives](Semaphore::give) it back.
/// * If the server loses its data, nobody knows how many permits are out. A semaphore that is
///   [set](Semaphore::try_set) or [starts](Semaphore::sized) anew has all of its permits, and those
///   that were taken before add to them when they are given back.
///
/// # Redis
///
/// The key `name`, a number, without a TTL; it stands until somebody deletes it. The channel `redisson_sc:{name}`; for a minute after
/// each use the key `leasehold_once:{name}:<uuid>`, a hash with records of calls.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// let semaphore = client.semaphore("downloads").sized(10);
/// let permit = semaphore.acquire().await?;
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is used"]
pub struct Semaphore {
    handle: Lock,
}

/// # Settings of a handle
impl Semaphore {
    /// Starts with so many permits if the semaphore is not in Redis yet. Without this, acquiring
    /// from one that was never [set](Semaphore::try_set) is an error.
    ///
    /// The first to acquire decides: the size of a semaphore that is there is not changed. More
    /// than 2147483647 permits are refused by the first acquisition.
    pub fn sized(mut self, permits: u32) -> Self {
        self.handle = match check(self.name(), permits.into(), 0) {
            Ok(()) => self.handle.extra(permits.to_string()),
            Err(error) => self.handle.unusable(error),
        };
        self
    }

    /// How many replicas must have what takes permits, and how long is waited for them, in place of
    /// the client's [setting](crate::Builder::require_replicas); none turns it off.
    pub fn require_replicas(mut self, replicas: u8, within: Duration) -> Self {
        self.handle = self.handle.require_replicas(replicas, within);
        self
    }

    /// A word for this use in warnings about long waits.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.handle = self.handle.label(label);
        self
    }

    /// The name, as it is in Redis; empty if it cannot be used.
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

/// # Taking permits
///
/// All of these fail with [`InvalidName`](crate::ErrorKind::InvalidName) or
/// [`InvalidCount`](crate::ErrorKind::InvalidCount) before anything is sent;
/// [`Uninitialised`](crate::ErrorKind::Uninitialised) if there is no such semaphore;
/// [`WrongType`](crate::ErrorKind::WrongType), [`Corrupt`](crate::ErrorKind::Corrupt) or
/// [`Refused`](crate::ErrorKind::Refused) as the server says;
/// [`Unavailable`](crate::ErrorKind::Unavailable) if it says nothing; and
/// [`Closed`](crate::ErrorKind::Closed). All are cancel safe: what a dropped future got, or may
/// still get, is given back.
impl Semaphore {
    /// Takes a permit, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit, Error>> + Send + use<> {
        self.acquire_many(1)
    }

    /// Takes so many permits, all or none, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<SemaphorePermit, Error>> + Send + use<> {
        let taking = self.take(permits, None, Location::caller());
        async move { Ok(taking.await?.expect("only a wait with an end is refused")) }
    }

    /// Takes a permit, waiting for at most `wait`; `None` if there was none.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "tryAcquire")]
    #[track_caller]
    pub fn try_acquire(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<SemaphorePermit>, Error>> + Send + use<> {
        self.try_acquire_many(1, wait)
    }

    /// Takes so many permits, all or none, waiting for at most `wait`.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_acquire_many(
        &self,
        permits: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<SemaphorePermit>, Error>> + Send + use<> {
        self.take(permits, Some(wait), Location::caller())
    }

    /// Takes a permit if there is one, without waiting; `None` also while others of this process
    /// wait in vain. What this client gave back before it counts as free.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_acquire_now(
        &self,
    ) -> impl Future<Output = Result<Option<SemaphorePermit>, Error>> + Send + use<> {
        self.try_acquire_many(1, Duration::ZERO)
    }

    fn take(
        &self,
        permits: u32,
        wait: Option<Duration>,
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Option<SemaphorePermit>, Error>> + Send + use<> {
        let handle = self.handle.clone().units(permits);
        async move {
            check(handle.name(), permits.into(), 1)?;
            let guard = handle.acquire(wait, Lease::Renewed, at).await?;
            Ok(guard.map(|guard| SemaphorePermit { guard, permits }))
        }
    }
}

/// # Changing the number
///
/// These count once, also if a reply is lost and they are sent again, and fail as
/// [taking](Semaphore::acquire) does; with [`NoReply`](crate::ErrorKind::NoReply) if no answer came
/// for the client's [`patience`](crate::Builder::patience), or for 45 s, so that it may or may not
/// have been done. [`Refused`](crate::ErrorKind::Refused) with a text that says that nobody was
/// told means that it was done. A dropped future may or may not have changed it.
impl Semaphore {
    /// Sets up a semaphore that is not there yet; `false` if it is.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "trySetPermits")]
    pub async fn try_set(&self, permits: u32) -> Result<bool, Error> {
        let recipe = self.recipe()?;
        check(&recipe.keys.lock, permits.into(), 0)?;
        let args = |id, settled| {
            vec![decimal(permits.into()), decimal(0), id, self.publish(recipe), settled]
        };
        self.change(&SEMAPHORE_TRY_SET, &[NAME, CHANNEL, ONCE], args).await.map(|(done, _)| done)
    }

    /// Gives back permits that were taken without a guard, or
    /// [forgotten](SemaphorePermit::forget); a semaphore that is not there starts with them.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "release")]
    pub async fn give(&self, permits: u32) -> Result<(), Error> {
        let recipe = self.recipe()?;
        check(&recipe.keys.lock, permits.into(), 1)?;
        let args = |id, settled| {
            vec![decimal(permits.into()), id, decimal(0), self.publish(recipe), settled]
        };
        self.change(&SEMAPHORE_GIVE, &[NAME, CHANNEL, ONCE], args).await.map(drop)
    }

    /// Adds to the number of permits, or takes away from it, also what is in use; returns how many
    /// can be taken now, which may be below zero.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "addPermits")]
    pub async fn add(&self, permits: i32) -> Result<i64, Error> {
        let recipe = self.recipe()?;
        let args = |id, settled| vec![decimal(permits.into()), id, self.publish(recipe), settled];
        let (_, texts) = self.change(&SEMAPHORE_ADD, &[NAME, CHANNEL, ONCE], args).await?;
        number(recipe, texts.last())
    }

    /// Takes all permits there are, without a guard; returns how many those were: below zero if
    /// more had been taken away than there were, which is forgiven. 0 if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "drainPermits")]
    pub async fn drain(&self) -> Result<i64, Error> {
        let recipe = self.recipe()?;
        let (there, texts) =
            self.change(&SEMAPHORE_DRAIN, &[NAME, ONCE], |id, settled| vec![id, settled]).await?;
        if there { number(recipe, texts.last()) } else { Ok(0) }
    }

    /// How many permits can be taken now; below zero after an [`add`](Semaphore::add) of less than
    /// nothing. `None` if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "availablePermits")]
    pub async fn available(&self) -> Result<Option<i64>, Error> {
        let recipe = self.recipe()?;
        let engine = self.handle.shared().engine();
        let told = engine.run(recipe, &SEMAPHORE_INSPECT, &[NAME], Vec::<Text>::new()).await?;
        let (there, texts) = read(recipe, told)?;
        if there { number(recipe, texts.last()).map(Some) } else { Ok(None) }
    }

    async fn change(
        &self,
        script: &'static crate::server::script::Script,
        keys: &[Key],
        args: impl FnOnce(Text, Text) -> Vec<Text>,
    ) -> Result<(bool, Vec<String>), Error> {
        let recipe = self.recipe()?;
        let told = self.handle.shared().engine().run_recorded(recipe, script, keys, args).await?;
        read(recipe, told)
    }

    fn recipe(&self) -> Result<&Arc<Recipe>, Error> {
        self.handle.recipe()
    }

    fn publish(&self, recipe: &Recipe) -> Text {
        Text::from_static(self.handle.shared().engine().publish(recipe))
    }
}

/// Whether it was done, and the texts of an answer.
pub(super) fn read(
    recipe: &Recipe,
    (code, texts): (i64, Vec<String>),
) -> Result<(bool, Vec<String>), Error> {
    let name = &*recipe.keys.lock;
    let text = texts.first().map_or("", String::as_str);
    match code {
        0.. => Ok((true, texts)),
        -1 => Ok((false, texts)),
        -4 => Err(Error::not_announced(name, text)),
        _ => Err(Error::server(Some(name), text)),
    }
}

/// A number that came as text.
pub(super) fn number(recipe: &Recipe, text: Option<&String>) -> Result<i64, Error> {
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::server(Some(&recipe.keys.lock), "ERR count is not an integer"))
}

pub(super) fn decimal(number: i64) -> Text {
    number.to_string().into()
}

/// Refuses numbers of permits that no call can speak of.
pub(super) fn check(name: &str, permits: i64, least: i64) -> Result<(), Error> {
    if permits < least {
        return Err(Error::invalid_count(name, "permits", permits, "there must be more"));
    }
    if permits > i64::from(MOST) {
        return Err(Error::invalid_count(name, "permits", permits, "the most is 2147483647"));
    }
    Ok(())
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Permits that were taken; dropping it gives them back.
///
/// Dropping queues the release and returns; it is tried until it is through, for as long as the
/// client lives, or until it may have been done for 45 s without an answer. It may be dropped in
/// another task or thread than it was taken in.
///
/// After [`close`](Client::close) nothing is given back any more: drop permits before.
#[must_use = "dropping it gives the permits back: bind it, `let _permit = ..`, not `let _ = ..`"]
pub struct SemaphorePermit {
    guard: LockGuard,
    permits: u32,
}

impl SemaphorePermit {
    /// The semaphore's name, as it is in Redis.
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// How many permits it stands for.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Gives the permits back and waits until that is through.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost), because the semaphore was
    /// [removed](crate::LostReason::Removed) from Redis, which nothing needs doing about, or the
    /// [client closed](crate::LostReason::ClientClosed) before, which leaves the permits taken.
    /// [`WrongType`](crate::ErrorKind::WrongType), [`Corrupt`](crate::ErrorKind::Corrupt) or
    /// [`Refused`](crate::ErrorKind::Refused) as the server says, and
    /// [`NoReply`](crate::ErrorKind::NoReply) if it says nothing for the client's
    /// [`patience`](crate::Builder::patience): in both cases it is tried on behind the scenes.
    ///
    /// # Cancel safety
    ///
    /// The permits are given back whether or not the future is awaited to its end.
    pub async fn release(self) -> Result<(), Error> {
        self.guard.unlock().await
    }

    /// Leaves the permits taken, for somebody to [give back](Semaphore::give).
    pub fn forget(self) {
        self.guard.forget();
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.guard.name())
            .field("permits", &self.permits)
            .finish()
    }
}

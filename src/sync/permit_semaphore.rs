//! The semaphore whose permits end with a lease, shared with Redisson's
//! `RPermitExpirableSemaphore`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Key, Kind, Mode, Recipe, Verb, Verbs, Waiting, no_key};
use crate::error::{Error, LostReason};
use crate::keys::{Keys, permit_ids};
use crate::lease::Lease;
use crate::server::script::{
    PERMIT_SEMAPHORE_ACQUIRE, PERMIT_SEMAPHORE_ADD, PERMIT_SEMAPHORE_INSPECT,
    PERMIT_SEMAPHORE_RELEASE, PERMIT_SEMAPHORE_RENEW, PERMIT_SEMAPHORE_SET,
    PERMIT_SEMAPHORE_TRY_SET, Script,
};
use crate::server::{Argument, Text};
use crate::sync::semaphore::{check, decimal, number, read};
use crate::sync::{Held, Lock, LockGuard};
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Most permits that one acquisition takes: each has an id of its own.
const MOST_AT_ONCE: u32 = 1000;

const NAME: Key = Key::Name;
const CHANNEL: Key = Key::Channel;
const ENDS: Key = Key::Helper(0);
const ONCE: Key = Key::Helper(1);

static PERMIT_SEMAPHORE: Kind = Kind {
    name: "permit semaphore",
    keys: Keys::permit_semaphore,
    exclusive: None,
    shared: Some(Verbs {
        acquire: Verb {
            script: &PERMIT_SEMAPHORE_ACQUIRE,
            keys: &[NAME, ENDS, CHANNEL],
            args: &[Arg::Lease, Arg::Field, Arg::Extra, Arg::Publish],
        },
        release: Some(Verb {
            script: &PERMIT_SEMAPHORE_RELEASE,
            keys: &[NAME, CHANNEL, ENDS],
            args: &[Arg::Field, Arg::Publish],
        }),
    }),
    renew: Some(Verb {
        script: &PERMIT_SEMAPHORE_RENEW,
        keys: &[NAME, ENDS, CHANNEL],
        args: &[Arg::Lease, Arg::Field, Arg::Publish],
    }),
    inspect: None,
    force_release: None,
    owned: false,
    reenters: false,
    hands_over: false,
    held: true,
    keeps_records: false,
    waiting: Waiting::Listen,
    look_every: None,
    channel_of: no_key,
    field: permit_ids,
    key_of_hold: no_key,
};

impl Client {
    /// The semaphore of this name whose permits end with a lease, see [`PermitSemaphore`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be used is refused by the first use.
    #[doc(alias = "getPermitExpirableSemaphore")]
    #[doc(alias = "RPermitExpirableSemaphore")]
    pub fn permit_semaphore(&self, name: impl AsRef<str>) -> PermitSemaphore {
        PermitSemaphore { handle: self.handle(&PERMIT_SEMAPHORE, Mode::Shared, name.as_ref()) }
    }
}

/// So many permits, each with an id and a lease: a process that dies gives them back by dying.
///
/// Permits are renewed as locks are ([`Lease::Renewed`], which Redisson does not do), or end after
/// a [fixed](PermitSemaphore::lease) time.
///
/// # When to use something else
///
/// * One permit is a lock: [`Client::lock`] excludes, re-enters, and does not depend on the
///   server's wall clock.
/// * [`Client::semaphore`] is cheaper by one key, but loses the permits of a process that dies.
///
/// # What it promises
///
/// * Never more permits stand than there are, as long as Redis loses no acknowledged write and its
///   clock does not jump ahead. Java peers count leases by their own clocks: with them the promise
///   holds up to the difference between clocks.
/// * The end of a permit is told to its holder ([`Held::lost`]) before anybody else can have it.
/// * Giving back wakes a waiter by message, the end of a lease by timer.
/// * A dropped future leaves nothing taken; a lost reply counts once.
/// * Waiters of one process are served in order of arrival: one that wants many is not passed by
///   those that want one. Between processes there is no order.
///
/// It is not owned: the same task may take permits several times, and they are not re-entered.
///
/// # Redis
///
/// The key `name`, a number; the key `{name}:timeout`, a sorted set from permit id (16 bytes) to
/// when it ends, by the server's clock; the channel `redisson_sc:{name}`; for a minute after
/// `try_set` and `add` the key `leasehold_once:{name}:<uuid>`. The number stands until somebody
/// deletes it.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// let workers = client.permit_semaphore("workers").sized(3);
/// let permit = workers.acquire().await?;
/// tokio::select! {
///     () = async { /* work */ } => permit.release().await?,
///     reason = permit.lost() => eprintln!("stopped: {reason}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is used"]
pub struct PermitSemaphore {
    handle: Lock,
}

/// # Settings of a handle
impl PermitSemaphore {
    /// Starts with so many permits if the semaphore is not in Redis yet. Without this, acquiring
    /// from one that was never [set](PermitSemaphore::try_set) is an error.
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

    /// The lease of permits; [`Lease::Renewed`] if this is not called.
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.handle = self.handle.lease(lease);
        self
    }

    /// How long a permit may go on being renewed; then it is
    /// [lost](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.handle = self.handle.max_hold(max);
        self
    }

    /// How many replicas must have what takes permits, and how long is waited for them, in place of
    /// the client's [setting](crate::Builder::require_replicas); none turns it off.
    pub fn require_replicas(mut self, replicas: u8, within: Duration) -> Self {
        self.handle = self.handle.require_replicas(replicas, within);
        self
    }

    /// A word for this use in warnings about long waits and lost permits.
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
/// All of these fail with [`InvalidName`](crate::ErrorKind::InvalidName),
/// [`InvalidDuration`](crate::ErrorKind::InvalidDuration) or
/// [`InvalidCount`](crate::ErrorKind::InvalidCount) before anything is sent;
/// [`Uninitialised`](crate::ErrorKind::Uninitialised) if there is no such semaphore;
/// [`WrongType`](crate::ErrorKind::WrongType), [`Corrupt`](crate::ErrorKind::Corrupt) or
/// [`Refused`](crate::ErrorKind::Refused) as the server says;
/// [`Unavailable`](crate::ErrorKind::Unavailable) if it says nothing; and
/// [`Closed`](crate::ErrorKind::Closed). All are cancel safe: what a dropped future got, or may
/// still get, is given back.
impl PermitSemaphore {
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
    pub fn acquire(&self) -> impl Future<Output = Result<Permit, Error>> + Send + use<> {
        self.acquire_many(1)
    }

    /// Takes so many permits (1 to 1000), all or none, waiting as long as it takes.
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
    ) -> impl Future<Output = Result<Permit, Error>> + Send + use<> {
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
    ) -> impl Future<Output = Result<Option<Permit>, Error>> + Send + use<> {
        self.try_acquire_many(1, wait)
    }

    /// Takes so many permits (1 to 1000), all or none, waiting for at most `wait`.
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
    ) -> impl Future<Output = Result<Option<Permit>, Error>> + Send + use<> {
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
    ) -> impl Future<Output = Result<Option<Permit>, Error>> + Send + use<> {
        self.try_acquire_many(1, Duration::ZERO)
    }

    fn take(
        &self,
        permits: u32,
        wait: Option<Duration>,
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Option<Permit>, Error>> + Send + use<> {
        let handle = self.handle.clone().units(permits);
        async move {
            check(handle.name(), permits.into(), 1)?;
            if permits > MOST_AT_ONCE {
                let why = "the most at once is 1000";
                return Err(Error::invalid_count(handle.name(), "permits", permits.into(), why));
            }
            let guard = handle.acquire(wait, handle.own_lease(), at).await?;
            Ok(guard.map(|guard| Permit { guard, permits }))
        }
    }
}

/// # Changing the number
///
/// These count once, also if a reply is lost and they are sent again, and fail as
/// [taking](PermitSemaphore::acquire) does; with [`NoReply`](crate::ErrorKind::NoReply) if no
/// answer came for the client's [`patience`](crate::Builder::patience), or for 45 s, so that it may
/// or may not have been done. [`Refused`](crate::ErrorKind::Refused) with a text that says that
/// nobody was told means that it was done. A dropped future may or may not have changed it.
impl PermitSemaphore {
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
        let args = |id, settled| vec![decimal(permits.into()), id, self.publish(recipe), settled];
        let keys = [NAME, ENDS, CHANNEL, ONCE];
        let done = self.change(&PERMIT_SEMAPHORE_TRY_SET, &keys, args).await;
        done.map(|(done, _)| done)
    }

    /// Sets how many permits there are in all, those in use among them: as many as stand stay, and
    /// if those are more, none can be taken until enough have come back.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[doc(alias = "setPermits")]
    pub async fn set(&self, permits: u32) -> Result<(), Error> {
        let recipe = self.recipe()?;
        check(&recipe.keys.lock, permits.into(), 0)?;
        let args = |_, _| vec![decimal(permits.into()), self.publish(recipe)];
        self.change(&PERMIT_SEMAPHORE_SET, &[NAME, ENDS, CHANNEL], args).await.map(drop)
    }

    /// Adds to the number of permits, or takes away from it, also what is in use; returns how many
    /// can be taken now, which may be below zero.
    ///
    /// Like Redisson's, it makes a semaphore that is missing without a look at permits that still
    /// stand from before it was deleted; [`try_set`](PermitSemaphore::try_set) and
    /// [`set`](PermitSemaphore::set) count them. Permits that have ended, and that nobody has taken
    /// back yet, are not counted in what it returns.
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
        let (_, texts) = self.change(&PERMIT_SEMAPHORE_ADD, &[NAME, CHANNEL, ONCE], args).await?;
        number(recipe, texts.last())
    }

    /// Gives back the permit of this id, whoever has it, Java too; `false` if it has ended or was
    /// given back.
    ///
    /// A holder of this client [is told](Held::lost) at once, another by its next renewal. Of
    /// permits that were taken together it has lost all: the others are given back as well.
    ///
    /// # Errors
    ///
    /// As above; it is sent once, and [`NoReply`](crate::ErrorKind::NoReply) if no answer came
    /// within the client's [`command_timeout`](crate::Builder::command_timeout). It can be called
    /// again: an id counts once.
    ///
    /// # Cancel safety
    ///
    /// The permit may or may not be given back.
    #[doc(alias = "tryRelease")]
    pub async fn release_id(&self, id: PermitId) -> Result<bool, Error> {
        let recipe = self.recipe()?;
        let engine = self.handle.shared().engine();
        let keys = [NAME, CHANNEL, ENDS];
        let args = vec![Argument::Bytes(id.0.to_vec()), self.publish(recipe).into()];
        // Known before: it cannot be taken anew under the same id.
        let holds = engine.known_name(recipe).map_or_else(Vec::new, |name| name.with_permit(&id.0));
        let told = engine.run(recipe, &PERMIT_SEMAPHORE_RELEASE, &keys, args).await?;
        let gone = told.0 != -2;
        for hold in holds.iter().filter(|_| gone) {
            hold.name.clone().lose(engine, hold, LostReason::Removed);
        }
        read(recipe, told).map(|(done, _)| done)
    }

    /// How many permits there are; `None` if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "availablePermits")]
    #[doc(alias = "acquiredPermits")]
    pub async fn permits(&self) -> Result<Option<Permits>, Error> {
        let recipe = self.recipe()?;
        let engine = self.handle.shared().engine();
        let told = engine
            .run(recipe, &PERMIT_SEMAPHORE_INSPECT, &[NAME, ENDS], Vec::<Text>::new())
            .await?;
        let (there, texts) = read(recipe, told)?;
        if !there {
            return Ok(None);
        }
        let [available, in_use] = [number(recipe, texts.first())?, number(recipe, texts.get(1))?];
        Ok(Some(Permits { available, in_use }))
    }

    async fn change(
        &self,
        script: &'static Script,
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

impl fmt::Debug for PermitSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitSemaphore").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// How many permits a [`PermitSemaphore`] has.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// How many can be taken now; below zero after an [`add`](PermitSemaphore::add) of less than
    /// nothing.
    pub available: i64,
    /// How many are taken.
    pub in_use: i64,
}

/// The id of a permit: 16 bytes, shown as Redisson shows them, in 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// The bytes, as they are in Redis.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<[u8; 16]> for PermitId {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl std::str::FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        let id = number.map(|number| Self(number.to_be_bytes()));
        id.ok_or_else(|| Error::invalid_name(text, "a permit id is 32 hex digits"))
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

/// Permits that were taken; dropping it gives them back.
///
/// Dropping queues the release and returns; it is tried until it is through, or the lease has ended
/// anyway. It may be dropped in another task or thread than it was taken in.
///
/// Everything of [`Held`] can be called on it: its name, whether it still stands, `lost()`,
/// `extend()`. Its [`holder`](Held::holder) is its ids. Permits that were taken together are held
/// and lost together.
///
/// When the client is [closed](crate::Client::close), its permits are
/// [lost](crate::LostReason::ClientClosed), and stand until their lease ends.
#[must_use = "dropping it gives the permits back: bind it, `let _permit = ..`, not `let _ = ..`"]
pub struct Permit {
    guard: LockGuard,
    permits: u32,
}

impl Permit {
    /// How many permits it stands for.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The ids of the permits, as Redis and Java know them.
    pub fn ids(&self) -> impl Iterator<Item = PermitId> + '_ {
        let ids = self.guard.hold().field.as_bytes().chunks_exact(16);
        ids.map(|id| PermitId(id.try_into().expect("chunks of 16")))
    }

    /// Gives the permits back and waits until that is through.
    ///
    /// # Errors
    ///
    /// As for [`Lock::unlock`](crate::Lock::unlock).
    ///
    /// # Cancel safety
    ///
    /// The permits are given back whether or not the future is awaited to its end.
    pub async fn release(self) -> Result<(), Error> {
        self.guard.unlock().await
    }

    /// Leaves the permits to their lease, or to somebody who [gives them
    /// back](PermitSemaphore::release_id); they are not renewed any more, and nobody is told when
    /// they end.
    pub fn forget(self) {
        self.guard.forget();
    }
}

impl Deref for Permit {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.guard.name())
            .field("permits", &self.permits)
            .field("is_held", &self.guard.is_held())
            .finish()
    }
}

//! The count-down latch, shared with Redisson's `RCountDownLatch`.

use crate::client::Client;
use crate::engine::recipe::{
    Arg, Key, Kind, Mode, Recipe, Verb, Verbs, Waiting, client_and_id, no_key,
};
use crate::error::Error;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::server::Text;
use crate::server::script::{
    COUNT_DOWN_LATCH_COUNT_DOWN, COUNT_DOWN_LATCH_DELETE, COUNT_DOWN_LATCH_INSPECT,
    COUNT_DOWN_LATCH_TRY_SET, COUNT_DOWN_LATCH_WAIT,
};
use crate::sync::Lock;
use crate::sync::semaphore::{check, decimal, read};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

const NAME: Key = Key::Name;
const CHANNEL: Key = Key::Channel;
const ONCE: Key = Key::Helper(0);

static COUNT_DOWN_LATCH: Kind = Kind {
    name: "count-down latch",
    keys: Keys::count_down_latch,
    exclusive: None,
    shared: Some(Verbs {
        acquire: Verb { script: &COUNT_DOWN_LATCH_WAIT, keys: &[NAME], args: &[] as &[Arg] },
        release: None,
    }),
    renew: None,
    inspect: None,
    force_release: None,
    owned: false,
    reenters: false,
    hands_over: false,
    held: false,
    keeps_records: true,
    waiting: Waiting::Listen,
    look_every: None,
    channel_of: no_key,
    field: client_and_id,
    key_of_hold: no_key,
};

impl Client {
    /// The count-down latch of this name, see [`CountDownLatch`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be used is refused by the first use.
    #[doc(alias = "getCountDownLatch")]
    #[doc(alias = "RCountDownLatch")]
    pub fn count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch { handle: self.handle(&COUNT_DOWN_LATCH, Mode::Shared, name.as_ref()) }
    }
}

/// A gate that opens when it was counted down to zero.
///
/// One process [sets](CountDownLatch::try_set) the count, others
/// [count down](CountDownLatch::count_down), and whoever [waits](CountDownLatch::wait) goes on when
/// nothing is left. A latch that was never set, or was deleted, is open. It can be set again once
/// it is open: better under a new name, for a waiter that has not looked by then waits on.
///
/// # When to use something else
///
/// Within one process, `tokio::sync::Barrier` or a `JoinSet`. A count is not a lease: a worker that
/// dies before it counts down leaves the latch closed. Wait with a limit. And a latch is data: if
/// the server loses it, it is open. Where nobody may go on too early, let each worker leave a result
/// that can be looked at.
///
/// # What it promises
///
/// * Opening wakes every waiter by message; a lost message costs at most the client's
///   [`fallback_cap`](crate::Builder::fallback_cap) (Redisson's `await` would hang).
/// * Who waits goes on if the latch was open at some moment since, and is not told of a look that
///   was made before. Waiters of one process share their looks: a thousand cost a few commands.
/// * A [`count_down`](CountDownLatch::count_down) whose reply was lost counts once. It is sent again
///   for 45 s at most, for the server keeps records of calls for a minute only.
/// * [`delete`](CountDownLatch::delete) lets our waiters go. Java's it does not wake: its own
///   `delete` does not either.
///
/// # Redis
///
/// The key `name`, a number, without a TTL, gone when it is open; the channel
/// `redisson_countdownlatch__channel__{name}`; for a minute after each `count_down` the key
/// `leasehold_once:{name}:<uuid>`, a hash with records of calls. The channel has braces of its own:
/// in a cluster a name with braces is refused, for key and channel would part.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// let latch = client.count_down_latch("import:2026-11-21");
/// latch.try_set(3).await?;
/// // Three workers, anywhere:
/// latch.count_down().await?;
/// // Whoever needs all three:
/// latch.wait().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is used"]
pub struct CountDownLatch {
    handle: Lock,
}

impl CountDownLatch {
    /// A word for this use in warnings about long waits.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.handle = self.handle.label(label);
        self
    }

    /// The name, as it is in Redis; empty if it cannot be used.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName) before anything is sent;
    /// [`WrongType`](crate::ErrorKind::WrongType), [`Corrupt`](crate::ErrorKind::Corrupt) or
    /// [`Refused`](crate::ErrorKind::Refused) as the server says;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when nothing was heard of it for the client's
    /// [`patience`](crate::Builder::patience); and [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "await")]
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (handle, at) = (self.handle.clone(), Location::caller());
        async move { handle.acquire(None, Lease::Renewed, at).await.map(drop) }
    }

    /// Waits until the latch is open, for at most `wait`; whether it is. It looks at least once, and
    /// once more at the end.
    ///
    /// # Errors
    ///
    /// As for [`wait`](CountDownLatch::wait), and [`Unavailable`](crate::ErrorKind::Unavailable) if
    /// there was no reply within the wait.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[track_caller]
    pub fn wait_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send + use<> {
        let (handle, at) = (self.handle.clone(), Location::caller());
        async move {
            let opened = handle.acquire(Some(wait), Lease::Renewed, at).await?;
            Ok(opened.is_some())
        }
    }

    /// Counts down by one; returns what is left, 0 also if it was open already.
    ///
    /// # Errors
    ///
    /// As for [`wait`](CountDownLatch::wait); [`NoReply`](crate::ErrorKind::NoReply) if no answer
    /// came for the client's [`patience`](crate::Builder::patience), or for 45 s, so that it may or
    /// may not have counted. [`Refused`](crate::ErrorKind::Refused) with a text that says that nobody
    /// was told means that it opened.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may or may not have counted down.
    pub async fn count_down(&self) -> Result<u64, Error> {
        let recipe = self.handle.recipe()?;
        let engine = self.handle.shared().engine();
        let publish = self.publish(recipe);
        let args = |id, settled| vec![id, publish, settled];
        let keys = [NAME, CHANNEL, ONCE];
        let (code, texts) =
            engine.run_recorded(recipe, &COUNT_DOWN_LATCH_COUNT_DOWN, &keys, args).await?;
        read(recipe, (code, texts))?;
        Ok(u64::try_from(code).unwrap_or(0))
    }

    /// Sets the count of a latch that is not set; `false` if it is.
    ///
    /// # Errors
    ///
    /// As for [`count_down`](CountDownLatch::count_down);
    /// [`InvalidCount`](crate::ErrorKind::InvalidCount) beyond 2147483647. It is sent once: by the
    /// time of a second send others may have counted it down. After
    /// [`NoReply`](crate::ErrorKind::NoReply), within the client's
    /// [`command_timeout`](crate::Builder::command_timeout), it may or may not be set; called again,
    /// `false` may mean that the first call has set it.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may or may not have set it.
    #[doc(alias = "trySetCount")]
    pub async fn try_set(&self, count: u32) -> Result<bool, Error> {
        let recipe = self.handle.recipe()?;
        check(&recipe.keys.lock, count.into(), 0)?;
        let engine = self.handle.shared().engine();
        let args = vec![decimal(count.into()), self.publish(recipe)];
        let told = engine.run(recipe, &COUNT_DOWN_LATCH_TRY_SET, &[NAME, CHANNEL], args).await?;
        read(recipe, told).map(|(set, _)| set)
    }

    /// What is left to count down; 0 if it is open.
    ///
    /// # Errors
    ///
    /// As for [`count_down`](CountDownLatch::count_down), but it is sent once, and changes nothing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[doc(alias = "getCount")]
    pub async fn count(&self) -> Result<u64, Error> {
        let recipe = self.handle.recipe()?;
        let engine = self.handle.shared().engine();
        let told =
            engine.run(recipe, &COUNT_DOWN_LATCH_INSPECT, &[NAME], Vec::<Text>::new()).await?;
        let code = told.0;
        read(recipe, told)?;
        Ok(u64::try_from(code).unwrap_or(0))
    }

    /// Removes the latch, which opens it for our waiters; `false` if there was none.
    ///
    /// # Errors
    ///
    /// As for [`count_down`](CountDownLatch::count_down). It is sent once: by the time of a second
    /// send somebody may have set it anew.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may or may not have removed it.
    pub async fn delete(&self) -> Result<bool, Error> {
        let recipe = self.handle.recipe()?;
        let engine = self.handle.shared().engine();
        let args = vec![self.publish(recipe)];
        let told = engine.run(recipe, &COUNT_DOWN_LATCH_DELETE, &[NAME, CHANNEL], args).await?;
        read(recipe, told).map(|(deleted, _)| deleted)
    }

    fn publish(&self, recipe: &Recipe) -> Text {
        Text::from_static(self.handle.shared().engine().publish(recipe))
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch").field("name", &self.name()).finish_non_exhaustive()
    }
}

//! What a holder can see of its hold, and what others can see of a holder.

use crate::client::Shared;
use crate::engine::hold::Hold;
use crate::engine::queue::{Grant, Name};
use crate::engine::recipe::Terms;
use crate::error::{Error, LostReason};
use crate::lease;
use crate::owner::Owner;
use crate::server::reply::CallError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A view of a hold that cannot release it.
///
/// The body of [`Lock::with`](crate::Lock::with) gets one; a [`LockGuard`](crate::LockGuard)
/// dereferences to one. It says whether the lock is still held, but does not keep it held.
#[derive(Clone)]
pub struct Held {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<Name>,
    pub(crate) grant: Grant,
    pub(crate) owner: Owner,
}

impl Held {
    /// The lock's name, as it is in Redis.
    pub fn name(&self) -> &str {
        &self.name.recipe.keys.lock
    }

    /// Whether the lock is certainly still held: not given back, not lost, and before
    /// [`valid_until`](Held::valid_until).
    ///
    /// Local, without a command. `false` can come a moment before the server's lease ends, never
    /// after. A removal by somebody else is noticed by the next renewal at the latest.
    pub fn is_held(&self) -> bool {
        self.hold().is_held(self.grant.turn)
    }

    /// Until when the lock is held if no further renewal succeeds.
    ///
    /// Counted from before the last successful request was sent, less a hundredth of the lease and
    /// 2 ms. Moves on with every renewal; in the past once the hold is over.
    pub fn valid_until(&self) -> Instant {
        self.hold().valid_until(self.grant.turn).to_instant()
    }

    /// How many times the lock is held: 1 for a plain hold, more when nested.
    #[doc(alias = "getHoldCount")]
    pub fn hold_count(&self) -> u32 {
        self.name.count(&self.grant)
    }

    /// The fencing token, if it is a [`FencedLock`](crate::FencedLock); else `None`.
    pub fn token(&self) -> Option<u64> {
        self.hold().token()
    }

    /// The owner it is held by.
    pub fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// The hold as Redis and Redisson see it: `<uuid>:<id>`.
    pub fn holder(&self) -> Holder {
        Holder::new(&self.hold().shown())
    }

    /// Resolves when the hold is lost, with the reason; never if it is given back.
    ///
    /// At its deadline it resolves on time even if nothing was heard of the server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn f(guard: leasehold::LockGuard) -> Result<(), leasehold::Error> {
    /// tokio::select! {
    ///     () = work() => guard.unlock().await?,
    ///     reason = guard.lost() => eprintln!("stopped: {reason}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + Sync + use<> {
        let Grant { hold, turn, .. } = self.grant.clone();
        async move { hold.wait_lost(turn).await }
    }

    /// Makes the lease last for at least `lease` from now; never shortens it.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) if the hold is lost,
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it was given back,
    /// [`InvalidDuration`](crate::ErrorKind::InvalidDuration),
    /// [`Refused`](crate::ErrorKind::Refused), and [`NoReply`](crate::ErrorKind::NoReply) or
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the server did not answer, or
    /// [`NotReplicated`](crate::ErrorKind::NotReplicated) if too few replicas did; the hold then
    /// stands as before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; the lease may or may not be extended.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        lease::check("lease", lease)?;
        let (engine, hold) = (self.shared.engine(), self.hold());
        if !self.is_held() {
            return Err(match hold.lost_in(self.grant.turn) {
                Some(reason) => Error::lost(self.name(), reason),
                None => Error::not_held(self.name()),
            });
        }
        let (recipe, stands) = (&self.name.recipe, hold.stands());
        let lease = hold.provable_now(lease);
        let terms = Terms { lease, publish: engine.publish(recipe), ..Terms::of(hold) };
        let call = recipe.renew(&terms).expect("a lock has a lease");
        let sent = hold.asked(lease);
        let error = match engine.call_for(hold, call, lease, hold.replicas()).await {
            Ok(answer) if answer.code == 0 => {
                hold.extended(sent, lease);
                // An answer that comes after the end does not bring it back.
                let lost = hold.lost_in(self.grant.turn);
                return lost.map_or(Ok(()), |reason| Err(Error::lost(self.name(), reason)));
            }
            // Part of it was given back meanwhile, so this says nothing of the rest.
            Ok(answer) if answer.code == -1 && hold.stands() != stands => {
                Error::no_reply(Some(self.name()), "the hold changed meanwhile")
            }
            Ok(answer) if answer.code == -1 => {
                self.name.lose(engine, hold, LostReason::Removed);
                Error::lost(self.name(), LostReason::Removed)
            }
            Ok(answer) => {
                Error::server(Some(self.name()), answer.text.as_deref().unwrap_or_default())
            }
            Err(CallError::Refused(text)) => Error::server(Some(self.name()), &text),
            Err(CallError::NotSent(why)) => Error::unavailable(Some(self.name()), &why, false),
            Err(CallError::Unknown(why)) => Error::no_reply(Some(self.name()), &why),
            Err(CallError::Short(short)) => Error::short(self.name(), &short),
        };
        Err(error)
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.grant.hold
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.name())
            .field("holder", &self.hold().shown())
            .field("owner", &self.owner)
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// Who holds a lock, as Redis knows it: the client's uuid and the hold's id (of a Java client, its
/// uuid and thread id).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Holder(String);

impl Holder {
    pub(crate) fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    /// The field in the lock's hash, `<uuid>:<id>`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The client's part, to be compared with [`Client::id`](crate::Client::id) or Redisson's
    /// `getId()`.
    pub fn client(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(client, _)| client)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({})", self.0)
    }
}

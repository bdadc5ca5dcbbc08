//! The striped lock: one hot name split into several.

use crate::client::Client;
use crate::engine::together::{Boxed, Together};
use crate::error::Error;
use crate::lease::{Lease, Moment};
use crate::owner::Owner;
use crate::sync::lock::Part;
use crate::sync::{Held, Lock, LockGuard, MultiLock};
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The most stripes: more would be unevenly used, for a key has one of 65536 numbers.
const MOST_STRIPES: usize = 1024;

impl Client {
    /// The striped lock of this name, of `stripes` locks; see [`StripedLock`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be a lock's, no stripes, or more than
    /// 1024, are refused by the first use.
    pub fn striped_lock(&self, name: impl AsRef<str>, stripes: usize) -> StripedLock {
        let name = name.as_ref();
        // An empty name stays empty, to be refused.
        let named = |at| if name.is_empty() { String::new() } else { format!("{name}:{at}") };
        if (1..=MOST_STRIPES).contains(&stripes) {
            let stripes = (0..stripes).map(|at| self.lock(named(at))).collect();
            return StripedLock { stripes, lease: Lease::Renewed };
        }
        let given = i64::try_from(stripes).unwrap_or(i64::MAX);
        let error = Error::invalid_count(name, "stripes", given, "there must be from 1 to 1024");
        let stripes = [self.lock(named(0)).refused(error)].into();
        StripedLock { stripes, lease: Lease::Renewed }
    }
}

/// One hot name split into several locks, the stripes.
///
/// Two uses:
///
/// * **Work by key** ([`for_key`](StripedLock::for_key)): many keys share few locks. A key always
///   has the same stripe; keys of different stripes do not wait for each other.
/// * **Divisible things** ([`any`](StripedLock::any)): a stock of goods kept as one counter for each
///   stripe. Whoever wants one takes any stripe that is free, and sells from its counter; as many
///   sell at a time as there are stripes.
///
/// # When to use something else
///
/// For few keys a lock for each is simpler. For a number that Redis can count by itself
/// (`DECR`), no lock is needed. [`MultiLock`] takes several at once; [`all`](StripedLock::all) is
/// one of all stripes, for taking stock.
///
/// # What it promises
///
/// Each stripe is a [`Lock`] of its own, with everything that promises. The number of stripes is
/// part of the agreement: processes that differ in it exclude each other only where a key happens to
/// have the same stripe.
///
/// # Redis
///
/// The locks `name:0`, `name:1` and so on; in a cluster they are spread over its nodes, unless the
/// name has a hash tag. The stripe of a key is its CRC-16/XMODEM, the sum by which Redis Cluster
/// finds slots (of the whole key, whatever braces it has), modulo the number of stripes. In Python
/// that is `binascii.crc_hqx(key, 0) % stripes`.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// let users = client.striped_lock("users", 64);
/// users.for_key("alice").with(|_held| async { /* only this for alice */ }).await?;
///
/// let stock = client.striped_lock("stock:42", 8);
/// let guard = stock.any().await?;
/// let counter = format!("stock:42:left:{}", guard.stripe());
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[doc(alias = "Striped")]
#[derive(Clone)]
#[must_use = "a handle does nothing until it is locked"]
pub struct StripedLock {
    /// One at least.
    stripes: Arc<[Lock]>,
    lease: Lease,
}

/// # Settings of a handle
impl StripedLock {
    /// As [`Lock::lease`], for all stripes.
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.lease = lease.into();
        let lease = self.lease;
        self.each(|lock| lock.lease(lease))
    }

    /// As [`Lock::max_hold`], for all stripes.
    pub fn max_hold(self, max: Duration) -> Self {
        self.each(|lock| lock.max_hold(max))
    }

    /// As [`Lock::require_replicas`], for all stripes.
    pub fn require_replicas(self, replicas: u8, within: Duration) -> Self {
        self.each(|lock| lock.require_replicas(replicas, within))
    }

    /// As [`Lock::label`], for all stripes.
    pub fn label(self, label: impl Into<Arc<str>>) -> Self {
        let label = label.into();
        self.each(|lock| lock.label(label.clone()))
    }

    /// As [`Lock::owned_by`], for all stripes.
    pub fn owned_by(self, owner: Owner) -> Self {
        self.each(|lock| lock.owned_by(owner.clone()))
    }

    fn each(mut self, setting: impl Fn(Lock) -> Lock) -> Self {
        self.stripes = self.stripes.iter().cloned().map(setting).collect();
        self
    }
}

/// # Choosing
impl StripedLock {
    /// The lock for this key: the same stripe in every process, version and language.
    ///
    /// An owner that wants two keys at once must take their stripes in one order, or both by a
    /// [`MultiLock`]; it re-enters where they are the same.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Lock {
        self.stripes[self.stripe_of(key)].clone()
    }

    /// The number of a key's stripe, from 0.
    pub fn stripe_of(&self, key: impl AsRef<[u8]>) -> usize {
        usize::from(crc16(key.as_ref())) % self.stripes.len()
    }

    /// All stripes, in order.
    pub fn stripes(&self) -> &[Lock] {
        &self.stripes
    }

    /// All stripes at once.
    pub fn all(&self) -> MultiLock {
        MultiLock::new(self.stripes.iter().cloned()).lease(self.lease)
    }
}

/// # Taking any
///
/// These first try the stripes one after the other, beginning with one at random, and pass over
/// those that this process holds without asking. If all are taken they wait for all at once: in as
/// many queues, of which they leave the others when the first lets them in. Two that become free at
/// the same moment may both be granted then; the second goes back at once.
///
/// An owner that holds a stripe gets that one again.
///
/// All fail as those of [`Lock`] do, with [`InvalidCount`](crate::ErrorKind::InvalidCount) if there
/// cannot be so many stripes, and with what the first stripe says that cannot be had, if all say
/// something of that sort (in a cluster, a node may be down).
///
/// All are cancel safe, as those of [`Lock`].
impl StripedLock {
    /// Takes any stripe, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above, and as for [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn any(&self) -> impl Future<Output = Result<StripeGuard, Error>> + Send + use<> {
        self.any_with(self.lease)
    }

    /// Takes any stripe with this lease, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As above, and as for [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn any_with<L: Into<Lease>>(
        &self,
        lease: L,
    ) -> impl Future<Output = Result<StripeGuard, Error>> + Send + use<L> {
        let (this, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move {
            let guard = this.acquire(None, lease, at).await?;
            Ok(guard.expect("only a wait with an end is refused"))
        }
    }

    /// Takes any stripe with this lease, waiting for at most `wait`; `None` if all are still taken
    /// then.
    ///
    /// # Errors
    ///
    /// As above, and as for [`Lock::try_lock`].
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_any<L: Into<Lease>>(
        &self,
        wait: Duration,
        lease: L,
    ) -> impl Future<Output = Result<Option<StripeGuard>, Error>> + Send + use<L> {
        let (this, lease, at) = (self.clone(), lease.into(), Location::caller());
        async move { this.acquire(Some(wait), lease, at).await }
    }

    /// [`try_any`](StripedLock::try_any) with the handle's own lease.
    ///
    /// # Errors
    ///
    /// As for [`try_any`](StripedLock::try_any).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_any_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<StripeGuard>, Error>> + Send + use<> {
        self.try_any(wait, self.lease)
    }

    /// Takes any stripe that is free, without waiting.
    ///
    /// # Errors
    ///
    /// As for [`try_any`](StripedLock::try_any).
    ///
    /// # Cancel safety
    ///
    /// As above.
    #[track_caller]
    pub fn try_any_now(
        &self,
    ) -> impl Future<Output = Result<Option<StripeGuard>, Error>> + Send + use<> {
        self.try_any(Duration::ZERO, self.lease)
    }

    /// Runs `body` under any stripe, whose number it is told, as [`Lock::with`] does.
    ///
    /// # Errors
    ///
    /// As for [`any`](StripedLock::any) and [`Lock::with`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives the stripe back.
    #[track_caller]
    pub fn with_any<F, Fut>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<Fut::Output, Error>> + use<F, Fut>
    where
        F: FnOnce(usize, Held) -> Fut,
        Fut: Future,
    {
        let taking = self.any();
        async move {
            let StripeGuard { stripe, guard } = taking.await?;
            guard.run(|held| body(stripe, held)).await
        }
    }

    /// Runs `body` under any stripe if one can be had within `wait`; `None` if not.
    ///
    /// # Errors
    ///
    /// As for [`try_any`](StripedLock::try_any) and [`Lock::with`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives the stripe back.
    #[track_caller]
    pub fn try_with_any<L, F, Fut>(
        &self,
        wait: Duration,
        lease: L,
        body: F,
    ) -> impl Future<Output = Result<Option<Fut::Output>, Error>> + use<L, F, Fut>
    where
        L: Into<Lease>,
        F: FnOnce(usize, Held) -> Fut,
        Fut: Future,
    {
        let taking = self.try_any(wait, lease);
        async move {
            match taking.await? {
                Some(StripeGuard { stripe, guard }) => {
                    guard.run(|held| body(stripe, held)).await.map(Some)
                }
                None => Ok(None),
            }
        }
    }

    async fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
        at: &'static Location<'static>,
    ) -> Result<Option<StripeGuard>, Error> {
        let deadline = wait.map(|wait| Moment::now().saturating_add(wait));
        let owner = self.stripes[0].asking_owner();
        let take = |stripe: usize, wait| -> Boxed<_> {
            let lock = self.stripes[stripe].clone();
            let part = Part { owner: Some(owner.clone()), ..Part::default() };
            Box::pin(async move {
                let guard = lock.acquire_as(wait, lease, at, part).await?;
                Ok(guard.map(|guard| StripeGuard { stripe, guard }))
            })
        };
        let count = self.stripes.len();
        let mine = self.stripes.iter().position(Lock::is_held_by_me);
        let first = mine.unwrap_or_else(|| fastrand::usize(..count));
        let (mut refused, mut failed) = (false, None);
        for stripe in (first..count).chain(0..first) {
            match take(stripe, Some(Duration::ZERO)).await {
                Ok(Some(guard)) => return Ok(Some(guard)),
                Ok(None) => refused = true,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let left = deadline.map(|deadline| Moment::now().until(deadline));
        if refused && left.is_none_or(|left| !left.is_zero()) {
            let mut waiting = Together::new((0..count).map(|stripe| take(stripe, left)));
            refused = false;
            while let Some((_, answer)) = waiting.next().await {
                match answer {
                    Ok(Some(guard)) => return Ok(Some(guard)),
                    Ok(None) => refused = true,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        match failed {
            Some(error) if !refused => Err(error),
            _ => Ok(None),
        }
    }
}

/// The CRC-16/XMODEM of a key, as Redis Cluster has it.
fn crc16(key: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in key {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

impl fmt::Debug for StripedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripedLock")
            .field("first", &self.stripes[0])
            .field("stripes", &self.stripes.len())
            .finish()
    }
}

/// A held stripe: a [`LockGuard`] that knows which one it is.
#[must_use = "dropping the guard gives the lock back: bind it, `let _guard = ..`, not `let _ = ..`"]
#[derive(Debug)]
pub struct StripeGuard {
    stripe: usize,
    guard: LockGuard,
}

impl StripeGuard {
    /// The number of the stripe, from 0.
    pub fn stripe(&self) -> usize {
        self.stripe
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
        self.guard.unlock().await
    }

    /// As [`LockGuard::forget`].
    pub fn forget(self) {
        self.guard.forget();
    }

    /// As [`LockGuard::detach`].
    pub fn detach(self) -> Self {
        Self { guard: self.guard.detach(), ..self }
    }
}

impl Deref for StripeGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.guard
    }
}

impl From<StripeGuard> for LockGuard {
    fn from(guard: StripeGuard) -> Self {
        guard.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of other implementations: they may never change.
    #[test]
    fn the_stripe_of_a_key_is_the_sum_that_redis_cluster_uses() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
        for key in ["alice", "user:1000", "ü"] {
            assert_eq!(crc16(key.as_bytes()) % 16384, crate::server::slot_of(key));
        }
    }

    #[test]
    fn keys_are_spread_evenly() {
        for stripes in [2, 3, 8, 64, 100] {
            let mut keys = vec![0; stripes];
            (0..stripes * 1000).for_each(|at| {
                keys[usize::from(crc16(format!("user:{}", at * 2).as_bytes())) % stripes] += 1;
            });
            assert!(keys.iter().all(|keys| (800..1250).contains(keys)), "{stripes}: {keys:?}");
        }
    }
}

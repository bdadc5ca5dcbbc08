//! The spin lock, shared with Redisson's `RSpinLock`.

use crate::client::Client;
use crate::engine::recipe::{Kind, Mode, Waiting};
use crate::sync::Lock;
use crate::sync::lock::REENTRANT;

static SPIN_LOCK: Kind = Kind { name: "spin lock", waiting: Waiting::Spin, ..REENTRANT };

impl Client {
    /// The spin lock of this name: a reentrant lock without messages.
    ///
    /// As [`lock`](Client::lock), and the same lock in Redis, but nobody subscribes and nobody
    /// publishes: the first waiter of a process tries again and again, after 1 ms, then less and less
    /// often, up to every 128 ms, each pause shortened by up to half at random, and by the end of the
    /// holder's lease. It needs no right to use channels, and no server that has them;
    /// [`WaitMode::Spin`](crate::WaitMode::Spin) makes every lock of a client wait so.
    ///
    /// Tasks of one process hand it on as a plain lock, for the
    /// [window](crate::Builder::hand_over_window). Then the next of them leaves the lock free for a
    /// quarter of the time that it was held, 128 ms at most, so that other processes meet it free
    /// now and then. It promises no order between processes.
    ///
    /// # When to use something else
    ///
    /// If waiting takes longer than a few round trips, [`lock`](Client::lock) wakes sooner and asks
    /// far less often.
    ///
    /// # One kind for each name
    ///
    /// The lock, the fenced lock and the spin lock of one name are one hash in Redis, so they exclude
    /// each other. But each kind has its own queue and owners in a client, and the owner of one does
    /// not enter the other: a task that holds the lock and waits for the spin lock of the same name
    /// waits for itself, for as long as the first is renewed. And waiters of a plain lock are not
    /// woken by a release of a spin lock: they wait for the end of the lease that they saw, or the
    /// client's [`fallback_cap`](crate::Builder::fallback_cap). So use one kind for a name
    /// everywhere, in Java too.
    ///
    /// # Redis
    ///
    /// The key `name`, as for [`Lock`]. The scripts that give back also name its channel, so where a
    /// user's keys are limited, `redisson_lock__channel:{name}` must be among them, as a key.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let total = client.spin_lock("counter").with(|_held| async { 1 + 1 }).await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "getSpinLock")]
    #[doc(alias = "RSpinLock")]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&SPIN_LOCK, Mode::Exclusive, name.as_ref())
    }
}

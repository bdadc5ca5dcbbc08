//! The spin lock, shared with Redisson's `RSpinLock`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Key, Kind, Mode, Verb, Verbs, Waiting, client_and_id, no_key};
use crate::keys::Keys;
use crate::server::script::LOCK_ACQUIRE;
use crate::sync::Lock;
use crate::sync::lock::{FORCE_RELEASE, INSPECT, RELEASE, RENEW};

static SPIN_LOCK: Kind = Kind {
    name: "spin lock",
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
    waiting: Waiting::Spin,
    look_every: None,
    channel_of: no_key,
    field: client_and_id,
    key_of_hold: no_key,
};

impl Client {
    /// The spin lock of this name: a reentrant lock without messages.
    ///
    /// As [`lock`](Client::lock), and the same lock in Redis, but nobody subscribes and nobody
    /// publishes: the head of this process's queue tries again and again, after 1 ms, then less and
    /// less often, up to every 128 ms, each pause shortened by up to half at random. For locks that
    /// are held for a few milliseconds by many, and for servers or users without pub/sub
    /// ([`WaitMode::Spin`](crate::WaitMode::Spin) makes every lock of a client one).
    ///
    /// # When to use something else
    ///
    /// If waiting takes longer than a few round trips, [`lock`](Client::lock) wakes sooner and asks
    /// far less often. Waiters of a plain lock on the same name are excluded, but not woken: they
    /// wait for their timers.
    ///
    /// # Redis
    ///
    /// The key `name`, as for [`Lock`].
    #[doc(alias = "getSpinLock")]
    #[doc(alias = "RSpinLock")]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&SPIN_LOCK, Mode::Exclusive, name.as_ref())
    }
}

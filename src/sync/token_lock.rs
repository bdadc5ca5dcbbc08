//! The plain lock of Redis's own pages: `SET name token NX PX`.

use crate::client::Client;
use crate::engine::recipe::{
    Arg, Direct, Key, Kind, Mode, Verb, Verbs, Waiting, client_and_id, no_key,
};
use crate::keys::Keys;
use crate::server::script::{
    TOKEN_LOCK_ACQUIRE, TOKEN_LOCK_FORCE_RELEASE, TOKEN_LOCK_INSPECT, TOKEN_LOCK_RELEASE,
    TOKEN_LOCK_RENEW,
};
use crate::sync::Lock;
use std::time::Duration;

static TOKEN_LOCK: Kind = Kind {
    name: "token lock",
    keys: |name, _| Keys::token_lock(name),
    exclusive: Some(Verbs {
        acquire: Verb {
            script: &TOKEN_LOCK_ACQUIRE,
            keys: &[Key::Name],
            args: &[Arg::Lease, Arg::Field],
        },
        release: Some(Verb {
            script: &TOKEN_LOCK_RELEASE,
            keys: &[Key::Name, Key::Channel],
            args: &[Arg::Field, Arg::Publish],
        }),
    }),
    shared: None,
    renew: Some(Verb {
        script: &TOKEN_LOCK_RENEW,
        keys: &[Key::Name],
        args: &[Arg::Lease, Arg::Field],
    }),
    inspect: Some(Direct { script: &TOKEN_LOCK_INSPECT, keys: &[Key::Name], by_mode: false }),
    force_release: Some(Direct {
        script: &TOKEN_LOCK_FORCE_RELEASE,
        keys: &[Key::Name, Key::Channel],
        by_mode: false,
    }),
    owned: true,
    reenters: false,
    hands_over: true,
    held: true,
    keeps_records: false,
    waiting: Waiting::Listen,
    // Who releases it in another library tells nobody.
    look_every: Some(Duration::from_millis(500)),
    channel_of: no_key,
    field: client_and_id,
    key_of_hold: no_key,
};

impl Client {
    /// The token lock of this name: the plain Redis lock that redis-py, redsync, node-redlock and
    /// ShedLock use too.
    ///
    /// One string key with a random token and a TTL. Everything a [`Lock`] does works, but it is
    /// **not reentrant**: an owner that asks for what it holds gets
    /// [`OwnHold`](crate::ErrorKind::OwnHold) instead of waiting for itself.
    ///
    /// Our own releases wake our waiters by message. Other libraries tell nobody, so a waiter also
    /// looks every 500 ms (Redisson does not know this lock).
    ///
    /// # When to use something else
    ///
    /// Only if other libraries share the lock: [`lock`](Client::lock) can do more for the same
    /// price.
    ///
    /// # Redis
    ///
    /// The key `name`, a string with the token, with the lease as its TTL; the channel
    /// `leasehold_token_lock:{name}`.
    #[doc(alias = "redlock")]
    #[doc(alias = "SET NX")]
    pub fn token_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&TOKEN_LOCK, Mode::Exclusive, name.as_ref())
    }
}

//! The plain lock of Redis's own pages: `SET name token NX PX`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Direct, Key, Kind, Mode, Verb, Verbs};
use crate::keys::Keys;
use crate::server::script::{
    TOKEN_LOCK_ACQUIRE, TOKEN_LOCK_FORCE_RELEASE, TOKEN_LOCK_INSPECT, TOKEN_LOCK_RELEASE,
    TOKEN_LOCK_RENEW,
};
use crate::sync::Lock;
use crate::sync::lock::REENTRANT;
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
    reenters: false,
    // Who releases it in another library tells nobody.
    look_every: Some(Duration::from_millis(500)),
    ..REENTRANT
};

impl Client {
    /// The token lock of this name: the plain Redis lock that redis-py, redsync, node-redlock and
    /// ShedLock use too.
    ///
    /// One string key with a token and a TTL, taken by `SET name token NX PX`, given back by compare
    /// and delete, renewed by compare and extend. Everything a [`Lock`] does works, with these
    /// differences:
    ///
    /// * It is **not reentrant**. An owner that asks for what it holds, also in a scope inside it,
    ///   gets [`OwnHold`](crate::ErrorKind::OwnHold) instead of waiting for itself, from `try_lock`
    ///   too; another branch of the same task gets
    ///   [`ConcurrentOwner`](crate::ErrorKind::ConcurrentOwner), as for every lock.
    /// * Our own releases wake our waiters by message. Other libraries tell nobody, so the first
    ///   waiter of a process also looks when the TTL it saw ends, and every 500 ms.
    /// * The [`holder`](Lock::holder) is the token in the key. Of another library it may be any bytes;
    ///   what is no UTF-8 is shown with replacement characters, and
    ///   [`force_unlock_if`](Lock::force_unlock_if) then finds nobody of that name.
    ///
    /// # Sharing it
    ///
    /// The name must be the other library's key, whole: ShedLock, for one, puts a prefix and the
    /// environment in front of its names. A lock without a TTL, as redis-py takes it unless it is
    /// told otherwise, is respected for as long as it stands; if its holder dies, for ever. Lua
    /// scripts that compare and delete leave our hold alone; a plain `DEL` or `SET` does not, and its
    /// owner is then told by the next renewal that the hold is [lost](crate::Held::lost). Libraries
    /// that take a majority of several servers (Redlock) lock each of them in this way, but this lock
    /// is held on one.
    ///
    /// # When to use something else
    ///
    /// Only if other libraries share the lock: [`lock`](Client::lock) can do more for the same
    /// price. Redisson does not know this lock.
    ///
    /// # Errors
    ///
    /// As for [`Lock`]; a name that has a lock of another kind is
    /// [`WrongType`](crate::ErrorKind::WrongType).
    ///
    /// # Redis
    ///
    /// The key `name`, a string with the token `<uuid>:<id>`, never used before, with the lease as
    /// its TTL; the channel `leasehold_token_lock:{name}`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// // In Python: with redis.lock("report:daily", timeout=30): ...
    /// let guard = client.token_lock("report:daily").lock().await?;
    /// guard.unlock().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "redlock")]
    #[doc(alias = "SET NX")]
    pub fn token_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&TOKEN_LOCK, Mode::Exclusive, name.as_ref())
    }
}

//! The fair lock, shared with Redisson's `RFairLock`.

use crate::client::Client;
use crate::engine::recipe::{
    Arg, Direct, Key, Kind, Mode, Verb, Verbs, Waiting, client_and_id, no_key,
};
use crate::keys::{Keys, own_channel};
use crate::server::script::{
    FAIR_LOCK_ACQUIRE, FAIR_LOCK_FORCE_RELEASE, FAIR_LOCK_RELEASE, FAIR_LOCK_RENEW,
};
use crate::sync::Lock;
use crate::sync::lock::INSPECT;

/// What a place in the queue adds to the deadlines behind it, in milliseconds: Redisson's
/// `fairLockWaitTimeout`.
const WAIT: &str = "300000";

const QUEUE: Key = Key::Helper(0);
const DEADLINES: Key = Key::Helper(1);
const BEATS: Key = Key::Helper(2);

static FAIR_LOCK: Kind = Kind {
    name: "fair lock",
    keys: |name, _| Keys::fair_lock(name),
    exclusive: Some(Verbs {
        acquire: Verb {
            script: &FAIR_LOCK_ACQUIRE,
            keys: &[Key::Name, QUEUE, DEADLINES, BEATS],
            args: &[Arg::Lease, Arg::Field, Arg::Count, Arg::Line],
        },
        release: Some(Verb {
            script: &FAIR_LOCK_RELEASE,
            keys: &[Key::Name, QUEUE, DEADLINES, BEATS, Key::Channel],
            args: &[Arg::Field, Arg::Count, Arg::Publish],
        }),
    }),
    shared: None,
    renew: Some(Verb {
        script: &FAIR_LOCK_RENEW,
        keys: &[Key::Name, QUEUE, DEADLINES, BEATS, Key::Channel],
        args: &[Arg::Lease, Arg::Field, Arg::Extra, Arg::Publish],
    }),
    inspect: Some(INSPECT),
    force_release: Some(Direct {
        script: &FAIR_LOCK_FORCE_RELEASE,
        keys: &[Key::Name, QUEUE, DEADLINES, BEATS, Key::Channel],
        by_mode: false,
    }),
    owned: true,
    reenters: true,
    // The next in line may be in another process.
    hands_over: false,
    held: true,
    keeps_records: false,
    waiting: Waiting::InLine,
    look_every: None,
    channel_of: own_channel,
    field: client_and_id,
    key_of_hold: no_key,
};

impl Client {
    /// The fair lock of this name: served in order of arrival, over all processes.
    ///
    /// Everything a [`Lock`] does works the same. Each waiter has a place in a queue in Redis, among
    /// them those of Java's `RFairLock`, and is told by itself when it is its turn. A waiter that
    /// gives up, or whose future is dropped, leaves the queue at once. One whose process dies is
    /// passed over within 4 s, and so are five in a row; Redisson's own stay for up to five minutes.
    ///
    /// # When to use something else
    ///
    /// Order has its price: every acquisition asks Redis, nothing is handed over in memory, and while
    /// a process waits it sends a sign of life each second. Where nobody must starve but order does
    /// not matter, [`lock`](Client::lock) is many times faster, and fair within a process.
    ///
    /// # What it promises
    ///
    /// What a [`Lock`] promises, and the order in which the server heard of waiters. Not before
    /// waiters that came back after their process was stopped for more than 4 s (they queue anew,
    /// ahead of later ones of ours if they can), and not after a grant that was not collected
    /// (a future that is not polled for
    /// [`collect_within`](crate::Builder::collect_within) queues anew). A Java waiter with a longer
    /// `waitTime` than its peers can cost one second. A plain [`lock`](Client::lock) of the same name
    /// excludes it, but does not heed the queue.
    ///
    /// # Redis
    ///
    /// The key `name`, as for [`Lock`]; the list `redisson_lock_queue:{name}` and the sorted set
    /// `redisson_lock_timeout:{name}`, without TTLs as Redisson has them, gone when nobody waits; the
    /// hash `leasehold_fair:{name}` with a TTL of a minute; a channel for each waiter,
    /// `redisson_lock__channel:{name}:<uuid>:<id>`.
    #[doc(alias = "getFairLock")]
    #[doc(alias = "RFairLock")]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&FAIR_LOCK, Mode::Exclusive, name.as_ref()).extra(WAIT)
    }
}

//! The fair lock, shared with Redisson's `RFairLock`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Direct, Key, Kind, Mode, Verb, Verbs, Waiting};
use crate::keys::{Keys, own_channel};
use crate::server::script::{
    FAIR_LOCK_ACQUIRE, FAIR_LOCK_FORCE_RELEASE, FAIR_LOCK_RELEASE, FAIR_LOCK_RENEW,
};
use crate::sync::Lock;
use crate::sync::lock::REENTRANT;

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
    renew: Some(Verb {
        script: &FAIR_LOCK_RENEW,
        keys: &[Key::Name, QUEUE, DEADLINES, BEATS, Key::Channel],
        args: &[Arg::Lease, Arg::Field, Arg::Extra, Arg::Publish],
    }),
    force_release: Some(Direct {
        script: &FAIR_LOCK_FORCE_RELEASE,
        keys: &[Key::Name, QUEUE, DEADLINES, BEATS, Key::Channel],
        by_mode: false,
    }),
    // The next in line may be in another process.
    hands_over: false,
    waiting: Waiting::InLine,
    channel_of: own_channel,
    ..REENTRANT
};

impl Client {
    /// The fair lock of this name: served in order of arrival, over all processes.
    ///
    /// Everything a [`Lock`] does works the same. Each waiter has a place in a queue in Redis,
    /// among them those of Java's `RFairLock`, and is told by itself when it is its turn. A waiter
    /// that gives up, or whose future is dropped, leaves the queue at once; while the server cannot
    /// be reached, as soon as it can. Waiters whose process died are passed over about 4 s after
    /// its last sign of life, five in a row together; Redisson's own stay for up to five minutes.
    ///
    /// # When to use something else
    ///
    /// Order has its price: every acquisition asks Redis, nothing is handed over in memory, and
    /// while a process waits it sends a sign of life each second, for up to 128 waiters in one
    /// command. Where nobody must starve but order does not matter, [`lock`](Client::lock) is many
    /// times faster, and fair within a process.
    ///
    /// # What it promises
    ///
    /// What a [`Lock`] promises, and the order in which the server heard of waiters:
    ///
    /// * [`try_lock_now`](Lock::try_lock_now) never queues, and never takes a free lock before
    ///   those who do.
    /// * Whoever holds it enters again past the queue, and so do the [scopes](crate::Owner::scope)
    ///   inside its hold. Those that stand in the queue when a hold around them is granted leave
    ///   it.
    /// * A lost reply, a broken connection and a restart of the server with its data cost nobody
    ///   its place. After a restart without them all queue anew, in no order over processes.
    /// * A lost message costs a second or so. Where none gets through at all, each turn may cost what
    ///   the lease of the holder before had left.
    ///
    /// # Limits
    ///
    /// * Who was not heard of for 4 s (the process was stopped, or its connection was broken for
    ///   that long) is passed over. When it is heard of again within a minute it gets its place
    ///   back, ahead of later ones of ours, behind Java's that had moved up; those served meanwhile
    ///   were served before it.
    /// * A future that does not collect its grant within
    ///   [`collect_within`](crate::Builder::collect_within) queues anew when it is polled again.
    /// * Signs of life come from a thread of their own: a process whose runtime is blocked keeps
    ///   its places, and when it is the turn of one of them, the others wait.
    /// * Our dead are removed by any of ours that waits, takes the lock or gives it back. Where
    ///   only Java's waiters are left behind them, they stay as long as Java's own dead do.
    /// * A Java waiter with a longer `waitTime` than its peers can cost one of ours its place for a
    ///   second.
    /// * A plain [`lock`](Client::lock) of the same name excludes it, but does not heed the queue;
    ///   waiters hear of its release within a second or so.
    /// * With [`WaitMode::Spin`](crate::WaitMode::Spin) the order is kept, but each waiter asks
    ///   eight to sixteen times a second, and releases tell nobody, Java's waiters included.
    ///
    /// # Redis
    ///
    /// The key `name`, as for [`Lock`]; the list `redisson_lock_queue:{name}` and the sorted set
    /// `redisson_lock_timeout:{name}`, without TTLs as Redisson has them, gone when nobody waits;
    /// the hash `leasehold_fair:{name}` with a TTL of a minute, in which the dead are remembered
    /// for that long; a channel for each waiter, `redisson_lock__channel:{name}:<uuid>:<id>`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let turns = client.fair_lock("printer");
    /// let guard = turns.lock().await?; // first come, first served
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "getFairLock")]
    #[doc(alias = "RFairLock")]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> Lock {
        self.handle(&FAIR_LOCK, Mode::Exclusive, name.as_ref()).extra(WAIT)
    }
}

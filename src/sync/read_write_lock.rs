//! The read/write lock, shared with Redisson's `RReadWriteLock`.

use crate::client::Client;
use crate::engine::recipe::{Arg, Direct, Key, Kind, Mode, Verb, Verbs};
use crate::keys::{Keys, read_hold};
use crate::server::script::{
    READ_WRITE_LOCK_FORCE_RELEASE, READ_WRITE_LOCK_INSPECT, READ_WRITE_LOCK_READ_ACQUIRE,
    READ_WRITE_LOCK_READ_RELEASE, READ_WRITE_LOCK_RENEW, READ_WRITE_LOCK_WRITE_ACQUIRE,
    READ_WRITE_LOCK_WRITE_RELEASE,
};
use crate::sync::Lock;
use crate::sync::lock::REENTRANT;
use std::fmt;

/// What the keys of all read holds begin with.
const PREFIX: Key = Key::Helper(0);

static READ_WRITE_LOCK: Kind = Kind {
    name: "read/write lock",
    keys: |name, _| Keys::read_write_lock(name),
    exclusive: Some(Verbs {
        acquire: Verb {
            script: &READ_WRITE_LOCK_WRITE_ACQUIRE,
            keys: &[Key::Name],
            args: &[Arg::Lease, Arg::Field, Arg::Count],
        },
        release: Some(Verb {
            script: &READ_WRITE_LOCK_WRITE_RELEASE,
            keys: &[Key::Name, Key::Channel, Key::OfHold],
            args: &[Arg::Field, Arg::Count, Arg::Publish],
        }),
    }),
    shared: Some(Verbs {
        acquire: Verb {
            script: &READ_WRITE_LOCK_READ_ACQUIRE,
            keys: &[Key::Name, Key::OfHold],
            args: &[Arg::Lease, Arg::Field, Arg::Count, Arg::Stands],
        },
        release: Some(Verb {
            script: &READ_WRITE_LOCK_READ_RELEASE,
            keys: &[Key::Name, Key::Channel, Key::OfHold, PREFIX],
            args: &[Arg::Field, Arg::Count, Arg::Publish],
        }),
    }),
    renew: Some(Verb {
        script: &READ_WRITE_LOCK_RENEW,
        keys: &[Key::Name, Key::OfHold],
        args: &[Arg::Lease, Arg::Field, Arg::Stands],
    }),
    inspect: Some(Direct { script: &READ_WRITE_LOCK_INSPECT, keys: &[Key::Name], by_mode: true }),
    force_release: Some(Direct {
        script: &READ_WRITE_LOCK_FORCE_RELEASE,
        keys: &[Key::Name, Key::Channel, PREFIX],
        by_mode: true,
    }),
    channel_of: |_, _| String::new(),
    key_of_hold: read_hold,
    ..REENTRANT
};

impl Client {
    /// The read/write lock of this name, see [`ReadWriteLock`].
    ///
    /// Sends nothing and cannot fail; a name that cannot be a lock's is refused by the first use.
    #[doc(alias = "getReadWriteLock")]
    #[doc(alias = "RReadWriteLock")]
    pub fn read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        let handle = |mode| self.handle(&READ_WRITE_LOCK, mode, name.as_ref());
        ReadWriteLock { read: handle(Mode::Shared), write: handle(Mode::Exclusive) }
    }
}

/// Many readers or one writer.
///
/// [`read`](ReadWriteLock::read) and [`write`](ReadWriteLock::write) are handles with every verb
/// of a [`Lock`], each on its half.
///
/// # When to use something else
///
/// Each read is a write to Redis: where sections are short, [`Client::lock`] is as fast. Use this
/// where readers hold the lock for long, and many at a time.
///
/// # What it promises
///
/// What a [`Lock`] promises, and:
///
/// * Readers do not exclude each other, nor do [scopes](crate::Owner::scope) that read inside one
///   hold; a writer excludes everyone but itself.
/// * Each reader has a lease of its own, which no other reader or writer shortens, and none is kept
///   alive by others: who dies while reading is in a writer's way for one lease at most. (If a
///   reader of another process with a longer lease leaves meanwhile, the writer may look again only
///   when that lease would have ended, or the client's
///   [`fallback_cap`](crate::Builder::fallback_cap) is over.)
/// * A writer may read as well, and keeps reading when it gives the write lock back (a downgrade);
///   waiting readers are woken then.
/// * A reader cannot become a writer: it would wait for itself. Asking for it is
///   [`OwnHold`](crate::ErrorKind::OwnHold), at once, also for the scopes inside a reader.
/// * Within a process, who came first goes first: readers that come after a waiting writer wait
///   behind it, unless they enter a hold that is there already. Between processes there is no such
///   order.
///
/// # Two halves of one hold
///
/// What an owner reads with inside its own write lock belongs to the same hold: it is renewed with
/// it, stands for as long as the longest of its leases, and is lost with it, whichever half was
/// taken away. Halves may be given back in any order; giving back the reading changes nothing for
/// the writer. Each half counts for itself, up to 5 000 times:
/// [`hold_count`](Lock::hold_count), [`is_held_by_me`](Lock::is_held_by_me) and
/// [`holder`](Lock::holder) are about one half.
///
/// [`force_unlock`](Lock::force_unlock) of the write half takes what the writer reads with, too.
/// That of the read half takes the lock from readers; while somebody writes it does nothing and is
/// `false`, as in Redisson.
///
/// # Why writers cannot be preferred
///
/// Readers of other processes may keep a writer out for as long as they overlap, as in Redisson,
/// and there is no setting against that. What is shared with Redisson has no place to say that a
/// writer waits, and Java's readers would not look for one. The one thing that can be seen, how
/// many listen to the lock's channel, is a hint at best: those may be readers, a cluster counts the
/// listeners of one node only, and it would cost each contended read a call more. Where a writer
/// must get in soon, keep reads short, or have readers pass through a
/// [`fair_lock`](Client::fair_lock): they take it and give it back before they read, and the writer
/// holds it while it waits.
///
/// # Redis
///
/// The key `name`, a hash with the field `mode` (`read` or `write`), `<uuid>:<id>` to the read count
/// and `<uuid>:<id>:write` to the write count; for each read a key
/// `{name}:<uuid>:<id>:rwlock_timeout:<n>` with its lease; the channel `redisson_rwlock:{name}`.
///
/// # Examples
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// let catalogue = client.read_write_lock("catalogue");
/// let reading = catalogue.read().lock().await?;
/// reading.unlock().await?;
///
/// let writing = catalogue.write().lock().await?;
/// let reading = catalogue.read().lock().await?; // allowed: it is the writer
/// writing.unlock().await?; // others may read now, too
/// reading.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is locked"]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock,
}

impl ReadWriteLock {
    /// The half that many can hold at a time.
    #[doc(alias = "readLock")]
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The half that one owner can hold, and only while no other reads.
    #[doc(alias = "writeLock")]
    pub fn write(&self) -> Lock {
        self.write.clone()
    }

    /// The name, as it is in Redis; empty if it cannot be used.
    pub fn name(&self) -> &str {
        self.write.name()
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock").field("name", &self.name()).finish_non_exhaustive()
    }
}

//! Distributed locks on Redis and Valkey for async Rust, sharing their data with Java's Redisson.
//!
//! ```no_run
//! use leasehold::{Client, Error};
//! use std::time::Duration;
//!
//! # async fn f() -> Result<(), Error> {
//! let client = Client::connect("redis://127.0.0.1:6379").await?;
//! let lock = client.lock("invoice:42");
//!
//! let guard = lock.lock().await?; // waits; renewed until the guard is dropped
//! guard.unlock().await?; //          or let it go out of scope
//!
//! let (wait, lease) = (Duration::from_secs(1), Duration::from_secs(10));
//! if let Some(_guard) = lock.try_lock(wait, lease).await? {
//!     println!("held for ten seconds at most");
//! }
//! client.close().await; // gives back what was just dropped
//! # Ok(()) }
//! ```
//!
//! # Which one do I want?
//!
//! | you want | use |
//! |---|---|
//! | one at a time, within one process | `tokio::sync::Mutex` |
//! | one at a time, in all processes that share a Redis | [`Client::lock`]: [`Lock::lock`] waits, [`Lock::try_lock`] waits for so long |
//! | the same, stopped when the lock is lost | [`Lock::with`], [`Lock::try_with`] |
//! | to leave it to whoever came first | [`Lock::try_lock_now`] |
//! | one owner over several tasks, or several in one task | [`Owner`] |
//!
//! | | for | re-entrant | fair | token | renewed | quorum | in Java |
//! |---|---|---|---|---|---|---|---|
//! | [`Client::lock`] | one at a time; the default | yes | in a process | – | yes | – | `RLock` |
//! | [`Client::fair_lock`] | one at a time, in order of arrival over all processes | yes | yes | – | yes | – | `RFairLock` |
//! | [`Client::read_write_lock`] | many readers or one writer | yes | in a process | – | yes | – | `RReadWriteLock` |
//! | [`Client::fenced_lock`] | a store that refuses writes of stale holders | yes | in a process | yes | yes | – | `RFencedLock` |
//! | [`Client::spin_lock`] | servers or users without pub/sub | yes | in a process | – | yes | – | `RSpinLock` |
//! | [`Client::token_lock`] | sharing with redis-py, redsync, node-redlock, ShedLock | no | in a process | – | yes | – | – |
//! | [`MultiLock`] | several locks, all or none | as its locks | – | – | yes | – | `RedissonMultiLock` |
//! | [`RedLock`] | a majority of independent servers | as its locks | – | – | yes | yes | `RedissonRedLock` |
//! | [`Client::striped_lock`] | one hot name in n parts | as `lock` | in a process | – | yes | – | – |
//! | [`Client::permit_semaphore`] | n at a time; a dead process gives back | – | in a process | – | yes | – | `RPermitExpirableSemaphore` |
//! | [`Client::semaphore`] | n at a time, counted only | – | in a process | – | – | – | `RSemaphore` |
//! | [`Client::count_down_latch`] | waiting for n events | – | – | – | – | – | `RCountDownLatch` |
//!
//! What they cost in commands, when nobody is in the way: one to take and one to give back, for every
//! one of them (`MultiLock` and `RedLock`: for each of their locks). A renewal is a share of one command
//! for up to 128 holds. Who waits sends one try when it comes, one when it has subscribed, and one for
//! each message or timer; in a `fair_lock` one more each second, for up to 128 waiters of a process
//! together; a `spin_lock` tries every 1 to 128 ms.
//!
//! # Guarantees
//!
//! * At most one owner holds a lock, while its lease stands on a Redis that loses no acknowledged
//!   write.
//! * The end of a lease is told to its holder ([`Held::lost`]) before anyone else can have the lock,
//!   as far as both clocks run at the same rate and the process runs at all.
//! * A release wakes a waiter by message; a lost message costs bounded time.
//! * A holder that dies frees its locks within one lease; one that lives keeps them.
//! * A dropped future leaves nothing behind, and a lost reply is counted once.
//!
//! # Limits
//!
//! * A lease is not a fence: a process that was paused for longer goes on without the lock. Where two
//!   writers at once would corrupt data, let the store check a token ([`FencedLock`]) or a version.
//! * One Redis decides (unless you take a [`RedLock`]). A failover, an eviction or a restart without persistence
//!   can lose a lock. Its holder is told at the next renewal or reconnect.
//! * There is no order between processes, but for the fair lock; within one, tasks are served as they
//!   came.
//! * A [`Semaphore`] has no owners: the permits of a killed process are gone.
//! * Locks of different kinds on one name are different locks to a process, even where they share
//!   data in Redis: an owner does not re-enter across kinds.
//! * A guard dropped as `main` ends is not given back: await [`Client::close`]. One that moves to
//!   another task needs [`LockGuard::detach`].
//! * `if lock.try_lock(..).await?.is_some() {}` and `let _ = lock.lock().await?` give the lock back at
//!   once: bind the guard to a name.
//! * What runs in one task is one owner. Branches of `join!` and `select!`, and requests of one
//!   keep-alive connection, may re-enter what they should wait for: see [`Owner::scope`] and
//!   [`Reentry::Scoped`].
//!
//! Needs tokio, and Redis 7.0 or Valkey 7.2.
//!
//! # Features
//!
//! None is on by default: `tls-rustls` and `tls-native` (TLS), `sentinel` (a login of their own for
//! sentinels), `unix` (Unix sockets), `fred` (server, login and TLS from a fred client).
//!
//! # More
//!
//! Settings and their bounds: [`Builder`]. What can go wrong: [`Error`] and [`ErrorKind`]. Coming from
//! Java: [`migrating`], and `cargo run --example from_redisson`. README.md has all limits in one
//! table, the rights that a user needs, and a comparison; lua/README.md is the protocol for clients
//! in other languages.
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]

mod client;
mod config;
mod engine;
mod error;
mod keys;
mod lease;
pub mod migrating;
mod owner;
mod server;
mod sync;

pub use client::{Builder, Client};
pub use config::{NamesInLogs, PublishMode, Reentry, WaitMode};
pub use error::{Error, ErrorKind, LostReason, Refusal};
#[cfg(feature = "fred")]
pub use fred;
pub use keys::LONGEST_NAME;
pub use lease::{LONGEST_LEASE, Lease, SHORTEST_LEASE};
pub use owner::Owner;
pub use sync::{
    CountDownLatch, FencedGuard, FencedLock, Held, Holder, JointGuard, JointHeld, Lock, LockGuard,
    MultiLock, Permit, PermitId, PermitSemaphore, Permits, ReadWriteLock, RedLock, Semaphore,
    SemaphorePermit, StripeGuard, StripedLock,
};

/// The README's code must compile, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

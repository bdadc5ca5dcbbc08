//! Distributed locks on Redis and Valkey for async Rust, sharing their data with Java's Redisson.
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]

mod client;
mod config;
mod engine;
mod error;
mod keys;
mod lease;
mod owner;
mod server;
mod sync;

pub use client::{Builder, Client};
pub use config::{NamesInLogs, PublishMode, Reentry};
pub use error::{Error, ErrorKind, LostReason, Refusal};
#[cfg(feature = "fred")]
pub use fred;
pub use keys::LONGEST_NAME;
pub use lease::{LONGEST_LEASE, Lease, SHORTEST_LEASE};
pub use owner::Owner;
pub use sync::{Held, Holder, Lock, LockGuard};

//! This crate and Java's Redisson itself, on the same locks of the same servers.
//!
//! Needs a JVM and what `.ci/run interop` builds, so `cargo test` leaves it out: run that, or, once
//! it has built, `cargo test --test interop`. `LEASEHOLD_REDISSON` names the version to run with.
#[path = "../support/mod.rs"]
mod support;

mod both_ways;
mod cluster;
mod contender;
mod contention;
mod crowd;
mod fair;
mod fenced;
mod kinds;
mod known_bugs;
mod latch;
mod loss;
mod names;
mod pair;
mod peer;
mod process;
mod read_write;
mod red_lock;
mod semaphores;
mod spin_and_multi;
mod verdict;

//! All tests against real servers, in one program: it links once, and its tests run side by side.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/self_test.rs"]
mod support_itself;

mod api;
mod cancellation;
mod cluster;
mod contract;
mod count_down_latch;
mod exclusion;
mod failovers;
mod fair_lock;
mod fenced_lock;
mod ghosts;
mod guards;
mod hand_over;
mod loss;
mod lost_replies;
mod multi_lock;
mod outages;
mod owners;
mod patience;
mod permit_semaphore;
mod read_write_lock;
mod red_lock;
mod reentry;
mod refusals;
mod renewal;
mod replicas;
mod rig;
mod rights;
mod scripts;
mod semaphore;
mod servers;
mod spin_lock;
mod storms;
mod striped_lock;
mod tidy;
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
mod tls;
mod token_lock;
mod topologies;
mod traps;
mod waiting;
mod wire;

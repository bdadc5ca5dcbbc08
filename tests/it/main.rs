//! All tests against real servers, in one program: it links once, and its tests run side by side.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod cancellation;
mod exclusion;
mod ghosts;
mod guards;
mod loss;
mod lost_replies;
mod outages;
mod owners;
mod patience;
mod reentry;
mod refusals;
mod renewal;
mod rig;
mod scripts;
mod tidy;
mod topologies;
mod traps;
mod waiting;
mod wire;

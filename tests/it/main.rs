//! All tests against real servers, in one program: it links once, and its tests run side by side.

#[path = "../support/mod.rs"]
mod support;

mod cancellation;
mod exclusion;
mod loss;
mod refusals;
mod renewal;
mod scripts;
mod topologies;
mod waiting;
mod wire;

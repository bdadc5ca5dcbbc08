//! All tests against real servers, in one program: it links once, and its tests run side by side.

mod cancellation;
mod exclusion;
mod hand_over;
mod loss;
mod renewal;
mod rig;
#[path = "../support/mod.rs"]
mod support;
mod waiting;

//! What users see: one synchronizer a file, each a recipe, a guard and docs.

mod held;
mod lock;

pub use held::{Held, Holder};
pub use lock::{Lock, LockGuard};

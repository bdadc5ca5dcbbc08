//! What users see: one synchronizer a file.

mod fenced_lock;
mod guard;
mod held;
mod lock;
mod spin_lock;
mod token_lock;

pub use fenced_lock::{FencedGuard, FencedLock};
pub use guard::LockGuard;
pub use held::{Held, Holder};
pub(crate) use lock::LOCK;
pub use lock::Lock;

//! What users see: one synchronizer a file.

mod guard;
mod held;
mod lock;

pub use guard::LockGuard;
pub use held::{Held, Holder};
pub(crate) use lock::LOCK;
pub use lock::Lock;

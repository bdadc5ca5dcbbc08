//! What users see: one synchronizer a file.

mod count_down_latch;
mod fair_lock;
mod fenced_lock;
mod guard;
mod held;
mod lock;
mod permit_semaphore;
mod read_write_lock;
mod semaphore;
mod spin_lock;
mod token_lock;

pub use count_down_latch::CountDownLatch;
pub use fenced_lock::{FencedGuard, FencedLock};
pub use guard::LockGuard;
pub use held::{Held, Holder};
pub(crate) use lock::LOCK;
pub use lock::Lock;
pub use permit_semaphore::{Permit, PermitId, PermitSemaphore, Permits};
pub use read_write_lock::ReadWriteLock;
pub use semaphore::{Semaphore, SemaphorePermit};

//! What users see: one synchronizer a file.

mod count_down_latch;
mod fair_lock;
mod fenced_lock;
mod guard;
mod held;
mod joint;
mod lock;
mod multi_lock;
mod permit_semaphore;
mod read_write_lock;
mod red_lock;
mod semaphore;
mod spin_lock;
mod striped_lock;
mod token_lock;

pub use count_down_latch::CountDownLatch;
pub use fenced_lock::{FencedGuard, FencedLock};
pub use guard::LockGuard;
pub use held::{Held, Holder};
pub use joint::{JointGuard, JointHeld};
pub(crate) use lock::LOCK;
pub use lock::Lock;
pub use multi_lock::MultiLock;
pub use permit_semaphore::{Permit, PermitId, PermitSemaphore, Permits};
pub use read_write_lock::ReadWriteLock;
pub use red_lock::RedLock;
pub use semaphore::{Semaphore, SemaphorePermit};
pub use striped_lock::{StripeGuard, StripedLock};

//! Who holds a lock: the identity by which a nested acquisition re-enters.
//!
//! Owners are local; Redis only sees the id of each hold. By default the owner is the current task
//! (outside a task, the thread), so nested critical sections re-enter with no change of code.
//! Scopes nest as transactions do: whoever runs inside a scope may enter what the scopes around it
//! hold, never the other way round, and siblings exclude each other (J. E. B. Moss, *Nested
//! Transactions*, 1981).

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread::ThreadId;

tokio::task_local! {
    static SCOPE: Owner;
}

/// An identity that locks are held by.
///
/// Most code needs none of this: the current task is the owner, and nested acquisitions in it
/// re-enter. Use an `Owner` where one task runs several things at once
/// ([`Owner::scope`]), or where one hold is used from several tasks
/// ([`Lock::owned_by`](crate::Lock::owned_by)).
///
/// Clones are the same owner.
///
/// # Examples
///
/// Two branches of one task that exclude each other:
///
/// ```no_run
/// # async fn f(client: leasehold::Client) -> Result<(), leasehold::Error> {
/// use leasehold::Owner;
/// let lock = client.lock("stock:42");
/// let (a, b) = (lock.clone(), lock.clone());
/// tokio::join!(
///     Owner::scope(async move { a.lock().await.map(drop) }),
///     Owner::scope(async move { b.lock().await.map(drop) }),
/// );
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Owner(Identity);

#[derive(Clone)]
enum Identity {
    Task(tokio::task::Id),
    Thread(ThreadId),
    Explicit(Arc<Explicit>),
}

struct Explicit {
    id: u64,
    parent: Option<Owner>,
}

/// An owner's identity, without keeping it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnerKey {
    Task(tokio::task::Id),
    Thread(ThreadId),
    Explicit(u64),
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Owner {
    /// A new owner, related to no other.
    #[allow(clippy::new_without_default, reason = "every call makes another identity")]
    pub fn new() -> Self {
        Self::explicit(None)
    }

    /// The owner that an acquisition made here would have: the innermost scope, else the current
    /// task, else the current thread.
    pub fn current() -> Self {
        SCOPE.try_with(Clone::clone).unwrap_or_else(|_| Self::default_here())
    }

    /// Runs a future as an owner of its own inside the current one.
    ///
    /// What the current owner holds can be entered from inside; two scopes side by side exclude
    /// each other, even while the owner around them holds the lock. Tasks spawned from inside
    /// start anew.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as the future itself.
    pub async fn scope<F: Future>(future: F) -> F::Output {
        // The parent is taken at the first poll, where the future really runs.
        Self::child(&Self::current()).enter(future).await
    }

    /// Runs a future with this owner as the current one.
    pub(crate) fn enter<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        SCOPE.scope(self, future)
    }

    pub(crate) fn child(parent: &Self) -> Self {
        Self::explicit(Some(parent.clone()))
    }

    fn explicit(parent: Option<Self>) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Identity::Explicit(Arc::new(Explicit { id, parent })))
    }

    /// The current task, or outside one the current thread.
    pub(crate) fn default_here() -> Self {
        Self(match tokio::task::try_id() {
            Some(id) => Identity::Task(id),
            None => Identity::Thread(std::thread::current().id()),
        })
    }

    /// Whether it is a task or thread, and not an owner somebody made.
    pub(crate) fn is_default(&self) -> bool {
        !matches!(self.0, Identity::Explicit(_))
    }

    pub(crate) fn key(&self) -> OwnerKey {
        match &self.0 {
            Identity::Task(id) => OwnerKey::Task(*id),
            Identity::Thread(id) => OwnerKey::Thread(*id),
            Identity::Explicit(explicit) => OwnerKey::Explicit(explicit.id),
        }
    }

    /// Whether `key` is this owner or one of the scopes around it.
    pub(crate) fn is_within(&self, key: OwnerKey) -> bool {
        let mut owner = Some(self);
        while let Some(this) = owner {
            if this.key() == key {
                return true;
            }
            owner = match &this.0 {
                Identity::Explicit(explicit) => explicit.parent.as_ref(),
                _ => None,
            };
        }
        false
    }

    pub(crate) fn liveness(&self) -> Liveness {
        match &self.0 {
            Identity::Explicit(explicit) => Liveness(Arc::downgrade(explicit)),
            _ => Liveness(Weak::new()),
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            OwnerKey::Task(id) => write!(f, "Owner(task {id})"),
            OwnerKey::Thread(id) => write!(f, "Owner({id:?})"),
            OwnerKey::Explicit(id) => write!(f, "Owner({id})"),
        }
    }
}

/// Whether anybody still has an explicit owner; nothing tells us that a task or thread ended.
#[derive(Clone)]
pub(crate) struct Liveness(Weak<Explicit>);

impl Liveness {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Where a future is polled: the second proof that a nested call is really nested.
///
/// Nested calls, `timeout` and `select!` share their caller's waker; branches of
/// `FuturesUnordered` and the like have one of their own. Keeping the waker keeps its address from
/// being used again.
#[derive(Clone)]
pub(crate) struct PollContext(Waker);

impl PollContext {
    pub(crate) fn of(waker: &Waker) -> Self {
        Self(waker.clone())
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.data(), other.0.data())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn scopes_nest_and_siblings_differ() {
        let outer = Owner::current();
        let (first, second) = Owner::scope(async {
            let first = Owner::current();
            let second = Owner::scope(async { Owner::current() }).await;
            (first, second)
        })
        .await;
        assert!(first.is_within(outer.key()) && second.is_within(outer.key()));
        assert!(second.is_within(first.key()) && !first.is_within(second.key()));
        assert!(!outer.is_within(first.key()));
        let sibling = Owner::scope(async { Owner::current() }).await;
        assert!(!sibling.is_within(first.key()));
    }

    #[tokio::test]
    async fn a_spawned_task_is_an_owner_of_its_own() {
        let here = Owner::scope(async {
            let inside = Owner::current();
            let spawned = tokio::spawn(async { Owner::current() }).await.unwrap();
            assert!(!spawned.is_within(inside.key()));
            Owner::current()
        })
        .await;
        assert!(!here.is_default());
    }

    #[test]
    fn an_owner_is_alive_while_somebody_has_it() {
        let owner = Owner::new();
        let liveness = owner.liveness();
        assert!(liveness.is_alive());
        drop(owner);
        assert!(!liveness.is_alive());
        assert!(!Owner::current().liveness().is_alive());
    }
}

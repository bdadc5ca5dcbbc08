//! What a promise needs to know of a synchronizer, and each of them seen that way.
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{
    Client, CountDownLatch, Error, FencedGuard, FencedLock, JointGuard, Lease, Lock, LockGuard,
    LostReason, MultiLock, Owner, Permit, PermitSemaphore, Semaphore, SemaphorePermit, StripeGuard,
    StripedLock,
};

use crate::support::server::Raw;

/// A call, which owns what it needs.
pub type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A synchronizer, seen as something that some may have and others wait for.
pub trait Synchronizer: Clone + Send + Sync + 'static {
    /// How many may have it at a time; [`NO_END`] if as many as like.
    const CAPACITY: usize;

    /// How many scripts a try sends that is refused, the last part of what it takes first.
    const TRIES: usize = 1;

    /// What keeps others out while it lives.
    type Taken: Taken;

    /// The same, of [`occupy`](Synchronizer::occupy).
    type Occupied: Taken;

    /// A handle. Each is another owner.
    fn of(client: &Client, name: &str) -> Self;

    fn take(&self) -> Call<Result<Self::Taken, Error>>;

    fn try_take(&self, wait: Duration) -> Call<Result<Option<Self::Taken>, Error>>;

    /// Takes all there is, so that whoever takes waits; waits until nobody has any of it.
    fn occupy(client: &Client, name: &str) -> Call<Result<Self::Occupied, Error>>;

    /// A word for this use, which is kept in memory as long as the use is.
    fn labelled(self, label: Arc<str>) -> Self;

    /// Keys of a name that are left when nobody has it and nobody waits, as its docs say.
    fn stay(_name: &str) -> Vec<String> {
        Vec::new()
    }

    /// Keys of a name that have no TTL while they are there, as its docs say.
    fn stand_forever(_name: &str) -> Vec<String> {
        Vec::new()
    }

    /// Keys that taking it reads, in groups: one that holds something else is enough, unless it is
    /// one of several that would do.
    fn keys(name: &str) -> Vec<Vec<String>> {
        vec![vec![name.to_owned()]]
    }

    /// Puts into Redis what no number is where [`take`](Synchronizer::take) of who has it expects
    /// one.
    fn corrupt(raw: &Raw, name: &str) {
        raw.cmd(&["SET", name, "no number"]).ok();
    }

    /// Mends what a killed process leaves, where the docs say that it leaves something.
    fn bury(_client: &Client, _name: &str) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// What has a lease, and tells of its loss.
pub trait Leased: Synchronizer<Taken: Hold> {
    fn lease(self, lease: Lease) -> Self;
    fn max_hold(self, max: Duration) -> Self;
}

/// What belongs to an owner.
pub trait Owned: Leased {
    /// A handle for whoever asks.
    fn for_anybody(client: &Client, name: &str) -> Self;
    fn is_held_by_me(&self) -> bool;
}

/// As many as like.
pub const NO_END: usize = 1000;

/// How many permits the semaphores have here.
const PERMITS: usize = 3;

pub trait Taken: Send + Sync + 'static {
    fn give_back(self) -> Call<Result<(), Error>>;

    /// Until when it may be relied on, if that is known.
    fn until(&self) -> Option<Instant> {
        None
    }
}

pub trait Hold: Taken {
    fn is_held(&self) -> bool;
    fn valid_until(&self) -> Instant;
    fn lost(&self) -> Call<LostReason>;
    fn extend(&self, lease: Duration) -> Call<Result<(), Error>>;
}

macro_rules! guards {
    ($($guard:ty: $give_back:ident)*) => {$(
        impl Taken for $guard {
            fn give_back(self) -> Call<Result<(), Error>> {
                Box::pin(self.$give_back())
            }

            fn until(&self) -> Option<Instant> {
                Some((**self).valid_until())
            }
        }

        impl Hold for $guard {
            fn is_held(&self) -> bool {
                (**self).is_held()
            }

            fn valid_until(&self) -> Instant {
                (**self).valid_until()
            }

            fn lost(&self) -> Call<LostReason> {
                Box::pin((**self).lost())
            }

            fn extend(&self, lease: Duration) -> Call<Result<(), Error>> {
                let held = (**self).clone();
                Box::pin(async move { held.extend(lease).await })
            }
        }
    )*};
}

guards! {
    LockGuard: unlock
    FencedGuard: unlock
    Permit: release
    JointGuard: unlock
    StripeGuard: unlock
}

impl Taken for SemaphorePermit {
    fn give_back(self) -> Call<Result<(), Error>> {
        Box::pin(self.release())
    }
}

/// Whoever has waited for a latch has nothing.
impl Taken for () {
    fn give_back(self) -> Call<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// What locks have in common, each in a type of its own around its handle.
macro_rules! lock {
    (
        $(#[$doc:meta])*
        $subject:ident($handle:ty): $made_by:expr, occupied by $occupant:ident,
        guard $guard:ty, capacity $capacity:expr $(, $($special:item)*)?
    ) => {
        lock! {
            $(#[$doc])*
            $subject($handle): $made_by, by lock and try_lock_for, held by |lock| lock.is_held_by_me(),
            occupied by |client, name| $occupant::of(client, name).take(),
            <$occupant as Synchronizer>::Taken, guard $guard, capacity $capacity $(, $($special)*)?
        }
    };
    (
        $(#[$doc:meta])*
        $subject:ident($handle:ty): $made_by:expr, by $take:ident and $try_take:ident,
        held by $held_by_me:expr, occupied by $occupy:expr, $occupied:ty,
        guard $guard:ty, capacity $capacity:expr $(, $($special:item)*)?
    ) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $subject($handle);

        impl Synchronizer for $subject {
            const CAPACITY: usize = $capacity;
            type Taken = $guard;
            type Occupied = $occupied;

            fn of(client: &Client, name: &str) -> Self {
                let made: fn(&Client, &str) -> $handle = $made_by;
                Self(made(client, name).owned_by(Owner::new()))
            }

            fn take(&self) -> Call<Result<$guard, Error>> {
                Box::pin(self.0.$take())
            }

            fn try_take(
                &self,
                wait: Duration,
            ) -> Call<Result<Option<$guard>, Error>> {
                Box::pin(self.0.$try_take(wait))
            }

            fn occupy(
                client: &Client,
                name: &str,
            ) -> Call<Result<Self::Occupied, Error>> {
                let occupy: fn(&Client, &str) -> Call<Result<Self::Occupied, Error>> = $occupy;
                occupy(client, name)
            }

            fn labelled(self, label: Arc<str>) -> Self {
                Self(self.0.label(label))
            }

            $($($special)*)?
        }

        impl Leased for $subject {
            fn lease(self, lease: Lease) -> Self {
                Self(self.0.lease(lease))
            }

            fn max_hold(self, max: Duration) -> Self {
                Self(self.0.max_hold(max))
            }
        }

        impl Owned for $subject {
            fn for_anybody(client: &Client, name: &str) -> Self {
                let made: fn(&Client, &str) -> $handle = $made_by;
                Self(made(client, name))
            }

            fn is_held_by_me(&self) -> bool {
                let held_by_me: fn(&$handle) -> bool = $held_by_me;
                held_by_me(&self.0)
            }
        }
    };
}

/// The count of whoever holds it is none any more.
fn corrupt_counts(raw: &Raw, name: &str) {
    for field in raw.cmd(&["HKEYS", name]).ok().items() {
        if field.text() != "mode" {
            raw.cmd(&["HSET", name, &field.text(), "no number"]).ok();
        }
    }
}

lock! {
    Plain(Lock): |client, name| client.lock(name), occupied by Plain,
    guard LockGuard, capacity 1,
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

lock! {
    Spin(Lock): |client, name| client.spin_lock(name), occupied by Spin,
    guard LockGuard, capacity 1,
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

lock! {
    Fair(Lock): |client, name| client.fair_lock(name), occupied by Fair,
    guard LockGuard, capacity 1,
    fn stay(name: &str) -> Vec<String> {
        vec![format!("leasehold_fair:{{{name}}}")]
    }
    fn stand_forever(name: &str) -> Vec<String> {
        ["redisson_lock_queue", "redisson_lock_timeout"].map(|k| format!("{k}:{{{name}}}")).into()
    }
    fn keys(name: &str) -> Vec<Vec<String>> {
        vec![vec![name.to_owned()], vec![format!("redisson_lock_queue:{{{name}}}")]]
    }
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

lock! {
    Fenced(FencedLock): |client, name| client.fenced_lock(name), occupied by Fenced,
    guard FencedGuard, capacity 1,
    fn stay(name: &str) -> Vec<String> {
        vec![format!("redisson_lock_token:{{{name}}}")]
    }
    fn stand_forever(name: &str) -> Vec<String> {
        Self::stay(name)
    }
    fn keys(name: &str) -> Vec<Vec<String>> {
        vec![vec![name.to_owned()], vec![format!("redisson_lock_token:{{{name}}}")]]
    }
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

lock! {
    Token(Lock): |client, name| client.token_lock(name), occupied by Token,
    guard LockGuard, capacity 1
}

lock! {
    /// Readers, whom a writer keeps out.
    Read(Lock): |client, name| client.read_write_lock(name).read(), occupied by Write,
    guard LockGuard, capacity NO_END,
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

lock! {
    /// Writers, whom readers keep out.
    Write(Lock): |client, name| client.read_write_lock(name).write(), occupied by Read,
    guard LockGuard, capacity 1,
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

/// The second of the two names that are locked as one.
fn second(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{name}:2") }
}

lock! {
    /// A lock and a fair lock as one, occupied by somebody who has the second alone.
    Both(MultiLock):
    |client, name| MultiLock::new([client.lock(name), client.fair_lock(second(name))]),
    by lock and try_lock_for, held by |lock| lock.is_held_by_me(),
    occupied by |client, name| Fair::of(client, &second(name)).take(), LockGuard,
    guard JointGuard, capacity 1,
    // It takes the first, asks for the second, and gives back the first.
    const TRIES: usize = 3;
    fn stay(name: &str) -> Vec<String> {
        Fair::stay(&second(name))
    }
    fn stand_forever(name: &str) -> Vec<String> {
        Fair::stand_forever(&second(name))
    }
    fn keys(name: &str) -> Vec<Vec<String>> {
        let mut keys = Fair::keys(&second(name));
        keys.push(vec![name.to_owned()]);
        keys
    }
    fn corrupt(raw: &Raw, name: &str) {
        corrupt_counts(raw, name);
    }
}

const STRIPES: usize = 3;

lock! {
    /// Any of some stripes, occupied by somebody who has all of them.
    Striped(StripedLock): |client, name| client.striped_lock(name, STRIPES),
    by any and try_any_for, held by |lock| lock.stripes().iter().any(Lock::is_held_by_me),
    occupied by |client, name| {
        let all = client.striped_lock(name, STRIPES).owned_by(Owner::new()).all();
        Box::pin(all.lock())
    }, JointGuard,
    guard StripeGuard, capacity STRIPES,
    const TRIES: usize = STRIPES;
    fn keys(name: &str) -> Vec<Vec<String>> {
        vec![(0..STRIPES).map(|stripe| format!("{name}:{stripe}")).collect()]
    }
}

/// Permits that stay with whoever took them.
#[derive(Clone)]
pub struct Counting(Semaphore);

impl Synchronizer for Counting {
    const CAPACITY: usize = PERMITS;
    type Taken = SemaphorePermit;
    type Occupied = SemaphorePermit;

    fn of(client: &Client, name: &str) -> Self {
        Self(client.semaphore(name).sized(PERMITS as u32))
    }

    fn take(&self) -> Call<Result<SemaphorePermit, Error>> {
        Box::pin(self.0.acquire())
    }

    fn try_take(&self, wait: Duration) -> Call<Result<Option<SemaphorePermit>, Error>> {
        Box::pin(self.0.try_acquire(wait))
    }

    fn occupy(client: &Client, name: &str) -> Call<Result<SemaphorePermit, Error>> {
        Box::pin(Self::of(client, name).0.acquire_many(PERMITS as u32))
    }

    fn labelled(self, label: Arc<str>) -> Self {
        Self(self.0.label(label))
    }

    fn stay(name: &str) -> Vec<String> {
        vec![name.to_owned(), format!("leasehold_once:{{{name}}}")]
    }

    fn stand_forever(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    /// The dead cannot give back, and nothing says what they had.
    async fn bury(client: &Client, name: &str) {
        let semaphore = client.semaphore(name);
        let left = semaphore.available().await.expect("the server is up");
        assert_eq!(left, Some(PERMITS as i64 - 1), "the permit of the dead is gone");
        semaphore.give(1).await.expect("the server is up");
    }
}

/// Permits that end with a lease.
#[derive(Clone)]
pub struct Expiring(PermitSemaphore);

impl Synchronizer for Expiring {
    const CAPACITY: usize = PERMITS;
    type Taken = Permit;
    type Occupied = Permit;

    fn of(client: &Client, name: &str) -> Self {
        Self(client.permit_semaphore(name).sized(PERMITS as u32))
    }

    fn take(&self) -> Call<Result<Permit, Error>> {
        Box::pin(self.0.acquire())
    }

    fn try_take(&self, wait: Duration) -> Call<Result<Option<Permit>, Error>> {
        Box::pin(self.0.try_acquire(wait))
    }

    fn occupy(client: &Client, name: &str) -> Call<Result<Permit, Error>> {
        Box::pin(Self::of(client, name).0.acquire_many(PERMITS as u32))
    }

    fn labelled(self, label: Arc<str>) -> Self {
        Self(self.0.label(label))
    }

    fn stay(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    fn stand_forever(name: &str) -> Vec<String> {
        vec![name.to_owned(), format!("{{{name}}}:timeout")]
    }

    fn keys(name: &str) -> Vec<Vec<String>> {
        Self::stand_forever(name).into_iter().map(|key| vec![key]).collect()
    }
}

impl Leased for Expiring {
    fn lease(self, lease: Lease) -> Self {
        Self(self.0.lease(lease))
    }

    fn max_hold(self, max: Duration) -> Self {
        Self(self.0.max_hold(max))
    }
}

/// A gate that many pass, unless it is closed.
#[derive(Clone)]
pub struct Latch(CountDownLatch);

/// A latch that was set.
pub struct Closed(CountDownLatch);

impl Taken for Closed {
    fn give_back(self) -> Call<Result<(), Error>> {
        Box::pin(async move {
            let left = self.0.count_down().await?;
            assert_eq!(left, 0, "it was set to one");
            Ok(())
        })
    }
}

impl Synchronizer for Latch {
    const CAPACITY: usize = NO_END;
    type Taken = ();
    type Occupied = Closed;

    fn of(client: &Client, name: &str) -> Self {
        Self(client.count_down_latch(name))
    }

    fn take(&self) -> Call<Result<(), Error>> {
        Box::pin(self.0.wait())
    }

    fn try_take(&self, wait: Duration) -> Call<Result<Option<()>, Error>> {
        let waiting = self.0.wait_for(wait);
        Box::pin(async move { Ok(waiting.await?.then_some(())) })
    }

    fn occupy(client: &Client, name: &str) -> Call<Result<Closed, Error>> {
        let latch = client.count_down_latch(name);
        Box::pin(async move {
            let set = latch.try_set(1).await?;
            assert!(set, "it was open");
            Ok(Closed(latch))
        })
    }

    fn labelled(self, label: Arc<str>) -> Self {
        Self(self.0.label(label))
    }

    fn stay(name: &str) -> Vec<String> {
        vec![format!("leasehold_once:{{{name}}}")]
    }

    fn stand_forever(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }
}

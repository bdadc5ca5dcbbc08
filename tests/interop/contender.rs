//! What one process does when everybody contends: the same as `Contention.java`.

use std::time::{Duration, Instant};

use leasehold::{
    Client, Error, JointGuard, Lease, Lock, LockGuard, MultiLock, Owner, Permit, PermitSemaphore,
    Semaphore, SemaphorePermit,
};

use crate::{pair::soon, process::nanos};

/// The lease of what is renewed, by either side.
pub const WATCHDOG_MS: u64 = 2_000;

/// Leases that are not renewed, and end by a release.
pub const FIXED: Duration = Duration::from_secs(3);

/// Leases that end by themselves.
const LAPSE: Duration = Duration::from_millis(200);

/// Contends with so many tasks for each kind of `work`, which is `kind=name/name;kind=name`.
pub async fn contend(url: &str, work: &str, tasks: u32, time: Duration) {
    let watchdog = Duration::from_millis(WATCHDOG_MS);
    let client = Client::builder(url).expect("a URL").watchdog(watchdog);
    let client = client.connect().await.expect("the server is up");
    println!("id {}\nready", client.id());
    crate::support::blocking(|| std::io::stdin().lines().next()).await;
    let end = Instant::now() + time;
    let mut all = Vec::new();
    for kind in work.split(';') {
        let (kind, names) = kind.split_once('=').expect("a kind and its names");
        for i in 0..tasks {
            let names = names.split('/').map(str::to_owned).collect();
            let (client, kind, task) = (client.clone(), kind.to_owned(), all.len());
            // One task of each kind forgets to unlock now and then.
            let one = Contender { client, kind, names, task, forgets: i == 0 };
            all.push(tokio::spawn(one.run(end)));
        }
    }
    for task in all {
        task.await.expect("no panic");
    }
    client.close().await;
}

/// Takes something once, and gives it back.
pub async fn take_once(client: &Client, kind: &str, name: &str) {
    let (_, object) = object(client, kind, name);
    let held = soon(object.take(None, FIXED.into())).await.expect("no error");
    soon(held.expect("it was waited for").give_back()).await.expect("no error");
}

/// Takes something, says so, and keeps it until somebody kills this process or is gone.
pub async fn hold(client: &Client, kind: &str, name: &str) {
    let (_, object) = object(client, kind, name);
    let _held = object.take(None, Lease::Renewed).await.expect("it is free");
    println!("held");
    crate::support::blocking(|| std::io::stdin().lines().next()).await;
}

/// The kind as it is told, and the object of this name.
fn object<'a>(client: &Client, kind: &'a str, name: &str) -> (&'a str, Object) {
    let (kind, lock) = match kind {
        "rw" if fastrand::u8(0..4) == 0 => ("write", client.read_write_lock(name).write()),
        "rw" => ("read", client.read_write_lock(name).read()),
        "multi" => {
            let locks = name.split(',').map(|name| client.lock(name));
            return ("multi", Object::Multi(MultiLock::new(locks)));
        }
        "semaphore" => return ("semaphore", Object::Semaphore(client.semaphore(name))),
        "permits" => return ("permits", Object::Permits(client.permit_semaphore(name))),
        kind => (kind, (crate::kinds::named(kind).of)(client, name)),
    };
    (kind, Object::Lock(lock))
}

struct Contender {
    client: Client,
    kind: String,
    names: Vec<String>,
    task: usize,
    forgets: bool,
}

/// What can be asked for.
enum Object {
    Lock(Lock),
    Multi(MultiLock),
    Semaphore(Semaphore),
    Permits(PermitSemaphore),
}

/// What was got.
enum Held {
    Lock(LockGuard),
    Multi(JointGuard),
    Semaphore(SemaphorePermit),
    Permits(Permit),
}

impl Contender {
    async fn run(self, end: Instant) {
        let mut next_lapse = Instant::now() + Duration::from_millis(fastrand::u64(0..2_000));
        while Instant::now() < end {
            let name = &self.names[fastrand::usize(0..self.names.len())];
            if self.forgets && Instant::now() > next_lapse {
                self.lapse(name).await;
                next_lapse = Instant::now() + Duration::from_secs(4);
            } else {
                self.turn(name).await;
            }
            // Something else to do: else who is quicker by a little could come first every time.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
        }
    }

    async fn turn(&self, name: &str) {
        let (kind, object) = object(&self.client, &self.kind, name);
        let chance = fastrand::u32(0..10);
        let (wait, lease) = match chance {
            0 => (Some(Duration::from_millis(20)), FIXED.into()),
            1 | 2 => (None, FIXED.into()),
            _ => (None, Lease::Renewed),
        };
        let asked = nanos();
        let Some(held) = object.take(wait, lease).await.expect("no error") else { return };
        let from = nanos();
        self.begin(name, from, &held);
        tokio::time::sleep(Duration::from_millis(held.works())).await;
        if let (Object::Lock(lock), 9, true) = (&object, chance, held.stands()) {
            lock.lock().await.expect("no error").unlock().await.expect("no error");
        }
        let (token, to) = (held.token(), nanos());
        // A task that stood still for long may have outlived its lease; it proves nothing then.
        let stands = held.stands();
        self.tell(kind, name, [asked, from, if stands { to } else { from - 1 }], token);
        if stands {
            held.give_back().await.expect("no error");
        }
    }

    async fn lapse(&self, name: &str) {
        let (kind, object) = object(&self.client, &self.kind, name);
        if let Object::Semaphore(_) = object {
            return; // it has no leases
        }
        let asked = nanos();
        let held = object.owned().take(None, LAPSE.into()).await.expect("no error");
        let (held, from) = (held.expect("it was waited for"), nanos());
        self.tell(kind, name, [asked, from, if held.stands() { from } else { from - 1 }], 0);
        held.forget();
        tokio::time::sleep(LAPSE).await;
    }

    /// Of permits, behind which nobody's name stands in Redis, also the beginning is told.
    fn begin(&self, name: &str, from: i64, held: &Held) {
        let id = match held {
            Held::Semaphore(_) => "-".to_owned(),
            Held::Permits(permit) => permit.ids().next().expect("one").to_string(),
            _ => return,
        };
        println!("+ {} {name} {} {from} {id}", self.kind, self.task);
    }

    fn tell(&self, kind: &str, name: &str, [asked, from, to]: [i64; 3], token: u64) {
        println!("* {kind} {name} {} {asked} {from} {to} {token}", self.task);
    }
}

impl Object {
    /// For an owner of its own.
    fn owned(self) -> Self {
        match self {
            Self::Lock(lock) => Self::Lock(lock.owned_by(Owner::new())),
            Self::Multi(lock) => Self::Multi(lock.owned_by(Owner::new())),
            other => other,
        }
    }

    async fn take(&self, wait: Option<Duration>, lease: Lease) -> Result<Option<Held>, Error> {
        Ok(match (self, wait) {
            (Self::Lock(lock), Some(wait)) => lock.try_lock(wait, lease).await?.map(Held::Lock),
            (Self::Lock(lock), None) => Some(Held::Lock(lock.lock_with(lease).await?)),
            (Self::Multi(lock), Some(wait)) => lock.try_lock(wait, lease).await?.map(Held::Multi),
            (Self::Multi(lock), None) => Some(Held::Multi(lock.lock_with(lease).await?)),
            (Self::Semaphore(it), Some(wait)) => it.try_acquire(wait).await?.map(Held::Semaphore),
            (Self::Semaphore(it), None) => Some(Held::Semaphore(it.acquire().await?)),
            (Self::Permits(it), Some(wait)) => {
                it.clone().lease(lease).try_acquire(wait).await?.map(Held::Permits)
            }
            (Self::Permits(it), None) => {
                Some(Held::Permits(it.clone().lease(lease).acquire().await?))
            }
        })
    }
}

impl Held {
    /// For how many milliseconds.
    fn works(&self) -> u64 {
        match self {
            Self::Lock(_) | Self::Multi(_) => 4,
            Self::Semaphore(_) | Self::Permits(_) => 8,
        }
    }

    /// Whether its lease goes on, as far as this process knows.
    fn stands(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_held(),
            Self::Multi(guard) => guard.is_held(),
            Self::Semaphore(_) => true,
            Self::Permits(permit) => permit.is_held(),
        }
    }

    /// That of a fenced lock; else 0.
    fn token(&self) -> u64 {
        match self {
            Self::Lock(guard) => guard.token().unwrap_or(0),
            _ => 0,
        }
    }

    async fn give_back(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock().await,
            Self::Multi(guard) => guard.unlock().await,
            Self::Semaphore(permit) => permit.release().await,
            Self::Permits(permit) => permit.release().await,
        }
    }

    fn forget(self) {
        match self {
            Self::Lock(guard) => guard.forget(),
            Self::Multi(guard) => guard.forget(),
            Self::Semaphore(permit) => permit.forget(),
            Self::Permits(permit) => permit.forget(),
        }
    }
}

//! Several locks as one: all or none, in one order, and nothing left of what did not come about.
use std::{
    future::pending,
    time::{Duration, Instant},
};

use fastrand::Rng;
use leasehold::{Client, Error, ErrorKind, JointGuard, Lease, Lock, LostReason, MultiLock, Owner};
use tokio::task::{JoinHandle, JoinSet};

use crate::{
    rig::soon,
    support::{
        assert_every_key_has_ttl, assert_no_keys, eventually,
        history::History,
        server::{Raw, RedisServer},
        unique,
    },
};

/// A server, and two clients of it that renew within a test.
struct Rig {
    _server: RedisServer,
    raw: Raw,
    client: Client,
    other: Client,
    /// Two names in the order in which they are taken.
    first: String,
    second: String,
}

impl Rig {
    async fn start() -> Self {
        let server = RedisServer::start();
        let (raw, first) = (server.raw(), unique("a"));
        let (client, other) = (connect(&server).await, connect(&server).await);
        Self { _server: server, raw, client, other, first, second: unique("b") }
    }

    fn both(&self, client: &Client) -> MultiLock {
        MultiLock::new([client.lock(&self.second), client.lock(&self.first)])
    }

    fn holds(&self, name: &str) -> bool {
        self.raw.cmd(&["EXISTS", name]).int() == 1
    }

    /// A task that waits for both and has the first, while somebody else has the second.
    async fn waiting(&self, lease: Lease) -> JoinHandle<Result<JointGuard, Error>> {
        let both = self.both(&self.client);
        let waiting = tokio::spawn(async move { both.lock_with(lease).await });
        eventually("the first is held", async || self.holds(&self.first)).await;
        waiting
    }

    async fn assert_nothing_left(self) {
        eventually("all is given back", async || self.raw.cmd(&["DBSIZE"]).int() == 0).await;
        soon(self.client.close()).await;
        soon(self.other.close()).await;
        assert_no_keys(&self.raw);
    }
}

async fn connect(server: &RedisServer) -> Client {
    let builder = Client::builder(server.url()).expect("a URL").watchdog(Duration::from_secs(1));
    soon(builder.connect()).await.expect("the server is up")
}

/// I1, I2, R-46: whoever holds several holds each of them; nobody waits for ever.
#[tokio::test(flavor = "multi_thread")]
async fn opposite_orders_neither_deadlock_nor_overlap() {
    let rig = Rig::start().await;
    let (history, names) = (History::new(), [unique("x"), unique("y"), unique("z")]);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let client = if task % 2 == 0 { &rig.client } else { &rig.other };
        tasks.spawn(in_turns(client.clone(), history.clone(), names.clone(), task, 20));
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.expect("all come free");
    }
    history.assert_exclusive(8 * 20);
    rig.assert_nothing_left().await;
}

async fn in_turns(client: Client, history: History, names: [String; 3], task: u64, rounds: u64) {
    let (mut rng, owner) = (Rng::with_seed(task), format!("task {task}"));
    for round in 0..rounds {
        let mut locks: Vec<Lock> = names.iter().map(|name| client.lock(name)).collect();
        rng.shuffle(&mut locks);
        locks.truncate(rng.usize(1..=3));
        let multi = MultiLock::new(locks);
        let guard = if round % 2 == 0 {
            multi.lock().await.expect("all come free")
        } else {
            let guard = multi.try_lock(Duration::from_secs(20), Duration::from_secs(60)).await;
            guard.expect("all come free").expect("and in time")
        };
        let held: Vec<_> = guard.members().iter().map(|m| history.held(m.name(), &owner)).collect();
        tokio::task::yield_now().await;
        drop(held);
        if rng.bool() {
            guard.unlock().await.expect("all are still held");
        }
    }
}

/// on two servers, of which one has the first and the other the second.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_several_servers_are_held_together() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let clients = [connect(&servers[0]).await, connect(&servers[1]).await];
    let name = unique("shared");
    let multi = MultiLock::new(clients.iter().map(|client| client.lock(&name)));
    let guard = multi.lock().await.expect("both are free");
    assert_eq!(guard.members().len(), 2);
    for server in &servers {
        assert_eq!(server.raw().cmd(&["EXISTS", &name]).int(), 1);
        assert_every_key_has_ttl(&server.raw());
    }
    assert!(multi.is_held_by_me());
    guard.unlock().await.expect("both are held");
    servers.iter().for_each(|server| assert_no_keys(&server.raw()));
}

/// R-46, I12.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_gives_everything_back() {
    let rig = Rig::start().await;
    let taken = rig.other.lock(&rig.second).lock().await.expect("it is free");
    let both = rig.both(&rig.client);
    assert!(both.try_lock_now().await.expect("an answer").is_none());
    eventually("the first is free", async || !rig.holds(&rig.first)).await;
    let short = Duration::from_millis(50);
    assert!(both.try_lock_for(short).await.expect("an answer").is_none());
    assert!(both.try_with(short, Lease::Renewed, |_| async {}).await.expect("an answer").is_none());
    eventually("the first is free", async || !rig.holds(&rig.first)).await;
    taken.unlock().await.expect("it was held");
    assert!(both.try_lock_now().await.expect("an answer").is_some());
    rig.assert_nothing_left().await;
}

///
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_gives_everything_back() {
    let rig = Rig::start().await;
    rig.raw.cmd(&["SET", &rig.second, "not a lock"]).ok();
    let error = rig.both(&rig.client).lock().await.expect_err("it is no lock");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert_eq!(error.lock(), Some(&*rig.second));
    eventually("the first is free", async || !rig.holds(&rig.first)).await;
    rig.raw.cmd(&["DEL", &rig.second]).ok();
    rig.assert_nothing_left().await;
}

///
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_gives_everything_back() {
    let rig = Rig::start().await;
    let taken = rig.other.lock(&rig.second).lock().await.expect("it is free");
    let waiting = rig.waiting(Lease::Renewed).await;
    waiting.abort();
    eventually("the first is free", async || !rig.holds(&rig.first)).await;
    taken.unlock().await.expect("it was held");
    rig.assert_nothing_left().await;
}

/// I7, R-46: with a lease of its own, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_kept_while_the_next_is_waited_for() {
    for lease in [Lease::Renewed, Lease::Fixed(Duration::from_secs(1))] {
        let rig = Rig::start().await;
        let taken = rig.other.lock(&rig.second).lock().await.expect("it is free");
        let waiting = rig.waiting(lease).await;
        let holder = rig.client.lock(&rig.first).holder().await.expect("an answer");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(rig.client.lock(&rig.first).holder().await.expect("an answer"), holder);
        taken.unlock().await.expect("it was held");
        let guard = soon(waiting).await.expect("no panic").expect("both are free");
        assert_eq!(Some(guard.members()[0].holder()), holder);
        drop(guard);
        rig.assert_nothing_left().await;
    }
}

/// a fixed lease is whole when the work begins, and not renewed after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_lease_begins_when_all_are_held() {
    let rig = Rig::start().await;
    let lease = Duration::from_secs(2);
    let taken = rig.other.lock(&rig.second).lock().await.expect("it is free");
    let waiting = rig.waiting(lease.into()).await;
    tokio::time::sleep(lease / 4).await;
    let before = Instant::now();
    taken.unlock().await.expect("it was held");
    let guard = soon(waiting).await.expect("no panic").expect("both are free");
    assert!(guard.is_held() && guard.valid_until() >= before + lease * 85 / 100);
    assert!(guard.valid_until() <= Instant::now() + lease);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_held());
    let ends = Instant::now();
    assert!(ends <= before + lease * 5, "it was renewed on");
    eventually("the leases end", async || !rig.holds(&rig.first)).await;
    assert!(guard.unlock().await.expect_err("it is lost").is_lost());
    rig.assert_nothing_left().await;
}

/// I8, R-47: what is removed on the way is taken again, and nobody gets half of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_on_the_way_is_taken_again() {
    let rig = Rig::start().await;
    let taken = rig.other.lock(&rig.second).lock().await.expect("it is free");
    let waiting = rig.waiting(Lease::Renewed).await;
    let first = rig.client.lock(&rig.first);
    let before = first.holder().await.expect("an answer");
    rig.raw.cmd(&["DEL", &rig.first]).ok();
    eventually("it is taken again", async || {
        let holder = first.holder().await.expect("an answer");
        holder.is_some() && holder != before
    })
    .await;
    taken.unlock().await.expect("it was held");
    let guard = soon(waiting).await.expect("no panic").expect("both are free");
    assert!(guard.is_held());
    drop(guard);
    rig.assert_nothing_left().await;
}

/// I8, R-47.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_lost_with_the_first_of_its_locks() {
    let rig = Rig::start().await;
    let guard = rig.both(&rig.client).lock().await.expect("both are free");
    rig.raw.cmd(&["DEL", &rig.second]).ok();
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(!guard.is_held() && guard.valid_until() <= Instant::now());
    assert!(rig.holds(&rig.first), "the other is kept until the guard goes");
    let error = guard.unlock().await.expect_err("one of them is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    eventually("the first is free", async || !rig.holds(&rig.first)).await;
    rig.assert_nothing_left().await;
}

/// I8: the body does not go on without the lock, and the rest is given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_dropped_when_a_lock_is_lost() {
    let rig = Rig::start().await;
    let (both, raw) = (rig.both(&rig.client), &rig.raw);
    assert_eq!(both.with(|held| async move { held.is_held() }).await.ok(), Some(true));
    let body = async |_held| {
        raw.cmd(&["DEL", &rig.second]).ok();
        pending::<()>().await;
    };
    let error = soon(both.with(body)).await.expect_err("one of them is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    rig.assert_nothing_left().await;
}

/// I5: nested in itself, in one of its locks, and one of its locks in it.
#[tokio::test(flavor = "multi_thread")]
async fn it_reenters_as_its_locks_do() {
    let rig = Rig::start().await;
    let (both, first) = (rig.both(&rig.client), rig.client.lock(&rig.first));
    let outer = first.lock().await.expect("it is free");
    let guard = both.lock().await.expect("it is entered once more");
    assert_eq!(first.hold_count(), 2);
    let again = both.try_lock_now().await.expect("an answer").expect("it is ours");
    assert_eq!(first.hold_count(), 3);
    both.with(|_| async {
        assert_eq!(both.try_lock_now().await.unwrap().unwrap().members().len(), 2)
    })
    .await
    .expect("it is ours");
    again.unlock().await.expect("it is held");
    guard.forget();
    both.unlock().await.expect("the forgotten holds are this task's");
    assert_eq!(first.hold_count(), 1);
    outer.unlock().await.expect("it is held");
    let error = both.unlock().await.expect_err("nothing is held");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    rig.assert_nothing_left().await;
}

/// I4: a guard that leaves its task has an owner of its own, one for all.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_guard_belongs_to_nobody_else() {
    let rig = Rig::start().await;
    let both = rig.both(&rig.client);
    let guard = both.lock().await.expect("both are free").detach();
    assert!(!both.is_held_by_me());
    assert!(both.try_lock_now().await.expect("an answer").is_none());
    assert!(both.clone().owned_by(guard.owner()).is_held_by_me());
    let (owner, elsewhere) = (Owner::new(), both.clone());
    tokio::spawn(guard.unlock()).await.expect("no panic").expect("both are held");
    let guard = elsewhere.owned_by(owner.clone()).lock().await.expect("both are free");
    assert_eq!(guard.owner(), owner);
    drop(guard);
    rig.assert_nothing_left().await;
}

/// The kinds differ; each keeps its own rules.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_kinds_are_held_together() {
    let rig = Rig::start().await;
    let all = |client: &Client| {
        let shared = client.read_write_lock("6");
        let kinds = [client.lock("1"), client.fair_lock("2"), client.spin_lock("3")];
        let more = [client.token_lock("4"), (*client.fenced_lock("5")).clone(), shared.read()];
        MultiLock::new(kinds.into_iter().chain(more))
    };
    let guard = all(&rig.client).lock().await.expect("all are free");
    assert_eq!(guard.members().len(), 6);
    assert!(guard.members()[4].token().is_some());
    assert!(all(&rig.other).try_lock_now().await.expect("an answer").is_none());
    let other = rig.other.read_write_lock("6").read();
    drop(other.try_lock_now().await.expect("an answer").expect("readers share"));
    guard.extend(Duration::from_secs(30)).await.expect("all are held");
    assert!(guard.valid_until() > Instant::now() + Duration::from_secs(25));
    guard.unlock().await.expect("all are held");
    eventually("all are free", async || {
        rig.raw.cmd(&["EXISTS", "1", "2", "3", "4", "6"]).int() == 0
    })
    .await;
}

/// Told by the first use, before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_held_together_is_refused() {
    let rig = Rig::start().await;
    let client = &rig.client;
    let none = MultiLock::new([]).lock().await.expect_err("there are none");
    assert_eq!(none.kind(), ErrorKind::InvalidMembers);
    let two_kinds = MultiLock::new([client.lock("x"), client.spin_lock("x")]);
    assert_eq!(two_kinds.lock().await.expect_err("one key").kind(), ErrorKind::InvalidMembers);
    let unnamed = MultiLock::new([client.lock("x"), client.lock("")]);
    assert_eq!(unnamed.lock().await.expect_err("no name").kind(), ErrorKind::InvalidName);
    let short = rig.both(client).lock_with(Duration::ZERO).await.expect_err("no lease");
    assert_eq!(short.kind(), ErrorKind::InvalidDuration);
    // One lock through two clients is one lock; of read and write the stronger counts.
    let (a, b) = (client.read_write_lock("rw"), rig.other.read_write_lock("rw"));
    let guard = MultiLock::new([a.read(), b.read(), a.write()]).lock().await.expect("free");
    assert_eq!(guard.members().len(), 1);
    assert!(b.read().try_lock_now().await.expect("an answer").is_none());
    drop(guard);
    rig.assert_nothing_left().await;
}

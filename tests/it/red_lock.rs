//! One lock on a majority of independent servers: some of them dead, stopped, slow, or back without
//! their memory.
use std::{
    future::pending,
    time::{Duration, Instant},
};

use leasehold::{
    Client, ErrorKind, JointGuard, Lease, Lock, LostReason, MultiLock, Owner, RedLock,
};
use tokio::task::JoinSet;

use crate::{
    rig::{acquiring, renewing, soon},
    support::{
        assert_every_key_has_ttl, assert_no_keys, eventually,
        history::History,
        proxy::Proxy,
        server::{Raw, RedisServer},
        unique,
    },
};

/// Servers that know nothing of each other, each behind a proxy.
struct Servers {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    name: String,
}

/// A client of each server, as one process has them.
struct Process {
    clients: Vec<Client>,
    name: String,
}

impl Servers {
    fn start(count: usize) -> Self {
        let servers: Vec<_> = (0..count).map(|_| RedisServer::start()).collect();
        let proxies = servers.iter().map(|server| Proxy::start(server.port())).collect();
        Self { servers, proxies, name: unique("red") }
    }

    /// Its clients go through the proxies.
    async fn process(&self) -> Process {
        self.at(self.proxies.iter().map(Proxy::url)).await
    }

    /// Its clients go to the servers, whatever happens at the proxies.
    async fn bystander(&self) -> Process {
        self.at(self.servers.iter().map(RedisServer::url)).await
    }

    async fn at(&self, urls: impl Iterator<Item = String>) -> Process {
        let mut clients = Vec::new();
        for url in urls {
            let builder = Client::builder(url).expect("a URL").watchdog(Duration::from_secs(2));
            let builder = builder.command_timeout(Duration::from_secs(1));
            let builder = builder.patience(Duration::from_secs(2));
            let client = soon(builder.connect()).await.expect("the server is up");
            // Else the first reply would be NOSCRIPT, and no fault would hit a call that ran.
            let warm = soon(client.lock("warm").lock()).await.expect("it is free");
            warm.unlock().await.expect("it is held");
            clients.push(client);
        }
        Process { clients, name: self.name.clone() }
    }

    fn raw(&self, at: usize) -> Raw {
        self.servers[at].raw()
    }

    /// On how many of these servers somebody has the lock.
    fn held_on(&self, which: std::ops::Range<usize>) -> usize {
        which.filter(|at| self.raw(*at).cmd(&["EXISTS", &self.name]).int() == 1).count()
    }

    /// Waits until everything is given back on these servers, and looks whether it stays so.
    async fn assert_nothing_left(&self, processes: Vec<Process>, which: std::ops::Range<usize>) {
        eventually("all is given back", async || self.held_on(which.clone()) == 0).await;
        for process in processes {
            for client in &process.clients {
                soon(client.close()).await;
            }
        }
        which.for_each(|at| assert_no_keys(&self.raw(at)));
    }
}

impl Process {
    fn red(&self) -> RedLock {
        self.of(|client| client.lock(&self.name))
    }

    fn of(&self, lock: impl Fn(&Client) -> Lock) -> RedLock {
        // Longer than this machine may stall.
        RedLock::new(self.clients.iter().map(lock)).node_timeout(Duration::from_secs(2))
    }

    async fn try_now(&self) -> Option<JointGuard> {
        soon(self.red().try_lock_now()).await.expect("an answer of a majority")
    }
}

/// one holder, under one name, on all servers; given back on all.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_held_on_all_servers_under_one_name() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.process().await);
    let guard = soon(process.red().lock()).await.expect("it is free");
    assert!(guard.is_held() && process.red().is_held_by_me());
    let holder = guard.members()[0].holder();
    assert!(guard.members().iter().all(|member| member.holder() == holder));
    for at in 0..3 {
        let holds = servers.raw(at).cmd(&["HGETALL", &servers.name]).ok().map();
        assert!(holds.is_empty() || holds.contains_key(holder.as_str()), "{at}: {holds:?}");
        assert_every_key_has_ttl(&servers.raw(at));
    }
    assert!(servers.held_on(0..3) >= 2);
    assert!(other.try_now().await.is_none());
    guard.unlock().await.expect("it is held");
    drop(other.try_now().await.expect("it is free"));
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// one of three dead, two of five.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_while_a_minority_is_dead() {
    for (count, dead) in [(3, 1), (5, 2)] {
        let mut servers = Servers::start(count);
        let (process, other) = (servers.process().await, servers.process().await);
        servers.servers.iter_mut().rev().take(dead).for_each(RedisServer::kill);
        let guard = soon(process.red().lock()).await.expect("a majority is alive");
        let first = guard.valid_until();
        eventually("it is renewed", async || guard.valid_until() > first).await;
        assert!(guard.is_held());
        assert!(other.try_now().await.is_none());
        soon(guard.unlock()).await.expect("a majority is alive");
        soon(process.red().with(|held| async move { held.is_held() })).await.expect("alive");
        servers.assert_nothing_left(vec![process, other], 0..count - dead).await;
    }
}

/// what it asked for meanwhile does not come about when it wakes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_delays_nobody_and_keeps_nothing() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    servers.servers[0].pause();
    for _ in 0..3 {
        let guard = soon(process.red().lock()).await.expect("a majority is alive");
        assert_eq!(guard.members().len(), 2);
        soon(guard.unlock()).await.expect("a majority is alive");
    }
    servers.servers[0].resume();
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// I10, I11, R-13: with a limit and without; nothing stays on the server that is alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_majority_is_an_error_in_time() {
    let mut servers = Servers::start(3);
    let process = servers.process().await;
    servers.servers[1..].iter_mut().for_each(RedisServer::kill);
    let red = process.red();
    let error = soon(red.try_lock_for(Duration::from_millis(300))).await.expect_err("no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = soon(red.try_lock_now()).await.expect_err("no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = soon(red.lock()).await.expect_err("no majority for as long as its patience");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    eventually("what was granted goes back", async || servers.held_on(0..1) == 0).await;
    // With somebody else on the one that is alive it is still no refusal.
    let single = process.clients[0].lock(&servers.name);
    let _taken = single.owned_by(Owner::new()).lock().await.expect("it is free");
    let error = soon(red.try_lock_now()).await.expect_err("no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// the answers come when nobody waits for them any more.
#[tokio::test(flavor = "multi_thread")]
async fn late_grants_are_given_back_on_every_server() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let late = servers.proxies[1..].iter().map(|proxy| proxy.hold_reply(acquiring(&servers.name)));
    let late: Vec<_> = late.collect();
    let red = process.red().node_timeout(Duration::from_millis(300));
    let error = soon(red.try_lock_now()).await.expect_err("no majority answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for reply in &late {
        soon(reply.held()).await;
    }
    assert_eq!(servers.held_on(1..3), 2, "they were granted");
    late.iter().for_each(|reply| reply.release());
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// the future is dropped while a majority has been asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_attempt_gives_everything_back() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let late = servers.proxies[1..].iter().map(|proxy| proxy.hold_reply(acquiring(&servers.name)));
    let late: Vec<_> = late.collect();
    let red = process.red().node_timeout(Duration::from_secs(60));
    let asking = tokio::spawn(async move { red.lock().await });
    for reply in &late {
        soon(reply.held()).await;
    }
    assert_eq!(servers.held_on(1..3), 2, "they were granted");
    asking.abort();
    late.iter().for_each(|reply| reply.release());
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// nobody has a majority, and who sees that keeps none of the votes.
#[tokio::test(flavor = "multi_thread")]
async fn a_split_vote_is_given_back() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.process().await);
    let single = |at: usize| other.clients[at].lock(&servers.name);
    let first = single(0).lock().await.expect("it is free");
    let second = single(1).lock().await.expect("it is free");
    assert!(process.try_now().await.is_none());
    let short = Duration::from_millis(100);
    assert!(soon(process.red().try_lock_for(short)).await.expect("an answer").is_none());
    eventually("the third is free", async || servers.held_on(2..3) == 0).await;
    let red = process.red();
    let waiting = tokio::spawn(async move { red.lock().await });
    first.unlock().await.expect("it is held");
    let guard = soon(waiting).await.expect("no panic").expect("two are free");
    second.unlock().await.expect("it is held");
    drop(guard);
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// I1, I2, R-13: judged by intervals, while one server after the other stops or loses connections.
#[tokio::test(flavor = "multi_thread")]
async fn holders_exclude_each_other_under_faults() {
    let (servers, history) = (Servers::start(3), History::new());
    let mut tasks = JoinSet::new();
    let end = Instant::now() + Duration::from_secs(4);
    let mut processes = Vec::new();
    for number in 0..4 {
        let process = servers.process().await;
        for lease in [Lease::Renewed, Lease::Fixed(Duration::from_secs(1))] {
            let (red, history) = (process.red(), history.clone());
            let owner = format!("process {number}, {lease:?}");
            tasks.spawn(in_turns(red, lease, history, servers.name.clone(), owner, end));
        }
        processes.push(process);
    }
    for round in 0.. {
        if Instant::now() >= end {
            break;
        }
        let at = round % 3;
        if fastrand::bool() {
            servers.servers[at].pause();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(50..600))).await;
            servers.servers[at].resume();
        } else {
            servers.proxies[at].cut_all().await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..200))).await;
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.expect("no task panics");
    }
    history.assert_exclusive(20);
    servers.assert_nothing_left(processes, 0..3).await;
}

async fn in_turns(
    red: RedLock,
    lease: Lease,
    history: History,
    name: String,
    owner: String,
    end: Instant,
) {
    while Instant::now() < end {
        let Ok(Some(guard)) = red.try_lock(Duration::from_secs(1), lease).await else { continue };
        let mut held = history.held(&name, &owner);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..5))).await;
        // Never later than now: what it says of the future need not come about.
        held.valid_until(guard.valid_until().min(Instant::now()));
        held.end();
        let _ = guard.unlock().await;
    }
}

/// its vote is lost, not the lock; and nobody else gets a majority by it.
#[tokio::test(flavor = "multi_thread")]
async fn one_server_that_comes_back_empty_changes_nothing() {
    let mut servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.bystander().await);
    let guard = loop {
        let guard = soon(process.red().lock()).await.expect("it is free");
        if guard.members().len() == 3 {
            break guard;
        }
    };
    servers.servers[2].restart();
    eventually("the loss is noticed", async || !guard.members()[2].is_held()).await;
    assert!(guard.is_held());
    assert!(other.try_now().await.is_none());
    let before = guard.valid_until();
    eventually("the others renew it", async || guard.valid_until() > before).await;
    // A second one, and it is lost.
    servers.servers[1].restart();
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(!guard.is_held() && guard.valid_until() <= Instant::now());
    assert!(soon(guard.unlock()).await.expect_err("it is lost").is_lost());
    drop(soon(other.red().lock()).await.expect("it is free"));
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// I8, R-13: one answer of three moves nothing; it ends on time, and its body with it.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_a_minority_do_not_count() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let guard = soon(process.red().lock()).await.expect("it is free");
    for proxy in &servers.proxies[1..] {
        proxy.half_open(true);
    }
    // A renewal that was under way may still have been answered.
    servers.proxies[0].forget_commands();
    soon(servers.proxies[0].wait_for(renewing(&servers.name), 1)).await;
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(!guard.is_held());
    let error = soon(guard.unlock()).await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    servers.proxies.iter().for_each(|proxy| proxy.half_open(false));
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// I8.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_dropped_when_the_majority_is_lost() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let body = async |_held| {
        for at in 0..3 {
            servers.raw(at).cmd(&["DEL", &servers.name]).ok();
        }
        pending::<()>().await;
    };
    let error = soon(process.red().with(body)).await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// a fixed lease is not renewed; each server's counts from when it was asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_lease_ends() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.process().await);
    let lease = Duration::from_secs(1);
    let before = Instant::now();
    let guard = soon(process.red().try_lock(lease, lease)).await.expect("it is free");
    let guard = guard.expect("it is free");
    assert!(guard.valid_until() <= Instant::now() + lease);
    let next = soon(other.red().lock()).await.expect("it comes free");
    assert!(!guard.is_held() && before.elapsed() >= lease * 9 / 10);
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    drop((guard, next));
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// I5: it re-enters as its locks do; unlocked without a guard, too.
#[tokio::test(flavor = "multi_thread")]
async fn it_reenters() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.process().await);
    let red = process.red();
    let outer = soon(red.lock()).await.expect("it is free");
    let inner = soon(red.lock()).await.expect("it is ours");
    outer.unlock().await.expect("it is held");
    assert!(inner.is_held() && other.try_now().await.is_none());
    soon(red.with(|_| async { red.try_lock_now().await.unwrap().unwrap().forget() }))
        .await
        .expect("it is ours");
    inner.forget();
    red.unlock().await.expect("the forgotten hold is this task's");
    assert_eq!(red.unlock().await.expect_err("it is not held").kind(), ErrorKind::NotHeld);
    // What the body forgot belongs to its scope, which is gone: its lease runs out.
    drop(soon(other.red().lock()).await.expect("it comes free"));
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// what one server says against it counts as one vote.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_counts_if_the_majority_has_it() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    servers.raw(0).cmd(&["SET", &servers.name, "not a lock"]).ok();
    drop(process.try_now().await.expect("two are free"));
    servers.raw(1).cmd(&["SET", &servers.name, "not a lock"]).ok();
    let error = soon(process.red().lock()).await.expect_err("two are no locks");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    eventually("the third is free", async || servers.held_on(2..3) == 0).await;
}

/// The canonical Redlock of other libraries: one token on all, set if it is not there.
#[tokio::test(flavor = "multi_thread")]
async fn of_token_locks_it_is_the_redlock_of_others() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let red = process.of(|client| client.token_lock(&servers.name));
    let set = |at, token| {
        let set = ["SET", &servers.name, token, "NX", "PX", "60000"];
        !servers.raw(at).cmd(&set).ok().is_nil()
    };
    let guard = soon(red.lock()).await.expect("it is free");
    let tokens = (0..3).map(|at| servers.raw(at).cmd(&["GET", &servers.name]).ok());
    let tokens: Vec<_> = tokens.filter(|token| !token.is_nil()).map(|t| t.text()).collect();
    assert!(tokens.len() >= 2 && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    assert!((0..3).filter(|at| set(*at, "theirs")).count() < 2, "they see it");
    guard.unlock().await.expect("it is held");
    (0..3).for_each(|at| drop(servers.raw(at).cmd(&["DEL", &servers.name]).ok()));
    assert!(set(0, "theirs") && set(1, "theirs"));
    assert!(soon(red.try_lock_now()).await.expect("an answer").is_none(), "and we see theirs");
}

/// Told by the first use, before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_quorum_is_refused() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let [a, b, c] = [0, 1, 2].map(|at| process.clients[at].clone());
    let unfit = [
        vec![],
        vec![a.lock("x")],
        vec![a.lock("x"), b.lock("x")],
        vec![a.lock("x"), b.lock("x"), a.lock("x")],
        vec![a.lock("x"), b.lock("x"), c.lock("y")],
        vec![a.lock("x"), b.lock("x"), c.spin_lock("x")],
        vec![a.lock("x"), b.lock("x"), c.lock("x"), c.lock("x")],
    ];
    for locks in unfit {
        let error = RedLock::new(locks.clone()).lock().await.expect_err("it is no quorum");
        assert_eq!(error.kind(), ErrorKind::InvalidMembers, "{locks:?}");
    }
    let red = process.red().node_timeout(Duration::ZERO);
    assert_eq!(red.lock().await.expect_err("no time").kind(), ErrorKind::InvalidDuration);
    let unnamed = process.of(|client| client.lock(""));
    assert_eq!(unnamed.lock().await.expect_err("no name").kind(), ErrorKind::InvalidName);
    // Of the same locks, all may be asked for.
    let all = MultiLock::new(process.clients.iter().map(|client| client.lock("x")));
    drop(soon(all.lock()).await.expect("all are free"));
}

/// I9, R-25: nobody hears of the release, on any server.
#[tokio::test(flavor = "multi_thread")]
async fn without_any_message_it_is_had_in_bounded_time() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.bystander().await);
    servers.proxies.iter().for_each(|proxy| proxy.eat_messages(true));
    let guard = other.try_now().await.expect("it is free");
    let red = process.red();
    let waiting = tokio::spawn(async move { red.lock().await });
    for proxy in &servers.proxies {
        soon(proxy.wait_for(acquiring(&servers.name), 1)).await;
    }
    guard.unlock().await.expect("it is held");
    drop(soon(waiting).await.expect("no panic").expect("it is free"));
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// the fields of a process that died stand until their lease has ended.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_had_comes_free_with_its_lease() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    for at in 0..3 {
        servers.raw(at).cmd(&["HSET", &servers.name, "dead:1", "1"]).ok();
        servers.raw(at).cmd(&["PEXPIRE", &servers.name, "800"]).ok();
    }
    assert!(process.try_now().await.is_none());
    drop(soon(process.red().lock()).await.expect("its lease ends"));
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// dropped at one point after the other, also while others have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_dropped_anywhere_leaves_nothing() {
    let servers = Servers::start(3);
    let (process, other) = (servers.process().await, servers.process().await);
    for polls in 0..12 {
        let held = if polls % 2 == 0 { None } else { other.try_now().await };
        let mut asking = Box::pin(process.red().lock());
        for _ in 0..polls {
            let step = tokio::time::timeout(Duration::from_micros(300), &mut asking).await;
            if step.is_ok() {
                break;
            }
        }
        drop(asking);
        drop(held);
        eventually("all is given back", async || servers.held_on(0..3) == 0).await;
        drop(soon(other.red().lock()).await.expect("it is free"));
    }
    servers.assert_nothing_left(vec![process, other], 0..3).await;
}

/// The names that a lock takes, and those that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_as_hostile_as_those_of_a_lock() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    for name in ["a{b}c", "{x}", "ab{c", "x}y", "ü and a space", "nul\0", "\r\n"] {
        let red = process.of(|client| client.lock(name));
        soon(red.lock()).await.expect(name).unlock().await.expect(name);
    }
    for name in [String::new(), "x".repeat(1 << 20)] {
        let red = process.of(|client| client.lock(&name));
        let error = red.lock().await.expect_err("it is no name");
        assert_eq!(error.kind(), ErrorKind::InvalidName);
    }
    servers.assert_nothing_left(vec![process], 0..3).await;
}

/// a count that is none, wherever it is held: nothing is entered, and giving back still works.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_is_none_is_told() {
    let servers = Servers::start(3);
    let process = servers.process().await;
    let red = process.red().owned_by(Owner::new());
    let guard = soon(red.lock()).await.expect("it is free");
    let holder = guard.members()[0].holder();
    for at in (0..3).filter(|at| servers.held_on(*at..at + 1) == 1) {
        servers.raw(at).cmd(&["HSET", &servers.name, holder.as_str(), "many"]).ok();
    }
    let error = soon(red.lock()).await.expect_err("the counts are none");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    guard.unlock().await.expect("it is held");
    servers.assert_nothing_left(vec![process], 0..3).await;
}

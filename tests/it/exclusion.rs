//! At most one owner holds a lock: judged by the intervals of all holds, never by a counter.
use std::{
    env,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Held, Lease};
use tokio::{process::Command, task::JoinSet, time::timeout};

use crate::support::{
    assert_every_key_has_ttl, assert_no_keys, blocking,
    history::History,
    redisson::Redisson,
    server::{Raw, RedisServer},
    unique,
};

/// When a test that should be long over is taken for hanging.
const HANG: Duration = Duration::from_secs(20);

/// A lease in milliseconds that does not end by itself while a test runs.
const LONG_MS: u64 = 60_000;

/// I1, I2.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_client_exclude_each_other() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.expect("the server is up");
    let (history, names) = (History::new(), [unique("a"), unique("b")]);
    let mut tasks = JoinSet::new();
    for task in 0..24 {
        tasks.spawn(hold_in_turns(client.clone(), history.clone(), names.clone(), task, 25));
    }
    finish(tasks).await;
    history.assert_exclusive(24 * 25);
    client.close().await;
    assert_no_keys(&server.raw());
}

/// I1, I2.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_several_clients_exclude_each_other() {
    let server = RedisServer::start();
    let (history, names) = (History::new(), [unique("a"), unique("b")]);
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for number in 0..4 {
        let client = Client::connect(server.url()).await.expect("the server is up");
        for task in 0..6 {
            let (client, history) = (client.clone(), history.clone());
            tasks.spawn(hold_in_turns(client, history, names.clone(), number * 100 + task, 15));
        }
        clients.push(client);
    }
    finish(tasks).await;
    history.assert_exclusive(4 * 6 * 15);
    futures::future::join_all(clients.iter().map(Client::close)).await;
    assert_no_keys(&server.raw());
}

/// I1, I2: each sees the other's holds, and both get their turns.
#[tokio::test(flavor = "multi_thread")]
async fn rust_and_java_exclude_each_other() {
    let server = RedisServer::start();
    let (history, names) = (History::new(), [unique("a"), unique("b")]);
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let client = Client::connect(server.url()).await.expect("the server is up");
        tasks.spawn(hold_in_turns(client, history.clone(), names.clone(), task, 15));
    }
    for _ in 0..2 {
        let (history, names) = (history.clone(), names.clone());
        let peer = Redisson::connect(server.port());
        tasks.spawn(blocking(move || hold_as_java(&peer, &history, &names, 15)));
    }
    finish(tasks).await;
    history.assert_exclusive(6 * 15 + 2 * 15);
    assert_no_keys(&server.raw());
}

/// R-04, I2: a holder that works for longer than its lease knows when it ended.
#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_under_their_holders_do_not_overlap() {
    const LEASE: Duration = Duration::from_millis(60);
    let server = RedisServer::start();
    let (history, name) = (History::new(), unique("a"));
    let (ended, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for task in 0..6 {
        let client = Client::connect(server.url()).await.expect("the server is up");
        let (history, ended) = (history.clone(), ended.clone());
        let lock = client.lock(&name);
        tasks.spawn(async move {
            for _ in 0..6 {
                let guard = lock.lock_with(LEASE).await.expect("it is free within a lease");
                let mut held = history.held(guard.name(), &format!("task {task}"));
                held.valid_until(guard.valid_until());
                tokio::time::sleep(LEASE.mul_f64(fastrand::f64() * 1.5)).await;
                held.end();
                match guard.unlock().await {
                    Err(error) if error.is_lost() => ended.fetch_add(1, Ordering::Relaxed),
                    result => result.map(|()| 0).expect("it is released or lost"),
                };
            }
        });
    }
    finish(tasks).await;
    history.assert_exclusive(6 * 6 / 2);
    let ended = ended.load(Ordering::Relaxed);
    assert!(ended > 0 && ended < 36, "{ended} of 36 leases ended under their holders");
}

/// R-01, I6: the test runs itself a second time, as the holder that is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_killed_process_is_free_when_its_lease_ends() {
    const TEST: &str = "exclusion::a_lock_of_a_killed_process_is_free_when_its_lease_ends";
    const HOLDER: &str = "LEASEHOLD_TEST_HOLD";
    if let Ok(order) = env::var(HOLDER) {
        let (url, name) = order.split_once(' ').expect("a URL and a name");
        return hold_until_killed(url, name).await;
    }
    let (server, name) = (RedisServer::start(), unique("a"));
    let raw = server.raw();
    let client = Client::connect(server.url()).await.expect("the server is up");
    let mut holder = Command::new(env::current_exe().expect("a test has a program"))
        .args(["--exact", TEST])
        .env(HOLDER, format!("{} {name}", server.url()))
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the test's own program starts");
    wait_until_renewed(&raw, &name).await;
    let waiting = tokio::spawn(client.lock(&name).lock());
    holder.kill().await.expect("it runs until it is killed");

    // Whatever it had sent can only have made its lease end later.
    let seen = Instant::now();
    let left = u64::try_from(raw.cmd(&["PTTL", &name]).int()).expect("the lease goes on");
    assert!(left <= 2000, "nothing makes it longer than the watchdog: {left}");
    while !waiting.is_finished() {
        assert_every_key_has_ttl(&raw);
        assert!(seen.elapsed() < HANG, "nobody got it after the lease of the dead");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let early = Duration::from_millis(left.saturating_sub(2));
    assert!(seen.elapsed() >= early, "it was given away under the lease of the dead");
    let guard = waiting.await.expect("no panic").expect("it is free");
    assert_every_key_has_ttl(&raw);
    guard.unlock().await.expect("it is held");
    assert_no_keys(&raw);
}

async fn hold_until_killed(url: &str, name: &str) {
    let client = Client::builder(url).expect("a URL").watchdog(Duration::from_secs(2));
    let client = client.connect().await.expect("the server is up");
    let _guard = client.lock(name).lock().await.expect("it is free");
    // If nobody kills it: not for ever.
    tokio::time::sleep(HANG).await;
}

/// Waits until a lock is held, and has been renewed.
async fn wait_until_renewed(raw: &Raw, name: &str) {
    let mut least = i64::MAX;
    let renewed = async || {
        assert_every_key_has_ttl(raw);
        let left = raw.cmd(&["PTTL", name]).int();
        let renewed = left > least.saturating_add(100);
        if left > 0 {
            least = least.min(left);
        }
        renewed
    };
    crate::support::eventually("the holder has renewed it", renewed).await;
}

/// Takes the locks in all ways there are, and holds each for a random moment.
async fn hold_in_turns(
    client: Client,
    history: History,
    names: [String; 2],
    task: usize,
    rounds: usize,
) {
    let owner = &format!("task {task}");
    for round in 0..rounds {
        let lock = client.lock(fastrand::choice(&names).expect("there are names"));
        if round % 4 == 0 {
            let body = async |held| hold(&history, owner, &held).await;
            lock.with(|held| async move { body(held).await }).await.expect("it comes free");
            continue;
        }
        let guard = match round % 4 {
            1 => lock.lock().await.expect("it comes free"),
            2 => lock.lock_with(Duration::from_millis(LONG_MS)).await.expect("it comes free"),
            _ => {
                let guard = lock.try_lock(HANG, Lease::Renewed).await.expect("it comes free");
                guard.expect("it comes free in time")
            }
        };
        hold(&history, owner, &guard).await;
        if fastrand::bool() {
            guard.unlock().await.expect("it is still held");
        }
    }
}

async fn hold(history: &History, owner: &str, guard: &Held) {
    let mut held = history.held(guard.name(), owner);
    match fastrand::u64(..3) {
        0 => {}
        1 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(Duration::from_micros(fastrand::u64(..1000))).await,
    }
    held.valid_until(guard.valid_until());
    held.end();
}

fn hold_as_java(peer: &Redisson, history: &History, names: &[String], rounds: usize) {
    for _ in 0..rounds {
        let name = fastrand::choice(names).expect("there are names");
        while peer.try_lock(name, 1, LONG_MS).is_some() {
            thread::sleep(Duration::from_micros(500));
        }
        let held = history.held(name, peer.id());
        thread::sleep(Duration::from_micros(fastrand::u64(..1000)));
        held.end();
        assert_eq!(peer.unlock(name, 1, LONG_MS), Some(true));
    }
}

/// Waits for all tasks, and fails if one of them did.
async fn finish(mut tasks: JoinSet<()>) {
    let all = async {
        while let Some(result) = tasks.join_next().await {
            result.expect("no task fails");
        }
    };
    timeout(HANG, all).await.expect("every task comes to its end");
}

//! Lock and unlock with nobody in the way: one task to 256, each with a lock of its own, against
//! the same two scripts as bare EVALSHAs of fred.
//!
//! The two sides take turns in one process on one server; the ratio is taken turn by turn.

mod common;

use common::{Run, info, scripts_run, server::RedisServer, show, timed};
use fred::prelude::*;
use leasehold::Client as Locks;
use std::time::Duration;

const TURNS: usize = 9;
const TURN: Duration = Duration::from_millis(600);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.expect("the server was just started");
    let bare = bare_client(server.port()).await;
    println!("uncontended lock + unlock, {TURNS} turns of {TURN:?} each, median (least–most)\n");
    println!(
        "{:>5}  {:>28}  {:>28}  {:>18}  {:>20}  {:>20}  {:>8}",
        "tasks",
        "leasehold pairs/s",
        "bare EVALSHAs pairs/s",
        "ratio",
        "p50 µs",
        "bare p50 µs",
        "p50 ratio"
    );
    for tasks in [1, 16, 256] {
        // One turn each to warm up.
        ours(&locks, tasks).await;
        theirs(&bare, tasks).await;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            // Whoever goes first changes, so that drift hits both.
            if turn % 2 == 0 {
                a.push(ours(&locks, tasks).await);
                b.push(theirs(&bare, tasks).await);
            } else {
                b.push(theirs(&bare, tasks).await);
                a.push(ours(&locks, tasks).await);
            }
        }
        let ratio = |f: fn(&Run) -> f64| a.iter().zip(&b).map(move |(a, b)| f(a) / f(b));
        println!(
            "{tasks:>5}  {:>28}  {:>28}  {:>18}  {:>20}  {:>20}  {:>8}",
            show(a.iter().map(|r| r.per_second)),
            show(b.iter().map(|r| r.per_second)),
            show(ratio(|r| r.per_second)),
            show(a.iter().map(|r| r.p50_us)),
            show(b.iter().map(|r| r.p50_us)),
            show(ratio(|r| r.p50_us)),
        );
    }
    commands_of_a_pair(&server, &locks).await;
    locks.close().await;
}

async fn ours(locks: &Locks, tasks: usize) -> Run {
    let handles: Vec<_> = (0..tasks).map(|task| locks.lock(format!("ours:{task}"))).collect();
    timed(tasks, TURN, move |task| {
        let lock = handles[task].clone();
        async move {
            let guard = lock.lock().await.expect("nobody else has it");
            guard.unlock().await.expect("we have it");
        }
    })
    .await
}

/// The two scripts as one-entry lists, sent with no lock library around them.
struct Bare {
    client: fred::clients::Client,
    acquire: String,
    release: String,
}

async fn bare_client(port: u16) -> std::sync::Arc<Bare> {
    let config = Config::from_url(&format!("redis://127.0.0.1:{port}")).expect("a plain URL");
    let mut builder = Builder::from_config(config);
    builder.with_connection_config(|connection| connection.tcp.nodelay = Some(true));
    builder.with_config(|config| config.version = fred::types::RespVersion::RESP3);
    let client = builder.build().expect("a plain configuration");
    client.init().await.expect("the server was just started");
    let load = |text: &'static str| client.script_load(text);
    let acquire = load(include_str!("../lua/lock/acquire.lua")).await.expect("it compiles");
    let release = load(include_str!("../lua/lock/release.lua")).await.expect("it compiles");
    std::sync::Arc::new(Bare { client, acquire, release })
}

#[allow(clippy::disallowed_methods, reason = "bare means bare")]
async fn theirs(bare: &std::sync::Arc<Bare>, tasks: usize) -> Run {
    let bare = bare.clone();
    timed(tasks, TURN, move |task| {
        let bare = bare.clone();
        async move {
            let (name, owner) = (format!("bare:{task}"), "0b7e7d5e-7c1b-4c59-a7e0-0123456789ab:1");
            let channel = format!("redisson_lock__channel:{{{name}}}");
            let acquired: Vec<i64> = bare
                .client
                .evalsha(&bare.acquire, vec![&name], vec!["30000", owner, "1"])
                .await
                .expect("a script");
            assert_eq!(acquired, [0]);
            let released: Vec<i64> = bare
                .client
                .evalsha(&bare.release, vec![&name, &channel], vec![owner, "0", "PUBLISH"])
                .await
                .expect("a script");
            assert_eq!(released, [0]);
        }
    })
    .await
}

/// What a pair costs the server, and how many commands it is.
async fn commands_of_a_pair(server: &RedisServer, locks: &Locks) {
    const PAIRS: u64 = 5_000;
    let raw = server.raw();
    let before = (scripts_run(&raw), info(&raw, "cpu", "used_cpu_user_main_thread"));
    let lock = locks.lock("counted");
    let counted = tokio::spawn(async move {
        for _ in 0..PAIRS {
            let guard = lock.lock().await.expect("nobody else has it");
            guard.unlock().await.expect("we have it");
        }
    });
    counted.await.expect("it ends by itself");
    let scripts = scripts_run(&raw) - before.0;
    let cpu = info(&raw, "cpu", "used_cpu_user_main_thread") - before.1;
    println!(
        "\none task: {:.3} commands a pair, {:.1} µs of the server's user time a pair",
        scripts as f64 / PAIRS as f64,
        cpu * 1e6 / PAIRS as f64
    );
}

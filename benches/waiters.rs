//! Those who wait: how fast a thousand on one lock are served, and what ten thousand cost that wait
//! for nothing.

mod common;

use common::server::{RedisServer, until};
use common::show::{Bars, Table, figure, median, show};
use common::{Work, cpu_time};
use leasehold::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TURNS: usize = 7;
const CROWD: usize = 1_000;
/// How long the lock is held while they gather.
const GATHERING: Duration = Duration::from_millis(500);
const IDLE: usize = 10_000;
/// Longer than the time after which a waiter looks for itself, should every message be lost.
const WATCHED: Duration = Duration::from_secs(45);

fn main() {
    let runtime = common::runtime();
    runtime.block_on(crowd());
    runtime.block_on(idle());
}

/// How long a crowd took to be served once the lock was free, and commands from its first try on.
struct Drained {
    time: Duration,
    commands: f64,
}

async fn crowd() {
    let server = RedisServer::start();
    let connect = || async { Client::connect(server.url()).await.expect("it was just started") };
    let holder = connect().await;
    println!("### (e) {CROWD} waiters on one lock\n");
    println!("Held for {GATHERING:?} while they gather; {TURNS} turns, median (least–most).\n");
    let mut table = Table::new(&["waiters", "ms until all were served", "commands a waiter"]);
    let mut bars = Bars::new();
    for clients in [1, 4] {
        let mut waiting = Vec::new();
        for _ in 0..clients {
            waiting.push(connect().await);
        }
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(drain(&server, &holder, &waiting).await);
        }
        let times = turns.iter().map(|turn| turn.time.as_secs_f64() * 1e3);
        let each: Vec<f64> = turns.iter().map(|turn| turn.commands / CROWD as f64).collect();
        let who =
            if clients == 1 { "of one client".into() } else { format!("of {clients} clients") };
        bars.at_most(&format!("commands a waiter, {who}"), 0.5, median(each.iter().copied()));
        table.row(vec![who, show(times), show(each)]);
        for client in waiting {
            client.close().await;
        }
    }
    table.print();
    bars.print();
    holder.close().await;
}

async fn drain(server: &RedisServer, holder: &Client, waiting: &[Client]) -> Drained {
    let raw = server.raw();
    let guard = holder.lock("crowd").lock().await.expect("nobody else has it");
    let before = Work::so_far(&raw);
    let inside = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        let lock = waiting[number % waiting.len()].lock("crowd");
        let inside = inside.clone();
        crowd.spawn(async move {
            let guard = lock.lock().await.expect("it comes round");
            assert!(!inside.swap(true, Ordering::SeqCst), "somebody else is in");
            inside.store(false, Ordering::SeqCst);
            drop(guard);
        });
    }
    tokio::time::sleep(GATHERING).await;
    let began = Instant::now();
    guard.unlock().await.expect("we have it");
    while let Some(served) = crowd.join_next().await {
        served.expect("it is served");
    }
    let time = began.elapsed();
    until("the last release has run", || raw.cmd(&["EXISTS", "crowd"]).int() == 0);
    Drained { time, commands: Work::so_far(&raw).since(before).commands }
}

/// Waiters on locks that a stranger holds, long, so that nobody's renewals are counted with theirs.
async fn idle() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let granted = Arc::new(AtomicUsize::new(0));
    let (mut clients, mut waiters) = (Vec::new(), JoinSet::new());
    for (server, names) in servers.iter().zip([1, IDLE]) {
        let hold = "for n = 0, ARGV[1] - 1 do redis.call('HSET', 'idle:' .. n, 'stranger:1', 1)
            redis.call('PEXPIRE', 'idle:' .. n, 3600000) end";
        server.raw().cmd(&["EVAL", hold, "0", &names.to_string()]);
        let client = Client::connect(server.url()).await.expect("the server was just started");
        let began = Instant::now();
        for number in 0..IDLE {
            let (lock, granted) =
                (client.lock(format!("idle:{}", number % names)), granted.clone());
            waiters.spawn(async move {
                let _guard = lock.lock().await;
                granted.fetch_add(1, Ordering::Relaxed);
            });
        }
        let raw = server.raw();
        let channels = || {
            let text = raw.cmd(&["INFO", "stats"]).text();
            let line = text.lines().find_map(|line| line.strip_prefix("pubsub_channels:"));
            line.and_then(|count| count.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        while channels() < names && began.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eprintln!("{IDLE} waiters on {names} locks listen after {:.1?}", began.elapsed());
        clients.push(client);
    }
    // The try that follows each subscription is over by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = servers.each_ref().map(|server| Work::so_far(&server.raw()));
    let (cpu, began) = (cpu_time(), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (cpu_time() - cpu).as_secs_f64() / seconds * 100.0;
    println!("\n### (g) {IDLE} waiters that wait for nothing, watched for {WATCHED:?}\n");
    let mut table = Table::new(&["waiters", "commands/s in all", "Redis CPU, % of a core"]);
    let mut bars = Bars::new();
    for ((server, before), names) in servers.iter().zip(before).zip(["one lock", "10,000 locks"]) {
        let work = Work::so_far(&server.raw()).since(before);
        let per_second = work.commands / seconds;
        let busy = work.cpu_us / seconds / 1e4;
        table.row(vec![format!("on {names}"), figure(per_second), figure(busy)]);
        bars.at_most(&format!("commands/s, on {names}"), 1.0, per_second);
    }
    table.print();
    let granted = granted.load(Ordering::Relaxed);
    println!("\nThe process that has both: {cpu:.1} % of a core. Granted by mistake: {granted}.");
    bars.print();
    waiters.shutdown().await;
    for client in clients {
        client.close().await;
    }
}

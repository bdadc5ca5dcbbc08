//! A hundred thousand held locks of one client for two periods of renewal: commands, processor
//! time, memory, how many were lost; then the same through a stall of the server of five seconds.
//!
//! `LEASES` sets another number.

mod common;

use common::chart::Chart;
use common::server::RedisServer;
use common::show::{Bars, Table, figure, median, show};
use common::{Work, cpu_time, resident, told};
use leasehold::{Client, LockGuard};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(5);
/// Programs that only take the locks, to see what these take.
const TIMES_WEIGHED: usize = 3;

fn main() {
    let leases: usize = match std::env::var("LEASES") {
        Ok(number) => number.parse().expect("LEASES is a number"),
        Err(_) => 100_000,
    };
    let runtime = common::runtime();
    if told("weigh") {
        println!("{}", runtime.block_on(weigh(leases)));
    } else {
        runtime.block_on(measure(leases));
    }
}

/// Takes locks of names that nobody else uses. The guards stay where each taker put them: moved, they
/// would leave holes that count as memory.
async fn take(client: &Client, part: &str, count: usize) -> Vec<Vec<LockGuard>> {
    const TAKERS: usize = 100;
    let mut takers = Vec::new();
    for taker in 0..TAKERS {
        let (client, part) = (client.clone(), part.to_owned());
        let share = count / TAKERS + usize::from(taker < count % TAKERS);
        takers.push(tokio::spawn(async move {
            let mut guards = Vec::with_capacity(share);
            for n in 0..share {
                guards.push(client.lock(format!("{part}:{taker}:{n}")).lock().await.expect("free"));
            }
            guards
        }));
    }
    let mut guards = Vec::with_capacity(TAKERS);
    for taker in takers {
        guards.push(taker.await.expect("it ends by itself"));
    }
    guards
}

async fn connect(server: &RedisServer) -> Client {
    let builder = Client::builder(server.url()).expect("a plain URL").watchdog(WATCHDOG);
    builder.connect().await.expect("the server was just started")
}

/// Bytes of this process a lease: guard, hold, name, timer and all.
async fn weigh(leases: usize) -> u64 {
    let server = RedisServer::start();
    let client = connect(&server).await;
    // What connections and tasks need is there before it counts.
    drop(take(&client, "before", 1_000).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let empty = resident();
    let guards = take(&client, "held", leases).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let bytes = resident().saturating_sub(empty) / leases as u64;
    // Nobody needs them given back: the server ends with this program.
    std::mem::forget(guards);
    bytes
}

/// What a period of renewal took, while so many locks were held.
struct Cost {
    held: usize,
    commands: f64,
    client_percent: f64,
    server_percent: f64,
    shortest_ttl: i64,
    lost: usize,
}

async fn measure(leases: usize) {
    let weights = weights();
    let server = RedisServer::start();
    let client = connect(&server).await;
    println!("### (f) Held locks, renewed; lease {WATCHDOG:?}, so a period is {PERIOD:?}\n");
    let (mut guards, mut costs) = (Vec::<LockGuard>::new(), Vec::new());
    for (held, periods) in [(leases / 100, 1), (leases / 10, 1), (leases, 2)] {
        let began = Instant::now();
        let more = take(&client, &held.to_string(), held - guards.len()).await;
        guards.extend(more.into_iter().flatten());
        eprintln!("{held} locks held, the last of them taken in {:.1?}", began.elapsed());
        costs.push(watch(&server, &guards, periods).await);
    }
    let mut table = Table::new(&[
        "held",
        "commands a period",
        "client CPU, % of a core",
        "Redis CPU, % of a core",
        "shortest TTL seen, ms",
        "lost",
    ]);
    for cost in &costs {
        table.row(vec![
            cost.held.to_string(),
            figure(cost.commands),
            figure(cost.client_percent),
            figure(cost.server_percent),
            cost.shortest_ttl.to_string(),
            cost.lost.to_string(),
        ]);
    }
    table.print();
    let lost_in_stall = stall(&server, &guards).await;
    println!(
        "\nThe server stands still for {STALL:?}; a lease after that began: {lost_in_stall} lost."
    );
    if !weights.is_empty() {
        let weights = show(weights.iter().copied());
        println!("Memory of the process a lease, {TIMES_WEIGHED} runs: {weights} bytes.");
    }
    let began = Instant::now();
    drop(guards);
    client.shutdown(Duration::from_secs(30)).await;
    let left = server.raw().cmd(&["DBSIZE"]).int();
    println!("All given back in {:.1?}; {left} keys left.", began.elapsed());
    bars(costs.last().expect("three"), lost_in_stall, &weights);
    chart(&costs);
}

fn bars(cost: &Cost, lost_in_stall: usize, weights: &[f64]) {
    let mut bars = Bars::new();
    bars.at_most("lost", 0.0, cost.lost as f64);
    bars.at_most("lost through the stall", 0.0, lost_in_stall as f64);
    bars.at_most("commands a period", 1100.0, cost.commands);
    bars.at_most("client CPU, % of a core", 5.0, cost.client_percent);
    if !weights.is_empty() {
        bars.at_most("bytes a lease", 300.0, median(weights.iter().copied()));
    }
    bars.print();
}

fn chart(costs: &[Cost]) {
    let line = |name: &str, of: fn(&Cost) -> f64| {
        let points = costs.iter().map(|cost| (cost.held as f64, of(cost).max(0.1)));
        (name.to_owned(), points.collect())
    };
    // A percent of a core for ten seconds is 100 ms.
    Chart {
        name: "renewal",
        title: "Renewal of held locks, a period of 10 s",
        x: "held locks",
        y: "a period",
        log_y: true,
    }
    .write(&vec![
        line("commands", |cost| cost.commands),
        line("client CPU, ms", |cost| cost.client_percent * 100.0),
        line("Redis CPU, ms", |cost| cost.server_percent * 100.0),
        line("(a command a lock)", |cost| cost.held as f64),
    ]);
}

async fn watch(server: &RedisServer, guards: &[LockGuard], periods: u32) -> Cost {
    let raw = server.raw();
    // The first renewals come between a sixth and a third of the lease: let that begin.
    tokio::time::sleep(PERIOD).await;
    let (before, cpu, began) = (Work::so_far(&raw), cpu_time(), Instant::now());
    let watched = PERIOD * periods;
    let mut shortest_ttl = i64::MAX;
    while began.elapsed() < watched {
        let key = raw.cmd(&["RANDOMKEY"]).text();
        shortest_ttl = shortest_ttl.min(raw.cmd(&["PTTL", &key]).int());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let work = Work::so_far(&raw).since(before);
    Cost {
        held: guards.len(),
        commands: work.commands / seconds * PERIOD.as_secs_f64(),
        client_percent: (cpu_time() - cpu).as_secs_f64() / seconds * 100.0,
        server_percent: work.cpu_us / seconds / 1e4,
        shortest_ttl,
        lost: lost(guards),
    }
}

fn lost(guards: &[LockGuard]) -> usize {
    guards.iter().filter(|guard| !guard.is_held()).count()
}

/// The server stands still, its sockets open and silent; then every lock that was not renewed since
/// has run out.
async fn stall(server: &RedisServer, guards: &[LockGuard]) -> usize {
    server.pause();
    let began = Instant::now();
    tokio::time::sleep(STALL).await;
    server.resume();
    tokio::time::sleep(WATCHDOG + Duration::from_secs(1) - began.elapsed()).await;
    let left = server.raw().cmd(&["DBSIZE"]).int() as usize;
    lost(guards).max(guards.len() - left.min(guards.len()))
}

fn weights() -> Vec<f64> {
    let weigh = || {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let output = command.arg("weigh").stderr(Stdio::inherit()).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().ok()
    };
    (0..TIMES_WEIGHED).filter_map(|_| weigh()).collect()
}

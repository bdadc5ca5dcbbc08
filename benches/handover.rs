//! From a release to the next holder: between tasks of one process, and between two processes.
//! Beside it, in the same run, the bare latency of that path (the release script publishes, the
//! other process receives, the acquire script answers, all by fred) and a bare round trip.

mod common;

use common::bare::{Bare, channel};
use common::chart::Chart;
use common::server::RedisServer;
use common::show::{Bars, Table, median, show};
use common::{now, quantile, times, told};
use fred::prelude::*;
use hdrhistogram::Histogram;
use leasehold::{Client as Locks, Lock};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

const TURNS: usize = 7;
const ROUNDS: usize = 250;
/// In which a waiter tries, subscribes and falls asleep.
const REST: Duration = Duration::from_millis(3);

const ROWS: [&str; 5] = [
    "round trip (PING), behind another",
    "round trip (PING), after 3 ms of rest",
    "bare PUBLISH → receive → EVALSHA",
    "leasehold, one process",
    "leasehold, two processes",
];

fn main() {
    let (runtime, url) = (common::runtime(), || std::env::var("REDIS_URL").expect("it is set"));
    if told("waiter") {
        runtime.block_on(async { spawned(waiter(url())).await });
    } else if told("bare-waiter") {
        runtime.block_on(async { spawned(bare_waiter(url())).await });
    } else {
        runtime.block_on(async { spawned(measure()).await });
    }
}

/// On a worker of the runtime, as other code is; the thread of `block_on` wakes up later.
async fn spawned(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work).await.expect("it ends by itself");
}

async fn measure() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.expect("the server was just started");
    let bare = Bare::connect(&server.url()).await;
    let mut other = Other::start("waiter", &server.url());
    let mut bare_other = Other::start("bare-waiter", &server.url());
    let mut turns: [Vec<Histogram<u64>>; 5] = Default::default();
    for turn in 0..=TURNS {
        let figures = [
            round_trips(&bare, ROUNDS * 8, Duration::ZERO).await,
            round_trips(&bare, ROUNDS, REST).await,
            bare_hand_overs(&bare, &mut bare_other).await,
            local_hand_overs(locks.lock("local"), locks.lock("local")).await,
            hand_overs(&locks.lock("remote"), &mut other).await,
        ];
        // The first is to warm up.
        if turn > 0 {
            turns.iter_mut().zip(figures).for_each(|(turns, figures)| turns.push(figures));
        }
    }
    println!("### (d) Unlock to the next holder\n");
    println!("{TURNS} turns of {ROUNDS} each, that alternate; median (least–most) of the turns.\n");
    let (round_trip, bare_path) = ("p50 / a round trip after rest", "p50 / the bare path");
    let mut table = Table::new(&["", "p50 µs", "p99 µs", round_trip, bare_path]);
    let p = |row: usize, q: f64| turns[row].iter().map(move |times| quantile(times, q));
    let ratios = |row: usize, to: usize| p(row, 0.5).zip(p(to, 0.5)).map(|(a, b)| a / b);
    for (row, name) in ROWS.iter().enumerate() {
        let (p50, p99) = (show(p(row, 0.5)), show(p(row, 0.99)));
        table.row(vec![(*name).to_owned(), p50, p99, show(ratios(row, 1)), show(ratios(row, 2))]);
    }
    table.print();
    let mut bars = Bars::new();
    bars.at_most("two processes: p50 / a round trip after rest", 3.0, median(ratios(4, 1)));
    bars.at_most("the same / a round trip behind another", 3.0, median(ratios(4, 0)));
    bars.at_most("two processes: p99, µs", 1000.0, median(p(4, 0.99)));
    bars.print();
    let distribution = |(name, turns): (&&str, &Vec<Histogram<u64>>)| {
        let mut all = times();
        turns.iter().for_each(|turn| all.add(turn).expect("one range"));
        let line = (1..1000).map(|n| (quantile(&all, f64::from(n) / 1e3), f64::from(n) / 10.0));
        ((*name).to_owned(), line.collect())
    };
    Chart {
        name: "handover",
        title: "Unlock to the next holder",
        x: "µs",
        y: "% of the hand-overs that took no longer",
        log_y: false,
    }
    .write(&ROWS.iter().zip(&turns).map(distribution).collect());
    other.end().await;
    bare_other.end().await;
    locks.close().await;
}

async fn round_trips(bare: &Bare, rounds: usize, rest: Duration) -> Histogram<u64> {
    let mut times = times();
    for _ in 0..rounds {
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        let began = now();
        bare.ping().await;
        times.record(now() - began).expect("it grows as needed");
    }
    times
}

/// Two tasks hand one lock to and fro; each release is timed to the other's grant.
async fn local_hand_overs(mine: Lock, theirs: Lock) -> Histogram<u64> {
    let (granted, mut grants) = mpsc::unbounded_channel::<u64>();
    let (go, mut gone) = mpsc::unbounded_channel::<()>();
    let waiter = tokio::spawn(async move {
        while gone.recv().await.is_some() {
            let guard = theirs.lock().await.expect("it comes free");
            let _ = granted.send(now());
            guard.unlock().await.expect("we have it");
        }
    });
    let mut times = times();
    for _ in 0..ROUNDS {
        let guard = mine.lock().await.expect("it comes free");
        go.send(()).expect("the waiter waits for it");
        tokio::time::sleep(REST).await;
        let released = now();
        guard.unlock().await.expect("we have it");
        let granted = grants.recv().await.expect("the waiter says so");
        times.record(granted.saturating_sub(released)).expect("it grows as needed");
    }
    drop(go);
    waiter.await.expect("it ends with its channel");
    times
}

/// The same with a waiter in another process.
async fn hand_overs(lock: &Lock, other: &mut Other) -> Histogram<u64> {
    let mut times = times();
    for _ in 0..ROUNDS {
        let guard = lock.lock().await.expect("it comes free");
        other.go().await;
        tokio::time::sleep(REST).await;
        let released = now();
        guard.unlock().await.expect("we have it");
        times.record(other.granted().await.saturating_sub(released)).expect("it grows as needed");
        other.left().await;
    }
    times
}

async fn bare_hand_overs(bare: &Bare, other: &mut Other) -> Histogram<u64> {
    let mut times = times();
    for _ in 0..ROUNDS {
        assert!(bare.acquire("bare").await);
        other.go().await;
        tokio::time::sleep(REST).await;
        let released = now();
        bare.release("bare").await;
        times.record(other.granted().await.saturating_sub(released)).expect("it grows as needed");
        other.left().await;
    }
    times
}

/// The other process: for each line that comes in, it waits for the lock, says when it had it, and
/// says when it has given it back.
struct Other {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(role: &str, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(role).env("REDIS_URL", url).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program again");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, input, output }
    }

    async fn go(&mut self) {
        self.input.write_all(b"go\n").await.expect("it listens");
    }

    async fn line(&mut self) -> String {
        self.output.next_line().await.expect("it tells").expect("it runs")
    }

    async fn granted(&mut self) -> u64 {
        self.line().await.parse().expect("a time")
    }

    async fn left(&mut self) {
        assert_eq!(self.line().await, "left");
    }

    async fn end(mut self) {
        drop(self.input);
        self.process.wait().await.expect("it ends with its input");
    }
}

async fn waiter(url: String) {
    let locks = Locks::connect(url).await.expect("the parent started it");
    let lock = locks.lock("remote");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        let guard = lock.lock().await.expect("it comes free");
        println!("{}", now());
        guard.unlock().await.expect("we have it");
        println!("left");
    }
    locks.close().await;
}

async fn bare_waiter(url: String) {
    let bare: Arc<Bare> = Bare::connect(&url).await;
    let mut messages = bare.client.message_rx();
    bare.client.subscribe(channel("bare")).await.expect("it may subscribe");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        while !bare.acquire("bare").await {
            messages.recv().await.expect("the connection stands");
        }
        println!("{}", now());
        bare.release("bare").await;
        // Its own message, and that of the parent's next round: a message too many is only a try.
        while messages.try_recv().is_ok() {}
        println!("left");
    }
}

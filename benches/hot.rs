//! One lock that everybody wants: 64 tasks of one process with an empty section, beside a
//! `tokio::sync::Mutex` under the same tasks; then four processes of 16 tasks each.

mod common;

use common::server::RedisServer;
use common::show::{Bars, Table, figure, median, show};
use common::{Work, now, quantile, times, told};
use hdrhistogram::Histogram;
use leasehold::{Client, Lock};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TURNS: usize = 7;
const TURN: Duration = Duration::from_millis(700);
const TASKS: usize = 64;
const PROCESSES: usize = 4;
const TOGETHER: Duration = Duration::from_secs(10);
const TIMES_TOGETHER: usize = 3;

fn main() {
    let runtime = common::runtime();
    if told("worker") {
        return runtime.block_on(worker());
    }
    runtime.block_on(one_process());
    several_processes();
}

struct Share {
    served: Vec<u64>,
    longest: Duration,
}

impl Share {
    fn total(&self) -> u64 {
        self.served.iter().sum()
    }

    fn per_second(&self) -> f64 {
        self.total() as f64 / TURN.as_secs_f64()
    }

    fn least_to_most(&self) -> f64 {
        let (least, most) = (self.served.iter().min(), self.served.iter().max());
        *least.expect("tasks") as f64 / *most.expect("tasks") as f64
    }
}

/// Tasks that take and release one lock over and over; how often each was served.
async fn contend<F, Fut>(tasks: usize, time: Duration, section: F) -> Share
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (section, stop) = (Arc::new(section), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (section, stop) = (section.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut served, mut longest) = (0, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    section().await;
                    longest = longest.max(began.elapsed());
                    served += 1;
                }
                (served, longest)
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut share = Share { served: Vec::new(), longest: Duration::ZERO };
    for task in tasks {
        let (served, longest) = task.await.expect("it ends by itself");
        share.served.push(served);
        share.longest = share.longest.max(longest);
    }
    share
}

/// From before an unlock was called to when the next was in; turns of their own, as it costs time.
async fn hand_overs(lock: &Lock) -> Histogram<u64> {
    let (left, all) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Mutex::new(times())));
    let (lock, into) = (lock.clone(), all.clone());
    contend(TASKS, TURN / 2, move || {
        let (locking, left, all) = (lock.lock(), left.clone(), into.clone());
        async move {
            let guard = locking.await.expect("it comes round");
            let entered = now();
            let last = left.load(Ordering::Relaxed);
            // Nobody else is in: the mutex is always free.
            if let (Ok(mut all), true) = (all.lock(), last > 0) {
                all.record(entered.saturating_sub(last)).expect("it grows as needed");
            }
            left.store(now(), Ordering::Relaxed);
            drop(guard);
        }
    })
    .await;
    let all = all.lock().expect("no panic");
    all.clone()
}

async fn one_process() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.expect("the server was just started");
    let lock = client.lock("hot");
    let local = Arc::new(tokio::sync::Mutex::new(()));
    let raw = server.raw();
    let (mut ours, mut theirs, mut commands, mut latencies) = (vec![], vec![], vec![], vec![]);
    for _ in 0..TURNS {
        let before = Work::so_far(&raw);
        let hot = lock.clone();
        let share = contend(TASKS, TURN, move || {
            let locking = hot.lock();
            async move { drop(locking.await.expect("it comes round")) }
        })
        .await;
        let sent = Work::so_far(&raw).since(before).commands;
        commands.push(sent / share.total() as f64);
        ours.push(share);
        let mutex = local.clone();
        let share = contend(TASKS, TURN, move || {
            let mutex = mutex.clone();
            async move { drop(mutex.lock().await) }
        })
        .await;
        theirs.push(share);
        latencies.push(hand_overs(&lock).await);
    }
    println!("### (b) One hot lock, {TASKS} tasks of one process, empty section\n");
    println!("{TURNS} turns of {TURN:?} each, that alternate; median (least–most).\n");
    let mut table = Table::new(&["", "leasehold", "tokio::sync::Mutex", "ratio"]);
    let mut line = |what: &str, of: fn(&Share) -> f64, ratio: bool| {
        let ratios = ours.iter().zip(&theirs).map(|(a, b)| of(a) / of(b));
        let ratio = if ratio { show(ratios) } else { "".into() };
        let cells = [show(ours.iter().map(of)), show(theirs.iter().map(of)), ratio];
        table.row([what.to_owned()].into_iter().chain(cells).collect());
    };
    line("acquisitions/s", Share::per_second, true);
    line("least to most served task", Share::least_to_most, false);
    line("longest wait of any task, ms", |share| share.longest.as_secs_f64() * 1e3, false);
    let mut line = |what: &str, figures: String| {
        table.row(vec![what.to_owned(), figures, "".into(), "".into()]);
    };
    line("commands an acquisition", show(commands.iter().copied()));
    line("hand-over p50, µs", show(latencies.iter().map(|times| quantile(times, 0.5))));
    line("hand-over p99, µs", show(latencies.iter().map(|times| quantile(times, 0.99))));
    table.print();
    let mut bars = Bars::new();
    let ratios = ours.iter().zip(&theirs).map(|(a, b)| a.per_second() / b.per_second());
    bars.at_least("acquisitions/s / tokio::sync::Mutex", 0.15, median(ratios));
    bars.at_most("commands a hand-over", 0.1, median(commands));
    let even = ours.iter().map(Share::least_to_most);
    bars.at_least("least to most served task", 0.9, median(even));
    bars.print();
    client.close().await;
}

/// What one run of several processes gave.
struct Together {
    shares: Vec<u64>,
    longest_ms: f64,
    commands: f64,
}

fn several_processes() {
    let runs: Vec<Together> = (0..TIMES_TOGETHER).map(|_| together()).collect();
    let fair = |run: &Together| run.shares.iter().sum::<u64>() as f64 / PROCESSES as f64;
    println!("\n### (c) One hot lock, {PROCESSES} processes of {} tasks\n", TASKS / PROCESSES);
    println!("{TIMES_TOGETHER} runs of {TOGETHER:?}.\n");
    let mut table = Table::new(&[
        "hand-overs/s",
        "commands each",
        "share of each process, 1 is fair",
        "longest wait, ms",
    ]);
    let share = |run: &Together| -> Vec<f64> {
        run.shares.iter().map(|served| *served as f64 / fair(run)).collect()
    };
    for run in &runs {
        let shares: Vec<String> = share(run).iter().map(|share| format!("{share:.2}")).collect();
        table.row(vec![
            figure(fair(run) * PROCESSES as f64 / TOGETHER.as_secs_f64()),
            figure(run.commands),
            shares.join("  "),
            figure(run.longest_ms),
        ]);
    }
    table.print();
    let mut bars = Bars::new();
    let least = |run| share(run).into_iter().fold(f64::INFINITY, f64::min);
    let most = |run| share(run).into_iter().fold(0.0, f64::max);
    let worst = runs.iter().map(least).fold(f64::INFINITY, f64::min);
    bars.at_least("least share of a process, in the worst run", 0.6, worst);
    let worst = runs.iter().map(most).fold(0.0, f64::max);
    bars.at_most("greatest share of a process, in the worst run", 1.4, worst);
    bars.print();
}

fn together() -> Together {
    let server = RedisServer::start();
    let this = std::env::current_exe().expect("this program");
    let mut workers: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(&this);
            command.arg("worker").env("REDIS_URL", server.url());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("this program again")
        })
        .collect();
    let mut outputs: Vec<_> = workers
        .iter_mut()
        .map(|worker| BufReader::new(worker.stdout.take().expect("piped")))
        .collect();
    let line = |output: &mut BufReader<_>| {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        line
    };
    for output in &mut outputs {
        assert_eq!(line(output).trim(), "ready");
    }
    let raw = server.raw();
    let before = Work::so_far(&raw);
    // They begin together, when their input ends.
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let (mut shares, mut longest_ms) = (Vec::new(), 0.0f64);
    for output in &mut outputs {
        let line = line(output);
        let mut words = line.split_whitespace();
        shares.push(words.next().and_then(|w| w.parse::<u64>().ok()).expect("a count"));
        longest_ms = longest_ms.max(words.next().and_then(|w| w.parse().ok()).expect("a time"));
    }
    for mut worker in workers {
        worker.wait().expect("it ends by itself");
    }
    let sent = Work::so_far(&raw).since(before).commands;
    Together { commands: sent / shares.iter().sum::<u64>() as f64, shares, longest_ms }
}

async fn worker() {
    let url = std::env::var("REDIS_URL").expect("the parent sets it");
    let client = Client::connect(url).await.expect("the parent started it");
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the parent closes it");
    let lock = client.lock("hot");
    let share = contend(TASKS / PROCESSES, TOGETHER, move || {
        let locking = lock.lock();
        async move { drop(locking.await.expect("it comes round")) }
    })
    .await;
    println!("{} {:.1}", share.total(), share.longest.as_secs_f64() * 1e3);
    client.close().await;
}

//! One lock that everybody wants: 64 tasks of one process with an empty section, beside a
//! `tokio::sync::Mutex` under the same tasks; then four processes of 16 tasks each.

mod common;

use common::{scripts_run, server::RedisServer, show};
use leasehold::Client;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TURNS: usize = 7;
const TURN: Duration = Duration::from_millis(700);
const TASKS: usize = 64;
const PROCESSES: usize = 4;
const TOGETHER: Duration = Duration::from_secs(10);

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    match std::env::args().nth(1).as_deref() {
        Some("worker") => runtime.block_on(worker()),
        _ => {
            runtime.block_on(one_process());
            several_processes();
        }
    }
}

struct Share {
    served: Vec<u64>,
    longest: Duration,
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

async fn one_process() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.expect("the server was just started");
    let lock = client.lock("hot");
    let local = Arc::new(tokio::sync::Mutex::new(()));
    let raw = server.raw();
    let (mut ours, mut theirs, mut evenness, mut commands) = (vec![], vec![], vec![], vec![]);
    let mut longest = Duration::ZERO;
    for _ in 0..TURNS {
        let before = scripts_run(&raw);
        let hot = lock.clone();
        let share = contend(TASKS, TURN, move || {
            let locking = hot.lock();
            async move { drop(locking.await.expect("it comes round")) }
        })
        .await;
        let total: u64 = share.served.iter().sum();
        let least = *share.served.iter().min().expect("tasks") as f64;
        let most = *share.served.iter().max().expect("tasks") as f64;
        ours.push(total as f64 / TURN.as_secs_f64());
        evenness.push(least / most);
        commands.push((scripts_run(&raw) - before) as f64 / total as f64);
        longest = longest.max(share.longest);
        let mutex = local.clone();
        let share = contend(TASKS, TURN, move || {
            let mutex = mutex.clone();
            async move { drop(mutex.lock().await) }
        })
        .await;
        theirs.push(share.served.iter().sum::<u64>() as f64 / TURN.as_secs_f64());
    }
    println!(
        "one hot lock, {TASKS} tasks of one process, {TURNS} turns of {TURN:?}, median (least–most)\n"
    );
    println!("acquisitions/s                  {}", show(ours.iter().copied()));
    println!("tokio::sync::Mutex, the same    {}", show(theirs.iter().copied()));
    println!(
        "ratio                           {}",
        show(ours.iter().zip(&theirs).map(|(a, b)| a / b))
    );
    println!("commands an acquisition         {:.4}", common::spread(commands).0);
    println!("least to most served task       {}", show(evenness));
    println!("longest wait of any task        {longest:.1?}");
    client.close().await;
}

fn several_processes() {
    let server = RedisServer::start();
    let this = std::env::current_exe().expect("this program");
    let workers: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(&this);
            command.arg("worker").env("REDIS_URL", server.url());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("this program again")
        })
        .collect();
    // They begin together, when their input ends.
    std::thread::sleep(Duration::from_millis(500));
    let raw = server.raw();
    let before = scripts_run(&raw);
    let outputs: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            drop(worker.stdin.take());
            worker
        })
        .collect();
    let mut shares = Vec::new();
    let mut longest = 0.0f64;
    for mut worker in outputs {
        let mut line = String::new();
        let output = worker.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let mut words = line.split_whitespace();
        shares.push(words.next().and_then(|w| w.parse::<u64>().ok()).expect("a count"));
        longest = longest.max(words.next().and_then(|w| w.parse().ok()).expect("a time"));
        worker.wait().expect("it ends by itself");
    }
    let total: u64 = shares.iter().sum();
    let commands = (scripts_run(&raw) - before) as f64 / total as f64;
    let fair = total as f64 / PROCESSES as f64;
    println!("\n{PROCESSES} processes of {} tasks, {TOGETHER:?}\n", TASKS / PROCESSES);
    println!("hand-overs/s                    {:.0}", total as f64 / TOGETHER.as_secs_f64());
    let shares: Vec<String> = shares.iter().map(|n| format!("{:.2}", *n as f64 / fair)).collect();
    println!("share of each, 1 is fair        {}", shares.join("  "));
    println!("commands a hand-over            {commands:.4}");
    println!("longest wait of any task        {longest:.1} ms");
}

async fn worker() {
    let url = std::env::var("REDIS_URL").expect("the parent sets it");
    let client = Client::connect(url).await.expect("the parent started it");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the parent closes it");
    let lock = client.lock("hot");
    let share = contend(TASKS / PROCESSES, TOGETHER, move || {
        let locking = lock.lock();
        async move { drop(locking.await.expect("it comes round")) }
    })
    .await;
    println!("{} {:.1}", share.served.iter().sum::<u64>(), share.longest.as_secs_f64() * 1e3);
    client.close().await;
}

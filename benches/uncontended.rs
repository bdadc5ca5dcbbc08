//! Lock and unlock with nobody in the way: one task to 256, each with a lock of its own, against
//! the same two scripts as bare EVALSHAs of fred, and by redis-benchmark.
//!
//! The sides take turns in one run on one server; a ratio is taken turn by turn. With `profile`:
//! where the time goes. With `chart FROM NAME TITLE X Y SCALE`: only draws figures that came from elsewhere.

mod common;

use common::bare::{Bare, Ceiling, ceiling};
use common::chart::{self, Chart};
use common::server::RedisServer;
use common::show::{Bars, Table, median, show};
use common::{Run, Work, timed, told};
use leasehold::{Client as Locks, Lock};
use std::sync::Arc;
use std::time::Duration;

const TURN: Duration = Duration::from_millis(600);
/// How many tasks, and how many turns with them. Some are only for the chart.
const TASKS: [(usize, usize); 5] = [(1, 9), (4, 3), (16, 9), (64, 3), (256, 9)];

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "chart") {
        let [from, name, title, x, y, scale] = &words[at + 1..at + 7] else {
            panic!("chart FROM NAME TITLE X Y log|linear")
        };
        Chart { name, title, x, y, log_y: scale == "log" }.write(&chart::read(from));
    } else if told("profile") {
        common::runtime().block_on(profile());
    } else {
        common::runtime().block_on(measure());
    }
}

/// One turn, and what it cost the server.
type Turn = (Run, Work);

async fn measure() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.expect("the server was just started");
    let bare = Bare::connect(&server.url()).await;
    println!("### (a) Uncontended lock + unlock, a lock for each task\n");
    println!("Turns of {TURN:?} that alternate; median (least–most).\n");
    let mut table = Table::new(&[
        "tasks",
        "",
        "pairs/s",
        "p50 µs",
        "p99 µs",
        "commands a pair",
        "Redis CPU µs a pair",
    ]);
    let (mut bars, mut ceilings) = (Bars::new(), Vec::new());
    let mut lines = vec![("leasehold".into(), vec![]), ("bare EVALSHAs of fred".into(), vec![])];
    for (tasks, turns) in TASKS {
        // One turn each to warm up.
        ours(&server, &locks, tasks).await;
        theirs(&server, &bare, tasks).await;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            // Whoever goes first changes, so that drift hits both.
            if turn % 2 == 0 {
                a.push(ours(&server, &locks, tasks).await);
                b.push(theirs(&server, &bare, tasks).await);
            } else {
                b.push(theirs(&server, &bare, tasks).await);
                a.push(ours(&server, &locks, tasks).await);
            }
            if tasks == 256 {
                ceilings.extend(ceiling(&server, &bare));
            }
        }
        for (line, turns) in lines.iter_mut().zip([&a, &b]) {
            line.1.push((tasks as f64, median(turns.iter().map(|turn| turn.0.per_second))));
        }
        if turns < 9 {
            continue;
        }
        table.row(row(tasks, "leasehold", &a));
        table.row(row(tasks, "bare EVALSHAs", &b));
        let ratio = |f: fn(&Run) -> f64| a.iter().zip(&b).map(move |(a, b)| f(&a.0) / f(&b.0));
        let (rate, p50) = (|run: &Run| run.per_second, |run: &Run| run.p50_us);
        let mut cells =
            vec![tasks.to_string(), "ratio".into(), show(ratio(rate)), show(ratio(p50))];
        cells.extend([show(ratio(|run| run.p99_us)), "".into(), "".into()]);
        table.row(cells);
        match tasks {
            1 => bars.at_most("1 task: p50 / two bare EVALSHAs", 1.1, median(ratio(p50))),
            256 => bars.at_least("256 tasks: pairs/s / bare EVALSHAs", 2.0, median(ratio(rate))),
            _ => {}
        }
        if !ceilings.is_empty() && ceilings.len() == a.len() {
            let ratios =
                a.iter().zip(&ceilings).map(|(turn, other)| turn.0.per_second / other.pairs);
            bars.at_least("256 tasks: pairs/s / redis-benchmark", 1.25, median(ratios));
        }
    }
    table.print();
    show_ceilings(&ceilings);
    bars.print();
    if !ceilings.is_empty() {
        let pairs = median(ceilings.iter().map(|one| one.pairs));
        lines.push(("redis-benchmark -c 50 -P 16".into(), vec![(1.0, pairs), (256.0, pairs)]));
    }
    let title = "Uncontended lock + unlock, a lock for each task";
    let (x, y) = ("tasks", "pairs a second");
    Chart { name: "throughput", title, x, y, log_y: true }.write(&lines);
    locks.close().await;
}

fn row(tasks: usize, side: &str, turns: &[Turn]) -> Vec<String> {
    let each =
        |f: fn(&Work) -> f64| turns.iter().map(move |(run, work)| f(work) / run.times as f64);
    vec![
        tasks.to_string(),
        side.to_owned(),
        show(turns.iter().map(|turn| turn.0.per_second)),
        show(turns.iter().map(|turn| turn.0.p50_us)),
        show(turns.iter().map(|turn| turn.0.p99_us)),
        show(each(|work| work.commands)),
        show(each(|work| work.cpu_us)),
    ]
}

fn show_ceilings(ceilings: &[Ceiling]) {
    if ceilings.is_empty() {
        return println!("\nredis-benchmark: not found, or it failed.");
    }
    let all = |f: fn(&Ceiling) -> f64| show(ceilings.iter().map(f));
    println!("\n`redis-benchmark -c 50 -P 16`, our two scripts, one name a command:\n");
    let found = "of the releases found their lock";
    let mut table = Table::new(&["acquire/s", "release/s", "pairs/s = 1/(1/a + 1/r)", found]);
    table.row(vec![
        all(|one| one.acquire),
        all(|one| one.release),
        all(|one| one.pairs),
        all(|one| one.found),
    ]);
    table.print();
}

async fn ours(server: &RedisServer, locks: &Locks, tasks: usize) -> Turn {
    let handles = handles(locks, tasks);
    let before = Work::so_far(&server.raw());
    let run = timed(tasks, TURN, move |task| {
        let lock = handles[task].clone();
        async move {
            let guard = lock.lock().await.expect("nobody else has it");
            guard.unlock().await.expect("we have it");
        }
    });
    (run.await, Work::so_far(&server.raw()).since(before))
}

fn handles(locks: &Locks, tasks: usize) -> Vec<Lock> {
    (0..tasks).map(|task| locks.lock(format!("ours:{task}"))).collect()
}

async fn theirs(server: &RedisServer, bare: &Arc<Bare>, tasks: usize) -> Turn {
    let (bare, before) = (bare.clone(), Work::so_far(&server.raw()));
    let run = timed(tasks, TURN, move |task| {
        let bare = bare.clone();
        async move {
            let name = format!("bare:{task}");
            assert!(bare.acquire(&name).await);
            bare.release(&name).await;
        }
    });
    (run.await, Work::so_far(&server.raw()).since(before))
}

/// Keeps 256 tasks busy, for a profiler to watch; then tells what each script costs the server.
async fn profile() {
    const LOCKS: usize = 20_000;
    let server = RedisServer::start();
    let raw = server.raw();
    let locks = Locks::connect(server.url()).await.expect("the server was just started");
    let handles = handles(&locks, 256);
    let before = Work::so_far(&raw);
    let run = timed(256, Duration::from_secs(8), move |task| {
        let lock = handles[task].clone();
        async move { lock.lock().await.expect("free").unlock().await.expect("we have it") }
    });
    let (run, cpu) = (run.await, common::cpu_time());
    let work = Work::so_far(&raw).since(before);
    let each = |figure: f64| figure / run.times as f64;
    println!(
        "256 tasks: {:.0} pairs/s; a pair is {:.3} commands and costs this process {:.1} µs, the \
         server {:.1} µs, of which {:.1} µs in scripts\n",
        run.per_second,
        each(work.commands),
        each(cpu.as_secs_f64() * 1e6),
        each(work.cpu_us),
        each(work.scripts_us)
    );
    let mut table =
        Table::new(&["script", "entries a command", "Redis µs in the script, an entry"]);
    let before = Work::so_far(&raw);
    let takers: Vec<_> = (0..256)
        .map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for n in 0..LOCKS / 256 {
                    guards.push(locks.lock(format!("{task}:{n}")).lock().await.expect("free"));
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for taker in takers {
        guards.push(taker.await.expect("it ends by itself"));
    }
    let entries = (LOCKS / 256 * 256) as f64;
    let mut row = |script: &str, work: Work| {
        let cells = [entries / work.scripts, work.scripts_us / entries];
        let [per_command, us] = cells.map(|figure| format!("{figure:.1}"));
        table.row(vec![script.to_owned(), per_command, us]);
    };
    let middle = Work::so_far(&raw);
    row("acquire", middle.since(before));
    let droppers: Vec<_> = guards
        .into_iter()
        .map(|guards| {
            tokio::spawn(async move {
                for guard in guards {
                    guard.unlock().await.expect("we have it");
                }
            })
        })
        .collect();
    for dropper in droppers {
        dropper.await.expect("it ends by itself");
    }
    row("release", Work::so_far(&raw).since(middle));
    table.print();
    locks.close().await;
}

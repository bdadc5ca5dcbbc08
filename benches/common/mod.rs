//! What the benches share: a private server, timed loops, what the server did meanwhile.
#![allow(dead_code, reason = "each bench uses its own part")]

pub mod bare;
pub mod chart;
pub mod show;

#[path = "../../tests/support/server.rs"]
pub mod server;

use hdrhistogram::Histogram;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What one timed run gave.
pub struct Run {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// How often all the work was done.
    pub times: u64,
}

pub fn times() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are fine")
}

/// A quantile in µs of times in ns.
pub fn quantile(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

/// CLOCK_MONOTONIC in nanoseconds: the same in all processes of this machine.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `work(task)` over and over on `tasks` tasks for about `time`.
pub async fn timed<F, Fut>(tasks: usize, time: Duration, work: F) -> Run
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (work, stop) = (Arc::new(work), Arc::new(AtomicBool::new(false)));
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (work, stop) = (work.clone(), stop.clone());
            tokio::spawn(async move {
                let mut times = times();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    work(task).await;
                    times.record(began.elapsed().as_nanos() as u64).expect("it grows as needed");
                }
                times
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = times();
    for task in tasks {
        all.add(task.await.expect("the task ends by itself")).expect("one range");
    }
    let elapsed = start.elapsed().as_secs_f64();
    Run {
        per_second: all.len() as f64 / elapsed,
        p50_us: quantile(&all, 0.5),
        p99_us: quantile(&all, 0.99),
        times: all.len(),
    }
}

/// Whether this program was started with a word: cargo adds some of its own.
pub fn told(word: &str) -> bool {
    std::env::args().skip(1).any(|argument| argument == word)
}

pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Processor time of this process so far, user and system.
pub fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Resident memory of this process, in bytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// What a server has done so far, or between two looks at it.
#[derive(Clone, Copy, Default)]
pub struct Work {
    /// Commands that clients sent; what scripts call is left out.
    pub commands: f64,
    /// Processor time, user and system, in µs.
    pub cpu_us: f64,
    /// Scripts run, and what the server says they took, in µs.
    pub scripts: f64,
    pub scripts_us: f64,
}

impl Work {
    pub fn so_far(raw: &server::Raw) -> Self {
        let mut work = Work::default();
        for section in ["commandstats", "cpu"] {
            for line in raw.cmd(&["INFO", section]).text().lines() {
                work.read(line);
            }
        }
        work
    }

    fn read(&mut self, line: &str) {
        let (key, value) = line.trim().split_once(':').unwrap_or_default();
        let field = |name: &str| {
            let text = value.split(',').find_map(|part| part.strip_prefix(name));
            text.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
        };
        match key.trim_start_matches("cmdstat_") {
            "evalsha" | "eval" => {
                self.commands += field("calls=");
                self.scripts += field("calls=");
                self.scripts_us += field("usec=");
            }
            "ping" | "subscribe" | "unsubscribe" | "ssubscribe" | "sunsubscribe" => {
                self.commands += field("calls=");
            }
            "used_cpu_user" | "used_cpu_sys" => self.cpu_us += field("") * 1e6,
            _ => {}
        }
    }

    pub fn since(self, before: Work) -> Work {
        Work {
            commands: self.commands - before.commands,
            cpu_us: self.cpu_us - before.cpu_us,
            scripts: self.scripts - before.scripts,
            scripts_us: self.scripts_us - before.scripts_us,
        }
    }
}

//! What the benches share: a private server, timed loops, medians and spread.
#![allow(dead_code, reason = "each bench uses its own part")]

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
                let mut times = Histogram::<u64>::new(3).expect("three digits are fine");
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
    let mut times = Histogram::<u64>::new(3).expect("three digits are fine");
    for task in tasks {
        times.add(task.await.expect("the task ends by itself")).expect("one range");
    }
    let elapsed = start.elapsed().as_secs_f64();
    Run {
        per_second: times.len() as f64 / elapsed,
        p50_us: times.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: times.value_at_quantile(0.99) as f64 / 1e3,
    }
}

/// Median, least and most of some figures.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}

/// `median (least–most)`, in a unit that suits.
pub fn show(figures: impl IntoIterator<Item = f64>) -> String {
    let (median, least, most) = spread(figures);
    let digits = if median < 10.0 { 2 } else { 0 };
    format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
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

/// A number from one section of INFO.
pub fn info(raw: &server::Raw, section: &str, key: &str) -> f64 {
    let text = raw.cmd(&["INFO", section]).text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

/// Scripts run by the server so far.
pub fn scripts_run(raw: &server::Raw) -> u64 {
    let text = raw.cmd(&["INFO", "commandstats"]).text();
    let calls = |name: &str| -> u64 {
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    calls("evalsha") + calls("eval")
}

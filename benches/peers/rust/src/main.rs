//! `peers PEER WORKLOAD URL SECONDS TASKS`: one turn of one peer, as benches/peers/README.md says.

mod peers;

use peers::Peer;
use std::io::{BufRead, BufWriter, Write};
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

const SECOND: f64 = 1e9;
/// How often a section is kept open, and for how long, to catch anyone who comes in.
const WATCH_EVERY: i64 = 200_000_000;
const WATCH_FOR: Duration = Duration::from_millis(1);
/// How long a holder keeps the lock in `handoff`: the other is to be asleep by then.
const KEPT: Duration = Duration::from_millis(5);
/// How long the lock is held in `drain`, while the waiters gather.
const GATHERING: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [peer, workload, url, seconds, tasks] = &args[..] else {
        eprintln!("usage: peers PEER WORKLOAD URL SECONDS TASKS");
        exit(2);
    };
    let turn = Turn {
        workload: workload.clone(),
        url: url.clone(),
        seconds: seconds.parse().expect("SECONDS is a number"),
        tasks: tasks.parse().expect("TASKS is a number"),
    };
    match peer.as_str() {
        "leasehold" => turn.run::<peers::Leasehold>().await,
        "bare" => turn.run::<peers::Bare>().await,
        "tokio" => turn.run::<peers::Local>().await,
        "rslock" => turn.run::<peers::Rslock>().await,
        "async-redis-lock" => turn.run::<peers::AsyncRedisLock>().await,
        "distributed-lock-redis" => turn.run::<peers::DistributedLock>().await,
        _ => panic!("no such peer: {peer}"),
    }
    exit(0); // whoever still waits for a lock waits in vain
}

/// CLOCK_MONOTONIC in nanoseconds: the same in all processes of this machine.
fn now() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

struct Turn {
    workload: String,
    url: String,
    seconds: f64,
    tasks: usize,
}

/// What one task saw.
#[derive(Default)]
struct Seen {
    /// Of each pair or, where locks are waited for, of each wait, in nanoseconds.
    times: Vec<i64>,
    /// When sections were entered and left.
    sections: Vec<(i64, i64)>,
    failed: u64,
    waits_since: Option<i64>,
}

/// What all tasks of a process share in a hot lock.
struct Hot<P: Peer> {
    peer: P,
    until: i64,
    /// Each task wants the lock only once.
    once: bool,
    inside: AtomicBool,
    overlaps: AtomicI64,
    watch_next: AtomicI64,
}

impl Turn {
    async fn run<P: Peer>(&self) {
        let peer = P::connect(&self.url).await;
        let mut lines = lines();
        let waits = self.workload != "uncontended";
        if let Some(why) = if waits { peer.cannot_wait().await } else { None } {
            println!(
                r#"{{"peer":"{}","version":"{}","workload":"{}","cannot":"{why}"}}"#,
                P::NAME,
                P::version(),
                self.workload
            );
            return;
        }
        let warm_up = std::env::var("WARMUP").ok().and_then(|s| s.parse().ok()).unwrap_or(0.5);
        match self.workload.as_str() {
            "uncontended" => drop(self.uncontended(&peer, warm_up).await),
            "hot" => drop(self.hot(&peer, "bench:warm", warm_up, true).await),
            "handoff" | "drain" => drop(self.uncontended(&peer, warm_up).await),
            other => panic!("no such workload: {other}"),
        }
        println!("ready");
        lines.recv().await;
        let mut start = now();
        let (seen, overlaps) = match self.workload.as_str() {
            "uncontended" => (self.uncontended(&peer, self.seconds).await, 0),
            "hot" => self.hot(&peer, "bench:hot", self.seconds, false).await,
            "drain" => {
                let (seen, overlaps, released) = self.drain(&peer).await;
                start = released;
                (seen, overlaps)
            }
            _ => (vec![handoff(&peer, &mut lines).await], 0),
        };
        self.report::<P>(seen, (now() - start) as f64 / SECOND, overlaps);
    }

    async fn uncontended<P: Peer>(&self, peer: &P, seconds: f64) -> Vec<Seen> {
        let process = std::process::id();
        let until = now() + (seconds * SECOND) as i64;
        let tasks: Vec<_> = (0..self.tasks)
            .map(|task| {
                let peer = peer.clone();
                tokio::spawn(async move {
                    let lock = peer.handle(&format!("bench:own:{process}:{task}"));
                    let (mut seen, mut began) = (Seen::default(), now());
                    while began < until {
                        match peer.lock(&lock).await {
                            Some(guard) => peer.unlock(guard).await,
                            None => seen.failed += 1,
                        }
                        let done = now();
                        seen.times.push(done - began);
                        began = done;
                    }
                    seen
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.expect("it ends by itself"));
        }
        all
    }

    /// One lock for all. Tasks that wait when the time is over are left behind, unless `drain`.
    async fn hot<P: Peer>(
        &self,
        peer: &P,
        name: &str,
        seconds: f64,
        drain: bool,
    ) -> (Vec<Seen>, i64) {
        let hot = Hot::new(peer, seconds, false);
        let (all, tasks) = hot.start(self.tasks, name);
        tokio::time::sleep(Duration::from_nanos((hot.until - now()).max(0) as u64)).await;
        if drain {
            let patience = tokio::time::Instant::now() + Duration::from_secs(5);
            for task in tasks {
                let _ = tokio::time::timeout_at(patience, task).await;
            }
        }
        (all.iter().map(take).collect(), hot.overlaps.load(Ordering::SeqCst))
    }

    /// Each task waits once for a lock that is held while they gather; ends when all were served or
    /// the time is over. Also gives when the lock was released.
    async fn drain<P: Peer>(&self, peer: &P) -> (Vec<Seen>, i64, i64) {
        let name = "bench:drain";
        let held = peer.lock(&peer.handle(name)).await.expect("nobody else has it");
        let hot = Hot::new(peer, GATHERING.as_secs_f64() + self.seconds, true);
        let (all, tasks) = hot.start(self.tasks, name);
        tokio::time::sleep(GATHERING).await;
        let released = now();
        peer.unlock(held).await;
        let patience = Duration::from_nanos((hot.until - now()).max(0) as u64);
        let served = async {
            for task in tasks {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(patience, served).await;
        (all.iter().map(take).collect(), hot.overlaps.load(Ordering::SeqCst), released)
    }

    fn report<P: Peer>(&self, seen: Vec<Seen>, seconds: f64, overlaps: i64) {
        let served: Vec<usize> = seen.iter().map(|s| s.times.len()).collect();
        let failed: u64 = seen.iter().map(|s| s.failed).sum();
        let mut times: Vec<i64> = seen.iter().flat_map(|s| s.times.iter().copied()).collect();
        times.sort_unstable();
        let at = |quantile: f64| match times.len() {
            0 => 0.0,
            len => times[((len - 1) as f64 * quantile) as usize] as f64 / 1e3,
        };
        let end = now();
        let waiting = seen.iter().filter_map(|s| s.waits_since).map(|since| end - since).max();
        let longest = waiting.unwrap_or(0) as f64 / 1e3;
        let mut sections: Vec<(i64, i64)> =
            seen.iter().flat_map(|s| s.sections.iter().copied()).collect();
        sections.sort_unstable();
        if let Ok(path) = std::env::var("SECTIONS") {
            let file = std::fs::File::create(path).expect("SECTIONS is a path to write to");
            let mut file = BufWriter::new(file);
            for (enter, leave) in sections {
                file.write_all(&enter.to_le_bytes()).expect("room on the disk");
                file.write_all(&leave.to_le_bytes()).expect("room on the disk");
            }
            file.flush().expect("room on the disk");
        }
        println!(
            concat!(
                r#"{{"peer":"{}","version":"{}","workload":"{}","ops":{},"seconds":{:.4},"#,
                r#""p50_us":{:.1},"p99_us":{:.1},"longest_us":{:.1},"#,
                r#""min_served":{},"max_served":{},"failed":{},"overlaps":{}}}"#
            ),
            P::NAME,
            P::version(),
            self.workload,
            times.len(),
            seconds,
            at(0.5),
            at(0.99),
            at(1.0).max(longest),
            served.iter().min().unwrap_or(&0),
            served.iter().max().unwrap_or(&0),
            failed,
            overlaps,
        );
    }
}

fn take(seen: &Arc<Mutex<Seen>>) -> Seen {
    std::mem::take(&mut *seen.lock().expect("no panic"))
}

type Tasks = (Vec<Arc<Mutex<Seen>>>, Vec<tokio::task::JoinHandle<()>>);

impl<P: Peer> Hot<P> {
    fn new(peer: &P, seconds: f64, once: bool) -> Arc<Self> {
        Arc::new(Self {
            peer: peer.clone(),
            until: now() + (seconds * SECOND) as i64,
            once,
            inside: AtomicBool::new(false),
            overlaps: AtomicI64::new(0),
            watch_next: AtomicI64::new(now()),
        })
    }

    fn start(self: &Arc<Self>, tasks: usize, name: &str) -> Tasks {
        let all: Vec<Arc<Mutex<Seen>>> = (0..tasks).map(|_| Arc::default()).collect();
        let start = |seen: &Arc<Mutex<Seen>>| {
            tokio::spawn(contend(self.clone(), self.peer.handle(name), seen.clone()))
        };
        let running = all.iter().map(start).collect();
        (all, running)
    }
}

async fn contend<P: Peer>(hot: Arc<Hot<P>>, lock: P::Handle, shared: Arc<Mutex<Seen>>) {
    let seen = || shared.lock().expect("no panic");
    let mut began = now();
    while began < hot.until {
        seen().waits_since = Some(began);
        let Some(guard) = hot.peer.lock(&lock).await else {
            seen().failed += 1;
            began = now();
            continue;
        };
        if hot.inside.swap(true, Ordering::SeqCst) {
            hot.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let enter = now();
        let mut leave = enter;
        if enter >= hot.watch_next.load(Ordering::Relaxed) {
            hot.watch_next.store(enter + WATCH_EVERY, Ordering::Relaxed);
            tokio::time::sleep(WATCH_FOR).await;
            leave = now();
        }
        if enter < hot.until {
            let mut seen = seen();
            seen.times.push(enter - began);
            seen.sections.push((enter, leave));
            seen.waits_since = None;
        }
        hot.inside.store(false, Ordering::SeqCst);
        hot.peer.unlock(guard).await;
        if hot.once {
            return;
        }
        began = now();
    }
}

/// Waits for the lock whenever a line comes in, and says `in` when it has it.
async fn handoff<P: Peer>(peer: &P, lines: &mut mpsc::UnboundedReceiver<String>) -> Seen {
    let lock = peer.handle("bench:ball");
    let mut seen = Seen::default();
    while lines.recv().await.is_some() {
        let began = now();
        let guard = loop {
            match peer.lock(&lock).await {
                Some(guard) => break guard,
                None => seen.failed += 1,
            }
        };
        let enter = now();
        println!("in");
        tokio::time::sleep(KEPT).await;
        seen.times.push(enter - began);
        seen.sections.push((enter, now()));
        peer.unlock(guard).await;
    }
    seen
}

fn lines() -> mpsc::UnboundedReceiver<String> {
    let (to, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

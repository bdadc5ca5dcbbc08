//! Everybody at once: JVMs and Rust processes on a few names, with leases that end and processes
//! that are killed. Judged by the intervals of all holds on the clock that all of them read.

use std::{
    collections::BTreeMap,
    env,
    time::{Duration, Instant},
};

use leasehold::{Client, Lock, Owner};

use crate::{
    pair::{locks, soon},
    peer::{Java, Jvm, Settings, decode, version},
    process::{Process, nanos},
    support::{
        assert_every_key_has_ttl, eventually,
        history::History,
        server::{Raw, RedisServer},
        subscriptions,
    },
};

const NAMES: [&str; 3] = ["a", "b:{x}", "c"];
const EACH: u32 = 8;
const WATCHDOG_MS: u64 = 2_000;
const FIXED: Duration = Duration::from_secs(3);

/// What a lock may stand free, or held by the dead, while others wait for it: a lease, and some.
const LONGEST_GAP: Duration = Duration::from_secs(6);

/// I1, I2, I12, R-01. `LEASEHOLD_INTEROP_SECONDS` says for how long; 20 if nothing is said.
#[tokio::test(flavor = "multi_thread")]
async fn jvms_and_rust_processes_exclude_each_other_and_share() {
    let seconds = env::var("LEASEHOLD_INTEROP_SECONDS").map_or(20, |s| s.parse().expect("seconds"));
    let length = Duration::from_secs(seconds);
    let (server, names) = (RedisServer::start(), NAMES.join(","));
    let raw = server.raw();
    let ms = seconds * 1_000;
    let settings = Settings { watchdog_ms: WATCHDOG_MS, ..Settings::default() };
    let mut javas = Vec::new();
    for _ in 0..2 {
        javas.push(Java::open(Jvm::start(), server.port(), settings).await);
    }
    let mut rusts: Vec<_> = (0..2).map(|_| Process::contend(&server, &names, EACH, ms)).collect();
    for rust in &rusts {
        rust.wait_for_line("ready").await;
    }

    let begin = nanos();
    let first_java = tokio::spawn(javas[0].contend(&names, EACH, ms));
    drop(javas[1].contend(&names, EACH, ms)); // never answered
    rusts.iter_mut().for_each(|rust| rust.say("go"));
    watch(&raw, length * 6 / 10).await;
    let mut left = stop_holding(&raw, javas[1].jvm.pid(), &javas[1].id).await;
    let jvm_killed = nanos();
    javas[1].jvm.kill();
    watch(&raw, length * 2 / 10).await;
    let id = rusts[1].word_after("id").expect("it has told it");
    left.extend(stop_holding(&raw, rusts[1].pid(), &id).await);
    let rust_killed = nanos();
    rusts[1].kill();
    watch(&raw, length * 2 / 10).await;
    let last = nanos();
    soon(first_java).await.expect("no panic").expect("no exception");
    rusts[0].wait_for_line("done").await;

    let told = [
        ("java 1", javas[0].jvm.told()),
        ("java 2", javas[1].jvm.told()),
        ("rust 1", rusts[0].lines()),
        ("rust 2", rusts[1].lines()),
    ];
    let run = Run::read(&told);
    // A JVM needs a moment before it runs at full speed.
    let fair = run.shares(begin + 2_000_000_000, jvm_killed);
    run.report(&fair, [begin, jvm_killed, rust_killed, last]);
    run.history.assert_exclusive(100);
    run.assert_none_before(&left, [jvm_killed, rust_killed]);
    run.assert_goes_on(last);
    javas[0].close().await;
    eventually("no lock is left", async || locks(&raw).is_empty()).await;
    assert_every_key_has_ttl(&raw);
    eventually("nobody listens", async || subscriptions(&raw) == 0).await;
    run.assert_shared(&fair);
}

/// Lets them contend, and sees that no key stands for ever.
async fn watch(raw: &Raw, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(250)).await;
        for name in NAMES {
            let left = raw.cmd(&["PTTL", name]).int();
            assert!(left != -1 && left <= FIXED.as_millis() as i64, "{name}: {left}");
        }
    }
}

/// Stops a process at a moment at which it holds locks; says which, and when their leases end.
async fn stop_holding(raw: &Raw, pid: u32, id: &str) -> Vec<(&'static str, i64)> {
    let mut held = Vec::new();
    eventually("it is stopped while it holds a lock", async || {
        signal(pid, "STOP");
        // What it has sent may still be on its way.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for name in NAMES {
            let fields = raw.cmd(&["HKEYS", name]).ok();
            let its = fields.items().iter().any(|field| field.text().starts_with(id));
            let (now, left) = (nanos(), raw.cmd(&["PTTL", name]).int());
            if its && left > 500 {
                held.push((name, now + left * 1_000_000));
            }
        }
        if held.is_empty() {
            signal(pid, "CONT");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        !held.is_empty()
    })
    .await;
    held
}

fn signal(pid: u32, name: &str) {
    let kill = ["-c", r#"kill -s "$1" "$2""#, "signal", name, &pid.to_string()];
    let sent = std::process::Command::new("sh").args(kill).status().expect("there is a shell");
    assert!(sent.success(), "it runs until it is killed");
}

/// All holds of a run.
struct Run {
    history: History,
    holds: Vec<Hold>,
}

struct Hold {
    process: &'static str,
    name: String,
    asked: i64,
    from: i64,
    to: i64,
}

impl Run {
    fn read(told: &[(&'static str, Vec<String>)]) -> Self {
        let history = History::new();
        let mut holds = Vec::new();
        // One offset for all of them changes nothing about what overlaps what.
        let (now, now_nanos) = (Instant::now(), nanos());
        let instant = |at: i64| now - Duration::from_nanos((now_nanos - at).unsigned_abs());
        for (process, lines) in told {
            for line in lines {
                let words: Vec<_> = line.split_whitespace().collect();
                // The lines of Rust processes stand among those of the harness.
                let words = words.strip_prefix(&["*"]).unwrap_or(&words);
                let [name, thread, times @ ..] = words else { continue };
                let times: Vec<i64> = times.iter().map_while(|time| time.parse().ok()).collect();
                let [asked, from, to] = times[..] else { continue };
                let (name, owner) = (decode(name), format!("{process}, {thread}"));
                history.record(&name, &owner, instant(from), instant(to));
                holds.push(Hold { process, name, asked, from, to });
            }
        }
        holds.sort_by_key(|hold| hold.from);
        Self { history, holds }
    }

    /// How many holds each process had in this time.
    fn shares(&self, from: i64, to: i64) -> BTreeMap<&'static str, usize> {
        let mut shares = BTreeMap::new();
        for hold in self.holds.iter().filter(|hold| (from..to).contains(&hold.from)) {
            *shares.entry(hold.process).or_default() += 1;
        }
        shares
    }

    /// The longest times in which nobody had a name, and when they began.
    fn gaps(&self, until: i64) -> Vec<(i64, i64, &str)> {
        let mut gaps = Vec::new();
        for name in NAMES {
            let mut end = None;
            for hold in self.holds.iter().filter(|hold| hold.name == name && hold.from < until) {
                let free = end.unwrap_or(hold.from);
                gaps.push((hold.from - free, free, name));
                end = Some(free.max(hold.to));
            }
            let free = end.expect("somebody had it");
            gaps.push((until - free, free, name));
        }
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.0));
        gaps
    }

    fn report(&self, fair: &BTreeMap<&str, usize>, [begin, jvm, rust, last]: [i64; 4]) {
        let s = |nanos: i64| nanos as f64 / 1e9;
        println!("Redisson {}: {} holds in {:.0} s", version(), self.holds.len(), s(last - begin));
        println!("  overlaps       {}", self.history.overlaps().len());
        let all: usize = fair.values().sum();
        for (process, holds) in fair {
            let waits = self.holds.iter().filter(|hold| hold.process == *process);
            let longest = waits.map(|hold| hold.from - hold.asked).max().unwrap_or_default();
            let percent = *holds as f64 * 100.0 / all as f64;
            println!("  {process}  {percent:5.1} % of {all}, longest wait {:.3} s", s(longest));
        }
        println!(
            "  killed: a JVM at {:.1} s, a Rust process at {:.1} s",
            s(jvm - begin),
            s(rust - begin)
        );
        for (gap, free, name) in self.gaps(last).iter().take(6) {
            println!("  nobody had {name} for {:.3} s, from {:.1} s on", s(*gap), s(free - begin));
        }
    }

    /// What the killed held, nobody had before its lease ended; and somebody had it then.
    #[track_caller]
    fn assert_none_before(&self, left: &[(&str, i64)], kills: [i64; 2]) {
        assert!(left.len() >= kills.len(), "each of them held something");
        for (name, end) in left {
            let killed = kills.into_iter().rfind(|killed| killed < end).expect("it was killed");
            let next = self.holds.iter().find(|hold| hold.name == *name && hold.from > killed);
            let next = next.expect("somebody had it afterwards").from;
            println!(
                "  {name} of the killed: had again {:.3} s after its end",
                (next - end) as f64 / 1e9
            );
            assert!(next >= end - 2_000_000, "{name} was given away {} ns early", end - next);
        }
    }

    /// Nothing is stuck: every name is taken again and again, until the end.
    #[track_caller]
    fn assert_goes_on(&self, until: i64) {
        let (gap, _, name) = self.gaps(until)[0];
        assert!(gap < LONGEST_GAP.as_nanos() as i64, "nobody had {name} for {gap} ns");
    }

    /// Each side, and each process, has at least half of its fair share.
    #[track_caller]
    fn assert_shared(&self, fair: &BTreeMap<&str, usize>) {
        let all: usize = fair.values().sum();
        for side in ["java", "rust"] {
            let holds: usize =
                fair.iter().filter(|(process, _)| process.starts_with(side)).map(|(_, n)| n).sum();
            assert!(4 * holds >= all, "{side} had only {holds} of {all}: {fair:?}");
        }
        assert!(fair.len() == 4 && fair.values().all(|n| 8 * n >= all), "starved: {fair:?}");
    }
}

/// What a Rust process does: the same as `Peer.contend` in Java.
pub async fn contend(url: &str, names: Vec<String>, tasks: u32, time: Duration) {
    let watchdog = Duration::from_millis(WATCHDOG_MS);
    let client = Client::builder(url).expect("a URL").watchdog(watchdog);
    let client = client.connect().await.expect("the server is up");
    println!("id {}\nready", client.id());
    crate::support::blocking(|| std::io::stdin().lines().next()).await;
    let end = Instant::now() + time;
    let tasks = (0..tasks).map(|task| {
        let (client, names) = (client.clone(), names.clone());
        tokio::spawn(async move {
            let mut next_lapse = Instant::now() + Duration::from_millis(fastrand::u64(0..2_000));
            while Instant::now() < end {
                let lock = client.lock(&names[fastrand::usize(0..names.len())]);
                if task == 0 && Instant::now() > next_lapse {
                    lapse(&lock).await;
                    next_lapse = Instant::now() + Duration::from_secs(4);
                } else {
                    turn(&lock, task, fastrand::u32(0..10)).await;
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    client.close().await;
}

async fn turn(lock: &Lock, task: u32, kind: u32) {
    let asked = nanos();
    let guard = match kind {
        0 => match lock.try_lock(Duration::from_millis(20), FIXED).await.expect("no error") {
            Some(guard) => guard,
            None => return,
        },
        1 | 2 => lock.lock_with(FIXED).await.expect("no error"),
        _ => lock.lock().await.expect("no error"),
    };
    let from = nanos();
    tokio::time::sleep(Duration::from_millis(1)).await;
    if kind == 9 {
        lock.lock().await.expect("no error").unlock().await.expect("no error");
    }
    // As in Java: a task that stood still for long proves nothing.
    tell(lock, task, asked, from, nanos().min(from + 1_000_000_000));
    guard.unlock().await.expect("no error");
}

async fn lapse(lock: &Lock) {
    let lease = Duration::from_millis(200);
    let (lock, asked) = (lock.clone().owned_by(Owner::new()), nanos());
    let guard = lock.lock_with(lease).await.expect("no error");
    let from = nanos();
    tell(&lock, 0, asked, from, from);
    guard.forget();
    tokio::time::sleep(lease).await;
}

fn tell(lock: &Lock, task: u32, asked: i64, from: i64, to: i64) {
    println!("* {} {task} {asked} {from} {to}", lock.name());
}

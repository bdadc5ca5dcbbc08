//! Everybody at once: JVMs and Rust processes on a few names of each kind, with leases that end and
//! processes that are killed. Judged by the intervals of all holds on the clock that all of them
//! read.

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use leasehold::Client;

use crate::{
    contender::{FIXED, WATCHDOG_MS},
    crowd::Crowd,
    kinds::{FENCED, SPIN},
    pair::{locks, soon, stays},
    peer::at_least,
    process::nanos,
    support::{eventually, subscriptions},
    verdict::Run,
};

/// A kind, and what is contended for.
pub struct Work {
    pub kind: &'static str,
    /// Those of a multi lock's locks are separated by commas.
    pub names: &'static [&'static str],
    /// How much of a name can be held at once; a writer takes it all.
    pub room: i64,
    /// The longest TTL that anybody may give it: Redisson adds a nested write's lease to what is left,
    /// and collects the locks of a multi lock with twice the time it may take.
    pub lease: Duration,
    pub is_there: fn() -> bool,
}

pub const PERMITS: i64 = 3;

pub static LOCK: Work =
    Work { kind: "lock", names: &["a", "b:{x}", "c"], room: 1, lease: FIXED, is_there: || true };
pub static FAIR: Work = Work { kind: "fair", names: &["f", "g:{x}"], ..LOCK };
pub static FENCED_LOCK: Work =
    Work { kind: "fenced", names: &["t", "u"], is_there: || FENCED.is_there(), ..LOCK };
pub static SPIN_LOCK: Work =
    Work { kind: "spin", names: &["s", "z"], is_there: || SPIN.is_there(), ..LOCK };
pub static READ_WRITE: Work = Work {
    kind: "rw",
    names: &["r", "w"],
    room: 1_000,
    lease: Duration::from_millis(2 * WATCHDOG_MS),
    ..LOCK
};
pub static MULTI: Work = Work {
    kind: "multi",
    names: &["m1,m2", "m2,m3", "m3,m4", "m4,m5", "m5,m6", "m1,m6"],
    lease: Duration::from_secs(6),
    ..LOCK
};
pub static SEMAPHORE: Work = Work { kind: "semaphore", names: &["sem"], room: PERMITS, ..LOCK };
pub static PERMIT: Work = Work {
    kind: "permits",
    names: &["permits"],
    // With ids that are the same on both sides.
    is_there: || at_least(3, 17),
    ..SEMAPHORE
};

static ALL: [&Work; 8] =
    [&LOCK, &FAIR, &READ_WRITE, &FENCED_LOCK, &SPIN_LOCK, &MULTI, &SEMAPHORE, &PERMIT];

/// I1, I2, I12 to I15, R-01: all kinds at once, two threads of each process on each.
#[tokio::test(flavor = "multi_thread")]
async fn jvms_and_rust_processes_exclude_each_other_and_share() {
    contend(&ALL, 2, Duration::from_secs(20)).await;
}

/// Each kind by itself, eight threads of each process, for as long as `LEASEHOLD_INTEROP_SECONDS`
/// says; if it says nothing, not at all.
macro_rules! alone {
    ($($test:ident: $work:ident;)*) => {
        mod alone {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::contend_alone(&super::$work).await;
                }
            )*
        }
    };
}

alone! {
    the_lock: LOCK;
    the_fair_lock: FAIR;
    the_read_write_lock: READ_WRITE;
    the_fenced_lock: FENCED_LOCK;
    the_spin_lock: SPIN_LOCK;
    the_multi_lock: MULTI;
    the_semaphore: SEMAPHORE;
    the_permit_semaphore: PERMIT;
}

async fn contend_alone(work: &'static Work) {
    match env::var("LEASEHOLD_INTEROP_SECONDS") {
        Ok(seconds) => {
            let length = Duration::from_secs(seconds.parse().expect("seconds"));
            contend(&[work], 8, length).await;
        }
        Err(_) => eprintln!("skipped: LEASEHOLD_INTEROP_SECONDS does not say for how long"),
    }
}

impl Work {
    /// All names by which something is held.
    pub fn members(&self) -> BTreeSet<&'static str> {
        self.names.iter().flat_map(|name| name.split(',')).collect()
    }

    /// How much a hold takes.
    pub fn weight(&self, kind: &str) -> i64 {
        if matches!(kind, "read" | "semaphore" | "permits") { 1 } else { self.room }
    }

    pub fn has_lease(&self) -> bool {
        self.room != PERMITS
    }

    /// For how long a name may stand free, or held by the dead, while others wait: a lease, and some.
    pub fn longest_gap(&self) -> Duration {
        2 * self.lease
    }
}

async fn contend(work: &[&'static Work], each: u32, length: Duration) {
    let work: Vec<_> = work.iter().copied().filter(|work| (work.is_there)()).collect();
    let mut crowd = Crowd::start(&work, each, length).await;
    let begin = nanos();
    let first_java = crowd.go();
    crowd.watch(length * 6 / 10).await;
    let (jvm_killed, mut left) = crowd.kill(1).await;
    crowd.watch(length * 2 / 10).await;
    let (rust_killed, more) = crowd.kill(3).await;
    left.extend(more);
    crowd.watch(length * 2 / 10).await;
    let last = nanos();
    soon(first_java).await.expect("no panic").expect("no exception");
    crowd.rusts[0].wait_for_line("done").await;

    let run = Run::read(&work, &crowd.told(), &left);
    // A JVM needs a moment before it runs at full speed.
    let fair = begin + 2_000_000_000..jvm_killed;
    run.report(&fair, [begin, jvm_killed, rust_killed, last]);
    run.assert_never_overfull(100);
    run.assert_tokens_grow();
    assert!([jvm_killed, rust_killed].iter().all(|at| left.iter().any(|hold| hold.from >= *at)));
    run.assert_goes_on(last);
    assert_nothing_left(&crowd, &work).await;
    run.assert_shared(&fair);
}

/// Takes each name once more, so that what the dead have left in a queue is passed over; then there
/// is nothing but what is to stay.
async fn assert_nothing_left(crowd: &Crowd, work: &[&'static Work]) {
    let client = soon(Client::connect(crowd.server.url())).await.expect("the server is up");
    for work in work {
        for name in work.names {
            crate::contender::take_once(&client, work.kind, name).await;
        }
    }
    client.close().await;
    crowd.javas[0].close().await;
    let raw = &crowd.raw;
    for work in work.iter().filter(|work| !work.has_lease()) {
        for name in work.names {
            assert_eq!(raw.cmd(&["GETDEL", name]).int(), PERMITS, "{name}");
        }
    }
    let left = || locks(raw).into_iter().filter(|key| !stays(key)).collect::<Vec<_>>();
    eventually("no lock is left", async || left().is_empty()).await;
    let begin = Instant::now();
    eventually("nobody listens", async || subscriptions(raw) == 0).await;
    println!("  nobody listened {:.3} s later", begin.elapsed().as_secs_f64());
}

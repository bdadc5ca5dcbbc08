//! What a client adds to a failover by sentinels: how long until the new primary takes writes and
//! sentinels name it, as one sees it that only knocks there, and until a lock is taken there.
//!
//! `REPEATS` sets another number of failovers of each kind.

mod common;
#[path = "../tests/support/sentinel.rs"]
mod sentinel;

// Where the sentinels' file looks for it.
use common::server;
use common::show::{Bars, Table, median, show};
use leasehold::Client;
use sentinel::SentinelSetup;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Nothing takes longer, or it hangs.
const BOUND: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Killed,
    Planned,
}

/// When the new primary took writes, when it was named, and when a lock was taken there.
struct Times {
    writable: Duration,
    named: Duration,
    idle: Duration,
    busy: Duration,
    waiter: Duration,
}

fn main() {
    common::runtime().block_on(measure());
}

async fn measure() {
    let repeats: usize = match std::env::var("REPEATS") {
        Ok(number) => number.parse().expect("REPEATS is a number"),
        Err(_) => 5,
    };
    println!("### (h) A failover by sentinels\n");
    println!(
        "One sentinel that decides alone after 500 ms, one replica; {repeats} failovers of each kind; \
         ms, median (least–most). The servers' own time is until the new primary takes writes and \
         is named by the sentinel; the client's comes on top of that.\n"
    );
    let mut table = Table::new(&[
        "failover",
        "takes writes",
        "is named",
        "client: first lock",
        "while locking all the time",
        "a waiter",
    ]);
    let mut bars = Bars::new();
    for kind in [Kind::Killed, Kind::Planned] {
        let mut all = Vec::new();
        for _ in 0..repeats {
            all.push(tokio::time::timeout(BOUND, fail_over(kind)).await.expect("it hangs"));
        }
        let ms = |pick: fn(&Times) -> Duration| {
            let figures = all.iter().map(|times| pick(times).as_secs_f64() * 1e3);
            figures.collect::<Vec<_>>()
        };
        let added = [
            ms(|times| times.idle.saturating_sub(times.named)),
            ms(|times| times.busy.saturating_sub(times.named)),
            ms(|times| times.waiter.saturating_sub(times.named)),
        ];
        let what = match kind {
            Kind::Killed => "killed",
            Kind::Planned => "planned",
        };
        bars.at_most(&format!("ms that the client adds, {what}"), 500.0, median(added[0].clone()));
        let mut row = vec![what.to_owned()];
        row.extend([ms(|times| times.writable), ms(|times| times.named)].map(show));
        row.extend(added.map(show));
        table.row(row);
    }
    table.print();
    bars.print();
}

/// One failover of servers of its own.
async fn fail_over(kind: Kind) -> Times {
    let mut setup = blocking(SentinelSetup::start).await;
    let port = setup.replica.port();
    let ports = [setup.primary.port(), port];
    let connect = async || {
        let builder = Client::builder(setup.url()).expect("a plain URL");
        builder.patience(BOUND).connect().await.expect("the servers were just started")
    };
    let (idle, busy, holder) = (connect().await, connect().await, connect().await);
    let held = holder.lock("held").lock().await.expect("it is free");
    let waiting = idle.lock("held");
    let waiting = tokio::spawn(async move { waiting.lock().await.map(|_| Instant::now()) });
    // Listens, and its holder is renewed: the replica has all that.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let rounds = Arc::new(AtomicUsize::new(0));
    let busy = tokio::spawn(lock_until_there(busy, ports, rounds.clone()));
    while rounds.load(Ordering::Relaxed) < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let sentinel = setup.sentinel.port();
    let knocking = blocking_task(move || (writable(port), named(sentinel, port)));
    let began = Instant::now();
    match kind {
        Kind::Killed => setup.kill_primary(),
        Kind::Planned => setup.fail_over(),
    }
    let idle = tokio::spawn(lock_until_there(idle, ports, Arc::default()));
    let (writable, named) = knocking.await.expect("it ends by itself");
    let idle = idle.await.expect("it ends by itself") - began;
    let busy = busy.await.expect("it ends by itself") - began;
    held.unlock().await.expect("it was replicated");
    let waiter = waiting.await.expect("it ends by itself").expect("it is free");
    let (writable, named) = (writable - began, named - began);
    Times { writable, named, idle, busy, waiter: waiter - began }
}

/// Takes locks until the one that is held is at the server of that port, as a primary, and not at
/// the one before; says when.
async fn lock_until_there(client: Client, ports: [u16; 2], rounds: Arc<AtomicUsize>) -> Instant {
    loop {
        // Each its own name: a release that is lost with the old primary must not keep it.
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        let lock = client.lock(format!("round:{:?}:{round}", Arc::as_ptr(&rounds)));
        let guard = lock.lock().await.expect("it is free");
        let at = Instant::now();
        let holder = guard.holder();
        let [old, new] = ports.map(|port| has(port, guard.name(), holder.as_str()));
        guard.unlock().await.ok();
        if new && !old {
            return at;
        }
    }
}

/// Whether a server is a primary and has that hold.
fn has(port: u16, name: &str, holder: &str) -> bool {
    let ask = || {
        let raw = server::Raw::try_connect(port).ok()?;
        let role = raw.try_cmd(&["ROLE"]).ok()?.first_word()?;
        Some(role == "master" && raw.try_cmd(&["HEXISTS", name, holder]).ok()?.int() == 1)
    };
    ask().unwrap_or(false)
}

/// Knocks until the server of that port takes writes; says when.
fn writable(port: u16) -> Instant {
    let until = Instant::now() + BOUND;
    while Instant::now() < until {
        let Ok(raw) = server::Raw::try_connect(port) else { continue };
        while let Ok(reply) = raw.try_cmd(&["SET", "knock", "1"]) {
            if reply.error().is_none() {
                return Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    panic!("waited {BOUND:?} in vain for a new primary");
}

/// Asks a sentinel until it names the server of that port; says when.
fn named(sentinel: u16, port: u16) -> Instant {
    let (raw, until) = (server::Raw::connect(sentinel), Instant::now() + BOUND);
    while Instant::now() < until {
        let address = raw.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        if address.items()[1].int() == i64::from(port) {
            return Instant::now();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited {BOUND:?} in vain for the sentinel to name it");
}

fn blocking_task<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    blocking_task(work).await.expect("no panic")
}

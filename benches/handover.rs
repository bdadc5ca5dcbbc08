//! From a release to the next holder: between tasks of one process, and between two clients with
//! connections of their own, beside a bare round trip of the same run.

mod common;

use common::{server::RedisServer, show};
use hdrhistogram::Histogram;
use leasehold::{Client, Lock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const TURNS: usize = 7;
const ROUNDS: usize = 300;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = RedisServer::start();
    let one = Client::connect(server.url()).await.expect("the server was just started");
    let two = Client::connect(server.url()).await.expect("the server was just started");
    println!("hand-over, {TURNS} turns of {ROUNDS} each, µs, median (least–most) of the turns\n");
    println!("{:<36} {:>20} {:>20}", "", "p50", "p99");
    let mut rows: Vec<(&str, Vec<(f64, f64)>)> = vec![
        ("a bare round trip (is_locked)", Vec::new()),
        ("between two tasks of one client", Vec::new()),
        ("between two clients", Vec::new()),
    ];
    for _ in 0..TURNS {
        rows[0].1.push(round_trips(&one).await);
        rows[1].1.push(hand_overs(one.lock("local"), one.lock("local")).await);
        rows[2].1.push(hand_overs(one.lock("remote"), two.lock("remote")).await);
    }
    for (what, turns) in rows {
        println!(
            "{what:<36} {:>20} {:>20}",
            show(turns.iter().map(|turn| turn.0)),
            show(turns.iter().map(|turn| turn.1))
        );
    }
    one.close().await;
    two.close().await;
}

fn figures(times: &Histogram<u64>) -> (f64, f64) {
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    (at(0.5), at(0.99))
}

async fn round_trips(client: &Client) -> (f64, f64) {
    let lock = client.lock("nobody's");
    let times = tokio::spawn(async move {
        let mut times = Histogram::<u64>::new(3).expect("three digits are fine");
        for _ in 0..ROUNDS {
            let began = Instant::now();
            lock.is_locked().await.expect("the server answers");
            times.record(began.elapsed().as_nanos() as u64).expect("it grows as needed");
        }
        times
    });
    figures(&times.await.expect("it ends by itself"))
}

/// Two tasks hand one lock to and fro; each release is timed to the other's grant.
async fn hand_overs(mine: Lock, theirs: Lock) -> (f64, f64) {
    let (granted, mut grants) = mpsc::unbounded_channel::<Instant>();
    let (go, mut gone) = mpsc::unbounded_channel::<()>();
    let waiter = tokio::spawn(async move {
        while gone.recv().await.is_some() {
            let guard = theirs.lock().await.expect("it comes free");
            let _ = granted.send(Instant::now());
            guard.unlock().await.expect("we have it");
        }
    });
    let times = tokio::spawn(async move {
        let mut times = Histogram::<u64>::new(3).expect("three digits are fine");
        for _ in 0..ROUNDS {
            let guard = mine.lock().await.expect("it comes free");
            go.send(()).expect("the waiter waits for it");
            // Let it try, subscribe and fall asleep.
            tokio::time::sleep(Duration::from_millis(3)).await;
            let released = Instant::now();
            guard.unlock().await.expect("we have it");
            let granted = grants.recv().await.expect("the waiter says so");
            let time = granted.saturating_duration_since(released);
            times.record(time.as_nanos() as u64).expect("it grows as needed");
        }
        times
    });
    let times = times.await.expect("it ends by itself");
    waiter.await.expect("it ends with its channel");
    figures(&times)
}

//! A hundred thousand held locks of one client for two periods of renewal: commands, processor
//! time, memory, and how many were lost.
//!
//! `LEASES` sets another number.

mod common;

use common::{cpu_time, info, resident, scripts_run, server::RedisServer};
use leasehold::Client;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let leases: usize = match std::env::var("LEASES") {
        Ok(number) => number.parse().expect("LEASES is a number"),
        Err(_) => 100_000,
    };
    let server = RedisServer::start();
    let raw = server.raw();
    let builder = Client::builder(server.url()).expect("a plain URL").watchdog(WATCHDOG);
    let client = builder.connect().await.expect("the server was just started");
    let empty = resident();
    let began = Instant::now();
    let mut guards = Vec::with_capacity(leases);
    let mut takers = Vec::new();
    for part in 0..100 {
        let client = client.clone();
        let share = leases / 100 + usize::from(part < leases % 100);
        takers.push(tokio::spawn(async move {
            let mut guards = Vec::with_capacity(share);
            for n in 0..share {
                guards.push(client.lock(format!("held:{part}:{n}")).lock().await.expect("free"));
            }
            guards
        }));
    }
    for taker in takers {
        guards.extend(taker.await.expect("it ends by itself"));
    }
    let taken = began.elapsed();
    let bytes = (resident().saturating_sub(empty)) / leases as u64;
    println!("{leases} locks taken in {taken:.1?}; {bytes} bytes of this process a lease");

    // The first renewals come between a sixth and a third of the lease: let that begin.
    tokio::time::sleep(WATCHDOG / 3).await;
    let (scripts, cpu, server_cpu) = (scripts_run(&raw), cpu_time(), server_time(&raw));
    let watched = WATCHDOG / 3 * 2;
    let mut shortest = i64::MAX;
    let until = Instant::now() + watched;
    while Instant::now() < until {
        let key = raw.cmd(&["RANDOMKEY"]).text();
        shortest = shortest.min(raw.cmd(&["PTTL", &key]).int());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let periods = watched.as_secs_f64() / (WATCHDOG / 3).as_secs_f64();
    let per_period = (scripts_run(&raw) - scripts) as f64 / periods;
    let share = |time: Duration| time.as_secs_f64() / watched.as_secs_f64() * 100.0;
    let client_share = share(cpu_time() - cpu);
    let server_share = share(server_time(&raw) - server_cpu);
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    println!(
        "{per_period:.0} commands a period of {:?}; client {client_share:.1} % of a core, server \
         {server_share:.1} %; shortest TTL seen {shortest} ms; {lost} lost",
        WATCHDOG / 3
    );
    let began = Instant::now();
    drop(guards);
    client.shutdown(Duration::from_secs(30)).await;
    println!("given back in {:.1?}; {} keys left", began.elapsed(), raw.cmd(&["DBSIZE"]).int());
    assert_eq!(lost, 0, "a lock was lost");
}

fn server_time(raw: &common::server::Raw) -> Duration {
    let cpu = info(raw, "cpu", "used_cpu_user") + info(raw, "cpu", "used_cpu_sys");
    Duration::from_secs_f64(cpu)
}

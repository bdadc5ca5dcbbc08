//! Ten thousand held locks of one client in a cluster of three: what their renewal costs each node
//! and this process, where they are spread over all slots, and where tags keep them in a few.
//!
//! A command carries the renewals of one slot. `LEASES` sets another number.

mod common;

#[path = "../tests/support/cluster.rs"]
mod cluster;

use cluster::ClusterSetup;
use common::server::{self, Raw, RedisServer};
use common::show::{Table, show};
use common::{Work, cpu_time};
use leasehold::{Client, LockGuard};
use std::time::Duration;

/// Each lease is renewed after a third of it.
const WATCHDOG: Duration = Duration::from_secs(15);
const PERIOD: Duration = Duration::from_secs(5);
const PERIODS: usize = 4;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let leases: usize = match std::env::var("LEASES") {
        Ok(number) => number.parse().expect("LEASES is a number"),
        Err(_) => 10_000,
    };
    let cluster = ClusterSetup::start();
    let nodes: Vec<Raw> = cluster.nodes.iter().map(RedisServer::raw).collect();
    let mut table = Table::new(&[
        "names",
        "commands a node and period",
        "server, ms a node and period",
        "client, ms a period",
        "lost",
    ]);
    let spread = |n: usize| format!("held:{n}");
    let tagged = |n: usize| format!("{{tag {}}}:{n}", n % 30);
    let names: [(&str, &dyn Fn(usize) -> String); 2] =
        [("over all slots", &spread), ("of 30 slots", &tagged)];
    for (what, name) in names {
        let builder = Client::builder(cluster.url()).expect("a plain URL").watchdog(WATCHDOG);
        let client = builder.connect().await.expect("the cluster was just started");
        let guards = take(&client, leases, name).await;
        // The first renewals come between a sixth and a third of the lease: let those pass.
        tokio::time::sleep(PERIOD * 2).await;
        let (mut commands, mut servers, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PERIODS {
            let before: Vec<_> = nodes.iter().map(Work::so_far).collect();
            let cpu_before = cpu_time();
            tokio::time::sleep(PERIOD).await;
            own.push((cpu_time() - cpu_before).as_secs_f64() * 1e3);
            for (node, before) in nodes.iter().zip(before) {
                let work = Work::so_far(node).since(before);
                commands.push(work.scripts);
                servers.push(work.cpu_us / 1e3);
            }
        }
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        table.row(vec![
            format!("{leases} {what}"),
            show(commands),
            show(servers),
            show(own),
            lost.to_string(),
        ]);
        drop(guards);
        client.shutdown(Duration::from_secs(30)).await;
        assert_eq!(lost, 0, "a lock was lost");
    }
    println!("Renewals in a cluster of three, a period being {PERIOD:?}; median (least–most):\n");
    table.print();
}

async fn take(client: &Client, leases: usize, name: &dyn Fn(usize) -> String) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(leases);
    let numbers: Vec<usize> = (0..leases).collect();
    for some in numbers.chunks(100) {
        let locks: Vec<_> = some.iter().map(|n| client.lock(name(*n)).lock()).collect();
        for lock in locks {
            guards.push(lock.await.expect("it is free"));
        }
    }
    guards
}

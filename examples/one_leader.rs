//! Shows  several processes of which one leads at a time: the next takes over when the leader is
//!        killed, and a leader that was frozen for too long stops by itself.
//!
//! Run    cargo run --example one_leader
//!
//! Watch  the times: a takeover after a death lasts no longer than the lease.

mod common;

use common::{Program, RedisServer, Result};
use leasehold::{Client, ErrorKind, Held};
use std::{
    process::Command,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// So long the others wait for a leader of which nothing is heard.
const LEASE: Duration = Duration::from_secs(1);
/// What else a takeover may need on a busy machine.
const LENIENCE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url] => node(url).await,
        _ => watch().await,
    }
}

/// What each process runs: it stands for leader as long as it lives.
async fn node(url: &str) -> Result<()> {
    let client = Client::builder(url)?.watchdog(LEASE).connect().await?;
    let leader = client.lock("example:leader");
    loop {
        // Waits until it is the leader. While `lead` runs, the lock is renewed; if it is lost,
        // `lead` is dropped at its next await point, whatever it does.
        match leader.with(lead).await {
            Ok(()) => {} // it resigned
            Err(error) => match error.kind() {
                ErrorKind::LeaseLost(reason) => println!("stopped: {reason}"),
                ErrorKind::Unavailable => sleep(LEASE).await, // no Redis: nobody can lead
                _ => return Err(error.into()),
            },
        }
    }
}

/// What only one may do at a time.
///
/// Frozen in the middle of a step, it would still end that step afterwards. Where that could do harm,
/// the store must refuse the late one: see `Client::fenced_lock`.
async fn lead(held: Held) {
    println!("leads");
    // Needed only for work that is not dropped with `lead`, such as a blocking call.
    while held.is_held() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Starts the processes, disturbs their leaders, and looks who takes over.
async fn watch() -> Result<()> {
    let redis = RedisServer::start();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Program::start(&[&redis.url()])?);
    }

    let first = next_leader(&mut nodes).await?;
    println!("process {} leads", nodes[first].pid());
    let early = tokio::time::timeout(LEASE * 2, next_leader(&mut nodes)).await;
    assert!(early.is_err(), "a second one leads beside the first");
    println!("  still after two leases, and the others wait");

    println!("kill -9 {}", nodes[first].pid());
    let killed = Instant::now();
    nodes.remove(first).kill().await?;
    let second = next_leader(&mut nodes).await?;
    let took = killed.elapsed();
    println!("process {} leads, {:.2} s after that", nodes[second].pid(), took.as_secs_f32());
    assert!(took < LEASE + LENIENCE, "the lease is {LEASE:?}");

    println!("kill -STOP {}: it is frozen, and renews nothing", nodes[second].pid());
    signal("STOP", &nodes[second])?;
    let third = next_leader(&mut nodes).await?;
    println!("process {} leads", nodes[third].pid());

    println!("kill -CONT {}: it goes on where it stood", nodes[second].pid());
    signal("CONT", &nodes[second])?;
    let said = nodes[second].line().await?;
    println!("  it says \"{said}\", and stands in line again");
    assert_eq!(said, "stopped: its lease ended");

    nodes[third].kill().await?;
    assert_eq!(nodes[second].line().await?, "leads");
    println!("process {} leads, once more", nodes[second].pid());
    Ok(())
}

/// Waits until somebody says that it leads now.
async fn next_leader(nodes: &mut [Program]) -> Result<usize> {
    let lines = nodes.iter_mut().map(|node| Box::pin(node.line()));
    let (line, index, _) = futures::future::select_all(lines).await;
    assert_eq!(line?, "leads");
    Ok(index)
}

fn signal(name: &str, node: &Program) -> Result<()> {
    Command::new("kill").arg(format!("-{name}")).arg(node.pid()).status()?;
    Ok(())
}

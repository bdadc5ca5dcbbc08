//! Shows  one lock on three Redis servers that know nothing of each other: one is killed while the
//!        lock is held, and nothing happens; with a second one gone, the holder is told.
//!
//! Run    cargo run --example three_servers
//!
//! Watch  who may work when: with two of three servers one, with one of three nobody.

mod common;

use common::{RedisServer, Result, within};
use leasehold::{Client, RedLock};
use std::time::{Duration, Instant};

/// What is held is renewed at a third of this, on each server.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    // Two processes would have this: a client of each server.
    let (ours, theirs) = (red_lock(&servers).await?, red_lock(&servers).await?);

    let guard = within("it is free", ours.lock()).await??;
    println!("held on {} of 3 servers", guard.members().len());
    assert!(theirs.try_lock_now().await?.is_none());

    servers[0].kill();
    println!("one server is dead");
    let before = guard.valid_until();
    within("the others renew it", async {
        while guard.valid_until() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await?;
    assert!(guard.is_held() && theirs.try_lock_now().await?.is_none());
    println!("  it is still held, and renewed; another process does not get it");
    guard.unlock().await?;

    let asked = Instant::now();
    let guard = within("it is free", theirs.lock()).await??;
    let took = asked.elapsed();
    println!("  given back, it was taken by another process in {took:.0?}, on {}", count(&guard));

    servers[1].kill();
    println!("a second server is dead");
    let reason = within("there is no majority", guard.lost()).await?;
    println!("  the holder is told: {reason}");
    assert!(!guard.is_held());
    let error = within("there is no majority", ours.try_lock_for(LEASE)).await?;
    let error = error.err().ok_or("one server is no majority")?;
    println!("  nobody gets it: {:?}", error.kind());
    assert!(error.is_unavailable());

    servers[1].restart();
    println!("the second server is back");
    drop(guard);
    let guard = within("two of three are enough", ours.lock()).await??;
    println!("  taken again, on {}", count(&guard));
    guard.unlock().await?;
    Ok(())
}

async fn red_lock(servers: &[RedisServer]) -> Result<RedLock> {
    let mut locks = Vec::new();
    for server in servers {
        let builder = Client::builder(server.url())?.watchdog(LEASE);
        let client = builder.command_timeout(Duration::from_millis(500)).connect().await?;
        locks.push(client.lock("example:nightly"));
    }
    Ok(RedLock::new(locks))
}

fn count(guard: &leasehold::JointGuard) -> String {
    format!("{} of 3 servers", guard.members().len())
}

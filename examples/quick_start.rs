//! Shows  taking a lock, working under it and giving it back; and trying for it with a limit.
//!
//! Run    cargo run --example quick_start
//!        With REDIS_URL=redis://host:6379 it uses that server, else it starts one of its own.
//!
//! Watch  the second part: whoever comes while the lock is held waits, but only for so long.

use leasehold::Client;
use std::{env, error::Error, time::Duration};

#[path = "../tests/support/server.rs"]
mod server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (url, _private) = match env::var("REDIS_URL") {
        Ok(url) => (url, None),
        Err(_) => {
            let own = server::RedisServer::start();
            (own.url(), Some(own))
        }
    };

    let client = Client::connect(url).await?;
    let lock = client.lock("example:report");

    // Wait until it is free. From here on it stays ours, however long the work takes.
    let guard = lock.lock().await?;
    println!("locked: nobody else writes the report now, in any process");
    write_report().await;

    // Somebody else (here: another task) asks meanwhile. It waits for 100 ms at most, and would
    // keep the lock for 10 s at most.
    let theirs = lock.clone();
    let other = tokio::spawn(async move {
        theirs.try_lock(Duration::from_millis(100), Duration::from_secs(10)).await
    });
    match other.await?? {
        Some(_guard) => println!("the other got it"),
        None => println!("the other came in vain: it is still held"),
    }

    guard.unlock().await?;
    println!("unlocked");

    // Now it is free. `if let` keeps the guard until the end of the block, which gives it back.
    if let Some(_guard) = lock.try_lock(Duration::from_secs(1), Duration::from_secs(10)).await? {
        println!("locked again, for 10 s at most");
    }

    client.close().await; // so that what was just dropped is given back before we leave
    Ok(())
}

async fn write_report() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

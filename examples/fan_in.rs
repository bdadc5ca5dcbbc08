//! Shows  an import in parts by workers in several processes, and one process that waits for the
//!        last part; a worker dies, and the wait has an end.
//!
//! Run    cargo run --example fan_in
//!
//! Watch  the second day: a latch cannot know that a worker died, so whoever waits looks what is
//!        missing, and has only that done again.

mod common;

use common::{Program, RedisServer, Result};
use leasehold::{Client, CountDownLatch};
use std::{
    fs,
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};
use tokio::time::sleep;

const PARTS: u32 = 4;
/// How long all parts together may take.
const LIMIT: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, name, part, what] => import(url, name, Path::new(part), what).await,
        _ => run().await,
    }
}

/// What each worker runs: it imports a part, here into a file, and counts down.
async fn import(url: &str, name: &str, part: &Path, what: &str) -> Result<()> {
    let client = Client::connect(url).await?;
    sleep(Duration::from_millis(100)).await;
    if what == "dies" {
        process::exit(1);
    }
    // In this order: whoever waits is to find every part when the latch opens. And once for each
    // part: the latch counts calls, it does not know whose they are.
    fs::write(part, "imported")?;
    client.count_down_latch(name).count_down().await?;
    client.close().await;
    Ok(())
}

/// Starts a worker for each part and waits for them, on two days.
async fn run() -> Result<()> {
    let redis = RedisServer::start();
    let client = Client::connect(redis.url()).await?;

    println!("Monday");
    let monday = Import::new(&client, &redis, "monday");
    assert!(monday.latch.try_set(PARTS).await?, "this import was begun already");
    let mut workers = Vec::new();
    for part in 0..PARTS {
        workers.push(monday.start(part, "lives")?);
    }
    let started = Instant::now();
    // Sleeps until the last part wakes it by message. `wait()` would wait as long as it takes.
    assert!(monday.latch.wait_for(LIMIT).await?);
    println!("  all {PARTS} parts are there after {:.1} s", started.elapsed().as_secs_f32());
    assert!(monday.missing().is_empty());

    println!("Tuesday");
    let tuesday = Import::new(&client, &redis, "tuesday");
    tuesday.latch.try_set(PARTS).await?;
    for part in 0..PARTS {
        workers.push(tuesday.start(part, if part == 2 { "dies" } else { "lives" })?);
    }
    assert!(!tuesday.latch.wait_for(LIMIT).await?);
    println!("  after {LIMIT:?}, {} part is missing", tuesday.latch.count().await?);
    let missing = tuesday.missing();
    assert_eq!(missing, [2]);
    for part in missing {
        println!("  part {part} again");
        workers.push(tuesday.start(part, "lives")?);
    }
    assert!(tuesday.latch.wait_for(LIMIT).await?);
    println!("  all {PARTS} parts are there");
    assert!(tuesday.missing().is_empty());

    // An open latch leaves nothing in Redis. One that never opens would stay: `delete` it.
    assert!(!tuesday.latch.delete().await?);
    client.close().await;
    Ok(())
}

/// The import of a day.
struct Import {
    latch: CountDownLatch,
    url: String,
    parts: Vec<PathBuf>,
}

impl Import {
    fn new(client: &Client, redis: &RedisServer, day: &str) -> Self {
        // A name for each import: what a late worker counts must not count for the next one.
        let latch = client.count_down_latch(format!("example:import:{day}"));
        let parts = (0..PARTS).map(|part| redis.dir().join(format!("{day}-{part}"))).collect();
        Self { latch, url: redis.url(), parts }
    }

    fn start(&self, part: u32, what: &str) -> Result<Program> {
        let part = self.parts[part as usize].display().to_string();
        Program::start(&[&self.url, self.latch.name(), &part, what])
    }

    fn missing(&self) -> Vec<u32> {
        (0..PARTS).filter(|part| !self.parts[*part as usize].exists()).collect()
    }
}

//! Shows  a cache of two files that several processes read: when it is stale, one of them rebuilds
//!        it while all go on reading, and swaps both files when nobody reads.
//!
//! Run    cargo run --example cache_rebuild
//!
//! Watch  each version was built once, reads went on meanwhile, and none saw two halves.

mod common;

use common::{Program, RedisServer, Result, within};
use leasehold::{Client, Lock, ReadWriteLock};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep};

/// The source changes so often.
const VERSIONS: u32 = 3;
/// A rebuild asks the database for everything.
const REBUILD: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, dir] => serve(url, dir).await,
        _ => watch().await,
    }
}

/// What each process runs: tasks that read the cache until it has the last version.
async fn serve(url: &str, dir: &str) -> Result<()> {
    let client = Client::connect(url).await?;
    let cache = Cache::new(&client, Path::new(dir));
    println!("ready");
    // Spawned, so that each task is an owner of its own.
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        readers.spawn(cache.clone().serve_until_last());
    }
    let mut stale = 0;
    for served in readers.join_all().await {
        stale += served?;
    }
    println!("served the old version {stale} times while the next was built");
    assert!(stale > 0);
    client.close().await;
    Ok(())
}

#[derive(Clone)]
struct Cache {
    dir: PathBuf,
    files: ReadWriteLock,
    rebuilding: Lock,
}

impl Cache {
    fn new(client: &Client, dir: &Path) -> Self {
        let files = client.read_write_lock("example:cache");
        let rebuilding = client.lock("example:cache:rebuild");
        Self { dir: dir.to_owned(), files, rebuilding }
    }

    /// Reads, and has rebuilt what is stale; returns how often it was.
    async fn serve_until_last(self) -> Result<u32> {
        let mut stale = 0;
        loop {
            let version = self.read().await?;
            if version == VERSIONS {
                return Ok(stale);
            }
            if version < self.source()? {
                stale += 1;
                self.rebuild().await?;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The version in the cache.
    async fn read(&self) -> Result<u32> {
        let reading = self.files.read().lock().await?; // beside other readers
        let prices = fs::read_to_string(self.dir.join("prices"))?;
        sleep(Duration::from_millis(1)).await;
        let index = fs::read_to_string(self.dir.join("index"))?;
        reading.unlock().await?;
        assert_eq!(prices, index, "two files that do not belong together");
        Ok(index.parse()?)
    }

    /// Rebuilds the cache, unless another is at it.
    async fn rebuild(&self) -> Result<()> {
        // Whoever comes first does it. The others do not wait: they have the old version to serve.
        let Some(_rebuilding) = self.rebuilding.try_lock_now().await? else { return Ok(()) };
        // Look again: the one before may have been through just as we came.
        let version = self.source()?;
        if self.read().await? == version {
            return Ok(());
        }
        sleep(REBUILD).await;
        let mut log = fs::OpenOptions::new().append(true).open(self.dir.join("built"))?;
        writeln!(log, "{version}")?;

        // Only the swap keeps readers out. (Never ask for this while reading: a reader that waited
        // for all readers to be gone would wait for itself, so it is refused with `OwnHold`.)
        let writing = self.files.write().lock().await?;
        fs::write(self.dir.join("prices"), version.to_string())?;
        sleep(Duration::from_millis(5)).await;
        fs::write(self.dir.join("index"), version.to_string())?;
        Ok(writing.unlock().await?)
    }

    /// The version that the cache should have.
    fn source(&self) -> Result<u32> {
        Ok(fs::read_to_string(self.dir.join("source"))?.trim().parse()?)
    }
}

/// Starts the processes and changes the source a few times.
async fn watch() -> Result<()> {
    let redis = RedisServer::start();
    let (url, dir) = (redis.url(), redis.dir());
    for (file, content) in [("source", "0"), ("prices", "0"), ("index", "0"), ("built", "")] {
        fs::write(dir.join(file), content)?;
    }
    let client = Client::connect(&url).await?;
    let cache = Cache::new(&client, dir);
    let mut processes = Vec::new();
    for _ in 0..3 {
        let mut process = Program::start(&[&url, &dir.display().to_string()])?;
        assert_eq!(process.line().await?, "ready");
        processes.push(process);
    }
    for version in 1..=VERSIONS {
        fs::write(dir.join("source.new"), version.to_string())?;
        fs::rename(dir.join("source.new"), dir.join("source"))?; // never half of it
        let changed = Instant::now();
        within("the cache is rebuilt", async {
            while cache.read().await? < version {
                sleep(Duration::from_millis(10)).await;
            }
            Result::Ok(())
        })
        .await??;
        println!(
            "version {version} is in the cache after {:.2} s",
            changed.elapsed().as_secs_f32()
        );
    }
    for mut process in processes {
        println!("one process {}", process.line().await?);
        process.end().await?;
    }
    let built = fs::read_to_string(dir.join("built"))?;
    println!("versions built: {}", built.lines().collect::<Vec<_>>().join(", "));
    assert_eq!(built, "1\n2\n3\n");
    client.close().await;
    Ok(())
}

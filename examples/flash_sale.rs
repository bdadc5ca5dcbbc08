//! Shows  a stock that hundreds want at once: it is kept as several counters, each under a stripe of
//!        one striped lock, so that as many are served at a time. Every customer is looked after
//!        under a stripe of another, chosen by name, so that nobody buys twice.
//!
//! Run    cargo run --example flash_sale
//!
//! Watch  the numbers: everything is sold, nothing twice, and each customer has one.

mod common;

use common::{Program, RedisServer, Result};
use leasehold::{Client, StripedLock};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};
use tokio::{task::JoinSet, time::sleep};

/// More serve more customers at a time; an empty counter is passed over.
const COUNTERS: usize = 4;
const ON_EACH: u32 = 25;
/// All of them try in each process: an impatient crowd.
const CUSTOMERS: u32 = 150;

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, dir] => till(url, Path::new(dir)).await,
        _ => sale().await,
    }
}

/// What each process runs: it serves everybody who comes.
async fn till(url: &str, dir: &Path) -> Result<()> {
    let client = Client::connect(url).await?;
    let shop = Shop {
        customers: client.striped_lock("example:customer", 64),
        stock: client.striped_lock("example:stock", COUNTERS),
        dir: dir.to_owned(),
    };
    let mut served = JoinSet::new();
    for customer in 0..CUSTOMERS {
        let shop = shop.clone();
        served.spawn(async move { shop.serve(&format!("customer {customer}")).await });
    }
    let mut sold = 0;
    for served in served.join_all().await {
        sold += u32::from(served?);
    }
    println!("{sold}");
    client.close().await;
    Ok(())
}

#[derive(Clone)]
struct Shop {
    customers: StripedLock,
    stock: StripedLock,
    dir: PathBuf,
}

impl Shop {
    /// Sells one thing to one who has none, if there is one left.
    async fn serve(&self, customer: &str) -> Result<bool> {
        // The same customer at two tills at once waits for itself.
        let customer_lock = self.customers.for_key(customer).lock().await?;
        let receipt = self.dir.join(customer);
        if receipt.exists() {
            return Ok(false);
        }
        let sold = self.sell().await?;
        if sold {
            fs::write(&receipt, "one")?;
        }
        customer_lock.unlock().await?;
        Ok(sold)
    }

    /// Takes one thing from any counter that has some.
    async fn sell(&self) -> Result<bool> {
        // Whichever counter nobody is at.
        let guard = self.stock.any().await?;
        let first = guard.stripe();
        let sold = self.take_from(first).await?;
        guard.unlock().await?;
        if sold {
            return Ok(true);
        }
        // It is empty. The others may have some left.
        for other in (0..COUNTERS).filter(|other| *other != first) {
            let guard = self.stock.stripes()[other].lock().await?;
            let sold = self.take_from(other).await?;
            guard.unlock().await?;
            if sold {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Needs the counter's lock.
    async fn take_from(&self, counter: usize) -> Result<bool> {
        let counter = self.dir.join(format!("counter {counter}"));
        let left: u32 = fs::read_to_string(&counter)?.parse()?;
        // Whoever read it here without the lock would sell the same thing.
        sleep(Duration::from_millis(1)).await;
        if left > 0 {
            fs::write(&counter, (left - 1).to_string())?;
        }
        Ok(left > 0)
    }
}

/// Fills the counters, opens the tills, and counts.
async fn sale() -> Result<()> {
    let redis = RedisServer::start();
    let dir = env::temp_dir().join(format!("flash_sale-{}", process::id()));
    fs::create_dir_all(&dir)?;
    for counter in 0..COUNTERS {
        fs::write(dir.join(format!("counter {counter}")), ON_EACH.to_string())?;
    }
    let stock = COUNTERS as u32 * ON_EACH;
    println!("{stock} things, {CUSTOMERS} customers, each of them at 3 tills at once");
    let path = dir.to_string_lossy();
    let tills: Result<Vec<_>> = (0..3).map(|_| Program::start(&[&redis.url(), &path])).collect();
    let mut sold = 0;
    for mut till in tills? {
        let here: u32 = till.line().await?.parse()?;
        println!("  a till sold {here}");
        sold += here;
        till.end().await?;
    }
    let files = fs::read_dir(&dir)?.filter_map(std::result::Result::ok);
    let receipts = files.filter(|file| file.file_name().to_string_lossy().starts_with("customer"));
    let receipts = receipts.count();
    fs::remove_dir_all(&dir)?;
    println!("{sold} sold, to {receipts} customers");
    assert_eq!(sold, stock, "all is sold, and nothing twice");
    assert_eq!(receipts, stock as usize, "nobody bought twice");
    Ok(())
}

//! Shows  a program that is frozen while it holds the lock, for longer than its lease, and then
//!        writes as if nothing had happened; and a store that refuses that write by its token.
//!
//! Run    cargo run --example fenced_store
//!
//! Watch  the last two lines: no lock can stop the late write, only the store can.

mod common;

use common::{Program, RedisServer, Result};
use leasehold::Client;
use std::{process, time::Duration};

/// Redis frees the lock of a program that no longer renews it after this time.
const LEASE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, balance] => clerk(url, balance, false).await,
        [url, balance, _] => clerk(url, balance, true).await,
        _ => bank().await,
    }
}

/// What each program runs: it writes a balance, under the lock and with its token.
async fn clerk(url: &str, balance: &str, freezes: bool) -> Result<()> {
    let client = Client::builder(url)?.watchdog(LEASE).connect().await?;
    let guard = client.fenced_lock("example:account").lock().await?;
    let token = guard.token();
    println!("locked {token}");
    // To look before one writes is not enough: the program may stand still right after.
    if guard.is_held() {
        if freezes {
            freeze()?;
        }
        println!("write {token} {balance}"); // the store is the program that reads this
    }
    match guard.unlock().await {
        Ok(()) => println!("unlocked"),
        Err(error) if error.is_lost() => println!("lost"),
        Err(error) => return Err(error.into()),
    }
    client.close().await;
    Ok(())
}

/// As a long garbage collection, a suspended machine, or this signal would.
fn freeze() -> Result<()> {
    process::Command::new("kill").args(["-STOP", &process::id().to_string()]).status()?;
    Ok(())
}

/// What is written must not come from before what is there.
#[derive(Default)]
struct Store {
    highest: u64,
    balance: String,
}

impl Store {
    fn write(&mut self, token: u64, balance: &str) -> bool {
        if token < self.highest {
            return false; // somebody else has had the lock since
        }
        self.highest = token;
        balance.clone_into(&mut self.balance);
        true
    }
}

async fn bank() -> Result<()> {
    let redis = RedisServer::start();
    let (mut fenced, mut unfenced) = (Store::default(), String::new());

    let mut early = Program::start(&[&redis.url(), "100", "freezes"])?;
    let early_token = token(&early.line().await?)?;
    println!("program {} has the lock, token {early_token}", early.pid());
    println!("it looks, it holds the lock, and before it writes 100, it is frozen");

    let mut late = Program::start(&[&redis.url(), "250"])?;
    let late_token = token(&late.line().await?)?;
    println!("its lease runs out, and program {} has the lock, token {late_token}", late.pid());
    assert!(late_token > early_token, "each owner has a higher token than the one before");
    let (written, balance) = write(&late.line().await?)?;
    assert!(fenced.write(written, &balance), "it is the first");
    println!("it writes {balance}, token {written}: accepted");
    unfenced.clone_from(&balance);
    assert_eq!(late.line().await?, "unlocked");
    late.end().await?;

    process::Command::new("kill").args(["-CONT", &early.pid()]).status()?;
    let (written, balance) = write(&early.line().await?)?;
    println!("program {} goes on where it stood, and writes {balance}", early.pid());
    assert!(!fenced.write(written, &balance), "it is of the past");
    println!("the store refuses: token {written} is below {}", fenced.highest);
    unfenced.clone_from(&balance);
    assert_eq!(early.line().await?, "lost", "its unlock tells it, too late for the write");
    early.end().await?;

    assert_eq!((&*fenced.balance, &*unfenced), ("250", "100"));
    println!("\nwith the token     the balance is {}, as the last owner wrote it", fenced.balance);
    println!("without the token  it would be {unfenced}: the later write is gone");
    Ok(())
}

/// The token in what a program says when it has locked.
fn token(line: &str) -> Result<u64> {
    Ok(line.strip_prefix("locked ").ok_or("it should have locked")?.parse()?)
}

/// Token and balance of a write.
fn write(line: &str) -> Result<(u64, String)> {
    let write = line.strip_prefix("write ").and_then(|rest| rest.split_once(' '));
    let (token, balance) = write.ok_or_else(|| format!("it should write, not say {line:?}"))?;
    Ok((token.parse()?, balance.to_owned()))
}

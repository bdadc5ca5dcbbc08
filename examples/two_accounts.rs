//! Shows  money moved between accounts by several processes: each transfer locks both accounts at
//!        once, some in one order and some in the other, and nobody waits for ever.
//!
//! Run    cargo run --example two_accounts
//!
//! Watch  the last line: no money was made, and none was lost.

mod common;

use common::{Program, RedisServer, Result};
use leasehold::{Client, MultiLock};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};
use tokio::{task::JoinSet, time::sleep};

const ACCOUNTS: u32 = 3;
const BALANCE: i64 = 1000;
/// Of each of the tasks of a process.
const TRANSFERS: u32 = 20;

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, dir] => clerks(url, Path::new(dir)).await,
        _ => bank().await,
    }
}

/// What each process runs: tasks that move money to and fro.
async fn clerks(url: &str, dir: &Path) -> Result<()> {
    let client = Client::connect(url).await?;
    // Spawned, so that each task is an owner of its own.
    let mut clerks = JoinSet::new();
    for _ in 0..4 {
        let (client, dir) = (client.clone(), dir.to_owned());
        clerks.spawn(async move {
            for _ in 0..TRANSFERS {
                let from = fastrand::u32(..ACCOUNTS);
                let to = (from + fastrand::u32(1..ACCOUNTS)) % ACCOUNTS;
                transfer(&client, &dir, from, to, fastrand::i64(1..50)).await?;
            }
            Result::Ok(())
        });
    }
    for done in clerks.join_all().await {
        done?;
    }
    client.close().await;
    Ok(())
}

/// Both accounts are locked, or neither. The order is that of the multi lock, not of its arguments.
async fn transfer(client: &Client, dir: &Path, from: u32, to: u32, amount: i64) -> Result<()> {
    let account = |number| client.lock(format!("example:account:{number}"));
    let both = MultiLock::new([account(from), account(to)]);
    both.with(|_held| async {
        let (debited, credited) = (balance(dir, from)? - amount, balance(dir, to)? + amount);
        // Whoever read a balance here without the lock would work with an old one.
        sleep(Duration::from_millis(1)).await;
        fs::write(file(dir, from), debited.to_string())?;
        fs::write(file(dir, to), credited.to_string())?;
        Result::Ok(())
    })
    .await?
}

fn file(dir: &Path, account: u32) -> PathBuf {
    dir.join(account.to_string())
}

fn balance(dir: &Path, account: u32) -> Result<i64> {
    Ok(fs::read_to_string(file(dir, account))?.parse()?)
}

/// Opens the accounts, lets the processes work, and counts.
async fn bank() -> Result<()> {
    let redis = RedisServer::start();
    let dir = env::temp_dir().join(format!("two_accounts-{}", process::id()));
    fs::create_dir_all(&dir)?;
    for account in 0..ACCOUNTS {
        fs::write(file(&dir, account), BALANCE.to_string())?;
    }
    let path = dir.to_string_lossy();
    let processes: Result<Vec<_>> =
        (0..3).map(|_| Program::start(&[&redis.url(), &path])).collect();
    for process in processes? {
        process.end().await?;
    }
    let mut total = 0;
    for account in 0..ACCOUNTS {
        let balance = balance(&dir, account)?;
        println!("account {account}: {balance}");
        total += balance;
    }
    fs::remove_dir_all(&dir)?;
    println!("in all:    {total}, after {} transfers", 3 * 4 * TRANSFERS);
    assert_eq!(total, BALANCE * i64::from(ACCOUNTS));
    Ok(())
}

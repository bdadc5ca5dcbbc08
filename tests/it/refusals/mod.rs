//! What the server refuses, and what is refused before it is asked.

mod durations;
mod names;
mod passwords;
mod states;

use std::time::Duration;

use leasehold::{Builder, Client, ErrorKind, Lock, LockGuard, LostReason, Refusal};

use crate::support::{
    assert_every_key_has_ttl, assert_no_keys, blocking, eventually,
    proxy::{Proxy, named},
    redisson::Redisson,
    server::{Raw, RedisServer, until},
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

async fn client(server: &RedisServer) -> Client {
    Client::connect(server.url()).await.unwrap()
}

async fn lock(lock: &Lock) -> Result<LockGuard, leasehold::Error> {
    within(lock.lock_with(LEASE)).await
}

/// For a client that is not let in, and has only to find that out.
fn impatient(url: &str) -> Builder {
    let time = Duration::from_millis(100);
    Client::builder(url).unwrap().patience(time).command_timeout(time)
}

fn pttl(raw: &Raw, name: &str) -> i64 {
    raw.cmd(&["PTTL", name]).int()
}

fn set(raw: &Raw, parameter: &str, value: &str) {
    raw.cmd(&["CONFIG", "SET", parameter, value]).ok();
}

/// What a server has counted of a command: its `calls`, or its `rejected_calls`.
fn statistic(raw: &Raw, command: &str, what: &str) -> u64 {
    let stats = raw.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let mut fields = line.into_iter().flat_map(|line| line.split(','));
    let value = fields.find_map(|field| field.strip_prefix(&format!("{what}=")));
    value.map_or(0, |value| value.trim().parse().unwrap())
}

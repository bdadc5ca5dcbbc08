//! Names of all kinds are the same lock on both sides.

use leasehold::{Builder, Client};

use crate::{
    pair::{LEASE, LEASE_MS, Pair, assert_woken_before, lease_end, locks, soon},
    peer::{Java, Jvm, Settings, at_least},
    support::{
        eventually,
        redisson::Redisson,
        server::{Raw, RedisServer},
    },
};

const NAMES: [&str; 14] = [
    "job",
    "{job}",
    "app:{job}:1",
    "a{b}c{d}",
    "ab{c",
    "x}y",
    "{}",
    "{}x",
    "two words",
    " ",
    "ü 1",
    "\u{65e5}\u{672c}\u{8a9e}",
    "\u{1f512}",
    "a\tb\nc\"d%e+f*g",
];

#[tokio::test]
async fn every_name_is_the_same_lock_on_both_sides() {
    let pair = Pair::start().await;
    for name in NAMES {
        let guard = pair.take(name).await;
        assert!(!pair.java.try_lock(name, 1, 0, 1_000).await, "{name:?}");
        let waiting = pair.wait_in_java(name, 1).await;
        let end = pair.lease_end(name);
        soon(guard.unlock()).await.unwrap();
        waiting.await.unwrap().unwrap();
        assert_woken_before(end);

        let waiting = pair.wait_in_rust(name).await;
        pair.java.unlock(name, 1).await.unwrap();
        soon(waiting.await.unwrap().unlock()).await.unwrap();
        assert_woken_before(end);
    }
    pair.assert_nothing_left().await;
}

/// A mapper on each side, and for a plain prefix also `prefixed`.
#[tokio::test]
async fn mapped_names_meet() {
    if !at_least(3, 16) {
        return eprintln!("skipped: this Redisson has no NameMapper");
    }
    let server = RedisServer::start();
    let raw = server.raw();
    let settings = Settings { prefix: "app:", ..Settings::default() };
    let java = Java::open(Jvm::shared(), server.port(), settings).await;
    let mapped = |builder: Builder| builder.name_mapper(|name| format!("app:{name}"));
    let builder = mapped(Client::builder(server.url()).unwrap());
    let mapped = soon(builder.connect()).await.unwrap();
    let prefixed = soon(Client::connect(server.url())).await.unwrap().prefixed("app:");
    for client in [mapped, prefixed] {
        assert_wakes_both_ways(&raw, &java, &client, "job", "app:job").await;
        assert_wakes_both_ways(&raw, &java, &client, "{job}", "app:{job}").await;
    }
    java.close().await;
}

async fn assert_wakes_both_ways(raw: &Raw, java: &Java, client: &Client, name: &str, key: &str) {
    let lock = client.lock(name);
    let guard = soon(lock.lock_with(LEASE)).await.unwrap();
    assert_eq!(locks(raw), [key]);
    let waiting = tokio::spawn(java.locking(name, 1, LEASE_MS));
    listen(raw, key).await;
    let end = lease_end(raw, key);
    soon(guard.unlock()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);

    assert_eq!(locks(raw), [key]);
    let waiting = tokio::spawn(lock.lock_with(LEASE));
    listen(raw, key).await;
    java.unlock(name, 1).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);
    soon(guard.unlock()).await.unwrap();
}

async fn listen(raw: &Raw, key: &str) {
    let listeners =
        || raw.cmd(&["PUBSUB", "NUMSUB", &Redisson::channel(key)]).ok().items()[1].int();
    eventually("somebody listens", async || listeners() > 0).await;
}

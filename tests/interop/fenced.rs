//! `RFencedLock` and ours: one sequence of tokens for both sides.

use std::time::Duration;

use crate::{
    kinds::{FENCED, cases},
    pair::{LEASE, LEASE_MS, Pair, soon},
    peer::Java,
};

cases!(FENCED);

const TOKEN: &str = "redisson_lock_token:{job}";

/// What `lockAndGetToken` answers.
async fn javas_token(java: &Java) -> u64 {
    let token = soon(java.call(Some(1), "job", "lockAndGetToken", &[])).await;
    token.expect("no exception").parse().expect("a token")
}

/// A token is higher than all before it, whoever drew those.
#[tokio::test]
async fn tokens_of_both_sides_rise_as_one() {
    if !FENCED.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, lock) = (FENCED.java(&pair), pair.client.fenced_lock("job"));
    let mut last = 0;
    for _ in 0..3 {
        let token = javas_token(&java).await;
        assert!(token > last, "{token} after {last}");
        assert_eq!(soon(lock.last_token()).await.unwrap(), Some(token));
        assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
        assert_eq!(soon(lock.last_token()).await.unwrap(), Some(token), "refused: none is drawn");
        java.unlock("job", 1).await.unwrap();

        let guard = soon(lock.lock_with(LEASE)).await.unwrap();
        assert!(guard.token() > token, "{} after {token}", guard.token());
        last = guard.token();
        assert_eq!(java.ask("job", "getToken", &[]).await, last.to_string());
        assert!(!java.try_lock("job", 2, 0, 1_000).await);
        assert_eq!(java.ask("job", "getToken", &[]).await, last.to_string());
        soon(guard.unlock()).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

/// Without a number: each re-entry draws a token, so a holder's own writes outdate each other.
#[tokio::test]
async fn re_entry_keeps_our_token_and_raises_javas() {
    if !FENCED.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, lock) = (FENCED.java(&pair), pair.client.fenced_lock("job"));
    let outer = soon(lock.lock_with(LEASE)).await.unwrap();
    let inner = soon(lock.lock_with(LEASE)).await.unwrap();
    assert_eq!(outer.token(), inner.token());
    soon(inner.unlock()).await.unwrap();
    let ours = outer.token();
    soon(outer.unlock()).await.unwrap();
    let first = javas_token(&java).await;
    let second = javas_token(&java).await;
    assert!(ours < first && first < second, "{ours}, {first}, {second}");
    java.unlock("job", 1).await.unwrap();
    java.unlock("job", 1).await.unwrap();
    assert!(soon(lock.lock_with(LEASE)).await.unwrap().token() > second);
}

/// Without a number: a token that is lost begins again at 1. Ours is higher than all before it, and
/// Java goes on from there.
#[tokio::test]
async fn a_lost_token_does_not_come_back_once_rust_has_drawn() {
    if !FENCED.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, lock) = (FENCED.java(&pair), pair.client.fenced_lock("job"));
    let guard = soon(lock.lock_with(LEASE)).await.unwrap();
    let before = guard.token();
    soon(guard.unlock()).await.unwrap();
    assert_eq!(pair.raw.cmd(&["DEL", TOKEN]).int(), 1);
    let guard = soon(lock.lock_with(LEASE)).await.unwrap();
    let after = guard.token();
    assert!(after > before, "{after} after {before}");
    soon(guard.unlock()).await.unwrap();
    assert_eq!(javas_token(&java).await, after + 1);
    java.unlock("job", 1).await.unwrap();
}

/// #6510: the keys of tokens stay for ever, 25 million of them.
#[tokio::test]
async fn issue_6510_a_token_may_end_and_java_counts_on_until_then() {
    if !FENCED.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let java = FENCED.java(&pair);
    let lock = pair.client.fenced_lock("job").token_ttl(Duration::from_secs(30));
    let guard = soon(lock.lock_with(LEASE)).await.unwrap();
    let ours = guard.token();
    soon(guard.unlock()).await.unwrap();
    assert!(pair.raw.cmd(&["PTTL", TOKEN]).int() > 0);
    assert_eq!(javas_token(&java).await, ours + 1);
    java.unlock("job", 1).await.unwrap();
    assert!(pair.raw.cmd(&["PTTL", TOKEN]).int() > 0);
}

/// Without a number: whoever asks for a lock without a TTL believes to have it, with token -1.
#[tokio::test]
async fn a_lock_without_a_ttl_is_not_taken_for_granted() {
    if !FENCED.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, lock) = (FENCED.java(&pair), pair.client.fenced_lock("job"));
    java.lock("job", 1, LEASE_MS).await.unwrap();
    assert_eq!(pair.raw.cmd(&["PERSIST", "job"]).int(), 1);
    assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
    assert!(soon(lock.try_lock(Duration::from_millis(200), LEASE)).await.unwrap().is_none());
    assert_eq!(soon(lock.remaining_lease()).await.unwrap(), Some(Duration::MAX));
    assert_eq!(java.hold_count("job", 1).await, 1);
    java.unlock("job", 1).await.unwrap();
    assert!(soon(lock.try_lock_now()).await.unwrap().is_some());
}

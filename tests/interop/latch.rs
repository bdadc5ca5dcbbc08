//! `RCountDownLatch` and ours: one count for both sides.

use std::time::Duration;

use crate::{
    pair::{Pair, soon},
    peer::{Answer, Java},
    support::eventually,
};

fn waiting(java: &Java, name: &str) -> tokio::task::JoinHandle<Answer> {
    tokio::spawn(java.call(Some(1), name, "await", &[]))
}

/// Waits until so many clients listen. The channel has braces also around a name with braces.
async fn listened(pair: &Pair, name: &str, count: i64) {
    let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
    let listeners = || pair.raw.cmd(&["PUBSUB", "NUMSUB", &channel]).ok().items()[1].int();
    eventually("they listen", async || listeners() >= count).await;
}

/// The last of them lets all go, whichever side that is.
#[tokio::test]
async fn both_sides_count_down_and_both_are_let_go() {
    let pair = Pair::start().await;
    let java = pair.java.of("latch");
    for (last, name) in [("java", "job"), ("rust", "job"), ("java", "{job}:1"), ("rust", "{job}:1")]
    {
        let ours = pair.client.count_down_latch(name);
        match last {
            "java" => assert_eq!(java.ask(name, "trySetCount", &["3"]).await, "true"),
            _ => assert!(soon(ours.try_set(3)).await.unwrap()),
        }
        assert!(!soon(ours.try_set(7)).await.unwrap());
        assert_eq!(java.ask(name, "trySetCount", &["7"]).await, "false");
        let (theirs, mine) = (waiting(&java, name), tokio::spawn(ours.wait()));
        listened(&pair, name, 2).await;
        java.ask(name, "countDown", &[]).await;
        assert_eq!(soon(ours.count_down()).await.unwrap(), 1);
        assert_eq!(java.ask(name, "getCount", &[]).await, "1");
        assert_eq!(soon(ours.count()).await.unwrap(), 1);
        assert!(!theirs.is_finished() && !mine.is_finished());
        match last {
            "java" => drop(java.ask(name, "countDown", &[]).await),
            _ => assert_eq!(soon(ours.count_down()).await.unwrap(), 0),
        }
        soon(theirs).await.unwrap().unwrap();
        soon(mine).await.unwrap().unwrap();
        assert_eq!(java.ask(name, "getCount", &[]).await, "0");
    }
    pair.assert_nothing_left().await;
}

/// To count down what is not there opens and changes nothing.
#[tokio::test]
async fn a_latch_that_is_open_stays_open_on_both_sides() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("latch"), pair.client.count_down_latch("job"));
    java.ask("job", "countDown", &[]).await;
    assert_eq!(soon(ours.count_down()).await.unwrap(), 0);
    soon(ours.wait()).await.unwrap();
    soon(waiting(&java, "job")).await.unwrap().unwrap();
    assert!(soon(ours.try_set(1)).await.unwrap(), "it can be set again");
    assert!(!soon(ours.wait_for(Duration::from_millis(100))).await.unwrap());
    java.ask("job", "countDown", &[]).await;
    soon(ours.wait()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// §10 of what Redisson writes: a latch that is deleted counts 0, and its waiters stay. Ours go, when
/// either side deletes it.
#[tokio::test]
async fn a_deleted_latch_lets_our_waiters_go() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("latch"), pair.client.count_down_latch("job"));
    for by in ["java", "rust"] {
        assert!(soon(ours.try_set(2)).await.unwrap());
        let mine = tokio::spawn(ours.wait());
        listened(&pair, "job", 1).await;
        match by {
            "java" => assert_eq!(java.ask("job", "delete", &[]).await, "true"),
            _ => assert!(soon(ours.delete()).await.unwrap()),
        }
        soon(mine).await.unwrap().unwrap();
        assert_eq!(java.ask("job", "getCount", &[]).await, "0");
        assert!(!soon(ours.delete()).await.unwrap());
    }
}

/// The waiter in Java that a delete left behind is let go by the next count that ends.
#[tokio::test]
async fn a_waiter_of_java_that_our_delete_leaves_is_let_go_by_the_next_zero() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("latch"), pair.client.count_down_latch("job"));
    assert!(soon(ours.try_set(1)).await.unwrap());
    let theirs = waiting(&java, "job");
    listened(&pair, "job", 1).await;
    assert!(soon(ours.delete()).await.unwrap());
    assert!(soon(ours.try_set(1)).await.unwrap());
    assert_eq!(soon(ours.count_down()).await.unwrap(), 0);
    soon(theirs).await.unwrap().unwrap();
}

/// #5349, #2304: several wait, and one is let go.
#[tokio::test]
async fn issue_5349_all_waiters_of_a_process_are_let_go() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("latch"), pair.client.count_down_latch("job"));
    assert!(soon(ours.try_set(1)).await.unwrap());
    let waiters: Vec<_> = (0..50).map(|_| tokio::spawn(ours.wait())).collect();
    listened(&pair, "job", 1).await;
    java.ask("job", "countDown", &[]).await;
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
}

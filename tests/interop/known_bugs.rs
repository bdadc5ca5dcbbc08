//! What users of Redisson's lock have reported, by the number of the issue there: none of it happens
//! here, and avoiding it does not disturb Java.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, LostReason};

use crate::{
    kinds::{READ, SPIN, WRITE},
    pair::{KEPT_MS, LEASE, LEASE_MS, Pair, assert_woken_before, granted, soon},
    support::{
        eventually,
        proxy::{Matcher, Proxy, both, mentioning, named},
        subscriptions,
    },
};

/// A client that goes through a proxy, and whose scripts the server knows already.
async fn behind_proxy(pair: &Pair, fallback_cap: Duration) -> (Proxy, Client) {
    let proxy = Proxy::start(pair.server.port());
    let builder = Client::builder(proxy.url()).unwrap().watchdog(Duration::from_millis(KEPT_MS));
    let builder = builder.command_timeout(Duration::from_millis(500)).fallback_cap(fallback_cap);
    let client = soon(builder.connect()).await.unwrap();
    soon(granted(&client.lock("warm-up")).await.unlock()).await.unwrap();
    (proxy, client)
}

/// Matches the command that gives this lock back.
fn release(name: &str) -> impl Matcher + use<> {
    both(both(named("EVALSHA"), mentioning("PUBLISH")), mentioning(name))
}

/// #7272, #2714, #4368: whoever stops waiting at the moment of the grant leaves a lock that is
/// renewed for ever.
#[tokio::test]
async fn issue_7272_an_acquisition_given_up_while_it_is_granted_leaves_nothing() {
    let pair = Pair::start().await;
    for round in 0..40 {
        let name = format!("job {round}");
        pair.java.lock(&name, 1, LEASE_MS).await.unwrap();
        let waiting = pair.wait_in_rust(&name).await;
        let give_up = async {
            let (begin, delay) = (Instant::now(), Duration::from_micros(50 * round));
            while begin.elapsed() < delay {
                tokio::task::yield_now().await;
            }
            waiting.abort();
            drop(waiting.await); // with the guard, if it came that far
        };
        let (unlocked, ()) = tokio::join!(pair.java.unlock(&name, 1), give_up);
        unlocked.unwrap();
        assert!(pair.java.try_lock(&name, 1, 15_000, LEASE_MS).await, "{name} was left locked");
        pair.java.unlock(&name, 1).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

/// #4698, #3854, #3636: a holder whose lock is gone is not told, and works on.
#[tokio::test]
async fn issue_4698_the_loss_of_a_lock_is_told_and_stops_the_work() {
    let pair = Pair::with_watchdogs(1_500).await;
    let lock = pair.client.lock("job");
    let work = tokio::spawn(lock.with(|_held| std::future::pending::<()>()));
    eventually("it is held", async || pair.java.is_locked("job").await).await;
    assert!(pair.java.force_unlock("job").await);
    let error = soon(work).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    pair.assert_nothing_left().await;
}

/// #6198, #3521: the lock of a thread that died without unlocking is renewed for ever.
#[tokio::test]
async fn issue_6198_a_task_that_panics_lets_go_of_its_lock() {
    let pair = Pair::start().await;
    let lock = pair.client.lock("job");
    let (held, holds) = tokio::sync::oneshot::channel();
    let (die, dies) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        held.send(()).unwrap();
        let () = dies.await.unwrap();
        panic!("as it should");
    });
    holds.await.unwrap();
    let waiting = pair.wait_in_java("job", 1).await;
    die.send(()).unwrap();
    assert!(task.await.unwrap_err().is_panic());
    soon(waiting).await.unwrap().unwrap();
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #5761, #5762: an unlock message is missed, and the waiter sleeps until the lease ends.
#[tokio::test]
async fn issue_5761_a_lost_message_of_java_costs_the_cap_and_not_the_lease() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(1)).await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    proxy.eat_messages(true);
    let lock = client.lock("job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    pair.wait_for_listeners("job", 1).await;
    pair.java.unlock("job", 1).await.unwrap();
    let guard = soon(waiting).await.unwrap();
    assert_woken_before(end);
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #1763: an unlock falls between the refusal and the subscription.
#[tokio::test]
async fn issue_1763_an_unlock_just_before_the_subscription_is_seen() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(30)).await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let hold = proxy.hold_command(named("SUBSCRIBE"));
    let lock = client.lock("job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    soon(hold.held()).await;
    pair.java.unlock("job", 1).await.unwrap();
    hold.release();
    let guard = soon(waiting).await.unwrap();
    assert_woken_before(end);
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #6026, #3077, #2921: after a broken connection nobody listens any more, or looks at what was
/// missed meanwhile.
#[tokio::test]
async fn issue_6026_a_waiter_looks_again_after_its_subscription_broke() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(30)).await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let lock = client.lock("job");
    let waiting = tokio::spawn(async move { granted(&lock).await });
    pair.wait_for_listeners("job", 1).await;
    proxy.refuse(true);
    proxy.cut_all().await;
    eventually("nobody listens", async || pair.listeners("job") == 0).await;
    pair.java.unlock("job", 1).await.unwrap();
    proxy.refuse(false);
    let guard = soon(waiting).await.unwrap();
    assert_woken_before(end);
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #6878, #6651, #4871, #5000: the reply to an unlock is lost, and its repetition throws "not
/// locked by current thread".
#[tokio::test]
async fn issue_6878_an_unlock_whose_reply_was_lost_is_done_and_java_goes_on() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(30)).await;
    let guard = granted(&client.lock("job")).await;
    let waiting = pair.wait_in_java("job", 1).await;
    let lost = proxy.drop_reply(release("job"), 1);
    soon(guard.unlock()).await.unwrap();
    assert_eq!(lost.hits(), 1);
    soon(waiting).await.unwrap().unwrap();
    assert_eq!(pair.java.hold_count("job", 1).await, 1, "the repetition did nothing");
    pair.java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #3194, #2515, #5698: after one connection error a lock is not renewed any more.
#[tokio::test]
async fn issue_3194_renewal_goes_on_after_broken_connections() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(30)).await;
    let guard = soon(client.lock("job").lock()).await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
        proxy.cut_all().await;
    }
    assert!(guard.is_held());
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// Without a number: unlocking a nested hold with a lease ends the renewal of the hold around it,
/// and entering with a shorter lease shortens it.
#[tokio::test]
async fn a_nested_lease_neither_shortens_nor_ends_the_renewal_around_it() {
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let lock = pair.client.lock("job");
    let outer = soon(lock.lock()).await.unwrap();
    let inner = soon(lock.lock_with(Duration::from_millis(100))).await.unwrap();
    assert!(pair.java.ttl("job").await > 500);
    soon(inner.unlock()).await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
    }
    assert!(outer.is_held());
    soon(outer.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #2224, #3580, #4467, #6046: what runs on one thread is one owner, so two requests get in at
/// once.
#[tokio::test]
async fn issue_4467_two_tasks_on_one_thread_exclude_each_other() {
    let pair = Pair::start().await;
    let guard = pair.take("job").await;
    let lock = pair.client.lock("job");
    let other = tokio::spawn(async move { lock.try_lock_now().await.unwrap().is_none() });
    assert!(soon(other).await.unwrap());
    assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
    // The guard may end on any thread, also where there is no runtime.
    let waiting = pair.wait_in_java("job", 1).await;
    crate::support::blocking(|| std::thread::spawn(|| drop(guard)).join().unwrap()).await;
    soon(waiting).await.unwrap().unwrap();
    pair.java.unlock("job", 1).await.unwrap();
}

/// #4216, #5046, #5299, #2575: a client can wait for 250 locks at most, and its channels are never
/// given up.
#[tokio::test]
async fn issue_4216_hundreds_of_locks_can_be_waited_for_at_once() {
    let pair = Pair::start().await;
    let names: Vec<_> = (0..300).map(|i| format!("job {i}")).collect();
    for name in &names {
        pair.java.lock(name, 1, LEASE_MS).await.unwrap();
    }
    let waiting = names.iter().map(|name| {
        let lock = pair.client.lock(name);
        tokio::spawn(async move { soon(lock.lock_with(LEASE)).await.unwrap() })
    });
    let waiting: Vec<_> = waiting.collect();
    eventually("it listens for all", async || subscriptions(&pair.raw) >= 300).await;
    for name in &names {
        pair.java.unlock(name, 1).await.unwrap();
    }
    for one in waiting {
        soon(one.await.unwrap().unlock()).await.unwrap();
    }
    eventually("it listens no more", async || subscriptions(&pair.raw) == 0).await;
    pair.assert_nothing_left().await;
}

/// #6643, #6832: what was re-entered and given back in full is renewed for ever.
#[tokio::test]
async fn issue_6643_what_was_read_twice_and_given_back_twice_is_renewed_no_more() {
    let pair = Pair::with_watchdogs(1_500).await;
    let read = READ.rust(&pair, "job");
    let [outer, inner] = [soon(read.lock()).await.unwrap(), soon(read.lock()).await.unwrap()];
    tokio::time::sleep(Duration::from_millis(700)).await; // at least one renewal
    soon(outer.unlock()).await.unwrap();
    soon(inner.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
    WRITE.java(&pair).lock("job", 1, 700).await.unwrap();
    let end = pair.lease_end("job");
    eventually("Java's lease ends", async || pair.holds("job").is_empty()).await;
    assert!(Instant::now() + Duration::from_millis(20) >= end);
    let asked = SPIN.waiting(&pair.raw, "job");
    tokio::time::sleep(Duration::from_millis(1_200)).await; // two more
    assert_eq!(SPIN.waiting(&pair.raw, "job"), asked, "somebody still sends scripts");
}

/// §4.3 of what Redisson writes: what is left in the registry of a lost lock delays the renewal of the
/// next hold, by a third of the lease for each loss.
#[tokio::test]
async fn a_lock_that_was_lost_before_is_renewed_in_time() {
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let lock = pair.client.lock("job");
    for _ in 0..4 {
        let guard = soon(lock.lock()).await.unwrap();
        assert!(pair.java.force_unlock("job").await);
        assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    }
    let guard = soon(lock.lock()).await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!pair.java.try_lock("job", 1, 0, 1_000).await);
    }
    assert!(guard.is_held());
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// #3891, #763, and §8 and §10 of what Redisson writes: who misses the message of a permit or of a
/// latch waits for ever.
#[tokio::test]
async fn issue_3891_a_lost_message_of_a_permit_or_a_latch_costs_the_cap() {
    let pair = Pair::start().await;
    let (proxy, client) = behind_proxy(&pair, Duration::from_secs(1)).await;
    let (semaphore, latch) = (client.semaphore("permits"), client.count_down_latch("latch"));
    assert!(soon(semaphore.try_set(0)).await.unwrap());
    assert!(soon(latch.try_set(1)).await.unwrap());
    proxy.eat_messages(true);
    let permit = tokio::spawn(semaphore.acquire());
    let opened = tokio::spawn(latch.wait());
    eventually("both listen", async || subscriptions(&pair.raw) == 2).await;
    pair.java.of("semaphore").ask("permits", "release", &[]).await;
    pair.java.of("latch").ask("latch", "countDown", &[]).await;
    soon(soon(permit).await.unwrap().unwrap().release()).await.unwrap();
    soon(opened).await.unwrap().unwrap();
    assert!(proxy.messages_eaten() >= 2);
}

/// #1966: after `CLIENT PAUSE` nobody gets the lock any more.
#[tokio::test]
async fn issue_1966_a_pause_of_the_server_ends_for_both_sides() {
    let pair = Pair::start().await;
    pair.java.lock("job", 1, LEASE_MS).await.unwrap();
    let end = pair.lease_end("job");
    let waiting = pair.wait_in_rust("job").await;
    let behind = tokio::spawn(pair.java.locking("job", 2, LEASE_MS));
    pair.wait_for_listeners("job", 2).await;
    assert_eq!(pair.raw.cmd(&["CLIENT", "PAUSE", "1500", "ALL"]).text(), "OK");
    pair.java.unlock("job", 1).await.unwrap();
    let first = async { soon(waiting.await.unwrap().unlock()).await.unwrap() };
    let second = async {
        behind.await.unwrap().unwrap();
        pair.java.unlock("job", 2).await.unwrap();
    };
    soon(async { tokio::join!(first, second) }).await;
    assert_woken_before(end);
    pair.assert_nothing_left().await;
}

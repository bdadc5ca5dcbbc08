//! `RSemaphore` and `RPermitExpirableSemaphore`, and ours: one number of permits for both sides.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, LostReason, PermitId, PermitSemaphore, Permits};

use crate::{
    kinds::Kind,
    pair::{KEPT_MS, LEASE, LEASE_MS, Pair, soon},
    peer::{Answer, Java, Jvm, MS, Settings, at_least},
    support::{eventually, subscriptions},
};

/// Where both kinds listen; as a lock's, for [`Kind::until_it_waits`].
static SEMAPHORE: Kind = Kind {
    name: "semaphore",
    waits: crate::kinds::Waits::On("redisson_sc"),
    of: |client, name| client.lock(name),
    since: (3, 0),
    suffix: "",
    forgives: || false,
};

/// Since 3.17 a permit's id is 16 bytes in Redis, as ours; before, 32 digits.
fn ids_are_bytes() -> bool {
    let bytes = at_least(3, 17);
    if !bytes {
        eprintln!("skipped: this Redisson has other ids of permits");
    }
    bytes
}

/// Calls a method in thread 1, which may wait.
fn call(java: &Java, method: &str, args: &[&str]) -> impl Future<Output = Answer> + Send + use<> {
    java.call(Some(1), "job", method, args)
}

async fn permit(java: &Java, lease_ms: u64) -> PermitId {
    let lease = lease_ms.to_string();
    let id = soon(call(java, "tryAcquire", &["0", &lease, MS])).await.expect("no exception");
    id.parse().expect("there is one, in 32 digits")
}

fn permits(pair: &Pair) -> (Java, PermitSemaphore) {
    (pair.java.of("permits"), pair.client.permit_semaphore("job").lease(LEASE))
}

async fn counts(ours: &PermitSemaphore) -> (i64, i64) {
    let Permits { available, in_use, .. } = soon(ours.permits()).await.unwrap().unwrap();
    (available, in_use)
}

/// Whatever one side does with them, the other counts the same.
#[tokio::test]
async fn permits_of_both_sides_move_as_one() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("semaphore"), pair.client.semaphore("job"));
    assert_eq!(java.ask("job", "trySetPermits", &["3"]).await, "true");
    assert!(!soon(ours.try_set(5)).await.unwrap());
    let permit = soon(ours.acquire_many(2)).await.unwrap();
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "1");
    assert_eq!(java.ask("job", "tryAcquire", &["2"]).await, "false");
    assert_eq!(java.ask("job", "tryAcquire", &["1"]).await, "true");
    assert!(soon(ours.try_acquire_now()).await.unwrap().is_none());
    java.ask("job", "release", &["1"]).await;
    soon(permit.release()).await.unwrap();
    assert_eq!(soon(ours.available()).await.unwrap(), Some(3));
    assert_eq!(soon(ours.add(-1)).await.unwrap(), 2);
    // Redisson 3.11 cannot add permits, only give them.
    let add = if at_least(3, 12) { "addPermits" } else { "release" };
    java.ask("job", add, &["2"]).await;
    assert_eq!(soon(ours.available()).await.unwrap(), Some(4));
    assert_eq!(java.ask("job", "drainPermits", &[]).await, "4");
    assert_eq!(soon(ours.drain()).await.unwrap(), 0);
    soon(ours.give(2)).await.unwrap();
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "2");
}

/// I9. Nobody has a lease here that could end instead.
#[tokio::test]
async fn a_permit_given_back_wakes_the_other_side() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("semaphore"), pair.client.semaphore("job").sized(1));
    for _ in 0..3 {
        let permit = soon(ours.acquire()).await.unwrap();
        let waiting = SEMAPHORE.until_it_waits(&pair, "job", || call(&java, "acquire", &[])).await;
        soon(permit.release()).await.unwrap();
        soon(waiting).await.unwrap().unwrap();
        let waiting = SEMAPHORE.until_it_waits(&pair, "job", || ours.acquire()).await;
        java.ask("job", "release", &[]).await;
        soon(soon(waiting).await.unwrap().unwrap().release()).await.unwrap();
    }
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "1");
}

/// A wait that is dropped takes nothing from Java.
#[tokio::test]
async fn a_dropped_wait_for_a_permit_leaves_it_to_java() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("semaphore"), pair.client.semaphore("job").sized(1));
    let permit = soon(ours.acquire()).await.unwrap();
    let waiting = SEMAPHORE.until_it_waits(&pair, "job", || ours.acquire()).await;
    waiting.abort();
    drop(permit);
    let free = async || java.ask("job", "tryAcquire", &[]).await == "true";
    eventually("Java can have it", free).await;
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "0");
}

/// #4401: a semaphore that was never set blocks whoever asks.
#[tokio::test]
async fn issue_4401_a_semaphore_that_was_never_set_says_so_and_java_may_set_it() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("semaphore"), pair.client.semaphore("job"));
    let error = soon(ours.acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Uninitialised);
    let waiting = SEMAPHORE.until_it_waits(&pair, "job", || call(&java, "acquire", &[])).await;
    let permit = soon(ours.sized(2).acquire()).await.unwrap();
    // Java is waiting for a message: of the permit that is left nobody tells but who gives one.
    soon(permit.release()).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "1");
}

/// #4462, #2045, #2213: the permits of a process that dies are lost. Those with a lease are not,
/// on either side.
#[tokio::test]
async fn issue_4462_permits_with_a_lease_outlive_nobody() {
    if !ids_are_bytes() {
        return;
    }
    let pair = Pair::start().await;
    let ours = pair.client.permit_semaphore("job").sized(2).lease(LEASE);
    let victim =
        Java::open(Jvm::start(), pair.server.port(), Settings::default()).await.of("permits");
    soon(ours.acquire()).await.unwrap().release().await.unwrap();
    let begin = Instant::now();
    permit(&victim, 1_500).await;
    victim.jvm.kill();
    let dying = Client::builder(pair.server.url()).unwrap().watchdog(Duration::from_millis(1_500));
    let dying = soon(dying.connect()).await.unwrap();
    soon(dying.permit_semaphore("job").acquire()).await.unwrap().forget();
    let both = soon(ours.acquire_many(2)).await.unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(1_400),
        "they were given away before their end"
    );
    soon(both.release()).await.unwrap();
    assert_eq!(pair.java.of("permits").ask("job", "availablePermits", &[]).await, "2");
}

/// By its id, either side gives back and keeps what the other took.
#[tokio::test]
async fn ids_of_permits_are_the_same_on_both_sides() {
    if !ids_are_bytes() {
        return;
    }
    let pair = Pair::start().await;
    let (java, ours) = permits(&pair);
    assert!(soon(ours.try_set(2)).await.unwrap());
    let theirs = permit(&java, LEASE_MS).await;
    let mine = soon(ours.acquire()).await.unwrap();
    assert_eq!(counts(&ours).await, (0, 2));
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "0");
    assert!(soon(ours.try_acquire_now()).await.unwrap().is_none());

    assert!(soon(ours.release_id(theirs)).await.unwrap());
    assert!(!soon(ours.release_id(theirs)).await.unwrap(), "it is given back already");
    assert_eq!(java.ask("job", "tryRelease", &[&theirs.to_string()]).await, "false");
    let id = mine.ids().next().unwrap().to_string();
    assert_eq!(java.ask("job", "updateLeaseTime", &[&id, "30000", MS]).await, "true");
    assert_eq!(java.ask("job", "tryRelease", &[&id]).await, "true");
    assert!(soon(mine.release()).await.unwrap_err().is_lost());
    assert_eq!(counts(&ours).await, (2, 0));
    assert_eq!(java.ask("job", "availablePermits", &[]).await, "2");
}

/// I9, and the end of a lease, which nobody tells.
#[tokio::test]
async fn a_permit_that_is_given_back_or_ends_wakes_the_other_side() {
    if !ids_are_bytes() {
        return;
    }
    let pair = Pair::start().await;
    let (java, ours) = permits(&pair);
    assert!(soon(ours.try_set(1)).await.unwrap());
    let mine = soon(ours.acquire()).await.unwrap();
    let waiting = || call(&java, "tryAcquire", &["15000", "60000", MS]);
    let waiting = SEMAPHORE.until_it_waits(&pair, "job", waiting).await;
    soon(mine.release()).await.unwrap();
    let theirs = soon(waiting).await.unwrap().unwrap();
    let waiting = SEMAPHORE.until_it_waits(&pair, "job", || ours.acquire()).await;
    java.ask("job", "release", &[&theirs]).await;
    soon(soon(waiting).await.unwrap().unwrap().release()).await.unwrap();

    permit(&java, 700).await;
    let mine = soon(ours.clone().lease(Duration::from_millis(700)).acquire()).await.unwrap();
    let theirs = soon(call(&java, "tryAcquire", &["15000", "60000", MS])).await.unwrap();
    assert_ne!(theirs, "null");
    assert_eq!(soon(mine.lost()).await, LostReason::Expired);
    java.ask("job", "release", &[&theirs]).await;
    assert_eq!(counts(&ours).await, (1, 0));
}

/// Without a number: Redisson has no watchdog for permits. Ours are kept, and Java sees it.
#[tokio::test]
async fn a_renewed_permit_is_not_given_to_java_and_its_loss_is_told() {
    if !ids_are_bytes() {
        return;
    }
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let java = pair.java.of("permits");
    let mine = soon(pair.client.permit_semaphore("job").sized(1).acquire()).await.unwrap();
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(java.ask("job", "tryAcquire", &["0", "1000", MS]).await, "null");
    }
    assert!(mine.is_held());
    let id = mine.ids().next().unwrap().to_string();
    assert_eq!(java.ask("job", "tryRelease", &[&id]).await, "true");
    assert_eq!(soon(mine.lost()).await, LostReason::Removed);
}

/// #5761 for semaphores: a waiter in Redisson has nothing but the message. We leave none behind.
#[tokio::test]
async fn nobody_listens_any_more_when_all_have_their_permits() {
    let pair = Pair::start().await;
    let (java, ours) = (pair.java.of("semaphore"), pair.client.semaphore("job").sized(1));
    let permit = soon(ours.acquire()).await.unwrap();
    let waiting = SEMAPHORE.until_it_waits(&pair, "job", || ours.acquire()).await;
    drop(permit);
    drop(soon(waiting).await.unwrap().unwrap());
    eventually("it is given back", async || java.ask("job", "availablePermits", &[]).await == "1")
        .await;
    eventually("nobody listens", async || subscriptions(&pair.raw) == 0).await;
}

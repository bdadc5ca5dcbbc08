//! Shows  how code written for Redisson's RLock reads in Rust: each Java line stands above its own.
//!
//! Run    cargo run --example from_redisson
//!        With REDIS_URL=redis://host:6379 it uses that server, else it starts one of its own.
//!
//! Watch  the hold counts: critical sections nest as they do in Java, with a task for a thread.
//!        Every line that is printed is also asserted.

use leasehold::{Client, Error, ErrorKind, Lock, LostReason, Owner};
use std::{env, time::Duration};
use tokio::time::sleep;

#[path = "../tests/support/server.rs"]
mod server;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (url, _private) = match env::var("REDIS_URL") {
        Ok(url) => (url, None),
        Err(_) => {
            let own = server::RedisServer::start();
            (own.url(), Some(own))
        }
    };

    // config.setLockWatchdogTimeout(1000);   (Both have 30 s if nothing is said.)
    // RedissonClient redisson = Redisson.create(config);
    let client = Client::builder(url)?.watchdog(Duration::from_secs(1)).connect().await?;

    // config.setNameMapper(..);   (The locks here are "example:account:1" and so on in Redis.)
    let client = client.prefixed("example:");

    nested(&client).await?;
    try_lock(&client).await?;
    unlock_elsewhere(&client).await?;
    hand_over(&client).await?;
    force_unlock(&client).await?;

    // redisson.shutdown();
    client.close().await;
    Ok(())
}

/// Critical sections inside each other, in several functions.
async fn nested(client: &Client) -> Result<(), Error> {
    println!("Nested sections");

    // RLock lock = redisson.getLock("account:1");
    let lock = client.lock("account:1");

    // lock.lock();
    let guard = lock.lock().await?;
    println!("  transfer   hold count {}", lock.hold_count());
    assert_eq!(lock.hold_count(), 1);

    debit(client).await?;

    // lock.getHoldCount();
    println!("  back       hold count {}", lock.hold_count());
    assert_eq!(lock.hold_count(), 1);

    // lock.isHeldByCurrentThread();
    assert!(lock.is_held_by_me());
    let elsewhere = lock.clone();
    let held = tokio::spawn(async move { elsewhere.is_held_by_me() });
    let held = held.await.expect("it does not panic");
    println!("  another task holds it: {held}");
    assert!(!held);

    // } finally { lock.unlock(); }
    guard.unlock().await?; // or let it go out of scope

    // lock.isLocked();
    println!("  given back, locked: {}", lock.is_locked().await?);
    assert!(!lock.is_locked().await?);

    // lock.unlock();   throws IllegalMonitorStateException
    let error = lock.unlock().await.unwrap_err();
    println!("  once too often: {error}");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    Ok(())
}

/// Does not know, and need not, that its caller holds the lock already.
async fn debit(client: &Client) -> Result<(), Error> {
    let lock = client.lock("account:1");
    let _guard = lock.lock().await?;
    println!("    debit    hold count {}", lock.hold_count());
    assert_eq!(lock.hold_count(), 2);
    write_log(client).await
}

async fn write_log(client: &Client) -> Result<(), Error> {
    let guard = client.lock("account:1").lock().await?;
    println!("      log    hold count {}", guard.hold_count());
    assert_eq!(guard.hold_count(), 3);
    Ok(())
}

/// A wait with an end, a lease without a watchdog.
async fn try_lock(client: &Client) -> Result<(), Error> {
    println!("tryLock(wait, lease)");
    let lock = client.lock("report:daily");

    // if (lock.tryLock(1, 10, TimeUnit.SECONDS)) {
    let (wait, lease) = (Duration::from_secs(1), Duration::from_secs(10));
    let guard = lock.try_lock(wait, lease).await?.expect("nobody has it");
    let left = lock.remaining_lease().await?.unwrap_or_default();
    println!("  got it, for {} s", left.as_secs_f32().round());
    assert!(left <= lease);

    // In another thread:
    // if (!lock.tryLock()) {
    let other = lock.clone();
    let refused = tokio::spawn(async move { Ok(other.try_lock_now().await?.is_none()) });
    let refused = refused.await.expect("it does not panic")?;
    println!("  another task was refused: {refused}");
    assert!(refused);

    guard.unlock().await
}

/// `lock()` in one function, `unlock()` in another, with no guard passed between them.
async fn unlock_elsewhere(client: &Client) -> Result<(), Error> {
    println!("unlock() in another function");
    begin(client).await?;
    assert!(client.lock("import").is_held_by_me());
    end(client).await?;
    assert!(!client.lock("import").is_locked().await?);
    println!("  begun here, ended there");
    Ok(())
}

async fn begin(client: &Client) -> Result<(), Error> {
    // lock.lock();
    client.lock("import").lock().await?.forget();
    // Unlike Java's, this hold is not renewed: nobody would tell us if the task ended without
    // `end`. It must be over within its lease; the next function shows how to have it renewed.
    Ok(())
}

async fn end(client: &Client) -> Result<(), Error> {
    // lock.unlock();
    client.lock("import").unlock().await
}

/// The same, from another task, and renewed in between: the hold has an owner that both know.
async fn hand_over(client: &Client) -> Result<(), Error> {
    println!("unlockAsync(threadId) from another thread");

    // long id = ...;
    let owner = Owner::new();

    // lock.lockAsync(id).get();
    let lock: Lock = client.lock("export").owned_by(owner);
    lock.lock().await?.forget();

    // Renewed for as long as somebody keeps the owner, as `lock` does.
    sleep(Duration::from_millis(1500)).await;
    println!("  after 1.5 leases, locked: {}", lock.is_locked().await?);
    assert!(lock.is_locked().await?);

    // lock.unlockAsync(id).get();
    let unlocked = tokio::spawn({
        let lock = lock.clone();
        async move { lock.unlock().await }
    });
    unlocked.await.expect("it does not panic")?;
    println!("  unlocked by another task, locked: {}", lock.is_locked().await?);
    assert!(!lock.is_locked().await?);
    Ok(())
}

/// What Java only notices at `unlock()`, a guard tells at once.
async fn force_unlock(client: &Client) -> Result<(), Error> {
    println!("forceUnlock()");
    let lock = client.lock("stuck");
    let guard = lock.lock().await?;
    assert!(guard.is_held());

    // lock.forceUnlock();   by an operator
    let freed = client.lock("stuck").force_unlock().await?;
    println!("  freed: {freed}");
    assert!(freed);

    // (Nothing in Java.)
    let reason = tokio::select! {
        () = long_work() => panic!("should have been stopped"),
        reason = guard.lost() => reason,
    };
    println!("  the holder stopped its work: {reason}");
    assert_eq!(reason, LostReason::Removed);
    assert!(!guard.is_held());

    // lock.unlock();   throws IllegalMonitorStateException
    let error = guard.unlock().await.unwrap_err();
    println!("  its unlock: {error}");
    assert!(error.is_lost());
    Ok(())
}

async fn long_work() {
    sleep(Duration::from_secs(60)).await;
}

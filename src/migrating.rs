//! Coming from Redisson: what to call, what differs, and how a fleet moves service by service.
//!
//! Nothing but documentation is in here.
//!
//! What has the same name on both sides *is* the same: the same keys, the same fields, the same
//! channels, the same messages. Java and Rust exclude each other, wake each other and can free each
//! other's locks. That is tried against Redisson itself, in the versions 4.7.0, 3.52.0 and 3.11.6
//! (`.ci/run interop-matrix`; what a version has not got is left out there).
//!
//! | Redisson | here |
//! |---|---|
//! | `getLock` | [`Client::lock`] |
//! | `getFairLock` | [`Client::fair_lock`] |
//! | `getReadWriteLock`: `readLock`, `writeLock` | [`Client::read_write_lock`]: [`ReadWriteLock::read`], [`ReadWriteLock::write`] |
//! | `getFencedLock` (3.19) | [`Client::fenced_lock`] |
//! | `getSpinLock` (3.15) | [`Client::spin_lock`] |
//! | `getMultiLock(locks)`, `RedissonMultiLock` | [`MultiLock::new`] |
//! | `RedissonRedLock` (deprecated there) | [`RedLock::new`] |
//! | `getSemaphore` | [`Client::semaphore`] |
//! | `getPermitExpirableSemaphore` (ids since 3.17) | [`Client::permit_semaphore`] |
//! | `getCountDownLatch` | [`Client::count_down_latch`] |
//! | `getNonReentrantLock` (4.4) | none: a [`Client::lock`] whose owners never ask twice |
//! | `getMultiLock(group, values)` | none |
//! | `getRateLimiter`, `getTopic`, maps and the rest | none: this crate locks |
//! | none | [`Client::token_lock`], [`StripedLock`] |
//!
//! # The calls
//!
//! | Redisson | here |
//! |---|---|
//! | `Redisson.create(config)` | [`Client::connect`], [`Client::builder`] |
//! | `redisson.shutdown()` | [`Client::close`], [`Client::shutdown`] |
//! | `redisson.getId()` | [`Client::id`] |
//! | `redisson.getLock(name)` | [`Client::lock`] |
//! | `lock()` | [`Lock::lock`] |
//! | `lock(lease, unit)` | [`Lock::lock_with`] |
//! | `lockInterruptibly()` | [`Lock::lock`], and drop the future |
//! | `tryLock()` | [`Lock::try_lock_now`] |
//! | `tryLock(wait, unit)` | [`Lock::try_lock_for`] |
//! | `tryLock(wait, lease, unit)` | [`Lock::try_lock`] |
//! | `unlock()` | drop the [`LockGuard`], or [`LockGuard::unlock`] |
//! | `unlock()` in another method | [`LockGuard::forget`], then [`Lock::unlock`] |
//! | `lockAsync(threadId)`, `unlockAsync(threadId)` | [`Lock::owned_by`], then as above |
//! | `forceUnlock()`, `delete()` | [`Lock::force_unlock`], [`Lock::force_unlock_if`] |
//! | `isLocked()` | [`Lock::is_locked`]; by whom: [`Lock::holder`] |
//! | `isHeldByCurrentThread()`, `getHoldCount()` | [`Lock::is_held_by_me`], [`Lock::hold_count`] |
//! | `remainTimeToLive()` | [`Lock::remaining_lease`] |
//! | `expire(..)` while you hold it | [`Held::extend`] |
//!
//! ```no_run
//! # use leasehold::{Client, Error};
//! # use std::time::Duration;
//! # async fn f() -> Result<(), Error> {
//! // Config config = new Config();
//! // config.setLockWatchdogTimeout(20_000);
//! // config.useSingleServer().setAddress("redis://redis:6379").setDatabase(3);
//! // RedissonClient redisson = Redisson.create(config);
//! let client = Client::builder("redis://redis:6379/3")?
//!     .watchdog(Duration::from_secs(20))
//!     .connect()
//!     .await?;
//!
//! // RLock lock = redisson.getLock("invoice:42");
//! let lock = client.lock("invoice:42");
//!
//! // lock.lock();
//! // try { .. } finally { lock.unlock(); }
//! {
//!     let _guard = lock.lock().await?;
//! }
//!
//! // if (lock.tryLock(1, 10, TimeUnit.SECONDS)) {
//! //     try { .. } finally { lock.unlock(); }
//! // }
//! let (wait, lease) = (Duration::from_secs(1), Duration::from_secs(10));
//! if let Some(guard) = lock.try_lock(wait, lease).await? {
//!     guard.unlock().await?; // or drop it
//! }
//!
//! // redisson.shutdown();
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! Fair, read, write and spin locks are a [`Lock`] too, with all of the calls above, and a fenced lock
//! has them with a token.
//!
//! | Redisson | here |
//! |---|---|
//! | `RFencedLock`: `lockAndGetToken()`, `tryLockAndGetToken(..)` | [`FencedLock::lock`], [`FencedLock::try_lock`], then [`FencedGuard::token`] |
//! | `getToken()` | [`FencedLock::last_token`] |
//! | `RSemaphore`: `trySetPermits(n)` | [`Semaphore::try_set`], or [`Semaphore::sized`] |
//! | `acquire(n)`, `tryAcquire(n, wait, unit)` | [`Semaphore::acquire_many`], [`Semaphore::try_acquire_many`] |
//! | `release(n)` of what was acquired | drop the [`SemaphorePermit`], or [`SemaphorePermit::release`] |
//! | `release(n)` of what was not | [`Semaphore::give`] |
//! | `addPermits(n)`, `drainPermits()`, `availablePermits()` | [`Semaphore::add`], [`Semaphore::drain`], [`Semaphore::available`] |
//! | `RPermitExpirableSemaphore`: `acquire(lease, unit)` | [`PermitSemaphore::lease`], [`PermitSemaphore::acquire`] |
//! | the id it returns | [`Permit::ids`], a [`PermitId`] |
//! | `release(id)`, `tryRelease(id)` | drop the [`Permit`], or [`PermitSemaphore::release_id`] |
//! | `updateLeaseTime(id, lease, unit)` | [`Held::extend`] |
//! | `setPermits(n)`, `addPermits(n)` | [`PermitSemaphore::set`], [`PermitSemaphore::add`] |
//! | `availablePermits()`, `acquiredPermits()` | [`PermitSemaphore::permits`] |
//! | `RCountDownLatch`: `trySetCount(n)`, `countDown()`, `getCount()` | [`CountDownLatch::try_set`], [`CountDownLatch::count_down`], [`CountDownLatch::count`] |
//! | `await()`, `await(wait, unit)` | [`CountDownLatch::wait`], [`CountDownLatch::wait_for`] |
//! | `delete()` | [`CountDownLatch::delete`] |
//!
//! ```no_run
//! # use leasehold::{Client, Error, MultiLock, PermitId};
//! # use std::time::Duration;
//! # async fn f(client: Client, store: impl Fn(u64)) -> Result<(), Error> {
//! // long token = redisson.getFencedLock("ledger").lockAndGetToken();
//! let guard = client.fenced_lock("ledger").lock().await?;
//! store(guard.token());
//! guard.unlock().await?;
//!
//! // RReadWriteLock lock = redisson.getReadWriteLock("catalogue"); lock.readLock().lock();
//! let _reading = client.read_write_lock("catalogue").read().lock().await?;
//!
//! // redisson.getMultiLock(redisson.getLock("a"), redisson.getLock("b")).lock();
//! let _both = MultiLock::new([client.lock("a"), client.lock("b")]).lock().await?;
//!
//! // String id = semaphore.tryAcquire(1, 10, TimeUnit.SECONDS);   // id is null if there is none
//! let workers = client.permit_semaphore("workers").lease(Duration::from_secs(10));
//! if let Some(permit) = workers.try_acquire(Duration::from_secs(1)).await? {
//!     permit.release().await?;
//! }
//! // semaphore.release(id), with an id that came from elsewhere
//! let id: PermitId = "9f86d081884c7d659a2feaa0c55ad015".parse()?;
//! workers.release_id(id).await?;
//!
//! // latch.await(5, TimeUnit.SECONDS)
//! let opened = client.count_down_latch("import").wait_for(Duration::from_secs(5)).await?;
//! # assert!(opened); Ok(()) }
//! ```
//!
//! # Guards
//!
//! What is locked is given back when its guard goes out of scope, after an error and in a panic as
//! well: a `finally` that was forgotten cannot leave a lock behind. In exchange the guard must have
//! a name. `let _ = lock.lock().await?` gives the lock back at once, and so does
//! `if lock.try_lock(..).await?.is_some() { .. }` before its block.
//!
//! # Owners instead of threads
//!
//! In Java a lock belongs to a thread; here to a tokio task, wherever it runs. Nested calls re-enter,
//! spawned tasks do not. Where Java code passes a thread id of its own, make an [`Owner`]:
//!
//! ```no_run
//! # use leasehold::{Client, Error, Owner};
//! # async fn f(client: Client) -> Result<(), Error> {
//! // long id = ..;
//! // lock.lockAsync(id).get();
//! let lock = client.lock("export").owned_by(Owner::new());
//! lock.lock().await?.forget();
//!
//! // In another thread: lock.unlockAsync(id).get();
//! let handle = lock.clone();
//! let unlocked = tokio::spawn(async move { handle.unlock().await });
//! unlocked.await.expect("it does not panic")?;
//! # Ok(()) }
//! ```
//!
//! Where one task serves several requests at once, give each an owner: [`Owner::scope`], or
//! [`Reentry::Scoped`] for the whole client.
//!
//! In Redis, a hold is `<uuid>:<id>`, as in Java. The id is another one for each outermost
//! acquisition and never a thread's, which Redisson does not mind: it only compares.
//!
//! # The watchdog
//!
//! As in Java, a lock without a lease has the TTL of the watchdog and is renewed at a third of it; a
//! lock with a lease is not. Both sides renew their own holds only, and their watchdogs need not
//! agree. Unlike Java's:
//!
//! * Renewal ends with the guard, so also when a task panics or is aborted. A hold whose guard was
//!   [forgotten](LockGuard::forget) is renewed only while somebody keeps its explicit [`Owner`].
//! * It runs on a thread of its own, so a blocked runtime does not end it.
//! * A nested acquisition with a shorter lease does not shorten the hold, and giving it back does not
//!   end the renewal.
//! * It can be limited: [`Lock::max_hold`], [`Builder::max_hold`].
//! * The holder is told when the lock is lost, and [`Lock::with`] stops its work:
//!
//! ```no_run
//! # use leasehold::{Client, Error};
//! # async fn work() {}
//! # async fn f(client: Client) -> Result<(), Error> {
//! match client.lock("report:daily").with(|_held| work()).await {
//!     Ok(()) => {}
//!     Err(error) if error.is_lost() => eprintln!("stopped half-way: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! | Redisson throws | here |
//! |---|---|
//! | `IllegalMonitorStateException` at `unlock()`, never locked | [`ErrorKind::NotHeld`] |
//! | the same, the lease was lost | [`ErrorKind::LeaseLost`], with the reason |
//! | `RedisTimeoutException`, `RedisResponseTimeoutException` | [`ErrorKind::NoReply`], [`ErrorKind::Unavailable`]; see [`Error::is_indeterminate`] |
//! | `RedisConnectionException` | [`ErrorKind::Unavailable`] |
//! | `RedisTimeoutException`, "Unable to acquire subscription lock" | nothing: there is no such limit |
//! | `RedisException` with the server's words | [`ErrorKind::Refused`], [`ErrorKind::WrongType`], [`ErrorKind::Corrupt`] |
//! | `NoSyncedSlavesException` | [`ErrorKind::NotReplicated`], where replicas are [required](crate::Builder::require_replicas) |
//! | `InterruptedException` | nothing: drop the future |
//! | `RedissonShutdownException` | [`ErrorKind::Closed`] |
//!
//! `tryLock` can answer `false` when it knows nothing, after a timeout. `None` here always means that
//! another holder was seen; not knowing is an error.
//!
//! # Settings
//!
//! | Redisson | default | here | default |
//! |---|---|---|---|
//! | `lockWatchdogTimeout` | 30 s | [`Builder::watchdog`] | 30 s |
//! | `lockWatchdogBatchSize` | 100 | fixed | 128 |
//! | `timeout` | 3 s | [`Builder::command_timeout`] | 2 s |
//! | `retryAttempts`, `retryDelay` | 4, 1 to 2 s | [`Builder::patience`] | 10 s |
//! | `subscriptionTimeout` | 7.5 s | part of the wait | – |
//! | `subscriptionsPerConnection` × `subscriptionConnectionPoolSize` | 5 × 50 names | no limit, one connection | – |
//! | `fairLockWaitTimeout` | 5 min | fixed | 5 min |
//! | `shardedSubscriptionMode` | `AUTO` | [`Builder::publish`] | [`PublishMode::Auto`] |
//! | `nameMapper` | none | [`Builder::name_mapper`], [`Client::prefixed`] | none |
//! | `checkLockSyncedSlaves`, `slavesSyncTimeout` | on, 1 s | not there yet | – |
//! | `readMode` | `SLAVE` | always the primary | – |
//! | `codec` | Kryo | locks have no use for one | – |
//!
//! New here: [`Builder::hand_over_window`], [`Builder::fallback_cap`], [`Builder::max_hold`],
//! [`Builder::reentry`], [`Builder::label`], [`Builder::names_in_logs`].
//!
//! # Names
//!
//! A name is the same lock on both sides, whatever is in it: spaces, any UTF-8, braces. Two bounds
//! are ours: 512 bytes, and in a cluster no name whose braces put the key and its channel into
//! different slots, such as `ab{c`, `x}y` and `{}x`. Redisson's `lock()` takes those and its
//! `unlock()` fails; here the first call says [`ErrorKind::InvalidName`]. Rename them *in Java first*:
//! `{ab}c`, or no brace at all.
//!
//! **A `NameMapper`** maps the name before anything else is derived from it. Give the same function
//! here, or, if it only sets a prefix, use [`Client::prefixed`]:
//!
//! ```no_run
//! # use leasehold::{Client, Error};
//! # async fn f() -> Result<(), Error> {
//! // config.setNameMapper(..);   map: "app:" + name, unmap: name.substring(4)
//! let client = Client::builder("redis://redis")?
//!     .name_mapper(|name| format!("app:{name}"))
//!     .connect()
//!     .await?;
//! assert_eq!(client.lock("job").name(), "app:job");
//!
//! let client = Client::connect("redis://redis").await?.prefixed("app:");
//! assert_eq!(client.lock("job").name(), "app:job");
//! # Ok(()) }
//! ```
//!
//! # A mixed fleet, step by step
//!
//! 1. **Server.** Redis 7.0 or Valkey 7.2. Java and Rust must name the same server and the same
//!    database.
//! 2. **Redisson.** 3.2 or newer. In a cluster all sides must agree on the kind of channel: since
//!    3.22 Redisson uses sharded ones, and so do we. With older ones, or
//!    `shardedSubscriptionMode=OFF`, set [`PublishMode::Plain`]. Who chooses wrongly still excludes
//!    and is excluded, but is not woken: waits last until a lease ends.
//! 3. **Kinds.** A name must be of one kind in all services. `RLock`, `RFencedLock`, `RSpinLock` and
//!    `RFairLock` write the same hash, so they exclude each other, but a spin lock tells no waiter, a
//!    plain one does not heed the queue of the fair one, and draws no token of the fenced one. A
//!    read/write lock, a semaphore or a latch of the same name is something else altogether.
//! 4. **Rights.** With ACLs, the user needs those that README.md lists. Helper names begin with
//!    `redisson_`, as in Java.
//! 5. **Clocks** need not agree for locks: leases are counted by the server. Permits that end and
//!    the deadlines of fair waiters are counted by the server's wall clock here, and by its own in
//!    each JVM: keep those in step with the server.
//! 6. **One instance.** Start one Rust process beside the Java ones and look who holds:
//!
//!    ```no_run
//!    # use leasehold::{Client, Error};
//!    # async fn f(client: Client) -> Result<(), Error> {
//!    if let Some(holder) = client.lock("invoice:42").holder().await? {
//!        // In Java: redisson.getId()
//!        println!("ours: {}, client {}", holder.client() == client.id(), holder.client());
//!    }
//!    # Ok(()) }
//!    ```
//!
//!    If a name seems free to one side and held to the other, the names differ: compare
//!    [`Lock::name`] with `redis-cli --scan`.
//! 7. **Service by service.** Stop the old instances as you always do; what they held is free when
//!    they unlock or their lease ends. There is nothing to convert, and no order to keep.
//!
//! In such a mix each side gets its turns: after the [hand-over window](Builder::hand_over_window) a
//! Rust process lets others go first. There is no order between processes, as there is none in Java.
//!
//! What to know of each kind in such a mix:
//!
//! * **Fair lock.** One queue, in order of arrival. A dead waiter of ours is passed over within
//!   seconds as long as another of ours waits there; a dead one of Java's, or one of ours with only
//!   Java behind it, keeps its turn until its deadline, five minutes by default. Leave Java's
//!   `fairLockWaitTimeout` as it is: ours counts five minutes for each that waits, so that a shorter
//!   one makes the turns of the dead longer. With a `NameMapper`,
//!   Redisson 3.15.4 to 3.51 names the queue by the *unmapped* name, and there is no one queue then.
//! * **Read/write lock.** From 3.6 on. Redisson before 4.4 keeps the reads of dead processes alive as
//!   long as one of its own goes on reading. When a writer in Java goes on reading, nobody is told:
//!   our readers see it after [`Builder::fallback_cap`].
//! * **Fenced lock.** One sequence of tokens. Ours begin at the clock, in microseconds, and go far
//!   beyond 2<sup>31</sup>: a store that keeps them in an `int` must be changed first. Java also draws a
//!   token for each re-entry. Use no [`FencedLock::token_ttl`] here: after it Java begins again at 1.
//! * **Spin lock.** Nobody is told; who waits looks again within 128 ms.
//! * **Multi lock.** Ours takes its locks by name, Java's as they are listed: list them by name in
//!   Java too, or the two wait for each other until Java's gives up and begins again (1.5 s for each
//!   lock; with a lease, up to this lease).
//! * **Semaphore.** A dead holder's permits are gone, on either side.
//! * **Permits that end.** Ids have 16 bytes from 3.17 on; before, each side gives back its own only.
//!   Java does not renew permits; ours are renewed unless they have a
//!   [fixed lease](PermitSemaphore::lease).
//! * **Red lock.** A [`RedLock`] of plain locks and a `RedissonRedLock` on the same servers exclude
//!   and wake each other. Java's has no notion of how long a majority stands: give it leases.
//! * **Latch.** `delete()` lets our waiters go, not Java's, whichever side calls it. In a cluster a
//!   name with braces inside, `a{b}c`, is refused here: Redisson's fails, too.
//!
//! # Back again
//!
//! Start the Java service and stop the Rust one with [`Client::shutdown`]. What a killed process held
//! ends with its lease, 30 s if nothing else was set. Nothing of ours is in Java's way: keys of our
//! own begin with `leasehold_` (records of calls to semaphores and latches, signs of life of fair
//! waiters), end within a minute or two of the last use, and Redisson never looks at them.
//!
//! * Tokens go on from where we left them, so keep their type: they do not get small again.
//! * A [`Client::token_lock`] and what is [striped](StripedLock) Java does not know; a [`RedLock`]
//!   should be a `RFencedLock` there.
//! * Permits are not renewed in Java: give them leases that are long enough.
//! * Code that relied on [`Held::lost`] has nothing of the kind, and holds that were handed from task
//!   to task need a thread id passed by hand.
//!
//! # What differs on purpose
//!
//! The numbers are issues of Redisson.
//!
//! | Redisson | here |
//! |---|---|
//! | an interrupted acquisition may leave a lock that is renewed for ever (#7272) | a dropped future leaves nothing |
//! | a lost lock is logged (#4698) | told, with the reason: at the latest when the lease ends, and if it was removed, by the next renewal |
//! | a dead thread's lock is renewed for ever (#6198) | a dropped guard gives it back |
//! | an unlock whose reply was lost may throw (#6878) | it is repeated safely, without a latch key |
//! | a missed message costs the rest of the lease (#5761) | the rest of the lease or 30 s, and nothing after a reconnect |
//! | a broken connection can end renewal (#3194, older versions) | renewal goes on |
//! | 250 names can be waited for at once (#4216) | no limit |
//! | one thread's requests are one owner (#4467) | one task's, and owners can be made |
//! | a shorter nested lease shortens the TTL | no call of ours shortens a TTL |
//! | unlocking a nested hold sets the TTL anew | leaves it alone |
//! | each unlock writes and deletes a latch key | one command |
//! | waits for all replicas that it sees (`WAIT`), for up to a second; one is enough, and none is an error only where there are any (`checkLockSyncedSlaves`) | waits for as many as [required](crate::Builder::require_replicas), by default none; too few undo the acquisition, and a renewal counts only with them |
//! | fair: who is interrupted, or gives up, may stay in the queue (#2714, #5019) | leaves it at once |
//! | fair: a dead waiter has its turn for minutes (#3829, #2883) | one of ours is passed over within seconds |
//! | fair: while it is another's turn, the free lock is asked for without a pause | now and then |
//! | read/write: a reader that asks to write waits for itself (#4796) | [`ErrorKind::OwnHold`] |
//! | read/write: a writer that goes on reading wakes nobody | wakes the waiting readers |
//! | read/write: giving back a read ends the renewal of the write around it (#4217, in part) | it goes on |
//! | read/write: nested writes add up their leases, an inner read given back shortens the write | neither |
//! | fenced: each re-entry draws a token | one token for one owner |
//! | fenced: tokens begin again at 1 after a loss | go on above all before |
//! | fenced: a lock without a TTL is taken for granted, with token -1 | refused |
//! | fenced: token keys stay for ever (#6510) | [`FencedLock::token_ttl`] |
//! | multi: opposite orders wait for each other (#1160) | one order for all of ours |
//! | multi: a lease in seconds grows a thousandfold with each round | is what was asked for |
//! | semaphore: one that was never set blocks (#4401) | [`ErrorKind::Uninitialised`], or [`Semaphore::sized`] |
//! | semaphore, latch: a missed message is a hang | costs [`Builder::fallback_cap`] |
//! | semaphore: permits of the dead are lost (#4462) | too; [`Client::permit_semaphore`] has them back |
//! | permits: not renewed, their end is not told | renewed, [`Held::lost`] |
//! | latch: `delete()` leaves its waiters waiting | lets ours go |
//!
//! Java is not disturbed by any of it.

// For the links above.
#[allow(unused_imports, reason = "only documentation uses them")]
use crate::{
    Builder, Client, CountDownLatch, Error, ErrorKind, FencedGuard, FencedLock, Held, Lock,
    LockGuard, MultiLock, Owner, Permit, PermitId, PermitSemaphore, PublishMode, ReadWriteLock,
    RedLock, Reentry, Semaphore, SemaphorePermit, StripedLock,
};

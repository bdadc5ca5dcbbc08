//! The semaphore whose permits have ids and a lease: never more of them than there are, given back
//! by release, by their end, or by anybody who knows the id; and their holders are told.
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures::poll;
use leasehold::{Builder, Error, ErrorKind, Lease, LostReason, Permit, PermitId, PermitSemaphore};
use tokio::task::{JoinSet, yield_now};

use crate::{
    rig::{Rig, soon},
    support::{
        Capture, eventually,
        history::History,
        proxy::{Command, Fault},
        redisson_permits::RedissonPermits,
        server::RedisServer,
        subscriptions,
    },
};

const ACQUIRE: &str = include_str!("../../lua/permit_semaphore/acquire.lua");
const RELEASE: &str = include_str!("../../lua/permit_semaphore/release.lua");
const RENEW: &str = include_str!("../../lua/permit_semaphore/renew.lua");
const SET: &str = include_str!("../../lua/permit_semaphore/set.lua");
const TRY_SET: &str = include_str!("../../lua/permit_semaphore/try_set.lua");
const ADD: &str = include_str!("../../lua/permit_semaphore/add.lua");

const TIMEOUT: Duration = Duration::from_millis(400);
/// A lease that is kept within a test, through the stalls of a busy machine.
const KEPT: Duration = Duration::from_secs(3);
/// A lease that ends within a test.
const SHORT: Duration = Duration::from_millis(400);

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, Error>> + Send>>;

async fn rig(settings: impl FnOnce(Builder) -> Builder) -> Rig {
    knowing(Rig::with(|builder| settings(builder.command_timeout(TIMEOUT).watchdog(KEPT))).await)
}

/// The server knows the scripts: else the first reply of each would be NOSCRIPT.
fn knowing(rig: Rig) -> Rig {
    for script in [ACQUIRE, RELEASE, RENEW, SET, TRY_SET, ADD] {
        rig.raw.cmd(&["SCRIPT", "LOAD", script]).ok();
    }
    rig
}

/// How many permits can be taken and how many are in use, asked by somebody else.
fn counts(rig: &Rig) -> (i64, i64) {
    RedissonPermits::connect(rig.server.port()).counts("pool")
}

async fn all_free(rig: &Rig, permits: i64) {
    eventually("all are given back", async || counts(rig) == (permits, 0)).await;
}

/// An acquisition that has its place in the queue.
async fn queued(semaphore: &PermitSemaphore, permits: u32) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(semaphore.acquire_many(permits));
    assert!(poll!(&mut acquiring).is_pending());
    acquiring
}

fn only_id(permit: &Permit) -> PermitId {
    let ids: Vec<_> = permit.ids().collect();
    assert_eq!(ids.len(), 1);
    ids[0]
}

mod capacity {
    use super::*;

    /// I15, I2, R-25, R-26: by the local deadlines of the holders, too.
    #[tokio::test(flavor = "multi_thread")]
    async fn never_more_permits_stand_than_there_are() {
        let rig = rig(|builder| builder).await;
        let (other, history, mut tasks) = (rig.bystander().await, History::new(), JoinSet::new());
        for task in 0..64 {
            let client = if task % 2 == 0 { &rig.client } else { &other };
            let pool = client.permit_semaphore("pool").sized(4);
            // Some work for longer than they may.
            let pool = if task % 8 == 1 { pool.lease(Duration::from_millis(20)) } else { pool };
            let history = history.clone();
            tasks.spawn(async move {
                for round in 0..12 {
                    let Ok(permit) = pool.acquire().await else { continue };
                    let mut held = history.held("pool", &format!("{task}"));
                    if task % 8 == 1 && round % 4 == 0 {
                        permit.lost().await;
                    }
                    yield_now().await;
                    held.valid_until(permit.valid_until());
                    held.end();
                    if round % 2 == 0 { drop(permit) } else { drop(permit.release().await) }
                }
            });
        }
        for _ in 0..6 {
            rig.proxy.drop_reply_and_cut(|c: &Command| c.is("EVALSHA")).happened(1).await;
        }
        soon(tasks.join_all()).await;
        assert!(history.intervals().len() > 500);
        assert!(history.peak("pool") <= 4, "{} at once", history.peak("pool"));
        all_free(&rig, 4).await;
        soon(rig.client.close()).await;
        assert_eq!(counts(&rig), (4, 0));
    }

    /// R-38, I12.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_future_dropped_at_any_point_leaves_nothing_taken() {
        let rig = rig(|builder| builder).await;
        // Else a machine that stalls may see a call through in one poll.
        rig.proxy.delay_replies(Duration::from_millis(2));
        let pool = rig.client.permit_semaphore("pool").sized(3).lease(Duration::from_secs(60));
        for release in [false, true] {
            for point in 0..6 {
                let pool = pool.clone();
                let permit = match release {
                    true => Some(soon(pool.acquire_many(2)).await.expect("it is free")),
                    false => None,
                };
                let mut call: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
                    match permit {
                        Some(permit) => drop(permit.release().await),
                        None => drop(pool.acquire_many(2).await),
                    }
                });
                let mut polls = 0;
                let dropped = poll_fn(|cx| {
                    polls += 1;
                    let through = call.as_mut().poll(cx).is_ready();
                    if through || polls > point { Poll::Ready(()) } else { Poll::Pending }
                });
                let _ = tokio::time::timeout(Duration::from_millis(150), dropped).await;
                drop(call);
                all_free(&rig, 3).await;
            }
        }
    }

    /// R-25, I11: nobody knows whether it has the permit, and it is given back.
    #[tokio::test]
    async fn a_try_without_a_reply_is_undone() {
        for cut in [false, true] {
            let rig = rig(|builder| builder).await;
            let pool = rig.client.permit_semaphore("pool").sized(3).lease(KEPT * 20);
            let lost = lose(&rig, ACQUIRE, cut);
            let error = soon(pool.try_acquire_now()).await.expect_err("no reply came");
            assert!(error.is_indeterminate() && error.is_unavailable(), "{error:?}");
            lost.happened(1).await;
            all_free(&rig, 3).await;
        }
    }

    /// I5.
    #[tokio::test]
    async fn calls_without_a_reply_count_once() {
        for cut in [false, true] {
            let rig = rig(|builder| builder).await;
            let pool = rig.client.permit_semaphore("pool");
            let lost = [TRY_SET, ADD, SET, ACQUIRE, RELEASE].map(|script| lose(&rig, script, cut));
            assert!(soon(pool.try_set(2)).await.expect("it is up"));
            assert_eq!(soon(pool.add(3)).await.expect("it is up"), 5);
            soon(pool.set(4)).await.expect("it is up");
            let permit = soon(pool.acquire_many(3)).await.expect("it is free");
            assert_eq!(counts(&rig), (1, 3));
            soon(permit.release()).await.expect("done, though nobody said so");
            assert_eq!(counts(&rig), (4, 0));
            assert!(lost.iter().all(|lost| lost.hits() == 1));
        }
    }

    /// R-25, I5: an acquire that was sent twice runs late, from a connection that we may not kill.
    #[tokio::test]
    async fn an_acquire_that_runs_late_is_given_back() {
        let server = RedisServer::start();
        let set = |builder: Builder| builder.command_timeout(TIMEOUT);
        let rig = knowing(Rig::with_rights(server, "-client|kill", set).await);
        let pool = rig.client.permit_semaphore("pool").sized(3).lease(KEPT * 20);
        let ghost = rig.proxy.hold_command(rig.running(ACQUIRE));
        let acquiring = tokio::spawn(pool.acquire());
        ghost.held().await;
        rig.proxy.cut_client_side_only().await;
        let permit = soon(acquiring).await.expect("no panic").expect("it is free");
        soon(permit.release()).await.expect("it is held");
        ghost.release();
        let late = ghost.answered().await.expect("nobody was there to stop it");
        assert_eq!(late.items()[0].int(), 0);
        all_free(&rig, 3).await;
    }

    fn lose(rig: &Rig, script: &'static str, cut: bool) -> Fault {
        match cut {
            false => rig.proxy.drop_reply(rig.running(script), 1),
            true => rig.proxy.drop_reply_and_cut(rig.running(script)),
        }
    }
}

mod leases {
    use super::*;

    /// I2: it ends by timer, without a message, and its holder knows before.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_permit_ends_with_its_lease_and_a_waiter_has_it() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(1);
        let permit = soon(pool.clone().lease(SHORT).acquire()).await.expect("it is free");
        let lost = permit.lost();
        let other = rig.bystander().await;
        let waiting = tokio::spawn(other.permit_semaphore("pool").acquire());
        rig.proxy.eat_messages(true);
        let next = soon(waiting).await.expect("no panic").expect("it comes free");
        assert!(!permit.is_held());
        assert_eq!(soon(lost).await, LostReason::Expired);
        let error = soon(permit.release()).await.expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
        assert!(next.is_held());
        assert_eq!(counts(&rig), (0, 1));
    }

    /// I7: renewed for as long as it is held, and not a moment longer.
    #[tokio::test]
    async fn a_renewed_permit_outlives_its_lease() {
        let rig = rig(|builder| builder.watchdog(Duration::from_secs(2))).await;
        let pool = rig.client.permit_semaphore("pool").sized(2);
        let permit = soon(pool.acquire_many(2)).await.expect("it is free");
        let first = permit.valid_until();
        eventually("its time goes on", async || permit.valid_until() > first + SHORT).await;
        tokio::time::sleep_until(first.into()).await;
        assert!(permit.is_held());
        assert_eq!(counts(&rig), (0, 2));
        soon(permit.release()).await.expect("it is held");
        let renewing = rig.running(RENEW);
        let renewed = rig.proxy.count(renewing.clone());
        assert!(renewed > 0);
        tokio::time::sleep(Duration::from_millis(1000)).await;
        assert_eq!(rig.proxy.count(renewing), renewed);
    }

    /// nothing is heard of a process any more. Its permits end within their lease, and it
    /// knows by then.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_permits_of_a_process_that_is_cut_off_come_back() {
        let rig = rig(|builder| builder.watchdog(Duration::from_secs(1))).await;
        let pool = rig.client.permit_semaphore("pool").sized(2);
        let permit = soon(pool.acquire_many(2)).await.expect("it is free");
        let other = rig.bystander().await;
        let waiting = tokio::spawn(other.permit_semaphore("pool").acquire_many(2));
        rig.proxy.half_open(true);
        let next = soon(waiting).await.expect("no panic").expect("it comes free");
        assert!(!permit.is_held());
        assert_eq!(soon(permit.lost()).await, LostReason::Expired);
        rig.proxy.half_open(false);
        drop(permit);
        soon(next.release()).await.expect("nobody else gave them back");
        all_free(&rig, 2).await;
    }

    /// `max_hold`: renewed no more, and given back when its guard is gone.
    #[tokio::test]
    async fn a_permit_is_lost_after_its_longest_time() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(2).max_hold(SHORT);
        let permit = soon(pool.acquire()).await.expect("it is free");
        assert_eq!(soon(permit.lost()).await, LostReason::MaxHold);
        assert!(!permit.is_held());
        assert_eq!(counts(&rig), (1, 1), "it stands while its guard does");
        let error = soon(permit.release()).await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::MaxHold));
        all_free(&rig, 2).await;
    }

    /// A fixed lease can be made longer, never shorter.
    #[tokio::test]
    async fn a_permit_can_be_extended() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(2).lease(KEPT);
        let permit = soon(pool.acquire_many(2)).await.expect("it is free");
        let before = permit.valid_until();
        soon(permit.extend(KEPT * 10)).await.expect("it is held");
        let after = permit.valid_until();
        assert!(after > before + KEPT * 5);
        soon(permit.extend(SHORT)).await.expect("it is held");
        assert_eq!(permit.valid_until(), after);
        let java = RedissonPermits::connect(rig.server.port());
        let ends =
            rig.raw.cmd(&["ZRANGE", &RedissonPermits::deadlines("pool"), "0", "-1", "WITHSCORES"]);
        assert!(ends.items().chunks(2).all(|end| end[1].int() > now_ms() + 15_000));
        assert_eq!(java.counts("pool"), (0, 2));
        drop(permit);
    }

    /// The lease of one that forgets its permit runs out; nobody calls that a loss, or waits for it.
    #[tokio::test]
    async fn a_forgotten_permit_ends_with_its_lease() {
        let capture = Capture::global();
        let rig = rig(|builder| builder.watchdog(SHORT)).await;
        let pool = rig.client.permit_semaphore("pool").sized(1);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let id = only_id(&permit);
        permit.forget();
        assert_eq!(counts(&rig), (0, 1));
        drop(soon(pool.acquire()).await.expect("it comes free"));
        let long = rig.client.permit_semaphore("other").sized(1).lease(KEPT * 20);
        soon(long.acquire()).await.expect("it is free").forget();
        soon(rig.client.shutdown(Duration::from_secs(3600))).await;
        // Its id is in the log as anybody would write it.
        let says = |text| {
            let events = capture.saying(text);
            events.iter().any(|event| event.field("hold") == Some(&*id.to_string()))
        };
        assert!(says("acquired") && !says("lost a lock"));
    }

    fn now_ms() -> i64 {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64
    }
}

mod loss {
    use super::*;

    /// R-47, I8: by id, from this process; told without a renewal, which a fixed lease has none of.
    #[tokio::test]
    async fn a_permit_that_is_given_back_by_its_id_is_lost_at_once() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(4).lease(KEPT * 20);
        let permit = soon(pool.acquire_many(3)).await.expect("it is free");
        let another = soon(pool.acquire()).await.expect("it is free");
        let lost = permit.lost();
        let ids: Vec<_> = permit.ids().collect();
        assert!(soon(pool.release_id(ids[1])).await.expect("it is up"));
        assert_eq!(soon(lost).await, LostReason::Removed);
        assert!(!soon(pool.release_id(ids[1])).await.expect("it is up"), "once");
        assert!(another.is_held());
        // The others of that acquisition go back as well.
        eventually("the rest is free", async || counts(&rig) == (3, 1)).await;
        let error = soon(permit.release()).await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
        soon(another.release()).await.expect("it is held");
        all_free(&rig, 4).await;
    }

    /// R-47, I8: by another process, Java's perhaps: told by the next renewal.
    #[tokio::test]
    async fn a_permit_that_others_give_back_is_lost_with_the_next_renewal() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(2);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let java = RedissonPermits::connect(rig.server.port());
        assert!(java.try_release("pool", only_id(&permit).as_bytes()));
        assert_eq!(soon(permit.lost()).await, LostReason::Removed);
        let error = soon(permit.release()).await.expect_err("it is lost");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
        assert_eq!(counts(&rig), (2, 0));
    }

    /// everything is gone. Who releases is told even before a renewal is.
    #[tokio::test]
    async fn a_flush_is_told_and_leaves_nothing_behind() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(2);
        let (one, two) = (soon(pool.acquire()).await, soon(pool.acquire()).await);
        let (one, two) = (one.expect("it is free"), two.expect("it is free"));
        rig.raw.cmd(&["FLUSHALL"]).ok();
        let error = soon(one.release()).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
        assert_eq!(soon(two.lost()).await, LostReason::Removed);
        drop(two);
        rig.assert_nothing_left().await;
    }

    /// told at the reconnect, not by the next renewal.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_restart_without_data_is_told_at_once() {
        let mut rig = rig(|builder| builder.watchdog(Duration::from_secs(120))).await;
        let pool = rig.client.permit_semaphore("pool").sized(1);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        rig.server.restart();
        assert_eq!(soon(permit.lost()).await, LostReason::Removed);
        drop(permit);
        soon(waiting).await.expect("it starts anew").release().await.expect("it is held");
    }

    /// with its data nothing is lost.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_restart_with_data_loses_nothing() {
        let server = RedisServer::builder().appendonly().start();
        let mut rig = Rig::before(server, |builder| builder.command_timeout(TIMEOUT)).await;
        let pool = rig.client.permit_semaphore("pool").sized(1);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let waiting = queued(&pool, 1).await;
        rig.server.restart();
        soon(permit.release()).await.expect("it is held");
        soon(waiting).await.expect("it is free").release().await.expect("it is held");
    }

    /// I10: told of the close; the lease, which nobody renews, gives the permit back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_closed_client_leaves_its_permits_to_their_lease() {
        let rig = rig(|builder| builder.watchdog(Duration::from_secs(1))).await;
        let pool = rig.client.permit_semaphore("pool").sized(2);
        let permit = soon(pool.acquire()).await.expect("it is free");
        drop(soon(pool.acquire()).await.expect("it is free"));
        soon(rig.client.close()).await;
        assert_eq!(counts(&rig), (1, 1));
        assert_eq!(soon(permit.lost()).await, LostReason::ClientClosed);
        let error = soon(permit.release()).await.expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::ClientClosed));
        assert_eq!(soon(pool.acquire()).await.expect_err("closed").kind(), ErrorKind::Closed);
        all_free(&rig, 2).await;
    }
}

mod with_java {
    use super::*;

    const FOREIGN: [u8; 16] = [0, 255, 1, 254, 128, 127, 13, 10, 9, 8, 7, 6, 5, 4, 3, 2];

    /// Ids are bytes in Redis and hexadecimal for people, on both sides.
    #[tokio::test]
    async fn ids_mean_the_same_to_both() {
        let rig = rig(|builder| builder).await;
        let (java, pool) = (
            RedissonPermits::connect(rig.server.port()),
            rig.client.permit_semaphore("pool").sized(3),
        );
        let permit = soon(pool.acquire()).await.expect("it is free");
        let id = only_id(&permit);
        assert!(java.update_lease_time("pool", id.as_bytes(), 30_000), "it knows our permit");
        assert_eq!(id.to_string().parse::<PermitId>().expect("as it is shown"), id);
        assert_eq!(permit.holder().as_str(), id.to_string());
        java.try_acquire_ids("pool", &[FOREIGN], Some(60_000)).expect("it is free");
        let permits = soon(pool.permits()).await.expect("it is up").expect("it is there");
        assert_eq!((permits.available, permits.in_use), (1, 2));
        assert!(soon(pool.release_id(PermitId::from(FOREIGN))).await.expect("it is up"));
        assert!(!soon(pool.release_id(PermitId::from(FOREIGN))).await.expect("it is up"));
        for wrong in ["", "00", "+0ff01fe807f0d0a0908070605040302", &"g".repeat(32)] {
            assert_eq!(wrong.parse::<PermitId>().unwrap_err().kind(), ErrorKind::InvalidName);
        }
        soon(permit.release()).await.expect("it is held");
        all_free(&rig, 3).await;
    }

    /// a Java process dies with its permits; they come back when their lease ends.
    #[tokio::test]
    async fn a_permit_of_java_ends_for_us_as_well() {
        let rig = rig(|builder| builder).await;
        let java = RedissonPermits::connect(rig.server.port());
        assert!(java.try_set_permits("pool", 1, None));
        java.try_acquire_ids("pool", &[FOREIGN], Some(400)).expect("it is free");
        let pool = rig.client.permit_semaphore("pool");
        assert!(soon(pool.try_acquire_now()).await.expect("it is up").is_none());
        drop(soon(pool.acquire()).await.expect("it comes free"));
        all_free(&rig, 1).await;
    }

    /// I9: a release by Java wakes us, and ours is told to it.
    #[tokio::test(flavor = "multi_thread")]
    async fn releases_are_told_both_ways() {
        let rig = rig(|builder| builder).await;
        let java = RedissonPermits::connect(rig.server.port());
        assert!(java.try_set_permits("pool", 1, None));
        java.try_acquire_ids("pool", &[FOREIGN], None).expect("it is free");
        let pool = rig.client.permit_semaphore("pool");
        let waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        assert!(java.try_release("pool", &FOREIGN));
        let permit = soon(waiting).await.expect("it is free");
        let listener = rig.server.raw();
        listener.subscribe(&RedissonPermits::channel("pool"));
        soon(permit.release()).await.expect("it is held");
        let told = listener.next_message(Duration::from_secs(10)).map(|message| message.payload);
        assert_eq!(told, Some("1".into()));
    }
}

mod numbers {
    use super::*;

    /// Waiters are served in order, also by what is added.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_waiter_for_ten_is_served_before_those_behind_it() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(10);
        let taken = soon(pool.acquire_many(10)).await.expect("it is free");
        let (large, mut small) = (queued(&pool, 10).await, queued(&pool, 1).await);
        eventually("they listen", async || subscriptions(&rig.raw) == 1).await;
        let asked = rig.running(ACQUIRE);
        let before = rig.proxy.count(asked.clone());
        assert_eq!(soon(pool.add(5)).await.expect("it is up"), 5);
        rig.proxy.wait_for(asked, before + 1).await;
        assert!(poll!(&mut small).is_pending());
        drop(taken);
        let large = soon(large).await.expect("there are ten");
        assert_eq!((large.permits(), large.name(), large.ids().count()), (10, "pool", 10));
        drop((soon(small).await.expect("and five more"), large));
        all_free(&rig, 15).await;
    }

    /// `set` counts permits in use, `add` does not look at them; below zero nobody gets any.
    #[tokio::test]
    async fn the_number_can_be_set_and_added_to() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").label("workers");
        assert!(soon(pool.try_set(2)).await.expect("it is up"));
        assert!(!soon(pool.try_set(9)).await.expect("it is up"));
        let permit = soon(pool.acquire_many(2)).await.expect("it is free");
        soon(pool.set(5)).await.expect("it is up");
        assert_eq!(counts(&rig), (3, 2));
        assert_eq!(soon(pool.add(-4)).await.expect("it is up"), -1);
        assert!(soon(pool.try_acquire(SHORT / 4)).await.expect("it is up").is_none());
        let permits = soon(pool.permits()).await.expect("it is up").expect("it is there");
        assert_eq!((permits.available, permits.in_use), (-1, 2));
        soon(permit.release()).await.expect("it is held");
        assert_eq!(counts(&rig), (1, 0));
    }

    /// As the documentation says: of one that is missing, `add` does not know what still stands.
    #[tokio::test]
    async fn only_add_ignores_permits_that_outlived_their_semaphore() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(2).lease(KEPT * 20);
        let permit = soon(pool.acquire()).await.expect("it is free");
        rig.raw.cmd(&["DEL", "pool"]).ok();
        assert!(soon(pool.try_set(2)).await.expect("it is up"));
        assert_eq!(counts(&rig), (1, 1));
        rig.raw.cmd(&["DEL", "pool"]).ok();
        assert_eq!(soon(pool.add(2)).await.expect("it is up"), 2);
        assert_eq!(counts(&rig), (2, 1));
        soon(permit.release()).await.expect("it is held");
    }

    /// I10: nothing is sent for what cannot be meant, and what is missing is told.
    #[tokio::test]
    async fn what_cannot_be_meant_is_refused_before_anything_is_sent() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool");
        rig.proxy.forget_commands();
        let most = i32::MAX as u32;
        for (refused, kind) in [
            (pool.acquire_many(0).await.map(drop), ErrorKind::InvalidCount),
            (pool.acquire_many(1001).await.map(drop), ErrorKind::InvalidCount),
            (pool.try_set(most + 1).await.map(drop), ErrorKind::InvalidCount),
            (pool.set(most + 1).await, ErrorKind::InvalidCount),
            (pool.clone().sized(most + 1).acquire().await.map(drop), ErrorKind::InvalidCount),
            (
                pool.clone().lease(Duration::ZERO).acquire().await.map(drop),
                ErrorKind::InvalidDuration,
            ),
            (
                pool.clone().max_hold(Duration::ZERO).acquire().await.map(drop),
                ErrorKind::InvalidDuration,
            ),
        ] {
            assert_eq!(refused.expect_err("it cannot be meant").kind(), kind);
        }
        assert_eq!(rig.proxy.count(|command: &Command| command.is("EVALSHA")), 0);
        let error = soon(pool.acquire()).await.expect_err("it was never set");
        assert_eq!(error.kind(), ErrorKind::Uninitialised);
        assert_eq!(soon(pool.permits()).await.expect("it is up"), None);
        rig.raw.cmd(&["RPUSH", "pool", "a list"]).ok();
        let error = soon(pool.acquire()).await.expect_err("that is a list");
        assert_eq!(error.kind(), ErrorKind::WrongType);
    }

    /// The most at once: a thousand ids in one call.
    #[tokio::test]
    async fn a_thousand_permits_are_taken_renewed_and_given_back_together() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.permit_semaphore("pool").sized(1000).lease(Lease::Renewed);
        let permit = soon(pool.acquire_many(1000)).await.expect("it is free");
        let first = permit.valid_until();
        assert_eq!(counts(&rig), (0, 1000));
        eventually("it is renewed", async || permit.valid_until() > first).await;
        soon(permit.release()).await.expect("it is held");
        assert_eq!(counts(&rig), (1000, 0));
    }
}

//! Servers that die, stop, come back without their data, or can only be reached at times.
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Lock, LockGuard, LostReason};

use crate::{
    rig::{Rig, acquiring, held_by, renewing, soon},
    support::{
        Capture, assert_no_keys, blocking, eventually, history::History, proxy::named,
        server::RedisServer, unique,
    },
};

const TIMEOUT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// A watchdog that does not come by during a test.
const SLEEPY: Duration = Duration::from_secs(600);

fn is_lost(guard: &LockGuard) -> bool {
    futures::FutureExt::now_or_never(guard.lost()).is_some()
}

/// Waits until somebody waits for a lock and the server has told so.
async fn listens(rig: &Rig, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let count = || rig.server.raw().cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int();
    eventually("a waiter listens", async || count() > 0).await;
}

/// Refuses new connections and breaks those that stand.
async fn cut_off(rig: &Rig) {
    rig.proxy.refuse(true);
    rig.proxy.cut_all().await;
}

mod restarts {
    use super::*;

    /// R-07, I8: told after the reconnection, long before the next renewal.
    #[tokio::test]
    async fn a_server_that_came_back_empty_is_noticed_at_once() {
        let mut rig = Rig::with(|b| b.command_timeout(TIMEOUT).watchdog(SLEEPY)).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        rig.server.restart();
        assert_eq!(soon(guard.lost()).await, LostReason::Removed);
        assert!(!guard.is_held());
        let error = soon(guard.unlock()).await.expect_err("it is not held");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
    }

    /// R-07, I9.
    #[tokio::test]
    async fn waiters_go_on_when_a_server_came_back_empty() {
        let mut rig = Rig::with(|b| b.command_timeout(TIMEOUT).watchdog(SLEEPY)).await;
        let other = rig.bystander().await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let here = tokio::spawn(rig.client.lock("job").lock());
        let there = tokio::spawn(other.lock("job").lock());
        listens(&rig, "job").await;
        rig.server.restart();
        assert_eq!(soon(guard.lost()).await, LostReason::Removed);
        let (here, there) = tokio::join!(
            async { soon(here).await.expect("no panic").expect("it is free").unlock().await },
            async { soon(there).await.expect("no panic").expect("it is free").unlock().await },
        );
        here.and(there).expect("they held it in turn");
        assert_no_keys(&rig.server.raw());
    }

    ///
    #[tokio::test]
    async fn a_server_that_kept_its_data_causes_no_alarm() {
        let server = RedisServer::builder().appendonly().args(["--appendfsync", "always"]).start();
        let mut rig = Rig::before(server, |b| b.command_timeout(TIMEOUT).watchdog(SLEEPY)).await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let before = guard.valid_until();
        rig.server.restart();
        let verified = async || guard.valid_until() > before;
        eventually("the hold has been looked at", verified).await;
        assert!(guard.is_held() && !is_lost(&guard));
        soon(guard.unlock()).await.expect("it is held");
        assert_no_keys(&rig.server.raw());
    }

    /// R-09, I8: the deadline is local, nobody has to answer for it.
    #[tokio::test]
    async fn a_server_that_stays_away_loses_the_lock_at_the_local_deadline() {
        for renewed in [true, false] {
            let lease = Duration::from_secs(1);
            let mut rig = Rig::with(|b| b.command_timeout(TIMEOUT).watchdog(lease)).await;
            let lock = rig.client.lock("job");
            let lock = if renewed { lock } else { lock.lease(lease) };
            let guard = soon(lock.lock()).await.expect("it is free");
            rig.server.kill();
            assert_eq!(soon(guard.lost()).await, LostReason::Expired);
            assert!(!guard.is_held() && Instant::now() >= guard.valid_until());
            let error = soon(guard.unlock()).await.expect_err("it is not held");
            assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
            rig.server.restart();
            let guard = soon(lock.lock_with(LONG)).await.expect("the server is back");
            assert_eq!(rig.server.raw().cmd(&["EXISTS", "job"]).int(), 1);
            soon(guard.unlock()).await.expect("it is held");
        }
    }

    /// a server that reads its data set refuses everything, for a while.
    #[tokio::test]
    async fn a_server_that_loads_its_data_is_waited_for() {
        let slow = ["--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024"];
        let server = RedisServer::builder().appendonly().args(slow).start();
        let mut rig = Rig::before(server, |b| b.command_timeout(TIMEOUT)).await;
        rig.raw.cmd(&["DEBUG", "POPULATE", "6000"]).ok();
        rig.raw.cmd(&["BGREWRITEAOF"]).ok();
        let rewritten = async || {
            let info = rig.raw.cmd(&["INFO", "persistence"]).text();
            info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
        };
        eventually("the data are on disk", rewritten).await;
        let client = rig.client.clone();
        rig.server.kill();
        let locking = tokio::spawn(client.lock("job").lock());
        let rig = blocking(move || {
            rig.server.restart();
            rig
        })
        .await;
        let guard = soon(locking).await.expect("no panic").expect("it has loaded");
        assert!(rig.proxy.count(acquiring("job")) > 1, "it was refused before");
        soon(guard.unlock()).await.expect("it is held");
        assert_eq!(rig.server.raw().cmd(&["EXISTS", "job"]).int(), 0);
    }

    /// a primary that was made a replica refuses writes until that is undone.
    #[tokio::test]
    async fn a_read_only_server_is_waited_for() {
        let rig = Rig::start().await;
        rig.raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        let locking = tokio::spawn(rig.client.lock("job").lock());
        rig.proxy.wait_for(acquiring("job"), 2).await;
        rig.raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
        let guard = soon(locking).await.expect("no panic").expect("it is writable again");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// what was held before is given back when that can be done again.
    #[tokio::test]
    async fn a_release_waits_until_the_server_is_writable_again() {
        let rig = Rig::start().await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        rig.raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        let unlocking = tokio::spawn(guard.unlock());
        rig.proxy.wait_for(crate::rig::releasing("job"), 2).await;
        rig.raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
        soon(unlocking).await.expect("no panic").expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod refusals {
    use super::*;

    /// a shorter outage than patience is not told.
    #[tokio::test]
    async fn a_short_outage_is_ridden_out() {
        let rig = Rig::start().await;
        cut_off(&rig).await;
        let locking = tokio::spawn(rig.client.lock("job").lock());
        let trying = tokio::spawn(rig.client.lock("other").try_lock(LONG, LONG));
        let before = rig.proxy.accepted();
        eventually("it tries to connect", async || rig.proxy.accepted() > before + 3).await;
        assert!(!locking.is_finished() && !trying.is_finished());
        rig.proxy.refuse(false);
        let guard = soon(locking).await.expect("no panic").expect("the server is back");
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(trying).await.expect("no panic").expect("the server is back");
        soon(guard.expect("it is free").unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// a release goes out once the server is back.
    #[tokio::test]
    async fn a_release_rides_out_a_short_outage() {
        let rig = Rig::start().await;
        let kept = soon(rig.client.lock("kept").lock()).await.expect("it is free");
        let dropped = soon(rig.client.lock("dropped").lock()).await.expect("it is free");
        cut_off(&rig).await;
        drop(dropped);
        let unlocking = tokio::spawn(kept.unlock());
        let before = rig.proxy.accepted();
        eventually("it tries to connect", async || rig.proxy.accepted() > before + 3).await;
        rig.proxy.refuse(false);
        soon(unlocking).await.expect("no panic").expect("it is held");
        eventually("both are free", async || rig.raw.cmd(&["DBSIZE"]).int() == 0).await;
        rig.assert_nothing_left().await;
    }

    async fn impatient(patience: Duration) -> Rig {
        Rig::with(|builder| builder.command_timeout(TIMEOUT).patience(patience)).await
    }

    /// R-31, I10.
    #[tokio::test]
    async fn patience_ends_with_an_error_that_says_so() {
        let patience = Duration::from_secs(1);
        let rig = impatient(patience).await;
        for silent in [true, false] {
            if silent {
                rig.proxy.half_open(true);
            } else {
                rig.proxy.half_open(false);
                cut_off(&rig).await;
            }
            let asked = Instant::now();
            let error = soon(rig.client.lock("job").lock()).await.expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.is_unavailable() && error.lock() == Some("job"));
            assert!(asked.elapsed() >= patience, "{:?}", asked.elapsed());
        }
    }

    /// R-31, I10: the wait has an end even where patience has none.
    #[tokio::test]
    async fn a_try_ends_soon_after_its_wait() {
        let rig = impatient(10 * LONG).await;
        let wait = Duration::from_millis(500);
        for silent in [true, false] {
            if silent {
                rig.proxy.half_open(true);
            } else {
                rig.proxy.half_open(false);
                cut_off(&rig).await;
            }
            let asked = Instant::now();
            let trying = rig.client.lock("job").try_lock(wait, LONG);
            let error = soon(trying).await.expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(asked.elapsed() >= wait, "{:?}", asked.elapsed());
        }
        rig.proxy.refuse(false);
        // Behind whatever of the tries may still run, and its clean-up.
        drop(soon(rig.client.lock("job").lock()).await.expect("it comes free"));
        rig.assert_nothing_left().await;
    }

    /// I10: also those that sleep hear of it, and those behind them.
    #[tokio::test]
    async fn an_outage_is_told_to_all_waiters() {
        let rig = impatient(Duration::from_secs(1)).await;
        let other = rig.bystander().await;
        let names: Vec<_> = (0..4).map(|n| format!("job-{n}")).collect();
        let mut guards = Vec::new();
        let mut waiting = Vec::new();
        for name in &names {
            guards.push(soon(other.lock(name).lock()).await.expect("it is free"));
            waiting.extend((0..5).map(|_| tokio::spawn(rig.client.lock(name).lock())));
        }
        for name in &names {
            listens(&rig, name).await;
        }
        cut_off(&rig).await;
        for waiter in waiting {
            let error = soon(waiter).await.expect("no panic").expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        }
        for guard in guards {
            soon(guard.unlock()).await.expect("it is held");
        }
        rig.proxy.refuse(false);
        rig.assert_nothing_left().await;
    }

    ///
    #[tokio::test]
    async fn a_server_that_is_not_there_cannot_be_connected_to() {
        let mut rig = Rig::start().await;
        rig.server.kill();
        let error = soon(Client::connect(rig.server.url())).await.expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_unavailable() && !error.is_indeterminate());
        let lazy = soon(Client::connect_lazy(rig.server.url())).await.expect("no need of a server");
        let locking = tokio::spawn(lazy.lock("job").lock());
        rig.server.restart();
        let guard = soon(locking).await.expect("no panic").expect("the server is there");
        soon(guard.unlock()).await.expect("it is held");
    }
}

mod silence {
    use super::*;

    /// the connection that went silent is replaced.
    #[tokio::test]
    async fn a_half_open_connection_is_replaced() {
        let rig = Rig::start().await;
        let first = rig.proxy.accepted();
        rig.proxy.half_open(true);
        let locking = tokio::spawn(rig.client.lock("job").lock());
        eventually("it connects anew", async || rig.proxy.accepted() > first).await;
        rig.proxy.half_open(false);
        let guard = soon(locking).await.expect("no panic").expect("it is free");
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        let closed = async || rig.proxy.upstream_connections() <= 3;
        eventually("the old sockets are closed", closed).await;
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// whoever goes on writing to a dead connection does not keep it alive.
    #[tokio::test]
    async fn a_half_open_connection_is_replaced_under_load_too() {
        let rig = Rig::start().await;
        let stuck = rig.proxy.hold_reply(acquiring("stuck"));
        let asking = tokio::spawn(rig.client.lock("stuck").lock());
        stuck.held().await;
        let mut tasks = Vec::new();
        for n in 0..20 {
            let lock = rig.client.lock(format!("job-{}", n % 5));
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    lock.lock().await?.unlock().await?;
                }
                Ok::<_, leasehold::Error>(())
            }));
        }
        for task in tasks {
            soon(task).await.expect("no panic").expect("on another connection");
        }
        let guard = soon(asking).await.expect("no panic").expect("it is free");
        assert_eq!(rig.holds("stuck"), held_by(&guard.holder(), 1));
        soon(guard.unlock()).await.expect("it is held");
        stuck.release();
        rig.assert_nothing_left().await;
    }

    /// I9: the heartbeat of the connection that carries subscriptions finds out.
    #[tokio::test]
    async fn waiters_go_on_after_their_subscription_went_silent() {
        let rig = Rig::start().await;
        let other = rig.bystander().await;
        let guard = soon(other.lock("job").lease(LONG).lock()).await.expect("it is free");
        let waiting = tokio::spawn(rig.client.lock("job").lock());
        listens(&rig, "job").await;
        // From the next heartbeat on nothing comes through.
        let silent = rig.proxy.hold_reply(named("PING"));
        silent.held().await;
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(waiting).await.expect("no panic").expect("it is free");
        soon(guard.unlock()).await.expect("it is held");
        silent.release();
        rig.assert_nothing_left().await;
    }

    /// R-32, I9: no message ever comes, but a reconnection is a reason to look.
    #[tokio::test]
    async fn waiters_look_again_after_a_reconnection() {
        let rig = Rig::start().await;
        let other = rig.bystander().await;
        let guard = soon(other.lock("job").lease(10 * LONG).lock()).await.expect("it is free");
        let waiting = tokio::spawn(rig.client.lock("job").lock());
        rig.proxy.eat_messages(true);
        // Behind the try that follows the subscription; from here on only a message would tell.
        rig.proxy.wait_for(acquiring("job"), 2).await;
        assert!(soon(rig.client.lock("job").is_locked()).await.expect("the server is up"));
        soon(guard.unlock()).await.expect("it is held");
        eventually("the message is lost", async || rig.proxy.messages_eaten() > 0).await;
        assert!(!waiting.is_finished());
        rig.proxy.cut_all().await;
        let guard = soon(waiting).await.expect("no panic").expect("it is free");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// no lock is lost, and none is said to be.
    #[tokio::test]
    async fn a_pause_shorter_than_the_lease_loses_nothing() {
        let seen = Capture::global();
        let watchdog = Duration::from_secs(8);
        let rig = Rig::with(|b| b.command_timeout(TIMEOUT).watchdog(watchdog)).await;
        let mut guards = Vec::new();
        for _ in 0..20 {
            guards.push(soon(rig.client.lock(unique("job")).lock()).await.expect("it is free"));
        }
        rig.server.pause();
        seen.wait_for("a renewal has failed", |event| {
            let first = event.field("first");
            event.message.contains("renewals got no answer")
                && guards.iter().any(|guard| first == Some(guard.name()))
        })
        .await;
        rig.server.resume();
        let before: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
        let renewed = async || guards.iter().zip(&before).all(|(g, b)| g.valid_until() > *b);
        eventually("all are renewed", renewed).await;
        for guard in guards {
            assert!(guard.is_held() && !is_lost(&guard));
            soon(guard.unlock()).await.expect("it is held");
        }
        rig.assert_nothing_left().await;
    }

    /// I8.
    #[tokio::test]
    async fn a_pause_longer_than_a_fixed_lease_ends_it_on_time() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job").lease(Duration::from_secs(1));
        let guard = soon(lock.lock()).await.expect("it is free");
        rig.server.pause();
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
        assert!(!guard.is_held());
        rig.server.resume();
        let other = rig.bystander().await;
        let next = soon(other.lock("job").lock()).await.expect("the lease has ended");
        let error = soon(guard.unlock()).await.expect_err("it is not held");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        soon(next.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod slowness {
    use super::*;

    async fn nested(lock: Lock, owner: String, history: History) {
        for _ in 0..2 {
            let outer = lock.lock().await.expect("no error");
            let held = history.held(lock.name(), &owner);
            let inner = lock.lock().await.expect("no error");
            assert_eq!(lock.hold_count(), 2);
            inner.unlock().await.expect("no error");
            assert_eq!(lock.hold_count(), 1);
            held.end();
            outer.unlock().await.expect("no error");
        }
    }

    /// R-29, I1, I2, I5.
    #[tokio::test]
    async fn a_tenth_of_a_second_each_way_changes_nothing() {
        let rig = Rig::with(|builder| builder).await;
        let far = soon(Client::connect(rig.proxy.url())).await.expect("the server is up");
        let near = rig.bystander().await;
        rig.proxy.delay_commands(Duration::from_millis(100));
        rig.proxy.delay_replies(Duration::from_millis(100));
        let history = History::new();
        let mut tasks = Vec::new();
        for (n, client) in [&rig.client, &rig.client, &far, &near].into_iter().enumerate() {
            let task = nested(client.lock("job"), n.to_string(), history.clone());
            tasks.push(tokio::spawn(task));
        }
        for task in tasks {
            soon(task).await.expect("no error");
        }
        history.assert_exclusive(4 * 2);
        assert_eq!(rig.proxy.count(renewing("job")), 0);
        far.close().await;
        rig.assert_nothing_left().await;
    }
}

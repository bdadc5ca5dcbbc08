//! Traps of the client library underneath: what it would do by itself, and must not.
use std::{collections::BTreeMap, future::poll_fn, task::Poll, time::Duration};

use leasehold::{Client, ErrorKind, Refusal};

use crate::{
    rig::{Call, Rig, SOON, acquiring, entries, held_by, releasing, renewing, soon},
    support::{
        assert_no_keys, blocking, eventually,
        proxy::named,
        server::{Raw, RedisServer},
        subscriptions,
    },
};

const TIMEOUT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// How many clients a server has, besides the one that asks.
fn clients(raw: &Raw) -> usize {
    raw.cmd(&["CLIENT", "LIST"]).text().lines().count() - 1
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

async fn listens(raw: &Raw, name: &str) {
    let heard = || raw.cmd(&["PUBSUB", "NUMSUB", &channel(name)]).items()[1].int() > 0;
    eventually("a waiter listens", async || heard()).await;
}

mod resends {
    use super::*;

    /// Trap: what was in flight when a connection broke is sent again, and its caller told nothing.
    #[tokio::test]
    async fn what_was_in_flight_is_not_sent_again_behind_our_back() {
        let rig = Rig::with(|builder| builder.command_timeout(Duration::from_secs(5))).await;
        let mut guards = Vec::new();
        for n in 0..30 {
            let lock = rig.client.lock(format!("job-{n}")).lease(LONG);
            guards.push(soon(lock.lock()).await.expect("it is free"));
        }
        let extended = |n: usize| entries(&rig.proxy, &format!("job-{n}"), |c| c == Call::Renew);
        let replies = rig.proxy.hold_reply(renewing("job-0"));
        let mut extending =
            Box::pin(futures::future::join_all(guards.iter().map(|guard| guard.extend(2 * LONG))));
        tokio::select! {
            _ = &mut extending => panic!("no reply came yet"),
            () = replies.held() => {}
        }
        rig.proxy.wait_for(renewing("job-29"), 1).await;
        rig.proxy.cut_all().await;
        let results = soon(extending).await;
        assert!(results.iter().all(|result| result.is_err()), "all were in flight");
        // Answered on the new connection, behind whatever would have been sent again there.
        assert!(soon(rig.client.lock("job-0").is_locked()).await.expect("the server is up"));
        for (n, result) in results.iter().enumerate() {
            assert_eq!(extended(n), 1, "job-{n}: {result:?}");
        }
        drop(guards);
        rig.assert_nothing_left().await;
    }

    /// Trap: the same, for calls that we do send again: they still count once. R-25, I5.
    #[tokio::test]
    async fn many_acquires_in_flight_at_a_cut_count_once_each() {
        let rig = Rig::start().await;
        let held = rig.proxy.hold_reply(acquiring("job-0"));
        let lock = |n: usize| rig.client.lock(format!("job-{n}")).lease(LONG);
        let tasks: Vec<_> = (0..100).map(|n| tokio::spawn(lock(n).lock())).collect();
        held.held().await;
        rig.proxy.cut_all().await;
        for (n, task) in tasks.into_iter().enumerate() {
            let guard = soon(task).await.expect("no panic").expect("it is free");
            assert_eq!(rig.holds(&format!("job-{n}")), held_by(&guard.holder(), 1));
            soon(guard.unlock()).await.expect("it is held");
        }
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }

    /// Trap: after the first broken connection nothing ever connects again, and calls hang.
    #[tokio::test]
    async fn it_connects_again_and_again() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        for _ in 0..5 {
            let guard = soon(lock.lock()).await.expect("it is free");
            rig.proxy.cut_all().await;
            soon(guard.unlock()).await.expect("it is held");
            assert_no_keys(&rig.raw);
        }
        rig.assert_nothing_left().await;
    }

    /// Trap: a dropped future's command runs all the same, also one that waits for a connection.
    #[tokio::test]
    async fn futures_dropped_during_an_outage_leave_nothing_behind_after_it() {
        let rig = Rig::start().await;
        rig.proxy.refuse(true);
        rig.proxy.cut_all().await;
        for n in 0..6 {
            let lock = rig.client.lock(format!("job-{}", n % 3)).lease(LONG);
            let mut asking = Box::pin(lock.lock());
            let polled = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_pending()));
            assert!(polled.await, "nobody is there");
        }
        rig.proxy.refuse(false);
        let guard = soon(rig.client.lock("job-0").lock()).await.expect("it is free");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod time_outs {
    use super::*;

    /// Trap: options of script calls are ignored without a word, the time-out among them. R-14.
    #[tokio::test]
    async fn calls_end_within_their_time_out_while_the_server_is_blocked() {
        let rig = Rig::start().await;
        let guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        let raw = rig.server.raw();
        let blocked = tokio::spawn(blocking(move || raw.cmd(&["DEBUG", "SLEEP", "4"]).ok()));
        eventually("the server is blocked", async || {
            let looked = rig.client.lock("job").is_locked().await;
            assert!(looked.as_ref().err().is_none_or(leasehold::Error::is_unavailable));
            looked.is_err()
        })
        .await;
        let lock = rig.client.lock("other");
        soon(lock.try_lock_now()).await.expect_err("nobody answers");
        soon(guard.extend(LONG)).await.expect_err("nobody answers");
        assert!(!blocked.is_finished(), "the server was waited for");
        soon(blocked).await.expect("no panic");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod subscribing {
    use super::*;

    /// Trap: a subscription is said to stand when it was written, not when the server has it. R-34.
    #[tokio::test]
    async fn what_happens_before_the_subscription_stands_is_not_missed() {
        let rig = Rig::with(|builder| builder.command_timeout(Duration::from_secs(8))).await;
        let other = rig.bystander().await;
        let guard = soon(other.lock("job").lease(10 * LONG).lock()).await.expect("it is free");
        let subscribing = rig.proxy.hold_command(named("SUBSCRIBE"));
        let waiting = tokio::spawn(rig.client.lock("job").lock());
        subscribing.held().await;
        // The message goes to nobody.
        soon(guard.unlock()).await.expect("it is held");
        subscribing.release();
        let guard = soon(waiting).await.expect("no panic").expect("it is free");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// Trap: the same, by chance, over and over: the holder of a name always changes. R-34, I9.
    #[tokio::test]
    async fn no_wake_up_is_lost_on_a_slow_connection() {
        let rig = Rig::with(|builder| builder).await;
        let other = rig.bystander().await;
        rig.proxy.delay_commands(Duration::from_millis(4));
        for n in 0..40 {
            let name = format!("job-{n}");
            let guard = soon(other.lock(&name).lease(10 * LONG).lock()).await.expect("it is free");
            let waiting = tokio::spawn(rig.client.lock(&name).lock());
            rig.proxy.wait_for(acquiring(&name), 1).await;
            tokio::time::sleep(Duration::from_millis(n % 20)).await;
            soon(guard.unlock()).await.expect("it is held");
            drop(soon(waiting).await.expect("no panic").expect("it is free"));
        }
        rig.assert_nothing_left().await;
    }

    /// Trap: a receiver that falls behind loses messages, or ends for good. A flood costs a bounded
    /// number of tries, and the true message after it still wakes.
    #[tokio::test]
    async fn a_flood_of_messages_neither_drowns_a_waiter_nor_makes_it_rage() {
        const FLOOD: usize = 10_000;
        let rig = Rig::with(|builder| builder).await;
        let other = rig.bystander().await;
        let guard = soon(other.lock("job").lease(10 * LONG).lock()).await.expect("it is free");
        let waiting = tokio::spawn(rig.client.lock("job").lock());
        listens(&rig.raw, "job").await;
        rig.proxy.forget_commands();
        let flood = "for i = 1, ARGV[1] do redis.call('PUBLISH', KEYS[1], '0') end";
        rig.raw.cmd(&["EVAL", flood, "1", &channel("job"), &FLOOD.to_string()]).ok();
        rig.proxy.wait_for(acquiring("job"), 1).await;
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(waiting).await.expect("no panic").expect("it is free");
        let tries = rig.proxy.count(acquiring("job"));
        assert!(tries < FLOOD / 10, "{tries} tries");
        soon(guard.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// The names that a server allows, told by the channel.
    async fn deaf_to_all_but(name: &str) -> Rig {
        let rights = format!("resetchannels &{}", channel(name));
        Rig::with_rights(RedisServer::start(), &rights, |b| b.command_timeout(TIMEOUT)).await
    }

    /// Trap: the reply of a refused SUBSCRIBE goes to whoever is next. R-21.
    #[tokio::test]
    async fn a_refused_subscription_concerns_its_own_waiters_only() {
        let rig = deaf_to_all_but("good").await;
        let other = rig.bystander().await;
        let good = soon(other.lock("good").lease(LONG).lock()).await.expect("it is free");
        let bad = soon(other.lock("bad").lease(LONG).lock()).await.expect("it is free");
        let waiting = tokio::spawn(rig.client.lock("good").lock());
        listens(&rig.raw, "good").await;
        for _ in 0..5 {
            let error = soon(rig.client.lock("bad").lock()).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied));
            assert!(error.lock() == Some("bad") && !error.is_indeterminate(), "{error:?}");
        }
        assert!(!waiting.is_finished());
        soon(good.unlock()).await.expect("it is held");
        let good = soon(waiting).await.expect("no panic").expect("it is free");
        assert_eq!(rig.holds("good"), held_by(&good.holder(), 1));
        soon(bad.unlock()).await.expect("it is held");
        soon(good.unlock()).await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// Trap: the same, for waiters that subscribe together, and for the commands after them.
    #[tokio::test]
    async fn after_a_refused_subscription_every_caller_gets_its_own_reply() {
        let rig = deaf_to_all_but("good").await;
        let other = rig.bystander().await;
        let names = ["bad-1", "good", "bad-2", "bad-3"];
        let mut guards = BTreeMap::new();
        for name in names {
            let lock = other.lock(name).lease(LONG);
            guards.insert(name, soon(lock.lock()).await.expect("it is free"));
        }
        let waiting = names.map(|name| (name, tokio::spawn(rig.client.lock(name).lock())));
        listens(&rig.raw, "good").await;
        for (name, guard) in &guards {
            let holder = soon(rig.client.lock(name).holder()).await.expect("it may look");
            assert_eq!(holder, Some(guard.holder()));
        }
        for (name, waiting) in waiting {
            if name == "good" {
                soon(guards.remove(name).expect("held above").unlock()).await.expect("it is held");
                let guard = soon(waiting).await.expect("no panic").expect("it is free");
                soon(guard.unlock()).await.expect("it is held");
            } else {
                let error = soon(waiting).await.expect("no panic").expect_err("it is refused");
                assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied));
                assert_eq!(error.lock(), Some(name));
            }
        }
        drop(guards);
        soon(other.close()).await;
        rig.assert_nothing_left().await;
    }
}

mod replies {
    use super::*;

    /// Trap: a reply that begins with a word of pub/sub is taken for a message, and its caller
    /// hangs, and the next one too.
    #[tokio::test]
    async fn a_lock_may_be_named_like_a_word_of_pub_sub() {
        let rig = Rig::start().await;
        let other = rig.bystander().await;
        for name in ["message", "subscribe", "unsubscribe", "pmessage", "smessage", "ssubscribe"] {
            let lock = rig.client.lock(name);
            let guard = soon(lock.lock()).await.expect("it is free");
            let waiting = tokio::spawn(other.lock(name).lock());
            listens(&rig.raw, name).await;
            assert_eq!(soon(lock.holder()).await.expect("it is held"), Some(guard.holder()));
            soon(guard.unlock()).await.expect("it is held");
            let guard = soon(waiting).await.expect("no panic").expect("it is free");
            assert!(soon(lock.try_lock_now()).await.expect("an answer").is_none());
            soon(guard.unlock()).await.expect("it is held");
        }
        rig.assert_nothing_left().await;
    }

    /// Trap: the same, for a holder that another client has named so.
    #[tokio::test]
    async fn a_holder_may_be_named_like_a_word_of_pub_sub() {
        let rig = Rig::start().await;
        for holder in ["message", "subscribe", "invalidate"] {
            rig.raw.cmd(&["HSET", "job", holder, "1"]).ok();
            rig.raw.cmd(&["PEXPIRE", "job", "60000"]).ok();
            let lock = rig.client.lock("job");
            assert!(soon(lock.try_lock_now()).await.expect("an answer").is_none());
            let seen = soon(lock.holder()).await.expect("an answer").expect("it is held");
            assert_eq!(seen.as_str(), holder);
            assert!(soon(lock.force_unlock()).await.expect("an answer"));
        }
        rig.assert_nothing_left().await;
    }

    /// Trap: a script that may write is refused when the memory is full, a release too. R-17.
    #[tokio::test]
    async fn a_lock_can_be_given_back_when_the_memory_is_full() {
        let rig = Rig::start().await;
        let lock = rig.client.lock("job");
        let outer = soon(lock.lock()).await.expect("it is free");
        let inner = soon(lock.lock()).await.expect("it is ours");
        rig.raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).ok();
        let error = soon(rig.client.lock("other").lock()).await.expect_err("no memory is left");
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::OutOfMemory));
        assert!(!error.is_indeterminate() && !error.is_unavailable());
        soon(outer.extend(LONG)).await.expect("it needs no memory");
        drop(inner);
        soon(outer.unlock()).await.expect("it needs no memory");
        assert_no_keys(&rig.raw);
        rig.assert_nothing_left().await;
    }
}

mod endings {
    use super::*;

    /// A client with all its connections in use: commands, subscriptions, renewals.
    async fn busy(server: &RedisServer) -> Client {
        let builder = Client::builder(server.url()).expect("a URL");
        let builder = builder.watchdog(Duration::from_secs(1)).command_timeout(TIMEOUT);
        let client = soon(builder.connect()).await.expect("the server is up");
        let raw = server.raw();
        let guard = soon(client.lock("job").lock()).await.expect("it is free");
        let waiting = tokio::spawn(client.lock("job").lock());
        listens(&raw, "job").await;
        eventually("it renews", async || clients(&raw) == 3).await;
        soon(guard.unlock()).await.expect("it is held");
        drop(soon(waiting).await.expect("no panic").expect("it is free"));
        client
    }

    /// Trap: clients that are dropped go on, with their tasks and sockets. I12.
    #[tokio::test]
    async fn a_client_that_is_closed_has_no_connection_any_more() {
        let server = RedisServer::start();
        let client = busy(&server).await;
        soon(client.close()).await;
        let raw = server.raw();
        eventually("it has left", async || clients(&raw) == 0).await;
        assert_eq!(subscriptions(&raw), 0);
        assert_no_keys(&raw);
        let error = soon(client.lock("job").lock()).await.expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }

    /// I12.
    #[tokio::test]
    async fn a_client_whose_last_handle_is_dropped_has_no_connection_any_more() {
        let server = RedisServer::start();
        let client = busy(&server).await;
        let lock = client.lock("job");
        let guard = soon(lock.lock()).await.expect("it is free");
        drop((client, lock));
        let raw = server.raw();
        assert!(guard.is_held() && clients(&raw) > 0, "a guard is a handle");
        drop(guard);
        eventually("it has left", async || clients(&raw) == 0).await;
        assert_no_keys(&raw);
    }

    /// I12: a server that does not answer does not keep a client that wants to go.
    #[tokio::test]
    async fn a_client_can_be_closed_while_the_server_is_silent() {
        let rig = Rig::start().await;
        let _guard = soon(rig.client.lock("job").lock()).await.expect("it is free");
        rig.proxy.half_open(true);
        soon(rig.client.lock("other").try_lock_now()).await.expect_err("nobody answers");
        soon(rig.client.close()).await;
        rig.proxy.half_open(false);
        rig.proxy.wait_connections(0).await;
    }

    /// I12: nobody else can stop what a dropped future has begun.
    #[tokio::test]
    async fn a_connect_that_is_dropped_leaves_no_connection() {
        let rig = Rig::start().await;
        rig.assert_nothing_left().await;
        rig.proxy.half_open(true);
        let before = rig.proxy.accepted();
        let mut connecting = Box::pin(Client::connect(rig.proxy.url()));
        tokio::select! {
            _ = &mut connecting => panic!("nobody answers"),
            () = eventually("it connects", async || rig.proxy.accepted() > before) => {}
        }
        drop(connecting);
        rig.proxy.half_open(false);
        rig.proxy.wait_connections(0).await;
        // Nor does it come back, as whoever is still there would by now.
        let tried = rig.proxy.accepted();
        let client = soon(Client::connect(rig.proxy.url())).await.expect("the server is up");
        let guard = soon(client.lock("job").lock()).await.expect("it is free");
        soon(guard.unlock()).await.expect("it is held");
        assert_eq!(rig.proxy.accepted(), tried + 1);
        soon(client.close()).await;
    }

    /// Trap: a client whose runtime has ended hangs, or says that it is connected. R-39.
    #[test]
    fn a_client_that_outlives_its_runtime_fails_but_does_not_hang() {
        let server = RedisServer::start();
        let first = tokio::runtime::Runtime::new().expect("a runtime");
        let (client, guard) = first.block_on(async {
            let client = busy(&server).await;
            let guard = soon(client.lock("job").lock()).await.expect("it is free");
            (client, guard)
        });
        first.shutdown_timeout(SOON);
        let second = tokio::runtime::Runtime::new().expect("a runtime");
        second.block_on(async {
            let error = soon(client.lock("other").try_lock_for(TIMEOUT)).await;
            assert!(error.is_err(), "{error:?}");
            drop(guard);
            soon(client.close()).await;
        });
        drop(client);
        let raw = server.raw();
        second.block_on(eventually("its lease has ended", async || {
            raw.cmd(&["EXISTS", "job"]).int() == 0 && clients(&raw) == 0
        }));
    }

    /// guards and clients may be dropped where there is no runtime.
    #[test]
    fn a_client_dropped_outside_a_runtime_ends_too() {
        let server = RedisServer::start();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (client, guard) = runtime.block_on(async {
            let client = busy(&server).await;
            let guard = soon(client.lock("job").lock()).await.expect("it is free");
            (client, guard)
        });
        drop((guard, client));
        let raw = server.raw();
        runtime.block_on(eventually("it has left", async || clients(&raw) == 0));
        assert_no_keys(&raw);
    }

    /// I12, R-30: no connection is opened for a lock, or left by one.
    #[tokio::test]
    async fn connections_do_not_grow_with_use() {
        let rig = Rig::start().await;
        let mut tasks = Vec::new();
        for n in 0..50 {
            let lock = rig.client.lock(format!("job-{}", n % 10));
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    lock.lock().await?.unlock().await?;
                }
                Ok::<_, leasehold::Error>(())
            }));
        }
        for task in tasks {
            soon(task).await.expect("no panic").expect("no error");
        }
        assert!(rig.proxy.accepted() <= 3, "{} connections", rig.proxy.accepted());
        assert!(rig.proxy.count(releasing("job-0")) > 0);
        rig.assert_nothing_left().await;
    }
}

//! The count-down latch: it opens for all who wait, counts each count-down once, and nobody is let
//! through, or kept, by what was true before they came.
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures::poll;
use leasehold::{Builder, Client, CountDownLatch, Error, ErrorKind};
use tokio::task::JoinSet;

use crate::{
    rig::{Rig, soon},
    support::{
        cluster::ClusterSetup,
        eventually,
        proxy::{Command, Fault},
        redisson_permits::RedissonPermits,
        server::RedisServer,
        subscriptions,
    },
};

const WAIT: &str = include_str!("../../lua/count_down_latch/wait.lua");
const COUNT_DOWN: &str = include_str!("../../lua/count_down_latch/count_down.lua");
const TRY_SET: &str = include_str!("../../lua/count_down_latch/try_set.lua");
const DELETE: &str = include_str!("../../lua/count_down_latch/delete.lua");

const TIMEOUT: Duration = Duration::from_millis(400);

type Waiting = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

async fn rig(settings: impl FnOnce(Builder) -> Builder) -> Rig {
    knowing(Rig::with(|builder| settings(builder.command_timeout(TIMEOUT))).await)
}

/// The server knows the scripts: else the first reply of each would be NOSCRIPT.
fn knowing(rig: Rig) -> Rig {
    for script in [WAIT, COUNT_DOWN, TRY_SET, DELETE] {
        rig.raw.cmd(&["SCRIPT", "LOAD", script]).ok();
    }
    rig
}

/// A latch that is set to this.
async fn closed(rig: &Rig, count: u32) -> CountDownLatch {
    let latch = rig.client.count_down_latch("gate");
    assert!(soon(latch.try_set(count)).await.expect("it is up"));
    latch
}

/// A wait that has its place among the others.
async fn waiting(latch: &CountDownLatch) -> Waiting {
    let mut waiting: Waiting = Box::pin(latch.wait());
    assert!(poll!(&mut waiting).is_pending());
    waiting
}

async fn listening(rig: &Rig) {
    eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
}

/// The waiters listen, and have looked once more since.
async fn settled(rig: &Rig, latch: &CountDownLatch) {
    listening(rig).await;
    rig.proxy.wait_for(rig.running(WAIT), 2).await;
    // Its answer comes behind that of the look.
    soon(latch.count()).await.expect("it is up");
}

fn commands(rig: &Rig) -> usize {
    rig.proxy.count(|command: &Command| !command.is("PING") && !command.is("CLIENT"))
}

mod opening {
    use super::*;

    /// I16: what was never set is open, and costs one look.
    #[tokio::test]
    async fn a_latch_that_was_never_set_is_open() {
        let rig = rig(|builder| builder).await;
        let latch = rig.client.count_down_latch("gate");
        rig.proxy.forget_commands();
        soon(latch.wait()).await.expect("it is open");
        assert_eq!(commands(&rig), 1);
        assert!(soon(latch.wait_for(Duration::ZERO)).await.expect("it is up"));
        assert_eq!(soon(latch.count()).await.expect("it is up"), 0);
        assert_eq!(soon(latch.count_down()).await.expect("it is up"), 0);
        assert!(!soon(latch.delete()).await.expect("it is up"));
        rig.assert_nothing_left().await;
    }

    /// I16: the last of them opens it, for those who wait and those who come later.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_last_count_down_opens_it() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 3).await;
        let other = rig.bystander().await.count_down_latch("gate");
        let mut waits = [waiting(&latch).await, waiting(&other).await];
        eventually("both listen", async || listeners(&rig) == 2).await;
        for left in [2, 1] {
            assert_eq!(soon(other.count_down()).await.expect("it is up"), left);
            assert!(!soon(latch.wait_for(Duration::ZERO)).await.expect("it is up"));
            assert!(poll!(&mut waits[0]).is_pending() && poll!(&mut waits[1]).is_pending());
        }
        assert_eq!(soon(latch.count()).await.expect("it is up"), 1);
        assert_eq!(soon(latch.count_down()).await.expect("it is up"), 0);
        for wait in waits {
            soon(wait).await.expect("it is open");
        }
        soon(latch.wait()).await.expect("it is open");
        assert_eq!(rig.raw.cmd(&["EXISTS", "gate"]).int(), 0);
    }

    /// R-36, I16: a thousand of one process share one look, and one message wakes them all.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_waiters_cost_a_few_commands() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        rig.proxy.forget_commands();
        let mut waiters = JoinSet::new();
        for _ in 0..1000 {
            waiters.spawn(waiting(&latch).await);
        }
        settled(&rig, &latch).await;
        soon(rig.bystander().await.count_down_latch("gate").count_down()).await.expect("it is up");
        for waited in soon(waiters.join_all()).await {
            waited.expect("it is open");
        }
        let looks = rig.proxy.count(rig.running(WAIT));
        // The others opened and made the subscription, and asked for the count.
        assert!(looks <= 10 && commands(&rig) <= 30, "{looks} of {}", commands(&rig));
    }

    /// I10: as do a thousand whose time is up.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_waits_with_a_limit_end_with_it() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        let mut waiters = JoinSet::new();
        for _ in 0..1000 {
            waiters.spawn(latch.wait_for(Duration::from_millis(300)));
        }
        for opened in soon(waiters.join_all()).await {
            assert!(!opened.expect("the server is up"));
        }
        assert!(rig.proxy.count(rig.running(WAIT)) < 500);
    }

    /// I9, R-32: nothing was heard of it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_message_costs_no_more_than_the_cap() {
        let rig = rig(|builder| builder.fallback_cap(Duration::from_millis(200))).await;
        let latch = closed(&rig, 1).await;
        rig.proxy.eat_messages(true);
        let wait = waiting(&latch).await;
        listening(&rig).await;
        soon(latch.count_down()).await.expect("it is up");
        soon(wait).await.expect("it is open");
        assert!(rig.proxy.messages_eaten() > 0);
    }

    /// I9, R-32: not even a wait with a limit is told wrong, wherever it stands among others.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_wait_looks_once_more_when_it_ends() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        rig.proxy.eat_messages(true);
        let first = waiting(&latch).await;
        settled(&rig, &latch).await;
        let mut short = Box::pin(latch.wait_for(Duration::from_millis(700)));
        assert!(poll!(&mut short).is_pending());
        // It has heard that the latch is closed.
        let looks = rig.proxy.count(rig.running(WAIT));
        assert!(!soon(latch.wait_for(Duration::ZERO)).await.expect("it is up"));
        rig.proxy.wait_for(rig.running(WAIT), looks + 1).await;
        soon(latch.count_down()).await.expect("it is up");
        assert!(soon(short).await.expect("it is up"));
        soon(first).await.expect("it is open");
    }

    /// the subscription breaks just before.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_broken_subscription_costs_no_hang() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        let wait = waiting(&latch).await;
        listening(&rig).await;
        rig.raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).ok();
        soon(latch.count_down()).await.expect("it is up");
        soon(wait).await.expect("it is open");
    }

    fn listeners(rig: &Rig) -> i64 {
        let channel = RedissonPermits::latch_channel("gate");
        rig.raw.cmd(&["PUBSUB", "NUMSUB", &channel]).ok().items()[1].int()
    }
}

mod changes {
    use super::*;

    /// Ours wakes ours; so does Java's.
    #[tokio::test(flavor = "multi_thread")]
    async fn deleting_it_lets_our_waiters_go() {
        let rig = rig(|builder| builder).await;
        let java = RedissonPermits::connect(rig.server.port());
        for by_java in [false, true] {
            let latch = closed(&rig, 5).await;
            let wait = waiting(&latch).await;
            listening(&rig).await;
            let deleted = match by_java {
                true => java.delete_latch("gate"),
                false => soon(latch.delete()).await.expect("it is up"),
            };
            assert!(deleted);
            soon(wait).await.expect("it is open");
        }
    }

    /// A Java service counts down what we wait for; whatever else comes on the channel is no more
    /// than a reason to look.
    #[tokio::test(flavor = "multi_thread")]
    async fn messages_are_not_believed_and_java_counts() {
        let rig = rig(|builder| builder).await;
        let java = RedissonPermits::connect(rig.server.port());
        assert!(java.try_set_count("gate", 2));
        let latch = rig.client.count_down_latch("gate");
        assert!(!soon(latch.try_set(9)).await.expect("it is up"), "it is set");
        let mut wait = waiting(&latch).await;
        listening(&rig).await;
        let looks = rig.running(WAIT);
        for payload in ["0", "1", "", "-7", "garbage"] {
            let before = rig.proxy.count(looks.clone());
            rig.raw.cmd(&["PUBLISH", &RedissonPermits::latch_channel("gate"), payload]).ok();
            rig.proxy.wait_for(looks.clone(), before + 1).await;
            assert!(poll!(&mut wait).is_pending());
        }
        java.count_down("gate");
        assert_eq!(soon(latch.count()).await.expect("it is up"), 1);
        java.count_down("gate");
        soon(wait).await.expect("it is open");
        let listener = rig.server.raw();
        listener.subscribe(&RedissonPermits::latch_channel("gate"));
        assert!(soon(latch.try_set(1)).await.expect("it is open"));
        assert_eq!(java.count("gate"), 1);
        soon(latch.count_down()).await.expect("it is up");
        let heard = || listener.next_message(Duration::from_secs(10)).map(|m| m.payload);
        assert_eq!([heard(), heard()], [Some("1".into()), Some("0".into())]);
    }

    /// It opened and was set anew before the waiter looked: as documented, that waits on.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_latch_that_is_set_anew_at_once_keeps_its_waiters() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        let mut wait = waiting(&latch).await;
        settled(&rig, &latch).await;
        let look = rig.proxy.hold_command(rig.running(WAIT));
        let other = rig.bystander().await.count_down_latch("gate");
        soon(other.count_down()).await.expect("it is up");
        look.held().await;
        assert!(soon(other.try_set(1)).await.expect("it is open"));
        look.release();
        // Setting it is told as well.
        rig.proxy.wait_for(rig.running(WAIT), 4).await;
        assert!(poll!(&mut wait).is_pending());
        soon(other.count_down()).await.expect("it is up");
        soon(wait).await.expect("it is open");
    }

    /// Who comes after it was closed anew is not let through by an older look.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_older_look_opens_it_for_nobody_who_came_later() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        let first = waiting(&latch).await;
        settled(&rig, &latch).await;
        let opened = rig.proxy.hold_reply(rig.running(WAIT));
        let other = rig.bystander().await.count_down_latch("gate");
        soon(other.count_down()).await.expect("it is up");
        opened.held().await;
        assert!(soon(other.try_set(1)).await.expect("it is open"));
        let mut second = waiting(&latch).await;
        let before = rig.proxy.count(rig.running(WAIT));
        opened.release();
        soon(first).await.expect("it was open when it was looked at");
        rig.proxy.wait_for(rig.running(WAIT), before + 1).await;
        assert!(poll!(&mut second).is_pending());
        soon(other.count_down()).await.expect("it is up");
        soon(second).await.expect("it is open");
    }

    /// Nor is who comes after it opened told that it is closed.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_older_look_closes_it_for_nobody_who_came_later() {
        let rig = rig(|builder| builder.fallback_cap(Duration::from_millis(300))).await;
        let latch = closed(&rig, 1).await;
        let first = waiting(&latch).await;
        settled(&rig, &latch).await;
        let refused = rig.proxy.hold_reply(rig.running(WAIT));
        refused.held().await;
        let second = waiting(&latch).await;
        rig.proxy.eat_messages(true);
        let other = rig.bystander().await.count_down_latch("gate");
        soon(other.count_down()).await.expect("it is up");
        let once = tokio::spawn(latch.wait_for(Duration::ZERO));
        let short = tokio::spawn(latch.wait_for(Duration::from_millis(1)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        refused.release();
        assert!(soon(once).await.expect("no panic").expect("it is up"));
        assert!(soon(short).await.expect("no panic").expect("it is up"));
        soon(first).await.expect("it is open");
        soon(second).await.expect("it is open");
    }
}

mod lost_replies {
    use super::*;

    fn lose(rig: &Rig, script: &'static str, cut: bool) -> Fault {
        match cut {
            false => rig.proxy.drop_reply(rig.running(script), 1),
            true => rig.proxy.drop_reply_and_cut(rig.running(script)),
        }
    }

    /// R-26, I5, I16.
    #[tokio::test]
    async fn a_count_down_counts_once() {
        for cut in [false, true] {
            let rig = rig(|builder| builder).await;
            let latch = closed(&rig, 3).await;
            let lost = lose(&rig, COUNT_DOWN, cut);
            assert_eq!(soon(latch.count_down()).await.expect("it was sent again"), 2);
            lost.happened(1).await;
            assert_eq!(soon(latch.count()).await.expect("it is up"), 2);
        }
    }

    /// R-26, I5: one that is still on its way when its repetition was answered.
    #[tokio::test]
    async fn a_count_down_that_runs_late_counts_nothing() {
        let server = RedisServer::start();
        let set = |builder: Builder| builder.command_timeout(TIMEOUT);
        let rig = knowing(Rig::with_rights(server, "-client|kill", set).await);
        let latch = closed(&rig, 9).await;
        let ghost = rig.proxy.hold_command(rig.running(COUNT_DOWN));
        let counting = tokio::spawn({
            let latch = latch.clone();
            async move { latch.count_down().await }
        });
        ghost.held().await;
        rig.proxy.cut_client_side_only().await;
        assert_eq!(soon(counting).await.expect("no panic").expect("it was sent again"), 8);
        for left in [7, 6, 5] {
            assert_eq!(soon(latch.count_down()).await.expect("it is up"), left);
        }
        ghost.release();
        let late = ghost.answered().await.expect("nobody was there to stop it");
        assert_eq!((late.items()[0].int(), soon(latch.count()).await.expect("it is up")), (8, 5));
    }

    /// I11: what cannot be sent again says that it may have been done.
    #[tokio::test]
    async fn setting_and_deleting_say_that_nobody_knows() {
        let rig = rig(|builder| builder).await;
        let latch = rig.client.count_down_latch("gate");
        let _lost = [lose(&rig, TRY_SET, true), lose(&rig, DELETE, true)];
        let error = soon(latch.try_set(2)).await.expect_err("no reply came");
        assert_eq!((error.kind(), error.is_indeterminate()), (ErrorKind::NoReply, true));
        assert!(!soon(soon_up(&latch)).await, "it is set");
        let error = soon(latch.delete()).await.expect_err("no reply came");
        assert_eq!((error.kind(), error.is_indeterminate()), (ErrorKind::NoReply, true));
        soon(latch.wait()).await.expect("it is open");
    }

    /// Sets it, as soon as the connection stands again.
    async fn soon_up(latch: &CountDownLatch) -> bool {
        loop {
            match latch.try_set(2).await {
                Ok(set) => return set,
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// looks change nothing, so nothing is left of one that was dropped or lost.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_wait_that_is_dropped_at_any_point_leaves_nothing() {
        let rig = rig(|builder| builder).await;
        let latch = closed(&rig, 1).await;
        rig.proxy.delay_replies(Duration::from_millis(2));
        for point in 0..6 {
            let (mut wait, mut polls) = (Box::pin(latch.wait()), 0);
            let dropped = poll_fn(|cx| {
                polls += 1;
                assert!(wait.as_mut().poll(cx).is_pending());
                if polls > point { Poll::Ready(()) } else { Poll::Pending }
            });
            // Who is not woken any more before the last point is dropped there.
            let _ = tokio::time::timeout(Duration::from_millis(100), dropped).await;
        }
        let _lost = lose(&rig, WAIT, true);
        assert!(soon(latch.wait_for(Duration::ZERO)).await.is_err());
        eventually("nobody listens", async || subscriptions(&rig.raw) == 0).await;
        assert!(soon(async { latch.delete().await.is_ok() || latch.delete().await.is_ok() }).await);
        rig.assert_nothing_left().await;
    }
}

mod losing_the_server {
    use super::*;

    ///
    #[tokio::test(flavor = "multi_thread")]
    async fn a_latch_outlives_a_server_with_its_data() {
        let server = RedisServer::builder().appendonly().start();
        let mut rig = Rig::before(server, |builder| builder.command_timeout(TIMEOUT)).await;
        let latch = closed(&rig, 2).await;
        soon(latch.count_down()).await.expect("it is up");
        let mut wait = waiting(&latch).await;
        listening(&rig).await;
        rig.server.restart();
        assert!(poll!(&mut wait).is_pending());
        assert_eq!(soon(latch.count_down()).await.expect("it is up"), 0);
        soon(wait).await.expect("it is open");
    }

    /// as documented, what is lost is open.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_latch_that_is_lost_with_its_server_is_open() {
        let mut rig = rig(|builder| builder).await;
        let latch = closed(&rig, 2).await;
        let wait = waiting(&latch).await;
        listening(&rig).await;
        rig.server.restart();
        soon(wait).await.expect("it is open");
    }

    /// I10.
    #[tokio::test(flavor = "multi_thread")]
    async fn waits_end_with_their_client_or_its_patience() {
        let rig = rig(|builder| builder.patience(Duration::from_millis(600))).await;
        let latch = closed(&rig, 1).await;
        let impatient = waiting(&latch).await;
        listening(&rig).await;
        rig.proxy.half_open(true);
        let error = soon(impatient).await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        rig.proxy.half_open(false);
        let again = tokio::spawn(latch.wait());
        let error = {
            let back = async || latch.count().await.is_ok();
            eventually("it is back", back).await;
            soon(rig.client.close()).await;
            soon(again).await.expect("no panic").expect_err("it is closed")
        };
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(soon(latch.wait()).await.expect_err("it is closed").kind(), ErrorKind::Closed);
        let refused =
            [soon(latch.count_down()).await.map(drop), soon(latch.delete()).await.map(drop)];
        for refused in refused {
            assert_eq!(refused.expect_err("it is closed").kind(), ErrorKind::Closed);
        }
    }
}

mod numbers {
    use super::*;

    /// I10.
    #[tokio::test]
    async fn what_is_no_count_is_told() {
        let rig = rig(|builder| builder).await;
        let latch = rig.client.count_down_latch("gate").label("import");
        let error = soon(latch.try_set(i32::MAX as u32 + 1)).await.expect_err("too many");
        assert_eq!(error.kind(), ErrorKind::InvalidCount);
        for (command, kind) in [
            (["SET", "gate", "many"], ErrorKind::Corrupt),
            (["RPUSH", "gate", "a"], ErrorKind::WrongType),
        ] {
            rig.raw.cmd(&["DEL", "gate"]).ok();
            rig.raw.cmd(&command).ok();
            for (which, told) in [
                soon(latch.wait()).await,
                soon(latch.wait_for(Duration::ZERO)).await.map(drop),
                soon(latch.count_down()).await.map(drop),
                soon(latch.count()).await.map(drop),
            ]
            .into_iter()
            .enumerate()
            {
                assert_eq!(told.expect_err("no count").kind(), kind, "{command:?}, {which}");
            }
        }
        assert_eq!(soon(latch.delete()).await.expect_err("a list").kind(), ErrorKind::WrongType);
        rig.raw.cmd(&["DEL", "gate"]).ok();
        // Redisson counts a latch that is not set down to -1, and deletes it; should one stay:
        rig.raw.cmd(&["SET", "gate", "-1"]).ok();
        soon(latch.wait()).await.expect("it is open");
        assert_eq!(soon(latch.count()).await.expect("it is up"), 0);
        assert_eq!(soon(latch.count_down()).await.expect("it is up"), 0);
        assert!(soon(latch.try_set(0)).await.expect("it is open"));
        soon(latch.wait()).await.expect("nothing is left to count");
        assert!(format!("{latch:?}").contains("gate"));
    }

    /// In a cluster key and channel must share a slot, which some names with braces keep them from.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_cluster_refuses_names_whose_keys_would_part() {
        let cluster = ClusterSetup::start();
        let client = soon(Client::connect(cluster.url())).await.expect("it is up");
        // A latch's channel has braces of its own around those of the name.
        let latch = client.count_down_latch("a{b}c");
        let errors = [
            soon(latch.wait()).await.map(drop),
            soon(latch.wait_for(Duration::ZERO)).await.map(drop),
            soon(latch.count_down()).await.map(drop),
            soon(latch.try_set(1)).await.map(drop),
            soon(latch.count()).await.map(drop),
            soon(latch.delete()).await.map(drop),
            soon(client.semaphore("a{b").try_set(1)).await.map(drop),
            soon(client.permit_semaphore("a{b").try_set(1)).await.map(drop),
        ];
        for (which, refused) in errors.into_iter().enumerate() {
            let error = refused.expect_err("its keys part");
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{which}");
        }
        assert_eq!(cluster.node_of("a{b}c").raw().cmd(&["EXISTS", "a{b}c"]).int(), 0);
        for name in ["gate", "{gate}"] {
            let latch = client.count_down_latch(name);
            let set = soon(latch.try_set(1)).await;
            if name == "{gate}" {
                assert_eq!(set.expect_err("its keys part").kind(), ErrorKind::InvalidName);
                continue;
            }
            assert!(set.expect("it is up"));
            let wait = tokio::spawn(latch.wait());
            let other = soon(Client::connect(cluster.url())).await.expect("it is up");
            soon(other.count_down_latch(name).count_down()).await.expect("it is up");
            soon(wait).await.expect("no panic").expect("it is open");
        }
        for name in ["pool", "a{b}c", "{pool}"] {
            let pool = client.semaphore(name).sized(1);
            let permit = soon(pool.acquire()).await.expect("it is free");
            let next = tokio::spawn(pool.acquire());
            soon(permit.release()).await.expect("it is held");
            drop(soon(next).await.expect("no panic").expect("it is free"));
            let workers = client.permit_semaphore(format!("{name}:workers")).sized(1);
            let permit = soon(workers.acquire()).await.expect("it is free");
            soon(permit.release()).await.expect("it is held");
        }
        soon(client.close()).await;
    }
}

//! The semaphore: never more permits than there are, waiters in order, and no permit lost or given
//! twice, whatever is lost on the way.
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use futures::poll;
use leasehold::{Builder, Error, ErrorKind, LostReason, Semaphore, SemaphorePermit};
use tokio::task::{JoinSet, yield_now};

use crate::{
    rig::{Rig, soon},
    support::{
        eventually,
        history::History,
        proxy::{Command, Fault, Matcher, Proxy},
        redisson_permits::RedissonPermits,
        server::{Raw, RedisServer},
        subscriptions,
    },
};

const ACQUIRE: &str = include_str!("../../lua/semaphore/acquire.lua");
const RELEASE: &str = include_str!("../../lua/semaphore/release.lua");
const SCRIPTS: [&str; 7] = [
    ACQUIRE,
    RELEASE,
    include_str!("../../lua/semaphore/give.lua"),
    include_str!("../../lua/semaphore/add.lua"),
    include_str!("../../lua/semaphore/try_set.lua"),
    include_str!("../../lua/semaphore/drain.lua"),
    include_str!("../../lua/semaphore/inspect.lua"),
];

const TIMEOUT: Duration = Duration::from_millis(400);
const AT_ONCE: Duration = Duration::ZERO;

type Acquiring = Pin<Box<dyn Future<Output = Result<SemaphorePermit, Error>> + Send>>;

async fn rig(settings: impl FnOnce(Builder) -> Builder) -> Rig {
    knowing(Rig::with(|builder| settings(builder.command_timeout(TIMEOUT))).await)
}

/// The server knows the scripts: else the first reply of each would be NOSCRIPT.
fn knowing(rig: Rig) -> Rig {
    for script in SCRIPTS {
        rig.raw.cmd(&["SCRIPT", "LOAD", script]).ok();
    }
    rig
}

/// How many permits can be taken, as the server has it.
fn left(raw: &Raw) -> i64 {
    raw.cmd(&["GET", "pool"]).int()
}

/// How many entries there are in the calls of a script that has three keys.
fn entries(proxy: &Proxy, running: impl Matcher) -> usize {
    let commands = proxy.commands().into_iter().map(|args| Command { connection: 0, args });
    let keys = |command: Command| String::from_utf8_lossy(&command.args[2]).parse::<usize>();
    commands.filter(|command| running(command)).map(|command| keys(command).unwrap() / 3).sum()
}

/// An acquisition that has its place in the queue.
async fn queued(semaphore: &Semaphore, permits: u32) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(semaphore.acquire_many(permits));
    assert!(poll!(&mut acquiring).is_pending());
    acquiring
}

/// Drops a future after a few points or a few milliseconds, unless it is through by then.
async fn at_random<F: Future>(random: &mut Rng, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = if random.bool() { random.usize(..3) } else { usize::MAX };
    let driving = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    });
    let time = Duration::from_micros(random.u64(..5000));
    tokio::time::timeout(time, driving).await.unwrap_or(None)
}

mod capacity {
    use super::*;

    const PERMITS: usize = 5;

    /// I15, R-25, R-26, R-38.
    #[tokio::test(flavor = "multi_thread")]
    async fn never_more_permits_are_taken_than_there_are() {
        let rig = rig(|builder| builder).await;
        let (other, history) = (rig.bystander().await, History::new());
        assert!(soon(other.semaphore("pool").try_set(PERMITS as u32)).await.expect("it is up"));
        let (granted, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        for task in 0..64 {
            let client = if task % 2 == 0 { &rig.client } else { &other };
            let (pool, history) = (client.semaphore("pool"), history.clone());
            tasks.spawn(work(pool, history, granted.clone(), task));
        }
        for round in 1..=10 {
            let enough = async || granted.load(Ordering::Relaxed) >= round * 80;
            eventually("they go on", enough).await;
            // Whatever else is under way loses its reply as well.
            rig.proxy
                .drop_reply_and_cut(|command: &Command| command.is("EVALSHA"))
                .happened(1)
                .await;
        }
        granted.store(usize::MAX / 2, Ordering::Relaxed);
        soon(tasks.join_all()).await;
        assert!(history.intervals().len() > 500);
        assert!(history.peak("pool") <= PERMITS, "{} at once", history.peak("pool"));
        eventually("all are given back", async || left(&rig.raw) == PERMITS as i64).await;
    }

    async fn work(pool: Semaphore, history: History, granted: Arc<AtomicUsize>, task: u64) {
        let mut random = Rng::with_seed(task);
        while granted.load(Ordering::Relaxed) < usize::MAX / 2 {
            let Some(permit) = at_random(&mut random, pool.acquire()).await else { continue };
            let Ok(permit) = permit else { continue };
            let held = history.held("pool", &task.to_string());
            yield_now().await;
            held.end();
            granted.fetch_add(1, Ordering::Relaxed);
            match random.bool() {
                true => drop(permit),
                false => drop(at_random(&mut random, permit.release()).await),
            }
        }
    }

    /// R-38, I12.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_future_dropped_at_any_point_leaves_nothing_taken() {
        let rig = rig(|builder| builder).await;
        // Else a machine that stalls may see a call through in one poll.
        rig.proxy.delay_replies(Duration::from_millis(2));
        let pool = rig.client.semaphore("pool").sized(3);
        for way in 0..3 {
            for point in 0..10 {
                let permit = (way == 2).then_some(soon(pool.acquire_many(2)).await.expect("free"));
                let mut call: Pin<Box<dyn Future<Output = ()> + Send>> = match (way, permit) {
                    (0, _) => Box::pin(async { drop(pool.acquire_many(2).await) }),
                    (_, Some(permit)) => Box::pin(async { drop(permit.release().await) }),
                    _ => Box::pin(async { drop(pool.try_acquire_many(2, super::TIMEOUT).await) }),
                };
                let mut polls = 0;
                let dropped = poll_fn(|cx| {
                    polls += 1;
                    if call.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(false);
                    }
                    if polls > point { Poll::Ready(true) } else { Poll::Pending }
                });
                // Who is not woken any more before the last point is dropped there.
                let ended = tokio::time::timeout(Duration::from_millis(150), dropped).await;
                drop(call);
                let free = async || left(&rig.raw) == 3;
                eventually(&format!("way {way}, point {point}: it is free"), free).await;
                if ended == Ok(false) && point > 0 {
                    break;
                }
            }
        }
        soon(rig.client.close()).await;
    }

    /// given up while others hold the permits, before and after it listens.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_wait_that_is_dropped_takes_nothing_later() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(1);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        let second = queued(&pool, 1).await;
        drop((waiting, second));
        soon(permit.release()).await.expect("it is held");
        soon(rig.client.close()).await;
        assert_eq!(left(&rig.raw), 1);
    }

    /// A try that asks once gets what this task has just given back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_permit_can_be_taken_again_at_once() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(1);
        for round in 0..50 {
            let permit = soon(pool.try_acquire_now()).await.expect("the server is up");
            drop(permit.unwrap_or_else(|| panic!("in round {round} it was not free")));
        }
        soon(rig.client.close()).await;
        assert_eq!(left(&rig.raw), 1);
    }
}

mod order {
    use super::*;

    /// A waiter for many is not passed by: those behind it wait, wherever they come from.
    #[tokio::test(flavor = "multi_thread")]
    async fn waiters_for_one_permit_do_not_overtake_one_for_three() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(4);
        let taken = soon(pool.acquire_many(4)).await.expect("it is free");
        let (mut first, mut large) = (queued(&pool, 1).await, queued(&pool, 3).await);
        let (mut small, mut last) = (queued(&pool, 1).await, queued(&pool, 1).await);
        eventually("they listen", async || subscriptions(&rig.raw) == 1).await;
        let java = RedissonPermits::connect(rig.server.port());
        java.release("pool", 3);
        soon(&mut first).await.expect("there are three").forget();
        let asked = rig.running(ACQUIRE);
        let before = rig.proxy.count(asked.clone());
        java.release("pool", 0);
        rig.proxy.wait_for(asked, before + 1).await;
        assert!(poll!(&mut small).is_pending() && poll!(&mut last).is_pending());
        assert!(soon(pool.try_acquire_now()).await.expect("the server is up").is_none());
        assert_eq!((left(&rig.raw), poll!(&mut large).is_pending()), (2, true));
        java.release("pool", 2);
        let large = soon(large).await.expect("there are four");
        let small = soon(small).await.expect("there is one");
        assert!(poll!(&mut last).is_pending());
        drop((large, small, taken));
        soon(last).await.expect("there are many").forget();
    }

    /// Not even while the one that waits for many is asking.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_newcomer_does_not_overtake_one_that_asks_again() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(3);
        let taken = soon(pool.acquire_many(3)).await.expect("it is free");
        let mut large = queued(&pool, 3).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        let asked = rig.running(ACQUIRE);
        rig.proxy.wait_for(asked.clone(), 3).await;
        // Its answer comes behind that of the last try.
        soon(pool.available()).await.expect("it is up");
        let again = rig.proxy.hold_reply(asked.clone());
        RedissonPermits::connect(rig.server.port()).release("pool", 2);
        again.held().await;
        let before = rig.proxy.count(asked.clone());
        let mut small = queued(&pool, 1).await;
        again.release();
        rig.proxy.wait_for(asked, before + 1).await;
        soon(pool.available()).await.expect("it is up");
        assert!(poll!(&mut small).is_pending());
        assert_eq!((left(&rig.raw), poll!(&mut large).is_pending()), (2, true));
        soon(taken.release()).await.expect("it is held");
        drop((soon(large).await.expect("it is its turn"), soon(small).await.expect("one is left")));
    }

    /// A task that wants ten gets them beside twenty that always want one.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_waiter_for_ten_is_not_starved_by_waiters_for_one() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(10);
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let pool = pool.clone();
            tasks.spawn(async move {
                loop {
                    let permit = pool.acquire().await.expect("the server is up");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    drop(permit);
                }
            });
        }
        for _ in 0..5 {
            drop(soon(pool.acquire_many(10)).await.expect("the server is up"));
        }
        tasks.shutdown().await;
        eventually("all are given back", async || left(&rig.raw) == 10).await;
    }
}

mod waiting {
    use super::*;

    /// All that there is room for, and not many more tries than that.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_release_of_many_wakes_as_many() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(20);
        let taken = soon(pool.acquire_many(20)).await.expect("it is free");
        let mut waiting = JoinSet::new();
        for _ in 0..30 {
            waiting.spawn(queued(&pool, 1).await);
        }
        eventually("they listen", async || subscriptions(&rig.raw) == 1).await;
        rig.proxy.forget_commands();
        soon(taken.release()).await.expect("it is held");
        let mut permits = Vec::new();
        while permits.len() < 20 {
            permits.push(soon(waiting.join_next()).await.unwrap().expect("no panic"));
        }
        assert_eq!(left(&rig.raw), 0);
        let tries = entries(&rig.proxy, rig.running(ACQUIRE));
        assert!((20..=50).contains(&tries), "{tries} tries for 20 permits");
    }

    /// a hundred waiters for one permit do not all ask whenever it is given back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_hundred_waiters_cost_a_few_tries_a_permit() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(1);
        let taken = soon(pool.acquire()).await.expect("it is free");
        let mut waiting = JoinSet::new();
        for _ in 0..100 {
            let acquiring = queued(&pool, 1).await;
            waiting.spawn(async move { acquiring.await.expect("it is up").release().await });
        }
        eventually("they listen", async || subscriptions(&rig.raw) == 1).await;
        rig.proxy.forget_commands();
        soon(taken.release()).await.expect("it is held");
        for released in soon(waiting.join_all()).await {
            released.expect("it is held");
        }
        let tries = entries(&rig.proxy, rig.running(ACQUIRE));
        assert!(tries <= 500, "{tries} tries for 100 permits");
    }

    /// I9, R-32.
    #[tokio::test]
    async fn a_lost_message_costs_no_more_than_the_cap() {
        let rig = rig(|builder| builder.fallback_cap(Duration::from_millis(200))).await;
        let pool = rig.client.semaphore("pool").sized(0);
        rig.proxy.eat_messages(true);
        let waiting = tokio::spawn(pool.acquire());
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        RedissonPermits::connect(rig.server.port()).release("pool", 1);
        soon(waiting).await.expect("no panic").expect("there is one").forget();
        assert!(rig.proxy.messages_eaten() > 0);
    }

    /// the subscription breaks just before the release.
    #[tokio::test]
    async fn a_broken_subscription_costs_no_hang() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(0);
        let waiting = tokio::spawn(pool.acquire());
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        rig.raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).ok();
        RedissonPermits::connect(rig.server.port()).release("pool", 1);
        soon(waiting).await.expect("no panic").expect("there is one").forget();
    }

    /// I10: a wait with a limit ends, and takes nothing later.
    #[tokio::test]
    async fn a_wait_with_a_limit_ends_without_a_permit() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let taken = soon(pool.acquire()).await.expect("it is free");
        let none = soon(pool.try_acquire_many(2, Duration::from_millis(50))).await;
        assert!(none.expect("the server is up").is_none());
        assert!(soon(pool.try_acquire_many(2, AT_ONCE)).await.expect("it is up").is_none());
        let one = soon(pool.try_acquire(Duration::from_secs(5))).await.expect("it is up");
        assert_eq!(one.as_ref().map(SemaphorePermit::permits), Some(1));
        drop((one, taken));
        eventually("all are free", async || left(&rig.raw) == 2).await;
    }

    /// Java's messages are numbers; whatever comes on the channel is a reason to look, no more.
    #[tokio::test(flavor = "multi_thread")]
    async fn messages_are_not_believed() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(0);
        let mut waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        let asked = rig.running(ACQUIRE);
        for payload in ["7", "-3", "", "garbage", "99999999999999999999"] {
            let before = rig.proxy.count(asked.clone());
            rig.raw.cmd(&["PUBLISH", &RedissonPermits::channel("pool"), payload]).ok();
            rig.proxy.wait_for(asked.clone(), before + 1).await;
            assert!(poll!(&mut waiting).is_pending());
        }
        RedissonPermits::connect(rig.server.port()).add_permits("pool", 1);
        soon(waiting).await.expect("there is one").forget();
    }

    /// A Java service waits for what we give back, and we for what it does.
    #[tokio::test]
    async fn what_we_give_back_is_told_to_java() {
        let rig = rig(|builder| builder).await;
        let (java, pool) = (RedissonPermits::connect(rig.server.port()), "pool");
        assert!(java.try_set_permits(pool, 2, None));
        let permit = soon(rig.client.semaphore(pool).acquire_many(2)).await.expect("it is free");
        assert!(!java.try_acquire(pool, 1));
        let listener = rig.server.raw();
        listener.subscribe(&RedissonPermits::channel(pool));
        soon(permit.release()).await.expect("it is held");
        let told = listener.next_message(Duration::from_secs(10)).map(|message| message.payload);
        assert_eq!((told, java.try_acquire(pool, 2)), (Some("2".into()), true));
    }
}

mod lost_replies {
    use super::*;

    /// Both ways to lose a reply: alone, and with its connection.
    async fn twice(mut test: impl AsyncFnMut(&Rig, &dyn Fn(&'static str) -> Fault)) {
        for cut in [false, true] {
            let rig = rig(|builder| builder).await;
            let lose = |script| match cut {
                false => rig.proxy.drop_reply(rig.running(script), 1),
                true => rig.proxy.drop_reply_and_cut(rig.running(script)),
            };
            test(&rig, &lose).await;
        }
    }

    /// I5.
    #[tokio::test]
    async fn an_acquire_and_a_release_count_once() {
        twice(async |rig, lose| {
            let pool = rig.client.semaphore("pool").sized(3);
            let lost = [lose(ACQUIRE), lose(RELEASE)];
            let permit = soon(pool.acquire_many(2)).await.expect("it is free");
            assert_eq!(left(&rig.raw), 1);
            soon(permit.release()).await.expect("done, though nobody said so");
            assert_eq!((left(&rig.raw), lost[0].hits(), lost[1].hits()), (3, 1, 1));
            soon(rig.client.close()).await;
            assert_eq!(left(&rig.raw), 3);
        })
        .await;
    }

    /// R-25, I11: nobody knows whether it has the permit, and it is given back.
    #[tokio::test]
    async fn a_try_without_a_reply_is_undone() {
        twice(async |rig, lose| {
            let pool = rig.client.semaphore("pool").sized(3);
            let lost = lose(ACQUIRE);
            let error = soon(pool.try_acquire_now()).await.expect_err("no reply came");
            assert!(error.is_indeterminate() && error.is_unavailable(), "{error:?}");
            lost.happened(1).await;
            eventually("it is given back", async || left(&rig.raw) == 3).await;
            soon(rig.client.close()).await;
            assert_eq!(left(&rig.raw), 3);
        })
        .await;
    }

    /// R-26, I5: what is said of the number counts once as well.
    #[tokio::test]
    async fn changes_of_the_number_count_once() {
        twice(async |rig, lose| {
            let pool = rig.client.semaphore("pool");
            let lost: Vec<_> = SCRIPTS[2..6].iter().map(|script| lose(script)).collect();
            assert!(soon(pool.try_set(5)).await.expect("it is up"), "the first send has set it");
            soon(pool.give(2)).await.expect("it is up");
            assert_eq!(soon(pool.add(3)).await.expect("it is up"), 10);
            assert_eq!(soon(pool.drain()).await.expect("it is up"), 10);
            assert_eq!(left(&rig.raw), 0);
            assert!(lost.iter().all(|lost| lost.hits() == 1));
        })
        .await;
    }

    /// R-25, I5: an acquire that was sent twice runs late, after its release, from a connection
    /// that we may not kill. Its record stands, so it takes nothing.
    #[tokio::test]
    async fn an_acquire_that_runs_late_takes_nothing() {
        let server = RedisServer::start();
        let set = |builder: Builder| builder.command_timeout(TIMEOUT);
        let rig = knowing(Rig::with_rights(server, "-client|kill", set).await);
        let pool = rig.client.semaphore("pool").sized(3);
        let ghost = rig.proxy.hold_command(rig.running(ACQUIRE));
        let acquiring = tokio::spawn(pool.acquire());
        ghost.held().await;
        rig.proxy.cut_client_side_only().await;
        let permit = soon(acquiring).await.expect("no panic").expect("it is free");
        soon(permit.release()).await.expect("it is held");
        // These say which records may go; that one may not.
        for _ in 0..5 {
            soon(soon(pool.acquire()).await.expect("it is free").release()).await.expect("held");
        }
        ghost.release();
        let late = ghost.answered().await.expect("nobody was there to stop it");
        assert_eq!((late.items()[0].int(), left(&rig.raw)), (-1, 3));
        soon(rig.client.close()).await;
        assert_eq!(left(&rig.raw), 3);
    }

    /// R-26, I5: the same of a release; it gives nothing back a second time.
    #[tokio::test]
    async fn a_release_that_runs_late_gives_nothing() {
        let server = RedisServer::start();
        let set = |builder: Builder| builder.command_timeout(TIMEOUT);
        let rig = knowing(Rig::with_rights(server, "-client|kill", set).await);
        let pool = rig.client.semaphore("pool").sized(3);
        let permit = soon(pool.acquire()).await.expect("it is free");
        let ghost = rig.proxy.hold_command(rig.running(RELEASE));
        let releasing = tokio::spawn(permit.release());
        ghost.held().await;
        rig.proxy.cut_client_side_only().await;
        soon(releasing).await.expect("no panic").expect("it is held");
        for _ in 0..5 {
            soon(soon(pool.acquire()).await.expect("it is free").release()).await.expect("held");
        }
        ghost.release();
        let late = ghost.answered().await.expect("nobody was there to stop it");
        assert_eq!((late.items()[0].int(), left(&rig.raw)), (-1, 3));
    }

    /// Records go when nobody needs them, also of a semaphore that is always in use.
    #[tokio::test]
    async fn records_do_not_pile_up() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(3);
        for _ in 0..100 {
            soon(soon(pool.acquire()).await.expect("it is free").release()).await.expect("held");
            soon(pool.give(1)).await.expect("it is up");
            soon(pool.add(-1)).await.expect("it is up");
        }
        let records = format!("leasehold_once:{{pool}}:{}", rig.client.id());
        assert!(rig.raw.cmd(&["HLEN", &records]).int() <= 5);
        assert!((1..=60_000).contains(&rig.raw.cmd(&["PTTL", &records]).int()));
        assert_eq!(rig.raw.cmd(&["PTTL", "pool"]).int(), -1);
    }
}

mod losing_the_server {
    use super::*;

    /// it has its data, and every permit is where it was.
    #[tokio::test(flavor = "multi_thread")]
    async fn permits_outlive_a_server_with_its_data() {
        let server = RedisServer::builder().appendonly().start();
        let mut rig = Rig::before(server, |builder| builder.command_timeout(super::TIMEOUT)).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let taken = soon(pool.acquire_many(2)).await.expect("it is free");
        let waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        rig.server.restart();
        soon(taken.release()).await.expect("it is held still");
        drop(soon(waiting).await.expect("it is free"));
        let raw = rig.server.raw();
        eventually("all are given back", async || left(&raw) == 2).await;
    }

    /// without a size nobody can say how many there are; with one it starts anew.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_without_its_data_has_no_such_semaphore() {
        let mut rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool");
        assert!(soon(pool.try_set(1)).await.expect("it is up"));
        let taken = soon(pool.acquire()).await.expect("it is free");
        let waiting = queued(&pool, 1).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        rig.server.restart();
        let error = soon(waiting).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::Uninitialised);
        let error = soon(taken.release()).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
        assert_eq!(soon(pool.available()).await.expect("it is up"), None);
        let anew = soon(pool.clone().sized(2).acquire()).await.expect("it starts with two");
        assert_eq!(soon(pool.available()).await.expect("it is up"), Some(1));
        drop(anew);
    }

    /// as the documentation says, permits from before add to a semaphore that was set anew.
    #[tokio::test]
    async fn permits_from_before_a_flush_add_to_what_is_set_after_it() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let before = soon(pool.acquire()).await.expect("it is free");
        rig.raw.cmd(&["FLUSHALL"]).ok();
        let after = soon(pool.acquire_many(2)).await.expect("it starts anew");
        soon(before.release()).await.expect("there is a semaphore of that name");
        assert_eq!(left(&rig.raw), 1);
        soon(after.release()).await.expect("it is held");
        assert_eq!(left(&rig.raw), 3);
    }

    /// I10: nobody hangs on a client that was closed; its permits stay taken until somebody gives
    /// them back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_closed_client_leaves_its_permits_taken() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(5);
        let (held, dropped) = (soon(pool.acquire()).await, soon(pool.acquire_many(2)).await);
        let (held, also_held) = (held.expect("it is free"), soon(pool.acquire()).await);
        drop(dropped);
        let waiting = queued(&pool, 4).await;
        soon(rig.client.close()).await;
        assert_eq!(soon(waiting).await.expect_err("it is closed").kind(), ErrorKind::Closed);
        let error = soon(held.release()).await.expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::ClientClosed));
        drop(also_held);
        assert_eq!(soon(pool.acquire()).await.expect_err("closed").kind(), ErrorKind::Closed);
        assert_eq!(left(&rig.raw), 3);
        let other = rig.bystander().await;
        soon(other.semaphore("pool").give(2)).await.expect("it is up");
        assert_eq!(left(&rig.raw), 5);
    }

    /// R-28, I10: from a thread without a runtime, which has no timers of its own.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_without_a_runtime_rides_out_a_silent_server() {
        let rig = rig(|builder| builder.patience(Duration::from_secs(1))).await;
        let pool = rig.client.semaphore("pool").sized(2);
        drop(soon(pool.acquire()).await.expect("it is free"));
        rig.proxy.half_open(true);
        let calling = pool.clone();
        let calls = crate::support::blocking(move || {
            let thread = std::thread::spawn(move || {
                futures::executor::block_on(async {
                    let given = calling.give(1).await.map_err(|error| error.kind());
                    let short = Duration::from_millis(100);
                    (given, calling.try_acquire(short).await.map_err(|error| error.kind()).err())
                })
            });
            thread.join().expect("no panic")
        });
        let (given, taken) = soon(calls).await;
        assert_eq!(given, Err(ErrorKind::NoReply));
        assert_eq!(taken, Some(ErrorKind::Unavailable));
        rig.proxy.half_open(false);
    }

    /// A forgotten permit is somebody else's business: closing does not wait for it.
    #[tokio::test]
    async fn a_forgotten_permit_stays_taken() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let permit = soon(pool.acquire_many(2)).await.expect("it is free");
        assert_eq!((permit.name(), permit.permits()), ("pool", 2));
        permit.forget();
        soon(pool.give(1)).await.expect("it is up");
        drop(soon(pool.acquire()).await.expect("one was given"));
        soon(rig.client.shutdown(Duration::from_secs(3600))).await;
        assert_eq!(left(&rig.raw), 1);
    }

    /// A release that is refused for good is tried on, but not in a hurry, and ends with the client.
    #[tokio::test]
    async fn a_release_that_is_refused_for_good_ends_with_its_client() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let permit = soon(pool.acquire()).await.expect("it is free");
        rig.raw.cmd(&["DEL", "pool"]).ok();
        rig.raw.cmd(&["RPUSH", "pool", "a list"]).ok();
        let error = soon(permit.release()).await.expect_err("that is a list");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(rig.proxy.count(rig.running(RELEASE)) < 12);
        rig.raw.cmd(&["DEL", "pool"]).ok();
        rig.raw.cmd(&["SET", "pool", "1"]).ok();
        eventually("it is given back after all", async || left(&rig.raw) == 2).await;
        soon(rig.client.close()).await;
    }
}

mod numbers {
    use super::*;

    /// I10.
    #[tokio::test]
    async fn a_semaphore_that_was_never_set_says_so() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool");
        for error in [
            soon(pool.acquire()).await.map(drop).expect_err("it is not set"),
            soon(pool.try_acquire_now()).await.map(drop).expect_err("it is not set"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Uninitialised);
        }
        assert_eq!(soon(pool.available()).await.expect("it is up"), None);
        assert_eq!(soon(pool.drain()).await.expect("it is up"), 0);
        drop(soon(pool.clone().sized(1).acquire()).await.expect("now it is"));
        assert!(!soon(pool.try_set(9)).await.expect("it is up"), "it is set");
    }

    /// I10: nothing is sent for a number that cannot be meant.
    #[tokio::test]
    async fn numbers_that_cannot_be_meant_are_refused_before_anything_is_sent() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(1);
        rig.proxy.forget_commands();
        let most = i32::MAX as u32;
        let refused = [
            pool.acquire_many(0).await.map(drop),
            pool.acquire_many(most + 1).await.map(drop),
            pool.try_acquire_many(0, AT_ONCE).await.map(drop),
            pool.give(0).await,
            pool.give(most + 1).await,
            pool.try_set(most + 1).await.map(drop),
            pool.clone().sized(most + 1).acquire().await.map(drop),
        ];
        for (which, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("it cannot be meant");
            assert_eq!(error.kind(), ErrorKind::InvalidCount, "{which}");
        }
        let error = rig.client.semaphore("").acquire().await.expect_err("it has no name");
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert_eq!(rig.proxy.count(|command: &Command| command.is("EVALSHA")), 0);
    }

    ///
    #[tokio::test]
    async fn a_key_that_is_no_semaphore_is_told_and_left_alone() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(1);
        for (command, kind) in [
            (["SET", "pool", "many"], ErrorKind::Corrupt),
            (["SET", "pool", "99999999999999999999"], ErrorKind::Corrupt),
            (["RPUSH", "pool", "a"], ErrorKind::WrongType),
        ] {
            rig.raw.cmd(&["DEL", "pool"]).ok();
            rig.raw.cmd(&command).ok();
            let told = [
                soon(pool.acquire()).await.map(drop),
                soon(pool.give(1)).await,
                soon(pool.add(1)).await.map(drop),
                soon(pool.drain()).await.map(drop),
                soon(pool.available()).await.map(drop),
            ];
            for (which, told) in told.into_iter().enumerate() {
                assert_eq!(told.expect_err("no number").kind(), kind, "{command:?}, {which}");
            }
        }
        assert_eq!(rig.raw.cmd(&["LLEN", "pool"]).int(), 1);
    }

    /// Taking away what is in use makes the number negative, and that is a number like any other.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_negative_number_is_no_trouble() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").sized(2);
        let taken = soon(pool.acquire_many(2)).await.expect("it is free");
        assert_eq!(soon(pool.add(-3)).await.expect("it is up"), -3);
        assert_eq!(soon(pool.available()).await.expect("it is up"), Some(-3));
        assert!(soon(pool.try_acquire_now()).await.expect("it is up").is_none());
        let mut waiting = queued(&pool, 1).await;
        soon(taken.release()).await.expect("it is held");
        assert_eq!(left(&rig.raw), -1);
        assert!(poll!(&mut waiting).is_pending());
        assert_eq!(soon(pool.drain()).await.expect("it is up"), -1, "a debt that is forgiven");
        assert_eq!(soon(pool.add(1)).await.expect("it is up"), 1);
        soon(waiting).await.expect("there is one").forget();
    }

    /// Each call does what it says; `give` also makes a semaphore.
    #[tokio::test]
    async fn the_number_can_be_set_added_to_given_and_drained() {
        let rig = rig(|builder| builder).await;
        let pool = rig.client.semaphore("pool").label("downloads");
        soon(pool.give(2)).await.expect("it starts with them");
        assert!(!soon(pool.try_set(5)).await.expect("it is up"));
        assert_eq!(soon(pool.add(3)).await.expect("it is up"), 5);
        assert_eq!(soon(pool.add(-1)).await.expect("it is up"), 4);
        assert_eq!(soon(pool.drain()).await.expect("it is up"), 4);
        assert_eq!(soon(pool.available()).await.expect("it is up"), Some(0));
        rig.raw.cmd(&["DEL", "pool"]).ok();
        assert!(soon(pool.try_set(0)).await.expect("it is up"));
        assert_eq!(soon(pool.available()).await.expect("it is up"), Some(0));
        assert!(format!("{pool:?}").contains("pool"));
    }
}

//! The spin lock, and a client that waits without messages altogether: nobody subscribes, nobody
//! publishes, and all that a plain lock promises holds, except that waiting takes tries.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::poll;
use leasehold::{Client, ErrorKind, Lock, LostReason, WaitMode};
use tokio::task::JoinSet;

use crate::{
    rig::{Call, Rig, acquiring, entering, entries, held_by, releasing, renewing, soon},
    support::{
        assert_every_key_has_ttl, blocking, eventually,
        history::History,
        proxy::{Command, Proxy, mentioning, named},
        redisson::Redisson,
        server::RedisServer,
        subscriptions, unique,
    },
};

const LONG: Duration = Duration::from_secs(60);

/// The longest pause between two tries, shortened by as much as chance can.
const SHORTEST_LAST_PAUSE: Duration = Duration::from_millis(64);

/// Everything that has to do with messages.
fn about_messages(command: &Command) -> bool {
    let names = ["SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE", "PUBLISH", "SPUBLISH", "PUBSUB"];
    names.into_iter().any(|name| command.is(name))
        || command.is("EVALSHA") && command.args.iter().any(|arg| arg.ends_with(b"PUBLISH"))
}

fn tries(proxy: &Proxy, name: &str) -> usize {
    entries(proxy, name, |call| call == Call::Acquire(1))
}

/// Takes the lock so often, and keeps it for a moment each time.
async fn take_turns(lock: Lock, history: History, who: String, turns: u32) {
    for _ in 0..turns {
        let guard = soon(lock.lock()).await.expect("it comes round");
        let mut held = history.held(lock.name(), &who);
        held.valid_until(guard.valid_until());
        tokio::time::sleep(Duration::from_millis(1)).await;
        held.end();
        guard.unlock().await.expect("it is held");
    }
}

/// I1, I2, I12: tasks of several clients, and a Java peer.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_owner_holds_it() {
    let (server, name, history) = (RedisServer::start(), unique("spun"), History::new());
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for client in 0..3 {
        clients.push(Client::connect(server.url()).await.expect("the server is up"));
        for task in 0..3 {
            let who = format!("task {task} of {client}");
            tasks.spawn(take_turns(clients[client].spin_lock(&name), history.clone(), who, 10));
        }
    }
    let (peer, theirs, key) = (Redisson::connect(server.port()), history.clone(), name.clone());
    tasks.spawn(blocking(move || {
        for _ in 0..10 {
            while peer.try_lock(&key, 1, 60_000).is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let held = theirs.held(&key, "Java");
            std::thread::sleep(Duration::from_millis(1));
            held.end();
            peer.unlock(&key, 1, 60_000);
        }
    }));
    soon(tasks.join_all()).await;
    history.assert_exclusive(3 * 3 * 10 + 10);
    for client in clients {
        client.close().await;
    }
    assert_eq!(server.raw().cmd(&["DBSIZE"]).int(), 0);
}

/// I9: also a waiter of another process that finds the lock released comes through.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_comes_through_and_nobody_publishes_or_subscribes() {
    let rig = Rig::start().await;
    let other = rig.bystander().await;
    let listener = rig.server.raw();
    listener.subscribe("redisson_lock__channel:{job}");
    let guard = soon(other.spin_lock("job").lock()).await.expect("free");
    let waiting = tokio::spawn(rig.client.spin_lock("job").lock());
    rig.proxy.wait_for(acquiring("job"), 3).await;
    guard.unlock().await.expect("it is held");
    let guard = soon(waiting).await.expect("no panic").expect("it comes free");
    assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
    guard.unlock().await.expect("it is held");
    rig.raw.cmd(&["PUBLISH", "redisson_lock__channel:{job}", "end"]).ok();
    let heard = blocking(move || listener.next_message(Duration::from_secs(10))).await;
    assert_eq!(heard.map(|message| message.payload), Some("end".into()), "no release was told");
    assert_eq!(rig.proxy.count(about_messages), 0);
    rig.assert_nothing_left().await;
}

/// I10: the pauses grow to 64 ms at least, so a long wait costs few tries; and the last is at the
/// very end.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_costs_few_tries() {
    let rig = Rig::start().await;
    let _held = soon(rig.bystander().await.spin_lock("job").lock()).await.expect("free");
    let since = Instant::now();
    let wait = Duration::from_millis(1500);
    let refused = soon(rig.client.spin_lock("job").try_lock(wait, LONG)).await;
    assert!(refused.expect("the server answers").is_none());
    let waited = since.elapsed();
    assert!(waited >= wait, "{waited:?}");
    let tries = tries(&rig.proxy, "job");
    // The first, one for each of seven doublings, then one every 64 ms at most, and the last.
    let most = 9 + (waited.as_millis() / SHORTEST_LAST_PAUSE.as_millis()) as usize;
    assert!((4..=most).contains(&tries), "{tries} tries in {waited:?}, {most} at most");
}

/// I9: after a grant the pauses begin anew, also for one that has waited behind it all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_begins_the_pauses_anew() {
    let rig = Rig::with(|builder| builder.hand_over_window(Duration::ZERO)).await;
    let (lock, peer) = (rig.client.spin_lock("job"), Redisson::connect(rig.server.port()));
    for round in 0.. {
        assert!(round < 8, "the peer never came in between");
        assert_eq!(peer.try_lock("job", 1, 60_000), None);
        let mut waiting =
            [tokio::spawn(lock.lock()), tokio::spawn(lock.lock())].into_iter().collect();
        eventually("the pauses have grown", async || tries(&rig.proxy, "job") >= 10).await;
        peer.unlock("job", 1, 60_000);
        let first = soon(one_of(&mut waiting)).await;
        tokio::time::sleep(Duration::from_millis(300)).await; // makes a gap of 64 ms at least
        first.unlock().await.expect("it is held");
        if peer.try_lock("job", 1, 60_000).is_none() {
            rig.proxy.forget_commands();
            let since = Instant::now();
            let five = async || tries(&rig.proxy, "job") >= 5;
            eventually("five tries were made", five).await;
            // After the gap of 128 ms at most; pauses that had grown would take 4 × 64 ms more.
            let took = since.elapsed();
            peer.unlock("job", 1, 60_000);
            soon(one_of(&mut waiting)).await.unlock().await.expect("it is held");
            assert!(took < Duration::from_millis(128) + SHORTEST_LAST_PAUSE * 3, "{took:?}");
            break;
        }
        soon(one_of(&mut waiting)).await.unlock().await.expect("it is held");
    }
    rig.assert_nothing_left().await;
}

type Waiting = futures::stream::FuturesUnordered<
    tokio::task::JoinHandle<Result<leasehold::LockGuard, leasehold::Error>>,
>;

async fn one_of(waiting: &mut Waiting) -> leasehold::LockGuard {
    let next = futures::StreamExt::next(waiting).await.expect("somebody waits");
    next.expect("no panic").expect("it comes free")
}

/// I9: nobody can be told of a release, so the next of the same process does not follow at once: a
/// quarter of the time that the lock was held is for those who try now and then.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_leaves_a_gap_for_others() {
    let rig = Rig::with(|builder| builder.hand_over_window(Duration::ZERO)).await;
    let (lock, peer) = (rig.client.spin_lock("job"), Redisson::connect(rig.server.port()));
    let mut came = 0;
    for _ in 0..4 {
        let guard = soon(lock.lock()).await.expect("free");
        let waiting = tokio::spawn(lock.lock());
        tokio::time::sleep(Duration::from_millis(400)).await; // makes a gap of 64 ms at least
        guard.unlock().await.expect("it is held");
        tokio::time::sleep(Duration::from_millis(10)).await; // no gap at all would be over by now
        if peer.try_lock("job", 1, 60_000).is_none() {
            (came, _) = (came + 1, peer.unlock("job", 1, 60_000));
        }
        soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
    }
    assert!(came > 0, "not once in four times");
    rig.assert_nothing_left().await;
}

/// I9: a process whose tasks hand the lock on without end leaves the others gaps to come in.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_process_does_not_starve_another() {
    let rig = Rig::start().await;
    let (other, over) = (rig.bystander().await, Arc::new(AtomicBool::new(false)));
    let mut busy = JoinSet::new();
    for _ in 0..4 {
        let (lock, over) = (other.spin_lock("job"), over.clone());
        busy.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let guard = lock.lock().await.expect("it comes round");
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.unlock().await.expect("it is held");
            }
        });
    }
    for _ in 0..8 {
        eventually("the others have it", async || !rig.holds("job").is_empty()).await;
        let guard = soon(rig.client.spin_lock("job").lock()).await.expect("it comes round");
        guard.unlock().await.expect("it is held");
    }
    over.store(true, Ordering::Relaxed);
    soon(busy.join_all()).await;
    rig.assert_nothing_left().await;
}

/// I5: nested acquisitions count at the server, and tasks of one process hand the lock on.
#[tokio::test(flavor = "multi_thread")]
async fn it_nests_and_is_handed_on_as_a_lock_is() {
    let rig = Rig::with(|builder| builder.hand_over_window(Duration::from_secs(8))).await;
    let lock = rig.client.spin_lock("job");
    let outer = soon(lock.lock()).await.expect("free");
    let inner = soon(lock.lock()).await.expect("nested");
    assert_eq!(rig.holds("job"), held_by(&outer.holder(), 2));
    assert_eq!(rig.proxy.count(entering("job")), 1);
    inner.unlock().await.expect("it is held");
    let holder = outer.holder();
    let (asked, asking) = tokio::sync::oneshot::channel();
    let waiting = tokio::spawn(async move {
        let mut locking = Box::pin(lock.lock());
        assert!(poll!(&mut locking).is_pending(), "another task holds it");
        asked.send(()).expect("the test waits for it");
        locking.await
    });
    soon(asking).await.expect("it asks");
    outer.unlock().await.expect("it is held");
    let guard = soon(waiting).await.expect("no panic").expect("handed over");
    assert_eq!(guard.holder(), holder, "the same hold");
    guard.unlock().await.expect("it is held");
    assert_eq!(rig.proxy.count(releasing("job")), 1);
    rig.assert_nothing_left().await;
}

/// R-01, I9: nobody says that the holder is dead; the next comes in when its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_holder_is_followed_at_the_end_of_its_lease() {
    let rig = Rig::start().await;
    let peer = Redisson::connect(rig.server.port());
    assert_eq!(peer.try_lock("job", 1, 600), None);
    let guard = soon(rig.client.spin_lock("job").lock()).await.expect("its lease ends");
    assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
    guard.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I5: as for the plain lock.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_count_once() {
    let rig = Rig::start().await;
    let lock = rig.client.spin_lock("job");
    let lost = rig.proxy.drop_reply(acquiring("job"), 1);
    let guard = soon(lock.lock()).await.expect("free");
    lost.happened(1).await;
    assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
    let lost = rig.proxy.drop_reply_and_cut(releasing("job"));
    soon(guard.unlock()).await.expect("done, though nobody said so");
    lost.happened(1).await;
    rig.assert_nothing_left().await;
}

/// R-38, I7, I12: dropped while it waits between two tries, or while one is under way.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_waits_leave_nothing_behind() {
    let rig = Rig::start().await;
    let other = rig.bystander().await;
    for tries in 0..12 {
        let guard = soon(other.spin_lock("job").lock()).await.expect("free");
        rig.proxy.forget_commands();
        let waiting = tokio::spawn(rig.client.spin_lock("job").lock());
        rig.proxy.wait_for(acquiring("job"), tries.min(6)).await;
        guard.unlock().await.expect("it is held");
        waiting.abort();
        drop(waiting.await.map(|granted| granted.expect("it was free by then")));
        let free = async || rig.holds("job").is_empty();
        eventually("it is free again", free).await;
    }
    rig.assert_nothing_left().await;
}

/// I1, I9: both kinds are one lock at the server. A spinning waiter sees a plain release soon; a
/// plain one is not told of a spinning holder's release, and comes in when its lease would end.
#[tokio::test(flavor = "multi_thread")]
async fn plain_and_spinning_owners_exclude_each_other() {
    let rig = Rig::start().await;
    let other = rig.bystander().await;
    let plain = soon(other.lock("job").lock()).await.expect("free");
    assert!(soon(rig.client.spin_lock("job").try_lock_now()).await.expect("answered").is_none());
    let waiting = tokio::spawn(rig.client.spin_lock("job").lock_with(Duration::from_secs(2)));
    rig.proxy.wait_for(acquiring("job"), 2).await;
    plain.unlock().await.expect("it is held");
    let spinning = soon(waiting).await.expect("no panic").expect("it comes free");
    assert!(soon(other.lock("job").try_lock_now()).await.expect("answered").is_none());
    let waiting = tokio::spawn(other.lock("job").lock());
    eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
    spinning.unlock().await.expect("it is held");
    soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
    other.close().await;
    rig.assert_nothing_left().await;
}

/// I1, I10: in one task, too, each kind has its own queue and owners: one does not enter the hold
/// of the other, but waits for it as for a stranger's, and leaves it alone.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_on_one_name_are_strangers_in_one_process() {
    let rig = Rig::start().await;
    let (plain, spinning) = (rig.client.lock("job"), rig.client.spin_lock("job"));
    let fenced = rig.client.fenced_lock("job");
    let kinds: [&Lock; 3] = [&plain, &spinning, &fenced];
    for (at, holding) in kinds.into_iter().enumerate() {
        let guard = soon(holding.lock()).await.expect("free");
        for (_, asking) in kinds.iter().enumerate().filter(|(other, _)| *other != at) {
            let refused = soon(asking.try_lock(Duration::from_millis(30), LONG)).await;
            assert!(refused.expect("no error").is_none());
            assert!(!asking.is_held_by_me() && holding.is_held_by_me());
            let error = soon(asking.unlock()).await.expect_err("this one does not hold it");
            assert_eq!(error.kind(), ErrorKind::NotHeld);
        }
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        assert!(guard.is_held());
        guard.unlock().await.expect("it is held");
    }
    assert_eq!(rig.raw.cmd(&["DEL", &Redisson::token("job")]).int(), 1);
    rig.assert_nothing_left().await;
}

/// I7, I8: renewed while it is held, and told when it was removed.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_renewed_and_its_loss_is_told() {
    let rig = Rig::with(|builder| builder.watchdog(Duration::from_secs(1))).await;
    let guard = soon(rig.client.spin_lock("job").lock()).await.expect("free");
    rig.proxy.wait_for(renewing("job"), 4).await;
    assert!(guard.is_held());
    assert_every_key_has_ttl(&rig.raw);
    rig.raw.cmd(&["DEL", "job"]).ok();
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(soon(guard.unlock()).await.expect_err("it was lost").is_lost());
    rig.assert_nothing_left().await;
}

mod without_the_right_to_messages {
    use super::*;

    const RIGHTS: &str = "resetchannels -@pubsub";

    async fn rig(mode: WaitMode) -> Rig {
        let settings = |builder: leasehold::Builder| builder.wait_mode(mode);
        Rig::with_rights(RedisServer::start(), RIGHTS, settings).await
    }

    /// A holder, and a waiter that gets what the holder gives back.
    async fn comes_through(rig: &Rig, first: &Lock, second: Lock) {
        let guard = soon(first.lock()).await.expect("free");
        let (asks, before) = (mentioning(first.name()), rig.proxy.count(mentioning(first.name())));
        let mut waiting = tokio::spawn(async move { second.lock().await });
        // One of the same process waits in memory, and asks nobody.
        if guard.holder().client() == rig.client.id() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        } else {
            rig.proxy.wait_for(asks, before + 3).await;
        }
        assert!(poll!(&mut waiting).is_pending(), "the first still holds it");
        soon(guard.unlock()).await.expect("it is held");
        let guard = soon(waiting).await.expect("no panic").expect("it comes free");
        soon(guard.unlock()).await.expect("it is held");
    }

    /// R-31, I9: the spin lock needs no setting of the client.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_spin_lock_works() {
        let rig = rig(WaitMode::Messages).await;
        let other = rig.bystander().await;
        comes_through(&rig, &rig.client.spin_lock("a"), rig.client.spin_lock("a")).await;
        comes_through(&rig, &other.spin_lock("b"), rig.client.spin_lock("b")).await;
        let _held = soon(rig.client.spin_lock("c").lock()).await.expect("free");
        assert!(soon(rig.client.spin_lock("c").force_unlock()).await.expect("answered"));
        assert_eq!(rig.proxy.count(about_messages), 0);
    }

    /// others say what they lack, instead of waiting without ever being told.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_plain_lock_says_what_it_lacks() {
        let rig = rig(WaitMode::Messages).await;
        let _held = soon(rig.bystander().await.lock("job").lock()).await.expect("free");
        let error = soon(rig.client.lock("job").lock()).await.expect_err("it may not listen");
        assert!(matches!(error.kind(), ErrorKind::Refused(_)), "{error:?}");
    }

    /// R-31, I9: with `WaitMode::Spin` every lock of the client works.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_spins_has_every_lock() {
        let rig = rig(WaitMode::Spin).await;
        let other = rig.bystander().await;
        let locks = |client: &Client| -> Vec<Lock> {
            let fenced = (*client.fenced_lock("fenced")).clone();
            vec![
                client.lock("plain"),
                client.spin_lock("spin"),
                client.token_lock("token"),
                client.fair_lock("fair"),
                fenced,
                client.read_write_lock("writing").write(),
            ]
        };
        for (ours, theirs) in locks(&rig.client).into_iter().zip(locks(&other)) {
            comes_through(&rig, &theirs, ours.clone()).await;
            comes_through(&rig, &ours, ours.clone()).await;
        }
        let reading = (rig.client.read_write_lock("b").read(), other.read_write_lock("b").write());
        comes_through(&rig, &reading.1, reading.0).await;
        assert_eq!(rig.proxy.count(about_messages), 0);
    }

    /// R-31, I9, I15, I16: and its semaphores and latches.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_spins_has_semaphores_and_latches() {
        let rig = rig(WaitMode::Spin).await;
        let (other, latch) = (rig.bystander().await, rig.client.count_down_latch("latch"));
        let (plain, expiring) = (rig.client.semaphore("a"), rig.client.permit_semaphore("b"));
        assert!(soon(plain.try_set(1)).await.expect("new"));
        assert!(soon(expiring.try_set(1)).await.expect("new"));
        assert!(soon(latch.try_set(1)).await.expect("new"));
        let first = soon(other.semaphore("a").acquire()).await.expect("there is one");
        let second = soon(other.permit_semaphore("b").acquire()).await.expect("there is one");
        let tasks = [
            tokio::spawn(async move { drop(plain.acquire().await.expect("it comes free")) }),
            tokio::spawn(async move { drop(expiring.acquire().await.expect("it comes free")) }),
            tokio::spawn(async move { latch.wait().await.expect("it opens") }),
        ];
        rig.proxy.wait_for(named("EVALSHA"), 12).await;
        first.release().await.expect("it is held");
        second.release().await.expect("it is held");
        other.count_down_latch("latch").count_down().await.expect("it counts");
        for task in tasks {
            soon(task).await.expect("no panic");
        }
        assert_eq!(rig.proxy.count(about_messages), 0);
    }
}

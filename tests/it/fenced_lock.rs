//! The fenced lock: every owner has a token, the same through re-entry, higher than all before.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::poll;
use leasehold::{Client, ErrorKind, FencedGuard, FencedLock, LostReason, Owner};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    rig::{Rig, held_by, renewing, soon},
    support::{
        blocking, eventually,
        history::History,
        keys_without_ttl,
        proxy::{Fault, Matcher},
        redisson::Redisson,
        server::{RedisServer, until},
        subscriptions, unique,
    },
};

const ACQUIRE: &str = include_str!("../../lua/fenced_lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/lock/release.lua");

const LONG: Duration = Duration::from_secs(60);
const TOKEN: &str = "redisson_lock_token:{job}";

fn acquiring(rig: &Rig) -> impl Matcher + Clone + use<> {
    rig.running(ACQUIRE)
}

async fn rig(window: Duration) -> Rig {
    Rig::with(|builder| {
        builder.hand_over_window(window).command_timeout(Duration::from_millis(400))
    })
    .await
}

/// Takes it and gives it back; the token.
async fn draw(lock: &FencedLock) -> u64 {
    let guard = soon(lock.lock()).await.expect("it comes round");
    let token = guard.token();
    soon(guard.unlock()).await.expect("it is held");
    token
}

/// The token that is in Redis.
fn stored(rig: &Rig) -> u64 {
    rig.raw.cmd(&["GET", TOKEN]).text().parse().expect("a token is a number")
}

/// I12: but for the token, which stays.
async fn assert_only_the_token_left(rig: &Rig) {
    eventually("the token is the only key", async || {
        rig.raw.cmd(&["DBSIZE"]).int() == 1 && rig.raw.cmd(&["EXISTS", TOKEN]).int() == 1
    })
    .await;
    rig.raw.cmd(&["DEL", TOKEN]).ok();
    rig.assert_nothing_left().await;
}

/// A store that refuses a token below the highest it has seen.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(u64, Vec<String>)>>);

impl Store {
    fn write(&self, token: u64, text: impl Into<String>) -> bool {
        let mut store = self.0.lock().expect("nobody panics with it");
        let fresh = token >= store.0;
        if fresh {
            *store = (token, [store.1.as_slice(), &[text.into()]].concat());
        }
        fresh
    }

    fn texts(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").1.clone()
    }
}

/// I3: Kleppmann's case. A holder whose lease ended while it stood still goes on; the store does
/// not let it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_holder_cannot_write() {
    let (rig, store) = (rig(Duration::ZERO).await, Store::default());
    let other = rig.bystander().await;
    let stale = rig.client.fenced_lock("job").lock_with(Duration::from_millis(300));
    let stale = soon(stale).await.expect("free");
    assert!(store.write(stale.token(), "first"));
    let next = soon(other.fenced_lock("job").lock()).await.expect("its lease ends");
    assert!(store.write(next.token(), "second"));
    assert!(!store.write(stale.token(), "late"), "its token is of the past");
    assert!(store.write(next.token(), "third"));
    assert_eq!(store.texts(), ["first", "second", "third"]);
    assert!(soon(stale.unlock()).await.expect_err("it was lost").is_lost());
    next.unlock().await.expect("it is held");
    other.close().await;
    assert_only_the_token_left(&rig).await;
}

/// I1, I2, I3: in the order of their holds, tokens of all processes rise; Java's among them.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_with_every_owner() {
    let (server, name, history) = (RedisServer::start(), unique("fenced"), History::new());
    let drawn: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for client in 0..3 {
        clients.push(Client::connect(server.url()).await.expect("the server is up"));
        for task in 0..3 {
            let (lock, history, drawn) =
                (clients[client].fenced_lock(&name), history.clone(), drawn.clone());
            tasks.spawn(async move {
                for _ in 0..15 {
                    let guard = soon(lock.lock()).await.expect("it comes round");
                    let mut held = history.held(lock.name(), &format!("task {task} of {client}"));
                    held.valid_until(guard.valid_until());
                    drawn.lock().expect("no panic").push(guard.token());
                    tokio::task::yield_now().await;
                    held.end();
                    guard.unlock().await.expect("it is held");
                }
            });
        }
    }
    let (peer, theirs, key) = (Redisson::connect(server.port()), drawn.clone(), name.clone());
    tasks.spawn(blocking(move || {
        for _ in 0..15 {
            until("Java has it", || match peer.try_fenced_lock(&key, 1, 60_000) {
                [-1, token] if token > 0 => {
                    theirs.lock().expect("no panic").push(token as u64);
                    true
                }
                _ => false,
            });
            peer.unlock(&key, 1, 60_000);
        }
    }));
    soon(tasks.join_all()).await;
    history.assert_exclusive(3 * 3 * 15);
    let drawn = drawn.lock().expect("no panic");
    assert_eq!(drawn.len(), 3 * 3 * 15 + 15);
    assert!(drawn.is_sorted_by(|earlier, later| earlier < later), "{drawn:?}");
}

/// I3, I5: the same through re-entry, scopes, `with`, renewal and extension.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_stays_the_same_while_it_is_held() {
    let rig = Rig::with(|builder| builder.watchdog(Duration::from_secs(1))).await;
    let lock = rig.client.fenced_lock("job");
    let outer = soon(lock.lock()).await.expect("free");
    let token = outer.token();
    assert_eq!((outer.holder(), stored(&rig)), (lock.holder().await.unwrap().unwrap(), token));
    let inner = soon(lock.try_lock_now()).await.expect("answered").expect("nested");
    let bodies = lock.with(|held| async move { held.token() });
    assert_eq!(soon(bodies).await.expect("nested"), Some(token));
    let scoped = soon(Owner::scope(lock.lock())).await.expect("nested");
    assert_eq!([inner.token(), scoped.token()], [token; 2]);
    assert_eq!(rig.holds("job"), held_by(&outer.holder(), 3));
    soon(outer.extend(LONG)).await.expect("it is held");
    rig.proxy.wait_for(renewing("job"), 3).await;
    assert_eq!((outer.token(), stored(&rig)), (token, token));
    for guard in [scoped, inner, outer] {
        guard.unlock().await.expect("it is held");
    }
    let plain: leasehold::LockGuard = soon(lock.lock()).await.expect("free").into();
    assert!(plain.token().is_some_and(|next| next > token), "an owner of its own");
    plain.unlock().await.expect("it is held");
    assert_only_the_token_left(&rig).await;
}

/// I3: a hold does not go on to another owner, which would need a token of its own; also where a
/// plain lock's would.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_process_have_tokens_of_their_own() {
    let rig = rig(Duration::from_secs(8)).await;
    let lock = rig.client.fenced_lock("job");
    let first = soon(lock.lock()).await.expect("free");
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let (lock, (asked, asking)) = (lock.clone(), oneshot::channel());
        waiting.push(tokio::spawn(async move {
            let mut locking = Box::pin(lock.lock());
            assert!(poll!(&mut locking).is_pending(), "another task holds it");
            asked.send(()).expect("the test waits for it");
            let guard = locking.await.expect("it comes round");
            let seen = (guard.token(), guard.holder());
            guard.unlock().await.expect("it is held");
            seen
        }));
        soon(asking).await.expect("it asks");
    }
    let mut last = (first.token(), first.holder());
    first.unlock().await.expect("it is held");
    for waiting in waiting {
        let next = soon(waiting).await.expect("no panic");
        assert!(next.0 > last.0 && next.1 != last.1, "{next:?} after {last:?}");
        last = next;
    }
    assert_only_the_token_left(&rig).await;
}

mod after_a_loss {
    use super::*;

    /// R-07, I3: a server that forgets everything when it restarts. The clock goes on.
    #[tokio::test(flavor = "multi_thread")]
    async fn tokens_rise_over_a_restart_without_persistence() {
        let mut server = RedisServer::builder().args(["--save", "", "--appendonly", "no"]).start();
        let client = Client::builder(server.url()).expect("a URL");
        let client = soon(client.connect()).await.expect("the server is up");
        let lock = client.fenced_lock("job");
        let mut last = draw(&lock).await;
        for _ in 0..2 {
            let held = soon(lock.lock()).await.expect("free");
            assert!(held.token() > last);
            last = held.token();
            server.kill();
            server.restart();
            assert_eq!(server.raw().cmd(&["DBSIZE"]).int(), 0, "it has forgotten everything");
            assert_eq!(soon(held.lost()).await, LostReason::Removed);
            drop(held);
            let token = draw(&lock).await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }

    /// R-47, I3: the token removed under its holder. The holder keeps what it has, the next one
    /// has more.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_removed_token_does_not_come_again() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        let outer = soon(lock.lock()).await.expect("free");
        rig.raw.cmd(&["DEL", TOKEN]).ok();
        assert_eq!(soon(lock.last_token()).await.expect("answered"), None);
        let inner = soon(lock.lock()).await.expect("nested");
        assert_eq!(inner.token(), outer.token(), "still the same owner");
        let (outer_token, stored) = (outer.token(), stored(&rig));
        assert!(stored > outer_token, "what others draw from is not behind");
        inner.unlock().await.expect("it is held");
        outer.unlock().await.expect("it is held");
        rig.raw.cmd(&["FLUSHALL"]).ok();
        assert!(draw(&lock).await > stored);
        assert_only_the_token_left(&rig).await;
    }

    /// I3: Java draws from 1 after a loss, until our next grant puts it right. Its tokens then
    /// rise from ours.
    #[tokio::test(flavor = "multi_thread")]
    async fn java_begins_again_until_our_next_grant() {
        let rig = rig(Duration::ZERO).await;
        let (lock, peer) = (rig.client.fenced_lock("job"), Redisson::connect(rig.server.port()));
        let before = draw(&lock).await;
        assert_eq!(peer.try_fenced_lock("job", 1, 60_000), [-1, before as i64 + 1]);
        peer.unlock("job", 1, 60_000);
        rig.raw.cmd(&["DEL", TOKEN]).ok();
        assert_eq!(peer.try_fenced_lock("job", 1, 60_000), [-1, 1], "the documented limit");
        peer.unlock("job", 1, 60_000);
        let ours = draw(&lock).await;
        assert!(ours > before + 1);
        assert_eq!(peer.try_fenced_lock("job", 1, 60_000), [-1, ours as i64 + 1]);
        peer.unlock("job", 1, 60_000);
        assert_only_the_token_left(&rig).await;
    }

    /// I3: a token ahead of the clock (somebody set that back, or wrote the token by hand) counts on.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_ahead_of_the_clock_counts_on() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        let ahead = draw(&lock).await + 1_000_000_000_000;
        rig.raw.cmd(&["SET", TOKEN, &ahead.to_string()]).ok();
        assert_eq!([draw(&lock).await, draw(&lock).await], [ahead + 1, ahead + 2]);
    }
}

mod lost_replies {
    use super::*;

    async fn draws_once(fault: impl Fn(&Rig) -> Fault) {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        let before = draw(&lock).await;
        let lost = fault(&rig);
        let guard = soon(lock.lock()).await.expect("free");
        lost.happened(1).await;
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
        assert_eq!(guard.token(), stored(&rig), "the resend answers what the first send drew");
        assert!(guard.token() > before);
        let lost = fault(&rig);
        let inner = soon(lock.lock()).await.expect("nested");
        lost.happened(1).await;
        assert_eq!((inner.token(), stored(&rig)), (guard.token(), guard.token()));
        assert_eq!(rig.holds("job"), held_by(&guard.holder(), 2));
        inner.unlock().await.expect("it is held");
        guard.unlock().await.expect("it is held");
        assert_only_the_token_left(&rig).await;
    }

    /// R-25, I3, I5.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_reply_draws_one_token() {
        draws_once(|rig| rig.proxy.drop_reply(acquiring(rig), 1)).await;
    }

    /// R-25, I3, I5.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_reply_lost_with_its_connection_draws_one_token() {
        draws_once(|rig| rig.proxy.drop_reply_and_cut(acquiring(rig))).await;
    }

    /// I3: the first grant is gone with the server's memory by the time it is asked for
    /// again, so the resend draws anew: the guard has the token of the hold that stands.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_resend_that_is_granted_afresh_has_the_fresh_token() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        let held = rig.proxy.hold_reply(acquiring(&rig));
        let waiting = tokio::spawn(lock.lock());
        held.held().await;
        let first = stored(&rig);
        rig.raw.cmd(&["FLUSHALL"]).ok();
        rig.proxy.cut_all().await;
        let guard = soon(waiting).await.expect("no panic").expect("free");
        assert_eq!(guard.token(), stored(&rig));
        assert!(guard.token() > first);
        guard.unlock().await.expect("it is held");
        assert_only_the_token_left(&rig).await;
    }

    /// R-26, I3: a release that is sent again leaves the next owner and its token alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_release_sent_again_leaves_the_next_owner_alone() {
        let rig = rig(Duration::ZERO).await;
        let (other, releasing) = (rig.bystander().await, rig.running(RELEASE));
        let guard = soon(rig.client.fenced_lock("job").lock()).await.expect("free");
        let (before, lost) = (guard.token(), rig.proxy.drop_reply(releasing.clone(), 1));
        let unlocking = tokio::spawn(guard.unlock());
        lost.happened(1).await;
        let next = soon(other.fenced_lock("job").lock()).await.expect("free");
        soon(unlocking).await.expect("no panic").expect("done, though nobody said so");
        rig.proxy.wait_for(releasing, 2).await;
        assert_eq!(rig.holds("job"), held_by(&next.holder(), 1));
        assert!(next.token() > before && next.token() == stored(&rig));
        next.unlock().await.expect("it is held");
        other.close().await;
        assert_only_the_token_left(&rig).await;
    }
}

mod dropped {
    use super::*;

    /// R-38, I3, I12: what was granted to a future that is gone goes back; its token is not given
    /// to anybody else.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_acquisition_is_undone() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        for _ in 0..3 {
            let held = rig.proxy.hold_reply(acquiring(&rig));
            let waiting = tokio::spawn(lock.lock());
            held.held().await;
            let orphan = stored(&rig);
            waiting.abort();
            assert!(waiting.await.is_err(), "it had no answer");
            let next = tokio::spawn(lock.lock());
            held.release();
            let next: FencedGuard = soon(next).await.expect("no panic").expect("it comes free");
            assert!(next.token() > orphan);
            next.unlock().await.expect("it is held");
        }
        assert_only_the_token_left(&rig).await;
    }

    /// R-38, I3: a grant that its future does not collect goes to the next, as a hold of its own.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_uncollected_grant_goes_on_with_another_token() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        let first = soon(lock.lock()).await.expect("free");
        let mut sleepy = Box::pin(lock.clone().owned_by(Owner::new()).lock());
        assert!(poll!(&mut sleepy).is_pending());
        let other = lock.clone();
        let next = tokio::spawn(async move { other.lock().await });
        let before = first.token();
        first.unlock().await.expect("it is held");
        let next = soon(next).await.expect("no panic").expect("it goes on");
        assert!(next.token() > before);
        let last = next.token();
        next.unlock().await.expect("it is held");
        let late = soon(sleepy).await.expect("its turn comes again");
        assert!(late.token() > last);
        late.unlock().await.expect("it is held");
        assert_only_the_token_left(&rig).await;
    }
}

/// Redisson answers Java `[-1, -1]` about a lock that stands without a TTL, which it takes for a
/// grant. Ours is refused, and waits until the lock is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_a_ttl_is_not_taken_for_a_grant() {
    let rig = rig(Duration::ZERO).await;
    let (lock, peer) = (rig.client.fenced_lock("job"), Redisson::connect(rig.server.port()));
    let before = draw(&lock).await;
    assert_eq!(peer.try_fenced_lock("job", 1, 60_000), [-1, before as i64 + 1]);
    rig.raw.cmd(&["PERSIST", "job"]).ok();
    assert_eq!(peer.try_fenced_lock("job", 2, 60_000), [-1, -1], "the trap");
    assert!(soon(lock.try_lock_now()).await.expect("answered").is_none());
    assert!(
        soon(lock.try_lock(Duration::from_millis(100), LONG)).await.expect("answered").is_none()
    );
    assert_eq!(soon(lock.remaining_lease()).await.expect("answered"), Some(Duration::MAX));
    let other = lock.clone();
    let waiting = tokio::spawn(async move { other.lock().await });
    eventually("it waits", async || subscriptions(&rig.raw) == 1).await;
    assert_eq!(peer.unlock("job", 1, 60_000), Some(true));
    let guard = soon(waiting).await.expect("no panic").expect("it comes free");
    assert_eq!(rig.holds("job"), held_by(&guard.holder(), 1));
    assert!(guard.token() > before + 1);
    guard.unlock().await.expect("it is held");
    assert_only_the_token_left(&rig).await;
}

mod the_token_key {
    use super::*;

    /// I6: the only key without a TTL, unless one was asked for.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_stays_for_ever_by_default() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        assert_eq!(soon(lock.last_token()).await.expect("answered"), None);
        let guard = soon(lock.lock()).await.expect("free");
        assert_eq!(keys_without_ttl(&rig.raw), [TOKEN]);
        assert_eq!(soon(lock.last_token()).await.expect("answered"), Some(guard.token()));
        let token = guard.token();
        guard.unlock().await.expect("it is held");
        assert_eq!(soon(lock.last_token()).await.expect("answered"), Some(token));
        assert_only_the_token_left(&rig).await;
    }

    /// I3, I6: with a TTL of its own it ends, and no token comes again.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_may_end_and_no_token_comes_again() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job").token_ttl(Duration::from_millis(50));
        let lock = lock.lease(Duration::from_millis(300));
        let mut last = 0;
        for _ in 0..3 {
            let token = draw(&lock).await;
            assert!(token > last, "{token} after {last}");
            last = token;
            let ttl = rig.raw.cmd(&["PTTL", TOKEN]).int();
            assert!(ttl <= 300 && ttl != -1, "as long as the lease, at least: {ttl}");
            let ended = async || rig.raw.cmd(&["EXISTS", TOKEN]).int() == 0;
            eventually("the token key ends", ended).await;
            assert_eq!(soon(lock.last_token()).await.expect("answered"), None);
        }
        rig.assert_nothing_left().await;
    }

    /// I3: it ends under a holder that is renewed for longer. That keeps its token, the next has more.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_may_end_under_its_holder() {
        let rig = Rig::with(|builder| builder.watchdog(Duration::from_secs(1))).await;
        let lock = rig.client.fenced_lock("job").token_ttl(Duration::from_millis(50));
        let guard = soon(lock.lock()).await.expect("free");
        let ended = async || rig.raw.cmd(&["EXISTS", TOKEN]).int() == 0;
        eventually("the token key ends", ended).await;
        let token = guard.token();
        let inner = soon(lock.lock()).await.expect("nested");
        assert_eq!(inner.token(), token);
        drop(inner);
        guard.unlock().await.expect("it is held");
        assert!(draw(&lock).await > token);
        eventually("the token key ends", ended).await;
        rig.assert_nothing_left().await;
    }

    /// A TTL out of bounds is refused by whatever acquires, before anything is sent.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_ttl_that_cannot_be_is_refused() {
        let rig = rig(Duration::ZERO).await;
        for ttl in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
            let lock = rig.client.fenced_lock("job").token_ttl(ttl);
            let errors = [
                soon(lock.lock()).await.err(),
                soon(lock.lock_with(LONG)).await.err(),
                soon(lock.try_lock(LONG, LONG)).await.err(),
                soon(lock.try_lock_for(LONG)).await.err(),
                soon(lock.try_lock_now()).await.err(),
                soon(lock.with(|_| async {})).await.err(),
                soon(lock.try_with(LONG, LONG, |_| async {})).await.err(),
            ];
            for error in errors {
                assert_eq!(error.expect("refused").kind(), ErrorKind::InvalidDuration);
            }
        }
        assert_eq!(rig.proxy.count(acquiring(&rig)), 0);
        rig.assert_nothing_left().await;
    }

    /// R-42, I6: what is no number is said to be corrupt; nothing is taken, nothing is overwritten.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_that_is_no_number_is_refused() {
        let rig = rig(Duration::ZERO).await;
        let lock = rig.client.fenced_lock("job");
        for bad in ["seven", "-1", "9007199254740992"] {
            rig.raw.cmd(&["SET", TOKEN, bad]).ok();
            let error = soon(lock.lock()).await.expect_err("it cannot count on");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert_eq!(rig.raw.cmd(&["GET", TOKEN]).text(), bad);
            assert_eq!(rig.raw.cmd(&["EXISTS", "job"]).int(), 0);
        }
        rig.raw.cmd(&["SET", TOKEN, "seven"]).ok();
        let error = soon(lock.last_token()).await.expect_err("it is no number");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        rig.raw.cmd(&["DEL", TOKEN]).ok();
        rig.raw.cmd(&["RPUSH", TOKEN, "a list"]).ok();
        for error in [soon(lock.lock()).await.err(), soon(lock.last_token()).await.err()] {
            assert_eq!(error.expect("refused").kind(), ErrorKind::WrongType);
        }
        assert_only_the_token_left(&rig).await;
    }
}

/// I7, I8: what a handle is set to holds here too: lease, max hold, owner, force.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_has_the_settings_of_a_lock() {
    let rig = rig(Duration::ZERO).await;
    let lock = rig.client.fenced_lock("job").max_hold(Duration::from_millis(200)).label("fenced");
    let guard = soon(lock.lock()).await.expect("free");
    let capped = guard.token();
    assert_eq!(soon(guard.lost()).await, LostReason::MaxHold);
    drop(guard);
    let (owner, lock) = (Owner::new(), rig.client.fenced_lock("job"));
    let owned = lock.clone().lease(LONG).owned_by(owner.clone());
    let guard = soon(owned.lock()).await.expect("it was given back");
    assert!(guard.token() > capped && guard.owner() == owner);
    assert!(soon(lock.try_lock_now()).await.expect("answered").is_none(), "not this task's");
    let held = guard.token();
    guard.forget();
    soon(owned.unlock()).await.expect("its owner gives it back");
    let guard = soon(lock.lock()).await.expect("free").detach();
    assert!(soon(lock.force_unlock()).await.expect("answered"));
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(guard.token() > held, "it may still be asked for");
    drop(guard);
    assert_only_the_token_left(&rig).await;
}

//! The token lock: the plain Redis lock that other libraries have too. They are played by the raw
//! commands that they send: `SET name token NX PX`, compare and delete, compare and extend.
use std::time::Duration;

use futures::poll;
use leasehold::{Client, ErrorKind, Lock, LostReason, Owner};
use tokio::task::JoinSet;

use crate::{
    rig::{Rig, soon},
    support::{
        Capture, assert_every_key_has_ttl, assert_no_keys, blocking, eventually,
        history::History,
        proxy::Matcher,
        server::{Raw, RedisServer},
        subscriptions, unique,
    },
};

const ACQUIRE: &str = include_str!("../../lua/token_lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/token_lock/release.lua");
const RENEW: &str = include_str!("../../lua/token_lock/renew.lua");

const LONG: Duration = Duration::from_secs(60);

/// What redis-py sends to release and, with `replace_ttl`, to extend; redsync's and node-redlock's
/// scripts do the same.
const PY_RELEASE: &str = "local token = redis.call('get', KEYS[1]) \
    if not token or token ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return 1";
const PY_EXTEND: &str = "local token = redis.call('get', KEYS[1]) \
    if not token or token ~= ARGV[1] then return 0 end \
    redis.call('pexpire', KEYS[1], ARGV[2]) return 1";

/// Another library's lock.
struct Foreign(Raw);

impl Foreign {
    /// Takes it; without a TTL if there is none, as redis-py does by default.
    fn take(&self, name: &str, token: &[u8], ttl_ms: Option<u32>) -> bool {
        let ttl = ttl_ms.map(|ttl| ttl.to_string());
        let mut args: Vec<&[u8]> = vec![b"SET", name.as_bytes(), token, b"NX"];
        args.extend(ttl.iter().flat_map(|ttl| [b"PX".as_slice(), ttl.as_bytes()]));
        !self.0.cmd_bytes(&args).ok().is_nil()
    }

    fn release(&self, name: &str, token: &[u8]) -> bool {
        let args = [b"EVAL", PY_RELEASE.as_bytes(), b"1", name.as_bytes(), token];
        self.0.cmd_bytes(&args).ok().int() == 1
    }

    fn extend(&self, name: &str, token: &[u8], ttl_ms: u32) -> bool {
        let ttl = ttl_ms.to_string();
        let (script, name) = (PY_EXTEND.as_bytes(), name.as_bytes());
        self.0.cmd_bytes(&[b"EVAL", script, b"1", name, token, ttl.as_bytes()]).ok().int() == 1
    }
}

impl Rig {
    fn foreign(&self) -> Foreign {
        Foreign(self.server.raw())
    }

    fn value(&self, name: &str) -> String {
        self.raw.cmd(&["GET", name]).text()
    }
}

fn acquiring(rig: &Rig) -> impl Matcher + Clone + use<> {
    rig.running(ACQUIRE)
}

/// Promise 8 for this kind: what the documentation of Redis says, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_string_with_a_ttl_and_a_message() {
    let rig = Rig::start().await;
    let listener = rig.server.raw();
    listener.subscribe("leasehold_token_lock:{job}");
    let guard = soon(rig.client.token_lock("job").lock_with(LONG)).await.expect("free");
    assert_eq!(rig.raw.cmd(&["TYPE", "job"]).text(), "string");
    assert_eq!(rig.value("job"), guard.holder().as_str());
    assert_eq!(guard.holder().client(), rig.client.id());
    let ttl = rig.raw.cmd(&["PTTL", "job"]).int();
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    assert_eq!(rig.raw.cmd(&["DBSIZE"]).int(), 1);
    assert!(!rig.foreign().take("job", b"theirs", Some(1000)));
    guard.unlock().await.expect("it is held");
    let heard = blocking(move || listener.next_message(Duration::from_secs(10))).await;
    assert_eq!(heard.map(|message| message.payload), Some("0".into()));
    assert!(rig.foreign().take("job", b"theirs", Some(100)), "it is free for others");
    rig.assert_nothing_left().await;
}

/// Each acquisition has a token of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_never_used_again() {
    let rig = Rig::with(|builder| builder.hand_over_window(Duration::ZERO)).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let guard = soon(rig.client.token_lock("job").lock()).await.expect("free");
        assert!(seen.insert(rig.value("job")));
        guard.unlock().await.expect("it is held");
    }
}

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

/// I1, I2, I12: tasks of two clients and another library.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_exclusive_among_libraries() {
    let (server, name, history) = (RedisServer::start(), unique("shared"), History::new());
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for client in 0..2 {
        clients.push(Client::connect(server.url()).await.expect("the server is up"));
        for task in 0..4 {
            let who = format!("task {task} of {client}");
            tasks.spawn(take_turns(clients[client].token_lock(&name), history.clone(), who, 10));
        }
    }
    let (foreign, theirs, key) = (Foreign(server.raw()), history.clone(), name.clone());
    tasks.spawn(blocking(move || {
        for turn in 0..10 {
            let token = format!("theirs {turn}");
            while !foreign.take(&key, token.as_bytes(), Some(60_000)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let held = theirs.held(&key, "another library");
            std::thread::sleep(Duration::from_millis(1));
            held.end();
            assert!(foreign.release(&key, token.as_bytes()));
        }
    }));
    soon(tasks.join_all()).await;
    history.assert_exclusive(2 * 4 * 10 + 10);
    for client in clients {
        client.close().await;
    }
    assert_no_keys(&server.raw());
}

/// I9: another library tells nobody of its release, whatever TTL it had; also none at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_nobody_tells_is_noticed() {
    let rig = Rig::start().await;
    let foreign = rig.foreign();
    for ttl in [Some(600_000), None] {
        assert!(foreign.take("job", b"theirs", ttl));
        assert!(soon(rig.client.token_lock("job").try_lock_now()).await.expect("asked").is_none());
        let waiting = tokio::spawn(rig.client.token_lock("job").lock_with(LONG));
        eventually("it waits", async || subscriptions(&rig.raw) == 1).await;
        assert!(foreign.release("job", b"theirs"));
        let guard = soon(waiting).await.expect("no panic").expect("it comes free");
        assert!(!foreign.release("job", b"theirs"), "not theirs any more");
        assert!(!foreign.extend("job", b"theirs", 1), "not theirs any more");
        assert_eq!(rig.value("job"), guard.holder().as_str());
        guard.unlock().await.expect("it is held");
    }
    rig.assert_nothing_left().await;
}

/// I9: a holder of another library that is gone is followed when its TTL ends, also if it made it
/// shorter meanwhile, as ShedLock does instead of a release (`lockAtLeastFor`).
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_foreign_ttl_is_met() {
    let rig = Rig::start().await;
    let foreign = rig.foreign();
    assert!(foreign.take("job", b"theirs", Some(700)));
    let guard = soon(rig.client.token_lock("job").lock()).await.expect("its TTL ends");
    guard.unlock().await.expect("it is held");
    assert!(foreign.take("job", b"theirs", Some(600_000)));
    let waiting = tokio::spawn(rig.client.token_lock("job").lock());
    eventually("it waits", async || subscriptions(&rig.raw) == 1).await;
    rig.raw.cmd(&["SET", "job", "theirs", "XX", "PX", "300"]).ok();
    soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I10: a try with a limit ends at it, with a last look.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_waits_no_longer_than_it_may() {
    let rig = Rig::start().await;
    let foreign = rig.foreign();
    assert!(foreign.take("job", b"theirs", None));
    let lock = rig.client.token_lock("job");
    let wait = Duration::from_millis(120);
    let since = std::time::Instant::now();
    assert!(soon(lock.try_lock(wait, LONG)).await.expect("asked").is_none());
    assert!(since.elapsed() >= wait);
    let mut waiting = Box::pin(lock.try_lock(Duration::from_millis(400), LONG));
    assert!(poll!(&mut waiting).is_pending());
    rig.proxy.wait_for(acquiring(&rig), 2).await;
    assert!(foreign.release("job", b"theirs"));
    let guard = soon(waiting).await.expect("asked").expect("its last look finds it free");
    guard.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// Promise 2: our own releases wake our waiters by message, not by their timers.
#[tokio::test(flavor = "multi_thread")]
async fn our_own_release_wakes_a_waiter_of_another_process() {
    let (capture, name) = (Capture::global(), unique("told"));
    let rig = Rig::start().await;
    let other = rig.bystander().await;
    for _ in 0..5 {
        let guard = soon(other.token_lock(&name).lock()).await.expect("free");
        rig.proxy.forget_commands();
        let waiting = tokio::spawn(rig.client.token_lock(&name).lock());
        rig.proxy.wait_for(acquiring(&rig), 2).await;
        eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
        guard.unlock().await.expect("it is held");
        let guard = soon(waiting).await.expect("no panic").expect("free");
        guard.unlock().await.expect("it is held");
    }
    let acquired = capture.saying("acquired");
    let ours = acquired.iter().filter(|event| event.field("lock") == Some(&*name));
    let woken = ours.filter(|event| event.field("woken_by") == Some("message")).count();
    // One may fall together with the timer.
    assert!(woken >= 3, "{woken} of 5 were woken by a message");
    rig.assert_nothing_left().await;
}

/// R-33, I9: and should the message be lost, by the timer.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_costs_bounded_time() {
    let rig = Rig::start().await;
    rig.proxy.eat_messages(true);
    let guard = soon(rig.bystander().await.token_lock("job").lock()).await.expect("free");
    let waiting = tokio::spawn(rig.client.token_lock("job").lock());
    eventually("it listens", async || subscriptions(&rig.raw) == 1).await;
    guard.unlock().await.expect("it is held");
    soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

mod nesting {
    use super::*;

    #[track_caller]
    fn assert_own_hold<T: std::fmt::Debug>(result: Result<T, leasehold::Error>) {
        let error = result.expect_err("it is not reentrant");
        assert_eq!(error.kind(), ErrorKind::OwnHold, "{error}");
    }

    /// I5: whoever asks for what it holds is told so, instead of waiting for itself.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_owner_does_not_enter_its_hold_again() {
        let rig = Rig::start().await;
        let lock = rig.client.token_lock("job");
        let guard = soon(lock.lock()).await.expect("free");
        let sent = rig.proxy.count(acquiring(&rig));
        assert_own_hold(soon(lock.lock()).await);
        assert_own_hold(soon(lock.try_lock_now()).await);
        assert_own_hold(soon(lock.try_lock(LONG, LONG)).await);
        assert_own_hold(soon(Owner::scope(lock.lock())).await);
        assert_eq!(rig.proxy.count(acquiring(&rig)), sent, "nobody asked the server");
        assert_eq!((guard.hold_count(), guard.is_held()), (1, true));
        guard.unlock().await.expect("it is held");
        soon(lock.lock()).await.expect("free again").unlock().await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// I5: so is the body of `with`, by an explicit owner as well.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_body_does_not_enter_the_hold_around_it() {
        let rig = Rig::start().await;
        let lock = rig.client.token_lock("job").owned_by(Owner::new());
        let nested = lock.clone();
        let inside = soon(lock.with(|_held| async move { nested.lock().await })).await;
        assert_own_hold(inside.expect("the body ran"));
        let nested = rig.client.token_lock("job");
        let inside = soon(nested.with(|_held| async { nested.lock().await })).await;
        assert_own_hold(inside.expect("the body ran"));
        rig.assert_nothing_left().await;
    }

    /// I5: another branch of the task is refused whether the first holds the lock or still asks.
    #[tokio::test(flavor = "multi_thread")]
    async fn another_branch_of_the_task_is_refused() {
        let rig = Rig::start().await;
        let lock = rig.client.token_lock("job");
        let guard = soon(lock.lock()).await.expect("free");
        let mut branches = futures::stream::FuturesUnordered::from_iter([lock.lock()]);
        let branch = soon(futures::StreamExt::next(&mut branches)).await.expect("there is one");
        let error = branch.expect_err("the branch around it holds the lock");
        assert_eq!(error.kind(), ErrorKind::ConcurrentOwner, "{error}");
        guard.unlock().await.expect("it is held");
        let under_way = rig.proxy.hold_command(acquiring(&rig));
        let mut first = Box::pin(lock.lock());
        assert!(poll!(&mut first).is_pending());
        let error = soon(lock.lock()).await.expect_err("the first still asks");
        assert_eq!(error.kind(), ErrorKind::ConcurrentOwner, "{error}");
        under_way.release();
        soon(first).await.expect("free").unlock().await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// I1: owners of their own wait for each other, in one task too.
    #[tokio::test(flavor = "multi_thread")]
    async fn scopes_side_by_side_exclude_each_other() {
        let (rig, history) = (Rig::start().await, History::new());
        let turns = (0..40).map(|scope| {
            let (lock, history) = (rig.client.token_lock("job"), history.clone());
            Owner::scope(take_turns(lock, history, format!("scope {scope}"), 2))
        });
        soon(futures::future::join_all(turns)).await;
        history.assert_exclusive(80);
        rig.assert_nothing_left().await;
    }
}

mod faults {
    use super::*;

    /// R-25, I5, I11: the lock holds this token already, so the resend is granted.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_reply_of_an_acquire_is_ridden_out() {
        for cut in [false, true] {
            let rig = Rig::start().await;
            let lost = match cut {
                false => rig.proxy.drop_reply(acquiring(&rig), 1),
                true => rig.proxy.drop_reply_and_cut(acquiring(&rig)),
            };
            let guard = soon(rig.client.token_lock("job").lock()).await.expect("free");
            lost.happened(1).await;
            assert_eq!(rig.value("job"), guard.holder().as_str());
            guard.unlock().await.expect("it is held");
            rig.assert_nothing_left().await;
        }
    }

    /// R-26, I4: the resend of a release finds nothing, and leaves the next holder alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_reply_of_a_release_is_ridden_out() {
        let rig = Rig::start().await;
        let releasing = rig.running(RELEASE);
        let guard = soon(rig.client.token_lock("job").lock()).await.expect("free");
        let lost = rig.proxy.drop_reply(releasing.clone(), 1);
        let unlocking = tokio::spawn(guard.unlock());
        lost.happened(1).await;
        assert!(rig.foreign().take("job", b"theirs", Some(60_000)));
        soon(unlocking).await.expect("no panic").expect("done, though nobody said so");
        rig.proxy.wait_for(releasing, 2).await;
        assert_eq!(rig.value("job"), "theirs");
        assert!(rig.foreign().release("job", b"theirs"));
        rig.assert_nothing_left().await;
    }

    /// I12: a grant that nobody waits for any more goes back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_acquisition_is_undone() {
        let rig = Rig::start().await;
        for (dropped, reply) in [(false, true), (true, true), (true, false)] {
            let (lock, matcher) = (rig.client.token_lock("job"), acquiring(&rig));
            let held =
                if reply { rig.proxy.hold_reply(matcher) } else { rig.proxy.hold_command(matcher) };
            let waiting = tokio::spawn(lock.lock());
            held.held().await;
            if dropped {
                waiting.abort();
                assert!(waiting.await.is_err(), "it had no answer");
                held.release();
            } else {
                held.release();
                drop(soon(waiting).await.expect("no panic").expect("free"));
            }
            eventually("it is free", async || rig.raw.cmd(&["EXISTS", "job"]).int() == 0).await;
            drop(held);
        }
        rig.assert_nothing_left().await;
    }

    /// R-38, I7, I12: dropped while it waits for another library.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_wait_leaves_nothing_behind() {
        let rig = Rig::start().await;
        let foreign = rig.foreign();
        for tries in [0, 1, 2, 3] {
            assert!(foreign.take("job", b"theirs", None));
            rig.proxy.forget_commands();
            let waiting = tokio::spawn(rig.client.token_lock("job").lock());
            rig.proxy.wait_for(acquiring(&rig), tries).await;
            waiting.abort();
            let _ = waiting.await;
            assert!(foreign.release("job", b"theirs"));
            eventually("nobody listens", async || subscriptions(&rig.raw) == 0).await;
            // What was on its way when it was dropped is granted, and goes back.
            let free = async || rig.raw.cmd(&["EXISTS", "job"]).int() == 0;
            eventually("nobody holds it", free).await;
        }
        rig.assert_nothing_left().await;
    }

    /// I1, I12: tasks of one process hand it on in memory: one acquire, one release.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_handed_on_within_a_process() {
        let rig = Rig::with(|builder| builder.hand_over_window(Duration::from_secs(8))).await;
        let (lock, history) = (rig.client.token_lock("job"), History::new());
        let guard = soon(lock.lock()).await.expect("free");
        let mut tasks = JoinSet::new();
        for task in 0..10 {
            let who = format!("task {task}");
            tasks.spawn(take_turns(lock.clone(), history.clone(), who, 1));
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // late ones ask later, and get it too
        guard.unlock().await.expect("it is held");
        soon(tasks.join_all()).await;
        history.assert_exclusive(10);
        rig.assert_nothing_left().await;
        let sent = rig.proxy.count(acquiring(&rig));
        assert!(sent <= 3, "{sent} acquires for eleven turns");
    }

    /// the other kinds say that the key is not theirs, instead of waiting for it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_name_is_a_hash_or_a_string_but_not_both() {
        let rig = Rig::start().await;
        let token = soon(rig.client.token_lock("a").lock()).await.expect("free");
        let plain = soon(rig.client.lock("b").lock()).await.expect("free");
        for lock in [rig.client.lock("a"), rig.client.spin_lock("a"), rig.client.token_lock("b")] {
            let error = soon(lock.lock()).await.expect_err("another kind has it");
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            let error = soon(lock.force_unlock()).await.expect_err("another kind has it");
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            let error = soon(lock.is_locked()).await.expect_err("another kind has it");
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        }
        token.unlock().await.expect("it is held");
        plain.unlock().await.expect("it is held");
        rig.assert_nothing_left().await;
    }
}

mod keeping {
    use super::*;

    async fn renewing() -> Rig {
        Rig::with(|builder| builder.watchdog(Duration::from_secs(1))).await
    }

    /// I6, I7: renewed while its guard lives, and never after; an operator's PERSIST is healed.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_renewed_while_it_is_held() {
        let rig = renewing().await;
        let renewals = rig.running(RENEW);
        let guard = soon(rig.client.token_lock("job").lock()).await.expect("free");
        rig.proxy.wait_for(renewals.clone(), 4).await;
        assert!(guard.is_held());
        rig.raw.cmd(&["PERSIST", "job"]).ok();
        eventually("it has a TTL again", async || rig.raw.cmd(&["PTTL", "job"]).int() > 0).await;
        assert_every_key_has_ttl(&rig.raw);
        guard.unlock().await.expect("it is held");
        let sent = rig.proxy.count(renewals.clone());
        tokio::time::sleep(Duration::from_millis(700)).await; // two renewals would have come
        assert_eq!(rig.proxy.count(renewals), sent);
        rig.assert_nothing_left().await;
    }

    /// R-47, I8, I4: removed, or taken over by another library without a look at who holds it: its
    /// owner is told, and leaves the next holder alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_removal_is_told_and_the_next_holder_is_left_alone() {
        let rig = renewing().await;
        for by in [&["DEL", "job"][..], &["SET", "job", "theirs", "PX", "60000"]] {
            let guard = soon(rig.client.token_lock("job").lock()).await.expect("free");
            rig.raw.cmd(by).ok();
            assert_eq!(soon(guard.lost()).await, LostReason::Removed);
            assert!(!guard.is_held());
            assert!(soon(guard.unlock()).await.expect_err("it was lost").is_lost());
            let foreign = rig.foreign();
            let _ = foreign.take("job", b"theirs", Some(60_000));
            assert_eq!(rig.value("job"), "theirs");
            assert!(foreign.release("job", b"theirs"));
        }
        rig.assert_nothing_left().await;
    }

    /// R-04, I2, I4: a fixed lease ends on time, and what its owner does later touches nobody.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_fixed_lease_ends_and_its_owner_knows() {
        let rig = Rig::start().await;
        let lock = rig.client.token_lock("job");
        let guard = soon(lock.lock_with(Duration::from_millis(300))).await.expect("free");
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
        let foreign = rig.foreign();
        let taken = async || foreign.take("job", b"theirs", Some(60_000));
        eventually("it is free for others", taken).await;
        assert!(soon(guard.unlock()).await.expect_err("it was lost").is_lost());
        assert!(soon(lock.unlock()).await.is_err());
        assert_eq!(rig.value("job"), "theirs");
        assert!(foreign.release("job", b"theirs"));
        rig.assert_nothing_left().await;
    }

    /// I6: extending compares, and never shortens.
    #[tokio::test(flavor = "multi_thread")]
    async fn extending_only_ever_makes_it_longer() {
        let rig = Rig::start().await;
        let lock = rig.client.token_lock("job");
        let guard = soon(lock.lock_with(Duration::from_secs(20))).await.expect("free");
        soon(guard.extend(LONG)).await.expect("it is held");
        let ttl = rig.raw.cmd(&["PTTL", "job"]).int();
        assert!(ttl > 20_000, "{ttl}");
        soon(guard.extend(Duration::from_secs(1))).await.expect("it is held");
        let ttl = rig.raw.cmd(&["PTTL", "job"]).int();
        assert!(ttl > 20_000, "{ttl}");
        rig.raw.cmd(&["SET", "job", "theirs", "PX", "5000"]).ok();
        let error = soon(guard.extend(LONG)).await.expect_err("another has it");
        assert!(error.is_lost(), "{error}");
        let ttl = rig.raw.cmd(&["PTTL", "job"]).int();
        assert!((1..=5000).contains(&ttl), "{ttl}: theirs was not touched");
    }
}

mod strangers {
    use super::*;

    /// A holder's token may be any bytes: it is shown as far as it can be, and waited for.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_token_need_not_be_a_text() {
        let rig = Rig::start().await;
        let (lock, foreign) = (rig.client.token_lock("job"), rig.foreign());
        let token = b"\xff\x00\xfe ours";
        assert!(foreign.take("job", token, None));
        assert!(soon(lock.is_locked()).await.expect("it can be read"));
        let holder = soon(lock.holder()).await.expect("it can be read").expect("it is held");
        assert_eq!(holder.as_str(), "\u{fffd}\0\u{fffd} ours");
        assert_eq!(soon(lock.remaining_lease()).await.expect("answered"), Some(Duration::MAX));
        assert!(soon(lock.try_lock_now()).await.expect("it can be read").is_none());
        // What is shown is not the token, and frees nothing.
        assert!(!soon(lock.force_unlock_if(&holder)).await.expect("answered"));
        let waiting = tokio::spawn(lock.lock());
        eventually("it waits", async || subscriptions(&rig.raw) == 1).await;
        assert!(foreign.release("job", token));
        soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
        rig.assert_nothing_left().await;
    }

    /// I4: by force, but only from whom was meant; the owner of this client is told at once.
    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_freed_by_force_only_from_whom_was_meant() {
        let rig = Rig::start().await;
        let (lock, foreign) = (rig.client.token_lock("job"), rig.foreign());
        let guard = soon(lock.lock_with(LONG)).await.expect("free");
        let ours = guard.holder();
        assert_eq!(soon(lock.holder()).await.expect("answered"), Some(ours.clone()));
        assert!(soon(lock.force_unlock_if(&ours)).await.expect("answered"));
        assert_eq!(soon(guard.lost()).await, LostReason::Removed);
        drop(guard);
        assert!(foreign.take("job", b"theirs", Some(60_000)));
        assert!(!soon(lock.force_unlock_if(&ours)).await.expect("answered"));
        let waiting = tokio::spawn(rig.client.token_lock("job").lock());
        eventually("it waits", async || subscriptions(&rig.raw) == 1).await;
        assert!(soon(lock.force_unlock()).await.expect("answered"));
        soon(waiting).await.expect("no panic").expect("free").unlock().await.expect("it is held");
        assert!(!soon(lock.force_unlock()).await.expect("answered"), "nobody held it");
        rig.assert_nothing_left().await;
    }
}

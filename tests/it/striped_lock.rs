//! One hot name split into several: a key has one stripe for ever, and any free one will do.
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Lease, LockGuard, LostReason, Owner, StripeGuard};
use tokio::task::JoinSet;

use crate::{
    rig::{acquiring, soon},
    support::{
        assert_no_keys, eventually,
        history::History,
        proxy::Proxy,
        server::{Raw, RedisServer},
        subscriptions, unique,
    },
};

struct Rig {
    _server: RedisServer,
    raw: Raw,
    client: Client,
    other: Client,
    name: String,
}

impl Rig {
    async fn start() -> Self {
        let server = RedisServer::start();
        let client = Client::connect(server.url()).await.expect("the server is up");
        let other = Client::connect(server.url()).await.expect("the server is up");
        Self { raw: server.raw(), _server: server, client, other, name: unique("hot") }
    }

    /// The stripes that somebody holds, by their numbers.
    fn held(&self, stripes: usize) -> BTreeSet<usize> {
        let exists =
            |at: &usize| self.raw.cmd(&["EXISTS", &format!("{}:{at}", self.name)]).int() == 1;
        (0..stripes).filter(exists).collect()
    }

    async fn assert_nothing_left(self) {
        eventually("all is given back", async || self.raw.cmd(&["DBSIZE"]).int() == 0).await;
        soon(self.client.close()).await;
        soon(self.other.close()).await;
        eventually("nobody listens", async || subscriptions(&self.raw) == 0).await;
        assert_no_keys(&self.raw);
    }
}

/// The map is part of the protocol: CRC-16/XMODEM modulo the stripes, and may never change.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_same_stripe_everywhere_for_ever() {
    let rig = Rig::start().await;
    let striped = rig.client.striped_lock(&rig.name, 64);
    // python3 -c 'import binascii; print([binascii.crc_hqx(k, 0) % 64 for k in (...)])'
    let known: [(&[u8], usize); 6] = [
        (b"", 0),
        (b"123456789", 0x31c3 % 64),
        (b"alice", 45),
        (b"{alice}", 58),
        ("ü".as_bytes(), 16),
        (&[0, 255, 10], 53),
    ];
    for (key, stripe) in known {
        assert_eq!(striped.stripe_of(key), stripe, "{key:?}");
        assert_eq!(striped.for_key(key).name(), format!("{}:{stripe}", rig.name));
    }
    assert_eq!(rig.other.striped_lock(&rig.name, 64).stripe_of("alice"), 45);
}

/// I1, I2: two keys of one stripe exclude each other, two of different ones do not.
#[tokio::test(flavor = "multi_thread")]
async fn keys_exclude_each_other_by_their_stripes() {
    let rig = Rig::start().await;
    let (ours, theirs) =
        (rig.client.striped_lock(&rig.name, 4), rig.other.striped_lock(&rig.name, 4));
    let keys: Vec<_> = (0..40).map(|at| format!("key {at}")).collect();
    let guard = ours.for_key(&keys[0]).lock().await.expect("it is free");
    for key in &keys {
        let got = theirs.for_key(key).try_lock_now().await.expect("an answer");
        assert_eq!(got.is_some(), theirs.stripe_of(key) != ours.stripe_of(&keys[0]), "{key}");
    }
    drop(guard);
    rig.assert_nothing_left().await;
}

/// I1, I15: as many at a time as there are stripes, each alone on its own.
#[tokio::test(flavor = "multi_thread")]
async fn any_takes_a_stripe_that_is_free() {
    let (rig, history) = (Rig::start().await, History::new());
    let mut tasks = JoinSet::new();
    for task in 0..12 {
        let client = if task % 2 == 0 { &rig.client } else { &rig.other };
        let (striped, history) = (client.striped_lock(&rig.name, 3), history.clone());
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = striped.any().await.expect("one comes free");
                let held = history.held(guard.name(), &format!("task {task}"));
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..500))).await;
                held.end();
                guard.unlock().await.expect("it is held");
            }
        });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        done.expect("no task panics");
    }
    history.assert_exclusive(12 * 20);
    let used: BTreeSet<_> = history.intervals().into_iter().map(|held| held.name).collect();
    assert_eq!(used.len(), 3, "all are used");
    rig.assert_nothing_left().await;
}

async fn take_all(client: &Client, name: &str, stripes: usize) -> Vec<StripeGuard> {
    let mut guards = Vec::new();
    for _ in 0..stripes {
        let striped = client.striped_lock(name, stripes).owned_by(Owner::new());
        guards.push(striped.try_any_now().await.expect("an answer").expect("one is free"));
    }
    guards.sort_by_key(StripeGuard::stripe);
    guards
}

/// I9, I12: whichever comes free; the other queues are left, and one stripe is held.
#[tokio::test(flavor = "multi_thread")]
async fn any_waits_for_whichever_comes_free_and_leaves_the_other_queues() {
    let rig = Rig::start().await;
    let mut guards = take_all(&rig.other, &rig.name, 4).await;
    assert_eq!(rig.held(4).len(), 4);
    let striped = rig.client.striped_lock(&rig.name, 4);
    assert!(striped.try_any_now().await.expect("an answer").is_none());
    let short = Duration::from_millis(50);
    assert!(striped.try_any_for(short).await.expect("an answer").is_none());
    assert!(
        striped
            .try_with_any(short, Lease::Renewed, async |_, _| {})
            .await
            .expect("an answer")
            .is_none()
    );
    let waiting = tokio::spawn(async move { striped.any().await.map(StripeGuard::detach) });
    eventually("it waits", async || subscriptions(&rig.raw) == 4).await;
    guards.remove(2).unlock().await.expect("it is held");
    let guard = soon(waiting).await.expect("no panic").expect("one came free");
    assert_eq!(guard.stripe(), 2);
    // Nobody waits for the others any more: they stay free.
    for guard in guards {
        guard.unlock().await.expect("it is held");
    }
    eventually("nobody listens", async || subscriptions(&rig.raw) == 0).await;
    assert_eq!(rig.held(4), BTreeSet::from([2]));
    guard.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// I15: those that are granted together are not kept together.
#[tokio::test(flavor = "multi_thread")]
async fn any_keeps_one_of_several_that_come_free_at_once() {
    let rig = Rig::start().await;
    for _ in 0..20 {
        let guards = take_all(&rig.other, &rig.name, 4).await;
        let striped = rig.client.striped_lock(&rig.name, 4);
        let waiting = tokio::spawn(async move { striped.any().await.map(StripeGuard::detach) });
        eventually("it waits", async || subscriptions(&rig.raw) == 4).await;
        drop(guards);
        let guard = soon(waiting).await.expect("no panic").expect("all came free");
        eventually("one is kept", async || rig.held(4) == BTreeSet::from([guard.stripe()])).await;
        drop(guard);
        eventually("it goes back", async || rig.held(4).is_empty()).await;
    }
    rig.assert_nothing_left().await;
}

/// while the stripes are tried, and while they are waited for.
#[tokio::test(flavor = "multi_thread")]
async fn any_that_is_dropped_leaves_nothing() {
    let rig = Rig::start().await;
    let proxy = Proxy::start(rig._server.port());
    let client = Client::connect(proxy.url()).await.expect("the server is up");
    // Else the first reply would be NOSCRIPT, and nothing would have been granted.
    drop(client.lock("warm").lock().await.expect("it is free"));
    let reply = proxy.hold_reply(acquiring(&format!("{}:0", rig.name)));
    let striped = client.striped_lock(&rig.name, 1);
    let asking = tokio::spawn(async move { striped.any().await });
    soon(reply.held()).await;
    assert_eq!(rig.held(1).len(), 1, "it was granted");
    asking.abort();
    reply.release();
    eventually("it is given back", async || rig.held(1).is_empty()).await;
    let guards = take_all(&rig.other, &rig.name, 3).await;
    let striped = client.striped_lock(&rig.name, 3);
    let waiting = tokio::spawn(async move { striped.any().await });
    eventually("it waits", async || subscriptions(&rig.raw) == 3).await;
    waiting.abort();
    eventually("it waits no more", async || subscriptions(&rig.raw) == 0).await;
    drop(guards);
    soon(client.close()).await;
    rig.assert_nothing_left().await;
}

/// I5: an owner gets its own stripe again; one of another scope gets another.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_stripe_gets_that_again() {
    let rig = Rig::start().await;
    let striped = rig.client.striped_lock(&rig.name, 8);
    let guard = striped.any().await.expect("all are free");
    for _ in 0..8 {
        let again = striped.any().await.expect("it is ours");
        assert_eq!((again.stripe(), again.hold_count()), (guard.stripe(), 2));
    }
    striped
        .with_any(async |stripe, held| assert_eq!((stripe, held.hold_count()), (guard.stripe(), 2)))
        .await
        .expect("it is ours");
    let other = striped.clone().owned_by(Owner::new()).any().await.expect("seven are free");
    assert_ne!(other.stripe(), guard.stripe());
    drop(other);
    guard.forget();
    let mine = striped.stripes().iter().find(|stripe| stripe.is_held_by_me()).expect("one is");
    mine.unlock().await.expect("it is held");
    rig.assert_nothing_left().await;
}

/// All stripes at once, as for taking stock; and a lease that ends.
#[tokio::test(flavor = "multi_thread")]
async fn all_stripes_are_one_multi_lock() {
    let rig = Rig::start().await;
    let striped = rig.client.striped_lock(&rig.name, 4).lease(Duration::from_secs(1));
    let all = striped.all().lock().await.expect("all are free");
    assert_eq!(all.members().len(), 4);
    let theirs = rig.other.striped_lock(&rig.name, 4);
    assert!(theirs.try_any_now().await.expect("an answer").is_none());
    assert_eq!(soon(all.lost()).await, LostReason::Expired);
    let guard: LockGuard = soon(theirs.any()).await.expect("they come free").into();
    assert!(guard.valid_until() > Instant::now() + Duration::from_secs(10));
    drop((all, guard));
    let guard = soon(striped.any_with(Lease::Renewed)).await.expect("they are free");
    assert!(guard.valid_until() > Instant::now() + Duration::from_secs(10));
    drop(guard);
    rig.assert_nothing_left().await;
}

/// Told by the first use, before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn too_few_or_too_many_stripes_are_refused() {
    let rig = Rig::start().await;
    for stripes in [0, 1025, usize::MAX] {
        let striped = rig.client.striped_lock(&rig.name, stripes);
        let kind = striped.any().await.expect_err("it cannot be").kind();
        assert_eq!(kind, ErrorKind::InvalidCount);
        let kind = striped.for_key("x").lock().await.expect_err("it cannot be").kind();
        assert_eq!(kind, ErrorKind::InvalidCount);
    }
    let unnamed = rig.client.striped_lock("", 4);
    assert_eq!(unnamed.any().await.expect_err("no name").kind(), ErrorKind::InvalidName);
    assert_eq!(rig.client.striped_lock(&rig.name, 1024).stripes().len(), 1024);
    rig.assert_nothing_left().await;
}

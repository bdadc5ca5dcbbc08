//! A held lock is kept for as long as its guard lives, and not a moment longer.
use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Held, LockGuard, LostReason};
use tokio::time::timeout;

use crate::support::{
    assert_every_key_has_ttl, assert_no_keys, eventually,
    proxy::{Proxy, any, mentioning, named},
    server::{Raw, RedisServer},
    unique,
};

/// When a test that should be long over is taken for hanging.
const HANG: Duration = Duration::from_secs(20);

/// A lease of which a third is soon over, and that outlasts a machine that stalls for a moment.
const SHORT: Duration = Duration::from_secs(1);

/// I6, I7.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lock_outlives_many_watchdogs() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    let begin = Instant::now();
    while begin.elapsed() < SHORT * 7 / 2 {
        let left = raw.cmd(&["PTTL", &name]).int();
        assert!(left > 0 && left <= 1000, "{left} ms left after {:?}", begin.elapsed());
        assert!(guard.is_held(), "after {:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guard.unlock().await.expect("it is held");
    assert_no_keys(&raw);
}

/// I7, R-40.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_given_back_is_not_renewed() {
    let server = RedisServer::start();
    let (raw, proxy, name) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    for by_drop in [false, true] {
        let guard = client.lock(&name).lock().await.expect("it is free");
        renewed(&guard, 1).await;
        let field = guard.holder();
        if by_drop {
            drop(guard);
            eventually("it is free", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
        } else {
            guard.unlock().await.expect("it is held");
        }
        assert_silence_about(&proxy, field.as_str(), &client).await;
    }
}

/// I7, R-38.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_future_was_dropped_is_not_renewed() {
    let server = RedisServer::start();
    let (raw, proxy, name) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    // The server knows the script from here on.
    client.lock(&name).lock().await.expect("it is free").unlock().await.expect("it is held");
    let reply = proxy.hold_reply(named("EVALSHA"));
    let locking = tokio::spawn(client.lock(&name).lock());
    reply.held().await;
    let field = raw.cmd(&["HKEYS", &name]).items()[0].text();
    locking.abort();
    reply.release();
    eventually("it is free", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
    assert_silence_about(&proxy, &field, &client).await;
}

/// I7, R-47.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_is_not_renewed() {
    let server = RedisServer::start();
    let (raw, proxy, name) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    renewed(&guard, 1).await;
    assert_eq!(raw.cmd(&["DEL", &name]).int(), 1);
    let reason = timeout(HANG, guard.lost()).await.expect("a renewal tells");
    assert_eq!(reason, LostReason::Removed);
    assert_silence_about(&proxy, guard.holder().as_str(), &client).await;
}

/// I7: closing cuts the connections, and nothing opens them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_renews_nothing() {
    let server = RedisServer::start();
    let (raw, proxy, name) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    renewed(&guard, 1).await;
    client.close().await;
    proxy.wait_connections(0).await;
    let accepted = proxy.accepted();
    eventually("its lease ends", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
    assert_eq!(proxy.accepted(), accepted);
    assert!(!guard.is_held());
}

/// the late answer is about a hold that is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_under_way_does_not_disturb_the_release() {
    let server = RedisServer::start();
    let (raw, proxy, name) = (server.raw(), Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    renewed(&guard, 1).await;
    let reply = proxy.hold_reply(mentioning(guard.holder().as_str()));
    reply.held().await;
    let lost = tokio::spawn(guard.lost());
    guard.unlock().await.expect("it is held");
    let guard = client.lock(&name).lock().await.expect("it is free");
    reply.release();
    renewed(&guard, 2).await;
    assert!(!lost.is_finished(), "what was given back is not lost");
    lost.abort();
    guard.unlock().await.expect("it is held");
    assert_no_keys(&raw);
}

/// F14: many holds, few commands.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_locks_are_kept_by_few_commands() {
    const COUNT: usize = 20_000;
    let server = RedisServer::start();
    let (raw, prefix) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT * 6).await;
    let locks: Vec<_> = (0..COUNT).map(|n| client.lock(format!("{prefix}-{n}"))).collect();
    let mut guards = Vec::with_capacity(COUNT);
    for locks in locks.chunks(1000) {
        let taken = futures::future::try_join_all(locks.iter().map(|lock| lock.lock())).await;
        guards.extend(taken.expect("they are free"));
    }
    let periods = 3;
    let begin = Instant::now();
    assert_eq!(raw.cmd(&["CONFIG", "RESETSTAT"]).text(), "OK");
    renewed(&guards[COUNT - 1], periods).await;
    let elapsed = begin.elapsed();
    let lists = scripts_run(&raw);

    assert_eq!(guards.iter().filter(|guard| !guard.is_held()).count(), 0, "some are lost");
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), COUNT as i64);
    assert_every_key_has_ttl(&raw);
    let thirds = elapsed.as_secs_f64() / (SHORT * 2).as_secs_f64() + 2.0;
    let most = thirds * (COUNT / 64) as f64;
    assert!(lists as f64 <= most, "{lists} lists in {elapsed:?}, {most} would be many");
    assert!(lists as f64 >= periods as f64 * (COUNT / 256) as f64, "only {lists} lists");
    drop(guards);
    eventually("all are given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

/// a slow reply leaves less of the lease, and the first renewal may not come too late for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_granted_late_is_renewed_in_time() {
    let server = RedisServer::start();
    let (proxy, name) = (Proxy::start(server.port()), unique("a"));
    let client = client(&proxy.url(), SHORT).await;
    let first = client.lock(unique("b")).lock().await.expect("it is free");
    renewed(&first, 1).await; // the connection for renewals is open
    let reply = proxy.hold_reply(mentioning(&name));
    let locking = tokio::spawn(client.lock(&name).lock());
    reply.held().await;
    tokio::time::sleep(SHORT / 4).await;
    reply.release();
    let locking = timeout(HANG, locking).await.expect("it is free").expect("no panic");
    renewed(&locking.expect("the server is up"), 3).await;
}

/// what waits for its turn is not asked for once more, else nothing would ever catch up.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_do_not_pile_up_while_the_server_stands_still() {
    const COUNT: usize = 2_000;
    let server = RedisServer::start();
    let (proxy, prefix) = (Proxy::start(server.port()), unique("a"));
    let builder = Client::builder(proxy.url()).expect("a URL").watchdog(SHORT * 8);
    let client = builder.command_timeout(SHORT * 10).connect().await.expect("the server is up");
    let first = client.lock(unique("b")).lock().await.expect("it is free");
    renewed(&first, 1).await; // the connection for renewals is open
    let locks: Vec<_> = (0..COUNT).map(|n| client.lock(format!("{prefix}-{n}"))).collect();
    let guards = futures::future::try_join_all(locks.iter().map(|lock| lock.lock())).await;
    let guards = guards.expect("they are free");
    let before: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    server.pause();
    proxy.forget_commands();
    // All become due meanwhile, and most are due for several tries more.
    tokio::time::sleep(SHORT * 18 / 5).await;
    server.resume();
    let renewed = |(guard, before): (&LockGuard, &Instant)| {
        guard.valid_until() > *before + Duration::from_millis(20)
    };
    eventually("all are renewed", async || guards.iter().zip(&before).all(renewed)).await;
    let mut sent = 0;
    let quiet = async || {
        tokio::time::sleep(SHORT / 5).await;
        let before = std::mem::replace(&mut sent, proxy.count(any()));
        before == sent
    };
    eventually("nothing is left to send", quiet).await;

    let script = |command: &Vec<Vec<u8>>| command[0].to_ascii_uppercase().starts_with(b"EVAL");
    let scripts = proxy.commands().into_iter().filter(script);
    let names = scripts.map(|command| String::from_utf8_lossy(&command[2]).parse::<usize>());
    let asked: usize = names.map(|names| names.expect("the number of keys")).sum();
    assert!((COUNT / 2..COUNT * 3 / 2).contains(&asked), "{asked} renewals of {COUNT} locks");
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// renewals have a thread of their own.
#[tokio::test]
async fn a_blocked_runtime_does_not_stop_renewals() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    let begin = Instant::now();
    while begin.elapsed() < SHORT * 5 / 2 {
        // Blocks the only thread there is.
        thread::sleep(Duration::from_millis(20));
        let left = raw.cmd(&["PTTL", &name]).int();
        assert!(left > 0, "lost after {:?}", begin.elapsed());
        assert!(guard.is_held(), "thought lost after {:?}", begin.elapsed());
    }
    guard.unlock().await.expect("it is held");
}

/// I8: the lease is not given back under a living guard, but at once when it is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_at_its_longest() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url(), Duration::from_secs(60)).await;
    let lock = client.lock(&name).max_hold(Duration::from_millis(300));
    let begin = Instant::now();
    let guard = lock.lock().await.expect("it is free");
    assert!(guard.valid_until() <= Instant::now() + Duration::from_millis(300));
    let reason = timeout(HANG, guard.lost()).await.expect("it ends");
    assert_eq!(reason, LostReason::MaxHold);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!(!guard.is_held());
    assert!(raw.cmd(&["PTTL", &name]).int() > 30_000, "the guard lives");

    drop(guard);
    eventually("it is free", async || raw.cmd(&["EXISTS", &name]).int() == 0).await;
    let guard = lock.lock().await.expect("it is free");
    timeout(HANG, guard.lost()).await.expect("it ends");
    let error = guard.unlock().await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::MaxHold));
}

/// I8: of nested holds the shortest limit counts, also if it came last.
#[tokio::test(flavor = "multi_thread")]
async fn max_hold_of_a_nested_acquisition_counts_too() {
    let server = RedisServer::start();
    let (client, name) = (client(&server.url(), Duration::from_secs(30)).await, unique("nested"));
    let outer = client.lock(&name).lock().await.expect("free");
    let inner = client.lock(&name).max_hold(Duration::from_millis(300));
    let inner = inner.lock().await.expect("nested");
    let lost = tokio::time::timeout(Duration::from_secs(20), outer.lost()).await;
    assert_eq!(lost.expect("it ends"), LostReason::MaxHold);
    assert!(!inner.is_held());
}

/// the others of its list do not suffer.
#[tokio::test(flavor = "multi_thread")]
async fn one_spoilt_key_does_not_stop_the_renewal_of_others() {
    let server = RedisServer::start();
    let (raw, prefix) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let lock = client.lock(format!("{prefix}-{number}"));
        guards.push(lock.lock().await.expect("it is free"));
    }
    let spoilt = guards.swap_remove(7);
    assert_eq!(raw.cmd(&["SET", spoilt.name(), "no lock", "PX", "60000"]).text(), "OK");
    let reason = timeout(HANG, spoilt.lost()).await.expect("its lease ends");
    assert_eq!(reason, LostReason::Expired);
    renewed(&guards[0], 4).await;
    for guard in guards {
        assert!(guard.is_held(), "{guard:?}");
        guard.unlock().await.expect("it is held");
    }
    let name = spoilt.name().to_owned();
    drop(spoilt);
    client.close().await;
    assert_eq!(raw.cmd(&["GET", &name]).text(), "no lock");
}

/// I5: neither a renewal nor a release of the inner hold takes away what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_shortens_a_longer_lease() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT).await;
    let lock = client.lock(&name);
    let outer = lock.lock().await.expect("it is free");
    renewed(&outer, 1).await;
    let inner = lock.lock_with(Duration::from_secs(60)).await.expect("it is ours");
    let left = || raw.cmd(&["PTTL", &name]).int();
    assert!(left() > 50_000);
    raw.cmd(&["CONFIG", "RESETSTAT"]);
    eventually("it was renewed twice", async || scripts_run(&raw) >= 2).await;
    assert!(left() > 40_000);
    assert!(outer.valid_until() > Instant::now() + Duration::from_secs(40));
    inner.unlock().await.expect("it is held");
    assert!(left() > 40_000);

    outer.extend(Duration::from_secs(90)).await.expect("it is held");
    assert!(left() > 70_000);
    outer.extend(SHORT).await.expect("it is held");
    assert!(left() > 70_000);
    outer.unlock().await.expect("it is held");
    assert_no_keys(&raw);
}

/// R-47, I6.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_gives_a_lock_its_lease_back() {
    let server = RedisServer::start();
    let (raw, name) = (server.raw(), unique("a"));
    let client = client(&server.url(), SHORT).await;
    let guard = client.lock(&name).lock().await.expect("it is free");
    assert_eq!(raw.cmd(&["PERSIST", &name]).int(), 1);
    eventually("it ends again", async || raw.cmd(&["PTTL", &name]).int() > 0).await;
    assert!(guard.is_held());
}

async fn client(url: &str, watchdog: Duration) -> Client {
    let builder = Client::builder(url).expect("a URL").watchdog(watchdog);
    builder.connect().await.expect("the server is up")
}

/// Waits until a hold has been renewed `n` times more.
async fn renewed(held: &Held, n: u32) {
    for nth in 0..n {
        // The same moment is not always read as the same on both clocks.
        let before = held.valid_until() + Duration::from_millis(20);
        let what = format!("renewal {nth} of {n}");
        eventually(&what, async || {
            assert!(held.is_held(), "lost before {what}");
            held.valid_until() > before
        })
        .await;
    }
}

/// Asserts that a client says nothing of a hold any more, while it renews another three times.
async fn assert_silence_about(proxy: &Proxy, field: &str, client: &Client) {
    proxy.forget_commands();
    let other = client.lock(unique("other")).lock().await.expect("it is free");
    renewed(&other, 3).await;
    let of_other = other.holder();
    other.unlock().await.expect("it is held");
    assert!(proxy.count(mentioning(of_other.as_str())) >= 5, "the other was not renewed");
    assert_eq!(proxy.count(mentioning(field)), 0);
}

/// How many scripts the server has run since its statistics began.
fn scripts_run(raw: &Raw) -> u64 {
    let stats = raw.cmd(&["INFO", "commandstats"]).text();
    let calls = |line: &str| -> Option<u64> {
        let counts = line.strip_prefix("cmdstat_eval")?.split_once(":calls=")?.1;
        counts.split(',').next()?.parse().ok()
    };
    stats.lines().filter_map(calls).sum()
}

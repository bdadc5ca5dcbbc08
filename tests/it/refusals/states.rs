//! What a server is not in a state to do.

use super::*;

fn kind(refusal: Refusal) -> ErrorKind {
    ErrorKind::Refused(refusal)
}

/// R-17, I6.
#[tokio::test]
async fn without_memory_nothing_is_taken_but_what_is_held_is_kept_and_given_back() {
    let server = RedisServer::start();
    let raw = server.raw();
    let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = builder.connect().await.unwrap();
    let handle = client.lock("held");
    let outer = within(handle.lock()).await.unwrap();
    let inner = within(handle.lock()).await.unwrap();
    let spare = lock(&client.lock("spare")).await.unwrap();
    set(&raw, "maxmemory", "1");
    for name in ["free", "held"] {
        let error = lock(&client.lock(name)).await.unwrap_err();
        assert_eq!(error.kind(), kind(Refusal::OutOfMemory), "{error}");
        assert_eq!(error.lock(), Some(name));
    }
    assert_eq!(raw.cmd(&["EXISTS", "free"]).int(), 0);
    assert_eq!(outer.hold_count(), 2);
    let before = outer.valid_until();
    eventually("it is renewed", async || outer.valid_until() > before).await;
    within(inner.unlock()).await.unwrap();
    assert_eq!(raw.cmd(&["HGET", "held", outer.holder().as_str()]).int(), 1);
    within(outer.unlock()).await.unwrap();
    drop(spare);
    eventually("the spare is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
    set(&raw, "maxmemory", "0");
    within(lock(&client.lock("free")).await.unwrap().unlock()).await.unwrap();
}

///
#[tokio::test]
async fn a_key_that_is_no_lock_is_left_alone() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let keys: [&[&str]; 3] =
        [&["SET", "text", "x"], &["RPUSH", "list", "x"], &["ZADD", "zset", "1", "x"]];
    for key in keys {
        raw.cmd(key).ok();
        let handle = client.lock(key[1]);
        let errors = [
            lock(&handle).await.map(drop).unwrap_err(),
            within(handle.try_lock_now()).await.map(drop).unwrap_err(),
            within(handle.force_unlock()).await.map(drop).unwrap_err(),
            within(handle.is_locked()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.lock()), (ErrorKind::WrongType, Some(key[1])));
            assert!(!error.is_indeterminate(), "{error}");
        }
        assert_eq!(pttl(&raw, key[1]), -1, "it keeps its own time");
    }
    assert_eq!(raw.cmd(&["GET", "text"]).text(), "x");
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), 3);
}

/// under a holder the key changes its type.
#[tokio::test]
async fn a_lock_replaced_by_another_type_is_told_and_not_touched() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let guard = lock(&client.lock("job")).await.unwrap();
    raw.cmd(&["SET", "job", "x", "PX", "600000"]).ok();
    assert_eq!(lock(&client.lock("job")).await.unwrap_err().kind(), ErrorKind::WrongType);
    assert_eq!(within(guard.unlock()).await.unwrap_err().kind(), ErrorKind::WrongType);
    assert_eq!(raw.cmd(&["GET", "job"]).text(), "x");
}

///
#[tokio::test]
async fn a_corrupt_count_is_told_and_can_still_be_given_back_or_forced() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    for (count, force) in
        [("notanumber", false), ("9223372036854775807", false), ("1e3", true), (" 1", true)]
    {
        let handle = client.lock("job");
        let guard = lock(&handle).await.unwrap();
        raw.cmd(&["HSET", "job", guard.holder().as_str(), count]).ok();
        let error = lock(&handle).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{count}: {error}");
        let left = raw.cmd(&["HGET", "job", guard.holder().as_str()]).text();
        assert_eq!(left, count, "nothing is half-written");
        assert_every_key_has_ttl(&raw);
        if force {
            assert!(within(handle.force_unlock()).await.unwrap());
            assert_eq!(within(guard.lost()).await, LostReason::Removed);
        } else {
            within(guard.unlock()).await.unwrap();
        }
        assert_no_keys(&raw);
    }
}

/// R-22, I10: what a demoted primary refuses is ridden out until there is a primary again.
#[tokio::test]
async fn a_replica_is_ridden_out() {
    let server = RedisServer::start();
    let (raw, proxy) = (server.raw(), Proxy::start(server.port()));
    let client = Client::connect(proxy.url()).await.unwrap();
    let guard = lock(&client.lock("held")).await.unwrap();
    raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let tried = client.lock("free").try_lock(Duration::from_millis(100), LEASE);
    let error = within(tried).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    proxy.forget_commands();
    let waiting = tokio::spawn({
        let handle = client.lock("free");
        async move { handle.lock_with(LEASE).await }
    });
    let leaving = tokio::spawn(guard.unlock());
    proxy.wait_for(named("EVALSHA"), 4).await;
    assert!(!waiting.is_finished() && !leaving.is_finished());
    assert_eq!(raw.cmd(&["EXISTS", "held", "free"]).int(), 1);
    raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
    within(leaving).await.unwrap().unwrap();
    within(within(waiting).await.unwrap().unwrap().unlock()).await.unwrap();
    eventually("all is given back", async || raw.cmd(&["DBSIZE"]).int() == 0).await;
}

/// While a server accepts no writes: what it says is told at once, what was to be given back is
/// given back as soon as it lets us.
async fn while_writes_are_refused(
    server: &RedisServer,
    refusal: Refusal,
    refuse: impl Fn(),
    accept: impl Fn(),
) {
    let (raw, client) = (server.raw(), client(server).await);
    let unlocked = lock(&client.lock("unlocked")).await.unwrap();
    let dropped = lock(&client.lock("dropped")).await.unwrap();
    let nested = [(); 2].map(|()| client.lock("nested"));
    let nested = [lock(&nested[0]).await.unwrap(), lock(&nested[1]).await.unwrap()];
    refuse();
    for name in ["free", "nested"] {
        let error = lock(&client.lock(name)).await.unwrap_err();
        assert_eq!(error.kind(), kind(refusal), "{error}");
    }
    let error = within(unlocked.unlock()).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (kind(refusal), Some("unlocked")));
    drop(dropped);
    let [outer, inner] = nested;
    let error = within(inner.unlock()).await.unwrap_err();
    assert_eq!(error.kind(), kind(refusal), "{error}");
    assert!(outer.is_held(), "the outer hold stands");
    assert_eq!(raw.cmd(&["EXISTS", "unlocked", "dropped", "nested", "free"]).int(), 3);
    assert_every_key_has_ttl(&raw);
    accept();
    eventually("both are given back", async || {
        raw.cmd(&["EXISTS", "unlocked", "dropped"]).int() == 0
    })
    .await;
    eventually("the nested hold is given back", async || {
        raw.cmd(&["HGET", "nested", outer.holder().as_str()]).int() == 1
    })
    .await;
    within(outer.unlock()).await.unwrap();
    assert_no_keys(&raw);
    assert!(pttl(&raw, "free") == -2);
}

/// Makes the server unable to save, and so unwilling to write.
fn misconfigure(server: &RedisServer) {
    let raw = server.raw();
    std::fs::create_dir_all(server.dir().join("dump.rdb")).unwrap();
    set(&raw, "save", "3600 1");
    raw.cmd(&["BGSAVE"]).ok();
    until("the save has failed", || {
        raw.cmd(&["INFO", "persistence"]).text().contains("rdb_last_bgsave_status:err")
    });
}

///
#[tokio::test]
async fn a_server_that_cannot_save_refuses_and_is_asked_again_for_releases() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (refuse, accept) = (|| misconfigure(&server), || set(&raw, "save", ""));
    while_writes_are_refused(&server, Refusal::Misconfigured, refuse, accept).await;
}

///
#[tokio::test]
async fn a_server_without_its_replicas_refuses_and_is_asked_again_for_releases() {
    let server = RedisServer::start();
    let raw = server.raw();
    let replicas = |n: &str| set(&raw, "min-replicas-to-write", n);
    let (refuse, accept) = (|| replicas("1"), || replicas("0"));
    while_writes_are_refused(&server, Refusal::NoReplicas, refuse, accept).await;
}

/// R-16, I8: renewals are refused, though the server answers every PING.
#[tokio::test]
async fn a_hold_whose_renewals_are_refused_is_lost_at_its_deadline() {
    let server = RedisServer::start();
    let raw = server.raw();
    let builder = Client::builder(server.url()).unwrap().watchdog(Duration::from_secs(1));
    let client = builder.connect().await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    set(&raw, "min-replicas-to-write", "1");
    assert_eq!(within(guard.lost()).await, LostReason::Expired);
    assert!(std::time::Instant::now() >= guard.valid_until());
    let error = within(guard.unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    eventually("its lease has ended", async || pttl(&raw, "job") == -2).await;
    set(&raw, "min-replicas-to-write", "0");
    assert!(within(client.lock("job").try_lock_now()).await.unwrap().is_some());
}

/// R-16, I8: one that is healed in time is never lost.
#[tokio::test]
async fn a_hold_is_kept_if_renewals_are_accepted_again_in_time() {
    let server = RedisServer::start();
    let raw = server.raw();
    let proxy = Proxy::start(server.port());
    let builder = Client::builder(proxy.url()).unwrap().watchdog(Duration::from_secs(6));
    let client = builder.connect().await.unwrap();
    let guard = within(client.lock("job").lock()).await.unwrap();
    set(&raw, "min-replicas-to-write", "1");
    proxy.forget_commands();
    proxy.wait_for(named("EVALSHA"), 2).await;
    let before = guard.valid_until();
    set(&raw, "min-replicas-to-write", "0");
    eventually("it is renewed", async || guard.valid_until() > before).await;
    assert!(guard.is_held());
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&raw);
}

/// somebody's endless script passes.
#[tokio::test]
async fn a_busy_server_is_ridden_out() {
    let server = RedisServer::start();
    let (raw, proxy) = (server.raw(), Proxy::start(server.port()));
    let client = Client::connect(proxy.url()).await.unwrap();
    let guard = lock(&client.lock("held")).await.unwrap();
    set(&raw, "busy-reply-threshold", "10");
    let busy = server.raw();
    busy.send(&[b"EVAL", b"while true do end", b"0"]).unwrap();
    until("the server is busy", || {
        raw.cmd(&["PING"]).error().is_some_and(|text| text.starts_with("BUSY"))
    });
    let tried = within(client.lock("free").try_lock_now()).await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.forget_commands();
    let waiting = tokio::spawn({
        let handle = client.lock("free");
        async move { handle.lock_with(LEASE).await }
    });
    let leaving = tokio::spawn(guard.unlock());
    proxy.wait_for(named("EVALSHA"), 4).await;
    raw.cmd(&["SCRIPT", "KILL"]).ok();
    within(leaving).await.unwrap().unwrap();
    within(within(waiting).await.unwrap().unwrap().unlock()).await.unwrap();
    assert!(statistic(&raw, "evalsha", "rejected_calls") >= 3, "it was busy all the time");
    assert_no_keys(&raw);
}

/// a server that reads its data answers, but not yet to us.
#[tokio::test]
async fn a_server_that_loads_its_data_is_ridden_out() {
    let slow = ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"];
    let mut server = RedisServer::builder().args(slow).start();
    let fill = "for i = 1, 3000 do redis.call('SET', 'key:' .. i, 'x', 'PX', 600000) end";
    server.raw().cmd(&["EVAL", fill, "0"]).ok();
    server.raw().cmd(&["SAVE"]).ok();
    let builder = Client::builder(server.url()).unwrap().patience(SOON * 2);
    let client = builder.connect().await.unwrap();
    server.kill();
    let waiting = tokio::spawn({
        let handle = client.lock("job");
        async move { handle.lock_with(LEASE).await }
    });
    let server = blocking(move || {
        server.restart();
        server
    })
    .await;
    let guard = within(waiting).await.unwrap().unwrap();
    let raw = server.raw();
    assert!(statistic(&raw, "evalsha", "rejected_calls") >= 1, "it was asked while it loaded");
    within(guard.unlock()).await.unwrap();
    assert_eq!(raw.cmd(&["EXISTS", "job"]).int(), 0);
}

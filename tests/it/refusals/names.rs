//! Names of every kind.

use super::*;

#[tokio::test]
async fn a_name_that_cannot_be_used_is_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let client = Client::connect(proxy.url()).await.unwrap();
    proxy.wait_for(named("CLIENT"), 1).await;
    eventually("all is quiet", async || proxy.count(named("CLIENT")) >= 2).await;
    proxy.forget_commands();
    let long = "x".repeat(leasehold::LONGEST_NAME + 1);
    for name in ["", &long, &"ü".repeat(257)] {
        let handle = client.lock(name);
        let errors = [
            lock(&handle).await.map(drop).unwrap_err(),
            within(handle.try_lock_now()).await.map(drop).unwrap_err(),
            within(handle.unlock()).await.unwrap_err(),
            within(handle.force_unlock()).await.map(drop).unwrap_err(),
            within(handle.is_locked()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
            assert!(error.to_string().len() < 400, "a long name is not repeated in full");
        }
        assert!(!handle.is_held_by_me());
    }
    let empty = client.prefixed("prefix:").lock("");
    assert_eq!(lock(&empty).await.unwrap_err().kind(), ErrorKind::InvalidName);
    assert!(proxy.commands().is_empty(), "{:?}", proxy.commands());
}

/// What is strange to people, to Redis' patterns, and to a client that takes any array which
/// begins with "message" for a message.
#[tokio::test]
async fn any_other_name_is_just_bytes() {
    let server = RedisServer::start();
    let raw = server.raw();
    let (client, other) = (client(&server).await, client(&server).await);
    let longest = "ü".repeat(leasehold::LONGEST_NAME / 2);
    let names = [
        "{",
        "}",
        "{}",
        "}{",
        "a{b",
        "a}b",
        "{a}",
        "x{}y",
        "{{a}}",
        "nul\0byte",
        "line\r\nfeed",
        "$5\r\nx",
        "*",
        "?",
        "[a-z]",
        "h*llo",
        "\\",
        "ключ",
        "🔒",
        "e\u{301}",
        " ",
        "-1",
        "0",
        "message",
        "smessage",
        "pmessage",
        "subscribe",
        "unsubscribe",
        "invalidate",
        "OK",
        &longest,
    ];
    for name in names {
        let guard = lock(&client.lock(name)).await.unwrap();
        let left = raw.cmd(&["HGET", name, guard.holder().as_str()]);
        assert_eq!(left.int(), 1, "{name:?}");
        let theirs = other.lock(name);
        assert!(within(theirs.try_lock_now()).await.unwrap().is_none());
        let seen = within(theirs.holder()).await.unwrap();
        assert_eq!(seen, Some(guard.holder()), "{name:?}");
        let waiter = tokio::spawn(theirs.lock_with(LEASE));
        eventually("the waiter listens", async || {
            let channel = Redisson::channel(name);
            raw.cmd(&["PUBSUB", "NUMSUB", &channel]).items()[1].int() == 1
        })
        .await;
        within(guard.unlock()).await.unwrap();
        let guard = within(waiter).await.unwrap().unwrap();
        assert_eq!(guard.name(), name);
        within(guard.unlock()).await.unwrap();
        assert_no_keys(&raw);
    }
}

/// The prefix and the mapper make the name that Redis sees.
#[tokio::test]
async fn a_name_made_too_long_by_its_mapper_is_refused() {
    let server = RedisServer::start();
    let builder = Client::builder(server.url()).unwrap();
    let client = builder.name_mapper(|name| name.repeat(100)).connect().await.unwrap();
    let guard = lock(&client.lock("short")).await.unwrap();
    assert_eq!(guard.name().len(), 500);
    let error = lock(&client.lock("longer")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    within(guard.unlock()).await.unwrap();
    assert_no_keys(&server.raw());
}

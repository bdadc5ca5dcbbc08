//! Durations that cannot be used.

use super::*;

/// nothing is sent for them.
#[tokio::test]
async fn a_lease_out_of_bounds_is_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let client = Client::connect(proxy.url()).await.unwrap();
    let guard = lock(&client.lock("held")).await.unwrap();
    proxy.forget_commands();
    let leases = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(1),
        leasehold::SHORTEST_LEASE - Duration::from_nanos(1),
        leasehold::LONGEST_LEASE + Duration::from_nanos(1),
        Duration::from_millis(i64::MAX as u64),
        Duration::from_millis(u64::MAX),
        Duration::MAX,
    ];
    for lease in leases {
        let handle = client.lock("job");
        let errors = [
            within(handle.lock_with(lease)).await.map(drop).unwrap_err(),
            within(handle.try_lock(SOON, lease)).await.map(drop).unwrap_err(),
            within(handle.clone().lease(lease).lock()).await.map(drop).unwrap_err(),
            within(handle.clone().lease(lease).try_lock_now()).await.map(drop).unwrap_err(),
            within(handle.try_with(SOON, lease, |_| async {})).await.map(drop).unwrap_err(),
            within(guard.extend(lease)).await.unwrap_err(),
            Client::builder(proxy.url()).unwrap().watchdog(lease).connect().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidDuration, "{lease:?}: {error}");
        }
    }
    let error = within(client.lock("job").max_hold(Duration::ZERO).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidDuration);
    assert!(proxy.commands().is_empty(), "{:?}", proxy.commands());
}

/// R-24, I6.
#[tokio::test]
async fn the_shortest_and_the_longest_lease_are_kept() {
    let server = RedisServer::start();
    let (raw, client) = (server.raw(), client(&server).await);
    let longest = client.lock("longest").lock_with(leasehold::LONGEST_LEASE);
    let guard = within(longest).await.unwrap();
    assert!(pttl(&raw, "longest") > 315_575_000_000);
    assert!(guard.is_held());
    within(guard.unlock()).await.unwrap();
    // It may be over before it is told; it must be over soon in any case.
    let shortest = client.lock("shortest").try_lock(SOON, leasehold::SHORTEST_LEASE);
    drop(within(shortest).await.unwrap());
    eventually("it is over", async || pttl(&raw, "shortest") == -2).await;
}

///
#[tokio::test]
async fn a_wait_may_be_of_any_length() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let lock = client.lock("job");
    let waits = [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(u64::MAX)];
    for wait in waits.into_iter().chain([Duration::MAX]) {
        let guard = within(lock.try_lock(wait, LEASE)).await.unwrap().expect("it is free");
        let theirs = lock.clone().owned_by(leasehold::Owner::new());
        if wait < SOON {
            assert!(within(theirs.try_lock(wait, LEASE)).await.unwrap().is_none());
            within(guard.unlock()).await.unwrap();
        } else {
            let waiter = tokio::spawn(theirs.try_lock(wait, LEASE));
            within(guard.unlock()).await.unwrap();
            let guard = within(waiter).await.unwrap().unwrap().expect("it became free");
            within(guard.unlock()).await.unwrap();
        }
    }
    assert_no_keys(&server.raw());
}

//! Smoke test of the family (to be replaced).
use crate::support::server::RedisServer;
use leasehold::*;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn semaphores() {
    let server = RedisServer::start();
    let a = Client::connect(server.url()).await.unwrap();
    let s = a.semaphore("s");
    assert_eq!(s.acquire().await.unwrap_err().kind(), ErrorKind::Uninitialised);
    assert!(s.try_set(3).await.unwrap());
    let p = s.acquire_many(2).await.unwrap();
    assert_eq!(s.available().await.unwrap(), Some(1));
    assert!(s.try_acquire_many(2, Duration::ZERO).await.unwrap().is_none());
    let w = tokio::spawn({
        let s = s.clone();
        async move { s.acquire_many(3).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    p.release().await.unwrap();
    drop(w.await.unwrap().unwrap());
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    s.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for t in tasks {
        t.await.unwrap();
    }
    assert_eq!(s.available().await.unwrap(), Some(3));
    let s = a.permit_semaphore("p").sized(3);
    let p = s.acquire_many(2).await.unwrap();
    println!("{:?}", p.ids().collect::<Vec<_>>());
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    s.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for t in tasks {
        t.await.unwrap();
    }
    let id = p.ids().next().unwrap();
    assert!(s.release_id(id).await.unwrap());
    println!("{:?}", s.permits().await.unwrap());
    println!("{:?}", p.release().await);
    println!("{:?}", s.permits().await.unwrap());
    let l = a.count_down_latch("l");
    l.wait().await.unwrap();
    assert!(l.try_set(2).await.unwrap());
    let w: Vec<_> = (0..10)
        .map(|_| {
            let l = l.clone();
            tokio::spawn(async move { l.wait().await })
        })
        .collect();
    assert_eq!(l.count_down().await.unwrap(), 1);
    assert!(!l.wait_for(Duration::from_millis(50)).await.unwrap());
    assert_eq!(l.count_down().await.unwrap(), 0);
    for w in w {
        w.await.unwrap().unwrap();
    }
}

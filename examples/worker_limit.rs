//! Shows  a supplier that takes three calls at a time, and workers in several processes that keep
//!        to it; one process is killed, and its permits come back.
//!
//! Run    cargo run --example worker_limit
//!
//! Watch  how many calls the supplier saw at once: never a fourth, and soon after the kill three
//!        again.

mod common;

use common::{Error, Program, RedisServer, Result, within};
use futures::future::try_join_all;
use leasehold::{Client, PermitSemaphore};
use std::{
    io,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

/// What the supplier allows.
const LIMIT: u32 = 3;
/// How many tasks of each process call it, and how often each does.
const TASKS: usize = 4;
const CALLS: usize = 50;
/// A process that is killed gives its permits back within this time.
const LEASE: Duration = Duration::from_secs(1);
/// What else that may need on a busy machine.
const LENIENCE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, supplier, what] => work(url, supplier, what).await,
        _ => watch().await,
    }
}

/// What each process runs: some tasks that call the supplier again and again.
async fn work(url: &str, supplier: &str, what: &str) -> Result<()> {
    let client = Client::builder(url)?.watchdog(LEASE).connect().await?;
    // Whoever comes first sets the number. It is then in Redis, and `set` changes it for all.
    let limit = client.permit_semaphore("example:supplier").sized(LIMIT);
    let tasks = if what == "stuck" { 2 } else { TASKS };
    try_join_all((0..tasks).map(|_| async {
        for _ in 0..CALLS {
            call_within(&limit, supplier, what).await?;
        }
        Ok::<_, Error>(())
    }))
    .await?;
    client.close().await;
    Ok(())
}

async fn call_within(limit: &PermitSemaphore, supplier: &str, what: &str) -> Result<()> {
    let permit = limit.acquire().await?; // waits; renewed for as long as the call takes
    tokio::select! {
        done = call(supplier, what) => done?,
        // Redis was away for too long: somebody else may have the permit, so hang up.
        reason = permit.lost() => return Err(reason.to_string().into()),
    }
    Ok(permit.release().await?) // or let it go out of scope
}

async fn call(supplier: &str, what: &str) -> Result<()> {
    let mut connection = TcpStream::connect(supplier).await?;
    connection.write_u8(what.as_bytes()[0]).await?;
    connection.read_u8().await?;
    Ok(())
}

/// Starts the supplier and the processes, kills one of them, and looks what the supplier saw.
async fn watch() -> Result<()> {
    let redis = RedisServer::start();
    let (url, (supplier, mut seen)) = (redis.url(), supplier().await?);
    let start = |what| Program::start(&[&url, &supplier, what]);

    let mut stuck = start("stuck")?;
    within("two calls", seen.wait_for(|seen| seen.stuck == 2)).await??;
    println!("a process makes two calls that get no answer, with two of {LIMIT} permits");
    let quick = [start("quick")?, start("quick")?];
    sleep(LEASE * 2).await;
    let done = seen.borrow().done;
    println!("  two leases later, two others have made {done} calls, one at a time");

    stuck.kill().await?;
    let killed = Instant::now();
    within("three calls", seen.wait_for(|seen| seen.quick == 3)).await??;
    let took = killed.elapsed();
    println!("kill -9: {:.2} s later, the others make three calls at once", took.as_secs_f32());
    assert!(took < LEASE + LENIENCE, "the lease is {LEASE:?}");

    for worker in quick {
        worker.end().await?;
    }
    let seen = seen.borrow();
    println!("in all, {} calls, and never more than {} at once", seen.done, seen.most);
    assert_eq!((seen.done, seen.most), (2 * TASKS * CALLS, LIMIT));
    Ok(())
}

/// What the supplier saw: calls at the moment, of both sorts, the most at once, and how many it
/// answered.
#[derive(Default)]
struct Seen {
    stuck: u32,
    quick: u32,
    most: u32,
    done: usize,
}

/// A service elsewhere, which would be cross about a fourth call at once.
async fn supplier() -> Result<(String, watch::Receiver<Seen>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (sender, seen) = watch::channel(Seen::default());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection, sender.clone()));
        }
    });
    Ok((address, seen))
}

async fn answer(mut connection: TcpStream, seen: watch::Sender<Seen>) -> io::Result<()> {
    let stuck = u32::from(connection.read_u8().await? == b's');
    let quick = 1 - stuck;
    seen.send_modify(|seen| {
        seen.stuck += stuck;
        seen.quick += quick;
        seen.most = seen.most.max(seen.stuck + seen.quick);
    });
    if stuck == 1 {
        let _ = connection.read_u8().await; // nothing comes but the end of the caller
    } else {
        sleep(Duration::from_millis(20)).await;
    }
    // Before the answer: what comes after it is the next call's.
    seen.send_modify(|seen| {
        seen.stuck -= stuck;
        seen.quick -= quick;
        seen.done += quick as usize;
    });
    connection.write_u8(0).await
}

//! Shows  an endpoint that may be called twice for the same thing, at once, in two processes, and
//!        does it once: it takes a lock for each phone number.
//!
//! Run    cargo run --example register_once
//!
//! Watch  the last lines: each number was asked for four times and registered once.

mod common;

use axum::{
    Router,
    extract::{Path, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn},
    routing::post,
};
use common::{Program, RedisServer, Result};
use futures::future::try_join_all;
use leasehold::{Client, Lease, Owner};
use std::{collections::BTreeMap, fs, io::Write, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

const NUMBERS: usize = 100;
/// How often each number comes to each of the two processes.
const REPEATS: usize = 2;

#[tokio::main]
async fn main() -> Result<()> {
    match &common::args()[..] {
        [url, file] => serve(url, file.into()).await,
        _ => fire().await,
    }
}

#[derive(Clone)]
struct Service {
    client: Client,
    /// The database of this example: a line for each registration.
    file: PathBuf,
}

/// What each process runs.
async fn serve(url: &str, file: PathBuf) -> Result<()> {
    let client = Client::connect(url).await?.prefixed("example:register:");
    // A server may run several requests of one connection in the same task, and the owner of a lock
    // is the task if nothing else is said: the second would enter what the first still holds. In a
    // scope, each request is an owner of its own. (If that goes for the whole program, build the
    // client with `Reentry::Scoped` instead.)
    let in_scope =
        from_fn(async |request: Request, next: Next| Owner::scope(next.run(request)).await);
    let service = Service { client, file };
    let app = Router::new().route("/{number}", post(register)).layer(in_scope).with_state(service);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

/// 201 if this call registered the number, 200 if it was there, 503 to be sent again.
async fn register(State(service): State<Service>, Path(number): Path<String>) -> StatusCode {
    let lock = service.client.lock(&number);
    // A call should not wait forever. The body is dropped if the lock is lost or the caller hangs
    // up, so what counts is what it does last.
    let body = |_held| service.register_locked(&number);
    match lock.try_with(Duration::from_secs(5), Lease::Renewed, body).await {
        Ok(Some(status)) => status,
        Ok(None) => StatusCode::SERVICE_UNAVAILABLE,
        // No Redis, or the lock was lost on the way. Sent again, it is found done or not done.
        Err(error) => {
            eprintln!("{number}: {error}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

impl Service {
    /// Look, then write: what two must not do at once.
    ///
    /// If a number that is there twice would be a disaster, the table has a unique index as well:
    /// a process that was frozen here for longer than its lease goes on without the lock.
    async fn register_locked(&self, number: &str) -> StatusCode {
        let known = fs::read_to_string(&self.file).expect("it is there");
        if known.lines().any(|line| line == number) {
            return StatusCode::OK;
        }
        sleep(Duration::from_millis(5)).await; // ask the operator whether the number exists
        let mut file = fs::OpenOptions::new().append(true).open(&self.file).expect("it is there");
        file.write_all(format!("{number}\n").as_bytes()).expect("the disk is not full");
        StatusCode::CREATED
    }
}

/// Starts two processes, sends every number to both at once, and counts.
async fn fire() -> Result<()> {
    let redis = RedisServer::start();
    let file = redis.dir().join("registered");
    fs::write(&file, "")?;
    let args = [redis.url(), file.display().to_string()];
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let mut servers = [Program::start(&args)?, Program::start(&args)?];
    let addresses = [servers[0].line().await?, servers[1].line().await?];
    println!("two servers, {} and {}", addresses[0], addresses[1]);

    let mut answers = BTreeMap::<_, usize>::new();
    for number in 0..NUMBERS {
        let number = format!("+4930{number:06}");
        let calls = addresses.iter().flat_map(|address| [address; REPEATS]);
        for status in try_join_all(calls.map(|address| request(address, &number))).await? {
            *answers.entry(status).or_default() += 1;
        }
    }
    println!("answers by status: {answers:?}");

    let registered = fs::read_to_string(&file)?;
    let mut numbers: Vec<_> = registered.lines().collect();
    numbers.sort_unstable();
    numbers.dedup();
    let (lines, numbers) = (registered.lines().count(), numbers.len());
    println!("registered: {numbers} numbers, in {lines} lines");
    assert_eq!((numbers, lines), (NUMBERS, NUMBERS));
    assert_eq!(answers.get("201"), Some(&NUMBERS));
    assert_eq!(answers.get("200"), Some(&(NUMBERS * (2 * REPEATS - 1))));
    Ok(())
}

/// One call; returns the status.
async fn request(address: &str, number: &str) -> Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let head = format!("POST /{number} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}

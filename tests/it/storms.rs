//! Hundreds of clients that lose their server at the same moment.
use std::time::Duration;

use leasehold::{Client, LockGuard, LostReason};

use crate::support::{
    assert_every_key_has_ttl, blocking, connects, server::RedisServer, subscriptions,
};

const CLIENTS: usize = 200;

/// For calls, subscriptions and renewals.
const CONNECTIONS: usize = 3 * CLIENTS;

/// A guard against hangs: two hundred clients share a small machine.
const LONG: Duration = Duration::from_secs(60);

/// Outlasts a restart, however slow.
const WATCHDOG: Duration = Duration::from_secs(120);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("it hangs")
}

/// One storm at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// As its namesake, for as many clients as here.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "waited {LONG:?} in vain until {what}");
}

/// Clients that each hold a lock and wait for that of the next.
struct Fleet {
    /// Each is kept for as long as the fleet.
    _clients: Vec<Client>,
    held: Vec<LockGuard>,
    waiting: Vec<tokio::task::JoinHandle<Result<LockGuard, leasehold::Error>>>,
}

fn name(n: usize) -> String {
    format!("job-{}", n % CLIENTS)
}

impl Fleet {
    async fn start(url: &str) -> Self {
        let connect = async |_| {
            let builder = Client::builder(url).expect("a URL").watchdog(WATCHDOG).patience(LONG);
            within(builder.connect()).await.expect("the server is up")
        };
        let clients = futures::future::join_all((0..CLIENTS).map(connect)).await;
        let locks = clients.iter().enumerate().map(|(n, client)| client.lock(name(n)).lock());
        let held = within(futures::future::join_all(locks)).await;
        let held: Vec<_> = held.into_iter().map(|guard| guard.expect("it is free")).collect();
        let waiters = clients.iter().enumerate().map(|(n, client)| client.lock(name(n + 1)));
        let waiting = waiters.map(|lock| tokio::spawn(async move { lock.lock().await })).collect();
        Self { _clients: clients, held, waiting }
    }

    /// Waits until each has its connections.
    async fn is_connected(&self, server: &RedisServer) {
        let raw = server.raw();
        eventually("all listen", async || subscriptions(&raw) == CLIENTS).await;
        // Whoever comes back looks at what it holds, on the connection that renews.
        raw.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL"]).ok();
        raw.cmd(&["CLIENT", "KILL", "TYPE", "PUBSUB"]).ok();
        // Of the server's clients, these alone speak RESP3.
        let ours = || raw.cmd(&["CLIENT", "LIST"]).text().matches("resp=3").count();
        eventually("all have come back", async || ours() == CONNECTIONS).await;
        eventually("all listen again", async || subscriptions(&raw) == CLIENTS).await;
    }

    /// Waits until each has what it waited for.
    async fn goes_on(self) -> Vec<LockGuard> {
        let taken = within(futures::future::join_all(self.waiting)).await.into_iter();
        taken.map(|taken| taken.expect("no panic").expect("it is free")).collect()
    }
}

async fn restarted(server: RedisServer) -> RedisServer {
    let restart = |mut server: RedisServer| {
        server.restart();
        server
    };
    blocking(move || restart(server)).await
}

/// I8, I9: a restart that takes the data with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_come_back_by_few_connects_and_look_at_all_they_hold_and_want() {
    let _turn = TURN.lock().await;
    let server = blocking(RedisServer::start).await;
    let fleet = Fleet::start(&server.url()).await;
    fleet.is_connected(&server).await;
    let server = restarted(server).await;
    for guard in &fleet.held {
        assert_eq!(within(guard.lost()).await, LostReason::Removed);
    }
    let taken = fleet.goes_on().await;
    let raw = server.raw();
    assert_eq!(raw.cmd(&["DBSIZE"]).int(), CLIENTS as i64);
    assert!(taken.iter().all(|guard| guard.is_held()));
    assert_every_key_has_ttl(&raw);
    let connects = connects(&raw);
    assert!(connects >= CONNECTIONS, "{connects} connects: all had to come back");
    assert!(connects <= 2 * CONNECTIONS, "{connects} connects");
}

/// I9: a restart that keeps the data, which the server first has to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_wait_on_their_connections_until_a_server_has_read_its_data() {
    let _turn = TURN.lock().await;
    let slow = ["--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024"];
    let builder = RedisServer::builder().appendonly().args(slow).args(["--appendfsync", "always"]);
    let server = blocking(move || builder.start()).await;
    let mut fleet = Fleet::start(&server.url()).await;
    fleet.is_connected(&server).await;
    let raw = server.raw();
    raw.cmd(&["DEBUG", "POPULATE", "3000"]).ok();
    raw.cmd(&["BGREWRITEAOF"]).ok();
    let rewritten = async || {
        let info = raw.cmd(&["INFO", "persistence"]).text();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    eventually("the data are on disk", rewritten).await;
    let before: Vec<_> = fleet.held.iter().map(|guard| guard.valid_until()).collect();
    let server = restarted(server).await;
    let raw = server.raw();
    assert!(raw.cmd(&["INFO", "errorstats"]).text().contains("LOADING"), "some came too early");
    eventually("all holds have been looked at", async || {
        fleet.held.iter().zip(&before).all(|(guard, before)| {
            assert!(guard.is_held(), "{guard:?}");
            guard.valid_until() > *before
        })
    })
    .await;
    assert!(fleet.waiting.iter().all(|waiter| !waiter.is_finished()), "all is held");
    for guard in fleet.held.drain(..) {
        within(guard.unlock()).await.expect("it is held");
    }
    assert_eq!(fleet.goes_on().await.len(), CLIENTS);
    let connects = connects(&raw);
    assert!(connects >= CONNECTIONS, "{connects} connects: all had to come back");
    assert!(connects <= 2 * CONNECTIONS, "{connects} connects");
}

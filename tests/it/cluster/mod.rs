//! Clusters: who is asked for what, and what becomes of locks while slots move and nodes die.

mod death;
mod moving;
mod names;
mod redirections;
mod renewal;
mod resize;
mod smoke;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, LockGuard};

use crate::{
    support::{
        blocking,
        cluster::ClusterSetup,
        eventually,
        history::History,
        server::{Raw, RedisServer},
        subscriptions,
    },
    topologies::live,
};

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

#[track_caller]
fn within<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let at = std::panic::Location::caller();
    async move {
        let done = tokio::time::timeout(SOON, work).await;
        done.unwrap_or_else(|_| panic!("waited {SOON:?} in vain at {at}"))
    }
}

/// As [`eventually`], for what the server or a lease takes its time to.
async fn soon_true(what: &str, mut holds: impl FnMut() -> bool) {
    let bound = tokio::time::Instant::now() + SOON;
    while !holds() {
        assert!(tokio::time::Instant::now() < bound, "waited {SOON:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn start() -> ClusterSetup {
    blocking(ClusterSetup::start).await
}

async fn connect(cluster: &ClusterSetup) -> Client {
    within(Client::connect(cluster.url())).await.unwrap()
}

fn every_node(cluster: &ClusterSetup) -> impl Iterator<Item = Raw> {
    cluster.nodes.iter().map(RedisServer::raw)
}

/// How many keys stand, at primaries and replicas that live.
fn keys(cluster: &ClusterSetup) -> i64 {
    cluster.living().map(|node| node.cmd(&["DBSIZE"]).int()).sum()
}

fn scripts_called(cluster: &ClusterSetup) -> usize {
    let stats = every_node(cluster).map(|node| node.cmd(&["INFO", "commandstats"]).text());
    stats.map(|stats| stats.matches("cmdstat_eval").count()).sum()
}

/// How many channels are listened to, on all nodes.
fn listening(cluster: &ClusterSetup) -> usize {
    cluster.living().map(|node| subscriptions(&node)).sum()
}

/// How often a node refused a command with this code.
fn refused(node: &Raw, code: &str) -> u64 {
    let stats = node.cmd(&["INFO", "errorstats"]).text();
    let line = format!("errorstat_{code}:count=");
    let count = stats.lines().find_map(|text| text.strip_prefix(&line));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Tasks that take and give back names, until they are told to stop.
struct Load {
    history: History,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Result<u64, Error>>>,
}

impl Load {
    /// So many tasks for each name and client.
    fn start(clients: &[Client], names: &[String], tasks: usize) -> Self {
        let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
        let mut load = Self { history, stop, tasks: Vec::new() };
        for (at, client) in clients.iter().enumerate() {
            for (name, task) in
                names.iter().flat_map(|name| (0..tasks).map(move |task| (name, task)))
            {
                let work = Self::work(&load, client.clone(), name.clone(), format!("{at}:{task}"));
                load.tasks.push(tokio::spawn(work));
            }
        }
        load
    }

    fn work(
        &self,
        client: Client,
        name: String,
        owner: String,
    ) -> impl Future<Output = Result<u64, Error>> + use<> {
        let (history, stop) = (self.history.clone(), self.stop.clone());
        async move {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let guard = client.lock(&name).lock_with(LEASE).await?;
                let held = history.held(&name, &owner);
                tokio::time::sleep(Duration::from_millis(2)).await; // long enough to meet others
                drop(held);
                guard.unlock().await?;
                rounds += 1;
            }
            Ok(rounds)
        }
    }

    /// How many locks were taken so far.
    fn rounds(&self) -> usize {
        self.history.intervals().len()
    }

    /// Ends the tasks; none may have failed, and no two have held a name at once.
    async fn stop(self, at_least: usize) {
        let history = self.history.clone();
        for result in self.end().await {
            result.unwrap();
        }
        history.assert_exclusive(at_least);
    }

    /// Ends the tasks; some may have lost a lock.
    async fn end(self) -> Vec<Result<u64, Error>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut results = Vec::new();
        for task in self.tasks {
            results.push(within(task).await.unwrap());
        }
        results
    }
}

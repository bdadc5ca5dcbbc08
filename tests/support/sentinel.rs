//! A primary, its replica and the sentinels that watch over them, and how to have them fail over.
//!
//! Include it beside [`server`](super::server), on which alone it stands.
#![allow(dead_code, reason = "each program that includes this file uses its own part of it")]

use std::time::Duration;

use super::server::{Raw, RedisServer, Reply, command, until, until_within};

/// How long a failover may take before it is taken for one that hangs.
const BOUND: Duration = Duration::from_secs(60);

/// A primary and its replica, and sentinels that decide by majority. The master name is `mymaster`.
#[derive(Debug)]
pub struct SentinelSetup {
    pub primary: RedisServer,
    pub replica: RedisServer,
    /// The first; where it is the only one, it decides alone.
    pub sentinel: RedisServer,
    pub others: Vec<RedisServer>,
}

impl SentinelSetup {
    /// Starts both servers and one sentinel, and waits until a failover would succeed.
    pub fn start() -> Self {
        Self::start_with(1, &[])
    }

    /// The same with several sentinels, and arguments for both servers.
    pub fn start_with(sentinels: usize, args: &[&str]) -> Self {
        let (primary, replica) = replicated(args);
        let conf = sentinel_conf(primary.port(), sentinels / 2 + 1);
        let sentinel = || RedisServer::builder().sentinel(conf.clone()).start();
        let (sentinel, others) = (sentinel(), (1..sentinels).map(|_| sentinel()).collect());
        let setup = Self { primary, replica, sentinel, others };
        for sentinel in setup.sentinels() {
            let watch = sentinel.raw();
            until("the sentinel knows a healthy replica and all sentinels", || {
                let replicas = watch.cmd(&["SENTINEL", "REPLICAS", "mymaster"]);
                let healthy = replicas.items().first().map(Reply::map).is_some_and(|replica| {
                    replica["flags"] == "slave" && replica["master-link-status"] == "ok"
                });
                let peers = watch.cmd(&["SENTINEL", "SENTINELS", "mymaster"]);
                healthy && peers.items().len() + 1 == sentinels
            });
        }
        setup
    }

    pub fn sentinels(&self) -> impl Iterator<Item = &RedisServer> {
        std::iter::once(&self.sentinel).chain(&self.others)
    }

    /// An address that names all sentinels.
    pub fn url(&self) -> String {
        let nodes = self.others.iter().map(|other| format!("&node=127.0.0.1:{}", other.port()));
        let nodes: String = nodes.collect();
        let port = self.sentinel.port();
        format!("redis-sentinel://127.0.0.1:{port}/0?sentinelServiceName=mymaster{nodes}")
    }

    /// The port of the server that the first sentinel names as primary now.
    pub fn primary_port(&self) -> u16 {
        named_primary(&self.sentinel.raw())
    }

    /// Blocks until the replica has all that the primary has been told.
    pub fn wait_replicated(&self) {
        let (primary, replica) = (self.primary.raw(), self.replica.raw());
        until("the replica is up to date", || offsets_meet(&primary, &replica));
    }

    /// Has the replica follow a server that is not there: what the primary is told from now on, it
    /// will never have. Sentinels are told to leave that alone for a while.
    pub fn cut_replication(&self) {
        self.replica.raw().cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    }

    pub fn kill_primary(&mut self) {
        self.primary.kill();
    }

    /// Asks the first sentinel to have the replica take over although nothing is wrong.
    pub fn fail_over(&self) {
        self.sentinel.raw().cmd(&["SENTINEL", "FAILOVER", "mymaster"]).ok();
    }

    /// Blocks until the sentinels name the replica as primary and the replica agrees.
    pub fn wait_failed_over(&self) {
        let port = self.replica.port();
        until_within(BOUND, "the replica is primary", || {
            is_primary(port)
                && self.sentinels().all(|sentinel| named_primary(&sentinel.raw()) == port)
        });
    }

    /// Blocks until the old primary, which lives, follows the new one.
    pub fn wait_demoted(&self) {
        let link = || command(self.primary.port(), &["ROLE"]).ok();
        until_within(BOUND, "the old primary follows the new one", || {
            link().is_some_and(|role| {
                role.first_word().as_deref() == Some("slave")
                    && role.items()[3].text() == "connected"
            })
        });
    }
}

/// Starts a primary and its replica, and waits until what one is told the other has soon.
pub fn replicated(args: &[&str]) -> (RedisServer, RedisServer) {
    let server = || RedisServer::builder().args(args.iter().copied());
    let primary = server().start();
    let port = primary.port().to_string();
    let replica = server().args(["--replicaof", "127.0.0.1", &port]).start();
    let link = replica.raw();
    until("the replica follows the primary", || {
        link.cmd(&["ROLE"]).items().get(3).is_some_and(|state| state.text() == "connected")
    });
    // The first command waits for the replica's first word, which may take a second.
    let first = primary.raw();
    first.cmd(&["SET", "first", "1"]).ok();
    first.cmd(&["DEL", "first"]).ok();
    until("the replica has what the primary was told", || offsets_meet(&first, &link));
    (primary, replica)
}

/// Whether a server says that it is a primary. A promotion closes the connections it had.
pub fn is_primary(port: u16) -> bool {
    let role = command(port, &["ROLE"]).ok().and_then(|role| role.first_word());
    role.as_deref() == Some("master")
}

fn offsets_meet(primary: &Raw, replica: &Raw) -> bool {
    primary.cmd(&["ROLE"]).items()[1].int() == replica.cmd(&["ROLE"]).items()[4].int()
}

fn named_primary(sentinel: &Raw) -> u16 {
    let address = sentinel.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
    address.items()[1].text().parse().expect("a port number")
}

fn sentinel_conf(primary: u16, quorum: usize) -> String {
    format!(
        "sentinel monitor mymaster 127.0.0.1 {primary} {quorum}\n\
         sentinel down-after-milliseconds mymaster 500\n\
         sentinel failover-timeout mymaster 3000\n"
    )
}

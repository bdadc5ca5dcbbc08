//! A Redis cluster of one's own: its slots move, nodes join, leave and die.
//!
//! Include it beside `server`, whose processes it is made of.
#![allow(dead_code, reason = "each program that includes this file uses its own part of it")]

use std::{collections::BTreeSet, time::Duration};

use super::server::{Raw, RedisServer, Reply, command, free_port, until, until_within};

/// How long a cluster may take to agree.
const AGREEMENT: Duration = Duration::from_secs(30);

/// How long a node may be silent before the others take it for dead, in milliseconds.
const NODE_TIMEOUT: &str = "2000";

/// A cluster on loopback; the first nodes are its primaries at the start.
#[derive(Debug)]
pub struct ClusterSetup {
    pub nodes: Vec<RedisServer>,
}

impl ClusterSetup {
    const SLOTS: usize = 16384;
    const NODES: usize = 3;

    /// Starts three primaries without replicas, and waits until each of them sees all.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..Self::NODES).map(|_| start_node()).collect();
        let links: Vec<_> = nodes.iter().map(RedisServer::raw).collect();
        for (i, link) in links.iter().enumerate() {
            let [first, next] = [i, i + 1].map(|n| n * Self::SLOTS / Self::NODES);
            let range = [first, next - 1].map(|slot| slot.to_string());
            link.cmd(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).ok();
            link.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).ok();
        }
        let cluster = Self { nodes };
        cluster.nodes[1..].iter().for_each(|node| cluster.meet(node));
        cluster.wait_agreed();
        cluster
    }

    /// Starts three primaries and a replica of each: node 3 is that of node 0, and so on.
    pub fn with_replicas() -> Self {
        let mut cluster = Self::start();
        for primary in 0..Self::NODES {
            let replica = cluster.add_node();
            let id = id(&cluster.nodes[primary].raw());
            cluster.nodes[replica].raw().cmd(&["CLUSTER", "REPLICATE", &id]).ok();
        }
        until_within(AGREEMENT, "all replicas follow", || {
            cluster.nodes[Self::NODES..].iter().all(|node| {
                let role = node.raw().cmd(&["ROLE"]);
                role.items().get(3).is_some_and(|state| state.text() == "connected")
            })
        });
        until_within(AGREEMENT, "all know of the replicas", || {
            cluster
                .living()
                .all(|node| node.cmd(&["CLUSTER", "NODES"]).text().matches("slave").count() == 3)
        });
        cluster
    }

    /// An address that names the first node; the others are discovered.
    pub fn url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(RedisServer::port).collect()
    }

    /// A connection to each node that is not dead.
    pub fn living(&self) -> impl Iterator<Item = Raw> {
        self.nodes.iter().filter_map(|node| Raw::try_connect(node.port()).ok())
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.living().next().expect("a node lives");
        node.cmd(&["CLUSTER", "KEYSLOT", key]).int() as u16
    }

    /// The node that serves a key.
    pub fn node_of(&self, key: &str) -> &RedisServer {
        &self.nodes[self.owner_of(self.slot_of(key))]
    }

    /// The number of the node that serves a slot, by what that node itself says: word of a move
    /// takes its time.
    pub fn owner_of(&self, slot: u16) -> usize {
        let mut owners = Vec::new();
        until("one node serves the slot", || {
            owners = (0..self.nodes.len()).filter(|&node| self.serves(node, slot)).collect();
            owners.len() == 1
        });
        owners[0]
    }

    fn serves(&self, node: usize, slot: u16) -> bool {
        let port = self.nodes[node].port();
        let Ok(ranges) = command(port, &["CLUSTER", "SLOTS"]) else { return false };
        let slot = i64::from(slot);
        ranges.ok().items().iter().map(Reply::items).any(|range| {
            let at = range[2].items()[1].int();
            range[0].int() <= slot && slot <= range[1].int() && at == i64::from(port)
        })
    }

    /// A name that begins so, in a slot that this node serves.
    pub fn name_at(&self, node: usize, prefix: &str) -> String {
        let names = (0..).map(|i| format!("{prefix}:{i}"));
        let mut names = names.filter(|name| self.owner_of(self.slot_of(name)) == node);
        names.next().expect("there are many")
    }

    /// Has a slot migrate to another node: from here on missing keys are to be asked for there.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        let slot = slot.to_string();
        let [source, target] = [from, to].map(|node| self.nodes[node].raw());
        target.cmd(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&source)]).ok();
        source.cmd(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&target)]).ok();
    }

    /// Moves keys of a slot that migrates.
    pub fn move_keys(&self, slot: u16, to: usize, keys: &[&str]) {
        let port = self.nodes[to].port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let migrate: Vec<_> = migrate.iter().chain(keys).copied().collect();
        self.nodes[self.owner_of(slot)].raw().cmd(&migrate).ok();
    }

    /// Moves what is left of a slot that migrates, and says to all who serves it now.
    pub fn end_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        let (source, target) = (self.nodes[from].raw(), self.nodes[to].raw());
        let text = slot.to_string();
        loop {
            let keys = source.cmd(&["CLUSTER", "GETKEYSINSLOT", &text, "100"]).ok();
            let keys: Vec<_> = keys.items().iter().map(Reply::text).collect();
            if keys.is_empty() {
                break;
            }
            self.move_keys(slot, to, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let moved = ["CLUSTER", "SETSLOT", &text, "NODE", &id(&target)];
        target.cmd(&moved).ok();
        source.cmd(&moved).ok();
        for other in self.living().filter(is_primary) {
            other.cmd(&moved).ok();
        }
        // Else the next move may be made in an epoch that is past already, and be undone.
        until("all are of one epoch", || {
            let primaries = self.living().filter(is_primary);
            let epochs: BTreeSet<_> = primaries.map(|node| epoch(&node)).collect();
            epochs.len() == 1 && self.serves(to, slot)
        });
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to);
        self.end_move(slot, to);
    }

    /// Starts one more primary that serves nothing yet; its number.
    pub fn add_node(&mut self) -> usize {
        self.nodes.push(start_node());
        self.meet(&self.nodes[self.nodes.len() - 1]);
        self.wait_agreed();
        self.nodes.len() - 1
    }

    /// Has all forget the last node, which serves nothing any more, and ends it.
    pub fn remove_node(&mut self) {
        let gone = self.nodes.pop().expect("there is one");
        let id = id(&gone.raw());
        self.living().for_each(|node| drop(node.cmd(&["CLUSTER", "FORGET", &id]).ok()));
        drop(gone);
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Blocks until a replica has taken over, and all living nodes serve all slots.
    pub fn wait_failed_over(&self, to: usize) {
        until_within(Duration::from_secs(60), "the replica has taken over", || {
            is_primary(&self.nodes[to].raw()) && self.living().all(|node| serves_all(&node))
        });
    }

    /// Blocks until all nodes know all others, and that all slots are served.
    fn wait_agreed(&self) {
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        until_within(AGREEMENT, "all nodes see the whole cluster", || {
            self.living().all(|node| {
                serves_all(&node) && node.cmd(&["CLUSTER", "INFO"]).text().contains(&known)
            })
        });
    }

    fn meet(&self, node: &RedisServer) {
        let bus = node.raw().cmd(&["CONFIG", "GET", "cluster-port"]).map()["cluster-port"].clone();
        let port = node.port().to_string();
        self.nodes[0].raw().cmd(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).ok();
        let id = id(&node.raw());
        until("they have met", || {
            let nodes = self.nodes[0].raw().cmd(&["CLUSTER", "NODES"]).text();
            nodes.lines().any(|line| line.contains(&id) && !line.contains("handshake"))
        });
    }
}

fn start_node() -> RedisServer {
    let mut attempts = 10;
    loop {
        let bus = free_port().to_string();
        let node = RedisServer::builder()
            .args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"])
            .args(["--cluster-node-timeout", NODE_TIMEOUT, "--cluster-announce-ip", "127.0.0.1"])
            // Else a node that gives its last slot away makes itself a replica of who got it.
            .args(["--cluster-allow-replica-migration", "no"])
            .args(["--cluster-port", &bus]);
        attempts -= 1;
        match node.try_start() {
            Ok(node) => return node,
            // Somebody may have taken the port of its bus.
            Err(error) => assert!(attempts > 0, "{error}"),
        }
    }
}

fn id(node: &Raw) -> String {
    node.cmd(&["CLUSTER", "MYID"]).text()
}

fn epoch(node: &Raw) -> Option<String> {
    let info = node.cmd(&["CLUSTER", "INFO"]).text();
    info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")).map(str::to_owned)
}

fn is_primary(node: &Raw) -> bool {
    node.cmd(&["ROLE"]).first_word().as_deref() == Some("master")
}

fn serves_all(node: &Raw) -> bool {
    let info = node.cmd(&["CLUSTER", "INFO"]).text();
    info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
}

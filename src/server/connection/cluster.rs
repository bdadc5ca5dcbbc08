//! The nodes of a cluster: scripts go to each by a connection of its own.
//!
//! fred's own client for clusters is kept to learn who serves which slot, and for channels that are
//! not sharded. It must not carry more: one dead node has it connect all of them anew, and it sends
//! nothing to the living ones until a replica has taken over; and where a node answers ASK, it takes
//! the reply to another command for that to its ASKING, so that callers get each other's answers.
//! Here a node that is away holds up its own slots only, and MOVED and ASK are followed by hand.

use super::subscribe::Hear;
use super::{Connection, Contact};
use crate::config::Settings;
use crate::error::Error;
use crate::lease::Moment;
use crate::server::address::Address;
use crate::server::reply::CallError;
use fred::prelude::*;
use fred::types::cluster::ClusterRouting;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// How often a call is sent on to another node before it is told to come again.
const REDIRECTIONS: usize = 5;

/// When to look, once something hints at a change: word of it takes its time from node to node.
const LOOKS: [u64; 5] = [0, 100, 300, 700, 1500];

/// What a cluster's connection has besides fred's client.
pub(super) struct Nodes {
    address: Address,
    settings: Settings,
    pub(super) state: Mutex<State>,
    /// A node was connected anew.
    renewed: Arc<Notify>,
    /// Something hints at a change of who serves what.
    look: Notify,
    /// Which node is asked next.
    turn: AtomicUsize,
}

pub(super) type Table = Vec<(u16, u16, Server)>;

#[derive(Default)]
pub(super) struct State {
    pub(super) known: HashMap<Server, Arc<Connection>>,
    /// Who serves a slot, as far as it was needed since the last change.
    routes: HashMap<u16, Arc<Connection>>,
    /// Who serves what: first, last, whom.
    table: Table,
    /// The last of these that fred has come to, which may be older.
    of_fred: Table,
    /// Whom nodes tell of messages.
    pub(super) hear: Option<Hear>,
    closed: bool,
}

impl State {
    fn server_of(&self, slot: u16) -> Option<&Server> {
        let at = self.table.partition_point(|(_, end, _)| *end < slot);
        let (start, _, server) = self.table.get(at)?;
        (*start <= slot).then_some(server)
    }
}

/// Whom a call is sent to.
pub(super) struct Route {
    slot: u16,
    node: Arc<Connection>,
    /// Behind ASKING.
    asking: bool,
    redirections: usize,
}

/// Where the server says that a slot is.
#[derive(Debug, PartialEq)]
struct Redirection {
    server: Server,
    /// Not for good: only this once, and only for who says ASKING.
    asking: bool,
}

impl Redirection {
    /// Reads `MOVED 7 127.0.0.1:6381`, or ASK; a node that does not know the host leaves it out.
    fn read(text: &str, host: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let asking = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (named, port) = words.nth(1)?.rsplit_once(':')?;
        let host = if named.is_empty() || named == "?" { host } else { named };
        Some(Self { server: Server::new(host, port.parse().ok()?), asking })
    }
}

fn table(routing: &ClusterRouting) -> Table {
    let ranges = routing.slots().iter();
    let mut table: Vec<_> =
        ranges.map(|slot| (slot.start, slot.end, slot.primary.clone())).collect();
    table.sort();
    table
}

impl Nodes {
    /// Of what is known already: the node that the URL names may be away by now.
    pub(super) fn new(address: &Address, settings: &Settings, contact: &Contact) -> Self {
        let table = contact.serving.lock().clone();
        Self {
            address: address.clone(),
            settings: settings.clone(),
            state: Mutex::new(State { table, ..State::default() }),
            renewed: Arc::default(),
            look: Notify::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Takes all connections out; no more are made.
    pub(super) fn close(&self) -> Vec<Arc<Connection>> {
        let mut state = self.state.lock();
        state.closed = true;
        state.routes.clear();
        state.known.drain().map(|(_, node)| node).collect()
    }

    pub(super) fn forget_route(&self, slot: u16) {
        self.state.lock().routes.remove(&slot);
    }
}

impl Connection {
    /// Has the cluster asked who serves what, should that have changed.
    pub(crate) fn look_for_changes(&self) {
        if let Some(nodes) = &self.nodes {
            nodes.look.notify_one();
        }
    }

    /// Where the calls of a slot go now, as far as is known, and nothing in particular where there
    /// is but one server.
    pub(crate) fn place_of(&self, slot: u16) -> String {
        let Some(nodes) = &self.nodes else { return String::new() };
        let state = nodes.state.lock();
        match state.routes.get(&slot) {
            Some(node) => node.server.clone(),
            None => state.server_of(slot).map_or_else(String::new, Server::to_string),
        }
    }

    /// The connection to who serves a slot, if there is one already.
    pub(super) fn known_node(&self, slot: u16) -> Option<Arc<Connection>> {
        let state = self.nodes.as_ref()?.state.lock();
        let known = || state.known.get(state.server_of(slot)?);
        state.routes.get(&slot).or_else(known).cloned()
    }

    /// Connects to all nodes, and waits for that a while.
    pub(super) async fn meet_nodes(&self, nodes: &Nodes) {
        self.follow_table(nodes);
        let servers: BTreeSet<_> =
            nodes.state.lock().table.iter().map(|(_, _, server)| server.clone()).collect();
        let met: Vec<_> =
            servers.iter().filter_map(|server| self.node_at(nodes, server).ok()).collect();
        for node in met {
            node.first_settled().await;
        }
    }

    /// Sends one command to the node that serves a slot, wherever that is by now.
    pub(super) async fn routed(
        &self,
        nodes: &Nodes,
        name: &'static str,
        slot: u16,
        args: Vec<Value>,
    ) -> Result<Value, CallError> {
        let mut route = self.route(nodes, slot)?;
        loop {
            let node = self.at_end_of(&route).await;
            match node.send(name, slot, args.clone(), route.asking).await {
                Err(error) => self.follow(nodes, &mut route, error)?,
                answer => return answer,
            }
        }
    }

    pub(super) fn route(&self, nodes: &Nodes, slot: u16) -> Result<Route, CallError> {
        Ok(Route { slot, node: self.node(nodes, slot)?, asking: false, redirections: 0 })
    }

    /// The connection that a route leads to, once it has been up.
    pub(super) async fn at_end_of(&self, route: &Route) -> Arc<Connection> {
        self.inside(route.node.first_settled()).await;
        route.node.clone()
    }

    /// Goes on to where an error points, or returns it.
    pub(super) fn follow(
        &self,
        nodes: &Nodes,
        route: &mut Route,
        error: CallError,
    ) -> Result<(), CallError> {
        let CallError::Refused(text) = error else {
            // It may be dead, and a replica serve its slots.
            nodes.forget_route(route.slot);
            nodes.look.notify_one();
            return Err(error);
        };
        let host = route.node.server.rsplit_once(':').map_or("", |(host, _)| host);
        let Some(redirection) = Redirection::read(&text, host) else {
            if text.starts_with("CLUSTERDOWN") {
                nodes.look.notify_one();
            }
            return Err(CallError::Refused(text));
        };
        route.redirections += 1;
        if route.redirections > REDIRECTIONS {
            return Err(CallError::Refused(text));
        }
        route.node = self.node_at(nodes, &redirection.server)?;
        route.asking = redirection.asking;
        if !route.asking {
            nodes.state.lock().routes.insert(route.slot, route.node.clone());
            nodes.look.notify_one();
            self.contact.slot_moved();
        }
        Ok(())
    }

    /// The connection to who serves a slot.
    pub(super) fn node(&self, nodes: &Nodes, slot: u16) -> Result<Arc<Connection>, CallError> {
        if let Some(node) = nodes.state.lock().routes.get(&slot) {
            return Ok(node.clone());
        }
        let serving = || nodes.state.lock().server_of(slot).cloned();
        // Of an event yet to be told, fred knows already.
        let serving = serving().or_else(|| {
            self.follow_table(nodes);
            serving()
        });
        let Some(server) = serving else {
            nodes.look.notify_one();
            let cause = self.cause.lock().clone();
            let why = cause.unwrap_or_else(|| "no node of the cluster serves it".to_owned());
            return Err(CallError::NotSent(format!("the connection is down: {why}")));
        };
        let node = self.node_at(nodes, &server)?;
        nodes.state.lock().routes.insert(slot, node.clone());
        Ok(node)
    }

    /// The connection to a node, made if there is none.
    fn node_at(&self, nodes: &Nodes, server: &Server) -> Result<Arc<Connection>, CallError> {
        let mut state = nodes.state.lock();
        if state.closed {
            return Err(CallError::NotSent("the client is closed".to_owned()));
        }
        if let Some(node) = state.known.get(server) {
            return Ok(node.clone());
        }
        let made = self.open_node(nodes, server);
        let node = made.map_err(|error| CallError::NotSent(error.to_string()))?;
        if let Some(hear) = &state.hear {
            node.tell_each(hear.clone());
        }
        state.known.insert(server.clone(), node.clone());
        Ok(node)
    }

    fn open_node(&self, nodes: &Nodes, server: &Server) -> Result<Arc<Connection>, Error> {
        // On our runtime: that of a caller may end before us, or be none at all.
        let _inside = self.runtime.enter();
        let contact = Arc::new(Contact::of_node(self.contact.clone()));
        let (address, above) = (nodes.address.at(server), Some(nodes.renewed.clone()));
        let node = Self::start(&address, &nodes.settings, contact, self.role, false, above)?;
        *node.router.lock() = Some(node.client.connect());
        Ok(node)
    }

    /// Waits a while for the very first connection; one that broke later is not waited for.
    pub(super) async fn first_settled(&self) {
        if self.phase.borrow().epoch == 0 {
            // Nothing was heard yet, so this is when it was made.
            let made = Moment::from_raw(self.heard.load(Ordering::Relaxed));
            let until = made.saturating_add(self.options.timeout.unwrap_or_default());
            let _ = tokio::time::timeout(Moment::now().until(until), self.settled()).await;
        }
    }

    /// Waits until calls can be sent; in a cluster, until it is known to which node: one of them
    /// may be away.
    pub(crate) async fn usable(&self) {
        let Some(nodes) = &self.nodes else { return self.settled().await };
        loop {
            self.follow_table(nodes);
            if !nodes.state.lock().table.is_empty() || self.phase.borrow().closed {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// ASKING and one command: fred writes what is in a pipeline in one go.
    pub(super) async fn behind_asking(
        &self,
        command: CustomCommand,
        args: Vec<Value>,
    ) -> Result<Value, fred::error::Error> {
        let asking = CustomCommand::new_static("ASKING", ClusterHash::Custom(0), false);
        let pipeline = self.client.pipeline().with_options(&self.options);
        let _: Value = pipeline.custom(asking, Vec::<Value>::new()).await?;
        let _: Value = pipeline.custom(command, args).await?;
        pipeline.last().await
    }

    /// Whether who serves what has changed.
    pub(super) fn nodes_may_have_changed(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| self.follow_table(nodes))
    }

    /// Takes over what fred has come to know since this was last asked; whether that is news.
    fn follow_table(&self, nodes: &Nodes) -> bool {
        let Some(routing) = self.client.cached_cluster_state() else { return false };
        let table = table(&routing);
        let mut state = nodes.state.lock();
        if state.of_fred == table {
            return false;
        }
        state.of_fred.clone_from(&table);
        drop(state);
        self.adopt(nodes, table)
    }

    /// Takes over who serves what; if that is news, all routes are found anew.
    fn adopt(&self, nodes: &Nodes, table: Table) -> bool {
        let mut state = nodes.state.lock();
        if state.table == table {
            return false;
        }
        let serving: BTreeSet<&Server> = table.iter().map(|(_, _, server)| server).collect();
        let (stay, leave): (HashMap<_, _>, HashMap<_, _>) =
            state.known.drain().partition(|(server, _)| serving.contains(server));
        state.known = stay;
        state.routes.clear();
        self.contact.serving.lock().clone_from(&table);
        let first = std::mem::replace(&mut state.table, table).is_empty();
        drop(state);
        for node in leave.into_values() {
            // What is under way there is answered first.
            self.runtime.spawn(async move { node.close().await });
        }
        if !first {
            self.phase.send_modify(|phase| phase.shards += 1);
            self.contact.nodes_changed();
        }
        true
    }

    /// Asks a node who serves what; whether that is news.
    async fn look(&self, nodes: &Nodes) -> bool {
        let turn = nodes.turn.fetch_add(1, Ordering::Relaxed);
        let up: Vec<_> = {
            let state = nodes.state.lock();
            state
                .known
                .iter()
                .filter(|(_, node)| node.is_up())
                .map(|(s, n)| (s.clone(), n.clone()))
                .collect()
        };
        // Nodes that have no connection of their own are asked by fred's, and fred has to know.
        let by_fred = up.is_empty();
        let (host, answer) = if by_fred {
            let servers = self.servers();
            let Some(server) = servers.get(turn % servers.len().max(1)) else { return false };
            (server.host.clone(), self.on(server, "CLUSTER", &["SLOTS"]).await.ok())
        } else {
            let (server, node) = &up[turn % up.len()];
            let slots = node.send("CLUSTER", 0, vec!["SLOTS".into()], false);
            (server.host.clone(), slots.await.ok())
        };
        let now = answer.map(|answer| ClusterRouting::from_cluster_slots(answer, host));
        let Some(Ok(now)) = now else { return false };
        let now = table(&now);
        if now.is_empty() || now == nodes.state.lock().table {
            return false;
        }
        if by_fred {
            // Its event is what has us follow.
            return self.client.sync_cluster().await.is_ok();
        }
        if self.adopt(nodes, now) {
            self.next_epoch();
        }
        true
    }

    fn next_epoch(&self) {
        self.phase.send_modify(|phase| {
            phase.epoch += 1;
            phase.fenced = phase.epoch;
        });
    }
}

/// Looks who serves what whenever something hints at a change.
pub(super) async fn watch_nodes(connection: Arc<Connection>) {
    let Some(nodes) = &connection.nodes else { return };
    let mut closed = connection.phase.subscribe();
    let mut hints = connection.contact.node_changes();
    let looking = async {
        loop {
            tokio::select! {
                () = nodes.look.notified() => {}
                hint = hints.changed() => if hint.is_err() { return },
            }
            for pause in LOOKS {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                if connection.look(nodes).await {
                    break;
                }
            }
        }
    };
    let renewing = async {
        loop {
            nodes.renewed.notified().await;
            connection.phase.send_modify(|phase| phase.shards += 1);
            connection.next_epoch();
        }
    };
    tokio::select! {
        () = looking => {}
        () = renewing => {}
        _ = closed.wait_for(|phase| phase.closed) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_told_from_other_refusals() {
        let read = |text| Redirection::read(text, "here");
        let to = |host: &str, asking| Some(Redirection { server: Server::new(host, 6381), asking });
        assert_eq!(read("MOVED 7 127.0.0.1:6381"), to("127.0.0.1", false));
        assert_eq!(read("ASK 7 node-1.example:6381"), to("node-1.example", true));
        assert_eq!(read("MOVED 7 :6381"), to("here", false));
        assert_eq!(read("MOVED 7 ::1:6381"), to("::1", false));
        for text in
            ["TRYAGAIN Multiple keys", "MOVED", "MOVED 7", "MOVED 7 host", "ASK 7 host:x", ""]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

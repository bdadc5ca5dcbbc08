//! Sees that nothing which got no answer can run any more: the answer to CLIENT INFO comes behind
//! it, or the connection that carried it is killed.

use super::{Connection, Phase, failure, is_error_reply};
use fred::error::ErrorKind;
use fred::prelude::*;
use fred::types::config::{Options, Server};
use fred::types::{ClusterHash, ClusterStateChange, CustomCommand};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Where one of our sockets stands at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    id: String,
    /// Our address as the server sees it; with it, an id of another server process kills nobody.
    addr: String,
}

impl Peer {
    /// Reads the reply of CLIENT INFO.
    fn read(info: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut pairs = info.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
        };
        Some(Self { id: value("id")?, addr: value("addr")? })
    }
}

/// Where our sockets stand at the servers, and where earlier ones stood that are not dead yet.
#[derive(Default)]
struct Peers {
    known: HashMap<Server, Peer>,
    old: Vec<(Server, Peer)>,
}

/// What an attempt to make sure that nothing old can run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// Nothing can, or we may not see to it.
    Stands,
    /// Replies are missing, or are those of other commands.
    OutOfStep,
    /// The connection broke meanwhile.
    Failed,
}

/// Follows fred's events for as long as the connection is open.
pub(super) async fn watch_over(
    connection: Arc<Connection>,
    mut reconnects: broadcast::Receiver<Server>,
    mut changes: broadcast::Receiver<Vec<ClusterStateChange>>,
    mut errors: broadcast::Receiver<(fred::error::Error, Option<Server>)>,
) {
    let mut closed = connection.phase.subscribe();
    let mut doubted = connection.phase.subscribe();
    let mut peers = Peers::default();
    loop {
        tokio::select! {
            () = closed_for_good(&mut closed) => return,
            // Lagged: some were missed, this one stands for them.
            event = reconnects.recv() => match event {
                Err(broadcast::error::RecvError::Closed) => return,
                _ => {
                    connection.nodes_may_have_changed();
                    connection.renewed(&mut peers).await;
                    connection.missed(reconnects.len());
                }
            },
            event = changes.recv() => match event {
                Err(broadcast::error::RecvError::Closed) => return,
                // fred tells of every look, also where nothing has changed.
                _ => if connection.nodes_may_have_changed() {
                    connection.renewed(&mut peers).await;
                },
            },
            () = in_doubt(&mut doubted) => {
                connection.clear_doubts(&mut peers, &mut reconnects).await;
                // One may be that of the connection which was just looked at.
                connection.missed(reconnects.len().saturating_sub(1));
            }
            event = errors.recv() => match event {
                Err(broadcast::error::RecvError::Closed) => return,
                Ok((error, None)) => connection.cannot_connect(&error),
                _ => connection.contact.failed(),
            },
        }
    }
}

pub(super) async fn closed_for_good(phase: &mut watch::Receiver<Phase>) {
    // An error means that the connection is dropped, which ends it as well.
    let _ = phase.wait_for(|phase| phase.closed).await;
}

async fn in_doubt(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| phase.cleared < phase.doubts).await;
}

impl Connection {
    /// Takes note of a new connection, or of a change of the cluster's nodes.
    async fn renewed(&self, peers: &mut Peers) {
        let mut epoch = 0;
        self.phase.send_modify(|phase| {
            phase.epoch += 1;
            phase.shards += u64::from(!self.cluster);
            epoch = phase.epoch;
        });
        *self.cause.lock() = None;
        if epoch > 1 {
            tracing::info!(role = self.role, epoch, "connected again");
        }
        self.fence(peers).await;
        // A connection that broke again meanwhile is fenced by its own, later event.
        self.phase.send_modify(|phase| phase.fenced = phase.fenced.max(epoch));
        if let Some(above) = self.above.as_ref().filter(|_| epoch > 1) {
            above.notify_one();
        }
    }

    /// Takes note of an attempt that failed, and tells each cause once.
    fn cannot_connect(&self, error: &fred::error::Error) {
        self.contact.failed();
        let cause = failure::words(error, self.tls);
        let told = self.cause.lock().replace(cause.clone());
        if told.as_ref() != Some(&cause) {
            tracing::warn!(role = self.role, server = self.server, cause, "cannot connect");
        }
    }

    /// Takes note of connections that broke before their id was known: those cannot be killed.
    fn missed(&self, connections: usize) {
        if connections > 0 {
            self.can_kill.store(false, Ordering::Relaxed);
        }
    }

    /// Finds out whether calls that got no answer can still run, and sees that they cannot.
    async fn clear_doubts(&self, peers: &mut Peers, reconnects: &mut broadcast::Receiver<Server>) {
        let timeout = self.options.timeout.unwrap_or_default();
        let overdue = self.overdue.load(Ordering::Relaxed);
        if overdue != 0 && self.heard.load(Ordering::Relaxed) < overdue {
            // Silent since: as long as nothing more is written, fred is about to give it up.
            if tokio::time::timeout(timeout / 2, reconnects.recv()).await.is_ok() {
                return self.renewed(peers).await;
            }
        }
        match self.fence(peers).await {
            Fence::Stands => {}
            Fence::OutOfStep if self.client.is_connected() => {
                tracing::warn!(
                    role = self.role,
                    "replies are missing; the connection is made anew"
                );
                // What is in flight was sent before, and has timed out: nothing is sent twice.
                let mut closed = self.phase.subscribe();
                tokio::select! {
                    _ = self.client.force_reconnection() => {}
                    () = closed_for_good(&mut closed) => {}
                }
            }
            Fence::OutOfStep | Fence::Failed => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }

    /// Kills what is left of earlier connections. Then nothing that got no answer before can run:
    /// either its connection is dead, or the answer to CLIENT INFO came behind it.
    async fn fence(&self, peers: &mut Peers) -> Fence {
        let doubts = self.phase.borrow().doubts;
        let servers = self.servers();
        let mut fence = if servers.is_empty() { Fence::Failed } else { Fence::Stands };
        for server in servers {
            let peer = match self.on(&server, "CLIENT", &["INFO"]).await {
                Ok(info) => match info.as_str() {
                    Some(info) => Peer::read(&info),
                    None => {
                        // Another command's reply.
                        fence = Fence::OutOfStep;
                        continue;
                    }
                },
                Err(error) => {
                    tracing::debug!(role = self.role, %error, "CLIENT INFO failed");
                    if !is_error_reply(error.details()) {
                        let late = *error.kind() == ErrorKind::Timeout;
                        fence = if late { Fence::OutOfStep } else { Fence::Failed };
                        if peers.known.contains_key(&server) {
                            continue;
                        }
                    } else if self.can_kill.load(Ordering::Relaxed) {
                        tracing::warn!(
                            role = self.role,
                            server = self.server,
                            %error,
                            "cannot see the id of connections (CLIENT INFO), so old ones cannot be \
                             killed: after an outage an abandoned lock may stay for up to one lease"
                        );
                    }
                    None
                }
            };
            let Some(peer) = peer else {
                self.can_kill.store(false, Ordering::Relaxed);
                continue;
            };
            if let Some(before) = peers.known.insert(server.clone(), peer.clone()) {
                if before != peer {
                    peers.old.push((server, before));
                }
            }
        }
        let mut left = Vec::new();
        for (server, peer) in peers.old.drain(..) {
            let kill = ["KILL", "ID", &peer.id, "ADDR", &peer.addr];
            match self.on(&server, "CLIENT", &kill).await {
                Ok(_) => {}
                Err(error) if is_error_reply(error.details()) => {
                    if self.can_kill.swap(false, Ordering::Relaxed) {
                        tracing::warn!(
                            role = self.role,
                            server = self.server,
                            %error,
                            "old connections cannot be killed (CLIENT KILL): after an outage an \
                             abandoned lock may stay for up to one lease"
                        );
                    }
                }
                Err(_) => left.push((server, peer)),
            }
        }
        if !left.is_empty() && fence == Fence::Stands {
            fence = Fence::Failed;
        }
        peers.old = left;
        // One dead node must not hold up a whole cluster, which is never free of ghosts anyway.
        if fence == Fence::Stands || self.cluster {
            self.phase.send_modify(|phase| {
                phase.cleared = phase.cleared.max(doubts);
                if phase.cleared == phase.doubts {
                    self.overdue.store(0, Ordering::Relaxed);
                }
            });
        }
        fence
    }

    /// The servers that we have a connection to.
    pub(super) fn servers(&self) -> Vec<Server> {
        let servers = self.client.active_connections();
        if !servers.is_empty() {
            return servers;
        }
        // fred knows its connections by CLIENT ID, which the user may lack the right to.
        match self.client.cached_cluster_state() {
            Some(nodes) => nodes.unique_primary_nodes(),
            // There is but one, and every command goes there: it needs no name.
            None => vec![Server::new("", 0)],
        }
    }

    /// One command on one node.
    pub(super) async fn on(
        &self,
        server: &Server,
        command: &'static str,
        args: &[&str],
    ) -> Result<Value, fred::error::Error> {
        // Not fail-fast: right after a reconnect fred still refuses those.
        let options = Options {
            timeout: self.options.timeout,
            cluster_node: self.cluster.then(|| server.clone()),
            ..Options::default()
        };
        let command = CustomCommand::new_static(command, ClusterHash::Custom(0), false);
        let args: Vec<String> = args.iter().copied().map(str::to_owned).collect();
        self.client.with_options(&options).custom(command, args).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_address_is_read_from_client_info() {
        let info = "id=7 addr=127.0.0.1:5 laddr=127.0.0.1:6379 fd=8 name= db=0\n";
        let peer = Peer { id: "7".into(), addr: "127.0.0.1:5".into() };
        assert_eq!(Peer::read(info), Some(peer));
        assert_eq!(Peer::read("nothing=1"), None);
    }
}

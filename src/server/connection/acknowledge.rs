//! What a WAIT needs of its connection: one server, and the socket that carried the write.

use super::Connection;
use crate::config::Replicas;
use crate::server::reply::CallError;
use fred::interfaces::EventInterface;
use fred::types::config::Server;
use std::sync::Arc;
use tokio::sync::broadcast;

impl Connection {
    /// The connection to the server of a slot: this one where there is but one.
    pub(crate) async fn node_of(self: &Arc<Self>, slot: u16) -> Result<Arc<Self>, CallError> {
        let Some(nodes) = &self.nodes else { return Ok(self.clone()) };
        let node = self.node(nodes, slot)?;
        self.inside(node.first_settled()).await;
        Ok(node)
    }

    /// Takes note of an error by which a node says that it does not serve a slot (any more).
    pub(crate) fn heed_redirection(&self, slot: u16, text: &str) {
        let Some(nodes) = &self.nodes else { return };
        if ["MOVED", "ASK", "CLUSTERDOWN"].iter().any(|word| text.starts_with(word)) {
            nodes.forget_route(slot);
            self.look_for_changes();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase.borrow().closed
    }

    /// The socket of now.
    pub(crate) fn socket(&self) -> Socket {
        Socket(self.client.reconnect_rx())
    }

    /// How many replicas have what was written by this connection: at once if they are enough, else
    /// when the time is up.
    pub(crate) async fn wait(&self, replicas: Replicas) -> Result<u64, CallError> {
        // Zero would mean: for ever.
        let millis = i64::try_from(replicas.within.as_millis()).unwrap_or(i64::MAX).max(1);
        let args = vec![i64::from(replicas.count).into(), millis.into()];
        let reply = self.send("WAIT", 0, args, false).await?;
        let strange = || CallError::Unknown("WAIT got a strange reply".to_owned());
        reply.as_u64().ok_or_else(strange)
    }
}

/// A connection as it was; fred tells of a new one before it writes anything to it.
pub(crate) struct Socket(broadcast::Receiver<Server>);

impl Socket {
    pub(crate) fn is_same(&self) -> bool {
        self.0.is_empty()
    }
}

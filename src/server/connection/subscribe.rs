//! Channels: who has what, and what arrives. Which and when is decided by [`crate::engine`].
//!
//! A sharded channel is subscribed to over the connection of the node that serves its slot, as
//! scripts are sent: fred's client for clusters sends nothing to any node while one is dead.

use super::fence::closed_for_good;
use super::{Connection, cluster};
use crate::lease::Moment;
use crate::server::reply::CallError;
use crate::server::{Text, slot_of};
use fred::prelude::*;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::broadcast::error::RecvError;

/// What is told of subscribed channels.
#[derive(Debug)]
pub(crate) enum Heard {
    Message(Text),
    /// So many messages were dropped, because nobody read them fast enough.
    Missed(u64),
}

/// Whom to tell. Called from the one task that reads a connection's messages: it must not wait.
pub(super) type Hear = Arc<dyn Fn(Heard) + Send + Sync>;

impl Connection {
    /// Tells of all messages from now on, until the connection is closed; in a cluster also of
    /// those from nodes that are met later.
    pub(crate) fn tell(&self, hear: impl Fn(Heard) + Send + Sync + 'static) {
        let hear: Hear = Arc::new(hear);
        if let Some(nodes) = &self.nodes {
            for node in nodes.tell(&hear) {
                node.tell_each(hear.clone());
            }
        }
        self.tell_each(hear);
    }

    pub(super) fn tell_each(&self, hear: Hear) {
        let mut messages = self.client.message_rx();
        let mut closed = self.phase.subscribe();
        self.runtime.spawn(async move {
            loop {
                let message = tokio::select! {
                    biased;
                    message = messages.recv() => message,
                    () = closed_for_good(&mut closed) => return,
                };
                match message {
                    Ok(message) => hear(Heard::Message(message.channel)),
                    Err(RecvError::Lagged(missed)) => hear(Heard::Missed(missed)),
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// SUBSCRIBE to many channels; returns when written, not when the server has it.
    pub(crate) async fn subscribe(&self, channels: Vec<String>) -> Result<(), CallError> {
        self.unit(Box::pin(self.client.with_options(&self.options).subscribe(channels))).await
    }

    pub(crate) async fn unsubscribe(&self, channels: Vec<String>) -> Result<(), CallError> {
        // An empty list would unsubscribe everything.
        if channels.is_empty() {
            return Ok(());
        }
        self.unit(Box::pin(self.client.with_options(&self.options).unsubscribe(channels))).await
    }

    /// SSUBSCRIBE to one channel; returns when the server has it. Never more than one at a time:
    /// a second channel in one command shifts fred's replies to the wrong callers.
    pub(crate) async fn ssubscribe(&self, channel: &str) -> Result<(), CallError> {
        let Some(nodes) = &self.nodes else {
            return self.ssubscribe_here(channel).await;
        };
        let mut route = self.route(nodes, slot_of(channel))?;
        loop {
            // Never told to ask elsewhere: a slot on its way is heard of where it comes from.
            match self.at_end_of(&route).await.ssubscribe_here(channel).await {
                Err(error) => self.follow(nodes, &mut route, error)?,
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn ssubscribe_here(&self, channel: &str) -> Result<(), CallError> {
        let client = self.client.with_options(&self.options);
        self.unit(Box::pin(client.ssubscribe(channel.to_owned()))).await
    }

    /// SUNSUBSCRIBE from one channel. Where its slot has gone that is refused, and fred takes the
    /// refusal for the answer to the next command, which therefore is a round trip of no use.
    pub(crate) async fn sunsubscribe(&self, channel: &str) -> Result<(), CallError> {
        let node = self.known_node(slot_of(channel));
        let at = node.as_deref().unwrap_or(self);
        let client = at.client.with_options(&at.options);
        let gone = at.unit(Box::pin(client.sunsubscribe(channel.to_owned())));
        let (gone, passed) = tokio::join!(gone, at.barrier());
        gone.and(passed)
    }

    /// A round trip on the socket that carries SUBSCRIBE: behind it, the server has them all.
    ///
    /// fred answers SUBSCRIBE when it is written. If the server refuses one, its error goes to the
    /// next command, this PING, and the PING's own reply to nobody: so each PING has a number, and
    /// a reply with another number means that the two are out of step for a moment.
    pub(crate) async fn barrier(&self) -> Result<(), CallError> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        // In a cluster fred sends all SUBSCRIBEs of a client to the node of this slot.
        let slot = slot_of(self.client.id());
        let reply = self.send("PING", slot, vec![number.as_str().into()], false).await?;
        if reply.as_str().as_deref() == Some(number.as_str()) {
            return Ok(());
        }
        Err(CallError::Unknown("the reply belongs to another command".to_owned()))
    }

    /// How many sharded channels a node, or the only server, has us subscribed to, if it tells.
    /// fred does not pass on that a subscription has ended with its slot.
    pub(crate) async fn subscribed_at(&self, place: &str) -> Result<Option<usize>, CallError> {
        let node =
            match &self.nodes {
                Some(nodes) => Some(nodes.met(place).ok_or_else(|| {
                    CallError::NotSent("there is no such node any more".to_owned())
                })?),
                None => None,
            };
        let at = node.as_deref().unwrap_or(self);
        match at.send("CLIENT", 0, vec!["INFO".into()], false).await {
            Ok(info) => match info.as_str() {
                Some(info) => Ok(subscribed(&info)),
                None => Err(CallError::Unknown("the reply belongs to another command".to_owned())),
            },
            // A right that is missing; but the connection lives.
            Err(CallError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn unit(
        &self,
        call: Pin<Box<impl Future<Output = Result<(), fred::error::Error>>>>,
    ) -> Result<(), CallError> {
        self.inside(self.while_overdue()).await?;
        let sent = Moment::now();
        self.classify(sent, self.inside(call).await.map(|()| Value::Null)).map(drop)
    }
}

impl cluster::Nodes {
    /// The connection to a node, if there is one.
    fn met(&self, place: &str) -> Option<Arc<Connection>> {
        self.state.lock().known.values().find(|node| node.server == place).cloned()
    }

    /// Has all nodes tell of their messages: returns those that are met already.
    fn tell(&self, hear: &Hear) -> Vec<Arc<Connection>> {
        let mut state = self.state.lock();
        state.hear = Some(hear.clone());
        state.known.values().cloned().collect()
    }
}

/// Reads the reply of CLIENT INFO; servers before 7.0.3 do not say.
fn subscribed(info: &str) -> Option<usize> {
    info.split_whitespace().find_map(|pair| pair.strip_prefix("ssub=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharded_subscriptions_are_counted_by_the_server() {
        assert_eq!(subscribed("id=7 sub=1 psub=0 ssub=12 multi=-1\n"), Some(12));
        assert_eq!(subscribed("id=7 sub=1 psub=0 multi=-1\n"), None);
    }
}

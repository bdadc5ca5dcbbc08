//! Whom the sentinels name as primary, for all connections of a client.
//!
//! A planned failover leaves the old primary in place, as a primary, for some ten seconds: whoever
//! stays there takes locks that nobody else sees. So each client has one connection to a sentinel
//! and listens there. A message is only a hint to ask, and whoever has missed one asks anyway; an
//! answer counts if it is not older than the last.

use crate::config::Settings;
use crate::server::address::Address;
use crate::server::connection::{Contact, Place};
use fred::prelude::*;
use fred::types::config::Server;
use fred::types::{ClusterHash, ConnectHandle, CustomCommand};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What a sentinel says when a replica has taken over: the one that saw to it, and the others.
const TAKEN_OVER: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// How often it is asked anyway.
const ASK: Duration = Duration::from_secs(1);

/// A primary, and the sentinels' number for that choice.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    epoch: u64,
    primary: Place,
}

impl Choice {
    /// Whether a sentinel that says this knows more than the one that said `known`, if any did.
    fn is_news(&self, known: Option<&Self>) -> bool {
        // While it is being made, the number comes before the server.
        known.is_none_or(|known| self.epoch >= known.epoch && self != known)
    }
}

/// Listens to one sentinel after the other; ends when it is dropped.
pub(crate) async fn watch_over(address: Address, settings: Settings, contact: Arc<Contact>) {
    let Some((sentinels, service)) = address.sentinels() else { return };
    let mut watch = Watch { service, contact, known: None, listens: true, told: false };
    loop {
        for sentinel in sentinels {
            let client = match address.sentinel(&settings, sentinel) {
                Ok(client) => client,
                Err(error) => return tracing::error!(%error, "no client for sentinels"),
            };
            let Err(error) = watch.listen(client, sentinel).await else { continue };
            watch.failed(sentinel, &error);
        }
        tokio::time::sleep(ASK.mul_f64(0.5 + fastrand::f64())).await;
    }
}

struct Watch<'a> {
    service: &'a str,
    contact: Arc<Contact>,
    known: Option<Choice>,
    /// Whether messages may be had.
    listens: bool,
    told: bool,
}

/// fred's task; left to itself it would outlive us.
struct Router(Option<ConnectHandle>);

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(router) = self.0.take() {
            router.abort();
        }
    }
}

impl Watch<'_> {
    /// Follows what one sentinel says, for as long as it says anything.
    async fn listen(&mut self, client: Client, from: &Server) -> Result<(), fred::error::Error> {
        let mut messages = client.message_rx();
        let mut router = Router(None);
        {
            let mut connected = std::pin::pin!(client.wait_for_connect());
            // The first poll listens; an end before that would be missed.
            std::future::poll_fn(|cx| {
                let result = connected.as_mut().poll(cx);
                router.0.get_or_insert_with(|| client.connect());
                result
            })
            .await?;
        }
        if self.listens {
            // fred gives a refusal to the next command.
            client.subscribe(TAKEN_OVER.to_vec()).await?;
        }
        let Some(ended) = &mut router.0 else { return Ok(()) };
        loop {
            self.heard(self.ask(&client).await?, from);
            tokio::select! {
                // Lagged or not: ask.
                _ = messages.recv() => {}
                () = tokio::time::sleep(ASK) => {}
                _ = &mut *ended => return Ok(()),
            }
        }
    }

    async fn ask(&self, client: &Client) -> Result<Choice, fred::error::Error> {
        let sentinel = async |what: &str| {
            let command = CustomCommand::new_static("SENTINEL", ClusterHash::FirstKey, false);
            client.custom::<Value, _>(command, vec![what, self.service]).await
        };
        // In this order: a newer server with an older number is news, the reverse is not.
        let master: HashMap<String, Value> = sentinel("MASTER").await?.convert()?;
        let epoch = master.get("config-epoch").and_then(Value::as_u64).unwrap_or(0);
        let primary = sentinel("GET-MASTER-ADDR-BY-NAME").await?.convert()?;
        Ok(Choice { epoch, primary })
    }

    fn heard(&mut self, choice: Choice, from: &Server) {
        if choice.is_news(self.known.as_ref()) {
            let (host, port) = &choice.primary;
            tracing::debug!(%from, host, port, epoch = choice.epoch, "a sentinel names the primary");
            self.contact.named(choice.primary.clone());
            self.known = Some(choice);
        }
    }

    fn failed(&mut self, sentinel: &Server, error: &fred::error::Error) {
        let denied = error.details().starts_with("NOPERM");
        if denied && self.listens {
            // Asking alone will do, a second later.
            self.listens = false;
        } else if denied && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                %sentinel, %error,
                "may not ask sentinels: a planned failover is noticed when the old primary ends it"
            );
        } else {
            tracing::debug!(%sentinel, %error, "a sentinel does not answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sentinel_says_that_lags_behind_is_no_news() {
        let choice = |epoch, port| Choice { epoch, primary: ("host".to_owned(), port) };
        let known = choice(3, 1);
        assert!(choice(0, 1).is_news(None));
        assert!(!choice(3, 1).is_news(Some(&known)));
        assert!(!choice(2, 2).is_news(Some(&known)));
        assert!(choice(3, 2).is_news(Some(&known)));
        assert!(choice(4, 2).is_news(Some(&known)));
    }
}

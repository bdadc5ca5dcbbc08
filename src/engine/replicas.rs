//! Holds that replicas must have: what takes or keeps one counts when enough of them say so.
//!
//! Acquires and extensions share one connection, renewals have another on their own thread: see
//! [`Acknowledged`]. Neither is opened before somebody asks for replicas. What gives back needs
//! none, and goes as it always does.

use crate::config::{Replicas, Settings};
use crate::engine::hold::Hold;
use crate::engine::queue::Request;
use crate::engine::{Engine, Wiring};
use crate::lease::Moment;
use crate::server::acknowledged::Acknowledged;
use crate::server::batch::{Call, CallResult};
use crate::server::connection::Connection;
use crate::server::reply::{Answer, CallError, Short};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// By how much a TTL is raised for the sake of writing something.
const LITTLE: Duration = Duration::from_millis(1);

impl Wiring {
    /// A connection on which WAIT may take its time: a reply may take as much longer.
    async fn connect_patient(&self, role: &'static str) -> Result<Arc<Connection>, CallError> {
        let timeout = self.settings.command_timeout;
        let settings = Settings { command_timeout: timeout * 2, ..self.settings.clone() };
        let contact = self.contact.clone();
        let connection = Connection::open(&self.address, &settings, contact, role, true).await;
        let connection = connection.map_err(|error| CallError::NotSent(error.to_string()))?;
        // If it is not up by then, the first calls fail and are tried again.
        let _ = tokio::time::timeout(timeout, connection.settled()).await;
        Ok(connection)
    }

    /// Must be called inside the runtime that it is to live on.
    pub(crate) async fn acknowledged(
        &self,
        role: &'static str,
    ) -> Result<Arc<Acknowledged>, CallError> {
        let connection = self.connect_patient(role).await?;
        Ok(Acknowledged::new(connection, Handle::current()))
    }
}

impl Engine {
    /// The connection for what replicas must have, opened by the first call.
    async fn replicated(self: &Arc<Self>) -> Result<Arc<Acknowledged>, CallError> {
        let open = || async {
            // On our runtime: the caller may be on a thread without one.
            let wiring = self.wiring.clone();
            let opening = async move { wiring.acknowledged("replicated").await };
            let ended = |_| Err(CallError::NotSent("the client's runtime ended".to_owned()));
            self.wiring.runtime.spawn(opening).await.unwrap_or_else(ended)
        };
        let opened = self.replicated.get_or_try_init(open).await?.clone();
        if self.has_ended() {
            opened.connection().close().await;
        }
        Ok(opened)
    }

    /// Sends a call of a hold, if need be so that replicas have it.
    pub(crate) async fn call_for(
        self: &Arc<Self>,
        hold: &Hold,
        call: Call,
        lease: Duration,
        replicas: Option<Replicas>,
    ) -> CallResult {
        let Some(replicas) = replicas else { return self.batch.call(call).await };
        hold.goes_apart();
        let calling = async { self.replicated().await?.call(call, replicas).await };
        Box::pin(hold.proving(lease, calling)).await
    }

    /// Resolves when nothing that was sent for a hold, and got no answer, can run any more.
    pub(crate) async fn settled_for(&self, hold: &Hold) {
        let slot = hold.name.recipe.keys.slot;
        if let Some(apart) = self.replicated.get().filter(|_| hold.is_apart()) {
            apart.connection().settled_at(slot).await;
        }
        self.batch.connection().settled_at(slot).await;
    }

    /// Whether an old connection of ours may still run something after a new one did.
    pub(crate) fn may_have_ghosts(&self) -> bool {
        let apart = self.replicated.get();
        self.batch.connection().may_have_ghosts()
            || apart.is_some_and(|apart| apart.connection().may_have_ghosts())
    }

    pub(crate) async fn close_replicated(&self) {
        if let Some(apart) = self.replicated.get() {
            apart.connection().close().await;
        }
    }
}

/// Whether a call did what it was to do, but too few replicas have it.
pub(crate) fn short_of(result: &CallResult) -> Option<Short> {
    match result {
        Err(CallError::Short(short)) => Some(short.clone()),
        _ => None,
    }
}

impl Hold {
    /// Whether whoever makes this request may be handed it: it asks for as many replicas as have it.
    /// One that asks for fewer would be told of the loss of what it did not ask for.
    pub(crate) fn serves(&self, request: &Request) -> bool {
        let count = |replicas: Option<Replicas>| replicas.map_or(0, |replicas| replicas.count);
        count(self.replicas()) == count(request.replicas)
    }

    /// Takes note of what becomes of a call that gives it a TTL, for which it has been
    /// [asked](Hold::asked) just now.
    pub(crate) async fn proving(
        &self,
        lease: Duration,
        calling: impl Future<Output = CallResult>,
    ) -> CallResult {
        let (sent, until, unproven) = (Moment::now(), self.stands_until(), self.unproven());
        let proof = self.begin_proof(lease);
        let mut result = calling.await;
        if self.end_proof(proof) && matches!(result, Ok(Answer { code: 0, .. })) {
            let why = "its lease was made longer by another call at the same time";
            result = Err(CallError::Unknown(why.to_owned()));
        }
        // It may have waited for others before it was sent.
        let until = until.saturating_add(sent.until(Moment::now()));
        self.may_stand_until(until);
        match &result {
            // Who has this has all that was written before.
            Ok(Answer { code: 0, .. }) => self.is_proven(unproven),
            Err(CallError::Short(_) | CallError::Unknown(_)) => self.may_stand_unproven(until),
            _ => {}
        }
        result
    }

    /// What to ask for so that the server has to write: it only ever raises a TTL, and what writes
    /// nothing proves nothing of what was written before and did not reach enough replicas.
    pub(crate) fn provable(&self, now: Moment, lease: Duration) -> Duration {
        let unproven = now.until(self.unproven());
        if unproven < lease { lease } else { unproven + LITTLE }
    }

    /// The same where somebody waits for the answer: also beside calls that are under way. Renewals
    /// just come again.
    pub(crate) fn provable_now(&self, lease: Duration) -> Duration {
        let lease = self.provable(Moment::now(), lease);
        let longest = self.longest_proof();
        if longest < lease { lease } else { longest + LITTLE }
    }
}

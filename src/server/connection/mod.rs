//! One connection to the server (in a cluster see [`cluster`]), and when its replies can be believed.
//!
//! fred keeps the socket and reconnects it. On top of that this file answers the two questions a
//! lock must ask: may a command have run (see [`CallError`]), and may a command of a connection
//! that broke still run later? A broken connection can leave commands in the server's socket
//! buffer, to be executed after ones of the new connection. So after every reconnect the old
//! connection is killed by its id first ([`fence`]); [`Connection::settled`] waits for that.
//! [`failure`] says why none could be made, [`follow`] leaves a server that is not the primary.

mod acknowledge;
mod cluster;
mod contact;
mod failure;
mod fence;
mod follow;
mod probe;
mod subscribe;

pub(crate) use contact::{Contact, Place};
pub(crate) use subscribe::Heard;

use self::failure::connect_error;
use crate::config::Settings;
use crate::error::Error;
use crate::lease::Moment;
use crate::server::address::Address;
use crate::server::reply::{CallError, text};
use crate::server::script::Script;
use crate::server::{Argument, Text};
use fred::error::ErrorKind;
use fred::prelude::*;
use fred::types::config::Options;
use fred::types::{ClusterHash, ConnectHandle, CustomCommand};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Phase {
    /// How often it was connected.
    epoch: u64,
    /// How often sharded subscriptions may have ended: in a cluster a node was connected anew, or
    /// another serves a slot.
    shards: u64,
    /// The last epoch whose predecessors can run nothing any more (or cannot be killed).
    fenced: u64,
    /// How many calls ended without an answer; each may still run.
    doubts: u64,
    /// How many of those were before the last sign that nothing sent earlier can still run.
    cleared: u64,
    closed: bool,
}

pub(crate) struct Connection {
    client: fred::clients::Client,
    contact: Arc<Contact>,
    phase: watch::Sender<Phase>,
    /// Whether the server lets us kill our own old connections.
    can_kill: AtomicBool,
    /// When this connection last brought a reply.
    heard: AtomicU64,
    /// When the call was sent whose reply is overdue, 0 if none is: nothing more is sent until it
    /// is known why.
    overdue: AtomicU64,
    /// A reply said that this is no primary, and no later one that something worked.
    misplaced: AtomicBool,
    moved: Notify,
    /// Why the last attempt to connect failed, until one succeeds.
    cause: parking_lot::Mutex<Option<String>>,
    role: &'static str,
    /// As it may be logged.
    server: String,
    cluster: bool,
    tls: bool,
    options: Options,
    /// Where fred's task and timers live.
    runtime: Handle,
    router: parking_lot::Mutex<Option<ConnectHandle>>,
    /// In a cluster: whom scripts go to.
    nodes: Option<cluster::Nodes>,
    /// Of a cluster's node: whom to tell that it was connected anew.
    above: Option<Arc<Notify>>,
}

impl Connection {
    /// Opens a connection; `lazy` returns at once and connects behind the scenes.
    ///
    /// Must be called inside a tokio runtime, which the connection then lives on.
    pub(crate) async fn open(
        address: &Address,
        settings: &Settings,
        contact: Arc<Contact>,
        role: &'static str,
        lazy: bool,
    ) -> Result<Arc<Self>, Error> {
        let connection = Self::start(address, settings, contact, role, !lazy, None)?;
        let mut opening = Opening(Some(connection.clone()));
        if lazy {
            *connection.router.lock() = Some(connection.client.connect());
        } else {
            connection.connected().await.map_err(|error| connect_error(address, &error))?;
            // Its id is known from here on: it can be killed, should it break.
            let _ = tokio::time::timeout(settings.command_timeout, connection.settled()).await;
            if let Some(nodes) = &connection.nodes {
                // Boxed here and below: the futures of users who nest them get too deep else.
                Box::pin(connection.meet_nodes(nodes)).await;
            }
        }
        opening.0 = None;
        Ok(connection)
    }

    /// Makes ready to connect, and follows what becomes of that. Inside a runtime, as [`open`].
    ///
    /// [`open`]: Self::open
    fn start(
        address: &Address,
        settings: &Settings,
        contact: Arc<Contact>,
        role: &'static str,
        fail_fast_on_connect: bool,
        above: Option<Arc<Notify>>,
    ) -> Result<Arc<Self>, Error> {
        let serving = contact.serving.lock().iter().map(|(_, _, server)| server.clone()).collect();
        let client = address.also_at(serving).client(settings, fail_fast_on_connect)?;
        let options = Options {
            // In flight when the connection breaks: an error, never a silent second run.
            fail_fast: true,
            timeout: Some(settings.command_timeout),
            ..Options::default()
        };
        let nodes = address.is_cluster().then(|| cluster::Nodes::new(address, settings, &contact));
        let connection = Arc::new(Self {
            contact,
            phase: watch::Sender::new(Phase::default()),
            can_kill: AtomicBool::new(true),
            heard: AtomicU64::new(Moment::now().raw()),
            overdue: AtomicU64::new(0),
            misplaced: AtomicBool::new(false),
            moved: Notify::new(),
            cause: parking_lot::Mutex::new(None),
            role,
            server: format!("{address:?}"),
            cluster: address.is_cluster(),
            tls: address.uses_tls(),
            options,
            runtime: Handle::current(),
            router: parking_lot::Mutex::new(None),
            nodes,
            above,
            client,
        });
        // Receivers first: an event before them would be lost.
        let reconnects = connection.client.reconnect_rx();
        let errors = connection.client.error_rx();
        let changes = connection.client.cluster_change_rx();
        tokio::spawn(fence::watch_over(connection.clone(), reconnects, changes, errors));
        if connection.nodes.is_some() {
            tokio::spawn(cluster::watch_nodes(connection.clone()));
        }
        if !connection.cluster {
            tokio::spawn(follow::follow(connection.clone()));
        }
        Ok(connection)
    }

    /// Connects, and waits for that: fred's init, which keeps the task to itself until then.
    async fn connected(&self) -> Result<(), fred::error::Error> {
        let mut connected = std::pin::pin!(self.client.wait_for_connect());
        std::future::poll_fn(|cx| {
            // The first poll listens; an end before that would be missed.
            let result = connected.as_mut().poll(cx);
            self.router.lock().get_or_insert_with(|| self.client.connect());
            result
        })
        .await
    }

    /// Whether the keys of one command must be of one slot.
    pub(crate) fn keeps_slots_apart(&self) -> bool {
        self.cluster || self.contact.keeps_slots_apart()
    }

    /// Whether an old connection of ours may still run something after a new one did.
    pub(crate) fn may_have_ghosts(&self) -> bool {
        !self.can_kill.load(Ordering::Relaxed) || self.cluster
    }

    /// Whether calls are answered at all now, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        let phase = *self.phase.borrow();
        self.client.is_connected() && phase.fenced == phase.epoch && phase.epoch > 0
    }

    /// Resolves when the connection is up and nothing that got no answer can run any more, or when
    /// it is closed.
    pub(crate) async fn settled(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let Phase { doubts, cleared, closed, .. } = *phase.borrow_and_update();
            if closed || (self.is_up() && cleared >= doubts) {
                return;
            }
            // fred sets its state shortly after the event, hence the second look.
            let look_again = tokio::time::sleep(Duration::from_millis(5));
            tokio::select! {
                changed = phase.changed() => if changed.is_err() { return },
                () = look_again => {}
            }
        }
    }

    /// As [`settled`](Self::settled), for the calls of one slot.
    pub(crate) async fn settled_at(&self, slot: u16) {
        let Some(nodes) = &self.nodes else { return self.settled().await };
        let mut phase = self.phase.subscribe();
        loop {
            if phase.borrow_and_update().closed {
                return;
            }
            let node = self.node(nodes, slot).ok();
            let settled = async {
                match &node {
                    Some(node) => node.settled().await,
                    None => self.settled().await,
                }
            };
            tokio::select! {
                () = settled => {
                    // One that was closed serves it no more.
                    if node.is_none_or(|node| !node.phase.borrow().closed) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // The nodes have changed: another may serve it.
                changed = phase.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Since when nothing was heard of who serves a slot, if something failed since.
    pub(crate) fn silent_since(&self, slot: u16) -> Option<Moment> {
        match self.known_node(slot) {
            Some(node) => node.contact.silent_since(),
            None => self.contact.silent_since(),
        }
    }

    /// Runs a script: EVALSHA, and EVAL where the server does not know it yet.
    ///
    /// Nothing has run when the server says NOSCRIPT, so the second send is safe; the call's fate
    /// is unknown until the second reply. `rest` adds the keys, so many, and then the arguments.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        slot: u16,
        keys: usize,
        rest: impl Fn(&mut Vec<Value>),
    ) -> Result<Value, CallError> {
        let args = |script: &'static str| {
            let mut args = vec![Value::from_static_str(script), Value::Integer(keys as i64)];
            rest(&mut args);
            args
        };
        match self.command("EVALSHA", slot, args(script.sha())).await {
            Err(CallError::Refused(text)) if text.starts_with("NOSCRIPT") => {
                tracing::debug!(script = script.name, "the server does not know the script yet");
                self.command("EVAL", slot, args(script.source)).await
            }
            result => result,
        }
    }

    /// [`run`](Self::run) with keys and arguments apart.
    pub(crate) async fn run_with(
        &self,
        script: &'static Script,
        slot: u16,
        keys: &[Text],
        args: &[Argument],
    ) -> Result<Value, CallError> {
        let rest = |all: &mut Vec<Value>| {
            all.extend(keys.iter().map(text));
            all.extend(args.iter().map(|arg| match arg {
                Argument::Text(arg) => text(arg),
                Argument::Bytes(bytes) => Value::Bytes(bytes.clone().into()),
            }));
        };
        self.run(script, slot, keys.len(), rest).await
    }

    /// Sends one command to the node of a slot.
    pub(crate) async fn command(
        &self,
        name: &'static str,
        slot: u16,
        args: Vec<Value>,
    ) -> Result<Value, CallError> {
        match &self.nodes {
            Some(nodes) => Box::pin(self.routed(nodes, name, slot, args)).await,
            None => self.send(name, slot, args, false).await,
        }
    }

    /// Sends one command by fred's client, if need be behind ASKING.
    async fn send(
        &self,
        name: &'static str,
        slot: u16,
        args: Vec<Value>,
        asking: bool,
    ) -> Result<Value, CallError> {
        self.inside(self.while_overdue()).await?;
        // fred ignores options on its typed script calls, so everything goes through `custom`.
        let command = CustomCommand::new_static(name, ClusterHash::Custom(slot), false);
        let sent = Moment::now();
        // fred's futures are 10 kB: on the heap for a command, not in every future of ours.
        let result = if asking {
            self.inside(Box::pin(self.behind_asking(command, args))).await
        } else {
            let with_options = self.client.with_options(&self.options);
            self.inside(Box::pin(with_options.custom(command, args))).await
        };
        self.classify(sent, result)
    }

    /// Polls a future inside our runtime: fred's time-outs need one, and a lock may be used from a
    /// thread that has none.
    async fn inside<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let _inside = Handle::try_current().is_err().then(|| self.runtime.enter());
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Waits while a reply is overdue. fred takes a connection for dead when nothing came since its
    /// *last* write, so whoever goes on writing to a dead one keeps it alive.
    async fn while_overdue(&self) -> Result<(), CallError> {
        if self.overdue.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut phase = self.phase.subscribe();
        let known = phase.wait_for(|phase| phase.closed || phase.cleared >= phase.doubts);
        let timeout = self.options.timeout.unwrap_or_default();
        match tokio::time::timeout(timeout, known).await {
            Ok(_) => Ok(()),
            Err(_) => Err(CallError::NotSent("an earlier reply is overdue".to_owned())),
        }
    }

    fn classify(
        &self,
        sent: Moment,
        result: Result<Value, fred::error::Error>,
    ) -> Result<Value, CallError> {
        let error = match result {
            Ok(value) => {
                self.heard();
                if self.misplaced.load(Ordering::Relaxed) {
                    self.misplaced.store(false, Ordering::Relaxed);
                }
                return Ok(value);
            }
            Err(error) => error,
        };
        let text = error.details();
        if is_error_reply(text) {
            self.heard();
            if text.starts_with("CROSSSLOT") {
                self.contact.keep_slots_apart();
            }
            if text.starts_with("READONLY") || text.starts_with("MASTERDOWN") {
                self.misplaced.store(true, Ordering::Relaxed);
                self.moved.notify_one();
            }
            return Err(CallError::Refused(text.to_owned()));
        }
        self.contact.failed();
        // The one text of fred's that means: refused before it was queued.
        if *error.kind() == ErrorKind::Canceled && text == "Connection closed unexpectedly." {
            return Err(CallError::NotSent(match &*self.cause.lock() {
                Some(cause) => format!("the connection is down: {cause}"),
                None => "the connection is down".to_owned(),
            }));
        }
        // In a cluster the other nodes go on answering.
        if *error.kind() == ErrorKind::Timeout && !self.cluster {
            self.overdue.store(sent.raw(), Ordering::Relaxed);
        }
        self.phase.send_modify(|phase| phase.doubts += 1);
        Err(CallError::Unknown(match error.kind() {
            ErrorKind::Timeout => "the server did not answer in time".to_owned(),
            ErrorKind::IO => "the connection broke".to_owned(),
            _ => text.to_owned(),
        }))
    }

    fn heard(&self) {
        self.heard.store(Moment::now().raw(), Ordering::Relaxed);
        self.contact.heard();
    }

    /// A receiver that changes with every (re)connection.
    pub(crate) fn epochs(&self) -> EpochReceiver {
        self.receiver(|phase| phase.epoch)
    }

    /// A receiver that changes whenever sharded subscriptions may have ended, as far as that is
    /// told: see [`subscribed_at`](Self::subscribed_at).
    pub(crate) fn shard_epochs(&self) -> EpochReceiver {
        self.receiver(|phase| phase.shards)
    }

    fn receiver(&self, of: fn(&Phase) -> u64) -> EpochReceiver {
        let phase = self.phase.subscribe();
        let seen = of(&phase.borrow());
        EpochReceiver { phase, of, seen }
    }

    /// Closes the socket; later calls answer that they were not sent.
    pub(crate) async fn close(&self) {
        self.phase.send_modify(|phase| phase.closed = true);
        if let Some(nodes) = &self.nodes {
            let nodes = nodes.close();
            for node in &nodes {
                node.phase.send_modify(|phase| phase.closed = true);
            }
            for node in nodes {
                Box::pin(node.close()).await;
            }
        }
        // QUIT waits for what is in flight; a server that is away must not hold us.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.client.quit()).await;
        let router = self.router.lock().take();
        if let Some(mut router) = router {
            // QUIT first waits for every reply that is due; some never come.
            if tokio::time::timeout(Duration::from_millis(500), &mut router).await.is_err() {
                router.abort();
                tracing::debug!(role = self.role, "the connection's task was ended by force");
            }
        }
    }
}

/// A connection that is being opened: given up before the end, it is closed.
struct Opening(Option<Arc<Connection>>);

impl Drop for Opening {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        let nodes = connection.nodes.as_ref().map_or_else(Vec::new, cluster::Nodes::close);
        for connection in nodes.into_iter().chain([connection]) {
            connection.phase.send_modify(|phase| phase.closed = true);
            if let Some(router) = connection.router.lock().take() {
                router.abort();
            }
        }
    }
}

/// Changes with every (re)connection, and in a cluster with every change of its nodes.
pub(crate) struct EpochReceiver {
    phase: watch::Receiver<Phase>,
    of: fn(&Phase) -> u64,
    /// The last that was told: one that comes while nobody waits here is told by the next call.
    seen: u64,
}

impl EpochReceiver {
    /// Waits for a connection made since the last one that this told of.
    ///
    /// Cancel safe: what a dropped future has not told, the next one does.
    pub(crate) async fn next(&mut self) {
        let (of, seen) = (self.of, self.seen);
        let epoch = self.phase.wait_for(|phase| of(phase) != seen).await.map(|phase| of(&phase));
        match epoch {
            Ok(epoch) => self.seen = epoch,
            // The connection is gone for good: never again.
            Err(_) => std::future::pending::<()>().await,
        }
    }

    /// Tells of a connection made since, without waiting for one.
    pub(crate) fn look(&mut self) -> bool {
        let epoch = (self.of)(&self.phase.borrow());
        std::mem::replace(&mut self.seen, epoch) != epoch
    }
}

/// Whether a text of fred's is the server's error reply: those begin with a code in capitals.
fn is_error_reply(text: &str) -> bool {
    let code = text.split([' ', ':']).next().unwrap_or_default();
    code.len() >= 2 && code.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_are_told_from_fred_s_own_words() {
        for text in ["ERR x", "NOSCRIPT No matching script.", "WRONGTYPE Operation", "OOM command"]
        {
            assert!(is_error_reply(text), "{text}");
        }
        for text in ["Connection closed unexpectedly.", "Client is not initialized.", "", "I/O"] {
            assert!(!is_error_reply(text), "{text}");
        }
    }
}

//! One connection to the server (one a node, in a cluster), and when its replies can be believed.
//!
//! fred keeps the socket and reconnects it. On top of that this file answers the two questions a
//! lock must ask: may a command have run (see [`CallError`]), and may a command of a connection
//! that broke still run later? A broken connection can leave commands in the server's socket
//! buffer, to be executed after ones of the new connection. So after every reconnect the old
//! connection is killed by its id first; [`Connection::settled`] waits for that.

use crate::config::Settings;
use crate::error::Error;
use crate::lease::Moment;
use crate::server::Text;
use crate::server::address::Address;
use crate::server::reply::{CallError, text};
use crate::server::script::Script;
use fred::error::ErrorKind;
use fred::prelude::*;
use fred::types::config::{Options, Server};
use fred::types::{ClusterHash, ClusterStateChange, ConnectHandle, CustomCommand, Message};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// When the server was last heard of, over all connections of a client.
#[derive(Debug)]
pub(crate) struct Contact {
    last: AtomicU64,
    failing: AtomicBool,
    /// Counts outages and recoveries; waiters look up when it changes.
    changes: watch::Sender<u64>,
}

impl Contact {
    pub(crate) fn new() -> Self {
        Self {
            last: AtomicU64::new(Moment::now().raw()),
            failing: AtomicBool::new(false),
            changes: watch::Sender::new(0),
        }
    }

    fn heard(&self) {
        self.last.store(Moment::now().raw(), Ordering::Relaxed);
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            self.changes.send_modify(|n| *n += 1);
        }
    }

    fn failed(&self) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            self.changes.send_modify(|n| *n += 1);
        }
    }

    /// Since when nothing was heard, if something failed since.
    pub(crate) fn silent_since(&self) -> Option<Moment> {
        let failing = self.failing.load(Ordering::Relaxed);
        failing.then(|| Moment::from_raw(self.last.load(Ordering::Relaxed)))
    }

    /// A receiver that changes with every outage and recovery.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Phase {
    /// How often it was connected.
    epoch: u64,
    /// The last epoch whose predecessors can run nothing any more (or cannot be killed).
    fenced: u64,
    /// How many calls ended without an answer; each may still run.
    doubts: u64,
    /// How many of those were before the last sign that nothing sent earlier can still run.
    cleared: u64,
    closed: bool,
}

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
    role: &'static str,
    cluster: bool,
    options: Options,
    router: parking_lot::Mutex<Option<ConnectHandle>>,
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
        let client = address.client(settings, !lazy)?;
        let options = Options {
            // In flight when the connection breaks: an error, never a silent second run.
            fail_fast: true,
            timeout: Some(settings.command_timeout),
            ..Options::default()
        };
        let connection = Arc::new(Self {
            contact,
            phase: watch::Sender::new(Phase::default()),
            can_kill: AtomicBool::new(true),
            heard: AtomicU64::new(Moment::now().raw()),
            overdue: AtomicU64::new(0),
            role,
            cluster: address.is_cluster(),
            options,
            router: parking_lot::Mutex::new(None),
            client,
        });
        // Receivers first: an event before them would be lost.
        let reconnects = connection.client.reconnect_rx();
        let errors = connection.client.error_rx();
        let changes = connection.client.cluster_change_rx();
        tokio::spawn(watch_over(connection.clone(), reconnects, changes, errors));
        let mut opening = Opening(Some(connection.clone()));
        if lazy {
            *connection.router.lock() = Some(connection.client.connect());
        } else {
            connection.connected().await.map_err(|error| connect_error(address, &error))?;
            // Its id is known from here on: it can be killed, should it break.
            let _ = tokio::time::timeout(settings.command_timeout, connection.settled()).await;
        }
        opening.0 = None;
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

    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster
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

    /// Runs a script: EVALSHA, and EVAL where the server does not know it yet.
    ///
    /// Nothing has run when the server says NOSCRIPT, so the second send is safe; the call's fate
    /// is unknown until the second reply.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        slot: u16,
        keys: usize,
        mut args: Vec<Value>,
    ) -> Result<Value, CallError> {
        // args: room for the script, the number of keys, then keys and arguments.
        args[0] = Value::from_static_str(script.sha());
        args[1] = Value::Integer(keys as i64);
        match self.command("EVALSHA", slot, args.clone()).await {
            Err(CallError::Refused(text)) if text.starts_with("NOSCRIPT") => {
                tracing::debug!(script = script.name, "the server does not know the script yet");
                args[0] = Value::from_static_str(script.source);
                self.command("EVAL", slot, args).await
            }
            result => result,
        }
    }

    /// [`run`](Self::run) with texts for keys and arguments.
    pub(crate) async fn run_texts(
        &self,
        script: &'static Script,
        slot: u16,
        keys: &[Text],
        args: &[Text],
    ) -> Result<Value, CallError> {
        let mut all = vec![Value::Null, Value::Null];
        all.extend(keys.iter().chain(args).map(text));
        self.run(script, slot, keys.len(), all).await
    }

    /// Sends one command to the node of a slot.
    pub(crate) async fn command(
        &self,
        name: &'static str,
        slot: u16,
        args: Vec<Value>,
    ) -> Result<Value, CallError> {
        self.while_overdue().await?;
        // fred ignores options on its typed script calls, so everything goes through `custom`.
        let command = CustomCommand::new_static(name, ClusterHash::Custom(slot), false);
        let sent = Moment::now();
        let result = self.client.with_options(&self.options).custom(command, args).await;
        self.classify(sent, result)
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
                return Ok(value);
            }
            Err(error) => error,
        };
        let text = error.details();
        if is_error_reply(text) {
            self.heard();
            return Err(CallError::Refused(text.to_owned()));
        }
        self.contact.failed();
        // The one text of fred's that means: refused before it was queued.
        if *error.kind() == ErrorKind::Canceled && text == "Connection closed unexpectedly." {
            return Err(CallError::NotSent("the connection is down".to_owned()));
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

    /// The messages of this connection's subscriptions.
    pub(crate) fn messages(&self) -> Messages {
        Messages(self.client.message_rx())
    }

    /// A receiver that changes with every (re)connection.
    pub(crate) fn epochs(&self) -> EpochReceiver {
        EpochReceiver(self.phase.subscribe())
    }

    /// SUBSCRIBE to many channels; returns when written, not when the server has it.
    pub(crate) async fn subscribe(&self, channels: Vec<String>) -> Result<(), CallError> {
        self.unit(self.client.with_options(&self.options).subscribe(channels)).await
    }

    pub(crate) async fn unsubscribe(&self, channels: Vec<String>) -> Result<(), CallError> {
        // An empty list would unsubscribe everything.
        if channels.is_empty() {
            return Ok(());
        }
        self.unit(self.client.with_options(&self.options).unsubscribe(channels)).await
    }

    /// SSUBSCRIBE to one channel; returns when the server has it. Never more than one at a time:
    /// a second channel in one command shifts fred's replies to the wrong callers.
    pub(crate) async fn ssubscribe(&self, channel: String) -> Result<(), CallError> {
        self.unit(self.client.with_options(&self.options).ssubscribe(channel)).await
    }

    pub(crate) async fn sunsubscribe(&self, channel: String) -> Result<(), CallError> {
        self.unit(self.client.with_options(&self.options).sunsubscribe(channel)).await
    }

    /// A round trip on the socket that carries SUBSCRIBE: behind it, the server has them all.
    ///
    /// fred answers SUBSCRIBE when it is written. If the server refuses one, its error goes to the
    /// next command, this PING, and the PING's own reply to nobody: so each PING has a number, and
    /// a reply with another number means that the two are out of step for a moment.
    pub(crate) async fn barrier(&self) -> Result<(), CallError> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        // fred sends all SUBSCRIBEs of a client to the node of this slot.
        let slot = crate::server::slot_of(self.client.id());
        let reply = self.command("PING", slot, vec![number.as_str().into()]).await?;
        if reply.as_str().as_deref() == Some(number.as_str()) {
            return Ok(());
        }
        Err(CallError::Unknown("the reply belongs to another command".to_owned()))
    }

    async fn unit(
        &self,
        call: impl Future<Output = Result<(), fred::error::Error>>,
    ) -> Result<(), CallError> {
        self.while_overdue().await?;
        let sent = Moment::now();
        self.classify(sent, call.await.map(|()| Value::Null)).map(drop)
    }

    /// Closes the socket; later calls answer that they were not sent.
    pub(crate) async fn close(&self) {
        self.phase.send_modify(|phase| phase.closed = true);
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

    /// Takes note of a new connection, or of a change of the cluster's nodes.
    async fn renewed(&self, peers: &mut Peers) {
        let mut epoch = 0;
        self.phase.send_modify(|phase| {
            phase.epoch += 1;
            epoch = phase.epoch;
        });
        if epoch > 1 {
            tracing::info!(role = self.role, epoch, "connected again");
        }
        self.fence(peers).await;
        // A connection that broke again meanwhile is fenced by its own, later event.
        self.phase.send_modify(|phase| phase.fenced = phase.fenced.max(epoch));
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
            let peer = match self.on(&server, "INFO", &[]).await {
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
            match self.on(&server, "KILL", &["ID", &peer.id, "ADDR", &peer.addr]).await {
                Ok(_) => {}
                Err(error) if is_error_reply(error.details()) => {
                    if self.can_kill.swap(false, Ordering::Relaxed) {
                        tracing::warn!(
                            role = self.role,
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
    fn servers(&self) -> Vec<Server> {
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

    /// `CLIENT <verb>` on one node.
    async fn on(
        &self,
        server: &Server,
        verb: &str,
        args: &[&str],
    ) -> Result<Value, fred::error::Error> {
        // Not fail-fast: right after a reconnect fred still refuses those.
        let options = Options {
            timeout: self.options.timeout,
            cluster_node: self.cluster.then(|| server.clone()),
            ..Options::default()
        };
        let command = CustomCommand::new_static("CLIENT", ClusterHash::Custom(0), false);
        let args: Vec<String> =
            std::iter::once(verb).chain(args.iter().copied()).map(str::to_owned).collect();
        self.client.with_options(&options).custom(command, args).await
    }
}

/// A connection that is being opened: given up before the end, it is closed.
struct Opening(Option<Arc<Connection>>);

impl Drop for Opening {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        connection.phase.send_modify(|phase| phase.closed = true);
        if let Some(router) = connection.router.lock().take() {
            router.abort();
        }
    }
}

/// What arrived on the subscribed channels.
pub(crate) struct Messages(broadcast::Receiver<Message>);

impl Messages {
    /// The next channel that something was published on; `Err` with how many messages were
    /// dropped because nobody read them fast enough, `None` when the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<Result<Text, u64>> {
        match self.0.recv().await {
            Ok(message) => Some(Ok(message.channel)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Changes with every (re)connection, and in a cluster with every change of its nodes.
pub(crate) struct EpochReceiver(watch::Receiver<Phase>);

impl EpochReceiver {
    /// Waits for a connection made since the last call.
    pub(crate) async fn next(&mut self) {
        let seen = self.0.borrow_and_update().epoch;
        // An error means that the connection is gone for good: never again.
        if self.0.wait_for(|phase| phase.epoch != seen).await.is_err() {
            std::future::pending::<()>().await;
        }
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
async fn watch_over(
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
                    connection.renewed(&mut peers).await;
                    connection.missed(reconnects.len());
                }
            },
            event = changes.recv() => match event {
                Err(broadcast::error::RecvError::Closed) => return,
                _ => connection.renewed(&mut peers).await,
            },
            () = in_doubt(&mut doubted) => {
                connection.clear_doubts(&mut peers, &mut reconnects).await;
                // One may be that of the connection which was just looked at.
                connection.missed(reconnects.len().saturating_sub(1));
            }
            event = errors.recv() => match event {
                Err(broadcast::error::RecvError::Closed) => return,
                _ => connection.contact.failed(),
            },
        }
    }
}

async fn closed_for_good(phase: &mut watch::Receiver<Phase>) {
    // An error means that the connection is dropped, which ends it as well.
    let _ = phase.wait_for(|phase| phase.closed).await;
}

async fn in_doubt(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| phase.cleared < phase.doubts).await;
}

/// Whether a text of fred's is the server's error reply: those begin with a code in capitals.
fn is_error_reply(text: &str) -> bool {
    let code = text.split([' ', ':']).next().unwrap_or_default();
    code.len() >= 2 && code.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
}

fn connect_error(address: &Address, error: &fred::error::Error) -> Error {
    let text = error.details();
    if is_error_reply(text) {
        return Error::server(None, text);
    }
    Error::unavailable(None, &format!("connecting to {address:?} failed: {text}"), false)
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

    #[test]
    fn our_address_is_read_from_client_info() {
        let info = "id=7 addr=127.0.0.1:5 laddr=127.0.0.1:6379 fd=8 name= db=0\n";
        let peer = Peer { id: "7".into(), addr: "127.0.0.1:5".into() };
        assert_eq!(Peer::read(info), Some(peer));
        assert_eq!(Peer::read("nothing=1"), None);
    }

    #[test]
    fn an_outage_counts_from_the_last_word_heard() {
        let contact = Contact::new();
        assert_eq!(contact.silent_since(), None);
        contact.failed();
        assert!(contact.silent_since().is_some());
        contact.heard();
        assert_eq!(contact.silent_since(), None);
        assert_eq!(*contact.changes().borrow(), 2);
    }
}

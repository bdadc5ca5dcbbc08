//! How any synchronizer is taken, kept and given back.
//!
//! [`recipe`] says what to send; [`queue`] decides, per name and under one lock, who may go next;
//! [`acquire`] performs what was decided and is the only place that waits; [`hold`] is what was
//! granted; [`renewal`] keeps it; [`wakeups`] tells waiters to look again.

pub(crate) mod acquire;
mod direct;
pub(crate) mod hold;
pub(crate) mod in_order;
pub(crate) mod queue;
pub(crate) mod quorum;
pub(crate) mod recipe;
pub(crate) mod renewal;
pub(crate) mod replicas;
pub(crate) mod settled;
pub(crate) mod together;
pub(crate) mod wakeups;

use crate::config::{PublishMode, Settings, Shown, WaitMode};
use crate::engine::queue::{Name, WokenBy};
use crate::engine::recipe::{Identity, Recipe, Waiting};
use crate::engine::renewal::Renewal;
use crate::engine::settled::Settled;
use crate::engine::wakeups::Wakeups;
use crate::error::{Error, LostReason, Refusal, refusal};
use crate::lease::Moment;
use crate::server::acknowledged::Acknowledged;
use crate::server::address::Address;
use crate::server::batch::Batch;
use crate::server::connection::{Connection, Contact};
use crate::server::reply::CallError;
use crate::server::sentinels;
use dashmap::DashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell, watch};

/// What it takes to open one more connection like the others.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub address: Address,
    pub settings: Settings,
    pub contact: Arc<Contact>,
    /// The runtime that the client was made on.
    pub runtime: Handle,
    sharded: Arc<OnceLock<bool>>,
}

impl Wiring {
    /// A connection that is opened behind the scenes, and again whenever it breaks.
    pub(crate) async fn connect(&self, role: &'static str) -> Result<Arc<Connection>, Error> {
        let contact = self.contact.clone();
        Connection::open(&self.address, &self.settings, contact, role, true).await
    }

    /// Follows the primary, where sentinels say which server that is.
    async fn watch_sentinels(self) {
        if self.address.sentinels().is_some() {
            sentinels::watch_over(self.address, self.settings, self.contact).await;
        }
    }

    /// Whether waiters are told by SPUBLISH.
    pub(crate) fn sharded(&self) -> bool {
        match self.settings.publish {
            PublishMode::Plain => false,
            PublishMode::Sharded => true,
            // Every server we support knows sharded channels; the probe finds proxies that do not.
            PublishMode::Auto => self.address.is_cluster() && *self.sharded.get().unwrap_or(&true),
        }
    }

    fn publish(&self) -> &'static str {
        if self.sharded() { "SPUBLISH" } else { "PUBLISH" }
    }
}

/// Everything the clones and views of one client share.
pub(crate) struct Engine {
    pub wiring: Wiring,
    /// Names this client in every hold: `<uuid>:<id>`.
    pub uuid: String,
    pub batch: Arc<Batch>,
    /// For what replicas must have; opened by the first who asks for that.
    replicated: OnceCell<Arc<Acknowledged>>,
    pub wakeups: Arc<Wakeups>,
    pub renewal: Renewal,
    /// By kind and name.
    names: DashMap<Identity, Arc<Name>>,
    /// Calls whose records the server need not keep any more.
    pub settled: Settled,
    next_id: AtomicU64,
    /// How long an acquire takes there and back, smoothed, in nanoseconds.
    round_trip: AtomicU64,
    /// New outermost acquisitions are refused.
    closing: AtomicBool,
    /// The tasks of the engine that still have something to send.
    busy: Arc<Count>,
    /// Holds that stand.
    holds: Arc<Count>,
    /// Everything is closed.
    ended: watch::Sender<bool>,
}

impl Engine {
    pub(crate) async fn start(
        address: Address,
        settings: Settings,
        lazy: bool,
    ) -> Result<Arc<Self>, Error> {
        let contact = Arc::new(Contact::new());
        let commands =
            Connection::open(&address, &settings, contact.clone(), "commands", lazy).await?;
        let runtime = Handle::current();
        let sharded = Arc::new(OnceLock::new());
        let wiring = Wiring { address, settings, contact, runtime: runtime.clone(), sharded };
        let engine = Arc::new(Self {
            uuid: uuid::Uuid::new_v4().to_string(),
            batch: Batch::new(commands, runtime.clone()),
            replicated: OnceCell::new(),
            wakeups: Wakeups::new(wiring.clone()),
            renewal: Renewal::new(),
            names: DashMap::new(),
            settled: Settled::default(),
            // Above anything a Java thread id will be: a reader of the key sees whose it is.
            next_id: AtomicU64::new(1_000_000_000),
            round_trip: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            busy: Arc::default(),
            holds: Arc::default(),
            ended: watch::Sender::new(false),
            wiring,
        });
        engine.background(look_again_after_reconnects(engine.clone()));
        engine.background(engine.wiring.clone().watch_sentinels());
        Ok(engine)
    }

    /// Finds out what decides how waiters are told, and what to warn of; `lazy` does so behind the
    /// scenes.
    pub(crate) async fn learn(self: &Arc<Self>, lazy: bool) {
        let cluster = self.wiring.address.is_cluster();
        let settings = self.settings();
        // Who neither tells nor listens need not know how.
        let probe = cluster
            && settings.publish == PublishMode::Auto
            && settings.waiting == WaitMode::Messages;
        if probe && !lazy {
            self.probe_sharded().await;
        }
        if !cluster && !lazy {
            return self.probe_eviction().await;
        }
        let probing = self.clone();
        self.background(async move {
            if probe && lazy {
                probing.probe_sharded().await;
            }
            // In a cluster each node is asked: nobody waits for that.
            probing.probe_eviction().await;
        });
    }

    /// Warns where locks may be removed to make room.
    async fn probe_eviction(&self) {
        let connection = self.batch.connection();
        connection.settled().await;
        for policy in connection.evictions().await {
            tracing::warn!(
                server = ?self.wiring.address,
                policy,
                "the server may evict locks: it has a maxmemory and a policy that removes keys with \
                 a TTL; use noeviction, or a server for locks alone"
            );
        }
    }

    /// Asks as Redisson does whether the cluster knows sharded channels.
    async fn probe_sharded(&self) {
        let connection = self.batch.connection();
        connection.settled().await;
        let reply = connection.command("PUBSUB", 0, vec!["SHARDNUMSUB".into()]).await;
        let refused = match &reply {
            Err(CallError::Refused(text)) => Some(text.as_str()),
            _ => None,
        };
        if refused.is_some_and(|text| refusal(text) == Refusal::Denied) {
            tracing::warn!(
                "may not ask for PUBSUB SHARDNUMSUB: takes the cluster for one without sharded \
                 channels, and hears nothing from clients that use them; set the publish mode"
            );
        }
        let known = refused.is_none();
        let _ = self.wiring.sharded.set(known);
        tracing::debug!(sharded = known, "probed the cluster for sharded channels");
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.wiring.settings
    }

    /// How a release tells waiters; empty where nobody listens.
    pub(crate) fn publish(&self, recipe: &Recipe) -> &'static str {
        match self.waiting(recipe) {
            Waiting::Spin => "",
            Waiting::Listen | Waiting::InLine => self.wiring.publish(),
        }
    }

    /// How waiters of this kind learn that they should try again.
    pub(crate) fn waiting(&self, recipe: &Recipe) -> Waiting {
        match self.settings().waiting {
            WaitMode::Messages => recipe.kind.waiting,
            WaitMode::Spin => Waiting::Spin,
        }
    }

    /// The record of this call is not needed any more, unless a send of it without an answer may
    /// still run: without its record, it would count once more.
    pub(crate) fn settle(&self, recipe: &Recipe, id: u64, unsure: bool) {
        let ghosts = unsure && self.may_have_ghosts();
        if recipe.kind.keeps_records && !ghosts {
            self.settled.push(recipe, id);
        }
    }

    /// Smooths the time of an acquire, there and back.
    pub(crate) fn measure_round_trip(&self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX / 8);
        let known = self.round_trip.load(Ordering::Relaxed);
        let smoothed = if known == 0 { sample } else { known - known / 8 + sample / 8 };
        self.round_trip.store(smoothed, Ordering::Relaxed);
    }

    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A name as it may be logged.
    pub(crate) fn shown<'a>(&self, name: &'a Name) -> Shown<'a> {
        self.settings().names_in_logs.show(&name.recipe.keys.lock)
    }

    /// The state of a name in this process, made if there is none.
    pub(crate) fn name(&self, recipe: &Arc<Recipe>) -> Arc<Name> {
        let made = self.names.entry(Identity(recipe.clone()));
        Arc::clone(&made.or_insert_with(|| Arc::new(Name::new(recipe.clone()))))
    }

    /// The state of a name, if this process has anything to do with it.
    pub(crate) fn known_name(&self, recipe: &Arc<Recipe>) -> Option<Arc<Name>> {
        // The map's reference ends here: held over another call on the map it could deadlock.
        self.names.get(&Identity(recipe.clone())).map(|name| Arc::clone(&name))
    }

    /// Forgets a name that nobody uses; only to be called by the name itself.
    pub(crate) fn retire(&self, name: &Name) {
        let identity = Identity(name.recipe.clone());
        self.names.remove_if(&identity, |_, known| std::ptr::eq(&**known, name));
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Everything is closed: nothing can be sent any more.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Runs a task of the engine's own; closing waits for it.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let busy = Counted::new(&self.busy);
        self.background(async move {
            work.await;
            drop(busy);
        });
    }

    /// Runs a task for as long as the engine does.
    fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut ended = self.ended.subscribe();
        self.wiring.runtime.spawn(async move {
            tokio::select! {
                () = work => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        });
    }

    pub(crate) fn count_hold(&self) -> Counted {
        Counted::new(&self.holds)
    }

    pub(crate) fn all_names(&self) -> Vec<Arc<Name>> {
        self.names.iter().map(|name| Arc::clone(&name)).collect()
    }

    /// Refuses new holds, waits for the old ones to be given back, then ends everything.
    pub(crate) async fn shutdown(self: &Arc<Self>, grace: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        for name in self.all_names() {
            name.look_again(self);
        }
        let _ = tokio::time::timeout(grace, self.holds.none()).await;
        let names = self.all_names();
        let lose = |name: &Arc<Name>| name.lose_all(self, LostReason::ClientClosed);
        let lost: usize = names.iter().map(lose).sum();
        if lost > 0 {
            tracing::warn!(locks = lost, "closed with locks still held");
        }
        // Releases that are queued still go out, unless the server is away.
        let _ = tokio::time::timeout(self.settings().command_timeout, self.busy.none()).await;
        self.end().await;
    }

    /// Shuts down behind the scenes: nobody is left who could wait for it.
    pub(crate) fn shutdown_behind(self: &Arc<Self>) {
        /// Ends the thread also where the runtime ends before, or has ended already.
        struct Stop(Arc<Engine>);
        impl Drop for Stop {
            fn drop(&mut self) {
                self.0.renewal.stop();
            }
        }
        let stop = Stop(self.clone());
        self.wiring.runtime.spawn(async move { stop.0.shutdown(Duration::ZERO).await });
    }

    /// Ends every task, thread and socket.
    pub(crate) async fn end(&self) {
        self.ended.send_replace(true);
        self.wakeups.close();
        self.renewal.stop();
        self.close_replicated().await;
        self.batch.connection().close().await;
    }

    /// Since when the server of a name is silent, if it is.
    pub(crate) fn silent_since(&self, recipe: &Recipe) -> Option<Moment> {
        self.batch.connection().silent_since(recipe.keys.slot)
    }

    /// Whether the server of a name is silent for longer than `patience`.
    pub(crate) fn out_of_patience(&self, recipe: &Recipe, since: Moment) -> bool {
        let Some(silent) = self.silent_since(recipe) else {
            return false;
        };
        silent.max(since).until(Moment::now()) >= self.settings().patience
    }
}

/// A server that was away may have come back without our locks: look at once, not at the next
/// renewal.
async fn look_again_after_reconnects(engine: Arc<Engine>) {
    let connection = engine.batch.connection();
    let mut epochs = connection.epochs();
    loop {
        epochs.next().await;
        connection.usable().await;
        for name in engine.all_names() {
            name.woken(&engine, WokenBy::Reconnect);
            name.look_again(&engine);
        }
    }
}

/// How many there are of what is waited for when the client closes.
#[derive(Default)]
struct Count {
    number: AtomicUsize,
    none: Notify,
}

impl Count {
    /// Resolves when there is none.
    async fn none(&self) {
        loop {
            let told = self.none.notified();
            tokio::pin!(told);
            // Listen before looking, or the last one's end in between would be missed.
            told.as_mut().enable();
            if self.number.load(Ordering::SeqCst) == 0 {
                return;
            }
            told.await;
        }
    }
}

/// One of them.
pub(crate) struct Counted(Arc<Count>);

impl Counted {
    fn new(count: &Arc<Count>) -> Self {
        count.number.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.number.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

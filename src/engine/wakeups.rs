//! Who hears that a lock is free: one subscription connection, many waiters.
//!
//! A message is only a hint to try again; its payload is not looked at. Messages get lost (a
//! broken connection, a full buffer, a slot that moved), so whenever that may have happened every
//! listener is woken once, and whoever waits also has a timer.
//!
//! One task, the [keeper](keep), sees what there is to do. The work itself is done in jobs, one at
//! a time for each server: so the order of what is sent there is one, and a node of a cluster that
//! is away keeps no waiter of another node from being heard.

use crate::engine::Wiring;
use crate::engine::queue::passes;
use crate::server::connection::{Connection, Heard as Told};
use crate::server::reply::CallError;
use crate::server::{Text, slot_of};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How long a channel stays subscribed after its last listener: a hot lock's next waiter comes soon.
const LINGER: Duration = Duration::from_secs(1);

/// Most channels in one SUBSCRIBE.
const CHANNELS_AT_ONCE: usize = 256;

/// How often the connection is asked for a sign of life while somebody listens.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Least time between two looks whether subscriptions have moved away with their slots.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What a listener sees of its channel.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Whether the server has the subscription, or why it never will.
    confirmed: Option<Result<(), CallError>>,
    /// Grows with every message, and whenever one may have been missed.
    wakeups: u64,
}

struct Channel {
    heard: watch::Sender<Heard>,
    listeners: usize,
    /// Since when nobody listens.
    idle_since: Option<Instant>,
    /// The server that has it.
    at: Option<Arc<str>>,
    /// Some server may have it.
    asked: bool,
    /// A server had it before the connection was made anew.
    confirmed_once: bool,
}

impl Channel {
    /// The server has it no longer.
    fn forget(&mut self) {
        self.at = None;
        self.heard.send_modify(|heard| heard.confirmed = None);
    }
}

#[derive(Default)]
struct State {
    channels: HashMap<Text, Channel>,
    /// Servers that a job is at work on.
    busy: HashSet<Arc<str>>,
    /// Grows whenever the servers' subscriptions may be gone: what a job has found out before
    /// counts no more.
    generation: u64,
    started: bool,
    closed: bool,
}

/// What there is to do at one server.
#[derive(Default)]
struct Work {
    /// Channels that nobody listens to any more.
    gone: Vec<Text>,
    /// Channels that somebody wants and the server has not been asked for.
    wanted: Vec<Text>,
    /// Find out whether the server still is there, and has what it had.
    look: bool,
}

pub(crate) struct Wakeups {
    wiring: Wiring,
    state: Mutex<State>,
    /// Wakes the keeper: a channel is wanted, or no longer.
    changed: Notify,
}

impl Wakeups {
    pub(crate) fn new(wiring: Wiring) -> Arc<Self> {
        Arc::new(Self { wiring, state: Mutex::default(), changed: Notify::new() })
    }

    /// Listens to a channel. The connection is opened by the first listener.
    pub(crate) fn listen(self: &Arc<Self>, channel: &Text) -> Listener {
        let mut state = self.state.lock();
        let known = state.channels.entry(channel.clone()).or_insert_with(|| Channel {
            heard: watch::Sender::new(Heard::default()),
            listeners: 0,
            idle_since: None,
            at: None,
            asked: false,
            confirmed_once: false,
        });
        known.listeners += 1;
        known.idle_since = None;
        let heard = known.heard.subscribe();
        let seen = heard.borrow().wakeups;
        if !state.started && !state.closed {
            state.started = true;
            self.wiring.runtime.spawn(keep(self.clone()));
        }
        drop(state);
        self.changed.notify_one();
        Listener { wakeups: self.clone(), channel: channel.clone(), heard, seen }
    }

    /// Ends the tasks and the connection.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// Takes in what a connection tells. A flood must never wait behind a round trip.
    fn hear(&self, told: &Told) {
        match told {
            Told::Message(channel) => self.wake(channel),
            Told::Missed(missed) => {
                tracing::warn!(missed, "messages came too fast; every waiter looks for itself");
                self.wake_if(|_| true);
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn wake(&self, channel: &str) {
        let state = self.state.lock();
        if let Some(channel) = state.channels.get(channel) {
            channel.heard.send_modify(|heard| heard.wakeups += 1);
        }
    }

    /// Something may have been missed on some channels: everyone looks for themselves.
    fn wake_if(&self, which: impl Fn(&Channel) -> bool) {
        for channel in self.state.lock().channels.values().filter(|channel| which(channel)) {
            channel.heard.send_modify(|heard| heard.wakeups += 1);
        }
    }

    fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Tells listeners what the server said, if it said so in this generation.
    fn confirm(
        &self,
        generation: u64,
        at: &Arc<str>,
        channels: &[Text],
        result: Result<(), CallError>,
    ) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        for name in channels {
            if let Some(channel) = state.channels.get_mut(name) {
                channel.at = result.is_ok().then(|| at.clone());
                // Subscribed anew: what was published meanwhile is gone, so look once.
                let again = std::mem::replace(&mut channel.confirmed_once, true);
                channel.heard.send_modify(|heard| {
                    heard.confirmed = Some(result.clone());
                    heard.wakeups += u64::from(again);
                });
            }
        }
    }

    /// What can be done now, by server, and when more may have to be. With `look`, all servers are
    /// to be looked at. The servers are busy from here on.
    fn work(
        &self,
        place_of: impl Fn(&Text) -> Arc<str>,
        look: bool,
    ) -> (HashMap<Arc<str>, Work>, Option<Instant>) {
        let mut state = self.state.lock();
        let State { channels, busy, .. } = &mut *state;
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut all: HashMap<Arc<str>, Work> = HashMap::new();
        channels.retain(|name, channel| {
            if look {
                let at = channel.at.iter().filter(|at| !busy.contains(*at));
                at.for_each(|at| all.entry(at.clone()).or_default().look = true);
            }
            let Some(since) = channel.idle_since else {
                let refused = matches!(channel.heard.borrow().confirmed, Some(Err(_)));
                if channel.at.is_none() && !refused {
                    let place = place_of(name);
                    if !busy.contains(&place) {
                        channel.asked = true;
                        all.entry(place).or_default().wanted.push(name.clone());
                    }
                }
                return true;
            };
            if !channel.asked {
                return false;
            }
            if now < since + LINGER {
                next = Some(next.map_or(since + LINGER, |next| next.min(since + LINGER)));
                return true;
            }
            let place = channel.at.clone().unwrap_or_else(|| place_of(name));
            if busy.contains(&place) {
                return true;
            }
            all.entry(place).or_default().gone.push(name.clone());
            false
        });
        busy.extend(all.keys().cloned());
        (all, next)
    }

    /// How many channels a server has, as far as is known.
    fn count_at(&self, place: &Arc<str>) -> usize {
        self.state.lock().channels.values().filter(|c| c.at.as_ref() == Some(place)).count()
    }

    /// A server has lost some of its subscriptions, in this generation.
    fn forget_at(&self, generation: u64, place: &Arc<str>) {
        let mut state = self.state.lock();
        if state.generation == generation {
            let there = state.channels.values_mut().filter(|c| c.at.as_ref() == Some(place));
            there.for_each(Channel::forget);
        }
    }

    fn forget_subscriptions(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.channels.values_mut().for_each(Channel::forget);
    }

    fn has_listeners(&self) -> bool {
        !self.state.lock().channels.is_empty()
    }
}

/// One listener of a channel; dropping it ends listening.
pub(crate) struct Listener {
    wakeups: Arc<Wakeups>,
    channel: Text,
    heard: watch::Receiver<Heard>,
    seen: u64,
}

impl Listener {
    /// Resolves when the server has the subscription, or has refused it.
    pub(crate) async fn confirmed(&mut self) -> Result<(), CallError> {
        match self.heard.wait_for(|heard| heard.confirmed.is_some()).await {
            Ok(heard) => heard.confirmed.clone().expect("waited for"),
            Err(_) => Err(CallError::NotSent("the client is closed".to_owned())),
        }
    }

    /// Resolves when there was a message, or one may have been missed, since the last call.
    pub(crate) async fn woken(&mut self) {
        let seen = self.seen;
        let woken = self.heard.wait_for(|heard| heard.wakeups != seen).await;
        let woken = woken.ok().map(|heard| heard.wakeups);
        match woken {
            Some(wakeups) => self.seen = wakeups,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.wakeups.state.lock();
        let Some(channel) = state.channels.get_mut(&self.channel) else {
            return;
        };
        channel.listeners -= 1;
        if channel.listeners == 0 {
            channel.idle_since = Some(Instant::now());
            drop(state);
            self.wakeups.changed.notify_one();
        }
    }
}

/// Sees what there is to do, and has it done.
async fn keep(wakeups: Arc<Wakeups>) {
    let wiring = wakeups.wiring.clone();
    let connection = match wiring.connect("subscriptions").await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::error!(%error, "no connection for subscriptions; waiters fall back to timers");
            return;
        }
    };
    let ears = wakeups.clone();
    connection.tell(move |told| ears.hear(&told));
    let mut epochs = connection.epochs();
    let mut shards = connection.shard_epochs();
    let mut moves = wiring.contact.moves();
    let mut heartbeat = Instant::now() + HEARTBEAT;
    let mut looked = Instant::now();
    let mut moved = false;
    while !wakeups.is_closed() {
        let sharded = wiring.sharded();
        let epochs = if sharded { &mut shards } else { &mut epochs };
        // Also one that was made while a subscription was under way, of which that says nothing.
        if epochs.look() {
            wakeups.forget_subscriptions();
        }
        let place_of = |channel: &Text| match sharded {
            true => connection.place_of(slot_of(channel)).into(),
            false => "".into(),
        };
        let now = Instant::now();
        let beat = now >= heartbeat;
        let look = beat || (moved && now >= looked + LOOK_PAUSE);
        if look {
            (looked, moved) = (now, false);
        }
        if beat {
            heartbeat = now + HEARTBEAT;
            // Slots may have moved while nothing was sent to them.
            if sharded && wakeups.has_listeners() {
                connection.look_for_changes();
            }
        }
        let (work, later) = wakeups.work(place_of, look);
        for (place, work) in work {
            let (wakeups, connection) = (wakeups.clone(), connection.clone());
            let job = Job { wakeups, connection, place, sharded };
            tokio::spawn(async move { job.run(work).await });
        }
        let mut until = later.map_or(heartbeat, |later| later.min(heartbeat));
        if moved {
            until = until.min(looked + LOOK_PAUSE);
        }
        tokio::select! {
            () = wakeups.changed.notified() => {}
            () = epochs.next() => wakeups.forget_subscriptions(),
            _ = moves.changed(), if sharded => moved = true,
            () = tokio::time::sleep_until(until) => {}
        }
    }
    connection.close().await;
}

/// At work on one server. When it ends, however it does, the keeper looks what else there is to do.
struct Job {
    wakeups: Arc<Wakeups>,
    connection: Arc<Connection>,
    place: Arc<str>,
    sharded: bool,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.wakeups.state.lock().busy.remove(&self.place);
        self.wakeups.changed.notify_one();
    }
}

impl Job {
    async fn run(&self, work: Work) {
        if self.sharded {
            for channel in &work.gone {
                // A failure means a broken connection, which drops the subscriptions by itself, or
                // that the slot has moved, which does so as well.
                let _ = self.connection.sunsubscribe(channel).await;
            }
            self.subscribe_sharded(&work.wanted).await;
        } else {
            self.unsubscribe_all(work.gone).await;
            self.subscribe_all(&work.wanted).await;
        }
        if work.look {
            self.look().await;
        }
    }

    /// Subscribes to channels, and says so to their listeners when the server has them.
    async fn subscribe_sharded(&self, wanted: &[Text]) {
        for channel in wanted {
            let slot = slot_of(channel);
            self.connection.settled_at(slot).await;
            let generation = self.wakeups.generation();
            let result = self.connection.ssubscribe(channel).await;
            // It may have been sent on to another node.
            let at = self.connection.place_of(slot).into();
            if !self.settle(generation, &at, std::slice::from_ref(channel), result).await {
                return;
            }
        }
    }

    async fn subscribe_all(&self, wanted: &[Text]) {
        for channels in wanted.chunks(CHANNELS_AT_ONCE) {
            self.connection.settled().await;
            let generation = self.wakeups.generation();
            let result = self.subscribe_and_wait(channels).await;
            // One forbidden channel refuses them all: find out which.
            if channels.len() > 1 && refused_for_good(&result) {
                for channel in channels {
                    let one = std::slice::from_ref(channel);
                    let result = self.subscribe_and_wait(one).await;
                    self.settle(generation, &self.place, one, result).await;
                }
            } else if !self.settle(generation, &self.place, channels, result).await {
                return;
            }
        }
    }

    async fn subscribe_and_wait(&self, channels: &[Text]) -> Result<(), CallError> {
        let names = channels.iter().map(|channel| channel.to_string()).collect();
        // Both are written before either reply is read, so that a refusal meets the barrier.
        let (subscribed, passed) =
            tokio::join!(self.connection.subscribe(names), self.connection.barrier());
        subscribed.and(passed)
    }

    /// Tells listeners of an answer; false if there was none.
    async fn settle(
        &self,
        generation: u64,
        at: &Arc<str>,
        channels: &[Text],
        result: Result<(), CallError>,
    ) -> bool {
        let answered = result.is_ok() || refused_for_good(&result);
        if answered {
            self.wakeups.confirm(generation, at, channels, result);
        } else {
            // The keeper finds them wanting again; not at once, lest a fault becomes a storm.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        answered
    }

    async fn unsubscribe_all(&self, gone: Vec<Text>) {
        for channels in gone.chunks(CHANNELS_AT_ONCE) {
            let names = channels.iter().map(|channel| channel.to_string()).collect();
            // A failure means a broken connection, which drops the subscriptions by itself. A
            // refusal meets the barrier, or it would be taken for that of the next waiter's channel.
            let _ = tokio::join!(self.connection.unsubscribe(names), self.connection.barrier());
        }
    }

    /// Whether the server is there: a connection that went silent loses messages. And whether it
    /// has what it had: a slot that moves takes its subscriptions along to nobody, and what is
    /// known of who serves what need not show it, where the slot has come back since.
    async fn look(&self) {
        let generation = self.wakeups.generation();
        let expected = self.wakeups.count_at(&self.place);
        let there = match self.sharded {
            true => self.connection.subscribed_at(&self.place).await,
            false => self.connection.barrier().await.map(|()| None),
        };
        match there {
            Ok(Some(number)) if number < expected => {
                tracing::debug!(number, expected, "subscriptions have moved away with their slots");
                self.wakeups.forget_at(generation, &self.place);
            }
            Ok(_) => {}
            Err(_) => self.wakeups.wake_if(|channel| channel.at.as_ref() == Some(&self.place)),
        }
    }
}

/// Whether the server forbids it. One that loads its data or is busy refuses the barrier, too, but
/// that passes: who waits must not be told that it cannot.
fn refused_for_good(result: &Result<(), CallError>) -> bool {
    matches!(result, Err(CallError::Refused(text)) if !passes(text))
}

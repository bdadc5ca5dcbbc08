//! Who hears that a lock is free: one subscription connection, many waiters.
//!
//! A message is only a hint to try again; its payload is not looked at. Messages get lost (a
//! broken connection, a full buffer, a slot that moved), so whenever that may have happened every
//! listener is woken once, and whoever waits also has a timer.

use crate::engine::Wiring;
use crate::engine::queue::passes;
use crate::server::connection::{Connection, Messages};
use crate::server::reply::CallError;
use crate::server::{Text, slot_of};
use parking_lot::Mutex;
use std::collections::HashMap;
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
    /// The server has it.
    live: bool,
    /// The server had it before the connection was made anew.
    confirmed_once: bool,
}

#[derive(Default)]
struct State {
    channels: HashMap<Text, Channel>,
    started: bool,
    closed: bool,
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
            live: false,
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

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn wake(&self, channel: &str) {
        let state = self.state.lock();
        if let Some(channel) = state.channels.get(channel) {
            channel.heard.send_modify(|heard| heard.wakeups += 1);
        }
    }

    /// Something may have been missed: everyone looks for themselves.
    fn wake_all(&self) {
        for channel in self.state.lock().channels.values() {
            channel.heard.send_modify(|heard| heard.wakeups += 1);
        }
    }

    fn confirm(&self, channels: &[Text], result: Result<(), CallError>) {
        let mut state = self.state.lock();
        for name in channels {
            if let Some(channel) = state.channels.get_mut(name) {
                channel.live = result.is_ok();
                // Subscribed anew: what was published meanwhile is gone, so look once.
                let again = std::mem::replace(&mut channel.confirmed_once, true);
                channel.heard.send_modify(|heard| {
                    heard.confirmed = Some(result.clone());
                    heard.wakeups += u64::from(again);
                });
            }
        }
    }

    /// Channels that somebody wants and the server has not been asked for.
    fn wanted(&self) -> Vec<Text> {
        let state = self.state.lock();
        let wanted = state.channels.iter().filter(|(_, channel)| {
            let refused = matches!(channel.heard.borrow().confirmed, Some(Err(_)));
            !channel.live && !refused && channel.listeners > 0
        });
        wanted.map(|(name, _)| name.clone()).collect()
    }

    /// Takes out the channels nobody has listened to for a while; says when to look again.
    fn idle(&self) -> (Vec<Text>, Option<Instant>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut gone = Vec::new();
        state.channels.retain(|name, channel| {
            let Some(since) = channel.idle_since else {
                return true;
            };
            if !channel.live || now >= since + LINGER {
                if channel.live {
                    gone.push(name.clone());
                }
                return false;
            }
            next = Some(next.map_or(since + LINGER, |next| next.min(since + LINGER)));
            true
        });
        (gone, next)
    }

    fn forget_subscriptions(&self) {
        for channel in self.state.lock().channels.values_mut() {
            channel.live = false;
            channel.heard.send_modify(|heard| heard.confirmed = None);
        }
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

/// The one task that subscribes and unsubscribes; hence their order is one too.
async fn keep(wakeups: Arc<Wakeups>) {
    let wiring = wakeups.wiring.clone();
    let connection = match wiring.connect("subscriptions").await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::error!(%error, "no connection for subscriptions; waiters fall back to timers");
            return;
        }
    };
    let dispatcher = tokio::spawn(dispatch(wakeups.clone(), connection.messages()));
    let mut epochs = connection.epochs();
    let mut heartbeat = Instant::now() + HEARTBEAT;
    while !wakeups.is_closed() {
        // Also one that was made while a subscription was under way, of which that says nothing.
        if epochs.look() {
            wakeups.forget_subscriptions();
        }
        let wanted = wakeups.wanted();
        if !wanted.is_empty() {
            if !connection.is_up() {
                tokio::select! {
                    () = connection.settled() => {}
                    () = wakeups.changed.notified() => {}
                }
                continue;
            }
            subscribe(&wakeups, &connection, &wanted).await;
            continue;
        }
        let (gone, linger) = wakeups.idle();
        if !gone.is_empty() {
            unsubscribe(&wakeups, &connection, gone).await;
            continue;
        }
        let look = linger.unwrap_or(heartbeat).min(heartbeat);
        tokio::select! {
            () = wakeups.changed.notified() => {}
            () = epochs.next() => wakeups.forget_subscriptions(),
            () = tokio::time::sleep_until(look) => {
                if Instant::now() >= heartbeat {
                    heartbeat = Instant::now() + HEARTBEAT;
                    // A connection that went silent loses messages: find out by asking.
                    if wakeups.has_listeners() && connection.barrier().await.is_err() {
                        wakeups.wake_all();
                    }
                    // A slot that moves takes its subscriptions along to nobody, and fred does
                    // not tell.
                    if wakeups.has_listeners() && wiring.sharded() {
                        connection.look_for_changes();
                    }
                }
            }
        }
    }
    dispatcher.abort();
    connection.close().await;
}

/// Subscribes to channels, and says so to their listeners when the server has them.
async fn subscribe(wakeups: &Wakeups, connection: &Connection, wanted: &[Text]) {
    if wakeups.wiring.sharded() {
        for channel in wanted {
            let result = connection.ssubscribe(channel.to_string()).await;
            settle(wakeups, std::slice::from_ref(channel), result).await;
        }
        return;
    }
    for channels in wanted.chunks(CHANNELS_AT_ONCE) {
        let result = subscribe_and_wait(connection, channels).await;
        // One forbidden channel refuses them all: find out which.
        if channels.len() > 1 && refused_for_good(&result) {
            for channel in channels {
                let one = std::slice::from_ref(channel);
                settle(wakeups, one, subscribe_and_wait(connection, one).await).await;
            }
        } else {
            settle(wakeups, channels, result).await;
        }
    }
}

async fn subscribe_and_wait(connection: &Connection, channels: &[Text]) -> Result<(), CallError> {
    let names = channels.iter().map(|channel| channel.to_string()).collect();
    // Both are written before either reply is read, so that a refusal meets the barrier.
    let (subscribed, passed) = tokio::join!(connection.subscribe(names), connection.barrier());
    subscribed.and(passed)
}

async fn settle(wakeups: &Wakeups, channels: &[Text], result: Result<(), CallError>) {
    if result.is_ok() || refused_for_good(&result) {
        wakeups.confirm(channels, result);
    } else {
        // The keeper finds them wanting again; not at once, lest a fault becomes a storm.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the server forbids it. One that loads its data or is busy refuses the barrier, too, but
/// that passes: who waits must not be told that it cannot.
fn refused_for_good(result: &Result<(), CallError>) -> bool {
    matches!(result, Err(CallError::Refused(text)) if !passes(text))
}

async fn unsubscribe(wakeups: &Wakeups, connection: &Connection, channels: Vec<Text>) {
    if wakeups.wiring.sharded() {
        for channel in &channels {
            // As below: where the slot has moved, the refusal must not meet another command.
            let passed = connection.barrier_at(slot_of(channel));
            let _ = tokio::join!(connection.sunsubscribe(channel.to_string()), passed);
        }
        return;
    }
    for channels in channels.chunks(CHANNELS_AT_ONCE) {
        let names = channels.iter().map(|channel| channel.to_string()).collect();
        // A failure means a broken connection, which drops the subscriptions by itself. A refusal
        // meets the barrier, or it would be taken for that of the next waiter's channel.
        let _ = tokio::join!(connection.unsubscribe(names), connection.barrier());
    }
}

/// Hands messages on, and nothing else: a flood must never wait behind a round trip.
async fn dispatch(wakeups: Arc<Wakeups>, mut messages: Messages) {
    while let Some(message) = messages.next().await {
        match message {
            Ok(channel) => wakeups.wake(&channel),
            Err(missed) => {
                tracing::warn!(missed, "messages came too fast; every waiter looks for itself");
                wakeups.wake_all();
            }
        }
    }
}

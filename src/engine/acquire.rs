//! Performs what [`queue`](crate::engine::queue) decides: the only place that waits.
//!
//! Try, subscribe, try again, then sleep until a message, the end of the holder's lease, or the
//! end of the wait. A message may be lost and a subscription comes too late for what was
//! published before it, hence the second try and the timer: no wake-up is needed for correctness.

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::engine::queue::{
    Begin, By, Ear, Flight, Grant, LONE, Leave, Name, Outcome, Released, Request, Step, Ticket,
    Tickets, Waiter, WokenBy, finish_all, released,
};
use crate::engine::recipe::{Mode, Recipe, Terms};
use crate::engine::wakeups::Listener;
use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::server::batch::CallResult;
use crate::server::reply::CallError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Sleep;

/// How long ghosts of a hold without a lease are looked for: as long as the server keeps records.
const LONGEST_GHOST: Duration = Duration::from_secs(60);

/// How long it may take until one without a lease is given back once more, should it be refused.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Engine {
    /// Acquires once, as the request says; `None` if somebody else holds it.
    ///
    /// Dropping the future gives back whatever it got or may still get.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        recipe: &Arc<Recipe>,
        request: Request,
    ) -> Result<Option<(Arc<Name>, Grant)>, Error> {
        let deadline = request.deadline;
        let waiter = Waiter::new(request);
        let (name, lone) = loop {
            let name = self.name(recipe);
            match name.begin(self, &waiter) {
                Begin::Retired => {}
                Begin::Settled(outcome) => return settle(name, outcome),
                Begin::Lone(flight) => break (name, Some(flight)),
                Begin::Queued => break (name, None),
            }
        };
        let mut acquiring = Acquiring { engine: self, name, waiter, over: false };
        let Acquiring { name, waiter, .. } = &acquiring;
        let mut lone = lone;
        let mut timer = None;
        let mut given_up = deadline.is_none();
        let outcome = poll_fn(|cx| {
            let alone = drive_lone(self, name, &mut lone, || waiter.hush(), cx);
            // Also while driving: the engine may take the call over between two polls.
            if let Poll::Ready(outcome) = name.poll(self, waiter, cx) {
                return Poll::Ready(outcome);
            }
            if alone || given_up {
                return Poll::Pending;
            }
            // No timer before the first refusal: an uncontended lock never needs one.
            let timer = timer.get_or_insert_with(|| {
                let left = deadline.map_or(Duration::ZERO, |d| Moment::now().until(d));
                self.timer(left)
            });
            if timer.as_mut().poll(cx).is_ready() {
                given_up = true;
                name.give_up(self, waiter);
                return name.poll(self, waiter, cx);
            }
            Poll::Pending
        })
        .await;
        acquiring.over = true;
        settle(acquiring.name.clone(), outcome)
    }

    /// Gives back one entry and waits until that is through.
    ///
    /// Dropping the future leaves the rest to the engine.
    pub(crate) async fn give_back(
        self: &Arc<Self>,
        name: &Arc<Name>,
        leave: impl FnOnce(&Arc<Ticket>) -> Leave,
    ) -> Result<(), Error> {
        let ticket = Arc::new(Ticket::default());
        let mut lone = match leave(&ticket) {
            Leave::Lone(flight) => Some(flight),
            Leave::Queued => None,
            Leave::Failed(error) => return Err(error),
        };
        let leaving = Leaving { engine: self, name };
        let mut timer = None;
        let result = poll_fn(|cx| {
            let alone = drive_lone(self, name, &mut lone, || ticket.hush(), cx);
            if let Poll::Ready(result) = ticket.poll(cx) {
                return Poll::Ready(result);
            }
            if alone {
                return Poll::Pending;
            }
            let patience = self.settings().patience;
            let timer = timer.get_or_insert_with(|| self.timer(patience));
            if timer.as_mut().poll(cx).is_ready() {
                let why = "it is released as soon as the server answers, or its lease ends";
                return Poll::Ready(Err(Error::no_reply(Some(&name.recipe.keys.lock), why)));
            }
            Poll::Pending
        })
        .await;
        drop(leaving);
        result
    }

    /// A timer, also for callers on a thread without a runtime.
    pub(crate) fn timer(&self, time: Duration) -> Pin<Box<Sleep>> {
        let _inside = Handle::try_current().is_err().then(|| self.wiring.runtime.enter());
        Box::pin(tokio::time::sleep(time))
    }

    /// Starts the task that drives a name; only to be called by the name itself.
    pub(crate) fn drive(self: &Arc<Self>, name: Arc<Name>) {
        let engine = self.clone();
        self.spawn(async move { contend(engine, name).await });
    }

    /// Time for a passing refusal to pass.
    pub(crate) async fn pause(&self) {
        self.timer(Duration::from_millis(20)).await;
    }

    /// Listens for one that stands in line at the server, on a channel of its own.
    pub(crate) fn attend(self: &Arc<Self>, name: &Arc<Name>, hold: &Arc<Hold>) -> Ear {
        let (engine, name, hold) = (self.clone(), name.clone(), hold.clone());
        let recipe = &name.recipe;
        let channel = (recipe.kind.channel_of)(&recipe.keys.channel, &hold.field).into();
        let mut listener = self.wakeups.listen(&channel);
        let attending = self.wiring.runtime.spawn(async move {
            match listener.confirmed().await {
                // What was said before this moment was not heard: look once.
                Ok(()) => name.called(&engine, &hold),
                Err(CallError::Refused(text)) => return name.cannot_listen(&engine, &text),
                Err(_) => return,
            }
            loop {
                listener.woken().await;
                name.called(&engine, &hold);
            }
        });
        Ear(attending.abort_handle())
    }

    /// Sends a final release until it is through, or the lease has ended anyway.
    pub(crate) fn settle_release(self: &Arc<Self>, hold: Arc<Hold>, tickets: Tickets) {
        if !hold.name.recipe.kind.held {
            return;
        }
        let engine = self.clone();
        self.spawn(async move { give_back_for_good(engine, hold, tickets).await });
    }
}

/// Drives the caller's own call a step; whether it is still the caller's to drive.
fn drive_lone(
    engine: &Arc<Engine>,
    name: &Arc<Name>,
    lone: &mut Option<Arc<Flight>>,
    hush: impl FnOnce(),
    cx: &mut Context<'_>,
) -> bool {
    let Some(flight) = lone else { return false };
    match flight.poll(cx) {
        Some(Poll::Pending) => return true,
        Some(Poll::Ready(result)) => {
            // Who completes the call need not be woken by it: tokio would run the task again.
            hush();
            name.complete(engine, flight, By::Caller, result);
        }
        None => {}
    }
    *lone = None;
    false
}

fn settle(name: Arc<Name>, outcome: Outcome) -> Result<Option<(Arc<Name>, Grant)>, Error> {
    match outcome {
        Outcome::Granted(grant) => Ok(Some((name, grant))),
        Outcome::Refused => Ok(None),
        Outcome::Failed(error) => Err(error),
    }
}

/// An acquisition under way; dropping it before its end cancels it.
struct Acquiring<'a> {
    engine: &'a Arc<Engine>,
    name: Arc<Name>,
    waiter: Arc<Waiter>,
    over: bool,
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.name.cancel(self.engine, &self.waiter);
        }
    }
}

/// A release under way; dropping it leaves the call to the engine.
struct Leaving<'a> {
    engine: &'a Arc<Engine>,
    name: &'a Arc<Name>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.name.look_again(self.engine);
    }
}

/// The one wait loop: drives a name for as long as there is something to do or to wait for.
async fn contend(engine: Arc<Engine>, name: Arc<Name>) {
    let mut ear = Hearing::Closed;
    let mut outages = engine.wiring.contact.changes();
    let mut epochs = engine.batch.connection().epochs();
    loop {
        match name.step(&engine) {
            Step::Done => return,
            Step::Drive(flight) => drive(&engine, &name, &flight).await,
            Step::Spawn(flight) => {
                // Taken here: until then the next step would find it without a driver again. Its
                // first step is made here too: so calls leave in the order they were decided in.
                if let Some(mut call) = flight.take() {
                    let begun = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                    if let Poll::Ready(result) = begun {
                        name.complete(&engine, &flight, By::Engine, result);
                        continue;
                    }
                    let (engine, name) = (engine.clone(), name.clone());
                    engine.clone().spawn(async move {
                        let result = call.await;
                        name.complete(&engine, &flight, By::Engine, result);
                    });
                }
            }
            Step::Lone(flight) => {
                // Others wait for this call's end: its caller may not be polled for a minute.
                let left = Moment::now().until(flight.sent().saturating_add(LONE));
                tokio::select! {
                    () = name.wake.notified() => {}
                    () = tokio::time::sleep(left) => drive(&engine, &name, &flight).await,
                }
            }
            Step::Sleep { until, listen } => {
                if listen && matches!(ear, Hearing::Closed) {
                    ear = Hearing::Opening(engine.wakeups.listen(&name.recipe.keys.channel));
                }
                let left = Moment::now().until(until);
                tokio::select! {
                    () = name.wake.notified() => {}
                    heard = ear.hear() => match heard {
                        Ok(by) => name.woken(&engine, by),
                        Err(error) => name.cannot_listen(&engine, &error),
                    },
                    // The step looks how long the server has been silent.
                    _ = outages.changed() => {}
                    () = epochs.next() => name.woken(&engine, WokenBy::Reconnect),
                    () = tokio::time::sleep(left) => {}
                }
            }
        }
    }
}

/// Takes a call over and sees it through.
async fn drive(engine: &Arc<Engine>, name: &Arc<Name>, flight: &Arc<Flight>) {
    match flight.take() {
        Some(call) => {
            let result = call.await;
            name.complete(engine, flight, By::Engine, result);
        }
        // Its caller just got the reply and says so when it has been read.
        None => name.wake.notified().await,
    }
}

/// The driver's subscription.
enum Hearing {
    Closed,
    Opening(Listener),
    Open(Listener),
}

impl Hearing {
    /// Resolves when there is a reason to try again.
    async fn hear(&mut self) -> Result<WokenBy, String> {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Open(listener) => {
                listener.woken().await;
                Ok(WokenBy::Message)
            }
            Self::Opening(listener) => {
                let confirmed = listener.confirmed().await;
                let Self::Opening(listener) = std::mem::replace(self, Self::Closed) else {
                    unreachable!("only this function opens it");
                };
                match confirmed {
                    // A release before this moment was not heard: look once.
                    Ok(()) => {
                        *self = Self::Open(listener);
                        Ok(WokenBy::Subscribed)
                    }
                    Err(CallError::Refused(text)) => Err(text),
                    Err(_) => std::future::pending().await,
                }
            }
        }
    }
}

/// Sends the final release of a hold until it is through or its lease has ended by itself.
async fn give_back_for_good(engine: Arc<Engine>, hold: Arc<Hold>, mut tickets: Tickets) {
    let text = &*hold.name.recipe.keys.lock;
    let end = hold.stands_until().saturating_add(Duration::from_secs(1));
    let mut pause = Duration::from_millis(10);
    let mut modes: Vec<Mode> = hold.modes().collect();
    // What has no lease and is refused for good, such as by a key of another type, is not hurried.
    let longest = if end == Moment::NEVER { LONGEST_PAUSE } else { Duration::from_secs(1) };
    while let Some(mode) = modes.first().copied() {
        let left = Moment::now().until(end.min(hold.release_until()));
        if left.is_zero() && Moment::now() < end {
            let lock = engine.shown(&hold.name);
            tracing::error!(%lock, permits = hold.units, "permits may stay taken: no reply in time");
            let why = "the server was away for too long to give it back once more";
            return finish_all(tickets, &Err(Error::no_reply(Some(text), why)));
        }
        if left.is_zero() {
            return finish_all(tickets, &Err(Error::lost(text, LostReason::Expired)));
        }
        // What was sent before must have run, or never will, before this is sent.
        if tokio::time::timeout(left, engine.settled_for(&hold)).await.is_err() {
            continue;
        }
        let sent = Moment::now();
        let answer = give_back(&engine, &hold, mode).await;
        if matches!(answer, Err(CallError::Unknown(_))) {
            hold.doubt_release(sent);
        }
        match released(text, &hold, answer, true) {
            Released::Yes(result) => {
                modes.remove(0);
                if modes.is_empty() {
                    hold.given_back.store(true, Ordering::Relaxed);
                    engine.settle(&hold.name.recipe, hold.id, hold.was_unsure());
                    finish_all(std::mem::take(&mut tickets), &result);
                }
                continue;
            }
            Released::Refused(error) => finish_all(std::mem::take(&mut tickets), &Err(error)),
            Released::Unknown => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
    if hold.unsure.load(Ordering::Relaxed) && engine.may_have_ghosts() {
        // An acquire of it may still run from a connection that we may not kill: look again.
        let lease = hold.first_sent().until(hold.stands_until()).min(LONGEST_GHOST);
        let end = Moment::now().saturating_add(lease);
        let mut pause = Duration::from_secs(1).min(lease / 4);
        while Moment::now() < end {
            tokio::time::sleep(pause).await;
            pause *= 2;
            for mode in hold.modes() {
                let _ = give_back(&engine, &hold, mode).await;
            }
        }
    }
}

async fn give_back(engine: &Arc<Engine>, hold: &Arc<Hold>, mode: Mode) -> CallResult {
    let recipe = &hold.name.recipe;
    let terms = Terms { publish: engine.publish(recipe), ..Terms::of(hold) };
    engine.batch.call(recipe.release(mode, &terms)).await
}

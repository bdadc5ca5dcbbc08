//! What this process knows of one name, and who may go next: decided under one lock, performed by
//! [`acquire`](crate::engine::acquire).
//!
//! At most one call of a name is under way at any time (renewals apart, which commute). A hold is
//! kept level with its entries: whatever was entered or left meanwhile, the next call names the
//! count to reach. Of those who wait for a fresh hold only the head asks the server; the others
//! wait here, in order.

mod calls;
mod driving;
mod flight;
mod held;
mod leaving;
mod waiter;

pub(crate) use flight::{Flight, Released, passes, released};
pub(crate) use waiter::{Grant, Outcome, Request, Ticket, Tickets, Waiter, finish_all};

use crate::engine::Engine;
use crate::engine::hold::{Hold, Phase};
use crate::engine::recipe::Recipe;
use crate::error::Error;
use crate::lease::Moment;
use crate::owner::{Owner, OwnerKey};
use flight::{CallFuture, FlightKind};
use held::{Held, LostHold, MayEnter};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    /// Nobody uses it any more; a newcomer makes another.
    retired: bool,
    /// A task of the engine drives it.
    driven: bool,
    hold: Option<Held>,
    flight: Option<Arc<Flight>>,
    /// Who waits for a fresh hold.
    queue: VecDeque<Arc<Waiter>>,
    /// Who waits to enter the hold that stands.
    entrants: VecDeque<Arc<Waiter>>,
    /// Owners with a live acquisition, and where.
    asking: HashMap<OwnerKey, &'static Location<'static>>,
    lost: Vec<LostHold>,
    /// Until when the driver sleeps if nobody wakes it.
    sleeps_until: Moment,
    /// The driver's subscription is through.
    listening: bool,
    /// How long our head lets others go first after a release; zero before the first time.
    stand_back: Duration,
    /// Our head stands back, and whether the echo of our own release is still to come.
    standing_back: Option<Echo>,
    /// What made the head try last; for the log.
    woken_by: &'static str,
    /// The head tries now, whatever the time.
    try_now: bool,
    /// The head tries again then.
    next_try: Moment,
    failures: u32,
    eager_tries: u32,
    eager_since: Moment,
    /// Who had it when we were last refused.
    holder: String,
    last_release: Moment,
    next_entry: u64,
}

/// What this process knows of one name.
pub(crate) struct Name {
    pub recipe: Recipe,
    state: Mutex<State>,
    /// Wakes the driver.
    pub wake: Notify,
}

/// How an acquisition starts.
pub(crate) enum Begin {
    /// The name was just forgotten: look it up again.
    Retired,
    Settled(Outcome),
    /// The caller drives the call itself.
    Lone(Arc<Flight>),
    Queued,
}

/// What the driver does next.
pub(crate) enum Step {
    Drive(Arc<Flight>),
    /// A caller drives a call: give it a moment, then take it over.
    Lone(Arc<Flight>),
    Sleep {
        until: Moment,
        listen: bool,
    },
    Done,
}

/// What became of an owner's wish to leave.
pub(crate) enum Leave {
    /// The caller drives the call itself.
    Lone(Arc<Flight>),
    /// The engine does what is left to do; the ticket tells when.
    Queued,
    Failed(Error),
}

impl Name {
    pub(crate) fn new(recipe: Recipe) -> Self {
        Self { recipe, state: Mutex::default(), wake: Notify::new() }
    }

    fn text(&self) -> &str {
        &self.recipe.keys.lock
    }

    /// Starts an acquisition.
    pub(crate) fn begin(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) -> Begin {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        if state.retired {
            return Begin::Retired;
        }
        let request = &waiter.request;
        if let Some(error) = self.untold_loss(engine, &mut state, &request.owner) {
            return Begin::Settled(Outcome::Failed(error));
        }
        if let Some(there) = state.asked_at(&request.owner) {
            let error = Error::concurrent(self.text(), request.at, there, true);
            return Begin::Settled(Outcome::Failed(error));
        }
        let idle = state.flight.is_none() && !state.driven;
        if let Some(held) = &state.hold {
            match held.may_enter(request) {
                MayEnter::Never(there) => {
                    let error = Error::concurrent(self.text(), request.at, there, false);
                    return Begin::Settled(Outcome::Failed(error));
                }
                MayEnter::Yes if idle && state.entrants.is_empty() && !held.is_behind() => {
                    let flight = self.enter(engine, &mut state, waiter);
                    return Begin::Lone(flight);
                }
                MayEnter::Yes => state.entrants.push_back(waiter.clone()),
                MayEnter::NotYet => {
                    if request.is_over(Moment::now()) {
                        return Begin::Settled(Outcome::Refused);
                    }
                    waiter.slot.lock().refused = true;
                    if held.is_around(&request.owner) {
                        state.entrants.push_back(waiter.clone());
                    } else {
                        state.queue.push_back(waiter.clone());
                    }
                }
            }
        } else {
            if engine.is_closing() {
                return Begin::Settled(Outcome::Failed(Error::closed()));
            }
            if idle && state.queue.is_empty() && state.entrants.is_empty() {
                state.woken_by = "nothing";
                return Begin::Lone(self.ask(engine, &mut state, waiter.clone()));
            }
            // A newcomer at the end of a queue that waits does not make its head try, unless it
            // wants to know at once.
            state.try_now |= state.queue.is_empty() || request.is_over(Moment::now());
            state.queue.push_back(waiter.clone());
        }
        state.asking.insert(request.owner.key(), request.at);
        // One more behind others and a hold of ours gives the driver nothing to do.
        let behind = state.hold.is_some() && state.queue.len() > 1 && state.entrants.is_empty();
        if !behind || !state.driven {
            self.ensure_driver(engine, &mut state);
        }
        Begin::Queued
    }

    /// Looks whether an acquisition has ended.
    pub(crate) fn poll(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        waiter: &Arc<Waiter>,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome> {
        let mut slot = waiter.slot.lock();
        if let Some(outcome) = slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        slot.waker = Some(cx.waker().clone());
        let woke = std::mem::take(&mut slot.dormant);
        drop(slot);
        if woke {
            let mut state = self.state.lock();
            state.try_now = true;
            self.ensure_driver(engine, &mut state);
        }
        Poll::Pending
    }

    /// The wait is over. The acquisition may still be settled by a call that is under way.
    pub(crate) fn give_up(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) {
        let mut state = self.state.lock();
        if waiter.slot.lock().outcome.is_some() {
            return;
        }
        if state.flight.as_ref().is_some_and(|flight| flight.is_for(waiter)) {
            return;
        }
        if !waiter.slot.lock().refused && state.flight.is_some() {
            // Whatever the call under way is told about the lock answers this one as well.
            return;
        }
        let head = state.queue.iter().find(|other| !other.is_dormant());
        let is_head = head.is_some_and(|head| Arc::ptr_eq(head, waiter));
        let idle = state.hold.is_none() && state.flight.is_none() && state.failures == 0;
        if idle && (is_head || !waiter.slot.lock().refused) {
            // One last try, should the release not have been heard of; and the first on behalf of
            // one that joined a queue which was waiting already.
            state.try_now = true;
            return self.ensure_driver(engine, &mut state);
        }
        self.end_waiting(&mut state, waiter);
        let slot = waiter.slot.lock();
        let outcome = if slot.refused {
            Outcome::Refused
        } else {
            let unsure = slot.attempt.as_ref().is_some_and(|a| a.unsure.load(Ordering::Relaxed));
            let why = "no reply within the wait";
            Outcome::Failed(Error::unavailable(Some(self.text()), why, unsure))
        };
        drop(slot);
        self.abandon_attempt(engine, waiter);
        waiter.finish(outcome);
        self.look(engine, state);
    }

    /// The acquisition's future is gone: whatever it has or will get is given back.
    pub(crate) fn cancel(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) {
        let mut state = self.state.lock();
        self.end_waiting(&mut state, waiter);
        let outcome = {
            let mut slot = waiter.slot.lock();
            slot.cancelled = true;
            slot.outcome.take()
        };
        if let Some(Outcome::Granted(grant)) = outcome {
            if let Some(held) = state.hold.as_mut().filter(|h| Arc::ptr_eq(&h.hold, &grant.hold)) {
                held.entries.retain(|entry| entry.id != grant.entry);
                held.update_renewal(engine.settings().watchdog);
            }
        }
        let in_flight = state.flight.as_ref().is_some_and(|flight| flight.is_for(waiter));
        if !in_flight {
            self.abandon_attempt(engine, waiter);
        }
        self.look(engine, state);
    }

    /// Takes a waiter out of the queues.
    fn end_waiting(&self, state: &mut State, waiter: &Arc<Waiter>) {
        let other = |known: &Arc<Waiter>| !Arc::ptr_eq(known, waiter);
        let was_head = state.queue.front().is_some_and(|head| Arc::ptr_eq(head, waiter));
        state.queue.retain(other);
        state.entrants.retain(other);
        state.asking.remove(&waiter.request.owner.key());
        // A new head tries at once.
        state.try_now |= was_head;
    }

    /// Gives back a hold that may have been granted to an acquisition that is over.
    fn abandon_attempt(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) {
        let attempt = waiter.slot.lock().attempt.take();
        if let Some(hold) = attempt {
            self.discard(engine, hold);
        }
    }

    /// Sees to it that a hold that is over stays so, where a send of its acquire that got no answer
    /// may still run: from a broken connection that we may not kill.
    fn lay_ghosts(&self, engine: &Arc<Engine>, hold: &Arc<Hold>) {
        if hold.unsure.load(Ordering::Relaxed) && engine.batch.connection().may_have_ghosts() {
            engine.settle_release(hold.clone(), Vec::new());
        }
    }

    fn discard(self: &Arc<Self>, engine: &Arc<Engine>, hold: Arc<Hold>) {
        let unsure = hold.unsure.load(Ordering::Relaxed);
        hold.advance(Phase::Over);
        if unsure {
            engine.settle_release(hold, Vec::new());
        }
    }

    /// How many entries the hold has, if this owner is inside.
    pub(crate) fn count_of(self: &Arc<Self>, engine: &Arc<Engine>, owner: &Owner) -> u32 {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        // A lost hold without a guard has been told about by this answer.
        let _ = self.untold_loss(engine, &mut state, owner);
        match &state.hold {
            Some(held) if held.is_around(owner) => held.entries.len() as u32,
            _ => 0,
        }
    }

    /// How many entries the hold of a guard has.
    pub(crate) fn count(&self, grant: &Grant) -> u32 {
        let hold = &grant.hold;
        // Nobody may have noticed yet that its time is up.
        let same = |held: &&Held| {
            Arc::ptr_eq(&held.hold, hold) && hold.turn() == grant.turn && hold.lost().is_none()
        };
        self.state.lock().hold.as_ref().filter(same).map_or(0, |held| held.entries.len() as u32)
    }

    /// The hold that stands here, if any.
    pub(crate) fn standing(&self) -> Option<Arc<Hold>> {
        self.state.lock().hold.as_ref().map(|held| held.hold.clone())
    }
}

/// The message of our own release, as seen by our own subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    Due,
    /// It came, or we did not listen.
    Past,
}

/// Why the driver looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WokenBy {
    Message,
    Subscribed,
    Reconnect,
}

impl State {
    /// Where this owner asks for the lock already, in a future that still lives.
    fn asked_at(&self, owner: &Owner) -> Option<&'static Location<'static>> {
        let waiter = self.flight.as_ref().and_then(|flight| flight.waiter());
        let asking = waiter.filter(|w| w.request.owner == *owner && !w.slot.lock().cancelled);
        asking.map(|waiter| waiter.request.at).or_else(|| self.asking.get(&owner.key()).copied())
    }

    /// The driver, and with it its subscription, ends.
    fn end_driving(&mut self) {
        self.driven = false;
        self.listening = false;
    }

    /// Puts a waiter back in its place: whoever is passed over stays ahead of later ones.
    fn put_back(&mut self, waiter: Arc<Waiter>) {
        self.asking.insert(waiter.request.owner.key(), waiter.request.at);
        let later = |other: &Arc<Waiter>| other.request.since > waiter.request.since;
        let place = self.queue.iter().position(later).unwrap_or(self.queue.len());
        self.queue.insert(place, waiter);
    }

    fn launch(&mut self, kind: FlightKind, sent: Moment, call: CallFuture) -> Arc<Flight> {
        let flight = Flight::new(kind, sent, call);
        self.flight = Some(flight.clone());
        flight
    }

    /// Who waits for a fresh hold, but may enter the new one, moves over.
    fn sort_entrants(&mut self) {
        let Self { hold, queue, entrants, .. } = self;
        let Some(held) = hold else { return };
        let scoped = |waiter: &Arc<Waiter>| {
            !waiter.request.owner.is_default() && held.is_around(&waiter.request.owner)
        };
        if queue.iter().any(scoped) {
            let (inside, outside) = std::mem::take(queue).into_iter().partition(scoped);
            *queue = outside;
            entrants.extend::<VecDeque<_>>(inside);
        }
    }
}

//! What this process knows of one name, and who may go next: decided under one lock, performed by
//! [`acquire`](crate::engine::acquire).
//!
//! At most one call of a hold is under way at any time (renewals apart, which commute), and of a
//! name whose holds stand alone at most one in all. A hold is kept level with its entries: whatever
//! was entered or left meanwhile, the next call names the count to reach. Of those who wait for a
//! fresh hold only the head asks the server; the others wait here, in order. Where holds stand side
//! by side, those behind a head that was let in ask at once, together.

mod calls;
mod driving;
mod flight;
mod held;
mod lazy;
mod leaving;
mod line;
mod turns;
mod unowned;
mod waiter;

pub(crate) use calls::By;
use driving::Eager;
pub(crate) use driving::LONE;
pub(crate) use flight::{Flight, Released, passes, released};
pub(crate) use waiter::{Ear, Grant, Outcome, Request, Ticket, Tickets, Waiter, finish_all};

use crate::engine::Engine;
use crate::engine::hold::{Hold, Phase};
use crate::engine::recipe::{Kind, Mode, Recipe};
use crate::error::Error;
use crate::lease::Moment;
use crate::owner::{Owner, OwnerKey};
use flight::{CallFuture, FlightKind};
use held::{Held, LostHold, MayEnter};
use lazy::{Lazy, Nothing};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;

/// For how long leaving the line is tried, should the server be away: as long as it keeps records of
/// those who stand there.
const PLACE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    /// Nobody uses it any more; a newcomer makes another.
    retired: bool,
    /// A task of the engine drives it.
    driven: bool,
    /// The holds that stand here; one at most, unless they are shared.
    holds: SmallVec<[Held; 1]>,
    /// The calls under way.
    flights: SmallVec<[Arc<Flight>; 1]>,
    crowd: Lazy<Crowd>,
    /// What made the head try last; for the log.
    woken_by: &'static str,
    last_release: Moment,
    next_entry: u64,
}

/// What only names have that are waited for, or that were lost.
#[derive(Default)]
struct Crowd {
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
    /// How many others waited at our last release, and have not had their turn since.
    others_first: u64,
    /// The head tries now, whatever the time.
    try_now: bool,
    /// One that shares was let in: so many behind it may try at once.
    surge: usize,
    /// The head tries again then.
    next_try: Moment,
    failures: u32,
    /// Refusals in a row; for those that spin.
    refusals: u32,
    eager: Eager,
    /// Who had it when we were last refused.
    holder: String,
}

impl Nothing for Crowd {
    fn nothing() -> &'static Self {
        static NOTHING: LazyLock<Crowd> = LazyLock::new(Crowd::default);
        &NOTHING
    }
}

/// What this process knows of one name.
pub(crate) struct Name {
    pub recipe: Arc<Recipe>,
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
    /// Something to be sent while the driver goes on.
    Spawn(Arc<Flight>),
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
    pub(crate) fn new(recipe: Arc<Recipe>) -> Self {
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
        let owned = self.recipe.kind.owned;
        if let Some(there) = state.asked_at(&request.owner).filter(|_| owned) {
            let error = Error::concurrent(self.text(), request.at, there, true);
            return Begin::Settled(Outcome::Failed(error));
        }
        match self.admission(&state, request) {
            Admission::Never(error) => return Begin::Settled(Outcome::Failed(error)),
            Admission::Enter(at) => {
                let held = &state.holds[at];
                let waiting = !state.crowd.entrants.is_empty() || held.is_behind();
                if !waiting && self.may_call(&state, at) {
                    return Begin::Lone(self.enter(engine, &mut state, at, waiter));
                }
                state.crowd.make().entrants.push_back(waiter.clone());
            }
            Admission::Wait { inside } => {
                if request.is_over(Moment::now()) {
                    return Begin::Settled(Outcome::Refused);
                }
                waiter.slot.lock().refused = true;
                if inside {
                    state.crowd.make().entrants.push_back(waiter.clone());
                } else {
                    state.crowd.make().queue.push_back(waiter.clone());
                }
            }
            Admission::Ask => {
                if engine.is_closing() {
                    return Begin::Settled(Outcome::Failed(Error::closed()));
                }
                let first = self.may_go_ahead(&state, request);
                let follows = self.goes_after(&state, request);
                let at_once = follows.is_empty();
                if first && at_once && self.may_ask(&state, request.mode) {
                    state.woken_by = "nothing";
                    return Begin::Lone(self.ask(engine, &mut state, waiter.clone()));
                }
                // A newcomer at the end of a queue that waits does not make its head try, unless
                // it wants to know at once.
                let crowd = state.crowd.make();
                crowd.try_now |= crowd.queue.is_empty() || request.is_over(Moment::now());
                waiter.slot.lock().follows = follows;
                state.crowd.make().queue.push_back(waiter.clone());
            }
        }
        if owned {
            state.crowd.make().asking.insert(request.owner.key(), request.at);
        }
        // One more behind others and a hold of ours gives the driver nothing to do.
        let behind = !state.holds.is_empty()
            && state.crowd.queue.len() > 1
            && state.crowd.entrants.is_empty()
            && !self.recipe.kind.is_parallel();
        if !behind || !state.driven {
            self.ensure_driver(engine, &mut state);
        }
        Begin::Queued
    }

    /// What the holds of this process mean for a request.
    fn admission(&self, state: &State, request: &Request) -> Admission {
        let kind = self.recipe.kind;
        if !kind.owned {
            return Admission::Ask;
        }
        let (mut verdict, mut leaving) = (Admission::Ask, None);
        for (at, held) in state.holds.iter().enumerate() {
            // One that all have left makes way; who shares need not wait for that.
            if held.entries.is_empty() && !held.is_exclusive() {
                leaving = leaving.or(Some(at).filter(|_| request.mode == Mode::Exclusive));
                continue;
            }
            match held.may_enter(request) {
                MayEnter::Yes => {
                    let upgrade = request.mode == Mode::Exclusive && !held.is_exclusive();
                    match held.entries.last() {
                        Some(entry) if upgrade || !kind.reenters => {
                            let error = Error::own_hold(self.text(), request.at, entry.at, upgrade);
                            return Admission::Never(error);
                        }
                        _ => return Admission::Enter(at),
                    }
                }
                MayEnter::Never(there) => {
                    let error = Error::concurrent(self.text(), request.at, there, false);
                    return Admission::Never(error);
                }
                MayEnter::NotYet => {
                    let inside = kind.reenters && held.is_around(&request.owner);
                    if let Some(there) = held.keeps_from_writing(request).filter(|_| inside) {
                        let error = Error::own_hold(self.text(), request.at, there, true);
                        return Admission::Never(error);
                    }
                    let alone = held.is_exclusive() || request.mode == Mode::Exclusive;
                    if inside || alone && !kind.is_in_line() {
                        verdict = Admission::Wait { inside };
                    }
                    if inside {
                        break;
                    }
                }
            }
        }
        match leaving {
            Some(at) if matches!(verdict, Admission::Ask) => Admission::Enter(at),
            _ => verdict,
        }
    }

    /// Whether a fresh hold may be asked for beside what stands here and is under way.
    fn may_ask(&self, state: &State, mode: Mode) -> bool {
        if !self.recipe.kind.is_parallel() {
            return state.flights.is_empty() && !state.driven;
        }
        if self.recipe.kind.is_in_line() {
            // What we give back goes first.
            return !state.flights.iter().any(|flight| flight.is_final());
        }
        match mode {
            Mode::Exclusive => state.holds.is_empty() && state.flights.is_empty(),
            Mode::Shared => {
                !state.holds.iter().any(Held::is_exclusive)
                    && !state.flights.iter().any(|flight| flight.is_exclusive())
            }
        }
    }

    /// What we are giving back, if that is for one that asks just once: it gets what comes of that.
    /// Others ask at once, for there may be room beside it.
    fn goes_after(&self, state: &State, request: &Request) -> Vec<u64> {
        let side_by_side = self.recipe.kind.is_parallel() && request.mode == Mode::Shared;
        if side_by_side && request.is_one_shot() { state.leaving().collect() } else { Vec::new() }
    }

    /// Whether a call for this hold may be sent by its caller.
    fn may_call(&self, state: &State, at: usize) -> bool {
        if !self.recipe.kind.is_parallel() {
            return state.flights.is_empty() && !state.driven;
        }
        let hold = &state.holds[at].hold;
        !state.flights.iter().any(|flight| flight.is_of(hold))
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
            state.crowd.make().try_now |= !self.recipe.kind.is_in_line();
            self.ensure_driver(engine, &mut state);
        }
        Poll::Pending
    }

    /// The wait is over. The acquisition may still be settled by a call that is under way.
    pub(crate) fn give_up(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) {
        let mut state = self.state.lock();
        // The driver does so too, but may not have come to it since it sent off a last release.
        self.bring_out_entrants(&mut state, Moment::now());
        if waiter.slot.lock().outcome.is_some() {
            return;
        }
        if state.flights.iter().any(|flight| flight.is_for(waiter)) {
            return;
        }
        let kind = self.recipe.kind;
        let queued = state.crowd.queue.iter().any(|other| Arc::ptr_eq(other, waiter));
        let (refused, dormant) = {
            let slot = waiter.slot.lock();
            (slot.refused, slot.dormant)
        };
        if !refused && !kind.is_parallel() && !state.flights.is_empty() {
            // Whatever the call under way is told about the lock answers this one as well.
            return;
        }
        let first = state.crowd.queue.iter().find(|other| !other.is_dormant());
        let seen = first.is_some_and(|first| first.slot.lock().refused);
        let under_way = !state.flights.is_empty() || state.follows(waiter);
        if !refused && queued && !seen && under_way && !kind.is_in_line() {
            // So it does here, if it is one of those that are told whether there is room; after any
            // other call, such as one that gives back what is ours, the head asks.
            state.crowd.make().try_now = true;
            return self.ensure_driver(engine, &mut state);
        }
        if let Admission::Enter(at) = self.admission(&state, &waiter.request) {
            // It waits for nobody: calls of ours go first, such as what a guard that was just
            // dropped gives back. Should one of them fail, that ends this wait.
            let entrant = state.crowd.entrants.iter().any(|other| Arc::ptr_eq(other, waiter));
            if entrant && !dormant && !state.holds[at].is_unsure() {
                return self.ensure_driver(engine, &mut state);
            }
        }
        if kind.is_in_line() && queued && !dormant && state.crowd.failures == 0 {
            // One last try; refused, it leaves the line.
            waiter.slot.lock().try_now = true;
            return self.ensure_driver(engine, &mut state);
        }
        if !kind.held && queued && state.crowd.failures == 0 {
            // One last look, for all whose wait is over.
            state.crowd.make().try_now = true;
            return self.ensure_driver(engine, &mut state);
        }
        let head = state.crowd.queue.iter().find(|other| !other.is_dormant());
        let is_head = head.is_some_and(|head| Arc::ptr_eq(head, waiter));
        let idle = state.crowd.failures == 0
            && if kind.is_parallel() {
                queued && head.is_some_and(|head| self.is_next(&state, head))
            } else {
                state.holds.is_empty() && state.flights.is_empty()
            };
        if idle && !kind.is_in_line() && (is_head || !refused) {
            // One last try, should the release not have been heard of; and the first on behalf of
            // one that joined a queue which was waiting already.
            state.crowd.make().try_now = true;
            return self.ensure_driver(engine, &mut state);
        }
        if head.is_some_and(|head| head.slot.lock().refused) {
            // Who waits behind one that was refused has as much as seen the holder.
            waiter.slot.lock().refused = true;
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
            if let Some(held) = state.held_mut(&grant.hold) {
                held.entries.retain(|entry| entry.id != grant.entry);
                held.update_renewal();
            }
        }
        let in_flight = state.flights.iter().any(|flight| flight.is_for(waiter));
        if !in_flight {
            self.abandon_attempt(engine, waiter);
        }
        self.look(engine, state);
    }

    /// Takes a waiter out of the queues.
    fn end_waiting(&self, state: &mut State, waiter: &Arc<Waiter>) {
        let other = |known: &Arc<Waiter>| !Arc::ptr_eq(known, waiter);
        let Some(crowd) = state.crowd.made() else { return };
        let was_head = crowd.queue.front().is_some_and(|head| Arc::ptr_eq(head, waiter));
        crowd.queue.retain(other);
        crowd.entrants.retain(other);
        crowd.asking.remove(&waiter.request.owner.key());
        // A new head tries at once; that of a line at the server is told there.
        crowd.try_now |= was_head && !self.recipe.kind.is_in_line();
    }

    /// Gives back a hold that may have been granted to an acquisition that is over.
    fn abandon_attempt(self: &Arc<Self>, engine: &Arc<Engine>, waiter: &Arc<Waiter>) {
        let attempt = waiter.slot.lock().attempt.take();
        if let Some(hold) = attempt {
            self.discard(engine, hold);
        }
    }

    /// Sees to it that a hold that is over stays so, where a send of its acquire that got no answer
    /// may still run: from a broken connection that we may not kill. Nobody watches it any more.
    fn lay_ghosts(&self, engine: &Arc<Engine>, hold: &Arc<Hold>) {
        engine.renewal.forget(hold);
        if hold.unsure.load(Ordering::Relaxed) && engine.may_have_ghosts() {
            engine.settle_release(hold.clone(), Tickets::new());
        }
    }

    fn discard(self: &Arc<Self>, engine: &Arc<Engine>, hold: Arc<Hold>) {
        let unsure = hold.unsure.load(Ordering::Relaxed);
        let in_line = hold.in_line.load(Ordering::Relaxed);
        hold.advance(Phase::Over);
        if in_line {
            // A place in the line has no lease by which it would end.
            hold.may_stand_until(Moment::now().saturating_add(PLACE));
        }
        if unsure || in_line {
            engine.settle_release(hold, Tickets::new());
        }
    }

    /// How many entries in this mode the holds have that this owner is in.
    pub(crate) fn count_of(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        owner: &Owner,
        mode: Mode,
    ) -> u32 {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        // A lost hold without a guard has been told about by this answer.
        let _ = self.untold_loss(engine, &mut state, owner);
        let around = state.holds.iter().filter(|held| held.is_around_in(owner, mode));
        around.map(|held| held.entered(mode)).sum()
    }

    /// How many entries the hold of a guard has, in the guard's mode.
    pub(crate) fn count(&self, grant: &Grant) -> u32 {
        let hold = &grant.hold;
        // Nobody may have noticed yet that its time is up.
        if hold.turn() != grant.turn || hold.lost().is_some() {
            return 0;
        }
        let state = self.state.lock();
        let held = state.held(hold);
        held.map_or(0, |held| {
            let entry = held.entries.iter().find(|entry| entry.id == grant.entry);
            entry.map_or(held.entries.len() as u32, |entry| held.entered(entry.mode))
        })
    }

    /// The holds that stand here in this mode.
    pub(crate) fn standing(&self, mode: Mode) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        let standing = state.holds.iter().filter(|held| held.entered(mode) > 0);
        standing.map(|held| held.hold.clone()).collect()
    }
}

/// What the holds of this process mean for a request.
enum Admission {
    /// It enters this one once more.
    Enter(usize),
    /// It waits for one to end, or inside one for its turn.
    Wait {
        inside: bool,
    },
    /// The server decides.
    Ask,
    Never(Error),
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
    fn held(&self, hold: &Arc<Hold>) -> Option<&Held> {
        self.holds.iter().find(|held| Arc::ptr_eq(&held.hold, hold))
    }

    fn lost(&mut self) -> impl Iterator<Item = &mut LostHold> {
        self.crowd.made().into_iter().flat_map(|crowd| &mut crowd.lost)
    }

    fn take_entrants(&mut self) -> VecDeque<Arc<Waiter>> {
        self.crowd.made().map(|crowd| std::mem::take(&mut crowd.entrants)).unwrap_or_default()
    }

    /// The holds that are being given back, or are about to be.
    fn leaving(&self) -> impl Iterator<Item = u64> {
        let left = |held: &&Held| held.entries.is_empty() && !held.is_unsure();
        let left = self.holds.iter().filter(left).map(|held| held.hold.id);
        let finals = self.flights.iter().filter(|flight| flight.is_final());
        finals.map(|flight| flight.hold().id).chain(left)
    }

    /// Whether something is still under way that a waiter goes after.
    fn follows(&self, waiter: &Waiter) -> bool {
        let slot = waiter.slot.lock();
        !slot.follows.is_empty() && self.leaving().any(|id| slot.follows.contains(&id))
    }

    fn held_mut(&mut self, hold: &Arc<Hold>) -> Option<&mut Held> {
        self.holds.iter_mut().find(|held| Arc::ptr_eq(&held.hold, hold))
    }

    /// Where this owner asks for the lock already, in a future that still lives.
    fn asked_at(&self, owner: &Owner) -> Option<&'static Location<'static>> {
        let waiters = self.flights.iter().filter_map(|flight| flight.waiter());
        let mut asking = waiters.filter(|w| w.request.owner == *owner && !w.slot.lock().cancelled);
        let asking = asking.next().map(|waiter| waiter.request.at);
        asking.or_else(|| self.crowd.asking.get(&owner.key()).copied())
    }

    /// The driver, and with it its subscription, ends.
    fn end_driving(&mut self) {
        self.driven = false;
        if self.crowd.listening {
            self.crowd.make().listening = false;
        }
    }

    /// Puts a waiter back in its place: whoever is passed over stays ahead of later ones.
    fn put_back(&mut self, waiter: Arc<Waiter>) {
        self.crowd.make().asking.insert(waiter.request.owner.key(), waiter.request.at);
        let later = |other: &Arc<Waiter>| other.request.since > waiter.request.since;
        let place = self.crowd.queue.iter().position(later).unwrap_or(self.crowd.queue.len());
        self.crowd.make().queue.insert(place, waiter);
    }

    fn launch(&mut self, kind: FlightKind, sent: Moment, call: CallFuture) -> Arc<Flight> {
        let flight = Flight::new(kind, sent, call);
        self.flights.push(flight.clone());
        flight
    }

    /// Who waits for a fresh hold, but may enter the new one, moves over.
    fn sort_entrants(&mut self, kind: &Kind) {
        if !kind.reenters {
            return;
        }
        let Some(held) = self.holds.last() else { return };
        let scoped = |waiter: &Arc<Waiter>| {
            !waiter.request.owner.is_default() && held.is_around(&waiter.request.owner)
        };
        if self.crowd.queue.iter().any(scoped) {
            let Crowd { queue, entrants, .. } = self.crowd.make();
            let (inside, outside) = std::mem::take(queue).into_iter().partition(scoped);
            *queue = outside;
            entrants.extend::<VecDeque<_>>(inside);
        }
    }
}

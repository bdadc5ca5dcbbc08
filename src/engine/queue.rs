//! What this process knows of one name, and who may go next: decided under one lock, performed by
//! [`acquire`](crate::engine::acquire).
//!
//! At most one call of a name is under way at any time (renewals apart, which commute). A hold is
//! kept level with its entries: whatever was entered or left meanwhile, the next call names the
//! count to reach. Of those who wait for a fresh hold only the head asks the server; the others
//! wait here, in order.

use crate::engine::hold::{Hold, Phase};
use crate::engine::recipe::Recipe;
use crate::engine::renewal::first_due;
use crate::engine::{Counted, Engine};
use crate::error::{Error, LostReason, Refusal, refusal};
use crate::lease::{Lease, Moment};
use crate::owner::{Liveness, Owner, OwnerKey, PollContext};
use crate::server::batch::CallResult;
use crate::server::reply::{Answer, CallError};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;

/// When a wait is worth a warning.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Messages within this time of our own release are taken for its echo.
const ECHO: Duration = Duration::from_millis(50);

/// Tries that messages may cause within [`EAGER_TIME`]; a flood causes no more.
const EAGER_TRIES: u32 = 16;
const EAGER_TIME: Duration = Duration::from_millis(16);

/// How long the lost hold of an owner without a guard is remembered, to be told once.
const UNTOLD: Duration = Duration::from_secs(60);

/// What an acquisition asks for.
pub(crate) struct Request {
    pub owner: Owner,
    pub context: PollContext,
    pub lease: Lease,
    /// The TTL to ask for.
    pub length: Duration,
    pub max_hold: Option<Duration>,
    pub label: Option<Arc<str>>,
    pub at: &'static Location<'static>,
    pub since: Moment,
    /// When to give up; `None`: never.
    pub deadline: Option<Moment>,
}

impl Request {
    fn is_over(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

/// How an acquisition ended.
pub(crate) enum Outcome {
    Granted(Grant),
    /// Somebody else has it.
    Refused,
    Failed(Error),
}

/// One entry into a hold.
#[derive(Clone)]
pub(crate) struct Grant {
    pub hold: Arc<Hold>,
    pub entry: u64,
}

/// One acquisition that is under way in this process.
pub(crate) struct Waiter {
    pub request: Request,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Since this acquisition began, another holder was seen.
    refused: bool,
    /// It left a grant uncollected: others go first until its future is polled again.
    dormant: bool,
    /// Its future is gone.
    cancelled: bool,
    warned: bool,
    /// A hold that may have been granted already: to be asked for again under the same id.
    attempt: Option<Arc<Hold>>,
}

impl Waiter {
    pub(crate) fn new(request: Request) -> Arc<Self> {
        Arc::new(Self { request, slot: Mutex::default() })
    }

    fn finish(&self, outcome: Outcome) {
        let mut slot = self.slot.lock();
        slot.outcome = Some(outcome);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    fn is_dormant(&self) -> bool {
        self.slot.lock().dormant
    }
}

/// Someone who waits for a release to be through.
#[derive(Default)]
pub(crate) struct Ticket(Mutex<(Option<Result<(), Error>>, Option<Waker>)>);

impl Ticket {
    fn finish(&self, result: Result<(), Error>) {
        let mut slot = self.0.lock();
        slot.0 = Some(result);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut slot = self.0.lock();
        match slot.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub(crate) type Tickets = Vec<Arc<Ticket>>;

pub(crate) fn finish_all(tickets: Tickets, result: &Result<(), Error>) {
    for ticket in tickets {
        ticket.finish(result.clone());
    }
}

type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The one call of a name that is under way. Whoever asked for it may drive it; the engine takes
/// it over if they do not.
pub(crate) struct Flight {
    kind: FlightKind,
    sent: Moment,
    call: Mutex<Option<CallFuture>>,
}

enum FlightKind {
    /// Asks for a fresh hold.
    Fresh { hold: Arc<Hold>, waiter: Arc<Waiter> },
    /// Enters a hold once more.
    Enter { hold: Arc<Hold>, waiter: Arc<Waiter>, count: u32 },
    /// Brings the server's count down to that of the entries.
    Lower { hold: Arc<Hold>, count: u32, tickets: Mutex<Tickets> },
    /// Gives the hold back.
    Final { hold: Arc<Hold>, tickets: Mutex<Tickets>, _counted: Counted },
}

impl Flight {
    pub(crate) fn sent(&self) -> Moment {
        self.sent
    }

    /// Takes the call to drive it; `None` if somebody else does.
    pub(crate) fn take(&self) -> Option<CallFuture> {
        self.call.lock().take()
    }

    /// Drives the call a step; `None` if somebody else has it, or it is through.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Option<Poll<CallResult>> {
        let mut call = self.call.lock();
        let polled = call.as_mut()?.as_mut().poll(cx);
        if polled.is_ready() {
            *call = None;
        }
        Some(polled)
    }
}

/// One entry of an owner into the hold.
struct Entry {
    id: u64,
    owner: OwnerKey,
    alive: Liveness,
    /// Where a default owner's future was polled.
    context: Option<PollContext>,
    renewed: bool,
    guarded: bool,
    label: Option<Arc<str>>,
    at: &'static Location<'static>,
    /// Since when its waiter has not taken it.
    offered: Option<(Moment, Arc<Waiter>)>,
}

impl Entry {
    /// Whether it keeps the hold renewed.
    fn keeps(&self) -> bool {
        self.renewed && (self.guarded || self.alive.is_alive())
    }
}

/// The hold of this process, and who is in it.
struct Held {
    hold: Arc<Hold>,
    entries: Vec<Entry>,
    /// The count at the server, as far as is known.
    count: u32,
    /// A call that changes the count got no answer.
    unsure: bool,
    tickets: Tickets,
    /// Not before this are calls tried again.
    retry_at: Moment,
    verified: Moment,
    counted: Counted,
}

enum MayEnter {
    Yes,
    NotYet,
    /// The same task, in another branch: at this line.
    Never(&'static Location<'static>),
}

impl Held {
    fn may_enter(&self, request: &Request) -> MayEnter {
        for entry in &self.entries {
            if !request.owner.is_within(entry.owner) {
                return MayEnter::NotYet;
            }
            if let Some(context) = entry.context.as_ref().filter(|_| request.owner.is_default()) {
                if !context.is(&request.context) {
                    return MayEnter::Never(entry.at);
                }
            }
        }
        MayEnter::Yes
    }

    /// Whether somebody of this owner's line is inside.
    fn is_around(&self, owner: &Owner) -> bool {
        self.entries.iter().any(|entry| owner.is_within(entry.owner))
    }

    fn is_behind(&self) -> bool {
        self.entries.len() < self.count as usize || self.unsure
    }

    /// Renews the hold while an entry wants it.
    fn update_renewal(&self, watchdog: Duration) {
        let wanted = self.entries.iter().any(Entry::keeps);
        match self.hold.renewed_for() {
            None if wanted => {
                self.hold.renew_for(Some(watchdog), first_due(Moment::now(), watchdog));
            }
            Some(_) if !wanted => self.hold.renew_for(None, Moment::NEVER),
            _ => {}
        }
    }
}

/// A lost hold whose owners have not all been told.
struct LostHold {
    hold: Arc<Hold>,
    reason: LostReason,
    entries: Vec<Entry>,
}

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

    // ---- acquiring -------------------------------------------------------------------------

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
                return Begin::Lone(self.ask(engine, &mut state, waiter.clone()));
            }
            // A newcomer at the end of a queue that waits does not make its head try, unless it
            // wants to know at once.
            state.try_now |= state.queue.is_empty() || request.is_over(Moment::now());
            state.queue.push_back(waiter.clone());
        }
        state.asking.insert(request.owner.key(), request.at);
        self.ensure_driver(engine, &mut state);
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

    fn discard(self: &Arc<Self>, engine: &Arc<Engine>, hold: Arc<Hold>) {
        let unsure = hold.unsure.load(Ordering::Relaxed);
        hold.advance(Phase::Over);
        if unsure {
            engine.settle_release(hold, Vec::new());
        }
    }

    // ---- calls -----------------------------------------------------------------------------

    /// Asks for a fresh hold.
    fn ask(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        waiter: Arc<Waiter>,
    ) -> Arc<Flight> {
        state.try_now = false;
        let attempt = waiter.slot.lock().attempt.take();
        let resent = attempt.is_some();
        let hold =
            attempt.unwrap_or_else(|| Hold::new(self.clone(), &engine.uuid, engine.next_id()));
        let length = waiter.request.length;
        let call = self.recipe.acquire(&hold.field, length, 1);
        let sent = hold.asked(length);
        // Watched before it is sent, so that no grant is ever without its timer.
        let look = engine.settings().uncollected.min(length / 6);
        engine.renewal.watch(engine, &hold, sent.saturating_add(look));
        let batch = engine.batch.clone();
        let call: CallFuture = if resent {
            let timeout = engine.settings().command_timeout;
            Box::pin(async move {
                // The first send may linger in a broken connection; let that be fenced first.
                let settled = batch.connection().settled();
                if tokio::time::timeout(timeout, settled).await.is_err() {
                    return Err(CallError::NotSent("the connection is down".to_owned()));
                }
                batch.call(call).await
            })
        } else {
            Box::pin(async move { batch.call(call).await })
        };
        state.launch(FlightKind::Fresh { hold, waiter }, sent, call)
    }

    /// Enters the hold once more.
    fn enter(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        waiter: &Arc<Waiter>,
    ) -> Arc<Flight> {
        let held = state.hold.as_ref().expect("only a hold that stands is entered");
        let (hold, count) = (held.hold.clone(), held.count + 1);
        let length = waiter.request.length;
        let call = self.recipe.acquire(&hold.field, length, count);
        let sent = hold.asked(length);
        let batch = engine.batch.clone();
        let call = Box::pin(async move { batch.call(call).await });
        state.launch(FlightKind::Enter { hold, waiter: waiter.clone(), count }, sent, call)
    }

    /// Brings the server's count down to that of the entries; gives the hold back at none.
    fn lower(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) -> Arc<Flight> {
        let held = state.hold.as_mut().expect("only a hold that stands is lowered");
        let hold = held.hold.clone();
        let count = held.entries.len() as u32;
        let tickets = Mutex::new(std::mem::take(&mut held.tickets));
        let call = self.recipe.release(&hold.field, count, engine.publish());
        let kind = if count == 0 {
            // From here on nothing renews it.
            hold.advance(Phase::Ending);
            let held = state.hold.take().expect("looked at above");
            FlightKind::Final { hold, tickets, _counted: held.counted }
        } else {
            FlightKind::Lower { hold, count, tickets }
        };
        let batch = engine.batch.clone();
        let call = Box::pin(async move { batch.call(call).await });
        state.launch(kind, Moment::now(), call)
    }

    /// The call under way has ended.
    pub(crate) fn complete(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        flight: &Arc<Flight>,
        result: CallResult,
    ) {
        let mut state = self.state.lock();
        state.flight = None;
        match &flight.kind {
            FlightKind::Fresh { hold, waiter } => {
                self.asked(engine, &mut state, hold, waiter, result);
            }
            FlightKind::Enter { hold, waiter, count } => {
                self.entered(engine, &mut state, hold, waiter, *count, flight.sent, result);
            }
            FlightKind::Lower { hold, count, tickets } => {
                let tickets = std::mem::take(&mut *tickets.lock());
                self.lowered(engine, &mut state, hold, *count, tickets, result);
            }
            FlightKind::Final { hold, tickets, .. } => {
                let tickets = std::mem::take(&mut *tickets.lock());
                self.given_back(engine, &mut state, hold, tickets, result);
            }
        }
        self.look(engine, state);
    }

    fn asked(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        result: CallResult,
    ) {
        let now = Moment::now();
        let request = &waiter.request;
        let cancelled = waiter.slot.lock().cancelled;
        match read(result) {
            Read::Done => {
                state.failures = 0;
                // Counted from the first send: which of several was granted nobody knows.
                hold.extended(hold.first_sent(), request.length);
                if now >= hold.deadline() {
                    tracing::warn!(lock = %engine.shown(self), "granted too late; given back");
                    hold.unsure.store(true, Ordering::Relaxed);
                    self.discard(engine, hold.clone());
                    state.try_now = true;
                    return self.wait_on(engine, state, waiter, cancelled);
                }
                hold.advance(Phase::Held);
                if let Some(max) = request.max_hold {
                    hold.ends_at(now.saturating_add(max));
                }
                state.hold = Some(Held {
                    hold: hold.clone(),
                    entries: Vec::with_capacity(1),
                    count: 1,
                    unsure: false,
                    tickets: Vec::new(),
                    retry_at: Moment::default(),
                    verified: now,
                    counted: engine.count_hold(),
                });
                if !cancelled {
                    self.grant(engine, state, waiter);
                }
                // Everyone else here now waits for us.
                for other in &state.queue {
                    other.slot.lock().refused = true;
                }
                self.end_overdue(state, now);
                state.sort_entrants();
            }
            Read::Refused { ttl, holder } => {
                hold.advance(Phase::Over);
                state.failures = 0;
                state.holder = holder;
                let cap = engine.settings().fallback_cap;
                let jitter = Duration::from_micros(1_000 + fastrand::u64(0..4_000));
                let wait = ttl.map_or(cap, |ttl| (ttl + jitter).min(cap));
                state.next_try = now.saturating_add(wait);
                waiter.slot.lock().refused = true;
                for other in &state.queue {
                    other.slot.lock().refused = true;
                }
                self.end_overdue(state, now);
                if !cancelled && request.is_over(now) {
                    return waiter.finish(Outcome::Refused);
                }
                self.wait_on(engine, state, waiter, cancelled);
            }
            Read::Failed(text) if !passes(&text) => {
                hold.advance(Phase::Over);
                state.try_now = true;
                waiter.finish(Outcome::Failed(Error::server(Some(self.text()), &text)));
            }
            // It cannot be gone before it was there.
            Read::Gone | Read::Failed(_) | Read::NotSent(_) => {
                self.retry(engine, state, hold, waiter, cancelled);
            }
            Read::Unknown(_) => {
                hold.unsure.store(true, Ordering::Relaxed);
                self.retry(engine, state, hold, waiter, cancelled);
            }
        }
    }

    /// The attempt came to nothing; the same hold is asked for again, unless it is too late.
    fn retry(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        cancelled: bool,
    ) {
        let now = Moment::now();
        state.failures += 1;
        let pause = Duration::from_millis(10 << state.failures.min(4));
        let pause = pause + pause.mul_f64(fastrand::f64());
        state.next_try = now.saturating_add(pause);
        state.try_now = false;
        self.end_overdue(state, now);
        if cancelled {
            return self.discard(engine, hold.clone());
        }
        if waiter.request.is_over(now) {
            let unsure = hold.unsure.load(Ordering::Relaxed);
            self.discard(engine, hold.clone());
            let why = "no reply within the wait";
            let error = Error::unavailable(Some(self.text()), why, unsure);
            return waiter.finish(Outcome::Failed(error));
        }
        waiter.slot.lock().attempt = Some(hold.clone());
        self.wait_on(engine, state, waiter, cancelled);
    }

    /// Puts the head of the queue back in its place.
    fn wait_on(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        waiter: &Arc<Waiter>,
        cancelled: bool,
    ) {
        if cancelled {
            return;
        }
        state.asking.insert(waiter.request.owner.key(), waiter.request.at);
        state.queue.push_front(waiter.clone());
        self.ensure_driver(engine, state);
    }

    #[allow(clippy::too_many_arguments, reason = "one caller, which has them all apart")]
    fn entered(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        count: u32,
        sent: Moment,
        result: CallResult,
    ) {
        let now = Moment::now();
        let cancelled = waiter.slot.lock().cancelled;
        let Some(held) = state.hold.as_mut().filter(|held| Arc::ptr_eq(&held.hold, hold)) else {
            let reason = hold.lost().unwrap_or(LostReason::Removed);
            return waiter.finish(Outcome::Failed(Error::lost(self.text(), reason)));
        };
        match read(result) {
            Read::Done => {
                held.count = count;
                hold.extended(sent, waiter.request.length);
                if !cancelled {
                    self.grant(engine, state, waiter);
                }
            }
            Read::Gone | Read::Refused { .. } => {
                self.lose_now(engine, state, LostReason::Removed);
                waiter.finish(Outcome::Failed(Error::lost(self.text(), LostReason::Removed)));
            }
            Read::Failed(text) if !passes(&text) => {
                waiter.finish(Outcome::Failed(Error::server(Some(self.text()), &text)));
            }
            unknown => {
                held.unsure |= matches!(unknown, Read::Unknown(_));
                held.retry_at = now.saturating_add(Duration::from_millis(20));
                if cancelled {
                    return;
                }
                if waiter.request.is_over(now) {
                    let unsure = held.unsure;
                    let why = "no reply within the wait";
                    let error = Error::unavailable(Some(self.text()), why, unsure);
                    return waiter.finish(Outcome::Failed(error));
                }
                state.asking.insert(waiter.request.owner.key(), waiter.request.at);
                state.entrants.push_front(waiter.clone());
            }
        }
    }

    fn lowered(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        count: u32,
        tickets: Tickets,
        result: CallResult,
    ) {
        let Some(held) = state.hold.as_mut().filter(|held| Arc::ptr_eq(&held.hold, hold)) else {
            let reason = hold.lost().unwrap_or(LostReason::Removed);
            return finish_all(tickets, &Err(Error::lost(self.text(), reason)));
        };
        let retry_at = Moment::now().saturating_add(Duration::from_millis(50));
        match read(result) {
            Read::Done => {
                held.count = count;
                held.unsure = false;
                finish_all(tickets, &Ok(()));
            }
            Read::Gone | Read::Refused { .. } => {
                self.lose_now(engine, state, LostReason::Removed);
                finish_all(tickets, &Err(Error::lost(self.text(), LostReason::Removed)));
            }
            Read::Failed(text) if !passes(&text) => {
                held.unsure = true;
                held.retry_at = retry_at;
                finish_all(tickets, &Err(Error::server(Some(self.text()), &text)));
            }
            _ => {
                held.unsure = true;
                held.retry_at = retry_at;
                held.tickets.splice(0..0, tickets);
            }
        }
    }

    fn given_back(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        tickets: Tickets,
        result: CallResult,
    ) {
        let now = Moment::now();
        state.last_release = now;
        state.try_now = true;
        hold.advance(Phase::Over);
        match released(self.text(), hold, result, false) {
            Released::Yes(result) => finish_all(tickets, &result),
            // Told at once, tried on until the lease would have ended anyway.
            Released::Refused(error) => {
                finish_all(tickets, &Err(error));
                engine.settle_release(hold.clone(), Vec::new());
            }
            Released::Unknown => engine.settle_release(hold.clone(), tickets),
        }
    }

    /// Lets a waiter in.
    fn grant(&self, engine: &Arc<Engine>, state: &mut State, waiter: &Arc<Waiter>) {
        let held = state.hold.as_mut().expect("a grant enters a hold that stands");
        let request = &waiter.request;
        state.next_entry += 1;
        let id = state.next_entry;
        let now = Moment::now();
        held.entries.push(Entry {
            id,
            owner: request.owner.key(),
            alive: request.owner.liveness(),
            context: request.owner.is_default().then(|| request.context.clone()),
            renewed: request.lease == Lease::Renewed,
            guarded: true,
            label: request.label.clone(),
            at: request.at,
            offered: Some((now, waiter.clone())),
        });
        held.update_renewal(engine.settings().watchdog);
        let hold = held.hold.clone();
        tracing::debug!(
            lock = %engine.shown(self),
            hold = %hold.field,
            count = held.entries.len(),
            waited = ?request.since.until(now),
            "acquired"
        );
        waiter.finish(Outcome::Granted(Grant { hold, entry: id }));
    }

    // ---- leaving ---------------------------------------------------------------------------

    /// A guard leaves. With a ticket the caller waits, and may drive the call.
    pub(crate) fn leave(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        grant: &Grant,
        ticket: Option<&Arc<Ticket>>,
    ) -> Leave {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        let held = state.hold.as_mut().filter(|held| Arc::ptr_eq(&held.hold, &grant.hold));
        let Some(held) = held else {
            let reason = self.forget_lost(engine, &mut state, grant);
            self.look(engine, state);
            return Leave::Failed(match reason {
                Some(reason) => Error::lost(self.text(), reason),
                None => Error::not_held(self.text()),
            });
        };
        let before = held.entries.len();
        held.entries.retain(|entry| entry.id != grant.entry);
        if held.entries.len() == before {
            return Leave::Failed(Error::not_held(self.text()));
        }
        held.update_renewal(engine.settings().watchdog);
        self.leave_with(engine, state, ticket)
    }

    /// An owner without a guard leaves its newest entry.
    pub(crate) fn leave_as(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        owner: &Owner,
        ticket: &Arc<Ticket>,
    ) -> Leave {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        let key = owner.key();
        let own = |entry: &Entry| entry.owner == key;
        if let Some(held) = &mut state.hold {
            let newest = held.entries.iter().rposition(|entry| own(entry) && !entry.guarded);
            let newest = newest.or_else(|| held.entries.iter().rposition(own));
            if let Some(newest) = newest {
                held.entries.remove(newest);
                held.update_renewal(engine.settings().watchdog);
                return self.leave_with(engine, state, Some(ticket));
            }
        }
        let error = self.untold_loss(engine, &mut state, owner);
        self.look(engine, state);
        Leave::Failed(error.unwrap_or_else(|| Error::not_held(self.text())))
    }

    fn leave_with(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        mut state: MutexGuard<'_, State>,
        ticket: Option<&Arc<Ticket>>,
    ) -> Leave {
        let held = state.hold.as_mut().expect("an entry of it was just taken out");
        held.tickets.extend(ticket.cloned());
        if ticket.is_some() && state.flight.is_none() && !state.driven {
            return Leave::Lone(self.lower(engine, &mut state));
        }
        self.ensure_driver(engine, &mut state);
        Leave::Queued
    }

    /// The guard is forgotten: the entry stays, for an `unlock` by its owner.
    pub(crate) fn forget(&self, engine: &Arc<Engine>, grant: &Grant) {
        let mut state = self.state.lock();
        if let Some(held) = &mut state.hold {
            if let Some(entry) = held.entries.iter_mut().find(|entry| entry.id == grant.entry) {
                entry.guarded = false;
                held.update_renewal(engine.settings().watchdog);
                return;
            }
        }
        for lost in &mut state.lost {
            for entry in lost.entries.iter_mut().filter(|entry| entry.id == grant.entry) {
                entry.guarded = false;
            }
        }
    }

    /// Gives an entry to another owner.
    pub(crate) fn hand_to(&self, grant: &Grant, owner: &Owner) {
        let mut state = self.state.lock();
        let lost = state.lost.iter_mut().flat_map(|lost| &mut lost.entries);
        let lost: Vec<_> = lost.filter(|entry| entry.id == grant.entry).collect();
        for entry in lost {
            entry.owner = owner.key();
            entry.alive = owner.liveness();
            entry.context = None;
        }
        if let Some(held) = &mut state.hold {
            for entry in held.entries.iter_mut().filter(|entry| entry.id == grant.entry) {
                entry.owner = owner.key();
                entry.alive = owner.liveness();
                entry.context = None;
            }
        }
    }

    // ---- loss ------------------------------------------------------------------------------

    /// Ends a hold as lost, if it still stands.
    pub(crate) fn lose(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        hold: &Arc<Hold>,
        reason: LostReason,
    ) {
        let mut state = self.state.lock();
        if state.hold.as_ref().is_some_and(|held| Arc::ptr_eq(&held.hold, hold)) {
            self.lose_now(engine, &mut state, reason);
            self.look(engine, state);
        }
    }

    /// Ends whatever hold this name has.
    pub(crate) fn lose_all(self: &Arc<Self>, engine: &Arc<Engine>, reason: LostReason) {
        let mut state = self.state.lock();
        if state.hold.is_some() {
            self.lose_now(engine, &mut state, reason);
        }
        self.look(engine, state);
    }

    /// A hold whose time is up is lost, also if the wheel has not come by yet.
    fn notice_loss(self: &Arc<Self>, engine: &Arc<Engine>) {
        let mut state = self.state.lock();
        let reason = state.hold.as_ref().and_then(|held| held.hold.lost());
        if let Some(reason) = reason {
            self.lose_now(engine, &mut state, reason);
            self.look(engine, state);
        }
    }

    fn lose_now(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State, reason: LostReason) {
        let Some(held) = state.hold.take() else {
            return;
        };
        let hold = held.hold;
        hold.set_lost(reason);
        let held_for = hold.first_sent().until(Moment::now());
        tracing::warn!(
            lock = %engine.shown(self),
            hold = %hold.field,
            ?held_for,
            at = held.entries.first().map(|entry| tracing::field::display(entry.at)),
            label = held.entries.first().and_then(|entry| entry.label.as_deref()),
            %reason,
            "lost a lock"
        );
        let error = Error::lost(self.text(), reason);
        finish_all(held.tickets, &Err(error.clone()));
        // Who wanted to go further in has lost what was around it.
        for waiter in std::mem::take(&mut state.entrants) {
            state.asking.remove(&waiter.request.owner.key());
            waiter.finish(Outcome::Failed(error.clone()));
        }
        state.try_now = true;
        if reason == LostReason::Expired {
            // By its deadline; the server may still have it.
            engine.settle_release(hold.clone(), Vec::new());
        }
        let mut entries = held.entries;
        // Not collected and lost already: those wait on, for another.
        for entry in entries.extract_if_offered() {
            state.asking.insert(entry.request.owner.key(), entry.request.at);
            state.queue.push_front(entry);
        }
        if entries.is_empty() {
            return;
        }
        if entries.iter().any(|entry| !entry.guarded) {
            let then = Moment::now().saturating_add(UNTOLD);
            engine.renewal.watch(engine, &hold, then);
        }
        state.lost.push(LostHold { hold, reason, entries });
    }

    /// The error for an owner whose hold was lost: for as long as its guards live, once without.
    fn untold_loss(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        owner: &Owner,
    ) -> Option<Error> {
        for lost in &mut state.lost {
            let concerned = |entry: &Entry| owner.is_within(entry.owner);
            if lost.entries.iter().any(concerned) {
                let reason = lost.reason;
                lost.entries.retain(|entry| entry.guarded || !concerned(entry));
                self.drop_told(engine, state);
                return Some(Error::lost(self.text(), reason));
            }
        }
        None
    }

    /// A guard of a lost hold is gone.
    fn forget_lost(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        grant: &Grant,
    ) -> Option<LostReason> {
        let lost = state.lost.iter_mut().find(|lost| Arc::ptr_eq(&lost.hold, &grant.hold))?;
        let reason = lost.reason;
        lost.entries.retain(|entry| entry.id != grant.entry);
        self.drop_told(engine, state);
        Some(reason)
    }

    /// Forgets lost holds that everyone knows of; one that may still stand is now given back.
    fn drop_told(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        for at in (0..state.lost.len()).rev() {
            if state.lost[at].entries.is_empty() {
                let lost = state.lost.swap_remove(at);
                if matches!(lost.reason, LostReason::MaxHold | LostReason::ClientClosed) {
                    engine.settle_release(lost.hold, Vec::new());
                }
            }
        }
    }

    /// The owners of a lost hold without a guard have had their time to hear of it.
    pub(crate) fn forget_untold(self: &Arc<Self>, engine: &Arc<Engine>, hold: &Arc<Hold>) {
        let mut state = self.state.lock();
        for lost in state.lost.iter_mut().filter(|lost| Arc::ptr_eq(&lost.hold, hold)) {
            lost.entries.retain(|entry| entry.guarded);
        }
        self.drop_told(engine, &mut state);
        self.look(engine, state);
    }

    // ---- what the driver asks --------------------------------------------------------------

    /// Decides what the driver does next.
    pub(crate) fn step(self: &Arc<Self>, engine: &Arc<Engine>) -> Step {
        self.notice_loss(engine);
        let now = Moment::now();
        let mut state = self.state.lock();
        if let Some(flight) = &state.flight {
            return Step::Lone(flight.clone());
        }
        self.end_hopeless(engine, &mut state);
        let mut until = self.warn_of_long_waits(engine, &mut state, now);
        if let Some(silent) = engine.wiring.contact.silent_since() {
            until = until.min(silent.saturating_add(engine.settings().patience));
        }
        if state.hold.is_some() {
            until = until.min(self.revoke_uncollected(engine, &mut state, now));
            let held = state.hold.as_ref().expect("just looked at");
            let (retry_at, behind) = (held.retry_at, held.is_behind());
            if behind {
                if now >= retry_at {
                    return Step::Drive(self.lower(engine, &mut state));
                }
                until = until.min(retry_at);
            } else if let Some(waiter) = self.next_entrant(&mut state) {
                if now >= retry_at {
                    return Step::Drive(self.enter(engine, &mut state, &waiter));
                }
                state.asking.insert(waiter.request.owner.key(), waiter.request.at);
                state.entrants.push_front(waiter);
                until = until.min(retry_at);
            }
            let waiting = !state.queue.is_empty() || !state.entrants.is_empty();
            let held = state.hold.as_ref().expect("nothing above ended it");
            let offered = held.entries.iter().any(|entry| entry.offered.is_some());
            if waiting || behind || offered {
                let until = until.min(held.hold.valid_until());
                return Step::Sleep { until, listen: !state.queue.is_empty() };
            }
            state.driven = false;
            return Step::Done;
        }
        let entrants = std::mem::take(&mut state.entrants);
        for waiter in entrants.into_iter().rev() {
            state.queue.push_front(waiter);
        }
        let head = state.queue.iter().position(|waiter| !waiter.is_dormant());
        let Some(head) = head else {
            state.driven = false;
            self.retire_if_idle(engine, &mut state);
            return Step::Done;
        };
        if state.try_now || now >= state.next_try {
            let waiter = state.queue.remove(head).expect("just found");
            state.asking.remove(&waiter.request.owner.key());
            return Step::Drive(self.ask(engine, &mut state, waiter));
        }
        Step::Sleep { until: until.min(state.next_try), listen: true }
    }

    /// Something happened that may have freed the lock.
    pub(crate) fn woken(self: &Arc<Self>, engine: &Arc<Engine>, by: WokenBy) {
        let now = Moment::now();
        let mut state = self.state.lock();
        tracing::trace!(lock = %engine.shown(self), ?by, "woken");
        let echo = state.last_release.until(now) < ECHO;
        match (&mut state.hold, by) {
            (Some(_), WokenBy::Subscribed) => {}
            (Some(_), WokenBy::Message) if echo => {}
            // Nobody else can have released what we hold: see whether we still do.
            (Some(held), _) => {
                if held.verified.until(now) >= ECHO || by == WokenBy::Reconnect {
                    held.verified = now;
                    held.hold.set_due(now);
                    engine.renewal.watch(engine, &held.hold, now);
                }
            }
            // A flood of forged messages makes us try, but not without end.
            (None, WokenBy::Message) => {
                if state.eager_since.until(now) >= EAGER_TIME {
                    (state.eager_since, state.eager_tries) = (now, 0);
                }
                state.eager_tries += 1;
                if state.eager_tries <= EAGER_TRIES {
                    state.try_now = true;
                } else {
                    let later = state.eager_since.saturating_add(EAGER_TIME);
                    state.next_try = state.next_try.min(later);
                }
            }
            (None, _) => state.try_now = true,
        }
    }

    /// The server refuses the subscription: waiting would be for timers alone.
    pub(crate) fn cannot_listen(self: &Arc<Self>, engine: &Arc<Engine>, text: &str) {
        let mut state = self.state.lock();
        let error = Error::server(Some(self.text()), text);
        let waiters: Vec<_> = state.queue.drain(..).collect();
        for waiter in waiters {
            state.asking.remove(&waiter.request.owner.key());
            self.abandon_attempt(engine, &waiter);
            waiter.finish(Outcome::Failed(error.clone()));
        }
    }

    /// Wakes the driver, or starts one if there is something to do.
    pub(crate) fn look_again(self: &Arc<Self>, engine: &Arc<Engine>) {
        let state = self.state.lock();
        self.look(engine, state);
    }

    /// Lets the hold go on being renewed only while an entry wants it.
    pub(crate) fn check_renewal(&self, engine: &Arc<Engine>) {
        if let Some(held) = &self.state.lock().hold {
            held.update_renewal(engine.settings().watchdog);
        }
    }

    // ---- queries ---------------------------------------------------------------------------

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
    pub(crate) fn count(&self, hold: &Arc<Hold>) -> u32 {
        match &self.state.lock().hold {
            Some(held) if Arc::ptr_eq(&held.hold, hold) => held.entries.len() as u32,
            _ => 0,
        }
    }

    /// The hold that stands here, if any.
    pub(crate) fn standing(&self) -> Option<Arc<Hold>> {
        self.state.lock().hold.as_ref().map(|held| held.hold.clone())
    }

    // ---- parts -----------------------------------------------------------------------------

    fn ensure_driver(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        if state.driven {
            self.wake.notify_one();
        } else {
            state.driven = true;
            engine.drive(self.clone());
        }
    }

    /// Has a driver where there is something to do, and forgets the name where there is nothing.
    fn look(self: &Arc<Self>, engine: &Arc<Engine>, mut state: MutexGuard<'_, State>) {
        let behind = state.hold.as_ref().is_some_and(Held::is_behind);
        let waiting = !state.queue.is_empty() || !state.entrants.is_empty();
        if state.flight.is_some() || behind || waiting {
            self.ensure_driver(engine, &mut state);
        } else if !state.driven {
            self.retire_if_idle(engine, &mut state);
        } else {
            self.wake.notify_one();
        }
    }

    fn retire_if_idle(&self, engine: &Arc<Engine>, state: &mut State) {
        let idle = state.hold.is_none()
            && state.flight.is_none()
            && state.queue.is_empty()
            && state.entrants.is_empty()
            && state.lost.is_empty()
            && !state.driven;
        if idle && !state.retired {
            state.retired = true;
            engine.retire(self);
        }
    }

    /// The next waiter that may enter the hold; those that never may are told.
    fn next_entrant(&self, state: &mut State) -> Option<Arc<Waiter>> {
        let State { hold, entrants, asking, .. } = state;
        let held = hold.as_ref()?;
        let mut at = 0;
        while at < entrants.len() {
            let waiter = &entrants[at];
            match held.may_enter(&waiter.request) {
                MayEnter::Yes if !waiter.is_dormant() => {
                    asking.remove(&waiter.request.owner.key());
                    return entrants.remove(at);
                }
                MayEnter::Never(there) => {
                    let request = &waiter.request;
                    let error = Error::concurrent(self.text(), request.at, there, false);
                    asking.remove(&request.owner.key());
                    waiter.finish(Outcome::Failed(error));
                    entrants.remove(at);
                }
                _ => at += 1,
            }
        }
        None
    }

    /// Tells those who need not wait any longer: the client closes, or the server is silent.
    fn end_hopeless(&self, engine: &Arc<Engine>, state: &mut State) {
        let closing = engine.is_closing();
        let silent = engine.wiring.contact.silent_since().is_some();
        if !closing && !silent {
            return;
        }
        let mut ended = Vec::new();
        state.queue.retain(|waiter| {
            let request = &waiter.request;
            let hopeless =
                silent && request.deadline.is_none() && engine.out_of_patience(request.since);
            if closing || hopeless {
                ended.push(waiter.clone());
            }
            !(closing || hopeless)
        });
        state.entrants.retain(|waiter| {
            let request = &waiter.request;
            let hopeless =
                silent && request.deadline.is_none() && engine.out_of_patience(request.since);
            if hopeless {
                ended.push(waiter.clone());
            }
            !hopeless
        });
        for waiter in ended {
            state.asking.remove(&waiter.request.owner.key());
            let attempt = waiter.slot.lock().attempt.take();
            let unsure = attempt.as_ref().is_some_and(|hold| hold.unsure.load(Ordering::Relaxed));
            if let Some(hold) = attempt {
                hold.name.clone().discard(engine, hold);
            }
            let error = if closing {
                Error::closed()
            } else {
                let why = format!("nothing heard for {:?}", engine.settings().patience);
                Error::unavailable(Some(self.text()), &why, unsure)
            };
            waiter.finish(Outcome::Failed(error));
        }
    }

    /// Those whose wait is over take the verdict of the last try as theirs.
    fn end_overdue(&self, state: &mut State, now: Moment) {
        let State { queue, asking, .. } = state;
        queue.retain(|waiter| {
            if !waiter.request.is_over(now) {
                return true;
            }
            asking.remove(&waiter.request.owner.key());
            let refused = waiter.slot.lock().refused;
            waiter.finish(if refused {
                Outcome::Refused
            } else {
                let why = "no reply within the wait";
                Outcome::Failed(Error::unavailable(Some(self.text()), why, false))
            });
            false
        });
    }

    /// Takes back grants that nobody collects; says when to look again.
    fn revoke_uncollected(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        now: Moment,
    ) -> Moment {
        let limit = engine.settings().uncollected;
        let held = state.hold.as_mut().expect("only called with one");
        let (mut next, mut revoked) = (Moment::NEVER, Vec::new());
        held.entries.retain_mut(|entry| {
            let Some((since, waiter)) = &entry.offered else {
                return true;
            };
            let mut slot = waiter.slot.lock();
            if !matches!(slot.outcome, Some(Outcome::Granted(_))) {
                drop(slot);
                entry.offered = None;
                return true;
            }
            let until = since.saturating_add(limit);
            if now < until {
                next = next.min(until);
                return true;
            }
            slot.outcome = None;
            slot.dormant = true;
            slot.refused = true;
            drop(slot);
            revoked.push(waiter.clone());
            false
        });
        if revoked.is_empty() {
            return next;
        }
        held.update_renewal(engine.settings().watchdog);
        for waiter in revoked {
            tracing::debug!(lock = %engine.shown(self), "nobody took the grant; it goes back");
            state.asking.insert(waiter.request.owner.key(), waiter.request.at);
            // It keeps its place.
            state.queue.push_front(waiter);
        }
        next
    }

    fn warn_of_long_waits(&self, engine: &Arc<Engine>, state: &mut State, now: Moment) -> Moment {
        let mut next = Moment::NEVER;
        let mut late = None;
        for waiter in state.queue.iter().chain(&state.entrants) {
            let mut slot = waiter.slot.lock();
            if slot.warned {
                continue;
            }
            let then = waiter.request.since.saturating_add(LONG_WAIT);
            if now < then {
                // They came in order: the others are later.
                next = next.min(then);
                break;
            }
            slot.warned = true;
            late.get_or_insert_with(|| waiter.clone());
        }
        if let Some(waiter) = late {
            let waiters = state.queue.len() + state.entrants.len();
            let lock = engine.shown(self);
            let waited = waiter.request.since.until(now);
            let (label, asked_at) = (waiter.request.label.as_deref(), waiter.request.at);
            match state.hold.as_ref().and_then(|held| held.entries.first()) {
                Some(entry) => tracing::warn!(
                    %lock, ?waited, waiters, label, %asked_at,
                    held_at = %entry.at,
                    held_label = entry.label.as_deref(),
                    "waiting long for a lock that this process holds"
                ),
                None => tracing::warn!(
                    %lock, ?waited, waiters, label, %asked_at, holder = state.holder,
                    "waiting long for a lock"
                ),
            }
        }
        next
    }
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

    fn launch(&mut self, kind: FlightKind, sent: Moment, call: CallFuture) -> Arc<Flight> {
        let flight = Arc::new(Flight { kind, sent, call: Mutex::new(Some(call)) });
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

impl Flight {
    /// The acquisition it is for, if it is for one.
    fn waiter(&self) -> Option<&Arc<Waiter>> {
        match &self.kind {
            FlightKind::Fresh { waiter, .. } | FlightKind::Enter { waiter, .. } => Some(waiter),
            FlightKind::Lower { .. } | FlightKind::Final { .. } => None,
        }
    }

    fn is_for(&self, waiter: &Arc<Waiter>) -> bool {
        self.waiter().is_some_and(|own| Arc::ptr_eq(own, waiter))
    }
}

/// The answer to an acquire or a partial release.
enum Read {
    Done,
    Gone,
    Refused { ttl: Option<Duration>, holder: String },
    Failed(String),
    NotSent(#[allow(dead_code, reason = "for debugging")] String),
    Unknown(#[allow(dead_code, reason = "for debugging")] String),
}

fn read(result: CallResult) -> Read {
    match result {
        Ok(Answer { code: 0, .. }) => Read::Done,
        Ok(Answer { code: -1, .. }) => Read::Gone,
        Ok(Answer { code: -2, text }) => Read::Failed(text.unwrap_or_default()),
        // lock/release says so of a count that is kept, lock/acquire of a lock without a TTL.
        Ok(Answer { code: -3, text: None }) => Read::Done,
        Ok(Answer { code: -3, text }) => {
            Read::Refused { ttl: None, holder: text.unwrap_or_default() }
        }
        Ok(Answer { code, text }) => {
            let ttl = u64::try_from(code - 1).ok().map(Duration::from_millis);
            Read::Refused { ttl, holder: text.unwrap_or_default() }
        }
        Err(CallError::Refused(text)) => Read::Failed(text),
        Err(CallError::NotSent(why)) => Read::NotSent(why),
        Err(CallError::Unknown(why)) => Read::Unknown(why),
    }
}

/// Whether a refusal passes by itself, so that waiting calls ride it out.
fn passes(text: &str) -> bool {
    match refusal(text) {
        Refusal::ReadOnly | Refusal::Loading | Refusal::Busy => true,
        Refusal::Cluster => !text.starts_with("CROSSSLOT"),
        _ => false,
    }
}

/// The answer to a final release.
pub(crate) enum Released {
    /// It is free, or was not ours any more.
    Yes(Result<(), Error>),
    Refused(Error),
    Unknown,
}

/// Reads the answer to a final release; `resent` if one was sent before.
pub(crate) fn released(name: &str, hold: &Hold, result: CallResult, resent: bool) -> Released {
    match result {
        Ok(Answer { code: -1, .. }) => Released::Yes(match hold.lost() {
            // The first send may have done it, unless it left too late.
            None if resent => Ok(()),
            None if Moment::now() >= hold.deadline() => Err(Error::lost(name, LostReason::Expired)),
            None => Err(Error::lost(name, LostReason::Removed)),
            Some(reason) => Err(Error::lost(name, reason)),
        }),
        Ok(Answer { code: -2, text }) => {
            let text = text.unwrap_or_default();
            if passes(&text) {
                return Released::Unknown;
            }
            Released::Refused(Error::server(Some(name), &text))
        }
        Ok(Answer { code: -4, text }) => {
            Released::Yes(Err(Error::not_announced(name, &text.unwrap_or_default())))
        }
        Ok(_) => Released::Yes(Ok(())),
        Err(CallError::Refused(text)) if !passes(&text) => {
            Released::Refused(Error::server(Some(name), &text))
        }
        Err(_) => Released::Unknown,
    }
}

/// Takes the waiters out of entries that were offered and not collected.
trait ExtractOffered {
    fn extract_if_offered(&mut self) -> Vec<Arc<Waiter>>;
}

impl ExtractOffered for Vec<Entry> {
    fn extract_if_offered(&mut self) -> Vec<Arc<Waiter>> {
        let mut waiters = Vec::new();
        self.retain(|entry| {
            let Some((_, waiter)) = &entry.offered else {
                return true;
            };
            let mut slot = waiter.slot.lock();
            if !matches!(slot.outcome, Some(Outcome::Granted(_))) {
                return true;
            }
            slot.outcome = None;
            drop(slot);
            waiters.push(waiter.clone());
            false
        });
        waiters
    }
}

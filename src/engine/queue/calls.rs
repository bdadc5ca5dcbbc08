//! The calls of a name: what is sent next, and what the answer changes.

use crate::config::Replicas;
use crate::engine::Engine;
use crate::engine::hold::{Hold, Phase};
use crate::engine::queue::flight::{
    CallFuture, Flight, FlightKind, Read, Released, passes, read, released,
};
use crate::engine::queue::held::{Counts, Entries, Entry, Held};
use crate::engine::queue::waiter::{Grant, Outcome, Tickets, Waiter, finish_all};
use crate::engine::queue::{Name, State};
use crate::engine::recipe::{Mode, Terms, Waiting};
use crate::engine::renewal::first_due;
use crate::engine::replicas::short_of;
use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::server::batch::{Call, CallResult};
use crate::server::reply::{Answer, CallError};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The first pause of one that spins, and how often it doubles: up to 128 ms, as Redisson's does.
const SHORTEST_SPIN: Duration = Duration::from_millis(1);
pub(super) const LONGEST_SPIN: u32 = 7;

/// Who reads the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Who asked, and looks for the outcome right after this.
    Caller,
    Engine,
}

/// A call for a hold, to be driven; one that follows a call without an answer waits until that one
/// has run or never will, and is not sent later than `in_doubt` says. Some must reach replicas.
fn prepare(
    engine: &Arc<Engine>,
    hold: &Arc<Hold>,
    call: Call,
    in_doubt: Option<Moment>,
    lease: Duration,
    replicas: Option<Replicas>,
) -> CallFuture {
    if in_doubt.is_none() && replicas.is_none() {
        let batch = engine.batch.clone();
        return Box::pin(async move { batch.call(call).await });
    }
    let (engine, hold) = (engine.clone(), hold.clone());
    Box::pin(async move {
        let timeout = engine.settings().command_timeout;
        if let Some(latest) = in_doubt {
            if tokio::time::timeout(timeout, engine.settled_for(&hold)).await.is_err() {
                return Err(CallError::NotSent("the connection is down".to_owned()));
            }
            if Moment::now() >= latest {
                return Err(CallError::NotSent("its record may be gone".to_owned()));
            }
        }
        engine.call_for(&hold, call, lease, replicas).await
    })
}

/// The pause of one that spins, after so many refusals before this one. It grows exponentially,
/// and half of it is left to chance: those who met at the server do not meet there again.
pub(super) fn spin_pause(refusals: u32) -> Duration {
    let most = SHORTEST_SPIN * 2u32.pow(refusals.min(LONGEST_SPIN));
    most / 2 + most.mul_f64(fastrand::f64()) / 2
}

impl Name {
    /// Asks for a fresh hold.
    pub(super) fn ask(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        waiter: Arc<Waiter>,
    ) -> Arc<Flight> {
        if let Some(crowd) = state.crowd.made().filter(|_| !self.recipe.kind.is_in_line()) {
            crowd.try_now = false;
        }
        let (mut attempt, named) = {
            let mut slot = waiter.slot.lock();
            let named = !std::mem::replace(&mut slot.named, true);
            (slot.attempt.take(), named)
        };
        if let Some(stale) = attempt.take_if(|hold| Moment::now() >= hold.ask_until()) {
            self.discard(engine, stale);
        }
        // One that stands in line asks again; where no answer came, only behind a fence.
        let resent = attempt.as_ref().is_some_and(|hold| {
            !hold.in_line.load(Ordering::Relaxed) || hold.unsure.load(Ordering::Relaxed)
        });
        let request = &waiter.request;
        let hold = attempt.unwrap_or_else(|| {
            let field = request.field.clone().filter(|_| named);
            Hold::new(self.clone(), &engine.uuid, engine.next_id(), request, field)
        });
        let length = request.length;
        hold.asked_in(request.mode);
        let call = self.recipe.acquire(request.mode, &self.terms(engine, &hold, length, 1));
        let sent = hold.asked(length);
        // Watched before it is sent, so that no grant is ever without its timer.
        let look = engine.settings().uncollected.min(length / 6);
        engine.renewal.watch(engine, &hold, sent.saturating_add(look));
        let replicas = hold.replicas();
        let doubt = resent.then(|| hold.ask_until());
        let call = prepare(engine, &hold, call, doubt, length, replicas);
        state.launch(FlightKind::Fresh { hold, waiter }, sent, call)
    }

    /// What a call says of a hold.
    fn terms<'a>(
        &self,
        engine: &'a Engine,
        hold: &'a Hold,
        lease: Duration,
        count: u32,
    ) -> Terms<'a> {
        let (publish, settled) = (engine.publish(&self.recipe), Some(&engine.settled));
        Terms { hold, lease, count, publish, settled }
    }

    /// Enters a hold once more.
    pub(super) fn enter(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        at: usize,
        waiter: &Arc<Waiter>,
    ) -> Arc<Flight> {
        let held = &state.holds[at];
        let (mode, length) = (waiter.request.mode, waiter.request.length);
        let (hold, count) = (held.hold.clone(), held.counts.of(mode) + 1);
        let unsure = (held.unsure != Counts::default()).then_some(Moment::NEVER);
        let replicas = Replicas::stronger(hold.replicas(), waiter.request.replicas);
        let length = hold.provable_now(length);
        hold.asked_in(mode);
        let call = self.recipe.acquire(mode, &self.terms(engine, &hold, length, count));
        let sent = hold.asked(length);
        let call = prepare(engine, &hold, call, unsure, length, replicas);
        state.launch(FlightKind::Enter { hold, waiter: waiter.clone(), count }, sent, call)
    }

    /// Brings the server's count down to that of the entries; gives the hold back at none.
    pub(super) fn lower(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        at: usize,
    ) -> Arc<Flight> {
        let held = &mut state.holds[at];
        let mode = held.behind().expect("only a hold that is behind is lowered");
        let (hold, count) = (held.hold.clone(), held.entered(mode));
        let unsure = (held.unsure != Counts::default()).then_some(Moment::NEVER);
        if count == 0 {
            // Before it is sent: a renewal that meets it on the way must not miss what it ends.
            hold.set_stands(mode, false);
        }
        let last = held.entries.is_empty() && held.has_only(mode);
        let tickets = Mutex::new(held.take_tickets(mode));
        let call = self.recipe.release(mode, &self.terms(engine, &hold, Duration::ZERO, count));
        let call = prepare(engine, &hold, call, unsure, Duration::ZERO, None);
        let kind = if last {
            // From here on nothing renews it.
            hold.advance(Phase::Ending);
            let held = state.holds.swap_remove(at);
            let resent = held.unsure.of(mode) > 0;
            FlightKind::Final { hold, mode, resent, tickets, _counted: held.counted }
        } else {
            FlightKind::Lower { hold, mode, count, tickets }
        };
        state.launch(kind, Moment::now(), call)
    }

    /// The call under way has ended.
    pub(crate) fn complete(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        flight: &Arc<Flight>,
        by: By,
        result: CallResult,
    ) {
        let mut state = self.state.lock();
        state.flights.retain(|other| !Arc::ptr_eq(other, flight));
        match &flight.kind {
            FlightKind::Fresh { hold, waiter } => {
                engine.measure_round_trip(flight.sent.until(Moment::now()));
                if let Some(crowd) = state.crowd.made() {
                    crowd.stood_back(&result);
                }
                self.asked(engine, &mut state, hold, waiter, by, result);
            }
            FlightKind::Enter { hold, waiter, count } => {
                self.entered(engine, &mut state, hold, waiter, *count, by, flight.sent, result);
            }
            FlightKind::Lower { hold, mode, count, tickets } => {
                let tickets = std::mem::take(&mut *tickets.lock());
                self.lowered(engine, &mut state, hold, *mode, *count, tickets, result);
            }
            FlightKind::Final { hold, resent, tickets, .. } => {
                let tickets = std::mem::take(&mut *tickets.lock());
                if matches!(result, Err(CallError::Unknown(_))) {
                    hold.doubt_release(flight.sent);
                }
                self.given_back(engine, &mut state, hold, *resent, tickets, result);
            }
        }
        self.look(engine, state);
    }

    pub(super) fn asked(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        by: By,
        result: CallResult,
    ) {
        let now = Moment::now();
        let request = &waiter.request;
        let cancelled = waiter.slot.lock().cancelled;
        let short = short_of(&result);
        match read(result) {
            Read::Done(text) => {
                if let Some(crowd) = state.crowd.made() {
                    (crowd.failures, crowd.refusals) = (0, 0);
                }
                if !self.recipe.kind.held {
                    return self.open(state, hold, waiter);
                }
                // Counted from the first send: which of several was granted nobody knows.
                hold.extended(hold.first_sent(), request.length);
                if now >= hold.deadline() {
                    tracing::warn!(lock = %engine.shown(self), "granted too late; given back");
                    hold.unsure.store(true, Ordering::Relaxed);
                    self.discard(engine, hold.clone());
                    state.crowd.make().try_now = true;
                    return match short {
                        Some(short) => waiter.fail(Error::short(self.text(), &short)),
                        None => self.wait_on(engine, state, waiter, cancelled),
                    };
                }
                if let Some(token) = text.and_then(|text| text.parse().ok()) {
                    hold.set_token(token);
                }
                // Of one that stood in line it was the next sign of life.
                hold.set_due(Moment::NEVER);
                hold.begin_turn(request.longest(now));
                let stays = !cancelled && short.is_none();
                if let Some(renewed) = request.renewed_for().filter(|_| stays) {
                    // Before it counts as held: the wheel, coming by in between, would take it
                    // for one that is only watched, and come again at its end.
                    hold.renew_for(Some(renewed), first_due(now, renewed));
                }
                hold.set_stands(request.mode, true);
                hold.advance(Phase::Held);
                state.holds.push(Held {
                    hold: hold.clone(),
                    entries: Entries::new(),
                    counts: Counts::once(request.mode),
                    unsure: Counts::default(),
                    tickets: SmallVec::new(),
                    retry_at: Moment::default(),
                    verified: now,
                    counted: engine.count_hold(),
                });
                if stays {
                    let at = state.holds.len() - 1;
                    self.grant(engine, state, at, waiter, by);
                }
                if let Some(short) = short {
                    // Nobody is in it: it goes back as what a dropped guard leaves does.
                    waiter.fail(Error::short(self.text(), &short));
                }
                match request.mode {
                    // Everyone else here now waits for us.
                    Mode::Exclusive if self.recipe.kind.is_in_line() => {}
                    Mode::Exclusive => {
                        for other in &state.crowd.queue {
                            other.slot.lock().refused = true;
                        }
                        self.end_overdue(engine, state, now);
                    }
                    Mode::Shared => {
                        self.let_more_try(state);
                        self.keep_writers_out(state, now);
                    }
                }
                self.bring_in_entrants(engine, state);
                if hold.in_line.load(Ordering::Relaxed) {
                    // The wheel meant to look for its next sign of life, which may be too late now.
                    engine.renewal.watch(engine, hold, now);
                }
            }
            Read::Refused { ttl, holder } if self.recipe.kind.is_in_line() => {
                let crowd = state.crowd.make();
                (crowd.failures, crowd.holder) = (0, holder);
                self.stand_in_line(engine, state, hold, waiter, ttl);
                // While it asked, a hold around it may have been granted.
                self.bring_in_entrants(engine, state);
            }
            Read::Refused { ttl, holder } => {
                let crowd = state.crowd.make();
                (crowd.failures, crowd.surge, crowd.holder) = (0, 0, holder);
                hold.advance(Phase::Over);
                self.lay_ghosts(engine, hold);
                let wait = self.pause_after_refusal(engine, state, ttl);
                state.crowd.make().next_try = now.saturating_add(wait);
                waiter.slot.lock().refused = true;
                self.refuse_waiters(state, hold);
                self.end_overdue(engine, state, now);
                if !cancelled && request.is_over(now) {
                    return waiter.finish(Outcome::Refused);
                }
                self.wait_on(engine, state, waiter, cancelled);
            }
            Read::Failed(text) if !passes(&text) => {
                // An earlier send may have been granted before this one was refused.
                self.discard(engine, hold.clone());
                state.crowd.make().try_now = true;
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

    /// How long the head sleeps, should nobody wake it.
    pub(super) fn pause_after_refusal(
        &self,
        engine: &Engine,
        state: &mut State,
        ttl: Option<Duration>,
    ) -> Duration {
        let cap = engine.settings().fallback_cap;
        let cap = self.recipe.kind.look_every.map_or(cap, |often| cap.min(often));
        let jitter = Duration::from_micros(1_000 + fastrand::u64(0..4_000));
        let lease = ttl.map_or(cap, |ttl| (ttl + jitter).min(cap));
        if engine.waiting(&self.recipe) != Waiting::Spin {
            return lease;
        }
        let pause = lease.min(spin_pause(state.crowd.refusals));
        state.crowd.make().refusals += 1;
        pause
    }

    /// The attempt came to nothing; the same hold is asked for again, unless it is too late.
    pub(super) fn retry(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        cancelled: bool,
    ) {
        let now = Moment::now();
        let crowd = state.crowd.make();
        crowd.failures += 1;
        let pause = Duration::from_millis(10 << crowd.failures.min(4));
        let pause = pause + pause.mul_f64(fastrand::f64());
        crowd.next_try = now.saturating_add(pause);
        crowd.try_now = false;
        self.end_overdue(engine, state, now);
        if cancelled {
            return self.discard(engine, hold.clone());
        }
        if waiter.request.is_over(now) {
            let unsure = hold.unsure.load(Ordering::Relaxed);
            self.discard(engine, hold.clone());
            let refused = waiter.slot.lock().refused;
            return waiter.finish(if refused {
                // By an earlier try; this was the last.
                Outcome::Refused
            } else {
                let why = "no reply within the wait";
                Outcome::Failed(Error::unavailable(Some(self.text()), why, unsure))
            });
        }
        let again = self.recipe.kind.owned || !hold.is_apart();
        if !again {
            // Of what nobody owns, asking again may write nothing, and so prove nothing.
            self.discard(engine, hold.clone());
        }
        let mut slot = waiter.slot.lock();
        slot.attempt = again.then(|| hold.clone());
        slot.next_try = state.crowd.next_try;
        drop(slot);
        self.wait_on(engine, state, waiter, cancelled);
    }

    /// Puts the head of the queue back in its place.
    pub(super) fn wait_on(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        waiter: &Arc<Waiter>,
        cancelled: bool,
    ) {
        if cancelled {
            return;
        }
        state.put_back(waiter.clone());
        self.ensure_driver(engine, state);
    }

    #[allow(clippy::too_many_arguments, reason = "one caller, which has them all apart")]
    pub(super) fn entered(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        count: u32,
        by: By,
        sent: Moment,
        result: CallResult,
    ) {
        let now = Moment::now();
        let cancelled = waiter.slot.lock().cancelled;
        let mode = waiter.request.mode;
        let Some(at) = state.holds.iter().position(|held| Arc::ptr_eq(&held.hold, hold)) else {
            let reason = hold.lost().unwrap_or(LostReason::Removed);
            return waiter.finish(Outcome::Failed(Error::lost(self.text(), reason)));
        };
        let held = &mut state.holds[at];
        let short = short_of(&result);
        match read(result) {
            Read::Done(_) => {
                held.counts.set(mode, count);
                hold.set_stands(mode, true);
                if let Some(short) = short {
                    // The count is more than there are entries, and goes down again.
                    return waiter.fail(Error::short(self.text(), &short));
                }
                let replicas = Replicas::stronger(hold.replicas(), waiter.request.replicas);
                if let Some(replicas) = replicas.filter(|_| !cancelled) {
                    hold.require(replicas);
                }
                hold.extended(sent, waiter.request.length);
                if waiter.request.max_hold.is_some() && !cancelled {
                    hold.shorten_turn(waiter.request.longest(now));
                    // The wheel may not have meant to look before that.
                    engine.renewal.watch(engine, hold, now);
                }
                if !cancelled {
                    self.grant(engine, state, at, waiter, by);
                }
            }
            Read::Gone | Read::Refused { .. } => {
                self.lose_now(engine, state, at, LostReason::Removed);
                waiter.finish(Outcome::Failed(Error::lost(self.text(), LostReason::Removed)));
            }
            Read::Failed(text) if !passes(&text) => {
                waiter.finish(Outcome::Failed(Error::server(Some(self.text()), &text)));
            }
            unknown => {
                let unsure = matches!(unknown, Read::Unknown(_));
                if unsure {
                    held.unsure.set(mode, 1);
                }
                held.retry_at = now.saturating_add(Duration::from_millis(20));
                if cancelled {
                    return;
                }
                if waiter.request.is_over(now) {
                    let unsure = held.unsure.of(mode) > 0;
                    let why = "no reply within the wait";
                    let error = Error::unavailable(Some(self.text()), why, unsure);
                    return waiter.finish(Outcome::Failed(error));
                }
                state.crowd.make().asking.insert(waiter.request.owner.key(), waiter.request.at);
                state.crowd.make().entrants.push_front(waiter.clone());
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one caller, which has them all apart")]
    pub(super) fn lowered(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        mode: Mode,
        count: u32,
        tickets: Tickets,
        result: CallResult,
    ) {
        let Some(at) = state.holds.iter().position(|held| Arc::ptr_eq(&held.hold, hold)) else {
            let reason = hold.lost().unwrap_or(LostReason::Removed);
            return finish_all(tickets, &Err(Error::lost(self.text(), reason)));
        };
        let held = &mut state.holds[at];
        let retry_at = Moment::now().saturating_add(Duration::from_millis(50));
        match read(result) {
            Read::Refused { ttl: None, holder: text } if count == 0 => {
                Self::is_lowered(state, at, mode, count);
                finish_all(tickets, &Err(Error::not_announced(self.text(), &text)));
            }
            // Of the last release in one mode the server says that it is done, not what is kept.
            Read::Refused { .. } if count == 0 => {
                Self::is_lowered(state, at, mode, count);
                finish_all(tickets, &Ok(()));
            }
            Read::Done(_) => {
                Self::is_lowered(state, at, mode, count);
                finish_all(tickets, &Ok(()));
            }
            // The answer to one that was sent before may have been lost.
            Read::Gone if count == 0 && held.unsure.of(mode) > 0 => {
                Self::is_lowered(state, at, mode, count);
                finish_all(tickets, &Ok(()));
            }
            Read::Gone | Read::Refused { .. } => {
                self.lose_now(engine, state, at, LostReason::Removed);
                finish_all(tickets, &Err(Error::lost(self.text(), LostReason::Removed)));
            }
            Read::Failed(text) if !passes(&text) => {
                held.unsure.set(mode, 1);
                held.retry_at = retry_at;
                finish_all(tickets, &Err(Error::server(Some(self.text()), &text)));
                self.end_overdue_entrants(state);
            }
            _ => {
                held.unsure.set(mode, 1);
                held.retry_at = retry_at;
                held.tickets.extend(tickets.into_iter().map(|ticket| (mode, ticket)));
                self.end_overdue_entrants(state);
            }
        }
    }

    /// The server has been brought level with the entries in one mode.
    fn is_lowered(state: &mut State, at: usize, mode: Mode, count: u32) {
        let held = &mut state.holds[at];
        held.counts.set(mode, count);
        held.unsure.set(mode, 0);
        if mode == Mode::Exclusive && count == 0 {
            // A downgrade: who may share it need not wait any longer.
            state.crowd.make().try_now = true;
        }
    }

    pub(super) fn given_back(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        resent: bool,
        tickets: Tickets,
        result: CallResult,
    ) {
        let now = Moment::now();
        state.last_release = now;
        state.woken_by = "release";
        self.call_first(state, &result);
        hold.advance(Phase::Over);
        if let (Ok(Answer { code: told @ 0.., .. }), true) = (&result, hold.is_exclusive()) {
            let told = *told;
            self.let_others_go_first(engine, state, hold, told as u64, now);
        }
        match released(self.text(), hold, result, resent) {
            Released::Yes(result) => {
                hold.given_back.store(true, Ordering::Relaxed);
                engine.settle(&self.recipe, hold.id, hold.was_unsure());
                finish_all(tickets, &result);
                self.lay_ghosts(engine, hold);
            }
            // Told at once, tried on until the lease would have ended anyway.
            Released::Refused(error) => {
                finish_all(tickets, &Err(error));
                engine.settle_release(hold.clone(), Tickets::new());
            }
            Released::Unknown => engine.settle_release(hold.clone(), tickets),
        }
    }

    /// Lets a waiter in.
    pub(super) fn grant(
        &self,
        engine: &Arc<Engine>,
        state: &mut State,
        at: usize,
        waiter: &Arc<Waiter>,
        by: By,
    ) {
        state.next_entry += 1;
        let id = state.next_entry;
        let held = &mut state.holds[at];
        let request = &waiter.request;
        let now = Moment::now();
        held.entries.push(Entry {
            id,
            mode: request.mode,
            owner: request.owner.key(),
            alive: request.owner.liveness(),
            context: request.owner.is_default().then(|| request.context.clone()),
            renewed: request.renewed_for(),
            guarded: true,
            label: request.label.clone(),
            at: request.at,
            offered: (by == By::Engine).then(|| (now, waiter.clone())),
        });
        let due = held.update_renewal();
        let hold = held.hold.clone();
        if let Some(due) = due.filter(|_| held.entries.len() > 1) {
            engine.renewal.watch(engine, &hold, due);
        }
        tracing::debug!(
            lock = %engine.shown(self),
            hold = %hold.shown(),
            count = held.entries.len(),
            waited = ?request.since.until(now),
            woken_by = state.woken_by,
            "acquired"
        );
        let turn = hold.turn();
        waiter.finish(Outcome::Granted(Grant { hold, turn, entry: id }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_of_one_that_spins_double_and_are_left_to_chance() {
        for refusals in 0..40 {
            let most = Duration::from_millis(1 << refusals.min(7));
            let pauses: Vec<_> = (0..100).map(|_| spin_pause(refusals)).collect();
            assert!(pauses.iter().all(|pause| *pause >= most / 2 && *pause <= most), "{pauses:?}");
            let spread = *pauses.iter().max().unwrap() - *pauses.iter().min().unwrap();
            assert!(spread > most / 4, "{spread:?} of {most:?} is left to chance");
        }
    }
}

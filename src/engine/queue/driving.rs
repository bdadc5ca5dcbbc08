//! What the driver of a name does next.

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::engine::queue::flight::Flight;
use crate::engine::queue::held::Held;
use crate::engine::queue::turns::shortest_stand_back;
use crate::engine::queue::waiter::{Outcome, Waiter};
use crate::engine::queue::{Admission, Crowd, Echo, Name, State, Step, WokenBy};
use crate::engine::recipe::{Mode, Waiting};
use crate::error::Error;
use crate::lease::Moment;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a caller's own call is left to it when others wait for its end.
pub(crate) const LONE: Duration = Duration::from_millis(1);

/// When a wait is worth a warning.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Messages within this time of our own release are taken for its echo.
const ECHO: Duration = Duration::from_millis(50);

/// Tries that messages may cause within [`EAGER_TIME`]; a flood causes no more.
const EAGER_TRIES: u32 = 16;
const EAGER_TIME: Duration = Duration::from_millis(16);

/// Counts the tries that messages cause.
#[derive(Default)]
pub(super) struct Eager {
    tries: u32,
    since: Moment,
}

impl Eager {
    /// Counts one more, or says until when there were enough.
    pub(super) fn count(&mut self, now: Moment) -> Result<(), Moment> {
        if self.since.until(now) >= EAGER_TIME {
            *self = Self { tries: 0, since: now };
        }
        self.tries += 1;
        if self.tries <= EAGER_TRIES { Ok(()) } else { Err(self.since.saturating_add(EAGER_TIME)) }
    }
}

impl Name {
    /// Decides what the driver does next.
    pub(crate) fn step(self: &Arc<Self>, engine: &Arc<Engine>) -> Step {
        self.notice_loss(engine);
        let now = Moment::now();
        let mut state = self.state.lock();
        let shared = self.recipe.kind.is_parallel();
        if let Some(flight) = state.flights.first().filter(|_| !shared) {
            return Step::Lone(flight.clone());
        }
        self.end_hopeless(engine, &mut state);
        let mut until = self.warn_of_long_waits(engine, &mut state, now);
        if let Some(silent) = engine.silent_since(&self.recipe) {
            until = until.min(silent.saturating_add(engine.settings().patience));
        }
        // Callers that are not polled must not keep others waiting.
        for flight in state.flights.iter().filter(|flight| !flight.is_taken()) {
            let alone_until = flight.sent().saturating_add(LONE);
            if now >= alone_until {
                return Step::Spawn(flight.clone());
            }
            until = until.min(alone_until);
        }
        let mut busy = !state.flights.is_empty();
        for at in 0..state.holds.len() {
            until = until.min(self.revoke_uncollected(engine, &mut state, at, now));
            let held = &state.holds[at];
            if state.flights.iter().any(|flight| flight.is_of(&held.hold)) {
                continue;
            }
            let (retry_at, behind) = (held.retry_at, held.is_behind());
            if behind {
                if now >= retry_at {
                    return self.drive_or_spawn(self.lower(engine, &mut state, at));
                }
                until = until.min(retry_at);
            } else if let Some(waiter) = self.next_entrant(&mut state, at) {
                if now >= retry_at {
                    return self.drive_or_spawn(self.enter(engine, &mut state, at, &waiter));
                }
                state.crowd.make().asking.insert(waiter.request.owner.key(), waiter.request.at);
                state.crowd.make().entrants.push_front(waiter);
                until = until.min(retry_at);
            }
            let held = &state.holds[at];
            let offered = held.entries.iter().any(|entry| entry.offered.is_some());
            busy |= behind || offered;
        }
        self.bring_out_entrants(&mut state, now);
        if self.recipe.kind.is_in_line() {
            // The end of a release wakes the driver.
            let (due, next) = match self.may_ask(&state, Mode::Exclusive) {
                true => self.next_in_line(&mut state, now),
                false => (None, Moment::NEVER),
            };
            if let Some(waiter) = due {
                return Step::Spawn(self.ask(engine, &mut state, waiter));
            }
            if busy || !state.crowd.queue.is_empty() || !state.crowd.entrants.is_empty() {
                let deadlines = state.holds.iter().map(|held| held.hold.deadline());
                state.crowd.make().sleeps_until = deadlines.fold(until.min(next), Moment::min);
                return Step::Sleep { until: state.crowd.sleeps_until, listen: false };
            }
            state.end_driving();
            self.retire_if_idle(engine, &mut state);
            return Step::Done;
        }
        let head = state.crowd.queue.iter().position(|waiter| !waiter.is_dormant());
        if let Some(head) = head.filter(|at| self.is_next(&state, &state.crowd.queue[*at])) {
            let at_once = state.crowd.try_now || state.crowd.surge > 0;
            if at_once || now >= state.crowd.next_try {
                if !at_once {
                    state.woken_by = "timer";
                }
                let crowd = state.crowd.make();
                crowd.surge = crowd.surge.saturating_sub(1);
                let waiter = crowd.queue.remove(head).expect("just found");
                crowd.asking.remove(&waiter.request.owner.key());
                return self.drive_or_spawn(self.ask(engine, &mut state, waiter));
            }
            until = until.min(state.crowd.next_try);
        }
        let listen = engine.waiting(&self.recipe) != Waiting::Spin;
        if !state.holds.is_empty() {
            let waiting = !state.crowd.queue.is_empty() || !state.crowd.entrants.is_empty();
            if waiting || busy {
                let deadline = state.holds.iter().map(|held| held.hold.deadline()).min();
                let until = until.min(deadline.unwrap_or(Moment::NEVER));
                state.crowd.make().sleeps_until = until;
                return Step::Sleep { until, listen: listen && !state.crowd.queue.is_empty() };
            }
        } else if head.is_some() || busy {
            state.crowd.make().sleeps_until = until;
            return Step::Sleep { until, listen: listen && head.is_some() };
        }
        state.end_driving();
        self.retire_if_idle(engine, &mut state);
        Step::Done
    }

    /// Takes out one of those in line whose time to try has come; says when the next has.
    fn next_in_line(&self, state: &mut State, now: Moment) -> (Option<Arc<Waiter>>, Moment) {
        let all = std::mem::take(&mut state.crowd.make().try_now);
        let mut next = Moment::NEVER;
        let mut due = None;
        for (at, waiter) in state.crowd.queue.iter().enumerate() {
            let mut slot = waiter.slot.lock();
            slot.try_now |= all;
            if slot.dormant {
                continue;
            }
            // Who has no place in the line at the server asks for one.
            if slot.try_now || slot.attempt.is_none() || now >= slot.next_try {
                due = due.or(Some(at));
            }
            next = next.min(slot.next_try);
        }
        let waiter = due.and_then(|at| state.crowd.make().queue.remove(at));
        if let Some(waiter) = &waiter {
            waiter.slot.lock().try_now = false;
            state.crowd.make().asking.remove(&waiter.request.owner.key());
        }
        (waiter, next)
    }

    /// One that stands in line was told that it is its turn, or that it lost its place.
    pub(crate) fn called(self: &Arc<Self>, engine: &Arc<Engine>, hold: &Arc<Hold>) {
        let now = Moment::now();
        let mut state = self.state.lock();
        state.woken_by = "message";
        hold.called.store(true, Ordering::Relaxed);
        for waiter in &state.crowd.queue {
            let mut slot = waiter.slot.lock();
            if slot.attempt.as_ref().is_some_and(|attempt| Arc::ptr_eq(attempt, hold)) {
                hold.called.store(false, Ordering::Relaxed);
                slot.heed_call(now);
                break;
            }
        }
        self.ensure_driver(engine, &mut state);
    }

    /// Where calls may be under way side by side, the driver waits for none of them.
    fn drive_or_spawn(&self, flight: Arc<Flight>) -> Step {
        if self.recipe.kind.is_parallel() { Step::Spawn(flight) } else { Step::Drive(flight) }
    }

    /// Whether the head of the queue may ask the server beside what stands here.
    pub(super) fn is_next(&self, state: &State, head: &Waiter) -> bool {
        if !self.recipe.kind.is_parallel() {
            return state.holds.is_empty();
        }
        // One try at a time, until it is let in: then those behind it come all at once.
        let asking = state.flights.iter().any(|flight| flight.is_fresh());
        let mode = head.request.mode;
        let waits = asking && state.crowd.surge == 0;
        !waits
            && self.keeps_order(state, head.request.units)
            && !state.follows(head)
            && self.may_ask(state, mode)
            && matches!(self.admission(state, &head.request), Admission::Ask)
    }

    /// Those who waited to enter a hold that is gone queue for one of their own.
    pub(super) fn bring_out_entrants(&self, state: &mut State, now: Moment) {
        let entrants = state.take_entrants();
        for waiter in entrants {
            match self.admission(state, &waiter.request) {
                Admission::Enter(_) | Admission::Never(_) | Admission::Wait { inside: true } => {
                    state.crowd.make().entrants.push_back(waiter);
                }
                Admission::Ask => state.put_back(waiter),
                // Another hold of ours keeps it out, and no call will tell it.
                Admission::Wait { inside: false } if waiter.request.is_over(now) => {
                    state.crowd.make().asking.remove(&waiter.request.owner.key());
                    waiter.finish(Outcome::Refused);
                }
                Admission::Wait { inside: false } => {
                    waiter.slot.lock().refused = true;
                    state.put_back(waiter);
                }
            }
        }
    }

    /// Something happened that may have freed the lock.
    pub(crate) fn woken(self: &Arc<Self>, engine: &Arc<Engine>, by: WokenBy) {
        let now = Moment::now();
        let mut state = self.state.lock();
        tracing::trace!(lock = %engine.shown(self), ?by, "woken");
        state.woken_by = match by {
            WokenBy::Message => "message",
            WokenBy::Subscribed => "subscription",
            WokenBy::Reconnect => "reconnect",
        };
        let echo = state.last_release.until(now) < ECHO;
        let own = state.crowd.standing_back == Some(Echo::Due);
        if by == WokenBy::Subscribed {
            state.crowd.make().listening = true;
        }
        // What we hold alone nobody else can have released: see whether we still do.
        if let Some(held) = state.holds.iter_mut().find(|held| held.is_exclusive()) {
            let look = match by {
                WokenBy::Subscribed => false,
                WokenBy::Message => !echo && held.verified.until(now) >= ECHO,
                WokenBy::Reconnect => true,
            };
            if look {
                self.verify(engine, held, now);
            }
            return;
        }
        if by == WokenBy::Reconnect {
            for held in &mut state.holds {
                self.verify(engine, held, now);
            }
        }
        match by {
            // Our own release, while we let others go first.
            WokenBy::Message if own => state.crowd.make().standing_back = Some(Echo::Past),
            // Told first is not served first: else two whom the server tells first would pass the
            // lock to and fro. Who waited when we gave it back goes ahead, each for one turn.
            WokenBy::Message if state.crowd.others_first > 1 => {
                state.crowd.make().others_first -= 1;
                state.crowd.make().next_try = now.saturating_add(shortest_stand_back(engine) * 2);
            }
            // A flood of forged messages makes us try, but not without end.
            WokenBy::Message => match state.crowd.make().eager.count(now) {
                Ok(()) => state.crowd.make().try_now = true,
                Err(later) => state.crowd.make().next_try = state.crowd.next_try.min(later),
            },
            _ => state.crowd.make().try_now = true,
        }
    }

    /// The connection that renews was made anew: what it said before may be of another server.
    pub(crate) fn verify_holds(&self, engine: &Arc<Engine>) {
        let now = Moment::now();
        for held in &mut self.state.lock().holds {
            self.verify(engine, held, now);
        }
    }

    /// Has a hold looked at by a renewal now.
    fn verify(&self, engine: &Arc<Engine>, held: &mut Held, now: Moment) {
        if self.recipe.kind.renew.is_none() {
            return;
        }
        held.verified = now;
        held.hold.set_due(now);
        engine.renewal.watch(engine, &held.hold, now);
    }

    /// The server refuses the subscription: waiting would be for timers alone.
    pub(crate) fn cannot_listen(self: &Arc<Self>, engine: &Arc<Engine>, text: &str) {
        let mut state = self.state.lock();
        let error = Error::server(Some(self.text()), text);
        let waiters: Vec<_> = state.crowd.make().queue.drain(..).collect();
        for waiter in waiters {
            state.crowd.make().asking.remove(&waiter.request.owner.key());
            self.abandon_attempt(engine, &waiter);
            waiter.finish(Outcome::Failed(error.clone()));
        }
        self.wake.notify_one();
    }

    /// Wakes the driver, or starts one if there is something to do.
    pub(crate) fn look_again(self: &Arc<Self>, engine: &Arc<Engine>) {
        let state = self.state.lock();
        self.look(engine, state);
    }

    /// Lets the hold go on being renewed only while an entry wants it.
    pub(crate) fn check_renewal(&self) {
        for held in &self.state.lock().holds {
            held.update_renewal();
        }
    }

    pub(super) fn ensure_driver(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        if state.driven {
            self.wake.notify_one();
        } else {
            state.driven = true;
            engine.drive(self.clone());
        }
    }

    /// Has a driver where there is something to do, and forgets the name where there is nothing.
    pub(super) fn look(self: &Arc<Self>, engine: &Arc<Engine>, mut state: MutexGuard<'_, State>) {
        let behind = state.holds.iter().any(Held::is_behind);
        let waiting = !state.crowd.queue.is_empty() || !state.crowd.entrants.is_empty();
        if !state.flights.is_empty() || behind || waiting {
            self.ensure_driver(engine, &mut state);
        } else if !state.driven {
            self.retire_if_idle(engine, &mut state);
        } else {
            self.wake.notify_one();
        }
    }

    pub(super) fn retire_if_idle(&self, engine: &Arc<Engine>, state: &mut State) {
        let idle = state.holds.is_empty()
            && state.flights.is_empty()
            && state.crowd.queue.is_empty()
            && state.crowd.entrants.is_empty()
            && state.crowd.lost.is_empty()
            && !state.driven;
        if idle && !state.retired {
            state.retired = true;
            engine.retire(self);
        }
    }

    /// The next waiter that may enter a hold; those that never may are told.
    pub(super) fn next_entrant(&self, state: &mut State, of: usize) -> Option<Arc<Waiter>> {
        let mut at = 0;
        while at < state.crowd.entrants.len() {
            let waiter = state.crowd.entrants[at].clone();
            match self.admission(state, &waiter.request) {
                Admission::Enter(hold) if hold == of && !waiter.is_dormant() => {
                    state.crowd.make().asking.remove(&waiter.request.owner.key());
                    return state.crowd.make().entrants.remove(at);
                }
                Admission::Never(error) => {
                    state.crowd.make().asking.remove(&waiter.request.owner.key());
                    waiter.finish(Outcome::Failed(error));
                    state.crowd.make().entrants.remove(at);
                }
                _ => at += 1,
            }
        }
        None
    }

    /// Tells those who need not wait any longer: the client closes, or the server is silent.
    pub(super) fn end_hopeless(&self, engine: &Arc<Engine>, state: &mut State) {
        let closing = engine.is_closing();
        let silent = engine.silent_since(&self.recipe).is_some();
        if !closing && !silent {
            return;
        }
        let mut ended = Vec::new();
        state.crowd.make().queue.retain(|waiter| {
            let request = &waiter.request;
            let hopeless = silent
                && request.deadline.is_none()
                && engine.out_of_patience(&self.recipe, request.since);
            if closing || hopeless {
                ended.push(waiter.clone());
            }
            !(closing || hopeless)
        });
        state.crowd.make().entrants.retain(|waiter| {
            let request = &waiter.request;
            let hopeless = silent
                && request.deadline.is_none()
                && engine.out_of_patience(&self.recipe, request.since);
            if hopeless {
                ended.push(waiter.clone());
            }
            !hopeless
        });
        for waiter in ended {
            state.crowd.make().asking.remove(&waiter.request.owner.key());
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
    pub(super) fn end_overdue(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        now: Moment,
    ) {
        let Some(Crowd { queue, asking, failures, .. }) = state.crowd.made() else { return };
        let looks_last = !self.recipe.kind.held && *failures == 0;
        queue.retain(|waiter| {
            if !waiter.request.is_over(now) {
                return true;
            }
            // It came after the server was asked, and is told by the next look.
            if looks_last && !waiter.slot.lock().refused {
                return true;
            }
            asking.remove(&waiter.request.owner.key());
            // It may stand in a line at the server.
            self.abandon_attempt(engine, waiter);
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

    /// Those whose wait is over, and who were to enter a hold when this call was through.
    pub(super) fn end_overdue_entrants(&self, state: &mut State) {
        let now = Moment::now();
        let Some(Crowd { entrants, asking, .. }) = state.crowd.made() else { return };
        entrants.retain(|waiter| {
            let over = waiter.request.is_over(now);
            if over {
                asking.remove(&waiter.request.owner.key());
                let why = "no reply within the wait";
                let error = Error::unavailable(Some(self.text()), why, false);
                waiter.finish(Outcome::Failed(error));
            }
            !over
        });
    }

    /// A hold of ours that readers share keeps a writer of ours from asking, and those behind it:
    /// they have as much as seen the holder, and no call will tell them.
    pub(super) fn keep_writers_out(&self, state: &mut State, now: Moment) {
        let writer = |waiter: &Arc<Waiter>| waiter.request.mode == Mode::Exclusive;
        let Some(first) = state.crowd.queue.iter().position(writer) else { return };
        for waiter in state.crowd.make().queue.split_off(first) {
            if waiter.request.is_over(now) {
                state.crowd.make().asking.remove(&waiter.request.owner.key());
                waiter.finish(Outcome::Refused);
            } else {
                waiter.slot.lock().refused = true;
                state.crowd.make().queue.push_back(waiter);
            }
        }
    }

    /// Takes back grants that nobody collects; says when to look again.
    pub(super) fn revoke_uncollected(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        at: usize,
        now: Moment,
    ) -> Moment {
        let limit = engine.settings().uncollected;
        let held = &mut state.holds[at];
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
        held.update_renewal();
        for waiter in revoked {
            tracing::debug!(lock = %engine.shown(self), "nobody took the grant; it goes back");
            if state.holds[at].is_around(&waiter.request.owner) {
                // It was nested, and waits for no end of what it is nested in.
                state.crowd.make().asking.insert(waiter.request.owner.key(), waiter.request.at);
                state.crowd.make().entrants.push_front(waiter);
            } else {
                state.put_back(waiter);
            }
        }
        next
    }

    pub(super) fn warn_of_long_waits(
        &self,
        engine: &Arc<Engine>,
        state: &mut State,
        now: Moment,
    ) -> Moment {
        let mut next = Moment::NEVER;
        let mut late = None;
        for waiter in state.crowd.queue.iter().chain(&state.crowd.entrants) {
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
            let waiters = state.crowd.queue.len() + state.crowd.entrants.len();
            let lock = engine.shown(self);
            let waited = waiter.request.since.until(now);
            let (label, asked_at) = (waiter.request.label.as_deref(), waiter.request.at);
            match state.holds.first().and_then(|held| held.entries.first()) {
                Some(entry) => tracing::warn!(
                    %lock, ?waited, waiters, label, %asked_at,
                    held_at = %entry.at,
                    held_label = entry.label.as_deref(),
                    "waiting long for a lock that this process holds"
                ),
                None => tracing::warn!(
                    %lock, ?waited, waiters, label, %asked_at, holder = state.crowd.holder,
                    "waiting long for a lock"
                ),
            }
        }
        next
    }
}

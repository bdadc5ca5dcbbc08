//! What the driver of a name does next.

use crate::engine::Engine;
use crate::engine::queue::held::{Held, MayEnter};
use crate::engine::queue::waiter::{Outcome, Waiter};
use crate::engine::queue::{Echo, Name, State, Step, WokenBy};
use crate::error::Error;
use crate::lease::Moment;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When a wait is worth a warning.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Messages within this time of our own release are taken for its echo.
const ECHO: Duration = Duration::from_millis(50);

/// Tries that messages may cause within [`EAGER_TIME`]; a flood causes no more.
const EAGER_TRIES: u32 = 16;
const EAGER_TIME: Duration = Duration::from_millis(16);

impl Name {
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
                let until = until.min(held.hold.deadline());
                state.sleeps_until = until;
                return Step::Sleep { until, listen: !state.queue.is_empty() };
            }
            state.end_driving();
            return Step::Done;
        }
        let entrants = std::mem::take(&mut state.entrants);
        for waiter in entrants.into_iter().rev() {
            state.queue.push_front(waiter);
        }
        let head = state.queue.iter().position(|waiter| !waiter.is_dormant());
        let Some(head) = head else {
            state.end_driving();
            self.retire_if_idle(engine, &mut state);
            return Step::Done;
        };
        if state.try_now || now >= state.next_try {
            if !state.try_now {
                state.woken_by = "timer";
            }
            let waiter = state.queue.remove(head).expect("just found");
            state.asking.remove(&waiter.request.owner.key());
            return Step::Drive(self.ask(engine, &mut state, waiter));
        }
        state.sleeps_until = until.min(state.next_try);
        Step::Sleep { until: state.sleeps_until, listen: true }
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
        let own = state.standing_back == Some(Echo::Due);
        if by == WokenBy::Subscribed {
            state.listening = true;
        }
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
            // Our own release, while we let others go first.
            (None, WokenBy::Message) if own => {
                state.standing_back = Some(Echo::Past);
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

    pub(super) fn retire_if_idle(&self, engine: &Arc<Engine>, state: &mut State) {
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
    pub(super) fn next_entrant(&self, state: &mut State) -> Option<Arc<Waiter>> {
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
    pub(super) fn end_hopeless(&self, engine: &Arc<Engine>, state: &mut State) {
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
    pub(super) fn end_overdue(&self, state: &mut State, now: Moment) {
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
    pub(super) fn revoke_uncollected(
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
            state.put_back(waiter);
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

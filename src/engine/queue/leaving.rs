//! How an owner leaves a hold: by giving it back, or by losing it.

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::engine::queue::calls::By;
use crate::engine::queue::held::{Counts, Entry, LostHold, take_uncollected};
use crate::engine::queue::waiter::{Grant, Outcome, Ticket, Tickets, Waiter, finish_all};
use crate::engine::queue::{Leave, Name, State};
use crate::engine::recipe::Mode;
use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::owner::Owner;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

/// How long the lost hold of an owner without a guard is remembered, to be told once.
const UNTOLD: Duration = Duration::from_secs(60);

impl Name {
    /// A guard leaves. With a ticket the caller waits, and may drive the call.
    pub(crate) fn leave(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        grant: &Grant,
        ticket: Option<&Arc<Ticket>>,
    ) -> Leave {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        let there = state.holds.iter().position(|held| Arc::ptr_eq(&held.hold, &grant.hold));
        let Some(there) = there else {
            let reason = self.forget_lost(engine, &mut state, grant);
            self.look(engine, state);
            return Leave::Failed(match reason {
                Some(reason) => Error::lost(self.text(), reason),
                None => Error::not_held(self.text()),
            });
        };
        let held = &mut state.holds[there];
        let Some(at) = held.entries.iter().position(|entry| entry.id == grant.entry) else {
            return Leave::Failed(Error::not_held(self.text()));
        };
        if at + 1 < held.entries.len() {
            let lock = engine.shown(self);
            tracing::debug!(%lock, at = %held.entries[at].at, "left before what is nested in it");
        }
        let mode = held.entries.remove(at).mode;
        self.leave_with(engine, state, there, mode, ticket)
    }

    /// An owner without a guard leaves its newest entry in this mode.
    pub(crate) fn leave_as(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        owner: &Owner,
        mode: Mode,
        ticket: &Arc<Ticket>,
    ) -> Leave {
        self.notice_loss(engine);
        let mut state = self.state.lock();
        let key = owner.key();
        let own = |entry: &Entry| entry.owner == key && entry.mode == mode;
        for (at, held) in state.holds.iter_mut().enumerate() {
            let newest = held.entries.iter().rposition(|entry| own(entry) && !entry.guarded);
            let newest = newest.or_else(|| held.entries.iter().rposition(own));
            if let Some(newest) = newest {
                held.entries.remove(newest);
                return self.leave_with(engine, state, at, mode, Some(ticket));
            }
        }
        let error = self.untold_loss(engine, &mut state, owner);
        self.look(engine, state);
        Leave::Failed(error.unwrap_or_else(|| Error::not_held(self.text())))
    }

    pub(super) fn leave_with(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        mut state: MutexGuard<'_, State>,
        at: usize,
        mode: Mode,
        ticket: Option<&Arc<Ticket>>,
    ) -> Leave {
        if self.hand_over(engine, &mut state, at) {
            finish_all(ticket.cloned().into_iter().collect(), &Ok(()));
            return Leave::Queued;
        }
        let held = &mut state.holds[at];
        held.update_renewal();
        held.tickets.extend(ticket.map(|ticket| (mode, ticket.clone())));
        if ticket.is_some() && self.may_call(&state, at) {
            return Leave::Lone(self.lower(engine, &mut state, at));
        }
        self.ensure_driver(engine, &mut state);
        Leave::Queued
    }

    /// Passes a hold that all have left on to the next waiter, with no command at all (lock
    /// cohorting: Dice, Marathe and Shavit, 2012); whether it could.
    ///
    /// Only a quiet, renewed hold goes on, and only for a window since its acquire was sent: then
    /// it goes back to Redis for real, and other processes get their turn.
    fn hand_over(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State, at: usize) -> bool {
        let window = engine.settings().hand_over_window;
        let held = &state.holds[at];
        let quiet = held.entries.is_empty()
            && held.counts == Counts::once(Mode::Exclusive)
            && held.unsure == Counts::default()
            && held.tickets.is_empty()
            && state.flights.is_empty()
            && state.crowd.entrants.is_empty();
        if !quiet || !self.recipe.kind.hands_over || window.is_zero() || engine.is_closing() {
            return false;
        }
        let hold = held.hold.clone();
        let lease = engine.settings().watchdog;
        let now = Moment::now();
        if hold.renewed_for() != Some(lease) || hold.of_quorum {
            return false;
        }
        if hold.first_sent().saturating_add(window) <= now
            || now.until(hold.deadline()) < lease / 3 * 2
        {
            return false;
        }
        let next = state.crowd.queue.iter().position(|waiter| !waiter.is_dormant());
        let next = next.filter(|at| {
            let request = &state.crowd.queue[*at].request;
            request.takes_over() && !request.is_over(now) && hold.serves(request)
        });
        let Some(waiter) = next.and_then(|at| state.crowd.make().queue.remove(at)) else {
            return false;
        };
        state.crowd.make().asking.remove(&waiter.request.owner.key());
        hold.begin_turn(waiter.request.longest(now));
        state.woken_by = "hand-over";
        self.grant(engine, state, at, &waiter, By::Engine);
        state.sort_entrants(self.recipe.kind);
        // Should nobody take it, the driver must look in time.
        let look = now.saturating_add(engine.settings().uncollected);
        if look < state.crowd.sleeps_until {
            state.crowd.make().sleeps_until = look;
            self.wake.notify_one();
        }
        true
    }

    /// The guard is forgotten: the entry stays, for an `unlock` by its owner, if there can be one.
    pub(crate) fn forget(self: &Arc<Self>, engine: &Arc<Engine>, grant: &Grant) {
        let mut state = self.state.lock();
        if self.disown(engine, &mut state, grant) {
            return self.look(engine, state);
        }
        if let Some(held) = state.held_mut(&grant.hold) {
            if let Some(entry) = held.entries.iter_mut().find(|entry| entry.id == grant.entry) {
                entry.guarded = false;
                // It was taken; the acquisition would keep its owner alive, and that the renewal.
                entry.offered = None;
                held.update_renewal();
                return;
            }
        }
        for lost in state.lost() {
            for entry in lost.entries.iter_mut().filter(|entry| entry.id == grant.entry) {
                entry.guarded = false;
            }
        }
    }

    /// The others have been collected too: a fixed lease begins, and nothing renews it any more.
    pub(crate) fn fix(&self, grant: &Grant) {
        let mut state = self.state.lock();
        let Some(held) = state.held_mut(&grant.hold) else { return };
        if let Some(entry) = held.entries.iter_mut().find(|entry| entry.id == grant.entry) {
            entry.renewed = None;
            held.update_renewal();
        }
    }

    /// Gives an entry to another owner.
    pub(crate) fn hand_to(&self, grant: &Grant, owner: &Owner) {
        let mut state = self.state.lock();
        let lost = state.lost().flat_map(|lost| &mut lost.entries);
        let lost: Vec<_> = lost.filter(|entry| entry.id == grant.entry).collect();
        for entry in lost {
            entry.owner = owner.key();
            entry.alive = owner.liveness();
            entry.context = None;
        }
        for held in &mut state.holds {
            for entry in held.entries.iter_mut().filter(|entry| entry.id == grant.entry) {
                entry.owner = owner.key();
                entry.alive = owner.liveness();
                entry.context = None;
            }
        }
    }

    /// Ends a hold as lost, if it still stands.
    pub(crate) fn lose(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        hold: &Arc<Hold>,
        reason: LostReason,
    ) {
        let mut state = self.state.lock();
        let at = state.holds.iter().position(|held| Arc::ptr_eq(&held.hold, hold));
        if let Some(at) = at {
            self.lose_now(engine, &mut state, at, reason);
            self.look(engine, state);
        }
    }

    /// Ends the holds of this name that anybody is still in; how many those were. One that all
    /// have left is being given back, and that goes on.
    pub(crate) fn lose_all(self: &Arc<Self>, engine: &Arc<Engine>, reason: LostReason) -> usize {
        let mut state = self.state.lock();
        let mut lost = 0;
        for at in (0..state.holds.len()).rev() {
            if !state.holds[at].entries.is_empty() {
                self.lose_now(engine, &mut state, at, reason);
                lost += 1;
            }
        }
        self.look(engine, state);
        lost
    }

    /// A hold whose time is up is lost, also if the wheel has not come by yet.
    pub(super) fn notice_loss(self: &Arc<Self>, engine: &Arc<Engine>) {
        let mut state = self.state.lock();
        let mut noticed = false;
        for at in (0..state.holds.len()).rev() {
            if let Some(reason) = state.holds[at].hold.lost() {
                self.lose_now(engine, &mut state, at, reason);
                noticed = true;
            }
        }
        if noticed {
            self.look(engine, state);
        }
    }

    pub(super) fn lose_now(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        at: usize,
        reason: LostReason,
    ) {
        let held = state.holds.swap_remove(at);
        let hold = held.hold;
        hold.set_lost(reason);
        let held_for = hold.first_sent().until(Moment::now());
        tracing::warn!(
            lock = %engine.shown(self),
            hold = %hold.shown(),
            ?held_for,
            at = held.entries.first().map(|entry| tracing::field::display(entry.at)),
            label = held.entries.first().and_then(|entry| entry.label.as_deref()),
            %reason,
            "lost a lock"
        );
        let error = Error::lost(self.text(), reason);
        let tickets = held.tickets.into_iter().map(|(_, ticket)| ticket).collect();
        finish_all(tickets, &Err(error.clone()));
        // Who wanted to go further in has lost what was around it. Others only waited for us to give
        // it back.
        let around = |waiter: &Waiter| {
            let inside = |entry: &Entry| waiter.request.owner.is_within(entry.owner);
            held.entries.iter().any(inside)
        };
        for waiter in state.take_entrants() {
            if !around(&waiter) {
                state.crowd.make().entrants.push_back(waiter);
                continue;
            }
            state.crowd.make().asking.remove(&waiter.request.owner.key());
            waiter.finish(Outcome::Failed(error.clone()));
        }
        state.crowd.make().try_now = true;
        let parts = hold.modes().count() > 1 || hold.units > 1;
        if reason == LostReason::Expired || reason == LostReason::Removed && parts {
            // By its deadline, or in one of its modes or permits: the server may have the rest.
            engine.settle_release(hold.clone(), Tickets::new());
        }
        let mut entries = held.entries;
        // Not collected and lost already: those wait on, for another.
        for waiter in take_uncollected(&mut entries) {
            state.put_back(waiter);
        }
        if entries.iter().any(|entry| !entry.guarded) {
            let then = Moment::now().saturating_add(UNTOLD);
            engine.renewal.watch(engine, &hold, then);
        }
        state.crowd.make().lost.push(LostHold { hold, reason, entries });
        // Nobody is in it any more: nobody's guard will give it back.
        self.drop_told(engine, state);
    }

    /// The error for an owner whose hold was lost: for as long as its guards live, once without.
    pub(super) fn untold_loss(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        owner: &Owner,
    ) -> Option<Error> {
        let concerned = |entry: &Entry| owner.is_within(entry.owner);
        let lost = state.lost().find(|lost| lost.entries.iter().any(concerned))?;
        let reason = lost.reason;
        lost.entries.retain(|entry| entry.guarded || !concerned(entry));
        self.drop_told(engine, state);
        Some(Error::lost(self.text(), reason))
    }

    /// A guard of a lost hold is gone.
    pub(super) fn forget_lost(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        grant: &Grant,
    ) -> Option<LostReason> {
        let lost = state.lost().find(|lost| Arc::ptr_eq(&lost.hold, &grant.hold))?;
        let reason = lost.reason;
        lost.entries.retain(|entry| entry.id != grant.entry);
        self.drop_told(engine, state);
        Some(reason)
    }

    /// Forgets lost holds that everyone knows of; one that may still stand is now given back.
    pub(super) fn drop_told(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        for at in (0..state.crowd.lost.len()).rev() {
            if state.crowd.lost[at].entries.is_empty() {
                let lost = state.crowd.make().lost.swap_remove(at);
                if matches!(lost.reason, LostReason::MaxHold | LostReason::ClientClosed) {
                    engine.settle_release(lost.hold, Tickets::new());
                }
            }
        }
    }

    /// The owners of a lost hold without a guard have had their time to hear of it.
    pub(crate) fn forget_untold(self: &Arc<Self>, engine: &Arc<Engine>, hold: &Arc<Hold>) {
        let mut state = self.state.lock();
        for lost in state.lost().filter(|lost| Arc::ptr_eq(&lost.hold, hold)) {
            lost.entries.retain(|entry| entry.guarded);
        }
        self.drop_told(engine, &mut state);
        self.look(engine, state);
    }
}

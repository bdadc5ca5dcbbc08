//! What nobody owns: permits, of which many stand side by side, and latches, which are only waited
//! for.

use crate::engine::Engine;
use crate::engine::hold::{Hold, Phase};
use crate::engine::queue::waiter::{Grant, Outcome, Request, Waiter};
use crate::engine::queue::{Name, State};
use crate::engine::recipe::Mode;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Name {
    /// What was waited for has come, and is not held: everyone here goes on who waited when the
    /// server was asked. For others it may be closed again.
    pub(super) fn open(&self, state: &mut State, hold: &Arc<Hold>, waiter: &Arc<Waiter>) {
        hold.advance(Phase::Over);
        let asked = hold.first_sent();
        let waited = |other: &Arc<Waiter>| other.request.since <= asked;
        let mut let_in = VecDeque::new();
        if let Some(crowd) = state.crowd.made() {
            let (waited, came) = crowd.queue.drain(..).partition(waited);
            (let_in, crowd.queue) = (waited, came);
            crowd.try_now |= !crowd.queue.is_empty();
            for waiter in let_in.iter().chain([waiter]) {
                crowd.asking.remove(&waiter.request.owner.key());
            }
        }
        for waiter in let_in.iter().chain([waiter]) {
            let grant = Grant { hold: hold.clone(), turn: 0, entry: 0 };
            waiter.finish(Outcome::Granted(grant));
        }
    }

    /// The server has said that there is no room: so those know who waited when it was asked.
    pub(super) fn refuse_waiters(&self, state: &mut State, hold: &Arc<Hold>) {
        let asked = hold.first_sent();
        let concerned =
            |waiter: &&Arc<Waiter>| self.recipe.kind.held || waiter.request.since <= asked;
        for waiter in state.crowd.queue.iter().filter(concerned) {
            waiter.slot.lock().refused = true;
        }
    }

    /// One that shares was let in: where it gets in, there may be room for those behind it.
    pub(super) fn let_more_try(&self, state: &mut State) {
        let Some(crowd) = state.crowd.made() else { return };
        let waiting = crowd.queue.len();
        crowd.surge = match self.recipe.kind.owned {
            // All that read, or none.
            true => waiting,
            // As many as there are permits, which nobody knows: twice as many each time round.
            false => (crowd.surge + 2).min(waiting),
        };
    }

    /// Whether one that wants so many may ask beside those who ask now and came before it. If they
    /// want more, it would be let in where they are not.
    pub(super) fn keeps_order(&self, state: &State, units: u32) -> bool {
        let asking = state.flights.iter().filter(|flight| flight.is_fresh());
        let wanted = asking.filter_map(|flight| flight.waiter()).map(|w| w.request.units);
        wanted.max().is_none_or(|most| units >= most)
    }

    /// Whether a newcomer may ask at once, by itself.
    pub(super) fn may_go_ahead(&self, state: &State, request: &Request) -> bool {
        let kind = self.recipe.kind;
        let first = state.crowd.queue.is_empty() && state.crowd.entrants.is_empty();
        let mut asking = state.flights.iter().filter(|flight| flight.is_fresh());
        match (kind.owned, kind.held) {
            // Who stands in line at the server does not stand in line here as well.
            (true, _) => first || kind.is_in_line(),
            // Not while one that was refused before asks again: it came first.
            (false, true) => {
                let refused = |waiter: &Arc<Waiter>| waiter.slot.lock().refused;
                first && !asking.filter_map(|flight| flight.waiter()).any(refused)
            }
            // One look answers all who wait; who only looks gets an answer of its own.
            (false, false) => {
                request.is_one_shot()
                    || first && (request.deadline.is_some() || asking.next().is_none())
            }
        }
    }

    /// Of what nobody owns, nothing here need know when its guard is forgotten; whether it is that.
    pub(super) fn disown(&self, engine: &Arc<Engine>, state: &mut State, grant: &Grant) -> bool {
        if self.recipe.kind.owned {
            return false;
        }
        if let Some(at) = state.holds.iter().position(|held| Arc::ptr_eq(&held.hold, &grant.hold)) {
            let hold = state.holds.swap_remove(at).hold;
            hold.advance(Phase::Over);
            engine.settle(&self.recipe, hold.id, hold.unsure.load(Ordering::Relaxed));
        }
        if let Some(crowd) = state.crowd.made() {
            crowd.lost.retain(|lost| !Arc::ptr_eq(&lost.hold, &grant.hold));
        }
        true
    }

    /// The holds here that have this permit.
    pub(crate) fn with_permit(&self, id: &[u8; 16]) -> Vec<Arc<Hold>> {
        let standing = self.standing(Mode::Shared).into_iter();
        standing.filter(|hold| hold.field.as_bytes().chunks(16).any(|own| own == id)).collect()
    }
}

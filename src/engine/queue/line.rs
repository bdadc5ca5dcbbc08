//! Those who stand in a line at the server, each in a place of its own.

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::engine::queue::waiter::{Outcome, Waiter};
use crate::engine::queue::{Name, State};
use crate::engine::recipe::Waiting;
use crate::engine::renewal::next_beat;
use crate::lease::Moment;
use crate::server::batch::CallResult;
use crate::server::reply::Answer;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When the first of ours in a line looks after a release that somebody else was told of.
const UNHEARD: Duration = Duration::from_secs(1);

/// When the first of ours in a line looks after a release of ours, if that is still to come.
fn unheard(release: Moment, now: Moment) -> Moment {
    let look = release.saturating_add(UNHEARD);
    if now < look { look } else { Moment::NEVER }
}

impl Name {
    /// Refused, but with a place in the line at the server.
    pub(super) fn stand_in_line(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        state: &mut State,
        hold: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        ttl: Option<Duration>,
    ) {
        let now = Moment::now();
        // What only looked has no place, unless the server took it for one that waits before.
        let first = !hold.in_line.swap(true, Ordering::Relaxed);
        hold.begin_anew();
        let request = &waiter.request;
        let mut slot = waiter.slot.lock();
        slot.refused = true;
        let cancelled = slot.cancelled;
        if cancelled || request.is_over(now) {
            slot.ear = None;
            drop(slot);
            hold.in_line.store(!(first && request.is_one_shot()), Ordering::Relaxed);
            self.discard(engine, hold.clone());
            return waiter.finish(Outcome::Refused);
        }
        let pause = self.pause_after_refusal(engine, state, ttl);
        slot.next_try = now.saturating_add(pause);
        let is_first = |other: &Arc<Waiter>| request.since <= other.request.since;
        if state.crowd.queue.front().is_none_or(is_first) {
            // We may have given it back since the server was asked.
            slot.next_try = slot.next_try.min(unheard(state.last_release, now));
        }
        if hold.called.swap(false, Ordering::Relaxed) {
            slot.heed_call(now);
        }
        slot.attempt = Some(hold.clone());
        if first {
            let beat = next_beat(now);
            hold.set_due(beat);
            engine.renewal.watch(engine, hold, beat);
            if engine.waiting(&self.recipe) == Waiting::InLine {
                slot.ear = Some(engine.attend(self, hold));
            }
        }
        drop(slot);
        self.wait_on(engine, state, waiter, false);
    }

    /// Who may enter the newest hold does so, and wants none of its own any more.
    pub(super) fn bring_in_entrants(self: &Arc<Self>, engine: &Arc<Engine>, state: &mut State) {
        state.sort_entrants(self.recipe.kind);
        for inside in &state.crowd.entrants {
            self.abandon_attempt(engine, inside);
        }
    }

    /// After a release, has the next of our own try.
    pub(super) fn call_first(&self, state: &mut State, result: &CallResult) {
        if !self.recipe.kind.is_in_line() {
            state.crowd.make().try_now = true;
            return;
        }
        // The server tells the first in line. If nobody heard that, it may be the first of ours;
        // if somebody did, ours looks in a while, should that message be lost.
        let heard = matches!(result, Ok(Answer { code: 1.., .. }));
        if let Some(first) = state.crowd.queue.iter().find(|waiter| !waiter.is_dormant()) {
            let mut slot = first.slot.lock();
            slot.try_now |= !heard;
            slot.next_try = slot.next_try.min(unheard(state.last_release, state.last_release));
        }
    }
}

//! Between processes: who goes first when a lock that several wait for is given back.
//!
//! Nobody orders them. Who gives it back stands back for a moment, and then lets those who waited
//! at that time have a turn each before it tries at once again. It can only guess who they are: it
//! counts messages, and none of it is needed for more than fairness.

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::engine::queue::calls::{LONGEST_SPIN, spin_pause};
use crate::engine::queue::{Crowd, Echo, Name, State};
use crate::engine::recipe::Waiting;
use crate::lease::Moment;
use crate::server::batch::CallResult;
use crate::server::reply::Answer;
use std::time::Duration;

/// How long our head lets others go first after a release.
const SHORTEST_STAND_BACK: Duration = Duration::from_micros(200);
const LONGEST_STAND_BACK: Duration = Duration::from_millis(5);

/// The time in which those who were told of a release should have tried.
pub(super) fn shortest_stand_back(engine: &Engine) -> Duration {
    (engine.round_trip() * 2).clamp(SHORTEST_STAND_BACK, LONGEST_STAND_BACK)
}

impl Crowd {
    /// Learns from the try after a stand-back: longer if nobody came, shorter if somebody did.
    pub(super) fn stood_back(&mut self, result: &CallResult) {
        if self.standing_back.take().is_none() {
            return;
        }
        match result {
            Ok(Answer { code: 0, .. }) => {
                self.stand_back = (self.stand_back * 2).min(LONGEST_STAND_BACK);
            }
            Ok(_) => self.stand_back /= 2,
            Err(_) => {}
        }
    }
}

impl Name {
    /// After a release, gives waiters of other processes the time to be faster than our own head.
    pub(super) fn let_others_go_first(
        &self,
        engine: &Engine,
        state: &mut State,
        hold: &Hold,
        told: u64,
        now: Moment,
    ) {
        let Some(crowd) = state.crowd.made() else { return };
        crowd.others_first = 0;
        let alone = crowd.queue.is_empty() || self.recipe.kind.is_in_line();
        if alone || engine.is_closing() {
            return;
        }
        if engine.waiting(&self.recipe) == Waiting::Spin {
            // Nobody can be told: those who try now and then find it free for a fifth of the time.
            let quarter = hold.first_sent().until(now) / 4;
            crowd.try_now = false;
            crowd.next_try = now.saturating_add(quarter.min(spin_pause(LONGEST_SPIN)));
            return;
        }
        let own = u64::from(crowd.listening);
        // A cluster's PUBLISH counts the subscribers of one node only: there may be others.
        let blind = engine.wiring.address.is_cluster() && !engine.wiring.sharded();
        if told <= own && !blind {
            return;
        }
        crowd.others_first = told.saturating_sub(own);
        let least = shortest_stand_back(engine);
        crowd.stand_back = crowd.stand_back.clamp(least, LONGEST_STAND_BACK);
        crowd.standing_back = Some(if crowd.listening { Echo::Due } else { Echo::Past });
        crowd.try_now = false;
        crowd.next_try = now.saturating_add(crowd.stand_back);
    }
}

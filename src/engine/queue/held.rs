//! The hold of this process and who is in it; holds that were lost.

use crate::engine::Counted;
use crate::engine::hold::Hold;
use crate::engine::queue::waiter::{Outcome, Request, Tickets, Waiter};
use crate::engine::renewal::first_due;
use crate::error::LostReason;
use crate::lease::Moment;
use crate::owner::{Liveness, Owner, OwnerKey, PollContext};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// One entry of an owner into the hold.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) owner: OwnerKey,
    pub(super) alive: Liveness,
    /// Where a default owner's future was polled.
    pub(super) context: Option<PollContext>,
    pub(super) renewed: bool,
    pub(super) guarded: bool,
    pub(super) label: Option<Arc<str>>,
    pub(super) at: &'static Location<'static>,
    /// Since when its waiter has not taken it.
    pub(super) offered: Option<(Moment, Arc<Waiter>)>,
}

impl Entry {
    /// Whether it keeps the hold renewed.
    pub(super) fn keeps(&self) -> bool {
        self.renewed && (self.guarded || self.alive.is_alive())
    }
}

/// The hold of this process, and who is in it.
pub(super) struct Held {
    pub(super) hold: Arc<Hold>,
    pub(super) entries: Vec<Entry>,
    /// The count at the server, as far as is known.
    pub(super) count: u32,
    /// A call that changes the count got no answer.
    pub(super) unsure: bool,
    pub(super) tickets: Tickets,
    /// Not before this are calls tried again.
    pub(super) retry_at: Moment,
    pub(super) verified: Moment,
    pub(super) counted: Counted,
}

pub(super) enum MayEnter {
    Yes,
    NotYet,
    /// The same task, in another branch: at this line.
    Never(&'static Location<'static>),
}

impl Held {
    pub(super) fn may_enter(&self, request: &Request) -> MayEnter {
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
    pub(super) fn is_around(&self, owner: &Owner) -> bool {
        self.entries.iter().any(|entry| owner.is_within(entry.owner))
    }

    pub(super) fn is_behind(&self) -> bool {
        self.entries.len() < self.count as usize || self.unsure
    }

    /// Renews the hold while an entry wants it. If that begins now, says when it is first due: a
    /// hold that was fixed so far is not looked at before its lease ends.
    pub(super) fn update_renewal(&self, watchdog: Duration) -> Option<Moment> {
        let wanted = self.entries.iter().any(Entry::keeps);
        match self.hold.renewed_for() {
            None if wanted => {
                let due = first_due(Moment::now(), watchdog);
                self.hold.renew_for(Some(watchdog), due);
                return Some(due);
            }
            Some(_) if !wanted => self.hold.renew_for(None, Moment::NEVER),
            _ => {}
        }
        None
    }
}

/// A lost hold whose owners have not all been told.
pub(super) struct LostHold {
    pub(super) hold: Arc<Hold>,
    pub(super) reason: LostReason,
    pub(super) entries: Vec<Entry>,
}

/// Takes the waiters out of entries that were offered and not collected.
pub(super) fn take_uncollected(entries: &mut Vec<Entry>) -> Vec<Arc<Waiter>> {
    let mut waiters = Vec::new();
    entries.retain(|entry| {
        let Some((_, waiter)) = &entry.offered else { return true };
        let mut slot = waiter.slot.lock();
        if !matches!(slot.outcome, Some(Outcome::Granted(_))) {
            return true;
        }
        slot.outcome = None;
        // Else a future that is not polled would be granted one short lease after the other.
        slot.dormant = true;
        slot.refused = true;
        drop(slot);
        waiters.push(waiter.clone());
        false
    });
    waiters
}

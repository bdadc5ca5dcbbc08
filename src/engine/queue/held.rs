//! The hold of this process and who is in it; holds that were lost.

use crate::engine::Counted;
use crate::engine::hold::Hold;
use crate::engine::queue::waiter::{Outcome, Request, Ticket, Tickets, Waiter};
use crate::engine::recipe::Mode;
use crate::engine::renewal::first_due;
use crate::error::LostReason;
use crate::lease::Moment;
use crate::owner::{Liveness, Owner, OwnerKey, PollContext};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// One entry of an owner into the hold.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) mode: Mode,
    pub(super) owner: OwnerKey,
    pub(super) alive: Liveness,
    /// Where a default owner's future was polled.
    pub(super) context: Option<PollContext>,
    /// The TTL it is to be renewed for.
    pub(super) renewed: Option<Duration>,
    pub(super) guarded: bool,
    pub(super) label: Option<Arc<str>>,
    pub(super) at: &'static Location<'static>,
    /// Since when its waiter has not taken it.
    pub(super) offered: Option<(Moment, Arc<Waiter>)>,
}

/// Most holds are entered once: no room of its own for that.
pub(super) type Entries = SmallVec<[Entry; 1]>;

impl Entry {
    /// The TTL for which it keeps the hold renewed.
    fn keeps(&self) -> Option<Duration> {
        self.renewed.filter(|_| self.guarded || self.alive.is_alive())
    }
}

/// The hold of this process, and who is in it.
pub(super) struct Held {
    pub(super) hold: Arc<Hold>,
    pub(super) entries: Entries,
    /// The counts at the server, as far as is known.
    pub(super) counts: Counts,
    /// In which modes a call that changes the count got no answer.
    pub(super) unsure: Counts,
    /// Who waits for a release, and in which mode.
    pub(super) tickets: SmallVec<[(Mode, Arc<Ticket>); 1]>,
    /// Not before this are calls tried again.
    pub(super) retry_at: Moment,
    pub(super) verified: Moment,
    pub(super) counted: Counted,
}

/// How often a hold is held in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    exclusive: u32,
    shared: u32,
}

impl Counts {
    pub(super) fn once(mode: Mode) -> Self {
        let mut counts = Self::default();
        counts.set(mode, 1);
        counts
    }

    pub(super) fn of(self, mode: Mode) -> u32 {
        match mode {
            Mode::Exclusive => self.exclusive,
            Mode::Shared => self.shared,
        }
    }

    pub(super) fn set(&mut self, mode: Mode, count: u32) {
        match mode {
            Mode::Exclusive => self.exclusive = count,
            Mode::Shared => self.shared = count,
        }
    }
}

pub(super) enum MayEnter {
    Yes,
    NotYet,
    /// The same task, in another branch: at this line.
    Never(&'static Location<'static>),
}

impl Held {
    pub(super) fn may_enter(&self, request: &Request) -> MayEnter {
        let mut inside = self.entries.is_empty();
        for entry in &self.entries {
            if !request.owner.is_within(entry.owner) {
                // Beside readers a reader need not be within: it is enough that it is in the hold.
                if entry.mode == Mode::Shared && request.mode == Mode::Shared {
                    continue;
                }
                return MayEnter::NotYet;
            }
            inside = true;
            if let Some(context) = entry.context.as_ref().filter(|_| request.owner.is_default()) {
                if !context.is(&request.context) {
                    return MayEnter::Never(entry.at);
                }
            }
        }
        if inside { MayEnter::Yes } else { MayEnter::NotYet }
    }

    /// Where what this request wants alone is held by its own line, which only reads.
    pub(super) fn keeps_from_writing(
        &self,
        request: &Request,
    ) -> Option<&'static Location<'static>> {
        if request.mode == Mode::Shared || self.is_exclusive() {
            return None;
        }
        let own = self.entries.iter().rfind(|entry| request.owner.is_within(entry.owner));
        own.map(|entry| entry.at)
    }

    /// Whether somebody of this owner's line is inside.
    pub(super) fn is_around(&self, owner: &Owner) -> bool {
        self.entries.iter().any(|entry| owner.is_within(entry.owner))
    }

    /// Whether somebody of this owner's line is inside in this mode.
    pub(super) fn is_around_in(&self, owner: &Owner, mode: Mode) -> bool {
        let inside = |entry: &Entry| entry.mode == mode && owner.is_within(entry.owner);
        self.entries.iter().any(inside)
    }

    /// How many entries it has in a mode.
    pub(super) fn entered(&self, mode: Mode) -> u32 {
        self.entries.iter().filter(|entry| entry.mode == mode).count() as u32
    }

    /// Whether it keeps everybody else out.
    pub(super) fn is_exclusive(&self) -> bool {
        self.counts.exclusive > 0 || self.entered(Mode::Exclusive) > 0
    }

    /// The mode in which the server has to be told of the entries, if there is one.
    pub(super) fn behind(&self) -> Option<Mode> {
        let behind =
            |mode: &Mode| self.entered(*mode) < self.counts.of(*mode) || self.unsure.of(*mode) > 0;
        // What keeps others out ends first, so that a downgrade lets them in.
        [Mode::Exclusive, Mode::Shared].into_iter().find(behind)
    }

    /// Whether the server has nothing of it but, perhaps, this mode.
    pub(super) fn has_only(&self, mode: Mode) -> bool {
        let other = match mode {
            Mode::Exclusive => Mode::Shared,
            Mode::Shared => Mode::Exclusive,
        };
        self.counts.of(other) == 0 && self.unsure.of(other) == 0
    }

    /// Takes those who wait for a release in this mode.
    pub(super) fn take_tickets(&mut self, mode: Mode) -> Tickets {
        let (taken, left): (SmallVec<_>, SmallVec<_>) =
            std::mem::take(&mut self.tickets).into_iter().partition(|(of, _)| *of == mode);
        self.tickets = left;
        taken.into_iter().map(|(_, ticket): (Mode, _)| ticket).collect()
    }

    /// Whether a call for it got no answer.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure != Counts::default()
    }

    pub(super) fn is_behind(&self) -> bool {
        self.behind().is_some()
    }

    /// Renews the hold while an entry wants it. If that begins now, says when it is first due: a
    /// hold that was fixed so far is not looked at before its lease ends.
    pub(super) fn update_renewal(&self) -> Option<Moment> {
        let wanted = self.entries.iter().filter_map(Entry::keeps).max();
        let renewed = self.hold.renewed_for();
        match wanted {
            Some(lease) if renewed != wanted => {
                let due = first_due(Moment::now(), lease);
                self.hold.renew_for(wanted, due);
                return Some(due);
            }
            None if renewed.is_some() => self.hold.renew_for(None, Moment::NEVER),
            _ => {}
        }
        None
    }
}

/// A lost hold whose owners have not all been told.
pub(super) struct LostHold {
    pub(super) hold: Arc<Hold>,
    pub(super) reason: LostReason,
    pub(super) entries: Entries,
}

/// Takes the waiters out of entries that were offered and not collected.
pub(super) fn take_uncollected(entries: &mut Entries) -> Vec<Arc<Waiter>> {
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

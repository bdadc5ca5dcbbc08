//! Those who wait: an acquisition that is under way, and a release that somebody waits for.

use crate::config::Replicas;
use crate::engine::hold::Hold;
use crate::engine::queue::driving::Eager;
use crate::engine::recipe::Mode;
use crate::error::Error;
use crate::lease::{Lease, Moment};
use crate::owner::{Owner, PollContext};
use crate::server::Text;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::AbortHandle;

/// What an acquisition asks for.
pub(crate) struct Request {
    pub owner: Owner,
    pub context: PollContext,
    pub mode: Mode,
    /// How many permits; 1 of a lock.
    pub units: u32,
    /// What the handle says to the script beside the rest.
    pub extra: Option<Arc<str>>,
    pub lease: Lease,
    /// The TTL to ask for.
    pub length: Duration,
    /// Renewed for now, whatever the lease: others are still being collected.
    pub collecting: bool,
    /// Of one of a quorum: what the server is to call its first hold, as all others do.
    pub field: Option<Text>,
    pub max_hold: Option<Duration>,
    /// How many replicas must have it, if any.
    pub replicas: Option<Replicas>,
    pub label: Option<Arc<str>>,
    pub at: &'static Location<'static>,
    pub since: Moment,
    /// When to give up; `None`: never.
    pub deadline: Option<Moment>,
}

impl Request {
    /// The TTL that renewals ask for; `None` if it is not to be renewed.
    pub(super) fn renewed_for(&self) -> Option<Duration> {
        (self.lease == Lease::Renewed || self.collecting).then_some(self.length)
    }

    /// Whether it takes over what somebody else leaves.
    pub(super) fn takes_over(&self) -> bool {
        self.mode == Mode::Exclusive && self.lease == Lease::Renewed && self.field.is_none()
    }

    /// When a turn that begins now ends at the latest.
    pub(super) fn longest(&self, now: Moment) -> Moment {
        self.max_hold.map_or(Moment::NEVER, |max| now.saturating_add(max))
    }

    /// Whether it asks just once, and does not wait.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= self.since)
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
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
    /// Which of the hold's turns.
    pub turn: u64,
    pub entry: u64,
}

/// One acquisition that is under way in this process.
pub(crate) struct Waiter {
    pub request: Request,
    pub(super) slot: Mutex<Slot>,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) outcome: Option<Outcome>,
    pub(super) waker: Option<Waker>,
    /// Since this acquisition began, another holder was seen.
    pub(super) refused: bool,
    /// It left a grant uncollected: others go first until its future is polled again.
    pub(super) dormant: bool,
    /// Its future is gone.
    pub(super) cancelled: bool,
    /// The name it brought has been used: every hold has one of its own.
    pub(super) named: bool,
    pub(super) warned: bool,
    /// A hold that may have been granted already, or that stands in line at the server: to be asked
    /// for again under the same id.
    pub(super) attempt: Option<Arc<Hold>>,
    /// What this process was giving back when it came: it asks after that.
    pub(super) follows: Vec<u64>,
    /// Of one that stands in line: it tries now, or then.
    pub(super) try_now: bool,
    pub(super) next_try: Moment,
    pub(super) eager: Eager,
    /// Of one that stands in line: listens to its own channel.
    pub(super) ear: Option<Ear>,
}

impl Slot {
    /// Of one that stands in line: it was told to try again.
    pub(super) fn heed_call(&mut self, now: Moment) {
        match self.eager.count(now) {
            Ok(()) => self.try_now = true,
            Err(later) => self.next_try = self.next_try.min(later),
        }
    }
}

/// Ends listening when its waiter is gone.
pub(crate) struct Ear(pub AbortHandle);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Waiter {
    pub(crate) fn new(request: Request) -> Arc<Self> {
        Arc::new(Self { request, slot: Mutex::default() })
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        let mut slot = self.slot.lock();
        slot.outcome = Some(outcome);
        slot.ear = None;
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn fail(&self, error: Error) {
        self.finish(Outcome::Failed(error));
    }

    /// Whoever polls it looks for the outcome by itself right after this.
    pub(crate) fn hush(&self) {
        self.slot.lock().waker = None;
    }

    pub(super) fn is_dormant(&self) -> bool {
        self.slot.lock().dormant
    }
}

/// Someone who waits for a release to be through.
#[derive(Default)]
pub(crate) struct Ticket(Mutex<TicketSlot>);

#[derive(Default)]
struct TicketSlot {
    result: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

impl Ticket {
    pub(super) fn finish(&self, result: Result<(), Error>) {
        let mut slot = self.0.lock();
        slot.result = Some(result);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    /// Whoever polls it looks for the result by itself right after this.
    pub(crate) fn hush(&self) {
        self.0.lock().waker = None;
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut slot = self.0.lock();
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub(crate) type Tickets = SmallVec<[Arc<Ticket>; 1]>;

pub(crate) fn finish_all(tickets: Tickets, result: &Result<(), Error>) {
    for ticket in tickets {
        ticket.finish(result.clone());
    }
}

//! The one call of a name that is under way, and how answers are read.

use crate::engine::Counted;
use crate::engine::hold::Hold;
use crate::engine::queue::waiter::{Tickets, Waiter};
use crate::engine::recipe::Mode;
use crate::error::{Error, LostReason, Refusal, refusal};
use crate::lease::Moment;
use crate::server::batch::CallResult;
use crate::server::reply::{Answer, CallError};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The one call of a name that is under way. Whoever asked for it may drive it; the engine takes
/// it over if they do not.
pub(crate) struct Flight {
    pub(super) kind: FlightKind,
    pub(super) sent: Moment,
    slot: Mutex<FlightSlot>,
}

struct FlightSlot {
    call: Option<CallFuture>,
    /// Of the caller that drives it.
    waker: Option<Waker>,
}

pub(super) enum FlightKind {
    /// Asks for a fresh hold.
    Fresh { hold: Arc<Hold>, waiter: Arc<Waiter> },
    /// Enters a hold once more.
    Enter { hold: Arc<Hold>, waiter: Arc<Waiter>, count: u32 },
    /// Brings the server's count in one mode down to that of the entries.
    Lower { hold: Arc<Hold>, mode: Mode, count: u32, tickets: Mutex<Tickets> },
    /// Gives the hold back, in the last mode it stands in; `resent` if that was sent before.
    Final { hold: Arc<Hold>, mode: Mode, resent: bool, tickets: Mutex<Tickets>, _counted: Counted },
}

impl FlightKind {
    fn hold(&self) -> &Arc<Hold> {
        match self {
            Self::Fresh { hold, .. }
            | Self::Enter { hold, .. }
            | Self::Lower { hold, .. }
            | Self::Final { hold, .. } => hold,
        }
    }
}

impl Flight {
    pub(super) fn new(kind: FlightKind, sent: Moment, call: CallFuture) -> Arc<Self> {
        let slot = Mutex::new(FlightSlot { call: Some(call), waker: None });
        Arc::new(Self { kind, sent, slot })
    }

    pub(crate) fn sent(&self) -> Moment {
        self.sent
    }

    /// Takes the call to drive it; `None` if somebody else does.
    pub(crate) fn take(&self) -> Option<CallFuture> {
        let mut slot = self.slot.lock();
        let call = slot.call.take()?;
        // The caller does not hear of the reply any more, and needs a timer of its own.
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
        Some(call)
    }

    /// Drives the call a step; `None` if somebody else has it, or it is through.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Option<Poll<CallResult>> {
        let mut slot = self.slot.lock();
        let polled = slot.call.as_mut()?.as_mut().poll(cx);
        if polled.is_ready() {
            slot.call = None;
        } else {
            slot.waker = Some(cx.waker().clone());
        }
        Some(polled)
    }
}

impl Flight {
    /// The acquisition it is for, if it is for one.
    pub(super) fn waiter(&self) -> Option<&Arc<Waiter>> {
        match &self.kind {
            FlightKind::Fresh { waiter, .. } | FlightKind::Enter { waiter, .. } => Some(waiter),
            FlightKind::Lower { .. } | FlightKind::Final { .. } => None,
        }
    }

    pub(super) fn is_for(&self, waiter: &Arc<Waiter>) -> bool {
        self.waiter().is_some_and(|own| Arc::ptr_eq(own, waiter))
    }

    /// Whether it asks for a hold that is not there yet.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.kind, FlightKind::Fresh { .. })
    }

    /// Whether it gives a hold back.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.kind, FlightKind::Final { .. })
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        self.kind.hold()
    }

    pub(super) fn is_of(&self, hold: &Arc<Hold>) -> bool {
        Arc::ptr_eq(self.kind.hold(), hold)
    }

    /// Whether it takes or gives back what keeps everybody else out.
    pub(super) fn is_exclusive(&self) -> bool {
        let mode = match &self.kind {
            FlightKind::Fresh { waiter, .. } | FlightKind::Enter { waiter, .. } => {
                waiter.request.mode
            }
            FlightKind::Lower { mode, .. } | FlightKind::Final { mode, .. } => *mode,
        };
        mode == Mode::Exclusive
    }

    /// Whether the engine sees it through, no more its caller.
    pub(super) fn is_taken(&self) -> bool {
        self.slot.lock().call.is_none()
    }
}

/// The answer to an acquire or a partial release.
pub(super) enum Read {
    /// With the text that came along.
    Done(Option<String>),
    Gone,
    Refused {
        ttl: Option<Duration>,
        holder: String,
    },
    Failed(String),
    NotSent(#[allow(dead_code, reason = "for debugging")] String),
    Unknown(#[allow(dead_code, reason = "for debugging")] String),
}

pub(super) fn read(result: CallResult) -> Read {
    match result {
        Ok(Answer { code: 0, text }) => Read::Done(text),
        Ok(Answer { code: -1, .. }) => Read::Gone,
        Ok(Answer { code: -2, text }) => Read::Failed(text.unwrap_or_default()),
        // lock/release says so of a count that is kept, lock/acquire of a lock without a TTL.
        Ok(Answer { code: -3, text: None }) => Read::Done(None),
        Ok(Answer { code: -3, text }) => {
            Read::Refused { ttl: None, holder: text.unwrap_or_default() }
        }
        Ok(Answer { code, text }) => {
            let ttl = u64::try_from(code - 1).ok().map(Duration::from_millis);
            Read::Refused { ttl, holder: text.unwrap_or_default() }
        }
        Err(CallError::Refused(text)) => Read::Failed(text),
        Err(CallError::NotSent(why)) => Read::NotSent(why),
        Err(CallError::Unknown(why)) => Read::Unknown(why),
        // It was done all the same; who asked for replicas undoes it.
        Err(CallError::Short(_)) => Read::Done(None),
    }
}

/// Whether a refusal passes by itself, so that waiting calls ride it out.
pub(crate) fn passes(text: &str) -> bool {
    match refusal(text) {
        Refusal::ReadOnly | Refusal::Loading | Refusal::Busy => true,
        Refusal::Cluster => !text.starts_with("CROSSSLOT"),
        _ => false,
    }
}

/// The answer to a final release.
pub(crate) enum Released {
    /// It is free, or was not ours any more.
    Yes(Result<(), Error>),
    Refused(Error),
    Unknown,
}

/// Reads the answer to a final release; `resent` if one was sent before.
pub(crate) fn released(name: &str, hold: &Hold, result: CallResult, resent: bool) -> Released {
    match result {
        Ok(Answer { code: -1, .. }) => Released::Yes(match hold.lost() {
            // The first send may have done it, unless it left too late.
            None if resent => Ok(()),
            None if Moment::now() >= hold.deadline() => Err(Error::lost(name, LostReason::Expired)),
            None => Err(Error::lost(name, LostReason::Removed)),
            Some(reason) => Err(Error::lost(name, reason)),
        }),
        Ok(Answer { code: -2, text }) => {
            let text = text.unwrap_or_default();
            if passes(&text) {
                return Released::Unknown;
            }
            Released::Refused(Error::server(Some(name), &text))
        }
        Ok(Answer { code: -4, text }) => {
            Released::Yes(Err(Error::not_announced(name, &text.unwrap_or_default())))
        }
        Ok(_) => Released::Yes(Ok(())),
        Err(CallError::Refused(text)) if !passes(&text) => {
            Released::Refused(Error::server(Some(name), &text))
        }
        Err(_) => Released::Unknown,
    }
}

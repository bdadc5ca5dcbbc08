//! One outermost acquisition at Redis: its id, its lease, and whether it still stands.
//!
//! The hold is what Redis sees, under a field that was never used before, so nothing late (a reply,
//! a resend, a clean-up) can ever touch another hold. Its deadline may be read without a lock.
//!
//! A turn is one owner's time with a hold: a release may pass the hold on to the next waiter of
//! this process. Id, lease and renewal are the hold's; guards, loss and `max_hold` the turn's.

use crate::config::Replicas;
use crate::engine::queue::{Name, Request};
use crate::engine::recipe::Mode;
use crate::engine::settled::RESENDS;
use crate::error::LostReason;
use crate::lease::{self, Moment};
use crate::server::Text;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Where a hold stands; it only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Asked for; the wheel watches that somebody takes the answer.
    Pending = 0,
    /// Granted: renewed and watched.
    Held = 1,
    /// The final release is under way: nothing renews it any more.
    Ending = 2,
    /// Given back, or lost.
    Over = 3,
}

/// What the wheel is to do with a hold it visits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nothing ever again.
    Forget,
    /// Look again then.
    Again(Moment),
    /// Nobody took the answer to the acquire: the engine must.
    TakeOver(Moment),
    /// Renew it now.
    Renew,
    /// It is lost, for this reason.
    Lose(LostReason),
}

pub(crate) struct Hold {
    pub name: Arc<Name>,
    /// Never used before, and never again.
    pub id: u64,
    /// What the server calls it; of a lock `<uuid>:<id>`, the field in the hash.
    pub field: Text,
    /// How many permits it asks for; 1 for a lock.
    pub units: u32,
    /// What its handle had to say beside the rest.
    pub extra: Option<Arc<str>>,
    /// Its acquisition asks once and does not wait.
    pub one_shot: bool,
    /// It is one of a quorum, and stands for its owner alone: never handed over.
    pub of_quorum: bool,
    /// What came with the grant: a fencing token. 0 if nothing did.
    token: AtomicU64,
    /// In which modes it was ever asked for, see [`Hold::asked_in`].
    modes: AtomicU8,
    /// In which modes it stands at the server, see [`Hold::stands`].
    stands: AtomicU64,
    phase: AtomicU8,
    /// Until when it is certainly held, for its holder.
    deadline: AtomicU64,
    /// Until when the server may keep it, whatever became of our commands.
    stands_until: AtomicU64,
    /// When it was first asked for; 0 before.
    first_sent: AtomicU64,
    /// The TTL that renewals ask for, in nanoseconds; 0 while it is not renewed.
    renewed_for: AtomicU64,
    /// When the next renewal is due.
    due: AtomicU64,
    /// Counts the turns; what an earlier one asks is answered as after its end.
    turn: AtomicU64,
    /// When this turn ends by `max_hold`.
    longest: AtomicU64,
    /// Where the wheel has it.
    pub place: Place,
    /// A renewal of it waits to be sent.
    pub renewal_waits: AtomicBool,
    /// A command that may have granted it got no reply: it may run later, see `Connection`.
    pub unsure: AtomicBool,
    /// When the first final release of it was sent that got no answer; 0 if none was.
    release_in_doubt: AtomicU64,
    /// The server has said that it is given back: whatever is sent now only undoes what runs late.
    pub given_back: AtomicBool,
    /// How many replicas must have what keeps it, see [`Hold::replicas`].
    required: AtomicU64,
    /// Until when the server may keep it by a write that too few replicas are known to have.
    unproven: AtomicU64,
    /// Calls under way that give it a TTL and that replicas must have.
    proofs: Mutex<Vec<Proof>>,
    /// It waits in a queue at the server, which must hear of it again and again.
    pub in_line: AtomicBool,
    /// While it was being asked for, its waiter was told to try again.
    pub called: AtomicBool,
    reason: Mutex<Option<LostReason>>,
    ended: Notify,
}

impl Hold {
    /// `named` is what the server is to call it; else it gets a name of its own.
    pub(crate) fn new(
        name: Arc<Name>,
        uuid: &str,
        id: u64,
        request: &Request,
        named: Option<Text>,
    ) -> Arc<Self> {
        let Request { units, extra, .. } = request;
        let field = named.unwrap_or_else(|| (name.recipe.kind.field)(uuid, id, *units).into());
        Arc::new(Self {
            name,
            id,
            field,
            units: *units,
            extra: extra.clone(),
            one_shot: request.is_one_shot(),
            of_quorum: request.field.is_some(),
            token: AtomicU64::new(0),
            modes: AtomicU8::new(0),
            stands: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Pending as u8),
            deadline: AtomicU64::new(0),
            stands_until: AtomicU64::new(0),
            first_sent: AtomicU64::new(0),
            renewed_for: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            turn: AtomicU64::new(0),
            longest: AtomicU64::new(u64::MAX),
            place: Place::default(),
            renewal_waits: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            release_in_doubt: AtomicU64::new(0),
            given_back: AtomicBool::new(false),
            required: AtomicU64::new(request.replicas.map_or(0, pack)),
            unproven: AtomicU64::new(0),
            proofs: Mutex::new(Vec::new()),
            in_line: AtomicBool::new(false),
            called: AtomicBool::new(false),
            reason: Mutex::new(None),
            ended: Notify::new(),
        })
    }

    /// What the server calls it, in letters: the ids of permits are bytes.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        let kind = self.name.recipe.kind;
        if kind.owned || kind.renew.is_none() {
            return Cow::Borrowed(&self.field);
        }
        let ids = self.field.as_bytes().chunks(16);
        let ids = ids.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        Cow::Owned(ids.collect::<Vec<_>>().join(" "))
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Pending,
            1 => Phase::Held,
            2 => Phase::Ending,
            _ => Phase::Over,
        }
    }

    /// How many replicas must have what keeps it, if any: the most that anybody in it ever asked for.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        let packed = self.required.load(Ordering::Relaxed);
        let count = (packed >> 32) as u8;
        Replicas::new(count, Duration::from_millis(packed & u64::from(u32::MAX)))
    }

    /// Whether something was sent for it on the connection for what replicas must have.
    pub(crate) fn is_apart(&self) -> bool {
        self.required.load(Ordering::Relaxed) != 0
    }

    /// Something is about to be sent for it there.
    pub(crate) fn goes_apart(&self) {
        self.required.fetch_or(APART, Ordering::Relaxed);
    }

    /// Somebody is in it for whom so many replicas have it, and are to have what keeps it.
    pub(crate) fn require(&self, replicas: Replicas) {
        self.required.store(pack(replicas), Ordering::Relaxed);
    }

    /// Too few replicas are known to have a write by which it stands until then at the latest.
    pub(crate) fn may_stand_unproven(&self, until: Moment) {
        self.unproven.fetch_max(until.raw(), Ordering::Relaxed);
    }

    /// Enough replicas have what was unproven, unless more came to that meanwhile.
    pub(crate) fn is_proven(&self, unproven: Moment) {
        let (known, none) = (unproven.raw(), Moment::default().raw());
        let _ = self.unproven.compare_exchange(known, none, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A call that asks for this lease is under way now, and with which others.
    pub(crate) fn begin_proof(&self, lease: Duration) -> u64 {
        let mut proofs = self.proofs.lock();
        let mut proof = Proof { id: 0, lease, in_vain: false };
        for other in proofs.iter_mut() {
            // Whichever comes first at the server, one that does not ask for more writes nothing.
            other.in_vain |= lease >= other.lease;
            proof.in_vain |= other.lease >= lease;
            proof.id = proof.id.max(other.id + 1);
        }
        let id = proof.id;
        proofs.push(proof);
        id
    }

    /// It has ended; whether it may have written nothing.
    pub(crate) fn end_proof(&self, id: u64) -> bool {
        let mut proofs = self.proofs.lock();
        let at = proofs.iter().position(|proof| proof.id == id);
        at.is_some_and(|at| proofs.swap_remove(at).in_vain)
    }

    /// The longest lease that is being asked for.
    pub(crate) fn longest_proof(&self) -> Duration {
        self.proofs.lock().iter().map(|proof| proof.lease).max().unwrap_or_default()
    }

    pub(crate) fn unproven(&self) -> Moment {
        Moment::from_raw(self.unproven.load(Ordering::Relaxed))
    }

    /// Moves on to a later phase; false if it is there or further already.
    pub(crate) fn advance(&self, to: Phase) -> bool {
        self.phase.fetch_max(to as u8, Ordering::AcqRel) < to as u8
    }

    /// A command that gives it a TTL leaves now; returns the moment to count the lease from.
    pub(crate) fn asked(&self, lease: Duration) -> Moment {
        let now = Moment::now();
        let _ =
            self.first_sent.compare_exchange(0, now.raw(), Ordering::Relaxed, Ordering::Relaxed);
        self.stands_until.fetch_max(now.saturating_add(lease).raw(), Ordering::Relaxed);
        now
    }

    /// A command that takes it in this mode leaves now.
    pub(crate) fn asked_in(&self, mode: Mode) {
        self.modes.fetch_or(bit(mode), Ordering::Relaxed);
    }

    /// It stands in this mode from now on; or does not, as far as nobody is to rely on it.
    pub(crate) fn set_stands(&self, mode: Mode, stands: bool) {
        let change = |known: u64| {
            let bit = u64::from(bit(mode));
            let modes = if stands { known | bit } else { known & !bit };
            // The rest counts the changes.
            Some(modes + 4)
        };
        let _ = self.stands.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// In which modes it stands, with a number that changes whenever they do: an answer to what was
    /// asked before says nothing about now.
    pub(crate) fn stands(&self) -> u64 {
        self.stands.load(Ordering::Acquire)
    }

    pub(crate) fn stands_in(&self, mode: Mode) -> bool {
        self.stands() & u64::from(bit(mode)) != 0
    }

    /// The same for a script: which of `r` and `w` must be there.
    pub(crate) fn stands_text(&self) -> &'static str {
        match self.stands() & 3 {
            0 => "",
            1 => "w",
            2 => "r",
            _ => "rw",
        }
    }

    /// The modes it may stand in at the server.
    pub(crate) fn modes(&self) -> impl Iterator<Item = Mode> + use<> {
        let modes = self.modes.load(Ordering::Relaxed);
        // What is held alone goes last: while it stands nobody else gets in.
        [Mode::Shared, Mode::Exclusive].into_iter().filter(move |mode| modes & bit(*mode) != 0)
    }

    /// Whether it was ever asked for in the mode that keeps others out.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.modes.load(Ordering::Relaxed) & bit(Mode::Exclusive) != 0
    }

    /// Whether the server has ever said that it is held.
    pub(crate) fn was_granted(&self) -> bool {
        self.turn() > 0
    }

    /// A final release of it, sent then, got no answer.
    pub(crate) fn doubt_release(&self, sent: Moment) {
        let doubt = &self.release_in_doubt;
        let _ = doubt.compare_exchange(0, sent.raw(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Until when it may be given back once more. What the server keeps a record of counts again
    /// when that has ended, if it is known to have been granted.
    pub(crate) fn release_until(&self) -> Moment {
        let doubt = Moment::from_raw(self.release_in_doubt.load(Ordering::Relaxed));
        let counts = self.name.recipe.kind.keeps_records && self.takes_back();
        if counts && doubt.raw() > 0 { doubt.saturating_add(RESENDS) } else { Moment::NEVER }
    }

    /// Whether a release is of something that it has for sure.
    pub(crate) fn takes_back(&self) -> bool {
        self.was_granted() && !self.given_back.load(Ordering::Relaxed)
    }

    /// Whether a send that concerns it got no answer.
    pub(crate) fn was_unsure(&self) -> bool {
        self.unsure.load(Ordering::Relaxed) || self.release_in_doubt.load(Ordering::Relaxed) > 0
    }

    /// Until when it may be asked for once more: the record of a send without an answer must stand.
    pub(crate) fn ask_until(&self) -> Moment {
        let unsure = self.name.recipe.kind.keeps_records && self.unsure.load(Ordering::Relaxed);
        if unsure { self.first_sent().saturating_add(RESENDS) } else { Moment::NEVER }
    }

    /// Notes the token that came with the grant; it stays, whatever later answers say.
    pub(crate) fn set_token(&self, token: u64) {
        let _ = self.token.compare_exchange(0, token, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The fencing token that came with the grant.
    pub(crate) fn token(&self) -> Option<u64> {
        Some(self.token.load(Ordering::Relaxed)).filter(|token| *token != 0)
    }

    /// The server has refused it: what it grants later is asked for later.
    pub(crate) fn begin_anew(&self) {
        self.first_sent.store(0, Ordering::Relaxed);
    }

    pub(crate) fn first_sent(&self) -> Moment {
        Moment::from_raw(self.first_sent.load(Ordering::Relaxed))
    }

    /// The server has said that it stands for `lease`, asked for at `sent`. That is too late for one
    /// whose time is up: its holder may have been told so.
    pub(crate) fn extended(&self, sent: Moment, lease: Duration) {
        let held = self.phase() == Phase::Held;
        // Whoever looks whether it is lost has this locked, too.
        let _told = held.then(|| self.reason.lock());
        if held && Moment::now() >= self.deadline() {
            return;
        }
        self.deadline.fetch_max(lease::deadline(sent, lease).raw(), Ordering::Release);
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_raw(self.deadline.load(Ordering::Acquire))
    }

    /// The server may keep something of it until then, if nothing is done.
    pub(crate) fn may_stand_until(&self, moment: Moment) {
        self.stands_until.fetch_max(moment.raw(), Ordering::Relaxed);
    }

    pub(crate) fn stands_until(&self) -> Moment {
        Moment::from_raw(self.stands_until.load(Ordering::Relaxed))
    }

    /// Starts renewing it, `None` stops.
    pub(crate) fn renew_for(&self, lease: Option<Duration>, first: Moment) {
        let nanos = lease.map_or(0, |lease| u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX));
        self.renewed_for.store(nanos, Ordering::Relaxed);
        self.due.store(if nanos == 0 { u64::MAX } else { first.raw() }, Ordering::Relaxed);
    }

    /// The lease that renewals ask for, if it is renewed.
    pub(crate) fn renewed_for(&self) -> Option<Duration> {
        match self.renewed_for.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn set_due(&self, due: Moment) {
        self.due.store(due.raw(), Ordering::Relaxed);
    }

    /// Begins a turn, which ends by `longest` at the latest.
    pub(crate) fn begin_turn(&self, longest: Moment) {
        self.longest.store(longest.raw(), Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends this turn by `longest` if it would last longer.
    pub(crate) fn shorten_turn(&self, longest: Moment) {
        self.longest.fetch_min(longest.raw(), Ordering::Relaxed);
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// Whether it only waits in a queue at the server.
    pub(crate) fn waits_in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) && self.phase() == Phase::Pending
    }

    /// Whether it is held now in this turn, for all its holder can know.
    pub(crate) fn is_held(&self, turn: u64) -> bool {
        self.turn() == turn
            && self.phase() == Phase::Held
            && Moment::now() < self.deadline().min(self.longest())
    }

    fn longest(&self) -> Moment {
        Moment::from_raw(self.longest.load(Ordering::Relaxed))
    }

    /// Until when it is held in this turn if nothing happens.
    pub(crate) fn valid_until(&self, turn: u64) -> Moment {
        if self.turn() == turn && self.phase() == Phase::Held {
            self.deadline().min(self.longest())
        } else {
            Moment::from_raw(self.deadline.load(Ordering::Acquire)).min(Moment::now())
        }
    }

    /// Why it was lost, if it was; also if nobody has noticed yet.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        // Kept locked: a loss told in between would be neither here nor there.
        let reason = self.reason.lock();
        let now = Moment::now();
        match self.phase() {
            Phase::Held if now >= self.deadline() => Some(LostReason::Expired),
            Phase::Held if now >= self.longest() => Some(LostReason::MaxHold),
            _ => *reason,
        }
    }

    /// Ends it as lost and tells everyone who waits for that; false if it was over already.
    ///
    /// Only to be called with the name locked.
    pub(crate) fn set_lost(&self, reason: LostReason) -> bool {
        let mut known = self.reason.lock();
        if known.is_some() || !self.advance(Phase::Over) {
            return false;
        }
        *known = Some(reason);
        drop(known);
        self.ended.notify_waiters();
        true
    }

    /// Why it was lost in this turn, if it was.
    pub(crate) fn lost_in(&self, turn: u64) -> Option<LostReason> {
        self.lost().filter(|_| self.turn() == turn)
    }

    /// Resolves with the reason when the hold is lost in this turn; never if it is given back.
    pub(crate) async fn wait_lost(&self, turn: u64) -> LostReason {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Listen before looking, or the end in between would be missed.
            ended.as_mut().enable();
            // Before the reason, which comes with the last phase.
            let phase = self.phase();
            if self.turn() != turn || phase == Phase::Ending {
                std::future::pending::<()>().await;
            }
            if let Some(reason) = self.lost() {
                return reason;
            }
            if phase == Phase::Over {
                std::future::pending::<()>().await;
            }
            // The wheel is coarse; the holder is told by this timer, on time.
            let left = Moment::now().until(self.valid_until(turn));
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// What the wheel has to do now.
    pub(crate) fn visit(&self, now: Moment) -> Visit {
        match self.phase() {
            Phase::Pending if self.waits_in_line() => {
                let due = Moment::from_raw(self.due.load(Ordering::Relaxed));
                if now >= due { Visit::Renew } else { Visit::Again(due) }
            }
            Phase::Pending => {
                // Should it be granted meanwhile, its first renewal is due a sixth later at least.
                let sixth = self.first_sent().until(self.stands_until()) / 6;
                let pause = sixth.clamp(Duration::from_millis(2), Duration::from_secs(1));
                Visit::TakeOver(now.saturating_add(pause))
            }
            Phase::Ending | Phase::Over => Visit::Forget,
            Phase::Held => {
                let due = Moment::from_raw(self.due.load(Ordering::Relaxed));
                if now >= self.deadline() {
                    Visit::Lose(LostReason::Expired)
                } else if now >= self.longest() {
                    Visit::Lose(LostReason::MaxHold)
                } else if now >= due {
                    Visit::Renew
                } else {
                    let next = due.min(self.deadline()).min(self.longest());
                    // What has no lease and no limit is not watched.
                    if next == Moment::NEVER { Visit::Forget } else { Visit::Again(next) }
                }
            }
        }
    }
}

/// Where a hold's entry is in the wheel: a bucket, and a place in it. Only the wheel, locked, reads
/// or changes it.
#[derive(Default)]
pub(crate) struct Place(AtomicU64);

impl Place {
    pub(crate) fn set(&self, place: Option<(usize, usize)>) {
        let raw = place.map_or(0, |(bucket, at)| ((bucket as u64 + 1) << 32) + at as u64);
        self.0.store(raw, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Option<(usize, usize)> {
        let raw = self.0.load(Ordering::Relaxed);
        self.0.store(0, Ordering::Relaxed);
        let bucket = (raw >> 32).checked_sub(1)?;
        Some((bucket as usize, raw as u32 as usize))
    }
}

/// A call under way that gives a hold a TTL, and that replicas must have.
struct Proof {
    id: u64,
    lease: Duration,
    /// Beside another that asks for as much or more, it may have written nothing.
    in_vain: bool,
}

/// Set in [`Hold::required`] where something went by the connection for what replicas must have.
const APART: u64 = 1 << 63;

fn pack(replicas: Replicas) -> u64 {
    let within = u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX);
    APART | u64::from(replicas.count) << 32 | within.clamp(1, u64::from(u32::MAX))
}

fn bit(mode: Mode) -> u8 {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => 2,
    }
}

//! The one timer wheel: it renews held leases in lists, and ends those whose time is up.
//!
//! It runs on its own thread, with its own connection, so that a blocked runtime neither stops
//! renewals nor hides a loss. The wheel is a hashed one (Varghese and Lauck, 1987) with coarse
//! buckets. A hold has one entry at most and knows its place: one that is over leaves at once, or
//! those of the last seconds would fill the memory, to be freed by another thread.

use crate::config::Replicas;
use crate::engine::hold::{Hold, Phase, Visit};
use crate::engine::queue::passes;
use crate::engine::recipe::Terms;
use crate::engine::{Engine, Wiring};
use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::server::acknowledged::Acknowledged;
use crate::server::batch::{Batch, Call};
use crate::server::connection::Connection;
use crate::server::reply::CallError;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OnceCell, Semaphore};

/// Width of a bucket.
const TICK: Duration = Duration::from_millis(8);

/// Buckets of one turn: a bit over half a minute; longer waits go round again.
const BUCKETS: usize = 4096;

/// How often the server hears of those who stand in line there.
const BEAT: Duration = Duration::from_secs(1);

/// Renewals due within this time of each other travel together.
const GATHER: Duration = Duration::from_millis(96);

/// How soon a renewal is tried again that a server refused for a passing reason.
const PASSING: Duration = Duration::from_millis(250);

/// Most renewals in one command: beyond this the server gains nothing and others wait longer.
const LONGEST_LIST: usize = 128;

/// Renewals under way at once at one server, so that a hundred thousand that are due do not flood
/// it: four full lists, or in a cluster as many short ones as have room.
const RENEWALS_IN_FLIGHT: usize = 4 * LONGEST_LIST;

struct Entry {
    hold: Arc<Hold>,
    due: Moment,
}

struct Wheel {
    buckets: Vec<Vec<Entry>>,
    /// The next bucket to look at, as a count of ticks since boot.
    tick: u64,
    entries: usize,
    stopped: bool,
    started: bool,
}

pub(crate) struct Renewal {
    wheel: Mutex<Wheel>,
    /// Until when the thread sleeps; an earlier entry wakes it.
    asleep_until: AtomicU64,
    wake: Notify,
}

fn tick_of(moment: Moment) -> u64 {
    moment.raw() / TICK.as_nanos() as u64
}

fn start_of(tick: u64) -> Moment {
    Moment::from_raw(tick.saturating_mul(TICK.as_nanos() as u64))
}

impl Renewal {
    pub(crate) fn new() -> Self {
        let wheel = Wheel {
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            tick: tick_of(Moment::now()),
            entries: 0,
            stopped: false,
            started: false,
        };
        Self { wheel: Mutex::new(wheel), asleep_until: AtomicU64::new(0), wake: Notify::new() }
    }

    /// Has a hold visited at `due`, and not when it was to be visited before.
    pub(crate) fn watch(&self, engine: &Arc<Engine>, hold: &Arc<Hold>, due: Moment) {
        let mut wheel = self.wheel.lock();
        if wheel.stopped {
            return;
        }
        if !wheel.started {
            wheel.started = true;
            wheel.tick = tick_of(Moment::now());
            spawn_thread(engine);
        }
        // Dropped when the wheel is free again.
        let _before = wheel.remove(hold);
        wheel.insert(Entry { hold: hold.clone(), due });
        drop(wheel);
        if due.raw() < self.asleep_until.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// A hold that is over is not visited any more.
    pub(crate) fn forget(&self, hold: &Hold) {
        let entry = self.wheel.lock().remove(hold);
        drop(entry);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut wheel = self.wheel.lock();
        wheel.stopped = true;
        let buckets = std::mem::take(&mut wheel.buckets);
        wheel.entries = 0;
        drop(wheel);
        drop(buckets);
        self.wake.notify_one();
    }

    fn is_stopped(&self) -> bool {
        self.wheel.lock().stopped
    }
}

impl Wheel {
    fn insert(&mut self, entry: Entry) {
        // A bucket is looked at when it has begun, so round up; never behind the hand.
        let tick = (tick_of(entry.due) + 1).max(self.tick);
        let within = tick.min(self.tick + BUCKETS as u64 - 1);
        let bucket = within as usize % BUCKETS;
        entry.hold.place.set(Some((bucket, self.buckets[bucket].len())));
        self.buckets[bucket].push(entry);
        self.entries += 1;
    }

    /// Takes a hold's entry out, if it has one.
    fn remove(&mut self, hold: &Hold) -> Option<Entry> {
        let (bucket, at) = hold.place.take()?;
        // None if the wheel was stopped.
        let entries = self.buckets.get_mut(bucket)?;
        let entry = entries.swap_remove(at);
        if let Some(moved) = entries.get(at) {
            moved.hold.place.set(Some((bucket, at)));
        }
        self.entries -= 1;
        Some(entry)
    }

    /// Takes out the entries whose time has come, and says when to look again.
    fn advance(&mut self, now: Moment) -> (Vec<Entry>, Moment) {
        let mut due = Vec::new();
        if self.stopped {
            return (due, now);
        }
        let last = tick_of(now);
        while self.tick <= last {
            if self.entries == 0 {
                self.tick = last + 1;
                break;
            }
            let bucket = self.tick as usize % BUCKETS;
            let entries = std::mem::take(&mut self.buckets[bucket]);
            self.entries -= entries.len();
            self.tick += 1;
            for entry in entries {
                entry.hold.place.set(None);
                if entry.due <= now {
                    due.push(entry);
                } else {
                    self.insert(entry);
                }
            }
        }
        (due, self.next_bucket())
    }

    fn next_bucket(&self) -> Moment {
        if self.entries == 0 {
            return Moment::NEVER;
        }
        let ahead = (0..BUCKETS as u64)
            .find(|ahead| !self.buckets[(self.tick + ahead) as usize % BUCKETS].is_empty());
        start_of(self.tick + ahead.unwrap_or(0))
    }
}

/// The grid on which later renewals are due, so that they travel together.
fn gathered(due: Moment) -> Moment {
    let grid = GATHER.as_nanos() as u64;
    Moment::from_raw(due.raw() / grid * grid)
}

/// When a hold granted at `sent` is renewed first: somewhere in the second sixth of its lease, so
/// that holds taken together are not renewed together.
pub(crate) fn first_due(sent: Moment, lease: Duration) -> Moment {
    let sixth = lease / 6;
    sent.saturating_add(sixth + sixth.mul_f64(fastrand::f64()))
}

/// When a hold renewed at `sent` is renewed next: at a third of its lease, never later.
fn next_due(sent: Moment, lease: Duration) -> Moment {
    let third = sent.saturating_add(lease / 3);
    if lease / 3 > GATHER * 4 { gathered(third) } else { third }
}

/// When one that waits is next heard of: on a grid, so that all of them are in one list.
pub(crate) fn next_beat(now: Moment) -> Moment {
    let grid = BEAT.as_nanos() as u64;
    Moment::from_raw((now.raw() / grid + 1) * grid)
}

/// How soon an unanswered renewal is tried again: at most a tenth of the lease.
fn retry_after(hold: &Hold) -> Duration {
    let lease = hold.renewed_for().unwrap_or(Duration::from_secs(10));
    (lease / 10).clamp(Duration::from_millis(2), Duration::from_millis(2500))
}

fn spawn_thread(engine: &Arc<Engine>) {
    let engine = engine.clone();
    let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => tokio::task::LocalSet::new().block_on(&runtime, turn(engine)),
        Err(error) => tracing::error!(%error, "no runtime for renewals: leases will end"),
    };
    let spawned = std::thread::Builder::new().name("leasehold-renewal".to_owned()).spawn(work);
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for renewals: leases will end");
    }
}

/// The thread's work: visit what is due, sleep until the next.
async fn turn(engine: Arc<Engine>) {
    let renewer = Arc::new(Renewer::new(engine.wiring.clone()));
    let renewal = &engine.renewal;
    while !renewal.is_stopped() {
        let now = Moment::now();
        // Before the wheel is read: an entry made from here on wakes us.
        renewal.asleep_until.store(u64::MAX, Ordering::Relaxed);
        let (due, next) = renewal.wheel.lock().advance(now);
        let mut renew = Vec::new();
        for entry in due {
            visit(&engine, entry.hold, now, &mut renew);
        }
        if !renew.is_empty() {
            tokio::task::spawn_local(renewer.clone().renew(engine.clone(), renew));
        }
        renewal.asleep_until.store(next.raw(), Ordering::Relaxed);
        let nap = Moment::now().until(next).min(Duration::from_secs(3600));
        tokio::select! {
            () = renewal.wake.notified() => {}
            () = tokio::time::sleep(nap) => {}
        }
    }
    renewer.close().await;
}

fn visit(engine: &Arc<Engine>, hold: Arc<Hold>, now: Moment, renew: &mut Vec<Arc<Hold>>) {
    let name = hold.name.clone();
    match hold.visit(now) {
        Visit::Forget => name.forget_untold(engine, &hold),
        Visit::Again(next) => engine.renewal.watch(engine, &hold, next),
        Visit::TakeOver(next) => {
            name.look_again(engine);
            engine.renewal.watch(engine, &hold, next);
        }
        Visit::Lose(reason) => name.lose(engine, &hold, reason),
        Visit::Renew => {
            // An owner that kept it without a guard may have gone meanwhile.
            let before = hold.renewed_for();
            name.check_renewal();
            if before.is_some() && hold.renewed_for().is_none() {
                return engine.renewal.watch(engine, &hold, hold.deadline());
            }
            // Watched on while the renewal is under way, and retried well before the deadline.
            let next = now.saturating_add(retry_after(&hold));
            hold.set_due(next);
            engine.renewal.watch(engine, &hold, next.min(hold.deadline()));
            // Where renewals wait for their turn, a second one would only make them wait longer.
            if !hold.renewal_waits.swap(true, Ordering::Relaxed) {
                renew.push(hold);
            }
        }
    }
}

fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(RENEWALS_IN_FLIGHT))
}

/// Sends renewals, on the thread of the wheel and a connection of its own.
struct Renewer {
    wiring: Wiring,
    batch: OnceCell<Arc<Batch>>,
    /// For renewals that replicas must have.
    acknowledged: OnceCell<Arc<Acknowledged>>,
    /// By server: one that is away must not hold up the renewals of the others.
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A hold to renew, and what to ask for.
struct Job {
    hold: Arc<Hold>,
    lease: Duration,
    aim: Aim,
    /// How the hold stood when it was asked for.
    stands: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// A longer life.
    Extend,
    /// To see whether it is there.
    Look,
    /// A sign of life of one that waits.
    Beat,
}

impl Renewer {
    fn new(wiring: Wiring) -> Self {
        Self {
            wiring,
            batch: OnceCell::new(),
            acknowledged: OnceCell::new(),
            places: Mutex::default(),
        }
    }

    /// The connection, opened by the first renewal.
    async fn batch(&self, engine: &Arc<Engine>) -> Result<&Arc<Batch>, Error> {
        let open = async || {
            let connection = self.wiring.connect("renewals").await?;
            self.settled(&connection).await;
            tokio::task::spawn_local(look_after_reconnects(engine.clone(), connection.clone()));
            Ok(Batch::new(connection, tokio::runtime::Handle::current()))
        };
        self.batch.get_or_try_init(open).await
    }

    /// Waits until the connection is up. If it is not in time, renewals fail and are tried again.
    async fn settled(&self, connection: &Connection) {
        let patience = self.wiring.settings.command_timeout;
        let _ = tokio::time::timeout(patience, connection.usable()).await;
    }

    async fn close(&self) {
        if let Some(batch) = self.batch.get() {
            batch.connection().close().await;
        }
        if let Some(acknowledged) = self.acknowledged.get() {
            acknowledged.connection().close().await;
        }
    }

    async fn renew(self: Arc<Self>, engine: Arc<Engine>, holds: Vec<Arc<Hold>>) {
        // A list is of one script, and in a cluster of one slot, also in one behind a proxy.
        let apart = self.wiring.address.is_cluster() || self.wiring.contact.keeps_slots_apart();
        let mut lists: BTreeMap<(u8, u16), Vec<Arc<Hold>>> = BTreeMap::new();
        for hold in holds {
            let recipe = &hold.name.recipe;
            let Some(renew) = &recipe.kind.renew else { continue };
            if let Some(replicas) = hold.replicas().filter(|_| hold.renewed_for().is_some()) {
                let (renewer, engine) = (self.clone(), engine.clone());
                tokio::task::spawn_local(renewer.send_acknowledged(engine, hold, replicas));
                continue;
            }
            let slot = if apart { recipe.keys.slot } else { 0 };
            lists.entry((renew.script.index, slot)).or_default().push(hold);
        }
        let mut by_server: HashMap<String, Vec<Vec<Arc<Hold>>>> = HashMap::new();
        for ((_, slot), holds) in lists {
            // Before the first renewal it is not known who serves what: those share their room.
            let server = self.batch.get().map(|batch| batch.connection().place_of(slot));
            let lists = holds.chunks(LONGEST_LIST).map(<[_]>::to_vec);
            by_server.entry(server.unwrap_or_default()).or_default().extend(lists);
        }
        for (server, lists) in by_server {
            let places = self.places.lock().entry(server).or_insert_with(places).clone();
            let (renewer, engine) = (self.clone(), engine.clone());
            tokio::task::spawn_local(async move { renewer.in_turn(&engine, &places, lists).await });
        }
    }

    /// Sends lists to one server, as fast as there is room for them.
    async fn in_turn(
        self: Arc<Self>,
        engine: &Arc<Engine>,
        places: &Arc<Semaphore>,
        lists: Vec<Vec<Arc<Hold>>>,
    ) {
        for list in lists {
            let length = u32::try_from(list.len()).unwrap_or(1);
            let Ok(place) = places.clone().acquire_many_owned(length).await else {
                return;
            };
            let (renewer, engine) = (self.clone(), engine.clone());
            tokio::task::spawn_local(async move {
                renewer.send(&engine, list).await;
                drop(place);
            });
        }
    }

    /// Renews a hold that counts as renewed only when replicas have that. Those that are due
    /// together meet again in front of the connection.
    async fn send_acknowledged(
        self: Arc<Self>,
        engine: Arc<Engine>,
        hold: Arc<Hold>,
        replicas: Replicas,
    ) {
        let (now, stands) = (Moment::now(), hold.stands());
        let Some(lease) = hold.renewed_for().filter(|_| hold.phase() == Phase::Held) else {
            return hold.renewal_waits.store(false, Ordering::Relaxed);
        };
        let lease = hold.provable(now, lease);
        let recipe = &hold.name.recipe;
        let publish = engine.publish(recipe);
        let terms = Terms { lease, publish, ..Terms::of(&hold) };
        let call = recipe.renew(&terms).expect("holds without a lease are not on the wheel's list");
        let sent = hold.asked(lease);
        let calling = async {
            let open = || self.wiring.acknowledged("replicated renewals");
            let acknowledged = self.acknowledged.get_or_try_init(open).await?;
            if !acknowledged.connection().is_up() {
                self.settled(acknowledged.connection()).await;
            }
            acknowledged.call(call, replicas).await
        };
        let result = hold.proving(lease, calling).await;
        hold.renewal_waits.store(false, Ordering::Relaxed);
        hold.set_due(Moment::now().saturating_add(retry_after(&hold)));
        let job = Job { hold, lease, aim: Aim::Extend, stands };
        match result {
            Ok(answer) => answered(&engine, &job, sent, answer.code, answer.text.as_deref()),
            Err(CallError::Short(short)) => {
                let lock = engine.shown(&job.hold.name);
                let left = Moment::now().until(job.hold.deadline());
                tracing::warn!(%lock, ?short, ?left, "too few replicas have a renewal");
            }
            Err(error) => unanswered(&engine, std::slice::from_ref(&job), &error),
        }
    }

    async fn send(&self, engine: &Arc<Engine>, holds: Vec<Arc<Hold>>) {
        let batch = self.batch(engine).await;
        if let Ok(batch) = batch {
            // After an outage another connection may be back first, and ask for this.
            if !batch.connection().is_up() {
                self.settled(batch.connection()).await;
            }
        }
        let now = Moment::now();
        for hold in &holds {
            hold.renewal_waits.store(false, Ordering::Relaxed);
            // Tried again if it is not answered from now on, however long it has waited.
            hold.set_due(now.saturating_add(retry_after(hold)));
        }
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(%error, "no connection for renewals; trying again");
                return;
            }
        };
        let held =
            holds.into_iter().filter(|hold| hold.phase() == Phase::Held || hold.waits_in_line());
        let jobs: Vec<Job> = held
            .map(|hold| (hold.stands(), hold))
            .map(|(stands, hold)| match hold.renewed_for() {
                Some(lease) => Job { hold, lease, aim: Aim::Extend, stands },
                // Should it have been granted just now: never asks for more than it has asked for.
                None if hold.waits_in_line() => {
                    let lease = now.until(hold.stands_until()).max(Duration::from_millis(1));
                    Job { hold, lease, aim: Aim::Beat, stands }
                }
                // Not renewed, only looked at: never asks for more than it has.
                None => Job { lease: now.until(hold.deadline()), hold, aim: Aim::Look, stands },
            })
            .collect();
        if jobs.is_empty() {
            return;
        }
        let calls = jobs.iter().map(|job| {
            let recipe = &job.hold.name.recipe;
            let publish = engine.publish(recipe);
            let terms = Terms { lease: job.lease, publish, ..Terms::of(&job.hold) };
            recipe.renew(&terms).expect("holds without a lease are not on the wheel's list")
        });
        let calls: Vec<Call> = calls.collect();
        let sent = Moment::now();
        for job in jobs.iter().filter(|job| job.aim == Aim::Extend) {
            job.hold.asked(job.lease);
        }
        match batch.list(&calls).await {
            Ok(answers) => {
                tracing::debug!(holds = jobs.len(), "renewed a list");
                for (job, answer) in jobs.iter().zip(answers) {
                    answered(engine, job, sent, answer.code, answer.text.as_deref());
                }
            }
            // One forbidden key refuses the whole list: ask for each by itself.
            Err(CallError::Refused(_)) if calls.len() > 1 => {
                for (job, call) in jobs.iter().zip(&calls) {
                    let sent = Moment::now();
                    match batch.list(std::slice::from_ref(call)).await {
                        Ok(answers) => {
                            let answer = &answers[0];
                            answered(engine, job, sent, answer.code, answer.text.as_deref());
                        }
                        Err(error) => unanswered(engine, std::slice::from_ref(job), &error),
                    }
                }
            }
            Err(error) => unanswered(engine, &jobs, &error),
        }
    }
}

/// It may be to another server now: what the one before said of a hold is not to be relied on.
async fn look_after_reconnects(engine: Arc<Engine>, connection: Arc<Connection>) {
    let mut epochs = connection.epochs();
    loop {
        epochs.next().await;
        connection.usable().await;
        for name in engine.all_names() {
            name.verify_holds(&engine);
        }
    }
}

fn answered(engine: &Arc<Engine>, job: &Job, sent: Moment, code: i64, text: Option<&str>) {
    let Job { hold, lease, aim, stands } = job;
    if *aim == Aim::Beat {
        if !hold.waits_in_line() {
            // Granted meanwhile, or gone: what was asked for then says nothing of it now.
            return;
        }
        if code == -1 {
            hold.name.called(engine, hold);
        }
        let beat = next_beat(sent);
        hold.set_due(beat);
        return engine.renewal.watch(engine, hold, beat);
    }
    match code {
        0 if *aim == Aim::Extend => {
            hold.extended(sent, *lease);
            // A hold that ended meanwhile, or is renewed no more, is left as it is.
            if hold.renewed_for().is_some() {
                let next = next_due(sent, *lease);
                hold.set_due(next);
                engine.renewal.watch(engine, hold, next.min(hold.deadline()));
            }
        }
        0 => {
            hold.set_due(Moment::NEVER);
            engine.renewal.watch(engine, hold, hold.deadline());
        }
        // Part of it was given back or taken meanwhile: that is not what a loss looks like.
        -1 if hold.stands() != *stands => {
            let now = Moment::now();
            hold.set_due(now);
            engine.renewal.watch(engine, hold, now);
        }
        -1 => hold.name.clone().lose(engine, hold, LostReason::Removed),
        _ => {
            let lock = engine.shown(&hold.name);
            let left = Moment::now().until(hold.deadline());
            tracing::warn!(%lock, text, ?left, "the server refused to renew a held lock");
        }
    }
}

fn unanswered(engine: &Arc<Engine>, jobs: &[Job], error: &CallError) {
    if matches!(error, CallError::Refused(text) if passes(text)) {
        // It said so at once, and may soon say something else: whether they are still there.
        let soon = Moment::now().saturating_add(PASSING);
        for hold in jobs.iter().map(|job| &job.hold).filter(|hold| hold.phase() == Phase::Held) {
            if soon < hold.deadline() {
                hold.set_due(soon);
                engine.renewal.watch(engine, hold, soon);
            }
        }
    }
    let left = jobs.iter().map(|job| job.hold.deadline()).min().unwrap_or_default();
    let left = Moment::now().until(left);
    let first = jobs.first().map(|job| engine.shown(&job.hold.name).to_string());
    tracing::warn!(holds = jobs.len(), first, ?error, ?left, "a list of renewals got no answer");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_come_in_the_first_third_of_the_lease() {
        let lease = Duration::from_secs(30);
        let sent = Moment::now();
        for _ in 0..100 {
            let first = sent.until(first_due(sent, lease));
            assert!(first >= lease / 6 && first <= lease / 3, "{first:?}");
        }
        let next = sent.until(next_due(sent, lease));
        assert!(next <= lease / 3 && next >= lease / 3 - GATHER, "{next:?}");
        assert_eq!(sent.until(next_due(sent, lease / 100)), lease / 300);
    }
}

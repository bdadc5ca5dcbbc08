//! Many calls, one command.
//!
//! A call that finds its lane idle goes out at once, by its caller and with no hop. Calls that
//! come meanwhile wait for that one's reply (or 1 ms, should its caller not be polled) and leave
//! together: same script, same slot, up to [`LONGEST_LIST`] in one EVALSHA. So batching costs
//! nothing where there is nothing to batch. Lists in turn are waited for only while there is enough
//! to wait for: some calls more leave as a [short list](SHORT_LIST) beside few that are under way.

use crate::server::Text;
use crate::server::connection::Connection;
use crate::server::reply::{Answer, CallError, answers, text};
use crate::server::script::Script;
use fred::types::Value;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

/// Most calls in one command.
pub(crate) const LONGEST_LIST: usize = 64;

/// Lists of one lane under way at once, unless a full one waits.
const LISTS_IN_FLIGHT: usize = 2;

/// Calls that leave together though a list is under way: where so few meet, waiting for its answer
/// costs more than a command does.
const SHORT_LIST: usize = 4;

/// So many lists at once, while they are short.
const SHORT_LISTS_IN_FLIGHT: usize = 3;

/// Beyond so many calls under way, the processor is better spent on longer lists.
const FEW_UNDER_WAY: usize = 12;

/// How long others wait for a lone call whose caller may not be polled.
const LONE_SLOT: Duration = Duration::from_millis(1);

/// One call: the keys and arguments of one entry of a list script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub script: &'static Script,
    pub slot: u16,
    /// The keys, then the arguments.
    pub parts: Box<[Text]>,
}

pub(crate) type CallResult = Result<Answer, CallError>;

struct Queued {
    call: Call,
    reply: oneshot::Sender<CallResult>,
}

#[derive(Default)]
struct Lane {
    /// The number of the call that its own caller sends now; 0 if there is none.
    lone: u64,
    /// Tasks that send lists of this lane.
    senders: usize,
    /// Calls in lists that are under way.
    under_way: usize,
    queue: VecDeque<Queued>,
    /// Tells the first sender that the lone call has ended.
    lone_ended: Option<Arc<Notify>>,
}

impl Lane {
    /// Whether what is queued leaves before a list that is under way is answered.
    fn is_due(&self) -> bool {
        let queued = self.queue.len();
        // A full list does at once: a fixed number in flight would cap long round trips.
        queued % LONGEST_LIST == 0
            || queued >= SHORT_LIST
                && self.senders < SHORT_LISTS_IN_FLIGHT
                && self.under_way <= FEW_UNDER_WAY
    }
}

/// Which lane a call takes: its script, and where slots are kept apart its slot.
type LaneKey = (u8, u16);

pub(crate) struct Batch {
    connection: Arc<Connection>,
    runtime: Handle,
    lanes: Mutex<HashMap<LaneKey, Lane>>,
    lone_calls: AtomicU64,
}

impl Batch {
    pub(crate) fn new(connection: Arc<Connection>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            connection,
            runtime,
            lanes: Mutex::default(),
            lone_calls: AtomicU64::new(0),
        })
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Sends a call, alone or with others.
    ///
    /// The future must be driven to its end: dropping it does not take the call back.
    pub(crate) async fn call(self: &Arc<Self>, call: Call) -> CallResult {
        match self.take_lane(call) {
            // On the heap: most calls that meet others never need the room for it.
            Ok((_slot, call)) => Box::pin(self.alone(call)).await,
            Err(receiver) => {
                let ended = |_| Err(CallError::Unknown("the client's runtime ended".to_owned()));
                receiver.await.unwrap_or_else(ended)
            }
        }
    }

    /// Takes an idle lane for a call, or puts the call into the lane's queue.
    fn take_lane(
        self: &Arc<Self>,
        call: Call,
    ) -> Result<(LoneSlot<'_>, Call), oneshot::Receiver<CallResult>> {
        let key = self.lane_of(&call);
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(key).or_default();
        if lane.lone != 0 || lane.senders != 0 {
            return Err(self.enqueue(lane, key, call));
        }
        lane.lone = self.lone_calls.fetch_add(1, Ordering::Relaxed) + 1;
        Ok((LoneSlot { batch: self, key, number: lane.lone }, call))
    }

    fn enqueue(
        self: &Arc<Self>,
        lane: &mut Lane,
        key: LaneKey,
        call: Call,
    ) -> oneshot::Receiver<CallResult> {
        let (reply, receiver) = oneshot::channel();
        lane.queue.push_back(Queued { call, reply });
        if lane.senders == 0 {
            lane.senders = 1;
            let ended = (lane.lone != 0).then(|| {
                let ended = lane.lone_ended.get_or_insert_with(|| Arc::new(Notify::new()));
                (lane.lone, ended.clone())
            });
            self.runtime.spawn(self.clone().send_lists(key, ended));
        } else if lane.is_due() {
            lane.senders += 1;
            self.runtime.spawn(self.clone().send_lists(key, None));
        }
        receiver
    }

    fn lane_of(&self, call: &Call) -> LaneKey {
        let slot = if self.connection.keeps_slots_apart() { call.slot } else { 0 };
        (call.script.index, slot)
    }

    /// Sends one call as a list of one.
    async fn alone(&self, call: Call) -> CallResult {
        self.list(std::slice::from_ref(&call)).await.map(|mut answers| answers.remove(0))
    }

    /// Sends a list as one command.
    pub(crate) async fn list(&self, calls: &[Call]) -> Result<Vec<Answer>, CallError> {
        let first = &calls[0];
        let script = first.script;
        let keys = calls.len() * script.keys;
        let rest = |args: &mut Vec<Value>| {
            args.reserve_exact(calls.len() * (script.keys + script.args));
            args.extend(calls.iter().flat_map(|call| &call.parts[..script.keys]).map(text));
            args.extend(calls.iter().flat_map(|call| &call.parts[script.keys..]).map(text));
        };
        let reply = self.connection.run(script, first.slot, keys, rest).await?;
        answers(reply, calls.len(), script.has_text)
            .ok_or_else(|| CallError::Unknown(format!("{} got a strange reply", script.name)))
    }

    /// Sends what is queued in a lane, list by list, until nothing is.
    async fn send_lists(self: Arc<Self>, key: LaneKey, lone: Option<(u64, Arc<Notify>)>) {
        if let Some((number, ended)) = lone {
            if tokio::time::timeout(LONE_SLOT, ended.notified()).await.is_err() {
                self.end_lone(key, number);
            }
        }
        let mut answered = 0;
        while let Some(queued) = self.next_list(key, answered) {
            answered = queued.len();
            let (calls, replies): (Vec<_>, Vec<_>) =
                queued.into_iter().map(|queued| (queued.call, queued.reply)).unzip();
            match self.list(&calls).await {
                Ok(answers) => {
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        let _ = reply.send(Ok(answer));
                    }
                }
                // An error for the whole list says nothing about any of its entries: one
                // forbidden key is enough. Each is sent again by itself.
                Err(CallError::Refused(_)) if calls.len() > 1 => {
                    for (reply, call) in replies.into_iter().zip(calls) {
                        let batch = self.clone();
                        self.runtime.spawn(async move { reply.send(batch.alone(call).await) });
                    }
                }
                Err(error) => {
                    for reply in replies {
                        let _ = reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    /// Takes the next list, or ends the sender that asks, whose last list was so long.
    fn next_list(self: &Arc<Self>, key: LaneKey, answered: usize) -> Option<Vec<Queued>> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.get_mut(&key).expect("a lane stands while it has senders");
        lane.under_way -= answered;
        if lane.queue.is_empty() {
            lane.senders -= 1;
            if lane.senders == 0 && lane.lone == 0 && self.connection.keeps_slots_apart() {
                lanes.remove(&key);
            }
            return None;
        }
        let length = lane.queue.len().min(LONGEST_LIST);
        let list = lane.queue.drain(..length).collect();
        lane.under_way += length;
        if !lane.queue.is_empty() && lane.senders < LISTS_IN_FLIGHT {
            lane.senders += 1;
            self.runtime.spawn(self.clone().send_lists(key, None));
        }
        Some(list)
    }

    fn end_lone(&self, key: LaneKey, number: u64) {
        let mut lanes = self.lanes.lock();
        let Some(lane) = lanes.get_mut(&key).filter(|lane| lane.lone == number) else {
            return;
        };
        lane.lone = 0;
        if let Some(ended) = lane.lone_ended.take() {
            ended.notify_one();
        }
        if lane.senders == 0 && lane.queue.is_empty() && self.connection.keeps_slots_apart() {
            lanes.remove(&key);
        }
    }
}

/// Gives the lane free when a lone call ends, also when its future is dropped.
struct LoneSlot<'a> {
    batch: &'a Batch,
    key: LaneKey,
    number: u64,
}

impl Drop for LoneSlot<'_> {
    fn drop(&mut self) {
        self.batch.end_lone(self.key, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::script::LOCK_ACQUIRE;

    fn lane(queued: usize, senders: usize, under_way: usize) -> Lane {
        let queued = (0..queued).map(|_| Queued {
            call: Call { script: &LOCK_ACQUIRE, slot: 0, parts: Box::default() },
            reply: oneshot::channel().0,
        });
        Lane { queue: queued.collect(), senders, under_way, ..Lane::default() }
    }

    #[test]
    fn short_lists_leave_side_by_side_while_few_calls_are_under_way() {
        assert!(!lane(SHORT_LIST - 1, 1, 1).is_due(), "it waits for company");
        assert!(lane(SHORT_LIST, 1, 1).is_due());
        assert!(lane(SHORT_LIST, SHORT_LISTS_IN_FLIGHT - 1, FEW_UNDER_WAY).is_due());
        assert!(!lane(SHORT_LIST, 1, FEW_UNDER_WAY + 1).is_due(), "it becomes a long one");
        assert!(!lane(SHORT_LIST, SHORT_LISTS_IN_FLIGHT, 3).is_due(), "there are enough");
        assert!(lane(LONGEST_LIST, 9, 9 * LONGEST_LIST).is_due(), "full ones leave at once");
    }
}

//! Calls that replicas must have: the write, then WAIT, on a connection of their own.
//!
//! WAIT counts what its own connection wrote, and holds up everything that is sent behind it. So
//! what goes here waits for a replica that lags, and nothing else does.
//!
//! WAIT is sent when the answer is there, not right behind the call: who is refused has written
//! nothing that replicas must have, and waits for none. Calls that come while one WAIT is under way
//! leave together after it and share the next.

use crate::config::Replicas;
use crate::server::batch::{Batch, Call, CallResult, LONGEST_LIST};
use crate::server::connection::Connection;
use crate::server::reply::{Answer, CallError, Short};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Most calls that share one WAIT.
const LONGEST_ROUND: usize = 8 * LONGEST_LIST;

struct Queued {
    call: Call,
    replicas: Replicas,
    reply: oneshot::Sender<CallResult>,
}

/// What waits to be sent to one server.
struct Line {
    node: Arc<Connection>,
    queue: VecDeque<Queued>,
    /// A task sees to it.
    served: bool,
    /// This server has been seen to answer WAIT.
    knows_wait: bool,
}

pub(crate) struct Acknowledged {
    connection: Arc<Connection>,
    runtime: Handle,
    lines: Mutex<Vec<Line>>,
}

impl Acknowledged {
    pub(crate) fn new(connection: Arc<Connection>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { connection, runtime, lines: Mutex::default() })
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Sends a call and waits for replicas to have what it wrote. If too few have it in time, the
    /// answer is [`CallError::Short`], and what was written stands.
    ///
    /// The future must be driven to its end: dropping it does not take the call back.
    pub(crate) async fn call(self: &Arc<Self>, call: Call, replicas: Replicas) -> CallResult {
        let node = self.connection.node_of(call.slot).await?;
        let (reply, receiver) = oneshot::channel();
        self.enqueue(node, Queued { call, replicas, reply });
        let ended = |_| Err(CallError::Unknown("the client's runtime ended".to_owned()));
        receiver.await.unwrap_or_else(ended)
    }

    fn enqueue(self: &Arc<Self>, node: Arc<Connection>, queued: Queued) {
        let mut lines = self.lines.lock();
        lines.retain(|line| line.served || !line.node.is_closed());
        let at = lines.iter().position(|line| Arc::ptr_eq(&line.node, &node));
        let at = at.unwrap_or_else(|| {
            let queue = VecDeque::new();
            lines.push(Line { node: node.clone(), queue, served: false, knows_wait: false });
            lines.len() - 1
        });
        let line = &mut lines[at];
        line.queue.push_back(queued);
        if !std::mem::replace(&mut line.served, true) {
            self.runtime.spawn(self.clone().serve(node));
        }
    }

    /// Sends what is queued for a server, round by round, until nothing is.
    async fn serve(self: Arc<Self>, node: Arc<Connection>) {
        while let Some((round, replicas, knows_wait)) = self.next_round(&node) {
            if !knows_wait {
                // Asked before anything is written: nothing is left where WAIT is not to be had.
                if let Err(error) = node.wait(Replicas { count: 0, ..replicas }).await {
                    answer_all(round, &error);
                    continue;
                }
                self.set_knows_wait(&node, true);
            }
            self.send(&node, round, replicas).await;
        }
    }

    /// Takes out those at the head of a line who ask for the same; ends who serves it if there are
    /// none.
    fn next_round(&self, node: &Arc<Connection>) -> Option<(Vec<Queued>, Replicas, bool)> {
        let mut lines = self.lines.lock();
        let line = lines.iter_mut().find(|line| Arc::ptr_eq(&line.node, node))?;
        let Some(replicas) = line.queue.front().map(|queued| queued.replicas) else {
            line.served = false;
            return None;
        };
        let same = line.queue.iter().take(LONGEST_ROUND);
        let same = same.take_while(|queued| queued.replicas == replicas).count();
        Some((line.queue.drain(..same).collect(), replicas, line.knows_wait))
    }

    fn set_knows_wait(&self, node: &Arc<Connection>, knows: bool) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.iter_mut().find(|line| Arc::ptr_eq(&line.node, node)) {
            line.knows_wait = knows;
        }
    }

    async fn send(&self, node: &Arc<Connection>, round: Vec<Queued>, replicas: Replicas) {
        // Seen before anything is sent: a WAIT on another socket than the write says nothing of it.
        let socket = node.socket();
        let mut written = Vec::new();
        for (queued, result) in self.write(node, round).await {
            match result {
                Ok(answer) if answer.code == 0 => written.push((queued.reply, answer)),
                result => {
                    if let Err(CallError::Refused(text)) = &result {
                        self.connection.heed_redirection(queued.call.slot, text);
                    }
                    let _ = queued.reply.send(result);
                }
            }
        }
        if written.is_empty() {
            return;
        }
        let acknowledged = node.wait(replicas).await;
        let result = |answer: Answer| match &acknowledged {
            _ if !socket.is_same() => {
                Err(CallError::Unknown("the connection broke before replicas answered".to_owned()))
            }
            Ok(count) if *count >= u64::from(replicas.count) => Ok(answer),
            Ok(count) => Err(CallError::Short(Short {
                required: replicas.count,
                acknowledged: *count as u8,
                refused: None,
            })),
            Err(CallError::Refused(text)) => Err(CallError::Short(Short {
                required: replicas.count,
                acknowledged: 0,
                refused: Some(text.clone()),
            })),
            Err(CallError::NotSent(why) | CallError::Unknown(why)) => {
                Err(CallError::Unknown(why.clone()))
            }
            Err(short @ CallError::Short(_)) => Err(short.clone()),
        };
        if acknowledged.is_err() {
            self.set_knows_wait(node, false);
        }
        for (reply, answer) in written {
            let _ = reply.send(result(answer));
        }
    }

    /// Sends calls as lists, which are under way side by side.
    async fn write(&self, node: &Arc<Connection>, round: Vec<Queued>) -> Vec<(Queued, CallResult)> {
        let mut lists: BTreeMap<(u8, u16), Vec<Queued>> = BTreeMap::new();
        for queued in round {
            let slot = if node.keeps_slots_apart() { queued.call.slot } else { 0 };
            lists.entry((queued.call.script.index, slot)).or_default().push(queued);
        }
        let mut sending = Vec::new();
        for mut list in lists.into_values() {
            while !list.is_empty() {
                let rest = list.split_off(list.len().min(LONGEST_LIST));
                let batch = Batch::new(node.clone(), self.runtime.clone());
                sending.push(self.runtime.spawn(send_list(batch, list)));
                list = rest;
            }
        }
        let mut answered = Vec::new();
        for sending in sending {
            // If the runtime ends, those who wait are told by their channels.
            answered.extend(sending.await.unwrap_or_default());
        }
        answered
    }
}

async fn send_list(batch: Arc<Batch>, list: Vec<Queued>) -> Vec<(Queued, CallResult)> {
    let calls: Vec<Call> = list.iter().map(|queued| queued.call.clone()).collect();
    match batch.list(&calls).await {
        Ok(answers) => list.into_iter().zip(answers.into_iter().map(Ok)).collect(),
        // One forbidden key refuses the whole list: each is sent again by itself.
        Err(CallError::Refused(_)) if calls.len() > 1 => {
            let mut answered = Vec::new();
            for queued in list {
                let answers = batch.list(std::slice::from_ref(&queued.call)).await;
                answered.push((queued, answers.map(|mut answers| answers.remove(0))));
            }
            answered
        }
        Err(error) => list.into_iter().map(|queued| (queued, Err(error.clone()))).collect(),
    }
}

fn answer_all(round: Vec<Queued>, error: &CallError) {
    for queued in round {
        // Nothing of it was sent.
        let error = match error {
            CallError::Unknown(why) => CallError::NotSent(why.clone()),
            error => error.clone(),
        };
        let _ = queued.reply.send(Err(error));
    }
}

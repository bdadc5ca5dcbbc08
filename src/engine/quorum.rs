//! Takes a lock on a majority of independent servers, or on none of them.
//!
//! A round asks all at once and counts. Each server has a budget of time, so that dead ones cost
//! little. Who gets no majority gives back everything, what is granted too late included: a future
//! that is dropped does so by itself. Before the next round it waits at the first server that
//! refused, where a release wakes it, and for a random while where votes were split.

use crate::engine::Engine;
use crate::engine::recipe::client_and_id;
use crate::engine::together::{Boxed, Part, Together};
use crate::error::Error;
use crate::lease::Moment;
use crate::server::Text;
use std::sync::Arc;
use std::time::Duration;

/// How long a majority waits for the others at least, so that it does not stay a bare one.
const SHORTEST_GRACE: Duration = Duration::from_millis(5);

/// The pause after a split vote, of which half is left to chance; it doubles.
const SHORTEST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// How long one server's word is waited for, of which half is left to chance. Whoever has it there
/// may have no majority.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// One of the servers.
pub(crate) trait Node: Sync {
    type Part: Part;

    fn engine(&self) -> &Arc<Engine>;
    /// The lock's name there.
    fn name(&self) -> &str;
    /// Takes the lock there, under this name, waiting for so long.
    fn take(&self, wait: Duration, field: Text) -> Boxed<Result<Option<Self::Part>, Error>>;
}

/// What an acquisition may cost.
pub(crate) struct Plan {
    /// How long one server may take to answer.
    pub budget: Duration,
    /// When to give up; `None`: never.
    pub deadline: Option<Moment>,
    /// How long no majority need answer before one that waits without an end gives up.
    pub patience: Duration,
}

/// How many of so many servers decide.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Takes the lock on a majority; `None` if others hold it on so many that there is none.
///
/// Dropping the future gives back what it got.
pub(crate) async fn take<N: Node>(nodes: &[N], plan: Plan) -> Result<Option<Vec<N::Part>>, Error> {
    let engine = nodes[0].engine();
    let mut heard = Moment::now();
    let mut pause = SHORTEST_PAUSE;
    let (mut ahead, mut failed_to_wait) = (None, false);
    loop {
        let round = Round::ask(nodes, plan.budget, ahead.take()).await;
        let now = Moment::now();
        if round.is_won(now) {
            return Ok(Some(round.parts.into_iter().map(|(_, part)| part).collect()));
        }
        if round.heard() >= round.majority {
            heard = now;
        }
        let over = plan.deadline.is_some_and(|deadline| now >= deadline);
        let silent = plan.deadline.is_none() && heard.until(now) >= plan.patience;
        if over || silent || round.is_hopeless() {
            return round.verdict(nodes);
        }
        let left = plan.deadline.map_or(Duration::MAX, |deadline| now.until(deadline));
        let refused = round.refused.first().copied();
        if failed_to_wait || refused.is_none() || !round.parts.is_empty() {
            // What it got goes back before it rests.
            drop(round);
            engine.timer(chance(pause).min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        failed_to_wait = false;
        if let Some(at) = refused {
            let left = plan.deadline.map_or(Duration::MAX, |d| Moment::now().until(d));
            let wait = chance(LONGEST_WAIT).min(left);
            tokio::select! {
                taken = nodes[at].take(wait, fresh(engine)) => match taken {
                    Ok(part) => ahead = part.map(|part| (at, part)),
                    Err(_) => failed_to_wait = true,
                },
                () = engine.timer(wait.saturating_add(plan.budget)) => {}
            }
        }
    }
}

/// Between a half of it and all.
fn chance(time: Duration) -> Duration {
    time / 2 + time.mul_f64(fastrand::f64()) / 2
}

/// What all servers are to call a hold.
fn fresh(engine: &Engine) -> Text {
    client_and_id(&engine.uuid, engine.next_id(), 1).into()
}

/// What the servers said.
struct Round<P> {
    servers: usize,
    majority: usize,
    parts: Vec<(usize, P)>,
    refused: Vec<usize>,
    failed: Vec<Error>,
}

impl<P: Part> Round<P> {
    /// Asks all at once, but for one that was asked before.
    async fn ask<N: Node<Part = P>>(
        nodes: &[N],
        budget: Duration,
        ahead: Option<(usize, P)>,
    ) -> Self {
        let engine = nodes[0].engine();
        let began = Moment::now();
        let field = ahead.as_ref().map_or_else(|| fresh(engine), |(_, part)| part.field());
        let known = ahead.as_ref().map(|(at, _)| *at);
        let asked: Vec<usize> = (0..nodes.len()).filter(|at| Some(*at) != known).collect();
        let takes = asked.iter().map(|at| nodes[*at].take(Duration::ZERO, field.clone()));
        let mut asking = Together::new(takes);
        let mut round = Self {
            servers: nodes.len(),
            majority: majority(nodes.len()),
            parts: ahead.into_iter().collect(),
            refused: Vec::new(),
            failed: Vec::new(),
        };
        let mut timer = engine.timer(budget);
        while !round.is_out_of_reach() {
            let had = round.parts.len();
            tokio::select! {
                biased;
                answer = asking.next() => match answer {
                    Some((at, Ok(Some(part)))) => round.parts.push((asked[at], part)),
                    Some((at, Ok(None))) => round.refused.push(asked[at]),
                    Some((_, Err(error))) => round.failed.push(error),
                    None => break,
                },
                () = &mut timer => {
                    let name = |at: usize| Some(nodes[asked[at]].name());
                    let why = format!("no answer within {budget:?}");
                    let late = asking.pending().map(|at| Error::unavailable(name(at), &why, true));
                    round.failed.extend(late);
                    break;
                }
            }
            if had < round.majority && round.parts.len() == round.majority {
                // The others have as long again, which is not long where all are alive.
                let took = began.until(Moment::now());
                let left = budget.saturating_sub(took);
                timer = engine.timer(took.max(SHORTEST_GRACE).min(left));
            }
        }
        round.parts.sort_by_key(|(at, _)| *at);
        round.refused.sort_unstable();
        round
    }

    /// Whether a majority has granted it, and all of them still stand for it.
    fn is_won(&self, now: Moment) -> bool {
        let standing = self.parts.iter().filter(|(_, part)| part.valid_until() > now);
        standing.count() >= self.majority
    }

    /// Whether nothing that others may still say would change anything.
    fn is_out_of_reach(&self) -> bool {
        let spare = self.servers - self.majority;
        self.refused.len() > spare || self.failed.len() > spare
    }

    /// How many have said something of the lock.
    fn heard(&self) -> usize {
        self.parts.len() + self.refused.len()
    }

    /// The errors that waiting does not mend.
    fn lasting(&self) -> impl Iterator<Item = &Error> {
        self.failed.iter().filter(|error| !error.is_unavailable())
    }

    /// Whether no majority can be had in any round.
    fn is_hopeless(&self) -> bool {
        self.lasting().count() > self.servers - self.majority
    }

    /// Why it is not held.
    fn verdict<T, N: Node>(&self, nodes: &[N]) -> Result<Option<T>, Error> {
        if let Some(error) = self.lasting().next().filter(|_| self.is_hopeless()) {
            return Err(error.clone());
        }
        let silent = self.failed.len() > self.servers - self.majority;
        if !self.refused.is_empty() && !silent {
            return Ok(None);
        }
        if let Some(error) = self.lasting().next() {
            return Err(error.clone());
        }
        if self.parts.len() >= self.majority {
            let why = "a majority granted it, but too late";
            return Err(Error::unavailable(Some(nodes[0].name()), why, false));
        }
        let unsure = self.failed.iter().any(Error::is_indeterminate);
        let (heard, servers) = (self.heard(), self.servers);
        let mut why = format!("{heard} of {servers} servers said something in time");
        if let Some(error) = self.failed.first() {
            why = format!("{why}; another: {error}");
        }
        Err(Error::unavailable(Some(nodes[0].name()), &why, unsure))
    }
}

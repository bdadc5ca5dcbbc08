//! Never more have it than may, whatever they do, and no fewer.
use std::{future::Future, time::Duration};

use fastrand::Rng;
use leasehold::Client;
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};

use super::{
    setup::{HANG, Setup, got},
    subjects::{NO_END, Synchronizer, Taken},
};
use crate::support::history::{History, Interval};

/// How many holds a run counts at least.
const LEAST: usize = 60;

/// I1, I2, I14, I15, R-38: tasks of two clients take it in all ways there are, some drop what they
/// do midway, and one takes all there is. Judged by the intervals of their holds.
pub async fn holds_never_exceed_the_capacity<S: Synchronizer>() {
    let (setup, history) = (Setup::of::<S>().await, History::new());
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let client = if task % 2 == 0 { &setup.one } else { &setup.two }.clone();
        tasks.spawn(take_in_turns::<S>(client, setup.name.clone(), history.clone(), task));
    }
    let (client, name, theirs) = (setup.two.clone(), setup.name.clone(), history.clone());
    tasks.spawn(async move {
        for _ in 0..10 {
            let occupied = S::occupy(&client, &name).await.expect("it comes free");
            hold(&theirs, &occupied, "all", &mut Rng::new()).await;
            occupied.give_back().await.expect("it is held");
        }
    });
    timeout(HANG, tasks.join_all()).await.expect("all come to their end");
    assert_capacity(&history, S::CAPACITY);
    setup.assert_free::<S>("after all that").await;
}

/// I15: what is there can be had, by one owner or by many.
pub async fn as_many_as_may_have_it_at_once<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let mut taken = Vec::new();
    for number in 0..S::CAPACITY.min(10) {
        let client = if number % 2 == 0 { &setup.one } else { &setup.two };
        taken.push(got(S::of(client, &setup.name).take()).await);
    }
    setup.assert_taken::<S>(taken.len().max(S::CAPACITY.min(10))).await;
    let occupying = tokio::spawn(S::occupy(&setup.two, &setup.name));
    for taken in taken {
        yield_now().await;
        assert!(!occupying.is_finished(), "somebody still has some of it");
        got(taken.give_back()).await;
    }
    super::setup::joined(occupying).await.give_back().await.expect("it is held");
}

async fn take_in_turns<S: Synchronizer>(client: Client, name: String, history: History, task: u64) {
    let (mut random, owner) = (Rng::with_seed(task), format!("task {task}"));
    let mut held = 0;
    while held < LEAST / 5 {
        let handle = S::of(&client, &name);
        let taken = match random.u8(..4) {
            0 => Some(handle.take().await),
            1 => handle.try_take(HANG).await.transpose(),
            2 => {
                let wait = Duration::from_millis(random.u64(..20));
                handle.try_take(wait).await.transpose()
            }
            _ => dropped_soon(&mut random, handle.take()).await,
        };
        let Some(taken) = taken else { continue };
        let taken = taken.expect("the server is up");
        hold(&history, &taken, &owner, &mut random).await;
        held += 1;
        match random.u8(..3) {
            0 => drop(taken),
            1 => drop(dropped_soon(&mut random, taken.give_back()).await),
            _ => taken.give_back().await.expect("it is held"),
        }
    }
}

async fn hold<T: Taken>(history: &History, taken: &T, owner: &str, random: &mut Rng) {
    let mut held = history.held("it", owner);
    match random.u8(..3) {
        0 => {}
        1 => yield_now().await,
        _ => tokio::time::sleep(Duration::from_micros(random.u64(..500))).await,
    }
    if let Some(until) = taken.until() {
        held.valid_until(until);
    }
    held.end();
}

/// What a future brings within a few polls, or a few milliseconds; then it is dropped.
async fn dropped_soon<F: Future>(random: &mut Rng, future: F) -> Option<F::Output> {
    timeout(Duration::from_micros(random.u64(..3000)), future).await.ok()
}

fn assert_capacity(history: &History, capacity: usize) {
    let intervals = history.intervals();
    assert!(intervals.len() >= LEAST, "only {} holds", intervals.len());
    let (all, one): (Vec<Interval>, _) = intervals.into_iter().partition(|i| i.owner == "all");
    let peak = history_of(&one).peak("it");
    assert!(peak <= capacity, "{peak} had it at once, {capacity} may");
    // Whoever has it all leaves room for nobody.
    let weighted = history_of(&one);
    for interval in &all {
        for _ in 0..capacity.min(NO_END) {
            weighted.record("it", "all", interval.acquired, interval.end);
        }
    }
    let peak = weighted.peak("it");
    assert!(peak <= capacity, "some had it beside the one who had it all: {peak}");
}

fn history_of(intervals: &[Interval]) -> History {
    let history = History::new();
    for interval in intervals {
        history.record("it", &interval.owner, interval.acquired, interval.end);
    }
    history
}

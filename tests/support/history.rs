//! Who held what, and when: recorded by many tasks, judged after the run.
//!
//! Two holds of one name by different owners must not overlap. A hold counts from the moment its
//! owner saw the grant to the moment it asked for the release, or could no longer rely on it.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A record that all its clones write to.
#[derive(Clone, Debug, Default)]
pub struct History {
    intervals: Arc<Mutex<Vec<Interval>>>,
}

/// One hold of one name. An `end` before `acquired` says that the grant came too late to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    pub name: String,
    pub owner: String,
    pub acquired: Instant,
    pub end: Instant,
}

impl History {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn record(&self, name: &str, owner: &str, acquired: Instant, end: Instant) {
        let (name, owner) = (name.to_owned(), owner.to_owned());
        let mut intervals = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        intervals.push(Interval { name, owner, acquired, end });
    }

    /// Begins a hold now; call it right after the grant.
    pub fn held(&self, name: &str, owner: &str) -> Held {
        let (history, name, owner) = (self.clone(), name.to_owned(), owner.to_owned());
        Held { history, name, owner, acquired: Instant::now(), until: None }
    }

    /// All holds that have ended, in the order of their ends being told.
    pub fn intervals(&self) -> Vec<Interval> {
        self.intervals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Pairs of holds that overlap: for each hold that began during holds of other owners, itself
    /// and the one of them that ended last. Empty exactly if no two owners overlap.
    pub fn overlaps(&self) -> Vec<(Interval, Interval)> {
        self.by_name().into_values().flat_map(overlaps_of_one_name).collect()
    }

    /// How many holds of a name there were at the fullest moment.
    pub fn peak(&self, name: &str) -> usize {
        let intervals = self.by_name().remove(name).unwrap_or_default();
        let ends = intervals.iter().map(|interval| (interval.end, -1));
        let mut changes: Vec<(Instant, isize)> =
            intervals.iter().map(|interval| (interval.acquired, 1)).chain(ends).collect();
        changes.sort(); // at one instant, ends come first
        let counts = changes.iter().scan(0, |held, (_, change)| {
            *held += change;
            Some(*held)
        });
        counts.max().unwrap_or(0).unsigned_abs()
    }

    /// Asserts that no two owners overlap, in at least this many holds: a run in which nobody got
    /// anything proves nothing.
    #[track_caller]
    pub fn assert_exclusive(&self, at_least: usize) {
        let count = self.by_name().into_values().flatten().count();
        assert!(count >= at_least, "only {count} holds were recorded, {at_least} are needed");

        let overlaps = self.overlaps();
        let begin = self.intervals().iter().map(|interval| interval.acquired).min();
        let tell = |interval: &Interval| {
            let ms =
                |at: Instant| at.saturating_duration_since(begin.unwrap_or(at)).as_secs_f64() * 1e3;
            let (from, to) = (ms(interval.acquired), ms(interval.end));
            format!("{} held it from {from:.3} to {to:.3} ms", interval.owner)
        };
        let lines: Vec<_> = overlaps
            .iter()
            .take(10)
            .map(|(first, second)| format!("{}: {}, {}", first.name, tell(first), tell(second)))
            .collect();
        assert!(
            overlaps.is_empty(),
            "{} of {count} holds overlap one of another owner; the first:\n{}",
            overlaps.len(),
            lines.join("\n")
        );
    }

    /// The usable holds of each name in the order of their grants.
    fn by_name(&self) -> BTreeMap<String, Vec<Interval>> {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for interval in self.intervals() {
            if interval.acquired <= interval.end {
                names.entry(interval.name.clone()).or_default().push(interval);
            }
        }
        for intervals in names.values_mut() {
            intervals.sort_by_key(|interval| (interval.acquired, interval.end));
        }
        names
    }
}

/// Compares each hold with the latest end before it among other owners. The latest of all and the
/// latest of any other owner than that one's are enough to know it.
fn overlaps_of_one_name(intervals: Vec<Interval>) -> Vec<(Interval, Interval)> {
    let mut overlaps = Vec::new();
    let mut latest: Option<&Interval> = None;
    let mut rival: Option<&Interval> = None;
    for this in &intervals {
        let other = if latest.is_some_and(|l| l.owner != this.owner) { latest } else { rival };
        if let Some(other) = other
            && other.end > this.acquired
        {
            overlaps.push((other.clone(), this.clone()));
        }
        if latest.is_none_or(|l| l.end < this.end) {
            if latest.is_some_and(|l| l.owner != this.owner) {
                rival = latest;
            }
            latest = Some(this);
        } else if latest.is_some_and(|l| l.owner != this.owner)
            && rival.is_none_or(|r| r.end < this.end)
        {
            rival = Some(this);
        }
    }
    overlaps
}

/// A hold that goes on. It ends when told so, or when this is dropped.
#[derive(Debug)]
#[must_use = "the hold ends when this is dropped"]
pub struct Held {
    history: History,
    name: String,
    owner: String,
    acquired: Instant,
    until: Option<Instant>,
}

impl Held {
    /// Says up to when the owner may rely on the hold; the last call counts.
    pub fn valid_until(&mut self, deadline: Instant) {
        self.until = Some(deadline);
    }

    /// Ends the hold; call it right before the release.
    pub fn end(self) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = Instant::now();
        let end = self.until.map_or(now, |until| until.min(now));
        self.history.record(&self.name, &self.owner, self.acquired, end);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Records `(owner, acquired, end)` in milliseconds.
    fn history(holds: &[(&str, u64, u64)]) -> History {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let history = History::new();
        for (owner, acquired, end) in holds {
            history.record("a", owner, at(*acquired), at(*end));
        }
        history
    }

    fn pairs(history: &History) -> Vec<(String, String)> {
        history.overlaps().into_iter().map(|(first, second)| (first.owner, second.owner)).collect()
    }

    #[test]
    fn holds_that_touch_do_not_overlap() {
        let history = history(&[("x", 0, 5), ("y", 5, 9), ("x", 9, 9), ("z", 9, 12)]);
        assert_eq!(pairs(&history), []);
        history.assert_exclusive(4);
        assert_eq!(history.peak("a"), 1);
    }

    #[test]
    fn an_overlap_is_found_whatever_the_order_of_records() {
        let history = history(&[("y", 4, 9), ("z", 20, 30), ("x", 0, 5)]);
        assert_eq!(pairs(&history), [("x".into(), "y".into())]);
        assert_eq!(history.peak("a"), 2);
    }

    #[test]
    fn a_long_hold_is_remembered_past_short_ones_of_its_owner() {
        let history = history(&[("x", 0, 100), ("x", 10, 20), ("x", 30, 40), ("y", 50, 60)]);
        assert_eq!(pairs(&history), [("x".into(), "y".into())]);
    }

    #[test]
    fn the_rival_of_a_longer_hold_is_remembered() {
        let history = history(&[("x", 0, 100), ("y", 10, 50), ("x", 20, 30)]);
        assert_eq!(pairs(&history), [("x".into(), "y".into()), ("y".into(), "x".into())]);
    }

    #[test]
    fn an_instant_within_a_foreign_hold_overlaps() {
        assert_eq!(pairs(&history(&[("x", 0, 9), ("y", 4, 4)])).len(), 1);
    }

    #[test]
    fn owners_may_nest_names_differ_and_late_grants_do_not_count() {
        let history = history(&[("x", 0, 9), ("x", 2, 3), ("y", 5, 4)]);
        let begin = Instant::now();
        history.record("b", "y", begin, begin + Duration::from_secs(1));
        history.assert_exclusive(3);
    }

    #[test]
    fn the_checker_agrees_with_comparing_all_pairs() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut overlapping = 0;
        for _ in 0..2_000 {
            let holds: Vec<_> = (0..6)
                .map(|_| {
                    let acquired = random(40);
                    (["x", "y", "z"][random(3) as usize], acquired, acquired + random(6))
                })
                .collect();
            let history = history(&holds);
            let sorted = history.by_name().remove("a").expect("all holds have this name");
            let expected = sorted.iter().enumerate().any(|(i, first)| {
                sorted[i + 1..]
                    .iter()
                    .any(|second| first.owner != second.owner && second.acquired < first.end)
            });
            overlapping += usize::from(expected);
            assert_eq!(!history.overlaps().is_empty(), expected, "{holds:?}");
        }
        assert!((200..1_800).contains(&overlapping), "{overlapping} of the cases overlap");
    }

    #[test]
    fn a_hold_ends_at_its_deadline_its_end_or_its_drop() {
        let history = History::new();
        let mut overdue = history.held("a", "x");
        overdue.valid_until(overdue.acquired);
        overdue.end();
        drop(history.held("a", "y"));
        let [overdue, dropped] = &history.intervals()[..] else { panic!("two holds") };
        assert_eq!(overdue.acquired, overdue.end);
        assert!(dropped.acquired <= dropped.end);
    }

    #[test]
    #[should_panic(expected = "only 1 holds were recorded, 2 are needed")]
    fn an_empty_run_proves_nothing() {
        history(&[("x", 0, 1)]).assert_exclusive(2);
    }

    #[test]
    #[should_panic(expected = "a: x held it from 0.000 to 5.000 ms, y held it from 4.000 to 9.000")]
    fn an_overlap_is_told_in_words() {
        history(&[("x", 0, 5), ("y", 4, 9)]).assert_exclusive(2);
    }
}

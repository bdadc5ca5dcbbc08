//! Judges what everybody had when everybody contended.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    contention::Work,
    peer::{decode, version},
};

/// One hold of one name; times are nanoseconds of the common clock.
#[derive(Clone)]
pub struct Hold {
    pub process: &'static str,
    /// As [`Work::kind`], but `read` and `write`.
    pub kind: String,
    pub name: String,
    pub thread: String,
    pub asked: i64,
    pub from: i64,
    pub to: i64,
    pub token: u64,
    /// How much of the name's room it takes.
    pub weight: i64,
    /// False for all but the first lock of a multi lock.
    pub first: bool,
}

impl Hold {
    /// What a killed process has until its lease ends.
    pub fn of_the_dead(process: &'static str, kind: &str, name: &str, to: i64) -> Self {
        let [kind, name, thread] = [kind, name, "dead"].map(str::to_owned);
        Self {
            process,
            kind,
            name,
            thread,
            asked: 0,
            from: 0,
            to,
            token: 0,
            weight: 1,
            first: false,
        }
    }

    fn tell(&self) -> String {
        let Self { process, thread, kind, from, to, token, .. } = self;
        format!("{process}, {thread}: {kind} from {from} to {to}, token {token}")
    }

    fn is_of_the_dead(&self) -> bool {
        self.asked == 0
    }
}

/// All holds of a run, in the order in which they began.
pub struct Run {
    work: Vec<&'static Work>,
    holds: Vec<Hold>,
}

/// What a server's clock of milliseconds may end too early, in the eyes of another.
const SLACK: i64 = 2_000_000;

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

impl Run {
    /// Of what the processes told, and what the dead among them had.
    pub fn read(
        work: &[&'static Work],
        told: &[(&'static str, Vec<String>)],
        left: &[Hold],
    ) -> Self {
        let mut holds = Vec::new();
        for (process, lines) in told {
            for line in lines {
                let words: Vec<_> = line.split(' ').collect();
                let ["*", kind, names, thread, times @ ..] = &words[..] else { continue };
                let times: Vec<i64> = times.iter().map_while(|time| time.parse().ok()).collect();
                let [asked, from, to, token] = times[..] else { continue };
                let its = work.iter().find(|work| work.has(kind)).expect("it is contended for");
                for (i, name) in decode(names).split(',').enumerate() {
                    holds.push(Hold {
                        process,
                        kind: (*kind).to_owned(),
                        name: name.to_owned(),
                        thread: (*thread).to_owned(),
                        asked,
                        from,
                        to,
                        token: token.unsigned_abs(),
                        weight: its.weight(kind),
                        first: i == 0,
                    });
                }
            }
        }
        holds.extend(left.iter().map(|hold| Hold { to: hold.to - SLACK, ..hold.clone() }));
        holds.sort_by_key(|hold| hold.from);
        Self { work: work.to_vec(), holds }
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Hold> {
        self.holds.iter().filter(move |hold| hold.name == name)
    }

    /// Moments at which more was held of a name than there is, with those who held it.
    fn overfull(&self) -> Vec<String> {
        let mut moments = Vec::new();
        let names = self
            .work
            .iter()
            .flat_map(|work| work.members().into_iter().map(|name| (name, work.room)));
        for (name, room) in names.collect::<BTreeMap<_, _>>() {
            let usable = || self.of(name).filter(|hold| hold.from <= hold.to);
            let ends = usable().map(|hold| (hold.to.max(hold.from + 1), false, hold));
            let begins = usable().map(|hold| (hold.from, true, hold));
            let mut changes: Vec<_> = begins.chain(ends).collect();
            changes.sort_by_key(|(at, begins, _)| (*at, *begins)); // at one moment, ends come first
            let mut held: Vec<&Hold> = Vec::new();
            for (_, begins, hold) in changes {
                if begins {
                    held.push(hold);
                } else {
                    held.retain(|other| !std::ptr::eq(*other, hold));
                }
                if begins && held.iter().map(|hold| hold.weight).sum::<i64>() > room {
                    let all: Vec<_> = held.iter().map(|hold| hold.tell()).collect();
                    moments.push(format!("{name}: {}", all.join("; ")));
                }
            }
        }
        moments
    }

    /// One holder, one writer or many readers, so many permits; in at least so many holds.
    #[track_caller]
    pub fn assert_never_overfull(&self, at_least: usize) {
        for work in &self.work {
            let count = self.holds.iter().filter(|hold| work.has(&hold.kind)).count();
            assert!(count >= at_least, "only {count} holds of {} were told", work.kind);
        }
        let moments = self.overfull();
        assert!(moments.is_empty(), "{} times; first {}", moments.len(), moments[0]);
    }

    /// I3: whoever has it later has a higher token.
    #[track_caller]
    pub fn assert_tokens_grow(&self) {
        for work in self.work.iter().filter(|work| work.kind == "fenced") {
            for name in work.members() {
                let tokens = self
                    .of(name)
                    .filter(|hold| hold.token != 0 && hold.from <= hold.to)
                    .collect::<Vec<_>>();
                assert!(tokens.len() >= 50, "only {} tokens were told", tokens.len());
                for pair in tokens.windows(2) {
                    let [first, then] = [pair[0], pair[1]];
                    let grow = first.token < then.token;
                    assert!(grow, "{name}: {} before {}", first.tell(), then.tell());
                }
            }
        }
    }

    /// The longest times in which nobody had a name, and when they began; the longest first.
    fn gaps(&self, work: &Work, until: i64) -> Vec<(i64, i64, &'static str)> {
        let mut gaps = Vec::new();
        for name in work.members() {
            let mut end = None;
            let told = self.of(name).filter(|hold| !hold.is_of_the_dead() && hold.from < until);
            for hold in told {
                let free = end.unwrap_or(hold.from);
                gaps.push((hold.from - free, free, name));
                end = Some(free.max(hold.to));
            }
            let free = end.expect("somebody had it");
            gaps.push((until - free, free, name));
        }
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.0));
        gaps
    }

    /// Nothing is stuck: every name is taken again and again until the end, also what the dead held.
    #[track_caller]
    pub fn assert_goes_on(&self, until: i64) {
        for work in &self.work {
            let (gap, _, name) = self.gaps(work, until)[0];
            let longest = work.longest_gap();
            assert!(gap < longest.as_nanos() as i64, "nobody had {name} for {gap} ns");
        }
    }

    /// How many holds of a kind each process had in this time.
    fn shares(&self, work: &Work, time: &Range<i64>) -> BTreeMap<&'static str, usize> {
        let mut shares = BTreeMap::new();
        let first = self.holds.iter().filter(|hold| hold.first && work.has(&hold.kind));
        for hold in first.filter(|hold| time.contains(&hold.from)) {
            *shares.entry(hold.process).or_default() += 1;
        }
        shares
    }

    /// Of each kind, each side and each process has at least half of its fair share.
    #[track_caller]
    pub fn assert_shared(&self, time: &Range<i64>) {
        for work in &self.work {
            let (kind, shares) = (work.kind, self.shares(work, time));
            let all: usize = shares.values().sum();
            for side in ["java", "rust"] {
                let its = shares.iter().filter(|(process, _)| process.starts_with(side));
                let its: usize = its.map(|(_, holds)| holds).sum();
                assert!(4 * its >= all, "{kind}: {side} had only {its} of {all}: {shares:?}");
            }
            // Who has the first of two locks keeps it while it waits for the second, for seconds in
            // Redisson: the good luck of one process comes in long runs. Over both of a side it evens
            // out.
            let fed = shares.len() == 4 && shares.values().all(|holds| 8 * holds >= all);
            assert!(fed || kind == "multi", "{kind}: starved: {shares:?}");
        }
    }

    pub fn report(&self, fair: &Range<i64>, [begin, jvm, rust, last]: [i64; 4]) {
        println!(
            "Redisson {}: {} holds in {:.0} s, more than there is {} times",
            version(),
            self.holds.len(),
            seconds(last - begin),
            self.overfull().len()
        );
        let [jvm, rust] = [jvm, rust].map(|at| seconds(at - begin));
        println!("  killed: a JVM at {jvm:.1} s, a Rust process at {rust:.1} s");
        for work in &self.work {
            self.report_one(work, fair, begin, last);
        }
        for dead in self.holds.iter().filter(|hold| hold.is_of_the_dead()) {
            let next = self.of(&dead.name).find(|hold| hold.from > dead.to);
            let next = next.map_or(f64::NAN, |next| seconds(next.from - dead.to));
            let Hold { process, kind, name, .. } = dead;
            println!("  {process} died with {kind} {name}: had again {next:.3} s after its end");
        }
    }

    fn report_one(&self, work: &Work, fair: &Range<i64>, begin: i64, last: i64) {
        let shares = self.shares(work, fair);
        let all: usize = shares.values().sum();
        let per_second = all as f64 / seconds(fair.end - fair.start);
        print!("  {:10} {per_second:5.0}/s", work.kind);
        for (process, holds) in &shares {
            let waits = self.holds.iter().filter(|hold| {
                hold.process == *process && work.has(&hold.kind) && !hold.is_of_the_dead()
            });
            let longest = waits.map(|hold| hold.from - hold.asked).max().unwrap_or_default();
            let percent = *holds as f64 * 100.0 / all as f64;
            print!(", {process} {percent:.0} % (waited {:.2} s)", seconds(longest));
        }
        let gaps = self.gaps(work, last);
        let gaps = gaps.iter().take(2).map(|(gap, free, name)| {
            format!("{name} {:.2} s from {:.1} s on", seconds(*gap), seconds(free - begin))
        });
        println!("; nobody had {}", gaps.collect::<Vec<_>>().join(", "));
    }
}

impl Work {
    /// Whether a hold of this kind is one of it.
    fn has(&self, kind: &str) -> bool {
        self.kind == kind || self.kind == "rw" && matches!(kind, "read" | "write")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::{FENCED_LOCK, LOCK, MULTI, READ_WRITE, SEMAPHORE};

    fn run(work: &'static Work, lines: &[&str]) -> Run {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Run::read(&[work], &[("rust 1", lines)], &[])
    }

    #[test]
    fn two_holders_of_a_lock_are_seen() {
        let one = "* lock b%3A%7Bx%7D 1 0 100 200 0";
        assert_eq!(run(&LOCK, &[one, "* lock b:{x} 2 0 200 300 0"]).overfull().len(), 0);
        assert_eq!(run(&LOCK, &[one, "* lock c 2 0 150 160 0"]).overfull().len(), 0);
        assert_eq!(run(&LOCK, &[one, "* lock b:{x} 2 0 199 300 0"]).overfull().len(), 1);
        assert_eq!(run(&LOCK, &[one, "* lock b:{x} 2 0 150 150 0"]).overfull().len(), 1);
        assert_eq!(
            run(&LOCK, &[one, "* lock b:{x} 2 0 150 149 0"]).overfull().len(),
            0,
            "too late"
        );
        let both = ["* multi m1,m2 1 0 100 200 0", "* multi m2,m3 2 0 150 300 0"];
        assert_eq!(run(&MULTI, &both).overfull().len(), 1);
    }

    #[test]
    fn a_writer_beside_readers_and_a_permit_too_many_are_seen() {
        let readers = ["* read r 1 0 100 200 0", "* read r 2 0 110 210 0"];
        assert_eq!(run(&READ_WRITE, &readers).overfull().len(), 0);
        let writer = "* write r 3 0 205 220 0";
        assert_eq!(run(&READ_WRITE, &[readers[0], readers[1], writer]).overfull().len(), 1);
        let holds = [0, 1, 2, 3].map(|i| format!("* semaphore sem {i} 0 10{i} 200 0"));
        let holds = holds.each_ref().map(String::as_str);
        assert_eq!(run(&SEMAPHORE, &holds[..3]).overfull().len(), 0);
        assert_eq!(run(&SEMAPHORE, &holds).overfull().len(), 1);
    }

    #[test]
    fn what_the_dead_held_nobody_has_before_its_end() {
        let early = ("java 1", vec!["* lock a 1 1 5000000 6000000 0".to_owned()]);
        let mut dead = Hold::of_the_dead("rust 1", "lock", "a", 7_000_000);
        assert_eq!(
            Run::read(&[&LOCK], std::slice::from_ref(&early), &[dead.clone()]).overfull().len(),
            0
        );
        dead.to = 8_000_000;
        assert_eq!(Run::read(&[&LOCK], &[early], &[dead]).overfull().len(), 1);
    }

    #[test]
    #[should_panic(expected = "before")]
    fn a_token_that_does_not_grow_is_seen() {
        let lines: Vec<_> = ["t", "u"]
            .into_iter()
            .flat_map(|name| (1..=60).map(move |i| format!("* fenced {name} 1 0 {i}0 {i}1 {i}")))
            .chain(["* fenced u 1 0 1000 1001 60".to_owned()])
            .collect();
        Run::read(&[&FENCED_LOCK], &[("rust 1", lines)], &[]).assert_tokens_grow();
    }
}

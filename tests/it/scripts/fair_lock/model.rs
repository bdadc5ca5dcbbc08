//! Processes of ours and of Java's come, wait, give up and die at random around one fair lock.
//!
//! What must hold: a living waiter of ours is never out of the queue; who wins is the first of
//! those that live; the dead of ours go within seconds; nobody is stuck and nothing is left.

use super::*;

/// Short, so that many wait for longer.
const WAIT: i64 = 20_000;

/// Longer than 4 s, two beats that are lost, and a third.
const DEAD_MS: i64 = 8_000;

#[derive(Clone, Debug)]
struct Waiter {
    owner: String,
    /// The process, and the thread of Java's.
    process: usize,
    thread: i64,
    /// How the server heard of them: who was removed and came again is new.
    arrival: u64,
    /// When a `tryLock` of Java's gives up, and what it said its wait is.
    ends_at: i64,
    wait: i64,
}

struct Process {
    /// `None`: ours.
    java: Option<RedissonFair>,
    skew: i64,
    /// When it was killed.
    died_at: Option<i64>,
    next_beat: i64,
    lost_beats: usize,
}

struct Model {
    fair: Fair,
    random: fastrand::Rng,
    processes: Vec<Process>,
    waiters: Vec<Waiter>,
    holder: Option<Waiter>,
    arrivals: u64,
    ids: i64,
    /// Since when some of ours that live have waited: nobody else looks after the dead.
    beating_since: i64,
    /// How many turns ours and Java's had.
    turns: [usize; 2],
}

impl Model {
    fn start(seed: u64) -> Self {
        let mut model = Self {
            fair: Fair::start(),
            random: fastrand::Rng::with_seed(seed),
            processes: vec![],
            waiters: vec![],
            holder: None,
            arrivals: 0,
            ids: 0,
            beating_since: START,
            turns: [0, 0],
        };
        model.fair.wait.set(WAIT);
        (0..4).for_each(|nth| model.launch(nth % 2 == 0));
        model
    }

    fn launch(&mut self, is_java: bool) {
        let id = format!("{:08x}-0000-4000-8000-000000000000", self.processes.len());
        let java = is_java.then(|| RedissonFair::connect(self.fair.server.port(), &id));
        let skew = self.random.i64(-2_000..2_000);
        let next_beat = self.now() + self.random.i64(0..1_000);
        self.processes.push(Process { java, skew, died_at: None, next_beat, lost_beats: 0 });
    }

    fn now(&self) -> i64 {
        self.fair.now.get()
    }

    fn lives(&self, waiter: &Waiter) -> bool {
        self.processes[waiter.process].died_at.is_none()
    }

    fn is_ours(&self, waiter: &Waiter) -> bool {
        self.processes[waiter.process].java.is_none()
    }

    fn pass_time(&mut self, ms: i64) {
        self.fair.advance(ms);
        for process in &self.processes {
            if let Some(java) = &process.java {
                java.set_clock(self.fair.now.get() + process.skew);
            }
        }
        if self.holder.is_some() && self.fair.holder().is_none() {
            assert!(!self.lives(self.holder.as_ref().unwrap()), "only a dead holder's lease ends");
            self.holder = None;
        }
        let Some(holder) = self.holder.clone() else { return };
        if self.lives(&holder) && ttl(&self.fair.raw, "l") < 15_000 {
            match self.is_ours(&holder) {
                true => assert!(self.fair.renew(&[&holder.owner]).is(0)),
                false => assert_eq!(self.fair.set(&["PEXPIRE", "l", "30000"]), 1),
            }
        }
    }

    /// The beats that are due, now and then one that is lost.
    fn beat(&mut self) {
        let now = self.now();
        for nth in 0..self.processes.len() {
            let process = &mut self.processes[nth];
            if process.java.is_some() || process.died_at.is_some() || process.next_beat > now {
                continue;
            }
            process.next_beat = now + 1_000;
            let own = self.waiters.iter().filter(|waiter| waiter.process == nth);
            let mut own: Vec<_> = own.map(|waiter| waiter.owner.as_str()).collect();
            if own.is_empty() {
                continue;
            }
            self.random.shuffle(&mut own);
            process.lost_beats += 1;
            if process.lost_beats > 2 || self.random.f32() > 0.2 {
                process.lost_beats = 0;
                assert_eq!(self.fair.renew(&own).0, vec![0; own.len()]);
            }
        }
    }

    /// A try of this waiter; whether it has the lock now.
    fn try_it(&mut self, nth: usize) -> bool {
        let waiter = self.waiters[nth].clone();
        let before = self.fair.queue();
        let granted = match &self.processes[waiter.process].java {
            Some(java) => {
                java.acquire(&self.fair.names, waiter.thread, 30_000, waiter.wait).is_none()
            }
            None => self.fair.acquire(&waiter.owner).is(0),
        };
        if !before.contains(&waiter.owner) {
            assert!(waiter.arrival == 0 || !self.is_ours(&waiter), "{waiter:?} was removed");
            self.arrivals += 1;
            self.waiters[nth].arrival = self.arrivals;
        }
        if granted {
            assert!(self.holder.is_none(), "one at a time");
            let waiter = self.waiters.remove(nth);
            // Those of Java's that Redisson's rule removed before are none to be passed.
            let queue = self.fair.queue();
            let queued = |other: &&Waiter| queue.contains(&other.owner) && self.lives(other);
            let passed = self.waiters.iter().filter(queued).find(|w| w.arrival < waiter.arrival);
            assert!(passed.is_none(), "{waiter:?} passed {passed:?}");
            self.turns[usize::from(!self.is_ours(&waiter))] += 1;
            self.holder = Some(waiter);
        }
        granted
    }

    fn join(&mut self) {
        let living: Vec<_> = (0..self.processes.len())
            .filter(|nth| self.processes[*nth].died_at.is_none())
            .collect();
        let process = living[self.random.usize(..living.len())];
        self.ids += 1;
        let (mut owner, mut wait, mut ends_at) = (String::new(), WAIT, i64::MAX);
        if let Some(java) = &self.processes[process].java {
            owner = java.owner(self.ids);
            if self.random.bool() {
                wait = self.random.i64(1_000..WAIT);
                ends_at = self.now() + wait;
            }
        }
        if owner.is_empty() {
            owner = format!("{process:08x}:{}", 1_000_000_000 + self.ids);
        }
        let (thread, arrival) = (self.ids, 0);
        self.waiters.push(Waiter { owner, process, thread, arrival, ends_at, wait });
        self.try_it(self.waiters.len() - 1);
    }

    fn leave(&mut self, nth: usize) {
        let waiter = self.waiters.remove(nth);
        match &self.processes[waiter.process].java {
            Some(java) => java.give_up(&self.fair.names, waiter.thread, waiter.wait),
            None => assert_eq!(self.fair.release(&waiter.owner).0, [0], "{waiter:?}"),
        }
        assert!(!self.fair.queue().contains(&waiter.owner));
    }

    fn unlock(&mut self) {
        let Some(holder) =
            self.holder.take_if(|holder| self.processes[holder.process].died_at.is_none())
        else {
            return;
        };
        match &self.processes[holder.process].java {
            Some(java) => {
                assert_eq!(java.unlock(&self.fair.names, holder.thread, 30_000), Some(true));
            }
            None => assert_eq!(self.fair.release(&holder.owner).0, [0]),
        }
    }

    /// Kills a process, and starts another of its kind.
    fn kill(&mut self) {
        let nth = self.random.usize(..self.processes.len());
        if self.processes[nth].died_at.is_none() {
            self.processes[nth].died_at = Some(self.now());
            self.launch(self.processes[nth].java.is_some());
        }
    }

    /// Those whose wait is over leave; of the others, some try.
    fn wake(&mut self, share: f32) {
        let mut owners: Vec<_> = self.waiters.iter().map(|waiter| waiter.owner.clone()).collect();
        self.random.shuffle(&mut owners);
        for owner in owners {
            let nth = self.waiters.iter().position(|waiter| waiter.owner == owner).unwrap();
            if !self.lives(&self.waiters[nth]) {
                continue;
            }
            if self.waiters[nth].ends_at <= self.now() {
                self.leave(nth);
            } else if self.random.f32() < share {
                self.try_it(nth);
            }
        }
    }

    fn check(&mut self) {
        let (now, queue) = (self.now(), self.fair.queue());
        let place = |waiter: &Waiter| queue.iter().position(|queued| *queued == waiter.owner);
        let mut places = vec![];
        if !self.waiters.iter().any(|waiter| self.lives(waiter) && self.is_ours(waiter)) {
            self.beating_since = now;
        }
        for waiter in &self.waiters {
            let place = place(waiter);
            places.extend(place.map(|place| (place, waiter.arrival)));
            match self.processes[waiter.process].died_at {
                None if self.is_ours(waiter) => {
                    assert!(place.is_some(), "{waiter:?} is not in {queue:?}");
                }
                Some(at) if self.is_ours(waiter) && now - at.max(self.beating_since) > DEAD_MS => {
                    assert_eq!(place, None, "{waiter:?} is dead");
                }
                _ => {}
            }
        }
        places.sort_unstable();
        assert!(places.is_sorted_by_key(|(_, arrival)| arrival), "{places:?} of {queue:?}");
        for queued in &queue {
            assert!(self.waiters.iter().any(|waiter| waiter.owner == *queued), "{queued}");
        }
    }

    fn step(&mut self) {
        let pause = self.random.i64(20..400);
        self.pass_time(pause);
        self.beat();
        match self.random.u32(..100) {
            0..30 if self.waiters.len() < 12 => self.join(),
            30..60 => self.unlock(),
            60..68 if !self.waiters.is_empty() => {
                let nth = self.random.usize(..self.waiters.len());
                // Whoever called `lock()` in Java cannot give up.
                let waiter = &self.waiters[nth];
                if self.lives(waiter) && self.is_ours(waiter) {
                    self.leave(nth);
                }
            }
            68 => self.kill(),
            69..72 => {
                self.fair.try_once("once:1").is(0).then(|| self.fair.release("once:1"));
            }
            72..75 => {
                // A minute of beats in which the lock stays where it is; then many turns at once.
                for _ in 0..120 {
                    self.pass_time(500);
                    self.beat();
                    self.wake(0.02);
                    self.check();
                }
                for _ in 0..self.random.u32(2..8) {
                    self.unlock();
                    self.wake(1.0);
                    self.check();
                }
            }
            _ => {}
        }
        self.wake(0.2);
        self.check();
    }

    /// Everybody who lives gets its turn, in bounded time; then there is nothing.
    fn end(&mut self) {
        let started = self.now();
        while self.waiters.iter().any(|waiter| self.lives(waiter)) {
            self.pass_time(1_000);
            self.beat();
            self.unlock();
            self.wake(1.0);
            self.check();
            assert!(self.now() - started < 600 * WAIT, "stuck: {:?}", self.waiters);
        }
        self.unlock();
        while !self.fair.try_once("once:1").is(0) {
            self.pass_time(1_000);
            assert!(self.now() - started < 600 * WAIT, "stuck: {}", self.fair.everything());
        }
        assert_eq!(self.fair.release("once:1").0, [0]);
        self.pass_time(60_000);
        assert_no_keys(&self.fair.raw);
    }
}

/// I13, R-37.
#[test]
fn the_living_are_served_in_order_of_arrival_and_the_dead_leave() {
    let seeds = std::env::var("FAIR_SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    let mut turns = [0, 0];
    for seed in 0..seeds {
        println!("seed {seed}");
        let mut model = Model::start(seed);
        (0..200).for_each(|_| model.step());
        model.end();
        turns = [turns[0] + model.turns[0], turns[1] + model.turns[1]];
    }
    assert!(turns.iter().all(|turns| *turns > 10 * seeds as usize), "{turns:?}");
}

//! Two JVMs and two Rust processes that contend, how they are watched, and how they are killed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use leasehold::Client;
use tokio::task::JoinHandle;

use crate::{
    contender::WATCHDOG_MS,
    contention::{PERMITS, Work},
    pair::soon,
    peer::{Answer, Java, Jvm, Settings, decode},
    process::{Process, nanos},
    support::{
        eventually,
        redisson_fair::FairNames,
        server::{Raw, RedisServer},
    },
    verdict::Hold,
};

/// The processes have numbers: the JVMs 0 and 1, the others 2 and 3.
pub struct Crowd {
    pub javas: Vec<Java>,
    pub rusts: Vec<Process>,
    pub raw: Raw,
    pub server: RedisServer,
    client: Client,
    work: Vec<&'static Work>,
    text: String,
    each: u32,
    ms: u64,
    living: Vec<usize>,
}

/// As they are called in reports.
const NAMES: [&str; 4] = ["java 1", "java 2", "rust 1", "rust 2"];

impl Crowd {
    /// All four, ready to begin.
    pub async fn start(work: &[&'static Work], each: u32, length: Duration) -> Self {
        let server = RedisServer::start();
        let client = soon(Client::connect(server.url())).await.expect("the server is up");
        for work in work.iter().filter(|work| !work.has_lease()) {
            for name in work.names {
                let semaphore = client.semaphore(name);
                assert!(soon(semaphore.try_set(PERMITS as u32)).await.expect("no error"));
            }
        }
        let settings = Settings { watchdog_ms: WATCHDOG_MS, ..Settings::default() };
        let mut javas = Vec::new();
        for _ in 0..2 {
            javas.push(Java::open(Jvm::start(), server.port(), settings).await);
        }
        let text: Vec<_> =
            work.iter().map(|work| format!("{}={}", work.kind, work.names.join("/"))).collect();
        let (text, ms) = (text.join(";"), length.as_millis() as u64);
        let rusts: Vec<_> = (0..2).map(|_| Process::contend(&server, &text, each, ms)).collect();
        for rust in &rusts {
            rust.wait_for_line("ready").await;
        }
        let (raw, work, living) = (server.raw(), work.to_vec(), vec![0, 1, 2, 3]);
        Self { javas, rusts, raw, server, client, work, text, each, ms, living }
    }

    /// Lets them begin; what the first JVM answers when it is through.
    pub fn go(&mut self) -> JoinHandle<Answer> {
        let first_java = tokio::spawn(self.javas[0].contend(&self.text, self.each, self.ms));
        drop(self.javas[1].contend(&self.text, self.each, self.ms)); // never answered
        self.rusts.iter_mut().for_each(|rust| rust.say("go"));
        first_java
    }

    /// Lets them contend, and sees that no key stands for ever.
    pub async fn watch(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(250)).await;
            for work in self.work.iter().filter(|work| work.has_lease()) {
                for name in work.members() {
                    let left = self.raw.cmd(&["PTTL", name]).int();
                    let longest = work.lease.as_millis() as i64;
                    assert!(left != -1 && left <= longest, "{name}: {left}");
                }
            }
        }
    }

    /// Stops a process at a moment at which it holds something, and kills it: when, and what it held
    /// until when.
    ///
    /// Permits without a lease would be lost with it. They are given back, as an operator does who
    /// knows how many those are. Nothing in Redis tells it; so all are stopped, until what all
    /// have told agrees with what is taken.
    pub async fn kill(&mut self, number: usize) -> (i64, Vec<Hold>) {
        let lost = self.work.iter().any(|work| work.kind == "semaphore");
        let others: Vec<_> =
            self.living.iter().copied().filter(|other| lost && *other != number).collect();
        let mut held = Vec::new();
        eventually("it is stopped while it holds something", async || {
            others.iter().chain([&number]).for_each(|process| self.signal(*process, "STOP"));
            // What they have sent may still be on its way.
            tokio::time::sleep(Duration::from_millis(100)).await;
            held = self.held_by(number).unwrap_or_default();
            others.iter().for_each(|process| self.signal(*process, "CONT"));
            if held.is_empty() {
                self.signal(number, "CONT");
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            !held.is_empty()
        })
        .await;
        let killed = nanos();
        match number {
            0 | 1 => self.javas[number].jvm.kill(),
            _ => self.rusts[number - 2].kill(),
        }
        self.living.retain(|process| *process != number);
        if number < 2 {
            self.pass_over(&self.javas[number].id);
        }
        for hold in held.iter_mut().filter(|hold| hold.kind == "semaphore") {
            hold.to = nanos();
            soon(self.client.semaphore(&hold.name).give(1)).await.expect("no error");
        }
        held.iter_mut().for_each(|hold| hold.from = killed);
        (killed, held)
    }

    /// By nature, a dead waiter of Redisson's fair lock keeps its turn for five minutes (#3829); two
    /// of them are longer than the run. An operator who knows it takes it out of the queue, and so
    /// do we. For the dead of ours nobody has to: they are passed over.
    fn pass_over(&self, dead: &str) {
        for name in self.work.iter().filter(|work| work.kind == "fair").flat_map(|it| it.members())
        {
            let names = FairNames::of(name);
            let waiters = self.raw.cmd(&["LRANGE", &names.queue, "0", "-1"]).ok();
            let waiters = waiters.items().iter().map(|waiter| waiter.text());
            for waiter in waiters.filter(|waiter| waiter.starts_with(dead)) {
                self.raw.cmd(&["LREM", &names.queue, "0", &waiter]).ok();
                self.raw.cmd(&["ZREM", &names.deadlines, &waiter]).ok();
            }
        }
    }

    /// What each has said.
    pub fn told(&self) -> Vec<(&'static str, Vec<String>)> {
        (0..4).map(|number| (NAMES[number], self.lines(number))).collect()
    }

    fn lines(&self, number: usize) -> Vec<String> {
        match number {
            0 | 1 => self.javas[number].jvm.told(),
            _ => self.rusts[number - 2].lines(),
        }
    }

    fn signal(&self, number: usize, name: &str) {
        let pid = match number {
            0 | 1 => self.javas[number].jvm.pid(),
            _ => self.rusts[number - 2].pid(),
        };
        let kill = ["-c", r#"kill -s "$1" "$2""#, "signal", name, &pid.to_string()];
        let sent = std::process::Command::new("sh").args(kill).status().expect("there is a shell");
        assert!(sent.success(), "it runs until it is killed");
    }

    /// What a process that is stopped holds for half a second or longer; nothing, if that cannot be
    /// told.
    fn held_by(&self, number: usize) -> Option<Vec<Hold>> {
        let id = match number {
            0 | 1 => self.javas[number].id.clone(),
            _ => self.rusts[number - 2].word_after("id").expect("it has told it"),
        };
        let mut held = Vec::new();
        for work in &self.work {
            for name in work.members() {
                let holds = match work.kind {
                    "semaphore" => self.taken(name, number)?,
                    "permits" => self.permits(name, number),
                    _ => self.locked(work, name, &id),
                };
                let holds = holds.into_iter().map(|(kind, to)| {
                    let process = NAMES[number];
                    Hold { weight: work.weight(kind), ..Hold::of_the_dead(process, kind, name, to) }
                });
                held.extend(holds);
            }
        }
        Some(held)
    }

    /// As reader, writer or holder of a lock.
    fn locked(&self, work: &Work, name: &str, id: &str) -> Vec<(&'static str, i64)> {
        let fields = self.raw.cmd(&["HKEYS", name]).ok();
        let its = fields.items().iter().map(|field| field.text());
        let its = its.filter(|field| field.starts_with(id)).filter_map(|field| {
            let kind = match work.kind {
                "rw" if field.ends_with(":write") => "write",
                "rw" => "read",
                other => other,
            };
            let own = format!("{{{name}}}:{field}:rwlock_timeout:1");
            self.end(if kind == "read" { &own } else { name }).map(|end| (kind, end))
        });
        its.collect()
    }

    /// When a key ends, if it is not soon.
    fn end(&self, key: &str) -> Option<i64> {
        let (now, left) = (nanos(), self.raw.cmd(&["PTTL", key]).int());
        (left > 500).then(|| now + left * 1_000_000)
    }

    /// Permits with a lease, by the ids it has told.
    fn permits(&self, name: &str, number: usize) -> Vec<(&'static str, i64)> {
        const LEFT: &str = "local id = string.gsub(ARGV[1], '..', function(hex) \
            return string.char(tonumber(hex, 16)) end) \
            local now = redis.call('TIME') \
            local score = redis.call('ZSCORE', KEYS[1], id) \
            return score and math.floor(score - now[1] * 1000 - now[2] / 1000) or 0";
        let key = format!("{{{name}}}:timeout");
        let open = self.open("permits", number).into_values().filter_map(|id| {
            let (now, left) = (nanos(), self.raw.cmd(&["EVAL", LEFT, "1", &key, &id]).int());
            (left > 500).then(|| ("permits", now + left * 1_000_000))
        });
        open.collect()
    }

    /// Permits without one, if those that all have told are all that are taken.
    fn taken(&self, name: &str, number: usize) -> Option<Vec<(&'static str, i64)>> {
        let told = |process: &usize| self.open("semaphore", *process).len() as i64;
        let all = self.living.iter().map(told).sum::<i64>();
        let free = self.raw.cmd(&["GET", name]).int();
        (free + all == PERMITS).then(|| vec![("semaphore", i64::MAX); told(&number) as usize])
    }

    /// The ids of permits whose end a process has not told, by its threads.
    fn open(&self, kind: &str, number: usize) -> BTreeMap<String, String> {
        let mut open = BTreeMap::new();
        for line in self.lines(number) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["+", its, _, thread, _, id] if its == kind => {
                    open.insert(thread.to_owned(), decode(id));
                }
                ["*", its, _, thread, ..] if its == kind => drop(open.remove(thread)),
                _ => {}
            }
        }
        open
    }
}

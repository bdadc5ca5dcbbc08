//! What is asked of every kind of lock that one owner holds at a time: the cases, and how each kind
//! is called on both sides.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Lock, LockGuard, LostReason};
use tokio::task::JoinHandle;

use crate::{
    loss::{KILLED_MS, assert_free_within_lease, wait_until_renewed},
    pair::{KEPT_MS, LEASE, LEASE_MS, Pair, assert_woken_before, granted, soon},
    peer::{Answer, Java, Jvm, Settings, at_least, version},
    process::Process,
    support::{assert_every_key_has_ttl, eventually, server::Raw},
};

/// A kind of lock.
pub struct Kind {
    /// What `Peer` calls it.
    pub name: &'static str,
    /// The first version of Redisson that has it.
    pub since: (u32, u32),
    pub of: fn(&Client, &str) -> Lock,
    pub waits: Waits,
    /// What a holder's field has behind it.
    pub suffix: &'static str,
    /// Whether Redisson's `unlock` says nothing when the lock is not there at all.
    pub forgives: fn() -> bool,
}

/// How one sees that somebody waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It listens on a channel whose name begins so.
    On(&'static str),
    /// It stands in a queue, and listens on a channel of its own.
    InLine,
    /// It tries again and again.
    Spins,
}

const LOCK_CHANNEL: &str = "redisson_lock__channel";

pub static FAIR: Kind = Kind {
    name: "fair",
    since: (3, 0),
    of: |client, name| client.fair_lock(name),
    waits: Waits::InLine,
    suffix: "",
    forgives: || true,
};

pub static READ: Kind = Kind {
    name: "read",
    since: (3, 6),
    of: |client, name| client.read_write_lock(name).read(),
    waits: Waits::On("redisson_rwlock"),
    suffix: "",
    forgives: || !at_least(3, 44),
};

pub static WRITE: Kind = Kind {
    name: "write",
    of: |client, name| client.read_write_lock(name).write(),
    suffix: ":write",
    ..READ
};

pub static FENCED: Kind = Kind {
    name: "fenced",
    since: (3, 19),
    of: |client, name| (*client.fenced_lock(name)).clone(),
    waits: Waits::On(LOCK_CHANNEL),
    suffix: "",
    forgives: || false,
};

pub static SPIN: Kind = Kind {
    name: "spin",
    since: (3, 15),
    of: |client, name| client.spin_lock(name),
    waits: Waits::Spins,
    suffix: "",
    forgives: || false,
};

pub static LOCK: Kind = Kind {
    name: "lock",
    since: (3, 0),
    of: |client, name| client.lock(name),
    waits: Waits::On(LOCK_CHANNEL),
    suffix: "",
    forgives: || false,
};

/// The kind of this name.
pub fn named(name: &str) -> &'static Kind {
    let kinds = [&LOCK, &FAIR, &READ, &WRITE, &FENCED, &SPIN];
    kinds.into_iter().find(|kind| kind.name == name).expect("there is such a kind")
}

/// The tests of a kind: each is one function of this module.
macro_rules! cases {
    ($kind:expr) => {
        #[tokio::test]
        async fn who_is_refused_is_told_how_long_the_other_side_has_left() {
            crate::kinds::refused(&$kind).await;
        }

        #[tokio::test]
        async fn an_unlock_wakes_the_other_side() {
            crate::kinds::wakes(&$kind).await;
        }

        #[tokio::test]
        async fn a_dropped_guard_wakes_java_and_a_dropped_wait_leaves_nothing() {
            crate::kinds::drops(&$kind).await;
        }

        #[tokio::test]
        async fn both_sides_count_re_entries() {
            crate::kinds::counts(&$kind).await;
        }

        #[tokio::test]
        async fn who_does_not_hold_it_cannot_unlock_it() {
            crate::kinds::strangers(&$kind).await;
        }

        #[tokio::test]
        async fn each_watchdog_keeps_its_own_lock() {
            crate::kinds::watchdogs(&$kind).await;
        }

        #[tokio::test]
        async fn a_force_unlock_is_seen_by_the_other_side() {
            crate::kinds::forced(&$kind).await;
        }

        #[tokio::test]
        async fn a_fixed_lease_ends_for_the_other_side() {
            crate::kinds::fixed(&$kind).await;
        }

        #[tokio::test]
        async fn a_lock_of_a_killed_jvm_is_free_within_its_lease() {
            crate::kinds::killed_jvm(&$kind).await;
        }

        #[tokio::test]
        async fn a_lock_of_a_killed_rust_process_is_free_within_its_lease() {
            crate::kinds::killed_rust(&$kind).await;
        }
    };
}
pub(crate) use cases;

impl Kind {
    /// Whether this version has it; says so if not.
    pub fn is_there(&self) -> bool {
        let there = at_least(self.since.0, self.since.1);
        if !there {
            eprintln!("skipped: Redisson {} has no {} lock", version(), self.name);
        }
        there
    }

    /// Whether Java's waiters see that a lease has ended of which no message tells; says so if not.
    fn sees_leases_end(&self) -> bool {
        // It reckons its place's time by its own clock, wakes a few ms before the lease ends if it was
        // slow to ask, and takes the negative rest for no limit.
        let sees = self.name != "fair" || at_least(3, 52);
        if !sees {
            eprintln!("skipped: a fair waiter of Redisson {} may sleep for ever", version());
        }
        sees
    }

    pub fn java(&self, pair: &Pair) -> Java {
        pair.java.of(self.name)
    }

    pub fn rust(&self, pair: &Pair, name: &str) -> Lock {
        (self.of)(&pair.client, name)
    }

    /// How many wait; of those who spin, how often anybody has tried.
    pub fn waiting(&self, raw: &Raw, name: &str) -> i64 {
        match self.waits {
            Waits::On(prefix) => {
                let channel = format!("{prefix}:{{{name}}}");
                raw.cmd(&["PUBSUB", "NUMSUB", &channel]).ok().items()[1].int()
            }
            Waits::InLine => {
                let mailboxes = format!("{LOCK_CHANNEL}:{{{name}}}:*");
                let mailboxes = raw.cmd(&["PUBSUB", "CHANNELS", &mailboxes]).ok().items().len();
                raw.cmd(&["LLEN", &queue(name)]).int().min(mailboxes as i64)
            }
            Waits::Spins => {
                let stats = raw.cmd(&["INFO", "commandstats"]).text();
                let calls = stats.lines().filter_map(|line| {
                    let (_, rest) = line.split_once("cmdstat_eval")?;
                    rest.split_once("calls=")?.1.split(',').next()?.parse::<i64>().ok()
                });
                calls.sum()
            }
        }
    }

    /// Starts something, and returns when it waits.
    pub async fn until_it_waits<F>(
        &self,
        pair: &Pair,
        name: &str,
        start: impl FnOnce() -> F,
    ) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let raw = &pair.raw;
        // Else one who waited before could be taken for one who waits now.
        let (before, more) = match self.waits {
            Waits::Spins => (self.waiting(raw, name), 3),
            Waits::On(_) => {
                eventually("nobody waits", async || self.waiting(raw, name) == 0).await;
                (0, 1)
            }
            Waits::InLine => (self.waiting(raw, name), 1),
        };
        let task = tokio::spawn(start());
        eventually("it waits", async || self.waiting(raw, name) >= before + more).await;
        task
    }

    pub async fn wait_in_rust(&self, pair: &Pair, name: &str) -> JoinHandle<LockGuard> {
        let lock = self.rust(pair, name);
        self.until_it_waits(pair, name, || async move { granted(&lock).await }).await
    }

    pub async fn wait_in_java(&self, pair: &Pair, name: &str, thread: u32) -> JoinHandle<Answer> {
        let java = self.java(pair);
        self.until_it_waits(pair, name, || java.locking(name, thread, LEASE_MS)).await
    }

    /// The lock's holds and how often each is held, without what else is in the hash.
    fn holds(&self, pair: &Pair, name: &str) -> BTreeMap<String, String> {
        let mut holds = pair.holds(name);
        holds.remove("mode");
        holds
    }

    /// Asserts that a call of `unlock` on a lock that is gone says so, if this version does.
    fn assert_missed(&self, answer: Answer) {
        match answer {
            Err(thrown) => assert_eq!(thrown.class, "IllegalMonitorStateException"),
            Ok(_) => assert!((self.forgives)(), "Redisson does not know that it is gone"),
        }
    }

    /// Another kind that every hold of this one keeps out.
    pub fn rival(&self) -> &'static Self {
        if self.name == "read" { &WRITE } else { named(self.name) }
    }
}

fn queue(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}

/// Java holds and Rust asks; Rust holds and Java asks.
pub async fn refused(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let java = kind.java(&pair);
    java.lock("job", 1, LEASE_MS).await.unwrap();
    let lock = kind.rival().rust(&pair, "job");
    assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
    let wait = Duration::from_millis(100);
    assert!(soon(lock.try_lock(wait, wait)).await.unwrap().is_none());
    let held = kind.rust(&pair, "job");
    let left = soon(held.remaining_lease()).await.unwrap().unwrap();
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    assert!(soon(held.is_locked()).await.unwrap());
    let holder = soon(held.holder()).await.unwrap().unwrap();
    assert_eq!(holder.as_str(), java.field(1).await);
    java.unlock("job", 1).await.unwrap();
    assert!(!soon(held.is_locked()).await.unwrap());

    let guard = granted(&held).await;
    let rival = kind.rival().java(&pair);
    assert!(!rival.try_lock("job", 2, 0, 1_000).await);
    assert!(!rival.try_lock("job", 2, 100, 1_000).await);
    let left = java.ttl("job").await;
    assert!(left > LEASE_MS as i64 / 2 && left <= LEASE_MS as i64, "{left}");
    assert!(java.is_locked("job").await);
    assert_eq!(java.hold_count("job", 1).await, 0);
    soon(guard.unlock()).await.unwrap();
    assert!(!java.is_locked("job").await);
    assert!(java.try_lock("job", 1, 0, LEASE_MS).await);
    java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// I9. Several rounds: in some of them the unlock comes while the other side makes its second try.
pub async fn wakes(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, rival) = (kind.java(&pair), kind.rival());
    for round in 0..3 {
        let name = format!("job {round}");
        java.lock(&name, 1, LEASE_MS).await.unwrap();
        let waiting = rival.wait_in_rust(&pair, &name).await;
        let end = pair.lease_end(&name);
        java.unlock(&name, 1).await.unwrap();
        let guard = soon(waiting).await.unwrap();
        assert_woken_before(end);
        assert!(!java.try_lock(&name, 1, 0, 1_000).await);
        soon(guard.unlock()).await.unwrap();

        let guard = granted(&kind.rust(&pair, &name)).await;
        let waiting = rival.wait_in_java(&pair, &name, 1).await;
        let end = pair.lease_end(&name);
        soon(guard.unlock()).await.unwrap();
        soon(waiting).await.unwrap().unwrap();
        assert_woken_before(end);
        let lock = kind.rust(&pair, &name);
        assert!(soon(lock.try_lock_now()).await.unwrap().is_none());
        rival.java(&pair).unlock(&name, 1).await.unwrap();
    }
    pair.assert_nothing_left().await;
}

/// Promise 5, with Java behind.
pub async fn drops(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, rival) = (kind.java(&pair), kind.rival());
    let guard = granted(&kind.rust(&pair, "job")).await;
    let rivals = rival.java(&pair);
    let trying = || rivals.trying("job", 1, 15_000, LEASE_MS);
    let trying = rival.until_it_waits(&pair, "job", trying).await;
    let end = pair.lease_end("job");
    drop(guard);
    assert_eq!(soon(trying).await.unwrap().unwrap(), "true");
    assert_woken_before(end);
    rival.java(&pair).unlock("job", 1).await.unwrap();

    java.lock("job", 1, LEASE_MS).await.unwrap();
    let waiting = rival.wait_in_rust(&pair, "job").await;
    waiting.abort();
    assert!(waiting.await.is_err());
    java.unlock("job", 1).await.unwrap();
    let free = async || rival.java(&pair).try_lock("job", 2, 0, LEASE_MS).await;
    eventually("Java can have it", free).await;
    rival.java(&pair).unlock("job", 2).await.unwrap();
    pair.assert_nothing_left().await;
}

/// I5: each side sees the other's nested holds, and that they are not over before the last.
pub async fn counts(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, lock) = (kind.java(&pair), kind.rust(&pair, "job"));
    let (rival, rivals) = (kind.rival().rust(&pair, "job"), kind.rival().java(&pair));
    for _ in 0..3 {
        java.lock("job", 1, LEASE_MS).await.unwrap();
    }
    assert_eq!(java.hold_count("job", 1).await, 3);
    let field = java.field(1).await + kind.suffix;
    assert_eq!(kind.holds(&pair, "job"), BTreeMap::from([(field, "3".to_owned())]));
    assert_eq!(lock.hold_count(), 0);
    for _ in 0..3 {
        assert!(soon(rival.try_lock_now()).await.unwrap().is_none());
        java.unlock("job", 1).await.unwrap();
    }

    let guards = [granted(&lock).await, granted(&lock).await, granted(&lock).await];
    assert_eq!(lock.hold_count(), 3);
    let field = guards[0].holder().as_str().to_owned() + kind.suffix;
    assert_eq!(kind.holds(&pair, "job"), BTreeMap::from([(field, "3".to_owned())]));
    for guard in guards {
        assert_eq!(java.hold_count("job", 1).await, 0);
        assert!(!rivals.try_lock("job", 1, 0, 1_000).await);
        soon(guard.unlock()).await.unwrap();
    }
    assert!(rivals.try_lock("job", 1, 0, LEASE_MS).await);
    rivals.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// I4.
pub async fn strangers(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let java = kind.java(&pair);
    let guard = granted(&kind.rust(&pair, "job")).await;
    let (holds, end) = (pair.holds("job"), pair.expires("job"));
    let thrown = java.unlock("job", 1).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    assert_eq!(pair.holds("job"), holds);
    assert!(guard.is_held());
    assert_eq!(pair.expires("job"), end, "the lease was not begun anew");
    soon(guard.unlock()).await.unwrap();

    java.lock("job", 1, LEASE_MS).await.unwrap();
    let holds = pair.holds("job");
    let error = soon(kind.rust(&pair, "job").unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    let thrown = java.unlock("job", 2).await.unwrap_err();
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    assert_eq!(pair.holds("job"), holds);
    java.unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

/// For longer than two leases, both with the same short one.
pub async fn watchdogs(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::with_watchdogs(KEPT_MS).await;
    let java = kind.java(&pair);
    java.lock("javas", 1, 0).await.unwrap();
    let guard = soon(kind.rust(&pair, "rusts").lock()).await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(7) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for name in ["javas", "rusts"] {
            let left = java.ttl(name).await;
            assert!((1..=KEPT_MS as i64).contains(&left), "{name} has {left} ms left");
        }
        // The last token, and no other key, stays for ever.
        if kind.name != "fenced" {
            assert_every_key_has_ttl(&pair.raw);
        }
    }
    let rival = kind.rival();
    assert!(soon(rival.rust(&pair, "javas").try_lock_now()).await.unwrap().is_none());
    assert!(!rival.java(&pair).try_lock("rusts", 2, 0, 1_000).await);
    assert!(guard.is_held());
    java.unlock("javas", 1).await.unwrap();
    soon(guard.unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

/// The holder is told, the waiter woken.
pub async fn forced(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::with_watchdogs(1_500).await;
    let (java, rival) = (kind.java(&pair), kind.rival());
    let guard = soon(kind.rust(&pair, "job").lock()).await.unwrap();
    assert!(java.force_unlock("job").await);
    assert_eq!(soon(guard.lost()).await, LostReason::Removed);
    assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    assert!(!java.force_unlock("job").await);

    java.lock("job", 1, LEASE_MS).await.unwrap();
    let waiting = rival.wait_in_rust(&pair, "job").await;
    let end = pair.lease_end("job");
    assert!(java.force_unlock("job").await);
    let guard = soon(waiting).await.unwrap();
    assert_woken_before(end);

    let waiting = rival.wait_in_java(&pair, "job", 2).await;
    let end = pair.lease_end("job");
    assert!(soon(rival.rust(&pair, "job").force_unlock()).await.unwrap());
    soon(waiting).await.unwrap().unwrap();
    assert_woken_before(end);
    assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    assert_eq!(rival.java(&pair).hold_count("job", 2).await, 1, "the late unlock did nothing");

    assert!(soon(rival.rust(&pair, "job").force_unlock()).await.unwrap());
    kind.assert_missed(rival.java(&pair).unlock("job", 2).await);
    assert!(!soon(rival.rust(&pair, "job").force_unlock()).await.unwrap());
    eventually("no hold is left", async || pair.holds("job").is_empty()).await;
}

/// R-35, with nobody who would say anything.
pub async fn fixed(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let (java, rival) = (kind.java(&pair), kind.rival());
    java.lock("job", 1, 500).await.unwrap();
    let guard = granted(&rival.rust(&pair, "job")).await;
    soon(guard.unlock()).await.unwrap();

    if !kind.sees_leases_end() {
        return;
    }
    let lease = Duration::from_millis(500);
    let guard = soon(kind.rust(&pair, "job").lock_with(lease)).await.unwrap();
    rival.java(&pair).lock("job", 1, LEASE_MS).await.unwrap();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    let error = soon(guard.unlock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Expired));
    assert_eq!(rival.java(&pair).hold_count("job", 1).await, 1);
    rival.java(&pair).unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

///
pub async fn killed_jvm(kind: &Kind) {
    if !kind.is_there() {
        return;
    }
    let pair = Pair::start().await;
    let settings = Settings { watchdog_ms: KILLED_MS, ..Settings::default() };
    let victim = Java::open(Jvm::start(), pair.server.port(), settings).await.of(kind.name);
    victim.lock("job", 1, 0).await.unwrap();
    wait_until_renewed(&pair.raw, "job").await;
    let waiting = kind.rival().wait_in_rust(&pair, "job").await;
    victim.jvm.kill();
    assert_free_within_lease(&pair.raw, &["job"], &waiting).await;
    soon(waiting.await.unwrap().unlock()).await.unwrap();
    pair.assert_nothing_left().await;
}

///
pub async fn killed_rust(kind: &Kind) {
    if !kind.is_there() || !kind.sees_leases_end() {
        return;
    }
    let (pair, rival) = (Pair::start().await, kind.rival());
    let mut victim = Process::hold(&pair.server, kind.name, "job", KILLED_MS);
    victim.wait_for_line("held").await;
    wait_until_renewed(&pair.raw, "job").await;
    let waiting = rival.wait_in_java(&pair, "job", 1).await;
    victim.kill();
    assert_free_within_lease(&pair.raw, &["job"], &waiting).await;
    waiting.await.unwrap().unwrap();
    rival.java(&pair).unlock("job", 1).await.unwrap();
    pair.assert_nothing_left().await;
}

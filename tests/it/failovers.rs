//! Another server takes over, by sentinels or otherwise, while many hold, wait, take and give back.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, LockGuard, LostReason};
use tokio::task::JoinSet;

use crate::{
    rig::{Rig, acquiring, soon},
    support::{
        assert_every_key_has_ttl, assert_no_keys, blocking, connects, eventually,
        history::History,
        proxy::Proxy,
        sentinel::SentinelSetup,
        server::{Raw, RedisServer},
        subscriptions,
    },
};

/// Longer than any failover of these servers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Outlasts a failover, and is renewed while a test runs.
const WATCHDOG: Duration = Duration::from_secs(15);

/// A watchdog that does not come by during a test.
const SLEEPY: Duration = Duration::from_secs(600);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

async fn connect(url: &str, watchdog: Duration) -> Client {
    let builder = Client::builder(url).expect("a URL").watchdog(watchdog).patience(PATIENCE);
    let builder = builder.command_timeout(Duration::from_millis(500));
    soon(builder.connect()).await.expect("the servers are up")
}

/// Takes many locks at once.
async fn hold(client: &Client, prefix: &str, count: usize) -> Vec<LockGuard> {
    let names = (0..count).map(|n| format!("{prefix}-{n}"));
    let guards = names.map(|name| client.lock(name).lock());
    let guards = within(futures::future::join_all(guards)).await;
    guards.into_iter().map(|guard| guard.expect("it is free")).collect()
}

fn deadlines(guards: &[LockGuard]) -> Vec<Instant> {
    guards.iter().map(|guard| guard.valid_until()).collect()
}

/// Waits until the server has said of each of these that it stands.
async fn renewed_since(before: &[Instant], guards: &[LockGuard]) {
    eventually("all are renewed", async || {
        guards.iter().zip(before).all(|(guard, before)| {
            assert!(guard.is_held(), "{guard:?}");
            guard.valid_until() > *before
        })
    })
    .await;
}

/// How many of these holds a server has.
fn holders_at(raw: &Raw, guards: &[LockGuard]) -> usize {
    let holds = guards.iter().map(|g| raw.cmd(&["HEXISTS", g.name(), g.holder().as_str()]).int());
    holds.sum::<i64>() as usize
}

/// Tasks that take locks and give them back for as long as they are told to.
struct Crowd {
    tasks: JoinSet<()>,
    rounds: Vec<Arc<AtomicUsize>>,
    history: History,
    stop: Arc<AtomicBool>,
}

impl Crowd {
    /// Half of the tasks of each client meet at four names, the others have one of their own.
    fn start(clients: &[Client], tasks_each: usize) -> Self {
        let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
        let (mut tasks, mut rounds) = (JoinSet::new(), Vec::new());
        for (c, client) in clients.iter().enumerate() {
            for t in 0..tasks_each {
                let own = format!("own-{c}-{t}");
                let name = if t % 2 == 0 { format!("shared-{}", t % 8) } else { own.clone() };
                let (lock, history, stop) = (client.lock(name), history.clone(), stop.clone());
                let count = Arc::new(AtomicUsize::new(0));
                rounds.push(count.clone());
                tasks.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = lock.lock().await.expect("it waits for the new primary");
                        let mut held = history.held(lock.name(), &own);
                        tokio::task::yield_now().await;
                        held.valid_until(guard.valid_until().min(std::time::Instant::now()));
                        held.end();
                        guard.unlock().await.expect("the new primary has it");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        Self { tasks, rounds, history, stop }
    }

    /// Waits until each task has gone on for some rounds.
    async fn goes_on(&self) {
        let read = || self.rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed));
        let before: Vec<_> = read().collect();
        let all = async || read().zip(&before).all(|(now, before)| now > before + 3);
        eventually("all tasks go on", all).await;
    }

    async fn end(mut self) -> History {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(task) = within(self.tasks.join_next()).await {
            task.expect("no task fails");
        }
        self.history
    }
}

mod sentinels {
    use super::*;

    async fn start(sentinels: usize) -> SentinelSetup {
        blocking(move || SentinelSetup::start_with(sentinels, &[])).await
    }

    /// Has the replica take over all that was granted: the primary grants nothing more, as it does
    /// before a `FAILOVER`. Calls under way stay without an answer.
    fn complete_replication(setup: &SentinelSetup) {
        setup.primary.raw().cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]).ok();
        setup.wait_replicated();
    }

    /// R-11, I1, I2, I8, I9: a thousand holds, 64 busy tasks and some that wait.
    async fn is_survived(fail_over: fn(&mut SentinelSetup)) {
        let setup = start(1).await;
        let url = setup.url();
        let (one, two) = (connect(&url, WATCHDOG).await, connect(&url, WATCHDOG).await);
        let (renewer, sleepy) = (connect(&url, WATCHDOG).await, connect(&url, SLEEPY).await);
        let mut held = hold(&renewer, "renewed", 900).await;
        let asleep = hold(&sleepy, "asleep", 100).await;
        let before = (deadlines(&held), deadlines(&asleep));
        let waiting: Vec<_> =
            (0..10).map(|n| tokio::spawn(one.lock(format!("renewed-{n}")).lock())).collect();
        let primary = setup.primary.raw();
        eventually("they listen", async || subscriptions(&primary) >= 10).await;
        let crowd = Crowd::start(&[one.clone(), two.clone()], 32);
        crowd.goes_on().await;
        let setup = blocking(move || {
            let mut setup = setup;
            complete_replication(&setup);
            fail_over(&mut setup);
            setup.wait_failed_over();
            setup
        })
        .await;
        crowd.goes_on().await;
        renewed_since(&before.0, &held).await;
        renewed_since(&before.1, &asleep).await;
        let new = setup.replica.raw();
        assert_eq!(holders_at(&new, &held) + holders_at(&new, &asleep), 1000);
        assert!(new.cmd(&["INFO", "errorstats"]).text().contains("NOSCRIPT"), "it knew no script");
        renewed_since(&deadlines(&held), &held).await;
        for guard in held.drain(..10) {
            within(guard.unlock()).await.expect("it is held");
        }
        for waiter in waiting {
            let guard = within(waiter).await.expect("no panic").expect("it is free");
            within(guard.detach().unlock()).await.expect("it is held");
        }
        crowd.end().await.assert_exclusive(64 * 8);
        assert_every_key_has_ttl(&new);
        drop((held, asleep));
        eventually("all is given back", async || new.cmd(&["DBSIZE"]).int() == 0).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_death_of_a_primary_is_survived_by_all() {
        is_survived(SentinelSetup::kill_primary).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_planned_failover_is_survived_by_all() {
        is_survived(|setup| setup.fail_over()).await;
    }

    /// R-10, I8: told after the reconnection, long before the next renewal; nobody else is alarmed.
    #[tokio::test]
    async fn what_the_new_primary_does_not_have_is_told_at_once() {
        for planned in [false, true] {
            let setup = start(1).await;
            let client = connect(&setup.url(), SLEEPY).await;
            let other = connect(&setup.url(), SLEEPY).await;
            let kept = hold(&client, "kept", 20).await;
            let setup = blocking(move || {
                setup.wait_replicated();
                setup.cut_replication();
                setup
            })
            .await;
            let gone = hold(&client, "gone", 20).await;
            let fixed = soon(client.lock("fixed").lock_with(SLEEPY)).await.expect("it is free");
            let waiting = tokio::spawn(other.lock("gone-0").lock());
            let primary = setup.primary.raw();
            eventually("it listens", async || subscriptions(&primary) == 1).await;
            let before = deadlines(&kept);
            let setup = blocking(move || {
                let mut setup = setup;
                if planned {
                    setup.fail_over()
                } else {
                    setup.kill_primary()
                }
                setup.wait_failed_over();
                setup
            })
            .await;
            for guard in gone.iter().chain([&fixed]) {
                assert_eq!(within(guard.lost()).await, LostReason::Removed, "planned: {planned}");
                assert!(!guard.is_held());
            }
            renewed_since(&before, &kept).await;
            let next = within(waiting).await.expect("no panic").expect("it is free");
            assert_eq!(holders_at(&setup.replica.raw(), &kept), 20);
            for guard in kept.into_iter().chain([next.detach()]) {
                within(guard.unlock()).await.expect("it is held");
            }
            for guard in gone.into_iter().chain([fixed]) {
                let error = within(guard.unlock()).await.expect_err("it is lost");
                assert_eq!(error.kind(), ErrorKind::LeaseLost(LostReason::Removed));
            }
            assert_no_keys(&setup.replica.raw());
        }
    }

    /// the old primary goes on as one for some ten seconds; nobody may take locks there.
    async fn leaves_who_was_replaced(setup: SentinelSetup, url: &str) {
        let (client, other) = (connect(url, SLEEPY).await, connect(url, SLEEPY).await);
        let guard = soon(client.lock("job").lock()).await.expect("it is free");
        let waiting = tokio::spawn(other.lock("job").lock());
        let old = setup.primary.raw();
        eventually("it listens", async || subscriptions(&old) == 1).await;
        let before = [guard.valid_until()];
        let setup = blocking(move || {
            setup.wait_replicated();
            setup.fail_over();
            setup
        })
        .await;
        // Of the servers' clients, these alone speak RESP3.
        let ours = |raw: &Raw| raw.cmd(&["CLIENT", "LIST"]).text().matches("resp=3").count();
        assert!(ours(&old) >= 3, "commands of both, subscriptions");
        eventually("all have left", async || ours(&old) == 0).await;
        assert_eq!(old.cmd(&["ROLE"]).first_word().as_deref(), Some("master"));
        renewed_since(&before, std::slice::from_ref(&guard)).await;
        let new = setup.replica.raw();
        eventually("it listens there", async || subscriptions(&new) == 1).await;
        within(guard.unlock()).await.expect("it is held");
        let guard = within(waiting).await.expect("no panic").expect("it is free");
        assert_eq!(holders_at(&new, std::slice::from_ref(&guard)), 1);
    }

    /// one of three leads the failover, and the others hear of it.
    #[tokio::test]
    async fn a_primary_that_was_replaced_is_left_while_it_still_is_one() {
        let setup = start(3).await;
        let url = setup.url();
        leaves_who_was_replaced(setup, &url).await;
    }

    /// the rights at sentinels that README lists, and none to listen.
    #[cfg(feature = "sentinel")]
    #[tokio::test]
    async fn a_login_at_sentinels_needs_few_rights() {
        let ask = ["+sentinel|get-master-addr-by-name", "+sentinel|sentinels", "+sentinel|master"];
        for listen in [&["+subscribe", "&+promoted-slave", "&+switch-master"][..], &[]] {
            let setup = start(1).await;
            let user = ["ACL", "SETUSER", "watcher", "on", ">pw", "resetchannels", "-@all"];
            let user: Vec<_> = user.iter().chain(&ask).chain(listen).copied().collect();
            setup.sentinel.raw().cmd(&user).ok();
            let url = format!("{}&sentinelUsername=watcher&sentinelPassword=pw", setup.url());
            leaves_who_was_replaced(setup, &url).await;
        }
    }
}

/// One address that leads to another server after a while, as names and proxies do.
mod one_address {
    use super::*;
    use crate::support::sentinel::replicated;

    /// what it held is kept, and what it asks goes to the server that may answer.
    #[tokio::test]
    async fn a_server_that_was_made_a_replica_is_left() {
        let (old, new) = blocking(|| replicated(&[])).await;
        let proxy = Proxy::start(old.port());
        let client = connect(&proxy.url(), SLEEPY).await;
        let kept = soon(client.lock("kept").lock()).await.expect("it is free");
        let before = [kept.valid_until()];
        let (raw, new) = (old.raw(), new.raw());
        let copied = async || holders_at(&new, std::slice::from_ref(&kept)) == 1;
        eventually("it is replicated", copied).await;
        new.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
        raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        // Connections that stand still lead to the old one.
        proxy.retarget(port_of(&new));
        let guard = within(client.lock("job").lock()).await.expect("it finds the new one");
        assert!(raw.cmd(&["INFO", "errorstats"]).text().contains("READONLY"));
        assert_eq!(new.cmd(&["EXISTS", "job"]).int(), 1);
        renewed_since(&before, std::slice::from_ref(&kept)).await;
        for guard in [guard, kept] {
            within(guard.unlock()).await.expect("it is held");
        }
        assert_no_keys(&new);
    }

    /// where there is no other server, it is not looked for all the time. `READONLY` is
    /// what a replica says, `MASTERDOWN` one without its primary that must not show old data.
    #[tokio::test]
    async fn a_server_that_stays_a_replica_is_not_connected_to_again_and_again() {
        for stale in ["yes", "no"] {
            let rig = Rig::start().await;
            rig.raw.cmd(&["CONFIG", "SET", "replica-serve-stale-data", stale]).ok();
            rig.raw.cmd(&["REPLICAOF", "127.0.0.1", "1"]).ok();
            let asked = Instant::now();
            let locks: Vec<_> = (0..20).map(|n| rig.client.lock(format!("job-{n}"))).collect();
            let asking = locks.iter().map(|lock| tokio::spawn(lock.lock()));
            let asking: Vec<_> = asking.collect();
            rig.proxy.wait_for(acquiring("job-7"), 10).await;
            let connects = rig.proxy.accepted();
            // Two looks for another server are a second apart before long.
            let most = 8 + asked.elapsed().as_secs() as usize;
            assert!(connects <= most, "{connects} connects");
            let errors = rig.raw.cmd(&["INFO", "errorstats"]).text();
            let error = if stale == "yes" { "READONLY" } else { "MASTERDOWN" };
            assert!(errors.contains(error), "{errors}");
            rig.raw.cmd(&["REPLICAOF", "NO", "ONE"]).ok();
            for task in asking {
                let guard = within(task).await.expect("no panic").expect("it is writable again");
                within(guard.detach().unlock()).await.expect("it is held");
            }
            rig.assert_nothing_left().await;
        }
    }

    /// I8: nor is a server that reads its data; what it did not keep is told after that.
    #[tokio::test]
    async fn a_server_that_loads_its_data_is_asked_on_the_connection_that_stands() {
        let slow = ["--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024"];
        let server = RedisServer::builder().appendonly().args(slow).start();
        let mut rig = Rig::before(server, |b| b.watchdog(SLEEPY)).await;
        let gone = soon(rig.client.lock("gone").lock()).await.expect("it is free");
        let kept = soon(rig.client.lock("kept").lock()).await.expect("it is free");
        rig.raw.cmd(&["DEL", "gone"]).ok();
        rig.raw.cmd(&["DEBUG", "POPULATE", "6000"]).ok();
        rig.raw.cmd(&["BGREWRITEAOF"]).ok();
        let rewritten = async || {
            let info = rig.raw.cmd(&["INFO", "persistence"]).text();
            info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
        };
        eventually("the data are on disk", rewritten).await;
        let before = [kept.valid_until()];
        rig.server.kill();
        let rig = blocking(move || {
            rig.server.restart();
            rig
        })
        .await;
        assert_eq!(within(gone.lost()).await, LostReason::Removed);
        renewed_since(&before, std::slice::from_ref(&kept)).await;
        let raw = rig.server.raw();
        let info = raw.cmd(&["INFO", "errorstats"]).text();
        assert!(info.contains("errorstat_LOADING"), "{info}");
        // For calls and renewals.
        assert!((1..=4).contains(&connects(&raw)), "{} connects", connects(&raw));
        within(kept.unlock()).await.expect("it is held");
    }
}

fn port_of(raw: &Raw) -> u16 {
    raw.cmd(&["CONFIG", "GET", "port"]).map()["port"].parse().expect("a port")
}

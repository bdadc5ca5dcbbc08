//! A server with two clients of one name, and what every promise asks of them.
use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold::{Builder, Client, Error};
use tokio::{task::JoinHandle, time::timeout};

use super::subjects::{Synchronizer, Taken};
use crate::support::{
    eventually,
    proxy::{Command, Matcher, Proxy},
    server::{Raw, RedisServer},
    subscriptions, unique,
};

/// When something is taken for hanging. Well below the lease of what is renewed: what comes free
/// within this did not wait for the end of a lease.
pub const HANG: Duration = Duration::from_secs(15);

/// A lease of which a third is soon over, and that outlasts a machine that stalls for a moment.
pub const SHORT: Duration = Duration::from_secs(1);

/// When a call that is not woken any more has come to its last point.
const STUCK: Duration = Duration::from_millis(100);

/// One client behind a proxy, whose calls are looked at and broken, and one that does well.
pub struct Setup {
    pub raw: Raw,
    pub proxy: Proxy,
    pub one: Client,
    pub two: Client,
    pub name: String,
    pub server: RedisServer,
}

impl Setup {
    pub async fn of<S: Synchronizer>() -> Self {
        Self::with::<S>(|builder| builder).await
    }

    /// With settings of its own for the first client.
    pub async fn with<S: Synchronizer>(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Client::builder(proxy.url()).expect("a URL");
        let one = settings(builder).connect().await.expect("the server is up");
        let two = Client::connect(server.url()).await.expect("the server is up");
        let raw = server.raw();
        // The server knows the scripts from here on: no reply is NOSCRIPT.
        let warm = unique("warm");
        got(S::of(&two, &warm).take()).await.give_back().await.expect("it is held");
        let occupied = got(S::occupy(&two, &warm)).await;
        let refused = S::of(&one, &warm).try_take(Duration::ZERO).await;
        assert!(refused.expect("the server is up").is_none(), "somebody has it");
        occupied.give_back().await.expect("it is held");
        let setup = Self { raw, proxy, one, two, name: warm, server };
        // What the refused one had taken of it goes back behind the scenes.
        setup.assert_only_what_stays::<S>("at first").await;
        setup.raw.cmd(&["FLUSHALL"]).ok();
        Self { name: unique("a"), ..setup }
    }

    /// Takes it all, by the second client.
    pub async fn occupy<S: Synchronizer>(&self) -> S::Occupied {
        got(S::occupy(&self.two, &self.name)).await
    }

    /// A task of the first client that takes it, and has been refused by now.
    pub async fn wait_in_vain<S: Synchronizer>(&self) -> JoinHandle<Result<S::Taken, Error>> {
        let before = self.asked();
        let waiting = tokio::spawn(S::of(&self.one, &self.name).take());
        // Once more behind its subscription, or by a timer.
        eventually("it waits", async || self.asked() > before + S::TRIES).await;
        assert!(!waiting.is_finished());
        waiting
    }

    /// Asserts that others can have all of it, and that nobody's lease had to end for that.
    pub async fn assert_free<S: Synchronizer>(&self, when: &str) {
        let occupied = timeout(HANG, S::occupy(&self.two, &self.name)).await;
        let occupied = occupied.unwrap_or_else(|_| panic!("it is not free {when}"));
        let occupied = occupied.expect("the server is up");
        occupied.give_back().await.expect("it is held");
        self.assert_only_what_stays::<S>(when).await;
    }

    /// Asserts that there are no keys but those that stay.
    pub async fn assert_only_what_stays<S: Synchronizer>(&self, when: &str) {
        let stay = S::stay(&self.name);
        let what = format!("no other keys are left than {stay:?} {when}, have {:?}", self.keys());
        let others = async || self.keys().iter().any(|key| !is_one_of(key, &stay));
        eventually(&what, async || !others().await).await;
    }

    /// Asserts that nobody listens, shortly after nobody waits.
    pub async fn assert_nobody_listens(&self) {
        eventually("nobody listens", async || subscriptions(&self.raw) == 0).await;
    }

    /// Asserts that so many are taken, and not more or less.
    pub async fn assert_taken<S: Synchronizer>(&self, taken: usize) {
        if S::CAPACITY == super::subjects::NO_END {
            return;
        }
        // What was asked for twice on the way may still be on its way back.
        let exactly = async || {
            let mut others = Vec::new();
            while let Some(other) = self.try_by_another::<S>().await {
                others.push(other);
                assert!(others.len() + taken <= S::CAPACITY, "more can be had than there is");
            }
            let exactly = others.len() + taken == S::CAPACITY;
            for other in others {
                other.give_back().await.expect("it is held");
            }
            exactly
        };
        eventually("the others can have the rest", exactly).await;
    }

    async fn try_by_another<S: Synchronizer>(&self) -> Option<S::Taken> {
        let trying = S::of(&self.two, &self.name).try_take(Duration::ZERO);
        trying.await.expect("the server is up")
    }

    /// All keys there are.
    pub fn keys(&self) -> Vec<String> {
        self.raw.cmd(&["KEYS", "*"]).ok().items().iter().map(|key| key.text()).collect()
    }

    /// All keys with their values.
    pub fn dump(&self) -> BTreeMap<String, String> {
        let value = |key: &String| format!("{:?}", self.raw.cmd(&["DUMP", key]));
        self.keys().into_iter().map(|key| (key.clone(), value(&key))).collect()
    }

    /// Asserts that all is as it was, once what was taken on the way is given back.
    pub async fn assert_soon(&self, before: &BTreeMap<String, String>) {
        eventually(&format!("all is as it was: {before:?}"), async || self.dump() == *before).await;
    }

    /// How many scripts the first client has sent for its name.
    pub fn asked(&self) -> usize {
        self.proxy.count(scripts_for(&self.name))
    }
}

/// Whether a key is one of these, or goes on where one of them ends.
pub fn is_one_of(key: &str, keys: &[String]) -> bool {
    keys.iter().any(|known| key == known || key.starts_with(&format!("{known}:")))
}

/// Matches calls of scripts that are about a name.
pub fn scripts_for(name: &str) -> impl Matcher + Clone + use<> {
    let name = name.to_owned();
    move |command: &Command| {
        (command.is("EVALSHA") || command.is("EVAL")) && command.mentions(&name)
    }
}

/// What a call brings that must not hang, or fail.
#[track_caller]
pub fn got<T>(call: impl Future<Output = Result<T, Error>>) -> impl Future<Output = T> {
    let at = std::panic::Location::caller();
    async move {
        let done = timeout(HANG, call).await;
        let done = done.unwrap_or_else(|_| panic!("waited {HANG:?} in vain at {at}"));
        done.unwrap_or_else(|error| panic!("failed at {at}: {error}"))
    }
}

/// What a task got that must not hang, or fail.
#[track_caller]
pub fn joined<T>(task: JoinHandle<Result<T, Error>>) -> impl Future<Output = T> {
    got(async { task.await.expect("no panic") })
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Finished,
    Dropped,
    /// It was not woken any more before it came to the point, and then dropped.
    Stuck,
}

/// Drops a future when it is pending for the time after `point` times.
pub async fn cancel_at<F: Future>(point: usize, future: F) -> End {
    let mut future = pin!(future);
    let mut pending = 0;
    let driving = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(End::Finished),
        Poll::Pending if pending == point => Poll::Ready(End::Dropped),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    });
    timeout(STUCK, driving).await.unwrap_or(End::Stuck)
}

/// Waits until nobody but this has it any more.
pub async fn forgotten<T: ?Sized>(what: &str, thing: &Arc<T>) {
    eventually(what, async || Arc::strong_count(thing) == 1).await;
}

//! Users who may do just what README lists for a synchronizer, and users who lack one of its rights.
//!
//! A life of each kind is a list of steps, each of which begins with a state of its own. In turn one
//! right after the other is taken away right before the step: it is then done in full, or refused
//! with an error that says what lacks, and nothing has changed.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, ErrorKind, Refusal};

use crate::support::{
    eventually,
    server::{Raw, RedisServer, Reply},
};

mod cluster;
mod locks;
mod permits;
mod read_write;
mod readme;
mod taken_away;

/// A guard against hangs, never a measure.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

/// How long somebody waits who is not to be woken.
const BRIEF: Duration = Duration::from_millis(150);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Done,
    /// Done, but the waiters could not be told.
    Untold,
    /// Done, but for something that ends by itself.
    Lingering,
    Denied,
}
use Outcome::*;

type Doing<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// Something that is done with a synchronizer, from a state that it makes itself.
type Step = (&'static str, for<'a> fn(&'a Life<'a>) -> Doing<'a>);

/// A list of steps, by the names of their functions.
macro_rules! steps {
    ($($step:ident)*) => { &[$((stringify!($step), |life| Box::pin($step(life)))),*] };
}
use steps;

/// A key as it is in Redis: what it holds, and when it ends.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    content: BTreeSet<String>,
    ends: i64,
}

const NO_END: &str = "for ever";

type State = BTreeMap<String, Value>;

/// The servers, the user, and the rights it has.
struct Bench {
    kind: &'static str,
    _server: Option<RedisServer>,
    nodes: Vec<Raw>,
    /// With the name and the password of the user.
    url: String,
    /// Of somebody who may do all.
    free_url: String,
    rules: Vec<String>,
    /// What each step leaves that is done in full.
    shapes: RefCell<BTreeMap<&'static str, Vec<String>>>,
}

impl Bench {
    fn start(kind: &'static str) -> Self {
        let server = RedisServer::start();
        let (nodes, url) = (vec![server.raw()], server.url());
        Self { _server: Some(server), ..Self::of(kind, nodes, url) }
    }

    /// On servers that run.
    fn of(kind: &'static str, nodes: Vec<Raw>, free_url: String) -> Self {
        let rules = readme::of(kind).into_iter().map(str::to_owned).collect();
        let url = free_url.replace("://", "://locker:s3cret@");
        Self { kind, _server: None, nodes, url, free_url, rules, shapes: RefCell::default() }
    }

    /// Gives the user all rights but one.
    fn grant_all_but(&self, missing: Option<&str>) {
        let mut command = vec!["ACL", "SETUSER", "locker", "reset", "on", ">s3cret", "-@all"];
        let rules = self.rules.iter().map(String::as_str);
        command.extend(rules.filter(|rule| Some(*rule) != missing));
        for node in &self.nodes {
            node.cmd(&command).ok();
            if missing == Some("+eval") {
                node.cmd(&["SCRIPT", "FLUSH"]).ok();
            }
        }
    }

    /// Who is bound by the rights.
    async fn locker(&self) -> Client {
        within(Client::connect(&self.url)).await.unwrap()
    }

    /// Who may do all, and does not wait long for a message that nobody may send.
    async fn peer(&self) -> Client {
        let builder = Client::builder(&self.free_url).unwrap().fallback_cap(BRIEF);
        within(builder.connect()).await.unwrap()
    }

    /// What was denied to anybody, but for what the library below us asks for when it connects and
    /// can do without: its id and the server's version.
    fn denied(&self) -> Vec<String> {
        let mut denied = Vec::new();
        for node in &self.nodes {
            for entry in node.cmd(&["ACL", "LOG"]).ok().items() {
                denied.push(entry.items()[7].text());
            }
        }
        denied.retain(|command| command != "info" && command != "client|id");
        denied
    }

    /// One life, without one of the rights or with all: what became of each step.
    async fn live(&self, steps: &[Step], missing: Option<&str>, name: &str) -> Vec<Outcome> {
        self.grant_all_but(None);
        let (locker, peer) = (self.locker().await, self.peer().await);
        let mut outcomes = Vec::new();
        for (step, run) in steps {
            let life = Life {
                bench: self,
                locker: &locker,
                peer: &peer,
                step,
                missing,
                name: format!("{name}:{step}"),
                before: RefCell::default(),
            };
            outcomes.push(run(&life).await);
            self.grant_all_but(None);
            for node in &self.nodes {
                node.cmd(&["FLUSHALL"]).ok();
            }
        }
        within(locker.close()).await;
        within(peer.close()).await;
        outcomes
    }
}

/// What a step needs.
struct Life<'a> {
    bench: &'a Bench,
    locker: &'a Client,
    peer: &'a Client,
    step: &'static str,
    missing: Option<&'a str>,
    /// No other step has it.
    name: String,
    before: RefCell<State>,
}

impl Life<'_> {
    /// Takes the right away: what follows has to do without.
    fn deny(&self) {
        *self.before.borrow_mut() = self.state();
        self.bench.grant_all_but(self.missing);
    }

    /// All that the servers have of this name.
    fn state(&self) -> State {
        let mut state = State::new();
        for node in &self.bench.nodes {
            let keys = node.cmd(&["KEYS", &format!("*{}*", self.name)]).ok();
            for key in keys.items().iter().map(Reply::text) {
                let content = content(node, &key);
                let ends = node.cmd(&["PEXPIRETIME", &key]).int();
                state.insert(key, Value { content, ends });
            }
        }
        state
    }

    /// The state without what differs from one life to the next.
    fn shape(&self) -> Vec<String> {
        let now = self.bench.nodes[0].cmd(&["TIME"]).items()[0].int() * 1000;
        let plain = |text: &str| {
            let text = text.replace(&*self.name, "N").replace(self.locker.id(), "locker");
            without_ids(&text.replace(self.peer.id(), "peer"))
        };
        let state = self.state().into_iter().filter(|(key, _)| !is_of_records(key));
        let shape = state.map(|(key, value)| {
            let left = format!("{}0 s", (value.ends - now + 5_000) / 10_000);
            let left = if value.ends < 0 { NO_END } else { &left };
            let mut content: Vec<_> = value.content.iter().map(|text| plain(text)).collect();
            content.sort();
            format!("{} {content:?} {left}", plain(&key))
        });
        let mut shape: Vec<_> = shape.collect();
        shape.sort();
        shape
    }

    /// Looks what a call left, without the right still.
    async fn judge<T>(&self, result: Result<T, Error>) -> Outcome {
        let outcome = self.outcome(&result);
        let (step, missing) = (self.step, self.missing);
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let last = Instant::now() > deadline;
            if outcome == Denied {
                let (state, before) = (self.state(), self.before.borrow());
                if is_the_same(&before, &state) {
                    break;
                }
                assert!(!last, "{step} without {missing:?}: {before:#?} became {state:#?}");
            } else {
                let (shape, mut shapes) = (self.shape(), self.bench.shapes.borrow_mut());
                // The first life has all rights.
                let done = shapes.entry(step).or_insert_with(|| shape.clone());
                if *done == shape {
                    break;
                }
                let is_more = done.iter().all(|key| shape.contains(key));
                let mut more = shape.iter().filter(|key| !done.contains(key));
                if is_more && more.all(|key| !key.contains(NO_END)) {
                    self.bench.grant_all_but(None);
                    return Lingering;
                }
                assert!(!last, "{step} without {missing:?}: {shape:#?} is not {done:#?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.bench.grant_all_but(None);
        outcome
    }

    /// A refusal is of its own kind, certain, and says what lacks, as far as the server does.
    fn outcome<T>(&self, result: &Result<T, Error>) -> Outcome {
        let Err(error) = result else { return Done };
        let (step, text) = (self.step, error.to_string());
        let missing = self.missing.unwrap_or_else(|| panic!("{step} with all rights: {error}"));
        assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Denied), "{step}: {error}");
        assert!(!error.is_indeterminate(), "{step}: {error}");
        let words: &[&str] = match missing.split_at(1) {
            ("~", _) => &["key"],
            ("&", _) => &["channel"],
            // Redis 7.0 does not say which one; others name it.
            (_, command) => &["can't run this command or subcommand", &format!("'{command}'")],
        };
        assert!(words.iter().any(|word| text.contains(word)), "{step} without {missing}: {text}");
        if text.contains("it was done") { Untold } else { Denied }
    }

    /// As [`judge`](Life::judge), for who waited and was denied what became free meanwhile.
    fn judge_late<T>(&self, result: &Result<T, Error>) -> Outcome {
        let outcome = self.outcome(result);
        let held =
            self.bench.nodes.iter().any(|node| node.cmd(&["EXISTS", &self.name]) == Reply::Int(1));
        assert_eq!(held, outcome == Done, "{} without {:?}", self.step, self.missing);
        self.bench.grant_all_but(None);
        outcome
    }

    /// Waits until a waiter of this name sleeps, or has failed.
    async fn asleep<T>(&self, waiter: &tokio::task::JoinHandle<T>) {
        let pattern = format!("*{}*", self.name);
        let calls = || self.bench.nodes.iter().map(evalshas).sum::<u64>();
        let before = calls();
        eventually("the waiter sleeps, or has failed", async || {
            let listens = self.bench.nodes.iter().any(|node| {
                let channels = ["CHANNELS", "SHARDCHANNELS"];
                channels
                    .iter()
                    .any(|kind| !node.cmd(&["PUBSUB", kind, &pattern]).items().is_empty())
            });
            // Who spins does not listen.
            waiter.is_finished() || listens || calls() > before + 3
        })
        .await;
    }
}

fn evalshas(node: &Raw) -> u64 {
    let stats = node.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap_or_default().parse().unwrap_or(0))
}

/// What a key holds, in no order but that of a list.
fn content(node: &Raw, key: &str) -> BTreeSet<String> {
    let items = |command: &[&str]| -> Vec<String> {
        let reply = node.cmd(command).ok();
        reply.items().iter().map(text_of).collect()
    };
    let pairs = |items: Vec<String>| -> BTreeSet<String> {
        items.chunks(2).map(|pair| format!("{} is {}", pair[0], pair[1])).collect()
    };
    match node.cmd(&["TYPE", key]).text().as_str() {
        "hash" => pairs(items(&["HGETALL", key])),
        "zset" => pairs(items(&["ZRANGE", key, "0", "-1", "WITHSCORES"])),
        "list" => [format!("{:?}", items(&["LRANGE", key, "0", "-1"]))].into(),
        "none" => BTreeSet::new(),
        _ => [node.cmd(&["GET", key]).text()].into(),
    }
}

/// A permit's id is no text.
fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) if bytes.len() == 16 => {
            let digits = bytes.iter().map(|byte| format!("{byte:03}"));
            format!("permit {}", digits.collect::<String>())
        }
        other => other.text(),
    }
}

/// Ids and times are another each time.
fn without_ids(text: &str) -> String {
    let mut kept = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        kept.push_str(if digits.len() >= 10 { "#" } else { digits });
        kept.push_str(&part[digits.len()..]);
    }
    kept
}

fn is_of_records(key: &str) -> bool {
    key.starts_with("leasehold_once:")
}

/// Records of calls that are settled may go at any time, and what is left of them may live on.
fn is_the_same(before: &State, after: &State) -> bool {
    let records = |key: &&String| is_of_records(key);
    let (known, known_now) = (before.keys(), after.keys());
    let keys = known.filter(|key| !records(key)).eq(known_now.filter(|key| !records(key)));
    keys && after.iter().all(|(key, value)| {
        before.get(key).is_some_and(|before| match records(&key) {
            true => value.ends > 0 && value.content.is_subset(&before.content),
            false => value == before,
        })
    })
}

/// Rights that no step of any kind is refused for: without them something is not as good.
const REDUCED: [&str; 4] = ["hrandfield", "unsubscribe", "client|info", "client|kill"];

/// What suffers for want of a right.
type Suffering = BTreeMap<String, Vec<(&'static str, Outcome)>>;

/// A whole life with all that README lists, then one without each of it. `rare` are commands that
/// only states call for which no step makes, `tests/it/scripts` has those; and those that put back
/// what another right was missing for.
async fn with_just_these_rights(kind: &'static str, steps: &[Step], rare: &[&str]) -> Suffering {
    let bench = Bench::start(kind);
    let outcomes = bench.live(steps, None, "app:all").await;
    assert!(outcomes.iter().all(|outcome| *outcome == Done));
    assert_eq!(bench.denied(), [""; 0], "{kind}");
    let mut all = Suffering::new();
    for (nth, missing) in bench.rules.iter().enumerate() {
        let outcomes = bench.live(steps, Some(missing), &format!("app:{nth}")).await;
        let of = steps.iter().zip(&outcomes).map(|((step, _), outcome)| (*step, *outcome));
        let suffers: Vec<_> = of.filter(|(_, outcome)| *outcome != Done).collect();
        println!("{kind} without {missing}: {suffers:?}");
        all.insert(missing.clone(), suffers);
    }
    let needless = bench.rules.iter().filter(|rule| all[*rule].is_empty());
    let needless = needless.map(|rule| rule.trim_start_matches('+'));
    let needless: Vec<_> = needless.filter(|right| !REDUCED.contains(right)).collect();
    assert_eq!(needless, rare, "no step of the {kind} is refused for want of these");
    all
}

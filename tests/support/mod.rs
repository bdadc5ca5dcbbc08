//! What the tests stand on: servers, a proxy that breaks things, a checked history, a Java peer.
//!
//! Include it as `mod support` at the root of a test program.
#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod cluster;
pub mod history;
pub mod proxy;
pub mod redisson;
pub mod redisson_fair;
pub mod redisson_permits;
pub mod redisson_read_write;
pub mod replicas;
pub mod sentinel;
pub mod server;

use std::{
    collections::BTreeMap,
    fmt, process,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::{
    Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use self::server::Raw;

/// A name that no other test uses, in this process or another.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{name}-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until a condition holds that only asking can tell, for ten seconds at most.
///
/// # Panics
///
/// If it does not hold by then.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    const BOUND: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + BOUND;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited {BOUND:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs something that blocks, such as [`Raw::next_message`], beside the tasks of this runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Asserts that a server has no key at all.
#[track_caller]
pub fn assert_no_keys(raw: &Raw) {
    let keys = keys(raw);
    assert!(keys.is_empty(), "these keys were left: {keys:?}");
}

/// Asserts that no key of a server stands forever.
#[track_caller]
pub fn assert_every_key_has_ttl(raw: &Raw) {
    let keys = keys_without_ttl(raw);
    assert!(keys.is_empty(), "these keys have no time to live: {keys:?}");
}

/// The keys that stand forever: for tests of those few that may.
pub fn keys_without_ttl(raw: &Raw) -> Vec<String> {
    keys(raw).into_iter().filter(|key| raw.cmd(&["PTTL", key]).int() == -1).collect()
}

/// How many channels have a subscriber, sharded ones included and those of sentinels not.
pub fn subscriptions(raw: &Raw) -> usize {
    let plain = raw.cmd(&["PUBSUB", "CHANNELS"]).ok();
    let sharded = raw.cmd(&["PUBSUB", "SHARDCHANNELS"]).ok();
    let channels = plain.items().iter().chain(sharded.items());
    channels.filter(|channel| channel.text() != "__sentinel__:hello").count()
}

/// How often clients have connected since a server was started: each says HELLO, and connections
/// driven by hand do not.
pub fn connects(raw: &Raw) -> usize {
    let stats = raw.cmd(&["INFO", "commandstats"]).text();
    let hello = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hello:calls="));
    let calls = hello.and_then(|rest| rest.split(',').next()).unwrap_or("0");
    calls.parse().expect("a number")
}

fn keys(raw: &Raw) -> Vec<String> {
    raw.cmd(&["KEYS", "*"]).ok().items().iter().map(|key| key.text()).collect()
}

/// What was logged: every event at every level, with the spans around it.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    events: Arc<Mutex<Vec<Event>>>,
}

/// A logged event. Values are as their `Debug` or, for strings, as they are.
#[derive(Clone, Debug)]
pub struct Event {
    pub level: Level,
    pub target: String,
    pub message: String,
    pub fields: BTreeMap<String, String>,
    /// From the outermost to the innermost.
    pub spans: Vec<Span>,
}

/// A span around a logged event.
#[derive(Clone, Debug)]
pub struct Span {
    pub name: &'static str,
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// The value of a field of the event, or of the innermost span that has it.
    pub fn field(&self, name: &str) -> Option<&str> {
        let spans = self.spans.iter().rev().map(|span| &span.fields);
        std::iter::once(&self.fields).chain(spans).find_map(|fields| fields.get(name)).map(|v| &**v)
    }
}

impl Capture {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records what this thread logs while the returned guard lives. Tasks on other threads are
    /// not recorded: use a runtime of one thread, or [`Capture::global`].
    #[must_use = "the recording ends when the guard is dropped"]
    pub fn install(&self) -> tracing::subscriber::DefaultGuard {
        Registry::default().with(self.clone()).set_default()
    }

    /// The recording of all threads of this process that have no other; tests that run beside
    /// each other share it, so look for names of your own.
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Capture> = LazyLock::new(|| {
            let capture = Capture::new();
            Registry::default().with(capture.clone()).init();
            capture
        });
        &GLOBAL
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The events with this text in their message.
    pub fn saying(&self, text: &str) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.message.contains(text)).collect()
    }

    /// Waits until an event has been recorded, for ten seconds at most.
    pub async fn wait_for(&self, what: &str, matches: impl Fn(&Event) -> bool) {
        eventually(what, async || self.events().iter().any(&matches)).await;
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).expect("the span was just made");
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).expect("the span lives");
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let scope = context.event_scope(event).into_iter().flat_map(|scope| scope.from_root());
        let spans = scope.map(|span| {
            let fields = span.extensions().get::<Fields>().map(|fields| fields.0.clone());
            Span { name: span.name(), fields: fields.unwrap_or_default() }
        });
        let event = Event {
            level: *event.metadata().level(),
            target: event.metadata().target().to_owned(),
            message,
            fields: fields.0,
            spans: spans.collect(),
        };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

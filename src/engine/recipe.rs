//! What to send for a hold of one synchronizer, and how its holds behave, as data.
//!
//! A synchronizer is a [`Kind`]: which script serves which verb, with which keys and arguments in
//! which order, and what the engine must know of it. A [`Recipe`] is a kind and a name.

use crate::engine::hold::Hold;
use crate::engine::settled::Settled;
use crate::error::Error;
use crate::keys::Keys;
use crate::lease::millis;
use crate::server::Text;
use crate::server::batch::Call;
use crate::server::script::Script;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// A key that a script takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// The name itself.
    Name,
    /// Where waiters listen.
    Channel,
    /// Another key of the name, by its place in [`Keys::helpers`].
    Helper(usize),
    /// The key that belongs to this hold alone.
    OfHold,
}

/// An argument that a script takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// The TTL asked for, in milliseconds; 0 if it has none.
    Lease,
    /// The hold, as the server knows it.
    Field,
    /// The hold's number alone.
    Id,
    /// The count to reach, or to keep.
    Count,
    /// How waiters are told; empty: not at all.
    Publish,
    /// How many permits.
    Units,
    /// `1` if the hold is known to have been granted, and not to be given back, else `0`.
    Granted,
    /// Numbers of calls whose records are not needed any more.
    Settled,
    /// What the handle says beside the rest.
    Extra,
    /// The same, but 0 of one that does not wait.
    Line,
    /// In which modes the hold stands already: `r`, `w`, both or none.
    Stands,
}

/// One script with its keys and arguments, in order.
#[derive(Debug)]
pub(crate) struct Verb {
    pub script: &'static Script,
    pub keys: &'static [Key],
    pub args: &'static [Arg],
}

/// How a hold shares its name with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// With nobody.
    Exclusive,
    /// With other holds of this mode, as far as the server lets them in.
    Shared,
}

/// Taking and giving back in one mode.
#[derive(Debug)]
pub(crate) struct Verbs {
    pub acquire: Verb,
    /// `None` if nothing is held.
    pub release: Option<Verb>,
}

/// How waiters learn that they should try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The head of the queue listens to the channel.
    Listen,
    /// Nobody is told: the head tries again and again, less and less often.
    Spin,
    /// Each has a place in a queue at the server, and a channel of its own.
    InLine,
}

/// A script that looks at a name, or frees it by force, beside all holds.
#[derive(Debug)]
pub(crate) struct Direct {
    pub script: &'static Script,
    pub keys: &'static [Key],
    /// It takes `read` or `write` as well.
    pub by_mode: bool,
}

/// One synchronizer, for the engine.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Names it in logs, and apart from others of the same name.
    pub name: &'static str,
    /// Its keys, of its name and this client's uuid.
    pub keys: fn(name: &str, uuid: &str) -> Result<Keys, Error>,
    pub exclusive: Option<Verbs>,
    pub shared: Option<Verbs>,
    /// Keeps holds of both modes; `None` if they have no lease.
    pub renew: Option<Verb>,
    pub inspect: Option<Direct>,
    pub force_release: Option<Direct>,
    /// Owners count: who holds it enters again, and asks for it once at a time.
    pub owned: bool,
    /// An owner may enter its own hold once more.
    pub reenters: bool,
    /// A hold may go from waiter to waiter in memory.
    pub hands_over: bool,
    /// What is granted is held; else it is only waited for.
    pub held: bool,
    /// The server keeps a record of each call, until it hears that nobody needs it.
    pub keeps_records: bool,
    pub waiting: Waiting,
    /// The longest that the head sleeps, where some releases tell nobody.
    pub look_every: Option<Duration>,
    /// The channel of a waiter that stands in line.
    pub channel_of: fn(channel: &str, field: &str) -> String,
    /// What the server calls a hold.
    pub field: FieldOf,
    /// The one key that belongs to a hold alone, if there is one.
    pub key_of_hold: fn(name: &str, field: &str) -> String,
}

/// What the server calls a hold, of this client's uuid and the hold's number and units.
pub(crate) type FieldOf = fn(uuid: &str, id: u64, units: u32) -> String;

/// `<uuid>:<id>`, as Redisson names a thread.
pub(crate) fn client_and_id(uuid: &str, id: u64, _units: u32) -> String {
    format!("{uuid}:{id}")
}

/// For kinds whose holds have no keys, or no channels, of their own.
pub(crate) fn no_key(_name: &str, _field: &str) -> String {
    String::new()
}

impl Kind {
    fn verbs(&self, mode: Mode) -> &Verbs {
        let verbs = match mode {
            Mode::Exclusive => &self.exclusive,
            Mode::Shared => &self.shared,
        };
        verbs.as_ref().expect("a handle only asks in modes that its kind has")
    }

    /// Whether calls for several holds may be under way at a time.
    pub(crate) fn is_parallel(&self) -> bool {
        self.shared.is_some() || self.is_in_line()
    }

    /// Whether each waiter has a place of its own at the server.
    pub(crate) fn is_in_line(&self) -> bool {
        self.waiting == Waiting::InLine
    }
}

/// A kind and a name: everything that can be sent for holds of it.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub kind: &'static Kind,
    pub keys: Keys,
}

/// What a call says of its hold.
pub(crate) struct Terms<'a> {
    pub hold: &'a Hold,
    pub lease: Duration,
    pub count: u32,
    pub publish: &'static str,
    /// Where to find what calls need no record any more.
    pub settled: Option<&'a Settled>,
}

impl<'a> Terms<'a> {
    pub(crate) fn of(hold: &'a Hold) -> Self {
        Self { hold, lease: Duration::ZERO, count: 0, publish: "", settled: None }
    }
}

/// A recipe as what tells names apart in this process: by kind and name.
#[derive(Clone, Debug)]
pub(crate) struct Identity(pub Arc<Recipe>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.0.keys.lock == other.0.keys.lock && self.0.kind.name == other.0.kind.name
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Two kinds on one name are rare.
        self.0.keys.lock.hash(state);
    }
}

impl Recipe {
    pub(crate) fn acquire(&self, mode: Mode, terms: &Terms<'_>) -> Call {
        self.call(&self.kind.verbs(mode).acquire, terms)
    }

    pub(crate) fn release(&self, mode: Mode, terms: &Terms<'_>) -> Call {
        let release = self.kind.verbs(mode).release.as_ref();
        self.call(release.expect("only what is held is given back"), terms)
    }

    /// `None` if holds of this kind have no lease.
    pub(crate) fn renew(&self, terms: &Terms<'_>) -> Option<Call> {
        self.kind.renew.as_ref().map(|verb| self.call(verb, terms))
    }

    /// A key that is the same for all holds.
    pub(crate) fn key(&self, key: &Key) -> Text {
        match key {
            Key::Name => self.keys.lock.clone(),
            Key::Channel => self.keys.channel.clone(),
            Key::Helper(at) => self.keys.helpers[*at].clone(),
            Key::OfHold => unreachable!("only calls for a hold have keys of it"),
        }
    }

    fn call(&self, verb: &'static Verb, terms: &Terms<'_>) -> Call {
        let key = |key: &Key| match key {
            Key::OfHold => (self.kind.key_of_hold)(&self.keys.lock, &terms.hold.field).into(),
            other => self.key(other),
        };
        let arg = |arg: &Arg| match arg {
            Arg::Lease if terms.lease == Duration::MAX => Text::from_static("0"),
            Arg::Lease => lease_text(millis(terms.lease)),
            Arg::Field => terms.hold.field.clone(),
            Arg::Id => decimal(terms.hold.id),
            Arg::Count => decimal(u64::from(terms.count)),
            Arg::Publish => Text::from_static(terms.publish),
            Arg::Units => decimal(u64::from(terms.hold.units)),
            Arg::Granted => decimal(u64::from(terms.hold.takes_back())),
            Arg::Stands => Text::from_static(terms.hold.stands_text()),
            Arg::Settled => terms.settled.map_or_else(Text::new, |settled| settled.take(self)),
            Arg::Line if terms.hold.one_shot => Text::from_static("0"),
            Arg::Extra | Arg::Line => terms.hold.extra.as_deref().unwrap_or_default().into(),
        };
        Call {
            script: verb.script,
            slot: self.keys.slot,
            parts: verb.keys.iter().map(key).chain(verb.args.iter().map(arg)).collect(),
        }
    }
}

/// The same lease is asked for again and again.
fn lease_text(millis: u64) -> Text {
    thread_local! {
        static LAST: RefCell<(u64, Text)> =
            const { RefCell::new((0, Text::from_static("0"))) };
    }
    let kept = |last: &RefCell<(u64, Text)>| {
        let mut last = last.borrow_mut();
        if last.0 != millis {
            *last = (millis, decimal(millis));
        }
        last.1.clone()
    };
    // A thread that ends has none any more.
    LAST.try_with(kept).unwrap_or_else(|_| decimal(millis))
}

fn decimal(number: u64) -> Text {
    match number {
        // The counts of nearly every call.
        0 => Text::from_static("0"),
        1 => Text::from_static("1"),
        _ => number.to_string().into(),
    }
}

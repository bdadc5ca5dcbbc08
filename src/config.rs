//! What a client is told when it is built: times, modes, names.

use crate::error::Error;
use crate::lease;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How waiters are told that a lock is free. All clients of a lock must agree, Java's too.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PublishMode {
    /// As Redisson decides: sharded in a cluster that knows sharded channels, else plain.
    #[default]
    Auto,
    /// `PUBLISH` and `SUBSCRIBE`.
    Plain,
    /// `SPUBLISH` and `SSUBSCRIBE`.
    Sharded,
}

/// How waiters learn that they should try again.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitMode {
    /// By messages, with timers should those get lost.
    #[default]
    Messages,
    /// By trying again and again, less and less often, as a [`spin_lock`](crate::Client::spin_lock)
    /// does: for servers and users without pub/sub.
    ///
    /// Nothing is subscribed to, and releases tell nobody, so waiters of other clients wait for
    /// their timers. Of a name's waiters in this process the first tries, up to 15 times a second
    /// once it has waited for a while; of a fair lock's each does.
    Spin,
}

/// Who an acquisition outside any [`Owner`](crate::Owner) scope belongs to.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reentry {
    /// To the current task (or thread), so that nested acquisitions re-enter.
    #[default]
    Task,
    /// To itself alone: only what runs inside `Owner::scope`, `owned_by` or the body of `with`
    /// re-enters. Safe where one task serves several requests.
    Scoped,
}

/// How lock names appear in log events.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NamesInLogs {
    /// As they are.
    #[default]
    Full,
    /// As a hash that is the same within one process, so that events can be matched.
    Hashed,
    /// Not at all.
    Hidden,
}

/// A name as it may appear in a log event.
pub(crate) struct Shown<'a>(NamesInLogs, &'a str);

impl NamesInLogs {
    pub(crate) fn show<'a>(self, name: &'a str) -> Shown<'a> {
        Shown(self, name)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        match self.0 {
            NamesInLogs::Full => f.write_str(self.1),
            NamesInLogs::Hashed => {
                let mut hasher = KEY.build_hasher();
                hasher.write(self.1.as_bytes());
                write!(f, "#{:016x}", hasher.finish())
            }
            NamesInLogs::Hidden => f.write_str("<hidden>"),
        }
    }
}

/// How many replicas must have what takes or keeps a hold, and how long is waited for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub count: u8,
    pub within: Duration,
}

impl Replicas {
    /// `None` if none are required.
    pub(crate) fn new(count: u8, within: Duration) -> Option<Self> {
        (count > 0).then_some(Self { count, within })
    }

    /// Refuses a time for which no answer would be waited.
    pub(crate) fn check(self, command_timeout: Duration) -> Result<Self, Error> {
        if self.within < Duration::from_millis(1) || self.within > command_timeout {
            let why = format!("it must be from 1 ms to the command timeout, {command_timeout:?}");
            return Err(Error::invalid_duration("wait for replicas", self.within, why));
        }
        Ok(self)
    }

    /// The stronger of two; where they are the same, the second.
    pub(crate) fn stronger(known: Option<Self>, asked: Option<Self>) -> Option<Self> {
        match (known, asked) {
            (Some(known), Some(asked)) if known.count > asked.count => Some(known),
            (known, asked) => asked.or(known),
        }
    }
}

/// Maps a name to the key it has in Redis, as Redisson's `NameMapper` does.
pub(crate) type NameMapper = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The settings of a client; [`Builder`](crate::Builder) documents each.
#[derive(Clone)]
pub(crate) struct Settings {
    pub watchdog: Duration,
    pub command_timeout: Duration,
    pub patience: Duration,
    pub fallback_cap: Duration,
    pub uncollected: Duration,
    pub hand_over_window: Duration,
    pub publish: PublishMode,
    pub waiting: WaitMode,
    pub max_hold: Option<Duration>,
    pub reentry: Reentry,
    pub label: Option<Arc<str>>,
    pub names_in_logs: NamesInLogs,
    pub name_mapper: Option<NameMapper>,
    pub replicas: Option<Replicas>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            watchdog: Duration::from_secs(30),
            command_timeout: Duration::from_secs(2),
            patience: Duration::from_secs(10),
            fallback_cap: Duration::from_secs(30),
            uncollected: Duration::from_millis(100),
            hand_over_window: Duration::from_millis(10),
            publish: PublishMode::Auto,
            waiting: WaitMode::Messages,
            max_hold: None,
            reentry: Reentry::Task,
            label: None,
            names_in_logs: NamesInLogs::Full,
            name_mapper: None,
            replicas: None,
        }
    }
}

impl Settings {
    /// Refuses what could not work, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        lease::check("watchdog", self.watchdog)?;
        let bounds = [
            ("command timeout", self.command_timeout, 10, 60_000),
            ("patience", self.patience, 10, 86_400_000),
            ("fallback cap", self.fallback_cap, 10, 86_400_000),
            ("collection time", self.uncollected, 1, 60_000),
            ("hand-over window", self.hand_over_window, 0, 10_000),
        ];
        for (what, given, least, most) in bounds {
            if given < Duration::from_millis(least) || given > Duration::from_millis(most) {
                let why = format!("it must be from {least} ms to {most} ms");
                return Err(Error::invalid_duration(what, given, why));
            }
        }
        if let Some(max) = self.max_hold.filter(|max| max.is_zero()) {
            return Err(Error::invalid_duration("max hold", max, "it must be above zero"));
        }
        self.replicas.map_or(Ok(()), |replicas| replicas.check(self.command_timeout).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_logs_can_be_hidden_or_hashed() {
        assert_eq!(NamesInLogs::Full.show("job").to_string(), "job");
        assert_eq!(NamesInLogs::Hidden.show("job").to_string(), "<hidden>");
        let hashed = NamesInLogs::Hashed.show("job").to_string();
        assert_eq!(hashed, NamesInLogs::Hashed.show("job").to_string());
        assert!(!hashed.contains("job"));
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        assert!(Settings::default().check().is_ok());
        let zero = Duration::ZERO;
        assert!(Settings { watchdog: zero, ..Settings::default() }.check().is_err());
        assert!(Settings { patience: zero, ..Settings::default() }.check().is_err());
        assert!(Settings { max_hold: Some(zero), ..Settings::default() }.check().is_err());
        assert!(
            Settings { command_timeout: Duration::MAX, ..Settings::default() }.check().is_err()
        );
    }
}

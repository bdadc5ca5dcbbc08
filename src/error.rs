//! The one error of the crate: what went wrong, at which lock, and whether a command may have run.

use crate::server::reply::Short;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Why a hold ended before its owner gave it back.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// The lease ended: no renewal got through in time, or a fixed lease ran out.
    Expired,
    /// Somebody removed it from Redis: a force unlock, `DEL`, `FLUSHALL`, or a server that came
    /// back without it.
    Removed,
    /// It was held for longer than its `max_hold`.
    MaxHold,
    /// The [`Client`](crate::Client) was closed under it.
    ClientClosed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ended",
            Self::Removed => "it was removed from the server",
            Self::MaxHold => "it was held for longer than its max hold",
            Self::ClientClosed => "its client was closed",
        })
    }
}

impl std::error::Error for LostReason {}

/// What the server refused a command for.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The user lacks a right (`NOPERM`) or is not logged in (`NOAUTH`, `WRONGPASS`).
    Denied,
    /// `maxmemory` is reached and nothing may be evicted (`OOM`).
    OutOfMemory,
    /// The server is a replica (`READONLY`, `MASTERDOWN`).
    ReadOnly,
    /// The server reads its data set (`LOADING`).
    Loading,
    /// The server cannot save and therefore accepts no write (`MISCONF`).
    Misconfigured,
    /// Too few replicas are in touch (`NOREPLICAS`).
    NoReplicas,
    /// A script of somebody's runs for too long (`BUSY`).
    Busy,
    /// The cluster cannot serve the slot now (`CLUSTERDOWN`, `TRYAGAIN`, `CROSSSLOT`).
    Cluster,
    /// Any other error; the text is in the error's message.
    Other,
}

/// The kinds of [`Error`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The owner that asked does not hold the lock.
    NotHeld,
    /// The owner held the lock and lost it.
    LeaseLost(LostReason),
    /// Two branches of one task use the lock at once under one identity.
    ConcurrentOwner,
    /// The owner waits for what it holds itself: it would never end. A read lock is not upgraded to
    /// a write lock, and a token lock is not entered twice.
    OwnHold,
    /// The key holds something that is not a lock.
    WrongType,
    /// The semaphore was never given permits, or they are gone from Redis.
    Uninitialised,
    /// The lock's hold count, or another number in Redis, is not one.
    Corrupt,
    /// The name cannot be a lock's.
    InvalidName,
    /// The lease, wait or other duration cannot be used.
    InvalidDuration,
    /// The locks given to a [`MultiLock`](crate::MultiLock) or [`RedLock`](crate::RedLock) cannot
    /// be held together.
    InvalidMembers,
    /// The number of permits or counts cannot be used.
    InvalidCount,
    /// The URL or configuration cannot be used.
    InvalidUrl,
    /// No TLS connection could be made: one side does not accept the other's certificate, or one
    /// does not speak TLS. Told by [`connect`](crate::Client::connect) alone: later it is an outage
    /// like any other, and its cause is in the log.
    Tls,
    /// The server answered, and refused.
    Refused(Refusal),
    /// Too few replicas had it in time, so it was not taken: it has been, or is being, given back.
    /// Told only where replicas are [required](crate::Builder::require_replicas).
    NotReplicated {
        /// How many replicas had it in time.
        acknowledged: u8,
        /// How many were required.
        required: u8,
    },
    /// A command was sent and no reply came.
    NoReply,
    /// The server could not be reached for as long as the call was ready to wait.
    Unavailable,
    /// The client was closed.
    Closed,
}

/// What went wrong, at which lock.
///
/// One type for the whole crate; [`kind`](Error::kind) says which case it is. Refusal by another
/// holder is not an error: `try_` calls answer it with `Ok(None)`.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    lock: Option<String>,
    detail: String,
    indeterminate: bool,
}

impl Error {
    /// Which case it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The name of the lock, as it is in Redis, if the error is about one.
    pub fn lock(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Whether a command of this call may or may not have run.
    ///
    /// After a failed acquisition nothing needs doing: what was perhaps granted is released again
    /// by the client itself. After a failed `unlock` the client goes on trying until the lease
    /// would have ended anyway.
    ///
    /// ```no_run
    /// # async fn f(lock: leasehold::Lock) {
    /// if let Err(error) = lock.unlock().await {
    ///     if error.is_indeterminate() { /* released now, soon, or at the end of its lease */ }
    /// }
    /// # }
    /// ```
    pub fn is_indeterminate(&self) -> bool {
        self.0.indeterminate
    }

    /// Whether the server could not be reached, or did not answer.
    ///
    /// ```no_run
    /// # async fn f(lock: leasehold::Lock) {
    /// match lock.lock().await {
    ///     Err(error) if error.is_unavailable() => { /* try again later */ }
    ///     _ => {}
    /// }
    /// # }
    /// ```
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::NoReply)
    }

    /// Whether the lock was held and lost.
    ///
    /// ```no_run
    /// # async fn f(guard: leasehold::LockGuard) {
    /// if guard.unlock().await.is_err_and(|error| error.is_lost()) {
    ///     // The work under the guard may have overlapped with the next holder's.
    /// }
    /// # }
    /// ```
    pub fn is_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::LeaseLost(_))
    }

    fn new(kind: ErrorKind, lock: Option<&str>, detail: impl Into<String>) -> Self {
        let indeterminate = matches!(kind, ErrorKind::NoReply);
        let lock = lock.map(str::to_owned);
        Self(Arc::new(Inner { kind, lock, detail: detail.into(), indeterminate }))
    }

    pub(crate) fn invalid_name(name: &str, why: &str) -> Self {
        let shown: String = name.chars().take(64).collect();
        Self::new(ErrorKind::InvalidName, Some(&shown), format!("the name cannot be used: {why}"))
    }

    pub(crate) fn invalid_duration(what: &str, given: Duration, why: impl fmt::Display) -> Self {
        let detail = format!("a {what} of {given:?} cannot be used: {why}");
        Self::new(ErrorKind::InvalidDuration, None, detail)
    }

    pub(crate) fn invalid_count(lock: &str, what: &str, given: i64, why: &str) -> Self {
        let detail = format!("{given} {what} cannot be used: {why}");
        Self::new(ErrorKind::InvalidCount, Some(lock), detail)
    }

    pub(crate) fn invalid_members(lock: Option<&str>, why: impl fmt::Display) -> Self {
        let detail = format!("these locks cannot be held together: {why}");
        Self::new(ErrorKind::InvalidMembers, lock, detail)
    }

    pub(crate) fn invalid_url(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidUrl, None, why)
    }

    pub(crate) fn tls(server: &str, why: &str) -> Self {
        Self::new(ErrorKind::Tls, None, format!("no TLS connection to {server}: {why}"))
    }

    pub(crate) fn not_held(lock: &str) -> Self {
        Self::new(ErrorKind::NotHeld, Some(lock), "it is not held by this owner")
    }

    pub(crate) fn lost(lock: &str, reason: LostReason) -> Self {
        Self::new(ErrorKind::LeaseLost(reason), Some(lock), format!("the hold was lost: {reason}"))
    }

    pub(crate) fn concurrent(
        lock: &str,
        here: &Location<'_>,
        there: &Location<'_>,
        same_branch: bool,
    ) -> Self {
        let why = if same_branch {
            "another acquisition of it by the same owner is under way"
        } else {
            "the same task holds it, but in another branch"
        };
        let detail = format!(
            "{why}: asked for at {here}, already at {there}; wrap each branch in Owner::scope so \
             that they exclude each other"
        );
        Self::new(ErrorKind::ConcurrentOwner, Some(lock), detail)
    }

    pub(crate) fn own_hold(
        lock: &str,
        here: &Location<'_>,
        there: &Location<'_>,
        upgrade: bool,
    ) -> Self {
        let why = if upgrade {
            "its own read lock is in the way, and is not upgraded"
        } else {
            "it holds it already, and this kind of lock is not entered twice"
        };
        let detail = format!("{why}: asked for at {here}, held since {there}");
        Self::new(ErrorKind::OwnHold, Some(lock), detail)
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, None, "the client is closed")
    }

    pub(crate) fn unavailable(lock: Option<&str>, why: &str, indeterminate: bool) -> Self {
        let mut inner = Inner {
            kind: ErrorKind::Unavailable,
            lock: lock.map(str::to_owned),
            detail: format!("no server could be reached in time: {why}"),
            indeterminate,
        };
        if indeterminate {
            inner.detail.push_str("; a command may have run and is being undone");
        }
        Self(Arc::new(inner))
    }

    /// Too few replicas have it, or the server would not say how many.
    pub(crate) fn short(lock: &str, short: &Short) -> Self {
        let Short { required, acknowledged, refused } = short;
        if let Some(text) = refused {
            return Self::server(Some(lock), text);
        }
        let (acknowledged, required) = (*acknowledged, *required);
        let detail = format!("only {acknowledged} of {required} replicas had it in time");
        Self::new(ErrorKind::NotReplicated { acknowledged, required }, Some(lock), detail)
    }

    pub(crate) fn no_reply(lock: Option<&str>, why: &str) -> Self {
        Self::new(ErrorKind::NoReply, lock, format!("no reply came: {why}"))
    }

    /// The lock is free, but its waiters could not be told.
    pub(crate) fn not_announced(lock: &str, text: &str) -> Self {
        let detail = format!(
            "it was done, but the server would not tell the waiters, who now wait for their \
             timers: {text}"
        );
        Self::new(ErrorKind::Refused(refusal(text)), Some(lock), detail)
    }

    /// An error reply of the server, by its leading word.
    pub(crate) fn server(lock: Option<&str>, text: &str) -> Self {
        let kind = if text.starts_with("WRONGTYPE") {
            ErrorKind::WrongType
        } else if text.starts_with("UNINITIALISED") {
            ErrorKind::Uninitialised
        } else if text.contains("is not an integer") || text.contains("would overflow") {
            ErrorKind::Corrupt
        } else {
            ErrorKind::Refused(refusal(text))
        };
        // Redis and Valkey word it differently, and neither tells which one it was.
        let hint = if text.contains("command called from script") {
            " (a command that locks need was renamed or taken away at the server; README.md lists \
             them under Rights)"
        } else {
            ""
        };
        Self::new(kind, lock, format!("the server refused: {text}{hint}"))
    }
}

/// What an error text of the server refuses for, by its leading word.
pub(crate) fn refusal(text: &str) -> Refusal {
    // A script's inner error may come wrapped; its own code still stands in front.
    match text.split([' ', ':']).next().unwrap_or_default() {
        "NOPERM" | "NOAUTH" | "WRONGPASS" => Refusal::Denied,
        "OOM" => Refusal::OutOfMemory,
        "READONLY" | "MASTERDOWN" => Refusal::ReadOnly,
        "LOADING" => Refusal::Loading,
        "MISCONF" => Refusal::Misconfigured,
        "NOREPLICAS" => Refusal::NoReplicas,
        "BUSY" => Refusal::Busy,
        "CLUSTERDOWN" | "TRYAGAIN" | "CROSSSLOT" | "MOVED" | "ASK" => Refusal::Cluster,
        // What a command inside a script may not do comes as a plain ERR from some servers.
        _ if text.contains("The user executing the script")
            || text.contains("ACL failure")
            || text.contains("No permissions") =>
        {
            Refusal::Denied
        }
        _ => Refusal::Other,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lock) = &self.0.lock {
            write!(f, "lock {lock:?}: ")?;
        }
        f.write_str(&self.0.detail)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("lock", &self.0.lock)
            .field("detail", &self.0.detail)
            .field("indeterminate", &self.0.indeterminate)
            .finish()
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_told_apart_by_their_leading_word() {
        let kind = |text| Error::server(None, text).kind();
        assert_eq!(kind("WRONGTYPE Operation against a key"), ErrorKind::WrongType);
        assert_eq!(kind("ERR hash value is not an integer"), ErrorKind::Corrupt);
        assert_eq!(kind("ERR fencing token is not an integer below 2^53"), ErrorKind::Corrupt);
        assert_eq!(kind("OOM command not allowed"), ErrorKind::Refused(Refusal::OutOfMemory));
        assert_eq!(kind("NOPERM this user"), ErrorKind::Refused(Refusal::Denied));
        let inside = "ERR The user executing the script can't run this command or subcommand";
        assert_eq!(kind(inside), ErrorKind::Refused(Refusal::Denied));
        let inside = "NOPERM ACL failure in script: User u has no permissions to run 'hget'";
        assert_eq!(kind(inside), ErrorKind::Refused(Refusal::Denied));
        assert_eq!(kind("MISCONF Redis is"), ErrorKind::Refused(Refusal::Misconfigured));
        assert_eq!(kind("ERR whatever"), ErrorKind::Refused(Refusal::Other));
    }

    #[test]
    fn an_error_is_one_word_wide_and_shareable() {
        fn shareable<T: Send + Sync + Clone + std::error::Error + 'static>() {}
        shareable::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}

//! The whole shared key space on one page: what a name becomes in Redis.
//!
//! Every key and channel is Redisson's, byte for byte, so that Java and Rust services share their
//! locks. The hash-tag rule is Redisson's too: a helper name wraps the name in braces unless the
//! name contains a `{` already; nothing more is looked at.

use crate::error::Error;
use crate::server::{Text, slot_of};

/// The longest name accepted, in bytes: long names cost every command that carries them.
pub const LONGEST_NAME: usize = 512;

/// The names of one synchronizer in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The lock itself, by its own name.
    pub lock: Text,
    /// Where its waiters listen.
    pub channel: Text,
    /// Its other keys, in an order of its own.
    pub helpers: Box<[Text]>,
    /// The cluster slot of all of them.
    pub slot: u16,
}

impl Keys {
    /// Of the reentrant lock, and of the spin lock.
    pub(crate) fn lock(name: &str) -> Result<Self, Error> {
        Self::new(name, prefixed("redisson_lock__channel", name), [])
    }

    /// Of the fair lock: queue, deadlines, signs of life.
    pub(crate) fn fair_lock(name: &str) -> Result<Self, Error> {
        let helpers = [
            prefixed("redisson_lock_queue", name),
            prefixed("redisson_lock_timeout", name),
            prefixed("leasehold_fair", name),
        ];
        Self::new(name, prefixed("redisson_lock__channel", name), helpers)
    }

    /// Of the fenced lock: the token.
    pub(crate) fn fenced_lock(name: &str) -> Result<Self, Error> {
        let helpers = [prefixed("redisson_lock_token", name)];
        Self::new(name, prefixed("redisson_lock__channel", name), helpers)
    }

    /// Of the token lock.
    pub(crate) fn token_lock(name: &str) -> Result<Self, Error> {
        Self::new(name, prefixed("leasehold_token_lock", name), [])
    }

    /// Of the read/write lock: what the keys of single read holds begin with.
    pub(crate) fn read_write_lock(name: &str) -> Result<Self, Error> {
        Self::new(name, prefixed("redisson_rwlock", name), [braced(name)])
    }

    /// Of the semaphore: the records of this client's calls.
    pub(crate) fn semaphore(name: &str, uuid: &str) -> Result<Self, Error> {
        Self::new(name, prefixed("redisson_sc", name), [records(name, uuid)])
    }

    /// Of the semaphore whose permits expire: when they do, and the records.
    pub(crate) fn permit_semaphore(name: &str, uuid: &str) -> Result<Self, Error> {
        let helpers = [suffixed(name, "timeout"), records(name, uuid)];
        Self::new(name, prefixed("redisson_sc", name), helpers)
    }

    /// Of the count-down latch: the records. Its channel always has braces.
    pub(crate) fn count_down_latch(name: &str, uuid: &str) -> Result<Self, Error> {
        let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
        Self::new(name, channel, [records(name, uuid)])
    }

    fn new<const N: usize>(
        name: &str,
        channel: String,
        helpers: [String; N],
    ) -> Result<Self, Error> {
        check(name)?;
        let helpers = helpers.into_iter().map(Text::from).collect();
        Ok(Self { lock: name.into(), channel: channel.into(), helpers, slot: slot_of(name) })
    }

    /// Whether all its keys and its channel share a slot, as a cluster's scripts need it.
    pub(crate) fn share_a_slot(&self) -> bool {
        let others = self.helpers.iter().chain([&self.channel]);
        others.into_iter().all(|other| slot_of(other) == self.slot)
    }
}

fn check(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid_name(name, "it is empty"));
    }
    if name.len() > LONGEST_NAME {
        return Err(Error::invalid_name(name, "it is longer than 512 bytes"));
    }
    Ok(())
}

/// Redisson's rule for helper names that go in front.
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// Redisson's rule for helper names that go behind.
fn suffixed(name: &str, suffix: &str) -> String {
    format!("{}:{suffix}", braced(name))
}

/// A name as it stands in front of what goes behind.
fn braced(name: &str) -> String {
    if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") }
}

/// What the read holds of an owner are timed by; `:1` and so on goes behind.
pub(crate) fn read_hold(name: &str, owner: &str) -> String {
    suffixed(name, &format!("{owner}:rwlock_timeout"))
}

/// Where a waiter of the fair lock listens.
pub(crate) fn own_channel(channel: &str, owner: &str) -> String {
    format!("{channel}:{owner}")
}

/// Ids for so many permits, one behind the other: 16 random bytes each, as Redisson has them. Of
/// 7 bits each, so that they are a text like all other arguments.
pub(crate) fn permit_ids(_uuid: &str, _id: u64, permits: u32) -> String {
    let ids = (0..permits).flat_map(|_| uuid::Uuid::new_v4().into_bytes());
    ids.map(|byte| char::from(byte & 0x7f)).collect()
}

/// The records of one client's calls.
fn records(name: &str, uuid: &str) -> String {
    format!("{}:{uuid}", prefixed("leasehold_once", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_is_named_as_redisson_names_it() {
        let channel = |name| Keys::lock(name).unwrap().channel.to_string();
        assert_eq!(channel("job"), "redisson_lock__channel:{job}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(channel("ab{c"), "redisson_lock__channel:ab{c");
    }

    #[test]
    fn lock_and_channel_share_a_slot_except_for_unbalanced_braces() {
        for name in ["job", "{job}", "a{b}c{d}", "ü:1"] {
            assert!(Keys::lock(name).unwrap().share_a_slot(), "{name}");
        }
        for name in ["ab{c", "x}y", "{}x"] {
            assert!(!Keys::lock(name).unwrap().share_a_slot(), "{name}");
        }
    }

    #[test]
    fn names_that_cannot_be_keys_are_refused() {
        assert!(Keys::lock("").is_err());
        assert!(Keys::lock(&"x".repeat(LONGEST_NAME + 1)).is_err());
        assert!(Keys::lock(&"x".repeat(LONGEST_NAME)).is_ok());
        assert!(Keys::lock("nul\0 and \r\n are bytes like any other").is_ok());
    }
}

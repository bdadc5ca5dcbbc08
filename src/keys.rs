//! The whole shared key space on one page: what a name becomes in Redis.
//!
//! Every key and channel is Redisson's, byte for byte, so that Java and Rust services share their
//! locks. The hash-tag rule is Redisson's too: a helper name wraps the name in braces unless the
//! name contains a `{` already; nothing more is looked at.

use crate::error::Error;
use crate::server::{Text, slot_of};

/// The longest name accepted, in bytes: long names cost every command that carries them.
pub const LONGEST_NAME: usize = 512;

/// The names of one lock in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys {
    /// The lock itself: a hash from owner to hold count.
    pub lock: Text,
    /// Where its waiters listen.
    pub channel: Text,
    /// The cluster slot of both.
    pub slot: u16,
}

impl LockKeys {
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        check(name)?;
        let channel = prefixed("redisson_lock__channel", name);
        let slot = slot_of(name);
        Ok(Self { lock: name.into(), channel: channel.into(), slot })
    }

    /// Whether lock and channel share a slot, as a cluster's scripts need it.
    pub(crate) fn share_a_slot(&self) -> bool {
        slot_of(&self.channel) == self.slot
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_is_named_as_redisson_names_it() {
        let channel = |name| LockKeys::new(name).unwrap().channel.to_string();
        assert_eq!(channel("job"), "redisson_lock__channel:{job}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(channel("ab{c"), "redisson_lock__channel:ab{c");
    }

    #[test]
    fn lock_and_channel_share_a_slot_except_for_unbalanced_braces() {
        for name in ["job", "{job}", "a{b}c{d}", "ü:1"] {
            assert!(LockKeys::new(name).unwrap().share_a_slot(), "{name}");
        }
        for name in ["ab{c", "x}y", "{}x"] {
            assert!(!LockKeys::new(name).unwrap().share_a_slot(), "{name}");
        }
    }

    #[test]
    fn names_that_cannot_be_keys_are_refused() {
        assert!(LockKeys::new("").is_err());
        assert!(LockKeys::new(&"x".repeat(LONGEST_NAME + 1)).is_err());
        assert!(LockKeys::new(&"x".repeat(LONGEST_NAME)).is_ok());
        assert!(LockKeys::new("nul\0 and \r\n are bytes like any other").is_ok());
    }
}

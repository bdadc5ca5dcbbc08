//! The only room that speaks to Redis, and the only one that names fred.
//!
//! [`connection`] holds one fred client and knows when its replies can be believed; [`script`]
//! embeds the Lua files; [`batch`] sends many calls as one command, [`acknowledged`] those that
//! replicas must have; [`reply`] reads answers; [`sentinels`] hears of failovers; `tls` knows whose
//! certificates to believe.

pub(crate) mod acknowledged;
pub(crate) mod address;
pub(crate) mod batch;
pub(crate) mod connection;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod sentinels;
#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
pub(crate) mod tls;

/// Text that is cheap to clone: names, channels and owners travel in every command.
pub(crate) type Text = fred::bytes_utils::Str;

/// An argument of a script.
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Text(Text),
    Bytes(Vec<u8>),
}

impl From<Text> for Argument {
    fn from(text: Text) -> Self {
        Self::Text(text)
    }
}

/// The cluster slot of a key.
pub(crate) fn slot_of(key: &str) -> u16 {
    fred::util::redis_keyslot(key.as_bytes())
}

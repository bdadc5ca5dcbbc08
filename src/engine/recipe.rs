//! What to send for a hold of one synchronizer, as data: scripts, keys, channel.

use crate::keys::LockKeys;
use crate::lease::millis;
use crate::server::Text;
use crate::server::batch::Call;
use crate::server::script::{LOCK_ACQUIRE, LOCK_RELEASE, LOCK_RENEW, Script};
use std::time::Duration;

/// The calls of one hold.
///
/// `acquire` takes lease, owner and count; `release` owner, count and the publish command; `renew`
/// lease and owner. A synchronizer with other keys or scripts is another value of this type.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub keys: LockKeys,
    acquire: &'static Script,
    release: &'static Script,
    renew: &'static Script,
}

impl Recipe {
    /// The reentrant lock's.
    pub(crate) fn lock(keys: LockKeys) -> Self {
        Self { keys, acquire: &LOCK_ACQUIRE, release: &LOCK_RELEASE, renew: &LOCK_RENEW }
    }

    pub(crate) fn acquire(&self, owner: &Text, lease: Duration, count: u32) -> Call {
        let args = vec![decimal(millis(lease)), owner.clone(), decimal(u64::from(count))];
        self.call(self.acquire, vec![self.keys.lock.clone()], args)
    }

    pub(crate) fn release(&self, owner: &Text, count: u32, publish: &'static str) -> Call {
        let keys = vec![self.keys.lock.clone(), self.keys.channel.clone()];
        let args = vec![owner.clone(), decimal(u64::from(count)), Text::from_static(publish)];
        self.call(self.release, keys, args)
    }

    pub(crate) fn renew(&self, owner: &Text, lease: Duration) -> Call {
        let args = vec![decimal(millis(lease).max(1)), owner.clone()];
        self.call(self.renew, vec![self.keys.lock.clone()], args)
    }

    fn call(&self, script: &'static Script, keys: Vec<Text>, args: Vec<Text>) -> Call {
        Call { script, slot: self.keys.slot, keys, args }
    }
}

fn decimal(number: u64) -> Text {
    match number {
        // The counts of nearly every call.
        0 => Text::from_static("0"),
        1 => Text::from_static("1"),
        _ => number.to_string().into(),
    }
}

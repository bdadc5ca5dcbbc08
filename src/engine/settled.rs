//! Calls whose records the server need not keep any more.
//!
//! What nobody owns in Redis (permits, a count) leaves no trace by which a command that is sent
//! again could see that it has run. So its script keeps a record of each call, and each call says
//! which earlier ones are known to be through: no send of them can still run. Whatever is never said
//! ends with all records of a name, once that has been quiet for their TTL.
//!
//! A send without an answer may be repeated only while its record stands.

use crate::engine::recipe::Recipe;
use crate::lease::Moment;
use crate::server::Text;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

/// For how long the server keeps records that are not used.
const RECORD: Duration = Duration::from_secs(60);

/// For how long after its first send a call may be sent again: its record must still stand when
/// the server comes to the last one.
pub(crate) const RESENDS: Duration = Duration::from_secs(45);

/// Most calls that one command settles: it should stay small.
const MOST: usize = 64;

/// Beyond so many names, those whose records are gone are looked for.
const MANY: usize = 1024;

#[derive(Default)]
pub(crate) struct Settled(Mutex<HashMap<(&'static str, Text), Calls>>);

struct Calls {
    ids: Vec<u64>,
    since: Moment,
}

impl Settled {
    pub(crate) fn push(&self, recipe: &Recipe, id: u64) {
        let now = Moment::now();
        let mut names = self.0.lock();
        if names.len() >= MANY {
            names.retain(|_, calls| calls.since.until(now) < RECORD);
        }
        let made = || Calls { ids: Vec::new(), since: now };
        let calls = names.entry(identity(recipe)).or_insert_with(made);
        calls.ids.push(id);
        calls.since = now;
    }

    /// Takes what a call can say, as numbers with spaces between them.
    pub(crate) fn take(&self, recipe: &Recipe) -> Text {
        let mut names = self.0.lock();
        let Some(calls) = names.get_mut(&identity(recipe)) else { return Text::new() };
        let rest = calls.ids.split_off(calls.ids.len().min(MOST));
        let mut text = String::new();
        for id in std::mem::replace(&mut calls.ids, rest) {
            let space = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{space}{id}");
        }
        if calls.ids.is_empty() {
            names.remove(&identity(recipe));
        }
        text.into()
    }
}

fn identity(recipe: &Recipe) -> (&'static str, Text) {
    (recipe.kind.name, recipe.keys.lock.clone())
}

//! Whether the server is heard of, and where it is, over all connections of a client.

use super::cluster::Table;
use crate::lease::Moment;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// When the server was last heard of, over all connections of a client.
#[derive(Debug)]
pub(crate) struct Contact {
    last: AtomicU64,
    failing: AtomicBool,
    /// What is addressed as one server has refused keys of several slots in one command.
    slots_apart: AtomicBool,
    /// Counts outages and recoveries; waiters look up when it changes.
    changes: watch::Sender<u64>,
    /// Counts changes of who serves what in a cluster: each connection has to learn of it.
    nodes: watch::Sender<u64>,
    /// Counts redirections: a slot has moved, and its sharded subscriptions have ended.
    moves: watch::Sender<u64>,
    /// Who serves what in a cluster, for connections yet to be opened.
    pub(super) serving: Mutex<Table>,
    /// Of the whole cluster, where this is of one of its nodes.
    whole: Option<Arc<Contact>>,
    /// The primary, as sentinels name it.
    primary: watch::Sender<Option<Place>>,
}

/// A host and a port, as sentinels tell them.
pub(crate) type Place = (String, u16);

impl Contact {
    pub(crate) fn new() -> Self {
        Self {
            last: AtomicU64::new(Moment::now().raw()),
            failing: AtomicBool::new(false),
            slots_apart: AtomicBool::new(false),
            changes: watch::Sender::new(0),
            nodes: watch::Sender::new(0),
            moves: watch::Sender::new(0),
            serving: Mutex::default(),
            whole: None,
            primary: watch::Sender::new(None),
        }
    }

    /// Of one node of a cluster: the others may well be heard of while it is silent.
    pub(super) fn of_node(whole: Arc<Contact>) -> Self {
        Self { whole: Some(whole), ..Self::new() }
    }

    pub(super) fn heard(&self) {
        self.hear();
        if let Some(whole) = &self.whole {
            whole.hear();
        }
    }

    fn hear(&self) {
        self.last.store(Moment::now().raw(), Ordering::Relaxed);
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            self.changed();
        }
    }

    pub(super) fn failed(&self) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            self.changed();
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
        if let Some(whole) = &self.whole {
            whole.changes.send_modify(|n| *n += 1);
        }
    }

    pub(super) fn nodes_changed(&self) {
        self.nodes.send_modify(|n| *n += 1);
    }

    pub(super) fn node_changes(&self) -> watch::Receiver<u64> {
        self.nodes.subscribe()
    }

    pub(super) fn slot_moved(&self) {
        self.moves.send_modify(|n| *n += 1);
    }

    /// A receiver that changes with every redirection.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// From now on a list is of one slot, as in a cluster: there is one behind a proxy.
    pub(super) fn keep_slots_apart(&self) {
        if !self.slots_apart.swap(true, Ordering::Relaxed) {
            tracing::debug!("the server refuses keys of several slots in one command");
        }
    }

    pub(crate) fn keeps_slots_apart(&self) -> bool {
        self.slots_apart.load(Ordering::Relaxed)
    }

    /// Since when nothing was heard, if something failed since.
    pub(crate) fn silent_since(&self) -> Option<Moment> {
        let failing = self.failing.load(Ordering::Relaxed);
        failing.then(|| Moment::from_raw(self.last.load(Ordering::Relaxed)))
    }

    /// Sentinels name a primary: whoever is connected to another server leaves it.
    pub(crate) fn named(&self, primary: Place) {
        self.primary.send_if_modified(|known| {
            let other = known.as_ref() != Some(&primary);
            *known = Some(primary);
            other
        });
    }

    /// A receiver that changes with every other primary that is named.
    pub(super) fn primary(&self) -> watch::Receiver<Option<Place>> {
        self.primary.subscribe()
    }

    /// A receiver that changes with every outage and recovery.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_does_not_silence_the_whole() {
        let whole = Arc::new(Contact::new());
        let (dead, alive) = (Contact::of_node(whole.clone()), Contact::of_node(whole.clone()));
        dead.failed();
        alive.heard();
        assert!(dead.silent_since().is_some());
        assert_eq!(whole.silent_since(), None);
        assert_eq!(*whole.changes().borrow(), 1, "who waits looks up");
    }

    #[test]
    fn an_outage_counts_from_the_last_word_heard() {
        let contact = Contact::new();
        assert_eq!(contact.silent_since(), None);
        contact.failed();
        assert!(contact.silent_since().is_some());
        contact.heard();
        assert_eq!(contact.silent_since(), None);
        assert_eq!(*contact.changes().borrow(), 2);
    }
}

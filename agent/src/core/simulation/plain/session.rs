//! Sessions, as their workers know them from replies and pushes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use redisson::{Kind, Moment};

use super::names::NAMES;
use crate::protocol::resp::Outgoing;

pub(super) const OWNERS: usize = 2;

/// A hold, as its worker knows it.
#[derive(Debug, Clone)]
pub(super) struct KnownHold {
    pub(super) holder: String,
    pub(super) count: u32,
    /// The token of a fenced lock.
    pub(super) token: Option<i64>,
    /// By the boot clock of the host, plus the validity in the reply.
    pub(super) valid_until: Moment,
    /// The final UNLOCK was sent. The worker no longer relies on the hold.
    pub(super) leaving: bool,
}

/// A command without a reply.
#[derive(Debug, Clone)]
pub(super) enum Pending {
    Lock { owner: usize, lock: &'static str, kind: Kind },
    Unlock { owner: usize, lock: &'static str },
    Extend { owner: usize, lock: &'static str },
    Holds,
    Grace,
    Resume,
    Other,
    Token(i64),
}

/// The id and secret with which a worker resumes its session.
pub(super) type Ticket = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) known_holds: BTreeMap<&'static str, KnownHold>,
    /// The number of its commands without a reply.
    pub(super) unanswered: usize,
}

/// A worker's connection and session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) owners: [Owner; OWNERS],
    /// Commands without a reply, oldest first, with the instants at which they were sent.
    pub(super) pending: VecDeque<(u64, Pending)>,
    /// Two tasks share it. Their waits are limited: replies keep the order of commands, so two such sessions could
    /// otherwise block each other's grants.
    pub(super) shared: bool,
    /// Replies and pushes that it has not read, with their arrival.
    pub(super) unread: VecDeque<(u64, Outgoing)>,
    /// False while the worker's process is stopped.
    pub(super) reading: bool,
    /// The agent knows that the process is stopped.
    pub(super) known_stopped: bool,
    pub(super) next_token: i64,
    /// False until the worker reconnects.
    pub(super) connected: bool,
    pub(super) ticket: Option<Ticket>,
    pub(super) grace: Duration,
    /// Owners and locks of commands with unknown outcome, after a disconnect.
    pub(super) unsure: Vec<(usize, &'static str)>,
}

impl Session {
    pub(super) fn new(shared: bool) -> Self {
        Self {
            owners: Default::default(),
            pending: VecDeque::new(),
            shared,
            unread: VecDeque::new(),
            reading: true,
            known_stopped: false,
            next_token: 0,
            connected: true,
            ticket: None,
            grace: Duration::ZERO,
            unsure: Vec::new(),
        }
    }

    /// Ends the connection. Pending commands have an unknown outcome.
    pub(super) fn break_off(&mut self, now: Moment) {
        // After the grace period it relies on nothing.
        for known_hold in self.owners.iter_mut().flat_map(|owner| owner.known_holds.values_mut()) {
            known_hold.valid_until = known_hold.valid_until.min(now + self.grace);
        }
        for (_, pending) in std::mem::take(&mut self.pending) {
            if let Pending::Lock { owner, lock, .. }
            | Pending::Unlock { owner, lock }
            | Pending::Extend { owner, lock } = pending
            {
                self.unsure.push((owner, lock));
            }
        }
        // Unread replies may have reported changes.
        if !self.unread.is_empty() {
            self.unsure.extend((0..OWNERS).flat_map(|owner| NAMES.map(|lock| (owner, lock))));
            self.unread.clear();
        }
        self.owners.iter_mut().for_each(|owner| owner.unanswered = 0);
        (self.reading, self.connected, self.known_stopped) = (true, false, false);
    }

    pub(super) fn take_unsure(&mut self) -> Vec<(usize, &'static str)> {
        std::mem::take(&mut self.unsure)
    }

    pub(super) fn forget_all(&mut self) {
        self.owners.iter_mut().for_each(|owner| owner.known_holds.clear());
        self.ticket = None;
    }
}

//! Sessions of workers, as the workers know them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use redisson::{Kind, Moment};

use super::names::NAMES;
use crate::protocol::resp::Outgoing;

pub(super) const OWNERS: usize = 2;

/// A hold as its worker knows it.
#[derive(Debug, Clone)]
pub(super) struct KnownHold {
    pub(super) holder: String,
    pub(super) count: u32,
    /// The token of a fenced lock.
    pub(super) token: Option<i64>,
    /// The worker takes its host's boot clock and adds what it was told.
    pub(super) valid_until: Moment,
    /// It has sent the UNLOCK that ends it: it is out.
    pub(super) leaving: bool,
}

/// A command that waits for its reply.
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

/// What a worker needs to come back to its session: the id and the secret that it was told.
pub(super) type Ticket = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) known_holds: BTreeMap<&'static str, KnownHold>,
    /// Commands of its own without a reply.
    pub(super) unanswered: usize,
}

/// One connection of one worker.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) owners: [Owner; OWNERS],
    /// Commands without a reply, oldest first, and when they were sent.
    pub(super) pending: VecDeque<(u64, Pending)>,
    /// Two tasks share it. Then no wait is without a limit: replies keep the commands' order, so that two such
    /// connections could keep one another from hearing of what they hold.
    pub(super) shared: bool,
    /// What came while it did not read, and when.
    pub(super) unread: VecDeque<(u64, Outgoing)>,
    /// A worker that does not read is one whose process is stopped.
    pub(super) reading: bool,
    /// Its agent has been told so.
    pub(super) known_stopped: bool,
    pub(super) next_token: i64,
    /// It has a connection; else it is about to get another one.
    pub(super) connected: bool,
    /// With which it comes back to its session, if that outlives its connection.
    pub(super) ticket: Option<Ticket>,
    /// Its agent was killed before the disk had room for what it had told: the ticket may be unknown to the next one.
    pub(super) ticket_unsure: bool,
    pub(super) grace: Duration,
    /// Owners and locks of commands that its last connection left unanswered.
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
            ticket_unsure: false,
            grace: Duration::ZERO,
            unsure: Vec::new(),
        }
    }

    /// The connection has gone: what has not been answered never will be.
    pub(super) fn break_off(&mut self, now: Moment) {
        // Beyond its grace it counts on nothing.
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
        // Replies that were not read tell of what happened all the same.
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

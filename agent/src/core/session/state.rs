//! The state of one session.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use redisson::Moment;

use crate::core::ids::{HoldKey, Slot};
use crate::core::lock::mlock_state::MultiLock;
use crate::core::session::losses::Losses;
use crate::core::session::reply::Reply;
use crate::protocol::command::Command;
use crate::protocol::resp::Frame;
use crate::types::{ConnectionId, Number, Peer, SessionId};

/// The most events that a session may leave unread; then the oldest are dropped and the gap is reported.
pub(in crate::core) const BACKLOG: usize = 256;

/// A command not answered yet, or answered behind one that is not.
#[derive(Debug)]
pub(in crate::core) struct Pending {
    pub(super) owner: i64,
    pub(super) word: &'static str,
    pub(super) began: Moment,
    pub(in crate::core) reply: Option<Reply>,
    /// Up to which record the journal must be written before it is told.
    pub(in crate::core) after: u64,
}

/// One connection's state; of a session with grace, also when that has gone.
#[derive(Debug)]
pub(in crate::core) struct Session {
    pub(in crate::core) id: SessionId,
    pub(in crate::core) peer: Peer,
    pub(in crate::core) secret: [u8; 16],
    /// The secret it was last taken over with, which shows the right to it until its worker goes on: the reply that
    /// told the new one may have been lost.
    pub(in crate::core) secret_before: Option<[u8; 16]>,
    pub(in crate::core) opened: Moment,
    pub(in crate::core) client_name: Option<Vec<u8>>,
    pub(in crate::core) resp3: bool,
    /// It has said goodbye.
    pub(in crate::core) quit: bool,
    /// It has asked for its id.
    pub(in crate::core) introduced: bool,
    pub(in crate::core) push: bool,
    pub(super) deadlines: bool,
    /// Its holds outlive its connection.
    pub(in crate::core) grace: Option<Grace>,
    /// A RESUME of its own that waits.
    pub(in crate::core) resuming: Option<Resuming>,
    pub(in crate::core) holds: HashMap<HoldKey, Number>,
    /// The wait of each owner that has one.
    pub(in crate::core) waits: HashMap<i64, Number>,
    /// The MLOCK or MUNLOCK of each owner that has one under way.
    pub(in crate::core) multi: BTreeMap<i64, MultiLock>,
    pub(in crate::core) losses: Losses,
    pub(in crate::core) pending: VecDeque<Pending>,
    pub(super) first_seq: u64,
    /// Commands of owners that are busy with an earlier one.
    pub(in crate::core) queued: HashMap<i64, VecDeque<(u64, Command)>>,
    pub(in crate::core) backlog: VecDeque<Vec<Frame>>,
    pub(in crate::core) missed: u64,
    /// An EVENTS call that waits for this session's next event, and its deadline.
    pub(in crate::core) events_waiter: Option<(Slot, Moment)>,
}

impl Session {
    pub(in crate::core) fn new(
        id: SessionId,
        peer: Peer,
        secret: [u8; 16],
        opened: Moment,
    ) -> Self {
        Self {
            id,
            peer,
            secret,
            secret_before: None,
            opened,
            client_name: None,
            resp3: false,
            quit: false,
            introduced: false,
            push: false,
            deadlines: false,
            grace: None,
            resuming: None,
            holds: HashMap::new(),
            waits: HashMap::new(),
            multi: BTreeMap::new(),
            losses: Losses::default(),
            pending: VecDeque::new(),
            first_seq: 0,
            queued: HashMap::new(),
            backlog: VecDeque::new(),
            missed: 0,
            events_waiter: None,
        }
    }

    /// Returns whether it holds or waits for something and is connected.
    pub(in crate::core) fn is_busy(&self) -> bool {
        self.away_since().is_none() && !(self.holds.is_empty() && self.waits.is_empty())
    }

    pub(super) fn take_events(&mut self) -> Frame {
        let mut events = Vec::with_capacity(self.backlog.len() + 1);
        if self.missed > 0 {
            events.push(Frame::Array(vec![Frame::word("gap"), Frame::count(self.missed)]));
            self.missed = 0;
        }
        events.extend(self.backlog.drain(..).map(Frame::Array));
        Frame::Array(events)
    }

    pub(in crate::core) fn secret_text(&self) -> String {
        text(&self.secret)
    }

    pub(in crate::core) fn has_secret(&self, given: &[u8]) -> bool {
        is_secret(&self.secret, given)
    }

    /// The secret that is given, if it shows the right to take the session over.
    pub(in crate::core) fn right_to_resume(&self, given: &[u8]) -> Option<[u8; 16]> {
        [Some(self.secret), self.secret_before]
            .into_iter()
            .flatten()
            .find(|secret| is_secret(secret, given))
    }
}

pub(super) fn text(secret: &[u8; 16]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares in constant time: a local process must not find the secret byte by byte.
pub(super) fn is_secret(secret: &[u8; 16], given: &[u8]) -> bool {
    let own = text(secret);
    own.len() == given.len()
        && own.bytes().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// A session's grace.
#[derive(Debug)]
pub(in crate::core) struct Grace {
    /// The time for which its holds outlive its connection.
    pub(in crate::core) time: Duration,
    /// The instant at which that was gone.
    pub(super) away: Option<Moment>,
    /// The deadline that is set.
    pub(super) armed: Moment,
    /// Holds of an earlier run of which Redis has not said yet whether they are still there.
    pub(in crate::core) unverified: usize,
    /// Connections whose RESUME waits for this session.
    pub(in crate::core) askers: Vec<ConnectionId>,
}

/// A RESUME that waits: for the old connection's end to be noticed, or for Redis to say what is still held.
#[derive(Debug)]
pub(in crate::core) struct Resuming {
    pub(super) slot: Slot,
    pub(super) session: SessionId,
    pub(super) secret: Vec<u8>,
    pub(super) until: Moment,
}

impl Session {
    /// Returns the instant at which its connection was gone; none while connected.
    pub(in crate::core) fn away_since(&self) -> Option<Moment> {
        self.grace.as_ref().and_then(|grace| grace.away)
    }

    /// A session of an earlier run, whose holds are still to be verified.
    pub(in crate::core) fn restored(
        mut self,
        time: Duration,
        since: Moment,
        unverified: usize,
    ) -> Self {
        let (away, armed) = (Some(since), Moment::NEVER);
        self.grace = Some(Grace { time, away, armed, unverified, askers: Vec::new() });
        self.introduced = true;
        self
    }
}

//! The state of one session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use redisson::Moment;
use tokio::sync::oneshot;

use crate::collections::HashMap;
use crate::core::Report;
use crate::core::ids::{HoldKey, ReplyTo};
use crate::core::lock::mlock_state::MultiLock;
use crate::core::session::losses::Losses;
use crate::core::session::reply::Reply;
use crate::journal::SessionRecord;
use crate::protocol::command::Command;
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, Number, Peer, Secret, SessionId};

/// The maximum number of events that a session may leave unread; then the oldest are dropped and the gap is reported.
const BACKLOG: usize = 256;
/// The unanswered commands for which an idle session keeps memory.
const FEW_PENDING: usize = 16;

/// A command without a reply yet, or with a reply that waits behind an earlier one.
#[derive(Debug)]
pub(in crate::core) struct Pending {
    pub(super) owner: i64,
    pub(super) word: &'static str,
    pub(super) began: Moment,
    pub(super) reply: Option<Reply>,
    /// The record that the journal must have written before the reply is sent.
    pub(super) after: u64,
    /// Facts for metrics that hold once the reply is sent.
    pub(super) reports: Vec<Report>,
}

impl Pending {
    fn new(owner: i64, word: &'static str, began: Moment, reply: Option<Reply>) -> Self {
        Self { owner, word, began, reply, after: 0, reports: Vec::new() }
    }
}

/// One connection's state; for a session with grace, it remains when the connection has closed.
#[derive(Debug)]
pub(in crate::core) struct Session {
    pub(in crate::core) id: SessionId,
    pub(in crate::core) peer: Peer,
    pub(in crate::core) secret: Secret,
    /// The secret of the last takeover, which is accepted until the worker sends another command: the reply with the
    /// new one may have been lost.
    pub(in crate::core) secret_before: Option<Secret>,
    pub(in crate::core) opened: Moment,
    /// The instant of the latest change of its process or its client name.
    pub(in crate::core) changed: Moment,
    pub(in crate::core) client_name: Option<Vec<u8>>,
    pub(in crate::core) resp3: bool,
    /// It has sent QUIT.
    pub(in crate::core) quit: bool,
    /// It has requested its id.
    pub(in crate::core) introduced: bool,
    pub(in crate::core) push: bool,
    pub(super) deadlines: bool,
    /// Keeps the watch over its process, whose death ends its grace.
    pub(super) watch: Option<oneshot::Sender<Infallible>>,
    /// The grace for which its holds outlive its connection.
    pub(in crate::core) grace: Option<Grace>,
    /// Its pending RESUME.
    pub(super) resuming: Option<Resuming>,
    pub(in crate::core) holds: HashMap<HoldKey, Number>,
    /// The wait of each owner that has one.
    pub(in crate::core) waits: HashMap<i64, Number>,
    /// The MLOCK or MUNLOCK in progress of each owner that has one.
    pub(in crate::core) multi: BTreeMap<i64, MultiLock>,
    pub(in crate::core) losses: Losses,
    pub(super) pending: VecDeque<Pending>,
    /// The number of the first command in `pending`.
    first_seq: u64,
    /// Commands of owners that are busy with an earlier one.
    queued: HashMap<i64, VecDeque<(u64, Command)>>,
    /// Its unread events, oldest first.
    backlog: VecDeque<Vec<Frame>>,
    /// The number of events that were dropped since the last EVENTS call.
    missed: u64,
    /// An EVENTS call that waits for this session's next event, and its deadline.
    pub(super) events_waiter: Option<(ReplyTo, Moment)>,
}

impl Session {
    pub(in crate::core) fn new(id: SessionId, peer: Peer, secret: Secret, opened: Moment) -> Self {
        Self {
            id,
            peer,
            secret,
            secret_before: None,
            opened,
            changed: opened,
            client_name: None,
            resp3: false,
            quit: false,
            introduced: false,
            push: false,
            deadlines: false,
            watch: None,
            grace: None,
            resuming: None,
            holds: HashMap::default(),
            waits: HashMap::default(),
            multi: BTreeMap::new(),
            losses: Losses::default(),
            pending: VecDeque::new(),
            first_seq: 0,
            queued: HashMap::default(),
            backlog: VecDeque::new(),
            missed: 0,
            events_waiter: None,
        }
    }

    /// Returns the numbers of its holds in order of arrival: no result may depend on the layout of a map.
    pub(in crate::core) fn hold_numbers(&self) -> BTreeSet<Number> {
        self.holds.values().copied().collect()
    }

    /// Returns the numbers of its waits in order of arrival.
    pub(in crate::core) fn wait_numbers(&self) -> BTreeSet<Number> {
        self.waits.values().copied().collect()
    }

    /// Returns whether it holds or waits for something and is connected.
    pub(in crate::core) fn is_busy(&self) -> bool {
        self.away_since().is_none() && !(self.holds.is_empty() && self.waits.is_empty())
    }

    /// Applies SESSION with these options. Returns whether events are pushed from now on and were not before.
    pub(super) fn introduce(&mut self, push: Option<bool>, deadlines: Option<bool>) -> bool {
        self.introduced = true;
        let pushes_from_now = push == Some(true) && !self.push;
        self.push = push.unwrap_or(self.push);
        self.deadlines = deadlines.unwrap_or(self.deadlines);
        pushes_from_now
    }

    /// Accepts a command. Returns it with its number if it may begin at once, that is, if its owner has no earlier one.
    pub(super) fn accept(&mut self, command: Command, now: Moment) -> Option<(u64, Command)> {
        let owner = command.owner();
        let seq = self.first_seq + self.pending.len() as u64;
        let word = command.word();
        self.pending.push_back(Pending::new(owner, word, now, None));
        if let Some(queue) = self.queued.get_mut(&owner) {
            queue.push_back((seq, command));
            return None;
        }
        self.queued.insert(owner, VecDeque::new());
        Some((seq, command))
    }

    /// Assigns a reply that the connection has made itself its place among the replies.
    pub(super) fn accept_answered(&mut self, reply: Outgoing, now: Moment) {
        let reply = Some(Reply::Ready(reply));
        self.pending.push_back(Pending::new(0, Command::OTHER, now, reply));
    }

    /// Returns the next command of an owner whose latest one is answered. If there is none, the owner is idle again.
    pub(super) fn next_command(&mut self, owner: i64) -> Option<(u64, Command)> {
        let next = self.queued.get_mut(&owner)?.pop_front();
        if next.is_none() {
            self.queued.remove(&owner);
        }
        next
    }

    /// Returns the command with that number, if its reply has not been sent.
    pub(super) fn pending(&self, seq: u64) -> Option<&Pending> {
        self.pending.get(self.index(seq)?)
    }

    /// Keeps a fact for metrics until the reply to that command is sent. Returns it if there is no such command.
    pub(super) fn keep_report(&mut self, seq: u64, report: Report) -> Option<Report> {
        let Some(pending) = self.index(seq).and_then(|index| self.pending.get_mut(index)) else {
            return Some(report);
        };
        pending.reports.push(report);
        None
    }

    /// Takes the facts for metrics that wait for replies.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        self.pending.iter_mut().flat_map(|pending| std::mem::take(&mut pending.reports)).collect()
    }

    /// Sets the reply to a command, which is sent once the journal has been written up to the record `after`. Returns the
    /// command's owner.
    pub(super) fn set_reply(&mut self, seq: u64, reply: Reply, after: u64) -> Option<i64> {
        let index = self.index(seq)?;
        let pending = self.pending.get_mut(index)?;
        (pending.reply, pending.after) = (Some(reply), after);
        Some(pending.owner)
    }

    /// Returns whether a reply waits until more of the journal is written. If that fails, what it reports is taken back.
    pub(super) fn waits_for_journal(&self, journal_done: u64) -> bool {
        self.pending.iter().any(|pending| pending.reply.is_some() && pending.after > journal_done)
    }

    fn index(&self, seq: u64) -> Option<usize> {
        usize::try_from(seq.checked_sub(self.first_seq)?).ok()
    }

    /// Takes the reply to the oldest command with its facts for metrics, if the reply is ready and the journal is
    /// written as far as it needs.
    pub(super) fn take_reply(&mut self, journal_done: u64) -> Option<(Reply, Vec<Report>)> {
        let first = self.pending.front_mut().filter(|first| first.after <= journal_done)?;
        let reply = first.reply.take()?;
        let reports = std::mem::take(&mut first.reports);
        self.pending.pop_front();
        self.first_seq += 1;
        // Frees the memory of a long pipeline.
        if self.pending.is_empty() && self.pending.capacity() > FEW_PENDING {
            self.pending = VecDeque::new();
        }
        Some((reply, reports))
    }

    /// Adds an event to those that an EVENTS call reads. Returns whether the oldest one was dropped for it.
    pub(super) fn add_event(&mut self, event: Vec<Frame>) -> bool {
        let full = self.backlog.len() == BACKLOG;
        if full {
            self.backlog.pop_front();
            self.missed += 1;
        }
        self.backlog.push_back(event);
        full
    }

    /// Returns whether an EVENTS call has something to report.
    pub(super) fn has_events(&self) -> bool {
        !self.backlog.is_empty() || self.missed > 0
    }

    /// Takes the events that an EVENTS call reports: the number of dropped ones, and the others.
    pub(super) fn take_events(&mut self) -> Frame {
        let mut events = Vec::with_capacity(self.backlog.len() + 1);
        if self.missed > 0 {
            events.push(Frame::Array(vec![Frame::word("gap"), Frame::count(self.missed)]));
            self.missed = 0;
        }
        events.extend(self.backlog.drain(..).map(Frame::Array));
        Frame::Array(events)
    }

    /// Records that its connection has closed. Returns the connections that wait to take it over; `None` if it has no
    /// grace.
    ///
    /// Commands that have not begun are dropped. Those that have begun continue, and their replies are discarded.
    pub(super) fn detach(&mut self, now: Moment) -> Option<Vec<ConnectionId>> {
        let grace = self.grace.as_mut()?;
        grace.away = Some(now);
        (self.push, self.deadlines) = (false, false);
        self.queued.values_mut().for_each(VecDeque::clear);
        Some(std::mem::take(&mut grace.askers))
    }

    /// Takes over the whole state of a session without a connection.
    pub(super) fn continue_from(&mut self, old: Self, secret_before: Option<Secret>) {
        self.id = old.id;
        self.secret_before = secret_before;
        self.introduced = true;
        self.grace = old.grace;
        self.client_name = self.client_name.take().or(old.client_name);
        (self.holds, self.losses) = (old.holds, old.losses);
        (self.backlog, self.missed) = (old.backlog, old.missed);
        self.events_waiter = old.events_waiter.or(self.events_waiter);
    }

    /// Drops the previous secret if every earlier command has been answered: the worker then has the new one. Returns
    /// whether there was one.
    pub(super) fn drop_previous_secret(&mut self) -> bool {
        self.pending.is_empty() && self.secret_before.take().is_some()
    }

    /// Returns the given secret, if it proves the right to take the session over.
    pub(in crate::core) fn right_to_resume(&self, given: &[u8]) -> Option<Secret> {
        [Some(self.secret), self.secret_before].into_iter().flatten().find(|own| own.matches(given))
    }
}

/// A session's grace.
#[derive(Debug)]
pub(in crate::core) struct Grace {
    /// The time for which its holds outlive its connection.
    pub(in crate::core) time: Duration,
    /// The instant at which the connection closed.
    pub(super) away: Option<Moment>,
    /// The deadline that is set.
    pub(super) armed: Moment,
    /// Holds of an earlier run that Redis has not confirmed or denied yet.
    pub(super) unverified: usize,
    /// Connections whose RESUME waits for this session.
    pub(super) askers: Vec<ConnectionId>,
}

impl Grace {
    pub(super) fn new(time: Duration) -> Self {
        Self { time, away: None, armed: Moment::NEVER, unverified: 0, askers: Vec::new() }
    }
}

/// A RESUME that waits: until the end of the old connection is noticed, or until Redis reports which holds still exist.
#[derive(Debug)]
pub(in crate::core) struct Resuming {
    pub(super) reply_to: ReplyTo,
    pub(super) session: SessionId,
    pub(super) secret: Vec<u8>,
    pub(super) until: Moment,
}

impl Session {
    /// Returns the instant at which its connection closed; `None` while connected.
    pub(in crate::core) fn away_since(&self) -> Option<Moment> {
        self.grace.as_ref().and_then(|grace| grace.away)
    }

    /// Returns a session of an earlier run, without a connection since `away`, of whose holds `unverified` are not yet
    /// verified.
    pub(in crate::core) fn restored(
        record: SessionRecord,
        away: Moment,
        unverified: usize,
        now: Moment,
    ) -> Self {
        let grace = Grace::new(Duration::from_millis(record.grace_ms));
        Self {
            secret_before: record.secret_before,
            client_name: record.client.map(String::into_bytes),
            introduced: true,
            grace: Some(Grace { away: Some(away), unverified, ..grace }),
            ..Self::new(record.session, record.peer, record.secret, now)
        }
    }
}

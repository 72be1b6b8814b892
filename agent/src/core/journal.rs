//! The core's side of the journal: it records sessions with grace, and delays the replies that depend on a record.
//!
//! Records are counted from the first of this run. "Up to a record" means that one and all before it.

use std::collections::VecDeque;

use redisson::{Kind, LockName, Moment, millis};
use service_kit::memory::Trim as _;

use crate::collections::HashSet;
use crate::core::ids::OpId;
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::{Core, Effect, LogLine, Report};
use crate::journal::{HoldRecord, OrphanRecord, Record, SessionRecord};
use crate::types::{ConnectionId, Number};

/// The progress of the journal.
#[derive(Debug, Default)]
pub(in crate::core) struct Journal {
    /// The reason why there is no journal; `None` if there is one.
    missing: Option<String>,
    /// The number of records that were passed to the journal.
    recorded: u64,
    /// The number of records that are written, or will never be.
    done: u64,
    /// The connections whose replies wait, each with the number of records that must be written first.
    delayed_replies: VecDeque<(u64, ConnectionId)>,
    /// The scripts that wait, each with the number of records that must be written first.
    delayed_scripts: VecDeque<(u64, OpId)>,
    /// The numbers of holds and waiters that the journal has.
    numbers: HashSet<Number>,
    /// The instant at which this run took over from an earlier one. That one promised nothing after it.
    took_over: Moment,
}

impl Journal {
    pub(in crate::core) fn took_over(&self) -> Moment {
        self.took_over
    }

    pub(in crate::core) fn take_over(&mut self, now: Moment) {
        self.took_over = now;
    }

    /// Returns the number of records that are written, or will never be. Replies that depend on no later one may be sent.
    pub(in crate::core) fn done(&self) -> u64 {
        self.done
    }

    /// Delays a reply to this connection until all records so far are written. Returns their number.
    pub(in crate::core) fn delay_reply(&mut self, connection: ConnectionId) -> u64 {
        if self.recorded > self.done {
            self.delayed_replies.push_back((self.recorded, connection));
        }
        self.recorded
    }

    /// Delays a script that ends this hold until all records so far are written. Returns whether it has to wait: if the
    /// journal has the hold, and some records are not written yet.
    pub(in crate::core) fn delay_script(&mut self, script: OpId, hold: Number) -> bool {
        let waits = self.recorded > self.done && self.numbers.contains(&hold);
        if waits {
            self.delayed_scripts.push_back((self.recorded, script));
        }
        waits
    }

    /// Returns whether the journal has this number.
    pub(in crate::core) fn has(&self, number: Number) -> bool {
        self.numbers.contains(&number)
    }

    /// Returns the reason why there is no journal; `None` if there is one.
    pub(in crate::core) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Records that the journal has these numbers from an earlier run.
    pub(in crate::core) fn remember(&mut self, numbers: impl IntoIterator<Item = Number>) {
        self.numbers.extend(numbers);
    }
}

impl Core {
    /// Records the reason why there is no journal. Sessions then get no grace.
    pub fn without_journal(&mut self, why: String) {
        self.journal.missing = Some(why);
    }

    /// Passes a record to the journal.
    pub(in crate::core) fn journal_record(&mut self, record: Record) {
        self.journal.recorded += 1;
        self.effects.push(Effect::Journal(record));
    }

    /// Records the present state of a hold, if its session has grace. A hold that its worker does not know about yet is
    /// recorded without an owner.
    pub(in crate::core) fn journal_hold(&mut self, number: Number) {
        let Some(hold) = self.leases.get(number) else { return };
        match self.hold_record(hold) {
            Some(record) => {
                self.journal.numbers.insert(number);
                self.journal_record(record);
            }
            // The session has no grace. The journal may still have the number, from the wait of another session.
            None => self.journal_gone(number),
        }
    }

    fn hold_record(&self, hold: &Hold) -> Option<Record> {
        let session = self.sessions.get(&hold.owner.connection)?;
        session.grace.as_ref()?;
        if hold.untold {
            return Some(Record::orphan(hold.number, &hold.name, hold.kind, Moment::default()));
        }
        Some(Record::Hold(HoldRecord {
            session: session.id,
            owner: hold.owner.owner,
            number: hold.number,
            lock: hold.name.clone(),
            kind: hold.kind,
            count: hold.count,
            token: hold.token,
            until: (hold.mode == LeaseMode::Fixed).then_some(hold.valid_until),
            longest: hold.longest,
            leases: hold.fixed_leases(),
            granted: hold.granted,
        }))
    }

    /// Records that Redis may get a waiter's number, if its session has grace.
    pub(in crate::core) fn journal_attempts(&mut self, waiter: Number) {
        let Some(waiter) = self.locks.waiter(waiter) else { return };
        if self.sessions.has_grace(waiter.owner.connection) {
            let (number, kind, name) = (waiter.number, waiter.kind, waiter.name.clone());
            self.journal.numbers.insert(number);
            self.journal_orphan(number, &name, kind, Moment::default());
        }
    }

    /// Records that a number no longer has an owner and may still be in Redis, if the journal has it.
    pub(in crate::core) fn journal_orphan(
        &mut self,
        number: Number,
        name: &LockName,
        kind: Kind,
        after: Moment,
    ) {
        if self.journal.numbers.contains(&number) {
            self.journal_record(Record::orphan(number, name, kind, after));
        }
    }

    /// Records that a number is no longer in Redis, if the journal has it.
    pub(in crate::core) fn journal_gone(&mut self, number: Number) {
        if self.journal.numbers.remove(&number) {
            self.journal.numbers.trim();
            self.journal_record(Record::Gone { number });
        }
    }

    /// Returns the record of a session; `None` without grace.
    pub(in crate::core) fn session_record(
        &self,
        connection: ConnectionId,
    ) -> Option<SessionRecord> {
        let session = self.sessions.get(&connection)?;
        let client = session.client_name.as_deref();
        Some(SessionRecord {
            session: session.id,
            secret: session.secret,
            secret_before: session.secret_before,
            peer: session.peer.clone(),
            client: client.map(|name| String::from_utf8_lossy(name).into_owned()),
            grace_ms: millis(session.grace.as_ref()?.time),
        })
    }

    /// Returns records of the present state, for a new version of the file. Forgets the numbers that are neither held
    /// nor in a script or wait.
    pub fn journal_records(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for connection in self.sessions.graced() {
            let Some(record) = self.session_record(connection) else { continue };
            let session = record.session;
            records.push(Record::Session(record));
            if let Some(since) =
                self.sessions.get(&connection).and_then(|session| session.away_since())
            {
                records.push(Record::Away { session, since });
            }
        }
        let mut known = std::mem::take(&mut self.journal.numbers);
        for hold in known.iter().filter_map(|number| self.leases.get(*number)) {
            records.extend(self.hold_record(hold));
            if let Some(delayed) = &hold.delayed {
                let until = delayed.until;
                records.push(Record::orphan(hold.number, &hold.name, hold.kind, until));
            }
        }
        let in_scripts = self.ops.values().flat_map(|op| op.verb.operation().records());
        let awaited = self.locks.waiters(..).map(|(_, waiter)| {
            Record::orphan(waiter.number, &waiter.name, waiter.kind, Moment::default())
        });
        let mut standing = HashSet::default();
        for record in in_scripts.chain(awaited) {
            let (Record::Orphan(OrphanRecord { number, .. })
            | Record::Hold(HoldRecord { number, .. })) = &record
            else {
                continue;
            };
            if known.contains(number) && !self.leases.contains(*number) && standing.insert(*number)
            {
                records.push(record);
            }
        }
        known.retain(|number| self.leases.contains(*number) || standing.contains(number));
        self.journal.numbers = known;
        records
    }

    /// Handles the report that the journal is written up to this record: sends the replies that waited for it, and retries
    /// the RESUMEs that waited for those.
    pub fn on_journalled(&mut self, now: Moment, upto: u64) {
        self.advance_clock(now);
        for connection in self.advance_journal(upto) {
            self.flush(connection);
            self.wake_askers(connection);
        }
        self.run_ready();
    }

    /// Marks the records up to this one as done, and sends the scripts that waited for them. Returns the connections whose
    /// replies waited for them.
    fn advance_journal(&mut self, upto: u64) -> Vec<ConnectionId> {
        let journal = &mut self.journal;
        journal.done = journal.done.max(upto);
        let mut scripts = Vec::new();
        while let Some((_, script)) =
            journal.delayed_scripts.pop_front_if(|(after, _)| *after <= upto)
        {
            scripts.push(script);
        }
        let mut reached = Vec::new();
        while let Some((_, connection)) =
            journal.delayed_replies.pop_front_if(|(after, _)| *after <= upto)
        {
            if reached.last() != Some(&connection) {
                reached.push(connection);
            }
        }
        self.send_delayed(scripts);
        reached
    }

    /// Handles the report that the records up to this one cannot be written: refuses the grants and the grace that
    /// depend on them, since they would not outlive the agent.
    pub fn on_journal_failed(&mut self, now: Moment, upto: u64, why: &str) {
        self.advance_clock(now);
        self.effects.report(Report::JournalError);
        self.effects.log(self.now, LogLine::JournalFailed { why: why.to_owned() });
        let done = self.journal.done;
        for id in self.advance_journal(upto) {
            self.take_back(id, done, why);
            self.flush(id);
            self.wake_askers(id);
        }
        self.run_ready();
    }
}

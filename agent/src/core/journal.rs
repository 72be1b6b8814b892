//! The core's side of the journal: what is noted of sessions with grace, and which replies wait for it.

use std::collections::{HashSet, VecDeque};

use redisson::{Kind, LockName, Moment};

use crate::core::ids::OpId;
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::{Core, Effect, LogLine, Report};
use crate::journal::{HoldRecord, OrphanRecord, Record, SessionRecord};
use crate::types::{ConnectionId, Number};

/// The progress of the journal.
#[derive(Debug, Default)]
pub(in crate::core) struct Journal {
    /// The reason that there is none.
    missing: Option<String>,
    /// The number of records so far.
    noted: u64,
    /// The number of records that are written, or will never be.
    done: u64,
    /// Replies that wait for so many, and whose.
    waiting: VecDeque<(u64, ConnectionId)>,
    /// Scripts that wait for so many.
    kept: VecDeque<(u64, OpId)>,
    /// Numbers that stand in it.
    numbers: HashSet<Number>,
}

impl Journal {
    /// Up to which record replies may be told.
    pub(in crate::core) fn done(&self) -> u64 {
        self.done
    }

    /// Lets a reply wait for all that has been noted so far.
    pub(in crate::core) fn wait(&mut self, connection: ConnectionId) -> u64 {
        if self.noted > self.done {
            self.waiting.push_back((self.noted, connection));
        }
        self.noted
    }

    /// Keeps a script that ends this hold until all that has been noted so far is written; not if the journal does not
    /// know the hold, or is written.
    pub(in crate::core) fn keep(&mut self, script: OpId, hold: Number) -> bool {
        let waits = self.noted > self.done && self.numbers.contains(&hold);
        if waits {
            self.kept.push_back((self.noted, script));
        }
        waits
    }

    /// Returns whether it has this number.
    pub(in crate::core) fn has(&self, number: Number) -> bool {
        self.numbers.contains(&number)
    }

    /// The reason that there is none.
    pub(in crate::core) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Records that these numbers stand in it since an earlier run.
    pub(in crate::core) fn remember(&mut self, numbers: impl IntoIterator<Item = Number>) {
        self.numbers.extend(numbers);
    }
}

impl Core {
    /// There is no journal, for this reason: no session gets grace.
    pub fn without_journal(&mut self, why: String) {
        self.journal.missing = Some(why);
    }

    pub(in crate::core) fn journal_record(&mut self, record: Record) {
        self.journal.noted += 1;
        self.effects.push(Effect::Journal(record));
    }

    /// Notes a hold as it stands now, if its session has grace; as nobody's if its worker does not know of it yet.
    pub(in crate::core) fn journal_hold(&mut self, number: Number) {
        let Some(hold) = self.leases.get(number) else { return };
        match self.hold_record(hold) {
            Some(record) => {
                self.journal.numbers.insert(number);
                self.journal_record(record);
            }
            // It was another session's wait, whose attempt went on.
            None => self.journal_gone(number),
        }
    }

    fn hold_record(&self, hold: &Hold) -> Option<Record> {
        let session = self.sessions.get(&hold.owner.connection)?;
        session.grace.as_ref()?;
        if hold.untold {
            let (number, lock, kind) = (hold.number, hold.name.clone(), hold.kind);
            let after = Moment::default();
            return Some(Record::Orphan(OrphanRecord { number, lock, kind, after }));
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
            granted: hold.granted,
        }))
    }

    /// Notes that a waiter's number may come to stand in Redis, if its session has grace.
    pub(in crate::core) fn journal_attempts(&mut self, waiter: Number) {
        let Some(waiter) = self.locks.waiter(waiter) else { return };
        if self.sessions.has_grace(waiter.owner.connection) {
            let (number, kind, name) = (waiter.number, waiter.kind, waiter.name.clone());
            self.journal.numbers.insert(number);
            self.journal_trace(number, &name, kind, Moment::default());
        }
    }

    /// Notes that a number is nobody's any more and may still stand in Redis, if the journal has it.
    pub(in crate::core) fn journal_trace(
        &mut self,
        number: Number,
        name: &LockName,
        kind: Kind,
        after: Moment,
    ) {
        if self.journal.numbers.contains(&number) {
            let lock = name.clone();
            self.journal_record(Record::Orphan(OrphanRecord { number, lock, kind, after }));
        }
    }

    /// Notes that nothing is left of a number, if the journal has it.
    pub(in crate::core) fn journal_gone(&mut self, number: Number) {
        if self.journal.numbers.remove(&number) {
            self.journal_record(Record::Gone { number });
        }
    }

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
            grace_ms: crate::core::units::millis(session.grace.as_ref()?.time),
        })
    }

    /// The whole journal, for when it is written again. Numbers of which nothing is left any more are forgotten.
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
            if let Some(kept_back) = &hold.kept_back {
                let (number, kind, lock) = (hold.number, hold.kind, hold.name.clone());
                let after = kept_back.until;
                records.push(Record::Orphan(OrphanRecord { number, lock, kind, after }));
            }
        }
        let mut traces: Vec<_> =
            self.ops.values().flat_map(|op| op.verb.operation().records()).collect();
        traces.extend(self.locks.waiters(..).map(|(_, waiter)| {
            let (number, kind, lock) = (waiter.number, waiter.kind, waiter.name.clone());
            Record::Orphan(OrphanRecord { number, lock, kind, after: Moment::default() })
        }));
        let mut standing = HashSet::new();
        for record in traces {
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

    /// The journal is written up to this record, counted from the first: what waited for it is told.
    pub fn on_journalled(&mut self, now: Moment, upto: u64) {
        self.advance_clock(now);
        for connection in self.advance_journal(upto) {
            self.flush(connection);
        }
        self.run_ready();
    }

    fn advance_journal(&mut self, upto: u64) -> Vec<ConnectionId> {
        let journal = &mut self.journal;
        journal.done = journal.done.max(upto);
        let mut kept = Vec::new();
        while let Some((_, script)) = journal.kept.pop_front_if(|(after, _)| *after <= upto) {
            kept.push(script);
        }
        let mut reached = Vec::new();
        while let Some((_, connection)) = journal.waiting.pop_front_if(|(after, _)| *after <= upto)
        {
            if reached.last() != Some(&connection) {
                reached.push(connection);
            }
        }
        self.send_kept(kept);
        reached
    }

    /// The records up to this one are not written: grants that rest on them are taken back rather than told, and no
    /// session gets a grace that would end with the agent.
    pub fn on_journal_failed(&mut self, now: Moment, upto: u64, why: &str) {
        self.advance_clock(now);
        self.effects.report(Report::JournalError);
        self.effects.log_bounded(self.now, || LogLine::JournalFailed { why: why.to_owned() });
        let done = self.journal.done;
        for id in self.advance_journal(upto) {
            self.take_back(id, done, why);
            self.flush(id);
        }
        self.run_ready();
    }
}

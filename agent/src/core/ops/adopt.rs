//! Holds of an earlier run of the agent that the journal has recorded. Only Redis knows whether they still exist.
//!
//! Nobody else can have set a field with such a number, and once removed it never returns. So if it exists when Redis
//! is asked, the lock has been held without a gap.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, MissingMarkers, RenewOutcome, Value};
use redisson::{Kind, Moment};

use super::operation::Operation;
use super::update::lost_end;
use super::{Failure, Op, halves};
use crate::core::ids::{OpId, Owner};
use crate::core::lease::hold::{LeaseMode, NewHold};
use crate::core::lease::unconfirmed_pause;
use crate::core::lease::watchdog::Batches;
use crate::core::ops::verb::{Adoption, RenewalForm, Undo, Verb};
use crate::core::session::event::Event;
use crate::core::session::state::Session;
use crate::core::{Core, Lane, Node};
use crate::journal::{HoldRecord, OrphanRecord, Record, Restored, RestoredSession};
use crate::types::{ConnectionId, End, Number};

/// The first number of restored sessions: connections are never counted that far.
const RESTORED: u64 = 1 << 62;

impl Operation for Adoption {
    fn call(&self, core: &Core) -> Call {
        let field = |hold: &HoldRecord| core.numbers.field(hold.kind, hold.number);
        // Its first verification gives a fixed lease back.
        let holds = self.holds.iter().map(|hold| (&hold.lock, field(hold), None));
        self.form.call(holds, core.settings.lease)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let outcomes = script::parse_renew(reply, self.holds.len())?;
        let lease = core.settings.lease;
        let late = lease.lost_at(lease.valid_until(op.sent), core.settings.lost_margin) <= core.now;
        let unconfirmed = !self.form.verify && (late || !core.is_replicated(op));
        let (mut known, mut again, mut incomplete) = (Vec::new(), Vec::new(), Vec::new());
        for (hold, outcome) in std::iter::zip(self.holds.iter().cloned(), outcomes) {
            if outcome == RenewOutcome::MarkersMissing {
                incomplete.push(hold);
            } else if unconfirmed && lost_end(outcome).is_none() {
                again.push(hold);
            } else {
                known.push((hold, outcome));
            }
        }
        core.on_adopted(op.sent, &known);
        let soon = core.now + unconfirmed_pause(lease);
        core.adopt_again(op, soon, self.form, again);
        let reads = Some(MissingMarkers::Restore);
        core.adopt_again(op, core.now, RenewalForm { reads, ..self.form }, incomplete);
        Ok(())
    }

    /// Divides a batch that Redis refuses because of one lock, so that the others are adopted.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        let Some(halves) = halves(&self.holds, failure) else {
            let pause = match failure.is_about_one_lock() {
                // Many locks may be refused, each of them alone.
                true => pause.max(unconfirmed_pause(core.settings.lease)),
                false => pause,
            };
            return core.retry(id, pause);
        };
        let Some(op) = core.take_op(id) else { return };
        let give_up = op.give_up_at().since(core.now);
        for holds in halves {
            core.send(Verb::Adopt(Self { form: self.form, holds }), give_up);
        }
    }

    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        core.on_not_adopted(self.form, std::mem::take(&mut self.holds));
    }

    fn route(&self, core: &Core) -> (Node, Lane) {
        (Node::Main, core.renewals_lane(self.form))
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        self.holds.iter().for_each(|hold| visit(hold.number));
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        true
    }

    fn records(&self) -> Vec<Record> {
        self.holds.iter().cloned().map(Record::Hold).collect()
    }
}

impl Core {
    /// Continues the state of an earlier run: its sessions wait to be resumed, its holds are verified, and numbers
    /// without an owner are removed.
    pub fn restore(&mut self, now: Moment, past: Restored) {
        self.advance_clock(now);
        self.journal.take_over(self.now);
        let lease = self.settings.lease;
        let mut batches = Batches::new(self.settings.slots);
        let give_up = self.retry_window(lease);
        for (connection, session) in (RESTORED..).map(ConnectionId).zip(past.sessions.into_values())
        {
            for hold in self.restore_session(connection, session) {
                let lock = hold.lock.clone();
                let reads = (hold.kind == Kind::Read).then_some(MissingMarkers::Report);
                let form = RenewalForm { reads, verify: hold.until.is_some(), count: hold.count };
                if let Some((form, holds)) = batches.add(form, &lock, hold) {
                    self.send(Verb::Adopt(Adoption { form, holds }), give_up);
                }
            }
        }
        for (form, holds) in batches.rest() {
            self.send(Verb::Adopt(Adoption { form, holds }), give_up);
        }
        for (number, OrphanRecord { lock: name, kind, after, .. }) in past.orphans {
            self.journal.remember([number]);
            let after = match after {
                // An earlier run may have renewed it until just now.
                Moment::NEVER => lease.valid_until(self.now),
                after => after,
            };
            if kind == Kind::Red {
                self.undo_earlier_red(name, number, after);
                continue;
            }
            let undo = Undo { after, name, kind, number };
            if undo.keeps_out() {
                self.begin_leaving(&undo.name, kind);
            }
            // The journal does not contain its lease, which may be long.
            self.send_at(after.max(self.now), Verb::Undo(undo), Duration::MAX);
        }
        self.run_ready();
    }

    /// Restores one session. Returns those of its holds that Redis must be asked about.
    fn restore_session(
        &mut self,
        connection: ConnectionId,
        past: RestoredSession,
    ) -> Vec<HoldRecord> {
        let RestoredSession { record, away_since, holds } = past;
        let since = away_since.map_or(self.now, |since| since.min(self.now));
        let session = Session::restored(record, since, holds.len(), self.now);
        if away_since.is_none() {
            // Another restart does not begin the grace again.
            self.journal_record(Record::Away { session: session.id, since });
        }
        self.sessions.restore(connection, session);
        self.journal.remember(holds.keys().copied());
        for hold in holds.values() {
            if let Some(token) = hold.token {
                self.locks.saw_token(&hold.lock, token);
            }
        }
        let mut rest = Vec::new();
        for hold in holds.into_values() {
            if hold.until.is_some_and(|until| until <= self.now) {
                self.lost_before(connection, &hold, End::Expired);
                self.undo(&hold.lock, hold.kind, hold.number, hold.longest);
            } else if hold.kind == Kind::Red {
                self.lost_before(connection, &hold, End::Restarted);
                self.journal_gone(hold.number);
            } else {
                rest.push(hold);
            }
        }
        rest
    }

    /// Applies Redis's reply about the holds of an earlier run.
    pub(in crate::core) fn on_adopted(
        &mut self,
        sent: Moment,
        holds: &[(HoldRecord, RenewOutcome)],
    ) {
        for (record, outcome) in holds {
            let Some(connection) = self.sessions.connection_of(record.session) else {
                // Its session was not resumed in time.
                self.undo(&record.lock, record.kind, record.number, record.longest);
                continue;
            };
            let watched = self.settings.lease.valid_until(sent);
            let valid_until = record.until.unwrap_or(watched);
            let owner = Owner { connection, owner: record.owner };
            let held = self.locks.get(&record.lock).and_then(|name| name.hold);
            let others =
                held.and_then(|number| self.leases.get(number)).is_some_and(|h| h.owner != owner);
            let end = match lost_end(*outcome) {
                None if valid_until <= self.now => Some(End::Unconfirmed),
                // It was missing and has been granted to another owner here, before this reply was read.
                None if others => Some(End::Stolen),
                end => end,
            };
            match end {
                None => self.keep_adopted(owner, record, sent, valid_until),
                Some(end) => {
                    self.lost_before(connection, record, end);
                    match end {
                        End::Unconfirmed => {
                            self.undo(&record.lock, record.kind, record.number, record.longest);
                        }
                        _ => self.journal_gone(record.number),
                    }
                }
            }
        }
        self.run_ready();
    }

    /// Renews holds again, at that instant, that too few replicas confirmed, whose lease was nearly over when the reply came, or
    /// whose markers are missing: a resumed session must not rely on them yet.
    fn adopt_again(&mut self, op: &Op, at: Moment, form: RenewalForm, holds: Vec<HoldRecord>) {
        if holds.is_empty() {
            return;
        }
        let give_up = op.give_up_at().since(self.now);
        self.send_at(at, Verb::Adopt(Adoption { form, holds }), give_up);
    }

    /// Handles the case where Redis has not replied for longer than a renewed lease. It is asked again about a hold on which
    /// its worker may still rely: one with a longer fixed lease, or one that an earlier run may have promised for longer.
    /// A lost hold is removed when Redis is back, since a late copy may have renewed it.
    fn on_not_adopted(&mut self, form: RenewalForm, holds: Vec<HoldRecord>) {
        let mut lasting = Vec::new();
        for record in holds {
            let connection = self.sessions.connection_of(record.session);
            let (relied_on_until, end) = match record.until {
                Some(until) => (until, End::Expired),
                None => (record.longest.valid_until(self.journal.took_over()), End::Unconfirmed),
            };
            if relied_on_until > self.now && connection.is_some() {
                lasting.push(record);
                continue;
            }
            if let Some(connection) = connection {
                self.lost_before(connection, &record, end);
            }
            self.undo(&record.lock, record.kind, record.number, record.longest);
        }
        if !lasting.is_empty() {
            let give_up = self.retry_window(self.settings.lease);
            self.send(Verb::Adopt(Adoption { form, holds: lasting }), give_up);
        }
    }

    /// Reports a hold that was lost before its session was resumed to the connection that resumes it.
    fn lost_before(&mut self, connection: ConnectionId, record: &HoldRecord, end: End) {
        self.sessions.on_verified(connection);
        let owner = Owner { connection, owner: record.owner };
        let HoldRecord { lock, kind, number, .. } = record;
        self.report_loss(owner, lock, *kind, *number, String::new(), end);
        self.notify(owner, &record.lock, record.kind, &Event::Lost(end));
        self.poll_queue(&record.lock);
    }

    /// Keeps a hold that still exists: the watchdog renews it again.
    fn keep_adopted(
        &mut self,
        owner: Owner,
        record: &HoldRecord,
        sent: Moment,
        valid_until: Moment,
    ) {
        let HoldRecord { number, ref lock, kind, count, token, until, longest, granted, .. } =
            *record;
        let mut earlier_leases = record.leases.clone();
        let lease = earlier_leases.pop().map_or(longest, |(lease, _)| lease);
        let jitter = self.numbers.jitter();
        let uid = self.sessions.get(&owner.connection).map_or(u32::MAX, |session| session.peer.uid);
        let hold = NewHold {
            number,
            name: lock.clone(),
            group: self.group_label(lock),
            kind,
            owner,
            uid,
            token,
            count,
            mode: if until.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed },
            granted,
            valid_until,
            renew_at: self.settings.lease.renew_at(sent, jitter),
            lease,
            lapsing: false,
            untold: false,
            trace: None,
            span: tracing::Span::none(),
            early: false,
        };
        self.insert_hold(hold);
        self.leases.restore_leases(number, earlier_leases, longest);
        if self.settings.lease > longest {
            // The next run must know for how long this one may promise it.
            self.journal_hold(number);
        }
        self.locks.on_acquired(lock, self.now);
        self.sessions.on_verified(owner.connection);
        self.poll_queue(lock);
    }
}

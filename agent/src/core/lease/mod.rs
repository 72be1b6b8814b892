//! Holds of local owners: their validity, renewal and end.
//!
//! [`LeaseTable`] owns the holds and their deadlines. Others read a [`Hold`]; every change is a method of the table,
//! which also updates the hold's deadline.

pub(in crate::core) mod end;
mod extend;
pub(in crate::core) mod frozen;
pub(in crate::core) mod hold;
mod holds;
pub(in crate::core) mod lease_terms;
pub(in crate::core) mod lock_delay;
pub(in crate::core) mod node_leases;
pub(in crate::core) mod red;
pub(in crate::core) mod watchdog;

use std::ops::RangeBounds;
use std::time::Duration;

use redisson::{Kind, Lease, Moment};

use crate::core::ids::{HoldIndex, OpId};
use crate::core::ops::verb::{Change, HoldUpdate, Renewal, RenewalForm};
use crate::core::session::event::Validity;
use crate::core::timer::Timers;
use crate::types::{ConnectionId, End, Number};
use hold::{Delayed, Hold, LeaseMode, NewHold};
use holds::Holds;
use lease_terms::LeaseTerms;

/// All holds, by their numbers.
#[derive(Debug)]
pub(in crate::core) struct LeaseTable {
    /// The lease of renewed holds.
    lease: Lease,
    /// The time before the end of its validity at which a hold is reported as lost.
    margin: Duration,
    holds: Holds,
    timers: Timers<HoldIndex>,
    in_jeopardy: usize,
    delayed: usize,
}

/// Returns the time after which a renewal that too few replicas confirmed is repeated: four times as often as others, so
/// that several attempts fit before the hold is lost and the load stays bounded.
pub(in crate::core) fn unconfirmed_pause(lease: Lease) -> Duration {
    lease.duration() / 12
}

/// The consequence of a hold's deadline.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) enum Due {
    /// The hold is over.
    Lost(End),
    /// The lock delay of a dead worker's hold is over.
    DelayOver,
    Held {
        /// The delay of a renewal or verification that is due, compared with its plan.
        renewal_late: Option<Duration>,
        /// The remaining validity of a hold that has come into jeopardy.
        jeopardy: Option<Validity>,
    },
}

/// The outcome of a successful renewal.
#[derive(Debug)]
pub(in crate::core) struct Renewed<'a> {
    pub(in crate::core) hold: &'a Hold,
    /// The validity that was left.
    pub(in crate::core) margin: Duration,
    /// The hold is valid for longer.
    pub(in crate::core) extended: bool,
    /// Its jeopardy has ended.
    pub(in crate::core) safe: bool,
}

impl LeaseTable {
    pub(in crate::core) fn new(lease: Lease, margin: Duration) -> Self {
        Self {
            lease,
            margin,
            holds: Holds::default(),
            timers: Timers::default(),
            in_jeopardy: 0,
            delayed: 0,
        }
    }

    pub(in crate::core) fn get(&self, number: Number) -> Option<&Hold> {
        self.holds.get(number)
    }

    pub(in crate::core) fn contains(&self, number: Number) -> bool {
        self.holds.index(number).is_some()
    }

    pub(in crate::core) fn len(&self) -> usize {
        self.holds.len()
    }

    /// Returns the holds in the order of their numbers.
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.holds.range(..)
    }

    pub(in crate::core) fn range(
        &self,
        numbers: impl RangeBounds<Number>,
    ) -> impl Iterator<Item = &Hold> {
        self.holds.range(numbers)
    }

    /// Returns the number of holds in jeopardy.
    pub(in crate::core) fn in_jeopardy(&self) -> usize {
        self.in_jeopardy
    }

    /// Returns the number of holds that the lock delay keeps.
    pub(in crate::core) fn delayed(&self) -> usize {
        self.delayed
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    /// Returns the hold at an index, if there is one that awaits a renewal.
    pub(in crate::core) fn renewing(&self, index: HoldIndex) -> Option<&Hold> {
        self.holds.at(index).filter(|hold| hold.renewing)
    }

    /// Takes the next hold whose deadline is due. [`Self::on_due`] sets the next one.
    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<HoldIndex> {
        self.timers.pop_due(now)
    }

    pub(in crate::core) fn insert(&mut self, new: NewHold) -> &Hold {
        let hold = self.holds.insert(Hold::new(new, self.lease));
        hold.arm(&mut self.timers, self.lease, self.margin);
        hold
    }

    /// Sets the leases that a hold of an earlier run has had before the present one, and the longest of them.
    pub(in crate::core) fn restore_leases(
        &mut self,
        number: Number,
        earlier: Vec<(Lease, Moment)>,
        longest: Lease,
    ) {
        if let Some(hold) = self.holds.get_mut(number) {
            hold.earlier_leases = earlier;
            hold.longest = hold.longest.max(longest);
        }
    }

    /// Records the lease of a read hold of a write hold's owner.
    pub(in crate::core) fn add_read_lease(&mut self, writer: Number, lease: Lease) {
        if let Some(hold) = self.holds.get_mut(writer) {
            hold.read_lease = hold.read_lease.max(Some(lease));
        }
    }

    pub(in crate::core) fn remove(&mut self, number: Number) -> Option<Hold> {
        let hold = self.holds.remove(number)?;
        self.timers.clear(hold.armed, hold.index);
        self.in_jeopardy -= usize::from(hold.jeopardy);
        self.delayed -= usize::from(hold.delayed.is_some());
        Some(hold)
    }

    /// Changes a hold and sets its deadline again.
    fn change<R>(&mut self, number: Number, change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        let hold = self.holds.get_mut(number)?;
        let result = change(hold);
        hold.arm(&mut self.timers, self.lease, self.margin);
        Some(result)
    }

    /// Handles the deadline of a hold. A renewal that is due counts as begun. Returns the hold's number too.
    pub(in crate::core) fn on_due(
        &mut self,
        index: HoldIndex,
        now: Moment,
    ) -> Option<(Number, Due)> {
        let (lease, margin) = (self.lease, self.margin);
        let hold = self.holds.at_mut(index)?;
        let number = hold.number;
        hold.armed = Moment::NEVER;
        let delayed_until = hold.delayed.as_ref().map(|delayed| delayed.until);
        let lost_at = match (hold.mode, delayed_until) {
            (LeaseMode::Renewed, None) => lease.lost_at(hold.valid_until, margin),
            (LeaseMode::Fixed, _) | (_, Some(_)) => hold.valid_until,
        };
        if hold.mode == LeaseMode::Renewed && delayed_until.is_some_and(|until| until <= now) {
            return Some((number, Due::DelayOver));
        }
        if lost_at <= now {
            let end = match (hold.mode, hold.lapsing) {
                (LeaseMode::Fixed, _) => End::Expired,
                (LeaseMode::Renewed, true) => End::Frozen,
                (LeaseMode::Renewed, false) => End::Unconfirmed,
            };
            return Some((number, Due::Lost(end)));
        }
        let (mut renewal_late, mut jeopardy) = (None, None);
        if hold.may_be_renewed() && hold.renew_at <= now {
            hold.renewing = true;
            renewal_late = Some(now.since(hold.renew_at));
        }
        if hold.mode == LeaseMode::Renewed {
            let warn = !hold.jeopardy && delayed_until.is_none();
            if warn && lease.at_risk_at(hold.valid_until) <= now {
                hold.jeopardy = true;
                self.in_jeopardy += 1;
                jeopardy = Some(hold.validity(now));
            }
        }
        hold.arm(&mut self.timers, lease, margin);
        Some((number, Due::Held { renewal_late, jeopardy }))
    }

    /// Ends the jeopardy of a hold that is valid for long enough again. Returns whether it has just ended.
    pub(in crate::core) fn clear_jeopardy(&mut self, number: Number, now: Moment) -> bool {
        let lease = self.lease;
        let Some(hold) = self.holds.get_mut(number) else { return false };
        let cleared = hold.clear_jeopardy(lease, now);
        if cleared {
            self.in_jeopardy -= 1;
            hold.arm(&mut self.timers, lease, self.margin);
        }
        cleared
    }

    /// Counts a renewal, which also verifies, of all such holds as begun, and returns them. Those that Redis does not have
    /// yet are renewed once it has them.
    pub(in crate::core) fn renew_now(
        &mut self,
        now: Moment,
        which: impl Fn(&Hold) -> bool,
    ) -> Vec<HoldIndex> {
        for hold in self.holds.values_mut().filter(|hold| hold.early) {
            hold.renew_at = now;
        }
        let due = |hold: &&Hold| hold.may_be_renewed() && which(hold);
        let due: Vec<HoldIndex> = self.iter().filter(due).map(|hold| hold.index).collect();
        for index in &due {
            let Some(hold) = self.holds.at_mut(*index) else { continue };
            hold.renewing = true;
            if let Some(parts) = &mut hold.node_leases {
                parts.renew_all(now);
            }
            hold.arm(&mut self.timers, self.lease, self.margin);
        }
        due
    }

    /// Counts a renewal as begun, unless the hold is left to lapse. Returns its index if it was.
    pub(in crate::core) fn begin_renewal(&mut self, number: Number) -> Option<HoldIndex> {
        self.change(number, |hold| {
            hold.renewing |= !hold.lapsing;
            (!hold.lapsing).then_some(hold.index)
        })?
    }

    /// Records the claim of a forced release of the hold. Returns its index if it must be verified now; a renewal in
    /// flight is followed by another one.
    pub(in crate::core) fn claim_forced(
        &mut self,
        number: Number,
        now: Moment,
    ) -> Option<HoldIndex> {
        self.change(number, |hold| {
            hold.forced_claim = Some(now);
            let idle = !hold.early && !std::mem::replace(&mut hold.renewing, true);
            idle.then_some(hold.index)
        })?
    }

    /// Ends the renewal in flight, whatever its outcome.
    pub(in crate::core) fn end_renewal(&mut self, number: Number) -> Option<&Hold> {
        let hold = self.holds.get_mut(number)?;
        hold.renewing = false;
        hold.failures = 0;
        Some(hold)
    }

    /// Applies a renewal, of this form, that was sent at `sent`: Redis has the hold. If too few replicas `confirmed` it, one of
    /// them may take over without the new lease, so the validity is not extended, and the renewal is repeated soon.
    pub(in crate::core) fn on_renewed(
        &mut self,
        renewal: &Renewal,
        form: RenewalForm,
        confirmed: bool,
        sent: Moment,
        now: Moment,
        jitter: u64,
    ) -> Option<Renewed<'_>> {
        let lease = self.lease;
        let hold = self.holds.at_mut(renewal.index).filter(|hold| hold.number == renewal.number)?;
        let margin = hold.valid_until.since(now);
        hold.renewing = false;
        hold.failures = 0;
        hold.unconfirmed = !confirmed;
        hold.forced_claim = hold.forced_claim.filter(|at| *at > sent);
        // A renewal that overtook a change of the count is corrected at once; one that is older than the claim that the
        // hold was released says nothing about it; and one that only verified a hold extended no lease.
        let verified = form.verify && hold.mode == LeaseMode::Renewed;
        let overtaken =
            confirmed && hold.count != form.count || hold.forced_claim.is_some() || verified;
        hold.renew_at = match confirmed {
            _ if overtaken => now,
            true => lease.renew_at(sent, jitter),
            false => sent + unconfirmed_pause(lease),
        };
        let extended = confirmed && !form.verify && hold.mode == LeaseMode::Renewed;
        if extended {
            hold.valid_until = hold.valid_until.max(lease.valid_until(sent));
        }
        let safe = extended && hold.clear_jeopardy(lease, now);
        self.in_jeopardy -= usize::from(safe);
        hold.arm(&mut self.timers, lease, self.margin);
        Some(Renewed { hold, margin, extended, safe })
    }

    /// Counts a renewal without an answer. Returns the number of consecutive failures.
    pub(in crate::core) fn on_renewal_failed(&mut self, number: Number) -> Option<u32> {
        let hold = self.holds.get_mut(number)?;
        hold.renewing = false;
        hold.failures = hold.failures.saturating_add(1);
        hold.note_failed_renewal();
        Some(hold.failures)
    }

    /// Sets the next renewal of a hold.
    pub(in crate::core) fn schedule_renewal(&mut self, number: Number, at: Moment) {
        self.change(number, |hold| hold.renew_at = at);
    }

    /// Records the update that its owner has sent. No later lease may be shorter than one that Redis was asked for.
    pub(in crate::core) fn begin_update(&mut self, number: Number, op: OpId, lease: Option<Lease>) {
        if let Some(hold) = self.holds.get_mut(number) {
            hold.update = Some(op);
            hold.longest = hold.longest.max(lease.unwrap_or(hold.longest));
        }
    }

    /// Takes the update in flight.
    pub(in crate::core) fn take_update(&mut self, number: Number) -> Option<OpId> {
        self.holds.get_mut(number)?.update.take()
    }

    /// Applies an update that was sent at `sent`.
    pub(in crate::core) fn on_updated(
        &mut self,
        number: Number,
        change: Change,
        count: u32,
        sent: Moment,
        jitter: u64,
    ) -> Option<&Hold> {
        let watched = self.lease;
        self.change(number, |hold| {
            let (Change::Reenter(lease) | Change::Extend(lease)) = change else { return };
            hold.mode = if lease.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed };
            hold.renew_at = watched.renew_at(sent, jitter);
            let (before, fixed) = ((hold.lease, hold.valid_until), lease.is_some());
            let lease = lease.unwrap_or(watched);
            (hold.lease, hold.valid_until) = (lease, lease.valid_until(sent));
            if let Change::Extend(_) = change {
                return hold.earlier_leases.clear();
            }
            hold.count += 1;
            if hold.count != count {
                // Some entries have ended meanwhile: the renewal corrects what Redis has.
                hold.renew_at = sent;
            }
            if before.1 > hold.valid_until {
                (hold.lease, hold.valid_until) = before;
            }
            if hold.kind == Kind::Read && fixed {
                hold.earlier_leases.push(before);
            } else {
                hold.earlier_leases.clear();
            }
        })?;
        self.get(number)
    }

    /// Takes an EXTEND back: the hold is kept as before. The longer lease in Redis does no harm: a renewed hold has it for as
    /// long as a renewal would give it now. A red hold, which no journal keeps, stays as it is.
    pub(in crate::core) fn keep_as_before(
        &mut self,
        number: Number,
        before: LeaseTerms,
        now: Moment,
    ) {
        let renewed = self.lease.valid_until(now);
        self.change(number, |hold| {
            if hold.node_leases.is_some() {
                return;
            }
            let LeaseTerms { mode, lease, mut valid_until, earlier_leases } = before;
            if mode == LeaseMode::Renewed {
                valid_until = valid_until.max(hold.valid_until.min(renewed));
            }
            (hold.mode, hold.lease, hold.valid_until) = (mode, lease, valid_until);
            hold.earlier_leases = earlier_leases;
            hold.renew_from(now);
        });
    }

    /// Lowers the count by one, whatever Redis says: the next renewal corrects a count that differs. Redis keeps the longest
    /// lease; the agent ends a shorter one in time.
    pub(in crate::core) fn decrement(&mut self, number: Number) -> Option<&Hold> {
        self.change(number, |hold| {
            hold.count -= 1;
            if let Some(earlier) = hold.earlier_leases.pop()
                && hold.mode == LeaseMode::Fixed
            {
                (hold.lease, hold.valid_until) = earlier;
            }
        })?;
        self.get(number)
    }

    /// Raises the count of a hold by one without Redis.
    pub(in crate::core) fn increment(&mut self, number: Number, now: Moment) -> Option<&Hold> {
        self.change(number, |hold| {
            hold.count += 1;
            hold.schedule_count_update(now);
        })?;
        self.get(number)
    }

    /// Schedules a renewal that soon writes the count of a hold to Redis.
    pub(in crate::core) fn schedule_count_update(&mut self, number: Number, now: Moment) {
        self.change(number, |hold| hold.schedule_count_update(now));
    }

    /// Stores an EXTEND until Redis has the hold.
    pub(in crate::core) fn set_waiting_extend(&mut self, number: Number, extend: HoldUpdate) {
        self.change(number, |hold| hold.extend = Some(Box::new(extend)));
    }

    /// Takes the EXTEND that waits until Redis has the hold.
    pub(in crate::core) fn take_waiting_extend(&mut self, number: Number) -> Option<HoldUpdate> {
        self.holds.get_mut(number)?.extend.take().map(|extend| *extend)
    }

    /// Records that Redis has a predecessor of an early hold, with a lease that was set at `sent`.
    pub(in crate::core) fn follow(&mut self, number: Number, sent: Moment) {
        let lease = self.lease;
        self.change(number, |hold| {
            hold.valid_until = hold.valid_until.max(lease.valid_until(sent));
        });
    }

    /// Records that Redis has an early hold, once, with a lease that was set at `sent`. Returns the EXTEND that waited.
    pub(in crate::core) fn on_handed_over(
        &mut self,
        number: Number,
        sent: Moment,
        now: Moment,
        jitter: u64,
    ) -> Option<HoldUpdate> {
        let lease = self.lease;
        self.change(number, |hold| {
            // Another count, a claim of a forced release, or another server: Redis is asked again at once.
            let settled = hold.count == 1 && hold.forced_claim.is_none() && hold.renew_at > now;
            hold.renew_at = if settled { lease.renew_at(sent, jitter) } else { now };
            hold.valid_until = hold.valid_until.max(lease.valid_until(sent));
            hold.early = false;
            hold.extend.take().map(|extend| *extend)
        })?
    }

    pub(in crate::core) fn move_to(&mut self, number: Number, connection: ConnectionId) {
        if let Some(hold) = self.holds.get_mut(number) {
            hold.owner.connection = connection;
        }
    }

    /// Records that a hold's worker knows about it from now on. Returns whether that is new.
    pub(in crate::core) fn set_told(&mut self, number: Number) -> bool {
        self.holds.get_mut(number).is_some_and(|hold| std::mem::take(&mut hold.untold))
    }

    /// Stops renewing a hold, or resumes its renewals at once.
    pub(in crate::core) fn set_lapsing(&mut self, number: Number, lapsing: bool, now: Moment) {
        self.change(number, |hold| {
            hold.lapsing = lapsing;
            if !lapsing && hold.mode == LeaseMode::Renewed {
                hold.renew_from(now);
            }
        });
    }

    /// Keeps a dead worker's hold. Its lease is renewed from now on, and nobody is left to warn.
    pub(in crate::core) fn delay(&mut self, number: Number, delayed: Delayed, now: Moment) {
        let Some(was_in_jeopardy) = self.change(number, |hold| {
            if hold.mode == LeaseMode::Fixed {
                hold.mode = LeaseMode::Renewed;
                hold.renew_from(now);
            }
            hold.delayed = Some(Box::new(delayed));
            std::mem::take(&mut hold.jeopardy)
        }) else {
            return;
        };
        self.in_jeopardy -= usize::from(was_in_jeopardy);
        self.delayed += 1;
    }

    /// Returns the shortest lease of all holds.
    pub(in crate::core) fn shortest(&self) -> Option<Duration> {
        let leases = self.iter().map(|hold| match hold.mode {
            LeaseMode::Renewed => self.lease.duration(),
            LeaseMode::Fixed => hold.valid_until.since(hold.granted),
        });
        leases.min()
    }
}

//! The watchdog: renewals, jeopardy, loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redisson::script::{MAX_BATCH, RenewOutcome};
use redisson::{Kind, LockName, Moment};
use tracing::Span;

use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::lease::update::lost_end;
use crate::core::ops::{Op, Purpose, Renewal};
use crate::core::session::event::Event;
use crate::core::timer::Timer;
use crate::core::{Core, Node, spans};
use crate::core::{LogLine, Report};
use crate::types::End;
use crate::types::Number;

/// How many holds of each group: those of one batch are of few.
#[derive(Default)]
struct Tally(Vec<(Arc<str>, u64)>);

impl Tally {
    fn add(&mut self, group: &Arc<str>) {
        match self.0.iter_mut().find(|(known, _)| Arc::ptr_eq(known, group)) {
            Some((_, count)) => *count += 1,
            None => self.0.push((Arc::clone(group), 1)),
        }
    }
}

/// Holds that one script may renew together: read holds have markers to be renewed, by a script of their own, and where
/// keys have slots those of a script share theirs.
pub(in crate::core) struct Batches<T> {
    slots: bool,
    open: BTreeMap<(bool, u16), Vec<T>>,
}

impl<T> Batches<T> {
    pub(in crate::core) fn new(slots: bool) -> Self {
        Self { slots, open: BTreeMap::new() }
    }

    /// One more hold. Gives its batch, and whether that is of read holds, when it is full.
    pub(in crate::core) fn add(
        &mut self,
        kind: Kind,
        name: &LockName,
        hold: T,
    ) -> Option<(bool, Vec<T>)> {
        let slot = if self.slots { name.slot() } else { 0 };
        let reads = kind == Kind::Read;
        let batch = self.open.entry((reads, slot)).or_default();
        batch.push(hold);
        (batch.len() == MAX_BATCH).then(|| (reads, std::mem::take(batch)))
    }

    /// Those that are not full.
    pub(in crate::core) fn rest(self) -> impl Iterator<Item = (bool, Vec<T>)> {
        let all = self.open.into_iter().map(|((reads, _), batch)| (reads, batch));
        all.filter(|(_, batch)| !batch.is_empty())
    }
}

impl Core {
    /// Sets a hold's deadline anew.
    pub(in crate::core) fn arm(&mut self, number: Number) {
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        if let Some(hold) = self.holds.get_mut(&number) {
            let deadline = hold.deadline(lease, margin);
            self.timers.set(&mut hold.armed, deadline, Timer::Hold(number));
        }
    }

    /// A hold's deadline has come. Those to be renewed are collected in `due`.
    pub(in crate::core) fn hold_due(&mut self, number: Number, due: &mut Vec<Number>) {
        let now = self.now;
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        let Some(hold) = self.holds.get_mut(&number) else { return };
        hold.armed = Moment::NEVER;
        if hold.mode == LeaseMode::Fixed {
            if hold.valid_until <= now {
                return self.lose(number, End::Expired);
            }
            return self.arm(number);
        }
        let kept_back = hold.kept_back.as_ref().map(|kept_back| kept_back.until);
        if kept_back.is_some_and(|until| until <= now) {
            return self.end_hold(number, End::Disconnected, None);
        }
        let lost_at = match kept_back {
            Some(_) => hold.valid_until,
            None => lease.lost_at(hold.valid_until, margin),
        };
        if lost_at <= now {
            let end = if hold.lapsing { End::Frozen } else { End::Unconfirmed };
            return self.lose(number, end);
        }
        if !hold.renewing && !hold.lapsing && hold.renew_at <= now {
            hold.renewing = true;
            self.effects.report(Report::RenewalLateness(now.since(hold.renew_at)));
            due.push(number);
        }
        let warn = !hold.jeopardy && kept_back.is_none();
        if warn && lease.at_risk_at(hold.valid_until) <= now {
            hold.jeopardy = true;
            let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
            let left = hold.valid_ms(now);
            hold.note_jeopardy(left);
            self.gauges.jeopardy_holds += 1;
            let session = self.sessions.get(&owner.session);
            self.effects.log_bounded(now, || LogLine::Jeopardy {
                lock: name.clone(),
                pid: session.and_then(|session| session.peer.pid),
                trace: hold.trace().to_owned(),
                valid_ms: left,
                why: if hold.lapsing { "its worker is stopped" } else { "renewals fail" },
            });
            self.notify(owner, &name, kind, &Event::Jeopardy(left));
        }
        self.arm(number);
    }

    /// Sends renewals, many to a script.
    pub(in crate::core) fn renew(&mut self, due: Vec<Number>) {
        let mut batches = Batches::new(self.settings.slots);
        let mut red = Vec::new();
        for number in due {
            let Some(hold) = self.holds.get(&number) else { continue };
            let Hold { kind, count, .. } = *hold;
            if kind == Kind::Red {
                red.push(number);
                continue;
            }
            let renewal = Renewal { name: hold.name.clone(), kind, number, count };
            if let Some((reads, holds)) = batches.add(kind, &hold.name, renewal) {
                self.send_renewals(reads, holds);
            }
        }
        for (reads, holds) in batches.rest() {
            self.send_renewals(reads, holds);
        }
        self.renew_red(&red);
    }

    fn send_renewals(&mut self, reads: bool, holds: Vec<Renewal>) {
        let span = spans::renewal(holds.len());
        self.send(Purpose::Renew { reads, holds, span }, Duration::ZERO);
    }

    /// Redis answered a batch of renewals.
    pub(in crate::core) fn renewed(
        &mut self,
        op: &Op,
        holds: &[Renewal],
        kept: &[RenewOutcome],
        span: &Span,
    ) {
        let now = self.now;
        let lease = self.settings.lease;
        self.effects.report(Report::RenewalRoundTrip(now.since(op.sent)));
        let mut renewed = Tally::default();
        let gone = kept.iter().filter(|kept| lost_end(**kept).is_some()).count();
        span.record("lock.gone", gone);
        span.record("lock.renewed", kept.len() - gone);
        for (Renewal { name, number, count, .. }, kept) in holds.iter().zip(kept) {
            let jitter = self.jitter();
            // A hold that ended meanwhile is no business of a renewal any more.
            let Some(hold) = self.holds.get_mut(number) else { continue };
            hold.renewing = false;
            hold.failures = 0;
            if let Some(end) = lost_end(*kept) {
                self.effects.report(Report::Renewals {
                    group: Arc::clone(&hold.group),
                    outcome: "gone",
                    count: 1,
                });
                self.lose(*number, end);
                continue;
            }
            renewed.add(&hold.group);
            self.effects.report(Report::RenewalMargin(hold.valid_until.since(now)));
            if hold.mode == LeaseMode::Renewed {
                hold.valid_until = hold.valid_until.max(lease.valid_until(op.sent));
                // This renewal may have overtaken a change of the count: then it is put right at once.
                hold.renew_at =
                    if hold.count == *count { lease.renew_at(op.sent, jitter) } else { now };
                let (owner, kind, valid) = (hold.owner, hold.kind, hold.valid_ms(now));
                self.clear_jeopardy(*number);
                self.notify(owner, name, kind, &Event::Valid(valid));
            }
            self.arm(*number);
        }
        for (group, count) in renewed.0 {
            self.effects.report(Report::Renewals {
                group: Arc::clone(&group),
                outcome: "renewed",
                count,
            });
        }
    }

    /// A hold that was in jeopardy and is valid for long enough again is safe.
    pub(in crate::core) fn clear_jeopardy(&mut self, number: Number) {
        let lease = self.settings.lease;
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.jeopardy
            && (hold.mode == LeaseMode::Fixed || lease.at_risk_at(hold.valid_until) > self.now)
        {
            hold.jeopardy = false;
            hold.note_safe(hold.valid_ms(self.now));
            let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
            self.gauges.jeopardy_holds -= 1;
            self.notify(owner, &name, kind, &Event::Safe);
        }
    }

    /// A batch of renewals brought no answer: each is tried again, to the end of its hold.
    pub(in crate::core) fn renewal_failed(&mut self, holds: &[Renewal], pause: Duration) {
        let now = self.now;
        for Renewal { name, number, .. } in holds {
            let group = self.group_label(name);
            let Some(hold) = self.holds.get_mut(number) else {
                self.poll_queue(name);
                continue;
            };
            hold.renewing = false;
            hold.failures = hold.failures.saturating_add(1);
            hold.note_failed_renewal();
            let failures = hold.failures;
            self.effects.report(Report::Renewals {
                group: Arc::clone(&group),
                outcome: "error",
                count: 1,
            });
            // The op's own pause is for its first failure; a hold whose renewals go on failing slows down.
            let pause = if failures == 1 { pause } else { self.pause(failures) };
            if let Some(hold) = self.holds.get_mut(number) {
                hold.renew_at = now + pause;
            }
            self.arm(*number);
        }
    }

    /// Verifies every hold on a server now: it is another one, or has restarted.
    pub fn verify(&mut self, now: Moment, node: Node) {
        self.advance_clock(now);
        match node {
            Node::Main => {
                let mut due = Vec::new();
                self.all_due(&mut due, |hold| hold.node_leases.is_none());
                self.renew(due);
            }
            Node::Red(node) => self.verify_node(node),
        }
        self.run_ready();
    }

    /// Makes every such hold due for a renewal, which is a verification too. (One with a fixed lease may be kept longer
    /// in Redis by it; the agent still ends it in time.)
    pub(in crate::core) fn all_due(
        &mut self,
        due: &mut Vec<Number>,
        which: impl Fn(&Hold) -> bool,
    ) {
        let (first, now) = (due.len(), self.now);
        let can = |hold: &Hold| !hold.renewing && !hold.lapsing;
        for hold in self.holds.values_mut().filter(|hold| can(hold) && which(hold)) {
            hold.renewing = true;
            for lease_on_node in
                hold.node_leases.iter_mut().flat_map(|node_leases| &mut node_leases.0)
            {
                lease_on_node.renew_at = now;
            }
            due.push(hold.number);
        }
        for number in due.iter().skip(first).copied().collect::<Vec<_>>() {
            self.arm(number);
        }
    }

    /// Whether so much time has passed since the last event that the agent, or the host, slept: above a third of the
    /// shortest lease held. Ticks come each 100 ms while holds exist.
    pub(in crate::core) fn slept(&mut self, now: Moment) -> bool {
        let gap = now.since(self.now);
        if gap < Duration::from_millis(200) {
            return false;
        }
        let lease = self.settings.lease.duration();
        let leases = self.holds.values().map(|hold| match hold.mode {
            LeaseMode::Renewed => lease,
            LeaseMode::Fixed => hold.valid_until.since(hold.granted),
        });
        let slept = leases.min().is_some_and(|shortest| gap > shortest / 3);
        if slept {
            let gap_ms = crate::core::lease::hold::millis(gap);
            self.effects.log(LogLine::Slept { gap_ms });
        }
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_script_shares_its_slot_where_there_are_slots() {
        let name = |text: &str| LockName::new(text.as_bytes()).unwrap();
        let batched = |slots| {
            let mut batches = Batches::new(slots);
            for lock in ["{a}1", "b", "{a}2"] {
                assert!(batches.add(Kind::Lock, &name(lock), lock).is_none());
            }
            assert!(batches.add(Kind::Read, &name("{a}3"), "{a}3").is_none());
            batches.rest().collect::<Vec<_>>()
        };
        assert_eq!(batched(false), [(false, vec!["{a}1", "b", "{a}2"]), (true, vec!["{a}3"])]);
        // `b` has slot 3300, `a` 15495.
        assert_eq!(
            batched(true),
            [(false, vec!["b"]), (false, vec!["{a}1", "{a}2"]), (true, vec!["{a}3"])]
        );
        let mut full = Batches::new(true);
        let sizes = (1..=2 * MAX_BATCH).filter_map(|n| full.add(Kind::Lock, &name("a"), n));
        assert_eq!(sizes.map(|(_, batch)| batch.len()).collect::<Vec<_>>(), [MAX_BATCH; 2]);
        assert_eq!(full.rest().count(), 0);
    }
}

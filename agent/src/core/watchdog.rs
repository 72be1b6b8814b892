//! The watchdog: renewals, jeopardy, loss.

use std::time::Duration;

use redisson::script::{Kept, MAX_BATCH};
use redisson::{Kind, Moment};

use super::event::{End, Event};
use super::hold::{Care, Hold};
use super::keep::lost_end;
use super::op::{Op, Purpose, Renewal};
use super::timer::Timer;
use super::{Core, Number};

impl Core {
    /// Sets a hold's deadline anew.
    pub(super) fn arm(&mut self, number: Number) {
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        if let Some(hold) = self.holds.get_mut(&number) {
            let deadline = hold.deadline(lease, margin);
            self.timers.set(&mut hold.armed, deadline, Timer::Hold(number));
        }
    }

    /// A hold's deadline has come. Those to be renewed are collected in `due`.
    pub(super) fn hold_due(&mut self, number: Number, due: &mut Vec<Number>) {
        let now = self.now;
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        let Some(hold) = self.holds.get_mut(&number) else { return };
        hold.armed = Moment::NEVER;
        if hold.care == Care::Fixed {
            if hold.valid_until <= now {
                return self.lose(number, End::Expired);
            }
            return self.arm(number);
        }
        if lease.lost_at(hold.valid_until, margin) <= now {
            return self.lose(number, End::Unconfirmed);
        }
        if !hold.renewing && hold.renew_at <= now {
            hold.renewing = true;
            self.figures.renewal_lateness.observe(now.since(hold.renew_at).as_secs_f64());
            due.push(number);
        }
        if !hold.jeopardy && lease.jeopardy_at(hold.valid_until) <= now {
            hold.jeopardy = true;
            let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
            let left = hold.valid_ms(now);
            self.figures.jeopardy_holds.inc();
            if self.log_limit.admits(now) {
                let trace = hold.trace();
                tracing::warn!(lock.name = %name, trace.parent = trace, valid_ms = left, "lock in jeopardy: renewals fail");
            }
            self.tell(owner, &name, kind, &Event::Jeopardy(left));
        }
        self.arm(number);
    }

    /// Sends renewals, many to a script.
    pub(super) fn renew(&mut self, due: Vec<Number>) {
        // Read holds have markers to be renewed, by a script of their own.
        let mut batches = [Vec::new(), Vec::new()];
        for number in due {
            let Some(hold) = self.holds.get(&number) else { continue };
            let Hold { kind, count, .. } = *hold;
            let reads = kind == Kind::Read;
            let batch = &mut batches[usize::from(reads)];
            batch.push(Renewal { name: hold.name.clone(), kind, number, count });
            if batch.len() == MAX_BATCH {
                let holds = std::mem::take(batch);
                self.send(Purpose::Renew { reads, holds }, Duration::ZERO);
            }
        }
        for (reads, holds) in [false, true].into_iter().zip(batches) {
            if !holds.is_empty() {
                self.send(Purpose::Renew { reads, holds }, Duration::ZERO);
            }
        }
    }

    /// Redis answered a batch of renewals.
    pub(super) fn renewed(&mut self, op: &Op, holds: &[Renewal], kept: &[Kept]) {
        let now = self.now;
        let lease = self.settings.lease;
        self.figures.renewal_seconds.observe(now.since(op.sent).as_secs_f64());
        for (Renewal { name, number, count, .. }, kept) in holds.iter().zip(kept) {
            // A hold that ended meanwhile is no business of a renewal any more.
            let Some(hold) = self.holds.get_mut(number) else { continue };
            hold.renewing = false;
            hold.failures = 0;
            let group = self.group(name);
            if let Some(end) = lost_end(*kept) {
                self.figures.renewal(&group, "gone");
                self.lose(*number, end);
                continue;
            }
            self.figures.renewal(&group, "renewed");
            let jitter = self.jitter();
            let Some(hold) = self.holds.get_mut(number) else { continue };
            self.figures.renewal_margin.observe(hold.valid_until.since(now).as_secs_f64());
            if hold.care == Care::Watched {
                hold.valid_until = hold.valid_until.max(lease.valid_until(op.sent));
                // This renewal may have overtaken a change of the count: then it is put right at once.
                hold.renew_at =
                    if hold.count == *count { lease.renew_at(op.sent, jitter) } else { now };
                let (owner, kind, valid) = (hold.owner, hold.kind, hold.valid_ms(now));
                self.calm(*number);
                self.tell(owner, name, kind, &Event::Valid(valid));
            }
            self.arm(*number);
        }
    }

    /// A hold that was in jeopardy and is valid for long enough again is safe.
    pub(super) fn calm(&mut self, number: Number) {
        let lease = self.settings.lease;
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.jeopardy
            && (hold.care == Care::Fixed || lease.jeopardy_at(hold.valid_until) > self.now)
        {
            hold.jeopardy = false;
            let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
            self.figures.jeopardy_holds.dec();
            self.tell(owner, &name, kind, &Event::Safe);
        }
    }

    /// A batch of renewals brought no answer: each is tried again, to the end of its hold.
    pub(super) fn renewal_failed(&mut self, holds: &[Renewal], pause: Duration) {
        let now = self.now;
        for Renewal { name, number, .. } in holds {
            let group = self.group(name);
            let Some(hold) = self.holds.get_mut(number) else {
                self.advance(name);
                continue;
            };
            hold.renewing = false;
            hold.failures = hold.failures.saturating_add(1);
            let failures = hold.failures;
            self.figures.renewal(&group, "error");
            // The op's own pause is for its first failure; a hold whose renewals go on failing slows down.
            let pause = if failures == 1 { pause } else { self.pause(failures) };
            if let Some(hold) = self.holds.get_mut(number) {
                hold.renew_at = now + pause;
            }
            self.arm(*number);
        }
    }

    /// Verifies every hold now: the server is another one, or has restarted.
    pub fn verify_all(&mut self, now: Moment) {
        self.reach(now);
        let mut due = Vec::new();
        self.all_due(&mut due);
        self.renew(due);
        self.run_ready();
    }

    /// Makes every hold due for a renewal, which is a verification too. (One with a fixed lease may be kept longer
    /// in Redis by it; the agent still ends it in time.)
    pub(super) fn all_due(&mut self, due: &mut Vec<Number>) {
        let first = due.len();
        for hold in self.holds.values_mut().filter(|hold| !hold.renewing) {
            hold.renewing = true;
            due.push(hold.number);
        }
        for number in due.iter().skip(first).copied().collect::<Vec<_>>() {
            self.arm(number);
        }
    }

    /// Whether so much time has passed since the last event that the agent, or the host, slept: above a third of the
    /// shortest lease held. Ticks come each 100 ms while holds exist.
    pub(super) fn slept(&self, now: Moment) -> bool {
        let gap = now.since(self.now);
        if gap < Duration::from_millis(200) {
            return false;
        }
        let lease = self.settings.lease.duration();
        let leases = self.holds.values().map(|hold| match hold.care {
            Care::Watched => lease,
            Care::Fixed => hold.valid_until.since(hold.granted),
        });
        let slept = leases.min().is_some_and(|shortest| gap > shortest / 3);
        if slept {
            let gap_ms = super::hold::millis(gap);
            tracing::warn!(gap_ms, "the agent slept: verifying every hold");
        }
        slept
    }
}

//! Renew: a batch of holds, at the counts that they have when the script is sent.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::{self, BadReply, Call, MissingMarkers, RenewOutcome, Value};
use service_kit::trace::TraceParent;

use super::operation::Operation;
use super::update::lost_end;
use super::{Failure, Op, halves};
use crate::core::ids::OpId;
use crate::core::lease::{Renewed, unconfirmed_pause};
use crate::core::ops::verb::{Renewal, RenewalForm, Renewals, Verb};
use crate::core::session::event::Event;
use crate::core::{Core, Lane, Node, Report, spans};
use crate::types::{End, Number};

/// Returns the script that renews these holds.
pub(in crate::core) fn renewal_call(core: &Core, form: RenewalForm, holds: &[Renewal]) -> Call {
    let holds = holds.iter().map(|renewal| {
        let Renewal { name, kind, number, .. } = renewal;
        // A lookup for each renewal would cost a tenth of its time.
        let hold = if form.verify { core.leases.get(*number) } else { None };
        let rest = hold.and_then(|hold| hold.rest_of_fixed_lease(core.now));
        (name, core.numbers.field(*kind, *number), rest)
    });
    form.call(holds, core.settings.lease)
}

impl Operation for Renewals {
    fn call(&self, core: &Core) -> Call {
        renewal_call(core, self.form, &self.holds)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let outcomes = script::parse_renew(reply, self.holds.len())?;
        core.on_renewed(op, self, &outcomes);
        Ok(())
    }

    /// The next renewal of each hold tries again. A batch that Redis refuses because of one lock is divided at once.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        core.take_op(id);
        let Some(halves) = halves(&self.holds, failure) else {
            self.span.record("otel.status_code", "ERROR");
            let at_least = match failure.is_about_one_lock() {
                // Many locks may be refused, each of them alone.
                true => unconfirmed_pause(core.settings.lease),
                false => Duration::ZERO,
            };
            return core.on_renewal_failed(&self.holds, pause, at_least);
        };
        for holds in halves {
            core.send_renewals(self.form, holds);
        }
    }

    fn route(&self, core: &Core) -> (Node, Lane) {
        (Node::Main, core.renewals_lane(self.form))
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        true
    }

    fn trace_parent(&self, _: &Core) -> TraceParent {
        TraceParent::of(&self.span)
    }
}

/// The number of holds of each group; a batch has few groups.
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

impl Core {
    pub(in crate::core) fn send_renewals(&mut self, form: RenewalForm, holds: Vec<Renewal>) {
        let span = spans::renewal(holds.len());
        self.send(Verb::Renew(Renewals { form, holds, span }), Duration::ZERO);
    }

    /// Applies the reply to a batch of renewals.
    fn on_renewed(&mut self, op: &Op, renewals: &Renewals, outcomes: &[RenewOutcome]) {
        let Renewals { form, holds, span } = renewals;
        let now = self.now;
        self.effects.report(Report::RenewalRoundTrip(now.since(op.sent)));
        let confirmed = form.verify || self.is_replicated(op);
        let mut renewed = Tally::default();
        let gone = outcomes.iter().filter(|outcome| lost_end(**outcome).is_some()).count();
        span.record("lock.gone", gone);
        span.record("lock.renewed", outcomes.len() - gone);
        let mut margins = Vec::with_capacity(holds.len());
        let mut incomplete = Vec::new();
        // One value for all: holds that are renewed together are close together in memory, here and in Redis, and stay
        // so.
        let jitter = self.numbers.jitter();
        for (renewal, outcome) in holds.iter().zip(outcomes) {
            if let Some(end) = lost_end(*outcome) {
                self.renewal_found_nothing(renewal.number, end);
                continue;
            }
            if *outcome == RenewOutcome::MarkersMissing {
                incomplete.push(renewal.clone());
                continue;
            }
            // The hold has ended meanwhile.
            let Some(Renewed { hold, margin, extended, safe }) =
                self.leases.on_renewed(renewal, *form, confirmed, op.sent, now, jitter)
            else {
                continue;
            };
            renewed.add(&hold.group);
            if extended {
                let (owner, valid, untold) = (hold.owner, hold.validity(now), hold.untold);
                margins.push(margin);
                if safe {
                    self.tell_safe(renewal.number);
                }
                if !untold {
                    self.notify(owner, &renewal.name, renewal.kind, &Event::Valid(valid));
                }
            }
        }
        if !incomplete.is_empty() {
            let reads = Some(MissingMarkers::Restore);
            self.send_renewals(RenewalForm { reads, ..*form }, incomplete);
        }
        if !margins.is_empty() {
            self.effects.report(Report::RenewalMargins(margins));
        }
        let outcome = match (form.verify, confirmed) {
            (true, _) => "verified",
            (false, true) => "renewed",
            (false, false) => "unconfirmed",
        };
        for (group, count) in renewed.0 {
            self.effects.report(Report::Renewals { group: Arc::clone(&group), outcome, count });
        }
    }

    fn renewal_found_nothing(&mut self, number: Number, end: End) {
        let Some(hold) = self.leases.end_renewal(number) else { return };
        let group = Arc::clone(&hold.group);
        self.effects.report(Report::Renewals { group, outcome: "gone", count: 1 });
        self.lose(number, end);
    }

    /// Handles a batch of renewals without an answer: each hold is tried again until it ends.
    fn on_renewal_failed(&mut self, holds: &[Renewal], pause: Duration, at_least: Duration) {
        let now = self.now;
        for Renewal { name, number, .. } in holds {
            let Some(failures) = self.leases.on_renewal_failed(*number) else {
                self.poll_queue(name);
                continue;
            };
            let group = self.group_label(name);
            self.effects.report(Report::Renewals { group, outcome: "error", count: 1 });
            // The op's own pause is for the first failure; further ones slow down the hold's renewals.
            let pause = if failures == 1 { pause } else { self.pause(failures) };
            self.leases.schedule_renewal(*number, now + pause.max(at_least));
        }
    }
}

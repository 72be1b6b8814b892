//! Scripts in flight. Each verb has a file ([`operation::Operation`]); this file sends,
//! times and retries them.
//!
//! A script whose reply is lost may have run or may yet run: its outcome is unknown. Since each script names its target
//! state, it is sent again unchanged, until Redis answers or the affected lease has expired.

pub(in crate::core) mod acquire;
mod adopt;
pub(in crate::core) mod early_hand_over;
pub(in crate::core) mod force;
pub(in crate::core) mod hand_over;
mod in_flight;
pub(in crate::core) mod operation;
mod purge;
pub(in crate::core) mod release;
pub(in crate::core) mod renew;
mod show;
pub(in crate::core) mod undo;
pub(in crate::core) mod update;
pub(in crate::core) mod verb;

use std::time::Duration;

use redisson::Moment;
use redisson::script::Value;
use service_kit::trace::{self, TraceParent};

use crate::core::ids::OpId;
use crate::core::ops::verb::{RenewalForm, Verb};
use crate::core::{Core, Effect, Lane};
use crate::types::Refusal;
use in_flight::Retry;
pub use in_flight::{Confirmed, Failure};
pub(in crate::core) use in_flight::{InFlight, Op};
use operation::Silence;

/// The time after which a position in a fair lock's queue lapses without a sign of life.
pub(in crate::core) const FAIR_WAIT: Duration = Duration::from_secs(15);

/// The longest time that the script which ends a hold waits for its journal record. After that it is sent regardless: a
/// lock that stays held is worse than a wrongly reported loss, which would also require a crash within this time.
const JOURNAL_PATIENCE: Duration = Duration::from_millis(250);

/// The error of a command for which Redis stayed silent.
pub(in crate::core) const NO_ANSWER: &str = "Redis has not answered in time";

impl Core {
    /// Sends a script. After `give_up` it is no longer worth repeating.
    pub(in crate::core) fn send(&mut self, verb: Verb, give_up: Duration) -> OpId {
        self.send_at(self.now, verb, give_up)
    }

    /// Sends a script at that instant, not earlier; a script that ends a hold also waits until the journal has recorded
    /// it.
    pub(in crate::core) fn send_at(&mut self, at: Moment, verb: Verb, give_up: Duration) -> OpId {
        let id = self.plan(verb, give_up);
        let pause = at.since(self.now);
        if !pause.is_zero() {
            self.retry(id, pause);
        } else if self.delay_for_journal(id) {
            self.retry(id, JOURNAL_PATIENCE);
        } else {
            self.dispatch(id);
        }
        id
    }

    /// Delays a script until the journal has recorded its effect. Returns whether it has to wait.
    ///
    /// A successor that finds a hold in the journal but not in Redis would report it as lost.
    fn delay_for_journal(&mut self, id: OpId) -> bool {
        let ended = self.ops.get(id).and_then(|op| op.verb.operation().ends_hold());
        ended.is_some_and(|number| self.journal.delay_script(id, number))
    }

    /// Sends delayed scripts: the journal has recorded their effects, or never will.
    pub(in crate::core) fn send_delayed(&mut self, ids: Vec<OpId>) {
        for id in ids {
            // Skip those that were sent when the time limit was over.
            if self.ops.get(id).is_some_and(|op| op.failures == 0 && !op.is_on_its_way()) {
                self.dispatch(id);
            }
        }
    }

    /// Returns the latest error with which Redis refused a script for all locks.
    #[must_use]
    pub fn redis_refusal(&self) -> Option<&Refusal> {
        self.ops.refusal()
    }

    fn plan(&mut self, verb: Verb, give_up: Duration) -> OpId {
        let awaited = verb.operation().is_awaited();
        let answer_by =
            if awaited { self.now + self.settings.response_timeout } else { Moment::NEVER };
        self.ops.add(verb, self.now, answer_by, self.now + give_up)
    }

    fn dispatch(&mut self, id: OpId) {
        self.ops.on_sent(id, self.now);
        let Some(op) = self.ops.get(id) else { return };
        let operation = op.verb.operation();
        let (node, lane) = operation.route(self);
        let call = operation.call(self);
        let trace_parent =
            if trace::is_on() { operation.trace_parent(self) } else { TraceParent::default() };
        self.effects.push(Effect::Send { op: id, node, lane, call, trace_parent });
    }

    /// Handles Redis's reply to a script.
    pub fn on_reply(&mut self, now: Moment, id: OpId, reply: &Value) {
        self.advance_clock(now);
        if self.was_slept_over(id) {
            return self.ask_again(id);
        }
        // It may have ended at its deadline just now.
        let Some(op) = self.take_op(id) else { return self.run_ready() };
        let took = self.now.since(op.sent);
        if !op.may_have_run && !matches!(op.verb, Verb::Node(_)) {
            self.ops.on_round_trip(took);
        }
        let result = op.verb.operation().on_reply(self, id, &op, reply);
        if let Err(bad) = result {
            // Something else answers there and does not run our scripts: this counts as a refusal.
            self.ops.put_back(id, op);
            self.on_failure(now, id, &Failure::Refused(bad.to_string()));
            return;
        }
        self.run_ready();
    }

    /// Returns whether a reply may have waited while the agent slept, so that it may be out of date.
    fn was_slept_over(&self, id: OpId) -> bool {
        let op = self.ops.slept_over(id);
        op.is_some_and(|op| op.verb.operation().is_stale_after_sleep(self))
    }

    /// Asks Redis again for the wanted state, rather than pass on an outdated reply.
    fn ask_again(&mut self, id: OpId) {
        self.ops.set_may_have_run(id);
        self.dispatch(id);
        self.run_ready();
    }

    /// Handles a script that has no reply.
    pub fn on_failure(&mut self, now: Moment, id: OpId, failure: &Failure) {
        self.advance_clock(now);
        let Some((failures, verb)) = self.ops.on_failure(id, now, failure) else {
            return self.run_ready();
        };
        // The first repeat is sent at once, on a fresh connection; later ones wait a moment.
        let at_once = failures == 1 && matches!(failure, Failure::Lost(_));
        let pause = if at_once { Duration::ZERO } else { self.pause(failures) };
        verb.operation().on_failure(self, id, failure, pause);
        self.run_ready();
    }

    /// Returns the pause before a retry: 10 ms, doubled with each failure up to 500 ms, plus jitter.
    pub(in crate::core) fn pause(&mut self, failures: u32) -> Duration {
        let base = Duration::from_millis(5 << failures.clamp(1, 7)).min(Duration::from_millis(500));
        base + base * self.numbers.percent(50) / 100
    }

    /// Sends an op again after a pause, unless that is no longer useful.
    pub(in crate::core) fn retry(&mut self, id: OpId, pause: Duration) {
        match self.ops.retry(id, self.now, pause) {
            Some(Retry::Now) => self.dispatch(id),
            Some(Retry::GiveUp) => self.give_up(id),
            Some(Retry::Later) | None => {}
        }
    }

    pub(in crate::core) fn on_op_due(&mut self, id: OpId) {
        if self.ops.on_due(id, self.now) {
            self.answer_silence(id);
        }
        if self.ops.arm_unless_due(id, self.now) {
            self.retry(id, Duration::ZERO);
        }
    }

    /// Answers the command that waits for this op: Redis has been silent, or has refused it, for too long.
    fn answer_silence(&mut self, id: OpId) {
        let Some(op) = self.ops.get(id) else { return };
        let (verb, may_have_run) = (op.verb.clone(), op.may_have_run || op.is_on_its_way());
        verb.operation().on_silence(self);
        if may_have_run {
            verb.operation().on_unknown(self);
        }
        let refusal = self.ops.take_refusal(id);
        let why = refusal.as_deref().unwrap_or(NO_ANSWER);
        let Some(silence) =
            self.ops.verb_mut(id).and_then(|verb| verb.operation_mut().silence(why))
        else {
            return;
        };
        if !silence.goes_on {
            self.take_op(id);
        }
        self.answer_all(silence);
    }

    fn answer_all(&mut self, Silence { reply_to, reply, .. }: Silence) {
        for reply_to in reply_to {
            self.answer(reply_to, reply.clone());
        }
    }

    fn give_up(&mut self, id: OpId) {
        if let Some(mut op) = self.take_op(id) {
            if op.may_have_run {
                op.verb.operation().on_unknown(self);
            }
            op.verb.operation_mut().on_give_up(self, id);
        }
    }

    /// Returns the connection for scripts that grant. With `--min-replicas` it reports what replicas confirm. (Red locks
    /// have their majority instead.)
    fn grants_lane(&self) -> Lane {
        if self.settings.min_replicas > 0 { Lane::Grants } else { Lane::Commands }
    }

    /// Returns the connection for scripts that renew leases. With `--min-replicas` it reports what replicas confirm. (A
    /// verification extends nothing, so no replica has to confirm it.)
    fn renewals_lane(&self, form: RenewalForm) -> Lane {
        let replicated = self.settings.min_replicas > 0 && !form.verify;
        if replicated { Lane::ReplicatedRenewals } else { Lane::Renewals }
    }

    pub(in crate::core) fn take_op(&mut self, id: OpId) -> Option<Op> {
        self.ops.take(id)
    }
}

/// Returns the halves of a batch that Redis refuses because of one lock. Sent again, they divide further, until only that lock
/// is refused.
pub(in crate::core) fn halves<T: Clone>(batch: &[T], failure: &Failure) -> Option<[Vec<T>; 2]> {
    let (first, second) = batch.split_at(batch.len() / 2);
    let divides = failure.is_about_one_lock() && !first.is_empty();
    divides.then(|| [first.to_vec(), second.to_vec()])
}

/// Returns a word of Redis or of a command, truncated and without control characters, for a sentence.
pub(in crate::core) fn printable(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(80).collect()
}

//! The table of scripts in flight: their attempts and deadlines.

use std::collections::hash_map::Entry;
use std::time::Duration;

use redisson::{LockName, Moment};
use service_kit::memory::Trim as _;

use crate::collections::HashMap;
use crate::core::ids::OpId;
use crate::core::ops::verb::{Ending, HandOver, Release, Undo, Verb};
use crate::core::timer::{CATCH_UP, HELD_UP, Timers};
use crate::types::{Number, Refusal};

/// The answer of WAIT to a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// The number of replicas that have what it wrote.
    pub replicas: u32,
    /// The error, if WAIT was refused.
    pub refusal: Option<String>,
}

/// The reason why a script has no reply.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The script was not sent: no connection.
    Unsent(String),
    /// The script may have run, or may yet run: a timeout, or the connection broke.
    Lost(String),
    /// Redis refused it and changed nothing.
    Refused(String),
    /// The script was not sent, because too few replicas are connected.
    TooFewReplicas(String),
}

impl Failure {
    /// Returns the error text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Unsent(text)
            | Self::Lost(text)
            | Self::Refused(text)
            | Self::TooFewReplicas(text) => text,
        }
    }

    /// Returns whether the error is about one of the script's locks: a script without that lock may run.
    pub(super) fn is_about_one_lock(&self) -> bool {
        let text = self.text();
        let forbidden = text.starts_with("NOPERM ") && !concerns_all_locks(text);
        // The slot is on its way to another node, which has some of the keys.
        forbidden || text.starts_with("TRYAGAIN ")
    }
}

/// A script in flight, or about to be sent again.
#[derive(Debug)]
pub(in crate::core) struct Op {
    pub(in crate::core) verb: Verb,
    /// The instant at which it was last sent. What it sets is valid from then.
    pub(in crate::core) sent: Moment,
    /// An earlier copy may have run.
    pub(in crate::core) may_have_run: bool,
    pub(in crate::core) failures: u32,
    /// The error with which Redis refused it last.
    refusal: Option<String>,
    /// The answer of WAIT, with `--min-replicas`.
    pub(in crate::core) confirmed: Confirmed,
    /// The instant of the next attempt; never while it is in flight.
    retry_at: Moment,
    /// The instant at which the command that waits for it is answered regardless.
    answer_by: Moment,
    /// Whether `answer_by` has been put off, because the agent was held up.
    prolonged: bool,
    /// The instant at which the affected lease has expired.
    give_up_at: Moment,
    /// The deadline that is set.
    armed: Moment,
    /// Whether it is counted among the planned removals.
    planned: bool,
}

impl Op {
    /// Returns the instant at which the affected lease has expired.
    pub(super) fn give_up_at(&self) -> Moment {
        self.give_up_at
    }

    /// Returns whether its outcome is pending, rather than its next attempt.
    pub(in crate::core) fn is_on_its_way(&self) -> bool {
        self.retry_at == Moment::NEVER
    }
}

/// The decision about a retry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Now,
    Later,
    /// The affected lease has expired.
    GiveUp,
}

#[derive(Debug)]
pub(in crate::core) struct InFlight {
    ops: HashMap<OpId, Op>,
    /// The numbers whose fields these ops may write or remove, each with its number of ops.
    concerned: HashMap<Number, u32>,
    /// The locks from which a hold or a number is removed at a later instant, each with the number of such ops.
    planned_removals: HashMap<LockName, u32>,
    timers: Timers<OpId>,
    next_id: u64,
    /// The smoothed round trip of a script.
    round_trip: Duration,
    /// Too few replicas had the latest grant, or were connected for the latest attempt.
    short_of_replicas: bool,
    /// Redis refused the latest hand-over.
    hand_overs_refused: bool,
    refusal: Option<Refusal>,
    /// The instant at which a sleep of the agent was last noticed.
    woke: Moment,
}

impl InFlight {
    pub(in crate::core) fn new() -> Self {
        Self {
            ops: HashMap::default(),
            concerned: HashMap::default(),
            planned_removals: HashMap::default(),
            timers: Timers::default(),
            next_id: 0,
            round_trip: Duration::from_millis(1),
            short_of_replicas: false,
            hand_overs_refused: false,
            refusal: None,
            woke: Moment::default(),
        }
    }

    /// Returns an unused op number. Quorum operations get theirs here too.
    pub(in crate::core) fn draw_id(&mut self) -> OpId {
        let id = OpId(self.next_id);
        self.next_id += 1;
        id
    }

    pub(in crate::core) fn get(&self, id: OpId) -> Option<&Op> {
        self.ops.get(&id)
    }

    pub(in crate::core) fn contains(&self, id: OpId) -> bool {
        self.ops.contains_key(&id)
    }

    /// Returns the ops in no particular order.
    pub(in crate::core) fn values(&self) -> impl Iterator<Item = &Op> {
        self.ops.values()
    }

    /// Returns whether a script may write or remove the field of this number.
    pub(in crate::core) fn concerns(&self, number: Number) -> bool {
        self.concerned.contains_key(&number)
    }

    /// Returns whether a hold or a number of this lock is removed from Redis at a later instant.
    pub(in crate::core) fn has_planned_removal(&self, lock: &LockName) -> bool {
        self.planned_removals.contains_key(lock)
    }

    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.concerned.is_empty() && self.planned_removals.is_empty()
    }

    pub(in crate::core) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns whether too few replicas had the latest grant, or were connected for the latest attempt.
    pub(in crate::core) fn is_short_of_replicas(&self) -> bool {
        self.short_of_replicas
    }

    pub(in crate::core) fn set_short_of_replicas(&mut self, short: bool) {
        self.short_of_replicas = short;
    }

    /// Returns whether Redis refused the latest hand-over.
    pub(in crate::core) fn are_hand_overs_refused(&self) -> bool {
        self.hand_overs_refused
    }

    pub(in crate::core) fn set_hand_overs_refused(&mut self, refused: bool) {
        self.hand_overs_refused = refused;
    }

    /// Records that the agent slept until now.
    pub(in crate::core) fn on_woke(&mut self, now: Moment) {
        self.woke = now;
    }

    /// Returns an op that was sent before the agent last slept.
    pub(super) fn slept_over(&self, id: OpId) -> Option<&Op> {
        self.ops.get(&id).filter(|op| op.sent < self.woke)
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<OpId> {
        self.timers.pop_due(now)
    }

    /// Adds a script that is not sent yet.
    pub(super) fn add(
        &mut self,
        verb: Verb,
        now: Moment,
        answer_by: Moment,
        give_up_at: Moment,
    ) -> OpId {
        let id = self.draw_id();
        let op = Op {
            verb,
            sent: now,
            may_have_run: false,
            failures: 0,
            refusal: None,
            confirmed: Confirmed::default(),
            retry_at: Moment::NEVER,
            answer_by,
            prolonged: false,
            give_up_at,
            armed: Moment::NEVER,
            planned: false,
        };
        self.put_back(id, op);
        id
    }

    /// Puts back an op that was taken.
    pub(super) fn put_back(&mut self, id: OpId, op: Op) {
        let concerned = &mut self.concerned;
        let mut count = |number| *concerned.entry(number).or_default() += 1;
        op.verb.operation().each_number(&mut count);
        self.ops.insert(id, op);
    }

    /// Removes an op: its outcome is known, or no longer wanted.
    pub(super) fn take(&mut self, id: OpId) -> Option<Op> {
        self.end_plan(id);
        let mut op = self.ops.remove(&id)?;
        self.ops.trim();
        self.timers.set(&mut op.armed, Moment::NEVER, id);
        let concerned = &mut self.concerned;
        op.verb.operation().each_number(&mut |number| {
            if let Entry::Occupied(mut count) = concerned.entry(number) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                    concerned.trim();
                }
            }
        });
        Some(op)
    }

    /// Records that a script is sent now.
    pub(super) fn on_sent(&mut self, id: OpId, now: Moment) {
        self.end_plan(id);
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.sent = now;
        op.confirmed = Confirmed::default();
        op.retry_at = Moment::NEVER;
        self.timers.set(&mut op.armed, op.answer_by, id);
    }

    pub(in crate::core) fn on_confirmed(&mut self, id: OpId, confirmed: Confirmed) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.confirmed = confirmed;
        }
    }

    pub(super) fn on_round_trip(&mut self, took: Duration) {
        self.round_trip = (self.round_trip * 7 + took) / 8;
    }

    pub(in crate::core) fn set_may_have_run(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.may_have_run = true;
        }
    }

    /// Counts a failure. Returns the number of consecutive failures, and the verb.
    pub(super) fn on_failure(
        &mut self,
        id: OpId,
        now: Moment,
        failure: &Failure,
    ) -> Option<(u32, Verb)> {
        let op = self.ops.get_mut(&id)?;
        op.failures += 1;
        op.may_have_run |= matches!(failure, Failure::Lost(_));
        let refusal = match failure {
            Failure::Refused(text) => Some(text),
            // The error of a cluster node that serves nobody at the moment.
            Failure::Unsent(text) if is_error_of_redis(text) => Some(text),
            _ => None,
        };
        if let Some(text) = refusal {
            op.refusal = Some(text.clone());
            // The error of a server of red locks is its vote.
            if concerns_all_locks(text) && !matches!(op.verb, Verb::Node(_)) {
                self.refusal = Some(Refusal { at: now, error: text.clone() });
            }
        }
        Some((op.failures, op.verb.clone()))
    }

    /// Returns the latest error with which Redis refused a script for all locks.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Takes the error with which Redis last refused a script, if any.
    pub(super) fn take_refusal(&mut self, id: OpId) -> Option<String> {
        self.ops.get_mut(&id)?.refusal.take()
    }

    /// Sets the next attempt.
    pub(super) fn retry(&mut self, id: OpId, now: Moment, pause: Duration) -> Option<Retry> {
        let op = self.ops.get_mut(&id)?;
        if now >= op.give_up_at {
            return Some(Retry::GiveUp);
        }
        if pause.is_zero() {
            return Some(Retry::Now);
        }
        op.retry_at = now + pause;
        let due = op.retry_at.min(op.answer_by);
        self.timers.set(&mut op.armed, due, id);
        if op.failures == 0
            && !op.planned
            && let Verb::Release(Release(Ending { name, .. })) | Verb::Undo(Undo { name, .. }) =
                &op.verb
        {
            *self.planned_removals.entry(name.clone()).or_default() += 1;
            op.planned = true;
        }
        Some(Retry::Later)
    }

    /// Handles the case where an op is no longer planned for a later instant.
    fn end_plan(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.planned) else { return };
        op.planned = false;
        let (Verb::Release(Release(Ending { name, .. })) | Verb::Undo(Undo { name, .. })) =
            &op.verb
        else {
            return;
        };
        if let Some(count) = self.planned_removals.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.planned_removals.remove(name);
                self.planned_removals.trim();
            }
        }
    }

    /// Handles a deadline. Returns whether the waiting command must be answered now; [`Self::arm_unless_due`] follows.
    ///
    /// If the agent was held up, the reply may have arrived unread: once, the command waits a little longer, but not beyond
    /// the end of the affected lease.
    pub(super) fn on_due(&mut self, id: OpId, now: Moment) -> bool {
        let Some(op) = self.ops.get_mut(&id) else { return false };
        op.armed = Moment::NEVER;
        if op.answer_by > now {
            return false;
        }
        if !op.prolonged && now.since(op.answer_by) >= HELD_UP && now < op.give_up_at {
            op.prolonged = true;
            op.answer_by = op.give_up_at.min(now + CATCH_UP);
            return false;
        }
        op.answer_by = Moment::NEVER;
        true
    }

    /// Sets the next deadline. Returns true instead if the next attempt is due already.
    pub(super) fn arm_unless_due(&mut self, id: OpId, now: Moment) -> bool {
        let Some(op) = self.ops.get_mut(&id) else { return false };
        if op.retry_at <= now {
            return true;
        }
        let due = op.retry_at.min(op.answer_by);
        self.timers.set(&mut op.armed, due, id);
        false
    }

    /// Adds a hold that has ended before the early hand-over in flight was answered. Returns it if there is no such
    /// operation.
    pub(in crate::core) fn add_ended(&mut self, id: OpId, ending: Ending) -> Option<Ending> {
        match self.verb_mut(id) {
            Some(Verb::EarlyHandOver(early)) => {
                early.ended.push(ending);
                None
            }
            _ => Some(ending),
        }
    }

    /// Records the claim of a forced release of a hold whose removal from Redis is in flight.
    pub(in crate::core) fn claim_forced(&mut self, number: Number) {
        let claim = |ending: &mut Ending| ending.claimed_forced |= ending.number == number;
        for op in self.ops.values_mut() {
            match &mut op.verb {
                Verb::Release(Release(ending)) | Verb::HandOver(HandOver { from: ending, .. }) => {
                    claim(ending);
                }
                Verb::EarlyHandOver(early) => early.endings_mut().for_each(claim),
                _ => {}
            }
        }
    }

    /// Sets the instant at which the commands that wait for an operation are answered regardless, unless it is set
    /// already.
    pub(in crate::core) fn answer_by(&mut self, id: OpId, at: Moment) {
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.answer_by == Moment::NEVER) else {
            return;
        };
        op.answer_by = at;
        let due = op.retry_at.min(at);
        self.timers.set(&mut op.armed, due, id);
    }

    pub(super) fn verb_mut(&mut self, id: OpId) -> Option<&mut Verb> {
        self.ops.get_mut(&id).map(|op| &mut op.verb)
    }
}

/// Returns whether the text is an error of Redis: it begins with a code.
fn is_error_of_redis(text: &str) -> bool {
    let code = text.split_whitespace().next().unwrap_or_default();
    code.len() > 3 && code.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Returns whether an error of Redis is about the server rather than about one lock. The alert
/// `LockscopeRedisRefuses` names these codes, and `NOPERM` in general.
fn concerns_all_locks(error: &str) -> bool {
    const CODES: [&str; 9] = [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOAUTH",
        "NOREPLICAS",
        "OOM",
        "READONLY",
    ];
    // The account may not run scripts. One that may not use certain keys has other locks.
    let no_scripts = error.starts_with("NOPERM ") && error.contains(" to run the ");
    no_scripts || error.split_whitespace().next().is_some_and(|code| CODES.contains(&code))
}

#[cfg(test)]
mod tests {
    use redisson::Kind;

    use super::*;

    #[test]
    fn a_removal_is_planned_until_it_is_sent() {
        let (mut ops, now) = (InFlight::new(), Moment::from_micros(1));
        let name = LockName::new(&b"x"[..]).unwrap();
        let undo =
            |number| Verb::Undo(Undo { after: now, name: name.clone(), kind: Kind::Lock, number });
        let ids = [1, 2].map(|number| ops.add(undo(number), now, Moment::NEVER, Moment::NEVER));
        for id in [ids[0], ids[1], ids[1]] {
            ops.retry(id, now, Duration::from_secs(1));
        }
        ops.on_sent(ids[0], now);
        assert!(ops.has_planned_removal(&name), "the other one is");
        ops.on_sent(ids[1], now);
        assert!(!ops.has_planned_removal(&name));
        ops.retry(ids[0], now, Duration::from_secs(1));
        assert!(ops.has_planned_removal(&name));
        for id in ids {
            ops.take(id);
        }
        assert!(ops.is_empty());
    }

    #[test]
    fn an_error_about_one_lock_does_not_concern_all() {
        for all in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOPERM this user has no permissions to run the 'evalsha' command or its subcommand",
        ] {
            assert!(concerns_all_locks(all), "{all}");
        }
        for one in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert!(!concerns_all_locks(one), "{one}");
        }
    }

    #[test]
    fn an_error_about_one_lock_permits_the_others() {
        let refused = |text: &str| Failure::Refused(text.to_owned()).is_about_one_lock();
        assert!(refused(
            "NOPERM this user has no permissions to access one of the keys used as arguments"
        ));
        assert!(refused("TRYAGAIN Multiple keys request during rehashing of slot"));
        assert!(!refused("NOPERM this user has no permissions to run the 'evalsha' command"));
        assert!(!refused("READONLY You can't write against a read only replica."));
    }
}

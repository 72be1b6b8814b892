//! The watchdog: renewals, jeopardy, loss.

use std::collections::BTreeMap;
use std::time::Duration;

use redisson::script::MAX_BATCH;
use redisson::{Kind, LockName, Moment, millis};

use crate::core::ids::HoldIndex;
use crate::core::lease::Due;
use crate::core::ops::verb::{Renewal, RenewalForm};
use crate::core::session::event::{Event, Validity};
use crate::core::{Core, LogLine, Node};
use crate::types::{ConnectionId, End, Number};

/// Holds that one script may renew together: those of one form and, if keys have slots, of one slot.
pub(in crate::core) struct Batches<T> {
    slots: bool,
    open: BTreeMap<(RenewalForm, u16), Vec<T>>,
}

impl<T> Batches<T> {
    pub(in crate::core) fn new(slots: bool) -> Self {
        Self { slots, open: BTreeMap::new() }
    }

    /// Adds a hold. Returns its batch if it is full now.
    pub(in crate::core) fn add(
        &mut self,
        form: RenewalForm,
        name: &LockName,
        hold: T,
    ) -> Option<(RenewalForm, Vec<T>)> {
        let slot = if self.slots { name.slot() } else { 0 };
        let batch = self.open.entry((form, slot)).or_default();
        batch.push(hold);
        (batch.len() == MAX_BATCH).then(|| (form, std::mem::take(batch)))
    }

    /// Returns the batches that are not full.
    pub(in crate::core) fn rest(self) -> impl Iterator<Item = (RenewalForm, Vec<T>)> {
        let all = self.open.into_iter().map(|((form, _), batch)| (form, batch));
        all.filter(|(_, batch)| !batch.is_empty())
    }
}

impl Core {
    /// Handles the deadline of a hold. Those to be renewed are collected in `due`, their delays in `late`.
    pub(in crate::core) fn on_hold_due(
        &mut self,
        index: HoldIndex,
        due: &mut Vec<HoldIndex>,
        late: &mut Vec<Duration>,
    ) {
        let Some((number, due_now)) = self.leases.on_due(index, self.now) else { return };
        match due_now {
            Due::Lost(end) => self.lose(number, end),
            Due::DelayOver => self.end_hold(number, End::Disconnected, None),
            Due::Held { renewal_late, jeopardy } => {
                if let Some(delay) = renewal_late {
                    late.push(delay);
                    due.push(index);
                }
                if let Some(valid) = jeopardy {
                    self.warn_of_jeopardy(number, valid);
                }
            }
        }
    }

    fn warn_of_jeopardy(&mut self, number: Number, valid: Validity) {
        let Some(hold) = self.leases.get(number) else { return };
        hold.note_jeopardy(valid.ms);
        let session = self.sessions.get(&hold.owner.connection);
        self.effects.log(
            self.now,
            LogLine::Jeopardy {
                lock: hold.name.clone(),
                pid: session.and_then(|session| session.peer.pid),
                trace: hold.trace().to_owned(),
                valid_ms: valid.ms,
                why: match (hold.lapsing, hold.unconfirmed) {
                    (true, _) => "its worker is stopped",
                    (false, true) => "too few replicas confirm its renewals",
                    (false, false) => "renewals fail",
                },
            },
        );
        self.tell(number, &Event::Jeopardy(valid));
    }

    /// Sends the owner of a hold an event about it, unless its worker does not know about the hold yet.
    pub(in crate::core) fn tell(&mut self, number: Number, event: &Event) {
        let Some(hold) = self.leases.get(number).filter(|hold| !hold.untold) else { return };
        let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
        self.notify(owner, &name, kind, event);
    }

    /// Notifies the owner of a hold of its jeopardy, if it is in any: the worker may not know.
    pub(in crate::core) fn tell_jeopardy(&mut self, number: Number) {
        let Some(hold) = self.leases.get(number).filter(|hold| hold.jeopardy) else { return };
        let valid = hold.validity(self.now);
        self.tell(number, &Event::Jeopardy(valid));
    }

    /// Notifies a session of each of its holds that is in jeopardy.
    pub(in crate::core) fn tell_every_jeopardy(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get(&connection) else { return };
        for number in session.hold_numbers() {
            self.tell_jeopardy(number);
        }
    }

    /// Ends the jeopardy of a hold that is valid for long enough again.
    pub(in crate::core) fn clear_jeopardy(&mut self, number: Number) {
        if self.leases.clear_jeopardy(number, self.now) {
            self.tell_safe(number);
        }
    }

    /// Notifies the owner of a hold whose jeopardy has ended.
    pub(in crate::core) fn tell_safe(&mut self, number: Number) {
        if let Some(hold) = self.leases.get(number) {
            hold.note_safe(hold.valid_ms(self.now));
            self.tell(number, &Event::Safe);
        }
    }

    /// Sends renewals, and verifications of fixed leases, many to a script.
    pub(in crate::core) fn renew(&mut self, due: Vec<HoldIndex>) {
        let mut batches = Batches::new(self.settings.slots);
        let mut red = Vec::new();
        for index in due {
            let Some(hold) = self.leases.renewing(index) else { continue };
            let (kind, number) = (hold.kind, hold.number);
            if kind == Kind::Red {
                red.push(number);
                continue;
            }
            let renewal = Renewal { name: hold.name.clone(), kind, number, index };
            if let Some((form, holds)) = batches.add(hold.renewal_form(), &hold.name, renewal) {
                self.send_renewals(form, holds);
            }
        }
        for (form, holds) in batches.rest() {
            self.send_renewals(form, holds);
        }
        self.renew_red(&red);
    }

    /// Verifies every hold on a server now, and repeats late releases: the server was replaced or restarted.
    pub fn verify(&mut self, now: Moment, node: Node) {
        self.advance_clock(now);
        match node {
            Node::Main => {
                let due = self.leases.renew_now(self.now, |hold| hold.node_leases.is_none());
                self.renew(due);
                self.repeat_long_releases();
            }
            Node::Red(node) => self.verify_node(node),
        }
        self.run_ready();
    }

    /// Checks whether the agent or its host slept, and logs it. Returns true if the time since the last event exceeds a
    /// third of the shortest lease held. Ticks occur every 100 ms while holds exist.
    pub(in crate::core) fn notice_sleep(&mut self, now: Moment) -> bool {
        let gap = now.since(self.now);
        if gap < Duration::from_millis(200) {
            return false;
        }
        let slept = self.leases.shortest().is_some_and(|shortest| gap > shortest / 3);
        if slept {
            self.effects.log(self.now, LogLine::Slept { gap_ms: millis(gap) });
        }
        slept
    }
}

#[cfg(test)]
mod tests {
    use redisson::script::MissingMarkers;

    use super::*;

    #[test]
    fn renewals_in_one_script_have_one_form_and_in_a_cluster_one_slot() {
        const PLAIN: RenewalForm = RenewalForm { reads: None, verify: false, count: 1 };
        const READS: RenewalForm =
            RenewalForm { reads: Some(MissingMarkers::Report), verify: false, count: 1 };
        const VERIFIED: RenewalForm = RenewalForm { reads: None, verify: true, count: 1 };
        const TWICE: RenewalForm = RenewalForm { reads: None, verify: false, count: 2 };
        let name = |text: &str| LockName::new(text.as_bytes()).unwrap();
        let batched = |slots| {
            let mut batches = Batches::new(slots);
            for lock in ["{a}1", "b", "{a}2"] {
                assert!(batches.add(PLAIN, &name(lock), lock).is_none());
            }
            assert!(batches.add(READS, &name("{a}3"), "{a}3").is_none());
            assert!(batches.add(VERIFIED, &name("{a}4"), "{a}4").is_none());
            assert!(batches.add(TWICE, &name("{a}5"), "{a}5").is_none());
            batches.rest().collect::<Vec<_>>()
        };
        assert_eq!(
            batched(false),
            [
                (PLAIN, vec!["{a}1", "b", "{a}2"]),
                (TWICE, vec!["{a}5"]),
                (VERIFIED, vec!["{a}4"]),
                (READS, vec!["{a}3"])
            ]
        );
        // `b` has slot 3300, `a` 15495.
        assert_eq!(
            batched(true),
            [
                (PLAIN, vec!["b"]),
                (PLAIN, vec!["{a}1", "{a}2"]),
                (TWICE, vec!["{a}5"]),
                (VERIFIED, vec!["{a}4"]),
                (READS, vec!["{a}3"])
            ]
        );
        let mut full = Batches::new(true);
        let sizes = (1..=2 * MAX_BATCH).filter_map(|n| full.add(PLAIN, &name("a"), n));
        assert_eq!(sizes.map(|(_, batch)| batch.len()).collect::<Vec<_>>(), [MAX_BATCH; 2]);
        assert_eq!(full.rest().count(), 0);
    }
}

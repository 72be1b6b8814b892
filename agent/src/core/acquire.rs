//! LOCK: re-entry, queueing, and attempts to take the lock in Redis.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::Acquired;
use redisson::{HolderId, Lease, LockName, Moment};

use super::hold::{Care, Hold};
use super::name::Contest;
use super::op::{Asked, Change, Failure, Op, OpId, Purpose};
use super::session::{Owner, Slot};
use super::wait::{Left, Waiter, WaiterId};
use super::{Core, Number};
use crate::command::{LockRequest, Wait};
use crate::resp::Frame;

impl Core {
    pub(super) fn lock(&mut self, slot: Slot, request: LockRequest) {
        let owner = Owner { session: slot.session, owner: request.owner };
        if let Some(refusal) = self.refusal(slot, &request) {
            let group = self.group(&request.name);
            self.figures.acquisition(&group, request.kind, "denied");
            self.answer(slot, refusal);
            // Only asked for its label: nobody holds or waits for it here.
            return self.advance(&request.name);
        }
        if let Some(number) = self.hold_of(owner, &request.name) {
            return self.reenter(slot, number, &request);
        }
        let Some(session) = self.sessions.get_mut(&slot.session) else { return };
        session.forget_loss(request.owner, &request.name);
        let taken = self
            .names
            .get(&request.name)
            .is_some_and(|name| name.hold.is_some() || name.leaving > 0 || !name.queue.is_empty());
        let waiter = self.new_waiter(slot, owner, request, taken);
        if taken && waiter.is_now_or_never() {
            let group = self.group(&waiter.name);
            self.figures.acquisition(&group, waiter.kind, "timeout");
            self.figures.waited(&group, "timeout", Duration::ZERO);
            return self.answer(slot, Frame::Null);
        }
        if waiter.wait == Wait::Forever && self.would_deadlock(owner, &waiter.name) {
            let group = self.group(&waiter.name);
            self.figures.acquisition(&group, waiter.kind, "denied");
            let reply = self.deadlock(&waiter.name);
            return self.answer(slot, reply);
        }
        self.queue_up(waiter);
    }

    /// Why a LOCK is not even tried.
    fn refusal(&self, slot: Slot, request: &LockRequest) -> Option<Frame> {
        if let Some(refusal) = self.wrong_session(slot, request.session.as_deref(), &request.name) {
            return Some(refusal);
        }
        if self.draining {
            return Some(Self::draining(&request.name));
        }
        let session = self.sessions.get(&slot.session)?;
        if self.settings.require_session && !session.introduced {
            return Some(Frame::Error(format!(
                "SESSION `{}` is not tried: this agent wants SESSION before the first LOCK, and IN with each",
                request.name
            )));
        }
        (self.waiters.len() >= self.settings.max_waiters).then(|| {
            Frame::Error(format!(
                "LIMIT `{}` is not tried: {} commands wait for locks already (--max-waiters)",
                request.name, self.settings.max_waiters
            ))
        })
    }

    fn reenter(&mut self, slot: Slot, number: Number, request: &LockRequest) {
        let Some(hold) = self.holds.get(&number) else { return };
        let Some(count) = hold.count.checked_add(1) else {
            return self.answer(slot, Self::limit(&request.name, "its count is at its highest"));
        };
        // A watched hold stays watched: no lease of a re-entry is longer than that.
        let lease = request.lease.filter(|_| hold.care == Care::Fixed);
        let asked = Asked { name: request.name.clone(), number, count, owner: hold.owner, slot };
        self.send(Purpose::Keep(asked, Change::Reenter(lease)), self.settings.response_timeout);
    }

    /// Lets the front waiter try in Redis.
    pub(super) fn attempt(&mut self, name: &LockName, front: WaiterId) {
        let Some(waiter) = self.waiters.get(&front) else { return };
        let lease = waiter.lease.unwrap_or(self.settings.lease);
        let number = waiter.number;
        let purpose = Purpose::Acquire { name: name.clone(), waiter: front, number, lease };
        // Repeated for as long as its waiter waits.
        let id = self.send(purpose, Duration::MAX);
        if let Some(state) = self.names.get_mut(name) {
            state.contest = Contest::Asking(id);
        }
    }

    /// Redis answered an attempt.
    pub(super) fn acquired(&mut self, op: &Op, acquired: Acquired) {
        let Purpose::Acquire { name, waiter, number, lease } = &op.purpose else { return };
        let (name, waiter, number, lease) = (name.clone(), *waiter, *number, *lease);
        self.stop_asking(&name);
        if op.doubt {
            let applied = matches!(acquired, Acquired::Granted { .. });
            self.figures.doubt(if applied { "applied" } else { "not_applied" });
        }
        if let Some(state) = self.names.get_mut(&name) {
            state.failures = 0;
            state.trouble = None;
        }
        match acquired {
            Acquired::Granted { .. } => {
                let now = self.now;
                if let Some(state) = self.names.get_mut(&name) {
                    state.taken_at = now;
                    state.handovers = 0;
                    state.others = None;
                }
                self.had(&name, waiter, number, lease, op.sent);
            }
            Acquired::Held { pttl_ms, holders } => {
                self.refused(&name, waiter, op.sent, pttl_ms, &holders);
            }
            Acquired::WrongKind(kind) => {
                let sentence = format!(
                    "WRONGKIND `{name}` is in use as a {} lock: kinds do not mix under one name",
                    printable(&kind)
                );
                self.leave(waiter, Left::Failed(sentence));
            }
            Acquired::WrongType(kind) => {
                let sentence = format!(
                    "WRONGTYPE the key `{name}` is no lock but a {}: use another name",
                    printable(&kind)
                );
                self.leave(waiter, Left::Failed(sentence));
            }
        }
        self.advance(&name);
    }

    /// The lock is ours under this number: its waiter gets it, or the next one, or it is released.
    pub(super) fn had(
        &mut self,
        name: &LockName,
        waiter: WaiterId,
        number: Number,
        lease: Lease,
        sent: Moment,
    ) {
        let valid_until = lease.valid_until(sent);
        if self.now >= lease.lost_at(valid_until, self.settings.lost_margin) {
            // The answer came too late to be worth anything: never tell a grant that is about to end.
            self.renumber(waiter);
            return self.undo(name, number, lease.duration());
        }
        if self.waiters.contains_key(&waiter) {
            return self.grant(waiter, number, sent);
        }
        // Its waiter has gone. Nobody was ever told of the number, so it may be the next one's.
        let next = self.names.get(name).and_then(|state| state.queue.front()).copied();
        let same_lease = next
            .and_then(|next| self.waiters.get(&next))
            .is_some_and(|waiter| waiter.lease.unwrap_or(self.settings.lease) == lease);
        match next {
            Some(next) if same_lease => self.grant(next, number, sent),
            _ => self.undo(name, number, lease.duration()),
        }
    }

    /// Tells a waiter that it holds the lock, under `number`.
    pub(super) fn grant(&mut self, waiting: WaiterId, number: Number, sent: Moment) {
        let Some(waiter) = self.remove_waiter(waiting) else { return };
        let waited = self.now.since(waiter.since);
        let group = self.group(&waiter.name);
        self.figures.acquisition(&group, waiter.kind, "acquired");
        self.figures.waited(&group, "acquired", waited);
        let waited_ms = self.waited_ms(&waiter);
        let Waiter { name, kind, owner, slot, lease, trace, .. } = waiter;
        let care = if lease.is_some() { Care::Fixed } else { Care::Watched };
        let lease = lease.unwrap_or(self.settings.lease);
        let jitter = self.jitter();
        let hold = Hold {
            number,
            name: name.clone(),
            group: Arc::clone(&group),
            kind,
            owner,
            count: 1,
            care,
            granted: self.now,
            valid_until: lease.valid_until(sent),
            renew_at: lease.renew_at(sent, jitter),
            renewing: false,
            failures: 0,
            jeopardy: false,
            trace,
            armed: Moment::NEVER,
        };
        let reply = Self::lock_reply(self.client, &hold, self.now, waited_ms);
        self.holds.insert(number, hold);
        self.arm(number);
        self.figures.hold_began(&group, kind, number);
        self.name_mut(&name).hold = Some(number);
        if let Some(session) = self.sessions.get_mut(&owner.session) {
            session.holds.insert((owner.owner, name), number);
        }
        self.answer(slot, reply);
    }

    /// Others hold the lock.
    fn refused(
        &mut self,
        name: &LockName,
        asked: WaiterId,
        sent: Moment,
        pttl_ms: Option<u64>,
        holders: &[HolderId],
    ) {
        let ghosts: Vec<Number> = holders
            .iter()
            .filter(|holder| holder.client == self.client && !holder.write)
            .map(|holder| holder.thread)
            .filter(|ghost| self.is_ghost(*ghost))
            .collect();
        for ghost in ghosts {
            // A late copy of an old script: nobody holds this number. It is removed, then the waiter tries again.
            self.figures.doubt("undone_late");
            self.undo(name, ghost, self.settings.lease.duration());
        }
        if let Some(waiter) = self.waiters.get_mut(&asked) {
            waiter.refused = true;
            if waiter.is_now_or_never() {
                return self.leave(asked, Left::TimedOut);
            }
        }
        // Who asked has gone: the front waiter asks for itself.
        if self.names.get(name).is_none_or(|state| state.queue.front() != Some(&asked)) {
            return;
        }
        self.listen(name);
        let poll = self.settings.poll_max;
        let jitter = u32::try_from(self.jitter() % 20).unwrap_or(0);
        let poll = poll * (100 - jitter) / 100;
        let expiry = pttl_ms.map_or(poll, |ms| Duration::from_millis(ms.saturating_add(1)));
        let Some(state) = self.names.get_mut(name) else { return };
        // A message that came while the answer was under way may have told of the very release we missed.
        if state.message_at.take().is_some_and(|at| at >= sent) {
            return;
        }
        self.sleep(name, self.now + expiry.min(poll));
    }

    /// Whether a number of this run is neither held nor under way.
    fn is_ghost(&self, number: Number) -> bool {
        (self.first_number..self.next_number).contains(&number)
            && !self.holds.contains_key(&number)
            && !self.ops.values().any(|op| op.purpose.concerns(number))
    }

    /// An attempt brought no answer.
    pub(super) fn attempt_failed(&mut self, id: OpId, failure: &Failure, pause: Duration) {
        let Some(op) = self.ops.get(&id) else { return };
        let Purpose::Acquire { name, waiter, number, lease } = op.purpose.clone() else { return };
        let (name, doubt) = (&name, op.doubt);
        if let Some(state) = self.names.get_mut(name) {
            state.trouble = Some(failure.text().to_owned());
        }
        let still_wanted = self.waiters.get(&waiter).map(Waiter::is_now_or_never);
        if still_wanted.is_some() && !matches!(failure, Failure::Refused(_)) {
            return self.retry(id, pause);
        }
        self.take_op(id);
        self.stop_asking(name);
        if doubt {
            // This copy did not run, but an earlier one may have, and nobody goes on asking: its traces are removed.
            self.renumber(waiter);
            self.undo(name, number, lease.duration());
        }
        match still_wanted {
            None => return self.advance(name),
            Some(true) => return self.leave(waiter, Left::TimedOut),
            Some(false) => {}
        }
        // Refused for now (full, loading, read-only, …): the waiter keeps its place and looks again.
        let failures = self.names.get_mut(name).map_or(1, |state| {
            state.failures = state.failures.saturating_add(1);
            state.failures
        });
        let pause = self.pause(failures);
        self.sleep(name, self.now + pause);
    }
}

/// A word that Redis holds, harmless in a sentence.
fn printable(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(40).collect()
}

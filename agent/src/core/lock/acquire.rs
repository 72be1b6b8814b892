//! LOCK: re-entry, queueing, and attempts to take the lock in Redis.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::{AcquireOutcome, MAX_READ_COUNT};
use redisson::{Family, HolderId, Kind, LockName, Moment};
use tracing::Span;

use crate::core::Report;
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::lock::waiter::{Left, Waiter, WaiterId};
use crate::core::ops::{Asked, Attempt, Change, Failure, Op, OpId, Purpose};
use crate::core::session::reply::Reply;
use crate::core::session::{Owner, Slot};
use crate::core::side::Side;
use crate::core::{Core, spans};
use crate::protocol::command::{LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::End;
use crate::types::Number;

impl Core {
    pub(in crate::core) fn lock(&mut self, slot: Slot, request: LockRequest) {
        let owner = Owner { session: slot.session, owner: request.owner };
        let span = self.acquire_span(owner, &request);
        if let Some(refusal) = self.refusal(slot, &request) {
            let group = self.group_label(&request.name);
            self.effects.report(Report::Acquisition {
                group: Arc::clone(&group),
                kind: request.kind,
                outcome: "denied",
            });
            spans::outcome(&span, "denied");
            self.answer(slot, refusal);
            // Only asked for its label: nobody holds or waits for it here.
            return self.poll_queue(&request.name);
        }
        if let Some(number) = self.hold_of(owner, &request.name, Side::of(request.kind)) {
            return self.reenter(slot, number, &request, span);
        }
        let Some(session) = self.sessions.get_mut(&slot.session) else { return };
        session.forget_loss(request.owner, &request.name);
        if request.kind == Kind::Read
            && self.hold_of(owner, &request.name, Side::Exclusive).is_some()
        {
            // Under its own write hold it may read whoever waits.
            let waiter = self.new_waiter(slot, owner, request, false, span);
            let id = self.begin_wait(waiter);
            self.attempt(id);
            return;
        }
        let taken = self.is_taken(&request.name, request.kind);
        let waiter = self.new_waiter(slot, owner, request, taken, span);
        if taken && waiter.is_now_or_never() {
            let group = self.group_label(&waiter.name);
            self.effects.report(Report::Acquisition {
                group: Arc::clone(&group),
                kind: waiter.kind,
                outcome: "timeout",
            });
            self.effects.report(Report::Waited {
                group: Arc::clone(&group),
                outcome: "timeout",
                wait: Duration::ZERO,
            });
            spans::outcome(&waiter.span, "timeout");
            return self.answer(slot, Frame::Null);
        }
        if taken && waiter.wait == Wait::Forever && self.would_deadlock(owner, &waiter.name) {
            let group = self.group_label(&waiter.name);
            self.effects.report(Report::Acquisition {
                group: Arc::clone(&group),
                kind: waiter.kind,
                outcome: "denied",
            });
            spans::outcome(&waiter.span, "denied");
            let reply = self.deadlock(&waiter.name);
            return self.answer(slot, reply);
        }
        self.queue_up(waiter);
    }

    /// Whether a newcomer of that kind has to wait, as far as this agent knows.
    pub(in crate::core) fn is_taken(&self, name: &LockName, kind: Kind) -> bool {
        self.locks.get(name).is_some_and(|name| name.keeps_out(kind) || !name.queue.is_empty())
    }

    /// Why a LOCK is not even tried.
    pub(in crate::core) fn refusal(&mut self, slot: Slot, request: &LockRequest) -> Option<Frame> {
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
        if let Some(refusal) = self.denied(slot, request) {
            return Some(refusal);
        }
        if request.kind == Kind::Red && self.settings.red.is_none() {
            return Some(Frame::Error(format!(
                "SYNTAX `{}` is not tried as KIND red: this agent knows no servers for that; name each by --redlock-url",
                request.name
            )));
        }
        if request.kind != Kind::Red
            && let Some(refusal) = self.slot_refusal(&request.name)
        {
            return Some(refusal);
        }
        if let Some(refusal) = self.wrong_kind(slot, request) {
            return Some(refusal);
        }
        (self.waiters.len() >= self.settings.max_waiters).then(|| {
            Frame::Error(format!(
                "LIMIT `{}` is not tried: {} commands wait for locks already (--max-waiters)",
                request.name, self.settings.max_waiters
            ))
        })
    }

    /// Refuses a name whose channel and companions are of another slot than the lock: no script may have both.
    pub(in crate::core) fn slot_refusal(&self, name: &LockName) -> Option<Frame> {
        (self.settings.slots && !name.companions_share_slot()).then(|| {
            let why = "its braces put its channel and companions into other slots of the cluster than the lock";
            Self::limit(name, why)
        })
    }

    /// Refuses a kind that does not go with the one the name is in use as.
    fn wrong_kind(&self, slot: Slot, request: &LockRequest) -> Option<Frame> {
        let LockRequest { name, kind, .. } = request;
        let owner = Owner { session: slot.session, owner: request.owner };
        let own = |side| self.hold_of(owner, name, side).and_then(|number| self.holds.get(&number));
        if *kind == Kind::Write && own(Side::Shared).is_some() && own(Side::Exclusive).is_none() {
            return Some(Self::upgrade(name));
        }
        // One hold of an owner is of one kind, even where others may follow with another.
        if let Some(held) = own(Side::Exclusive)
            .filter(|held| held.kind != *kind && (held.kind, *kind) != (Kind::Write, Kind::Read))
        {
            return Some(Self::other_kind(name, held.kind.as_str()));
        }
        let family = self.family(name)?;
        (family != kind.family()).then(|| {
            let used = match family {
                Family::Plain => "plain or fenced",
                Family::Fair => "fair",
                Family::ReadWrite => "read-write",
                Family::Red => "red",
            };
            Self::other_kind(name, used)
        })
    }

    fn reenter(&mut self, slot: Slot, number: Number, request: &LockRequest, span: Span) {
        let Some(hold) = self.holds.get(&number) else { return };
        let Some(count) = hold.count.checked_add(1) else {
            spans::outcome(&span, "denied");
            return self.answer(slot, Self::limit(&request.name, "its count is at its highest"));
        };
        if hold.kind == Kind::Read && count > MAX_READ_COUNT {
            spans::outcome(&span, "denied");
            let most = format!("a reader may enter {MAX_READ_COUNT} times");
            return self.answer(slot, Self::limit(&request.name, &most));
        }
        // A watched hold stays watched: no lease of a re-entry is longer than that.
        let lease = request.lease.filter(|_| hold.mode == LeaseMode::Fixed);
        let asked = Asked {
            name: request.name.clone(),
            kind: hold.kind,
            number,
            count,
            owner: hold.owner,
            slot,
            span,
        };
        self.keep(asked, Change::Reenter(lease));
    }

    /// Lets a waiter try in Redis.
    pub(in crate::core) fn attempt(&mut self, id: WaiterId) -> Option<OpId> {
        let waiter = self.waiters.get(&id)?;
        let under = (waiter.kind == Kind::Read)
            .then(|| self.hold_of(waiter.owner, &waiter.name, Side::Exclusive))
            .flatten();
        let attempt = self.attempt_of(waiter, id, under);
        if attempt.kind == Kind::Red {
            let quorum = self.attempt_red(&attempt);
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.asking = Some(quorum);
            }
            return Some(quorum);
        }
        // Repeated for as long as its waiter waits.
        let op = self.send(Purpose::Acquire(attempt), Duration::MAX);
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.asking = Some(op);
        }
        Some(op)
    }

    pub(in crate::core) fn attempt_of(
        &self,
        waiter: &Waiter,
        id: WaiterId,
        under: Option<Number>,
    ) -> Attempt {
        Attempt {
            name: waiter.name.clone(),
            kind: waiter.kind,
            waiter: id,
            number: waiter.number,
            lease: waiter.lease.unwrap_or(self.settings.lease),
            under,
        }
    }

    /// Redis answered an attempt.
    pub(in crate::core) fn on_acquire_reply(
        &mut self,
        id: OpId,
        op: &Op,
        attempt: &Attempt,
        acquired: AcquireOutcome,
    ) {
        let name = &attempt.name;
        self.clear_attempt(attempt, id);
        if op.may_have_run {
            let applied = matches!(acquired, AcquireOutcome::Granted { .. });
            self.effects.report(Report::OutcomeKnown(if applied {
                "applied"
            } else {
                "not_applied"
            }));
        }
        if let Some(state) = self.locks.get_mut(name) {
            state.failures = 0;
            state.trouble = None;
        }
        match acquired {
            AcquireOutcome::Granted { token } => {
                let now = self.now;
                if let Some(state) = self.locks.get_mut(name) {
                    state.taken_at = now;
                    state.handovers = 0;
                    state.others = None;
                }
                match self.replica_shortfall(op) {
                    Some(why) => self.withdraw(attempt, token, &why),
                    None => self.on_lock_obtained(attempt, op.sent, token),
                }
            }
            AcquireOutcome::Held { pttl_ms, holders } => {
                self.refused(attempt, op.sent, pttl_ms, &holders);
            }
            AcquireOutcome::WrongKind(kind) => {
                let sentence = format!(
                    "WRONGKIND `{name}` is in use as a {} lock: kinds do not mix under one name",
                    printable(&kind)
                );
                self.cannot_be_had(attempt, op.may_have_run, sentence);
            }
            AcquireOutcome::WrongType(kind) => {
                let sentence = format!(
                    "WRONGTYPE the key `{name}` is no lock but a {}: use another name",
                    printable(&kind)
                );
                self.cannot_be_had(attempt, op.may_have_run, sentence);
            }
        }
        self.poll_queue(name);
    }

    /// There is no lock under this name, or one of another kind: the waiter leaves.
    fn cannot_be_had(&mut self, attempt: &Attempt, may_have_run: bool, sentence: String) {
        let Attempt { name, kind, waiter, number, lease, .. } = attempt;
        if may_have_run && *kind != Kind::Fair {
            // An earlier copy may have had it, before something else came to stand there. A fair waiter's place is left
            // in any case.
            self.undo(name, *kind, *number, *lease);
        }
        self.leave(*waiter, Left::Failed(sentence));
    }

    /// The lock is ours under this attempt's number: its waiter gets it, or the next one, or it is released.
    pub(in crate::core) fn on_lock_obtained(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        token: Option<u64>,
    ) {
        let Attempt { name, kind, waiter, number, lease, under } = attempt;
        if let Some(token) = token {
            self.fences.saw(name, token);
        }
        if let Some(successor) = self.pick_successor(attempt, sent) {
            return self.grant(successor, *number, sent, token);
        }
        self.renumber(*waiter);
        self.undo(name, *kind, *number, *lease);
        // Who stands in no local queue asks again by itself, unless it has gone.
        if *kind == Kind::Fair || under.is_some() {
            self.attempt(*waiter);
        }
    }

    /// Who gets what an attempt has had: its waiter, or the next one, or nobody.
    pub(in crate::core) fn pick_successor(
        &self,
        attempt: &Attempt,
        sent: Moment,
    ) -> Option<WaiterId> {
        let Attempt { name, kind, waiter, lease, under, .. } = attempt;
        // An answer that comes too late is worth nothing: never tell a grant that is about to end.
        if self.now >= lease.lost_at(lease.valid_until(sent), self.settings.lost_margin) {
            return None;
        }
        if self.waiters.contains_key(waiter) {
            return Some(*waiter);
        }
        // Its waiter has gone. Nobody was ever told of the number, so it may be the next one's. But a fair lock's next one
        // may be another client's, and a read under a write hold is its owner's alone.
        let next = *self.locks.get(name)?.queue.front()?;
        let same = self.waiters.get(&next).is_some_and(|waiter| {
            waiter.kind == *kind && waiter.lease.unwrap_or(self.settings.lease) == *lease
        });
        (same && under.is_none() && *kind != Kind::Fair).then_some(next)
    }

    /// Tells a waiter that it holds the lock, under `number`.
    pub(in crate::core) fn grant(
        &mut self,
        waiting: WaiterId,
        number: Number,
        sent: Moment,
        token: Option<u64>,
    ) {
        let Some(waiter) = self.remove_waiter(waiting) else { return };
        if waiter.kind != Kind::Read
            && let Some(gone) = self.locks.get(&waiter.name).and_then(|state| state.hold)
        {
            // Fair waiters ask whatever is held here: Redis, which gives it to this one, no longer has the other hold.
            self.lose(gone, End::Missing);
        }
        let waited = self.now.since(waiter.since);
        let group = self.group_label(&waiter.name);
        self.effects.report(Report::Acquisition {
            group: Arc::clone(&group),
            kind: waiter.kind,
            outcome: "acquired",
        });
        self.effects.report(Report::Waited {
            group: Arc::clone(&group),
            outcome: "acquired",
            wait: waited,
        });
        let waited_ms = self.waited_ms(&waiter);
        let span = self.hold_span(&waiter, &group, number, token);
        let Waiter { name, kind, owner, uid, slot, lease, trace, .. } = waiter;
        let mode = if lease.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed };
        let lease = lease.unwrap_or(self.settings.lease);
        let jitter = self.jitter();
        let hold = Hold {
            number,
            name: name.clone(),
            group: Arc::clone(&group),
            kind,
            owner,
            uid,
            token,
            count: 1,
            mode,
            granted: self.now,
            valid_until: lease.valid_until(sent),
            renew_at: lease.renew_at(sent, jitter),
            longest: lease.max(self.settings.lease),
            asking: None,
            renewing: false,
            failures: 0,
            jeopardy: false,
            lapsing: self.lapses(owner.session),
            kept_back: None,
            trace,
            span,
            node_leases: None,
            armed: Moment::NEVER,
        };
        let grant = hold.grant(waited_ms);
        self.quota.add(uid);
        self.holds.insert(number, hold);
        self.arm(number);
        self.effects.report(Report::HoldBegan { group, kind, number });
        let state = self.lock_mut(&name);
        if kind == Kind::Read {
            state.readers.insert(number);
        } else {
            state.hold = Some(number);
        }
        if let Some(session) = self.sessions.get_mut(&owner.session) {
            session.holds.insert((owner.owner, name, Side::of(kind)), number);
        }
        self.journal_hold(number);
        self.answer_with(slot, Reply::Grant(grant));
    }

    /// Others hold the lock.
    fn refused(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        pttl_ms: Option<u64>,
        holders: &[HolderId],
    ) {
        let Attempt { name, kind, waiter: asked, under, .. } = attempt;
        self.remove_ghosts(name, *kind, holders);
        if let Some(lost) = *under {
            // Its write hold is no longer there. The read waits like any other.
            self.lose(lost, End::Stolen);
        }
        if let Some(waiter) = self.waiters.get_mut(asked) {
            waiter.refused = true;
            if waiter.is_now_or_never() {
                return self.leave(*asked, Left::TimedOut);
            }
            if under.is_some() {
                let state = self.lock_mut(name);
                if !state.queue.contains(asked) {
                    state.queue.push_back(*asked);
                }
            }
        }
        if *kind == Kind::Fair {
            return self.queued(attempt, sent, pttl_ms, holders);
        }
        // Who asked has gone: the front waiter asks for itself.
        if self.locks.get(name).is_none_or(|state| state.queue.front() != Some(asked)) {
            return;
        }
        self.subscribe(name);
        let poll = self.poll(pttl_ms);
        let Some(state) = self.locks.get_mut(name) else { return };
        // A message that came while the answer was under way may have told of the very release we missed.
        if state.message_at.take().is_some_and(|at| at >= sent) {
            return;
        }
        self.sleep(name, self.now + poll);
    }

    /// How long a refused waiter sleeps unless it is woken: until the lease it was told of is over, and no longer than
    /// is set.
    pub(in crate::core) fn poll(&mut self, pttl_ms: Option<u64>) -> Duration {
        let jitter = u32::try_from(self.jitter() % 20).unwrap_or(0);
        let poll = self.settings.poll_max * (100 - jitter) / 100;
        pttl_ms.map_or(poll, |ms| poll.min(Duration::from_millis(ms.saturating_add(1))))
    }

    /// Removes what late copies of old scripts have left: numbers of ours that nobody holds. Then the waiter tries
    /// again.
    fn remove_ghosts(&mut self, name: &LockName, asked: Kind, holders: &[HolderId]) {
        let ghosts: Vec<_> = holders
            .iter()
            .filter(|holder| holder.client == self.client && self.is_ghost(holder.thread))
            .map(|holder| {
                let kind = match asked.family() {
                    Family::ReadWrite if holder.write => Kind::Write,
                    Family::ReadWrite => Kind::Read,
                    _ => asked,
                };
                (holder.thread, kind)
            })
            .collect();
        for (ghost, kind) in ghosts {
            self.effects.report(Report::OutcomeKnown("undone_late"));
            self.undo(name, kind, ghost, self.settings.lease);
        }
    }

    /// Whether a number of this run is neither held nor waited under nor under way.
    pub(in crate::core) fn is_ghost(&self, number: Number) -> bool {
        (self.first_number..self.next_number).contains(&number)
            && !self.holds.contains_key(&number)
            && !self.ops.values().any(|op| op.purpose.concerns(number))
            && !self.waiters.values().any(|waiter| waiter.number == number)
    }

    /// An attempt brought no answer.
    pub(in crate::core) fn attempt_failed(&mut self, id: OpId, failure: &Failure, pause: Duration) {
        if let Failure::Lacking(why) = failure {
            return self.attempt_not_tried(id, why);
        }
        let Some(op) = self.ops.get(&id) else { return };
        let Purpose::Acquire(attempt) = op.purpose.clone() else { return };
        let Attempt { name, kind, waiter, number, lease, under } = &attempt;
        let (waiter, may_have_run) = (*waiter, op.may_have_run);
        if let Some(state) = self.locks.get_mut(name) {
            state.trouble = Some(failure.text().to_owned());
        }
        let still_wanted = self.waiters.get(&waiter).map(Waiter::is_now_or_never);
        if let Some(waiter) = self.waiters.get_mut(&waiter).filter(|_| may_have_run) {
            waiter.place.may_stand = true;
        }
        // A read under a write hold stands in no queue that could look again for it.
        if still_wanted.is_some() && (under.is_some() || !matches!(failure, Failure::Refused(_))) {
            return self.retry(id, pause);
        }
        self.take_op(id);
        self.clear_attempt(&attempt, id);
        if may_have_run {
            // This copy did not run, but an earlier one may have, and nobody goes on asking: its traces are removed.
            self.renumber(waiter);
            self.undo(name, *kind, *number, *lease);
        }
        match still_wanted {
            None => return self.poll_queue(name),
            Some(true) => return self.leave(waiter, Left::TimedOut),
            Some(false) => {}
        }
        // Refused for now (full, loading, read-only, …): the waiter keeps its place and looks again.
        let failures = self.locks.get_mut(name).map_or(1, |state| {
            state.failures = state.failures.saturating_add(1);
            state.failures
        });
        let pause = self.pause(failures);
        if *kind == Kind::Fair {
            return self.look_again(waiter, self.now + pause);
        }
        self.sleep(name, self.now + pause);
    }
}

/// A word that Redis holds, harmless in a sentence.
pub(in crate::core) fn printable(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(40).collect()
}

//! How holds end: UNLOCK, death, loss; release in Redis, or hand-over to the next local waiter.

use std::time::Duration;

use redisson::script::{HandOverOutcome, ReleaseOutcome};
use redisson::{Family, Kind, Lease, LockName, Moment};
use service_kit::trace::TraceParent;
use tracing::Span;

use crate::core::lease::hold::Hold;
use crate::core::lock::state::Contest;
use crate::core::ops::{Asked, Attempt, Change, Op, OpId, Purpose};
use crate::core::session::event::Event;
use crate::core::session::{Owner, Slot};
use crate::core::side::Side;
use crate::core::timer::Timer;
use crate::core::{Core, Node, spans};
use crate::core::{LogLine, Report};
use crate::protocol::command::HoldRequest;
use crate::protocol::resp::Frame;
use crate::types::End;
use crate::types::Number;

/// However short the holders' turns, the lock is truly released that often.
const ALWAYS_RELEASE_AFTER: Duration = Duration::from_secs(1);
/// After a true release for others we leave the lock alone for three round trips, within these bounds.
const STAND_BACK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// A hold that has ended for its owner and is on its way out of Redis.
#[derive(Debug, Clone)]
pub(in crate::core) struct Ending {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    pub(in crate::core) end: End,
    /// Who waits to hear that it is done.
    pub(in crate::core) slot: Option<Slot>,
    /// Until when a release that finds nothing was surely a release.
    pub(in crate::core) valid_until: Moment,
    /// The longest lease that Redis may still keep it for.
    pub(in crate::core) longest: Lease,
    /// The hold's place in its trace.
    pub(in crate::core) place: TraceParent,
}

impl Core {
    pub(in crate::core) fn unlock(&mut self, slot: Slot, request: &HoldRequest) {
        let owner = Owner { session: slot.session, owner: request.owner };
        let number = match self.hold_for(slot, owner, request) {
            Ok(number) => number,
            Err(reply) => return self.answer(slot, reply),
        };
        self.give_back(slot, number);
    }

    /// Gives one hold back.
    pub(in crate::core) fn give_back(&mut self, slot: Slot, number: Number) {
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.count == 1 {
            return self.end_hold(number, End::Released, Some(slot));
        }
        // One hold less from now on, whatever Redis says: the next renewal repairs a count that drifted.
        hold.count -= 1;
        let asked = Asked {
            name: hold.name.clone(),
            kind: hold.kind,
            number,
            count: hold.count,
            owner: hold.owner,
            slot,
            span: Span::none(),
        };
        self.keep(asked, Change::Partial);
    }

    /// The hold that UNLOCK or EXTEND is about, or why there is none.
    pub(in crate::core) fn hold_for(
        &self,
        slot: Slot,
        owner: Owner,
        request: &HoldRequest,
    ) -> Result<Number, Frame> {
        let name = &request.name;
        if let Some(refusal) = self.wrong_session(slot, request.session.as_deref(), name) {
            return Err(refusal);
        }
        let number = match (
            self.hold_of(owner, name, Side::Exclusive),
            self.hold_of(owner, name, Side::Shared),
        ) {
            (Some(_), Some(_)) if request.kind.is_none() => return Err(Self::read_or_write(name)),
            (other, read) => [other, read].into_iter().flatten().find(|number| {
                let held = self.holds.get(number).map(|hold| hold.kind);
                request.kind.is_none() || held == request.kind
            }),
        };
        let loss = || self.sessions.get(&owner.session).and_then(|s| s.loss(owner.owner, name));
        number.ok_or_else(|| match loss() {
            Some(end) => Self::lost(name, end),
            None => Self::not_held(name, owner.owner, request.kind),
        })
    }

    pub(in crate::core) fn hold_of(
        &self,
        owner: Owner,
        name: &LockName,
        side: Side,
    ) -> Option<Number> {
        let session = self.sessions.get(&owner.session)?;
        session.holds.get(&(owner.owner, name.clone(), side)).copied()
    }

    /// Takes a hold out of everything that knows it, and counts its end.
    fn remove_hold(&mut self, number: Number, end: End) -> Option<Ending> {
        let hold = self.holds.remove(&number)?;
        self.quota.remove(hold.uid);
        self.timers.clear(hold.armed, Timer::Hold(number));
        if let Some(asked) = hold.asking.and_then(|id| self.take_question(id)) {
            // There is nothing left to change, and nothing may keep in Redis what is to be released there.
            spans::outcome(&asked.span, "error");
            self.answer(asked.slot, Self::lost(&hold.name, end));
        }
        if let Some(session) = self.sessions.get_mut(&hold.owner.session) {
            let side = Side::of(hold.kind);
            session.holds.remove(&(hold.owner.owner, hold.name.clone(), side));
        }
        let state = self.lock_mut(&hold.name);
        state.readers.remove(&number);
        if state.hold == Some(number) {
            state.hold = None;
        }
        let group = self.group_label(&hold.name);
        let (kind, held) = (hold.kind, self.now.since(hold.granted));
        self.effects.report(Report::HoldEnded { group, kind, number, end, held });
        if hold.jeopardy {
            self.gauges.jeopardy_holds -= 1;
        }
        if hold.kept_back.is_some() {
            self.gauges.delayed_holds -= 1;
        }
        spans::ended(&hold.span, end);
        let place = TraceParent::of(&hold.span);
        let Hold { name, kind, valid_until, longest, .. } = hold;
        // Whose owner has not given it back counts on it until its validity ends.
        let after = match end {
            End::Unconfirmed | End::Expired | End::Frozen => valid_until,
            _ => Moment::default(),
        };
        self.journal_trace(number, &name, kind, after);
        Some(Ending { name, kind, number, end, slot: None, valid_until, longest, place })
    }

    /// Ends a hold for its owner, and in Redis by hand-over or release.
    pub(in crate::core) fn end_hold(&mut self, number: Number, end: End, slot: Option<Slot>) {
        let Some(ending) = self.remove_hold(number, end) else { return };
        let ending = Ending { slot, ..ending };
        let name = ending.name.clone();
        let Some(next) = self.next_in_line(&ending) else { return self.release(ending) };
        if self.must_yield(&name) {
            self.stand_back(&name);
            return self.release(ending);
        }
        self.link_to_predecessor(next.waiter, ending.number, &ending.place);
        let give_up = self.worth_repeating(ending.longest.max(next.lease));
        let id = self.send(Purpose::HandOver { from: ending, to: next }, give_up);
        if let Some(state) = self.locks.get_mut(&name) {
            state.contest = Contest::Asking(id);
        }
    }

    /// Leaves the lock to others for a moment.
    pub(in crate::core) fn stand_back(&mut self, name: &LockName) {
        let until = self.now + (self.round_trip * 3).clamp(STAND_BACK.0, STAND_BACK.1);
        if let Some(state) = self.locks.get_mut(name) {
            state.stand_back_until = until;
            self.effects.report(Report::Yielded);
        }
    }

    /// What the owner of a hold asks about it, and is not to be asked of Redis any more.
    pub(in crate::core) fn take_question(&mut self, id: OpId) -> Option<Asked> {
        if let Some(asked) = self.take_keep_ballot(id) {
            return Some(asked);
        }
        match self.take_op(id)?.purpose {
            Purpose::Keep(asked, _) => Some(asked),
            _ => None,
        }
    }

    /// The local waiter that a hold may be passed on to: of a kind with one holder at a time and no order beyond this
    /// agent's, and the same on both sides of a read-write lock.
    fn next_in_line(&self, ending: &Ending) -> Option<Attempt> {
        let state = self.locks.get(&ending.name)?;
        let next = *state.queue.front()?;
        let waiter = self.waiters.get(&next)?;
        // An attempt made before a hold of an earlier run was taken up again may still run: under the number that would
        // be handed the lock, and its late grant would be undone at the cost of that hold.
        if waiter.asking.is_some() || matches!(state.contest, Contest::Asking(_)) {
            return None;
        }
        let fits = match (ending.kind.family(), waiter.kind.family()) {
            (Family::Plain, Family::Plain) => true,
            (Family::ReadWrite, Family::ReadWrite) => {
                ending.kind == Kind::Write && waiter.kind == Kind::Write && state.readers.is_empty()
            }
            _ => false,
        };
        // Where replicas are missing it would only keep who releases waiting for them.
        let can = !self.draining && !self.short_of_replicas;
        (fits && can).then(|| self.attempt_of(waiter, next, None))
    }

    /// Whether local waiters have had the lock among themselves for long enough.
    fn must_yield(&self, name: &LockName) -> bool {
        let Some(state) = self.locks.get(name) else { return false };
        let held_here = self.now.since(state.taken_at);
        let others_may_wait = state.others.unwrap_or(true);
        held_here >= ALWAYS_RELEASE_AFTER
            || (others_may_wait
                && (state.handovers >= self.settings.handover_max
                    || (state.handovers > 0 && held_here >= self.settings.handover_max_time)))
    }

    /// For how long from now it is worth repeating a script that removes a field: Redis keeps none longer than the
    /// lease it was last given, were it given this instant.
    pub(in crate::core) fn worth_repeating(&self, lease: Lease) -> Duration {
        let lease = lease.duration();
        lease + lease / 100 + self.settings.response_timeout
    }

    /// Releases in Redis what has ended here.
    fn release(&mut self, ending: Ending) {
        self.release_after(self.now, ending);
    }

    /// The same, but not before that instant.
    fn release_after(&mut self, at: Moment, ending: Ending) {
        if ending.kind == Kind::Red {
            return self.release_red(at, ending);
        }
        let give_up = at.since(self.now) + self.worth_repeating(ending.longest);
        *self.leaving_mut(&ending.name, ending.kind) += 1;
        self.send_at(at, Purpose::Release(ending), give_up);
    }

    /// Removes a number that nobody holds.
    pub(in crate::core) fn undo(
        &mut self,
        name: &LockName,
        kind: Kind,
        number: Number,
        lease: Lease,
    ) {
        *self.leaving_mut(name, kind) += 1;
        let give_up = match kind {
            // A place in a queue ends with no lease: it holds others up until its deadline, which is the later the
            // more stand before it.
            Kind::Fair => Duration::MAX,
            _ => self.worth_repeating(lease),
        };
        self.send(Purpose::Undo { name: name.clone(), kind, number }, give_up);
    }

    pub(in crate::core) fn leaving_mut(&mut self, name: &LockName, kind: Kind) -> &mut u32 {
        let state = self.lock_mut(name);
        if kind == Kind::Read { &mut state.readers_leaving } else { &mut state.leaving }
    }

    /// A release or an undoing is over.
    pub(in crate::core) fn on_released(&mut self, name: &LockName, kind: Kind, number: Number) {
        self.journal_gone(number);
        let leaving = self.leaving_mut(name, kind);
        *leaving = leaving.saturating_sub(1);
        if *leaving == 0 {
            self.wake(name);
        }
        self.poll_queue(name);
    }

    pub(in crate::core) fn undone(
        &mut self,
        name: &LockName,
        kind: Kind,
        number: Number,
        released: ReleaseOutcome,
    ) {
        if released == ReleaseOutcome::Released {
            self.effects.report(Report::OutcomeKnown("undone_late"));
        }
        self.on_released(name, kind, number);
    }

    /// Redis answered a release.
    pub(in crate::core) fn released(
        &mut self,
        ending: &Ending,
        may_have_run: bool,
        released: ReleaseOutcome,
    ) {
        let end = match released {
            ReleaseOutcome::Released => None,
            // An earlier copy of it may be what removed the hold; while it was valid nothing else can have.
            _ if may_have_run && self.now < ending.valid_until => None,
            ReleaseOutcome::Missing | ReleaseOutcome::WrongType => Some(End::Missing),
            ReleaseOutcome::Stolen => Some(End::Stolen),
        };
        self.confirm(ending, end);
        self.on_released(&ending.name, ending.kind, ending.number);
    }

    /// Tells who waits for it that the hold has ended, or that it had been lost before.
    pub(in crate::core) fn confirm(&mut self, ending: &Ending, lost: Option<End>) {
        let reply = match lost {
            // An explicit lease or a lost hold was to end anyway.
            Some(end) if !ending.end.is_loss() && ending.end != End::Expired => {
                let group = self.group_label(&ending.name);
                self.effects.report(Report::Lost { group, end });
                Self::lost(&ending.name, end)
            }
            _ => Frame::Int(0),
        };
        if let Some(slot) = ending.slot {
            self.answer(slot, reply);
        }
    }

    /// Redis answered a hand-over.
    pub(in crate::core) fn handed_over(
        &mut self,
        id: OpId,
        op: &Op,
        from: &Ending,
        to: &Attempt,
        passed: HandOverOutcome,
    ) {
        let name = from.name.clone();
        self.journal_gone(from.number);
        self.clear_attempt(to, id);
        let lost = match passed {
            HandOverOutcome::Passed { subscribers, token } => {
                // In a cluster a node knows of its own subscribers only, and others may listen at any.
                let subscribers = subscribers.filter(|_| !self.settings.slots);
                if let Some(state) = self.locks.get_mut(&name) {
                    let ours = u64::from(state.listening.is_some());
                    state.handovers += 1;
                    state.others = subscribers.map(|n| n > ours);
                    state.trouble = None;
                }
                let group = self.group_label(&name);
                self.effects.report(Report::HandOver { group });
                self.confirm(from, None);
                match self.replica_shortfall(op) {
                    Some(why) => self.withdraw(to, token, &why),
                    None => self.on_lock_obtained(to, op.sent, token),
                }
                return self.poll_queue(&name);
            }
            _ if op.may_have_run && self.now < from.valid_until => None,
            HandOverOutcome::Missing | HandOverOutcome::WrongType => Some(End::Missing),
            HandOverOutcome::Stolen => Some(End::Stolen),
        };
        self.confirm(from, lost);
        self.poll_queue(&name);
    }

    /// Redis would not take the new holder: the old one is released instead.
    pub(in crate::core) fn hand_over_refused(&mut self, id: OpId, op: Op) {
        let Purpose::HandOver { from, to } = op.purpose else { return };
        self.clear_attempt(&to, id);
        if op.may_have_run {
            // An earlier copy may have passed it on after all.
            self.renumber(to.waiter);
            self.undo(&to.name, to.kind, to.number, to.lease);
        }
        self.release(from);
    }

    /// A hold is lost: its owner is told, and Redis is rid of it where it may still have it.
    pub(in crate::core) fn lose(&mut self, number: Number, end: End) {
        let Some(hold) = self.holds.get(&number) else { return };
        let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
        // What a dead worker has lost is nobody's loss.
        let is_loss = end.is_loss() && hold.kept_back.is_none();
        if is_loss {
            let (holder, pid) = (self.field(kind, number), self.worker_pid(owner));
            self.effects.log_bounded(self.now, || LogLine::LockLost {
                lock: name.clone(),
                holder,
                pid,
                trace: hold.trace().to_owned(),
                end,
            });
        }
        let group = self.group_label(&name);
        if is_loss {
            self.effects.report(Report::Lost { group, end });
        }
        self.void_replies(owner, number, &name, end);
        if !self.member_lost(owner, number, &name, end) {
            self.notify(owner, &name, kind, &Event::Lost(end));
        }
        let Some(ending) = self.remove_hold(number, end) else { return };
        match end {
            // It may still stand in Redis. Its owner has been told, but is given the time that it was promised:
            // nobody else comes in before that is over.
            End::Unconfirmed | End::Expired | End::Frozen => {
                self.release_after(ending.valid_until, ending);
            }
            // A minority of its servers may still have it.
            _ if kind == Kind::Red && end != End::Drained => self.release(ending),
            _ => {
                self.journal_gone(number);
                self.poll_queue(&name);
            }
        }
    }

    /// An operator released a hold of ours, as the dashboard tells.
    pub fn on_forced(&mut self, now: Moment, node: Node, name: &LockName, number: Number) {
        self.advance_clock(now);
        if let Some(hold) = self.holds.get(&number).filter(|hold| hold.name == *name) {
            match node {
                Node::Red(node) => self.forced_on(node, number),
                Node::Main if hold.node_leases.is_none() => self.lose(number, End::Forced),
                // What looked like it on a server that has no such locks was none of ours.
                Node::Main => {}
            }
        }
        self.run_ready();
    }
}

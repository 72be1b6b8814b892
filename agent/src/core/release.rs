//! How holds end: UNLOCK, death, loss; release in Redis, or hand-over to the next local waiter.

use std::time::Duration;

use redisson::script::{HandedOver, Released};
use redisson::{LockName, Moment};

use super::event::{End, Event};
use super::name::Contest;
use super::op::{Asked, Change, Op, Purpose};
use super::session::{Owner, Slot};
use super::timer::Timer;
use super::{Core, Number};
use crate::command::HoldRequest;
use crate::resp::Frame;

/// However short the holders' turns, the lock is truly released that often.
const ALWAYS_RELEASE_AFTER: Duration = Duration::from_secs(1);
/// After a true release for others we leave the lock alone for three round trips, within these bounds.
const STAND_BACK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// A hold that has ended for its owner and is on its way out of Redis.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    pub(super) name: LockName,
    pub(super) number: Number,
    pub(super) end: End,
    /// Who waits to hear that it is done.
    pub(super) slot: Option<Slot>,
    /// Until when a release that finds nothing was surely a release.
    pub(super) valid_until: Moment,
}

impl Core {
    pub(super) fn unlock(&mut self, slot: Slot, request: &HoldRequest) {
        let owner = Owner { session: slot.session, owner: request.owner };
        let number = match self.hold_for(slot, owner, request) {
            Ok(number) => number,
            Err(reply) => return self.answer(slot, reply),
        };
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.count == 1 {
            return self.end_hold(number, End::Released, Some(slot));
        }
        // One hold less from now on, whatever Redis says: the next renewal repairs a count that drifted.
        hold.count -= 1;
        let asked = Asked { name: hold.name.clone(), number, count: hold.count, owner, slot };
        self.send(Purpose::Keep(asked, Change::Partial), self.settings.response_timeout);
    }

    /// The hold that UNLOCK or EXTEND is about, or why there is none.
    pub(super) fn hold_for(
        &self,
        slot: Slot,
        owner: Owner,
        request: &HoldRequest,
    ) -> Result<Number, Frame> {
        let name = &request.name;
        if let Some(refusal) = self.wrong_session(slot, request.session.as_deref(), name) {
            return Err(refusal);
        }
        let number = self.hold_of(owner, name).filter(|number| {
            match (request.kind, self.holds.get(number)) {
                (Some(kind), Some(hold)) => hold.kind == kind,
                (None, hold) => hold.is_some(),
                (Some(_), None) => false,
            }
        });
        let loss = || self.sessions.get(&owner.session).and_then(|s| s.loss(owner.owner, name));
        number.ok_or_else(|| match loss() {
            Some(end) => Self::lost(name, end),
            None => Self::not_held(name, owner.owner, request.kind),
        })
    }

    pub(super) fn hold_of(&self, owner: Owner, name: &LockName) -> Option<Number> {
        let session = self.sessions.get(&owner.session)?;
        session.holds.get(&(owner.owner, name.clone())).copied()
    }

    /// Takes a hold out of everything that knows it, and counts its end.
    fn remove_hold(&mut self, number: Number, end: End) -> Option<Ending> {
        let hold = self.holds.remove(&number)?;
        self.timers.clear(hold.armed, Timer::Hold(number));
        if let Some(session) = self.sessions.get_mut(&hold.owner.session) {
            session.holds.remove(&(hold.owner.owner, hold.name.clone()));
        }
        let state = self.name_mut(&hold.name);
        if state.hold == Some(number) {
            state.hold = None;
        }
        let group = self.group(&hold.name);
        self.figures.hold_ended(&group, hold.kind, number, end, self.now.since(hold.granted));
        if hold.jeopardy {
            self.figures.jeopardy_holds.dec();
        }
        Some(Ending { name: hold.name, number, end, slot: None, valid_until: hold.valid_until })
    }

    /// Ends a hold for its owner, and in Redis by hand-over or release.
    pub(super) fn end_hold(&mut self, number: Number, end: End, slot: Option<Slot>) {
        let Some(ending) = self.remove_hold(number, end) else { return };
        let ending = Ending { slot, ..ending };
        let name = ending.name.clone();
        let now = self.now;
        let next = self.names.get(&name).and_then(|state| state.queue.front()).copied();
        let Some(next) = next.filter(|_| !self.draining) else { return self.release(ending) };
        if self.must_yield(&name) {
            self.figures.yields.inc();
            let pause = (self.round_trip * 3).clamp(STAND_BACK.0, STAND_BACK.1);
            if let Some(state) = self.names.get_mut(&name) {
                state.stand_back_until = now + pause;
            }
            return self.release(ending);
        }
        let Some(waiter) = self.waiters.get(&next) else { return self.release(ending) };
        let lease = waiter.lease.unwrap_or(self.settings.lease);
        let to = waiter.number;
        let give_up = self.worth_repeating(&ending);
        let id = self.send(Purpose::HandOver { from: ending, waiter: next, to, lease }, give_up);
        if let Some(state) = self.names.get_mut(&name) {
            state.contest = Contest::Asking(id);
        }
    }

    /// Whether local waiters have had the lock among themselves for long enough.
    fn must_yield(&self, name: &LockName) -> bool {
        let Some(state) = self.names.get(name) else { return false };
        let held_here = self.now.since(state.taken_at);
        let others_may_wait = state.others.unwrap_or(true);
        held_here >= ALWAYS_RELEASE_AFTER
            || (others_may_wait
                && (state.handovers >= self.settings.handover_max
                    || (state.handovers > 0 && held_here >= self.settings.handover_max_time)))
    }

    /// Redis keeps a hold no longer than its lease: that long a release is worth repeating.
    fn worth_repeating(&self, ending: &Ending) -> Duration {
        ending.valid_until.since(self.now) + self.settings.lease.duration()
    }

    /// Releases in Redis what has ended here.
    fn release(&mut self, ending: Ending) {
        let give_up = self.worth_repeating(&ending);
        self.name_mut(&ending.name).leaving += 1;
        self.send(Purpose::Release(ending), give_up);
    }

    /// Removes a number that nobody holds.
    pub(super) fn undo(&mut self, name: &LockName, number: Number, lease: Duration) {
        self.name_mut(name).leaving += 1;
        self.send(Purpose::Undo { name: name.clone(), number }, lease);
    }

    /// A release or an undoing is over.
    pub(super) fn left(&mut self, name: &LockName) {
        if let Some(state) = self.names.get_mut(name) {
            state.leaving = state.leaving.saturating_sub(1);
        }
        if self.names.get(name).is_some_and(|state| state.leaving == 0) {
            self.wake(name);
        }
        self.advance(name);
    }

    pub(super) fn undone(&mut self, name: &LockName, released: Released) {
        if released == Released::Released {
            self.figures.doubt("undone_late");
        }
        self.left(name);
    }

    /// Redis answered a release.
    pub(super) fn released(&mut self, ending: &Ending, doubt: bool, released: Released) {
        let end = match released {
            Released::Released => None,
            // An earlier copy of it may be what removed the hold; while it was valid nothing else can have.
            _ if doubt && self.now < ending.valid_until => None,
            Released::Missing | Released::WrongType => Some(End::Missing),
            Released::Stolen => Some(End::Stolen),
        };
        self.confirm(ending, end);
        self.left(&ending.name);
    }

    /// Tells who waits for it that the hold has ended, or that it had been lost before.
    fn confirm(&mut self, ending: &Ending, lost: Option<End>) {
        let reply = match lost {
            // An explicit lease or a lost hold was to end anyway.
            Some(end) if !ending.end.is_loss() && ending.end != End::Expired => {
                let group = self.group(&ending.name);
                self.figures.lost(&group, end);
                Self::lost(&ending.name, end)
            }
            _ => Frame::Int(0),
        };
        if let Some(slot) = ending.slot {
            self.answer(slot, reply);
        }
    }

    /// Redis answered a hand-over.
    pub(super) fn handed_over(&mut self, op: &Op, passed: HandedOver) {
        let Purpose::HandOver { from, waiter, to, lease } = &op.purpose else { return };
        let name = from.name.clone();
        self.stop_asking(&name);
        let lost = match passed {
            HandedOver::Passed { subscribers, .. } => {
                if let Some(state) = self.names.get_mut(&name) {
                    let ours = u64::from(state.listening);
                    state.handovers += 1;
                    state.others = subscribers.map(|n| n > ours);
                    state.trouble = None;
                }
                let group = self.group(&name);
                self.figures.handover(&group);
                self.confirm(from, None);
                self.had(&name, *waiter, *to, *lease, op.sent);
                return self.advance(&name);
            }
            _ if op.doubt && self.now < from.valid_until => None,
            HandedOver::Missing | HandedOver::WrongType => Some(End::Missing),
            HandedOver::Stolen => Some(End::Stolen),
        };
        self.confirm(from, lost);
        self.advance(&name);
    }

    /// Redis would not take the new holder: the old one is released instead.
    pub(super) fn hand_over_refused(&mut self, op: Op) {
        let Purpose::HandOver { from, waiter, to, lease } = op.purpose else { return };
        self.stop_asking(&from.name);
        if op.doubt {
            // An earlier copy may have passed it on after all.
            self.renumber(waiter);
            self.undo(&from.name, to, lease.duration());
        }
        self.release(from);
    }

    /// A hold is lost: its owner is told, and Redis is rid of it where it may still have it.
    pub(super) fn lose(&mut self, number: Number, end: End) {
        let Some(hold) = self.holds.get(&number) else { return };
        let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
        if end.is_loss() && self.log_limit.admits(self.now) {
            tracing::warn!(
                lock.name = %name,
                lock.holder = %self.holder(number),
                trace.parent = hold.trace(),
                reason = end.as_str(),
                "lock lost: {}",
                end.explained()
            );
        }
        let group = self.group(&name);
        if end.is_loss() {
            self.figures.lost(&group, end);
        }
        self.tell(owner, &name, kind, &Event::Lost(end));
        let Some(ending) = self.remove_hold(number, end) else { return };
        match end {
            // It may still stand in Redis, and nobody is inside any more who does not know.
            End::Unconfirmed | End::Expired => self.release(ending),
            _ => self.advance(&name),
        }
    }

    /// An operator released a hold of ours, as the dashboard tells.
    pub fn on_forced(&mut self, now: Moment, name: &LockName, number: Number) {
        self.now = self.now.max(now);
        if self.holds.get(&number).is_some_and(|hold| hold.name == *name) {
            self.lose(number, End::Forced);
        }
        self.run_ready();
    }
}

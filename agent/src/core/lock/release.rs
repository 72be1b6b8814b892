//! The end of holds in Redis: UNLOCK, release, or hand-over to the next local waiter.

use std::time::Duration;

use redisson::{Family, Kind, Lease, LockName, Moment};

use crate::core::ids::{OpId, Owner, ReplyTo};
use crate::core::lease::hold::LeaseMode;
use crate::core::lock::state::{Contest, LockState};
use crate::core::ops::verb::{Attempt, Change, Ending, HandOver, HoldUpdate, Release, Undo, Verb};
use crate::core::session::event::Event;
use crate::core::session::reply::Reply;
use crate::core::side::Side;
use crate::core::{Core, Report, Settings};
use crate::protocol::command::HoldRequest;
use crate::protocol::resp::Frame;
use crate::types::{End, Number};

/// The time for which we leave the lock alone after a true release for others: three round trips, within these bounds.
const STAND_BACK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

impl Core {
    pub(in crate::core) fn unlock(&mut self, reply_to: ReplyTo, request: &HoldRequest) {
        match self.hold_for(reply_to, request) {
            Ok(number) => self.give_back(reply_to, number),
            Err(reply) => self.answer(reply_to, reply),
        }
    }

    /// Releases one hold.
    pub(in crate::core) fn give_back(&mut self, reply_to: ReplyTo, number: Number) {
        if self.leases.get(number).is_some_and(|hold| hold.count == 1) {
            return self.end_hold(number, End::Released, Some(reply_to));
        }
        let Some(hold) = self.leases.decrement(number) else { return };
        // The lease of a reader's entry ends with it, and red holds are counted on several servers.
        let with_lease = hold.kind == Kind::Read && hold.mode == LeaseMode::Fixed;
        if !with_lease && hold.kind != Kind::Red {
            let reply = Reply::StillHeld { number, count: hold.count };
            self.leases.schedule_count_update(number, self.now);
            self.journal_hold(number);
            return self.answer_with(reply_to, reply);
        }
        if hold.mode == LeaseMode::Fixed && hold.valid_until <= self.now {
            // The leases of the other entries have run out.
            let (owner, name, kind) = (hold.owner, hold.name.clone(), hold.kind);
            self.notify(owner, &name, kind, &Event::Lost(End::Expired));
            return self.end_hold(number, End::Released, Some(reply_to));
        }
        let update = hold.update_for(reply_to, Change::Partial);
        // The entry has ended, even if Redis does not confirm it in time.
        self.journal_hold(number);
        self.update_hold(update);
    }

    /// Returns the hold that UNLOCK or EXTEND is about, or why there is none.
    pub(in crate::core) fn hold_for(
        &self,
        reply_to: ReplyTo,
        request: &HoldRequest,
    ) -> Result<Number, Frame> {
        let (owner, name) = (reply_to.owner(request.owner), &request.name);
        if let Some(refusal) = self.session_refusal(reply_to, request.session.as_deref(), name) {
            return Err(refusal);
        }
        let number = match (
            self.hold_of(owner, name, Side::Exclusive),
            self.hold_of(owner, name, Side::Shared),
        ) {
            (Some(_), Some(_)) if request.kind.is_none() => return Err(Self::read_or_write(name)),
            (other, read) => [other, read].into_iter().flatten().find(|number| {
                let held = self.leases.get(*number).map(|hold| hold.kind);
                request.kind.is_none() || held == request.kind
            }),
        };
        number.ok_or_else(|| match self.loss_of(owner, name) {
            Some(end) => Self::lost(name, end),
            None => Self::not_held(name, owner.owner, request.kind),
        })
    }

    /// Returns how an owner has lost a lock, if it has.
    pub(in crate::core) fn loss_of(&self, owner: Owner, name: &LockName) -> Option<End> {
        self.sessions.get(&owner.connection)?.losses.get(owner.owner, name)
    }

    pub(in crate::core) fn hold_of(
        &self,
        owner: Owner,
        name: &LockName,
        side: Side,
    ) -> Option<Number> {
        let session = self.sessions.get(&owner.connection)?;
        session.holds.get(&(owner.owner, name.clone(), side)).copied()
    }

    /// Ends a hold for its owner, and in Redis by hand-over or release.
    pub(in crate::core) fn end_hold(
        &mut self,
        number: Number,
        end: End,
        reply_to: Option<ReplyTo>,
    ) {
        let Some((ending, hand_over)) = self.remove_hold(number, end) else { return };
        let ending = Ending { reply_to, ..ending };
        match hand_over {
            Some(hand_over) => self.end_early_hold(hand_over, ending),
            None => self.pass_on(ending),
        }
    }

    /// Hands over or releases a lock whose hold has ended here.
    pub(in crate::core) fn pass_on(&mut self, ending: Ending) {
        let name = ending.name.clone();
        let Some(next) = self.next_in_line(&ending) else { return self.release(ending) };
        // A fair lock's queue contains the waiters of all hosts, in order.
        if ending.kind != Kind::Fair && self.must_yield(&name) {
            self.stand_back(&name);
            return self.release(ending);
        }
        self.link_to_predecessor(next.waiter, ending.number, &ending.trace_parent);
        if let Some(valid_until) = self.early_validity(&ending, &next) {
            return self.hand_over_early(ending, &next, valid_until);
        }
        let give_up = self.retry_window(ending.longest.max(next.lease));
        let (kind, waiter) = (next.kind, next.waiter);
        let id = self.send(Verb::HandOver(HandOver { from: ending, to: next }), give_up);
        match kind {
            Kind::Fair => self.locks.begin_attempt(waiter, id),
            Kind::Lock | Kind::Read | Kind::Write | Kind::Fenced | Kind::Red => {
                self.locks.begin_contest(&name, id);
            }
        }
    }

    /// Leaves the lock to other hosts for a moment.
    pub(in crate::core) fn stand_back(&mut self, name: &LockName) {
        let until = self.now + (self.ops.round_trip() * 3).clamp(STAND_BACK.0, STAND_BACK.1);
        if self.locks.stand_back(name, until) {
            self.effects.report(Report::Yielded);
        }
    }

    /// Takes the pending update of a hold: it is no longer sent to Redis.
    pub(in crate::core) fn take_update(&mut self, id: OpId) -> Option<HoldUpdate> {
        if let Some(asked) = self.red.take_update(id) {
            return Some(asked);
        }
        match self.take_op(id)?.verb {
            Verb::Update(update) => Some(update),
            _ => None,
        }
    }

    /// Returns the front waiter if the hold may be handed over to it: both plain or fenced, both writers while no local
    /// reader holds, or both fair, if the waiter has a position in Redis. Read and red locks are never handed over.
    pub(in crate::core) fn next_in_line(&self, ending: &Ending) -> Option<Attempt> {
        let state = self.locks.get(&ending.name)?;
        let next = state.queue.front()?;
        let waiter = self.locks.waiter(next)?;
        // An attempt made before a hold of an earlier run was adopted may still run, under the number that would get
        // the lock. Undoing its late grant would then remove that hold.
        if waiter.attempt.is_some() || matches!(state.contest, Contest::Attempting(_)) {
            return None;
        }
        let fits = match (ending.kind.family(), waiter.kind.family()) {
            (Family::Plain, Family::Plain) => true,
            (Family::ReadWrite, Family::ReadWrite) => {
                ending.kind == Kind::Write && waiter.kind == Kind::Write && state.readers.is_empty()
            }
            (Family::Fair, Family::Fair) => waiter.position.refreshed.is_some(),
            _ => false,
        };
        // If replicas are missing, UNLOCK would only wait for them.
        let can = !self.locks.is_draining() && !self.ops.is_short_of_replicas();
        (fits && can).then(|| self.attempt_of(waiter, next, None))
    }

    /// Returns whether local waiters have passed the lock among themselves for long enough.
    pub(in crate::core) fn must_yield(&self, name: &LockName) -> bool {
        let Settings { handover_max, handover_max_time, .. } = self.settings;
        let state = self.locks.get(name);
        state.is_some_and(|state| state.must_yield(self.now, handover_max, handover_max_time))
    }

    /// Returns the time for which a script that removes a field is worth retrying. `lease` is the longest one that the field
    /// may still have, even if it was set just now.
    pub(in crate::core) fn retry_window(&self, lease: Lease) -> Duration {
        let lease = lease.duration();
        lease + lease / 100 + self.settings.response_timeout
    }

    /// Returns whether the field of an ended hold may stay in Redis beyond its lease: the owner of a write hold may also read,
    /// and read holds keep the whole lock.
    fn outlives_lease(&self, name: &LockName, kind: Kind) -> bool {
        let is_read = |state: &LockState| !state.readers.is_empty();
        kind == Kind::Write && self.locks.get(name).is_some_and(is_read)
    }

    /// Returns the time for which the removal of a number is worth retrying.
    fn removal_window(&self, name: &LockName, kind: Kind, lease: Lease) -> Duration {
        if self.outlives_lease(name, kind) { Duration::MAX } else { self.retry_window(lease) }
    }

    /// Releases in Redis a hold that has ended here.
    pub(in crate::core) fn release(&mut self, ending: Ending) {
        self.release_after(self.now, ending);
    }

    /// Releases a hold in Redis that an earlier script of unknown outcome may have ended.
    pub(in crate::core) fn release_again(&mut self, ending: Ending) {
        if let Some(id) = self.send_release(self.now, ending) {
            self.ops.set_may_have_run(id);
        }
    }

    /// Releases in Redis a hold that has ended here, but not before `at`.
    pub(in crate::core) fn release_after(&mut self, at: Moment, ending: Ending) {
        self.send_release(at, ending);
    }

    /// Returns the script, unless the lock is red.
    fn send_release(&mut self, at: Moment, ending: Ending) -> Option<OpId> {
        if ending.kind == Kind::Red {
            self.release_red(at, ending);
            return None;
        }
        let window = self.removal_window(&ending.name, ending.kind, ending.longest);
        let give_up = window.saturating_add(at.since(self.now));
        if ending.end != End::Expired {
            self.begin_leaving(&ending.name, ending.kind);
        }
        Some(self.send_at(at, Verb::Release(Release(ending)), give_up))
    }

    /// Removes a number that nobody holds.
    pub(in crate::core) fn undo(
        &mut self,
        name: &LockName,
        kind: Kind,
        number: Number,
        lease: Lease,
    ) {
        self.begin_leaving(name, kind);
        let give_up = match kind {
            // A position in a queue does not end with a lease: it blocks others until its deadline, which is later the
            // more waiters are before it.
            Kind::Fair => Duration::MAX,
            Kind::Lock | Kind::Read | Kind::Write | Kind::Fenced | Kind::Red => {
                self.removal_window(name, kind, lease)
            }
        };
        let (after, name) = (Moment::default(), name.clone());
        self.send(Verb::Undo(Undo { after, name, kind, number }), give_up);
    }

    /// Counts an op that will free a name for us.
    pub(in crate::core) fn begin_leaving(&mut self, name: &LockName, kind: Kind) {
        self.track(name);
        self.locks.begin_leaving(name, kind);
    }

    /// Handles the end of a release.
    pub(in crate::core) fn on_ended(&mut self, ending: &Ending) {
        if self.outlives_lease(&ending.name, ending.kind) {
            self.long_releases.remember(self.now, ending);
        } else if ending.end != End::Expired || ending.shortened {
            // An expired lease ends without a release, unless it was made shorter.
            self.long_releases.add(self.now, ending);
        }
        if ending.end != End::Expired {
            return self.on_released(&ending.name, ending.kind, ending.number);
        }
        self.on_removed(&ending.name, ending.number);
    }

    /// Handles the removal of a number for which nobody here has waited.
    pub(in crate::core) fn on_removed(&mut self, name: &LockName, number: Number) {
        self.journal_gone(number);
        self.wake(name);
        self.poll_queue(name);
    }

    /// Handles the end of a release or an undo.
    pub(in crate::core) fn on_released(&mut self, name: &LockName, kind: Kind, number: Number) {
        self.journal_gone(number);
        if self.locks.end_leaving(name, kind) {
            self.wake(name);
        }
        self.poll_queue(name);
    }
}

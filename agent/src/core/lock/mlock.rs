//! MLOCK and MUNLOCK: several locks at once, all or none.
//!
//! An MLOCK acquires its members one by one in byte order, each as a LOCK would. The `member` of a [`ReplyTo`] says which
//! one a reply is about. The order keeps MLOCKs from waiting for one another in a circle, but other clients may acquire
//! the same locks in another order. So while it holds some members, it waits for the next one only for a while. Then it
//! releases them, keeps its position in the current queue, waits for that lock alone, and acquires the rest. For members
//! earlier in byte order it then waits only briefly: MLOCKs that take turns would otherwise block one another forever,
//! each with one lock.

use std::time::Duration;

use redisson::{LockName, Moment, millis};
use tracing::Span;

use crate::core::Core;
use crate::core::ids::{Owner, ReplyTo};
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::lock::mlock_state::{Goal, Member, MultiLock};
use crate::core::ops::verb::Change;
use crate::core::session::reply::{Grant, Reply};
use crate::core::side::Side;
use crate::protocol::command::{HoldRequest, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{End, Number};

/// The time, for each member, that an MLOCK waits for one while it holds others; the same as in Redisson's `MultiLock`.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The divisor of that time while it holds a member that comes later in byte order.
const OUT_OF_ORDER: u32 = 10;

/// The wait for a member once the time of the MLOCK is over: the least that is not NOWAIT.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl Core {
    pub(in crate::core) fn lock_all(&mut self, reply_to: ReplyTo, requests: Vec<LockRequest>) {
        let Some(first) = requests.first() else { return };
        let owner = reply_to.owner(first.owner);
        let until = match first.wait {
            Wait::Forever => Moment::NEVER,
            Wait::AtMost(wait) => self.now + wait,
        };
        // If no wait can grant a request, it is refused before anything is acquired.
        if let Some((index, refusal)) = self.refusal_of_any(reply_to, owner, &requests) {
            let LockRequest { name, kind, .. } = &requests[index];
            return self.deny(reply_to, name, *kind, &Span::none(), refusal);
        }
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by(|a, b| requests[*a].name.as_bytes().cmp(requests[*b].name.as_bytes()));
        let members = requests.iter().map(|_| Member::Wanted).collect();
        let multi = MultiLock {
            reply_to,
            goal: Goal::Take,
            requests,
            members,
            order,
            since: self.now,
            until,
            leased: false,
            armed: Moment::NEVER,
        };
        self.sessions.begin_multi(owner, multi);
    }

    pub(in crate::core) fn unlock_all(&mut self, reply_to: ReplyTo, requests: &[HoldRequest]) {
        let Some(first) = requests.first() else { return };
        let owner = reply_to.owner(first.owner);
        let refusal = requests.iter().find_map(|request| {
            let name = &request.name;
            self.session_refusal(reply_to, request.session.as_deref(), name).or_else(|| {
                let twice =
                    Side::BOTH.iter().all(|side| self.hold_of(owner, name, *side).is_some());
                (twice && request.kind.is_none()).then(|| Self::read_or_write(name))
            })
        });
        if let Some(refusal) = refusal {
            return self.answer(reply_to, refusal);
        }
        let holds: Vec<_> =
            requests.iter().map(|request| self.hold_for(reply_to, request)).collect();
        let members = holds.iter().map(|hold| match hold {
            Ok(_) => Member::Leaving,
            Err(sentence) => Member::Left(Reply::Ready(Outgoing::Reply(sentence.clone()))),
        });
        let multi = MultiLock {
            reply_to,
            goal: Goal::GiveBack,
            requests: Vec::new(),
            members: members.collect(),
            order: Vec::new(),
            since: self.now,
            until: Moment::NEVER,
            leased: false,
            armed: Moment::NEVER,
        };
        self.sessions.begin_multi(owner, multi);
        for (index, hold) in holds.into_iter().enumerate() {
            if let Ok(number) = hold {
                self.give_back(reply_to.of_member(index), number);
            }
        }
    }

    fn refusal_of_any(
        &mut self,
        reply_to: ReplyTo,
        owner: Owner,
        requests: &[LockRequest],
    ) -> Option<(usize, Frame)> {
        let mut before = 0;
        for (index, request) in requests.iter().enumerate() {
            let held = self.hold_of(owner, &request.name, Side::of(request.kind));
            let refusal = self.refusal(reply_to, request, held, before);
            if let Some(refusal) = refusal.or_else(|| self.member_deadlock(owner, request)) {
                return Some((index, refusal));
            }
            before += usize::from(held.is_none());
        }
        None
    }

    /// Returns the refusal of a member that would deadlock. Their order does not matter: the MLOCK needs them all.
    fn member_deadlock(&self, owner: Owner, request: &LockRequest) -> Option<Frame> {
        let LockRequest { name, kind, wait, .. } = request;
        let held = Side::BOTH.iter().any(|side| self.hold_of(owner, name, *side).is_some());
        let waits = *wait == Wait::Forever && !held && self.is_taken(name, *kind);
        (waits && self.would_deadlock(owner, name)).then(|| self.deadlock(name))
    }

    /// Applies the reply to a LOCK, EXTEND or UNLOCK of one member. Its owner can then take the next step.
    pub(in crate::core) fn on_member_answered(&mut self, owner: Owner, index: usize, reply: Reply) {
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        let Some(member) = multi.members.get_mut(index) else { return };
        let before = std::mem::replace(member, Member::Wanted);
        let (after, failure) = match (before, reply) {
            (Member::Asked, Reply::Grant(grant))
            | (Member::Leasing(grant), Reply::Valid { .. }) => (Member::Taken(grant), None),
            (Member::Asked, Reply::Ready(Outgoing::Reply(why))) => (Member::Wanted, Some(why)),
            (Member::Leasing(grant), Reply::Ready(Outgoing::Reply(why))) => {
                (Member::Taken(grant), Some(why))
            }
            (Member::Leaving, reply) => (Member::Left(reply), None),
            // It was lost while its lease was being set, and is wanted again.
            (before, _) => (before, None),
        };
        *member = after;
        if let (Some(why), Goal::Take) = (failure, &multi.goal) {
            multi.goal = Goal::GiveUp(why);
        }
        self.sessions.push_step(owner);
    }

    /// Handles a lost hold of this owner. Returns whether an unanswered MLOCK had acquired it; it is then acquired again. A
    /// hold that the worker had before is not.
    pub(in crate::core) fn on_member_lost(
        &mut self,
        owner: Owner,
        number: Number,
        name: &LockName,
        end: End,
    ) -> bool {
        let Some(multi) = self.sessions.multi_mut(owner) else { return false };
        for member in &mut multi.members {
            let (Member::Taken(grant) | Member::Leasing(grant)) = member else { continue };
            if grant.number == number {
                let acquired_by_it = grant.count == 1;
                *member = Member::Wanted;
                if !acquired_by_it && matches!(multi.goal, Goal::Take) {
                    multi.goal = Goal::GiveUp(Self::lost(name, end));
                }
                return acquired_by_it;
            }
        }
        false
    }

    /// Takes the next step of an MLOCK or MUNLOCK, if all its requests are answered.
    pub(in crate::core) fn go_on(&mut self, owner: Owner) {
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        if multi.is_busy() {
            return;
        }
        let next = multi
            .order
            .iter()
            .copied()
            .find(|index| !matches!(multi.members[*index], Member::Taken(_)));
        let holds_some = multi.taken().next().is_some();
        match (&multi.goal, next) {
            (Goal::Take, Some(index)) => self.ask(owner, index),
            (Goal::Take, None) if !multi.leased => self.lease_all(owner),
            (Goal::GiveUp(_), _) if holds_some => self.give_back_taken(owner),
            _ => self.finish(owner),
        }
    }

    /// Requests one member.
    fn ask(&mut self, owner: Owner, index: usize) {
        let (now, share) = (self.now, self.numbers.percent(25));
        let limit = self.first_answer_limit();
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        let mut request = multi.requests[index].clone();
        if request.wait != Wait::AtMost(Duration::ZERO) && multi.until != Moment::NEVER {
            // A wait may be shorter than the round trips to Redis for all members. Each may be free.
            if multi.until <= now && multi.since + limit <= now {
                multi.goal = Goal::GiveUp(Frame::Null);
                return self.sessions.push_step(owner);
            }
            request.wait = Wait::AtMost(multi.until.since(now).max(SHORTEST_WAIT));
        }
        multi.members[index] = Member::Asked;
        multi.leased = false;
        let reply_to = multi.reply_to.of_member(index);
        let count = u32::try_from(multi.members.len()).unwrap_or(u32::MAX);
        let mut patience = (PATIENCE * count) * (100 - share) / 100;
        let holds_some = multi.taken().next().is_some();
        let behind = multi.order.iter().skip_while(|member| **member != index);
        if behind.into_iter().any(|member| matches!(multi.members[*member], Member::Taken(_))) {
            patience /= OUT_OF_ORDER;
        }
        self.sessions.set_patience(owner, if holds_some { now + patience } else { Moment::NEVER });
        self.lock(reply_to, request);
    }

    /// Handles the end of the time that it may wait for one member while it holds others: it releases those and keeps
    /// its position.
    pub(in crate::core) fn on_patience_due(&mut self, owner: Owner) {
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        multi.armed = Moment::NEVER;
        if matches!(multi.goal, Goal::Take) {
            self.give_back_taken(owner);
        }
    }

    fn give_back_taken(&mut self, owner: Owner) {
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        let reply_to = multi.reply_to;
        let taken: Vec<_> = multi.taken().map(|(index, grant)| (index, grant.number)).collect();
        for (index, _) in &taken {
            multi.members[*index] = Member::Leaving;
        }
        for (index, number) in taken {
            self.give_back(reply_to.of_member(index), number);
        }
    }

    /// Handles the case where all members are acquired: the requested lease begins now for all of them. Watched holds
    /// stay watched, and a lock that was held before keeps a longer lease.
    fn lease_all(&mut self, owner: Owner) {
        self.sessions.set_patience(owner, Moment::NEVER);
        let Some(multi) = self.sessions.multi_mut(owner) else { return };
        multi.leased = true;
        let (reply_to, lease) = (multi.reply_to, multi.requests[0].lease);
        // A single lock has just received its lease.
        let taken: Vec<_> = match lease {
            Some(_) if multi.members.len() > 1 => {
                multi.taken().map(|(index, grant)| (index, grant.number)).collect()
            }
            _ => Vec::new(),
        };
        for (index, number) in taken {
            let valid_until = lease.map(|lease| lease.valid_until(self.now));
            let is_due = |hold: &&Hold| {
                hold.mode == LeaseMode::Fixed && Some(hold.valid_until) < valid_until
            };
            let Some(hold) = self.leases.get(number).filter(is_due) else { continue };
            let update = hold.update_for(reply_to.of_member(index), Change::Extend(lease));
            if let Some(multi) = self.sessions.multi_mut(owner)
                && let Member::Taken(grant) = &multi.members[index]
            {
                multi.members[index] = Member::Leasing(grant.clone());
            }
            self.update_hold(update);
        }
        self.sessions.push_step(owner);
    }

    /// Finishes, and answers the worker.
    fn finish(&mut self, owner: Owner) {
        self.sessions.set_patience(owner, Moment::NEVER);
        let Some(multi) = self.sessions.end_multi(owner) else { return };
        if let Goal::GiveUp(reply) = multi.goal {
            return self.answer(multi.reply_to, reply);
        }
        let waited_ms = millis(self.now.since(multi.since));
        let mut replies = Vec::with_capacity(multi.members.len());
        for member in multi.members {
            match member {
                Member::Taken(grant) => replies.push(Reply::Grant(Grant { waited_ms, ..grant })),
                // One failure stands for all: whatever could be released has been.
                Member::Left(Reply::Ready(Outgoing::Reply(error @ Frame::Error(_)))) => {
                    return self.answer(multi.reply_to, error);
                }
                Member::Left(reply) => replies.push(reply),
                _ => {}
            }
        }
        let reply = Reply::MultiLock(replies);
        let granted = reply.granted();
        for number in &granted {
            if self.leases.set_told(*number) {
                self.journal_hold(*number);
            }
        }
        self.answer_with(multi.reply_to, reply);
        for number in granted {
            self.tell_jeopardy(number);
        }
    }

    /// Ends an MLOCK as if its time were over. Returns whether there was one.
    pub(in crate::core) fn cancel_multi(&mut self, owner: Owner) -> bool {
        match self.sessions.multi_mut(owner) {
            Some(multi) if matches!(multi.goal, Goal::Take) => {
                multi.goal = Goal::GiveUp(Frame::Null);
                true
            }
            _ => false,
        }
    }

    /// Releases one hold that its worker does not know about and never will: another member of the same MLOCK is lost.
    pub(in crate::core) fn give_back_untold(&mut self, number: Number) {
        if self.leases.get(number).is_some_and(|hold| hold.count == 1) {
            return self.end_hold(number, End::Released, None);
        }
        if self.leases.decrement(number).is_some() {
            self.leases.schedule_renewal(number, self.now);
            self.journal_hold(number);
        }
    }
}

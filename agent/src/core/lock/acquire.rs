//! LOCK: reentry, queueing, and attempts to acquire the lock in Redis.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::MAX_READ_COUNT;
use redisson::{Family, Kind, LockName, keys};
use tracing::Span;

use crate::core::ids::{OpId, ReplyTo, WaiterId};
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::lock::state::LockState;
use crate::core::lock::waiter::Waiter;
use crate::core::ops::verb::{Attempt, Change, HoldUpdate, Verb};
use crate::core::session::reply::{Grant, Reply};
use crate::core::side::Side;
use crate::core::{Core, Report, spans};
use crate::protocol::command::{LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::Number;

impl Core {
    pub(in crate::core) fn lock(&mut self, reply_to: ReplyTo, request: LockRequest) {
        let owner = reply_to.owner(request.owner);
        let span = self.acquire_span(owner, &request);
        let held = self.hold_of(owner, &request.name, Side::of(request.kind));
        if let Some(refusal) = self.refusal(reply_to, &request, held, 0) {
            return self.deny(reply_to, &request.name, request.kind, &span, refusal);
        }
        if let Some(number) = held {
            return self.reenter(reply_to, number, &request, span);
        }
        self.sessions.forget_loss(owner, &request.name);
        if request.kind == Kind::Read
            && self.hold_of(owner, &request.name, Side::Exclusive).is_some()
        {
            // Under its own write hold it may read, regardless of other waiters.
            let waiter = self.new_waiter(reply_to, owner, request, false, span);
            let id = self.begin_wait(waiter);
            self.attempt(id);
            return;
        }
        let taken = self.is_taken(&request.name, request.kind);
        let refused = taken && self.is_behind_others(&request.name, request.kind);
        let waiter = self.new_waiter(reply_to, owner, request, refused, span);
        if taken && waiter.is_now_or_never() && self.is_refused(&waiter) {
            let held = self.locks.get(&waiter.name).is_some_and(|lock| lock.excludes(waiter.kind));
            let (outcome, reply) =
                if held { ("busy", Frame::Null) } else { self.timed_out(&waiter) };
            self.on_wait_over(&waiter, outcome, Duration::ZERO);
            return self.answer(reply_to, reply);
        }
        if taken && waiter.wait == Wait::Forever && self.would_deadlock(owner, &waiter.name) {
            let refusal = self.deadlock(&waiter.name);
            return self.deny(reply_to, &waiter.name, waiter.kind, &waiter.span, refusal);
        }
        self.queue_up(waiter);
    }

    /// Refuses a LOCK, and counts it.
    pub(super) fn deny(
        &mut self,
        reply_to: ReplyTo,
        name: &LockName,
        kind: Kind,
        span: &Span,
        refusal: Frame,
    ) {
        self.on_not_acquired(name, kind, span, "denied");
        self.answer(reply_to, refusal);
    }

    /// Counts a LOCK that ends without the lock. Returns the label of the lock.
    pub(in crate::core) fn on_not_acquired(
        &mut self,
        name: &LockName,
        kind: Kind,
        span: &Span,
        outcome: &'static str,
    ) -> Arc<str> {
        let group = self.group_label(name);
        let label = Arc::clone(&group);
        self.effects.report(Report::Acquisition { group: label, kind, outcome });
        spans::outcome(span, outcome);
        group
    }

    /// Returns whether a newcomer of that kind has to wait, as far as this agent knows.
    pub(in crate::core) fn is_taken(&self, name: &LockName, kind: Kind) -> bool {
        self.locks.get(name).is_some_and(|name| name.keeps_out(kind) || !name.queue.is_empty())
    }

    /// Returns whether a newcomer of that kind has to wait for someone else, rather than only for removals from Redis. The
    /// removal of a red lock may be decided long after its servers have let others in.
    fn is_behind_others(&self, name: &LockName, kind: Kind) -> bool {
        let others = |state: &LockState| state.excludes(kind) || !state.queue.is_empty();
        kind == Kind::Red || self.locks.get(name).is_some_and(others)
    }

    /// Returns the refusal of a LOCK before any attempt. `held` is the owner's hold that it would reenter; `before` is the
    /// number of new locks that the same MLOCK acquires first.
    pub(in crate::core) fn refusal(
        &mut self,
        reply_to: ReplyTo,
        request: &LockRequest,
        held: Option<Number>,
        before: usize,
    ) -> Option<Frame> {
        if let Some(refusal) =
            self.session_refusal(reply_to, request.session.as_deref(), &request.name)
        {
            return Some(refusal);
        }
        if self.locks.is_draining() {
            return Some(Self::draining(&request.name));
        }
        let session = self.sessions.get(&reply_to.connection)?;
        if self.settings.require_session && !session.introduced {
            return Some(Frame::Error(format!(
                "SESSION `{}` was rejected: this agent requires SESSION before the first LOCK, and IN with each LOCK",
                request.name
            )));
        }
        if let Some(refusal) = self.policy_refusal(reply_to, request, held, before) {
            return Some(refusal);
        }
        if request.kind == Kind::Red && self.settings.red.is_none() {
            return Some(Frame::Error(format!(
                "SYNTAX `{}` was rejected: this agent has no servers for red locks; configure them with --redlock-url",
                request.name
            )));
        }
        if request.kind != Kind::Red
            && let Some(refusal) = self.slot_refusal(&request.name)
        {
            return Some(refusal);
        }
        if let Some(refusal) = self.kind_refusal(reply_to, request) {
            return Some(refusal);
        }
        if held.is_some() {
            return None;
        }
        let reason =
            self.locks.quota().exhausted(&self.sessions.get(&reply_to.connection)?.peer, before)?;
        Some(Frame::Error(format!("LIMIT `{}` was rejected: {reason}", request.name)))
    }

    /// Refuses a name whose channel and companions have a different slot from the lock: no script may use both.
    pub(in crate::core) fn slot_refusal(&self, name: &LockName) -> Option<Frame> {
        (self.settings.slots && !keys::companions_share_slot(name)).then(|| {
            let why = "its braces put its channel and companions into other slots of the cluster than the lock";
            Self::limit(name, why)
        })
    }

    /// Refuses a kind that conflicts with the kind in which the name is in use.
    fn kind_refusal(&self, reply_to: ReplyTo, request: &LockRequest) -> Option<Frame> {
        let LockRequest { name, kind, .. } = request;
        let owner = reply_to.owner(request.owner);
        let own = |side| self.hold_of(owner, name, side).and_then(|number| self.leases.get(number));
        if *kind == Kind::Write
            && request.wait != Wait::AtMost(Duration::ZERO)
            && own(Side::Shared).is_some()
            && own(Side::Exclusive).is_none()
        {
            return Some(Self::upgrade(name));
        }
        // One hold of an owner has one kind, even if other holds may follow with another.
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

    fn reenter(&mut self, reply_to: ReplyTo, number: Number, request: &LockRequest, span: Span) {
        let Some(hold) = self.leases.get(number) else { return };
        let Some(count) = hold.count.checked_add(1) else {
            let refusal = Self::limit(&request.name, "its count is at its highest");
            return self.deny(reply_to, &request.name, request.kind, &span, refusal);
        };
        if hold.kind == Kind::Read && count > MAX_READ_COUNT {
            let most = format!("a reader may enter {MAX_READ_COUNT} times");
            let refusal = Self::limit(&request.name, &most);
            return self.deny(reply_to, &request.name, request.kind, &span, refusal);
        }
        if self.enters_at_once(hold) {
            return self.reenter_at_once(reply_to, number, &span);
        }
        // A watched hold stays watched: no lease of a reentry is longer than that.
        let lease = request.lease.filter(|_| hold.mode == LeaseMode::Fixed);
        let update = hold.update_for(reply_to, Change::Reenter(lease));
        self.update_hold(HoldUpdate { count, span, ..update });
    }

    /// Returns whether its owner may reenter a hold before Redis has the new count: its lease stays unchanged, it is
    /// valid for long enough, and no replica has to confirm it. Redis may not even have the hold yet.
    fn enters_at_once(&self, hold: &Hold) -> bool {
        let renewed = hold.mode == LeaseMode::Renewed && hold.kind != Kind::Red && !hold.lapsing;
        let safe = self.now < self.settings.lease.at_risk_at(hold.valid_until);
        hold.early || renewed && safe && self.settings.min_replicas == 0
    }

    fn reenter_at_once(&mut self, reply_to: ReplyTo, number: Number, span: &Span) {
        let Some(hold) = self.leases.increment(number, self.now) else { return };
        let (grant, group) = (hold.grant(0), Arc::clone(&hold.group));
        let reply = self.on_reentered(reply_to, grant, group, span);
        self.journal_hold(number);
        self.answer_with(reply_to, reply);
    }

    /// Counts a reentry. Returns the reply to its LOCK.
    pub(in crate::core) fn on_reentered(
        &mut self,
        reply_to: ReplyTo,
        grant: Grant,
        group: Arc<str>,
        span: &Span,
    ) -> Reply {
        let (kind, outcome) = (grant.kind, "reentered");
        self.report_with_reply(reply_to, Report::Acquisition { group, kind, outcome });
        spans::outcome(span, outcome);
        span.record("lock.holds", grant.count);
        Reply::Grant(grant)
    }

    /// Sends a waiter's attempt to Redis.
    pub(in crate::core) fn attempt(&mut self, id: WaiterId) -> Option<OpId> {
        let waiter = self.locks.waiter(id)?;
        let under = (waiter.kind == Kind::Read)
            .then(|| self.hold_of(waiter.owner, &waiter.name, Side::Exclusive))
            .flatten();
        let attempt = self.attempt_of(waiter, id, under);
        if let Some(writer) = under {
            self.leases.add_read_lease(writer, attempt.lease);
        }
        if attempt.kind == Kind::Red {
            let quorum = self.attempt_red(&attempt);
            self.locks.begin_attempt(id, quorum);
            return Some(quorum);
        }
        // Repeated as long as its waiter waits.
        let op = self.send(Verb::Acquire(attempt), Duration::MAX);
        self.locks.begin_attempt(id, op);
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

    /// Returns the longest sleep of a refused waiter: until the end of the reported lease, limited by the setting.
    pub(in crate::core) fn retry_interval(&mut self, pttl_ms: Option<u64>) -> Duration {
        let poll = self.settings.poll_max * (100 - self.numbers.percent(20)) / 100;
        pttl_ms.map_or(poll, |ms| poll.min(Duration::from_millis(ms.saturating_add(1))))
    }
}

//! The spans of the core's work: `lock acquire` from a LOCK to its answer, `lock hold` from a grant to its end, and
//! `lock renew` for each batch of renewals. The core creates and drops spans where it decides, as it does its log
//! lines; the subscriber supplies the instants. A LOCK or a batch is sampled before its span is created; without that
//! span, nothing that belongs to it has one. When traces are off all spans are empty, and cost one check of a flag.

use service_kit::trace::{self, TARGET, TraceParent};
use tracing::Span;
use tracing::field::Empty;

use crate::core::Core;
use crate::core::ids::{Owner, WaiterId};
use crate::core::lease::hold::Hold;
use crate::core::lock::waiter::Waiter;
use crate::protocol::command::LockRequest;
use crate::types::{End, Number};

/// The maximum number of readers inside that the span of a waiting writer links to.
const LINKS: usize = 8;

/// Records the outcome of a LOCK, by the word that metrics use.
pub(in crate::core) fn outcome(span: &Span, outcome: &'static str) {
    span.record("lock.outcome", outcome);
    if outcome == "error" {
        span.record("otel.status_code", "ERROR");
    }
}

/// Records the end of a hold.
pub(in crate::core) fn ended(span: &Span, end: End) {
    span.record("lock.end", end.as_str());
    if end.is_loss() {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", end.explained());
    }
}

/// Returns the span of one batch of renewals.
pub(in crate::core) fn renewal(holds: usize) -> Span {
    trace::root(&TraceParent::default(), || {
        tracing::info_span!(
            target: TARGET, parent: None, "lock renew",
            lock.batch = holds, lock.renewed = Empty, lock.gone = Empty, otel.status_code = Empty,
        )
    })
}

impl Core {
    /// Returns the span of a LOCK that has just arrived.
    pub(in crate::core) fn acquire_span(&mut self, owner: Owner, request: &LockRequest) -> Span {
        if !trace::is_on() {
            return Span::none();
        }
        let parent = request.traceparent.as_deref();
        let parent = parent.map_or_else(TraceParent::default, TraceParent::read);
        trace::root(&parent, || {
            let group = self.group_label(&request.name);
            tracing::info_span!(
                target: TARGET, parent: None, "lock acquire",
                lock.name = %request.name, lock.group = &*group, lock.kind = request.kind.as_str(),
                worker.pid = self.worker_pid(owner), lock.holder = Empty, lock.outcome = Empty,
                lock.wait_ms = Empty, lock.holds = Empty, otel.status_code = Empty,
            )
        })
    }

    /// Returns the span of a hold that its waiter has just been granted under that number.
    pub(in crate::core) fn hold_span(
        &self,
        waiter: &Waiter,
        group: &str,
        number: Number,
        token: Option<u64>,
    ) -> Span {
        if waiter.span.is_disabled() {
            return Span::none();
        }
        let holder = self.numbers.field(waiter.kind, number);
        outcome(&waiter.span, "acquired");
        waiter.span.record("lock.holder", tracing::field::display(&holder));
        waiter.span.record("lock.wait_ms", self.waited_ms(waiter));
        waiter.span.record("lock.holds", 1);
        let span = tracing::info_span!(
            target: TARGET, parent: None, "lock hold",
            lock.name = %waiter.name, lock.group = group, lock.kind = waiter.kind.as_str(),
            worker.pid = self.worker_pid(waiter.owner), lock.holder = %holder, lock.token = token,
            lock.end = Empty, otel.status_code = Empty, otel.status_description = Empty,
        );
        trace::within(span, &TraceParent::of(&waiter.span))
    }

    /// Links a LOCK that has to wait to the holds of this agent that block it.
    pub(in crate::core) fn link_to_holds(&self, waiter: &mut Waiter) {
        if waiter.span.is_disabled() {
            return;
        }
        let Some(state) = self.locks.get(&waiter.name) else { return };
        waiter.behind = state.hold;
        for number in state.holds().take(LINKS) {
            if let Some(hold) = self.leases.get(number) {
                trace::link(&waiter.span, &TraceParent::of(&hold.span));
            }
        }
    }

    /// Links a waiter to the hold that is passed on to it, unless it waited behind that hold from the start.
    pub(in crate::core) fn link_to_predecessor(
        &self,
        waiter: WaiterId,
        before: Number,
        trace_parent: &TraceParent,
    ) {
        if let Some(waiter) = self.locks.waiter(waiter)
            && waiter.behind != Some(before)
        {
            trace::link(&waiter.span, trace_parent);
        }
    }

    /// Returns the span of a hold as a parent.
    pub(in crate::core) fn hold_parent(&self, number: Number) -> TraceParent {
        let hold = self.leases.get(number);
        hold.map_or_else(TraceParent::default, |hold| TraceParent::of(&hold.span))
    }

    /// Returns the process of an owner, if the kernel reports it.
    pub(in crate::core) fn worker_pid(&self, owner: Owner) -> Option<i32> {
        self.sessions.get(&owner.connection)?.peer.pid
    }
}

impl Hold {
    /// Records that its owner has been warned, with this much validity left.
    pub(in crate::core) fn note_jeopardy(&self, valid_ms: u64) {
        trace::event(&self.span, "jeopardy", "lock.valid_ms", valid_ms);
    }

    /// Records that its renewal failed, with the number of consecutive failures.
    pub(in crate::core) fn note_failed_renewal(&self) {
        trace::event(&self.span, "renewal failed", "lock.failures", self.failures.into());
    }

    /// Records that it is valid for long enough again.
    pub(in crate::core) fn note_safe(&self, valid_ms: u64) {
        trace::event(&self.span, "safe", "lock.valid_ms", valid_ms);
    }
}

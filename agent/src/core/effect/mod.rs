//! Effects: all actions that the core requests from outside.

mod log;
mod report;

use std::collections::VecDeque;

use redisson::Moment;
use redisson::script::Call;
use service_kit::trace::TraceParent;

use crate::core::ids::OpId;
use crate::journal::Record;
use crate::protocol::resp::Outgoing;
use crate::types::ConnectionId;
use log::LogLimits;
pub use log::LogLine;
pub use report::{Gauges, Report};

/// The server of a script or a subscription. A cluster counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The server of all kinds but red.
    Main,
    /// One of the independent servers of red locks, by its index in the settings.
    Red(usize),
}

/// The connection for a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Scripts that workers wait for.
    Commands,
    /// Renewals, which no load may delay.
    Renewals,
    /// Scripts that grant and need confirmation by replicas: the outcome is for [`super::Core::on_confirmed`].
    Grants,
    /// Renewals that extend validity once replicas confirm them: the outcome is for [`super::Core::on_confirmed`]. The
    /// renewals themselves are never delayed by replicas.
    ReplicatedRenewals,
}

/// An action for the runtime.
#[derive(Debug)]
pub enum Effect {
    /// A script to send. Its outcome goes to [`super::Core::on_reply`] or [`super::Core::on_failure`].
    Send {
        /// The number that the outcome refers to.
        op: OpId,
        /// The server.
        node: Node,
        /// The connection.
        lane: Lane,
        /// The script and its arguments.
        call: Call,
        trace_parent: TraceParent,
    },
    /// Bytes to write to a connection.
    Deliver(ConnectionId, Outgoing),
    /// A channel to subscribe to, on which releases are published. [`super::Core::on_subscribed`] is called once the
    /// subscription is active.
    Subscribe(Node, Vec<u8>),
    /// A channel to unsubscribe from.
    Unsubscribe(Node, Vec<u8>),
    /// A record for the journal. [`super::Core::on_journalled`] or [`super::Core::on_journal_failed`] is called
    /// afterwards; replies that depend on the record wait for that.
    Journal(Record),
    /// A fact for the metrics.
    Report(Report),
    /// A line for the log.
    Log(LogLine),
}

impl Effect {
    /// Returns whether it is a script for [`Lane::Commands`].
    #[must_use]
    pub fn is_command(&self) -> bool {
        matches!(self, Self::Send { lane: Lane::Commands, .. })
    }
}

/// The number of effects for which an empty queue keeps memory: more than those of a usual turn.
const KEPT: usize = 16_384;

/// The effects that wait to be applied, oldest first.
#[derive(Debug, Default)]
pub(super) struct Effects {
    queue: VecDeque<Effect>,
    /// The number of scripts for [`Lane::Commands`] in the queue.
    commands: usize,
    log_limits: LogLimits,
}

impl Effects {
    pub(super) fn push(&mut self, effect: Effect) {
        self.commands += usize::from(effect.is_command());
        self.queue.push_back(effect);
    }

    pub(super) fn pop(&mut self) -> Option<Effect> {
        let effect = self.queue.pop_front()?;
        if self.queue.is_empty() {
            self.queue.shrink_to(KEPT);
        }
        self.commands -= usize::from(effect.is_command());
        Some(effect)
    }

    pub(super) fn commands(&self) -> usize {
        self.commands
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn report(&mut self, report: Report) {
        self.push(Effect::Report(report));
    }

    /// Logs a line, unless it may exist once per hold and too many of its kind were logged within the second.
    pub(super) fn log(&mut self, now: Moment, line: LogLine) {
        if line.bounded().is_none_or(|kind| self.log_limits.admit(kind, now)) {
            self.push(Effect::Log(line));
        }
    }

    /// Returns the instant at which [`Self::log_withheld`] has something to log.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.log_limits.next_deadline()
    }

    /// Logs the number of withheld lines, by kind, in the seconds that have ended by `now`.
    pub(super) fn log_withheld(&mut self, now: Moment) {
        while let Some((kind, lines)) = self.log_limits.pop_due(now) {
            self.log(now, LogLine::Withheld(kind, lines));
        }
    }
}

//! The agent's Prometheus metrics. Recording blocks only on other recordings and on scrapes, and cannot fail.

mod apply;
mod commands;
mod groups;
mod servers;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use service_kit::metrics::Registrar;

use crate::policy::Denial;
use crate::types::End;

use commands::CommandMetrics;
use groups::GroupMetrics;
use servers::ServerMetrics;

/// The prefix of every metric's name.
pub(crate) const PREFIX: &str = "lockscope_agent";

const ROUND_TRIP_BUCKETS: [f64; 11] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0];
/// Lateness of renewals, and the validity left when they succeeded: fractions of a lease, dense enough for the limits of
/// the alerts on both. Neither has a label, so the budget of series allows more bounds.
const LEASE_BUCKETS: [f64; 13] =
    [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0];

/// The error labels of a script that was not sent, and of one whose reply was lost. Errors from a server use its own
/// words.
pub(crate) const UNSENT: &str = "unsent";
pub(crate) const LOST: &str = "lost";

/// The reason labels of a connection above the limit of all sessions, and of one above that of its user.
pub(crate) const TOO_MANY_SESSIONS: &str = "max_sessions";
pub(crate) const TOO_MANY_SESSIONS_OF_USER: &str = "max_sessions_of_user";

const RESUME_OUTCOMES: [&str; 6] = ["resumed", "lapsed", "alive", "gone", "refused", "unconfirmed"];

#[derive(Debug)]
pub struct Metrics {
    groups: GroupMetrics,
    pub(crate) servers: ServerMetrics,
    lost_holds: IntCounterVec,
    unknown_outcomes: IntCounterVec,
    pub(crate) commands: CommandMetrics,
    /// Full releases for fairness.
    yields: IntCounter,
    renewal_seconds: Histogram,
    /// Delays of renewals behind their schedule.
    renewal_lateness: Histogram,
    renewal_margin: Histogram,
    /// Holds at risk.
    jeopardy_holds: IntGauge,
    /// Holds of dead workers that stay unavailable (`--lock-delay`).
    delayed_holds: IntGauge,
    /// Sessions with holds or waits whose process is stopped.
    frozen_sessions: IntGauge,
    /// Subscribed release channels.
    subscriptions: IntGauge,
    sessions: IntGauge,
    /// Sessions in their grace period without a connection.
    away_sessions: IntGauge,
    /// RESUME commands and expired grace periods, by outcome.
    sessions_resumed: IntCounterVec,
    journal_errors: IntCounter,
    /// Locks denied by the policy, by failed check.
    policy_denials: IntCounterVec,
    pub(crate) policy_reloads: IntCounterVec,
    sessions_opened: IntCounter,
    pub(crate) sessions_rejected: IntCounterVec,
    /// Failed accepts, such as when file descriptors run out.
    pub(crate) accept_failures: IntCounter,
    /// Events dropped because a session did not read them.
    pub(crate) events_dropped: IntCounter,
    pub(crate) connections_evicted: IntCounter,
    /// Times that the agent or its host slept.
    sleeps: IntCounter,
    /// Grants that required confirmation by replicas, by outcome.
    confirmations: IntCounterVec,
    pub(crate) redis_seconds: HistogramVec,
}

impl Metrics {
    /// Registers all metrics. Those without a group start at 0.
    ///
    /// # Errors
    /// Fails if the registry already has a metric of the same name.
    pub(crate) fn new(registry: &Registry, deployment: &str) -> prometheus::Result<Self> {
        let make = Registrar::new(registry, PREFIX);
        let metrics = Self {
            groups: GroupMetrics::new(make)?,
            servers: ServerMetrics::new(make, deployment)?,
            lost_holds: make.counters("lost_holds_total", "Lost holds of all groups together.", &["reason"])?,
            unknown_outcomes: make.counters(
                "doubts_total",
                "Scripts with an unknown outcome, by the outcome found later: applied, not_applied, undone_late (a late copy was found in Redis, and removed).",
                &["outcome"],
            )?,
            commands: CommandMetrics::new(make)?,
            yields: make.counter("yields_total", "Locks fully released so that other hosts get a turn.")?,
            renewal_seconds: make.histogram(
                "renewal_seconds",
                "Round trip of renewal scripts.",
                &ROUND_TRIP_BUCKETS,
            )?,
            renewal_lateness: make.histogram(
                "renewal_lateness_seconds",
                "Delay of renewals behind their schedule.",
                &LEASE_BUCKETS,
            )?,
            renewal_margin: make.histogram(
                "renewal_margin_seconds",
                "Validity left when a renewal succeeded.",
                &LEASE_BUCKETS,
            )?,
            jeopardy_holds: make.gauge("jeopardy_holds", "Holds that are still valid but not being renewed: renewals fail, or are suspended while their worker is stopped.")?,
            delayed_holds: make.gauge(
                "delayed_holds",
                "Holds of dead workers that stay unavailable to others (--lock-delay).",
            )?,
            frozen_sessions: make.gauge(
                "frozen_sessions",
                "Sessions with holds or waits whose process is stopped.",
            )?,
            subscriptions: make.gauge("subscriptions", "Subscribed release channels.")?,
            sessions: make.gauge("sessions", "Connected workers.")?,
            away_sessions: make.gauge(
                "away_sessions",
                "Sessions in their grace period without a connection.",
            )?,
            sessions_resumed: make.counters(
                "sessions_resumed_total",
                "RESUME commands by outcome, and sessions whose grace expired (lapsed).",
                &["outcome"],
            )?,
            journal_errors: make.counter(
                "journal_errors_total",
                "Failed writes of the journal.",
            )?,
            policy_denials: make.counters(
                "policy_denials_total",
                "Locks denied by the policy, by failed check.",
                &["reason"],
            )?,
            policy_reloads: make.counters(
                "policy_reloads_total",
                "Policy reloads: applied, or refused (the previous policy stays in force).",
                &["outcome"],
            )?,
            sessions_opened: make.counter("sessions_opened_total", "Connections accepted.")?,
            sessions_rejected: make.counters(
                "sessions_rejected_total",
                "Connections rejected.",
                &["reason"],
            )?,
            accept_failures: make.counter(
                "accept_failures_total",
                "Failed accepts; the connection waits, and the agent retries.",
            )?,
            connections_evicted: make.counter(
                "connections_evicted_total",
                "Connections closed because their clients did not read, and others needed the memory.",
            )?,
            events_dropped: make.counter(
                "events_dropped_total",
                "Events dropped because sessions did not read them.",
            )?,
            sleeps: make.counter("sleeps_total", "Times that the agent or its host slept for more than a third of a lease.")?,
            confirmations: make.counters(
                "confirmations_total",
                "Grants that required confirmation by replicas (--min-replicas), by outcome.",
                &["outcome"],
            )?,
            redis_seconds: make.histograms(
                "redis_seconds",
                "Round trip of scripts.",
                &["script"],
                &ROUND_TRIP_BUCKETS,
            )?,
        };
        for (counters, words) in [
            (&metrics.lost_holds, &End::LOST.map(End::as_str)[..]),
            (&metrics.policy_denials, &Denial::REASONS),
            (&metrics.policy_reloads, &["applied", "refused"]),
            (&metrics.sessions_resumed, &RESUME_OUTCOMES),
            (&metrics.unknown_outcomes, &["applied", "not_applied", "undone_late"]),
            (&metrics.confirmations, &["confirmed", "too_few", "not_tried"]),
            (&metrics.sessions_rejected, &[TOO_MANY_SESSIONS, TOO_MANY_SESSIONS_OF_USER]),
        ] {
            for word in words {
                counters.with_label_values(&[word]);
            }
        }
        Ok(metrics)
    }

    fn lost(&self, group: &str, why: End) {
        self.groups.lost(group, why);
        self.lost_holds.with_label_values(&[why.as_str()]).inc();
    }
}

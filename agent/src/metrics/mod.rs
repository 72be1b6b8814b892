//! The agent's Prometheus metrics. Recording blocks only on other recordings and cannot fail.

mod apply;
mod oldest;
mod servers;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};
use redisson::Kind;
use service_kit::metrics::Registrar;

use crate::collections::HashMap;
use crate::policy::Denial;
use crate::protocol::command::Command;
use crate::types::End;

pub use oldest::OldestCollector;
use oldest::{Start, Starts, begin, end};

/// The prefix of every metric's name.
pub(crate) const PREFIX: &str = "lockscope_agent";

/// Waits: from a round trip over an idle socket to minutes. The series budget allows at most twelve bounds.
const WAIT_BUCKETS: [f64; 11] =
    [0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0];
/// Holds: from a millisecond to hours.
const HOLD_BUCKETS: [f64; 11] =
    [0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14400.0];
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

const LOCK_OUTCOMES: [&str; 7] =
    ["acquired", "reentered", "timeout", "busy", "cancelled", "denied", "error"];

#[derive(Debug)]
pub struct Metrics {
    acquisitions: IntCounterVec,
    wait_seconds: HistogramVec,
    hold_seconds: HistogramVec,
    holds: IntGaugeVec,
    waiters: IntGaugeVec,
    active: Mutex<Active>,
    oldest_hold: GaugeVec,
    oldest_wait: GaugeVec,
    handovers: IntCounterVec,
    lock_groups: IntGauge,
    renewals: IntCounterVec,
    locks_lost: IntCounterVec,
    lost_holds: IntCounterVec,
    lease_overruns: IntCounterVec,
    unknown_outcomes: IntCounterVec,
    commands: IntCounterVec,
    command_seconds: HistogramVec,
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
    red_votes: IntCounterVec,
    /// Grants that required confirmation by replicas, by outcome.
    confirmations: IntCounterVec,
    replica_batches: IntCounterVec,
    replicas_acknowledged: IntGaugeVec,
    pub(crate) reconnects: IntCounterVec,
    pub(crate) master_changes: IntCounterVec,
    pub(crate) redis_up: IntGaugeVec,
    /// 1 for servers that may evict locks when their memory is full.
    pub(crate) redis_evicts: IntGaugeVec,
    redis_server_info: IntGaugeVec,
    unserved_slots: IntGaugeVec,
    /// The servers that are no longer in use and still have counters, oldest first.
    gone_servers: Mutex<VecDeque<String>>,
    /// The name shared by all agents of one set of locks.
    deployment: String,
    pub(crate) redis_seconds: HistogramVec,
    /// Failed scripts by node and the first word of the error.
    pub(crate) redis_errors: IntCounterVec,
}

/// The holds and waits in progress.
#[derive(Debug, Default)]
struct Active {
    holds: Starts,
    waits: Starts,
    /// The kinds of each group whose outcome counters exist.
    kinds: HashMap<Arc<str>, Vec<Kind>>,
}

impl Metrics {
    /// Registers all metrics. Those without a group start at 0.
    ///
    /// # Errors
    /// Fails if the registry already has a metric of the same name.
    pub(crate) fn new(registry: &Registry, deployment: &str) -> prometheus::Result<Self> {
        let make = Registrar::new(registry, PREFIX);
        let group = "lock_group";
        let metrics = Self {
            acquisitions: make.counters(
                "acquisitions_total",
                "LOCK commands by outcome.",
                &[group, "kind", "outcome"],
            )?,
            wait_seconds: make.histograms(
                "wait_seconds",
                "Time from LOCK to its reply.",
                &[group, "outcome"],
                &WAIT_BUCKETS,
            )?,
            hold_seconds: make.histograms(
                "hold_seconds",
                "Time from grant to end of holds.",
                &[group, "end"],
                &HOLD_BUCKETS,
            )?,
            holds: make.gauges("holds", "Locks held now.", &[group, "kind"])?,
            waiters: make.gauges("waiters", "LOCK commands waiting now.", &[group, "kind"])?,
            active: Mutex::default(),
            // Registered with [`OldestCollector`], which fills them at each scrape.
            oldest_hold: GaugeVec::new(
                make.opts("oldest_hold_start_timestamp_seconds", "Start of the oldest hold of the group; absent while nothing is held."),
                &[group],
            )?,
            oldest_wait: GaugeVec::new(
                make.opts("oldest_wait_start_timestamp_seconds", "Start of the oldest wait of the group; absent while nothing waits."),
                &[group],
            )?,
            handovers: make.counters(
                "handovers_total",
                "Locks handed over from one local holder to the next without becoming free.",
                &[group],
            )?,
            lock_groups: make.gauge("lock_groups", "Lock groups seen, including those in overflow.")?,
            renewals: make.counters(
                "renewals_total",
                "Renewals by outcome: renewed, unconfirmed (too few replicas have it), verified (a fixed lease, which is not renewed), gone (the hold no longer existed), error (no reply).",
                &[group, "outcome"],
            )?,
            locks_lost: make.counters(
                "locks_lost_total",
                "Holds lost while their owner relied on them, by reason.",
                &[group, "reason"],
            )?,
            lease_overruns: make.counters(
                "lease_overruns_total",
                "Holds whose fixed lease ran out before their owner released them.",
                &[group],
            )?,
            lost_holds: make.counters("lost_holds_total", "Lost holds of all groups together.", &["reason"])?,
            unknown_outcomes: make.counters(
                "doubts_total",
                "Scripts with an unknown outcome, by the outcome found later: applied, not_applied, undone_late (a late copy was found in Redis, and removed).",
                &["outcome"],
            )?,
            commands: make.counters("commands_total", "Commands answered.", &["command", "outcome"])?,
            command_seconds: make.histograms(
                "command_seconds",
                "Time from a command's arrival to its reply, including waits.",
                &["command"],
                &ROUND_TRIP_BUCKETS,
            )?,
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
            red_votes: make.counters(
                "red_votes_total",
                "Answers of the servers of red locks to attempts: granted, refused (another holder has it), unfit (not such a lock), silent (no reply in time, or no connection).",
                &["node", "outcome"],
            )?,
            confirmations: make.counters(
                "confirmations_total",
                "Grants that required confirmation by replicas (--min-replicas), by outcome.",
                &["outcome"],
            )?,
            replica_batches: make.counters(
                "replica_batches_total",
                "Batches of grants or renewals that replicas had to confirm (--min-replicas), by outcome.",
                &["node", "batch", "outcome"],
            )?,
            replicas_acknowledged: make.gauges(
                "replicas_acknowledged",
                "Replicas that acknowledged the latest batch of grants or renewals (--min-replicas); 0 if none is required.",
                &["node"],
            )?,
            reconnects: make.counters("reconnects_total", "Reconnections to Redis.", &["node"])?,
            master_changes: make.counters(
                "master_changes_total",
                "Times that the sentinels promoted another master.",
                &["node"],
            )?,
            redis_up: make.gauges("redis_up", "1 while Redis replies, 0 otherwise.", &["node"])?,
            redis_evicts: make.gauges(
                "redis_evicts",
                "1 if Redis may evict locks when its memory is full, 0 otherwise.",
                &["node"],
            )?,
            redis_server_info: make.gauges(
                "redis_server_info",
                "The server and the database whose locks this agent takes; the value is 1.",
                &["deployment", "node", "run_id", "db"],
            )?,
            unserved_slots: make.gauges(
                "unserved_slots",
                "Slots of the cluster that no node serves.",
                &["deployment"],
            )?,
            gone_servers: Mutex::default(),
            deployment: deployment.to_owned(),
            redis_seconds: make.histograms(
                "redis_seconds",
                "Round trip of scripts.",
                &["script"],
                &ROUND_TRIP_BUCKETS,
            )?,
            redis_errors: make.counters(
                "redis_errors_total",
                "Failed scripts.",
                &["node", "error"],
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
        for word in Command::WORDS {
            for outcome in ["ok", "error"] {
                metrics.commands.with_label_values(&[word, outcome]);
            }
        }
        Ok(metrics)
    }

    /// Counts the groups seen. The counters of a new group start at 0.
    fn group_seen(&self, label: &Arc<str>, groups: usize) {
        self.lock_groups.set(i64::try_from(groups).unwrap_or(i64::MAX));
        let mut active = self.active.lock();
        if !active.holds.contains_key(label) {
            active.holds.insert(Arc::clone(label), BTreeSet::new());
            active.waits.insert(Arc::clone(label), BTreeSet::new());
            active.kinds.insert(Arc::clone(label), vec![Kind::Lock]);
            drop(active);
            self.create_outcomes(label, Kind::Lock);
            for end in End::LOST {
                self.locks_lost.with_label_values(&[&**label, end.as_str()]);
            }
            for outcome in ["renewed", "unconfirmed", "verified", "gone", "error"] {
                self.renewals.with_label_values(&[&**label, outcome]);
            }
            self.handovers.with_label_values(&[&**label]);
            self.lease_overruns.with_label_values(&[&**label]);
        }
    }

    /// Creates the counters at 0, so that the first of each outcome is visible as an increase.
    fn create_outcomes(&self, group: &str, kind: Kind) {
        for outcome in LOCK_OUTCOMES {
            self.acquisitions.with_label_values(&[group, kind.as_str(), outcome]);
        }
    }

    fn wait_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).inc();
        let mut active = self.active.lock();
        begin(&mut active.waits, group, start);
        if let Some(kinds) = active.kinds.get_mut(group).filter(|kinds| !kinds.contains(&kind)) {
            kinds.push(kind);
            drop(active);
            self.create_outcomes(group, kind);
        }
    }

    fn wait_ended(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).dec();
        end(&mut self.active.lock().waits, group, start);
    }

    fn hold_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.holds.with_label_values(&[&**group, kind.as_str()]).inc();
        begin(&mut self.active.lock().holds, group, start);
    }

    fn hold_ended(&self, group: &Arc<str>, kind: Kind, start: Start, why: End, held: Duration) {
        self.holds.with_label_values(&[&**group, kind.as_str()]).dec();
        end(&mut self.active.lock().holds, group, start);
        let label = match why {
            End::Released => "released",
            End::Disconnected => "disconnected",
            why if why.is_loss() => "lost",
            _ => "other",
        };
        self.hold_seconds.with_label_values(&[&**group, label]).observe(held.as_secs_f64());
    }

    fn lost(&self, group: &str, why: End) {
        self.locks_lost.with_label_values(&[group, why.as_str()]).inc();
        self.lost_holds.with_label_values(&[why.as_str()]).inc();
    }

    pub(crate) fn command(&self, word: &str, failed: bool, took: Duration) {
        let outcome = if failed { "error" } else { "ok" };
        self.commands.with_label_values(&[word, outcome]).inc();
        self.command_seconds.with_label_values(&[word]).observe(took.as_secs_f64());
    }
}

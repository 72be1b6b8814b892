//! Every figure of the agent. Recording one never blocks on anything but another recording, and never fails a lock.

mod make;
mod oldest;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};
use redisson::{Grouping, Kind, LockName};

use crate::policy::Denial;
use crate::protocol::command::Command;
use crate::types::End;

use make::{Maker, opts};
pub use oldest::Oldest;
use oldest::{Starts, end, start};

/// Waits: from what an idle socket takes to minutes. Twelve bounds at most, by the series budget.
const WAIT_BUCKETS: [f64; 11] =
    [0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0];
/// Holds: from a millisecond to hours.
const HOLD_BUCKETS: [f64; 11] =
    [0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14400.0];
/// Round trips to Redis and commands without a wait.
const ROUND_TRIP_BUCKETS: [f64; 11] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0];
/// How late a renewal was sent, how much validity was left when it succeeded: parts of leases.
const LEASE_BUCKETS: [f64; 11] = [0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0];

/// A script that was not sent, and one whose reply did not come: what a server itself says has words of its own.
pub const UNSENT: &str = "unsent";
pub const LOST: &str = "lost";

/// Why a connection is turned away.
pub const TOO_MANY_SESSIONS: &str = "max_sessions";

/// What a server of red locks may answer to an attempt.
const VOTES: [&str; 4] = ["granted", "refused", "unfit", "silent"];

/// What may come of a session's absence.
const RESUMED: [&str; 6] = ["resumed", "lapsed", "alive", "gone", "refused", "unconfirmed"];

const OUTCOMES: [&str; 6] = ["acquired", "reentered", "timeout", "cancelled", "denied", "error"];

/// The agent's figures.
#[derive(Debug)]
pub struct Figures {
    grouping: Mutex<Grouping>,
    acquisitions: IntCounterVec,
    wait_seconds: HistogramVec,
    hold_seconds: HistogramVec,
    holds: IntGaugeVec,
    waiters: IntGaugeVec,
    began: Mutex<Began>,
    oldest_hold: GaugeVec,
    oldest_wait: GaugeVec,
    handovers: IntCounterVec,
    lock_groups: IntGauge,
    renewals: IntCounterVec,
    locks_lost: IntCounterVec,
    lost_holds: IntCounterVec,
    doubts: IntCounterVec,
    commands: IntCounterVec,
    command_seconds: HistogramVec,
    /// True releases for fairness' sake.
    pub yields: IntCounter,
    /// Round trips of renewals.
    pub renewal_seconds: Histogram,
    /// How much later than planned renewals were sent.
    pub renewal_lateness: Histogram,
    /// Validity left when a renewal succeeded.
    pub renewal_margin: Histogram,
    /// Holds in jeopardy now.
    pub jeopardy_holds: IntGauge,
    /// Holds of dead workers that nobody else gets yet.
    pub delayed_holds: IntGauge,
    /// Sessions that hold or wait and whose process is stopped.
    pub frozen_sessions: IntGauge,
    /// Release channels listened to now.
    pub subscriptions: IntGauge,
    pub sessions: IntGauge,
    /// Sessions whose connection has gone, within their grace.
    pub away_sessions: IntGauge,
    /// What came of attempts to take sessions over, and of waiting for them.
    pub sessions_resumed: IntCounterVec,
    /// Times the journal could not be written.
    pub journal_errors: IntCounter,
    /// Locks that the policy denied, by what they failed at.
    pub policy_denials: IntCounterVec,
    /// Times the policy was to be read anew, by outcome.
    pub policy_reloads: IntCounterVec,
    pub sessions_opened: IntCounter,
    /// Connections turned away, by reason.
    pub sessions_rejected: IntCounterVec,
    /// Times a connection could not be taken, as when descriptors have run out.
    pub accept_failures: IntCounter,
    /// Events that a session left unread for too long.
    pub events_dropped: IntCounter,
    /// Times the agent or its host slept.
    pub sleeps: IntCounter,
    red_votes: IntCounterVec,
    /// Grants that replicas had to confirm, by outcome.
    pub confirmations: IntCounterVec,
    /// Connections to Redis made anew, by node.
    pub reconnects: IntCounterVec,
    /// Times another server was the master.
    pub master_changes: IntCounterVec,
    /// Whether Redis can be reached, by node.
    pub redis_up: IntGaugeVec,
    /// Whether Redis may evict locks when its memory is full, by node.
    pub redis_evicts: IntGaugeVec,
    /// Round trips of scripts.
    pub redis_seconds: HistogramVec,
    /// Scripts without a reply of their own, by node and the error's first word.
    pub redis_errors: IntCounterVec,
}

#[derive(Debug, Default)]
struct Began {
    holds: Starts,
    waits: Starts,
    /// The kinds of each group of which every outcome is there.
    kinds: HashMap<Arc<str>, Vec<Kind>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A figure half recorded is no reason to stop serving locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// Registers all figures. Those without a group are there at 0 from the start.
    ///
    /// # Errors
    /// When the registry already has one of that name.
    pub fn new(grouping: Grouping, registry: &Registry) -> prometheus::Result<Self> {
        let make = Maker(registry);
        let group = "lock_group";
        let figures = Self {
            grouping: Mutex::new(grouping),
            acquisitions: make.counters(
                "acquisitions_total",
                "LOCK commands by how they ended.",
                &[group, "kind", "outcome"],
            )?,
            wait_seconds: make.histograms(
                "wait_seconds",
                "Time from LOCK to its answer.",
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
            began: Mutex::default(),
            // Registered below: they are filled at each scrape.
            oldest_hold: GaugeVec::new(
                opts("oldest_hold_start_timestamp_seconds", "When the oldest hold of the group began; absent while nothing is held."),
                &[group],
            )?,
            oldest_wait: GaugeVec::new(
                opts("oldest_wait_start_timestamp_seconds", "When the longest wait of the group began; absent while nobody waits."),
                &[group],
            )?,
            handovers: make.counters(
                "handovers_total",
                "Locks passed from one local holder to the next without becoming free.",
                &[group],
            )?,
            lock_groups: make.gauge("lock_groups", "Lock groups seen, those in overflow included.")?,
            renewals: make.counters(
                "renewals_total",
                "Renewals by outcome: renewed, gone (the hold was not there any more), error (no answer).",
                &[group, "outcome"],
            )?,
            locks_lost: make.counters(
                "locks_lost_total",
                "Holds lost while their owner believed to have them, by reason.",
                &[group, "reason"],
            )?,
            lost_holds: make.counters("lost_holds_total", "The same of all groups together.", &["reason"])?,
            doubts: make.counters(
                "doubts_total",
                "Scripts whose reply was lost, by what turned out: applied, not_applied, undone_late (a late copy was removed).",
                &["outcome"],
            )?,
            commands: make.counters("commands_total", "Commands answered.", &["command", "outcome"])?,
            command_seconds: make.histograms(
                "command_seconds",
                "Time from a command's arrival to its answer, waits included.",
                &["command"],
                &ROUND_TRIP_BUCKETS,
            )?,
            yields: make.counter("yields_total", "True releases made so that other hosts have their turn.")?,
            renewal_seconds: make.histogram(
                "renewal_seconds",
                "Round trip of renewal scripts.",
                &ROUND_TRIP_BUCKETS,
            )?,
            renewal_lateness: make.histogram(
                "renewal_lateness_seconds",
                "How much later than planned renewals were sent.",
                &LEASE_BUCKETS,
            )?,
            renewal_margin: make.histogram(
                "renewal_margin_seconds",
                "Validity left when a renewal succeeded.",
                &LEASE_BUCKETS,
            )?,
            jeopardy_holds: make.gauge("jeopardy_holds", "Holds whose renewals fail, still valid.")?,
            delayed_holds: make.gauge(
                "delayed_holds",
                "Holds of dead workers that nobody else gets yet (--lock-delay).",
            )?,
            frozen_sessions: make.gauge(
                "frozen_sessions",
                "Sessions that hold or wait and whose process is stopped.",
            )?,
            subscriptions: make.gauge("subscriptions", "Release channels listened to.")?,
            sessions: make.gauge("sessions", "Connected workers.")?,
            away_sessions: make.gauge(
                "away_sessions",
                "Sessions whose connection has gone, within their grace.",
            )?,
            sessions_resumed: make.counters(
                "sessions_resumed_total",
                "RESUME commands by what came of them, and sessions that nobody came back for (lapsed).",
                &["outcome"],
            )?,
            journal_errors: make.counter(
                "journal_errors_total",
                "Times the journal of sessions with grace could not be written.",
            )?,
            policy_denials: make.counters(
                "policy_denials_total",
                "Locks that the policy denied, by what they failed at.",
                &["reason"],
            )?,
            policy_reloads: make.counters(
                "policy_reloads_total",
                "Times the policy was to be read anew: applied, or refused and the old one kept.",
                &["outcome"],
            )?,
            sessions_opened: make.counter("sessions_opened_total", "Connections taken.")?,
            sessions_rejected: make.counters(
                "sessions_rejected_total",
                "Connections turned away.",
                &["reason"],
            )?,
            accept_failures: make.counter(
                "accept_failures_total",
                "Times a connection could not be taken: it waits, and the agent tries again.",
            )?,
            events_dropped: make.counter(
                "events_dropped_total",
                "Events that sessions left unread for too long.",
            )?,
            sleeps: make.counter("sleeps_total", "Times the agent or its host slept beyond a third of a lease.")?,
            red_votes: make.counters(
                "red_votes_total",
                "What the servers of red locks answered to attempts: granted, refused (another holds it there), unfit (no such lock), silent (no answer in time).",
                &["node", "outcome"],
            )?,
            confirmations: make.counters(
                "confirmations_total",
                "Grants that replicas had to confirm, by whether enough did (--min-replicas).",
                &["outcome"],
            )?,
            reconnects: make.counters("reconnects_total", "Connections to Redis made anew.", &["node"])?,
            master_changes: make.counters(
                "master_changes_total",
                "Times the sentinels had made another server the master.",
                &["node"],
            )?,
            redis_up: make.gauges("redis_up", "Whether Redis answers.", &["node"])?,
            redis_evicts: make.gauges(
                "redis_evicts",
                "Whether Redis may evict locks when its memory is full.",
                &["node"],
            )?,
            redis_seconds: make.histograms(
                "redis_seconds",
                "Round trip of scripts.",
                &["script"],
                &ROUND_TRIP_BUCKETS,
            )?,
            redis_errors: make.counters(
                "redis_errors_total",
                "Scripts without a reply of their own.",
                &["node", "error"],
            )?,
        };
        for end in End::LOST {
            figures.lost_holds.with_label_values(&[end.as_str()]);
        }
        for reason in Denial::REASONS {
            figures.policy_denials.with_label_values(&[reason]);
        }
        for outcome in ["applied", "refused"] {
            figures.policy_reloads.with_label_values(&[outcome]);
        }
        for outcome in RESUMED {
            figures.sessions_resumed.with_label_values(&[outcome]);
        }
        for outcome in ["applied", "not_applied", "undone_late"] {
            figures.doubts.with_label_values(&[outcome]);
        }
        for outcome in ["confirmed", "too_few", "not_tried"] {
            figures.confirmations.with_label_values(&[outcome]);
        }
        figures.sessions_rejected.with_label_values(&[TOO_MANY_SESSIONS]);
        for word in Command::WORDS {
            for outcome in ["ok", "error"] {
                figures.commands.with_label_values(&[word, outcome]);
            }
        }
        Ok(figures)
    }

    /// The group that a lock is counted under. On its first sight the group's counters are there at 0.
    #[must_use]
    pub fn group(&self, name: &LockName) -> Arc<str> {
        let mut grouping = lock(&self.grouping);
        let label = grouping.label(name);
        self.lock_groups.set(i64::try_from(grouping.true_count()).unwrap_or(i64::MAX));
        drop(grouping);
        let mut began = lock(&self.began);
        if !began.holds.contains_key(&label) {
            began.holds.insert(Arc::clone(&label), BTreeMap::new());
            began.waits.insert(Arc::clone(&label), BTreeMap::new());
            began.kinds.insert(Arc::clone(&label), vec![Kind::Lock]);
            drop(began);
            self.all_outcomes(&label, Kind::Lock);
            for end in End::LOST {
                self.locks_lost.with_label_values(&[&*label, end.as_str()]);
            }
            for outcome in ["renewed", "gone", "error"] {
                self.renewals.with_label_values(&[&*label, outcome]);
            }
            self.handovers.with_label_values(&[&*label]);
        }
        label
    }

    /// At 0, so that the first of each shows as an increase.
    fn all_outcomes(&self, group: &str, kind: Kind) {
        for outcome in OUTCOMES {
            self.acquisitions.with_label_values(&[group, kind.as_str(), outcome]);
        }
    }

    /// A LOCK ended.
    pub fn acquisition(&self, group: &str, kind: Kind, outcome: &str) {
        self.acquisitions.with_label_values(&[group, kind.as_str(), outcome]).inc();
    }

    /// How long it waited.
    pub fn waited(&self, group: &str, outcome: &str, wait: Duration) {
        self.wait_seconds.with_label_values(&[group, outcome]).observe(wait.as_secs_f64());
    }

    /// A wait began.
    pub fn wait_began(&self, group: &Arc<str>, kind: Kind, number: i64) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).inc();
        let mut began = lock(&self.began);
        start(&mut began.waits, group, number);
        if let Some(kinds) = began.kinds.get_mut(group).filter(|kinds| !kinds.contains(&kind)) {
            kinds.push(kind);
            drop(began);
            self.all_outcomes(group, kind);
        }
    }

    /// A wait ended.
    pub fn wait_ended(&self, group: &Arc<str>, kind: Kind, number: i64) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).dec();
        end(&mut lock(&self.began).waits, group, number);
    }

    /// A hold began.
    pub fn hold_began(&self, group: &Arc<str>, kind: Kind, number: i64) {
        self.holds.with_label_values(&[&**group, kind.as_str()]).inc();
        start(&mut lock(&self.began).holds, group, number);
    }

    /// A hold ended after that long.
    pub fn hold_ended(&self, group: &Arc<str>, kind: Kind, number: i64, why: End, held: Duration) {
        self.holds.with_label_values(&[&**group, kind.as_str()]).dec();
        end(&mut lock(&self.began).holds, group, number);
        let label = match why {
            End::Released => "released",
            End::Disconnected => "disconnected",
            why if why.is_loss() => "lost",
            _ => "other",
        };
        self.hold_seconds.with_label_values(&[&**group, label]).observe(held.as_secs_f64());
    }

    /// There is a server of that name: what is counted of it is there at 0.
    pub fn server(&self, node: &str, red: bool) {
        self.redis_up.with_label_values(&[node]).set(0);
        self.reconnects.with_label_values(&[node]);
        self.master_changes.with_label_values(&[node]);
        for error in [UNSENT, LOST] {
            self.redis_errors.with_label_values(&[node, error]);
        }
        for vote in VOTES.into_iter().filter(|_| red) {
            self.red_votes.with_label_values(&[node, vote]);
        }
    }

    /// A server is one of ours no longer: it is neither up nor down. What was counted stays counted.
    pub fn server_gone(&self, node: &str) {
        // Of a server that was never connected to not all is there.
        self.redis_up.remove_label_values(&[node]).ok();
        self.redis_evicts.remove_label_values(&[node]).ok();
    }

    /// A server of red locks answered an attempt, or did not.
    pub fn red_vote(&self, node: &str, outcome: &str) {
        self.red_votes.with_label_values(&[node, outcome]).inc();
    }

    /// Replicas confirmed a grant, or did not.
    pub fn confirmation(&self, outcome: &str) {
        self.confirmations.with_label_values(&[outcome]).inc();
    }

    /// A lock was passed on locally.
    pub fn handover(&self, group: &str) {
        self.handovers.with_label_values(&[group]).inc();
    }

    /// So many holds were renewed, or not.
    pub fn renewals(&self, group: &str, outcome: &str, count: u64) {
        self.renewals.with_label_values(&[group, outcome]).inc_by(count);
    }

    /// A hold was lost.
    pub fn lost(&self, group: &str, why: End) {
        self.locks_lost.with_label_values(&[group, why.as_str()]).inc();
        self.lost_holds.with_label_values(&[why.as_str()]).inc();
    }

    /// A lost reply was cleared up.
    pub fn doubt(&self, outcome: &str) {
        self.doubts.with_label_values(&[outcome]).inc();
    }

    /// A command was answered.
    pub fn command(&self, word: &str, failed: bool, took: Duration) {
        let outcome = if failed { "error" } else { "ok" };
        self.commands.with_label_values(&[word, outcome]).inc();
        self.command_seconds.with_label_values(&[word]).observe(took.as_secs_f64());
    }
}

//! The metrics of each Redis server.

use std::collections::VecDeque;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::proto::Metric;
use prometheus::{IntCounterVec, IntGaugeVec};
use service_kit::metrics::Registrar;

use super::{LOST, UNSENT};

/// The maximum number of servers that are no longer in use whose counters stay. The nodes of a cluster may get other
/// addresses with each restart.
const MAX_GONE: usize = 16;

/// The answers of a server of red locks to an attempt.
const VOTES: [&str; 4] = ["granted", "refused", "unfit", "silent"];

/// The batches that replicas of a server must confirm, with their outcomes.
const BATCHES: [(&str, &str); 4] = [
    ("grants", "confirmed"),
    ("grants", "unconfirmed"),
    ("renewals", "confirmed"),
    ("renewals", "unconfirmed"),
];

#[derive(Debug)]
pub(crate) struct ServerMetrics {
    pub(crate) reconnects: IntCounterVec,
    pub(crate) master_changes: IntCounterVec,
    pub(crate) redis_up: IntGaugeVec,
    /// 1 for servers that may evict locks when their memory is full.
    pub(crate) redis_evicts: IntGaugeVec,
    /// Failed scripts by node and the first word of the error.
    pub(crate) redis_errors: IntCounterVec,
    pub(super) red_votes: IntCounterVec,
    replica_batches: IntCounterVec,
    replicas_acknowledged: IntGaugeVec,
    redis_server_info: IntGaugeVec,
    unserved_slots: IntGaugeVec,
    /// The servers that are no longer in use and still have counters, oldest first.
    gone: Mutex<VecDeque<String>>,
    /// The name shared by all agents of one set of locks.
    deployment: String,
}

impl ServerMetrics {
    pub(super) fn new(make: Registrar<'_>, deployment: &str) -> prometheus::Result<Self> {
        Ok(Self {
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
            redis_errors: make.counters(
                "redis_errors_total",
                "Failed scripts.",
                &["node", "error"],
            )?,
            red_votes: make.counters(
                "red_votes_total",
                "Answers of the servers of red locks to attempts: granted, refused (another holder has it), unfit (not such a lock), silent (no reply in time, or no connection).",
                &["node", "outcome"],
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
            gone: Mutex::default(),
            deployment: deployment.to_owned(),
        })
    }

    /// Creates the metrics of a server at 0.
    pub(crate) fn add(&self, node: &str, red: bool) {
        self.gone.lock().retain(|gone| gone != node);
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

    /// Removes the gauges of a server that is no longer in use. Its counters stay for later scrapes until [`MAX_GONE`] more
    /// servers are gone.
    pub(crate) fn remove(&self, node: &str) {
        let mut gone = self.gone.lock();
        // A server that was never connected lacks some of them.
        self.redis_up.remove_label_values(&[node]).ok();
        self.redis_evicts.remove_label_values(&[node]).ok();
        self.replicas_acknowledged.remove_label_values(&[node]).ok();
        gone.push_back(node.to_owned());
        let oldest = if gone.len() > MAX_GONE { gone.pop_front() } else { None };
        drop(gone);
        if let Some(oldest) = oldest {
            self.remove_counters(&oldest);
        }
    }

    fn remove_counters(&self, node: &str) {
        // It may lack some of them.
        self.reconnects.remove_label_values(&[node]).ok();
        self.master_changes.remove_label_values(&[node]).ok();
        for (batch, outcome) in BATCHES {
            self.replica_batches.remove_label_values(&[node, batch, outcome]).ok();
        }
        for family in self.redis_errors.collect() {
            for labels in family.get_metric().iter().map(Metric::get_label) {
                let value = |name| labels.iter().find(|pair| pair.name() == name);
                if value("node").is_some_and(|pair| pair.value() == node)
                    && let Some(error) = value("error")
                {
                    self.redis_errors.remove_label_values(&[node, error.value()]).ok();
                }
            }
        }
    }

    /// Exports which server a connection leads to, in place of `before`.
    pub(crate) fn identify(&self, node: &str, db: &str, before: Option<&str>, run_id: &str) {
        let info = &self.redis_server_info;
        if let Some(before) = before {
            info.remove_label_values(&[&*self.deployment, node, before, db]).ok();
        }
        info.with_label_values(&[&*self.deployment, node, run_id, db]).set(1);
    }

    /// Records how many slots of the cluster no node serves.
    pub(crate) fn set_unserved_slots(&self, slots: u32) {
        self.unserved_slots.with_label_values(&[&*self.deployment]).set(slots.into());
    }

    /// Creates the metrics of batches that replicas of a server must confirm at 0.
    pub(crate) fn add_replicated(&self, node: &str) {
        for (batch, outcome) in BATCHES {
            self.replica_batches.with_label_values(&[node, batch, outcome]);
        }
        self.replicas_acknowledged.with_label_values(&[node]).set(0);
    }

    /// Counts a batch of scripts that replicas had to confirm, and records how many did, unless the server is gone.
    pub(crate) fn on_replica_batch(&self, node: &str, batch: &str, outcome: &str, replicas: u32) {
        let gone = self.gone.lock();
        if gone.iter().any(|gone| gone == node) {
            return;
        }
        self.replica_batches.with_label_values(&[node, batch, outcome]).inc();
        self.replicas_acknowledged.with_label_values(&[node]).set(i64::from(replicas));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn servers_that_never_return_leave_a_bounded_number_of_series() {
        let registry = Registry::new();
        let servers = ServerMetrics::new(Registrar::new(&registry, "agent"), "default").unwrap();
        let exported = |node: &str| {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            text.matches(&format!("node=\"{node}\"")).count()
        };
        let address = |number: usize| format!("10.0.0.{number}:6379");
        let serve = |number: usize| {
            let node = address(number);
            servers.add(&node, false);
            servers.add_replicated(&node);
            servers.redis_up.with_label_values(&[&*node]).set(1);
            servers.redis_errors.with_label_values(&[&*node, "READONLY"]).inc();
            exported(&node)
        };
        let in_use = serve(0);
        servers.remove(&address(0));
        let counters = exported(&address(0));
        assert!(counters > 5 && counters < in_use, "{counters} of {in_use}");
        servers.on_replica_batch(&address(0), "grants", "confirmed", 1);
        assert_eq!(exported(&address(0)), counters, "a late answer restores no gauge");
        serve(0);
        for number in 1..=MAX_GONE {
            serve(number);
            servers.remove(&address(number));
        }
        assert_eq!((exported(&address(0)), exported(&address(1))), (in_use, counters));
        servers.remove(&address(0));
        assert_eq!((exported(&address(0)), exported(&address(1))), (counters, 0));
    }
}

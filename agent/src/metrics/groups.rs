//! The metrics of each lock group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use redisson::{Kind, Moment};
use service_kit::metrics::Registrar;

use crate::collections::HashMap;
use crate::types::{End, Number};

const GROUP: &str = "lock_group";

/// Waits: from a round trip over an idle socket to minutes. The series budget allows at most twelve bounds.
const WAIT_BUCKETS: [f64; 11] =
    [0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0];
/// Holds: from a millisecond to hours.
const HOLD_BUCKETS: [f64; 11] =
    [0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14400.0];
const LOCK_OUTCOMES: [&str; 7] =
    ["acquired", "reentered", "timeout", "busy", "cancelled", "denied", "error"];

/// The start of a hold or wait by the boot clock, which is never set, and its number.
type Start = (Moment, Number);

/// The starts of the holds or waits of each group.
type Starts = HashMap<Arc<str>, BTreeSet<Start>>;

#[derive(Debug)]
pub(super) struct GroupMetrics {
    pub(super) acquisitions: IntCounterVec,
    pub(super) wait_seconds: HistogramVec,
    hold_seconds: HistogramVec,
    holds: IntGaugeVec,
    waiters: IntGaugeVec,
    active: Arc<Mutex<Active>>,
    pub(super) handovers: IntCounterVec,
    lock_groups: IntGauge,
    pub(super) renewals: IntCounterVec,
    locks_lost: IntCounterVec,
    pub(super) lease_overruns: IntCounterVec,
}

/// The holds and waits in progress.
#[derive(Debug, Default)]
struct Active {
    holds: Starts,
    waits: Starts,
    /// The kinds of each group whose outcome counters exist.
    kinds: HashMap<Arc<str>, Vec<Kind>>,
}

impl GroupMetrics {
    pub(super) fn new(make: Registrar<'_>) -> prometheus::Result<Self> {
        let active = Arc::default();
        make.register(OldestCollector::new(make, Arc::clone(&active)))?;
        Ok(Self {
            acquisitions: make.counters(
                "acquisitions_total",
                "LOCK commands by outcome.",
                &[GROUP, "kind", "outcome"],
            )?,
            wait_seconds: make.histograms(
                "wait_seconds",
                "Time from LOCK to its reply.",
                &[GROUP, "outcome"],
                &WAIT_BUCKETS,
            )?,
            hold_seconds: make.histograms(
                "hold_seconds",
                "Time from grant to end of holds.",
                &[GROUP, "end"],
                &HOLD_BUCKETS,
            )?,
            holds: make.gauges("holds", "Locks held now.", &[GROUP, "kind"])?,
            waiters: make.gauges("waiters", "LOCK commands waiting now.", &[GROUP, "kind"])?,
            active,
            handovers: make.counters(
                "handovers_total",
                "Locks handed over from one local holder to the next without becoming free.",
                &[GROUP],
            )?,
            lock_groups: make.gauge("lock_groups", "Lock groups seen, including those in overflow.")?,
            renewals: make.counters(
                "renewals_total",
                "Renewals by outcome: renewed, unconfirmed (too few replicas have it), verified (a fixed lease, which is not renewed), gone (the hold no longer existed), error (no reply).",
                &[GROUP, "outcome"],
            )?,
            locks_lost: make.counters(
                "locks_lost_total",
                "Holds lost while their owner relied on them, by reason.",
                &[GROUP, "reason"],
            )?,
            lease_overruns: make.counters(
                "lease_overruns_total",
                "Holds whose fixed lease ran out before their owner released them.",
                &[GROUP],
            )?,
        })
    }

    /// Counts the groups seen. The counters of a new group start at 0.
    pub(super) fn seen(&self, label: &Arc<str>, groups: usize) {
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

    pub(super) fn wait_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).inc();
        let mut active = self.active.lock();
        begin(&mut active.waits, group, start);
        if let Some(kinds) = active.kinds.get_mut(group).filter(|kinds| !kinds.contains(&kind)) {
            kinds.push(kind);
            drop(active);
            self.create_outcomes(group, kind);
        }
    }

    pub(super) fn wait_ended(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.waiters.with_label_values(&[&**group, kind.as_str()]).dec();
        end(&mut self.active.lock().waits, group, start);
    }

    pub(super) fn hold_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.holds.with_label_values(&[&**group, kind.as_str()]).inc();
        begin(&mut self.active.lock().holds, group, start);
    }

    pub(super) fn hold_ended(
        &self,
        group: &Arc<str>,
        kind: Kind,
        start: Start,
        why: End,
        held: Duration,
    ) {
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

    pub(super) fn lost(&self, group: &str, why: End) {
        self.locks_lost.with_label_values(&[group, why.as_str()]).inc();
    }
}

fn begin(starts: &mut Starts, group: &Arc<str>, start: Start) {
    starts.entry(Arc::clone(group)).or_default().insert(start);
}

fn end(starts: &mut Starts, group: &Arc<str>, start: Start) {
    if let Some(group) = starts.get_mut(group) {
        group.remove(&start);
    }
}

/// Collects the start of the oldest hold and wait at each scrape; absent, not 0, while there is none.
#[derive(Clone)]
struct OldestCollector {
    active: Arc<Mutex<Active>>,
    hold: GaugeVec,
    wait: GaugeVec,
}

impl OldestCollector {
    fn new(make: Registrar<'_>, active: Arc<Mutex<Active>>) -> prometheus::Result<Self> {
        Ok(Self {
            active,
            hold: GaugeVec::new(
                make.opts(
                    "oldest_hold_start_timestamp_seconds",
                    "Start of the oldest hold of the group; absent while nothing is held.",
                ),
                &[GROUP],
            )?,
            wait: GaugeVec::new(
                make.opts(
                    "oldest_wait_start_timestamp_seconds",
                    "Start of the oldest wait of the group; absent while nothing waits.",
                ),
                &[GROUP],
            )?,
        })
    }

    fn fill(gauges: &GaugeVec, starts: &Starts) {
        gauges.reset();
        // Converted with the current wall clock, against which readers compare it.
        let booted = service_kit::clock::boot_epoch_millis();
        for (group, starts) in starts {
            if let Some((first, _)) = starts.first() {
                let gauge: Gauge = gauges.with_label_values(&[&**group]);
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "epoch milliseconds fit into 53 bits"
                )]
                gauge.set((booted + first.as_micros() / 1_000) as f64 / 1000.0);
            }
        }
    }
}

impl Collector for OldestCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.hold.desc(), self.wait.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let active = self.active.lock();
        Self::fill(&self.hold, &active.holds);
        Self::fill(&self.wait, &active.waits);
        drop(active);
        [self.hold.collect(), self.wait.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;

    use super::*;
    use crate::core::Report;
    use crate::metrics::Metrics;

    #[test]
    fn the_oldest_hold_is_the_one_granted_first_whatever_its_number_and_the_agents_start() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry, "default").unwrap();
        let booted = Duration::from_millis(service_kit::clock::boot_epoch_millis());
        let started = || {
            let families = registry.gather();
            let name = "lockscope_agent_oldest_hold_start_timestamp_seconds";
            let oldest = families.iter().find(|family| family.name() == name)?;
            let first = oldest.get_metric().first()?;
            // Setting the clock of the host would move it.
            Some((first.get_gauge().get_value() - booted.as_secs_f64()).round())
        };
        let group: Arc<str> = "orders:*".into();
        let granted = |seconds: u64| Moment::from_micros(seconds * 1_000_000);
        // The second number was drawn first, and had to wait. The third belongs to an earlier run of the agent.
        for (number, at) in [(8, 100), (7, 160), (1, 20)] {
            metrics.apply(&Report::HoldBegan {
                group: Arc::clone(&group),
                kind: Kind::Lock,
                number,
                granted: granted(at),
            });
        }
        let end = |number, at| {
            metrics.apply(&Report::HoldEnded {
                group: Arc::clone(&group),
                kind: Kind::Lock,
                number,
                granted: granted(at),
                end: End::Released,
                held: Duration::ZERO,
            });
        };
        assert_eq!(started(), Some(20.0));
        end(1, 20);
        assert_eq!(started(), Some(100.0));
        end(8, 100);
        assert_eq!(started(), Some(160.0));
        end(7, 160);
        assert_eq!(started(), None);
    }
}

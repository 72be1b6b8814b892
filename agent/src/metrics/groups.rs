//! The metrics of each lock group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
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

/// The holds and waits in progress of each group, by kind. A group keeps its kinds.
type Active = HashMap<Arc<str>, Vec<ActiveOfKind>>;

#[derive(Debug)]
struct ActiveOfKind {
    kind: Kind,
    holds: BTreeSet<Start>,
    waits: BTreeSet<Start>,
}

#[derive(Debug)]
pub(super) struct GroupMetrics {
    pub(super) acquisitions: IntCounterVec,
    pub(super) wait_seconds: HistogramVec,
    hold_seconds: HistogramVec,
    active: Arc<Mutex<Active>>,
    pub(super) handovers: IntCounterVec,
    lock_groups: IntGauge,
    pub(super) renewals: IntCounterVec,
    locks_lost: IntCounterVec,
    pub(super) lease_overruns: IntCounterVec,
}

impl GroupMetrics {
    pub(super) fn new(make: Registrar<'_>) -> prometheus::Result<Self> {
        let active = Arc::default();
        make.register(ActiveCollector::new(make, Arc::clone(&active)))?;
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
        if self.active.lock().contains_key(label) {
            return;
        }
        self.change(label, Kind::Lock, |_| {});
        for end in End::LOST {
            self.locks_lost.with_label_values(&[&**label, end.as_str()]);
        }
        for outcome in ["renewed", "unconfirmed", "verified", "gone", "error"] {
            self.renewals.with_label_values(&[&**label, outcome]);
        }
        self.handovers.with_label_values(&[&**label]);
        self.lease_overruns.with_label_values(&[&**label]);
    }

    /// Changes the holds and waits of a kind. The counters of a new kind start at 0, so that the first of each outcome is
    /// visible as an increase.
    fn change(&self, group: &Arc<str>, kind: Kind, change: impl FnOnce(&mut ActiveOfKind)) {
        let mut active = self.active.lock();
        if let Some(kinds) = active.get_mut(group)
            && let Some(known) = kinds.iter_mut().find(|known| known.kind == kind)
        {
            return change(known);
        }
        let mut new = ActiveOfKind { kind, holds: BTreeSet::new(), waits: BTreeSet::new() };
        change(&mut new);
        active.entry(Arc::clone(group)).or_default().push(new);
        drop(active);
        for outcome in LOCK_OUTCOMES {
            self.acquisitions.with_label_values(&[&**group, kind.as_str(), outcome]);
        }
    }

    pub(super) fn wait_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.change(group, kind, |active| {
            active.waits.insert(start);
        });
    }

    pub(super) fn wait_ended(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.change(group, kind, |active| {
            active.waits.remove(&start);
        });
    }

    pub(super) fn hold_began(&self, group: &Arc<str>, kind: Kind, start: Start) {
        self.change(group, kind, |active| {
            active.holds.insert(start);
        });
    }

    pub(super) fn hold_ended(
        &self,
        group: &Arc<str>,
        kind: Kind,
        start: Start,
        why: End,
        held: Duration,
    ) {
        self.change(group, kind, |active| {
            active.holds.remove(&start);
        });
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

/// Collects the number of holds and waits at each scrape, and the start of the oldest one: absent, not 0, while there is none.
#[derive(Clone)]
struct ActiveCollector {
    active: Arc<Mutex<Active>>,
    holds: IntGaugeVec,
    waiters: IntGaugeVec,
    oldest_hold: GaugeVec,
    oldest_wait: GaugeVec,
}

impl ActiveCollector {
    fn new(make: Registrar<'_>, active: Arc<Mutex<Active>>) -> prometheus::Result<Self> {
        let count = |name, help| IntGaugeVec::new(make.opts(name, help), &[GROUP, "kind"]);
        let oldest = |name, help| GaugeVec::new(make.opts(name, help), &[GROUP]);
        Ok(Self {
            active,
            holds: count("holds", "Locks held now.")?,
            waiters: count("waiters", "LOCK commands waiting now.")?,
            oldest_hold: oldest(
                "oldest_hold_start_timestamp_seconds",
                "Start of the oldest hold of the group; absent while nothing is held.",
            )?,
            oldest_wait: oldest(
                "oldest_wait_start_timestamp_seconds",
                "Start of the oldest wait of the group; absent while nothing waits.",
            )?,
        })
    }

    /// Sets the gauges to the current numbers and starts.
    fn set_gauges(&self) {
        self.oldest_hold.reset();
        self.oldest_wait.reset();
        // Converted with the current wall clock, against which readers compare it.
        let booted = service_kit::clock::boot_epoch_millis();
        let show_start = |gauges: &GaugeVec, group: &str, start: Option<&Start>| {
            if let Some((start, _)) = start {
                let millis = booted + start.as_micros() / 1_000;
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "epoch milliseconds fit into 53 bits"
                )]
                gauges.with_label_values(&[group]).set(millis as f64 / 1000.0);
            }
        };
        for (group, kinds) in &*self.active.lock() {
            for ActiveOfKind { kind, holds, waits } in kinds {
                let labels = [&**group, kind.as_str()];
                for (gauge, active) in [(&self.holds, holds), (&self.waiters, waits)] {
                    let count = i64::try_from(active.len()).unwrap_or(i64::MAX);
                    gauge.with_label_values(&labels).set(count);
                }
            }
            let oldest_hold = kinds.iter().filter_map(|of_kind| of_kind.holds.first()).min();
            let oldest_wait = kinds.iter().filter_map(|of_kind| of_kind.waits.first()).min();
            show_start(&self.oldest_hold, group, oldest_hold);
            show_start(&self.oldest_wait, group, oldest_wait);
        }
    }
}

impl Collector for ActiveCollector {
    fn desc(&self) -> Vec<&Desc> {
        let [holds, waiters] = [self.holds.desc(), self.waiters.desc()];
        [holds, waiters, self.oldest_hold.desc(), self.oldest_wait.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.set_gauges();
        let [holds, waiters] = [self.holds.collect(), self.waiters.collect()];
        [holds, waiters, self.oldest_hold.collect(), self.oldest_wait.collect()].concat()
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
    fn the_oldest_hold_is_the_one_granted_first_whatever_its_number_kind_and_the_agents_start() {
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
        let kind = |number| if number == 1 { Kind::Fair } else { Kind::Lock };
        // The second number was drawn first, and had to wait. The third belongs to an earlier run of the agent.
        for (number, at) in [(8, 100), (7, 160), (1, 20)] {
            metrics.apply(&Report::HoldBegan {
                group: Arc::clone(&group),
                kind: kind(number),
                number,
                granted: granted(at),
            });
        }
        let end = |number, at| {
            metrics.apply(&Report::HoldEnded {
                group: Arc::clone(&group),
                kind: kind(number),
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

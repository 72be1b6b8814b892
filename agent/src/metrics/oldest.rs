//! The start of the oldest hold and the oldest wait of each group.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec};

use super::{Metrics, lock};
use crate::collections::HashMap;

/// The start of each hold or wait by group and number, in milliseconds of the boot clock, which is never set. Numbers
/// grow, so the first of a group is its oldest.
pub(super) type Starts = HashMap<Arc<str>, BTreeMap<i64, u64>>;

pub(super) fn start(starts: &mut Starts, group: &Arc<str>, number: i64) {
    let now = service_kit::clock::boot_micros() / 1_000;
    starts.entry(Arc::clone(group)).or_default().insert(number, now);
}

pub(super) fn end(starts: &mut Starts, group: &Arc<str>, number: i64) {
    if let Some(group) = starts.get_mut(group) {
        group.remove(&number);
    }
}

/// Collects the start of the oldest hold and wait at each scrape; absent, not 0, while there is none.
#[derive(Debug)]
pub struct OldestCollector(pub Arc<Metrics>);

impl OldestCollector {
    fn fill(gauges: &GaugeVec, starts: &Starts) {
        gauges.reset();
        // Converted with the current wall clock, against which readers compare it.
        let booted = service_kit::clock::boot_epoch_millis();
        for (group, starts) in starts {
            if let Some(first) = starts.values().next() {
                let gauge: Gauge = gauges.with_label_values(&[&**group]);
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "epoch milliseconds fit into 53 bits"
                )]
                gauge.set((booted + first) as f64 / 1000.0);
            }
        }
    }
}

impl Collector for OldestCollector {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        [self.0.oldest_hold.desc(), self.0.oldest_wait.desc()].concat()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let active = lock(&self.0.active);
        Self::fill(&self.0.oldest_hold, &active.holds);
        Self::fill(&self.0.oldest_wait, &active.waits);
        drop(active);
        [self.0.oldest_hold.collect(), self.0.oldest_wait.collect()].concat()
    }
}

//! Since when the oldest hold and the oldest wait of each group last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec};

use super::{Metrics, lock};

/// When what is going on began, in milliseconds of the boot clock, which nobody sets; numbers grow, so the first of a
/// group is its oldest.
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

/// Collects the starts of the oldest holds and waits at each scrape: absent, not 0, while there are none.
#[derive(Debug)]
pub struct Oldest(pub Arc<Metrics>);

impl Oldest {
    fn fill(gauges: &GaugeVec, starts: &Starts) {
        gauges.reset();
        // By the clock on the wall as it is now: whoever reads it compares it with theirs.
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

impl Collector for Oldest {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        [self.0.oldest_hold.desc(), self.0.oldest_wait.desc()].concat()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let began = lock(&self.0.began);
        Self::fill(&self.0.oldest_hold, &began.holds);
        Self::fill(&self.0.oldest_wait, &began.waits);
        drop(began);
        [self.0.oldest_hold.collect(), self.0.oldest_wait.collect()].concat()
    }
}

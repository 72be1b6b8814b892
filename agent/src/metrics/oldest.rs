//! The start of the oldest hold and the oldest wait of each group.

use std::collections::BTreeSet;
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec};
use redisson::Moment;

use super::Metrics;
use crate::collections::HashMap;
use crate::types::Number;

/// The start of a hold or wait by the boot clock, which is never set, and its number.
pub(super) type Start = (Moment, Number);

/// The starts of the holds or waits of each group.
pub(super) type Starts = HashMap<Arc<str>, BTreeSet<Start>>;

pub(super) fn begin(starts: &mut Starts, group: &Arc<str>, start: Start) {
    starts.entry(Arc::clone(group)).or_default().insert(start);
}

pub(super) fn end(starts: &mut Starts, group: &Arc<str>, start: Start) {
    if let Some(group) = starts.get_mut(group) {
        group.remove(&start);
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
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        [self.0.oldest_hold.desc(), self.0.oldest_wait.desc()].concat()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let active = self.0.active.lock();
        Self::fill(&self.0.oldest_hold, &active.holds);
        Self::fill(&self.0.oldest_wait, &active.waits);
        drop(active);
        [self.0.oldest_hold.collect(), self.0.oldest_wait.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;
    use redisson::Kind;

    use super::*;
    use crate::core::Report;
    use crate::types::End;

    #[test]
    fn the_oldest_hold_is_the_one_granted_first_whatever_its_number_and_the_agents_start() {
        let metrics = Arc::new(Metrics::new(&Registry::new(), "default").unwrap());
        let oldest = OldestCollector(Arc::clone(&metrics));
        let booted = Duration::from_millis(service_kit::clock::boot_epoch_millis());
        let started = || {
            let families = oldest.collect();
            let first = families[0].get_metric().first()?;
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

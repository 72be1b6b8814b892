//! Counters that sources and streams update themselves. [`crate::exporter`] reads all other metrics from the model.

use std::time::Duration;

use prometheus::{
    CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use redisson::monitor::LineCounts;

/// The prefix of every metric's name.
pub const PREFIX: &str = "lockscope_dashboard";

/// Returns the options of a metric by its name without the prefix, and its help.
#[must_use]
pub fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}_{name}"), help)
}

/// The metrics of scans of all keys.
#[derive(Debug, Clone)]
pub struct ScanMetrics {
    seconds: HistogramVec,
    keys: IntCounterVec,
    unreadable: IntGaugeVec,
}

/// The metrics of scans for one node.
#[derive(Debug, Clone)]
pub struct ScanNodeMetrics {
    /// The durations of complete scans.
    pub seconds: Histogram,
    /// The number of keys that were scanned.
    pub keys: IntCounter,
    /// The number of hashes that the account may not read.
    pub unreadable: IntGauge,
}

impl ScanMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// If the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let buckets = vec![0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0];
        let seconds = HistogramVec::new(
            HistogramOpts::from(opts("scan_seconds", "Duration of a scan of all keys."))
                .buckets(buckets),
            &["node"],
        )?;
        let keys = IntCounterVec::new(
            opts("scan_keys_total", "Approximate number of keys that scans visited."),
            &["node"],
        )?;
        let unreadable = IntGaugeVec::new(
            opts(
                "scan_unreadable_keys",
                "Hashes that the account may not read, counted in the latest scan.",
            ),
            &["node"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(keys.clone()))?;
        registry.register(Box::new(unreadable.clone()))?;
        Ok(Self { seconds, keys, unreadable })
    }

    /// Returns the metrics of one node.
    #[must_use]
    pub fn of(&self, node: &str) -> ScanNodeMetrics {
        ScanNodeMetrics {
            seconds: self.seconds.with_label_values(&[node]),
            keys: self.keys.with_label_values(&[node]),
            unreadable: self.unreadable.with_label_values(&[node]),
        }
    }

    /// Removes the metrics of a node that is no longer watched.
    pub fn forget(&self, node: &str) {
        // The removal fails if nothing was counted for the node, which does no harm.
        drop(self.seconds.remove_label_values(&[node]));
        drop(self.keys.remove_label_values(&[node]));
        drop(self.unreadable.remove_label_values(&[node]));
    }
}

/// The metrics of MONITOR.
#[derive(Debug, Clone)]
pub struct MonitorMetrics {
    lines: IntCounterVec,
    active: CounterVec,
}

/// The metrics of MONITOR for one node.
#[derive(Debug, Clone)]
pub struct MonitorNodeMetrics {
    lock: IntCounter,
    other: IntCounter,
    garbage: IntCounter,
    cut: IntCounter,
    active: CounterVec,
    node: String,
}

impl MonitorMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// If the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = ["node", "outcome"];
        let lines = IntCounterVec::new(
            opts("monitor_lines_total", "Lines of MONITOR, by outcome."),
            &labels,
        )?;
        let active = CounterVec::new(
            opts(
                "monitor_active_seconds_total",
                "Seconds for which MONITOR was on, by the reason.",
            ),
            &labels,
        )?;
        registry.register(Box::new(lines.clone()))?;
        registry.register(Box::new(active.clone()))?;
        Ok(Self { lines, active })
    }

    /// Returns the metrics of one node.
    #[must_use]
    pub fn of(&self, node: &str) -> MonitorNodeMetrics {
        let lines = |outcome| self.lines.with_label_values(&[node, outcome]);
        MonitorNodeMetrics {
            lock: lines("lock"),
            other: lines("other"),
            garbage: lines("garbage"),
            cut: lines("cut"),
            active: self.active.clone(),
            node: node.to_owned(),
        }
    }

    /// Removes the metrics of a node that is no longer watched.
    pub fn forget(&self, node: &str) {
        // The removal fails if nothing was counted for the node, which does no harm.
        for outcome in ["lock", "other", "garbage", "cut"] {
            drop(self.lines.remove_label_values(&[node, outcome]));
        }
        for why in ["auto", "on", "watch", "unbounded"] {
            drop(self.active.remove_label_values(&[node, why]));
        }
    }
}

impl MonitorNodeMetrics {
    /// Counts the lines since the last count.
    pub fn count(&self, last: LineCounts, now: LineCounts) {
        for (counter, last, now) in [
            (&self.lock, last.lock, now.lock),
            (&self.other, last.other, now.other),
            (&self.garbage, last.garbage, now.garbage),
            (&self.cut, last.cut, now.cut),
        ] {
            if now > last {
                counter.inc_by(now - last);
            }
        }
    }

    /// Adds time for which MONITOR was on. `why` is `auto`, `on`, `watch` or `unbounded`.
    pub fn active(&self, why: &str, time: Duration) {
        self.active.with_label_values(&[&*self.node, why]).inc_by(time.as_secs_f64());
    }
}

/// The metrics of streams.
#[derive(Debug, Clone)]
pub struct StreamMetrics {
    /// The number of open event streams of pages and of the API.
    pub open: IntGauge,
    /// The memory of open pages, in bytes.
    pub page_bytes: IntGauge,
    /// The number of streams that had to send everything again.
    pub resyncs: IntCounter,
}

impl StreamMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// If the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let open = IntGauge::with_opts(opts("streams", "Open event streams."))?;
        let page_bytes =
            IntGauge::with_opts(opts("open_page_bytes", "Memory of open pages, in bytes."))?;
        let resyncs = IntCounter::with_opts(opts(
            "stream_resyncs_total",
            "Streams that fell behind or reconnected late, and received the full state.",
        ))?;
        registry.register(Box::new(open.clone()))?;
        registry.register(Box::new(page_bytes.clone()))?;
        registry.register(Box::new(resyncs.clone()))?;
        Ok(Self { open, page_bytes, resyncs })
    }
}

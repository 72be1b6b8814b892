//! Counters that sources and streams update themselves. [`crate::exporter`] reads all other metrics from the model.

use std::time::Duration;

use prometheus::{
    CounterVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};
use redisson::monitor::LineCounts;
use service_kit::metrics::Registrar;

/// The prefix of every metric's name.
pub const PREFIX: &str = "lockscope_dashboard";

/// Returns what creates and registers the dashboard's metrics.
#[must_use]
pub fn registrar(registry: &Registry) -> Registrar<'_> {
    Registrar::new(registry, PREFIX)
}

/// The metrics of scans of all keys.
#[derive(Debug, Clone)]
pub struct ScanMetrics {
    seconds: HistogramVec,
    keys: IntCounterVec,
    unreadable: IntGaugeVec,
}

/// The labels of metrics about a server. Two deployments may be databases of one server.
pub const NODE: [&str; 2] = ["deployment", "node"];

/// The metrics of scans for one node.
#[derive(Debug, Clone)]
pub struct ScanNodeMetrics {
    /// The durations of complete scans.
    pub seconds: Histogram,
    /// The number of keys that were scanned.
    pub keys: IntCounter,
    /// The number of hashes that the Redis user may not read.
    pub unreadable: IntGauge,
}

impl ScanMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// If the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let make = registrar(registry);
        Ok(Self {
            seconds: make.histograms(
                "scan_seconds",
                "Duration of a scan of all keys.",
                &NODE,
                &[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0],
            )?,
            keys: make.counters(
                "scan_keys_total",
                "Approximate number of keys that scans visited.",
                &NODE,
            )?,
            unreadable: make.gauges(
                "scan_unreadable_keys",
                "Hashes that the Redis user may not read, counted in the latest scan.",
                &NODE,
            )?,
        })
    }

    /// Returns the metrics of one node.
    #[must_use]
    pub fn of(&self, deployment: &str, node: &str) -> ScanNodeMetrics {
        let labels = [deployment, node];
        ScanNodeMetrics {
            seconds: self.seconds.with_label_values(&labels),
            keys: self.keys.with_label_values(&labels),
            unreadable: self.unreadable.with_label_values(&labels),
        }
    }

    /// Removes the metrics of a node that is no longer watched.
    pub fn forget(&self, deployment: &str, node: &str) {
        let labels = [deployment, node];
        // The removal fails if nothing was counted for the node, which does no harm.
        drop(self.seconds.remove_label_values(&labels));
        drop(self.keys.remove_label_values(&labels));
        drop(self.unreadable.remove_label_values(&labels));
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
    deployment: String,
    node: String,
}

impl MonitorMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// If the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let (make, labels) = (registrar(registry), ["deployment", "node", "outcome"]);
        let active = make.opts(
            "monitor_active_seconds_total",
            "Seconds for which MONITOR was on, by the reason.",
        );
        Ok(Self {
            lines: make.counters(
                "monitor_lines_total",
                "Lines of MONITOR, by outcome.",
                &labels,
            )?,
            active: make.register(CounterVec::new(active, &labels))?,
        })
    }

    /// Returns the metrics of one node.
    #[must_use]
    pub fn of(&self, deployment: &str, node: &str) -> MonitorNodeMetrics {
        let lines = |outcome| self.lines.with_label_values(&[deployment, node, outcome]);
        MonitorNodeMetrics {
            lock: lines("lock"),
            other: lines("other"),
            garbage: lines("garbage"),
            cut: lines("cut"),
            active: self.active.clone(),
            deployment: deployment.to_owned(),
            node: node.to_owned(),
        }
    }

    /// Removes the metrics of a node that is no longer watched.
    pub fn forget(&self, deployment: &str, node: &str) {
        // The removal fails if nothing was counted for the node, which does no harm.
        for outcome in ["lock", "other", "garbage", "cut"] {
            drop(self.lines.remove_label_values(&[deployment, node, outcome]));
        }
        for why in ["auto", "on", "watch", "unbounded"] {
            drop(self.active.remove_label_values(&[deployment, node, why]));
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
        let labels = [&*self.deployment, &*self.node, why];
        self.active.with_label_values(&labels).inc_by(time.as_secs_f64());
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
        let make = registrar(registry);
        Ok(Self {
            open: make.gauge("streams", "Open event streams.")?,
            page_bytes: make.gauge("open_page_bytes", "Memory of open pages, in bytes.")?,
            resyncs: make.counter(
                "stream_resyncs_total",
                "Streams that fell behind or reconnected late, and received the full state.",
            )?,
        })
    }
}

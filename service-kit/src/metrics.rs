//! Metrics of every program: build, process, runtime and spans.

mod registrar;

use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, GaugeVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use tokio::runtime::Handle;

use crate::trace::COUNTS;

pub use registrar::Registrar;

/// Registers `<prefix>_build_info`, always 1, with the version and the revision as labels.
///
/// # Errors
///
/// A metric of that name in the registry.
pub fn register_build_info(
    registry: &Registry,
    prefix: &str,
    version: &str,
    revision: &str,
) -> prometheus::Result<()> {
    let opts = Opts::new(format!("{prefix}_build_info"), "Which build this is; the value is 1.");
    let info = GaugeVec::new(opts, &["version", "revision"])?;
    info.with_label_values(&[version, revision]).set(1.0);
    registry.register(Box::new(info))
}

/// Registers the `process_*` metrics of this process: CPU, memory, open files, threads, start.
///
/// # Errors
///
/// A second registration.
pub fn register_process(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(ProcessCollector::for_self()))
}

/// Registers the `tokio_*` metrics of one runtime, which the label `runtime` identifies. Called once
/// for each runtime of the program.
///
/// # Errors
///
/// A second registration of a runtime with that name.
pub fn register_runtime(registry: &Registry, name: &str, handle: Handle) -> prometheus::Result<()> {
    registry.register(Box::new(RuntimeCollector::new(name, handle)?))
}

/// Registers `<prefix>_trace_spans_total`: this process' [spans](crate::trace) by outcome. All values are 0 while traces
/// are off.
///
/// # Errors
///
/// A metric of that name in the registry.
pub fn register_spans(registry: &Registry, prefix: &str) -> prometheus::Result<()> {
    let opts = Opts::new(
        format!("{prefix}_trace_spans_total"),
        "Spans by outcome: exported, failed (refused or not answered), dropped (too many waited).",
    );
    let spans = IntCounterVec::new(opts, &["outcome"])?;
    registry.register(Box::new(SpanCollector { spans, filling: Mutex::default() }))
}

/// Encodes the registry's metrics in Prometheus' text format.
///
/// # Errors
///
/// An empty metric family or clashing names, which are bugs of the program.
pub fn encode(registry: &Registry) -> prometheus::Result<String> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
}

/// Reads a runtime's metrics on each scrape, so that they cost nothing between two scrapes.
struct RuntimeCollector {
    handle: Handle,
    workers: IntGauge,
    alive_tasks: IntGauge,
    queue_depth: IntGauge,
}

impl RuntimeCollector {
    fn new(name: &str, handle: Handle) -> prometheus::Result<Self> {
        let gauge = |metric: &str, help: &str| {
            IntGauge::with_opts(Opts::new(metric, help).const_label("runtime", name))
        };
        Ok(Self {
            handle,
            workers: gauge("tokio_workers", "Worker threads of the runtime.")?,
            alive_tasks: gauge("tokio_alive_tasks", "Tasks that have not ended.")?,
            queue_depth: gauge("tokio_global_queue_depth", "Tasks ready and not yet at a worker.")?,
        })
    }

    fn gauges(&self) -> [&IntGauge; 3] {
        [&self.workers, &self.alive_tasks, &self.queue_depth]
    }
}

impl Collector for RuntimeCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let metrics = self.handle.metrics();
        self.workers.set(count(metrics.num_workers()));
        self.alive_tasks.set(count(metrics.num_alive_tasks()));
        self.queue_depth.set(count(metrics.global_queue_depth()));
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Reads the counts of spans on each scrape.
struct SpanCollector {
    spans: IntCounterVec,
    /// Locked while the counters are being filled and read.
    filling: Mutex<()>,
}

impl Collector for SpanCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.spans.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _filling = self.filling.lock();
        // Reset first: the totals are counted elsewhere and set here.
        self.spans.reset();
        for (outcome, count) in [
            ("exported", &COUNTS.exported),
            ("failed", &COUNTS.failed),
            ("dropped", &COUNTS.dropped),
        ] {
            self.spans.with_label_values(&[outcome]).inc_by(count.load(Ordering::Relaxed));
        }
        self.spans.collect()
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_of_them_are_exported() {
        let registry = Registry::new();
        register_build_info(&registry, "thing", "1.2.3", "abc").unwrap();
        register_process(&registry).unwrap();
        register_runtime(&registry, "main", Handle::current()).unwrap();
        register_runtime(&registry, "http", Handle::current()).unwrap();
        register_spans(&registry, "thing").unwrap();
        let text = encode(&registry).unwrap();
        for line in [
            r#"thing_build_info{revision="abc",version="1.2.3"} 1"#,
            r#"tokio_workers{runtime="main"} 1"#,
            r#"tokio_workers{runtime="http"} 1"#,
            r#"thing_trace_spans_total{outcome="dropped"} 0"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("process_open_fds"), "{text}");
        assert!(text.contains("tokio_alive_tasks"), "{text}");
    }

    #[test]
    fn scrapes_at_the_same_moment_read_the_same_totals() {
        let registry = Registry::new();
        register_spans(&registry, "thing").unwrap();
        let exported = || {
            let text = encode(&registry).unwrap();
            let line = text.lines().find(|line| line.contains("exported\""));
            line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        COUNTS.exported.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let least = COUNTS.exported.load(Ordering::Relaxed);
                        let read = exported();
                        let most = COUNTS.exported.load(Ordering::Relaxed);
                        assert!((least..=most).contains(&read), "{read}, not {least} to {most}");
                    }
                });
            }
        });
    }
}

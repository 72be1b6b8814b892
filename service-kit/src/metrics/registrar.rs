//! Creates and registers metrics.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Creates metrics and registers them. Their names begin with the program's prefix. Each method fails if the registry has
/// a metric of that name.
#[derive(Debug, Clone, Copy)]
pub struct Registrar<'r> {
    registry: &'r Registry,
    prefix: &'r str,
}

impl<'r> Registrar<'r> {
    /// Registers metrics as `<prefix>_<name>`.
    #[must_use]
    pub fn new(registry: &'r Registry, prefix: &'r str) -> Self {
        Self { registry, prefix }
    }

    /// Registers a metric that was just created.
    pub fn register<C: Collector + Clone + 'static>(
        &self,
        created: prometheus::Result<C>,
    ) -> prometheus::Result<C> {
        let collector = created?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    /// Registers a counter.
    pub fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::with_opts(self.opts(name, help)))
    }

    /// Registers counters that differ in these labels.
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(self.opts(name, help), labels))
    }

    /// Registers a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::with_opts(self.opts(name, help)))
    }

    /// Registers gauges that differ in these labels.
    pub fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(self.opts(name, help), labels))
    }

    /// Registers a histogram.
    pub fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> prometheus::Result<Histogram> {
        self.register(Histogram::with_opts(self.histogram_opts(name, help, buckets)))
    }

    /// Registers histograms that differ in these labels.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        self.register(HistogramVec::new(self.histogram_opts(name, help, buckets), labels))
    }

    /// Returns the options of a metric that is registered by other means.
    #[must_use]
    pub fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("{}_{name}", self.prefix), help)
    }

    fn histogram_opts(&self, name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec())
    }
}

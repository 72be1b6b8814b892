//! Creates and registers metrics with the prefix `lockscope_agent_`.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Creates collectors and registers them.
pub(super) struct Registrar<'r>(pub(super) &'r Registry);

impl Registrar<'_> {
    fn register<C: Collector + Clone + 'static>(
        &self,
        created: prometheus::Result<C>,
    ) -> prometheus::Result<C> {
        let collector = created?;
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::with_opts(opts(name, help)))
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(opts(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::with_opts(opts(name, help)))
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(opts(name, help), labels))
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> prometheus::Result<Histogram> {
        self.register(Histogram::with_opts(histogram_opts(name, help, buckets)))
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        self.register(HistogramVec::new(histogram_opts(name, help, buckets), labels))
    }
}

pub(super) fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("lockscope_agent_{name}"), help)
}

fn histogram_opts(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(format!("lockscope_agent_{name}"), help).buckets(buckets.to_vec())
}

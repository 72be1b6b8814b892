//! Every metric of the dashboard, beside those that both programs have.

mod named;
mod pictured;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry,
};
use redisson::group::OVERFLOW;
use redisson::monitor::LineCounts;

use crate::archive::Notes;
use crate::model::Effect;
use crate::model::actor::{Hub, Listener};
use crate::model::types::ScopeId;
use crate::sources::status::Sources;

use pictured::Pictured;

/// How metrics are called.
pub const PREFIX: &str = "lockscope_dashboard";
/// The most pairs of deployment and group; later ones are counted as overflow. On each hang up to 39 series (locks and
/// holders by kind, waiters, problems), so that all of them stay below 8,000.
const MAX_PAIRS: usize = 201;
/// From when on the poll is called behind.
const BEHIND: Duration = Duration::from_secs(2);

/// Name and help of one of them.
#[must_use]
pub fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}_{name}"), help)
}

/// What passes over all keys count.
#[derive(Debug, Clone)]
pub struct ScansMetrics {
    seconds: HistogramVec,
    keys: IntCounterVec,
}

/// The same for one node.
#[derive(Debug, Clone)]
pub struct ScanMetrics {
    /// How long complete passes took.
    pub seconds: Histogram,
    /// Keys looked at.
    pub keys: IntCounter,
}

impl ScansMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let buckets = vec![0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0];
        let seconds = HistogramVec::new(
            HistogramOpts::from(opts("scan_seconds", "Seconds that a pass over all keys took."))
                .buckets(buckets),
            &["node"],
        )?;
        let keys = IntCounterVec::new(
            opts("scan_keys_total", "Keys looked at by passes, about."),
            &["node"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(keys.clone()))?;
        Ok(Self { seconds, keys })
    }

    /// Those of one node.
    #[must_use]
    pub fn of(&self, node: &str) -> ScanMetrics {
        ScanMetrics {
            seconds: self.seconds.with_label_values(&[node]),
            keys: self.keys.with_label_values(&[node]),
        }
    }

    /// A node is looked at no longer.
    pub fn forget(&self, node: &str) {
        // What was never counted is not there to be removed.
        drop(self.seconds.remove_label_values(&[node]));
        drop(self.keys.remove_label_values(&[node]));
    }
}

/// What readers of MONITOR count.
#[derive(Debug, Clone)]
pub struct TapsMetrics {
    lines: IntCounterVec,
    active: CounterVec,
}

/// The same for one node.
#[derive(Debug, Clone)]
pub struct TapMetrics {
    lock: IntCounter,
    other: IntCounter,
    garbage: IntCounter,
    cut: IntCounter,
    active: CounterVec,
    node: String,
}

impl TapsMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = ["node", "outcome"];
        let lines = IntCounterVec::new(
            opts("monitor_lines_total", "Lines of MONITOR, by what became of them."),
            &labels,
        )?;
        let active = CounterVec::new(
            opts("monitor_active_seconds_total", "Seconds that MONITOR was on, by why."),
            &labels,
        )?;
        registry.register(Box::new(lines.clone()))?;
        registry.register(Box::new(active.clone()))?;
        Ok(Self { lines, active })
    }

    /// Those of one node.
    #[must_use]
    pub fn of(&self, node: &str) -> TapMetrics {
        let lines = |outcome| self.lines.with_label_values(&[node, outcome]);
        TapMetrics {
            lock: lines("lock"),
            other: lines("other"),
            garbage: lines("garbage"),
            cut: lines("cut"),
            active: self.active.clone(),
            node: node.to_owned(),
        }
    }

    /// A node is looked at no longer.
    pub fn forget(&self, node: &str) {
        // What was never counted is not there to be removed.
        for outcome in ["lock", "other", "garbage", "cut"] {
            drop(self.lines.remove_label_values(&[node, outcome]));
        }
        for why in ["auto", "on", "watch", "unbounded"] {
            drop(self.active.remove_label_values(&[node, why]));
        }
    }
}

impl TapMetrics {
    /// Counts the lines since what was told last.
    pub fn count(&self, told: LineCounts, now: LineCounts) {
        for (counter, told, now) in [
            (&self.lock, told.lock, now.lock),
            (&self.other, told.other, now.other),
            (&self.garbage, told.garbage, now.garbage),
            (&self.cut, told.cut, now.cut),
        ] {
            if now > told {
                counter.inc_by(now - told);
            }
        }
    }

    /// It was on for so long: `why` is `auto`, `on`, `watch` or `unbounded`.
    pub fn active(&self, why: &str, time: Duration) {
        self.active.with_label_values(&[&*self.node, why]).inc_by(time.as_secs_f64());
    }
}

/// What streams count.
#[derive(Debug, Clone)]
pub struct StreamMetrics {
    /// Open event streams, of pages and of the API.
    pub open: IntGauge,
    /// Streams that had to be given everything anew.
    pub resyncs: IntCounter,
}

impl StreamMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let open = IntGauge::with_opts(opts("streams", "Open event streams."))?;
        let resyncs = IntCounter::with_opts(opts(
            "stream_resyncs_total",
            "Streams that fell behind or came back late, and were given everything anew.",
        ))?;
        registry.register(Box::new(open.clone()))?;
        registry.register(Box::new(resyncs.clone()))?;
        Ok(Self { open, resyncs })
    }
}

/// What the model counts.
#[derive(Debug)]
pub struct ModelMetrics {
    events: IntCounterVec,
    detected: IntCounterVec,
    pairs: Pairs,
    sources: Arc<Sources>,
    notes: Option<Notes>,
}

impl ModelMetrics {
    /// Passes on what a history is told.
    #[must_use]
    pub fn noting(self, notes: Option<Notes>) -> Self {
        Self { notes, ..self }
    }
}

/// The pairs of deployment and group that have a label of their own.
#[derive(Debug, Clone, Default)]
struct Pairs(Arc<Mutex<HashSet<Pair>>>);

type Pair = (Arc<str>, Arc<str>);

impl Pairs {
    /// The group's label in that deployment, and whether the pair is new.
    fn label<'g>(&self, deployment: &Arc<str>, group: &'g Arc<str>) -> (&'g str, bool) {
        let pair = (Arc::clone(deployment), Arc::clone(group));
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.contains(&pair) {
            (group, false)
        } else if pairs.len() < MAX_PAIRS {
            pairs.insert(pair);
            (group, true)
        } else {
            (OVERFLOW, false)
        }
    }
}

impl Listener for ModelMetrics {
    fn effect(&mut self, deployment: &Arc<str>, effect: Effect) {
        match effect {
            Effect::Event(source, event) => {
                self.events.with_label_values(&[source.as_str(), event]).inc();
            }
            Effect::Detected(problem, certainty, group) => {
                let (group, _) = self.pairs.label(deployment, &group);
                let labels = [deployment, problem.as_str(), certainty.as_str(), group];
                self.detected.with_label_values(&labels).inc();
            }
            Effect::Archive(note) => {
                if let Some(notes) = &self.notes {
                    notes.tell(*note);
                }
            }
            Effect::Count(..) | Effect::LostInRestart => {}
        }
    }

    fn lag(&mut self, scope: ScopeId, lag: Duration) {
        if let Some(poll) = self.sources.poll(scope) {
            poll.set_lag(lag, BEHIND);
        }
    }
}

/// Registers what the model tells and what is read off its pictures. `names`: whether locks may be named.
///
/// # Errors
/// When the registry has metrics of these names.
pub fn register_model(
    registry: &Registry,
    hub: &Arc<Hub>,
    sources: &Arc<Sources>,
    names: bool,
) -> prometheus::Result<ModelMetrics> {
    let events =
        IntCounterVec::new(opts("events_total", "What was seen of locks."), &["source", "event"])?;
    let detected = IntCounterVec::new(
        opts("problems_detected_total", "Problems found, those that have ended since included."),
        &["deployment", "problem", "certainty", "lock_group"],
    )?;
    registry.register(Box::new(events.clone()))?;
    let pairs = Pairs::default();
    let pictured = Pictured::new(hub, sources, pairs.clone(), detected.clone(), names)?;
    registry.register(Box::new(pictured))?;
    let sources = Arc::clone(sources);
    Ok(ModelMetrics { events, detected, pairs, sources, notes: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_bounded() {
        let pairs = Pairs::default();
        for i in 0..MAX_PAIRS + 10 {
            let group: Arc<str> = format!("g{i}").into();
            let (label, new) = pairs.label(&"d".into(), &group);
            assert_eq!((label != OVERFLOW, new), (i < MAX_PAIRS, i < MAX_PAIRS));
        }
    }
}

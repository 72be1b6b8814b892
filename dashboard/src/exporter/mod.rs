//! Metrics that are read off the model: its events, and the latest snapshot at each scrape.

mod named_locks;
mod snapshot;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{IntCounterVec, Registry};
use redisson::group::OVERFLOW;

use crate::archive::ArchiveSender;
use crate::metrics::opts;
use crate::model::Effect;
use crate::model::actor::{Hub, Listener};
use crate::model::types::{Ending, ScopeId};
use crate::sources::status::Sources;

use snapshot::{Counters, SnapshotCollector};

/// The most pairs of deployment and group; later ones are counted as overflow. Each pair has up to 42 series (locks and
/// holders by kind, waiters, problems, endings), so all of them stay below 8,500.
const MAX_PAIRS: usize = 201;
/// The lag from which the poll counts as behind.
const BEHIND: Duration = Duration::from_secs(2);

/// The counters of the model's events.
#[derive(Debug)]
pub struct ModelMetrics {
    events: IntCounterVec,
    detected: IntCounterVec,
    ended: IntCounterVec,
    pairs: Pairs,
    sources: Arc<Sources>,
    archive: Option<ArchiveSender>,
}

impl ModelMetrics {
    /// Forwards entries to the archive.
    #[must_use]
    pub fn with_archive(self, archive: Option<ArchiveSender>) -> Self {
        Self { archive, ..self }
    }
}

/// The values of the label `ending`.
const OUTCOMES: [&str; 3] = ["released", "ran_out", "lost"];

/// Returns the label of an ending.
fn outcome(ending: Ending) -> &'static str {
    match ending {
        Ending::Released | Ending::HandedOver => "released",
        Ending::Expired => "ran_out",
        Ending::Vanished | Ending::Forced | Ending::Restarted | Ending::Replaced => "lost",
    }
}

/// The pairs of deployment and group that have their own label.
#[derive(Debug, Clone, Default)]
struct Pairs(Arc<Mutex<HashSet<Pair>>>);

type Pair = (Arc<str>, Arc<str>);

impl Pairs {
    /// Returns the group's label in that deployment, and true if the pair is new.
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
            Effect::HoldEnded(ending, group) => {
                let (group, _) = self.pairs.label(deployment, &group);
                self.ended.with_label_values(&[&**deployment, outcome(ending), group]).inc();
            }
            Effect::Archive(entry) => {
                if let Some(archive) = &self.archive {
                    archive.send(*entry);
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

/// Registers the metrics of the model and of its snapshots. `names`: true if labels may name locks.
///
/// # Errors
/// If the registry already has metrics of these names.
pub fn register(
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
    let ended = IntCounterVec::new(
        opts("holds_ended_total", "Holds that ended, by how they did."),
        &["deployment", "ending", "lock_group"],
    )?;
    registry.register(Box::new(events.clone()))?;
    let pairs = Pairs::default();
    let counters = Counters { detected: detected.clone(), ended: ended.clone() };
    let collector = SnapshotCollector::new(hub, sources, pairs.clone(), counters, names)?;
    registry.register(Box::new(collector))?;
    let sources = Arc::clone(sources);
    Ok(ModelMetrics { events, detected, ended, pairs, sources, archive: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_deployment_and_group_are_bounded() {
        let pairs = Pairs::default();
        for i in 0..MAX_PAIRS + 10 {
            let group: Arc<str> = format!("g{i}").into();
            let (label, new) = pairs.label(&"d".into(), &group);
            assert_eq!((label != OVERFLOW, new), (i < MAX_PAIRS, i < MAX_PAIRS));
        }
    }
}

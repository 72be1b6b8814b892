//! Metrics of the model: its events, and the latest snapshot at each scrape.

mod named_locks;
mod problems;
mod snapshot;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Registry};

use crate::archive::ArchiveSender;
use crate::metrics::registrar;
use crate::model::Effect;
use crate::model::actor::{Hub, Listener};
use crate::model::types::{Ending, ProblemKind, ScopeId};
use crate::sources::status::Sources;

use snapshot::SnapshotCollector;

/// The lag from which the poll counts as behind.
const BEHIND: Duration = Duration::from_secs(2);

/// The counters of the model's events.
#[derive(Debug)]
pub struct ModelMetrics {
    events: IntCounterVec,
    groups: GroupCounters,
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

/// The counters of each lock group of a deployment. The model bounds the number of groups.
#[derive(Debug, Clone)]
struct GroupCounters {
    detected: IntCounterVec,
    ended: IntCounterVec,
    begun: Arc<Mutex<HashSet<Group>>>,
}

/// A deployment and the label of a group in it.
type Group = (Arc<str>, Arc<str>);

impl GroupCounters {
    /// Starts all counters of a new group at 0, so that its first problem shows as an increase.
    fn begin(&self, deployment: &Arc<str>, group: &Arc<str>) {
        let key = (Arc::clone(deployment), Arc::clone(group));
        if !self.begun.lock().insert(key) {
            return;
        }
        for problem in ProblemKind::ALL {
            for certainty in problem.certainties() {
                let labels = [deployment, problem.as_str(), certainty.as_str(), group];
                drop(self.detected.with_label_values(&labels));
            }
        }
        for ending in OUTCOMES {
            drop(self.ended.with_label_values(&[&**deployment, ending, group]));
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
                self.groups.begin(deployment, &group);
                let labels = [deployment, problem.as_str(), certainty.as_str(), &*group];
                self.groups.detected.with_label_values(&labels).inc();
            }
            Effect::HoldEnded(ending, group) => {
                self.groups.begin(deployment, &group);
                let labels = [&**deployment, outcome(ending), &*group];
                self.groups.ended.with_label_values(&labels).inc();
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

/// Registers the metrics of the model and of its snapshots. `names` is true if labels may name locks.
///
/// # Errors
/// If the registry already has metrics of these names.
pub fn register(
    registry: &Registry,
    hub: &Arc<Hub>,
    sources: &Arc<Sources>,
    names: bool,
) -> prometheus::Result<ModelMetrics> {
    let make = registrar(registry);
    let events =
        make.counters("events_total", "Observed events of locks.", &["source", "event"])?;
    let detected = IntCounterVec::new(
        make.opts("problems_detected_total", "Detected problems, including those that have ended."),
        &["deployment", "problem", "certainty", "lock_group"],
    )?;
    let ended = IntCounterVec::new(
        make.opts("holds_ended_total", "Ended holds, by how they ended."),
        &["deployment", "ending", "lock_group"],
    )?;
    let groups = GroupCounters { detected, ended, begun: Arc::default() };
    let collector = SnapshotCollector::new(make, hub, sources, groups.clone(), names)?;
    registry.register(Box::new(collector))?;
    let sources = Arc::clone(sources);
    Ok(ModelMetrics { events, groups, sources, archive: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner_names::OwnerNames;
    use crate::model::types::Certainty;

    #[test]
    fn a_group_whose_first_hold_ended_unseen_counts_problems_from_0() {
        let registry = Registry::new();
        let hub = Arc::new(Hub::new(OwnerNames::default()));
        let mut metrics = register(&registry, &hub, &Arc::default(), true).unwrap();
        let (deployment, group): (Arc<str>, Arc<str>) = ("main".into(), "orders".into());
        metrics.effect(&deployment, Effect::HoldEnded(Ending::Released, Arc::clone(&group)));
        let value = |metric: &str, label: &str| {
            let families = registry.gather();
            let family = families.iter().find(|family| family.name() == metric)?;
            let mut series = family.get_metric().iter();
            let one =
                series.find(|one| one.get_label().iter().any(|pair| pair.value() == label))?;
            Some(one.get_counter().get_value())
        };
        let problems = "lockscope_dashboard_problems_detected_total";
        assert_eq!(value("lockscope_dashboard_holds_ended_total", "released"), Some(1.0));
        assert_eq!(value("lockscope_dashboard_holds_ended_total", "ran_out"), Some(0.0));
        assert_eq!(value(problems, "expired"), Some(0.0));
        let found = Effect::Detected(ProblemKind::Expired, Certainty::Certain, group);
        metrics.effect(&deployment, found);
        assert_eq!(value(problems, "expired"), Some(1.0));
    }
}

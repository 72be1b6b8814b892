//! Gauges that are filled from the latest snapshot at each scrape.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec};
use service_kit::metrics::Registrar;

use super::GroupCounters;
use super::named_locks::{NamedLocks, Row};
use super::problems::{Problem, is_acknowledged, problems};
use crate::clock::SteadyMillis;
use crate::metrics::NODE;
use crate::model::actor::Hub;
use crate::model::types::GroupSums;
use crate::sources::refusal::Refusal;
use crate::sources::status::Sources;
use crate::sources::view::SourceState;

pub(super) struct SnapshotCollector {
    hub: Arc<Hub>,
    sources: Arc<Sources>,
    named: Option<Mutex<NamedLocks>>,
    groups: GroupCounters,
    /// Locked while the gauges below are being filled and read.
    filling: Mutex<()>,
    locks: GaugeVec,
    holders: GaugeVec,
    waiters: GaugeVec,
    oldest: GaugeVec,
    problems: GaugeVec,
    problem_since: GaugeVec,
    not_kept: Gauge,
    possible_not_kept: Gauge,
    source_state: GaugeVec,
    source_success: GaugeVec,
    source_lag: GaugeVec,
    up: GaugeVec,
    evicts: GaugeVec,
    refuses: GaugeVec,
    unserved_slots: GaugeVec,
}

impl SnapshotCollector {
    /// Creates the gauges. `names` is true if labels may name locks.
    pub(super) fn new(
        make: Registrar<'_>,
        hub: &Arc<Hub>,
        sources: &Arc<Sources>,
        groups: GroupCounters,
        names: bool,
    ) -> prometheus::Result<Self> {
        let gauges =
            |name: &str, help: &str, labels: &[&str]| GaugeVec::new(make.opts(name, help), labels);
        let of_lock = ["deployment", "kind", "lock_group"];
        Ok(Self {
            hub: Arc::clone(hub),
            sources: Arc::clone(sources),
            named: names.then(Mutex::default),
            groups,
            filling: Mutex::new(()),
            locks: gauges("locks", "Confirmed locks that are held.", &of_lock)?,
            holders: gauges("holders", "Holders of confirmed locks.", &of_lock)?,
            waiters: gauges(
                "waiters",
                "Waiters of confirmed locks: their number where exact, otherwise a lower bound.",
                &["deployment", "lock_group", "exact"],
            )?,
            oldest: gauges(
                "oldest_hold_start_timestamp_seconds",
                "Start of the longest hold, or the earliest known time of it; without locks expected to be held long.",
                &["deployment", "lock_group"],
            )?,
            problems: gauges(
                "problems",
                "Current problems of locks.",
                &["deployment", "problem", "certainty", "lock_group", "acknowledged"],
            )?,
            problem_since: gauges(
                "problem_since_timestamp_seconds",
                "Start of a problem that has lasted for a minute or more; at most 50 series.",
                &["deployment", "problem", "certainty", "lock_group", "lock", "acknowledged"],
            )?,
            not_kept: Gauge::with_opts(make.opts(
                "locks_not_kept",
                "Locks beyond --max-locks, counted in the latest scan.",
            ))?,
            possible_not_kept: Gauge::with_opts(make.opts(
                "possible_locks_not_kept",
                "Hashes that resemble locks and never expire, beyond those that are followed, counted in the latest scan.",
            ))?,
            source_state: gauges(
                "source_state",
                "State of a source: 1 for its current state.",
                &["deployment", "node", "source", "state"],
            )?,
            source_success: gauges(
                "source_last_success_timestamp_seconds",
                "Time of a source's last success.",
                &["deployment", "node", "source"],
            )?,
            source_lag: gauges(
                "source_lag_seconds",
                "Delay with which known locks are read.",
                &["deployment", "node", "source"],
            )?,
            up: gauges("redis_up", "1 if the server can be read.", &NODE)?,
            evicts: gauges(
                "redis_evicts",
                "1 if the server may evict locks when it is full.",
                &NODE,
            )?,
            refuses: gauges(
                "redis_refuses_writes",
                "1 if the server refuses writes with this error.",
                &["deployment", "node", "error"],
            )?,
            unserved_slots: gauges(
                "unserved_slots",
                "Slots of the cluster that no node serves.",
                &["deployment"],
            )?,
        })
    }
}

impl Collector for SnapshotCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _filling = self.filling.lock();
        self.fill();
        let families = self.metrics().flat_map(Collector::collect);
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

impl SnapshotCollector {
    fn metrics(&self) -> impl Iterator<Item = &dyn Collector> {
        let others: [&dyn Collector; 4] =
            [&self.groups.detected, &self.groups.ended, &self.not_kept, &self.possible_not_kept];
        others.into_iter().chain(self.vecs().map(|vec| -> &dyn Collector { vec }))
    }

    /// Returns the gauges with labels. Each scrape fills their series.
    fn vecs(&self) -> [&GaugeVec; 13] {
        [
            &self.locks,
            &self.holders,
            &self.waiters,
            &self.oldest,
            &self.problems,
            &self.problem_since,
            &self.source_state,
            &self.source_success,
            &self.source_lag,
            &self.up,
            &self.evicts,
            &self.refuses,
            &self.unserved_slots,
        ]
    }

    fn fill(&self) {
        for vec in self.vecs() {
            vec.reset();
        }
        self.fill_sources();
        let snapshot = self.hub.snapshot();
        self.not_kept.set(float(snapshot.not_kept));
        self.possible_not_kept.set(float(snapshot.possible_not_kept));
        let seen = self.deployments_seen();
        for ((deployment, group), sums) in &snapshot.sums().groups {
            if seen.contains(deployment) {
                self.fill_group(deployment, group, sums);
            }
        }
        let troubled = snapshot.notable().filter(|lock| seen.contains(&*lock.id.deployment));
        let problems = problems(troubled);
        self.fill_problems(&problems);
        if let Some(named) = &self.named {
            let mut named = named.lock();
            self.fill_named(named.rows(problems, SteadyMillis::now()), &seen);
        }
    }

    /// Returns the deployments whose first scan is complete and whose servers can be read. Only these have numbers.
    fn deployments_seen(&self) -> HashSet<Arc<str>> {
        let servers = self.sources.servers();
        let mut seen: HashSet<Arc<str>> = servers
            .iter()
            .filter(|server| self.sources.can_read(server))
            .map(|server| Arc::clone(&server.deployment))
            .collect();
        for status in self.sources.statuses() {
            if status.pass().first.is_some() {
                seen.remove(&*status.deployment);
            }
        }
        seen
    }

    fn fill_group(&self, deployment: &Arc<str>, group: &Arc<str>, sums: &GroupSums) {
        self.groups.begin(deployment, group);
        for (kind, (locks, holders)) in &sums.held {
            self.locks.with_label_values(&[&**deployment, kind, group]).set(float(*locks));
            self.holders.with_label_values(&[&**deployment, kind, group]).set(float(*holders));
        }
        for (exact, waiting) in [("true", sums.waiting), ("false", sums.waiting_at_least)] {
            if let Some(waiting) = waiting {
                self.waiters.with_label_values(&[&**deployment, group, exact]).set(float(waiting));
            }
        }
        if let Some(at) = sums.oldest {
            self.oldest.with_label_values(&[deployment, group]).set(seconds(at));
        }
    }

    fn fill_problems(&self, problems: &[Problem<'_>]) {
        for &(lock, problem) in problems {
            let (kind, certainty) = (problem.problem.as_str(), problem.certainty.as_str());
            let acknowledged = as_label(is_acknowledged((lock, problem)));
            let labels = [&*lock.id.deployment, kind, certainty, &*lock.group, acknowledged];
            self.problems.with_label_values(&labels).inc();
        }
    }

    /// Sets the beginnings of lasting problems. A row outlasts its problem, but not the readability of its deployment.
    fn fill_named(&self, mut rows: Vec<Row>, seen: &HashSet<Arc<str>>) {
        rows.retain(|row| seen.contains(&row.deployment));
        // Locks of several databases, and long names that were shortened, may have equal labels. Then the oldest
        // problem counts.
        rows.sort_unstable_by_key(|row| Reverse(row.since));
        for row in rows {
            let (problem, certainty) = (row.problem.as_str(), row.certainty.as_str());
            let acknowledged = as_label(row.acknowledged);
            let labels =
                [&*row.deployment, problem, certainty, &*row.group, &*row.name, acknowledged];
            self.problem_since.with_label_values(&labels).set(seconds(row.since));
        }
    }

    fn fill_sources(&self) {
        for status in self.sources.statuses() {
            let view = status.view();
            let labels = [&*view.deployment, &*view.node, view.source];
            let [deployment, node, source] = labels;
            for state in SourceState::ALL {
                self.source_state
                    .with_label_values(&[deployment, node, source, state.as_str()])
                    .set(f64::from(state == view.state));
            }
            if let Some(at) = view.last_success {
                self.source_success.with_label_values(&labels).set(seconds(at));
            }
            if let Some(lag) = view.lag_ms {
                self.source_lag
                    .with_label_values(&labels)
                    .set(Duration::from_millis(lag).as_secs_f64());
            }
        }
        for server in self.sources.servers() {
            let can_read = f64::from(self.sources.can_read(&server));
            let labels = [&*server.deployment, &*server.node];
            self.up.with_label_values(&labels).set(can_read);
            if let Some(info) = server.info().filter(|info| info.maxmemory_policy.is_some()) {
                self.evicts.with_label_values(&labels).set(f64::from(info.evicts()));
                let refusal = server.refusal();
                for reason in Refusal::ALL {
                    self.refuses
                        .with_label_values(&[labels[0], labels[1], reason.error()])
                        .set(f64::from(refusal == Some(reason)));
                }
            }
        }
        for (deployment, slots) in self.sources.unserved_slots() {
            self.unserved_slots.with_label_values(&[&*deployment]).set(slots.into());
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floats only")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Converts to the wall clock, which Prometheus uses.
fn seconds(at: SteadyMillis) -> f64 {
    Duration::from_millis(at.to_wall().0).as_secs_f64()
}

fn as_label(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use service_kit::redis::{LinkState, LinkStatus, ServerInfo};
    use tokio::sync::watch;

    use super::super::register;
    use super::*;
    use crate::model::owner_names::OwnerNames;
    use crate::model::types::{Delta, LockId, LockView, ProblemView, Snapshot};
    use crate::query::fixtures::{leaked, lock};
    use crate::sources::status::Server;

    /// Publishes locks that have been leaked since these numbers of milliseconds after the start.
    fn publish(hub: &Hub, locks: &[(&str, u32, u64)]) {
        let mut snapshot = Snapshot::empty();
        for (deployment, db, since) in locks {
            let fresh = lock("orders:1");
            let id = LockId { deployment: (*deployment).into(), db: *db, ..fresh.id.clone() };
            let problems =
                thin_vec::thin_vec![ProblemView { since: SteadyMillis(*since), ..leaked() }];
            snapshot.put(Arc::new(LockView { id, problems, ..fresh }));
        }
        let delta = Delta::new(1, SteadyMillis::now(), Box::default(), Vec::new());
        hub.publish(Arc::new(snapshot), Arc::new(delta));
    }

    /// Adds a server that can be read.
    fn server(sources: &Sources, deployment: &str) -> watch::Sender<LinkState> {
        let status = LinkStatus::Up(Arc::new(ServerInfo::default()));
        let (link, state) = watch::channel(LinkState { generation: 1, status });
        sources.add_server(Server {
            deployment: deployment.into(),
            node: deployment.to_owned(),
            link: state,
            reads: None,
            refusal: watch::channel(None).1,
            whole: false,
        });
        link
    }

    /// Returns the deployments and values of the series with names of locks.
    fn named(registry: &Registry) -> Vec<(String, f64)> {
        let families = registry.gather();
        let mut named = families.iter().filter(|family| {
            family.name() == "lockscope_dashboard_problem_since_timestamp_seconds"
        });
        let series = named.next().map_or(&[][..], |family| family.get_metric());
        let of = |metric: &prometheus::proto::Metric| {
            let label = metric.get_label().iter().find(|label| label.name() == "deployment");
            let deployment = label.map_or("", |label| label.value()).to_owned();
            (deployment, metric.get_gauge().get_value())
        };
        series.iter().map(of).collect()
    }

    #[test]
    fn problems_are_named_only_while_their_server_can_be_read() {
        let hub = Arc::new(Hub::new(OwnerNames::default()));
        let (sources, registry) = (Arc::new(Sources::default()), Registry::new());
        let _metrics = register(&registry, &hub, &sources, true).unwrap();
        let (_main, other) = (server(&sources, "main"), server(&sources, "other"));
        publish(&hub, &[("main", 0, 3_000), ("main", 1, 2_000), ("other", 0, 1_000)]);
        let of = |deployment: &str, since| (deployment.to_owned(), seconds(SteadyMillis(since)));
        // Locks of the same name in two databases have one series, with the older problem.
        let both = [of("main", 2_000), of("other", 1_000)];
        assert_eq!(named(&registry), both);
        let up = other.send_replace(LinkState {
            generation: 1,
            status: LinkStatus::Down { reason: "refused".into(), since_micros: 0 },
        });
        assert_eq!(named(&registry), both[..1], "`other` cannot be read");
        other.send_replace(up);
        assert_eq!(named(&registry), both);
        // A problem that has ended remains for a while, but only while its server can be read.
        publish(&hub, &[]);
        assert_eq!(named(&registry), both);
        drop(other.send_replace(LinkState {
            generation: 1,
            status: LinkStatus::Down { reason: "refused".into(), since_micros: 0 },
        }));
        assert_eq!(named(&registry), both[..1]);
    }

    #[test]
    fn problems_are_not_named_if_names_must_not_be_in_metrics() {
        let hub = Arc::new(Hub::new(OwnerNames::default()));
        let (sources, registry) = (Arc::new(Sources::default()), Registry::new());
        let _metrics = register(&registry, &hub, &sources, false).unwrap();
        let _main = server(&sources, "main");
        publish(&hub, &[("main", 0, 3_000)]);
        assert_eq!(named(&registry), []);
    }
}

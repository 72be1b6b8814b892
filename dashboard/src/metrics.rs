//! Every metric of the dashboard, beside those that both programs have.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use redisson::group::OVERFLOW;

use crate::model::actor::{Hub, Listener, wall};
use crate::model::view::{Certainty, LockId, LockView, ProblemKind, SourceState, WallMillis};
use crate::model::{Effect, ScopeId, Source};
use crate::sources::status::{SourceStatus, Sources};

/// How metrics are called.
pub const PREFIX: &str = "lockscope_dashboard";
/// The most pairs of deployment and group; later ones are counted as overflow. With what hangs on each pair this
/// keeps all series below 8,000.
const MAX_PAIRS: usize = 450;
/// The most locks that are named for their problems at a time, and new ones in an hour.
const MAX_NAMED: usize = 50;
const MAX_NAMED_AN_HOUR: usize = 200;
/// From when on a lock is named for its problem, and for how long after.
const NAMED_AFTER_MS: u64 = 60_000;
const NAMED_FOR_MS: u64 = 300_000;
/// The longest name of a lock in a label, in bytes.
const MAX_NAME: usize = 120;
/// From when on the poll is called behind.
const BEHIND: Duration = Duration::from_secs(2);
/// Every problem with every certainty it can have now.
const PROBLEMS: [(ProblemKind, Certainty); 3] = [
    (ProblemKind::Leaked, Certainty::Sure),
    (ProblemKind::Stuck, Certainty::Sure),
    (ProblemKind::Stuck, Certainty::Suspected),
];

fn opts(name: &str, help: &str) -> Opts {
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
    scopes: Vec<Arc<str>>,
    polls: Vec<Arc<SourceStatus>>,
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
    fn effect(&mut self, scope: ScopeId, effect: Effect) {
        match effect {
            Effect::Event(source, event) => {
                self.events.with_label_values(&[source.as_str(), event]).inc();
            }
            Effect::Detected(problem, certainty, group) => {
                let Some(deployment) = self.scopes.get(scope.0) else { return };
                let (group, _) = self.pairs.label(deployment, &group);
                let labels = [deployment, problem.as_str(), certainty.as_str(), group];
                self.detected.with_label_values(&labels).inc();
            }
            Effect::LostInRestart => {}
        }
    }

    fn lag(&mut self, scope: ScopeId, lag: Duration) {
        if let Some(poll) = self.polls.get(scope.0) {
            poll.set_lag(lag, BEHIND);
        }
    }
}

/// What is read off the newest picture at each scrape.
struct Pictured {
    hub: Arc<Hub>,
    sources: Arc<Sources>,
    named: Option<Mutex<Named>>,
    pairs: Pairs,
    detected: IntCounterVec,
    /// Held while the gauges below are being filled and read.
    filling: Mutex<()>,
    locks: IntGaugeVec,
    holders: IntGaugeVec,
    oldest: GaugeVec,
    problems: IntGaugeVec,
    problem_since: GaugeVec,
    not_kept: IntGauge,
    source_state: IntGaugeVec,
    source_success: GaugeVec,
    source_lag: GaugeVec,
    up: IntGaugeVec,
    evicts: IntGaugeVec,
}

/// Registers what the model tells and what is read off its pictures. `names`: whether locks may be named.
///
/// # Errors
/// When the registry has metrics of these names.
pub fn register_model(
    registry: &Registry,
    hub: &Arc<Hub>,
    sources: &Arc<Sources>,
    scopes: &[(Arc<str>, u32)],
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
    let ints = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(opts(name, help), labels);
    let floats = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(opts(name, help), labels);
    let of_lock = ["deployment", "kind", "lock_group"];
    let pictured = Pictured {
        hub: Arc::clone(hub),
        sources: Arc::clone(sources),
        named: names.then(Mutex::default),
        pairs: pairs.clone(),
        detected: detected.clone(),
        filling: Mutex::new(()),
        locks: ints("locks", "Confirmed locks that are held.", &of_lock)?,
        holders: ints("holders", "Holders of confirmed locks.", &of_lock)?,
        oldest: floats(
            "oldest_hold_start_timestamp_seconds",
            "Start of the longest hold, as far as is known; without locks expected to be long.",
            &["deployment", "lock_group"],
        )?,
        problems: ints(
            "problems",
            "Problems that locks have now.",
            &["deployment", "problem", "certainty", "lock_group", "acknowledged"],
        )?,
        problem_since: floats(
            "problem_since_timestamp_seconds",
            "Since when a lock has a problem that lasts; at most 50 locks.",
            &["problem", "certainty", "lock_group", "lock"],
        )?,
        not_kept: IntGauge::with_opts(opts(
            "locks_not_kept",
            "Locks beyond --max-locks, counted in the newest pass.",
        ))?,
        source_state: ints(
            "source_state",
            "How a source fares: 1 for the state it is in.",
            &["source", "node", "state"],
        )?,
        source_success: floats(
            "source_last_success_timestamp_seconds",
            "When a source last saw something through.",
            &["source", "node"],
        )?,
        source_lag: floats(
            "source_lag_seconds",
            "How much later than due known locks are read.",
            &["source", "node"],
        )?,
        up: ints("redis_up", "Whether the server can be read.", &["node"])?,
        evicts: ints("redis_evicts", "Whether the server may evict locks when full.", &["node"])?,
    };
    registry.register(Box::new(pictured))?;
    let statuses = sources.statuses();
    let polls = statuses.iter().filter(|status| status.source == Source::Poll).cloned().collect();
    let scopes = scopes.iter().map(|(deployment, _)| Arc::clone(deployment)).collect();
    Ok(ModelMetrics { events, detected, pairs, scopes, polls })
}

impl Collector for Pictured {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        self.fill();
        let families = self.gauges().into_iter().flat_map(Collector::collect);
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

impl Pictured {
    /// What is collected, once it is filled.
    fn gauges(&self) -> [&dyn Collector; 12] {
        [
            &self.detected,
            &self.locks,
            &self.holders,
            &self.oldest,
            &self.problems,
            &self.problem_since,
            &self.not_kept,
            &self.source_state,
            &self.source_success,
            &self.source_lag,
            &self.up,
            &self.evicts,
        ]
    }

    fn fill(&self) {
        for vec in [&self.locks, &self.holders, &self.problems, &self.source_state, &self.up, &self.evicts] {
            vec.reset();
        }
        for vec in [&self.oldest, &self.problem_since, &self.source_success, &self.source_lag] {
            vec.reset();
        }
        self.fill_sources();
        let snapshot = self.hub.snapshot();
        self.not_kept.set(i64::try_from(snapshot.not_kept).unwrap_or(i64::MAX));
        let seen = self.deployments_seen();
        let mut oldest: HashMap<(Arc<str>, String), WallMillis> = HashMap::new();
        let confirmed = snapshot.locks().filter(|lock| lock.confirmed && lock.is_held());
        for lock in confirmed.filter(|lock| seen.contains(&*lock.id.deployment)) {
            self.fill_lock(lock, &mut oldest);
        }
        for ((deployment, group), at) in oldest {
            self.oldest.with_label_values(&[&*deployment, &group]).set(seconds(at));
        }
        if let Some(named) = &self.named {
            let mut named = named.lock().unwrap_or_else(PoisonError::into_inner);
            for row in named.rows(snapshot.locks(), wall()) {
                let labels =
                    [row.problem.as_str(), row.certainty.as_str(), &*row.group, &*row.name];
                self.problem_since.with_label_values(&labels).set(seconds(row.since));
            }
        }
    }

    /// The deployments of which there is a full picture: one that is blind tells no numbers.
    fn deployments_seen(&self) -> HashSet<&str> {
        let servers = self.sources.servers().iter();
        let mut seen: HashSet<&str> = servers
            .filter(|server| server.info().is_some())
            .map(|server| &*server.deployment)
            .collect();
        for status in self.sources.statuses() {
            if status.pass().first.is_some() {
                seen.remove(&*status.deployment);
            }
        }
        seen
    }

    fn fill_lock(
        &self,
        lock: &LockView,
        oldest: &mut HashMap<(Arc<str>, String), WallMillis>,
    ) {
        let deployment = &lock.id.deployment;
        let (group, new) = self.pairs.label(deployment, &lock.group);
        if new {
            for (problem, certainty) in PROBLEMS {
                let labels = [deployment, problem.as_str(), certainty.as_str(), group];
                // Being there at 0 is what lets the first one show as an increase.
                drop(self.detected.with_label_values(&labels));
            }
        }
        self.locks.with_label_values(&[&**deployment, lock.kind, group]).inc();
        let holders = i64::try_from(lock.holders.len()).unwrap_or(i64::MAX);
        self.holders.with_label_values(&[&**deployment, lock.kind, group]).add(holders);
        for problem in &lock.problems {
            let (kind, certainty) = (problem.problem.as_str(), problem.certainty.as_str());
            let labels = [&**deployment, kind, certainty, group, "false"];
            self.problems.with_label_values(&labels).inc();
        }
        if let Some(since) = lock.held_since().filter(|_| !lock.expected_long) {
            let key = (Arc::clone(deployment), group.to_owned());
            let first = oldest.entry(key).or_insert(since.at);
            *first = (*first).min(since.at);
        }
    }

    fn fill_sources(&self) {
        for status in self.sources.statuses() {
            let view = status.view();
            let labels = [view.source, &*view.node];
            for state in SourceState::ALL {
                self.source_state
                    .with_label_values(&[view.source, &*view.node, state.as_str()])
                    .set(i64::from(state == view.state));
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
            let info = server.info();
            self.up.with_label_values(&[&*server.node]).set(i64::from(info.is_some()));
            if let Some(info) = info.filter(|info| info.maxmemory_policy.is_some()) {
                self.evicts.with_label_values(&[&*server.node]).set(i64::from(info.evicts()));
            }
        }
    }
}

fn seconds(at: WallMillis) -> f64 {
    Duration::from_millis(at.0).as_secs_f64()
}

/// The locks that are named for their problems. A row stays for a while after its end, so that graphs hold together.
#[derive(Debug, Default)]
struct Named {
    rows: HashMap<(LockId, ProblemKind), Row>,
    hour: u64,
    new_this_hour: usize,
}

#[derive(Debug, Clone)]
struct Row {
    problem: ProblemKind,
    certainty: Certainty,
    group: Arc<str>,
    name: String,
    since: WallMillis,
    seen: WallMillis,
}

impl Named {
    fn rows<'a>(
        &mut self,
        locks: impl Iterator<Item = &'a Arc<LockView>>,
        now: WallMillis,
    ) -> Vec<Row> {
        let hour = now.0 / 3_600_000;
        if self.hour != hour {
            self.hour = hour;
            self.new_this_hour = 0;
        }
        self.rows.retain(|_, row| now.0.saturating_sub(row.seen.0) < NAMED_FOR_MS);
        let mut candidates = Vec::new();
        for lock in locks {
            for problem in &lock.problems {
                if now.0.saturating_sub(problem.since.0) >= NAMED_AFTER_MS {
                    candidates.push((problem.since, problem.problem, problem.certainty, lock));
                }
            }
        }
        candidates.sort_unstable_by_key(|(since, problem, ..)| (*problem, *since));
        for (since, problem, certainty, lock) in candidates {
            let key = (lock.id.clone(), problem);
            if let Some(row) = self.rows.get_mut(&key) {
                (row.since, row.certainty, row.seen) = (since, certainty, now);
            } else if self.rows.len() < MAX_NAMED && self.new_this_hour < MAX_NAMED_AN_HOUR {
                self.new_this_hour += 1;
                let (group, name) = (Arc::clone(&lock.group), cut(&lock.id));
                let row = Row { problem, certainty, group, name, since, seen: now };
                self.rows.insert(key, row);
            }
        }
        self.rows.values().cloned().collect()
    }
}

/// A lock's name for a label.
fn cut(id: &LockId) -> String {
    let mut name = id.name.to_string();
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|i| name.is_char_boundary(*i));
    name.truncate(end.unwrap_or(0));
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::tests::{leaked, lock};

    #[test]
    fn named_locks_are_few_last_and_stick() {
        let bad = |i: u64| {
            let problems = vec![crate::model::view::ProblemView { since: WallMillis(i), ..leaked() }];
            Arc::new(LockView { problems, ..lock(&format!("l:{i}")) })
        };
        let locks: Vec<_> = (0..100).map(bad).collect();
        let mut named = Named::default();
        assert!(named.rows(locks.iter(), WallMillis(1_000)).is_empty(), "they must last");
        let rows = named.rows(locks.iter(), WallMillis(70_000));
        assert_eq!(rows.len(), MAX_NAMED);
        assert!(rows.iter().all(|row| row.since.0 < MAX_NAMED as u64), "the oldest ones");
        assert_eq!(named.rows([].iter(), WallMillis(100_000)).len(), MAX_NAMED);
        assert!(named.rows([].iter(), WallMillis(400_000)).is_empty());
        for i in 0..10 {
            let locks: Vec<_> = (0..50).map(|n| bad(1_000 * (i + 1) + n)).collect();
            named.rows(locks.iter(), WallMillis(400_000 + i * 301_000));
        }
        assert!(named.new_this_hour <= MAX_NAMED_AN_HOUR);
    }

    #[test]
    fn long_names_are_cut_and_made_printable() {
        let id = LockId { name: redisson::LockName::new(vec![b'\n'; 200]).unwrap(), ..lock("x").id };
        assert_eq!(cut(&id), "\\n".repeat(60));
    }

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

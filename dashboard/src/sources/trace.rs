//! Traces: everything that MONITOR shows about one lock, step by step, for a requested time.
//!
//! A trace is recorded while MONITOR is on, and ends by itself. The number of traces, the number of steps of each, and
//! the size of a step are bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redisson::monitor::{Certainty, Event};
use tokio::sync::watch;
use tokio::time::timeout;

use super::monitor::switch::WATCH;
use crate::clock::{SteadyMillis, WallMillis, millis};
use crate::model::types::LockId;

/// The maximum number of locks that are being traced or whose last trace is retained.
pub const MAX_TRACES: usize = 8;
/// The maximum number of steps of a trace. Older ones are dropped and counted.
pub const MAX_STEPS: usize = 500;
/// The time for which an ended trace is retained, in milliseconds.
const RETAINED_MS: u64 = 15 * 60_000;

/// A step of a lock's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The number of the step. It continues in the next trace of the lock, if the last one is still retained.
    pub seq: u64,
    pub event: Event,
    /// The time since the previous step in microseconds, or `None` for the first.
    pub gap_micros: Option<u64>,
    /// The lines as MONITOR printed them, shortened.
    pub raw: Arc<[u8]>,
}

impl Step {
    /// Returns the instant of the step, by the server's clock.
    #[must_use]
    pub fn at(&self) -> SteadyMillis {
        WallMillis(self.event.at_micros / 1_000).to_steady()
    }

    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.event.certainty == Certainty::Certain
    }
}

/// A trace with its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub since: SteadyMillis,
    /// The end of the trace, which may have passed.
    pub until: SteadyMillis,
    /// The number of steps that were dropped for newer ones.
    pub dropped: u64,
    /// The number of the next step.
    pub next: u64,
    /// The steps, oldest first.
    pub steps: Vec<Arc<Step>>,
}

impl Default for Trace {
    /// Returns an empty trace that has ended.
    fn default() -> Self {
        let never = SteadyMillis(0);
        Self { since: never, until: never, dropped: 0, next: 0, steps: Vec::new() }
    }
}

impl Trace {
    #[must_use]
    pub fn is_running(&self, now: SteadyMillis) -> bool {
        now < self.until
    }
}

/// The reason why no trace can be started: the largest possible number is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The traces of all servers. Cheap to clone, and clones share them.
#[derive(Debug, Clone, Default)]
pub struct Traces(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The end of the last trace, so that readers need no lock while there is none.
    until: AtomicU64,
    trails: Mutex<HashMap<LockId, Trail>>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct Trail {
    since: SteadyMillis,
    until: SteadyMillis,
    dropped: u64,
    next: u64,
    steps: VecDeque<Arc<Step>>,
}

impl Trail {
    fn is_retained(&self, now: SteadyMillis) -> bool {
        now.millis_since(self.until) < RETAINED_MS
    }
}

impl Traces {
    /// Traces a lock for [`WATCH`] from `now` on. A running trace is extended to that time, and an ended one is
    /// replaced.
    ///
    /// # Errors
    /// If [`MAX_TRACES`] are running.
    pub fn start(&self, id: &LockId, now: SteadyMillis) -> Result<SteadyMillis, Full> {
        let until = now.plus(millis(WATCH));
        let trails = &mut *self.0.trails.lock();
        trails.retain(|_, trail| trail.is_retained(now));
        if !trails.contains_key(id) && trails.len() >= MAX_TRACES {
            let over = trails.iter().filter(|(_, trail)| trail.until <= now);
            let oldest = over.min_by_key(|(_, trail)| trail.until).map(|(id, _)| id.clone());
            trails.remove(&oldest.ok_or(Full)?);
        }
        let trail = trails.entry(id.clone()).or_insert_with(|| Trail {
            since: now,
            until: now,
            dropped: 0,
            next: 0,
            steps: VecDeque::new(),
        });
        if trail.until <= now {
            (trail.since, trail.dropped) = (now, 0);
            trail.steps.clear();
        }
        trail.until = until;
        self.0.until.fetch_max(until.0, Ordering::Relaxed);
        self.0.changes.send_replace(());
        Ok(until)
    }

    /// Returns whether any lock is being traced.
    #[must_use]
    pub fn is_active(&self, now: SteadyMillis) -> bool {
        now.0 < self.0.until.load(Ordering::Relaxed)
    }

    /// Returns the locks of a database that are being traced.
    #[must_use]
    pub fn traced(&self, deployment: &str, db: u32, now: SteadyMillis) -> Vec<LockId> {
        let trails = self.0.trails.lock();
        let traced = trails.iter().filter(|(id, trail)| {
            *id.deployment == *deployment && id.db == db && now < trail.until
        });
        traced.map(|(id, _)| id.clone()).collect()
    }

    /// Adds a step to the trace of its lock, if the trace is running.
    pub fn record(&self, id: &LockId, event: &Event, raw: &Arc<[u8]>, now: SteadyMillis) {
        let mut trails = self.0.trails.lock();
        let Some(trail) = trails.get_mut(id).filter(|trail| now < trail.until) else { return };
        let before = trail.steps.back().map(|step| step.event.at_micros);
        let gap_micros = before.map(|before| event.at_micros.saturating_sub(before));
        if trail.steps.len() >= MAX_STEPS {
            trail.steps.pop_front();
            trail.dropped += 1;
        }
        let (seq, event, raw) = (trail.next, event.clone(), Arc::clone(raw));
        trail.steps.push_back(Arc::new(Step { seq, event, gap_micros, raw }));
        trail.next += 1;
        drop(trails);
        self.0.changes.send_replace(());
    }

    /// Returns a lock's latest trace, or `None` if there is none that is still retained.
    #[must_use]
    pub fn get(&self, id: &LockId, now: SteadyMillis) -> Option<Trace> {
        let trails = &mut *self.0.trails.lock();
        trails.retain(|_, trail| trail.is_retained(now));
        let Trail { since, until, dropped, next, ref steps } = *trails.get(id)?;
        Some(Trace { since, until, dropped, next, steps: steps.iter().cloned().collect() })
    }

    /// Waits for a step with that number or a later one, for the end of the trace, or for `patience`.
    pub async fn wait(&self, id: &LockId, first: u64, patience: Duration) {
        let mut changes = self.0.changes.subscribe();
        let arrived = async {
            while let Some(left) = self.time_left(id, first) {
                // The trace may have been extended by then.
                if let Ok(Err(_)) = timeout(left, changes.changed()).await {
                    return;
                }
            }
        };
        // A time-out is not an error.
        drop(timeout(patience, arrived).await);
    }

    /// Returns the remaining time of a running trace that has no step with that number or a later one yet.
    fn time_left(&self, id: &LockId, first: u64) -> Option<Duration> {
        let (trails, now) = (self.0.trails.lock(), SteadyMillis::now());
        let trail = trails.get(id).filter(|trail| trail.next <= first && now < trail.until)?;
        Some(Duration::from_millis(trail.until.millis_since(now)))
    }
}

#[cfg(test)]
mod tests {
    use redisson::LockName;
    use redisson::monitor::Action;

    use super::*;

    fn id(name: &str) -> LockId {
        LockId { deployment: "main".into(), db: 0, name: LockName::new(name.as_bytes()).unwrap() }
    }

    fn event(name: &str, at_micros: u64) -> Event {
        Event {
            at_micros,
            db: 0,
            client: None,
            lock: LockName::new(name.as_bytes()).unwrap(),
            kind: None,
            holder: None,
            action: Action::Refused,
            certainty: Certainty::Certain,
        }
    }

    fn at(seconds: u64) -> SteadyMillis {
        SteadyMillis(seconds * 1_000)
    }

    #[test]
    fn steps_of_a_traced_lock_are_recorded_until_it_ends() {
        let (traces, raw) = (Traces::default(), Arc::from(&b"line"[..]));
        traces.record(&id("a"), &event("a", 1), &raw, at(1));
        assert_eq!(traces.get(&id("a"), at(1)), None);
        assert!(!traces.is_active(at(1)));
        traces.start(&id("a"), at(1)).unwrap();
        assert!(traces.is_active(at(2)) && traces.traced("main", 1, at(2)).is_empty());
        assert_eq!(traces.traced("main", 0, at(2)), [id("a")]);
        traces.record(&id("a"), &event("a", 10), &raw, at(2));
        traces.record(&id("b"), &event("b", 11), &raw, at(2));
        traces.record(&id("a"), &event("a", 35), &raw, at(60));
        traces.record(&id("a"), &event("a", 99), &raw, at(61));
        let trace = traces.get(&id("a"), at(71)).unwrap();
        let gaps: Vec<Option<u64>> = trace.steps.iter().map(|step| step.gap_micros).collect();
        assert_eq!((gaps, trace.next, trace.dropped), (vec![None, Some(25)], 2, 0));
        assert!(!trace.is_running(at(61)) && !traces.is_active(at(61)));
        // Another trace of the lock begins empty, and its numbers continue.
        traces.start(&id("a"), at(70)).unwrap();
        traces.record(&id("a"), &event("a", 100), &raw, at(71));
        let trace = traces.get(&id("a"), at(71)).unwrap();
        assert_eq!((trace.since, trace.steps[0].seq, trace.steps.len()), (at(70), 2, 1));
    }

    #[test]
    fn traces_and_their_steps_are_bounded() {
        let (traces, raw) = (Traces::default(), Arc::from(&b"line"[..]));
        for i in 0..MAX_TRACES {
            traces.start(&id(&i.to_string()), at(i as u64)).unwrap();
        }
        assert_eq!(traces.start(&id("more"), at(9)), Err(Full));
        assert!(traces.start(&id("0"), at(9)).is_ok(), "one that is running continues");
        // The trace that ended first makes room.
        assert!(traces.start(&id("more"), at(62)).is_ok());
        assert_eq!(traces.get(&id("1"), at(62)), None);
        assert!(traces.get(&id("0"), at(62)).is_some());
        for i in 0..MAX_STEPS as u64 + 7 {
            traces.record(&id("more"), &event("more", i), &raw, at(63));
        }
        let trace = traces.get(&id("more"), at(63)).unwrap();
        assert_eq!((trace.steps.len(), trace.dropped, trace.steps[0].seq), (MAX_STEPS, 7, 7));
        let over = 62 + 60 + 15 * 60;
        assert!(traces.get(&id("more"), at(over - 1)).is_some());
        assert_eq!(traces.get(&id("more"), at(over)), None, "retained for a while only");
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_step() {
        let traces = Traces::default();
        traces.wait(&id("none"), 0, Duration::from_secs(3_600)).await;
        traces.start(&id("a"), SteadyMillis::now()).unwrap();
        let waiting = traces.clone();
        let reader = tokio::spawn(async move {
            waiting.wait(&id("a"), 0, Duration::from_secs(3_600)).await;
            waiting.get(&id("a"), SteadyMillis::now()).unwrap().steps.len()
        });
        tokio::task::yield_now().await;
        traces.record(&id("a"), &event("a", 1), &Arc::from(&b""[..]), SteadyMillis::now());
        assert_eq!(reader.await.unwrap(), 1);
        // No step arrives for a while.
        traces.wait(&id("a"), 1, Duration::from_millis(1)).await;
    }

    #[tokio::test]
    async fn a_reader_waits_no_longer_than_until_the_end_of_the_trace() {
        let (traces, a, began) = (Traces::default(), id("a"), SteadyMillis::now());
        traces.start(&a, began.minus(millis(WATCH) - 50)).unwrap();
        let waiting = traces.wait(&a, 0, Duration::from_secs(3_600));
        timeout(Duration::from_secs(20), waiting).await.unwrap();
        assert!(SteadyMillis::now() >= began.plus(50));
    }
}

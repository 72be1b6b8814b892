//! Tests of the model as a whole, and their helpers.

mod contention;
mod databases;
mod early_reading;
mod history;
mod lifecycle;
mod problems;
mod properties;
mod restart;
mod scenarios;
mod server_change;
mod viewed;

use redisson::shape::{Holder, LockHash};
use redisson::{ClientId, HolderId, monitor};

use super::retention::MAX_FREE;
use super::*;
use crate::model::types::*;

pub(super) const MAIN: ScopeId = ScopeId(0);

pub(super) fn at(ms: u64) -> Moment {
    Moment::from_micros(ms * 1000)
}

pub(super) fn time(ms: u64) -> Time {
    Time::of_test(ms, 0)
}

pub(super) fn stamp(ms: u64) -> Stamp {
    Stamp { sent: at(ms), received: time(ms + 1) }
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text.as_bytes()).unwrap()
}

pub(super) fn holder(n: u8) -> HolderId {
    HolderId::new(ClientId::from_random([n; 16]), 52)
}

pub(super) fn held(by: u8, count: i64, ttl_ms: Option<u64>) -> Reading {
    let hash = LockHash { holders: vec![Holder { id: holder(by), count }], ..LockHash::default() };
    Reading::Lock {
        hash,
        ttl: ttl_ms.map(Duration::from_millis),
        companions: Companions::default(),
    }
}

pub(super) fn absent() -> Reading {
    Reading::Absent { companions: Companions::default() }
}

/// Returns a queue of these threads, each with its deadline.
pub(super) fn queued(places: &[(i64, u64)]) -> Companions {
    let place = |(thread, deadline): &(i64, u64)| QueueEntry {
        id: HolderId::new(ClientId::from_random([9; 16]), *thread),
        deadline: Some(*deadline),
    };
    let len = places.len() as u64;
    let front = places.iter().map(place).collect();
    let queue = (len > 0).then_some(Queue { len, front, deadlines: len, passed: 0 });
    Companions { queue, ..Companions::default() }
}

pub(super) fn settings() -> Settings {
    Settings {
        max_locks: 1000,
        poll_rate: Some(1000),
        usual: Rule {
            stuck_after: Some(Duration::from_secs(300)),
            starving_after: Some(Duration::from_secs(60)),
        }
        .into(),
        rules: Vec::new(),
        ignore: Vec::new(),
        groups: Vec::new(),
    }
}

pub(super) fn model_with(settings: Settings) -> Model {
    let scopes = [(Arc::from("main"), 0)];
    let mut model = Model::new(settings, Grouping::new(Vec::new(), 10), &scopes, at(0));
    model.observe(
        MAIN,
        Observation::ServerUp {
            since: at(0),
            at: SteadyMillis(0),
            run_id: Some("one".into()),
            cluster: false,
        },
    );
    model.observe(MAIN, Observation::PubSubActive { on: true, at: at(0) });
    model
}

pub(super) fn model() -> Model {
    model_with(settings())
}

pub(super) fn read(model: &mut Model, lock: &str, ms: u64, reading: Reading) {
    let source = Source::Poll;
    let observation = Observation::Read { name: name(lock), stamp: stamp(ms), source, reading };
    model.observe(MAIN, observation);
}

/// Reads the lock twice: by the second time, its release message would have arrived.
pub(super) fn read_twice(model: &mut Model, lock: &str, ms: u64, reading: Reading) {
    read(model, lock, ms, reading.clone());
    read(model, lock, ms + 300, reading);
}

pub(super) fn release(model: &mut Model, lock: &str, ms: u64) {
    let names = vec![name(lock)];
    model.observe(MAIN, Observation::Released { names, at: time(ms) });
}

/// Takes the entries that were sent to the history on disk.
pub(super) fn archived(model: &mut Model) -> Vec<ArchiveEntry> {
    let effects = model.take_effects().into_iter();
    effects
        .filter_map(|(_, effect)| match effect {
            Effect::Archive(entry) => Some(*entry),
            _ => None,
        })
        .collect()
}

/// Returns an event that MONITOR shows for a thread of the client of `holder(1)`.
pub(super) fn event(lock: &str, by: i64, what: monitor::Action) -> monitor::Event {
    monitor::Event {
        at_micros: 0,
        db: 0,
        client: None,
        lock: name(lock),
        kind: None,
        holder: Some(HolderId::new(ClientId::from_random([1; 16]), by)),
        action: what,
        certainty: monitor::Certainty::Certain,
    }
}

pub(super) fn traffic(model: &mut Model, ms: u64, events: Vec<monitor::Event>) {
    model.observe(MAIN, Observation::Traffic(Traffic { events, at: time(ms), missed: 0 }));
}

pub(super) fn shown(model: &mut Model, lock: &str) -> Option<Arc<LockView>> {
    model.publish(SteadyMillis(0));
    let id = model.scopes[0].id(&name(lock));
    model.snapshot.get(&id).cloned()
}

pub(super) fn words(view: &LockView) -> Vec<&'static str> {
    view.events.views().rev().map(|event| event.event).collect()
}

/// Returns a watchdog's time to live at an instant, for a lease of 30 s that is set at 0 and then every 10 s.
pub(super) fn renewed_ttl(ms: u64) -> Option<u64> {
    Some(30_000 - ms % 10_000)
}

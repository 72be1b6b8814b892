//! Delivery of MONITOR's output to the model.

use std::time::Duration;

use redisson::monitor::{Decoder, Event, LineCounts, ServerRole};

use crate::clock::{SteadyMillis, Time};
use crate::metrics::MonitorNodeMetrics;
use crate::model::actor::ModelHandle;
use crate::model::types::{LockId, Observation, Traffic};
use crate::sources::scope::Scope;
use crate::sources::trace::Traces;

/// Decodes and delivers output without ever waiting, since the server has to buffer unread output.
#[derive(Debug)]
pub(super) struct Delivery {
    decoder: Decoder,
    events: Vec<Event>,
    databases: Vec<Database>,
    model: ModelHandle,
    metrics: MonitorNodeMetrics,
    counted: LineCounts,
    lag: Lag,
    traces: Traces,
    /// The locks that are traced. As long as there are any, the decoder stores the lines behind events.
    traced: Vec<LockId>,
}

/// A watched database.
#[derive(Debug)]
struct Database {
    scope: Scope,
    /// The number of events for which the model had no room, and that have not been reported to it yet.
    missed: u64,
}

impl Delivery {
    pub(super) fn new(
        scopes: Vec<Scope>,
        model: ModelHandle,
        metrics: MonitorNodeMetrics,
        traces: Traces,
    ) -> Self {
        Self {
            decoder: Decoder::new(ServerRole::Master),
            events: Vec::new(),
            databases: scopes.into_iter().map(|scope| Database { scope, missed: 0 }).collect(),
            model,
            metrics,
            counted: LineCounts::default(),
            lag: Lag::default(),
            traces,
            traced: Vec::new(),
        }
    }

    /// Starts with a new connection.
    pub(super) fn restart(&mut self, role: ServerRole) {
        self.decoder.reset(role);
        self.lag = Lag::default();
    }

    /// Decodes bytes and delivers the events in them.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.prepare_traces();
        self.decoder.feed(bytes, &mut self.events);
        self.deliver();
    }

    /// Completes the current script, since nothing more has arrived for a moment.
    pub(super) fn pause(&mut self) {
        self.decoder.flush(&mut self.events);
        self.deliver();
    }

    fn deliver(&mut self) {
        let counts = self.decoder.counts();
        self.metrics.count(self.counted, counts);
        self.counted = counts;
        if self.events.is_empty() {
            return;
        }
        let at = Time::now();
        if let Some(last) = self.events.last() {
            self.lag.update(at.steady().0.saturating_mul(1_000), last.at_micros);
        }
        if !self.traced.is_empty() {
            self.record_traces(at.steady());
        }
        for Database { scope, missed } in &mut self.databases {
            let events = self.events.extract_if(.., |event| event.db == scope.db);
            let events: Vec<Event> = events.collect();
            if events.is_empty() {
                continue;
            }
            let missed_now = *missed + events.len() as u64;
            let traffic = Traffic { events, at, missed: *missed };
            let has_room = self.model.try_observe(scope.id, Observation::Traffic(traffic));
            *missed = if has_room { 0 } else { missed_now };
        }
        // The remaining events are from databases that are not watched.
        self.events.clear();
    }

    /// Makes the decoder store lines as long as a lock is traced, and recognize those locks before their holders are
    /// known.
    fn prepare_traces(&mut self) {
        let now = SteadyMillis::now();
        if !self.traces.is_active(now) && self.traced.is_empty() {
            return;
        }
        let scopes = self.databases.iter().map(|database| &database.scope);
        let traced: Vec<LockId> =
            scopes.flat_map(|scope| self.traces.traced(&scope.deployment, scope.db, now)).collect();
        if traced != self.traced {
            if traced.is_empty() || self.traced.is_empty() {
                self.decoder.trace_lines(!traced.is_empty());
            }
            self.traced = traced;
        }
        for id in &self.traced {
            self.decoder.record_lock(&id.name);
        }
    }

    /// Adds the events to the traces of their locks.
    fn record_traces(&mut self, now: SteadyMillis) {
        let lines = self.decoder.take_lines();
        // Lines are only stored from some event on, so the last lines belong to the last events.
        let untraced = self.events.len().saturating_sub(lines.len());
        for (event, lines) in self.events.iter().skip(untraced).zip(&lines) {
            let its = |id: &&LockId| id.db == event.db && id.name == event.lock;
            if let Some(id) = self.traced.iter().find(its) {
                self.traces.record(id, event, lines, now);
            }
        }
    }

    /// Returns the number of all lines so far.
    pub(super) fn lines(&self) -> u64 {
        let LineCounts { lock, other, garbage, cut } = self.counted;
        lock + other + garbage + cut
    }

    /// Returns the number of lines about locks so far.
    pub(super) fn lock_lines(&self) -> u64 {
        self.counted.lock
    }

    /// Returns the number of events for which the model had no room, and that have not been reported to it yet.
    pub(super) fn missed(&self) -> u64 {
        self.databases.iter().map(|database| database.missed).sum()
    }

    /// Returns the age of the lines that are being read.
    pub(super) fn lag(&self) -> Duration {
        self.lag.now
    }
}

/// The delay of lines beyond the smallest one, by the server's clock and ours, which may differ.
#[derive(Debug, Default)]
struct Lag {
    /// The smallest difference of the clocks, and its time by our clock.
    least: Option<(i64, i64)>,
    /// The time of the last event, by the server's clock.
    last_micros: u64,
    now: Duration,
}

/// The smallest difference grows by this fraction of the time, so that a step of a clock is forgotten eventually.
const DRIFT_DIVISOR: i64 = 100;
/// An event that is earlier than the one before it by more than this, in microseconds, shows that the server's clock was
/// set back, since the server prints lines in order.
const DISORDER_MICROS: u64 = 1_000_000;

impl Lag {
    fn update(&mut self, ours_micros: u64, theirs_micros: u64) {
        if theirs_micros.saturating_add(DISORDER_MICROS) < self.last_micros {
            self.least = None;
        }
        self.last_micros = theirs_micros;
        let ours = i64::try_from(ours_micros).unwrap_or(i64::MAX);
        let apart = ours.saturating_sub(i64::try_from(theirs_micros).unwrap_or(i64::MAX));
        let least = self.least.map_or(apart, |(least, at)| {
            apart.min(least.saturating_add(ours.saturating_sub(at).max(0) / DRIFT_DIVISOR))
        });
        self.least = Some((least, ours));
        self.now = Duration::from_micros(u64::try_from(apart.saturating_sub(least)).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus::Registry;
    use redisson::{Grouping, Moment};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::metrics::MonitorMetrics;
    use crate::model::types::{ScopeId, Settings};
    use crate::model::{Model, actor};

    struct NoListener;

    impl actor::Listener for NoListener {
        fn effect(&mut self, _: &Arc<str>, _: crate::model::Effect) {}
        fn lag(&mut self, _: ScopeId, _: Duration) {}
    }

    const LINE: &str = "\"EVALSHA\" \"149c5a8bf18676fd99e9e6e24923bd64d9b62f94\" \"1\" \"orders:1\" \"30000\" \
        \"285475da-9152-4c83-822a-67ee2f116a79:52\"";

    /// Returns an acquisition as the server prints it, in that database.
    fn acquire(db: u32) -> String {
        let lua = |words| format!("+1.000002 [{db} lua] {words}\r\n");
        [
            format!("+1.000001 [{db} 127.0.0.1:5000] {LINE}\r\n"),
            lua("\"exists\" \"orders:1\""),
            lua("\"hincrby\" \"orders:1\" \"285475da-9152-4c83-822a-67ee2f116a79:52\" \"1\""),
            lua("\"pexpire\" \"orders:1\" \"30000\""),
        ]
        .concat()
    }

    fn delivery() -> (Delivery, actor::Actor) {
        let settings = Settings {
            max_locks: 10,
            poll_rate: Some(10),
            usual: crate::model::types::Rule { stuck_after: None, starving_after: None }.into(),
            rules: Vec::new(),
            ignore: Vec::new(),
            groups: Vec::new(),
        };
        let scopes = [(Arc::from("main"), 0), (Arc::from("main"), 3)];
        let grouping = Grouping::new(Vec::new(), 10);
        let model = Model::new(settings, grouping, &scopes, Moment::from_micros(0));
        let (actor, handle, _hub, _batches) = actor::new(model, &scopes);
        let metrics = MonitorMetrics::register(&Registry::new()).unwrap().of("main", "node");
        let scope = |i, db| Scope { id: ScopeId(i), deployment: Arc::from("main"), db };
        let scopes = vec![scope(0, 0), scope(1, 3)];
        (Delivery::new(scopes, handle, metrics, Traces::default()), actor)
    }

    #[tokio::test]
    async fn every_line_is_counted_and_a_new_connection_starts_over() {
        let (mut delivery, _actor) = delivery();
        delivery.bytes(acquire(0).as_bytes());
        delivery.bytes(b"+1.000003 [0 127.0.0.1:5000] \"PING\"\r\n-what is this\r\n");
        delivery.pause();
        assert_eq!((delivery.lines(), delivery.lock_lines()), (6, 4));
        // Half a line and the lag belong to the old connection.
        delivery.lag.update(5_000_000, 0);
        delivery.lag.update(9_000_000, 0);
        assert!(delivery.lag() > Duration::from_secs(3));
        delivery.bytes(b"+1.000004 [0 127.0.0.1:5000] \"EVALSHA\" \"149c5");
        delivery.restart(ServerRole::Master);
        assert_eq!(delivery.lag(), Duration::ZERO);
        delivery.bytes(acquire(0).as_bytes());
        delivery.pause();
        assert_eq!(delivery.lock_lines(), 8);
        assert_eq!(delivery.missed(), 0);
    }

    #[tokio::test]
    async fn events_without_room_are_counted_and_reported_with_the_next() {
        let (mut delivery, actor) = delivery();
        let deliver = |db, delivery: &mut Delivery| {
            delivery.bytes(acquire(db).as_bytes());
            delivery.pause();
        };
        // The model does not run, so the queue fills up.
        let mut sent = 0;
        while delivery.missed() == 0 {
            deliver(0, &mut delivery);
            sent += 1;
        }
        assert!(sent > 1_000, "{sent}");
        for _ in 0..6 {
            deliver(0, &mut delivery);
        }
        assert_eq!(delivery.missed(), 7);
        assert_eq!((delivery.lines(), delivery.lock_lines()), (4 * (sent + 6), 4 * (sent + 6)));
        // Another database is not watched, so none of its events is missed.
        deliver(9, &mut delivery);
        assert_eq!(delivery.missed(), 7);
        deliver(3, &mut delivery);
        assert_eq!(delivery.missed(), 8);
        // Once there is room again, the next events of a database arrive with the number of those that it missed.
        let stop = CancellationToken::new();
        let task = tokio::spawn(actor.run(NoListener, stop.clone()));
        let room = async {
            for (db, left) in [(3, 7), (0, 0)] {
                while delivery.missed() > left {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    deliver(db, &mut delivery);
                }
                assert_eq!(delivery.missed(), left);
            }
        };
        tokio::time::timeout(Duration::from_secs(20), room).await.unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn the_least_difference_counts_and_clocks_may_be_set_back() {
        let mut lag = Lag::default();
        lag.update(5_000_000, 0);
        lag.update(6_000_000, 6_000_000);
        assert_eq!(lag.now, Duration::ZERO);
        lag.update(8_000_000, 6_000_000);
        assert!(lag.now > Duration::from_millis(1_900), "{:?}", lag.now);
        let mut lag = Lag::default();
        let hour = 3_600_000_000;
        for both in [hour, 0, 1_000_000] {
            lag.update(both, both);
            assert_eq!(lag.now, Duration::ZERO);
        }
    }

    #[test]
    fn a_server_clock_that_is_set_back_is_not_lag() {
        let (mut lag, hour) = (Lag::default(), 3_600_000_000);
        lag.update(10_000_000, hour);
        lag.update(20_000_000, 2 * hour + 10_000_000);
        for i in 2..5 {
            lag.update(i * 10_000_000, hour + i * 10_000_000);
            assert_eq!(lag.now, Duration::ZERO);
        }
        lag.update(60_000_000, hour + 41_000_000);
        assert!(lag.now > Duration::from_secs(18), "{:?}", lag.now);
    }

    #[test]
    fn clocks_that_disagree_are_not_lag() {
        let mut lag = Lag::default();
        let hour = 3_600_000_000;
        for i in 0..10 {
            lag.update(i * 1_000 + hour, i * 1_000);
            assert_eq!(lag.now, Duration::ZERO);
        }
        lag.update(hour + 5_000_000, 10_000);
        assert!(lag.now > Duration::from_secs(4), "{:?}", lag.now);
        // A clock that runs at half speed retains the lag.
        for i in 6..20 {
            lag.update(hour + i * 1_000_000, i * 500_000);
        }
        assert!(lag.now > Duration::from_secs(8), "{:?}", lag.now);
        for i in 0..3_000 {
            lag.update(hour + i * 1_000_000, i * 1_000_000 - i.min(1) * 10_000);
        }
        assert_eq!(lag.now, Duration::ZERO);
        for i in 3_000..6_000 {
            lag.update(2 * hour + i * 1_000_000, i * 1_000_000);
        }
        lag.update(0, 0);
        assert_eq!(lag.now, Duration::ZERO, "a step back");
    }
}

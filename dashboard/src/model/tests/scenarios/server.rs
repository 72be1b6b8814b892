//! The simulated server: its keys, and the reports of the sources about them.

use super::*;

/// The interval at which subscribers are counted, in milliseconds.
const COUNT_INTERVAL: u64 = 1_000;
/// The interval at which the server's clients are listed.
const LIST_EACH: u64 = 15_000;
/// The interval at which the holder registry is read.
const AGENTS_INTERVAL: u64 = 2_000;
/// The interval of scans.
const PASS_EACH: u64 = 60_000;
/// The end of the first scan.
const FIRST_PASS: u64 = 1_000;
/// The interval at which the server's clock is read.
const CLOCK_INTERVAL: u64 = 10_000;

impl Scenario {
    pub(super) fn report_sources(&mut self) {
        let now = self.now;
        let each = |ms| now.is_multiple_of(ms);
        if each(CLOCK_INTERVAL) {
            let at = SteadyMillis(now);
            self.observe(Observation::Clock { ahead_ms: self.ahead_ms, at });
        }
        if each(PASS_EACH) || now == FIRST_PASS {
            self.scan();
        }
        if self.sources.subscribers && each(COUNT_INTERVAL) {
            let known: Vec<LockName> = self.model.scopes[0].locks.names().cloned().collect();
            let mut counts: Vec<(LockName, SubscriberCount)> = known
                .into_iter()
                .filter(|lock| !self.queues.contains_key(lock.as_str().unwrap_or_default()))
                .map(|lock| {
                    let listens = |sleeper: &&SleepingWaiter| name(sleeper.lock) == lock;
                    let clients: HashSet<ClientId> =
                        self.sleepers.iter().filter(listens).map(|s| s.by.client).collect();
                    (lock, (clients.len() as u64).into())
                })
                .collect();
            counts.sort();
            self.observe(Observation::Subscribers { counts, at: self.time() });
        }
        if self.sources.identity && each(LIST_EACH) {
            let gone: Vec<u8> = self.gone.iter().map(|client| number(*client)).collect();
            let here = (0..=255).filter(|n| !gone.contains(n)).map(|n| IpAddr::from([10, 0, 0, n]));
            let addresses = here.chain([IpAddr::from([127, 0, 0, 1])]).collect();
            let connections = Connections { addresses, ..Connections::default() };
            self.observe(Observation::Connected { connections, at: self.time() });
        }
        if self.sources.identity && each(AGENTS_INTERVAL) {
            self.report_agents();
        }
    }

    fn report_agents(&mut self) {
        let mut agents = Vec::new();
        let mut holders = Vec::new();
        for (lock, key) in &self.keys {
            for one in &key.hash.holders {
                let client = one.id.client;
                if number(client) < AGENTS {
                    continue;
                }
                let there = !self.silent_agents.contains(&client);
                let presence = Presence::new(there, false);
                if !agents.contains(&(client, presence)) {
                    agents.push((client, presence));
                }
                let published = there && !self.unreported.contains(&one.id);
                let who = published
                    .then(|| HolderIdentity { pid: Some(4711), ..HolderIdentity::default() });
                holders.push((name(lock), one.id, who));
            }
        }
        if !holders.is_empty() {
            let report = AgentReport { agents, holders, at: self.time() };
            self.observe(Observation::AgentReport(report));
        }
    }

    fn scan(&mut self) {
        let started = at(self.now - 1);
        let keys: Vec<&str> = self.keys.keys().copied().collect();
        for lock in keys {
            self.read(lock, Source::Scan);
        }
        let companions: Vec<LockName> = self.queues.keys().map(|lock| name(lock)).collect();
        for name in companions {
            self.observe(Observation::CompanionKey { name });
        }
        self.observe(Observation::ScanEnded {
            started,
            ended: self.time(),
            whole: true,
            skipped: 0,
        });
    }

    pub(super) fn read_what_is_due(&mut self) {
        self.record(Input::Due(self.now));
        let due = self.model.due(MAIN, at(self.now), 64);
        if self.recorded {
            self.outputs.push(format!("{due:?}"));
        }
        for request in due {
            let lock = request.name.as_str().unwrap_or_default().to_owned();
            self.read(&lock, Source::Poll);
        }
    }

    /// Reads the current state of a lock.
    pub(super) fn read(&mut self, lock: &str, source: Source) {
        let reading = self.reading(lock);
        self.report_reading(lock, self.now, source, reading);
    }

    /// Reports a reading made at that instant.
    pub(super) fn report_reading(&mut self, lock: &str, ms: u64, source: Source, reading: Reading) {
        let stamp = Stamp { sent: at(ms), received: Time::of_test(ms + 1, WALL) };
        self.observe(Observation::Read { name: name(lock), stamp, source, reading });
    }

    /// Returns the result of a reading at the current time.
    pub(super) fn reading(&self, lock: &str) -> Reading {
        let queue = self.queues.get(lock).map(|places| Queue {
            len: places.len() as u64,
            front: places
                .iter()
                .map(|(id, deadline)| QueueEntry { id: *id, deadline: Some(*deadline) })
                .collect(),
            deadlines: places.len() as u64,
            passed: places.iter().filter(|(_, deadline)| *deadline <= self.clock()).count() as u64,
        });
        let of_lock = self.markers.iter().filter(|((of, _), _)| *of == lock);
        let mut markers: Vec<(HolderId, Marker)> =
            of_lock.map(|((_, id), _)| (*id, Marker::Persistent)).collect();
        let key = self.keys.get(lock);
        for one in key.iter().flat_map(|key| &key.hash.holders) {
            if key.is_some_and(|key| key.hash.mode.is_some())
                && !markers.iter().any(|(id, _)| *id == one.id)
            {
                markers.push((one.id, Marker::Missing));
            }
        }
        let companions = Companions { queue, markers, ..Companions::default() };
        match key {
            None => Reading::Absent { companions },
            Some(key) => Reading::Lock {
                hash: key.hash.clone(),
                ttl: key.ends.map(|ends| Duration::from_millis(ends.saturating_sub(self.now))),
                companions,
            },
        }
    }

    /// Prints an operation to MONITOR.
    pub(super) fn print_to_monitor(&mut self, lock: &str, by: HolderId, what: monitor::Action) {
        if !self.sources.monitor || self.down {
            return;
        }
        // MONITOR does not show the end of a lease, so the last holder may still hold the lock.
        let certainty = match what {
            monitor::Action::ReleaseFoundNothing => monitor::Certainty::Likely,
            _ => monitor::Certainty::Certain,
        };
        let client = Some(monitor::Address::Tcp((address(by.client), 5_123).into()));
        let event = monitor::Event {
            at_micros: self.clock() * 1_000,
            db: 0,
            client,
            lock: name(lock),
            kind: None,
            holder: Some(by),
            action: what,
            certainty,
        };
        let (events, at) = (vec![event], self.time());
        self.observe(Observation::Traffic(Traffic { events, at, missed: 0 }));
    }

    /// Sends the notification of a changed or expired key.
    pub(super) fn notify_key_change(&mut self, lock: &str, expired: bool) {
        if self.sources.keyspace && !self.down {
            let (name, at) = (name(lock), self.time());
            self.observe(Observation::KeyChanged { name, expired, at });
        }
    }

    /// Publishes a release message.
    pub(super) fn publish_release(&mut self, lock: &str) {
        if self.sources.channels && !self.down {
            let (names, at) = (vec![name(lock)], self.time());
            self.observe(Observation::Released { names, at });
        }
    }

    /// Makes the server unreachable.
    pub(super) fn stop_server(&mut self) {
        self.down = true;
        self.observe(Observation::ServerDown);
    }

    /// Makes the server reachable again, as the same run or another one.
    pub(super) fn start_server(&mut self, run: &str) {
        self.down = false;
        let (run_id, now) = (Some(run.to_owned()), self.time());
        let (since, at) = (now.moment(), now.steady());
        self.observe(Observation::ServerUp { since, at, run_id, cluster: false });
    }

    /// Deletes all keys.
    pub(super) fn clear_server(&mut self) {
        self.keys.clear();
        self.queues.clear();
    }
}

//! The server's side: keys, what reads them, and what the sources tell of them.

use super::*;

/// The interval at which subscribers are counted, in milliseconds.
const COUNT_EACH: u64 = 1_000;
/// The interval at which the server's clients are listed.
const LIST_EACH: u64 = 15_000;
/// The interval at which the holder registry is read.
const AGENTS_EACH: u64 = 2_000;
/// The interval of scans.
const PASS_EACH: u64 = 60_000;
/// The end of the first scan.
const FIRST_PASS: u64 = 1_000;
/// The interval at which the server's clock is read.
const CLOCK_EACH: u64 = 10_000;

impl Play {
    pub(super) fn sources_tell(&mut self) {
        let (now, steady) = (self.now, self.steady());
        let each = |ms| now.is_multiple_of(ms);
        if each(CLOCK_EACH) {
            self.see(Observation::Clock { ahead_ms: self.ahead_ms });
        }
        if each(PASS_EACH) || now == FIRST_PASS {
            self.pass_over_all();
        }
        if self.seeing.subscribers && each(COUNT_EACH) {
            let known: Vec<LockName> = self.model.scopes[0].locks.keys().cloned().collect();
            let mut counts: Vec<(LockName, u64)> = known
                .into_iter()
                .filter(|lock| !self.queues.contains_key(lock.as_str().unwrap_or_default()))
                .map(|lock| {
                    let listens = |sleeper: &&Sleeper| name(sleeper.lock) == lock;
                    let clients: HashSet<ClientId> =
                        self.sleepers.iter().filter(listens).map(|s| s.by.client).collect();
                    (lock, clients.len() as u64)
                })
                .collect();
            counts.sort();
            self.see(Observation::Subscribers { counts, at: at(now), steady });
        }
        if self.seeing.identity && each(LIST_EACH) {
            let gone: Vec<u8> = self.gone.iter().map(|client| number(*client)).collect();
            let here = (0..=255).filter(|n| !gone.contains(n)).map(|n| IpAddr::from([10, 0, 0, n]));
            let addresses = here.chain([IpAddr::from([127, 0, 0, 1])]).collect();
            self.see(Observation::Connected { addresses, at: at(now), steady });
        }
        if self.seeing.identity && each(AGENTS_EACH) {
            self.agents_tell();
        }
    }

    fn agents_tell(&mut self) {
        let mut agents = Vec::new();
        let mut holders = Vec::new();
        for (lock, key) in &self.keys {
            for one in &key.hash.holders {
                let client = one.id.client;
                if number(client) < AGENTS {
                    continue;
                }
                let there = !self.silent.contains(&client);
                if !agents.contains(&(client, there)) {
                    agents.push((client, there));
                }
                let told = there && !self.untold.contains(&one.id);
                let who =
                    told.then(|| HolderIdentity { pid: Some(4711), ..HolderIdentity::default() });
                holders.push((name(lock), one.id, who));
            }
        }
        if !holders.is_empty() {
            let told = AgentReport { agents, holders, at: at(self.now), steady: self.steady() };
            self.see(Observation::AgentReport(told));
        }
    }

    fn pass_over_all(&mut self) {
        let started = at(self.now - 1);
        let keys: Vec<&str> = self.keys.keys().copied().collect();
        for lock in keys {
            self.read(lock, Source::Scan);
        }
        let companions: Vec<LockName> = self.queues.keys().map(|lock| name(lock)).collect();
        for name in companions {
            self.see(Observation::CompanionKey { name });
        }
        self.see(Observation::ScanEnded { started, steady: self.steady() });
    }

    pub(super) fn read_what_is_due(&mut self) {
        self.give(Given::Due(self.now));
        let due = self.model.due(MAIN, at(self.now), 64);
        if self.recorded {
            self.gave.push(format!("{due:?}"));
        }
        for request in due {
            let lock = request.name.as_str().unwrap_or_default().to_owned();
            self.read(&lock, Source::Poll);
        }
    }

    /// Reads a lock as it is now.
    pub(super) fn read(&mut self, lock: &str, source: Source) {
        let reading = self.reading(lock);
        self.tell_reading(lock, self.now, source, reading);
    }

    /// Tells what was read at that instant.
    pub(super) fn tell_reading(&mut self, lock: &str, ms: u64, source: Source, reading: Reading) {
        let stamp =
            Stamp { sent: at(ms), received: at(ms + 1), steady: SteadyMillis(WALL + ms + 1) };
        self.see(Observation::Read { name: name(lock), stamp, source, reading });
    }

    /// Returns the result of a reading now.
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

    /// MONITOR prints what somebody did.
    pub(super) fn prints(&mut self, lock: &str, by: HolderId, what: monitor::Action) {
        if !self.seeing.monitor || self.down {
            return;
        }
        // MONITOR shows no end of a lease: whoever took the lock may have it still, for all that it shows.
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
        let (at, steady) = (at(self.now), self.steady());
        self.see(Observation::Traffic(Traffic { events: vec![event], at, steady, missed: 0 }));
    }

    /// A key was changed, or has run out.
    pub(super) fn changed(&mut self, lock: &str, expired: bool) {
        if self.seeing.keyspace && !self.down {
            let (name, at, steady) = (name(lock), at(self.now), self.steady());
            self.see(Observation::KeyChanged { name, expired, at, steady });
        }
    }

    /// A release message went out.
    pub(super) fn published(&mut self, lock: &str) {
        if self.seeing.channels && !self.down {
            let (names, at, steady) = (vec![name(lock)], at(self.now), self.steady());
            self.see(Observation::Released { names, at, steady });
        }
    }

    /// The server cannot be reached any longer; its clients neither.
    pub(super) fn goes_down(&mut self) {
        self.down = true;
        self.see(Observation::ServerDown);
    }

    /// It is back: the same run of it, or another one with other keys.
    pub(super) fn comes_back(&mut self, run: &str) {
        self.down = false;
        let (run_id, at, steady) = (Some(run.to_owned()), at(self.now), self.steady());
        self.see(Observation::ServerUp { at, steady, run_id, cluster: false });
    }

    /// Nothing is left of its keys.
    pub(super) fn forgets_all(&mut self) {
        self.keys.clear();
        self.queues.clear();
    }
}

//! The clients' side: what they do to locks, and what they go on doing by themselves.

use monitor::Action;
use redisson::shape::Holder;

use super::*;

/// For how long a place in a fair queue is kept, milliseconds.
const PLACE_KEPT: u64 = 300_000;

impl Play {
    /// Everything that happens without anybody's new wish: leases run out, watchdogs renew, those who wait try again.
    pub(super) fn clients_go_on(&mut self) {
        let over = |key: &Key, now| key.ends.is_some_and(|ends| ends <= now);
        let ended: Vec<&str> = self
            .keys
            .iter()
            .filter(|(_, key)| over(key, self.now))
            .map(|(lock, _)| *lock)
            .collect();
        for lock in ended {
            self.keys.remove(lock);
            self.changed(lock, true);
        }
        let (now, down) = (self.now, self.down);
        let due = |watchdog: &&mut Watchdog| watchdog.next <= now;
        let mut renewals = Vec::new();
        for watchdog in self.watchdogs.iter_mut().filter(due) {
            watchdog.next = now + watchdog.lease / 3;
            renewals.push(watchdog.clone());
        }
        for Watchdog { lock, by, lease, .. } in renewals.into_iter().filter(|_| !down) {
            self.renew(lock, by, lease);
        }
        let awake = |sleeper: &&Sleeper| sleeper.next <= self.now;
        let awake: Vec<Sleeper> = self.sleepers.iter().filter(awake).cloned().collect();
        for sleeper in awake {
            self.tries_again(&sleeper);
        }
    }

    fn renew(&mut self, lock: &'static str, by: HolderId, lease: u64) {
        let now = self.now;
        let held =
            self.keys.get_mut(lock).filter(|key| key.hash.holders.iter().any(|h| h.id == by));
        let found = held.map(|key| key.ends = Some(now + lease)).is_some();
        if found {
            self.changed(lock, false);
            self.prints(lock, by, Action::Renewed { lease: Some(Duration::from_millis(lease)) });
        } else {
            self.prints(lock, by, Action::RenewalFoundNothing);
            self.watchdogs.retain(|watchdog| watchdog.by != by || watchdog.lock != lock);
        }
    }

    /// Somebody tries to take it, for that lease. Whether they have it then.
    pub(super) fn take(&mut self, lock: &'static str, by: HolderId, lease: u64) -> bool {
        let ends = Some(self.now + lease);
        let told = Some(Duration::from_millis(lease));
        let key = self.keys.entry(lock).or_default();
        let others = key.hash.holders.iter().any(|holder| holder.id != by);
        if others {
            self.prints(lock, by, Action::Refused);
            return false;
        }
        key.ends = ends;
        let what = match key.hash.holders.first_mut() {
            Some(own) => {
                own.count += 1;
                Action::Reentered { lease: told, count: None }
            }
            None => {
                key.hash.holders.push(Holder { id: by, count: 1 });
                Action::Acquired { lease: told }
            }
        };
        self.changed(lock, false);
        self.prints(lock, by, what);
        true
    }

    /// Takes a free lock and renews it from then on.
    pub(super) fn take_and_renew(&mut self, lock: &'static str, by: HolderId) {
        assert!(self.take(lock, by, LEASE), "it is free");
        let next = self.now + LEASE / 3;
        self.watchdogs.push(Watchdog { lock, by, lease: LEASE, next });
    }

    /// The process stands still: it renews nothing any longer.
    pub(super) fn freezes(&mut self, by: HolderId) {
        self.watchdogs.retain(|watchdog| watchdog.by.client != by.client);
    }

    /// The process is gone, and its connections with it.
    pub(super) fn dies(&mut self, by: HolderId) {
        self.freezes(by);
        self.sleepers.retain(|sleeper| sleeper.by.client != by.client);
        self.gone.insert(by.client);
    }

    /// An agent no longer tells of itself.
    pub(super) fn falls_silent(&mut self, by: HolderId) {
        self.freezes(by);
        self.silent.insert(by.client);
    }

    /// An agent knows nothing of a holder.
    pub(super) fn denies(&mut self, by: HolderId, denies: bool) {
        if denies {
            self.untold.insert(by);
        } else {
            self.untold.remove(&by);
        }
    }

    /// Gives it back, with its message where that kind sends one. Whether there was something to give back.
    pub(super) fn release(&mut self, lock: &'static str, by: HolderId, message: bool) -> bool {
        self.watchdogs.retain(|watchdog| watchdog.by != by || watchdog.lock != lock);
        let held =
            self.keys.get(lock).is_some_and(|key| key.hash.holders.iter().any(|h| h.id == by));
        if !held {
            self.prints(lock, by, Action::ReleaseFoundNothing);
            return false;
        }
        self.keys.remove(lock);
        self.changed(lock, false);
        self.prints(lock, by, Action::Released);
        if message {
            self.published(lock);
            let woken = |sleeper: &&Sleeper| sleeper.lock == lock;
            if let Some(sleeper) = self.sleepers.iter().find(woken).cloned() {
                self.tries_again(&sleeper);
            }
        }
        true
    }

    /// Waits for a plain lock: tries, listens, tries once more, and sleeps.
    pub(super) fn waits_for(&mut self, lock: &'static str, by: HolderId) {
        if self.take(lock, by, LEASE) {
            return;
        }
        self.sleepers.push(Sleeper { lock, by, next: self.now });
        let sleeper = self.sleepers[self.sleepers.len() - 1].clone();
        self.tries_again(&sleeper);
    }

    fn tries_again(&mut self, sleeper: &Sleeper) {
        let Sleeper { lock, by, .. } = *sleeper;
        let own = |sleeper: &Sleeper| sleeper.by == by && sleeper.lock == lock;
        if self.take(lock, by, LEASE) {
            let next = self.now + LEASE / 3;
            self.watchdogs.push(Watchdog { lock, by, lease: LEASE, next });
            self.sleepers.retain(|sleeper| !own(sleeper));
            return;
        }
        let ends = self.keys.get(lock).and_then(|key| key.ends).unwrap_or(u64::MAX);
        let again = ends.max(self.now + STEP);
        self.sleepers.iter_mut().filter(|s| own(s)).for_each(|sleeper| sleeper.next = again);
    }

    /// Takes a place at the end of a fair lock's queue, kept until then by the server's clock.
    pub(super) fn queues(&mut self, lock: &'static str, by: HolderId) {
        let deadline_millis = self.clock() + PLACE_KEPT;
        self.queues_until(lock, by, deadline_millis);
    }

    /// The same with a deadline of one's own.
    pub(super) fn queues_until(&mut self, lock: &'static str, by: HolderId, deadline_millis: u64) {
        self.queues.entry(lock).or_default().push((by, deadline_millis));
        self.prints(lock, by, Action::Queued { deadline_millis });
    }

    /// Leaves the queue.
    pub(super) fn leaves_queue(&mut self, lock: &'static str, by: HolderId) {
        let places = self.queues.entry(lock).or_default();
        places.retain(|(id, _)| *id != by);
        if places.is_empty() {
            self.queues.remove(lock);
        }
        self.prints(lock, by, Action::LeftQueue);
    }

    /// The next in the queue has it.
    pub(super) fn next_in_queue(&mut self, lock: &'static str) {
        let Some((by, _)) = self.queues.get(lock).and_then(|places| places.first()).copied() else {
            return;
        };
        let places = self.queues.entry(lock).or_default();
        places.remove(0);
        if places.is_empty() {
            self.queues.remove(lock);
        }
        self.take_and_renew(lock, by);
    }

    /// Readers take it together, each with a marker that stays.
    pub(super) fn readers(&mut self, lock: &'static str, readers: &[HolderId], lease: u64) {
        let key = self.keys.entry(lock).or_default();
        key.hash.mode = Some(b"read".to_vec());
        key.hash.holders = readers.iter().map(|id| Holder { id: *id, count: 1 }).collect();
        key.ends = Some(self.now + lease);
        for id in readers {
            self.markers.insert((lock, *id), 0);
        }
        self.changed(lock, false);
    }

    /// Markers of readers end.
    pub(super) fn markers_end(&mut self, lock: &str) {
        self.markers.retain(|(of, _), _| *of != lock);
    }

    /// Somebody deletes the key by hand: no message, nothing that lock traffic shows.
    pub(super) fn deleted(&mut self, lock: &str) {
        self.keys.remove(lock);
        self.changed(lock, false);
    }

    /// Somebody sets its time to live by hand; none: takes it away.
    pub(super) fn set_ends(&mut self, lock: &str, left: Option<u64>) {
        let ends = left.map(|left| self.now + left);
        if let Some(key) = self.keys.get_mut(lock) {
            key.ends = ends;
        }
        self.changed(lock, false);
    }

    /// Somebody writes a field into it that is no holder's, or takes it away.
    pub(super) fn set_alien(&mut self, lock: &str, alien: bool) {
        if let Some(key) = self.keys.get_mut(lock) {
            key.hash.unexpected = if alien { vec![b"null".to_vec()] } else { Vec::new() };
        }
        self.changed(lock, false);
    }
}

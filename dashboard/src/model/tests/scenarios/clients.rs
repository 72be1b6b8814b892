//! The simulated clients: their operations on locks, their watchdogs and their retries.

use monitor::Action;
use redisson::shape::Holder;

use super::*;

/// The deadline of an entry in a fair queue, in milliseconds from its creation.
const PLACE_KEPT: u64 = 300_000;

impl Scenario {
    /// Expires leases, renews watched locks, and retries the attempts of waiters.
    pub(super) fn advance_clients(&mut self) {
        let over = |key: &Key, now| key.ends.is_some_and(|ends| ends <= now);
        let ended: Vec<&str> = self
            .keys
            .iter()
            .filter(|(_, key)| over(key, self.now))
            .map(|(lock, _)| *lock)
            .collect();
        for lock in ended {
            self.keys.remove(lock);
            self.notify_key_change(lock, true);
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
        let awake = |sleeper: &&SleepingWaiter| sleeper.next <= self.now;
        let awake: Vec<SleepingWaiter> = self.sleepers.iter().filter(awake).cloned().collect();
        for sleeper in awake {
            self.retry(&sleeper);
        }
    }

    fn renew(&mut self, lock: &'static str, by: HolderId, lease: u64) {
        let now = self.now;
        let held =
            self.keys.get_mut(lock).filter(|key| key.hash.holders.iter().any(|h| h.id == by));
        let found = held.map(|key| key.ends = Some(now + lease)).is_some();
        if found {
            self.notify_key_change(lock, false);
            self.print_to_monitor(
                lock,
                by,
                Action::Renewed { lease: Some(Duration::from_millis(lease)) },
            );
        } else {
            self.print_to_monitor(lock, by, Action::RenewalFoundNothing);
            self.watchdogs.retain(|watchdog| watchdog.by != by || watchdog.lock != lock);
        }
    }

    /// Tries to acquire a lock with that lease. Returns true on success.
    pub(super) fn take(&mut self, lock: &'static str, by: HolderId, lease: u64) -> bool {
        let ends = Some(self.now + lease);
        let shown_lease = Some(Duration::from_millis(lease));
        let key = self.keys.entry(lock).or_default();
        let others = key.hash.holders.iter().any(|holder| holder.id != by);
        if others {
            self.print_to_monitor(lock, by, Action::Refused);
            return false;
        }
        key.ends = ends;
        let what = match key.hash.holders.first_mut() {
            Some(own) => {
                own.count += 1;
                Action::Reentered { lease: shown_lease, count: None }
            }
            None => {
                key.hash.holders.push(Holder { id: by, count: 1 });
                Action::Acquired { lease: shown_lease }
            }
        };
        self.notify_key_change(lock, false);
        self.print_to_monitor(lock, by, what);
        true
    }

    /// Writes a lock without a time to live into Redis, as a crash before this program's start may have left it.
    pub(super) fn plant(&mut self, lock: &'static str, by: HolderId) {
        let key = self.keys.entry(lock).or_default();
        key.hash.holders.push(Holder { id: by, count: 1 });
    }

    /// Acquires a free lock and then renews it.
    pub(super) fn take_and_renew(&mut self, lock: &'static str, by: HolderId) {
        assert!(self.take(lock, by, LEASE), "it is free");
        let next = self.now + LEASE / 3;
        self.watchdogs.push(Watchdog { lock, by, lease: LEASE, next });
    }

    /// Freezes a process, which stops its renewals.
    pub(super) fn freeze(&mut self, by: HolderId) {
        self.watchdogs.retain(|watchdog| watchdog.by.client != by.client);
    }

    /// Kills a process, which closes its connections.
    pub(super) fn kill_client(&mut self, by: HolderId) {
        self.freeze(by);
        self.sleepers.retain(|sleeper| sleeper.by.client != by.client);
        self.gone.insert(by.client);
    }

    /// Stops an agent from publishing itself.
    pub(super) fn silence_agent(&mut self, by: HolderId) {
        self.freeze(by);
        self.silent_agents.insert(by.client);
    }

    /// Makes an agent stop publishing a holder, or publish it again.
    pub(super) fn deny_holder(&mut self, by: HolderId, denies: bool) {
        if denies {
            self.unreported.insert(by);
        } else {
            self.unreported.remove(&by);
        }
    }

    /// Releases a lock, with or without a message. Returns false if it was not held.
    pub(super) fn release(&mut self, lock: &'static str, by: HolderId, message: bool) -> bool {
        self.watchdogs.retain(|watchdog| watchdog.by != by || watchdog.lock != lock);
        let held =
            self.keys.get(lock).is_some_and(|key| key.hash.holders.iter().any(|h| h.id == by));
        if !held {
            self.print_to_monitor(lock, by, Action::ReleaseFoundNothing);
            return false;
        }
        self.keys.remove(lock);
        self.notify_key_change(lock, false);
        self.print_to_monitor(lock, by, Action::Released);
        if message {
            self.publish_release(lock);
            let woken = |sleeper: &&SleepingWaiter| sleeper.lock == lock;
            if let Some(sleeper) = self.sleepers.iter().find(woken).cloned() {
                self.retry(&sleeper);
            }
        }
        true
    }

    /// Waits for a plain lock: tries, subscribes, retries once, and sleeps.
    pub(super) fn wait_for(&mut self, lock: &'static str, by: HolderId) {
        if self.take(lock, by, LEASE) {
            return;
        }
        self.sleepers.push(SleepingWaiter { lock, by, next: self.now });
        let sleeper = self.sleepers[self.sleepers.len() - 1].clone();
        self.retry(&sleeper);
    }

    fn retry(&mut self, sleeper: &SleepingWaiter) {
        let SleepingWaiter { lock, by, .. } = *sleeper;
        let own = |sleeper: &SleepingWaiter| sleeper.by == by && sleeper.lock == lock;
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

    /// Adds an entry to the end of a fair lock's queue.
    pub(super) fn enqueue(&mut self, lock: &'static str, by: HolderId) {
        let deadline_millis = self.clock() + PLACE_KEPT;
        self.enqueue_until(lock, by, deadline_millis);
    }

    /// Adds an entry with a given deadline.
    pub(super) fn enqueue_until(&mut self, lock: &'static str, by: HolderId, deadline_millis: u64) {
        self.queues.entry(lock).or_default().push((by, deadline_millis));
        self.print_to_monitor(lock, by, Action::Queued { deadline_millis });
    }

    /// Removes an entry from the queue.
    pub(super) fn leave_queue(&mut self, lock: &'static str, by: HolderId) {
        let places = self.queues.entry(lock).or_default();
        places.retain(|(id, _)| *id != by);
        if places.is_empty() {
            self.queues.remove(lock);
        }
        self.print_to_monitor(lock, by, Action::LeftQueue);
    }

    /// Grants the lock to the next in the queue.
    pub(super) fn grant_next(&mut self, lock: &'static str) {
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

    /// Acquires the lock for several readers, each with a permanent marker.
    pub(super) fn take_as_readers(&mut self, lock: &'static str, readers: &[HolderId], lease: u64) {
        let key = self.keys.entry(lock).or_default();
        key.hash.mode = Some(b"read".to_vec());
        key.hash.holders = readers.iter().map(|id| Holder { id: *id, count: 1 }).collect();
        key.ends = Some(self.now + lease);
        for id in readers {
            self.markers.insert((lock, *id), 0);
        }
        self.notify_key_change(lock, false);
    }

    /// Acquires the lock for one more reader.
    pub(super) fn join_as_reader(&mut self, lock: &'static str, reader: HolderId, lease: u64) {
        let ends = self.now + lease;
        let key = self.keys.entry(lock).or_default();
        key.hash.mode = Some(b"read".to_vec());
        key.hash.holders.push(Holder { id: reader, count: 1 });
        key.ends = key.ends.max(Some(ends));
        self.markers.insert((lock, reader), ends);
        self.notify_key_change(lock, false);
        let lease = Some(Duration::from_millis(lease));
        self.print_to_monitor(lock, reader, Action::Acquired { lease });
    }

    /// Releases the lock of a reader. Only the last one to leave publishes that.
    pub(super) fn leave_as_reader(&mut self, lock: &'static str, reader: HolderId) {
        self.markers.remove(&(lock, reader));
        let Some(key) = self.keys.get_mut(lock) else { return };
        key.hash.holders.retain(|holder| holder.id != reader);
        let last = key.hash.holders.is_empty();
        if last {
            self.keys.remove(lock);
        }
        self.notify_key_change(lock, false);
        self.print_to_monitor(lock, reader, Action::Released);
        if last {
            self.publish_release(lock);
        }
    }

    /// Deletes the markers of readers.
    pub(super) fn delete_markers(&mut self, lock: &str) {
        self.markers.retain(|(of, _), _| *of != lock);
    }

    /// Deletes the key by hand, without a message or lock traffic.
    pub(super) fn delete(&mut self, lock: &str) {
        self.keys.remove(lock);
        self.notify_key_change(lock, false);
    }

    /// Sets or removes the TTL by hand.
    pub(super) fn set_ttl(&mut self, lock: &str, left: Option<u64>) {
        let ends = left.map(|left| self.now + left);
        if let Some(key) = self.keys.get_mut(lock) {
            key.ends = ends;
        }
        self.notify_key_change(lock, false);
    }

    /// Adds or removes a field that does not belong to a lock.
    pub(super) fn set_unexpected_field(&mut self, lock: &str, present: bool) {
        if let Some(key) = self.keys.get_mut(lock) {
            key.hash.unexpected = if present { vec![b"null".to_vec()] } else { Vec::new() };
        }
        self.notify_key_change(lock, false);
    }
}

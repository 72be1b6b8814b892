//! Admission of connections: idle ones give way to those that send requests, and probes are answered when all others are taken.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// The maximum number of connections of one address that have not sent a request yet.
const WAITING_PER_ADDRESS: usize = 16;
/// The time in which a connection of a full address need not give way, so that a burst of quick clients is served.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the maximum number of connections of a server of which `active` may have requests that are answered.
#[must_use]
pub const fn most_connections(active: usize) -> usize {
    active.saturating_add(most_waiting(active))
}

const fn most_waiting(active: usize) -> usize {
    let four_times = active.saturating_mul(4);
    if four_times > 256 { four_times } else { 256 }
}

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Admission {
    /// Connections whose requests are answered.
    active: Arc<Semaphore>,
    /// Notified when a request has to wait for the others.
    crowded: Arc<Notify>,
    /// Connections that have sent no request, or one that waits, the oldest first.
    waiting: Mutex<Waiting>,
    most_waiting: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    next_id: u64,
    tickets: VecDeque<Entry>,
}

impl Waiting {
    /// Returns the index of the oldest connection without a request of the address with the most connections, or else of
    /// its oldest one.
    fn of_largest_address(&self) -> Option<usize> {
        let mut counts = HashMap::new();
        self.tickets.iter().for_each(|entry| *counts.entry(entry.peer).or_insert(0) += 1);
        let (largest, _) = counts.into_iter().max_by_key(|(_, count): &(_, usize)| *count)?;
        let idle = self.tickets.iter().position(|entry| entry.peer == largest && !entry.asks);
        idle.or_else(|| self.tickets.iter().position(|entry| entry.peer == largest))
    }
}

#[derive(Debug)]
struct Entry {
    id: u64,
    peer: IpAddr,
    evicted: CancellationToken,
    since: Instant,
    /// Its request waits for the connections with requests.
    asks: bool,
}

/// A connection that has sent no request, or one that waits.
#[derive(Debug)]
pub(super) struct Ticket {
    admission: Arc<Admission>,
    id: u64,
    /// Cancelled when the connection has to give way.
    pub(super) evicted: CancellationToken,
}

impl Admission {
    /// Admits `connections` with requests, and four times as many without.
    pub(super) fn new(connections: usize) -> Arc<Self> {
        let active = Arc::new(Semaphore::new(connections));
        Arc::new(Self {
            active,
            crowded: Arc::default(),
            waiting: Mutex::default(),
            most_waiting: most_waiting(connections),
        })
    }

    /// Admits a new connection. Beyond the limit of its address, the oldest one of that address without a request gives way.
    /// Beyond the limit of all, one of the address with the most connections does.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Ticket {
        let (peer, evicted) = (peer.to_canonical(), CancellationToken::new());
        let mut waiting = self.waiting.lock();
        let is_late =
            |entry: &Entry| !entry.evicted.is_cancelled() && entry.since.elapsed() >= PATIENCE;
        let of_peer = |entry: &&Entry| entry.peer == peer && !entry.asks;
        let gives_way = if waiting.tickets.len() >= self.most_waiting {
            waiting.of_largest_address()
        } else if waiting.tickets.iter().filter(of_peer).count() >= WAITING_PER_ADDRESS {
            waiting.tickets.iter().position(|entry| of_peer(&entry) && is_late(entry))
        } else {
            None
        };
        if let Some(entry) = gives_way.and_then(|index| waiting.tickets.remove(index)) {
            entry.evicted.cancel();
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        let (since, asks) = (Instant::now(), false);
        waiting.tickets.push_back(Entry { id, peer, evicted: evicted.clone(), since, asks });
        Ticket { admission: Arc::clone(self), id, evicted }
    }
}

/// One of the connections with requests.
#[derive(Debug)]
pub(super) struct Seat {
    _permit: OwnedSemaphorePermit,
    /// True if the request had to wait for it.
    pub(super) was_crowded: bool,
}

impl Ticket {
    /// Takes one of the connections with requests. While none is free, the others are asked to end after their responses.
    /// Returns `None` if none becomes free in time.
    pub(super) async fn activate(&self, limit: Duration) -> Option<Seat> {
        let active = &self.admission.active;
        let seat = match Arc::clone(active).try_acquire_owned() {
            Ok(permit) => Seat { _permit: permit, was_crowded: false },
            Err(_) => {
                self.note_request();
                self.admission.crowded.notify_waiters();
                let permit = timeout(limit, Arc::clone(active).acquire_owned()).await.ok()?.ok()?;
                Seat { _permit: permit, was_crowded: true }
            }
        };
        self.leave();
        Some(seat)
    }

    /// Completes when, from now on, a request has to wait for the other connections.
    pub(super) fn crowded(&self) -> OwnedNotified {
        Arc::clone(&self.admission.crowded).notified_owned()
    }

    fn note_request(&self) {
        let mut waiting = self.admission.waiting.lock();
        waiting.tickets.iter_mut().filter(|entry| entry.id == self.id).for_each(|e| e.asks = true);
    }

    fn leave(&self) {
        self.admission.waiting.lock().tickets.retain(|entry| entry.id != self.id);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_with_the_most_connections_gives_way_when_there_is_no_room() {
        let admission = Admission::new(1);
        let [many, few] = ["10.0.0.1", "10.0.0.2"].map(|peer| peer.parse().unwrap());
        let asking: Vec<Ticket> = (0..256).map(|_| admission.enter(many)).collect();
        asking.iter().for_each(Ticket::note_request);
        let probe = admission.enter(few);
        let _next = admission.enter(many);
        assert!(!probe.evicted.is_cancelled());
        assert_eq!(asking.iter().filter(|ticket| ticket.evicted.is_cancelled()).count(), 2);
    }
}

//! The memory for the buffers of all connections together, and of each user's connections.
//!
//! While a user has too much, connections with a backlog read no further commands, and listings wait. If clients do not read
//! at all, those that have not read for the longest time are closed until there is room for a listing.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use redisson::Moment;

use crate::collections::HashMap;
use crate::types::ConnectionId;

/// The maximum number of bytes for the connections of one user.
const MAX_OF_USER: usize = 16 * 1024 * 1024;
/// The maximum number of bytes for all connections.
const MAX_IN_ALL: usize = 64 * 1024 * 1024;
/// The unsent bytes up to which a connection is not affected by others.
pub(super) const BACKLOG: usize = 4 * 1024;
/// The bytes reserved for the reply to a listing before it is made: 1,000 rows with the longest names.
const LISTING: usize = 1024 * 1024;
/// The time without progress after which a client's connection may be closed to free memory.
const STALLED: Duration = Duration::from_secs(10);

/// Counts the bytes in the buffers of the agent's connections.
#[derive(Debug, Clone)]
pub struct Buffers(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// The maximum number of bytes of unanswered commands, beyond [`BACKLOG`] for each connection.
    max_commands: usize,
    in_all: AtomicUsize,
    commands: AtomicUsize,
    users: Mutex<HashMap<u32, Weak<User>>>,
}

#[derive(Debug, Default)]
struct User {
    bytes: AtomicUsize,
    commands: AtomicUsize,
    connections: Mutex<HashMap<ConnectionId, Arc<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    user: Arc<User>,
    counts: Arc<Counts>,
    output: AtomicUsize,
    input: AtomicUsize,
    listing: AtomicUsize,
    /// The sum of `output`, `input` and `listing`.
    bytes: AtomicUsize,
    /// The bytes of unanswered commands, which are counted apart: to close a connection because of them would end its wait.
    commands: AtomicUsize,
    /// The time of the last progress in microseconds since boot, while something waits for the client; otherwise 0.
    stalled_since: AtomicU64,
    evicted: AtomicBool,
    task: AtomicWaker,
}

/// A connection that is closed to free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    pub connection: ConnectionId,
    pub uid: u32,
    pub bytes: usize,
    /// The time since the client has made progress.
    pub stalled: Duration,
}

impl Buffers {
    /// Creates the counts. `max_commands`: the most bytes of unanswered commands. One user may have three quarters of them.
    #[must_use]
    pub fn new(max_commands: usize) -> Self {
        Self(Arc::new(Counts {
            max_commands,
            in_all: AtomicUsize::default(),
            commands: AtomicUsize::default(),
            users: Mutex::default(),
        }))
    }

    /// Returns a share for a connection of that user.
    pub(super) fn share(&self, uid: u32, connection: ConnectionId) -> Share {
        let mut users = self.0.users.lock();
        let user = users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| {
            users.retain(|_, user| user.strong_count() > 0);
            let new = Arc::default();
            users.insert(uid, Arc::downgrade(&new));
            new
        });
        drop(users);
        let counted = Arc::new(Connection {
            id: connection,
            user: Arc::clone(&user),
            counts: Arc::clone(&self.0),
            output: AtomicUsize::default(),
            input: AtomicUsize::default(),
            listing: AtomicUsize::default(),
            bytes: AtomicUsize::default(),
            commands: AtomicUsize::default(),
            stalled_since: AtomicU64::default(),
            evicted: AtomicBool::default(),
            task: AtomicWaker::new(),
        });
        user.connections.lock().insert(connection, Arc::clone(&counted));
        Share(counted)
    }

    /// Closes stalled connections, the one without progress for the longest time first, until there is room for a listing.
    pub fn evict(&self, now: Moment) -> Vec<Evicted> {
        let mut users: Vec<(u32, Arc<User>)> = self
            .0
            .users
            .lock()
            .iter()
            .filter_map(|(uid, user)| Some((*uid, user.upgrade()?)))
            .collect();
        users.sort_by_key(|(uid, user)| (user.bytes.load(Ordering::Relaxed), *uid));
        let excess = |bytes: &AtomicUsize, max: usize| {
            (bytes.load(Ordering::Relaxed) + LISTING).saturating_sub(max)
        };
        let mut in_all = excess(&self.0.in_all, MAX_IN_ALL);
        let mut evicted = Vec::new();
        // The user who has most comes first.
        for (uid, user) in users.iter().rev() {
            let closed = user.evict(*uid, excess(&user.bytes, MAX_OF_USER).max(in_all), now);
            let freed: usize = closed.iter().map(|one| one.bytes).sum();
            in_all = in_all.saturating_sub(freed);
            evicted.extend(closed);
        }
        evicted
    }
}

impl User {
    /// Closes stalled connections until those that are closing have at least that many bytes together.
    fn evict(&self, uid: u32, bytes: usize, now: Moment) -> Vec<Evicted> {
        if bytes == 0 {
            return Vec::new();
        }
        let connections = self.connections.lock();
        let closing = connections.values().filter(|one| one.evicted.load(Ordering::Relaxed));
        let mut freed: usize = closing.map(|one| one.bytes.load(Ordering::Relaxed)).sum();
        let stalled = |(id, connection): (&ConnectionId, &Arc<Connection>)| {
            let since = connection.stalled_since.load(Ordering::Relaxed);
            let stalled = now.since(Moment::from_micros(since));
            (since > 0 && stalled >= STALLED && !connection.evicted.load(Ordering::Relaxed))
                .then(|| (stalled, *id, Arc::clone(connection)))
        };
        let mut slowest: Vec<_> = connections.iter().filter_map(stalled).collect();
        drop(connections);
        slowest.sort_by_key(|(stalled, id, _)| (std::cmp::Reverse(*stalled), id.0));
        let mut evicted = Vec::new();
        for (stalled, id, connection) in slowest {
            if freed >= bytes {
                break;
            }
            let bytes = connection.bytes.load(Ordering::Relaxed);
            freed += bytes;
            connection.evicted.store(true, Ordering::Relaxed);
            connection.task.wake();
            evicted.push(Evicted { connection: id, uid, bytes, stalled });
        }
        evicted
    }
}

/// The bytes in one connection's buffers. Returned when dropped.
#[derive(Debug)]
pub(super) struct Share(Arc<Connection>);

impl Share {
    /// Sets the number of bytes that the client has not accepted.
    pub(super) fn set_output(&mut self, output: usize) {
        self.update(&self.0.output, output);
    }

    /// Sets the number of bytes that are not decoded yet. If `partial`, the client has not sent the rest of a command.
    pub(super) fn set_input(&mut self, input: usize, partial: bool) {
        let input = if input > BACKLOG { input } else { 0 };
        self.update(&self.0.input, input);
        if partial && input > 0 {
            self.wait_for_client();
        }
    }

    /// Reserves or frees the memory for the reply to a listing.
    pub(super) fn set_listing(&mut self, on: bool) {
        self.update(&self.0.listing, if on { LISTING } else { 0 });
    }

    /// Counts the bytes of a command until it is answered.
    pub(super) fn add_command(&mut self, bytes: u32) {
        self.set_commands(self.0.commands.load(Ordering::Relaxed) + bytes as usize);
    }

    pub(super) fn remove_command(&mut self, bytes: u32) {
        self.set_commands(self.0.commands.load(Ordering::Relaxed).saturating_sub(bytes as usize));
    }

    fn set_commands(&mut self, commands: usize) {
        let Connection { counts, user, .. } = &*self.0;
        change(&self.0.commands, commands, &[&counts.commands, &user.commands]);
    }

    /// Sets a part of the share, which only the connection's own task changes.
    fn update(&self, part: &AtomicUsize, after: usize) {
        let Connection { counts, user, bytes, .. } = &*self.0;
        change(part, after, &[&counts.in_all, &user.bytes, bytes]);
    }

    /// Records that the client has just made progress, and that more waits for it.
    pub(super) fn wait_for_client(&self) {
        self.stall(Moment::from_micros(service_kit::clock::boot_micros()));
    }

    fn stall(&self, since: Moment) {
        self.0.stalled_since.store(since.as_micros().max(1), Ordering::Relaxed);
    }

    /// Returns whether the client is waited for.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.stalled_since.load(Ordering::Relaxed) > 0
    }

    /// Records that nothing waits for the client.
    pub(super) fn stop_waiting(&self) {
        self.0.stalled_since.store(0, Ordering::Relaxed);
    }

    /// Returns whether the connection has a backlog while its user, or all users together, have too much.
    pub(super) fn is_exhausted(&self) -> bool {
        let Connection { counts, user, output, commands, .. } = &*self.0;
        let get = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let most = crate::types::Share::of(counts.max_commands, false);
        let many_commands =
            get(&user.commands) > most.of_user || get(&counts.commands) > most.in_all;
        (get(output) > BACKLOG && !self.has_room(0)) || (get(commands) > BACKLOG && many_commands)
    }

    /// Returns whether there is memory for the reply to a listing.
    pub(super) fn may_list(&self) -> bool {
        self.has_room(LISTING)
    }

    fn has_room(&self, bytes: usize) -> bool {
        let Connection { counts, user, .. } = &*self.0;
        user.bytes.load(Ordering::Relaxed) + bytes <= MAX_OF_USER
            && counts.in_all.load(Ordering::Relaxed) + bytes <= MAX_IN_ALL
    }

    pub(super) fn eviction(&self) -> Eviction {
        Eviction(Arc::clone(&self.0))
    }
}

/// The order to close a connection.
#[derive(Debug)]
pub(super) struct Eviction(Arc<Connection>);

impl Eviction {
    pub(super) fn wait(&self) -> impl Future<Output = ()> {
        poll_fn(|context| {
            self.0.task.register(context.waker());
            if self.0.evicted.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for part in [&self.0.output, &self.0.input, &self.0.listing] {
            self.update(part, 0);
        }
        self.set_commands(0);
        self.0.user.connections.lock().remove(&self.0.id);
    }
}

/// Sets a number, and changes sums that it is part of by the difference. No sum wraps around.
fn change(number: &AtomicUsize, after: usize, sums: &[&AtomicUsize]) {
    let before = number.swap(after, Ordering::Relaxed);
    for sum in sums {
        if after > before {
            sum.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            sum.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn connections_with_a_backlog_wait_once_their_user_has_too_much() {
        let buffers = Buffers::new(usize::MAX);
        let share = |uid, connection| buffers.share(uid, ConnectionId(connection));
        let (mut slow, mut brisk, mut other) = (share(1, 1), share(1, 2), share(2, 3));
        brisk.set_output(BACKLOG);
        other.set_output(BACKLOG + 1);
        slow.set_output(MAX_OF_USER - BACKLOG);
        assert!(!slow.is_exhausted() && !slow.may_list());
        slow.set_input(BACKLOG + 1, false);
        assert!(slow.is_exhausted());
        assert!(!brisk.is_exhausted(), "it has no backlog");
        assert!(!other.is_exhausted() && other.may_list(), "it is another user's");
        drop(slow);
        brisk.set_output(BACKLOG + 1);
        assert!(!brisk.is_exhausted(), "a closed connection has no unsent bytes");
        let mut listings: Vec<Share> = (10..40).map(|connection| share(1, connection)).collect();
        for listing in &mut listings {
            if listing.may_list() {
                listing.set_listing(true);
            }
        }
        let listing =
            listings.iter().filter(|listing| listing.0.listing.load(Ordering::Relaxed) > 0).count();
        assert_eq!(listing, MAX_OF_USER / LISTING - 1, "the rest is the backlog");
    }

    #[test]
    fn connections_with_many_unanswered_commands_wait_once_their_user_has_too_many() {
        let buffers = Buffers::new(16 * BACKLOG);
        let share = |uid, connection| buffers.share(uid, ConnectionId(connection));
        let (mut many, mut few, mut other) = (share(1, 1), share(1, 2), share(2, 3));
        few.set_commands(BACKLOG);
        other.set_commands(2 * BACKLOG);
        many.set_commands(11 * BACKLOG);
        assert!(!many.is_exhausted());
        many.set_commands(12 * BACKLOG);
        assert!(many.is_exhausted() && many.may_list());
        assert!(!few.is_exhausted(), "it has few");
        assert!(!other.is_exhausted(), "it is another user's");
        other.set_commands(3 * BACKLOG);
        assert!(other.is_exhausted(), "all together have too many");
        drop(many);
        assert!(!other.is_exhausted());
        drop((few, other));
        assert_eq!(buffers.0.commands.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_users_together_have_a_limit() {
        let buffers = Buffers::new(usize::MAX);
        let mut shares: Vec<Share> =
            (0..5).map(|uid| buffers.share(uid, ConnectionId(uid.into()))).collect();
        for share in &mut shares {
            share.set_output(MAX_OF_USER - 1);
        }
        assert!(shares.iter().all(Share::is_exhausted));
        shares.truncate(3);
        assert!(!shares.iter().any(Share::is_exhausted));
        assert_eq!(buffers.0.in_all.load(Ordering::Relaxed), 3 * (MAX_OF_USER - 1));
        drop(buffers.share(9, ConnectionId(9)));
        let users = buffers.0.users.lock();
        assert!(users.len() <= 4, "users without connections are forgotten: {users:?}");
    }

    #[test]
    fn the_slowest_readers_of_a_user_who_has_too_much_are_closed_first() {
        let buffers = Buffers::new(usize::MAX);
        let mut shares: Vec<Share> = (0..4).map(|i| buffers.share(1, ConnectionId(i))).collect();
        for (share, since) in shares.iter_mut().zip([30, 10, 20, 40]) {
            share.set_output(MAX_OF_USER / 4);
            share.stall(at(since));
        }
        let mut other = buffers.share(2, ConnectionId(9));
        other.set_output(MAX_OF_USER - LISTING);
        other.stall(at(1));
        let closed = |now| -> Vec<u64> {
            buffers.evict(at(now)).iter().map(|evicted| evicted.connection.0).collect()
        };
        assert_eq!(closed(15), [] as [u64; 0], "nobody has been stalled for long");
        assert_eq!(closed(45), [1]);
        assert_eq!(closed(45), [] as [u64; 0], "it is closing");
        shares.retain(|share| share.0.id.0 != 1);
        assert_eq!(closed(99), [] as [u64; 0], "no limit is exceeded");
        // Too much in all: of those with most.
        let mut more: Vec<Share> =
            (3..6).map(|uid| buffers.share(uid, ConnectionId(100))).collect();
        more.iter_mut().for_each(|share| share.set_output(MAX_OF_USER - LISTING));
        assert_eq!(closed(99), [9], "the one of those with most that is stalled");
    }

    #[tokio::test]
    async fn an_evicted_connection_is_notified() {
        let buffers = Buffers::new(usize::MAX);
        let mut share = buffers.share(1, ConnectionId(1));
        share.set_output(MAX_OF_USER + 1);
        share.stall(at(1));
        let eviction = share.eviction();
        let waiting = tokio::spawn(async move { eviction.wait().await });
        let [evicted] = buffers.evict(at(12))[..] else { panic!("one is stalled") };
        assert_eq!((evicted.uid, evicted.bytes), (1, MAX_OF_USER + 1));
        assert_eq!(evicted.stalled, Duration::from_secs(11));
        waiting.await.unwrap();
    }
}

//! Scripts for fair locks. All clients share a queue in Redis. Each waiter has a deadline after which it counts as dead
//! unless it has extended it.

use std::time::Duration;

use super::{ACQUIRE_FAIR, Args, Call, HAND_OVER_FAIR, Publish, RELEASE_FAIR, text, with_queue};
use crate::{HolderId, Lease, LockName, keys};

/// Acquires the lock if it is free and no living waiter is ahead. Otherwise, with `waited`, the time since its position was
/// last extended, joins the end of the queue or extends the position, which lasts for `wait` unless extended. Positions of
/// the same client below `first`, the first holder of this run, are dead. If only dead ones kept the next waiter from a free
/// lock, it is notified. Parse the reply with [`super::parse_acquire`].
#[must_use]
pub fn acquire_fair(
    name: &LockName,
    holder: &HolderId,
    lease: Lease,
    wait: Duration,
    waited: Option<Duration>,
    first: &HolderId,
    publish: Publish,
) -> Call {
    let mut args = Args::from([
        text(holder),
        text(lease.millis()),
        text(wait.as_millis()),
        waited.map_or_else(Vec::new, |waited| text(waited.as_millis())),
        text(first),
        keys::fair_channel_prefix(name),
    ]);
    args.extend(publish.commands());
    Call { script: &ACQUIRE_FAIR, keys: with_queue(name), args }
}

/// Releases a hold, whatever its count, or leaves the queue, and notifies the next waiter if the lock is free. `wait` and
/// `first` are the values passed to [`acquire_fair`]. Parse the reply with [`super::parse_release`].
#[must_use]
pub fn release_fair(
    name: &LockName,
    holder: &HolderId,
    wait: Duration,
    first: &HolderId,
    publish: Publish,
) -> Call {
    let mut args = Args::from([
        text(holder),
        text(wait.as_millis()),
        text(first),
        keys::fair_channel_prefix(name),
        keys::RELEASED.to_vec(),
    ]);
    args.extend(publish.commands());
    Call { script: &RELEASE_FAIR, keys: with_queue(name), args }
}

/// Hands the lock over to a waiter of this client, at count 1 with the waiter's lease, if the waiter is next in the queue; otherwise
/// releases it like [`release_fair`]. `wait` and `first` are the values passed to [`acquire_fair`]. Parse the reply with
/// [`super::parse_hand_over_fair`].
#[must_use]
pub fn hand_over_fair(
    name: &LockName,
    (from, to): (&HolderId, &HolderId),
    lease: Lease,
    wait: Duration,
    first: &HolderId,
    publish: Publish,
) -> Call {
    let Call { keys, mut args, .. } = release_fair(name, from, wait, first, publish);
    args.extend([text(to), text(lease.millis())]);
    Call { script: &HAND_OVER_FAIR, keys, args }
}

//! Scripts for fair locks: a queue in Redis that all clients share, each waiter with a deadline by which it counts as
//! dead unless it has shown itself again.

use std::time::Duration;

use super::{ACQUIRE_FAIR, Args, Call, Publish, RELEASE_FAIR, text, with_queue};
use crate::{HolderId, Lease, LockName, keys};

/// Takes the lock if it is free and nobody living stands before this holder; otherwise, if `queue`, takes a place at
/// the end, or shows that the one who has a place is alive. `wait` is for how long a place stands without that. Read
/// the reply with [`super::parse_acquire`].
#[must_use]
pub fn acquire_fair(
    name: &LockName,
    holder: &HolderId,
    lease: Lease,
    wait: Duration,
    queue: bool,
) -> Call {
    Call {
        script: &ACQUIRE_FAIR,
        keys: with_queue(name),
        args: Args::from([
            text(holder),
            text(lease.millis()),
            text(wait.as_millis()),
            text(u8::from(queue)),
        ]),
    }
}

/// Ends a hold whatever its count, or a wait in the queue, and tells the next one if the lock is free. `wait` is the one
/// that [`acquire_fair`] had. Read the reply with [`super::parse_release`].
#[must_use]
pub fn release_fair(name: &LockName, holder: &HolderId, wait: Duration, publish: Publish) -> Call {
    let mut args = Args::from([
        text(holder),
        text(wait.as_millis()),
        keys::fair_channel_prefix(name),
        keys::RELEASED.to_vec(),
    ]);
    args.extend(publish.commands());
    Call { script: &RELEASE_FAIR, keys: with_queue(name), args }
}

//! Names of locks, and requests for them.

use redisson::{Kind, Lease, LockName, keys};

use crate::protocol::command::{HoldRequest, LockRequest, Wait};

pub(in crate::core) fn lock_name(lock: &str) -> LockName {
    LockName::new(lock.as_bytes()).expect("a short name")
}

/// Returns the channel on which a plain lock's releases are published.
pub(super) fn channel(name: &LockName) -> String {
    String::from_utf8(keys::channel(name)).expect("names of simulations are ASCII")
}

/// Returns the lock whose releases are published on a channel. No name here has braces, so there is exactly one.
pub(super) fn lock_of(channel: &[u8]) -> LockName {
    keys::locks_of_channel(channel).remove(0)
}

pub(super) fn lock_request(
    lock: &str,
    kind: Kind,
    wait: Wait,
    lease: Option<Lease>,
) -> LockRequest {
    LockRequest { kind, wait, lease, ..LockRequest::new(lock_name(lock)) }
}

pub(in crate::core) fn hold_request(lock: &str) -> HoldRequest {
    HoldRequest::new(lock_name(lock))
}

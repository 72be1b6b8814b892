//! Scripts for fenced locks: plain locks with a token that increases with each grant.

use super::{ACQUIRE, Call, HAND_OVER, acquire, hand_over};
use crate::{HolderId, Lease, LockName, keys};

/// Acquires the lock like [`acquire`], with a token above all earlier ones and at least `least_token`. Repeated copies
/// of one call yield one token.
#[must_use]
pub fn acquire_fenced(name: &LockName, holder: &HolderId, lease: Lease, least_token: u64) -> Call {
    let Call { mut keys, mut args, .. } = acquire(name, holder, lease);
    keys.push(keys::token(name));
    args.push_text(least_token);
    Call { script: &ACQUIRE, keys, args }
}

/// Hands the lock over like [`hand_over`], with a token for the new holder.
#[must_use]
pub fn hand_over_fenced(
    name: &LockName,
    from: &HolderId,
    to: &HolderId,
    lease: Lease,
    least_token: u64,
) -> Call {
    let Call { mut keys, mut args, .. } = hand_over(name, from, to, lease);
    keys.push(keys::token(name));
    args.push_text(least_token);
    Call { script: &HAND_OVER, keys, args }
}

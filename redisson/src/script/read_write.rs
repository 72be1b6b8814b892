//! Scripts for read-write locks.
//!
//! Both sides share one hash with a `mode` field. A read hold has a marker key for each time its reader has entered,
//! with the hold's own lease, since a field of the hash has none of its own: a reader that died leaves its field
//! behind for as long as others keep the hash, and is known as dead by its markers.

use super::{
    ACQUIRE_READ, ACQUIRE_WRITE, Args, Call, Publish, RELEASE_READ, RELEASE_WRITE, RENEW_READ,
    text, with_queue,
};
use crate::{HolderId, Lease, LockName, keys};

/// How often a reader may enter, and how many markers of one reader are looked at: each is a key of its own.
pub const MAX_READ_COUNT: u32 = 100;

/// Takes the read side for a holder that has never held anything, beside other readers, or under `own_write`, the write
/// hold of the same owner. Read the reply with [`super::parse_acquire`].
#[must_use]
pub fn acquire_read(
    name: &LockName,
    holder: &HolderId,
    lease: Lease,
    own_write: Option<&HolderId>,
) -> Call {
    let mut keys = with_queue(name);
    keys.push(keys::read_marker_prefix(name, holder));
    let own_write = own_write.map(text).unwrap_or_default();
    Call {
        script: &ACQUIRE_READ,
        keys,
        args: Args::from([text(holder), text(lease.millis()), own_write]),
    }
}

/// Takes the write side for a holder that has never held anything; `holder` is a write hold's id. Read the reply with
/// [`super::parse_acquire`]. The write hold is kept by [`super::renew`] and passed on by [`super::hand_over`] (only when
/// nobody reads under it), as a plain one.
#[must_use]
pub fn acquire_write(name: &LockName, holder: &HolderId, lease: Lease) -> Call {
    Call {
        script: &ACQUIRE_WRITE,
        keys: with_queue(name),
        args: Args::from([text(holder), text(lease.millis())]),
    }
}

/// As [`super::renew`], for read holds.
#[must_use]
pub fn renew_read<'a>(
    holds: impl IntoIterator<Item = (&'a LockName, HolderId, u32)>,
    lease: Lease,
) -> Call {
    let mut keys = Args::default();
    let mut args = Args::from([text(lease.millis()), text(MAX_READ_COUNT)]);
    for (name, holder, count) in holds {
        keys.push(name.as_bytes());
        keys.push(keys::read_marker_prefix(name, &holder));
        args.push_text(holder);
        args.push_text(count.min(MAX_READ_COUNT));
    }
    Call { script: &RENEW_READ, keys, args }
}

/// Ends a read hold whatever its count. With the last living reader the lock is free, and one waiter of each client is
/// told. Read the reply with [`super::parse_release`].
#[must_use]
pub fn release_read(name: &LockName, holder: &HolderId, publish: Publish) -> Call {
    let mut args = Args::from([
        text(holder),
        text(MAX_READ_COUNT),
        keys::read_write_channel(name),
        keys::RELEASED.to_vec(),
    ]);
    args.extend(publish.commands());
    let keys = Args::from([
        name.as_bytes().to_vec(),
        keys::read_marker_prefix(name, holder),
        name.tagged(),
    ]);
    Call { script: &RELEASE_READ, keys, args }
}

/// Ends a write hold whatever its count, and tells every waiter. Reads under it stay as long as they live, and others may
/// join them. Read the reply with [`super::parse_release`].
#[must_use]
pub fn release_write(name: &LockName, holder: &HolderId, publish: Publish) -> Call {
    let mut args = Args::from([
        text(holder),
        text(MAX_READ_COUNT),
        keys::read_write_channel(name),
        keys::WRITE_RELEASED.to_vec(),
        keys::WRITE_RELEASED_AGAIN.to_vec(),
    ]);
    args.extend(publish.commands());
    let keys = Args::from([name.as_bytes().to_vec(), name.tagged()]);
    Call { script: &RELEASE_WRITE, keys, args }
}

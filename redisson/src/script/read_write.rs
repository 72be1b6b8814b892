//! Scripts for read-write locks.
//!
//! Both sides share one hash with a `mode` field. A hash field cannot expire on its own, so a read hold also has a marker
//! key for each of its entries, with the hold's lease. The field of a dead reader remains as long as other holders keep
//! the hash alive; its missing markers show that it is dead.

use super::{
    ACQUIRE_READ, ACQUIRE_WRITE, Args, Call, Publish, RELEASE_READ, RELEASE_WRITE, RENEW_READ,
    text, with_queue,
};
use crate::{HolderId, Lease, LockName, keys};

/// The highest hold count of a reader, and so the most markers per reader: each is a separate key.
pub const MAX_READ_COUNT: u32 = 100;

/// Acquires the read side for a holder whose number has never been used before, next to other readers or under
/// `own_write`, the same owner's write hold. Parse the reply with [`super::parse_acquire`].
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

/// Acquires the write side for a holder whose number has never been used before; `holder` is the id of a write hold.
/// [`super::renew`] and [`super::hand_over`] apply to write holds as to plain ones, the latter only while the owner has
/// no read hold under it. Parse the reply with [`super::parse_acquire`].
#[must_use]
pub fn acquire_write(name: &LockName, holder: &HolderId, lease: Lease) -> Call {
    Call {
        script: &ACQUIRE_WRITE,
        keys: with_queue(name),
        args: Args::from([text(holder), text(lease.millis())]),
    }
}

/// The treatment of a read hold's missing markers by its renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingMarkers {
    /// Reports them. In a cluster they may be on another node, from or to which the slot is moving.
    Report,
    /// Restores them. A cluster refuses this with `TRYAGAIN` while the slot moves.
    Restore,
}

/// Renews read holds and their markers, like [`super::renew`].
#[must_use]
pub fn renew_read<'a>(
    holds: impl IntoIterator<Item = (&'a LockName, HolderId)>,
    count: u32,
    lease: Option<Lease>,
    missing: MissingMarkers,
) -> Call {
    let word = if lease.is_some() { "renew" } else { "verify" };
    let holds = holds.into_iter().map(|(name, holder)| (name, holder, lease));
    update_read(word, holds, count, missing)
}

/// Verifies read holds. Those with a lease get it back, and missing markers with it, if another client has shortened their
/// expiry: Redisson's readers do so. Replies as to [`super::renew`].
#[must_use]
pub fn verify_read<'a>(
    holds: impl IntoIterator<Item = (&'a LockName, HolderId, Option<Lease>)>,
    count: u32,
    missing: MissingMarkers,
) -> Call {
    update_read("verify", holds, count, missing)
}

fn update_read<'a>(
    word: &str,
    holds: impl IntoIterator<Item = (&'a LockName, HolderId, Option<Lease>)>,
    count: u32,
    missing: MissingMarkers,
) -> Call {
    let mut keys = Args::default();
    let mut prefixes = Args::default();
    let mut args = Args::from([text(word), text(MAX_READ_COUNT), text(count.min(MAX_READ_COUNT))]);
    for (name, holder, lease) in holds {
        let prefix = keys::read_marker_prefix(name, &holder);
        keys.push(name.as_bytes());
        args.push_text(holder);
        args.push(&prefix);
        args.push_text(lease.map_or(0, Lease::millis));
        prefixes.push(prefix);
    }
    if missing == MissingMarkers::Restore {
        keys.extend(prefixes.iter());
    }
    Call { script: &RENEW_READ, keys, args }
}

/// Releases a read hold, whatever its count. The last living reader frees the lock and notifies one waiter per client.
/// Parse the reply with [`super::parse_release`].
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

/// Releases a write hold, whatever its count, and notifies every waiter. Its owner's living read holds remain, and other
/// readers may join them. Parse the reply with [`super::parse_release`].
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

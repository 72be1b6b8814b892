//! Lockscope's own scripts, one `.lua` file each, with typed arguments and replies.
//!
//! Each script names its target state and changes nothing if it cannot reach that state. Repeated or late copies are
//! therefore harmless: after a timeout the outcome of a script is unknown, and it may still run. Only the `acquire`
//! scripts create a lock, and `batch`, which does what they do. No script shortens a lease in use. Scripts that only release
//! start with commands that a full Redis accepts. The lock and its companions are passed as KEYS, channels as arguments: a channel is not a key, and a
//! cluster must not route by it.

mod args;
mod batch;
mod fair;
mod fenced;
mod force;
mod read_write;
mod reply;

use std::fmt;
use std::sync::LazyLock;

use sha1::{Digest, Sha1};

pub use args::Args;
pub use batch::{MAX_CALLS, batch, may_share, parse_batch};
pub use fair::{acquire_fair, hand_over_fair, release_fair};
pub use fenced::{acquire_fenced, hand_over_fenced};
pub use force::{
    ExpectedLock, ExpectedTtl, agent_state, force_release, force_release_holder, purge_queue,
    remove_waiter,
};
pub use read_write::{
    MAX_READ_COUNT, MissingMarkers, acquire_read, acquire_write, release_read, release_write,
    renew_read, verify_read,
};
pub use reply::{
    AcquireOutcome, AgentState, BadReply, ForceReleaseOutcome, HandOverOutcome, HolderEntry,
    LockDetails, QueueEntry, Reader, ReleaseOutcome, RenewOutcome, Value, parse_acquire,
    parse_agent_state, parse_force_release, parse_hand_over, parse_hand_over_fair,
    parse_holder_entry, parse_purged, parse_release, parse_renew, parse_show, unannounced,
};

use crate::{HolderId, Lease, LockName, keys, shape};

/// The maximum number of locks in one [`renew`] call. A hundred take Redis less than 0.1 ms, so other clients barely
/// wait, and halve the cost of each renewal.
pub const MAX_BATCH: usize = 100;
/// The maximum number of bytes of a text that [`holder_entry`] returns.
const MAX_ENTRY_LEN: usize = 4096;
/// The maximum number of queue entries that [`show`] returns.
pub(crate) const MAX_QUEUE_ENTRIES: usize = 100;

/// A Lua script with its name, text and digest.
pub struct Script {
    /// The name in logs, spans and the metric label `script`. Stable: dashboards and alerts refer to it.
    pub name: &'static str,
    /// The Lua source.
    pub source: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    /// Returns the SHA-1 that EVALSHA takes, as 40 hex digits.
    #[must_use]
    pub fn sha(&self) -> &str {
        &self.sha
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({})", self.name)
    }
}

/// Returns the SHA-1 of a script's source, as 40 hex digits.
pub(crate) fn hex_digest(source: &[u8]) -> String {
    Sha1::digest(source).iter().map(|byte| format!("{byte:02x}")).collect()
}

macro_rules! script {
    ($(#[$doc:meta])* $static:ident, $name:literal: $($file:literal)+) => {
        $(#[$doc])*
        pub static $static: Script = Script {
            name: $name,
            source: concat!($(include_str!($file)),+),
            sha: LazyLock::new(|| hex_digest(concat!($(include_str!($file)),+).as_bytes())),
        };
    };
}

script!(/** Grants a free lock, plain or fenced. */ ACQUIRE, "acquire": "lock_state.lua" "fencing_token.lua" "acquire.lua");
script!(/** Grants the read side. */ ACQUIRE_READ, "acquire_read": "lock_state.lua" "acquire_read.lua");
script!(/** Grants the write side. */ ACQUIRE_WRITE, "acquire_write": "lock_state.lua" "acquire_write.lua");
script!(/** Grants a fair lock, or a position in its queue. */ ACQUIRE_FAIR, "acquire_fair": "lock_state.lua" "fair_queue.lua" "announce.lua" "acquire_fair.lua");
script!(/** Renews existing holds and sets their counts: reentry, partial release, extension, renewal. */ RENEW, "keep": "failed.lua" "renew.lua");
script!(/** Renews read holds and their markers. */ RENEW_READ, "keep_read": "failed.lua" "renew_read.lua");
script!(/** Releases a hold, plain or fenced. */ RELEASE, "release": "failed.lua" "announce.lua" "release.lua");
script!(/** Acquires and releases several plain locks. */ BATCH, "batch": "batch.lua");
script!(/** Releases a read hold. */ RELEASE_READ, "release_read": "failed.lua" "reader_leases.lua" "announce.lua" "release_read.lua");
script!(/** Releases a write hold. */ RELEASE_WRITE, "release_write": "failed.lua" "reader_leases.lua" "announce.lua" "release_write.lua");
script!(/** Releases a fair hold, or leaves the queue. */ RELEASE_FAIR, "release_fair": "failed.lua" "fair_queue.lua" "announce.lua" "release_fair.lua");
script!(/** Hands a lock over between two holders of one client. */ HAND_OVER, "hand_over": "failed.lua" "fencing_token.lua" "hand_over.lua");
script!(/** Hands a fair lock over between a holder and the next waiter of one client, or releases it. */ HAND_OVER_FAIR, "hand_over_fair": "failed.lua" "fair_queue.lua" "hand_over_fair.lua" "announce.lua" "release_fair.lua");
script!(/** Releases a whole lock for an operator. */ FORCE_RELEASE, "force_release": "failed.lua" "fair_queue.lua" "announce.lua" "force_release.lua");
script!(/** Releases one plain or fair hold for an operator. */ FORCE_RELEASE_HOLDER, "force_release_holder": "failed.lua" "announce.lua" "require_expected.lua" "release.lua");
script!(/** Releases one read hold for an operator. */ FORCE_RELEASE_READER, "force_release_reader": "failed.lua" "announce.lua" "require_expected.lua" "reader_leases.lua" "release_read.lua");
script!(/** Releases one write hold for an operator. */ FORCE_RELEASE_WRITER, "force_release_writer": "failed.lua" "announce.lua" "require_expected.lua" "reader_leases.lua" "release_write.lua");
script!(/** Removes a dead waiter from a fair queue for an operator. */ REMOVE_WAITER, "remove_place": "fair_queue.lua" "announce.lua" "remove_waiter.lua");
script!(/** Removes the waiters of a fair lock that will never come. */ PURGE_QUEUE, "purge_queue": "fair_queue.lua" "announce.lua" "purge_queue.lua");
script!(/** Looks for an agent. */ AGENT_STATE, "agent_state": "agent_state.lua");
script!(/** Looks for what an agent publishes about a holder. */ HOLDER_ENTRY, "holder_entry": "holder_entry.lua");
script!(/** Describes a lock. */ SHOW, "show": "show.lua");

/// Every script, to be loaded on connecting.
pub static ALL: [&Script; 22] = [
    &ACQUIRE,
    &ACQUIRE_READ,
    &ACQUIRE_WRITE,
    &ACQUIRE_FAIR,
    &RENEW,
    &RENEW_READ,
    &RELEASE,
    &BATCH,
    &RELEASE_READ,
    &RELEASE_WRITE,
    &RELEASE_FAIR,
    &HAND_OVER,
    &HAND_OVER_FAIR,
    &FORCE_RELEASE,
    &FORCE_RELEASE_HOLDER,
    &FORCE_RELEASE_READER,
    &FORCE_RELEASE_WRITER,
    &REMOVE_WAITER,
    &PURGE_QUEUE,
    &AGENT_STATE,
    &HOLDER_ENTRY,
    &SHOW,
];

/// A call of a script, ready to be sent as EVALSHA.
#[derive(Debug, Clone)]
pub struct Call {
    /// The script to run.
    pub script: &'static Script,
    /// KEYS of the call.
    pub keys: Args,
    /// ARGV of the call.
    pub args: Args,
}

/// The way releases are published, chosen to match the deployment's subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publish {
    /// `PUBLISH` alone: for anything but a cluster of Redis 7 or later.
    #[default]
    Plain,
    /// `PUBLISH` and `SPUBLISH`: for such a cluster, where old Redisson clients use the former and new ones the latter.
    Both,
    /// `SPUBLISH` alone: for such a cluster without old clients.
    Sharded,
}

impl Publish {
    fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["PUBLISH"],
            Self::Both => &["PUBLISH", "SPUBLISH"],
            Self::Sharded => &["SPUBLISH"],
        }
    }
}

fn text(value: impl fmt::Display) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Acquires the lock for a holder whose number has never been used before. Only the acquire scripts and `batch` create a lock.
/// Idempotent. Parse the reply with [`parse_acquire`].
#[must_use]
pub fn acquire(name: &LockName, holder: &HolderId, lease: Lease) -> Call {
    let mut args = Args::with_capacity(2, 80);
    args.push_text(holder);
    args.push_text(lease.millis());
    Call { script: &ACQUIRE, keys: with_queue(name), args }
}

/// Sets the count of existing holds and gives each at least the lease; without a lease it leaves their expiry alone.
/// Takes at most [`MAX_BATCH`] holds, all of one slot in a cluster. Parse the reply with [`parse_renew`].
#[must_use]
pub fn renew<'a>(
    holds: impl IntoIterator<Item = (&'a LockName, HolderId)>,
    count: u32,
    lease: Option<Lease>,
) -> Call {
    let holds = holds.into_iter();
    let most = holds.size_hint().0;
    // Enough for typical names; longer ones grow the buffers.
    let mut keys = Args::with_capacity(most, 40 * most);
    let mut args = Args::with_capacity(most + 2, 60 * most + 20);
    args.push_text(lease.map_or(0, Lease::millis));
    args.push_text(count);
    for (name, holder) in holds {
        keys.push(name.as_bytes());
        args.push_text(holder);
    }
    Call { script: &RENEW, keys, args }
}

/// Releases a hold, whatever its count, and notifies waiters. Parse the reply with [`parse_release`].
#[must_use]
pub fn release(name: &LockName, holder: &HolderId, publish: Publish) -> Call {
    let mut args = Args::with_capacity(4, 120 + name.as_bytes().len());
    args.push_text(holder);
    args.push_tagged(keys::LOCK_CHANNEL, name);
    args.push(keys::RELEASED);
    args.extend(publish.commands());
    Call { script: &RELEASE, keys: Args::from([name.as_bytes()]), args }
}

/// Hands the lock over from one holder of this client to another, at count 1 with the new holder's lease. Takes one
/// round trip and no message, and Redis shows the true holder at every instant. Parse the reply with
/// [`parse_hand_over`].
#[must_use]
pub fn hand_over(name: &LockName, from: &HolderId, to: &HolderId, lease: Lease) -> Call {
    let channel = if from.write { keys::read_write_channel(name) } else { keys::channel(name) };
    Call {
        script: &HAND_OVER,
        keys: Args::from([name.as_bytes()]),
        args: Args::from([text(from), text(to), text(lease.millis()), channel]),
    }
}

/// Looks for what its agent publishes about a holder. Parse the reply with [`parse_holder_entry`].
#[must_use]
pub fn holder_entry(holder: &HolderId) -> Call {
    let client = &holder.client;
    Call {
        script: &HOLDER_ENTRY,
        keys: Args::from([keys::agent(client), keys::agent_holders(client)]),
        args: Args::from([text(holder.thread), text(MAX_ENTRY_LEN)]),
    }
}

/// Returns the lock's key followed by those of its fair queue.
fn with_queue(name: &LockName) -> Args {
    let mut keys = Args::with_capacity(3, 3 * name.as_bytes().len() + 50);
    keys.push(name.as_bytes());
    keys.push_tagged(keys::QUEUE, name);
    keys.push_tagged(keys::DEADLINES, name);
    keys
}

/// Describes the lock, reading only what is known to be small. Parse the reply with [`parse_show`].
#[must_use]
pub fn show(name: &LockName) -> Call {
    let mut keys = with_queue(name);
    keys.extend([keys::token(name), name.tagged()]);
    Call {
        script: &SHOW,
        keys,
        args: Args::from([
            text(shape::MAX_FIELDS),
            text(shape::MAX_FIELD_LEN),
            text(shape::MAX_VALUE_LEN),
            text(MAX_QUEUE_ENTRIES),
            text(MAX_READ_COUNT),
        ]),
    }
}

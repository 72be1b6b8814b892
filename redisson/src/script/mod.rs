//! Our own scripts, one `.lua` file each, with typed arguments and replies.
//!
//! Each names the state it wants and does nothing where that state cannot be had, so that it is harmless when it
//! is repeated or late: after a time-out nobody knows whether a script ran, or will yet run. Only [`acquire`] and its
//! like for other kinds may create a lock. None shortens a lease that is in use. Scripts of the releasing side begin with commands that a
//! full Redis accepts. Keys are passed as KEYS (the lock and its companions); channels as arguments, since a
//! channel is no key and a cluster must not route by it.

mod args;
mod fair;
mod fenced;
mod force;
mod read_write;
mod reply;

use std::fmt;
use std::sync::LazyLock;

use sha1::{Digest, Sha1};

pub use args::Args;
pub use fair::{acquire_fair, release_fair};
pub use fenced::{acquire_fenced, hand_over_fenced};
pub use force::{ExpectedLock, force_release, force_release_holder, remove_waiter};
pub use read_write::{
    MAX_READ_COUNT, acquire_read, acquire_write, release_read, release_write, renew_read,
};
pub use reply::{
    AcquireOutcome, BadReply, ForceReleaseOutcome, HandOverOutcome, LockDetails, QueueEntry,
    Reader, ReleaseOutcome, RenewOutcome, Value, parse_acquire, parse_force_release,
    parse_hand_over, parse_release, parse_renew, parse_show,
};

use crate::{HolderId, Lease, LockName, keys, shape};

/// How many locks one [`renew`] call takes at most: at a hundred the script costs Redis under 0.1 ms, so that
/// others hardly wait, and a renewal less than half of what it costs alone.
pub const MAX_BATCH: usize = 100;
/// How many places of a fair queue [`show`] tells.
pub const MAX_QUEUE_ENTRIES: usize = 100;

/// A script: its name for logs and metrics, its text, and the digest that EVALSHA takes.
pub struct Script {
    /// Short name, as in metrics' label `script`.
    pub name: &'static str,
    /// The Lua text.
    pub source: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    /// SHA-1 of the text, 40 hex digits.
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

/// SHA-1 of a script's text, 40 hex digits.
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

script!(/** Takes a free lock, plain or fenced. */ ACQUIRE, "acquire": "lock_state.lua" "fencing_token.lua" "acquire.lua");
script!(/** Takes the read side. */ ACQUIRE_READ, "acquire_read": "lock_state.lua" "acquire_read.lua");
script!(/** Takes the write side. */ ACQUIRE_WRITE, "acquire_write": "lock_state.lua" "acquire_write.lua");
script!(/** Takes a fair lock, or a place in its queue. */ ACQUIRE_FAIR, "acquire_fair": "lock_state.lua" "fair_queue.lua" "acquire_fair.lua");
script!(/** Keeps holds that are there: re-entry, partial release, extending, renewal. */ RENEW, "keep": "renew.lua");
script!(/** The same for read holds, which have markers. */ RENEW_READ, "keep_read": "renew_read.lua");
script!(/** Ends a hold, plain or fenced. */ RELEASE, "release": "release.lua");
script!(/** Ends a read hold. */ RELEASE_READ, "release_read": "reader_leases.lua" "release_read.lua");
script!(/** Ends a write hold. */ RELEASE_WRITE, "release_write": "reader_leases.lua" "release_write.lua");
script!(/** Ends a fair hold, or a wait for one. */ RELEASE_FAIR, "release_fair": "fair_queue.lua" "release_fair.lua");
script!(/** Passes a lock between two holders of one client. */ HAND_OVER, "hand_over": "fencing_token.lua" "hand_over.lua");
script!(/** Ends a lock for an operator. */ FORCE_RELEASE, "force_release": "fair_queue.lua" "force_release.lua");
script!(/** Ends one of its holds for an operator. */ FORCE_RELEASE_HOLDER, "force_release_holder": "require_expected.lua" "release.lua");
script!(/** The same for a read hold. */ FORCE_RELEASE_READER, "force_release_reader": "require_expected.lua" "reader_leases.lua" "release_read.lua");
script!(/** The same for a write hold. */ FORCE_RELEASE_WRITER, "force_release_writer": "require_expected.lua" "reader_leases.lua" "release_write.lua");
script!(/** Takes a dead waiter out of a queue for an operator. */ REMOVE_WAITER, "remove_place": "fair_queue.lua" "remove_waiter.lua");
script!(/** Tells what a lock looks like. */ SHOW, "show": "show.lua");

/// Every script, for loading them on connecting.
pub static ALL: [&Script; 17] = [
    &ACQUIRE,
    &ACQUIRE_READ,
    &ACQUIRE_WRITE,
    &ACQUIRE_FAIR,
    &RENEW,
    &RENEW_READ,
    &RELEASE,
    &RELEASE_READ,
    &RELEASE_WRITE,
    &RELEASE_FAIR,
    &HAND_OVER,
    &FORCE_RELEASE,
    &FORCE_RELEASE_HOLDER,
    &FORCE_RELEASE_READER,
    &FORCE_RELEASE_WRITER,
    &REMOVE_WAITER,
    &SHOW,
];

/// One call of a script, ready to be sent as EVALSHA.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which script.
    pub script: &'static Script,
    /// Its keys.
    pub keys: Args,
    /// Its further arguments.
    pub args: Args,
}

/// How releases are published: what the subscribers of a deployment listen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publish {
    /// `PUBLISH` alone: everything but a cluster of Redis 7 or later.
    #[default]
    Plain,
    /// `PUBLISH` and `SPUBLISH`: in such a cluster old Redisson clients listen to the one, new ones to the other.
    Both,
    /// `SPUBLISH` alone: such a cluster without old clients.
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

/// Takes the lock for a holder that has never held anything: its number is fresh. Read the reply with
/// [`parse_acquire`]. Only this may create a lock; sent twice it has it once.
#[must_use]
pub fn acquire(name: &LockName, holder: &HolderId, lease: Lease) -> Call {
    Call {
        script: &ACQUIRE,
        keys: with_queue(name),
        args: Args::from([text(holder), text(lease.millis())]),
    }
}

/// Sets the counts of holds that are there and gives each at least the lease. Read the reply with
/// [`parse_renew`]. At most [`MAX_BATCH`] holds; in a cluster, all of one slot.
#[must_use]
pub fn renew<'a>(
    holds: impl IntoIterator<Item = (&'a LockName, HolderId, u32)>,
    lease: Lease,
) -> Call {
    let holds = holds.into_iter();
    let most = holds.size_hint().0;
    // Room for what is usual; what is more makes its own.
    let mut keys = Args::with_capacity(most, 40 * most);
    let mut args = Args::with_capacity(2 * most + 1, 60 * most + 10);
    args.push_text(lease.millis());
    for (name, holder, count) in holds {
        keys.push(name.as_bytes());
        args.push_text(holder);
        args.push_text(count);
    }
    Call { script: &RENEW, keys, args }
}

/// Ends a hold whatever its count, and tells who waits. Read the reply with [`parse_release`].
#[must_use]
pub fn release(name: &LockName, holder: &HolderId, publish: Publish) -> Call {
    let mut args = Args::from([text(holder), keys::channel(name), keys::RELEASED.to_vec()]);
    args.extend(publish.commands());
    Call { script: &RELEASE, keys: Args::from([name.as_bytes()]), args }
}

/// Passes the lock from one of our holders to another of ours, at count 1 with the new one's lease: one round
/// trip, no message, and Redis shows the true owner at each instant. Read the reply with [`parse_hand_over`].
#[must_use]
pub fn hand_over(name: &LockName, from: &HolderId, to: &HolderId, lease: Lease) -> Call {
    let channel = if from.write { keys::read_write_channel(name) } else { keys::channel(name) };
    Call {
        script: &HAND_OVER,
        keys: Args::from([name.as_bytes()]),
        args: Args::from([text(from), text(to), text(lease.millis()), channel]),
    }
}

/// The lock with the keys of a fair lock's queue.
fn with_queue(name: &LockName) -> Args {
    Args::from([name.as_bytes().to_vec(), keys::queue(name), keys::deadlines(name)])
}

/// Asks what the lock looks like, reading no more than is sure to be small. Read the reply with [`parse_show`].
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

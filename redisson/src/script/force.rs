//! Scripts for operator actions. Each one first compares the lock with its expected state, so that it never affects a
//! newer holder.

use std::time::Duration;

use super::{
    AGENT_STATE, Args, Call, FORCE_RELEASE, FORCE_RELEASE_HOLDER, FORCE_RELEASE_READER,
    FORCE_RELEASE_WRITER, MAX_READ_COUNT, PURGE_QUEUE, Publish, QueueEntry, REMOVE_WAITER, release,
    release_read, release_write, text, with_queue,
};
use crate::shape::{Holder, LockHash};
use crate::{ClientId, HolderId, LockName, keys};

/// The state of a lock that an operator saw and that must still apply.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedLock<'a> {
    /// Its holders, counts, mode and other fields.
    pub hash: &'a LockHash,
    /// The TTL that it has if nobody has acquired it since.
    pub ttl: ExpectedTtl,
}

/// The TTL of an expected lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedTtl {
    /// Any, since renewals change it.
    Any,
    /// None: the lock does not expire.
    Endless,
    /// The rest of a lease that is not renewed, in this range.
    Between(Duration, Duration),
}

impl ExpectedLock<'_> {
    fn mode(&self) -> &[u8] {
        self.hash.mode.as_deref().unwrap_or_default()
    }

    /// Returns the least and the greatest reply to `PTTL`.
    fn ttl(&self) -> [Vec<u8>; 2] {
        match self.ttl {
            ExpectedTtl::Any => [Vec::new(), Vec::new()],
            ExpectedTtl::Endless => [text(-1), text(-1)],
            ExpectedTtl::Between(least, greatest) => {
                [text(least.as_millis()), text(greatest.as_millis())]
            }
        }
    }
}

/// Releases a lock of any kind if its holders, counts, mode and other fields are exactly the expected ones. Notifies
/// waiters, and each holder's agent on its [`keys::forced_channel`]. Also removes waiters of a fair lock that will never
/// come, like [`purge_queue`], even if the lock is free. Parse the reply with [`super::parse_force_release`] and
/// [`super::parse_purged`].
#[must_use]
pub fn force_release(
    name: &LockName,
    expected: ExpectedLock<'_>,
    dead: &[QueueEntry],
    publish: Publish,
) -> Call {
    let verbs = publish.commands();
    let [least, greatest] = expected.ttl();
    let mut args = Args::from([
        keys::channel(name),
        keys::read_write_channel(name),
        keys::fair_channel_prefix(name),
        text(MAX_READ_COUNT),
        expected.mode().to_vec(),
        least,
        greatest,
        text(expected.hash.unexpected.len()),
        text(verbs.len()),
        text(expected.hash.holders.len() + expected.hash.foreign.len()),
    ]);
    args.extend(&expected.hash.unexpected);
    args.extend(verbs);
    for holder in &expected.hash.holders {
        args.push_text(holder.id);
        args.push_text(holder.count);
        args.push(keys::read_marker_prefix(name, &holder.id));
        args.push(keys::forced_channel(&holder.id.client));
    }
    for holder in &expected.hash.foreign {
        args.push(&holder.field);
        args.push_text(holder.count);
        args.push(keys::marker_prefix_of(name, &holder.field));
        args.push("");
    }
    push_dead(&mut args, dead);
    Call { script: &FORCE_RELEASE, keys: with_queue(name), args }
}

/// Releases one hold, as its holder would, if its count and the lock's mode are the expected ones. Notifies waiters and
/// the holder's agent. Parse the reply with [`super::parse_force_release`].
#[must_use]
pub fn force_release_holder(
    name: &LockName,
    expected: ExpectedLock<'_>,
    holder: &Holder,
    publish: Publish,
) -> Call {
    let (script, call) = if holder.id.write {
        (&FORCE_RELEASE_WRITER, release_write(name, &holder.id, publish))
    } else if expected.hash.mode.is_some() {
        (&FORCE_RELEASE_READER, release_read(name, &holder.id, publish))
    } else {
        (&FORCE_RELEASE_HOLDER, release(name, &holder.id, publish))
    };
    let mut args = call.args;
    args.push_text(holder.count);
    args.push(expected.mode());
    args.extend(expected.ttl());
    args.push(keys::forced_channel(&holder.id.client));
    Call { script, keys: call.keys, args }
}

/// Removes a dead waiter from a fair lock's queue if its deadline, in epoch milliseconds, is the expected one; `None`
/// expects a waiter without a deadline. Parse the reply with [`super::parse_force_release`].
#[must_use]
pub fn remove_waiter(
    name: &LockName,
    waiter: &HolderId,
    deadline: Option<u64>,
    publish: Publish,
) -> Call {
    let deadline = deadline.map(text).unwrap_or_default();
    let mut args = Args::from([text(waiter), deadline, keys::fair_channel_prefix(name)]);
    args.extend(publish.commands());
    Call { script: &REMOVE_WAITER, keys: with_queue(name), args }
}

/// Removes from a fair lock's queue the waiters that will never come: those known to be `dead`, if their deadlines have not
/// changed since, agents' waiters past their deadline, and the dead waiters ahead of the first living one. Parse the reply
/// with [`super::parse_purged`].
#[must_use]
pub fn purge_queue(name: &LockName, dead: &[QueueEntry], publish: Publish) -> Call {
    let verbs = publish.commands();
    let mut args = Args::from([keys::fair_channel_prefix(name), text(verbs.len())]);
    args.extend(verbs);
    push_dead(&mut args, dead);
    Call { script: &PURGE_QUEUE, keys: with_queue(name), args }
}

fn push_dead(args: &mut Args, dead: &[QueueEntry]) {
    for entry in dead {
        args.push(&entry.waiter);
        args.push(entry.deadline_ms.map(text).unwrap_or_default());
    }
}

/// Looks for what an agent publishes about itself. Parse the reply with [`super::parse_agent_state`].
#[must_use]
pub fn agent_state(client: &ClientId) -> Call {
    let keys = Args::from([keys::agent(client), keys::agent_trace(client)]);
    Call { script: &AGENT_STATE, keys, args: Args::default() }
}

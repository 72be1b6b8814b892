//! The keys and channels of a lock, for every kind.
//!
//! They contain the name in its form of [`LockName::tagged`]. A channel maps back to at most two names, since `{a}` is
//! the tagged form of both `a` and `{a}`.

use crate::slot::slot;
use crate::{HolderId, LockName};

/// Prefix of the channel for releases of plain, fenced and fair locks.
pub const LOCK_CHANNEL: &[u8] = b"redisson_lock__channel:";
/// Prefix of the channel for releases of read and write holds.
pub const READ_WRITE_CHANNEL: &[u8] = b"redisson_rwlock:";
/// Prefix of a fair lock's queue, a list of holder ids.
pub const QUEUE: &[u8] = b"redisson_lock_queue:";
/// Prefix of a fair lock's deadlines, a sorted set of holder ids by epoch milliseconds.
pub const DEADLINES: &[u8] = b"redisson_lock_timeout:";
/// Prefix of a fenced lock's token, a counter that outlives the lock.
pub const TOKEN: &[u8] = b"redisson_lock_token:";
/// Prefix of the short-lived record that makes an unlock by Redisson idempotent.
pub const UNLOCK_LATCH: &[u8] = b"redisson_unlock_latch:";
/// Prefix of the channel that notifies an agent of a forced release of its hold. Specific to Lockscope.
pub(crate) const FORCED_CHANNEL: &[u8] = b"lockscope:forced:";

/// Prefix of the hash in which an agent describes itself. Specific to Lockscope.
pub const AGENT: &[u8] = b"lockscope:agent:";
/// Prefix of the hash in which an agent publishes its holders, JSON by grant number. Specific to Lockscope.
pub const AGENT_HOLDERS: &[u8] = b"lockscope:holders:";
/// Prefix of the string in which an agent publishes the locks that its workers wait for, as JSON. Specific to Lockscope.
pub const AGENT_WAITERS: &[u8] = b"lockscope:waiters:";

/// The message of a release on a plain, fenced or fair channel, and of the last reader's release.
pub const RELEASED: &[u8] = b"0";
/// The message of a release of the write side: every waiter may try.
pub(crate) const WRITE_RELEASED: &[u8] = b"1";
/// The second message of Lockscope's release of the write side, after [`WRITE_RELEASED`]. The first one wakes only the
/// sleeping threads of a Redisson client and is lost on a thread that was refused but does not sleep yet. A zero is
/// stored until a thread consumes it. This spelling parses as zero, yet observers can distinguish it from [`RELEASED`].
pub const WRITE_RELEASED_AGAIN: &[u8] = b"00";

/// Returns whether the channel and companions share the lock's slot in a cluster: false for unbalanced braces.
#[must_use]
pub fn companions_share_slot(name: &LockName) -> bool {
    // All prefixes are without braces, so one key represents all.
    slot(&channel(name)) == name.slot()
}

/// Returns the wake-up channel of a plain, fenced or red lock.
#[must_use]
pub fn channel(name: &LockName) -> Vec<u8> {
    name.tagged_after(LOCK_CHANNEL)
}

/// Returns the wake-up channel of one waiter of a fair lock.
#[must_use]
pub fn fair_channel(name: &LockName, waiter: &HolderId) -> Vec<u8> {
    [fair_channel_prefix(name).as_slice(), waiter.to_string().as_bytes()].concat()
}

/// Returns the prefix of a fair lock's wake-up channels; the waiter's id follows.
#[must_use]
pub(crate) fn fair_channel_prefix(name: &LockName) -> Vec<u8> {
    [&channel(name), b":".as_slice()].concat()
}

/// Returns the wake-up channel of both sides of a read-write lock.
#[must_use]
pub fn read_write_channel(name: &LockName) -> Vec<u8> {
    name.tagged_after(READ_WRITE_CHANNEL)
}

/// Returns the key of a fair lock's queue.
#[must_use]
pub fn queue(name: &LockName) -> Vec<u8> {
    name.tagged_after(QUEUE)
}

/// Returns the key of a fair lock's deadlines.
#[must_use]
pub fn deadlines(name: &LockName) -> Vec<u8> {
    name.tagged_after(DEADLINES)
}

/// Returns the key of a fenced lock's token.
#[must_use]
pub fn token(name: &LockName) -> Vec<u8> {
    name.tagged_after(TOKEN)
}

/// Returns the prefix of a reader's marker keys; `:n` follows, for its `n`-th entry, from 1. A marker lives as long as that
/// entry's lease.
#[must_use]
pub fn read_marker_prefix(name: &LockName, reader: &HolderId) -> Vec<u8> {
    marker_prefix_of(name, reader.to_string().as_bytes())
}

/// Returns the prefix of the marker keys of a reader whose field this is, like [`read_marker_prefix`].
pub(crate) fn marker_prefix_of(name: &LockName, field: &[u8]) -> Vec<u8> {
    [&name.tagged(), &b":"[..], field, b":rwlock_timeout"].concat()
}

/// Returns the channel that notifies an agent of forced releases of its holds.
#[must_use]
pub fn forced_channel(client: &crate::ClientId) -> Vec<u8> {
    [FORCED_CHANNEL, b"{", &client.text(), b"}"].concat()
}

/// Returns the key of the hash in which an agent describes itself.
#[must_use]
pub fn agent(client: &crate::ClientId) -> Vec<u8> {
    [AGENT, b"{", &client.text(), b"}"].concat()
}

/// Returns the key that an agent leaves behind for a day, so that an expired [`agent`] entry shows that it has vanished.
#[must_use]
pub fn agent_trace(client: &crate::ClientId) -> Vec<u8> {
    [agent(client).as_slice(), b":trace"].concat()
}

/// Returns the key of the hash in which an agent publishes its holders, by grant number.
#[must_use]
pub fn agent_holders(client: &crate::ClientId) -> Vec<u8> {
    [AGENT_HOLDERS, b"{", &client.text(), b"}"].concat()
}

/// Returns the key in which an agent publishes the locks that its workers wait for.
#[must_use]
pub fn agent_waiters(client: &crate::ClientId) -> Vec<u8> {
    [AGENT_WAITERS, b"{", &client.text(), b"}"].concat()
}

/// Returns the agent that describes itself in the hash `key`, if it is such a key.
#[must_use]
pub fn agent_of(key: &[u8]) -> Option<crate::ClientId> {
    crate::ClientId::parse(key.strip_prefix(AGENT)?.strip_prefix(b"{")?.strip_suffix(b"}")?)
}

/// Returns the locks that `channel` may belong to, most likely first; empty if it is not a lock's channel.
#[must_use]
pub fn locks_of_channel(channel: &[u8]) -> Vec<LockName> {
    let Some(tagged) =
        channel.strip_prefix(LOCK_CHANNEL).or_else(|| channel.strip_prefix(READ_WRITE_CHANNEL))
    else {
        return Vec::new();
    };
    // A fair waiter's channel ends in its holder id: a uuid of fixed length and a number of variable length.
    let fair = (0..tagged.len())
        .filter(|&i| tagged[i] == b':')
        .find(|&i| HolderId::parse(&tagged[i + 1..]).is_some())
        .map(|i| &tagged[..i]);
    fair.into_iter().chain([tagged]).flat_map(untagged).collect()
}

/// Returns the waiter that a channel belongs to, or `None` if all waiters share it.
#[must_use]
pub fn waiter_of_channel(channel: &[u8]) -> Option<HolderId> {
    let rest = channel.strip_prefix(LOCK_CHANNEL)?;
    (0..rest.len()).filter(|&i| rest[i] == b':').find_map(|i| HolderId::parse(&rest[i + 1..]))
}

/// Returns the locks whose queue or deadlines `key` may be, most likely first; empty if it is neither.
#[must_use]
pub fn locks_of_queue(key: &[u8]) -> Vec<LockName> {
    let tagged = key.strip_prefix(QUEUE).or_else(|| key.strip_prefix(DEADLINES));
    tagged.map(untagged).unwrap_or_default()
}

/// Returns the names whose tagged form is `tagged`.
fn untagged(tagged: &[u8]) -> Vec<LockName> {
    let inner = tagged.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    [inner, Some(tagged)]
        .into_iter()
        .flatten()
        .filter_map(|bytes| LockName::new(bytes).ok())
        .filter(|name| name.tagged() == tagged)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;
    use proptest::prelude::*;

    fn name(text: &str) -> LockName {
        LockName::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn companions_of_unbalanced_braces_have_another_slot() {
        assert!(companions_share_slot(&name("plain")));
        assert!(companions_share_slot(&name("{tag}x")));
        for odd in ["a{b", "{}x", "x{", "a}b"] {
            assert!(!companions_share_slot(&name(odd)), "{odd}");
        }
    }

    #[test]
    fn keys_match_those_of_redisson() {
        let holder = HolderId::new(ClientId::from_random([7; 16]), 52);
        let n = name("orders:42");
        assert_eq!(channel(&n), b"redisson_lock__channel:{orders:42}");
        assert_eq!(read_write_channel(&n), b"redisson_rwlock:{orders:42}");
        assert_eq!(queue(&n), b"redisson_lock_queue:{orders:42}");
        assert_eq!(deadlines(&n), b"redisson_lock_timeout:{orders:42}");
        assert_eq!(token(&n), b"redisson_lock_token:{orders:42}");
        assert_eq!(
            String::from_utf8(read_marker_prefix(&n, &holder)).unwrap(),
            format!("{{orders:42}}:{holder}:rwlock_timeout")
        );
        assert_eq!(channel(&name("{x}y")), b"redisson_lock__channel:{x}y");
    }

    #[test]
    fn a_channel_maps_back_to_its_lock() {
        assert_eq!(locks_of_channel(b"redisson_lock__channel:{a}"), [name("a"), name("{a}")]);
        assert_eq!(locks_of_channel(b"redisson_lock__channel:{a}b"), [name("{a}b")]);
        assert_eq!(locks_of_channel(b"redisson_rwlock:{a}"), [name("a"), name("{a}")]);
        assert!(locks_of_channel(b"redisson_sc:{a}").is_empty());
        assert!(locks_of_channel(b"redisson_lock__channel:").is_empty());
        let holder = HolderId::new(ClientId::from_random([7; 16]), -3);
        assert!(locks_of_channel(&fair_channel(&name("q:1"), &holder)).contains(&name("q:1")));
    }

    proptest! {
        #[test]
        fn every_name_is_recovered_from_its_channel(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            let name = LockName::new(bytes).unwrap();
            prop_assert!(locks_of_channel(&channel(&name)).contains(&name));
            let waiter = HolderId::new(ClientId::from_random([1; 16]), 9);
            prop_assert_eq!(waiter_of_channel(&fair_channel(&name, &waiter)), Some(waiter));
            prop_assert!(locks_of_channel(&fair_channel(&name, &waiter)).contains(&name));
        }
    }
}

//! The keys and channels that belong to a lock, of every kind.
//!
//! [`LockName::tagged`] is the name within them. A channel leads back to at most two names, since `{a}` is the
//! tagged form of both `a` and `{a}`.

use crate::{HolderId, LockName};

/// Start of the channel on which plain, fenced and fair releases are told.
pub const LOCK_CHANNEL: &[u8] = b"redisson_lock__channel:";
/// Start of the channel on which releases of read and write holds are told.
pub const READ_WRITE_CHANNEL: &[u8] = b"redisson_rwlock:";
/// Start of a fair lock's queue, a list of holder ids.
pub const QUEUE: &[u8] = b"redisson_lock_queue:";
/// Start of a fair lock's deadlines, a sorted set of holder ids by epoch milliseconds.
pub const DEADLINES: &[u8] = b"redisson_lock_timeout:";
/// Start of a fenced lock's token, a counter that outlives the lock.
pub const TOKEN: &[u8] = b"redisson_lock_token:";
/// Start of the short-lived record that makes one unlock of Redisson's idempotent.
pub const UNLOCK_LATCH: &[u8] = b"redisson_unlock_latch:";
/// Start of the channel on which an operator's forced release is told to the agent whose hold it was. Ours, not Redisson's.
pub const FORCED_CHANNEL: &[u8] = b"lockscope:forced:";

/// Start of the key in which an agent tells of itself, a hash. Ours.
pub const AGENT: &[u8] = b"lockscope:agent:";
/// Start of the key in which an agent tells who its holders are, a hash of numbers and JSON. Ours.
pub const AGENT_HOLDERS: &[u8] = b"lockscope:holders:";

/// What a release publishes on a plain, fenced or fair channel, and the last reader's release: free, try again.
pub const RELEASED: &[u8] = b"0";
/// What a release of the write side publishes: every waiter may try.
pub const WRITE_RELEASED: &[u8] = b"1";
/// What our release of the write side publishes behind [`WRITE_RELEASED`]. That message wakes the threads of a Redisson
/// client that sleep, and is lost on one that has been refused and does not sleep yet. A zero stays until somebody takes
/// it. It is a zero for whoever reads numbers, and written otherwise, so that observers tell it from a release of its own.
pub const WRITE_RELEASED_AGAIN: &[u8] = b"00";

fn prefixed(prefix: &[u8], name: &LockName) -> Vec<u8> {
    [prefix, &name.tagged()].concat()
}

/// The wake-up channel of plain, fenced and red locks.
#[must_use]
pub fn channel(name: &LockName) -> Vec<u8> {
    prefixed(LOCK_CHANNEL, name)
}

/// The wake-up channel of one waiter of a fair lock.
#[must_use]
pub fn fair_channel(name: &LockName, waiter: &HolderId) -> Vec<u8> {
    [fair_channel_prefix(name).as_slice(), waiter.to_string().as_bytes()].concat()
}

/// What the channels of a fair lock's waiters begin with; the waiter's id follows.
#[must_use]
pub fn fair_channel_prefix(name: &LockName) -> Vec<u8> {
    [&channel(name), b":".as_slice()].concat()
}

/// The wake-up channel of both sides of a read-write lock.
#[must_use]
pub fn read_write_channel(name: &LockName) -> Vec<u8> {
    prefixed(READ_WRITE_CHANNEL, name)
}

/// A fair lock's queue.
#[must_use]
pub fn queue(name: &LockName) -> Vec<u8> {
    prefixed(QUEUE, name)
}

/// A fair lock's deadlines.
#[must_use]
pub fn deadlines(name: &LockName) -> Vec<u8> {
    prefixed(DEADLINES, name)
}

/// A fenced lock's token.
#[must_use]
pub fn token(name: &LockName) -> Vec<u8> {
    prefixed(TOKEN, name)
}

/// What the markers of one reader begin with; `:n` follows, for its `n`-th hold (from 1). A marker lives as long as
/// that hold's lease.
#[must_use]
pub fn read_marker_prefix(name: &LockName, reader: &HolderId) -> Vec<u8> {
    [&name.tagged(), format!(":{reader}:rwlock_timeout").as_bytes()].concat()
}

/// The channel on which an agent hears of forced releases of its holds.
#[must_use]
pub fn forced_channel(client: &crate::ClientId) -> Vec<u8> {
    [FORCED_CHANNEL, b"{", client.as_str().as_bytes(), b"}"].concat()
}

/// Where an agent tells of itself.
#[must_use]
pub fn agent(client: &crate::ClientId) -> Vec<u8> {
    [AGENT, b"{", client.as_str().as_bytes(), b"}"].concat()
}

/// Where an agent tells who its holders are, by the numbers that end their ids.
#[must_use]
pub fn agent_holders(client: &crate::ClientId) -> Vec<u8> {
    [AGENT_HOLDERS, b"{", client.as_str().as_bytes(), b"}"].concat()
}

/// The locks that a message on `channel` may be about, likeliest first; none where it is no lock's channel.
#[must_use]
pub fn locks_of_channel(channel: &[u8]) -> Vec<LockName> {
    let Some(tagged) =
        channel.strip_prefix(LOCK_CHANNEL).or_else(|| channel.strip_prefix(READ_WRITE_CHANNEL))
    else {
        return Vec::new();
    };
    // A fair waiter's channel ends in its holder id, of which the uuid's length is known and the number's is not.
    let fair = (0..tagged.len())
        .filter(|&i| tagged[i] == b':')
        .find(|&i| HolderId::parse(&tagged[i + 1..]).is_some())
        .map(|i| &tagged[..i]);
    fair.into_iter().chain([tagged]).flat_map(untagged).collect()
}

/// The waiter that a channel belongs to; none where it is the channel of all waiters.
#[must_use]
pub fn waiter_of_channel(channel: &[u8]) -> Option<HolderId> {
    let rest = channel.strip_prefix(LOCK_CHANNEL)?;
    (0..rest.len()).filter(|&i| rest[i] == b':').find_map(|i| HolderId::parse(&rest[i + 1..]))
}

/// The locks that a fair lock's queue or deadlines may belong to, likeliest first; none where the key is neither.
#[must_use]
pub fn locks_of_queue(key: &[u8]) -> Vec<LockName> {
    let tagged = key.strip_prefix(QUEUE).or_else(|| key.strip_prefix(DEADLINES));
    tagged.map(untagged).unwrap_or_default()
}

/// The names whose tagged form is `tagged`.
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
    fn keys_are_redissons() {
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
    fn a_channel_leads_back_to_its_lock() {
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
        fn every_name_is_found_again(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            let name = LockName::new(bytes).unwrap();
            prop_assert!(locks_of_channel(&channel(&name)).contains(&name));
            let waiter = HolderId::new(ClientId::from_random([1; 16]), 9);
            prop_assert_eq!(waiter_of_channel(&fair_channel(&name, &waiter)), Some(waiter));
            prop_assert!(locks_of_channel(&fair_channel(&name, &waiter)).contains(&name));
        }
    }
}

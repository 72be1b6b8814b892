//! Typed replies of the scripts. Parsing is strict: a reply out of specification is an error, never a guess.

use thiserror::Error;

use super::{
    ACQUIRE, AGENT_STATE, FORCE_RELEASE, HAND_OVER, HOLDER_ENTRY, PURGE_QUEUE, RELEASE, RENEW,
    SHOW, Script,
};
use crate::HolderId;
use crate::shape::LockHash;

/// A reply of Redis, limited to the types that scripts return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A nil reply.
    Nil,
    /// An integer.
    Int(i64),
    /// A bulk string.
    Bytes(Vec<u8>),
    /// An array.
    Array(Vec<Self>),
}

impl Value {
    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Nil | Self::Bytes(_) | Self::Array(_) => None,
        }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Nil | Self::Int(_) | Self::Array(_) => None,
        }
    }

    pub(super) fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            Self::Nil | Self::Int(_) | Self::Bytes(_) => None,
        }
    }
}

/// A reply that the script cannot have returned: a proxy may have rewritten it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unexpected reply to {script}: {reply:?}")]
pub struct BadReply {
    /// The name of the called script.
    pub script: &'static str,
    /// The reply received.
    pub reply: Value,
}

/// The outcome of an attempt to acquire a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The holder has the lock, at count 1.
    Granted {
        /// The fencing token, if requested.
        token: Option<u64>,
    },
    /// Other holders have the lock.
    Held {
        /// Milliseconds until the lease expires, or, for a free fair lock, until the deadline of the waiter ahead;
        /// `None` if the key has no TTL.
        pttl_ms: Option<u64>,
        /// The holders, if they are few; for a fair lock also the head of the queue.
        holders: Vec<HolderId>,
    },
    /// The name is in use as another kind of lock, described by this word.
    WrongKind(String),
    /// The key is not a lock but of this type.
    WrongType(String),
}

/// The outcome for one hold of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The hold exists, at its count, with at least the lease.
    Renewed,
    /// The read hold exists, but the node lacks some of its markers, so it does not count as living.
    MarkersMissing,
    /// The lock does not exist.
    Missing,
    /// Other holders have the lock.
    Stolen,
    /// The key is no longer a lock.
    WrongType,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The hold was removed.
    Released,
    /// The hold did not exist, and the lock is free.
    Missing,
    /// The hold did not exist, and others hold the lock.
    Stolen,
    /// The key is no longer a lock.
    WrongType,
}

/// The outcome of a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOverOutcome {
    /// The new holder has the lock.
    Passed {
        /// The number of subscribers to the release channel on this node, including this agent; `None` if unknown.
        subscribers: Option<u64>,
        /// The new holder's fencing token, if requested.
        token: Option<u64>,
    },
    /// The old hold was removed, and the new holder was not next in a fair lock's queue.
    Released,
    /// The old hold did not exist, and the lock is free.
    Missing,
    /// The old hold did not exist, and others hold the lock.
    Stolen,
    /// The key is no longer a lock.
    WrongType,
}

/// The outcome of a forced release or of removing a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceReleaseOutcome {
    /// The lock, hold or queue entry was removed, and the clients concerned were notified.
    Released,
    /// The lock, hold or queue entry no longer existed.
    Free,
    /// The lock differs from the expected state; nothing was changed.
    Changed,
    /// The key is not a lock.
    WrongType,
}

/// An agent, as far as its entry in Redis shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// The agent renews its entry.
    Present,
    /// The agent has stopped renewing its entry, which has expired.
    Vanished,
    /// The agent has published no entry within a day: it may be alive and unable to publish, or of an earlier version.
    Unknown,
}

/// An entry of a fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The waiter's id as stored.
    pub waiter: Vec<u8>,
    /// The instant after which the waiter counts as dead, in epoch milliseconds of its client's clock.
    pub deadline_ms: Option<u64>,
}

/// A reader of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// The reader's holder id.
    pub id: HolderId,
    /// True if any of its markers exists. A reader without one is dead: its lease has expired, and only other readers
    /// keep its field alive.
    pub alive: bool,
}

/// A description of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDetails {
    /// The key's type; `none` if the key does not exist.
    pub key_type: String,
    /// The remaining TTL in milliseconds; `None` if the key has no TTL or does not exist.
    pub pttl_ms: Option<u64>,
    /// The number of fields. The contents are read only up to [`crate::shape::MAX_FIELDS`].
    pub fields: u64,
    /// The fields, sorted into holders, mode and others.
    pub hash: LockHash,
    /// The length of the fair queue.
    pub queue_length: u64,
    /// The first entries of the queue.
    pub queue: Vec<QueueEntry>,
    /// The latest fencing token, if the lock was ever fenced.
    pub token: Option<u64>,
    /// The readers of a read-write lock, in order of their ids.
    pub readers: Vec<Reader>,
}

pub(super) fn bad(script: &Script, reply: &Value) -> BadReply {
    BadReply { script: script.name, reply: reply.clone() }
}

fn ttl(pttl: i64) -> Option<u64> {
    u64::try_from(pttl).ok()
}

/// Parses a fencing token in decimal.
fn token(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Parses the reply to [`super::acquire`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_acquire(reply: &Value) -> Result<AcquireOutcome, BadReply> {
    let read = || {
        let items = reply.array()?;
        Some(match (items.first()?.int()?, items.get(1)) {
            (1, None) => AcquireOutcome::Granted { token: None },
            (1, Some(Value::Bytes(text))) => AcquireOutcome::Granted { token: Some(token(text)?) },
            (0, Some(Value::Int(pttl))) => AcquireOutcome::Held {
                pttl_ms: ttl(*pttl),
                holders: items
                    .iter()
                    .skip(2)
                    .filter_map(|item| HolderId::parse(item.bytes()?))
                    .collect(),
            },
            (2, Some(Value::Bytes(kind))) => AcquireOutcome::WrongKind(string(kind)),
            (3, Some(Value::Bytes(kind))) => AcquireOutcome::WrongType(string(kind)),
            _ => return None,
        })
    };
    read().ok_or_else(|| bad(&ACQUIRE, reply))
}

/// Parses the reply to [`super::renew`] or [`super::renew_read`] for that many holds.
///
/// # Errors
/// Returns an error for any other reply, or for another number of holds.
pub fn parse_renew(reply: &Value, holds: usize) -> Result<Vec<RenewOutcome>, BadReply> {
    let read = || {
        let (renewed, others) = reply.array()?.split_first()?;
        let mut outcomes = vec![RenewOutcome::Renewed; holds];
        for other in others.chunks(2) {
            let [index, state] = other else { return None };
            let index = usize::try_from(index.int()?).ok()?.checked_sub(1)?;
            *outcomes.get_mut(index)? = match state.int()? {
                0 => RenewOutcome::Missing,
                2 => RenewOutcome::Stolen,
                3 => RenewOutcome::WrongType,
                4 => RenewOutcome::MarkersMissing,
                _ => return None,
            };
        }
        let counted = outcomes.iter().filter(|outcome| **outcome == RenewOutcome::Renewed).count();
        (usize::try_from(renewed.int()?).ok()? == counted).then_some(outcomes)
    };
    read().ok_or_else(|| bad(&RENEW, reply))
}

/// Parses the reply to [`super::release`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_release(reply: &Value) -> Result<ReleaseOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1)] | [Value::Int(1), Value::Bytes(_)]) => Ok(ReleaseOutcome::Released),
        Some([Value::Int(0)]) => Ok(ReleaseOutcome::Missing),
        Some([Value::Int(2)]) => Ok(ReleaseOutcome::Stolen),
        Some([Value::Int(3)]) => Ok(ReleaseOutcome::WrongType),
        _ => Err(bad(&RELEASE, reply)),
    }
}

/// Returns the error with which Redis refused a message about what it carried out, from the reply to a script that
/// releases or removes.
#[must_use]
pub fn unannounced(reply: &Value) -> Option<String> {
    match reply.array() {
        Some([Value::Int(0 | 1), .., Value::Bytes(error)]) => {
            Some(String::from_utf8_lossy(error).into_owned())
        }
        _ => None,
    }
}

/// Parses the reply to [`super::hand_over_fair`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_hand_over_fair(reply: &Value) -> Result<HandOverOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1)] | [Value::Int(1), Value::Bytes(_)]) => Ok(HandOverOutcome::Released),
        _ => parse_hand_over(reply),
    }
}

/// Parses the reply to [`super::hand_over`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_hand_over(reply: &Value) -> Result<HandOverOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1), Value::Int(n)]) => {
            Ok(HandOverOutcome::Passed { subscribers: u64::try_from(*n).ok(), token: None })
        }
        Some([Value::Int(1), Value::Int(n), Value::Bytes(text)]) => match token(text) {
            Some(token) => Ok(HandOverOutcome::Passed {
                subscribers: u64::try_from(*n).ok(),
                token: Some(token),
            }),
            None => Err(bad(&HAND_OVER, reply)),
        },
        Some([Value::Int(0)]) => Ok(HandOverOutcome::Missing),
        Some([Value::Int(2)]) => Ok(HandOverOutcome::Stolen),
        Some([Value::Int(3)]) => Ok(HandOverOutcome::WrongType),
        _ => Err(bad(&HAND_OVER, reply)),
    }
}

/// Parses the reply to [`super::force_release`], [`super::force_release_holder`] and [`super::remove_waiter`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_force_release(reply: &Value) -> Result<ForceReleaseOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1), rest @ ..]) if is_addition(rest) => Ok(ForceReleaseOutcome::Released),
        Some([Value::Int(0), rest @ ..]) if is_addition(rest) => Ok(ForceReleaseOutcome::Free),
        Some([Value::Int(2)]) => Ok(ForceReleaseOutcome::Changed),
        Some([Value::Int(3)]) => Ok(ForceReleaseOutcome::WrongType),
        _ => Err(bad(&FORCE_RELEASE, reply)),
    }
}

/// Returns whether these are the optional parts of a reply: a number of waiters, and the error of a message.
fn is_addition(rest: &[Value]) -> bool {
    matches!(rest, [] | [Value::Bytes(_)])
        || matches!(rest, [Value::Int(0..)] | [Value::Int(0..), Value::Bytes(_)])
}

/// Parses the number of waiters that [`super::force_release`] or [`super::purge_queue`] removed; 0 if the keys are not
/// those of a lock or a queue, or the lock has changed.
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_purged(reply: &Value) -> Result<u64, BadReply> {
    match reply.array() {
        Some([Value::Int(0 | 1), rest @ ..]) if is_addition(rest) => match rest {
            [Value::Int(removed), ..] => Ok(removed.unsigned_abs()),
            _ => Err(bad(&PURGE_QUEUE, reply)),
        },
        Some([Value::Int(2 | 3)]) => Ok(0),
        _ => Err(bad(&PURGE_QUEUE, reply)),
    }
}

/// Parses the reply to [`super::agent_state`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_agent_state(reply: &Value) -> Result<AgentState, BadReply> {
    match reply.array() {
        Some([Value::Int(1)]) => Ok(AgentState::Present),
        Some([Value::Int(0)]) => Ok(AgentState::Vanished),
        Some([Value::Int(2)]) => Ok(AgentState::Unknown),
        _ => Err(bad(&AGENT_STATE, reply)),
    }
}

/// The published entries of an agent about one of its holders, as stored; empty if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HolderEntry {
    /// The agent's host.
    pub host: Vec<u8>,
    /// The process, as JSON.
    pub process: Vec<u8>,
}

/// Parses the reply to [`super::holder_entry`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_holder_entry(reply: &Value) -> Result<HolderEntry, BadReply> {
    match reply.array() {
        Some([Value::Bytes(host), Value::Bytes(process)]) => {
            Ok(HolderEntry { host: host.clone(), process: process.clone() })
        }
        _ => Err(bad(&HOLDER_ENTRY, reply)),
    }
}

/// Parses the reply to [`super::show`].
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_show(reply: &Value) -> Result<LockDetails, BadReply> {
    let read = || {
        let [key_type, pttl, fields, pairs, queue_length, entries, token_text, markers] =
            reply.array()?
        else {
            return None;
        };
        let markers = markers.array()?;
        let mut readers = Vec::new();
        let pairs = pairs.array()?;
        let mut hash = Vec::with_capacity(pairs.len() / 2);
        for (i, pair) in pairs.chunks(2).enumerate() {
            let field = pair.first()?.bytes()?;
            hash.push((field, pair.get(1)?.bytes()?));
            if let Some(marker) = markers.get(i)
                && let Some(id) = HolderId::parse(field).filter(|id| !id.write)
            {
                readers.push(Reader { id, alive: marker.int()? != -2 });
            }
        }
        readers.sort_unstable_by_key(|reader| reader.id);
        let mut queue = Vec::new();
        for entry in entries.array()?.chunks(2) {
            let deadline = std::str::from_utf8(entry.get(1)?.bytes()?).ok()?;
            queue.push(QueueEntry {
                waiter: entry.first()?.bytes()?.to_vec(),
                deadline_ms: whole_millis(deadline),
            });
        }
        Some(LockDetails {
            key_type: string(key_type.bytes()?),
            pttl_ms: ttl(pttl.int()?),
            fields: u64::try_from(fields.int()?).ok()?,
            hash: LockHash::parse(hash),
            queue_length: u64::try_from(queue_length.int()?).ok()?,
            queue,
            token: token(token_text.bytes()?),
            readers,
        })
    };
    read().ok_or_else(|| bad(&SHOW, reply))
}

/// Parses a sorted set's score as whole milliseconds; Redis prints large scores with an exponent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be in range"
)]
fn whole_millis(score: &str) -> Option<u64> {
    let score: f64 = score.parse().ok()?;
    (0.0..9e15).contains(&score).then_some(score as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_reply_is_an_error() {
        for reply in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(7)]),
            Value::Array(vec![Value::Bytes(b"1".to_vec())]),
        ] {
            assert!(parse_acquire(&reply).is_err());
            assert!(parse_renew(&reply, 1).is_err());
            assert!(parse_release(&reply).is_err());
            assert!(parse_hand_over(&reply).is_err());
            assert!(parse_force_release(&reply).is_err());
            assert!(parse_show(&reply).is_err());
            assert!(parse_holder_entry(&reply).is_err());
        }
    }

    #[test]
    fn only_holds_that_are_not_renewed_are_listed() {
        use RenewOutcome::{Missing, Renewed, Stolen, WrongType};
        let parsed = |ints: &[i64]| {
            parse_renew(&Value::Array(ints.iter().copied().map(Value::Int).collect()), 4)
        };
        assert_eq!(parsed(&[4]), Ok(vec![Renewed; 4]));
        assert_eq!(parsed(&[1, 1, 0, 3, 2, 4, 3]), Ok(vec![Missing, Renewed, Stolen, WrongType]));
        for bad in
            [&[][..], &[3], &[5], &[3, 1], &[3, 0, 0], &[3, 5, 0], &[3, 1, 1], &[2, 1, 0, 1, 0]]
        {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_lock_without_a_ttl_has_none() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        let held = AcquireOutcome::Held { pttl_ms: None, holders: vec![] };
        assert_eq!(parse_acquire(&reply), Ok(held));
    }
}

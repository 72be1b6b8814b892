//! What the scripts answer, read strictly: a reply that is not as specified is an error, never a guess.

use thiserror::Error;

use crate::HolderId;
use crate::shape::LockHash;

/// A reply of Redis, as far as scripts give any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A whole number.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// A list.
    Array(Vec<Self>),
}

impl Value {
    fn int(&self) -> Option<i64> {
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

    fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            Self::Nil | Self::Int(_) | Self::Bytes(_) => None,
        }
    }
}

/// A reply that the script cannot have given: another script under our digest, or a proxy that rewrites.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unexpected reply to {script}: {reply:?}")]
pub struct BadReply {
    /// The script that was called.
    pub script: &'static str,
    /// What came back.
    pub reply: Value,
}

/// What came of an attempt to take a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The holder has it, at count 1.
    Granted {
        /// The fencing token, if one was asked for.
        token: Option<u64>,
    },
    /// Others hold it.
    Held {
        /// Milliseconds until the lease runs out (for a fair lock that is free: until the deadline of who stands
        /// before us); none where the key has no time to live.
        pttl_ms: Option<u64>,
        /// The fields with a holder's form, as far as they are few; for a fair lock also the queue's head.
        holders: Vec<HolderId>,
    },
    /// The name is in use as another kind of lock, by this word.
    WrongKind(String),
    /// The key is no lock but of this type.
    WrongType(String),
}

/// What became of one hold in a keep call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Still there, at its count, with at least the lease.
    Renewed,
    /// The lock is gone.
    Missing,
    /// Others hold it.
    Stolen,
    /// The key is no lock any more.
    WrongType,
}

/// What came of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The hold was there and is no more.
    Released,
    /// It was not there, and the lock is free.
    Missing,
    /// It was not there, others hold the lock.
    Stolen,
    /// The key is no lock any more.
    WrongType,
}

/// What came of a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOverOutcome {
    /// The new holder has it. How many clients are subscribed to the release channel, us included; none where
    /// that cannot be told.
    Passed {
        /// Subscribers of the channel on this node.
        subscribers: Option<u64>,
        /// The new holder's fencing token, if one was asked for.
        token: Option<u64>,
    },
    /// The old hold was not there, and the lock is free.
    Missing,
    /// The old hold was not there, others hold the lock.
    Stolen,
    /// The key is no lock any more.
    WrongType,
}

/// What came of a forced release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceReleaseOutcome {
    /// Lock, hold or place is gone, whom it concerns was told.
    Released,
    /// It was gone already.
    Free,
    /// It is not as the operator saw it: nothing was done.
    Changed,
    /// The key is no lock.
    WrongType,
}

/// One place in a fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The waiter's id, as it stands there.
    pub waiter: Vec<u8>,
    /// When it counts as dead, in epoch milliseconds of its own client's clock.
    pub deadline_ms: Option<u64>,
}

/// One reader of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Who.
    pub id: HolderId,
    /// Whether a marker of its holds is still there. One without is dead: its lease has run out, and only other
    /// readers keep its field.
    pub alive: bool,
}

/// What a lock looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDetails {
    /// The key's type, `none` where there is no key.
    pub key_type: String,
    /// Milliseconds to live; none where the key has no time to live or does not exist.
    pub pttl_ms: Option<u64>,
    /// How many fields the hash has; its content is read up to [`crate::shape::MAX_FIELDS`] of them.
    pub fields: u64,
    /// The fields.
    pub hash: LockHash,
    /// The queue's length.
    pub queue_length: u64,
    /// Its first places.
    pub queue: Vec<QueueEntry>,
    /// The latest fencing token, if the lock has ever been a fenced one.
    pub token: Option<u64>,
    /// The readers of a read-write lock, in order of their ids.
    pub readers: Vec<Reader>,
}

fn bad(script: &'static str, reply: &Value) -> BadReply {
    BadReply { script, reply: reply.clone() }
}

fn ttl(pttl: i64) -> Option<u64> {
    u64::try_from(pttl).ok()
}

/// A fencing token, a whole number in decimal.
fn token(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads the reply to [`super::acquire`].
///
/// # Errors
/// When it is no such reply.
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
    read().ok_or_else(|| bad("acquire", reply))
}

/// Reads the reply to [`super::renew`] for that many holds.
///
/// # Errors
/// When it is no such reply, or speaks of another number of holds.
pub fn parse_renew(reply: &Value, holds: usize) -> Result<Vec<RenewOutcome>, BadReply> {
    let read = || {
        let items = reply.array()?;
        let kept = items.iter().map(|item| match item.int()? {
            1 => Some(RenewOutcome::Renewed),
            0 => Some(RenewOutcome::Missing),
            2 => Some(RenewOutcome::Stolen),
            3 => Some(RenewOutcome::WrongType),
            _ => None,
        });
        kept.collect::<Option<Vec<_>>>().filter(|kept| kept.len() == holds)
    };
    read().ok_or_else(|| bad("keep", reply))
}

/// Reads the reply to [`super::release`].
///
/// # Errors
/// When it is no such reply.
pub fn parse_release(reply: &Value) -> Result<ReleaseOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1)]) => Ok(ReleaseOutcome::Released),
        Some([Value::Int(0)]) => Ok(ReleaseOutcome::Missing),
        Some([Value::Int(2)]) => Ok(ReleaseOutcome::Stolen),
        Some([Value::Int(3)]) => Ok(ReleaseOutcome::WrongType),
        _ => Err(bad("release", reply)),
    }
}

/// Reads the reply to [`super::hand_over`].
///
/// # Errors
/// When it is no such reply.
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
            None => Err(bad("hand_over", reply)),
        },
        Some([Value::Int(0)]) => Ok(HandOverOutcome::Missing),
        Some([Value::Int(2)]) => Ok(HandOverOutcome::Stolen),
        Some([Value::Int(3)]) => Ok(HandOverOutcome::WrongType),
        _ => Err(bad("hand_over", reply)),
    }
}

/// Reads the reply to [`super::force_release`], [`super::force_release_holder`] and [`super::remove_waiter`].
///
/// # Errors
/// When it is no such reply.
pub fn parse_force_release(reply: &Value) -> Result<ForceReleaseOutcome, BadReply> {
    match reply.array() {
        Some([Value::Int(1)]) => Ok(ForceReleaseOutcome::Released),
        Some([Value::Int(0)]) => Ok(ForceReleaseOutcome::Free),
        Some([Value::Int(2)]) => Ok(ForceReleaseOutcome::Changed),
        Some([Value::Int(3)]) => Ok(ForceReleaseOutcome::WrongType),
        _ => Err(bad("force_release", reply)),
    }
}

/// Reads the reply to [`super::show`].
///
/// # Errors
/// When it is no such reply.
pub fn parse_show(reply: &Value) -> Result<LockDetails, BadReply> {
    let read = || {
        let [key_type, pttl, fields, pairs, queue_length, places, fence, markers] =
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
        for place in places.array()?.chunks(2) {
            let deadline = std::str::from_utf8(place.get(1)?.bytes()?).ok()?;
            queue.push(QueueEntry {
                waiter: place.first()?.bytes()?.to_vec(),
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
            token: token(fence.bytes()?),
            readers,
        })
    };
    read().ok_or_else(|| bad("show", reply))
}

/// A sorted set's score as whole milliseconds; Redis prints large ones with an exponent.
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
    fn a_reply_out_of_shape_is_an_error_not_a_guess() {
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
        }
        assert!(parse_renew(&Value::Array(vec![Value::Int(1)]), 2).is_err());
    }

    #[test]
    fn a_lock_without_a_time_to_live_says_so() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        let held = AcquireOutcome::Held { pttl_ms: None, holders: vec![] };
        assert_eq!(parse_acquire(&reply), Ok(held));
    }
}

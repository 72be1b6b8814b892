//! The sizes of keys, which are read before their values.

use redisson::LockName;
use service_kit::redis::Redirect;

use super::call::{Caller, ReadError, command, redirect_of, send};
use super::reply::{integer, permitted, signed};
use crate::model::types::Stamp;

/// The number of field names that decide whether a hash can be a lock.
pub(super) const SAMPLE: usize = 3;

/// The properties of a key that are read before its values.
pub(super) struct Measured {
    /// The number of its fields. If there are fewer than in a sample, it is the number of those that were named.
    pub(super) count: u64,
    /// The lengths of the values of its fields.
    pub(super) lengths: Vec<u64>,
    /// True if the key has a time to live.
    pub(super) expires: bool,
}

/// Reads the lengths of fields' values, whether their keys expire, and the numbers of fields of these keys. Returns the
/// node of a key if it is on another node.
pub(super) async fn measure(
    caller: &mut impl Caller,
    keys: &[(&LockName, &[Vec<u8>])],
) -> Result<(Stamp, Vec<Result<Measured, Redirect>>), ReadError> {
    let mut commands = Vec::new();
    for (name, fields) in keys {
        commands.push(command("PTTL", name.as_bytes()));
        if fields.len() >= SAMPLE {
            commands.push(command("HLEN", name.as_bytes()));
        }
        for field in *fields {
            let mut length = command("HSTRLEN", name.as_bytes());
            length.arg(field);
            commands.push(length);
        }
    }
    let (stamp, replies) = send(caller, commands).await?;
    let mut replies = replies.into_iter();
    let mut all = Vec::with_capacity(keys.len());
    for (_, fields) in keys {
        let mut redirect = None;
        let mut next = |what| {
            let reply = replies.next().ok_or(ReadError::UnexpectedReply(what))?;
            redirect = redirect_of(&reply).or_else(|| redirect.take());
            Ok::<_, ReadError>(permitted(reply)?.ok())
        };
        let ttl = next("PTTL")?.as_ref().and_then(signed);
        let mut count = fields.len() as u64;
        if fields.len() >= SAMPLE {
            count = next("HLEN")?.as_ref().and_then(integer).unwrap_or(count);
        }
        let mut lengths = Vec::with_capacity(fields.len());
        for _ in *fields {
            lengths.push(next("HSTRLEN")?.as_ref().and_then(integer).unwrap_or(u64::MAX));
        }
        let measured = Measured { count, lengths, expires: ttl.is_some_and(|ttl| ttl >= 0) };
        all.push(redirect.map_or(Ok(measured), Err));
    }
    Ok((stamp, all))
}

//! Cheap revalidation of an unchanged lock: HLEN and PTTL.
//!
//! Every acquisition, re-entry, renewal and partial release sets the lock's time to live. A lock that is due to expire at the
//! same instant as at its last reading, and has as many fields, therefore has the same holders. This costs the server a third
//! of a whole reading, and most readings of long-held locks find nothing else.

use std::time::Duration;

use redis::{Cmd, Value};
use redisson::shape::LockHash;
use redisson::{Moment, keys};
use service_kit::redis::ServerError;

use super::reply::{integer, is_list, signed};
use super::{Caller, Findings, Found, ReadError, ReadRequest, command, send};
use crate::model::types::{Companions, LastReading, Reading, Stamp};

/// Locks in one pipeline.
const LOCKS: usize = 64;
/// The error of an instant through rounding to milliseconds, on both sides.
const ROUNDED: Duration = Duration::from_millis(2);

/// Revalidates the locks that have a last reading. Unchanged ones go to the findings; the others are returned, to be read
/// as a whole.
pub(super) async fn revalidate(
    caller: &mut impl Caller,
    requests: Vec<ReadRequest>,
    findings: &mut Findings,
) -> Result<Vec<ReadRequest>, ReadError> {
    let (mut candidates, mut others) = (Vec::new(), Vec::new());
    for mut request in requests {
        match request.known.revalidate.take() {
            Some(last) => candidates.push((request, last)),
            None => others.push(request),
        }
    }
    let companions = caller.facts().may_read_companions();
    let each = if companions { 3 } else { 2 };
    while !candidates.is_empty() {
        let part: Vec<_> = candidates.drain(..candidates.len().min(LOCKS)).collect();
        let commands = part.iter().flat_map(|(request, _)| commands(request, companions)).collect();
        let (stamp, replies) = send(caller, commands).await?;
        let mut replies = replies.into_iter();
        for (request, last) in part {
            let replies: Vec<_> = replies.by_ref().take(each).collect();
            match ttl_if_unchanged(&last, stamp, &replies) {
                Some(ttl) => {
                    let hash = LockHash { holders: last.holders, ..LockHash::default() };
                    let companions = Companions::default();
                    let reading = Reading::Lock { hash, ttl: Some(ttl), companions };
                    findings.found.push(Found { name: request.name, stamp, reading });
                }
                None => others.push(request),
            }
        }
    }
    Ok(others)
}

/// Returns the commands for the number of fields, the time to live, and the type of the queue's key.
fn commands(request: &ReadRequest, companions: bool) -> impl Iterator<Item = Cmd> {
    let key = request.name.as_bytes();
    let queue = companions.then(|| command("TYPE", &keys::queue(&request.name)));
    [command("HLEN", key), command("PTTL", key)].into_iter().chain(queue)
}

/// Returns the time to live if nothing has changed. A refusal counts as a change.
fn ttl_if_unchanged(
    last: &LastReading,
    stamp: Stamp,
    replies: &[Result<Value, ServerError>],
) -> Option<Duration> {
    let [Ok(fields), Ok(ttl), queue @ ..] = replies else { return None };
    let same_fields = integer(fields) == u64::try_from(last.holders.len()).ok();
    let queued = queue.iter().any(|queue| queue.is_err() || is_list(queue));
    let ttl = signed(ttl).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)?;
    (same_fields
        && !queued
        && overlap(last.expires, (stamp.sent + ttl, stamp.received.moment() + ttl)))
    .then_some(ttl)
}

fn overlap(before: (Moment, Moment), now: (Moment, Moment)) -> bool {
    before.0 <= now.1 + ROUNDED && now.0 <= before.1 + ROUNDED
}

#[cfg(test)]
mod tests {
    use redisson::shape::Holder;
    use redisson::{ClientId, HolderId};

    use super::*;
    use crate::clock::Time;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1_000)
    }

    /// Revalidates at 10,000 a lock that was due to expire between 60,000 and 60,001.
    fn read(fields: i64, ttl: i64, queue: &str) -> Option<u64> {
        let id = HolderId::new(ClientId::from_random([7; 16]), 1);
        let holders = vec![Holder { id, count: 2 }];
        let last = LastReading { holders, expires: (at(60_000), at(60_001)) };
        let stamp = Stamp { sent: at(10_000), received: Time::of_test(10_003, 0) };
        let queue = Value::SimpleString(queue.into());
        let replies = [Ok(Value::Int(fields)), Ok(Value::Int(ttl)), Ok(queue)];
        ttl_if_unchanged(&last, stamp, &replies).map(|ttl| u64::try_from(ttl.as_millis()).unwrap())
    }

    #[test]
    fn a_lock_is_unchanged_while_its_expiry_and_its_fields_are() {
        assert_eq!(read(1, 49_998, "none"), Some(49_998));
        assert_eq!(read(1, 50_003, "none"), Some(50_003), "within the rounding error");
        assert_eq!(read(1, 50_010, "none"), None, "renewed");
        assert_eq!(read(1, 49_900, "none"), None, "cut short");
        assert_eq!(read(2, 50_000, "none"), None, "another holder, or an unexpected field");
        assert_eq!(read(1, 50_000, "list"), None, "it has a queue");
        assert_eq!(read(1, -1, "none"), None, "no time to live any more");
        assert_eq!(read(0, -2, "none"), None, "gone");
    }

    #[test]
    fn a_refused_command_counts_as_a_change() {
        let last = LastReading { holders: Vec::new(), expires: (at(0), at(u64::MAX / 2_000)) };
        let stamp = Stamp { sent: at(1), received: Time::of_test(1, 0) };
        let denied = ServerError { code: "NOPERM".into(), message: String::new() };
        let fine = [Ok(Value::Int(0)), Ok(Value::Int(5))];
        assert!(ttl_if_unchanged(&last, stamp, &fine).is_some(), "the queue may be unreadable");
        let mut replies = fine.to_vec();
        replies.push(Err(denied.clone()));
        assert_eq!(ttl_if_unchanged(&last, stamp, &replies), None);
        assert_eq!(ttl_if_unchanged(&last, stamp, &[Err(denied), Ok(Value::Int(5))]), None);
    }
}

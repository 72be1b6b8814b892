//! Locks that are probably as they were, asked in short.
//!
//! Whoever takes a lock, takes it once more, renews it or gives it back in part sets its time to live anew. One that is to end at
//! the instant that it was to end at before, and has as many fields, is therefore held by whom it was. Asking for that costs the
//! server a third of a whole reading, and most readings of locks that are held for long find nothing else.

use std::time::Duration;

use redis::{Cmd, Value};
use redisson::shape::LockHash;
use redisson::{Moment, keys};
use service_kit::redis::ServerError;

use super::reply::{integer, is_list, signed};
use super::{Caller, Findings, Found, ReadError, ReadRequest, ask, command};
use crate::model::observation::Beside;
use crate::model::{Reading, Stamp, Still};

/// Locks in one pipeline.
const LOCKS: usize = 64;
/// What rounding to milliseconds makes of an instant, on both sides.
const ROUNDED: Duration = Duration::from_millis(2);

/// Asks those that may be as they were. Those that are have been `found`; the others are given back, to be read as a whole.
pub(super) async fn still(
    caller: &mut impl Caller,
    requests: Vec<ReadRequest>,
    findings: &mut Findings,
) -> Result<Vec<ReadRequest>, ReadError> {
    let (mut asked, mut others) = (Vec::new(), Vec::new());
    for mut request in requests {
        match request.known.still.take() {
            Some(still) => asked.push((request, still)),
            None => others.push(request),
        }
    }
    let beside = caller.facts().may_look_beside();
    let each = if beside { 3 } else { 2 };
    while !asked.is_empty() {
        let part: Vec<_> = asked.drain(..asked.len().min(LOCKS)).collect();
        let commands = part.iter().flat_map(|(request, _)| commands(request, beside)).collect();
        let (stamp, replies) = ask(caller, commands).await?;
        let mut replies = replies.into_iter();
        for (request, still) in part {
            let replies: Vec<_> = replies.by_ref().take(each).collect();
            match ttl_if_same(&still, stamp, &replies) {
                Some(ttl) => {
                    let hash = LockHash { holders: still.holders, ..LockHash::default() };
                    let beside = Beside::default();
                    let reading = Reading::Lock { hash, ttl: Some(ttl), beside };
                    findings.found.push(Found { name: request.name, stamp, reading });
                }
                None => others.push(request),
            }
        }
    }
    Ok(others)
}

/// How many fields, how long to live, and whether somebody queues.
fn commands(request: &ReadRequest, beside: bool) -> impl Iterator<Item = Cmd> {
    let key = request.name.as_bytes();
    let queue = beside.then(|| command("TYPE", &keys::queue(&request.name)));
    [command("HLEN", key), command("PTTL", key)].into_iter().chain(queue)
}

/// The time to live, where everything is as it was. Anything else, a refusal too, is looked at closely.
fn ttl_if_same(
    still: &Still,
    stamp: Stamp,
    replies: &[Result<Value, ServerError>],
) -> Option<Duration> {
    let [Ok(fields), Ok(ttl), queue @ ..] = replies else { return None };
    let same_fields = integer(fields) == u64::try_from(still.holders.len()).ok();
    let queued = queue.iter().any(|queue| queue.is_err() || is_list(queue));
    let ttl = signed(ttl).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)?;
    (same_fields && !queued && overlap(still.ends, (stamp.sent + ttl, stamp.received + ttl)))
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
    use crate::clock::SteadyMillis;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1_000)
    }

    /// Of a lock that was to run out between 60,000 and 60,001, read at 10,000.
    fn read(fields: i64, ttl: i64, queue: &str) -> Option<u64> {
        let id = HolderId::new(ClientId::from_random([7; 16]), 1);
        let holders = vec![Holder { id, count: 2 }];
        let still = Still { holders, ends: (at(60_000), at(60_001)) };
        let stamp = Stamp { sent: at(10_000), received: at(10_003), steady: SteadyMillis(0) };
        let queue = Value::SimpleString(queue.into());
        let replies = [Ok(Value::Int(fields)), Ok(Value::Int(ttl)), Ok(queue)];
        ttl_if_same(&still, stamp, &replies).map(|ttl| u64::try_from(ttl.as_millis()).unwrap())
    }

    #[test]
    fn it_is_as_it_was_while_it_runs_out_when_it_was_to() {
        assert_eq!(read(1, 49_998, "none"), Some(49_998));
        assert_eq!(read(1, 50_003, "none"), Some(50_003), "within what rounding makes of it");
        assert_eq!(read(1, 50_010, "none"), None, "set again");
        assert_eq!(read(1, 49_900, "none"), None, "cut short");
        assert_eq!(
            read(2, 50_000, "none"),
            None,
            "another holder, or something that does not belong"
        );
        assert_eq!(read(1, 50_000, "list"), None, "somebody queues");
        assert_eq!(read(1, -1, "none"), None, "no time to live any more");
        assert_eq!(read(0, -2, "none"), None, "gone");
    }

    #[test]
    fn what_is_refused_is_looked_at_closely() {
        let still = Still { holders: Vec::new(), ends: (at(0), at(u64::MAX / 2_000)) };
        let stamp = Stamp { sent: at(1), received: at(1), steady: SteadyMillis(0) };
        let denied = ServerError { code: "NOPERM".into(), message: String::new() };
        let fine = [Ok(Value::Int(0)), Ok(Value::Int(5))];
        assert!(ttl_if_same(&still, stamp, &fine).is_some(), "a queue may not be looked at");
        let mut replies = fine.to_vec();
        replies.push(Err(denied.clone()));
        assert_eq!(ttl_if_same(&still, stamp, &replies), None);
        assert_eq!(ttl_if_same(&still, stamp, &[Err(denied), Ok(Value::Int(5))]), None);
    }
}

//! Cheap revalidation of an unchanged lock: PTTL alone, and one EXISTS for the queues of many locks.
//!
//! Every acquisition, reentry, renewal and release of a plain lock sets its time to live, or deletes it. A lock that
//! is due to expire at the same instant as at its last reading therefore has the same holder. This costs the server a
//! sixth of a whole reading, and most readings of locks that are held for long find nothing else. A field that was set
//! by hand is found by the next whole reading.

use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::shape::LockHash;
use redisson::{LockName, Moment, keys};
use service_kit::redis::ServerError;

use super::call::{Caller, ReadError, command, send};
use super::findings::{Findings, Found};
use super::reply::{is_list, signed};
use super::server_facts::ServerFacts;
use crate::model::types::{Companions, LastReading, ReadRequest, Reading, Stamp};

/// The number of locks in one pipeline.
const LOCKS: usize = 64;
/// The error of an instant from rounding to milliseconds, on both sides.
const ROUNDED: Duration = Duration::from_millis(2);

/// Revalidates the locks that have a last reading. Unchanged ones are added to the findings. The others are returned,
/// to be read as a whole.
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
    while !candidates.is_empty() {
        let part: Vec<_> = candidates.drain(..candidates.len().min(LOCKS)).collect();
        let queues = QueueCheck::new(caller.facts());
        let names: Vec<_> = part.iter().map(|(request, _)| &request.name).collect();
        let mut commands: Vec<_> =
            names.iter().map(|name| command("PTTL", name.as_bytes())).collect();
        commands.extend(queues.commands(&names));
        let (stamp, mut replies) = send(caller, commands).await?;
        let of_queues = replies.split_off(part.len().min(replies.len()));
        let queued = queues.may_be_queued(&of_queues, part.len());
        let is_final = |reply: &Result<_, ServerError>| {
            reply.as_ref().is_err_and(|error| !error.is_transient())
        };
        if queues == QueueCheck::AtOnce && of_queues.iter().any(is_final) {
            caller.facts().deny_checks_at_once();
        }
        for (((request, last), ttl), queued) in part.into_iter().zip(replies).zip(queued) {
            match ttl_if_unchanged(&last, stamp, &ttl).filter(|_| !queued) {
                Some(ttl) => {
                    let hash = LockHash { holders: vec![last.holder], ..LockHash::default() };
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

/// A way to look for the queues of some locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueCheck {
    /// One EXISTS for all of them.
    AtOnce,
    /// A TYPE for each of them, if the Redis user or the cluster's slots do not allow EXISTS.
    Each,
    /// No check, since the Redis user may not read queues.
    None,
}

impl QueueCheck {
    fn new(facts: &ServerFacts) -> Self {
        match (facts.may_read_companions(), facts.may_check_at_once()) {
            (false, _) => Self::None,
            (true, true) => Self::AtOnce,
            (true, false) => Self::Each,
        }
    }

    fn commands(self, names: &[&LockName]) -> Vec<Cmd> {
        let queues = names.iter().map(|name| keys::queue(name));
        match self {
            Self::AtOnce => vec![cmd("EXISTS").arg(queues.collect::<Vec<_>>()).clone()],
            Self::Each => queues.map(|queue| command("TYPE", &queue)).collect(),
            Self::None => Vec::new(),
        }
    }

    /// Returns for each lock whether it may have a queue. A refusal counts as a queue.
    fn may_be_queued(self, replies: &[Result<Value, ServerError>], locks: usize) -> Vec<bool> {
        match self {
            Self::AtOnce => {
                let none = replies.iter().all(|reply| matches!(reply, Ok(Value::Int(0))));
                vec![!none; locks]
            }
            Self::Each => replies.iter().map(|reply| reply.is_err() || is_list(reply)).collect(),
            Self::None => vec![false; locks],
        }
    }
}

/// Returns the time to live if nothing has changed. A refusal counts as a change.
fn ttl_if_unchanged(
    last: &LastReading,
    stamp: Stamp,
    ttl: &Result<Value, ServerError>,
) -> Option<Duration> {
    let ttl = ttl.as_ref().ok().and_then(signed).and_then(|ms| u64::try_from(ms).ok());
    let ttl = Duration::from_millis(ttl?);
    overlap(last.expires, (stamp.sent + ttl, stamp.received.moment() + ttl)).then_some(ttl)
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

    fn denied() -> Result<Value, ServerError> {
        Err(ServerError { code: "NOPERM".into(), message: String::new() })
    }

    /// Revalidates at 10,000 a lock that was due to expire between 60,000 and 60,001.
    fn read(ttl: i64) -> Option<u64> {
        let id = HolderId::new(ClientId::from_random([7; 16]), 1);
        let holder = Holder { id, count: 2 };
        let last = LastReading { holder, expires: (at(60_000), at(60_001)) };
        let stamp = Stamp { sent: at(10_000), received: Time::of_test(10_003, 0) };
        ttl_if_unchanged(&last, stamp, &Ok(Value::Int(ttl)))
            .map(|ttl| u64::try_from(ttl.as_millis()).unwrap())
    }

    #[test]
    fn a_lock_is_unchanged_while_its_expiry_is() {
        assert_eq!(read(49_998), Some(49_998));
        assert_eq!(read(50_003), Some(50_003), "within the rounding error");
        assert_eq!(read(50_010), None, "renewed");
        assert_eq!(read(49_900), None, "cut short");
        assert_eq!(read(-1), None, "no time to live any more");
        assert_eq!(read(-2), None, "gone");
    }

    #[test]
    fn queues_are_looked_for_at_once_or_one_by_one() {
        let names = ["a", "b"].map(|name| LockName::new(name.as_bytes()).unwrap());
        let count = |check: QueueCheck| check.commands(&[&names[0], &names[1]]).len();
        let of_type = |text: &str| Ok(Value::SimpleString(text.into()));
        let facts = ServerFacts::default();
        let check = QueueCheck::new(&facts);
        assert_eq!((check, count(check)), (QueueCheck::AtOnce, 1));
        assert_eq!(check.may_be_queued(&[Ok(Value::Int(0))], 2), [false, false]);
        assert_eq!(check.may_be_queued(&[Ok(Value::Int(1))], 2), [true, true]);
        assert_eq!(check.may_be_queued(&[denied()], 2), [true, true]);
        facts.deny_checks_at_once();
        let check = QueueCheck::new(&facts);
        assert_eq!((check, count(check)), (QueueCheck::Each, 2));
        assert_eq!(check.may_be_queued(&[of_type("none"), of_type("list")], 2), [false, true]);
        assert_eq!(check.may_be_queued(&[denied(), of_type("none")], 2), [true, false]);
        facts.deny_companions("denied");
        let check = QueueCheck::new(&facts);
        assert_eq!((check, count(check)), (QueueCheck::None, 0));
        assert_eq!(check.may_be_queued(&[], 2), [false, false]);
        facts.forget_denials();
        assert_eq!(QueueCheck::new(&facts), QueueCheck::AtOnce, "a new connection");
    }

    #[test]
    fn a_refused_command_counts_as_a_change() {
        let id = HolderId::new(ClientId::from_random([7; 16]), 1);
        let holder = Holder { id, count: 1 };
        let last = LastReading { holder, expires: (at(0), at(u64::MAX / 2_000)) };
        let stamp = Stamp { sent: at(1), received: Time::of_test(1, 0) };
        assert!(ttl_if_unchanged(&last, stamp, &Ok(Value::Int(5))).is_some());
        assert_eq!(ttl_if_unchanged(&last, stamp, &denied()), None);
    }
}

//! The granted locks and their validity.

use std::time::Duration;

use redis::Value;
use service_kit::clock::boot_micros;

use crate::client::Push;
use crate::duration::as_micros;
use crate::reply::{Fields as _, Validity};

/// The margin before the end of validity at which the command is killed, but at most a tenth of the validity.
const KILL_MARGIN: Duration = Duration::from_millis(500);

/// A granted lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) name: Vec<u8>,
    /// The holder id in Redis.
    pub(crate) holder: String,
    /// The fencing token, for a fenced lock.
    pub(crate) token: Option<i64>,
    /// Microseconds of the boot clock, which includes suspend.
    valid_until: u64,
    /// The state that the grant, or the list of holds after the latest RESUME, reported.
    granted: Validity,
}

/// All locks of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// In the order of the command line.
    pub(crate) locks: Vec<Held>,
    /// The shortest validity of them when granted.
    validity: Duration,
}

impl Grant {
    /// Parses the reply of LOCK or MLOCK.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let maps = match reply {
            Value::Array(maps) => maps.as_slice(),
            one => std::slice::from_ref(one),
        };
        let locks: Option<Vec<Held>> = maps.iter().map(held).collect();
        let grant = Self { locks: locks?, validity: Duration::ZERO };
        Some(Self { validity: grant.left(boot_micros()), ..grant })
    }

    /// Updates the validity from a push, which may also shorten it: a red lock may be missing on a server. Returns
    /// whether the push is news. A push from before the grant concerns an earlier hold, which an MLOCK had released.
    pub(crate) fn apply(&mut self, push: &Push) -> bool {
        let (Push::Valid(name, valid) | Push::Jeopardy(name, valid)) = push else { return true };
        let mut news = false;
        for lock in self.locks.iter_mut().filter(|lock| lock.name == *name) {
            if !valid.is_older_than(lock.granted) {
                lock.valid_until = valid.until;
                news = true;
            }
        }
        news
    }

    /// Limits the validity to the grace of a session whose connection broke at this instant.
    pub(crate) fn limit(&mut self, broke: u64, grace: Duration) {
        let grace_ends = broke + as_micros(grace);
        for lock in &mut self.locks {
            lock.valid_until = lock.valid_until.min(grace_ends);
        }
        self.validity = self.validity.min(grace);
    }

    /// Updates the validity from the list of holds of the resumed session.
    ///
    /// # Errors
    /// Returns the name of a lock that is no longer held.
    pub(crate) fn resume(&mut self, holds: &Value) -> Result<(), Vec<u8>> {
        let Value::Array(rows) = holds else {
            return Err(self.locks.first().map(|lock| lock.name.clone()).unwrap_or_default());
        };
        let listed: Vec<Held> = rows.iter().filter_map(held).collect();
        for lock in &mut self.locks {
            // A later grant of the same name does not protect this command.
            let same = listed.iter().find(|l| l.name == lock.name && l.holder == lock.holder);
            let same = same.ok_or_else(|| lock.name.clone())?;
            (lock.valid_until, lock.granted) = (same.valid_until, same.granted);
        }
        self.validity = self.validity.max(self.left(boot_micros()));
        Ok(())
    }

    /// Returns whether the command must not start any more: the grant was read too late.
    pub(crate) fn is_over(&self) -> bool {
        self.left(boot_micros()).is_zero()
    }

    /// Returns how long all locks remain valid.
    pub(crate) fn left(&self, now: u64) -> Duration {
        Duration::from_micros(self.valid_until().saturating_sub(now))
    }

    /// Returns the instant at which the command must be killed: a margin before the first lock ends.
    pub(crate) fn deadline(&self) -> u64 {
        self.valid_until()
            - as_micros((self.validity / 10).min(KILL_MARGIN)).min(self.valid_until())
    }

    /// Returns the instant at which the command must be asked to end, `kill_after` before the deadline, but at most a third
    /// of the lease, since a punctual renewal takes that long.
    pub(crate) fn terminate_at(&self, kill_after: Duration) -> u64 {
        self.deadline().saturating_sub(as_micros(kill_after.min(self.validity / 3)))
    }

    fn valid_until(&self) -> u64 {
        self.locks.iter().map(|lock| lock.valid_until).min().unwrap_or(0)
    }
}

fn held(map: &Value) -> Option<Held> {
    let granted = Validity::new(map.millis("valid_ms")?, map.number("valid_until_ns"));
    Some(Held {
        name: map.bytes("lock")?.to_vec(),
        holder: map.text("holder")?,
        token: map.number("token"),
        valid_until: granted.until,
        granted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(name: &str, valid_ms: i64) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Map(vec![
            (text("lock"), text(name)),
            (text("holder"), text("uuid:1")),
            (text("token"), Value::Nil),
            (text("valid_ms"), Value::Int(valid_ms)),
        ])
    }

    #[test]
    fn the_shortest_validity_counts() {
        let mut grant =
            Grant::read(&Value::Array(vec![reply("a", 30_000), reply("b", 20_000)])).unwrap();
        let now = boot_micros();
        let near = |left: Duration, seconds: u64| {
            left.as_secs_f64() > seconds as f64 - 5.0 && left.as_secs() <= seconds
        };
        assert!(near(grant.left(now), 20));
        let valid = |seconds| Validity::new(Duration::from_secs(seconds), None);
        assert!(grant.apply(&Push::Valid(b"b".to_vec(), valid(60))));
        assert!(near(grant.left(now), 30));
        assert!(!grant.apply(&Push::Valid(b"x".to_vec(), valid(1))));
        assert!(grant.apply(&Push::Jeopardy(b"a".to_vec(), valid(9))));
        assert!(near(grant.left(now), 9));
        assert_eq!(grant.left(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn a_grant_that_is_read_late_ends_when_the_agent_said() {
        let reply = |until_ns: u64| {
            let Value::Map(mut pairs) = reply("a", 30_000) else { unreachable!() };
            let field = Value::BulkString(b"valid_until_ns".to_vec());
            pairs.push((field, Value::Int(until_ns.try_into().unwrap())));
            Grant::read(&Value::Map(pairs)).unwrap()
        };
        let now = boot_micros();
        assert!(reply((now - 1) * 1_000).is_over());
        let late = reply((now + 60_000_000) * 1_000 + 999);
        assert!(!late.is_over());
        assert_eq!(late.valid_until(), now + 60_000_000);
    }

    #[test]
    fn a_push_from_before_the_grant_changes_nothing() {
        let reported = |at: u64, left_ms: u64| {
            let nanos = i64::try_from((at + left_ms * 1_000) * 1_000).unwrap();
            (Duration::from_millis(left_ms), Some(nanos))
        };
        let now = boot_micros();
        let (left, nanos) = reported(now, 6_000);
        let Value::Map(mut pairs) = reply("a", left.as_millis().try_into().unwrap()) else {
            unreachable!()
        };
        pairs.push((Value::BulkString(b"valid_until_ns".to_vec()), Value::Int(nanos.unwrap())));
        let mut grant = Grant::read(&Value::Map(pairs)).unwrap();
        let granted = grant.clone();
        let push = |at, left_ms| {
            let (left, nanos) = reported(at, left_ms);
            (b"a".to_vec(), Validity::new(left, nanos))
        };
        // The hold that these pushes concern was released.
        for (at, left_ms) in [(now - 10_000_000, 6_000), (now - 2_000, 5_000)] {
            let (name, valid) = push(at, left_ms);
            assert!(!grant.apply(&Push::Valid(name.clone(), valid)));
            assert!(!grant.apply(&Push::Jeopardy(name, valid)));
            assert_eq!(grant, granted);
        }
        // After the grant the validity may become longer or shorter.
        for (at, left_ms) in [(now, 5_500), (now + 2_000_000, 6_000), (now + 2_100_000, 3_000)] {
            let (name, valid) = push(at, left_ms);
            assert!(grant.apply(&Push::Valid(name, valid)));
            assert_eq!(grant.valid_until(), at + left_ms * 1_000);
        }
    }

    #[test]
    fn only_the_same_grant_is_resumed() {
        let mut grant =
            Grant::read(&Value::Array(vec![reply("a", 1_000), reply("b", 2_000)])).unwrap();
        let (a, b) = (reply("a", 50_000), reply("b", 60_000));
        assert_eq!(grant.resume(&Value::Array(vec![b.clone(), a.clone()])), Ok(()));
        assert!(grant.left(boot_micros()) > Duration::from_secs(40));
        assert_eq!(grant.resume(&Value::Array(vec![a])), Err(b"b".to_vec()));
        grant.locks[1].holder = "uuid:2".to_owned();
        assert_eq!(grant.resume(&Value::Array(vec![reply("a", 1), b])), Err(b"b".to_vec()));
        assert!(grant.resume(&Value::Nil).is_err());
    }

    #[test]
    fn without_an_agent_a_lock_is_valid_for_the_grace_at_most() {
        let mut grant = Grant::read(&reply("a", 30_000)).unwrap();
        let end = grant.valid_until();
        grant.limit(end - 5_000_000, Duration::from_secs(600));
        assert_eq!(grant.valid_until(), end);
        let broke = end - 20_000_000;
        grant.limit(broke, Duration::from_secs(3));
        assert_eq!(grant.deadline(), broke + 2_700_000);
        // A third of the grace is left for the end of the command.
        assert_eq!(grant.terminate_at(Duration::from_secs(5)), broke + 1_700_000);
        assert_eq!(grant.resume(&Value::Array(vec![reply("a", 25_000)])), Ok(()));
        let lead = grant.deadline() - grant.terminate_at(Duration::from_secs(5));
        assert_eq!(lead, 5_000_000);
    }

    #[test]
    fn a_command_is_asked_to_end_in_time_but_not_before_a_renewal_is_late() {
        let grant = Grant::read(&reply("a", 30_000)).unwrap();
        let end = grant.valid_until();
        assert_eq!(grant.deadline(), end - 500_000);
        assert_eq!(grant.terminate_at(Duration::from_secs(5)), end - 5_500_000);
        let longest = end - grant.terminate_at(Duration::from_secs(3600));
        assert!((10_400_000..10_600_000).contains(&longest), "{longest}");
        assert_eq!(grant.terminate_at(Duration::ZERO), grant.deadline());
        assert_eq!(Grant::read(&Value::Nil), None);
    }
}

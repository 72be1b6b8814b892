//! The locks that were granted, and until when they are surely valid.

use std::time::Duration;

use redis::Value;
use service_kit::clock::boot_micros;

use crate::client::{Push, bytes, field, millis, number, text};

/// How long before the end a command is killed, so that it is gone by then on a busy host too; a tenth at most.
const MARGIN: Duration = Duration::from_millis(500);

/// One lock that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) name: Vec<u8>,
    /// The holder, as Redis shows it.
    pub(crate) holder: String,
    /// The fencing token of a fenced lock.
    pub(crate) token: Option<i64>,
    /// Until when it is valid, in microseconds since boot, suspend included.
    valid_until: u64,
}

/// All locks of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// In the order in which they were asked for.
    pub(crate) locks: Vec<Held>,
    /// How long the first of them to end was valid at first.
    validity: Duration,
}

impl Grant {
    /// Reads LOCK's reply, or MLOCK's.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let now = boot_micros();
        let maps = match reply {
            Value::Array(maps) => maps.as_slice(),
            one => std::slice::from_ref(one),
        };
        let locks: Option<Vec<Held>> = maps.iter().map(|map| held(map, now)).collect();
        let grant = Self { locks: locks?, validity: Duration::ZERO };
        Some(Self { validity: grant.left(now), ..grant })
    }

    /// Notes what a push says of validity.
    pub(crate) fn note(&mut self, push: &Push) {
        let now = boot_micros();
        if let Push::Valid(name, left) | Push::Jeopardy(name, left) = push {
            for lock in self.locks.iter_mut().filter(|lock| lock.name == *name) {
                lock.valid_until = now + micros(*left);
            }
        }
    }

    /// Notes what RESUME's reply says of validity. The name of one that it does not list: that is not held any more.
    pub(crate) fn resumed(&mut self, reply: &Value) -> Result<(), Vec<u8>> {
        let now = boot_micros();
        let Some(Value::Array(rows)) = field(reply, "holds") else {
            return Err(self.locks.first().map(|lock| lock.name.clone()).unwrap_or_default());
        };
        let listed: Vec<Held> = rows.iter().filter_map(|row| held(row, now)).collect();
        for lock in &mut self.locks {
            // Another grant of the same name is another lock than the one the command began with.
            let same = listed.iter().find(|l| l.name == lock.name && l.holder == lock.holder);
            lock.valid_until = same.ok_or_else(|| lock.name.clone())?.valid_until;
        }
        Ok(())
    }

    /// How long all of them are still valid.
    pub(crate) fn left(&self, now: u64) -> Duration {
        Duration::from_micros(self.valid_until().saturating_sub(now))
    }

    /// When the command must be no more: a little before the first of them ends.
    pub(crate) fn deadline(&self) -> u64 {
        self.valid_until() - micros((self.validity / 10).min(MARGIN)).min(self.valid_until())
    }

    /// When the command must begin to end, where it has so long for it: before the deadline, but never so early that
    /// a renewal in good time comes too late, which happens after a third of the lease.
    pub(crate) fn turn_back(&self, kill_after: Duration) -> u64 {
        self.deadline().saturating_sub(micros(kill_after.min(self.validity / 3)))
    }

    fn valid_until(&self) -> u64 {
        self.locks.iter().map(|lock| lock.valid_until).min().unwrap_or(0)
    }
}

fn held(map: &Value, now: u64) -> Option<Held> {
    Some(Held {
        name: bytes(field(map, "lock")?)?.to_vec(),
        holder: text(field(map, "holder")?)?,
        token: field(map, "token").and_then(number),
        valid_until: now + micros(millis(map, "valid_ms")?),
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 2)
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
    fn the_first_to_end_counts() {
        let mut grant =
            Grant::read(&Value::Array(vec![reply("a", 30_000), reply("b", 20_000)])).unwrap();
        let now = boot_micros();
        let near = |left: Duration, seconds: u64| {
            left.as_secs_f64() > seconds as f64 - 5.0 && left.as_secs() <= seconds
        };
        assert!(near(grant.left(now), 20));
        grant.note(&Push::Valid(b"b".to_vec(), Duration::from_secs(60)));
        assert!(near(grant.left(now), 30));
        grant.note(&Push::Valid(b"x".to_vec(), Duration::from_secs(1)));
        grant.note(&Push::Jeopardy(b"a".to_vec(), Duration::from_secs(9)));
        assert!(near(grant.left(now), 9));
        assert_eq!(grant.left(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn what_is_resumed_is_the_same_grant_or_none() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let resumed = |rows| Value::Map(vec![(text("holds"), Value::Array(rows))]);
        let mut grant =
            Grant::read(&Value::Array(vec![reply("a", 1_000), reply("b", 2_000)])).unwrap();
        let (a, b) = (reply("a", 50_000), reply("b", 60_000));
        assert_eq!(grant.resumed(&resumed(vec![b.clone(), a.clone()])), Ok(()));
        assert!(grant.left(boot_micros()) > Duration::from_secs(40));
        assert_eq!(grant.resumed(&resumed(vec![a])), Err(b"b".to_vec()));
        grant.locks[1].holder = "uuid:2".to_owned();
        assert_eq!(grant.resumed(&resumed(vec![reply("a", 1), b])), Err(b"b".to_vec()));
        assert!(grant.resumed(&Value::Nil).is_err());
    }

    #[test]
    fn a_command_turns_back_in_time_and_not_before_a_renewal_is_late() {
        let grant = Grant::read(&reply("a", 30_000)).unwrap();
        let end = grant.valid_until();
        assert_eq!(grant.deadline(), end - 500_000);
        assert_eq!(grant.turn_back(Duration::from_secs(5)), end - 5_500_000);
        let longest = end - grant.turn_back(Duration::from_secs(3600));
        assert!((10_400_000..10_600_000).contains(&longest), "{longest}");
        assert_eq!(grant.turn_back(Duration::ZERO), grant.deadline());
        assert_eq!(Grant::read(&Value::Nil), None);
    }
}

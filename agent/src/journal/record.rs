//! The records of the journal and their JSON format.

use redisson::{Kind, Lease, LockName, Moment};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::types::{Number, Peer, Secret, SessionId, lock_name};

/// One line of the journal. Instants are microseconds of the boot clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Record {
    /// A session requested grace, or another connection resumed it.
    Session(SessionRecord),
    /// The connection of a session closed.
    Away {
        session: SessionId,
        #[serde(with = "moment")]
        since: Moment,
    },
    /// The current state of a hold.
    Hold(HoldRecord),
    /// A number that may remain in Redis although it has no owner.
    #[serde(rename = "trace")]
    Orphan(OrphanRecord),
    /// A number that is no longer in Redis.
    Gone { number: Number },
    /// A session ended, or gave up its grace.
    End { session: SessionId },
}

impl Record {
    /// Returns the record of a number without an owner, which is not removed from Redis before `after`.
    pub(crate) fn orphan(number: Number, lock: &LockName, kind: Kind, after: Moment) -> Self {
        Self::Orphan(OrphanRecord { number, lock: lock.clone(), kind, after })
    }
}

/// A session with grace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    pub session: SessionId,
    /// The secret that authorizes RESUME. Only the agent's user can read the file.
    pub secret: Secret,
    /// The previous secret, which stays valid until the worker is known to have received the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_before: Option<Secret>,
    pub peer: Peer,
    /// The name set with CLIENT SETNAME.
    pub client: Option<String>,
    /// Milliseconds for which its holds outlive the connection.
    pub grace_ms: u64,
}

/// A hold of a session with grace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    pub session: SessionId,
    pub owner: i64,
    pub number: Number,
    #[serde(with = "lock_name")]
    pub lock: LockName,
    #[serde(with = "kind")]
    pub kind: Kind,
    pub count: u32,
    /// The fencing token, if its kind has one.
    pub token: Option<u64>,
    /// The end of a fixed lease; `None` if the watchdog renews it.
    #[serde(with = "moment_or_none", default)]
    pub until: Option<Moment>,
    /// The longest lease ever requested for it from Redis.
    #[serde(with = "lease")]
    pub longest: Lease,
    /// The fixed lease, and before it those of a reader's earlier entries, each with the end of its validity; empty if the
    /// watchdog renews the hold.
    #[serde(with = "leases", default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<(Lease, Moment)>,
    #[serde(with = "moment")]
    pub granted: Moment,
}

/// A hold to remove from Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanRecord {
    pub number: Number,
    #[serde(with = "lock_name")]
    pub lock: LockName,
    #[serde(with = "kind")]
    pub kind: Kind,
    /// The earliest instant of removal; until then its former owner may rely on it.
    #[serde(with = "moment")]
    pub after: Moment,
}

mod moment {
    use super::*;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(moment: &Moment, to: S) -> Result<S::Ok, S::Error> {
        moment.as_micros().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Moment, D::Error> {
        u64::deserialize(from).map(Moment::from_micros)
    }
}

mod moment_or_none {
    use super::*;

    #[expect(clippy::ref_option, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(at: &Option<Moment>, to: S) -> Result<S::Ok, S::Error> {
        at.map(Moment::as_micros).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Moment>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Moment::from_micros))
    }
}

mod lease {
    use super::*;

    pub(super) fn serialize<S: Serializer>(lease: &Lease, to: S) -> Result<S::Ok, S::Error> {
        lease.millis().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Lease, D::Error> {
        let lease = Lease::new(std::time::Duration::from_millis(u64::deserialize(from)?));
        lease.ok_or_else(|| D::Error::custom("not a valid lease"))
    }
}

mod leases {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        leases: &[(Lease, Moment)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(leases.iter().map(|(lease, until)| (lease.millis(), until.as_micros())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(Lease, Moment)>, D::Error> {
        let valid = |(millis, until)| {
            let lease = Lease::new(std::time::Duration::from_millis(millis));
            let lease = lease.ok_or_else(|| D::Error::custom("not a valid lease"))?;
            Ok((lease, Moment::from_micros(until)))
        };
        Vec::<(u64, u64)>::deserialize(from)?.into_iter().map(valid).collect()
    }
}

mod kind {
    use super::*;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        kind.as_str().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        let word = String::deserialize(from)?;
        Kind::parse(word.as_bytes()).ok_or_else(|| D::Error::custom("not a kind of lock"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    pub(in crate::journal) fn session(number: u64) -> SessionRecord {
        SessionRecord {
            session: SessionId { run: 7, number },
            secret: Secret([3; 16]),
            secret_before: None,
            peer: Peer { pid: Some(5), uid: 1000, gid: 1000, comm: Some("cron".to_owned()) },
            client: None,
            grace_ms: 5000,
        }
    }

    pub(in crate::journal) fn hold(session: u64, number: Number, lock: &[u8]) -> HoldRecord {
        HoldRecord {
            session: SessionId { run: 7, number: session },
            owner: -1,
            number,
            lock: LockName::new(lock).unwrap(),
            kind: Kind::Fenced,
            count: 2,
            token: Some(9),
            until: None,
            longest: Lease::new(Duration::from_secs(30)).unwrap(),
            leases: Vec::new(),
            granted: Moment::from_micros(77),
        }
    }

    proptest! {
        #[test]
        fn a_record_is_one_line_and_survives_a_round_trip(
            lock in proptest::collection::vec(any::<u8>(), 1..40),
            secret: [u8; 16],
            secret_before: Option<[u8; 16]>,
            until: Option<u64>,
            leases in proptest::collection::vec((100_u64..1_000_000, any::<u64>()), 0..3),
        ) {
            let until = until.map(Moment::from_micros);
            let lease = |(millis, until)| {
                (Lease::new(Duration::from_millis(millis)).unwrap(), Moment::from_micros(until))
            };
            let leases = leases.into_iter().map(lease).collect();
            let (secret, secret_before) = (Secret(secret), secret_before.map(Secret));
            let hold = HoldRecord { until, leases, ..hold(1, 3, &lock) };
            let orphan = OrphanRecord {
                number: 4, lock: hold.lock.clone(), kind: Kind::Read, after: Moment::NEVER,
            };
            let records = [
                Record::Session(SessionRecord { secret, secret_before, ..session(1) }),
                Record::Away { session: hold.session, since: Moment::from_micros(5) },
                Record::Hold(hold.clone()),
                Record::Orphan(orphan),
                Record::Gone { number: 4 },
                Record::End { session: hold.session },
            ];
            for record in records {
                let line = serde_json::to_string(&record).unwrap();
                prop_assert!(!line.contains('\n'), "{line}");
                prop_assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
            }
        }
    }

    #[test]
    fn invalid_records_are_rejected() {
        let line = serde_json::to_string(&Record::Hold(hold(1, 3, b"a"))).unwrap();
        for (whole, broken) in
            [("fenced", "mutex"), ("30000", "1"), ("7-1", "7-01"), ("\"a\"", "\"\"")]
        {
            assert!(line.contains(whole), "{line}");
            let broken = line.replacen(whole, broken, 1);
            assert!(serde_json::from_str::<Record>(&broken).is_err(), "{broken}");
        }
    }
}

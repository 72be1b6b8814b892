//! The state of an earlier run, rebuilt from its records.

use std::collections::BTreeMap;

use redisson::Moment;

use super::record::{HoldRecord, OrphanRecord, Record, SessionRecord};
use crate::collections::HashMap;
use crate::types::{Number, SessionId};

/// The sessions and leftover holds of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// The sessions that can be resumed.
    pub sessions: BTreeMap<SessionId, RestoredSession>,
    /// Holds without an owner, to be removed from Redis.
    pub orphans: BTreeMap<Number, OrphanRecord>,
    /// The session of each hold.
    held: HashMap<Number, SessionId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredSession {
    pub record: SessionRecord,
    /// The instant at which its connection closed; `None` if the agent's end closed it.
    pub away_since: Option<Moment>,
    pub holds: BTreeMap<Number, HoldRecord>,
}

impl Restored {
    /// Applies one record. A hold of an unknown session, whose line may have been damaged, is left for cleanup once nobody can
    /// rely on it: after its lease, which ends at [`Moment::NEVER`] if it was renewed.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Session(record) => {
                let new = || RestoredSession {
                    record: record.clone(),
                    away_since: None,
                    holds: BTreeMap::new(),
                };
                let session = self.sessions.entry(record.session).or_insert_with(new);
                (session.record, session.away_since) = (record, None);
            }
            Record::Away { session, since } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.away_since = Some(since);
                }
            }
            Record::Hold(hold) => {
                self.remove(hold.number);
                match self.sessions.get_mut(&hold.session) {
                    Some(session) => {
                        self.held.insert(hold.number, hold.session);
                        session.holds.insert(hold.number, hold);
                    }
                    None => {
                        let after = hold.until.unwrap_or(Moment::NEVER);
                        self.abandon(hold, after);
                    }
                }
            }
            Record::Orphan(orphan) => {
                self.remove(orphan.number);
                self.orphans.insert(orphan.number, orphan);
            }
            Record::Gone { number } => self.remove(number),
            Record::End { session } => {
                if let Some(session) = self.sessions.remove(&session) {
                    self.abandon_all(session);
                }
            }
        }
    }

    /// Ends all sessions after a reboot: their workers are dead, and instants of the old boot clock mean nothing.
    pub fn discard_boot(&mut self) {
        for session in std::mem::take(&mut self.sessions).into_values() {
            self.abandon_all(session);
        }
        for orphan in self.orphans.values_mut() {
            orphan.after = Moment::default();
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.orphans.is_empty()
    }

    fn abandon_all(&mut self, session: RestoredSession) {
        session.holds.into_values().for_each(|hold| self.abandon(hold, Moment::default()));
    }

    /// Takes a hold from its owner, to be removed from Redis after that instant.
    fn abandon(&mut self, hold: HoldRecord, after: Moment) {
        let HoldRecord { number, lock, kind, .. } = hold;
        self.held.remove(&number);
        self.orphans.insert(number, OrphanRecord { number, lock, kind, after });
    }

    fn remove(&mut self, number: Number) {
        self.orphans.remove(&number);
        if let Some(session) = self.held.remove(&number).and_then(|key| self.sessions.get_mut(&key))
        {
            session.holds.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use redisson::Kind;

    use super::super::record::tests::{hold, session};
    use super::*;
    use crate::types::Secret;

    fn restored(records: impl IntoIterator<Item = Record>) -> Restored {
        let mut restored = Restored::default();
        records.into_iter().for_each(|record| restored.add(record));
        restored
    }

    fn key(number: u64) -> SessionId {
        session(number).session
    }

    fn orphan(number: Number) -> Record {
        let hold = hold(1, number, b"a");
        let after = Moment::from_micros(9);
        Record::Orphan(OrphanRecord { number, lock: hold.lock, kind: Kind::Fenced, after })
    }

    #[test]
    fn later_records_override_earlier_ones() {
        let later = HoldRecord { count: 5, ..hold(1, 3, b"a") };
        let resumed = SessionRecord { secret: Secret([4; 16]), ..session(1) };
        let restored = restored([
            Record::Session(session(1)),
            orphan(3),
            Record::Hold(hold(1, 3, b"a")),
            Record::Hold(later.clone()),
            Record::Hold(hold(1, 4, b"b")),
            Record::Away { session: key(1), since: Moment::from_micros(8) },
            Record::Session(resumed.clone()),
            Record::Gone { number: 4 },
            orphan(5),
            orphan(6),
            Record::Gone { number: 6 },
        ]);
        let one = &restored.sessions[&key(1)];
        assert_eq!((&one.record, one.away_since), (&resumed, None));
        assert_eq!(one.holds, BTreeMap::from([(3, later)]));
        assert_eq!(restored.orphans.keys().copied().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn holds_of_ended_or_unknown_sessions_are_cleaned_up() {
        let mut restored = restored([
            Record::Session(session(1)),
            Record::Hold(hold(1, 3, b"a")),
            Record::End { session: key(1) },
            Record::Hold(hold(2, 4, b"b")),
            Record::Session(session(5)),
            Record::Hold(hold(5, 6, b"c")),
            orphan(7),
        ]);
        assert_eq!(restored.sessions.keys().copied().collect::<Vec<_>>(), [key(5)]);
        assert_eq!(restored.orphans.keys().copied().collect::<Vec<_>>(), [3, 4, 7]);
        restored.discard_boot();
        assert!(restored.sessions.is_empty() && !restored.is_empty());
        let orphans: Vec<_> = restored.orphans.values().map(|t| (t.number, t.after)).collect();
        assert_eq!(orphans, [3, 4, 6, 7].map(|number| (number, Moment::default())));
        for number in [3, 4, 6, 7] {
            restored.add(Record::Gone { number });
        }
        assert!(restored.is_empty());
    }
}

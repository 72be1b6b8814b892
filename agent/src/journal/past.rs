//! What the records of an earlier run amount to.

use std::collections::{BTreeMap, HashMap};

use redisson::Moment;

use super::record::{HoldRecord, Record, SessionRecord, TraceRecord};
use crate::types::Number;
use crate::types::SessionKey;

/// What an earlier run has left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// Sessions that may be taken over.
    pub sessions: BTreeMap<SessionKey, PastSession>,
    /// Numbers to be removed from Redis.
    pub traces: BTreeMap<Number, TraceRecord>,
    /// Which session has which hold.
    held: HashMap<Number, SessionKey>,
}

/// One of its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastSession {
    pub record: SessionRecord,
    /// Since when its connection had been gone; none where it went with the agent.
    pub away_since: Option<Moment>,
    /// What it held.
    pub holds: BTreeMap<Number, HoldRecord>,
}

impl Past {
    /// One more record. A hold of a session that nothing is known of can only be tidied up: the line that told of the
    /// session may have been damaged.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Session(record) => {
                let new = || PastSession {
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
                self.forget(hold.number);
                match self.sessions.get_mut(&hold.session) {
                    Some(session) => {
                        self.held.insert(hold.number, hold.session);
                        session.holds.insert(hold.number, hold);
                    }
                    None => self.leave(hold),
                }
            }
            Record::Trace(trace) => {
                self.forget(trace.number);
                self.traces.insert(trace.number, trace);
            }
            Record::Gone { number } => self.forget(number),
            Record::End { session } => {
                if let Some(session) = self.sessions.remove(&session) {
                    session.holds.into_values().for_each(|hold| self.leave(hold));
                }
            }
        }
    }

    /// The host has been started anew: the workers are dead, nobody comes back for anything, and instants of the old
    /// boot clock mean nothing.
    pub fn bury(&mut self) {
        for session in std::mem::take(&mut self.sessions).into_values() {
            session.holds.into_values().for_each(|hold| self.leave(hold));
        }
        for trace in self.traces.values_mut() {
            trace.after = Moment::default();
        }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.traces.is_empty()
    }

    /// Nobody has that hold any more, but Redis may.
    fn leave(&mut self, hold: HoldRecord) {
        let HoldRecord { number, lock, kind, .. } = hold;
        self.held.remove(&number);
        self.traces.insert(number, TraceRecord { number, lock, kind, after: Moment::default() });
    }

    fn forget(&mut self, number: Number) {
        self.traces.remove(&number);
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

    fn past(records: impl IntoIterator<Item = Record>) -> Past {
        let mut past = Past::default();
        records.into_iter().for_each(|record| past.add(record));
        past
    }

    fn key(number: u64) -> SessionKey {
        session(number).session
    }

    fn trace(number: Number) -> Record {
        let hold = hold(1, number, b"a");
        let after = Moment::from_micros(9);
        Record::Trace(TraceRecord { number, lock: hold.lock, kind: Kind::Fenced, after })
    }

    #[test]
    fn the_latest_word_counts() {
        let later = HoldRecord { count: 5, ..hold(1, 3, b"a") };
        let taken_over = SessionRecord { secret: [4; 16], ..session(1) };
        let past = past([
            Record::Session(session(1)),
            trace(3),
            Record::Hold(hold(1, 3, b"a")),
            Record::Hold(later.clone()),
            Record::Hold(hold(1, 4, b"b")),
            Record::Away { session: key(1), since: Moment::from_micros(8) },
            Record::Session(taken_over.clone()),
            Record::Gone { number: 4 },
            trace(5),
            trace(6),
            Record::Gone { number: 6 },
        ]);
        let one = &past.sessions[&key(1)];
        assert_eq!((&one.record, one.away_since), (&taken_over, None));
        assert_eq!(one.holds, BTreeMap::from([(3, later)]));
        assert_eq!(past.traces.keys().copied().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn what_nobody_can_come_back_for_is_tidied_up() {
        let mut past = past([
            Record::Session(session(1)),
            Record::Hold(hold(1, 3, b"a")),
            Record::End { session: key(1) },
            Record::Hold(hold(2, 4, b"b")),
            Record::Session(session(5)),
            Record::Hold(hold(5, 6, b"c")),
            trace(7),
        ]);
        assert_eq!(past.sessions.keys().copied().collect::<Vec<_>>(), [key(5)]);
        assert_eq!(past.traces.keys().copied().collect::<Vec<_>>(), [3, 4, 7]);
        past.bury();
        assert!(past.sessions.is_empty() && !past.is_empty());
        let traces: Vec<_> = past.traces.values().map(|t| (t.number, t.after)).collect();
        assert_eq!(traces, [3, 4, 6, 7].map(|number| (number, Moment::default())));
        for number in [3, 4, 6, 7] {
            past.add(Record::Gone { number });
        }
        assert!(past.is_empty());
    }
}

//! Applies readings of a lock's companion keys.

use super::ingest::has_marker_expired;
use super::{Hold, Record, ScopeContext};
use crate::model::types::{Companions, Marker, Stamp, Token};

impl Record {
    /// Applies the companions of the newest reading.
    pub(super) fn read_companions(
        &mut self,
        stamp: Stamp,
        companions: &Companions,
        context: ScopeContext,
    ) {
        if let Token::Value(token) = companions.token {
            self.confirm();
            self.dirty |= self.token.as_deref() != Some(&token);
            (self.token, self.token_read) = (Some(token.into()), Some(stamp.received.moment()));
        } else if companions.token == Token::Absent {
            self.dirty |= self.token.take().is_some();
            self.token_read = Some(stamp.received.moment());
        }
        // The time within which dropped waiters may return may be over.
        let had = self.cold.as_ref().is_some_and(|cold| !cold.waiting.is_empty());
        if (had && !companions.is_unavailable()) || companions.queue.is_some() {
            let window = self.stamp.map(|last| stamp.received.since(last.sent));
            let clock = stamp.steady().0.saturating_add_signed(context.ahead_ms);
            let queue = companions.queue.as_ref();
            self.dirty |= self.cold().waiting.read_queue(stamp, window, clock, queue);
        }
    }

    /// Returns the reader whose marker has shown renewals: the first of several that has one.
    pub(super) fn watched_reader(&self) -> Option<Hold> {
        let readers = || self.holds.iter().filter(|hold| !hold.id.write);
        if self.mode.is_none() || readers().count() < 2 {
            return None;
        }
        let living = readers().filter(|hold| matches!(hold.marker, Some(Marker::Expires(_))));
        living.min_by_key(|hold| hold.from).copied()
    }

    /// Returns whether the newest reading still shows that reader, whose marker has expired since the `last` one. So it has
    /// not released the lock before.
    pub(super) fn has_run_out(&self, reader: &Hold, last: Option<Stamp>, stamp: Stamp) -> bool {
        has_marker_expired(reader, last, stamp)
            && self.holds.iter().any(|hold| {
                (hold.id, hold.count) == (reader.id, reader.count)
                    && hold.marker == Some(Marker::Missing)
            })
    }

    pub(super) fn read_markers(&mut self, stamp: Stamp, companions: &Companions) {
        for (id, marker) in &companions.markers {
            if let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == *id) {
                let was_gone = hold.marker == Some(Marker::Missing);
                self.dirty |= hold.marker.is_none() || was_gone != (*marker == Marker::Missing);
                hold.marker = Some(*marker);
            }
        }
        let mut holds = self.holds.iter();
        let dead = self.is_held()
            && self.mode.is_some()
            && holds.all(|hold| !hold.id.write && hold.marker == Some(Marker::Missing));
        if dead {
            self.cold().dead_readers_since.get_or_insert(stamp);
        } else if let Some(cold) = &mut self.cold {
            cold.dead_readers_since = None;
        }
    }
}

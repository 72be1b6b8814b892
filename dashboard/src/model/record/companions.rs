//! Applies readings of a lock's companion keys.

use super::{Record, ScopeContext};
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

//! What stands beside a lock, taken in.

use super::{Record, Surroundings};
use crate::model::observation::{Beside, Marker, Stamp, Token};

impl Record {
    /// What stands beside it, of a reading that is the newest.
    pub(super) fn read_beside(&mut self, stamp: Stamp, beside: &Beside, around: Surroundings) {
        if let Token::Is(token) = beside.token {
            self.confirm();
            self.news |= self.token != Some(token);
            (self.token, self.token_read) = (Some(token), Some(stamp.received));
        } else if beside.token == Token::Nothing {
            self.news |= self.token.take().is_some();
            self.token_read = Some(stamp.received);
        }
        // Also of those who have left it may be over now that they could come back.
        let had = self.rare.as_ref().is_some_and(|rare| !rare.waiting.is_empty());
        if (had && !beside.is_away()) || beside.queue.is_some() {
            let window = self.stamp.map(|last| stamp.received.since(last.sent));
            let clock = stamp.steady.0.saturating_add_signed(around.ahead_ms);
            let queue = beside.queue.as_ref();
            self.news |= self.rare().waiting.read_queue(stamp, window, clock, queue);
        }
    }

    pub(super) fn read_markers(&mut self, beside: &Beside) {
        for (id, marker) in &beside.markers {
            if let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == *id) {
                let was_gone = hold.marker == Some(Marker::Missing);
                self.news |= hold.marker.is_none() || was_gone != (*marker == Marker::Missing);
                hold.marker = Some(*marker);
            }
        }
    }
}

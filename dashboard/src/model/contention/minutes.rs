//! The last hour of a group by minute, for the heat map.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::millis;

/// The minutes that are retained and shown. The current one is not over, so it is not shown.
pub const MINUTES: usize = 60;
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// A minute of a group with any waits or problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Minute {
    /// The index among the minutes of the view, with the oldest at 0.
    pub column: usize,
    /// The waiting time in milliseconds, summed over all waiters.
    pub waiting_ms: u64,
    /// The number of problems that began, or became certain.
    pub problems: u32,
}

/// The minutes of a group that had waits or problems, oldest first, by number.
#[derive(Debug, Default)]
pub(super) struct Minutes(VecDeque<(u64, Minute)>);

impl Minutes {
    /// Adds waiting time and problems to the current minute.
    pub(super) fn add(&mut self, minute: u64, waiting: Duration, problems: u32) {
        // A late report belongs to an older minute, but is counted with the newest.
        if self.0.back().is_none_or(|(newest, _)| *newest < minute) {
            if self.0.len() > MINUTES {
                self.0.pop_front();
            }
            self.0.push_back((minute, Minute { column: 0, waiting_ms: 0, problems: 0 }));
        }
        if let Some((_, newest)) = self.0.back_mut() {
            newest.waiting_ms = newest.waiting_ms.saturating_add(millis(waiting));
            newest.problems = newest.problems.saturating_add(problems);
        }
    }

    pub(super) fn forget_before(&mut self, minute: u64) {
        while self.0.front().is_some_and(|(oldest, _)| *oldest < minute) {
            self.0.pop_front();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the minutes before `current`.
    pub(super) fn before(&self, current: u64) -> Vec<Minute> {
        let column = |minute: u64| {
            let ago = usize::try_from(current.checked_sub(minute)?).ok()?;
            MINUTES.checked_sub(ago).filter(|column| *column < MINUTES)
        };
        let minutes = self.0.iter();
        minutes
            .filter_map(|(minute, counts)| Some(Minute { column: column(*minute)?, ..*counts }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_has_sixty_whole_minutes() {
        let mut minutes = Minutes::default();
        for minute in 1_000..1_200 {
            minutes.add(minute, Duration::from_millis(400), 0);
            minutes.add(minute, Duration::from_millis(100), u32::from(minute == 1_190));
            minutes.add(minute - 5, Duration::from_millis(1), 0);
        }
        assert!(minutes.0.len() <= MINUTES + 1);
        let shown = minutes.before(1_199);
        assert_eq!((shown.len(), shown[0].column, shown[59].column), (60, 0, 59));
        assert_eq!((shown[0].waiting_ms, shown[0].problems), (501, 0));
        assert_eq!(shown.iter().position(|minute| minute.problems == 1), Some(51));
        minutes.forget_before(1_199);
        assert_eq!(minutes.before(1_199), [], "the current one is not over");
        assert_eq!(minutes.before(1_200)[0].column, 59);
        assert!(minutes.before(5_000).is_empty());
    }
}

//! The limit on log lines about rejected visitors and their tokens: anyone can cause them.

use std::sync::Arc;

use parking_lot::Mutex;

/// The maximum number of lines within a minute.
const MAX_PER_MINUTE: u32 = 20;

/// Counts rejections. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Rejections(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    minute: u64,
    logged: u32,
    withheld: u64,
}

impl Rejections {
    /// Counts a rejection. Returns the number of rejections that were not logged since the last line, or `None` if this
    /// one is not to be logged either.
    #[must_use]
    pub fn count(&self, now_secs: u64) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.minute != now_secs / 60 {
            (lines.minute, lines.logged) = (now_secs / 60, 0);
        }
        if lines.logged == MAX_PER_MINUTE {
            lines.withheld += 1;
            return None;
        }
        lines.logged += 1;
        Some(std::mem::take(&mut lines.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_twenty_lines_a_minute_and_the_next_line_has_the_number_of_the_others() {
        let rejections = Rejections::default();
        let logged = (0..5_000).filter_map(|_| rejections.count(600)).collect::<Vec<_>>();
        assert_eq!(logged, [0; 20]);
        assert_eq!(rejections.count(659), None);
        assert_eq!(rejections.count(660), Some(4_981));
        assert_eq!(rejections.count(661), Some(0));
    }
}

//! The format of numbers and durations in sentences.

use std::time::Duration;

pub(super) use crate::text::{amount, count, counted};

/// Formats a number of bytes in the largest unit that leaves a whole number.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| n >> shift >= 1);
    unit.map_or_else(
        || format!("{} bytes", count(n)),
        |(shift, unit)| format!("{} {unit}", count(n >> shift)),
    )
}

/// Formats a duration in at most two units, to the second.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min {} s", seconds % 60),
        3_600..172_800 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        assert_eq!([count(7), count(1_234_567)], ["7", "1,234,567"]);
        assert_eq!([bytes(1_000), bytes(3 << 20), bytes(2_047)], ["1,000 bytes", "3 MiB", "1 KiB"]);
        let shown = [59, 90, 7_265, 200_000].map(|s| duration(Duration::from_secs(s)));
        assert_eq!(shown, ["59 s", "1 min 30 s", "2 h 1 min", "2 d 7 h"]);
    }
}

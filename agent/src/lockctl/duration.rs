//! Durations on the command line and in messages.

use std::time::Duration;

/// Parses `90`, `2.5s`, `500ms`, `1h 30m`. A number without a unit means seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 500ms, 2.5s, 90 (seconds) or 1h".to_owned();
    let text = text.trim();
    let unit_at = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(unit_at).ok_or_else(expected)?;
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return humantime::parse_duration(text).map_err(|_| expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| expected())
}

/// Formats a duration with at most two units: `950 ms`, `25.1 s`, `3m 20s`, `2d 5h`.
pub(crate) fn format(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match seconds {
        0 => format!("{millis} ms"),
        1..60 => format!("{seconds}.{} s", millis / 100),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Returns whole microseconds, small enough to be added to a time.
pub(crate) fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_may_have_fractions_or_no_unit() {
        for (text, millis) in [
            ("90", 90_000),
            ("2.5s", 2_500),
            ("0.25", 250),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            ("1h 30m", 5_400_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "soon", "-1", "1.2.3s", "5 parsecs", "1e400"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_with_at_most_two_units() {
        for (millis, text) in [
            (950, "950 ms"),
            (25_190, "25.1 s"),
            (200_000, "3m 20s"),
            (7_260_000, "2h 1m"),
            (190_800_000, "2d 5h"),
        ] {
            assert_eq!(format(Duration::from_millis(millis)), text);
        }
    }
}

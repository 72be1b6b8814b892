//! The format of values: durations, instants, counts, holders. The script formats them the same way.

use std::time::Duration;

use askama::Template;
use askama::filters::HtmlSafe;

use crate::clock::{SteadyMillis, millis};
use crate::model::types::Since;
pub(super) use crate::text::count;

/// The clock for rendering live parts: every age is zero, and the script counts on from there.
pub(super) const AGELESS: SteadyMillis = SteadyMillis(0);

/// Formats a duration as an age or a time to live: at most two units, in whole seconds.
pub(super) fn duration(millis: u64) -> String {
    let seconds = millis / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if seconds < 60 {
        format!("{seconds}s")
    } else if minutes < 60 {
        format!("{minutes}m {:02}s", seconds % 60)
    } else if hours < 48 {
        format!("{hours}h {:02}m", minutes % 60)
    } else {
        format!("{days}d {}h", hours % 24)
    }
}

/// Formats a duration whose fractions of a second matter.
pub(super) fn short_duration(millis: u64) -> String {
    match millis {
        0 => "<1ms".to_owned(),
        1..10 => format!("{millis}ms"),
        10..100 => format!("0.{:02}s", millis / 10),
        100..10_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        _ => duration(millis),
    }
}

/// Formats an upper bound of durations that were rounded down to whole milliseconds.
pub(super) fn short_bound(millis: u64) -> String {
    short_duration(millis.max(1))
}

/// Formats a lease that was learnt from the highest time to live seen, which is a little shorter than the lease.
pub(super) fn lease(millis: u64) -> String {
    format!("~{}", round_duration(millis.saturating_add(999)))
}

/// Formats a duration that a person chose. The second unit is left out if it is zero.
pub(super) fn round_duration(millis: u64) -> String {
    let mut round = duration(millis);
    for nothing in [" 00s", " 00m", " 0h"] {
        if round.ends_with(nothing) {
            round.truncate(round.len() - nothing.len());
        }
    }
    round
}

/// Formats an instant as RFC 3339 in UTC, by the wall clock.
pub(crate) fn rfc3339(at: SteadyMillis) -> String {
    at.to_wall().to_string()
}

/// An instant, shown as its age together with the instant itself.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/ago.html")]
pub(super) struct Ago {
    millis: u64,
    exact: bool,
    instant: String,
    text: String,
}

impl HtmlSafe for Ago {}

impl Ago {
    /// Returns the age of `at` at the instant `now`.
    pub(super) fn new(at: SteadyMillis, now: SteadyMillis) -> Self {
        Self::since(Since { at, exact: true }, now)
    }

    /// Returns the age of something that began at this instant, or earlier if that is not exact.
    pub(super) fn since(since: Since, now: SteadyMillis) -> Self {
        Self {
            millis: since.at.0,
            exact: since.exact,
            instant: rfc3339(since.at),
            text: duration(now.millis_since(since.at)),
        }
    }
}

/// An instant as a time of day, for lists of events. The day is shown too unless it is today.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/clock.html")]
pub(super) struct Clock {
    instant: String,
    /// The instant that the script counts from.
    millis: u64,
    /// The same instant by the wall clock.
    wall_millis: u64,
    /// The time since then, or until then.
    when: String,
    /// True if the instant is on the same day as the page.
    today: bool,
}

impl HtmlSafe for Clock {}

impl Clock {
    pub(super) fn new(at: SteadyMillis, now: SteadyMillis) -> Self {
        let when = match at.0.checked_sub(now.0) {
            // Without a clock the script fills it in.
            _ if now == AGELESS => String::new(),
            Some(ahead @ 1..) => format!("in {}", duration(ahead)),
            _ => format!("{} ago", duration(now.millis_since(at))),
        };
        let instant = rfc3339(at);
        // Without a clock the script leaves the day out.
        let today = now != AGELESS && instant.get(..10) == rfc3339(now).get(..10);
        Self { instant, millis: at.0, wall_millis: at.to_wall().0, when, today }
    }

    fn time(&self) -> &str {
        self.instant.get(11..19).unwrap_or_default()
    }

    fn day(&self) -> &str {
        self.instant.get(..10).filter(|_| !self.today).unwrap_or_default()
    }
}

/// An instant as a minute of its day.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/minute.html")]
pub(super) struct Minute {
    millis: u64,
    text: String,
}

impl HtmlSafe for Minute {}

impl Minute {
    pub(super) fn new(at: SteadyMillis) -> Self {
        let text = rfc3339(at).get(11..16).unwrap_or_default().to_owned();
        Self { millis: at.to_wall().0, text }
    }
}

/// The remaining validity of a form, which the script counts down.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/validity.html")]
pub(super) struct Validity {
    read_at: u64,
    millis: u64,
    left: String,
    left_millis: u64,
    /// The form as new.
    renewed: String,
}

impl HtmlSafe for Validity {}

impl Validity {
    /// Creates the validity of a form that shows data read at an instant.
    pub(super) fn new(
        read_at: SteadyMillis,
        valid: Duration,
        renewed: String,
        now: SteadyMillis,
    ) -> Self {
        let millis = millis(valid);
        let left_millis = millis.saturating_sub(now.millis_since(read_at));
        let left = duration(left_millis);
        Self { read_at: read_at.0, millis, left, left_millis, renewed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::DAY_MS;

    #[test]
    fn a_future_instant_is_not_shown_as_past() {
        let when = |at, now| Clock::new(SteadyMillis(at), SteadyMillis(now)).when;
        assert_eq!(when(61_000, 1_000), "in 1m 00s");
        assert_eq!(when(1_000, 61_000), "1m 00s ago");
        assert_eq!(when(1_000, 1_000), "0s ago");
        assert_eq!(when(1_000, 0), "", "a patch holds no age");
    }

    #[test]
    fn a_day_is_named_unless_it_is_today() {
        let day = |at, now| Clock::new(SteadyMillis(at), SteadyMillis(now)).day().to_owned();
        assert_eq!(day(DAY_MS, DAY_MS + 5), "");
        assert_eq!(day(DAY_MS - 1, DAY_MS + 5), "1970-01-01");
        assert_eq!(day(DAY_MS, 0), "1970-01-02", "a patch leaves it to the script");
    }

    #[test]
    fn a_form_shows_its_validity_and_that_it_is_over() {
        let at = |now: u64| {
            let valid = Duration::from_secs(60);
            let form =
                Validity::new(SteadyMillis(1_000), valid, "/again".into(), SteadyMillis(now));
            form.render().unwrap()
        };
        assert!(at(11_000).contains("<span class=\"left\">50s</span>"), "{}", at(11_000));
        assert!(!at(60_999).contains("over"), "{}", at(60_999));
        assert!(at(61_000).contains("class=\"time-left over\""), "{}", at(61_000));
    }

    #[test]
    fn durations_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m 00s"),
            (3_599, "59m 59s"),
            (3_600, "1h 00m"),
            (172_799, "47h 59m"),
            (172_800, "2d 0h"),
            (900_000, "10d 10h"),
        ] {
            assert_eq!(duration(seconds * 1_000 + 999), text);
        }
    }

    #[test]
    fn short_durations_are_never_nothing() {
        for (millis, text, bound) in [
            (0, "<1ms", "1ms"),
            (1, "1ms", "1ms"),
            (9, "9ms", "9ms"),
            (10, "0.01s", "0.01s"),
            (99, "0.09s", "0.09s"),
            (100, "0.1s", "0.1s"),
            (9_999, "9.9s", "9.9s"),
            (10_000, "10s", "10s"),
        ] {
            assert_eq!((&*short_duration(millis), &*short_bound(millis)), (text, bound));
        }
    }

    #[test]
    fn a_lease_is_about_a_whole_second_above_what_was_seen() {
        assert_eq!(lease(29_433), "~30s");
        assert_eq!(lease(30_000), "~30s");
        assert_eq!(lease(30_001), "~31s");
        assert_eq!(lease(599_900), "~10m");
        assert_eq!(lease(630_000), "~10m 30s");
        assert_eq!(lease(7_200_000), "~2h");
        assert_eq!(round_duration(604_800_000), "7d");
        assert_eq!(round_duration(10_000), "10s");
    }

    #[test]
    fn counts_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
    }
}

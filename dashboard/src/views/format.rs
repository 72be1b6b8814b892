//! How values are written: durations, instants, counts, holders. The script writes them the same way.

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::name::is_invisible;

use super::live::AGELESS;
use crate::clock;
use crate::model::view::{Since, WallMillis};

/// A duration as an age or a time to live is shown: two units at most, whole seconds.
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

/// A duration where fractions of a second matter.
pub(super) fn short_duration(millis: u64) -> String {
    match millis {
        0..10 => format!("{millis}ms"),
        10..100 => format!("0.{:02}s", millis / 10),
        100..10_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        _ => duration(millis),
    }
}

/// A lease as learnt: the highest time to live seen, hence a little more than that.
pub(super) fn lease(millis: u64) -> String {
    format!("~{}", round_duration(millis.saturating_add(999)))
}

/// A duration that somebody chose: its second unit only where there is something of it.
pub(super) fn round_duration(millis: u64) -> String {
    let mut round = duration(millis);
    for nothing in [" 00s", " 00m", " 0h"] {
        if round.ends_with(nothing) {
            round.truncate(round.len() - nothing.len());
        }
    }
    round
}

/// A count with its digits in groups of three.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Any bytes as one line that hides nothing: as [`redisson::LockName`] shows itself, and white space and other
/// blanks as escapes where they could not be seen.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    let (start, end) = (bytes.trim_ascii_start(), bytes.trim_ascii_end());
    let visible = bytes.len() - start.len()..end.len();
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == ' ' && !visible.contains(&at) {
                shown.push_str("\\x20");
            } else if c != ' ' && (c == '\\' || c.is_control() || is_invisible(c) || is_blank(c)) {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
            at += c.len_utf8();
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
        at += chunk.invalid().len();
    }
    shown
}

/// Characters that look like a space or like nothing.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
}

/// An instant as RFC 3339, in UTC, to the millisecond, by the clock on the wall.
pub(crate) fn rfc3339(at: WallMillis) -> String {
    let at = clock::told(at);
    let (days, millis) = (at.0 / 86_400_000, at.0 % 86_400_000);
    let (year, month, day) = civil(days);
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a number of days since 1970 (the proleptic Gregorian calendar, counted in eras of 400
/// years that begin on the first of March).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + carry, month, day)
}

/// A sentence in which what stands in backticks is shown as code.
#[derive(Debug, Clone, Copy, Template)]
#[template(path = "parts/prose.html")]
pub(super) struct Prose<'a>(pub(super) &'a str);

impl HtmlSafe for Prose<'_> {}

impl<'a> Prose<'a> {
    fn parts(&self) -> impl Iterator<Item = (bool, &'a str)> {
        self.0.split('`').enumerate().map(|(i, part)| (i % 2 == 1, part))
    }
}

/// An instant as its age, with the instant itself at hand.
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
    /// The age of `at` when it is `now`.
    pub(super) fn new(at: WallMillis, now: WallMillis) -> Self {
        Self::since(Since { at, exact: true }, now)
    }

    /// The age of something that began then, or before.
    pub(super) fn since(since: Since, now: WallMillis) -> Self {
        Self {
            millis: since.at.0,
            exact: since.exact,
            instant: rfc3339(since.at),
            text: duration(now.0.saturating_sub(since.at.0)),
        }
    }
}

/// An instant as a time of day, for lists of events.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/clock.html")]
pub(super) struct Clock {
    instant: String,
    /// To count from.
    millis: u64,
    told: u64,
    /// How long ago, or how soon.
    when: String,
}

impl HtmlSafe for Clock {}

impl Clock {
    pub(super) fn new(at: WallMillis, now: WallMillis) -> Self {
        let when = match at.0.checked_sub(now.0) {
            // Without a clock the script fills it in.
            _ if now == AGELESS => String::new(),
            Some(ahead @ 1..) => format!("in {}", duration(ahead)),
            _ => format!("{} ago", duration(now.0.saturating_sub(at.0))),
        };
        Self { instant: rfc3339(at), millis: at.0, told: clock::told(at).0, when }
    }

    fn time(&self) -> &str {
        self.instant.get(11..19).unwrap_or_default()
    }

    fn day(&self) -> &str {
        self.instant.get(..10).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_come_is_not_past() {
        let when = |at, now| Clock::new(WallMillis(at), WallMillis(now)).when;
        assert_eq!(when(61_000, 1_000), "in 1m 00s");
        assert_eq!(when(1_000, 61_000), "1m 00s ago");
        assert_eq!(when(1_000, 1_000), "0s ago");
        assert_eq!(when(1_000, 0), "", "a patch holds no age");
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
    fn bytes_are_shown_as_names_are() {
        for name in ["żółw\n\\".as_bytes(), b"\xff\x00", "\u{202e}x".as_bytes()] {
            assert_eq!(bytes(name), redisson::LockName::new(name).unwrap().to_string());
        }
        assert_eq!(bytes(b" a  b "), "\\x20a  b\\x20");
        assert_eq!(bytes(b" "), "\\x20");
        assert_eq!(bytes("a\u{a0}\u{3000}".as_bytes()), "a\\u{a0}\\u{3000}");
        assert_eq!(bytes(b""), "");
    }

    #[test]
    fn counts_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn instants_follow_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (1_772_323_200_000, "2026-03-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(WallMillis(millis)), text);
        }
    }
}

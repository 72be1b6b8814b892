//! The time along the bottom of a picture.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::format::rfc3339;
use crate::clock::{DAY_MS, SteadyMillis};

/// The number of parts into which labels divide the time.
const PARTS: u64 = 4;

/// A span of time along the width of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeAxis {
    pub(super) from: SteadyMillis,
    /// The length of the span, in milliseconds.
    pub(super) millis: u64,
    pub(super) width: u64,
}

impl TimeAxis {
    /// Returns the position of an instant. An instant outside is drawn at the edge.
    pub(super) fn x(&self, at: SteadyMillis) -> u64 {
        let passed = u128::from(at.millis_since(self.from).min(self.millis));
        let x = passed * u128::from(self.width) / u128::from(self.millis.max(1));
        u64::try_from(x).unwrap_or(self.width)
    }

    /// Returns the labels.
    pub(super) fn marks(&self) -> Vec<Mark> {
        (0..=PARTS).map(|i| self.mark(self.from.plus(self.millis * i / PARTS))).collect()
    }

    /// Returns the label of an instant.
    pub(super) fn mark(&self, at: SteadyMillis) -> Mark {
        let instant = rfc3339(at);
        let part =
            |range: std::ops::Range<usize>| instant.get(range).unwrap_or_default().to_owned();
        let day = (self.millis >= DAY_MS).then(|| part(0..10));
        Mark { wall_millis: at.to_wall().0, day, time: part(11..19) }
    }
}

/// An instant as a time of day in UTC, with its day in a picture of a whole one or more.
#[derive(Debug, Template)]
#[template(path = "parts/mark.html")]
pub(super) struct Mark {
    wall_millis: u64,
    day: Option<String>,
    time: String,
}

impl HtmlSafe for Mark {}

impl Mark {
    /// Returns the label as plain text.
    pub(super) fn words(&self) -> String {
        match &self.day {
            Some(day) => format!("{day} {}", self.time),
            None => self.time.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_the_day_in_a_picture_of_a_whole_one() {
        // 2026-11-22T04:00:00Z
        let from = SteadyMillis(1_795_320_000_000);
        let words = |millis: u64| {
            let marks = TimeAxis { from, millis, width: 1_000 }.marks();
            [marks[0].words(), marks[4].words()]
        };
        assert_eq!(words(DAY_MS / 2), ["04:00:00", "16:00:00"]);
        assert_eq!(words(7 * DAY_MS), ["2026-11-22 04:00:00", "2026-11-29 04:00:00"]);
        let mark = TimeAxis { from, millis: 7 * DAY_MS, width: 1_000 }.mark(from);
        assert_eq!(
            mark.to_string(),
            "<span class=\"day\" data-day=\"1795320000000\">2026-11-22 </span><time data-clock=\"1795320000000\">04:00:00</time>"
        );
    }
}

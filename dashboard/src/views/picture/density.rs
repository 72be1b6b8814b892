//! The number of events over a span of time, and the times that nobody observed.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::HistoryPage;
use super::super::format::{self, rfc3339};
use super::super::prose::Prose;
use super::time_axis::{Mark, TimeAxis};
use crate::archive::BUCKETS;
use crate::clock::SteadyMillis;
use crate::model::types::EVENT_WORDS;
use crate::text::counted;

/// The width of a part of the span, and of the whole.
const STEP: u64 = 10;
const WIDTH: u64 = BUCKETS as u64 * STEP;
/// The height of the picture.
const HEIGHT: u64 = 56;
/// The minimum height of a bar.
const LEAST: u64 = 3;
/// The minimum width of a gap.
const LEAST_GAP: u64 = 3;
/// The indexes of the marked types of events in [`EVENT_WORDS`].
const PROBLEM: usize = 2;
const FIRST_ACTION: usize = 4;

/// A part of the span.
#[derive(Debug)]
struct Part {
    x: u64,
    /// The height of its bar.
    high: u64,
    problem: bool,
    action: bool,
    words: String,
    /// The address of the page with the time cursor at the end of this part, so that it shows the result of its events.
    link: Option<String>,
}

/// A time that nobody observed.
#[derive(Debug)]
struct Unseen {
    x: u64,
    width: u64,
    from: Option<Mark>,
    to: Option<Mark>,
}

#[derive(Debug, Template)]
#[template(path = "parts/strip.html")]
pub(in super::super) struct Strip<'a> {
    parts: Vec<Part>,
    /// The reason why the newest events are missing, if so.
    trouble: Option<Prose<'a>>,
    unseen: Vec<Unseen>,
    /// The position of the time cursor.
    cursor: Option<u64>,
    /// The labels along the bottom.
    marks: Vec<Mark>,
    words: String,
    /// The earliest instant that is counted, if not all are.
    counted_from: Option<String>,
}

impl HtmlSafe for Strip<'_> {}

impl<'a> Strip<'a> {
    /// Draws the strip of a page. `link` returns the address of the page with the time cursor at an instant.
    pub(in super::super) fn new(
        page: &'a HistoryPage,
        link: impl Fn(SteadyMillis) -> Option<String>,
    ) -> Self {
        let density = &page.density;
        let shown = |kind: usize| page.types.is_empty() || page.types.contains(&EVENT_WORDS[kind]);
        let count = |bucket: &[u64; EVENT_WORDS.len()]| -> u64 {
            bucket.iter().enumerate().filter(|(kind, _)| shown(*kind)).map(|(_, n)| n).sum()
        };
        let most = density.buckets.iter().map(count).max().unwrap_or(0);
        let millis = density.to.millis_since(density.from).max(1);
        let axis = TimeAxis { from: density.from, millis, width: WIDTH };
        let part = |(i, bucket): (usize, &[u64; EVENT_WORDS.len()])| {
            let n = count(bucket);
            let (start, end) = (density.start(i), density.start(i + 1));
            Part {
                x: i as u64 * STEP,
                high: match n {
                    0 => 0,
                    n => (n * (HEIGHT - LEAST) / most.max(1)).max(LEAST),
                },
                problem: shown(PROBLEM) && bucket[PROBLEM] > 0,
                action: bucket
                    .iter()
                    .enumerate()
                    .any(|(kind, n)| kind >= FIRST_ACTION && shown(kind) && *n > 0),
                words: format!("{} UTC: {}", axis.mark(start).words(), counts(bucket, shown)),
                link: link(end.minus(1).max(start)),
            }
        };
        let x = |at| axis.x(at);
        let unseen = page.gaps.iter().map(|gap| {
            let began = gap.from.filter(|at| *at > density.from);
            let ended = gap.to.filter(|at| *at < density.to);
            let (from, to) = (began.map_or(0, x), ended.map_or(WIDTH, x));
            let width = to.saturating_sub(from).max(LEAST_GAP);
            let label = |at| axis.mark(at);
            let x = from.min(WIDTH - LEAST_GAP);
            Unseen { x, width, from: began.map(label), to: ended.map(label) }
        });
        let within = |at: &SteadyMillis| (density.from..=density.to).contains(at);
        Self {
            parts: density.buckets.iter().enumerate().map(part).collect(),
            trouble: page.trouble.as_deref().map(Prose::from),
            unseen: unseen.collect(),
            cursor: page.then.as_ref().map(|then| then.at).filter(within).map(x),
            marks: axis.marks(),
            words: summary(density.buckets.iter().map(count).sum(), page),
            counted_from: density.counted_from.map(rfc3339),
        }
    }

    fn bottom(part: &Part) -> u64 {
        HEIGHT - part.high
    }
}

fn summary(total: u64, page: &HistoryPage) -> String {
    let span = page.to.millis_since(page.from);
    format!("{} within {}", counted(total, "event"), format::round_duration(span))
}

/// Returns the number of events of each type, in words.
fn counts(bucket: &[u64; EVENT_WORDS.len()], shown: impl Fn(usize) -> bool) -> String {
    let all = bucket.iter().enumerate().filter(|(kind, n)| shown(*kind) && **n > 0);
    let words: Vec<String> =
        all.map(|(kind, n)| format!("{} {}", format::count(*n), word(EVENT_WORDS[kind]))).collect();
    if words.is_empty() { "no event".to_owned() } else { words.join(", ") }
}

/// Returns a type of event as a word for people.
pub(in super::super) fn word(event: &str) -> String {
    event.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fixtures;

    #[test]
    fn a_part_leads_to_its_end_after_all_its_events() {
        let page = fixtures::history(true, fixtures::happened());
        let strip = Strip::new(&page, |at| Some(at.0.to_string()));
        let last = strip.parts.iter().rposition(|part| part.high > 0).unwrap();
        let newest = page.rows.iter().map(|row| row.at.0).max().unwrap();
        let leads_to = |part: &Part| part.link.as_ref().unwrap().parse::<u64>().unwrap();
        assert!(leads_to(&strip.parts[last]) >= newest);
        for (i, part) in strip.parts.iter().enumerate() {
            assert_eq!(leads_to(part) + 1, page.density.start(i + 1).0, "{i}");
        }
    }
}

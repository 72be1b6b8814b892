//! The durations of holds: the number in each range.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::format;

/// The upper ends of all ranges but the last, in milliseconds, and the name of each range.
const SPANS: [(u64, &str); 7] = [
    (10, "under 10 ms"),
    (100, "10 to 100 ms"),
    (1_000, "0.1 to 1 s"),
    (10_000, "1 to 10 s"),
    (60_000, "10 s to 1 min"),
    (600_000, "1 to 10 min"),
    (u64::MAX, "over 10 min"),
];

#[derive(Debug)]
struct Span {
    label: &'static str,
    count: usize,
    /// The share of the longest bar, in thousandths.
    share: usize,
}

#[derive(Debug, Template)]
#[template(path = "parts/durations.html")]
pub(in super::super) struct Durations {
    spans: Vec<Span>,
    count: usize,
    median: String,
    longest: String,
}

impl HtmlSafe for Durations {}

impl Durations {
    /// Returns the durations of ended holds, given in milliseconds, or `None` if there are too few.
    pub(in super::super) fn new(mut millis: Vec<u64>) -> Option<Self> {
        const FEW: usize = 3;
        millis.sort_unstable();
        let longest = *millis.last()?;
        if millis.len() < FEW {
            return None;
        }
        let mut counts = [0; SPANS.len()];
        for lasted in &millis {
            let span = SPANS.iter().position(|(end, _)| lasted < end).unwrap_or(SPANS.len() - 1);
            counts[span] += 1;
        }
        let most = counts.iter().max().copied().unwrap_or(0).max(1);
        let used = |counts: &[usize]| counts.iter().position(|count| *count > 0).unwrap_or(0);
        let first = used(&counts);
        let last = counts.len() - used(&counts.iter().rev().copied().collect::<Vec<_>>());
        let span = |i: usize| Span {
            label: SPANS[i].1,
            count: counts[i],
            share: counts[i] * 1_000 / most,
        };
        Some(Self {
            spans: (first..last).map(span).collect(),
            count: millis.len(),
            median: format::short_bound(millis[(millis.len() - 1) / 2]),
            longest: format::short_duration(longest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hold_is_in_its_span() {
        let durations = Durations::new(vec![5, 50, 60, 99, 100, 25_000]).unwrap();
        let counts: Vec<_> = durations.spans.iter().map(|s| (s.label, s.count)).collect();
        assert_eq!(
            counts,
            [
                ("under 10 ms", 1),
                ("10 to 100 ms", 3),
                ("0.1 to 1 s", 1),
                ("1 to 10 s", 0),
                ("10 s to 1 min", 1)
            ]
        );
        assert_eq!(durations.spans[1].share, 1_000);
        assert_eq!((durations.median.as_str(), durations.longest.as_str()), ("0.06s", "25s"));
        assert!(Durations::new(vec![1, 2]).is_none());
        assert_eq!(Durations::new(vec![u64::MAX; 3]).unwrap().spans.len(), 1);
    }
}

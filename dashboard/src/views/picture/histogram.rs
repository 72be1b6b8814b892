//! A distribution of durations as bars: short ones on the left, long ones on the right.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::format;
use crate::model::contention::{BOUNDS_MS, Durations};

/// The height of the picture, and the width of a bar with its gap.
const HEIGHT: u64 = 12;
const STEP: usize = 4;

#[derive(Debug, Template)]
#[template(path = "parts/histogram.html")]
pub(in super::super) struct Histogram {
    bars: String,
    width: usize,
    words: String,
}

impl HtmlSafe for Histogram {}

impl Histogram {
    pub(in super::super) fn new(durations: &Durations) -> Self {
        let most = durations.buckets().map(|(_, count)| u64::from(count)).max().unwrap_or(0).max(1);
        let (mut bars, mut words, mut from) = (String::new(), Vec::new(), 0);
        for (i, (bound, count)) in durations.buckets().enumerate() {
            if count > 0 {
                // A bar is at least one unit high, so that no count is invisible.
                let (x, high) = (i * STEP, (u64::from(count) * HEIGHT / most).max(1));
                bars.push_str(&format!("M{x} {HEIGHT}v-{high}h3v{high}z"));
                words.push(match bound {
                    Some(bound) if from == 0 => {
                        format!("{count} up to {}", format::short_duration(bound))
                    }
                    Some(bound) => format!(
                        "{count} from {} to {}",
                        format::short_duration(from),
                        format::short_duration(bound)
                    ),
                    None => format!("{count} over {}", format::short_duration(from)),
                });
            }
            from = bound.unwrap_or(from);
        }
        let width = (BOUNDS_MS.len() + 1) * STEP;
        Self { bars, width, words: format!("How long it was held: {}", words.join(", ")) }
    }
}

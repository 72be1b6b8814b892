//! Pictures drawn as SVG and coloured by the style sheet, each with a description.

mod circle;
mod density;
mod durations;
mod heat;
mod histogram;
mod time_axis;
mod timeline;

use askama::Template;
use askama::filters::HtmlSafe;

use super::format;
use crate::clock::SteadyMillis;
use crate::model::types::{Ending, PastEnding, PastHoldView, Since};

pub(super) use circle::Circle;
pub(super) use density::{Strip, word};
pub(super) use durations::Durations;
pub(super) use heat::Heat;
pub(super) use histogram::Histogram;
pub(super) use timeline::Timeline;

/// The durations of a lock's latest holds as bars, oldest first. Longer holds have higher bars.
#[derive(Debug, Template)]
#[template(path = "parts/spark.html")]
pub(super) struct Spark {
    /// The paths of the bars of holds that ended properly, and of the others.
    fine: String,
    odd: String,
    width: usize,
    words: String,
}

impl HtmlSafe for Spark {}

/// The height of the picture, and the width of a bar with its gap.
const HEIGHT: u32 = 12;
const STEP: usize = 4;

impl Spark {
    /// Draws past holds, given newest first.
    pub(super) fn new(past: &[PastHoldView]) -> Self {
        let (mut fine, mut odd, mut words) = (String::new(), String::new(), Vec::new());
        for (i, hold) in past.iter().rev().enumerate() {
            let millis = lasted(hold).unwrap_or(0);
            let (x, high) = (i * STEP, height(millis));
            let bar = format!("M{x} {HEIGHT}v-{high}h3v{high}z");
            let wanted = hold.ended.is_none_or(PastEnding::is_wanted);
            if wanted {
                fine.push_str(&bar);
            } else {
                odd.push_str(&bar);
            }
            let how = if wanted { String::new() } else { format!(" ({})", ending_words(hold)) };
            words.push(format!("{}{how}", lasted_words(hold).unwrap_or_default()));
        }
        Self {
            fine,
            odd,
            width: past.len() * STEP,
            words: format!("Its latest holds, the oldest first: {}", words.join(", ")),
        }
    }
}

/// Returns the duration of a hold in milliseconds, or `None` while it lasts.
pub(super) fn lasted(hold: &PastHoldView) -> Option<u64> {
    Some(hold.to?.millis_since(hold.since.at))
}

/// Returns the duration of a hold in words, or `None` while it lasts.
pub(super) fn lasted_words(hold: &PastHoldView) -> Option<String> {
    Some(words_until(hold.to?, hold.since))
}

/// Returns the time until an instant in words. A lower bound has whole seconds, since “less than” would make no sense.
fn words_until(to: SteadyMillis, since: Since) -> String {
    let millis = to.millis_since(since.at);
    match since.exact {
        true => format::short_duration(millis),
        false => format!("≥ {}", format::duration(millis)),
    }
}

/// Returns the end of a hold, in words.
pub(super) fn ending_words(hold: &PastHoldView) -> &'static str {
    let Some(ended) = hold.ended else { return "still held" };
    match ended {
        PastEnding::Seen(Ending::Released) => "released",
        PastEnding::Seen(Ending::HandedOver) => "handed over",
        PastEnding::Seen(Ending::Expired) => "its lease ran out",
        PastEnding::Seen(Ending::Vanished) => "gone before its lease expired",
        PastEnding::Seen(Ending::Forced) => "released by force",
        PastEnding::Seen(Ending::Restarted) => "lost in a restart",
        PastEnding::Seen(Ending::Replaced) => "the key was overwritten",
        PastEnding::Unseen => "end not observed",
    }
}

/// Returns a bar's height. It grows a little with each doubling of the duration, from a sixteenth of a second on.
fn height(millis: u64) -> u32 {
    let doublings = (millis / 64).checked_ilog2().map_or(0, |log| log + 1);
    (1 + doublings * 3 / 4).min(HEIGHT)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn hold(id: &str, from: u64, to: u64, ended: &'static str) -> PastHoldView {
        PastHoldView {
            id: id.into(),
            since: Since { at: SteadyMillis(from), exact: true },
            to: Some(SteadyMillis(to)),
            ended: Some(PastEnding::parse(ended)),
        }
    }

    #[test]
    fn longer_bars_are_higher_and_losses_are_marked() {
        let past = [hold("b", 500, 60_500, "ran_out"), hold("a", 0, 100, "released")];
        let spark = Spark::new(&past);
        assert_eq!(spark.fine, "M0 12v-1h3v1z");
        assert_eq!(spark.odd, "M4 12v-8h3v8z");
        assert!(spark.words.ends_with(": 0.1s, 1m 00s (its lease ran out)"), "{}", spark.words);
        assert!(height(u64::MAX) == HEIGHT && height(0) == 1);
        assert_eq!(Spark::new(&[]).render().unwrap(), "");
    }
}

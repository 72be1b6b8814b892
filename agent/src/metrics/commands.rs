//! The metrics of commands.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter};
use service_kit::metrics::Registrar;

use super::ROUND_TRIP_BUCKETS;
use crate::protocol::command::Command;

#[derive(Debug)]
pub(crate) struct CommandMetrics {
    /// In the order of [`Command::WORDS`].
    by_word: Vec<(&'static str, OfWord)>,
    seconds: HistogramVec,
}

/// The metrics of one command.
#[derive(Debug)]
struct OfWord {
    ok: IntCounter,
    error: IntCounter,
    /// Exists once the command has been used.
    seconds: OnceLock<Histogram>,
}

impl CommandMetrics {
    /// Registers the metrics. The counters start at 0.
    pub(super) fn new(make: Registrar<'_>) -> prometheus::Result<Self> {
        let answered =
            make.counters("commands_total", "Commands answered.", &["command", "outcome"])?;
        let of_word = |word| OfWord {
            ok: answered.with_label_values(&[word, "ok"]),
            error: answered.with_label_values(&[word, "error"]),
            seconds: OnceLock::new(),
        };
        Ok(Self {
            by_word: Command::WORDS.map(|word| (word, of_word(word))).into(),
            seconds: make.histograms(
                "command_seconds",
                "Time from a command's arrival to its reply, including waits.",
                &["command"],
                &ROUND_TRIP_BUCKETS,
            )?,
        })
    }

    /// Counts a reply to a command; `word` is one of [`Command::WORDS`].
    pub(crate) fn answered(&self, word: &str, failed: bool, took: Duration) {
        let of_word = self.by_word.iter().find(|(known, _)| *known == word);
        debug_assert!(of_word.is_some(), "`{word}` is not among the words of commands");
        let Some((_, of_word)) = of_word else { return };
        let counter = if failed { &of_word.error } else { &of_word.ok };
        counter.inc();
        let seconds = of_word.seconds.get_or_init(|| self.seconds.with_label_values(&[word]));
        seconds.observe(took.as_secs_f64());
    }
}

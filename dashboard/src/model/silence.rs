//! The silence of a source about what it has reported before.

use std::time::Duration;

/// The time for which reports remain valid if no later ones can be read.
const VALIDITY: Duration = Duration::from_secs(600);

/// The time since the latest report, as far as the server could be read meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Silence(Duration);

impl Silence {
    /// Records a report.
    pub(super) fn end(&mut self) {
        self.0 = Duration::ZERO;
    }

    /// Adds time in which the server could be read. Returns true once earlier reports are no longer valid.
    pub(super) fn add(&mut self, passed: Duration) -> bool {
        self.0 = self.0.saturating_add(passed);
        self.0 >= VALIDITY
    }
}

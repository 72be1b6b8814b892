//! Pauses between attempts to connect.

use std::time::Duration;

/// The age at which a connection counts as proven. The next one follows it at once; a connection that ended sooner
/// counts as another failure, so that a server that accepts and drops connections is not flooded.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// For rejections that end only when an operator acts.
const PATIENT_FIRST: Duration = Duration::from_millis(500);
const PATIENT_LONGEST: Duration = Duration::from_secs(5);

/// Doubling pauses with jitter, so that a thousand clients do not return in step.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// The failures that need patience. They are counted separately: the first rejection after an outage is no reason
    /// for the longest pause.
    rejections: u32,
}

impl Backoff {
    /// Returns the pause after another failure. Each is drawn from the upper half of its range, so it is never close to
    /// zero.
    pub(crate) fn after_failure(&mut self, patient: bool) -> Duration {
        let (count, first, longest) = match patient {
            true => (&mut self.rejections, PATIENT_FIRST, PATIENT_LONGEST),
            false => (&mut self.failures, FIRST, LONGEST),
        };
        let doubled = first.saturating_mul(1_u32 << (*count).min(16));
        *count += 1;
        doubled.min(longest).mul_f64(jitter())
    }

    /// Starts over after a proven connection.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Returns a random factor between 0.5 and 1.
fn jitter() -> f64 {
    // Without randomness, clients merely reconnect in step.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_start_over_after_a_reset() {
        let mut backoff = Backoff::default();
        for (patient, first, longest) in
            [(false, FIRST, LONGEST), (true, PATIENT_FIRST, PATIENT_LONGEST)]
        {
            let pause = backoff.after_failure(patient);
            assert!(pause >= first / 2 && pause <= first, "{pause:?}");
            for _ in 0..100 {
                let pause = backoff.after_failure(patient);
                assert!(pause >= first / 2 && pause <= longest, "{pause:?}");
            }
            assert!(backoff.after_failure(patient) >= longest / 2);
            backoff.reset();
        }
    }

    #[test]
    fn the_first_rejection_after_an_outage_has_a_short_pause() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            backoff.after_failure(false);
        }
        let pause = backoff.after_failure(true);
        assert!(pause <= PATIENT_FIRST, "{pause:?}");
        let pause = backoff.after_failure(false);
        assert!(pause >= LONGEST / 2, "the outage may continue: {pause:?}");
    }
}

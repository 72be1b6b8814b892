//! How long to wait before the next attempt to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// For refusals that only a person, or other clients' leaving, can end.
const PATIENT_FIRST: Duration = Duration::from_millis(500);
const PATIENT_LONGEST: Duration = Duration::from_secs(5);

/// Doubling pauses with jitter, so that a thousand clients do not return in step.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure. Each is drawn from the upper half of its range, so it is
    /// never next to nothing.
    pub(crate) fn after_failure(&mut self, patient: bool) -> Duration {
        let (first, longest) =
            if patient { (PATIENT_FIRST, PATIENT_LONGEST) } else { (FIRST, LONGEST) };
        let doubled = first.saturating_mul(1_u32 << self.failures.min(16));
        self.failures += 1;
        doubled.min(longest).mul_f64(jitter())
    }

    /// The connection has proved itself: the next failure is a first one.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Between a half and one.
fn jitter() -> f64 {
    // Without randomness clients only lose their spread.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_start_anew_after_a_reset() {
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
}

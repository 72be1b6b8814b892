//! The time of day, for a program that also measures by it.
//!
//! What is noted, compared and measured here goes by a clock of our own: the one on the wall as it was when the program
//! began, which from then on goes by itself. So no age, no problem and no order of events hangs on what somebody does to
//! the host's clock. What people and other programs are told is what the clock on the wall says now ([`told`]), and what
//! they name is taken so ([`kept`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use service_kit::clock;

use crate::model::view::WallMillis;

/// By less than this, in milliseconds, the clock is not taken to have been set. What is told is wrong by no more.
const LEAST: u64 = 500;
/// Two clocks are compared by reading one between two readings of the other, which must be this close.
const APART: Duration = Duration::from_millis(50);

/// What the clock on the wall said when the host was booted, in milliseconds since 1970, as of our beginning.
static BOOTED: OnceLock<u64> = OnceLock::new();
/// By how many milliseconds the clock on the wall has been set since.
static SET: AtomicI64 = AtomicI64::new(0);

/// Now, by our own clock.
#[must_use]
pub fn now() -> WallMillis {
    at(clock::boot_micros())
}

fn at(boot_micros: u64) -> WallMillis {
    // It reads two clocks, and is too early where we stand still in between.
    let booted = || (0..5).map(|_| clock::boot_epoch_millis()).max().unwrap_or_default();
    WallMillis(*BOOTED.get_or_init(booted) + boot_micros / 1_000)
}

/// An instant as the clock on the wall now has it.
#[must_use]
pub fn told(at: WallMillis) -> WallMillis {
    WallMillis(at.0.saturating_add_signed(set_by()))
}

/// An instant by our own clock, of one by the clock on the wall as it is now.
#[must_use]
pub fn kept(told: WallMillis) -> WallMillis {
    WallMillis(told.0.saturating_add_signed(-set_by()))
}

/// By how many milliseconds the clock on the wall has been set since we began, back where negative, as of the last
/// [`look`].
#[must_use]
pub fn set_by() -> i64 {
    SET.load(Ordering::Relaxed)
}

/// Looks whether somebody has set the clock on the wall, and says by how many milliseconds.
pub fn look() -> Option<i64> {
    let (before, wall) = (clock::boot_micros(), clock::wall_millis());
    if Duration::from_micros(clock::boot_micros().saturating_sub(before)) > APART {
        // The process stood still in between: the next look will tell.
        return None;
    }
    let set = i64::try_from(wall).ok()?.saturating_sub_unsigned(at(before).0);
    let by = set.saturating_sub(set_by());
    if by.unsigned_abs() < LEAST {
        return None;
    }
    SET.store(set, Ordering::Relaxed);
    Some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_nobody_sets_is_the_one_on_the_wall() {
        let (before, ours, after) = (clock::wall_millis(), now().0, clock::wall_millis());
        // Somebody may set this host's clock a little just now.
        assert!((before - 5_000..=after + 5_000).contains(&ours), "{before} {ours} {after}");
        assert_eq!(kept(told(WallMillis(1_000_000))), WallMillis(1_000_000));
    }
}

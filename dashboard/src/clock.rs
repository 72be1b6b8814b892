//! The two time lines of the dashboard: its own steady clock, and the host's wall clock, which may be set.
//!
//! The model stores, compares and measures by [`SteadyMillis`], so that setting the host's clock changes no age, no
//! problem and no order of events. People and other programs read and write [`WallMillis`]. An instant passes from one
//! line to the other only by [`SteadyMillis::to_wall`] and [`WallMillis::to_steady`].
//!
//! [`Moment`] counts the same clock as [`SteadyMillis`], from the host's boot and in microseconds; leases are measured by it. A
//! [`Time`] is an instant as both.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use redisson::Moment;
pub use redisson::millis;
use serde::{Serialize, Serializer};
use service_kit::clock;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The length of a day, in milliseconds.
pub const DAY_MS: u64 = 24 * 3_600_000;
/// The smallest difference, in milliseconds, that counts as a change of the wall clock. Displayed instants are off by no
/// more than this.
const SMALLEST_STEP: u64 = 500;
/// The longest that two readings of one clock around a reading of the other may be apart.
const MAX_READING: Duration = Duration::from_millis(50);

/// The wall clock's reading when the host booted, in milliseconds since 1970, as of the program's start.
static BOOTED: OnceLock<u64> = OnceLock::new();
/// Milliseconds by which the wall clock has been set since the start.
static SET: AtomicI64 = AtomicI64::new(0);

/// An instant in milliseconds since 1970 on the dashboard's own clock. This clock starts with the time of the wall
/// clock at the start of the program, and then counts steadily.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SteadyMillis(pub u64);

/// An instant in milliseconds since 1970 on the host's wall clock as it is currently set. It is displayed and
/// serialized as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallMillis(pub u64);

/// An instant as a [`Moment`] and as [`SteadyMillis`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    moment: Moment,
    steady: SteadyMillis,
}

/// Returns the current instant on the boot clock, by which leases are measured.
#[must_use]
pub fn now() -> Moment {
    Moment::from_micros(clock::boot_micros())
}

impl Time {
    /// Returns the current instant.
    #[must_use]
    pub fn now() -> Self {
        let micros = clock::boot_micros();
        Self { moment: Moment::from_micros(micros), steady: SteadyMillis::at(micros) }
    }

    /// Returns an instant this long after the host's boot, which was `booted` on the dashboard's own clock.
    #[cfg(test)]
    pub(crate) fn of_test(millis: u64, booted: u64) -> Self {
        Self { moment: Moment::from_micros(millis * 1_000), steady: SteadyMillis(booted + millis) }
    }

    #[must_use]
    pub fn moment(self) -> Moment {
        self.moment
    }

    #[must_use]
    pub fn steady(self) -> SteadyMillis {
        self.steady
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: impl Into<Moment>) -> Duration {
        self.moment.since(earlier.into())
    }

    /// Returns an earlier instant, which may be before the host's boot. There is no such [`Moment`], so it has that of
    /// the boot.
    #[must_use]
    pub fn back_to(self, earlier: SteadyMillis) -> Self {
        let ago = Duration::from_millis(self.steady.millis_since(earlier));
        Self { moment: self.moment - ago, steady: earlier }
    }
}

impl From<Time> for Moment {
    fn from(time: Time) -> Self {
        time.moment
    }
}

impl SteadyMillis {
    /// The last instant that is displayed, the end of the year 9999. Later ones, which other programs may have written to
    /// Redis, become this one: browsers cannot display all of them.
    pub const LAST: Self = Self(253_402_300_799_999);

    /// Returns the current instant.
    #[must_use]
    pub fn now() -> Self {
        Self::at(clock::boot_micros())
    }

    fn at(boot_micros: u64) -> Self {
        // The function reads two clocks, and the result is too early if the process is suspended in between.
        let booted = || (0..5).map(|_| clock::boot_epoch_millis()).max().unwrap_or_default();
        Self(*BOOTED.get_or_init(booted) + boot_micros / 1_000)
    }

    /// Returns the milliseconds from an earlier instant to this one, or 0 if it is not earlier.
    #[must_use]
    pub fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the instant this many milliseconds later, at most [`Self::LAST`].
    #[must_use]
    pub fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis)).min(Self::LAST)
    }

    /// Returns the instant this many milliseconds earlier.
    #[must_use]
    pub fn minus(self, millis: u64) -> Self {
        Self(self.0.saturating_sub(millis))
    }

    /// Converts to the wall clock as it is currently set.
    #[must_use]
    pub fn to_wall(self) -> WallMillis {
        WallMillis(self.0.saturating_add_signed(set_by()).min(Self::LAST.0))
    }
}

impl WallMillis {
    /// Converts an instant on the wall clock as it is currently set to the dashboard's own clock, at most
    /// [`SteadyMillis::LAST`].
    #[must_use]
    pub fn to_steady(self) -> SteadyMillis {
        SteadyMillis(self.0.saturating_add_signed(-set_by())).min(SteadyMillis::LAST)
    }
}

/// Formats as RFC 3339 in UTC with milliseconds. Anything beyond the year 9999 is displayed as the end of that year.
impl fmt::Display for WallMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = UNIX_EPOCH + Duration::from_millis(self.0.min(SteadyMillis::LAST.0));
        humantime::format_rfc3339_millis(at).fmt(f)
    }
}

impl Serialize for WallMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The API shows instants as [`WallMillis`].
impl PartialSchema for SteadyMillis {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        let instant: Object = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(format))
            .description(Some("RFC 3339 in UTC, by the wall clock."))
            .build();
        instant.into()
    }
}

impl ToSchema for SteadyMillis {
    fn name() -> Cow<'static, str> {
        "Instant".into()
    }
}

/// A field that [`as_wall`] serializes: an instant of the dashboard's own clock, or an optional one.
pub trait ToWall {
    type Wall: Serialize;

    fn to_wall(&self) -> Self::Wall;
}

impl ToWall for SteadyMillis {
    type Wall = WallMillis;

    fn to_wall(&self) -> WallMillis {
        Self::to_wall(*self)
    }
}

impl ToWall for Option<SteadyMillis> {
    type Wall = Option<WallMillis>;

    fn to_wall(&self) -> Option<WallMillis> {
        self.map(SteadyMillis::to_wall)
    }
}

/// Serializes an instant of the dashboard's own clock by the wall clock; for `#[serde(serialize_with)]`.
///
/// # Errors
/// Returns the serializer's error.
pub fn as_wall<T: ToWall, S: Serializer>(at: &T, serializer: S) -> Result<S::Ok, S::Error> {
    at.to_wall().serialize(serializer)
}

/// Returns the milliseconds by which the wall clock has been set since the start, as of the last [`resync`], negative
/// if it was set back.
#[must_use]
pub fn set_by() -> i64 {
    SET.load(Ordering::Relaxed)
}

/// Compares the two clocks. Returns the milliseconds by which the wall clock has been set since the last call, or
/// `None` if it was not set.
pub fn resync() -> Option<i64> {
    let (before, wall) = (clock::boot_micros(), clock::wall_millis());
    if Duration::from_micros(clock::boot_micros().saturating_sub(before)) > MAX_READING {
        // The process was suspended in between, so the next call decides.
        return None;
    }
    let set = i64::try_from(wall).ok()?.saturating_sub_unsigned(SteadyMillis::at(before).0);
    let by = set.saturating_sub(set_by());
    if by.unsigned_abs() < SMALLEST_STEP {
        return None;
    }
    SET.store(set, Ordering::Relaxed);
    Some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_clock_equals_the_wall_clock_unless_it_is_set() {
        let (before, ours, after) =
            (clock::wall_millis(), SteadyMillis::now().0, clock::wall_millis());
        // This host's clock may be set slightly during the test.
        assert!((before - 5_000..=after + 5_000).contains(&ours), "{before} {ours} {after}");
        let instant = SteadyMillis(1_000_000);
        assert_eq!(instant.to_wall().to_steady(), instant);
    }

    #[test]
    fn no_instant_is_later_than_browsers_display() {
        for end in [WallMillis(9_000_000_000_000_000).to_steady(), SteadyMillis(5).plus(u64::MAX)] {
            assert_eq!(end, SteadyMillis::LAST);
            assert_eq!(end.to_wall().to_string(), "9999-12-31T23:59:59.999Z");
        }
    }

    #[test]
    fn wall_instants_display_as_rfc3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (1_795_219_200_123, "2026-11-21T00:00:00.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(WallMillis(millis).to_string(), text);
        }
    }
}

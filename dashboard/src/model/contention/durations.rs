//! A histogram of durations.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::schema::schema_of;

/// The upper bounds of the buckets in milliseconds. Longer durations are in a last bucket without a bound.
pub const BOUNDS_MS: [u64; 17] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
    1_800_000,
];

/// A histogram of durations. Boxed, since most locks have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durations(Option<Box<Histogram>>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Histogram {
    buckets: [u32; BOUNDS_MS.len() + 1],
    sum_ms: u64,
}

impl Durations {
    pub(super) fn add(&mut self, ms: u64) {
        let bucket = BOUNDS_MS.partition_point(|bound| *bound < ms);
        let histogram = self.0.get_or_insert_default();
        histogram.buckets[bucket] = histogram.buckets[bucket].saturating_add(1);
        histogram.sum_ms = histogram.sum_ms.saturating_add(ms);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let Some(theirs) = &other.0 else { return };
        let mine = self.0.get_or_insert_default();
        for (mine, theirs) in mine.buckets.iter_mut().zip(theirs.buckets) {
            *mine = mine.saturating_add(theirs);
        }
        mine.sum_ms = mine.sum_ms.saturating_add(theirs.sum_ms);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets().map(|(_, n)| u64::from(n)).sum()
    }

    /// Returns the total in milliseconds.
    #[must_use]
    pub fn sum_ms(&self) -> u64 {
        self.0.as_ref().map_or(0, |histogram| histogram.sum_ms)
    }

    /// Returns each bucket's upper bound in milliseconds, or `None` for the last one, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u32)> + use<> {
        let buckets = self.0.as_ref().map(|histogram| histogram.buckets).unwrap_or_default();
        BOUNDS_MS.iter().copied().map(Some).chain([None]).zip(buckets)
    }

    /// Returns the bound in milliseconds that this percentage of the durations did not exceed, or `None` for an empty
    /// histogram or beyond the last bound.
    #[must_use]
    pub fn percentile_ms(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent.min(100)).div_ceil(100).max(1);
        let mut seen = 0;
        self.buckets().find_map(|(bound, n)| {
            seen += u64::from(n);
            (seen >= rank).then_some(bound)
        })?
    }

    /// Returns the bound for this percentage in milliseconds, or the longest duration if that is shorter: the bound of a
    /// bucket may be far beyond the longest duration in it. Returns `None` for an empty histogram.
    pub(super) fn percentile_up_to(&self, percent: u64, longest_ms: Option<u64>) -> Option<u64> {
        let bounds = self.percentile_ms(percent).into_iter().chain(longest_ms);
        bounds.min().filter(|_| self.count() > 0)
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Durations)]
struct DurationsJson {
    count: u64,
    /// The total, milliseconds.
    sum_ms: u64,
    /// The bound that half of them did not exceed, in milliseconds; null if there are none, or it is beyond the last
    /// bound.
    p50_ms: Option<u64>,
    /// The bound that 99 of 100 did not exceed, in milliseconds; null if there are none, or it is beyond the last
    /// bound.
    p99_ms: Option<u64>,
    /// The buckets that are not empty.
    buckets: Vec<Bucket>,
}

#[derive(Serialize, ToSchema)]
struct Bucket {
    /// The upper bound, in milliseconds; null for the last bucket.
    le_ms: Option<u64>,
    count: u32,
}

schema_of!(Durations => DurationsJson);

impl Serialize for Durations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self.buckets().map(|(le_ms, count)| Bucket { le_ms, count });
        let json = DurationsJson {
            count: self.count(),
            sum_ms: self.sum_ms(),
            p50_ms: self.percentile_ms(50),
            p99_ms: self.percentile_ms(99),
            buckets: buckets.filter(|bucket| bucket.count > 0).collect(),
        };
        json.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_bounds_of_buckets() {
        let mut durations = Durations::default();
        assert_eq!(durations.percentile_ms(50), None);
        for ms in [0, 1, 2, 3, 99, 100, 101, 10_000_000] {
            durations.add(ms);
        }
        assert_eq!((durations.count(), durations.sum_ms()), (8, 10_000_306));
        assert_eq!(durations.percentile_ms(50), Some(5));
        assert_eq!(durations.percentile_ms(75), Some(100));
        assert_eq!(durations.percentile_ms(99), None, "beyond the last bound");
        let json = serde_json::to_value(durations).unwrap();
        assert_eq!(json["buckets"][0], serde_json::json!({"le_ms": 1, "count": 2}));
        assert_eq!(json["buckets"][5], serde_json::json!({"le_ms": null, "count": 1}));
    }
}

//! Late renewals of one hold. Several in short succession are one problem.

use std::time::Duration;

use redisson::Moment;

use crate::clock::SteadyMillis;
use crate::model::types::Stamp;

/// The number of leases for which a late hold has to be renewed in time until the problem is over.
const LEASES: u32 = 3;
/// The shortest such time.
const LEAST: Duration = Duration::from_secs(60);

/// The late renewals of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// The instant at which the first one was due.
    pub since: SteadyMillis,
    /// The number of late renewals.
    pub times: u32,
    /// The lowest time to live in the newest one.
    pub ttl: Duration,
    latest: Moment,
    is_late: bool,
}

impl Overdue {
    /// Updates the state with a reading. `late` is the instant since which a renewal is overdue, and the time to live.
    #[must_use]
    pub fn update(
        known: Option<Self>,
        late: Option<(SteadyMillis, Duration)>,
        lease: Duration,
        now: Stamp,
    ) -> Option<Self> {
        let latest = now.received.moment();
        let Some((since, ttl)) = late else {
            let known = known.map(|known| Self { is_late: false, ..known });
            return known.filter(|known| latest.since(known.latest) <= (lease * LEASES).max(LEAST));
        };
        Some(match known {
            None => Self { since, times: 1, ttl, latest, is_late: true },
            Some(known) if known.is_late => Self { ttl, latest, ..known },
            Some(known) => {
                let times = known.times.saturating_add(1);
                Self { times, ttl, latest, is_late: true, ..known }
            }
        })
    }

    /// Returns whether it is currently a problem: while a renewal is late, and between renewals that keep being late.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.is_late || self.times > 1
    }

    /// Returns whether the last late renewal came before that change of the holders.
    #[must_use]
    pub fn is_before(&self, change: Moment) -> bool {
        change > self.latest
    }
}

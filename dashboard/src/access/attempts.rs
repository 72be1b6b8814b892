//! The limit on attempts with unknown tokens, by address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntCounter;

/// The attempts of an address within a minute, after which its tokens are no longer compared until the minute is over.
pub const MAX_PER_MINUTE: u32 = 20;
const MINUTE_SECS: u64 = 60;
/// The most addresses that are counted at once.
const MAX_ADDRESSES: usize = 10_000;

/// Counts failed attempts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Attempts(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    by_address: HashMap<IpAddr, Count>,
    /// The attempts since the last line in the log, and its instant.
    unlogged: u64,
    metric: Option<IntCounter>,
    logged_at: u64,
}

#[derive(Debug)]
struct Count {
    since: u64,
    failed: u32,
}

impl Attempts {
    /// Adds all failed attempts to a metric, too.
    pub fn count_in(&self, metric: IntCounter) {
        self.lock().metric = Some(metric);
    }

    /// Returns true if this address has no attempts left.
    #[must_use]
    pub fn are_exhausted(&self, from: IpAddr, now_secs: u64) -> bool {
        self.lock().by_address.get(&network(from)).is_some_and(|count| {
            count.failed >= MAX_PER_MINUTE && now_secs < count.since + MINUTE_SECS
        })
    }

    /// Counts a failed or rejected attempt. Returns the number of attempts to log, at most once a minute.
    #[must_use]
    pub fn count(&self, from: IpAddr, now_secs: u64) -> Option<u64> {
        let mut counts = self.lock();
        if counts.by_address.len() >= MAX_ADDRESSES {
            counts.by_address.retain(|_, count| now_secs < count.since + MINUTE_SECS);
        }
        if counts.by_address.len() < MAX_ADDRESSES || counts.by_address.contains_key(&network(from))
        {
            let new = Count { since: now_secs, failed: 0 };
            let count = counts.by_address.entry(network(from)).or_insert(new);
            if now_secs >= count.since + MINUTE_SECS {
                *count = Count { since: now_secs, failed: 0 };
            }
            count.failed = count.failed.saturating_add(1);
        }
        counts.unlogged += 1;
        if let Some(metric) = &counts.metric {
            metric.inc();
        }
        counts.due(now_secs)
    }

    /// Returns the number of attempts that are not logged yet, if a line is due.
    #[must_use]
    pub fn take_unlogged(&self, now_secs: u64) -> Option<u64> {
        self.lock().due(now_secs)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn due(&mut self, now_secs: u64) -> Option<u64> {
        if self.unlogged == 0 || now_secs < self.logged_at + MINUTE_SECS {
            return None;
        }
        self.logged_at = now_secs;
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Returns the unit that is counted: an IPv4 address, or the /64 of an IPv6 address, which one host may use all of.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_blocked_for_the_rest_of_the_minute() {
        let (attempts, now) = (Attempts::default(), 1_000);
        let (guesser, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        for _ in 0..MAX_PER_MINUTE {
            assert!(!attempts.are_exhausted(guesser, now));
            let _line = attempts.count(guesser, now);
        }
        assert!(attempts.are_exhausted(guesser, now) && attempts.are_exhausted(guesser, now + 59));
        assert!(!attempts.are_exhausted(guesser, now + 60));
        assert!(!attempts.are_exhausted(other, now));
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let attempts = Attempts::default();
        for host in 0..MAX_PER_MINUTE {
            let _line = attempts.count(format!("2001:db8::{host:x}").parse().unwrap(), 0);
        }
        assert!(attempts.are_exhausted("2001:db8::ffff".parse().unwrap(), 1));
        assert!(!attempts.are_exhausted("2001:db8:0:1::1".parse().unwrap(), 1));
    }

    #[test]
    fn a_flood_is_one_line_a_minute() {
        let (attempts, from) = (Attempts::default(), "192.0.2.1".parse().unwrap());
        assert_eq!(attempts.count(from, 1_000), Some(1));
        for _ in 0..5_000 {
            assert_eq!(attempts.count(from, 1_010), None);
        }
        assert_eq!(attempts.take_unlogged(1_059), None);
        assert_eq!(attempts.take_unlogged(1_060), Some(5_000));
        assert_eq!(attempts.take_unlogged(1_200), None);
    }
}

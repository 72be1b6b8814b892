//! The limit on attempts with unknown tokens, by address.
//!
//! Users may share an address, such as a host, a NAT or a proxy. Therefore, a token that was accepted from an address
//! before is still accepted from it while another user there tries unknown ones.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntCounter;

use super::tokens::Digest;

/// The attempts of an address within a minute, after which no new token is accepted from it until the minute is over.
pub const MAX_PER_MINUTE: u32 = 20;
const MINUTE_SECS: u64 = 60;
/// The maximum number of addresses that are counted at once.
const MAX_ADDRESSES: usize = 10_000;
/// The maximum number of tokens that are remembered with their addresses, and the time for which they are remembered.
const MAX_ACCEPTED: usize = 10_000;
const REMEMBERED_SECS: u64 = 24 * 3_600;

/// Counts failed attempts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Attempts(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    by_address: HashMap<IpAddr, Count>,
    /// Tokens that were accepted, each with an address and the last time.
    accepted: HashMap<(IpAddr, Digest), u64>,
    metric: Option<IntCounter>,
}

#[derive(Debug)]
struct Count {
    since: u64,
    failed: u32,
}

impl Attempts {
    /// Also adds all failed attempts to a metric.
    pub fn count_in(&self, metric: IntCounter) {
        self.0.lock().metric = Some(metric);
    }

    /// Returns true if this address has no attempts left, and the token was not accepted from it before.
    #[must_use]
    pub(super) fn are_exhausted(&self, from: IpAddr, token: Digest, now_secs: u64) -> bool {
        let (counts, from) = (self.0.lock(), network(from));
        let exhausted = counts.by_address.get(&from).is_some_and(|count| {
            count.failed >= MAX_PER_MINUTE && now_secs < count.since + MINUTE_SECS
        });
        let accepted = counts.accepted.get(&(from, token));
        exhausted && accepted.is_none_or(|at| now_secs >= at + REMEMBERED_SECS)
    }

    /// Remembers that the token was accepted from this address.
    pub(super) fn accepted(&self, from: IpAddr, token: Digest, now_secs: u64) {
        let mut counts = self.0.lock();
        let key = (network(from), token);
        if counts.accepted.len() >= MAX_ACCEPTED && !counts.accepted.contains_key(&key) {
            counts.accepted.retain(|_, at| now_secs < *at + REMEMBERED_SECS);
            if counts.accepted.len() >= MAX_ACCEPTED {
                return;
            }
        }
        counts.accepted.insert(key, now_secs);
    }

    /// Counts a failed or rejected attempt.
    pub(super) fn count(&self, from: IpAddr, now_secs: u64) {
        let mut counts = self.0.lock();
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
        if let Some(metric) = &counts.metric {
            metric.inc();
        }
    }
}

/// Returns the unit that is counted: an IPv4 address, or the /64 network of an IPv6 address, since one host may use all
/// of it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token that was not accepted before.
    const NEW: Digest = [1; 32];

    #[test]
    fn a_token_that_was_accepted_from_an_address_stays_accepted_there() {
        let (attempts, now) = (Attempts::default(), 1_000);
        let (shared, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let known = [2; 32];
        attempts.accepted(shared, known, now);
        for from in [shared, other] {
            for _ in 0..MAX_PER_MINUTE {
                attempts.count(from, now);
            }
        }
        assert!(attempts.are_exhausted(shared, NEW, now));
        assert!(!attempts.are_exhausted(shared, known, now));
        assert!(attempts.are_exhausted(other, known, now), "it was never used there");
        for i in 0..2 * u32::try_from(MAX_ACCEPTED).unwrap() {
            attempts.accepted(std::net::Ipv4Addr::from_bits(i).into(), known, now);
        }
        assert!(attempts.0.lock().accepted.len() <= MAX_ACCEPTED);
        assert!(!attempts.are_exhausted(shared, known, now));
    }

    #[test]
    fn an_address_is_blocked_for_the_rest_of_the_minute() {
        let (attempts, now) = (Attempts::default(), 1_000);
        let (guesser, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        for _ in 0..MAX_PER_MINUTE {
            assert!(!attempts.are_exhausted(guesser, NEW, now));
            attempts.count(guesser, now);
        }
        assert!(
            attempts.are_exhausted(guesser, NEW, now)
                && attempts.are_exhausted(guesser, NEW, now + 59)
        );
        assert!(!attempts.are_exhausted(guesser, NEW, now + 60));
        assert!(!attempts.are_exhausted(other, NEW, now));
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let attempts = Attempts::default();
        for host in 0..MAX_PER_MINUTE {
            attempts.count(format!("2001:db8::{host:x}").parse().unwrap(), 0);
        }
        assert!(attempts.are_exhausted("2001:db8::ffff".parse().unwrap(), NEW, 1));
        assert!(!attempts.are_exhausted("2001:db8:0:1::1".parse().unwrap(), NEW, 1));
    }
}

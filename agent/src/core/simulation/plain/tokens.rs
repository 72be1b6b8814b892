//! Checks that fencing tokens only grow, also after the counter was lost or fell back.

use std::collections::{BTreeMap, BTreeSet};

use super::super::redis::Redis;
use super::super::seeds::Verdict;

/// The tokens that were granted.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The highest on each lock.
    highest: BTreeMap<String, i64>,
    /// The highest on each lock that one run of an agent has granted.
    by_host: BTreeMap<(String, usize, u64), i64>,
    /// Locks and holders with tokens of a counter that was lost.
    uncounted: BTreeSet<(String, String)>,
}

impl Tokens {
    /// Notes that a counter was lost or set back. Later tokens must still be higher, but a holder of this instant may
    /// learn of its own token only after a later one was granted.
    pub(super) fn counter_lost(&mut self, lock: &str, redis: &Redis) {
        let holders = redis.fields(lock).iter();
        self.uncounted.extend(holders.map(|(holder, _)| (lock.to_owned(), holder.clone())));
    }

    /// Checks the token of a new grant. An excused holder may have lost the lock to a holder with a higher token.
    pub(super) fn granted(
        &mut self,
        host: usize,
        run: u64,
        lock: &str,
        holder: &str,
        excused: bool,
        token: i64,
    ) -> Verdict {
        let highest = self.by_host.entry((lock.to_owned(), host, run)).or_default();
        if token <= *highest {
            return Err(format!(
                "{lock}: token {token} was granted after {highest} by the same agent"
            ));
        }
        *highest = token;
        if excused || self.uncounted.contains(&(lock.to_owned(), holder.to_owned())) {
            return Ok(());
        }
        let highest = self.highest.entry(lock.to_owned()).or_default();
        if token <= *highest {
            return Err(format!("{lock}: token {token} was granted after {highest}"));
        }
        *highest = token;
        Ok(())
    }
}

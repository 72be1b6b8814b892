//! Fencing tokens only grow: on one agent whatever becomes of the counter, on all of them while it lives.

use std::collections::{BTreeMap, BTreeSet};

use super::super::redis::Redis;
use super::super::seeds::Verdict;

/// The tokens that were told.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The highest on each lock since its counter was last lost.
    highest: BTreeMap<String, i64>,
    /// The highest on each lock that one run of a host has told.
    by_host: BTreeMap<(String, usize, u64), i64>,
    /// Locks and holders whose tokens come from a counter that was lost.
    uncounted: BTreeSet<(String, String)>,
}

impl Tokens {
    /// A lock's counter is lost, or falls back: tokens of the old one are not compared with those to come.
    pub(super) fn counter_lost(&mut self, lock: &str, redis: &Redis) {
        self.highest.remove(lock);
        let holders = redis.fields(lock).iter();
        self.uncounted.extend(holders.map(|(holder, _)| (lock.to_owned(), holder.clone())));
    }

    /// A new grant tells its token. Whoever is excused may have lost the lock to somebody with a higher one.
    pub(super) fn told(
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
                "{lock}: token {token} was told after {highest} by the same agent"
            ));
        }
        *highest = token;
        if excused || self.uncounted.contains(&(lock.to_owned(), holder.to_owned())) {
            return Ok(());
        }
        let highest = self.highest.entry(lock.to_owned()).or_default();
        if token <= *highest {
            return Err(format!("{lock}: token {token} was told after {highest}"));
        }
        *highest = token;
        Ok(())
    }
}

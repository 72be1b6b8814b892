//! Checks that fencing tokens only grow, also after the counter was lost or fell back, unless the clock was set back too.

use std::collections::{BTreeMap, BTreeSet};

use super::super::redis::Redis;
use super::super::seeds::CheckResult;

/// The tokens that were granted.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The highest on each lock.
    highest: BTreeMap<String, i64>,
    /// The highest on each lock that one run of an agent has granted.
    by_host: BTreeMap<(String, usize, u64), i64>,
    /// Locks and holders with tokens of a counter that was lost.
    uncounted: BTreeSet<(String, String)>,
    /// Locks whose counter was lost since their last grant.
    lost: BTreeSet<String>,
    /// Redis's clock was set back: where a counter is lost, tokens may begin below earlier ones.
    set_back: bool,
}

impl Tokens {
    /// Notes that a counter was lost or set back. Later tokens must still be higher, but a holder of this instant may
    /// learn its token only after a later one was granted.
    pub(super) fn counter_lost(&mut self, lock: &str, redis: &Redis) {
        let holders = redis.fields(lock).iter();
        self.lost.insert(lock.to_owned());
        self.uncounted.extend(holders.map(|(holder, _)| (lock.to_owned(), holder.clone())));
    }

    /// Notes that Redis's clock was set back.
    pub(super) fn clock_set_back(&mut self) {
        self.set_back = true;
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
    ) -> CheckResult {
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
        let may_fall = self.lost.remove(lock) && self.set_back;
        let highest = self.highest.entry(lock.to_owned()).or_default();
        if token <= *highest && !may_fall {
            return Err(format!("{lock}: token {token} was granted after {highest}"));
        }
        *highest = token;
        Ok(())
    }
}

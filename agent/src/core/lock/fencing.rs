//! The highest fencing tokens ever seen. A counter that fell back (a restart without its data, a failover, an eviction)
//! is raised above them before it continues. The script also raises it to the server's time; these tokens cover a
//! counter that was ahead of it, or a clock that was set back.

use std::collections::VecDeque;

use redisson::LockName;

use crate::collections::HashMap;

/// The number of locks for which tokens are remembered; the oldest entries are forgotten first.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(in crate::core) struct Fences {
    highest: HashMap<LockName, u64>,
    order: VecDeque<LockName>,
}

impl Fences {
    /// Returns the least token that the next grant of this lock may have.
    pub(in crate::core) fn least(&self, name: &LockName) -> u64 {
        self.highest.get(name).map_or(1, |token| token.saturating_add(1))
    }

    /// Records the token of a grant.
    pub(in crate::core) fn saw(&mut self, name: &LockName, token: u64) {
        if let Some(highest) = self.highest.get_mut(name) {
            *highest = token.max(*highest);
            return;
        }
        self.highest.insert(name.clone(), token);
        self.order.push_back(name.clone());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.highest.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_token_is_above_every_token_seen() {
        let mut fences = Fences::default();
        let name = |n: usize| LockName::new(n.to_string().into_bytes()).unwrap();
        assert_eq!(fences.least(&name(0)), 1);
        fences.saw(&name(0), 7);
        fences.saw(&name(0), 5);
        assert_eq!(fences.least(&name(0)), 8);
        (1..=REMEMBERED).for_each(|n| fences.saw(&name(n), 1));
        assert_eq!(fences.highest.len(), REMEMBERED);
        assert_eq!(fences.least(&name(0)), 1, "the oldest is forgotten");
    }
}

//! The share of the CPU that rendering open pages may use.
//!
//! Each page is rendered at once as long as all pages together stay within the budget. Beyond it they take turns. No
//! page waits longer than it would if all pages cost as much as it does, so a cheap page does not wait for expensive
//! ones.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Pages that take turns use at most one part in this many of one CPU. So do pages that do not wait for their turn.
const PART: u32 = 2;
/// The maximum unused time that can be used later.
const SAVED: Duration = Duration::from_millis(200);
/// The longest wait for a turn, no matter how many pages are open.
const LONGEST: Duration = Duration::from_secs(5);

/// The instant at which the next turn is free. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct RenderBudget(Arc<Mutex<Option<Instant>>>);

impl RenderBudget {
    /// Reserves the next turn for work of this cost.
    fn reserve(&self, cost: Duration, now: Instant) -> Instant {
        let mut free = self.0.lock();
        let saved = now.checked_sub(SAVED).unwrap_or(now);
        let turn = free.map_or(saved, |free| free.max(saved));
        *free = Some((turn + cost * PART).min(now + LONGEST));
        turn
    }
}

/// One page's share of the budget.
#[derive(Debug)]
pub(super) struct PageShare {
    budget: RenderBudget,
    /// The smoothed CPU time of the last versions.
    cost: Duration,
}

impl PageShare {
    pub(super) fn new(budget: &RenderBudget) -> Self {
        Self { budget: budget.clone(), cost: Duration::ZERO }
    }

    /// Records the CPU time of a version.
    pub(super) fn record(&mut self, time: Duration) {
        self.cost = if self.cost.is_zero() { time } else { (self.cost * 3 + time) / 4 };
    }

    /// Returns the instant at which the page may be rendered again. `pages` is the number of open pages, and `began` is
    /// the instant of its last rendering.
    pub(super) fn turn(&self, pages: usize, began: Instant, now: Instant) -> Instant {
        let turn = self.budget.reserve(self.cost, now);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let as_all = self.cost.saturating_mul(pages).saturating_mul(PART).min(LONGEST);
        turn.min(began + as_all).max(now)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    const TIME: Duration = Duration::from_secs(40);
    const EACH: Duration = Duration::from_millis(100);

    /// Returns how often each page is rendered within [`TIME`] if all change all the time, and the share of one CPU
    /// that this uses.
    fn rendered(costs: &[Duration]) -> (Vec<u32>, f64) {
        let (budget, start) = (RenderBudget::default(), Instant::now());
        let mut pages: Vec<(PageShare, Instant, u32)> = costs
            .iter()
            .map(|cost| {
                let mut share = PageShare::new(&budget);
                share.record(*cost);
                (share, start, 0)
            })
            .collect();
        // The next events: a page either requests its turn or is rendered.
        let mut next: BinaryHeap<Reverse<(Instant, usize, bool)>> =
            (0..pages.len()).map(|i| Reverse((start, i, true))).collect();
        while let Some(Reverse((at, i, asks))) = next.pop() {
            if at > start + TIME {
                break;
            }
            let (share, began, count) = &mut pages[i];
            if asks {
                next.push(Reverse((share.turn(costs.len(), *began, at), i, false)));
            } else {
                (*began, *count) = (at, *count + 1);
                next.push(Reverse((at + EACH, i, true)));
            }
        }
        let counts: Vec<u32> = pages.iter().map(|(_, _, count)| *count).collect();
        let taken: f64 =
            counts.iter().zip(costs).map(|(n, cost)| cost.as_secs_f64() * f64::from(*n)).sum();
        (counts, taken / TIME.as_secs_f64())
    }

    #[test]
    fn cheap_pages_do_not_wait_for_expensive_ones_and_the_total_is_bounded() {
        let mut costs = vec![Duration::from_millis(20); 100];
        costs.extend([Duration::from_micros(100); 10]);
        let (counts, load) = rendered(&costs);
        let (slow, quick) = counts.split_at(100);
        assert!(load < 1.05, "{load} processors");
        assert!(load > 0.45, "{load} processors: the budget is used");
        assert!(quick.iter().all(|count| *count >= 390), "as if all cost as much: {quick:?}");
        assert!(slow.iter().all(|count| *count >= 8), "each has its turn: {slow:?}");
        let (least, most) = (slow.iter().min().unwrap(), slow.iter().max().unwrap());
        assert!(most - least <= 2, "none more often than others: {slow:?}");
    }

    #[test]
    fn a_single_busy_page_does_not_wait() {
        let (budget, start) = (RenderBudget::default(), Instant::now());
        let mut share = PageShare::new(&budget);
        share.record(Duration::from_millis(20));
        let mut began = start;
        for _ in 0..100 {
            let now = began + EACH;
            assert_eq!(share.turn(500, began, now), now, "no matter how many others are open");
            began = now;
        }
        // Requests at one instant use up the saved time.
        let now = began + EACH;
        let turns: Vec<Instant> = (0..12).map(|_| share.turn(500, began, now)).collect();
        assert_eq!(turns[0], now);
        assert!(turns.last().is_some_and(|last| *last > now && *last < now + LONGEST), "{turns:?}");
        assert!(turns.is_sorted());
    }

    #[test]
    fn one_slow_version_counts_for_a_quarter() {
        let mut share = PageShare::new(&RenderBudget::default());
        share.record(Duration::from_millis(20));
        share.record(Duration::from_millis(100));
        assert_eq!(share.cost, Duration::from_millis(40));
    }
}

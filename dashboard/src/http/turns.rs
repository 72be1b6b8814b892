//! When which open page is made anew, so that all together leave the processors to others.
//!
//! While there is less to make than pages may take, each is made at once. Where there is more they take turns; but none waits
//! longer than if all were like it, so a page that is made quickly does not wait for slow ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Pages that take turns have one part in so many of one processor, and so have those that do not wait for theirs.
const PART: u32 = 2;
/// Time that was not made use of, and can be later.
const SAVED: Duration = Duration::from_millis(200);
/// However many pages are open, each has its turn in this time.
const LONGEST: Duration = Duration::from_secs(5);

/// Whose turn is when. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Mutex<Option<Instant>>>);

impl Turns {
    /// Takes the next turn, for so much work.
    fn take(&self, cost: Duration, now: Instant) -> Instant {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = now.checked_sub(SAVED).unwrap_or(now);
        let turn = free.map_or(saved, |free| free.max(saved));
        *free = Some((turn + cost * PART).min(now + LONGEST));
        turn
    }
}

/// One page among them.
#[derive(Debug)]
pub(super) struct Share {
    turns: Turns,
    /// What it takes to make it, over its last versions.
    cost: Duration,
}

impl Share {
    /// Of a page that has not been made yet.
    pub(super) fn new(turns: &Turns) -> Self {
        Self { turns: turns.clone(), cost: Duration::ZERO }
    }

    /// Notes what it took of a processor this time. One slow version is not taken for all to come.
    pub(super) fn took(&mut self, time: Duration) {
        self.cost = if self.cost.is_zero() { time } else { (self.cost * 3 + time) / 4 };
    }

    /// When it may be made, now or later, where so many pages are open and it was made last at `began`.
    pub(super) fn turn(&self, pages: usize, began: Instant, now: Instant) -> Instant {
        let turn = self.turns.take(self.cost, now);
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

    /// How often each page is made in [`TIME`] where all change all the time; and what share of a processor that takes.
    fn made(costs: &[Duration]) -> (Vec<u32>, f64) {
        let (turns, start) = (Turns::default(), Instant::now());
        let mut pages: Vec<(Share, Instant, u32)> = costs
            .iter()
            .map(|cost| {
                let mut share = Share::new(&turns);
                share.took(*cost);
                (share, start, 0)
            })
            .collect();
        // What comes next: a page asks, or is made.
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
    fn a_quick_page_waits_for_no_slow_ones_and_all_together_are_bounded() {
        let mut costs = vec![Duration::from_millis(20); 100];
        costs.extend([Duration::from_micros(100); 10]);
        let (counts, load) = made(&costs);
        let (slow, quick) = counts.split_at(100);
        assert!(load < 1.05, "{load} processors");
        assert!(load > 0.45, "{load} processors: what they may take is taken");
        assert!(quick.iter().all(|count| *count >= 390), "as if all were like it: {quick:?}");
        assert!(slow.iter().all(|count| *count >= 8), "each has its turn: {slow:?}");
        let (least, most) = (slow.iter().min().unwrap(), slow.iter().max().unwrap());
        assert!(most - least <= 2, "none more than others: {slow:?}");
    }

    #[test]
    fn who_is_alone_does_not_wait() {
        let (turns, start) = (Turns::default(), Instant::now());
        let mut share = Share::new(&turns);
        share.took(Duration::from_millis(20));
        let mut began = start;
        for _ in 0..100 {
            let now = began + EACH;
            assert_eq!(share.turn(500, began, now), now, "however many others are open");
            began = now;
        }
        // What is saved up is used up by those that come all at once.
        let now = began + EACH;
        let turns: Vec<Instant> = (0..12).map(|_| share.turn(500, began, now)).collect();
        assert_eq!(turns[0], now);
        assert!(turns.last().is_some_and(|last| *last > now && *last < now + LONGEST), "{turns:?}");
        assert!(turns.is_sorted());
    }

    #[test]
    fn one_slow_version_is_not_taken_for_all_to_come() {
        let mut share = Share::new(&Turns::default());
        share.took(Duration::from_millis(20));
        share.took(Duration::from_millis(100));
        assert_eq!(share.cost, Duration::from_millis(40));
    }
}

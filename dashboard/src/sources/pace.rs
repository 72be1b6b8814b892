//! How fast keys are passed over: so that others hardly notice.
//!
//! The next call begins no sooner than three round trips of the last one after that began, and so that
//! the server spends less than a tenth of its time on them, as far as a PING beside them tells. Before each call the server is pinged, which
//! shows whether others are slowed down; then calls come more rarely.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use service_kit::redis_link::{CallError, Link, ServerError};
use tokio::time::Instant;

use super::fine_timer::FineTimer;
use super::read::{Caller, ServerFacts, pipeline};

/// PINGs in one judgement.
const WINDOW: usize = 64;
/// Calls by which it is judged what one costs the server. A quick one of them tells: what held up others was not
/// their cost.
const CALLS: usize = 15;
/// So many of them may be slow for other reasons.
const OUTLIERS: usize = 3;
/// How long what was learnt of PINGs while no keys are passed over is good for.
const USUAL_FOR: Duration = Duration::from_secs(30);
/// Between two PINGs of that kind.
const APART: Duration = Duration::from_millis(1);
/// What the slowest PING may take beyond twice the usual.
const GRACE: Duration = Duration::from_micros(50);
/// A call begins no sooner after the last one than so many times the latter's cost. Not ten: what is measured has our
/// own share of the time in it, and by the server's own account this is below a tenth.
const COST: u32 = 8;
/// The longest wait between two calls.
const LONGEST: Duration = Duration::from_millis(250);
/// How much slower calls may come at most. That the server is slow is mostly not our doing, and slower still would help
/// it little: even at full pace we take no more than a tenth of its time.
const SLOWEST: f64 = 4.0;

/// A link whose calls keep a pace.
#[derive(Debug)]
pub struct Pacer {
    link: Link,
    facts: ServerFacts,
    next: Instant,
    /// Seconds that one key costs at the highest rate allowed.
    key_cost: f64,
    factor: f64,
    slowdown: f64,
    /// Close to the longest that a PING took while nothing was passed over, and when that was.
    usual: Option<(Duration, Instant)>,
    quickest: Duration,
    timer: FineTimer,
    pings: VecDeque<Duration>,
    /// What the latest calls took.
    calls: VecDeque<Duration>,
}

impl Pacer {
    /// At most `rate` keys a second.
    #[must_use]
    pub fn new(link: Link, facts: ServerFacts, rate: u32) -> Self {
        Self {
            link,
            facts,
            next: Instant::now(),
            key_cost: 1.0 / f64::from(rate.max(1)),
            factor: 1.0,
            slowdown: 1.0,
            usual: None,
            quickest: Duration::ZERO,
            timer: FineTimer::new(),
            pings: VecDeque::with_capacity(WINDOW),
            calls: VecDeque::with_capacity(CALLS),
        }
    }

    /// Makes pauses `factor` times as long as usual from now on.
    pub fn set_factor(&mut self, factor: f64) {
        self.factor = factor;
    }

    /// Learns what PINGs take while no keys are passed over.
    async fn learn(&mut self) -> Result<(), CallError> {
        self.pings.clear();
        for _ in 0..WINDOW {
            tokio::time::sleep(APART).await;
            self.ping().await?;
        }
        self.quickest = self.pings.iter().min().copied().unwrap_or_default();
        self.usual = Some((slow(&self.pings), Instant::now()));
        self.pings.clear();
        Ok(())
    }

    /// Makes the next call wait for what `keys` cost at the highest rate allowed.
    pub fn spend(&mut self, keys: usize) {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let cost = Duration::from_secs_f64(self.key_cost * f64::from(keys));
        self.next = self.next.max(Instant::now()) + cost;
    }

    /// How many times slower than wished calls come, 1 where nothing speaks against the full pace.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    async fn ping(&mut self) -> Result<(), CallError> {
        let sent = Instant::now();
        self.link.call(cmd("PING")).await?;
        push(&mut self.pings, sent.elapsed(), WINDOW);
        Ok(())
    }

    /// Waits until the next call may begin, the last part of it with a PING.
    async fn wait(&mut self) -> Result<(), CallError> {
        let left = self.next.saturating_duration_since(Instant::now());
        if let Some(left) = left.checked_sub(self.quickest) {
            self.timer.sleep(left).await;
            self.ping().await?;
            self.judge();
        }
        Ok(())
    }

    /// Slows down where PINGs take twice as long as usual, and recovers where they do not.
    fn judge(&mut self) {
        let Some((usual, _)) = self.usual.filter(|_| self.pings.len() >= WINDOW) else { return };
        let slowed = slow(&self.pings) > usual * 2 + GRACE;
        self.slowdown = if slowed {
            (self.slowdown * 1.5).min(SLOWEST)
        } else {
            (self.slowdown * 0.8).max(1.0)
        };
        self.pings.clear();
    }
}

fn push(window: &mut VecDeque<Duration>, took: Duration, most: usize) {
    if window.len() >= most {
        window.pop_front();
    }
    window.push_back(took);
}

fn sorted(window: &VecDeque<Duration>) -> Vec<Duration> {
    let mut sorted: Vec<Duration> = window.iter().copied().collect();
    sorted.sort_unstable();
    sorted
}

/// Close to the slowest: a few outliers in the window do not count.
fn slow(pings: &VecDeque<Duration>) -> Duration {
    let sorted = sorted(pings);
    sorted.iter().rev().nth(OUTLIERS).or_else(|| sorted.last()).copied().unwrap_or_default()
}

impl Caller for Pacer {
    async fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        if self.usual.is_none_or(|(_, learnt)| learnt.elapsed() >= USUAL_FOR) {
            self.learn().await?;
        }
        self.wait().await?;
        let sent = Instant::now();
        let replies = self.link.pipeline(pipeline(commands)).await?;
        let took = sent.elapsed();
        push(&mut self.calls, took, CALLS);
        let cost = sorted(&self.calls)[self.calls.len() / 4].saturating_sub(self.quickest);
        let pause = (took * 3).max(cost * COST).mul_f64(self.factor * self.slowdown).min(LONGEST);
        self.next = sent + pause;
        Ok(replies)
    }

    fn facts(&self) -> &ServerFacts {
        &self.facts
    }
}

//! How fast keys are passed over: so that others hardly notice.
//!
//! The next call begins no sooner than three round trips of the last one after that began, and so late that the server spends no
//! more than a tenth of its time on them; a sixth in the first pass, for which somebody may wait. What a call costs it the server
//! tells itself: its clock is asked before and behind the call, in one pipeline with it. Where it may not be asked, the round
//! trip stands for it, less that of a PING. Before each call the server is pinged, which shows whether others are slowed down;
//! then calls come more rarely.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use service_kit::redis::{CallError, Link, ServerError};
use tokio::time::Instant;

use super::fine_timer::FineTimer;
use super::read::{Caller, ServerFacts, clock_micros, pipeline};

/// PINGs in one judgement.
const WINDOW: usize = 64;
/// Calls by which it is judged what one costs a server that does not tell its time. A quick one of them is taken: what held
/// up the others was not their cost.
const CALLS: usize = 15;
/// So many of them may be slow for other reasons.
const OUTLIERS: usize = 3;
/// How long what was learnt of PINGs while no keys are passed over is good for.
const USUAL_FOR: Duration = Duration::from_secs(30);
/// Between two PINGs of that kind.
const APART: Duration = Duration::from_millis(1);
/// What the slowest PING may take beyond twice the usual.
const GRACE: Duration = Duration::from_micros(50);
/// The longest wait between two calls.
const LONGEST: Duration = Duration::from_millis(250);
/// How much slower calls may come at most. That the server is slow is mostly not our doing, and slower still would help
/// it little: even at full pace we take no more than a small share of its time.
const SLOWEST: f64 = 4.0;

/// How much of the server's time may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Nobody has seen a whole picture yet: a sixth.
    First,
    Usual,
    Slow,
}

impl Pace {
    /// A call begins no sooner after the beginning of the last one than so many times the latter's round trip, and so many
    /// times what it cost the server.
    fn times(self) -> (u32, u32) {
        match self {
            Self::First => (3, 6),
            Self::Usual => (3, 10),
            Self::Slow => (6, 20),
        }
    }

    /// How long after a call began the next one may begin.
    fn pause(self, took: Duration, cost: Duration, slowdown: f64) -> Duration {
        let (trips, costs) = self.times();
        (took * trips).max(cost * costs).mul_f64(slowdown).min(LONGEST)
    }
}

/// A link whose calls keep a pace.
#[derive(Debug)]
pub struct Pacer {
    link: Link,
    facts: ServerFacts,
    /// When the last call began.
    sent: Instant,
    next: Instant,
    /// Until when the keys looked at so far take at the highest rate allowed.
    spent: Instant,
    /// Seconds that one key costs at that rate.
    key_cost: f64,
    pace: Pace,
    slowdown: f64,
    /// Close to the longest that a PING took while nothing was passed over, and when that was.
    usual: Option<(Duration, Instant)>,
    quickest: Duration,
    timer: FineTimer,
    pings: VecDeque<Duration>,
    /// Whether the server tells its time.
    clocked: bool,
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
            sent: Instant::now(),
            next: Instant::now(),
            spent: Instant::now(),
            key_cost: 1.0 / f64::from(rate.max(1)),
            pace: Pace::Usual,
            slowdown: 1.0,
            usual: None,
            quickest: Duration::ZERO,
            timer: FineTimer::new(),
            pings: VecDeque::with_capacity(WINDOW),
            clocked: true,
            calls: VecDeque::with_capacity(CALLS),
        }
    }

    /// How much may be taken from now on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
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
        // Rights may have been given since.
        self.clocked = true;
        Ok(())
    }

    /// The last call looked at so many keys: the next one waits for what they take at the highest rate allowed.
    pub fn spend(&mut self, keys: usize) {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let cost = Duration::from_secs_f64(self.key_cost * f64::from(keys));
        self.spent = self.spent.max(self.sent) + cost;
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
        let left = self.next.max(self.spent).saturating_duration_since(Instant::now());
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

/// The commands with the server's clock before and behind them.
fn timed(commands: Vec<Cmd>) -> Vec<Cmd> {
    [cmd("TIME")].into_iter().chain(commands).chain([cmd("TIME")]).collect()
}

/// Takes the first and the last reply away, which tell the server's time, and what passed between the two; none where it
/// did not tell, or its clock was set back meanwhile.
fn take_cost(replies: &mut Vec<Result<Value, ServerError>>) -> Option<Duration> {
    let after = replies.pop()?;
    let before = if replies.is_empty() { return None } else { replies.remove(0) };
    let [before, after] = [before, after].map(|time| clock_micros(&time.ok()?));
    after?.checked_sub(before?).map(Duration::from_micros)
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
        let commands = if self.clocked { timed(commands) } else { commands };
        self.sent = Instant::now();
        let mut replies = self.link.pipeline(pipeline(commands)).await?;
        let took = self.sent.elapsed();
        push(&mut self.calls, took, CALLS);
        let mut cost = None;
        if self.clocked {
            cost = take_cost(&mut replies);
            self.clocked = cost.is_some();
        }
        let guessed = || sorted(&self.calls)[self.calls.len() / 4].saturating_sub(self.quickest);
        let cost = cost.unwrap_or_else(guessed);
        self.next = self.sent + self.pace.pause(took, cost, self.slowdown);
        Ok(replies)
    }

    fn facts(&self) -> &ServerFacts {
        &self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn time(micros: u64) -> Result<Value, ServerError> {
        let digits = |number: u64| Value::BulkString(number.to_string().into_bytes());
        Ok(Value::Array(vec![digits(micros / 1_000_000), digits(micros % 1_000_000)]))
    }

    #[test]
    fn the_server_is_left_most_of_its_time() {
        assert_eq!(Pace::Usual.pause(us(150), us(80), 1.0), us(800));
        assert_eq!(Pace::First.pause(us(150), us(80), 1.0), us(480));
        assert_eq!(Pace::Slow.pause(us(150), us(80), 1.0), us(1_600));
        assert_eq!(Pace::First.pause(us(400), us(80), 1.0), us(1_200), "three round trips");
        assert_eq!(Pace::Usual.pause(us(150), us(80), 4.0), us(3_200));
        assert_eq!(Pace::Usual.pause(us(150), us(900_000), 1.0), LONGEST);
    }

    #[test]
    fn what_a_call_costs_is_told_by_the_servers_clock() {
        let ok = || Ok(Value::Okay);
        let mut replies =
            vec![time(1_795_219_199_999_950), ok(), ok(), time(1_795_219_200_000_040)];
        assert_eq!(take_cost(&mut replies), Some(us(90)));
        assert_eq!(replies.len(), 2, "the clock is none of the caller's replies");
        let mut back = vec![time(2_000_000), ok(), time(1_000_000)];
        assert_eq!((take_cost(&mut back), back.len()), (None, 1));
        let denied = ServerError { code: "NOPERM".into(), message: String::new() };
        let mut denied = vec![Err(denied.clone()), ok(), Err(denied)];
        assert_eq!((take_cost(&mut denied), denied.len()), (None, 1));
        assert_eq!(timed(vec![cmd("PING")]).len(), 3);
    }
}

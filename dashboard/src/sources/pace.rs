//! The pace of a scan, slow enough to leave other clients unaffected.
//!
//! A call begins at least three round trips after the beginning of the last one, and so late that the server spends at
//! most a tenth of its time on these calls. In the first scan, for which users may be waiting, it is one round trip and
//! a quarter of the server's time. The cost of a call is measured by the server's own clock, which is read before and
//! after it in the same pipeline. If the Redis user may not read the clock, the cost is the round trip less that of a
//! PING. Calls become smaller if they cost more than [`MAX_COST`]. The server is pinged before each call of the first scan,
//! and later before every fourth one. If the PINGs show that other clients are slowed down, calls become rarer.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use service_kit::redis::{CallError, Link, ServerError};
use tokio::time::Instant;

use super::fine_timer::FineTimer;
use super::read::{CallSize, Caller, ServerFacts, clock_micros, pipeline};

/// The number of PINGs in one judgement.
const WINDOW: usize = 64;
/// The number of calls for each PING after the first scan. A PING costs the server as much as a third of a short call.
const CALLS_PER_PING: u32 = 4;
/// The number of calls from which the cost is estimated if the server's clock is not readable. A quick one of them
/// counts, since the others were delayed by something other than their cost.
const CALLS: usize = 15;
/// The number of PINGs that may be slow for other reasons.
const OUTLIERS: usize = 3;
/// The validity of the PING times that were measured between scans.
const BASELINE_VALIDITY: Duration = Duration::from_secs(30);
/// The time between two PINGs of that measurement.
const PING_INTERVAL: Duration = Duration::from_millis(1);
/// The time that the slowest PING may take beyond twice the baseline.
const GRACE: Duration = Duration::from_micros(50);
/// The shortest round trip to a distant server.
const DISTANT: Duration = Duration::from_micros(500);
/// The time that a call may occupy a near server. Slow servers get smaller calls.
const MAX_COST: Duration = Duration::from_micros(80);
/// The smallest part of [`CallSize::SHORT`], in percent.
const MIN_PERCENT: usize = 25;
/// The longest wait between two calls.
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// The largest slowdown of calls. A slow server is rarely the scan's fault, and slowing down further would help little:
/// even at full pace, the scan uses at most a quarter of the server's time.
const MAX_SLOWDOWN: f64 = 4.0;

/// The share of the server's time that calls may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// A quarter, until the first snapshot is complete.
    First,
    Usual,
    Slow,
}

impl Pace {
    /// Returns the multiples of the last call's round trip and of its cost that must pass between the beginnings of
    /// this call and the next.
    fn times(self) -> (u32, u32) {
        match self {
            Self::First => (1, 4),
            Self::Usual => (3, 10),
            Self::Slow => (6, 20),
        }
    }

    /// Returns the time from the beginning of a call to the next.
    fn pause(self, took: Duration, cost: Duration, slowdown: f64) -> Duration {
        let (trips, costs) = self.times();
        (took * trips).max(cost * costs).mul_f64(slowdown).min(MAX_PAUSE)
    }
}

/// A connection with paced calls.
#[derive(Debug)]
pub struct Pacer {
    link: Link,
    facts: ServerFacts,
    /// The beginning of the last call.
    sent: Instant,
    next: Instant,
    /// The instant until which the visited keys have used up the highest allowed rate.
    spent: Instant,
    /// The seconds for one key at that rate.
    key_cost: f64,
    pace: Pace,
    slowdown: f64,
    /// Nearly the slowest PING between scans, and the instant of that measurement.
    baseline: Option<(Duration, Instant)>,
    fastest: Duration,
    timer: FineTimer,
    pings: VecDeque<Duration>,
    /// The number of calls since the last PING.
    unpinged: u32,
    /// True if the server's clock can be read.
    clock_readable: bool,
    /// The durations of the latest calls.
    calls: VecDeque<Duration>,
    /// The part of [`CallSize::SHORT`] for which most calls cost at most [`MAX_COST`].
    percent: usize,
    usage: Usage,
}

/// The use of the server by a pacer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// The number of commands, including PINGs and reads of the clock.
    pub commands: u64,
    /// The server's time for them, as far as measured, without PINGs.
    pub server_time: Duration,
}

impl Pacer {
    /// Returns a pacer for at most `rate` keys a second.
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
            baseline: None,
            fastest: Duration::ZERO,
            timer: FineTimer::new(),
            pings: VecDeque::with_capacity(WINDOW),
            unpinged: 0,
            clock_readable: true,
            calls: VecDeque::with_capacity(CALLS),
            percent: 100,
            usage: Usage::default(),
        }
    }

    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Measures PINGs between scans.
    async fn calibrate(&mut self) -> Result<(), CallError> {
        self.pings.clear();
        for _ in 0..WINDOW {
            tokio::time::sleep(PING_INTERVAL).await;
            self.ping().await?;
        }
        self.fastest = self.pings.iter().min().copied().unwrap_or_default();
        self.baseline = Some((slow(&self.pings), Instant::now()));
        self.pings.clear();
        // The Redis user may have gained rights since.
        self.clock_readable = true;
        Ok(())
    }

    /// Charges this number of keys to the last call, at the highest allowed rate.
    pub fn spend(&mut self, keys: usize) {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let cost = Duration::from_secs_f64(self.key_cost * f64::from(keys));
        self.spent = self.spent.max(self.sent) + cost;
    }

    /// Returns the factor by which calls are slowed down, 1 at full pace.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    async fn ping(&mut self) -> Result<(), CallError> {
        let sent = Instant::now();
        self.usage.commands += 1;
        self.link.ping().await?;
        push(&mut self.pings, sent.elapsed(), WINDOW);
        Ok(())
    }

    /// Waits for the next call. Pings the server shortly before, if a PING is due.
    async fn wait(&mut self) -> Result<(), CallError> {
        let left = self.next.max(self.spent).saturating_duration_since(Instant::now());
        self.unpinged += 1;
        if self.pace != Pace::First && self.unpinged < CALLS_PER_PING {
            self.timer.sleep(left).await;
        } else if let Some(left) = left.checked_sub(self.fastest) {
            self.timer.sleep(left).await;
            self.ping().await?;
            self.unpinged = 0;
            self.judge();
        }
        Ok(())
    }

    /// Slows down if PINGs take twice as long as the baseline, and otherwise speeds up.
    fn judge(&mut self) {
        let Some((baseline, _)) = self.baseline.filter(|_| self.pings.len() >= WINDOW) else {
            return;
        };
        let slowed = slow(&self.pings) > baseline * 2 + GRACE;
        self.slowdown = if slowed {
            (self.slowdown * 1.5).min(MAX_SLOWDOWN)
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

/// Returns nearly the slowest PING: a few outliers in the window do not count.
fn slow(pings: &VecDeque<Duration>) -> Duration {
    let sorted = sorted(pings);
    sorted.iter().rev().nth(OUTLIERS).or_else(|| sorted.last()).copied().unwrap_or_default()
}

/// Returns the size of a call for the fastest round trip. Other clients may have to wait for a call, so calls are
/// short, except to a distant server, for which many calls would take long.
fn call_size(fastest: Duration, percent: usize) -> CallSize {
    if fastest >= DISTANT { CallSize::LARGE } else { CallSize::SHORT.percent(percent) }
}

/// Returns the percent of a short call's size for the call after one of this cost. A single call changes it little.
fn next_percent(percent: usize, cost: Duration) -> usize {
    let next = if cost > MAX_COST { percent * 19 / 20 } else { percent + 1 };
    next.clamp(MIN_PERCENT, 100)
}

/// Returns the commands with TIME before and after them.
fn timed(commands: Vec<Cmd>) -> Vec<Cmd> {
    [cmd("TIME")].into_iter().chain(commands).chain([cmd("TIME")]).collect()
}

/// Removes the first and the last reply, which contain the server's time. Returns the time between them, or `None` if
/// it could not be read, or the clock was set back in the meantime.
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
        if self.baseline.is_none_or(|(_, measured)| measured.elapsed() >= BASELINE_VALIDITY) {
            self.calibrate().await?;
        }
        self.wait().await?;
        let commands = if self.clock_readable { timed(commands) } else { commands };
        self.usage.commands += u64::try_from(commands.len()).unwrap_or(u64::MAX);
        self.sent = Instant::now();
        let mut replies = self.link.pipeline(pipeline(commands)).await?;
        let took = self.sent.elapsed();
        push(&mut self.calls, took, CALLS);
        let mut cost = None;
        if self.clock_readable {
            cost = take_cost(&mut replies);
            self.clock_readable = cost.is_some();
        }
        let estimated = || sorted(&self.calls)[self.calls.len() / 4].saturating_sub(self.fastest);
        let cost = cost.unwrap_or_else(estimated);
        self.usage.server_time += cost;
        self.percent = next_percent(self.percent, cost);
        self.next = self.sent + self.pace.pause(took, cost, self.slowdown);
        Ok(replies)
    }

    fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    fn call_size(&self) -> CallSize {
        call_size(self.fastest, self.percent)
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
    fn calls_take_a_small_share_of_the_servers_time() {
        assert_eq!(Pace::Usual.pause(us(150), us(80), 1.0), us(800));
        assert_eq!(Pace::First.pause(us(150), us(80), 1.0), us(320));
        assert_eq!(Pace::Slow.pause(us(150), us(80), 1.0), us(1_600));
        assert_eq!(Pace::First.pause(us(500), us(80), 1.0), us(500), "one round trip");
        assert_eq!(Pace::Usual.pause(us(400), us(80), 1.0), us(1_200), "three round trips");
        assert_eq!(Pace::Usual.pause(us(150), us(80), 4.0), us(3_200));
        assert_eq!(Pace::Usual.pause(us(150), us(900_000), 1.0), MAX_PAUSE);
    }

    #[test]
    fn calls_are_short_unless_the_server_is_distant() {
        for near in [us(0), us(80), us(499)] {
            assert_eq!(call_size(near, 100), CallSize::SHORT);
        }
        for distant in [us(500), us(20_000)] {
            assert_eq!(call_size(distant, MIN_PERCENT), CallSize::LARGE);
        }
    }

    #[test]
    fn calls_to_a_slow_server_become_smaller_until_they_are_short() {
        let after_many = |micros_of_a_full_call: u64| {
            (0..1_000).fold(100, |percent, _| {
                next_percent(percent, us(micros_of_a_full_call * percent as u64 / 100))
            })
        };
        assert_eq!(after_many(70), 100);
        assert!((35..=45).contains(&after_many(200)));
        assert_eq!(after_many(9_000), MIN_PERCENT);
        let size = call_size(us(80), MIN_PERCENT);
        assert!(size.keys < CallSize::SHORT.keys && size.keys > 0, "{size:?}");
    }

    #[test]
    fn the_servers_clock_measures_the_cost_of_a_call() {
        let ok = || Ok(Value::Okay);
        let mut replies =
            vec![time(1_795_219_199_999_950), ok(), ok(), time(1_795_219_200_000_040)];
        assert_eq!(take_cost(&mut replies), Some(us(90)));
        assert_eq!(replies.len(), 2, "the times are not among the caller's replies");
        let mut back = vec![time(2_000_000), ok(), time(1_000_000)];
        assert_eq!((take_cost(&mut back), back.len()), (None, 1));
        let denied = ServerError { code: "NOPERM".into(), message: String::new() };
        let mut denied = vec![Err(denied.clone()), ok(), Err(denied)];
        assert_eq!((take_cost(&mut denied), denied.len()), (None, 1));
        assert_eq!(timed(vec![cmd("PING")]).len(), 3);
    }
}

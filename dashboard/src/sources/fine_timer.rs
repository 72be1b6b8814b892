//! Pauses shorter than a millisecond, which the runtime's timer does not support. A scan of a million keys needs ten
//! thousand of them.

use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// A timer of the kernel, which is read like a pipe and yields eight bytes each time it expires. If the kernel has none
/// left, the runtime's timer replaces it.
#[derive(Debug)]
pub(super) struct FineTimer(Option<Receiver>);

impl FineTimer {
    /// Creates a timer. Must be called within a runtime.
    #[must_use]
    pub(super) fn new() -> Self {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
        Self(timer.and_then(|timer| Receiver::from_owned_fd_unchecked(timer).ok()))
    }

    /// Sleeps for at least this time, and up to some microseconds longer.
    pub(super) async fn sleep(&mut self, duration: Duration) {
        if duration.is_zero() {
            return;
        }
        if let Some(timer) = &mut self.0
            && arm(timer, duration).is_ok()
            && timer.read_u64().await.is_ok()
        {
            return;
        }
        tokio::time::sleep(duration).await;
    }
}

impl Default for FineTimer {
    fn default() -> Self {
        Self::new()
    }
}

fn arm(timer: &Receiver, duration: Duration) -> rustix::io::Result<Itimerspec> {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value = Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    };
    let once = Itimerspec { it_interval: never, it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn the_timer_is_reusable_and_never_early() {
        let mut timer = FineTimer::new();
        assert!(timer.0.is_some());
        for micros in [1, 50, 300, 1_500, 20] {
            let begun = Instant::now();
            timer.sleep(Duration::from_micros(micros)).await;
            assert!(begun.elapsed() >= Duration::from_micros(micros));
        }
        timer.sleep(Duration::ZERO).await;
    }
}

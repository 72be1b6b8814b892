//! Medians, quantiles, and the kernel's figures about a process.

use std::io::ErrorKind;

use anyhow::{Context as _, Result};
use harness::process::memory;

/// Returns the value below which that share of all values lies; zero if there are none.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index, from a share between 0 and 1"
    )]
    let index = ((values.len().saturating_sub(1)) as f64 * share).round() as usize;
    values.get(index).copied().unwrap_or(0.0)
}

/// Times of single actions, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn add(&mut self, time: std::time::Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    pub(crate) fn median(&mut self) -> f64 {
        quantile(&mut self.0, 0.5)
    }

    pub(crate) fn p99(&mut self) -> f64 {
        quantile(&mut self.0, 0.99)
    }
}

/// Converts a count for a division.
#[expect(clippy::cast_precision_loss, reason = "counts of a bench are far below 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns the microseconds of CPU time that a process has used so far, as the sum over its current threads.
pub(crate) fn cpu_micros(pid: u32) -> Result<f64> {
    let mut nanos = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path().join("schedstat");
        let text = match std::fs::read_to_string(&path) {
            // The thread has ended since the folder was read.
            Err(error) if error.kind() == ErrorKind::NotFound || is_no_thread(&error) => continue,
            text => text.with_context(|| path.display().to_string())?,
        };
        let used = text.split(' ').next().context("an empty schedstat")?;
        nanos += used.parse::<f64>()?;
    }
    Ok(nanos / 1000.0)
}

fn is_no_thread(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Returns the bytes of memory that a process uses now.
pub(crate) fn resident_bytes(pid: u32) -> Result<f64> {
    memory(pid).map(float)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.5), 50.0);
        assert_eq!(quantile(&mut values, 0.99), 99.0);
        assert_eq!(quantile(&mut [7.0], 0.99), 7.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn threads_that_end_meanwhile_are_left_out() {
        let pid = std::process::id();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let others = std::thread::spawn(move || {
            while end.try_recv() == Err(TryRecvError::Empty) {
                std::thread::spawn(|| ()).join().unwrap();
            }
        });
        for _ in 0..300 {
            assert!(cpu_micros(pid).unwrap() > 0.0);
        }
        drop(ended);
        others.join().unwrap();
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_micros(pid).unwrap() > 0.0);
        assert!(resident_bytes(pid).unwrap() > 65_536.0);
    }
}

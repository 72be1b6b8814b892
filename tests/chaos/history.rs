//! Histories: the events that workers and the fault injector record, one JSON object per line.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// An event and the instant of the boot clock at which it was recorded, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// The worker's process id; 0 for the injector.
    pub(crate) worker: u32,
    #[serde(flatten)]
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum What {
    /// A worker has read a grant of a request that it sent at `asked`.
    Grant {
        lock: String,
        kind: String,
        holder: String,
        token: Option<i64>,
        until: u64,
        asked: u64,
    },
    Valid {
        lock: String,
        until: u64,
    },
    Lost {
        lock: String,
        reason: String,
    },
    /// Recorded before the release is sent: from here on the worker does not rely on the hold.
    Releasing {
        lock: String,
    },
    /// The session has ended, and its holds with it.
    Disconnected,
    /// The session continues with that many holds.
    Resumed {
        holds: usize,
    },
    /// Recorded before the worker is killed.
    Killed {
        victim: u32,
    },
    /// A worker that nobody killed has ended; this is the end of its log.
    Ended {
        victim: u32,
        log: String,
    },
    /// A fault that was in effect from `from` until the event was recorded.
    Fault {
        name: String,
        from: u64,
        data_lost: bool,
        /// The only lock that it could affect, if there is one.
        lock: Option<String>,
    },
    /// All faults are over; each of these locks must be granted again.
    Healed {
        locks: Vec<String>,
    },
    /// A key that is still in Redis after all workers have ended.
    LeftOver {
        key: String,
    },
}

/// Returns the boot clock's time in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// A file to which events are appended, each in one write.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    worker: u32,
}

impl Recorder {
    pub(crate) fn open(path: &Path, worker: u32) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file, worker })
    }

    pub(crate) fn record(&mut self, what: What) -> Result<()> {
        let event = Event { at: now(), worker: self.worker, what };
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        Ok(self.file.write_all(&line)?)
    }
}

/// Reads a history, sorted by the boot clock.
pub(crate) fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let mut events = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let event = serde_json::from_str(line);
        events.push(event.with_context(|| format!("line {} of {}", i + 1, path.display()))?);
    }
    events.sort_by_key(|event: &Event| event.at);
    Ok(events)
}

//! Writes the journal on a blocking thread. Records that arrive during a write are batched into the next one.

use std::io;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::file::{self, File};
use super::record::Record;

/// The most bytes that may wait for a stalled disk; further records fail at once.
const MAX_QUEUED: usize = 16 << 20;

/// The delay before a failed write is retried, unless new records come first.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The result of a write.
#[derive(Debug)]
pub struct Outcome {
    /// The number of the last record covered, counted from the first call of [`Writer::push`].
    pub upto: u64,
    /// The reason if the records were not written.
    pub error: Option<String>,
}

/// The writer of a journal's file.
#[derive(Debug)]
pub struct Writer {
    /// The file while no write is in progress.
    idle: Option<File>,
    busy: Option<JoinHandle<(File, io::Result<()>)>>,
    /// The number of the last record of the current write.
    writing: u64,
    queued: Vec<u8>,
    pushed: u64,
    rewrite_at: Option<Instant>,
}

impl Writer {
    #[must_use]
    pub fn new(file: File) -> Self {
        Self {
            idle: Some(file),
            busy: None,
            writing: 0,
            queued: Vec::new(),
            pushed: 0,
            rewrite_at: None,
        }
    }

    /// Queues a record for the next [`Self::start`].
    pub fn push(&mut self, record: Record) {
        self.pushed += 1;
        if self.queued.len() < MAX_QUEUED {
            self.queued.extend(file::lines([record]));
        } else {
            self.rewrite_at.get_or_insert_with(Instant::now);
        }
    }

    /// Starts writing the queued records unless a write is in progress. `snapshot` returns the records of the complete
    /// state, for a write that replaces the file.
    pub fn start<R: IntoIterator<Item = Record>>(&mut self, snapshot: impl FnOnce() -> R) {
        let retry = self.rewrite_at.is_some_and(|at| at <= Instant::now());
        if self.queued.is_empty() && !retry {
            return;
        }
        let Some(mut file) = self.idle.take() else { return };
        let mut lines = std::mem::take(&mut self.queued);
        let rewrite = self.rewrite_at.take().is_some() || file.needs_rewrite();
        if rewrite {
            lines = file::lines(snapshot());
        }
        self.writing = self.pushed;
        self.busy = Some(tokio::task::spawn_blocking(move || {
            let written = if rewrite { file.rewrite(&lines) } else { file.append(&lines) };
            (file, written)
        }));
    }

    /// Waits for the current write to complete or fail; forever if there is none. Cancel safe.
    pub async fn written(&mut self) -> Outcome {
        let Some(busy) = &mut self.busy else { return std::future::pending().await };
        let done = busy.await;
        self.busy = None;
        self.settle(done)
    }

    fn settle(&mut self, done: Result<(File, io::Result<()>), JoinError>) -> Outcome {
        let error = match done {
            Ok((file, written)) => {
                self.idle = Some(file);
                written.err().map(|error| error.to_string())
            }
            // The file is lost with the thread, so the journal cannot be written again.
            Err(error) => Some(error.to_string()),
        };
        if error.is_some() {
            self.rewrite_at = Some(Instant::now() + RETRY_DELAY);
        }
        Outcome { upto: self.writing, error }
    }

    /// Writes the queued records, for at most `timeout`.
    pub async fn finish<R: IntoIterator<Item = Record>>(
        &mut self,
        timeout: Duration,
        snapshot: impl FnOnce() -> R,
    ) {
        let finishing = async {
            if self.busy.is_some() {
                self.written().await;
            }
            self.start(snapshot);
            if self.busy.is_some()
                && let Some(error) = self.written().await.error
            {
                tracing::warn!(error, "final journal write failed");
            }
        };
        if tokio::time::timeout(timeout, finishing).await.is_err() {
            tracing::warn!("final journal write timed out");
        }
    }
}

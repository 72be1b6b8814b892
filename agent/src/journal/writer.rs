//! Writes the journal on a blocking thread. Records that arrive during a write are batched into the next one.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::file::{self, File};
use super::record::Record;

/// The maximum number of bytes that may wait for the current write. If there are more, the next write replaces the file.
const MAX_QUEUED: usize = 16 << 20;

/// The delay before a failed write is retried. Records that come meanwhile fail at once, since each retry writes the complete
/// state, which is too much for each record.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The time limit of a write. A longer write counts as failed, as does every record that arrives before it ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time after a write at which the writer checks that the file is in place.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// The result of a write.
#[derive(Debug)]
pub struct Outcome {
    /// The number of the last record covered, counted from the first call of [`Writer::push`]; 0 if the write covers none.
    pub upto: u64,
    /// The reason if the records were not written.
    pub error: Option<String>,
}

/// The writer of a journal's file.
#[derive(Debug)]
pub struct Writer {
    /// The file while no write is in progress.
    idle: Option<File>,
    /// The current write. It returns the file, and whether that was still in place afterwards.
    busy: Option<JoinHandle<(File, io::Result<bool>)>>,
    /// The number of the last record of the current write.
    writing: u64,
    /// The time that a write may take.
    patience: Duration,
    /// The instant at which the current write has taken too long.
    stalled_at: Instant,
    /// The number of the last record that counts as failed because a write takes too long, or has failed.
    refused: u64,
    /// The reason of the last failure.
    failure: String,
    queued: Vec<u8>,
    pushed: u64,
    rewrite_at: Option<Instant>,
    check_at: Instant,
}

impl Writer {
    #[must_use]
    pub fn new(file: File) -> Self {
        Self {
            idle: Some(file),
            busy: None,
            writing: 0,
            patience: PATIENCE,
            stalled_at: Instant::now(),
            refused: 0,
            failure: String::new(),
            queued: Vec::new(),
            pushed: 0,
            rewrite_at: None,
            check_at: Instant::now(),
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

    /// Starts writing the queued records unless a write is in progress, or has just failed. `snapshot` returns the records of
    /// the complete state, for a write that replaces the file. Without records, checks from time to time that the file is
    /// in place.
    pub fn start<R: IntoIterator<Item = Record>>(&mut self, snapshot: impl FnOnce() -> R) {
        let now = Instant::now();
        if self.is_retry_pending(now) {
            return;
        }
        let retry = self.rewrite_at.is_some();
        let Some(mut file) = self.idle.take_if(|file| {
            !self.queued.is_empty() || retry || (self.check_at <= now && !file.needs_rewrite())
        }) else {
            return;
        };
        let mut lines = std::mem::take(&mut self.queued);
        let rewrite = self.rewrite_at.take().is_some() || file.needs_rewrite();
        if rewrite {
            lines = file::lines(snapshot());
        }
        self.writing = self.pushed;
        self.stalled_at = now + self.patience;
        self.check_at = now + CHECK_AFTER;
        self.busy = Some(tokio::task::spawn_blocking(move || {
            let write =
                || if rewrite { file.rewrite(&lines).map(|()| true) } else { file.append(&lines) };
            // The file outlives a panic: the next write replaces it.
            let written = catch_unwind(AssertUnwindSafe(write))
                .unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")));
            (file, written)
        }));
    }

    /// Returns whether the last write has failed, and it is too early for another.
    fn is_retry_pending(&self, now: Instant) -> bool {
        self.rewrite_at.is_some_and(|at| at > now)
    }

    /// Waits for the current write to complete, to fail, or to take too long. Records that came after a failed write fail at
    /// once. Waits forever if there is nothing to report. Cancel safe.
    pub async fn written(&mut self) -> Outcome {
        let Some(busy) = &mut self.busy else {
            if self.pushed > self.refused && self.rewrite_at.is_some() && self.idle.is_some() {
                return match self.is_retry_pending(Instant::now()) {
                    true => self.refuse(self.failure.clone()),
                    // The retry has become due since the last call of `start`.
                    false => Outcome { upto: 0, error: None },
                };
            }
            return std::future::pending().await;
        };
        tokio::select! {
            biased;
            done = busy => {
                self.busy = None;
                self.settle(done)
            }
            () = tokio::time::sleep_until(self.stalled_at), if self.pushed > self.refused => {
                let seconds = self.patience.as_secs();
                self.refuse(format!("the disk has taken nothing for {seconds} s"))
            }
        }
    }

    /// Drops the records that wait for a slow write or after a failed one. Then the file is replaced.
    fn refuse(&mut self, error: String) -> Outcome {
        self.refused = self.pushed;
        self.queued.clear();
        self.rewrite_at.get_or_insert_with(Instant::now);
        Outcome { upto: self.refused, error: Some(error) }
    }

    fn settle(&mut self, done: Result<(File, io::Result<bool>), JoinError>) -> Outcome {
        let error = match done {
            Ok((file, written)) => {
                self.idle = Some(file);
                match written {
                    Ok(true) => None,
                    Ok(false) => {
                        // The next write has the complete state.
                        self.rewrite_at = Some(Instant::now());
                        return Outcome { upto: 0, error: None };
                    }
                    Err(error) => Some(error.to_string()),
                }
            }
            // The runtime ends.
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = &error {
            self.failure.clone_from(error);
            self.refused = self.refused.max(self.writing);
            self.rewrite_at = Some(Instant::now() + RETRY_DELAY);
        }
        Outcome { upto: self.writing, error }
    }

    /// Writes the queued records, for at most `timeout`.
    pub async fn finish<R: IntoIterator<Item = Record>>(
        &mut self,
        timeout: Duration,
        mut snapshot: impl FnMut() -> R,
    ) {
        let finishing = async {
            if self.rewrite_at.is_some() {
                self.rewrite_at = Some(Instant::now());
            }
            loop {
                self.start(&mut snapshot);
                if self.busy.is_none() {
                    return;
                }
                if let Some(error) = self.written().await.error {
                    tracing::warn!(error, "final journal write failed");
                }
            }
        };
        if tokio::time::timeout(timeout, finishing).await.is_err() {
            tracing::warn!("final journal write timed out");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    async fn written(writer: &mut Writer) -> Outcome {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, writer.written()).await.expect("an outcome in time")
    }

    #[tokio::test]
    async fn a_write_that_panics_fails_and_the_next_one_replaces_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(File::panicking(folder.path()));
        writer.push(Record::Gone { number: 6 });
        let begun = Instant::now();
        writer.start(|| -> Vec<Record> { unreachable!("there is a file") });
        let outcome = written(&mut writer).await;
        assert_eq!(outcome.upto, 1);
        assert!(outcome.error.is_some_and(|why| why.contains("panicked")));
        assert!(writer.rewrite_at.is_some_and(|at| at >= begun + RETRY_DELAY));
        writer.rewrite_at = Some(Instant::now() + Duration::from_secs(3600));
        // A snapshot for each record would cost too much.
        for number in [7, 8] {
            writer.push(Record::Gone { number });
            writer.start(|| -> Vec<Record> { unreachable!("it is too early") });
            let outcome = written(&mut writer).await;
            assert!(outcome.error.is_some_and(|why| why.contains("panicked")));
        }
        writer.rewrite_at = Some(Instant::now());
        writer.push(Record::Gone { number: 9 });
        let outcome = written(&mut writer).await;
        assert_eq!((outcome.upto, outcome.error), (0, None), "the retry is due");
        writer.start(|| [Record::Gone { number: 9 }]);
        let outcome = written(&mut writer).await;
        assert_eq!((outcome.upto, outcome.error), (4, None));
        let written = std::fs::read_to_string(folder.path().join("journal")).unwrap();
        assert_eq!(written.lines().count(), 2, "the whole state: {written}");
    }

    /// A pipe that nobody reads accepts 64 KiB, and then blocks like a disk that hangs.
    #[tokio::test]
    async fn records_are_refused_while_a_write_hangs_and_written_once_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (mut reader, pipe) = io::pipe().unwrap();
        let file = File::appending_to(folder.path(), pipe);
        let mut writer = Writer { patience: Duration::from_millis(20), ..Writer::new(file) };
        let gone = |number| Record::Gone { number };
        let many = 10_000;
        (0..many).for_each(|number| writer.push(gone(number)));
        writer.start(|| -> Vec<Record> { unreachable!("there is a file") });
        let outcome = written(&mut writer).await;
        assert_eq!(outcome.upto, many.unsigned_abs());
        assert!(outcome.error.is_some_and(|why| why.contains("the disk has taken nothing")));
        // A record that arrives now need not wait as long.
        writer.patience = Duration::from_secs(3600);
        writer.push(gone(many));
        writer.start(|| -> Vec<Record> { unreachable!("a write is in progress") });
        let outcome = written(&mut writer).await;
        assert!(outcome.upto == many.unsigned_abs() + 1 && outcome.error.is_some(), "{outcome:?}");

        let drained = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        assert_eq!(written(&mut writer).await.error, None, "it has ended");
        writer.start(|| [gone(7)]);
        assert_eq!(written(&mut writer).await.error, None);
        drained.join().unwrap().unwrap();
        let written = std::fs::read_to_string(folder.path().join("journal")).unwrap();
        assert_eq!(written.lines().count(), 2, "the whole state: {written}");
    }
}

//! Writes the journal off the thread that serves locks: what comes while it is busy goes together in one write.

use std::io;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::file::{self, File};
use super::record::Record;

/// How many bytes may wait for a disk that takes none; further records fail at once.
const MOST_WAITING: usize = 16 << 20;

/// When a disk that takes nothing is tried again, if nothing new is to be written earlier.
const AGAIN: Duration = Duration::from_secs(1);

/// What became of records.
#[derive(Debug)]
pub struct Outcome {
    /// Up to which one, counted from the first ever given to [`Writer::push`].
    pub upto: u64,
    /// Why they are not written, if so.
    pub error: Option<String>,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Writer {
    /// Where it is kept while nothing is being written.
    idle: Option<File>,
    busy: Option<JoinHandle<(File, io::Result<()>)>>,
    /// How many records there are in all, once what is being written is written.
    writing: u64,
    waiting: Vec<u8>,
    pushed: u64,
    /// A record was lost, so that only the whole tells what is; it is tried again then at the latest.
    broken: Option<Instant>,
}

impl Writer {
    /// Goes on with this file.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self {
            idle: Some(file),
            busy: None,
            writing: 0,
            waiting: Vec::new(),
            pushed: 0,
            broken: None,
        }
    }

    /// Takes one more record. It is written by [`Self::start`].
    pub fn push(&mut self, record: Record) {
        self.pushed += 1;
        if self.waiting.len() < MOST_WAITING {
            self.waiting.extend(file::lines([record]));
        } else {
            self.broken.get_or_insert_with(Instant::now);
        }
    }

    /// Begins to write what waits, unless it is busy. `whole` gives all there is to be said, for when the file is
    /// written anew.
    pub fn start<R: IntoIterator<Item = Record>>(&mut self, whole: impl FnOnce() -> R) {
        let again = self.broken.is_some_and(|at| at <= Instant::now());
        if self.waiting.is_empty() && !again {
            return;
        }
        let Some(mut file) = self.idle.take() else { return };
        let mut lines = std::mem::take(&mut self.waiting);
        let anew = self.broken.take().is_some() || file.is_due();
        if anew {
            lines = file::lines(whole());
        }
        self.writing = self.pushed;
        self.busy = Some(tokio::task::spawn_blocking(move || {
            let written = if anew { file.rewrite(&lines) } else { file.append(&lines) };
            (file, written)
        }));
    }

    /// Waits until what is being written is written, or has failed; for ever if nothing is. Nothing is lost when this
    /// is dropped early.
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
            // Never tried again: without its file there is no journal any more.
            Err(error) => Some(error.to_string()),
        };
        if error.is_some() {
            self.broken = Some(Instant::now() + AGAIN);
        }
        Outcome { upto: self.writing, error }
    }

    /// Writes what waits, and waits for it at most that long.
    pub async fn finish<R: IntoIterator<Item = Record>>(
        &mut self,
        most: Duration,
        whole: impl FnOnce() -> R,
    ) {
        let finishing = async {
            if self.busy.is_some() {
                self.written().await;
            }
            self.start(whole);
            if self.busy.is_some()
                && let Some(error) = self.written().await.error
            {
                tracing::warn!(error, "the journal's end is not written");
            }
        };
        if tokio::time::timeout(most, finishing).await.is_err() {
            tracing::warn!("the journal's end is not written in time");
        }
    }
}

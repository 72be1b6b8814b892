//! The limit on open event streams.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::metrics::StreamMetrics;

/// The most event streams, including those of pages and of the API.
pub const MAX_STREAMS: usize = 1_000;

/// Counts and limits open event streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Streams {
    permits: Arc<Semaphore>,
    pub metrics: StreamMetrics,
}

/// An open stream, which is counted as long as this value exists.
#[derive(Debug)]
pub struct StreamPermit {
    metrics: StreamMetrics,
    _permit: OwnedSemaphorePermit,
}

impl Streams {
    #[must_use]
    pub fn new(metrics: StreamMetrics) -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_STREAMS)), metrics }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// If [`MAX_STREAMS`] are open.
    pub fn open(&self) -> Result<StreamPermit, ApiError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let why = "streams are open already; try again later, or reload the page";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("{MAX_STREAMS} {why}"))
        })?;
        self.metrics.open.inc();
        Ok(StreamPermit { metrics: self.metrics.clone(), _permit: permit })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.metrics.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn streams_are_bounded() {
        let streams = Streams::new(StreamMetrics::register(&Registry::new()).unwrap());
        let mut open: Vec<StreamPermit> =
            (0..MAX_STREAMS).map(|_| streams.open().unwrap()).collect();
        let error = streams.open().unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.detail.contains("1000 streams"), "{error:?}");
        open.pop();
        assert!(streams.open().is_ok());
        drop(open);
        assert_eq!(streams.metrics.open.get(), 0);
    }
}

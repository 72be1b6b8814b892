//! The limit on open event streams.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::error::ApiError;
use crate::metrics::StreamMetrics;

/// The maximum number of event streams, including those of pages and of the API.
pub const MAX_STREAMS: usize = 1_000;
/// The maximum number of event streams of one name.
const MAX_PER_NAME: usize = MAX_STREAMS / 4 * 3;

/// A visitor's name, or `None` if there is no login.
type Name = Option<Arc<str>>;

/// Counts and limits open event streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Streams {
    open: Arc<Mutex<HashMap<Name, usize>>>,
    pub metrics: StreamMetrics,
}

/// An open stream, which is counted as long as this value exists.
#[derive(Debug)]
pub struct StreamPermit {
    streams: Streams,
    name: Name,
}

impl Streams {
    #[must_use]
    pub fn new(metrics: StreamMetrics) -> Self {
        Self { open: Arc::default(), metrics }
    }

    /// Opens a stream for a visitor of this name.
    ///
    /// # Errors
    /// If [`MAX_STREAMS`] are open, or too many of them are of this name.
    pub fn open(&self, name: Name) -> Result<StreamPermit, ApiError> {
        let mut open = self.open.lock();
        let own = open.get(&name).copied().unwrap_or_default();
        let full = if open.values().sum::<usize>() >= MAX_STREAMS {
            Some(format!("{MAX_STREAMS} streams"))
        } else {
            // Without a login, all visitors share one name.
            (name.is_some() && own >= MAX_PER_NAME)
                .then(|| format!("{MAX_PER_NAME} streams of your name"))
        };
        if let Some(full) = full {
            let why = format!("stream limit reached ({full}): try again later or reload the page");
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        *open.entry(name.clone()).or_default() += 1;
        self.metrics.open.inc();
        Ok(StreamPermit { streams: self.clone(), name })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.streams.metrics.open.dec();
        let mut open = self.streams.open.lock();
        if let Some(count) = open.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.name);
            }
        }
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
            (0..MAX_STREAMS).map(|_| streams.open(None).unwrap()).collect();
        let error = streams.open(None).unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.detail.contains("1000 streams"), "{error:?}");
        open.pop();
        assert!(streams.open(None).is_ok());
        drop(open);
        assert_eq!(streams.metrics.open.get(), 0);
    }

    #[test]
    fn no_visitor_takes_the_streams_of_all_others() {
        let streams = Streams::new(StreamMetrics::register(&Registry::new()).unwrap());
        let (robot, anna) = (Some(Arc::from("robot")), Some(Arc::from("anna")));
        let mut open: Vec<StreamPermit> =
            (0..MAX_PER_NAME).map(|_| streams.open(robot.clone()).unwrap()).collect();
        let error = streams.open(robot.clone()).unwrap_err();
        assert!(error.detail.contains("750 streams of your name"), "{error:?}");
        assert!(streams.open(anna).is_ok());
        open.pop();
        assert!(streams.open(robot).is_ok());
        drop(open);
        assert!(streams.open.lock().is_empty());
    }
}

//! The limit on the memory that open pages use.

use std::sync::atomic::{AtomicI64, Ordering};

use axum::http::StatusCode;
use prometheus::IntGauge;

use crate::http::error::ApiError;

/// The maximum number of bytes that all open pages use together. Beyond it no further page is opened, but open pages
/// continue.
const MAX_BYTES: i64 = 32 << 20;
/// The bytes counted for a page until its first version is rendered.
const UNRENDERED: usize = 128 << 10;

/// The bytes that open pages use for their pictures and events. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct PageMemory(IntGauge);

/// Bytes that are counted as long as this value exists.
#[derive(Debug)]
pub(super) struct Kept {
    memory: PageMemory,
    bytes: AtomicI64,
}

impl PageMemory {
    /// Creates a count that uses this metric.
    pub(super) fn new(bytes: IntGauge) -> Self {
        Self(bytes)
    }

    /// Counts bytes until the returned value is dropped.
    pub(super) fn keep(&self, bytes: usize) -> Kept {
        let kept = Kept { memory: self.clone(), bytes: AtomicI64::new(0) };
        kept.add(bytes);
        kept
    }

    /// Reserves the bytes of a page that has not been rendered yet.
    ///
    /// # Errors
    /// If the open pages use too much memory.
    pub(super) fn reserve(&self) -> Result<Kept, ApiError> {
        let kept = self.keep(UNRENDERED);
        if self.exceeded() { Err(refusal()) } else { Ok(kept) }
    }

    /// Returns true if the open pages use more than the limit.
    pub(super) fn exceeded(&self) -> bool {
        self.0.get() > MAX_BYTES
    }
}

impl Kept {
    /// Counts further bytes.
    pub(super) fn add(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.0.add(bytes);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.0.sub(*self.bytes.get_mut());
    }
}

/// Returns the answer to a stream whose page cannot be opened.
pub(super) fn refusal() -> ApiError {
    let most = MAX_BYTES >> 20;
    let why = format!("open pages use their limit of {most} MiB: close some, or show fewer rows");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_opens_beyond_the_limit_until_others_close() {
        let memory = PageMemory::new(IntGauge::new("bytes", "Bytes.").unwrap());
        let most = usize::try_from(MAX_BYTES).unwrap();
        let mut waiting: Vec<Kept> =
            (0..most / UNRENDERED).map(|_| memory.reserve().unwrap()).collect();
        let error = memory.reserve().unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.detail.contains("32 MiB"), "{error:?}");
        assert!(!memory.exceeded(), "what was refused does not count");
        drop(waiting.pop());
        let page = memory.reserve().unwrap();
        page.add(1);
        assert!(memory.exceeded() && memory.reserve().is_err());
        drop(page);
        assert!(memory.reserve().is_ok());
        drop(waiting);
        assert_eq!(memory.0.get(), 0);
    }
}

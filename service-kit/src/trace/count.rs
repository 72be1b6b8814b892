//! A bound on queued spans, and counts of all spans by outcome.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::Handle;

/// Counts of this process' spans by outcome.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Accepted by the receiver.
    pub(crate) exported: AtomicU64,
    /// Sent, but rejected or not acknowledged in time.
    pub(crate) failed: AtomicU64,
    /// Not sent, since the queue was full.
    pub(crate) dropped: AtomicU64,
}

/// The counts of the process. Traces, like logs, are process-wide.
pub(crate) static COUNTS: Counts =
    Counts { exported: AtomicU64::new(0), failed: AtomicU64::new(0), dropped: AtomicU64::new(0) };

/// Bounds the number of queued spans, and counts those that it drops. The processor's own queue would drop silently; it
/// has the same bound, so it never overflows.
#[derive(Debug)]
pub(super) struct Gate {
    next: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    room: usize,
}

impl Gate {
    pub(super) fn new(next: BatchSpanProcessor, waiting: Arc<AtomicUsize>, room: usize) -> Self {
        Self { next, waiting, room }
    }
}

impl SpanProcessor for Gate {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.next.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.room {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            COUNTS.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.next.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.next.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.set_resource(resource);
    }
}

/// Exports on the runtime of the exporter's connections, within a time limit, and counts the outcomes.
#[derive(Debug)]
pub(super) struct Counted<E> {
    next: Arc<E>,
    runtime: Handle,
    waiting: Arc<AtomicUsize>,
    patience: Duration,
    failing: AtomicBool,
}

impl<E> Counted<E> {
    pub(super) fn new(
        next: E,
        runtime: Handle,
        waiting: Arc<AtomicUsize>,
        patience: Duration,
    ) -> Self {
        Self { next: Arc::new(next), runtime, waiting, patience, failing: AtomicBool::new(false) }
    }

    fn ended(&self, count: usize, result: &OTelSdkResult) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        // Logged on changes only: a receiver that is down for a day must not fill the log.
        match result {
            Ok(()) => {
                COUNTS.exported.fetch_add(count, Ordering::Relaxed);
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("traces are sent again");
                }
            }
            Err(reason) => {
                COUNTS.failed.fetch_add(count, Ordering::Relaxed);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%reason, "traces cannot be sent: spans are lost until they can");
                }
            }
        }
    }
}

impl<E: SpanExporter + 'static> SpanExporter for Counted<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let count = batch.len();
        self.waiting.fetch_sub(count, Ordering::AcqRel);
        let (next, patience) = (Arc::clone(&self.next), self.patience);
        let sent = self.runtime.spawn(async move {
            // Longer than the exporter's own timeout, which starts once it is connected.
            match tokio::time::timeout(patience, next.export(batch)).await {
                Ok(result) => result,
                Err(_) => Err(OTelSdkError::Timeout(patience)),
            }
        });
        async move {
            match sent.await {
                Ok(result) => {
                    self.ended(count, &result);
                    result
                }
                // The runtime has stopped, since the program is ending.
                Err(end) => Err(OTelSdkError::InternalFailure(end.to_string())),
            }
        }
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(next) = Arc::get_mut(&mut self.next) {
            next.set_resource(resource);
        }
    }
}

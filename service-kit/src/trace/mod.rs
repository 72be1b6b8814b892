//! Traces: spans of [`TARGET`], sent with OTLP to the endpoint of the standard `OTEL_*` variables.
//!
//! Without an endpoint nothing is set up: the log has the only layer, and each possible span costs the check of a flag.
//! With an endpoint, [`root`] samples each trace where it begins. Spans that are not sampled, and their children, are never
//! created. A bounded queue passes spans to a separate thread, so that code with spans never waits for the receiver.
//! Spans that do not fit into the queue are dropped and counted ([`crate::metrics::register_spans`]).

mod count;
mod endpoint;
mod export;
mod parent;
mod queue;
mod sampling;

use std::sync::OnceLock;

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(crate) use count::COUNTS;
pub(crate) use export::{Exporting, Program, check};
pub use parent::TraceParent;
use sampling::Sampling;

/// The target of all spans of traces. Spans and events with it do not appear in the log, and all others not in traces.
pub const TARGET: &str = "trace";

/// The sampling of traces; unset while traces are off.
static SAMPLING: OnceLock<Sampling> = OnceLock::new();

/// Returns `true` while traces are sent. Data that only spans need can be skipped otherwise.
#[must_use]
pub fn is_on() -> bool {
    SAMPLING.get().is_some()
}

fn begin(sampling: Sampling) {
    // A second telemetry is rejected before this is called.
    SAMPLING.set(sampling).ok();
}

/// Returns the first span of this process' part of a trace, a child of `parent` unless that is empty. Returns a disabled
/// span, without calling `make`, if the trace is not sampled. Children of a disabled span are disabled.
#[must_use]
pub fn root(parent: &TraceParent, make: impl FnOnce() -> Span) -> Span {
    match SAMPLING.get() {
        Some(sampling) if sampling.wants(parent.context()) => within(make(), parent),
        _ => Span::none(),
    }
}

/// Makes a new span a child of `parent`, unless that is empty.
#[must_use]
pub fn within(span: Span, parent: &TraceParent) -> Span {
    if let Some(parent) = parent.context().filter(|_| !span.is_disabled()) {
        // Setting it fails for a span that has started, which a new one has not, and for a disabled one.
        span.set_parent(Context::new().with_remote_span_context(parent.clone())).ok();
    }
    span
}

/// Links a span to a related one that is not its parent.
pub fn link(span: &Span, to: &TraceParent) {
    if let Some(to) = to.context().filter(|_| !span.is_disabled()) {
        span.add_link(to.clone());
    }
}

/// Adds an event with a number to a span.
pub fn event(span: &Span, name: &'static str, key: &'static str, value: u64) {
    if !span.is_disabled() {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        span.add_event(name, vec![KeyValue::new(key, value)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn without_traces_spans_have_no_context() {
        let span = within(tracing::info_span!(target: TARGET, "x"), &TraceParent::read(HEADER));
        assert!(span.is_disabled());
        assert!(TraceParent::of(&span).is_empty());
        link(&span, &TraceParent::read(HEADER));
        event(&span, "happened", "to", 1);
    }

    #[test]
    fn without_traces_no_span_is_created() {
        let span = root(&TraceParent::read(HEADER), || unreachable!("not sampled"));
        assert!(span.is_disabled() && !is_on());
    }
}

//! Traces: spans of [`TARGET`], sent by OTLP to where the standard `OTEL_*` variables say.
//!
//! Without an endpoint nothing is set up: there is no layer beside that of the log, and what would be a span costs one look
//! at a flag. With one, it is decided where a trace begins whether it is wanted ([`root`]); what is not wanted is not made, nor
//! anything below it. Spans go through a bounded queue to a thread of their own. Whoever makes spans never waits for those that take them, and those that find no room are
//! counted ([`crate::metrics::register_spans`]).

mod count;
mod endpoint;
mod export;
mod parent;
mod sampling;

use std::sync::OnceLock;

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(crate) use count::COUNTS;
pub(crate) use export::{Exporting, Program};
pub use parent::TraceParent;
use sampling::Sampling;

/// The target of every span that belongs into traces: what has it is no log line, and the other way round.
pub const TARGET: &str = "trace";

/// Which spans go anywhere; none before it is set.
static SAMPLING: OnceLock<Sampling> = OnceLock::new();

/// Whether traces are sent: what is needed for spans only is not to be made otherwise.
#[must_use]
pub fn is_on() -> bool {
    SAMPLING.get().is_some()
}

fn begin(sampling: Sampling) {
    // One program has one telemetry; a second one is refused before it comes here.
    SAMPLING.set(sampling).ok();
}

/// The span that this process' part of a trace begins with, a child of what `parent` names if that is anything: made if
/// the trace is wanted, and otherwise empty, at the cost of that decision. What is made of an empty span is empty.
#[must_use]
pub fn root(parent: &TraceParent, make: impl FnOnce() -> Span) -> Span {
    match SAMPLING.get() {
        Some(sampling) if sampling.wants(parent.context()) => within(make(), parent),
        _ => Span::none(),
    }
}

/// Makes a new span a child of what `parent` names, if that is anything.
#[must_use]
pub fn within(span: Span, parent: &TraceParent) -> Span {
    if let Some(parent) = parent.context().filter(|_| !span.is_disabled()) {
        // It is refused to a span that has begun, which a new one has not, and to one that no trace wants.
        span.set_parent(Context::new().with_remote_span_context(parent.clone())).ok();
    }
    span
}

/// Says that a span has to do with another one, which is no parent of its.
pub fn link(span: &Span, to: &TraceParent) {
    if let Some(to) = to.context().filter(|_| !span.is_disabled()) {
        span.add_link(to.clone());
    }
}

/// Notes that something happened to a span now, with a figure about it.
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
    fn without_traces_there_are_no_places() {
        let span = within(tracing::info_span!(target: TARGET, "x"), &TraceParent::read(HEADER));
        assert!(span.is_disabled());
        assert!(TraceParent::of(&span).is_empty());
        link(&span, &TraceParent::read(HEADER));
        event(&span, "happened", "to", 1);
    }

    #[test]
    fn without_traces_nothing_is_made() {
        let span = root(&TraceParent::read(HEADER), || unreachable!("nobody wants it"));
        assert!(span.is_disabled() && !is_on());
    }
}

//! Traces: spans of [`TARGET`], sent by OTLP to where the standard `OTEL_*` variables say.
//!
//! Without an endpoint nothing is set up, and a span costs one look at a flag. With one, spans go through a bounded queue
//! to a thread of their own. Whoever makes spans never waits for those that take them, and those that find no room are
//! counted ([`crate::metrics::register_spans`]).

mod count;
mod endpoint;
mod export;

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(crate) use count::COUNTS;
pub(crate) use export::{Exporting, Program};

/// The target of every span that belongs into traces: what has it is no log line, and the other way round.
pub const TARGET: &str = "trace";

/// Whether any span goes anywhere.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether traces are sent: what is needed for spans only is not to be made otherwise.
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

pub(crate) fn switch_on() {
    ON.store(true, Ordering::Relaxed);
}

/// A place in a trace, by which a span becomes another one's child or links to it. It does not keep the span open that
/// it was taken of. Empty where there is none, as when traces are off.
#[derive(Debug, Clone, Default)]
pub struct TraceParent(Option<Box<SpanContext>>);

impl TraceParent {
    /// That of a span; it begins the span's place in the trace, so that its own parent must be set before.
    #[must_use]
    pub fn of(span: &Span) -> Self {
        if span.is_disabled() {
            return Self::default();
        }
        Self::valid(span.context().span().span_context())
    }

    /// From a header or argument of W3C Trace Context (`00-<trace>-<span>-<flags>`); empty if it is none.
    #[must_use]
    pub fn read(header: &str) -> Self {
        let carrier =
            std::collections::HashMap::from([("traceparent".to_owned(), header.to_owned())]);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        Self::valid(context.span().span_context())
    }

    /// Whether it is nowhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn valid(context: &SpanContext) -> Self {
        Self(context.is_valid().then(|| Box::new(context.clone())))
    }
}

/// Makes a new span a child of what `parent` names, if that is anything.
#[must_use]
pub fn within(span: Span, parent: &TraceParent) -> Span {
    if let Some(parent) = parent.0.as_deref().filter(|_| !span.is_disabled()) {
        // It is refused to a span that has begun, which a new one has not, and to one that no trace wants.
        span.set_parent(Context::new().with_remote_span_context(parent.clone())).ok();
    }
    span
}

/// Says that a span has to do with another one, which is no parent of its.
pub fn link(span: &Span, to: &TraceParent) {
    if let Some(to) = to.0.as_deref().filter(|_| !span.is_disabled()) {
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

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_is_read() {
        let TraceParent(Some(context)) = TraceParent::read(HEADER) else { panic!("not read") };
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled());
    }

    #[test]
    fn what_is_no_header_is_nothing() {
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let short = "00-0af7651916cd43dd8448eb211c80319c";
        for text in ["", "nonsense", zeros, short] {
            assert!(TraceParent::read(text).0.is_none(), "{text}");
        }
    }

    #[test]
    fn without_traces_there_are_no_places() {
        let span = within(tracing::info_span!(target: TARGET, "x"), &TraceParent::read(HEADER));
        assert!(span.is_disabled());
        assert!(TraceParent::of(&span).0.is_none());
        link(&span, &TraceParent::read(HEADER));
        event(&span, "happened", "to", 1);
    }
}

//! Span contexts: those of this process' spans, and those that clients send.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The context of a span, to which another span becomes a child or a link. It does not keep its span open. Empty if
/// there is no context, as while traces are off.
#[derive(Debug, Clone, Default)]
pub struct TraceParent(Option<Box<SpanContext>>);

impl TraceParent {
    /// Returns the context of a span. This fixes the span's place in its trace, so its own parent must be set before.
    #[must_use]
    pub fn of(span: &Span) -> Self {
        if span.is_disabled() {
            return Self::default();
        }
        Self::valid(span.context().span().span_context().clone())
    }

    /// Parses a header or argument of W3C Trace Context (`00-<trace>-<span>-<flags>`). Invalid ones are empty.
    #[must_use]
    pub fn read(header: &[u8]) -> Self {
        parse(header).map_or_else(Self::default, Self::valid)
    }

    /// Returns `true` if there is no context.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn context(&self) -> Option<&SpanContext> {
        self.0.as_deref()
    }

    fn valid(context: SpanContext) -> Self {
        Self(context.is_valid().then(|| Box::new(context)))
    }
}

/// Parses a header. Later versions may append fields; version `ff` is invalid.
fn parse(header: &[u8]) -> Option<SpanContext> {
    let (known, more) = header.split_at_checked(55)?;
    let [v1, v2, b'-', ..] = known else { return None };
    let version = number(&[*v1, *v2])?;
    if version == 0xff || !(more.is_empty() || version > 0 && more[0] == b'-') {
        return None;
    }
    if known[35] != b'-' || known[52] != b'-' {
        return None;
    }
    let trace = TraceId::from(number(&known[3..35])?);
    let span = SpanId::from(u64::try_from(number(&known[36..52])?).ok()?);
    let flags = u8::try_from(number(&known[53..])?).ok()?;
    // Of the flags only the sampled one is used.
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    Some(SpanContext::new(trace, span, flags, true, TraceState::default()))
}

/// Parses at most 32 lower-case hexadecimal digits.
fn number(hex: &[u8]) -> Option<u128> {
    hex.iter().try_fold(0, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(header: &str) -> TraceParent {
        TraceParent::read(header.as_bytes())
    }

    #[test]
    fn a_header_is_read() {
        let parent = read(HEADER);
        let context = parent.context().unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        let unwanted = read(&HEADER.replace("-01", "-00"));
        assert!(!unwanted.context().unwrap().is_sampled());
        for later in [HEADER.replace("00-", "cc-"), HEADER.replace("00-", "cc-") + "-what-to-come"]
        {
            assert!(read(&later).context().unwrap().is_sampled(), "{later}");
        }
        assert!(read(&HEADER.replace("-01", "-03")).context().unwrap().is_sampled());
    }

    #[test]
    fn an_invalid_header_has_no_parent() {
        for text in [
            "",
            "nonsense",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c+b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331+01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            "00+0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}

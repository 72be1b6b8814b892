//! Head sampling: decides once per trace, before its first span is created. A trace that is not sampled costs this
//! decision only; its other spans cost nothing.

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

/// The number of values of the part of a trace id that sampling compares: the lower eight bytes without their last bit.
const RANGE: u64 = 1 << 63;

/// The sampling configured by `OTEL_TRACES_SAMPLER` and its argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sampling {
    share: Share,
    /// Adopts the decision of the parent, if there is one.
    parents_decide: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    None,
    /// The traces whose id is below this bound, out of [`RANGE`].
    Below(u64),
}

impl Sampling {
    /// Reads the variables. By default all traces are sampled, except those whose parent is not.
    ///
    /// # Errors
    ///
    /// A sentence with the invalid variable and the expected value. Sampling everything instead, as libraries do, may be
    /// a hundred times too much.
    pub(super) fn from_env(env: &impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let sampler = env("OTEL_TRACES_SAMPLER").filter(|value| !value.is_empty());
        let sampler = sampler.as_deref().unwrap_or("parentbased_always_on");
        let (root, parents_decide) = match sampler.strip_prefix("parentbased_") {
            Some(root) => (root, true),
            None => (sampler, false),
        };
        let share = match root {
            "always_on" => Share::All,
            "always_off" => Share::None,
            "traceidratio" => {
                let share = env("OTEL_TRACES_SAMPLER_ARG").and_then(|share| share.parse().ok());
                share
                    .and_then(Share::of)
                    .ok_or("OTEL_TRACES_SAMPLER_ARG: expected a share from 0 to 1")?
            }
            _ => {
                return Err(format!(
                    "OTEL_TRACES_SAMPLER: `{sampler}`; expected always_on, always_off or traceidratio, each also with parentbased_ before it"
                ));
            }
        };
        Ok(Self { share, parents_decide })
    }

    /// Decides about a trace that begins here, or about this process' part of its parent's.
    pub(super) fn wants(self, parent: Option<&SpanContext>) -> bool {
        match parent {
            Some(parent) if self.parents_decide => parent.is_sampled(),
            Some(parent) => self.share.takes(|| parent.trace_id()),
            None => self.share.takes(|| RandomIdGenerator::default().new_trace_id()),
        }
    }

    /// Returns the generator of ids for sampled traces that begin here.
    pub(super) fn ids(self) -> Ids {
        Ids { random: RandomIdGenerator::default(), share: self.share }
    }
}

impl Share {
    fn of(share: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&share) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a power of two, not negative and not above it"
        )]
        let below = (share * RANGE as f64) as u64;
        Some(match below {
            0 => Self::None,
            RANGE.. => Self::All,
            _ => Self::Below(below),
        })
    }

    fn takes(self, id: impl FnOnce() -> TraceId) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Below(below) => place(id()) < below,
        }
    }
}

/// Returns the part of an id that sampling compares, as all implementations of the standard do.
fn place(id: TraceId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = id.to_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1
}

/// A generator of random trace ids below the share's bound. A receiver that samples the same share by id keeps them all.
#[derive(Debug)]
pub(super) struct Ids {
    random: RandomIdGenerator,
    share: Share,
}

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        let id = self.random.new_trace_id();
        let Share::Below(below) = self.share else { return id };
        let [upper @ .., _, _, _, _, _, _, _, last] = id.to_bytes();
        let lower = (place(id) % below) << 1 | u64::from(last & 1);
        TraceId::from(u128::from(u64::from_be_bytes(upper)) << 64 | u128::from(lower))
    }

    fn new_span_id(&self) -> SpanId {
        self.random.new_span_id()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{TraceFlags, TraceState};

    use super::*;

    const NEVER: u128 = u128::MAX;
    const FIRST: u128 = 1 << 64;

    fn read(sampler: &str, argument: &str) -> Result<Sampling, String> {
        Sampling::from_env(&|name| match name {
            "OTEL_TRACES_SAMPLER" => Some(sampler.to_owned()),
            "OTEL_TRACES_SAMPLER_ARG" => Some(argument.to_owned()),
            _ => None,
        })
    }

    fn parent(id: u128, sampled: bool) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(sampled);
        SpanContext::new(id.into(), SpanId::from(7), flags, true, TraceState::default())
    }

    #[test]
    fn every_sampler_of_the_standard_is_known() {
        for (sampler, alone, below_unwanted, above_wanted) in [
            ("", true, false, true),
            ("always_on", true, true, true),
            ("always_off", false, false, false),
            ("parentbased_always_on", true, false, true),
            ("parentbased_always_off", false, false, true),
        ] {
            let sampling = read(sampler, "").unwrap();
            let wants = [
                sampling.wants(None),
                sampling.wants(Some(&parent(FIRST, false))),
                sampling.wants(Some(&parent(NEVER, true))),
            ];
            assert_eq!(wants, [alone, below_unwanted, above_wanted], "{sampler}");
        }
    }

    #[test]
    fn a_share_goes_by_the_id_unless_the_parent_decides() {
        let by_id = read("traceidratio", "0.5").unwrap();
        let by_parent = read("parentbased_traceidratio", "0.5").unwrap();
        for (id, sampled) in [(FIRST, false), (FIRST, true), (NEVER, false), (NEVER, true)] {
            let parent = parent(id, sampled);
            assert_eq!(by_id.wants(Some(&parent)), id == FIRST);
            assert_eq!(by_parent.wants(Some(&parent)), sampled);
        }
    }

    #[test]
    fn as_many_begin_as_were_asked_for() {
        for (argument, least, most) in [("0", 0, 0), ("0.01", 600, 1_400), ("1", 100_000, 100_000)]
        {
            let sampling = read("traceidratio", argument).unwrap();
            let taken = (0..100_000).filter(|_| sampling.wants(None)).count();
            assert!((least..=most).contains(&taken), "{argument}: {taken}");
        }
    }

    #[test]
    fn ids_that_begin_here_are_taken_by_others_too() {
        let sampling = read("traceidratio", "0.001").unwrap();
        let ids = sampling.ids();
        let made: std::collections::BTreeSet<_> =
            (0..1_000).map(|_| ids.new_trace_id().to_bytes()).collect();
        assert_eq!(made.len(), 1_000);
        for id in made {
            assert!(sampling.wants(Some(&parent(u128::from_be_bytes(id), false))));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (sampler, argument, variable) in [
            ("jaeger_remote", "", "OTEL_TRACES_SAMPLER: `jaeger_remote`"),
            ("parentbased_", "", "OTEL_TRACES_SAMPLER: `parentbased_`"),
            ("traceidratio", "", "OTEL_TRACES_SAMPLER_ARG"),
            ("traceidratio", "25", "OTEL_TRACES_SAMPLER_ARG"),
            ("parentbased_traceidratio", "-0.1", "OTEL_TRACES_SAMPLER_ARG"),
            ("traceidratio", "NaN", "OTEL_TRACES_SAMPLER_ARG"),
        ] {
            let error = read(sampler, argument).unwrap_err();
            assert!(error.contains(variable), "{error}");
        }
    }
}

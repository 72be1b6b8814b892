//! Logs, one line an event on stderr, text for people and JSON for machines; and traces, where they are wanted.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::trace::{self, Exporting, Program};

/// How long the last spans may take to be sent at the program's end.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The filter is not one; see [`check_filter`].
    #[error("{0}")]
    Filter(String),
    /// [`init`] was called before, in this process.
    #[error("logging is set up already: {0}")]
    Twice(#[from] TryInitError),
}

/// What [`init`] has begun; to be [finished](Telemetry::finish) as the program's last act.
#[derive(Debug)]
#[must_use = "spans that wait to be sent are lost unless it is finished"]
pub struct Telemetry {
    traces: Option<Exporting>,
}

impl Telemetry {
    /// Sends the spans that wait, for a moment at most. Must not be called on a runtime.
    pub fn finish(self) {
        if let Some(traces) = self.traces {
            traces.finish(LAST_SPANS);
        }
    }
}

/// Starts logging to stderr: text when that is a terminal, else JSON. `filter` is a level or a list
/// of `target=level`, such as `info` or `info,lockscope_agent=debug`. Starts sending [traces](trace)
/// as well, as a program of this name and version, where the `OTEL_*` variables want it; a mistake
/// in those is told and leaves them off, since a program does its work without traces too.
///
/// # Errors
///
/// When the filter cannot be read, or logging runs already.
pub fn init(
    filter: &str,
    name: &'static str,
    version: &'static str,
) -> Result<Telemetry, InitError> {
    let filter = parse_filter(filter).map_err(InitError::Filter)?;
    let lines = if io::stderr().is_terminal() {
        fmt::layer().with_writer(io::stderr).boxed()
    } else {
        fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed()
    };
    let is_trace = |metadata: &Metadata<'_>| metadata.target() == trace::TARGET;
    let lines = lines.with_filter(filter.and(filter_fn(move |metadata| !is_trace(metadata))));
    let (traces, mistake) = match Exporting::from_env(Program { name, version }) {
        Ok(traces) => (traces, None),
        Err(mistake) => (None, Some(mistake)),
    };
    let registry = tracing_subscriber::registry().with(lines);
    match &traces {
        // No layer, rather than one that is empty: beside an empty one every span is asked about anew each time,
        // and an event that follows such a question may be taken for one that nobody wants.
        None => registry.try_init()?,
        Some(traces) => {
            let spans = tracing_opentelemetry::layer()
                .with_tracer(traces.tracer())
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false);
            // The level tells all that is not asked for by the log's filter from the start that nobody wants it.
            let ours = filter_fn(is_trace).with_max_level_hint(LevelFilter::INFO);
            registry.with(spans.with_filter(ours)).try_init()?;
            traces.begin();
        }
    }
    if let Some((endpoint, protocol)) = traces.as_ref().map(Exporting::shown) {
        tracing::info!(endpoint, protocol, "sending traces");
    }
    if let Some(mistake) = mistake {
        tracing::error!("no traces are sent: {mistake}");
    }
    Ok(Telemetry { traces })
}

/// For a setting: the filter as it was given, if [`init`] would take it.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn check_filter(filter: &str) -> Result<String, String> {
    parse_filter(filter).map(|_| filter.to_owned())
}

fn parse_filter(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(filter).map_err(|error| {
        format!("`{filter}` is no log filter ({error}); expected a level such as `info`, or `info,target=debug`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        assert_eq!(check_filter("info,redis=warn").unwrap(), "info,redis=warn");
        let error = check_filter("info,redis=loud").unwrap_err();
        assert!(error.contains("info,redis=loud"), "{error}");
    }
}

//! Logs on stderr, one line per event, as text or JSON; and traces, where configured.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::Duration;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, ParseError, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

use crate::stderr::Stderr;
use crate::trace::{self, Exporting, Program};

/// The limit for sending the last spans at the program's end.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The form of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text if stderr is a terminal, otherwise JSON.
    Auto,
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    fn is_text(self) -> bool {
        match self {
            Self::Auto => io::stderr().is_terminal(),
            Self::Text => true,
            Self::Json => false,
        }
    }
}

/// The settings of the log.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// A level or a list of `target=level`, such as `info` or `info,lockscope_agent=debug`.
    pub filter: String,
    /// The form of the lines.
    pub format: LogFormat,
}

/// A failure to set up logging.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// An invalid filter; see [`check_filter`].
    #[error("{0}")]
    Filter(String),
    /// A second call of [`init`] in this process.
    #[error("logging is set up already: {0}")]
    Twice(#[from] TryInitError),
}

/// A handle to the telemetry that [`init`] started. The program [finishes](Telemetry::finish) it last.
#[derive(Debug)]
#[must_use = "spans that wait to be sent are lost unless it is finished"]
pub struct Telemetry {
    traces: Option<Exporting>,
}

impl Telemetry {
    /// Sends the queued spans, within 2 seconds. Must not be called on a runtime.
    pub fn finish(self) {
        if let Some(traces) = self.traces {
            traces.finish(LAST_SPANS);
        }
    }
}

/// Starts logging to stderr. Also starts sending [traces](trace) under this name and version of the
/// program, if the `OTEL_*` variables configure them. A mistake in the variables is logged and disables
/// traces, which no program needs to work.
///
/// # Errors
///
/// An invalid filter, or a second call.
pub fn init(
    log: &LogSettings,
    name: &'static str,
    version: &'static str,
) -> Result<Telemetry, InitError> {
    let filter = parse_filter(&log.filter).map_err(InitError::Filter)?;
    let stderr = Mutex::new(Stderr::new());
    let lines = if log.format.is_text() {
        fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(stderr).boxed()
    } else {
        fmt::layer().json().flatten_event(true).with_writer(stderr).boxed()
    };
    let is_trace = |metadata: &Metadata<'_>| metadata.target() == trace::TARGET;
    let lines = lines.with_filter(filter.and(filter_fn(move |metadata| !is_trace(metadata))));
    let (traces, mistake) = match Exporting::from_env(Program { name, version }) {
        Ok(traces) => (traces, None),
        Err(mistake) => (None, Some(mistake)),
    };
    let registry = tracing_subscriber::registry().with(lines);
    match &traces {
        // No layer instead of an empty one: next to an empty layer the interest in every span is evaluated each time,
        // and an event that follows such an evaluation may be discarded.
        None => registry.try_init()?,
        Some(traces) => {
            let spans = tracing_opentelemetry::layer()
                .with_tracer(traces.tracer())
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false);
            // The level hint rejects early what neither the log's filter nor the traces want.
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

/// Checks the `OTEL_*` variables as [`init`] reads them, without sending anything.
///
/// # Errors
///
/// A sentence that describes the first mistake.
pub fn check_traces(env: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    trace::check(env)
}

/// Returns the filter unchanged if [`init`] accepts it. A value parser for a setting.
///
/// # Errors
///
/// A sentence that describes the mistake.
pub fn check_filter(filter: &str) -> Result<String, String> {
    parse_filter(filter).map(|_| filter.to_owned())
}

fn parse_filter(filter: &str) -> Result<Targets, String> {
    let mistake = |what: &dyn Display| {
        format!(
            "`{filter}` is not a log filter ({what}); expected a level such as `info`, or `info,target=debug`"
        )
    };
    if filter.contains('[') {
        return Err(mistake(&"spans and fields cannot be filtered"));
    }
    // An empty part would be an order to log errors only.
    let parts: Vec<&str> =
        filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Err(mistake(&"it is empty"));
    }
    // A lone word that is no level would select a module of that name, and turn everything else off.
    for part in &parts {
        let (module, level) = part.split_once('=').unwrap_or(("all", part));
        if module.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(mistake(&format_args!("`{part}` has no level")));
        }
    }
    parts.join(",").parse().map_err(|error: ParseError| mistake(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        assert_eq!(check_filter("info,redis=warn").unwrap(), "info,redis=warn");
        let error = check_filter("info,redis=loud").unwrap_err();
        assert!(error.contains("info,redis=loud"), "{error}");
        let usual = parse_filter("info,redis=warn").unwrap();
        assert_eq!(parse_filter(" info,, redis=warn,").unwrap(), usual);
        for bad in ["warning", "wran", "info,wran", "", ",", "="] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
        assert!(check_filter("off").is_ok());
        assert!(check_filter("[lock]=debug").unwrap_err().contains("[lock]=debug"));
    }
}

//! Logs: one line an event on stderr, text for people and JSON for machines.

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, fmt};

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

/// Starts logging to stderr: text when that is a terminal, else JSON. `filter` is a level or a list
/// of `target=level`, such as `info` or `info,lockscope_agent=debug`.
///
/// # Errors
///
/// When the filter cannot be read, or logging runs already.
pub fn init(filter: &str) -> Result<(), InitError> {
    let filter = parse_filter(filter).map_err(InitError::Filter)?;
    let lines = if io::stderr().is_terminal() {
        fmt::layer().with_writer(io::stderr).boxed()
    } else {
        fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).try_init()?;
    Ok(())
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

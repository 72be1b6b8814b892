//! The environment variables that describe the locks to the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, absolute};
use std::process::Command;

use super::grant::{Grant, Held};

/// The variable of the trace context (OpenTelemetry, "environment variables as context carriers").
const TRACEPARENT: &str = "TRACEPARENT";

/// Returns the inherited trace context, or a new one.
pub(crate) fn traceparent() -> Option<String> {
    let inherited = std::env::var(TRACEPARENT).ok().filter(|text| is_traceparent(text));
    inherited.or_else(|| {
        let mut random = [0; 24];
        getrandom::fill(&mut random).ok()?;
        let (trace, span) = random.split_at(16);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Some(format!("00-{}-{}-01", hex(trace), hex(span)))
    })
}

/// Returns whether a text has the form of W3C Trace Context: `version-trace-span-flags` in lower-case hex digits.
fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [2, 32, 16, 2] && parts.iter().all(|part| is_hex(part))
}

/// Sets the variables. With several locks, each value has one line per lock in the order of the command line.
pub(crate) fn set(command: &mut Command, grant: &Grant, socket: &Path, traceparent: Option<&str>) {
    let names: Vec<&[u8]> = grant.locks.iter().map(|lock| lock.name.as_slice()).collect();
    command.env("LOCKSCOPE_LOCK", OsString::from_vec(names.join(&b'\n')));
    command.env("LOCKSCOPE_HOLDER", lines(grant, |lock| Some(lock.holder.clone())));
    // The command may change its working directory.
    command.env("LOCKSCOPE_SOCKET", absolute(socket).unwrap_or_else(|_| socket.to_owned()));
    if grant.locks.iter().any(|lock| lock.token.is_some()) {
        command
            .env("LOCKSCOPE_TOKEN", lines(grant, |lock| lock.token.map(|token| token.to_string())));
    } else {
        // An inherited token belongs to another lock.
        command.env_remove("LOCKSCOPE_TOKEN");
    }
    if let Some(traceparent) = traceparent {
        command.env(TRACEPARENT, traceparent);
    }
}

fn lines(grant: &Grant, of: impl Fn(&Held) -> Option<String>) -> String {
    let lines: Vec<String> = grant.locks.iter().map(|lock| of(lock).unwrap_or_default()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_trace_contexts_are_inherited() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for text in
            ["", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", "00-4BF9-0-01", "x"]
        {
            assert!(!is_traceparent(text), "{text}");
        }
        assert!(traceparent().is_some_and(|text| is_traceparent(&text)));
    }
}

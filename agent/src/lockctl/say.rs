//! What `lockctl` says to the person at the terminal.

use std::io::Write as _;

/// Writes a line to standard error. Nobody may be there to read it, which is no reason to stop.
pub(crate) fn say(text: &str) {
    let line = format!("lockctl: {text}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap_or_default();
}

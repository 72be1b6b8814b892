//! Output on standard output and standard error.

use std::io::{self, Write as _};

/// Writes a message to standard error, ignoring failures.
pub(crate) fn notice(text: &str) {
    let line = format!("lockctl: {text}\n");
    io::stderr().write_all(line.as_bytes()).unwrap_or_default();
}

/// Writes lines to standard output.
///
/// # Errors
/// Fails if standard output is closed.
pub(crate) fn print(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

//! Output on standard output and standard error.

use std::io::{self, Write as _};

use rustix::termios::tcgetwinsize;

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

/// Returns the rows and columns of the terminal that is standard output; `None` if it is not a terminal or its
/// width is not known.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| (size.ws_row.into(), size.ws_col.into()))
}

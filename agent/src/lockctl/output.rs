//! Output on standard output and standard error.

use std::io::{self, Write as _};
use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::tcgetwinsize;
use service_kit::stderr::Stderr;

use crate::reply::printable;

static STDERR: Mutex<Stderr> = Mutex::new(Stderr::new());

/// Writes a message to standard error, with control characters escaped, ignoring failures. What standard error cannot take at
/// once is dropped: a command whose lock is lost must end, even if nobody reads messages.
pub(crate) fn notice(text: &str) {
    let mut stderr = STDERR.lock();
    let text = printable(text.as_bytes());
    stderr.write_all(format!("lockctl: {text}\n").as_bytes()).unwrap_or_default();
}

/// Writes lines to standard output.
///
/// # Errors
/// Fails if standard output is closed, even without a line to write: what follows something may have to wait long for one.
pub(crate) fn print(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if lines.is_empty() && is_closed(&out) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    for line in lines {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Returns whether the reader of a pipe or socket has closed it.
fn is_closed(out: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns the rows and columns of the terminal that is standard output; `None` if it is not a terminal or its
/// width is not known.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| (size.ws_row.into(), size.ws_col.into()))
}

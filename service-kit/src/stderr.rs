//! Standard error, for programs that must continue if nobody reads it.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The number of bytes for which a pipe has room when it is ready for writing, in Linux.
const PIPE_BUF: usize = 4096;

/// Standard error. What it cannot take at once is dropped, and counts as written.
#[derive(Debug, Default)]
pub struct Stderr {
    /// The end of the last line that was written is missing.
    cut: bool,
}

impl Stderr {
    /// Creates a writer, also in a constant.
    #[must_use]
    pub const fn new() -> Self {
        Self { cut: false }
    }
}

impl Write for Stderr {
    /// Writes one or several whole lines.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        for (n, part) in lines.chunks(PIPE_BUF - 1).enumerate() {
            if !is_ready(&stderr) {
                self.cut |= n > 0;
                break;
            }
            if std::mem::take(&mut self.cut) {
                stderr.write_all(b"\n")?;
            }
            stderr.write_all(part)?;
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns whether a write of [`PIPE_BUF`] bytes does not block.
fn is_ready(out: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

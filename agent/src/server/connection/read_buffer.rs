//! The bytes that have been read but not yet decoded.

use std::io;

use rustix::buffer::spare_capacity;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The initial buffer: room for a few commands. Ten thousand idle sessions keep little more than this.
const SMALL: usize = 512;
/// The buffer once the initial one has been filled.
const BIG: usize = 16 * 1024;

/// A connection's input buffer.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    /// The number of leading bytes already decoded.
    consumed: usize,
    /// The last read filled the buffer, so the socket may have more.
    filled: bool,
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Some,
    Nothing,
    /// End of stream.
    End,
}

impl ReadBuffer {
    /// Returns the bytes not yet decoded.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Discards `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.consumed == self.bytes.len() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.consumed = 0;
    }

    /// Reads the available bytes, up to the size of the buffer.
    pub(super) fn read(&mut self, stream: &UnixStream) -> io::Result<Read> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        self.bytes.reserve(if self.filled { BIG } else { SMALL });
        let room = self.bytes.capacity() - self.bytes.len();
        let mut count = None;
        let result = stream.try_io(Interest::READABLE, || {
            let read = rustix::io::read(stream, spare_capacity(&mut self.bytes))?;
            count = Some(read);
            // A read that leaves room has drained the socket; clearing the readiness saves a system call.
            if read > 0 && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        self.filled = count == Some(room);
        match (count, result) {
            (Some(0), _) => Ok(Read::End),
            (Some(_), _) => Ok(Read::Some),
            (None, Err(error)) if is_transient(&error) => Ok(Read::Nothing),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(Read::Nothing),
        }
    }

    /// Frees memory after a large request.
    pub(super) fn trim(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() > 2 * SMALL {
            *self = Self::default();
        }
    }
}

pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

//! What has been read and not yet understood.

use std::io;

use rustix::buffer::spare_capacity;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Room for reading at first: a command or some. Ten thousand idle sessions keep little more than this.
const SMALL: usize = 512;
/// Room for reading once that has been filled.
const BIG: usize = 16 * 1024;

/// A connection's input buffer.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    /// How many of them are done with.
    consumed: usize,
    /// Whether the last read could have had more.
    filled: bool,
}

/// What a read has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Some,
    Nothing,
    /// None ever again.
    End,
}

impl ReadBuffer {
    /// The bytes not yet done with.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Drops `count` of them.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.consumed == self.bytes.len() {
            self.clear();
        }
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.consumed = 0;
    }

    /// Reads what there is, up to a moderate amount.
    pub(super) fn read(&mut self, stream: &UnixStream) -> io::Result<Read> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        self.bytes.reserve(if self.filled { BIG } else { SMALL });
        let room = self.bytes.capacity() - self.bytes.len();
        let mut count = None;
        let result = stream.try_io(Interest::READABLE, || {
            let read = rustix::io::read(stream, spare_capacity(&mut self.bytes))?;
            count = Some(read);
            // A read that leaves room has emptied the socket: saying so saves asking it again.
            if read > 0 && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        self.filled = count == Some(room);
        match (count, result) {
            (Some(0), _) => Ok(Read::End),
            (Some(_), _) => Ok(Read::Some),
            (None, Err(error)) if is_passing(&error) => Ok(Read::Nothing),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(Read::Nothing),
        }
    }

    /// Gives memory back after a big request.
    pub(super) fn trim(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() > 2 * SMALL {
            *self = Self::default();
        }
    }
}

/// Whether the same call may go well in a moment.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

//! What is to be written.

use std::io;

use tokio::net::UnixStream;

use super::read_buffer::is_passing;
use crate::protocol::resp::{Outgoing, Protocol, encode, encode_push};

/// From how many unsent bytes on nothing more is collected from the core, and no command taken.
pub(super) const MOST: usize = 4 * 1024 * 1024;
/// The buffer that an idle connection may keep, in bytes.
const KEPT: usize = 1024;

/// A connection's output buffer.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    bytes: Vec<u8>,
    sent: usize,
    protocol: Protocol,
}

impl WriteBuffer {
    /// Whether all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether nothing more should be put in.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() - self.sent >= MOST
    }

    /// Appends what the core or the connection says.
    pub(super) fn put(&mut self, outgoing: &Outgoing) {
        match outgoing {
            Outgoing::Reply(frame) => encode(frame, self.protocol, &mut self.bytes),
            Outgoing::Switch(protocol, frame) => {
                self.protocol = *protocol;
                encode(frame, self.protocol, &mut self.bytes);
            }
            Outgoing::Push(items) => encode_push(items, self.protocol, &mut self.bytes),
            Outgoing::Close => {}
        }
    }

    /// Writes as much as the socket takes now.
    pub(super) fn flush(&mut self, stream: &UnixStream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.try_write(&self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if is_passing(&error) => {
                    // Each byte is moved about once, and the buffer stays within twice what is unsent.
                    if self.sent > self.bytes.len() / 2 {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }

    /// Gives memory back after a big reply.
    pub(super) fn trim(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }
}

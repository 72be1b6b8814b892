//! The replies and pushes that have not been written yet.

use std::io;

use tokio::net::UnixStream;

use super::buffers::{BACKLOG, Share};
use super::read_buffer::is_transient;
use crate::protocol::resp::{Outgoing, Protocol, encode, encode_push};

/// The number of unsent bytes above which the connection reads no more commands and collects no more replies.
pub(super) const MAX_UNSENT: usize = 4 * 1024 * 1024;
const IDLE_CAPACITY: usize = 1024;

/// A connection's output buffer.
#[derive(Debug)]
pub(super) struct WriteBuffer {
    bytes: Vec<u8>,
    sent: usize,
    protocol: Protocol,
}

impl WriteBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), sent: 0, protocol: Protocol::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.unsent() >= MAX_UNSENT
    }

    fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(super) fn put(&mut self, outgoing: &Outgoing, share: &mut Share) {
        match outgoing {
            Outgoing::Reply(frame) => encode(frame, self.protocol, &mut self.bytes),
            Outgoing::Switch(protocol, frame) => {
                self.protocol = *protocol;
                encode(frame, self.protocol, &mut self.bytes);
            }
            Outgoing::Push(items) | Outgoing::Loss(items) => {
                encode_push(items, self.protocol, &mut self.bytes);
            }
            Outgoing::Close => {}
        }
        // A connection whose client reads has no backlog, and costs the others nothing.
        if self.unsent() > BACKLOG {
            share.set_output(self.unsent());
        }
    }

    /// Writes as much as the socket accepts without blocking.
    pub(super) fn flush(&mut self, stream: &UnixStream, share: &mut Share) -> io::Result<()> {
        let mut progress = !share.is_waiting();
        while self.sent < self.bytes.len() {
            match stream.try_write(&self.bytes[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    progress = true;
                }
                Err(error) if is_transient(&error) => {
                    // Moves each byte about once and bounds the buffer by twice the unsent bytes.
                    if self.sent > self.bytes.len() / 2 {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    share.set_output(self.unsent());
                    if progress {
                        share.wait_for_client();
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        share.set_output(0);
        share.stop_waiting();
        Ok(())
    }

    /// Frees memory after a large reply.
    pub(super) fn trim(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() > IDLE_CAPACITY {
            self.bytes = Vec::new();
        }
    }
}

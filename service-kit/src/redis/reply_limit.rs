//! A byte stream on which the server's replies are limited, so that no server can fill this process's memory.
//!
//! A length that the server announces counts at once, before anything is reserved for it. The decoders behind this stream
//! therefore see only replies within the limit.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::dial::ByteStream;
use super::excerpt::excerpt;

pub(crate) const MIB: usize = 1024 * 1024;
/// The usual limit of a reply, in bytes. The map of a cluster with all slots scattered needs about 20 MiB.
pub(crate) const REPLY_LIMIT: usize = 32 * MIB;
/// The memory of a decoded element of a reply, in addition to its bytes.
const ELEMENT: usize = 64;
/// The longest line: a status, an error or a length, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// The deepest nesting of arrays.
const MAX_DEPTH: usize = 16;
const LINE_END: usize = 2;
/// The memory of replies accepted within a second, in bytes. Faster ones stay unread for a while: a pipeline has many replies,
/// which are in memory together.
const RATE: usize = 64 * MIB;
/// Replies of one second are accepted at once.
const BURST: Duration = Duration::from_secs(1);

/// Follows the framing of RESP2 replies, and adds up the memory that each needs.
#[derive(Debug)]
struct Meter {
    limit: usize,
    /// The memory of the current reply, with all that it has announced.
    cost: usize,
    /// The memory added by the current call of [`Self::observe`].
    added: usize,
    state: State,
    /// The line of an announced length, as far as it has arrived.
    digits: Vec<u8>,
    /// The elements that each open array still lacks.
    open: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before the byte that states an element's kind.
    Start,
    /// Inside a line.
    Line { kind: Kind, length: usize, after_cr: bool },
    /// Inside a bulk string; `missing` counts the bytes that are still to come, including its line ending.
    Bulk { missing: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A status, an error or a number.
    Text,
    Bulk,
    Array,
}

impl Meter {
    fn new(limit: usize) -> Self {
        Self { limit, cost: 0, added: 0, state: State::Start, digits: Vec::new(), open: Vec::new() }
    }

    /// Follows the next bytes of the stream, and returns the memory they need.
    ///
    /// # Errors
    ///
    /// A reply beyond the limits, or bytes that are not RESP2.
    fn observe(&mut self, mut bytes: &[u8]) -> Result<usize, String> {
        self.added = 0;
        while let Some(&first) = bytes.first() {
            let part = match self.state {
                State::Start => {
                    self.start(first)?;
                    1
                }
                State::Line { kind, length, after_cr } => {
                    self.line(bytes, kind, length, after_cr)?
                }
                State::Bulk { missing } => {
                    let part = bytes.len().min(missing);
                    self.state = State::Bulk { missing: missing - part };
                    if part == missing {
                        self.end_element();
                    }
                    part
                }
            };
            bytes = &bytes[part..];
        }
        Ok(self.added)
    }

    fn start(&mut self, byte: u8) -> Result<(), String> {
        let kind = match byte {
            b'+' | b'-' | b':' => Kind::Text,
            b'$' => Kind::Bulk,
            b'*' => Kind::Array,
            other => return Err(format!("byte 0x{other:02x} does not begin a reply of Redis")),
        };
        self.state = State::Line { kind, length: 0, after_cr: false };
        self.digits.clear();
        // Those of an array have been counted with it.
        let memory = if self.open.is_empty() { ELEMENT } else { 0 };
        self.add(memory, "a reply")
    }

    /// Returns how many of the bytes belong to the line.
    fn line(
        &mut self,
        bytes: &[u8],
        kind: Kind,
        length: usize,
        after_cr: bool,
    ) -> Result<usize, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let length = length + part.len();
        if length > MAX_LINE {
            return Err(format!("the server sent a line longer than {} KiB", MAX_LINE / 1024));
        }
        self.add(part.len(), "a reply")?;
        if kind != Kind::Text {
            self.digits.extend_from_slice(part);
        }
        let cr_before_end = part.len().checked_sub(2).map_or(after_cr, |at| part[at] == b'\r');
        if end.is_some() && cr_before_end {
            match kind {
                Kind::Text => self.end_element(),
                Kind::Bulk | Kind::Array => self.announced(kind)?,
            }
        } else {
            self.state = State::Line { kind, length, after_cr: part.ends_with(b"\r") };
        }
        Ok(part.len())
    }

    fn announced(&mut self, kind: Kind) -> Result<(), String> {
        let text = String::from_utf8_lossy(self.digits.trim_ascii_end()).into_owned();
        let length = match text.parse::<i64>() {
            // Null.
            Ok(-1) => {
                self.end_element();
                return Ok(());
            }
            Ok(length) => usize::try_from(length).ok(),
            Err(_) => None,
        };
        let Some(length) = length else {
            return Err(format!("the server sent {} for a length", excerpt(&text)));
        };
        if kind == Kind::Bulk {
            self.add(length, &format!("a text of {length} bytes"))?;
            self.state = State::Bulk { missing: length + LINE_END };
            return Ok(());
        }
        let memory = length.saturating_mul(ELEMENT);
        self.add(memory, &format!("an array of {length} elements"))?;
        if length == 0 {
            self.end_element();
            return Ok(());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("the server nested arrays deeper than {MAX_DEPTH} levels"));
        }
        self.open.push(length);
        self.state = State::Start;
        Ok(())
    }

    fn end_element(&mut self) {
        self.state = State::Start;
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return;
            }
            self.open.pop();
        }
        self.cost = 0;
    }

    fn add(&mut self, memory: usize, what: &str) -> Result<(), String> {
        self.cost = self.cost.saturating_add(memory);
        self.added = self.added.saturating_add(memory);
        if self.cost <= self.limit {
            return Ok(());
        }
        let limit = self.limit / MIB;
        Err(format!("the server sent {what}, beyond the limit of {limit} MiB for a reply"))
    }
}

/// A stream whose replies are limited. Its reads fail once a reply is beyond the limit.
pub(crate) struct LimitedStream {
    stream: Box<dyn ByteStream>,
    meter: Option<Meter>,
    /// The instant until which the replies so far use up [`RATE`].
    spent: Instant,
    pause: Option<Pin<Box<Sleep>>>,
    refusal: Refusal,
}

/// The reason why a stream's replies were refused, if they were.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusal(Arc<OnceLock<String>>);

impl Refusal {
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl LimitedStream {
    /// Limits each reply of the stream to `limit` bytes of memory.
    pub(crate) fn new(stream: Box<dyn ByteStream>, limit: usize) -> Self {
        Self {
            stream,
            meter: Some(Meter::new(limit)),
            spent: Instant::now(),
            pause: None,
            refusal: Refusal::default(),
        }
    }

    /// Ends the limit, for a reader that does not store what it reads.
    pub(crate) fn remove_limit(&mut self) {
        self.meter = None;
    }

    pub(crate) fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }

    /// Delays further reads while the replies of the last second exceed the rate.
    fn spend(&mut self, memory: usize) {
        let now = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let time = Duration::from_secs_f64(memory as f64 / RATE as f64);
        self.spent = self.spent.max(now) + time;
        if self.spent > now + BURST {
            self.pause = Some(Box::pin(sleep_until(self.spent - BURST)));
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(reason) = this.refusal.reason() {
            return Poll::Ready(Err(refused(reason)));
        }
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        let Some(meter) = &mut this.meter else { return Poll::Ready(Ok(())) };
        match meter.observe(&buffer.filled()[before..]) {
            Ok(memory) => {
                this.spend(memory);
                Poll::Ready(Ok(()))
            }
            Err(reason) => {
                let reason = this.refusal.0.get_or_init(|| reason);
                Poll::Ready(Err(refused(reason)))
            }
        }
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl fmt::Debug for LimitedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream").field("meter", &self.meter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

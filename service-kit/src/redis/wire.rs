//! The replies of RESP2, as far as greetings and pub/sub need them, within limits.

use std::{fmt, io};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::ByteStream;
use super::error::ServerError;

/// The longest text or message taken from a server: far above any that is meant for us.
const MAX_BULK: usize = 8 * 1024 * 1024;
const MAX_LINE: usize = 64 * 1024;
const MAX_ARRAY: usize = 64 * 1024;
const MAX_DEPTH: usize = 8;

/// One reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Simple(String),
    Error(ServerError),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Self>),
}

/// Takes the first reply out of `buffer`, if all of it is there.
///
/// # Errors
///
/// When this is not RESP2, or beyond the limits: nothing that follows can be understood.
pub(crate) fn decode(buffer: &mut BytesMut) -> Result<Option<Frame>, String> {
    let mut cursor = Cursor { bytes: buffer, at: 0 };
    match cursor.frame(0) {
        Ok(frame) => {
            let length = cursor.at;
            buffer.advance(length);
            Ok(Some(frame))
        }
        Err(Short::More) => Ok(None),
        Err(Short::Garbage(what)) => Err(what),
    }
}

enum Short {
    More,
    Garbage(String),
}

impl Short {
    fn garbage<T>(what: impl Into<String>) -> Result<T, Self> {
        Err(Self::Garbage(what.into()))
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn frame(&mut self, depth: usize) -> Result<Frame, Short> {
        if depth > MAX_DEPTH {
            return Short::garbage("the server's reply is nested too deep");
        }
        let kind = *self.bytes.get(self.at).ok_or(Short::More)?;
        self.at += 1;
        match kind {
            b'+' => Ok(Frame::Simple(self.text()?)),
            b'-' => Ok(Frame::Error(ServerError::parse(&self.text()?))),
            b':' => Ok(Frame::Int(self.number()?)),
            b'$' => Ok(match self.length(MAX_BULK)? {
                Some(length) => Frame::Bulk(self.bulk(length)?),
                None => Frame::Null,
            }),
            b'*' => {
                let Some(length) = self.length(MAX_ARRAY)? else { return Ok(Frame::Null) };
                // Grows as the elements come: the length alone must not reserve memory.
                let mut elements = Vec::new();
                for _ in 0..length {
                    elements.push(self.frame(depth + 1)?);
                }
                Ok(Frame::Array(elements))
            }
            other => Short::garbage(format!("byte 0x{other:02x} does not begin a reply of Redis")),
        }
    }

    fn line(&mut self) -> Result<&[u8], Short> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.windows(2).take(MAX_LINE).position(|end| end == b"\r\n") {
            Some(length) => {
                self.at += length + 2;
                Ok(&rest[..length])
            }
            None if rest.len() > MAX_LINE => Short::garbage("the server's line has no end"),
            None => Err(Short::More),
        }
    }

    fn text(&mut self) -> Result<String, Short> {
        Ok(String::from_utf8_lossy(self.line()?).into_owned())
    }

    fn number(&mut self) -> Result<i64, Short> {
        let text = self.text()?;
        text.parse().or_else(|_| Short::garbage(format!("the server sent {text:?} for a number")))
    }

    /// `None` where the server says that there is nothing.
    fn length(&mut self, most: usize) -> Result<Option<usize>, Short> {
        match self.number()? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= most => Ok(Some(length)),
                _ => Short::garbage(format!(
                    "the server announced {length} where {most} is the limit"
                )),
            },
        }
    }

    fn bulk(&mut self, length: usize) -> Result<Vec<u8>, Short> {
        let end = self.at + length;
        let whole = self.bytes.get(self.at..end + 2).ok_or(Short::More)?;
        let (content, line_end) = whole.split_at(length);
        if line_end != b"\r\n" {
            return Short::garbage("the server's text does not end where it should");
        }
        self.at = end + 2;
        Ok(content.to_vec())
    }
}

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// A connection that is spoken to reply by reply.
pub(crate) struct Wire {
    stream: Box<dyn ByteStream>,
    received: BytesMut,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("received", &self.received.len()).finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(stream: Box<dyn ByteStream>) -> Self {
        Self { stream, received: BytesMut::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next reply that has been read already.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, String> {
        decode(&mut self.received)
    }

    /// Reads what there is. May be dropped while it waits, nothing gets lost.
    pub(crate) async fn fill(&mut self) -> Result<(), String> {
        self.received.reserve(CHUNK);
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }

    /// What was read and not taken yet, as it came.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Forgets that.
    pub(crate) fn drop_received(&mut self) {
        self.received.clear();
    }

    pub(crate) async fn receive(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// The bare stream. Nothing may have been read beyond what was received.
    pub(crate) fn into_stream(self) -> Result<Box<dyn ByteStream>, String> {
        if self.received.is_empty() {
            Ok(self.stream)
        } else {
            Err("the server said more than it was asked".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Frame {
        Frame::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn replies_are_read_however_they_are_cut() {
        let bytes =
            b"*3\r\n$7\r\nmessage\r\n$1\r\n\n\r\n$-1\r\n+OK\r\n:-7\r\n-ERR no way\r\n*-1\r\n*0\r\n";
        let expected = [
            Frame::Array(vec![bulk("message"), bulk("\n"), Frame::Null]),
            Frame::Simple("OK".to_owned()),
            Frame::Int(-7),
            Frame::Error(ServerError::parse("ERR no way")),
            Frame::Null,
            Frame::Array(Vec::new()),
        ];
        for step in 1..=bytes.len() {
            let mut buffer = BytesMut::new();
            let mut read = Vec::new();
            for part in bytes.chunks(step) {
                buffer.extend_from_slice(part);
                while let Some(frame) = decode(&mut buffer).unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, expected, "in steps of {step}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn what_is_no_reply_or_too_much_is_refused_before_it_is_there() {
        let deep = "*1\r\n".repeat(50);
        let endless = format!("+{}", "x".repeat(MAX_LINE + 2));
        for bytes in [
            "HTTP/1.1 400",
            "$1073741824\r\n",
            "*99999999\r\n",
            "$-2\r\n",
            ":x\r\n",
            &deep,
            &endless,
        ] {
            assert!(decode(&mut BytesMut::from(bytes)).is_err(), "{bytes:?}");
        }
        assert!(decode(&mut BytesMut::from("$1\r\nabc")).is_err());
    }
}

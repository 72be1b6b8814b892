//! RESP2 replies, as far as handshakes and pub/sub need them. The stream beneath limits them.

use std::{fmt, io};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::error::ServerError;
use super::excerpt::excerpt;
use super::reply_limit::LimitedStream;

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

/// Removes the first reply from `buffer` and returns it, or `None` while it is incomplete.
///
/// # Errors
///
/// Bytes that are not RESP2: the rest of the stream cannot be decoded.
pub(crate) fn decode(buffer: &mut BytesMut) -> Result<Option<Frame>, String> {
    let mut cursor = Cursor { bytes: buffer, at: 0 };
    match cursor.frame() {
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
    fn frame(&mut self) -> Result<Frame, Short> {
        let kind = *self.bytes.get(self.at).ok_or(Short::More)?;
        self.at += 1;
        match kind {
            b'+' => Ok(Frame::Simple(self.text()?)),
            b'-' => Ok(Frame::Error(ServerError::parse(&self.text()?))),
            b':' => Ok(Frame::Int(self.number()?)),
            b'$' => Ok(match self.length()? {
                Some(length) => Frame::Bulk(self.bulk(length)?),
                None => Frame::Null,
            }),
            b'*' => {
                let Some(length) = self.length()? else { return Ok(Frame::Null) };
                // Grows as the elements come: the length alone must not reserve memory.
                let mut elements = Vec::new();
                for _ in 0..length {
                    elements.push(self.frame()?);
                }
                Ok(Frame::Array(elements))
            }
            other => Short::garbage(format!("byte 0x{other:02x} does not begin a reply of Redis")),
        }
    }

    fn line(&mut self) -> Result<&[u8], Short> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.windows(2).position(|end| end == b"\r\n").ok_or(Short::More)?;
        self.at += length + 2;
        Ok(&rest[..length])
    }

    fn text(&mut self) -> Result<String, Short> {
        Ok(String::from_utf8_lossy(self.line()?).into_owned())
    }

    fn number(&mut self) -> Result<i64, Short> {
        let text = self.text()?;
        text.parse()
            .or_else(|_| Short::garbage(format!("the server sent {} for a number", excerpt(&text))))
    }

    /// Decodes a length; `None` for null.
    fn length(&mut self) -> Result<Option<usize>, Short> {
        match self.number()? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => Ok(Some(length)),
                Err(_) => Short::garbage(format!("the server sent {length} for a length")),
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

/// The size of one read, in bytes.
const CHUNK: usize = 64 * 1024;

/// A connection that is read reply by reply.
pub(crate) struct Wire {
    stream: LimitedStream,
    received: BytesMut,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("received", &self.received.len()).finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(stream: LimitedStream) -> Self {
        Self { stream, received: BytesMut::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Returns the next reply that has been read completely, if any.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, String> {
        decode(&mut self.received)
    }

    /// Reads the bytes that have arrived. Cancel safe: nothing is lost if the future is dropped.
    pub(crate) async fn fill(&mut self) -> Result<(), String> {
        self.received.reserve(CHUNK);
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }

    /// Returns the bytes that were read and are not decoded yet, unchanged.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Ends the limit of replies, for a reader that does not store what it reads.
    pub(crate) fn remove_limit(&mut self) {
        self.stream.remove_limit();
    }

    /// Drops the received bytes.
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

    /// Returns the bare stream. Nothing may have been read beyond the decoded replies.
    pub(crate) fn into_stream(self) -> Result<LimitedStream, String> {
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
    fn bytes_that_are_not_a_reply_are_refused() {
        for bytes in ["HTTP/1.1 400", "$-2\r\n", ":x\r\n", "$1\r\nabc"] {
            assert!(decode(&mut BytesMut::from(bytes)).is_err(), "{bytes:?}");
        }
    }
}

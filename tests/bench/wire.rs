//! Requests and replies at the least possible cost, so that the other side is measured rather than this one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, bail, ensure};

pub(crate) use harness::client::encode;

/// Returns the length of the first reply in `bytes`, including nested ones, or `None` while it is incomplete.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut wanted) = (0_usize, 1_usize);
    while wanted > 0 {
        let rest = bytes.get(at..)?;
        let end = rest.iter().position(|b| *b == b'\r')?;
        let kind = *rest.first()?;
        let count =
            std::str::from_utf8(rest.get(1..end)?).ok().and_then(|n| n.parse::<usize>().ok());
        at += end + 2;
        wanted -= 1;
        // A negative count means a null, which has no body.
        match (kind, count) {
            (b'$', Some(length)) => at += length + 2,
            (b'*' | b'>', Some(items)) => wanted += items,
            (b'%', Some(pairs)) => wanted += 2 * pairs,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// Returns whether a reply is affirmative: no error, no null, no zero.
pub(crate) fn is_yes(reply: &[u8]) -> bool {
    !matches!(reply.first(), None | Some(b'-' | b'_'))
        && !reply.starts_with(b"*-1")
        && !reply.starts_with(b":0\r")
}

/// Formats a reply for an error message.
pub(crate) fn shown(reply: &[u8]) -> String {
    reply.iter().take(200).copied().collect::<Vec<u8>>().escape_ascii().to_string()
}

/// A blocking connection with one pending request, or a batch of them.
#[derive(Debug)]
pub(crate) struct Caller<S> {
    stream: S,
    read: Vec<u8>,
    unread: usize,
}

impl Caller<UnixStream> {
    pub(crate) fn unix(path: &Path) -> Result<Self> {
        Ok(Self::over(UnixStream::connect(path)?))
    }
}

impl Caller<TcpStream> {
    pub(crate) fn tcp(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Caller<S> {
    fn over(stream: S) -> Self {
        Self { stream, read: vec![0; 64 << 10], unread: 0 }
    }

    /// Sends one request; the reply must not be an error.
    pub(crate) fn call(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.stream.write_all(request)?;
        let reply = self.reply()?;
        ensure!(!reply.starts_with(b"-"), "{}", shown(&reply));
        Ok(reply)
    }

    /// Sends one request; the reply must be affirmative.
    pub(crate) fn succeed(&mut self, request: &[u8]) -> Result<()> {
        let reply = self.call(request)?;
        ensure!(is_yes(&reply), "refused: {}", shown(&reply));
        Ok(())
    }

    /// Sends requests whose replies are not awaited.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(requests)?)
    }

    /// Sends that many requests at once; each reply must be affirmative.
    pub(crate) fn batch(&mut self, requests: &[u8], count: usize) -> Result<()> {
        self.answered(requests, count, is_yes)
    }

    /// Sends that many requests at once; no reply may be an error.
    pub(crate) fn send_all(&mut self, requests: &[u8], count: usize) -> Result<()> {
        self.answered(requests, count, |reply| !reply.starts_with(b"-"))
    }

    fn answered(&mut self, requests: &[u8], count: usize, good: fn(&[u8]) -> bool) -> Result<()> {
        self.stream.write_all(requests)?;
        for _ in 0..count {
            let reply = self.reply()?;
            ensure!(good(&reply), "refused: {}", shown(&reply));
        }
        Ok(())
    }

    /// Returns the next reply or message.
    pub(crate) fn reply(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(length) = whole(&self.read[..self.unread]) {
                let reply = self.read[..length].to_vec();
                self.read.copy_within(length..self.unread, 0);
                self.unread -= length;
                return Ok(reply);
            }
            ensure!(self.unread < self.read.len(), "a reply longer than any that is expected");
            match self.stream.read(&mut self.read[self.unread..])? {
                0 => bail!("the connection was closed"),
                count => self.unread += count,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_at_its_last_byte() {
        let replies: [&[u8]; 6] = [
            b"+OK\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*3\r\n$1\r\na\r\n*1\r\n:1\r\n_\r\n",
            b"%1\r\n+a\r\n$2\r\n\r\n\r\n",
        ];
        for reply in replies {
            for cut in 0..reply.len() {
                assert_eq!(whole(&reply[..cut]), None, "{cut} of {}", shown(reply));
            }
            assert_eq!(whole(&[reply, b"+next"].concat()), Some(reply.len()));
        }
    }

    #[test]
    fn no_is_never_taken_for_yes() {
        for no in [&b"*-1\r\n"[..], b"_\r\n", b"-ERR\r\n", b":0\r\n", b""] {
            assert!(!is_yes(no), "{}", shown(no));
        }
        for yes in [&b"*14\r\n"[..], b":1\r\n", b"+PONG\r\n", b"%7\r\n"] {
            assert!(is_yes(yes), "{}", shown(yes));
        }
    }
}

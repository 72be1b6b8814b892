//! A client of Redis and of the agent: one connection, with access to every byte.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::{PATIENCE, Reply};

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// One connection. Dropping it closes it.
pub struct Client {
    stream: Box<dyn Stream>,
    bytes: Vec<u8>,
    /// The number of buffered bytes already consumed.
    done: usize,
    pushes: VecDeque<Vec<Reply>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("unread", &(self.bytes.len() - self.done))
            .finish_non_exhaustive()
    }
}

/// Encodes a command as an array of strings.
#[must_use]
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), bytes: Vec::new(), done: 0, pushes: VecDeque::new() }
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Returns an error if nobody listens.
    pub async fn unix(path: &Path) -> Result<Self> {
        let connected = UnixStream::connect(path).await;
        Ok(Self::over(connected.with_context(|| format!("cannot connect to {}", path.display()))?))
    }

    /// Continues with a connection that was made elsewhere.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn std(stream: std::os::unix::net::UnixStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::over(UnixStream::from_std(stream)?))
    }

    /// Connects to a port of this host.
    ///
    /// # Errors
    /// Returns an error if nobody listens.
    pub async fn tcp(port: u16) -> Result<Self> {
        Self::tcp_at("127.0.0.1", port).await
    }

    /// Connects to a port of this host, through one of its addresses.
    ///
    /// # Errors
    /// Returns an error if nobody listens there.
    pub async fn tcp_at(address: &str, port: u16) -> Result<Self> {
        let stream = TcpStream::connect((address, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    /// Runs a command of words, and returns its reply; errors are replies too.
    ///
    /// # Errors
    /// Returns an error if the connection fails or no reply comes within [`PATIENCE`].
    pub async fn call(&mut self, words: &str) -> Result<Reply> {
        self.send(words).await?;
        self.reply().await.with_context(|| format!("no reply to `{words}`"))
    }

    /// Runs a command whose arguments are arbitrary bytes.
    ///
    /// # Errors
    /// Returns an error if the connection fails or no reply comes within [`PATIENCE`].
    pub async fn call_args<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply> {
        self.send_bytes(&encode(args)).await?;
        self.reply().await
    }

    /// Sends a command of words, and does not wait for the reply.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub async fn send(&mut self, words: &str) -> Result<()> {
        let args: Vec<&str> = words.split_whitespace().collect();
        self.send_bytes(&encode(&args)).await
    }

    /// Sends exactly these bytes.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or the other side reads nothing for [`PATIENCE`].
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes)).await.context("nobody reads")??;
        Ok(())
    }

    /// Returns the next reply; pushes before it are kept for [`Self::push`].
    ///
    /// # Errors
    /// Returns an error if the connection ends, or none comes within [`PATIENCE`].
    pub async fn reply(&mut self) -> Result<Reply> {
        loop {
            match self.next().await? {
                Reply::Push(items) => self.pushes.push_back(items),
                reply => return Ok(reply),
            }
        }
    }

    /// Returns the next push, as words.
    ///
    /// # Errors
    /// Returns an error if a reply comes, the connection ends, or none comes within [`PATIENCE`].
    pub async fn push(&mut self) -> Result<Vec<String>> {
        let items = match self.pushes.pop_front() {
            Some(items) => items,
            None => match self.next().await? {
                Reply::Push(items) => items,
                other => bail!("expected a push, got {other}"),
            },
        };
        Ok(items.iter().map(Reply::text).collect())
    }

    /// Returns the number of pushes buffered so far.
    #[must_use]
    pub fn pushes(&self) -> usize {
        self.pushes.len()
    }

    /// Closes the sending direction, and continues to read.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub async fn half_close(&mut self) -> Result<()> {
        Ok(self.stream.shutdown().await?)
    }

    /// Reads until the other side closes, and returns the replies.
    ///
    /// # Errors
    /// Returns an error if it does not close within [`PATIENCE`], or sends something that is not a reply.
    pub async fn until_closed(&mut self) -> Result<Vec<Reply>> {
        let mut replies = Vec::new();
        while let Some(reply) = self.read_one().await? {
            replies.push(reply);
        }
        Ok(replies)
    }

    async fn next(&mut self) -> Result<Reply> {
        self.read_one().await?.context("the connection was closed")
    }

    /// Reads the next reply or push; returns `None` at the connection's end.
    async fn read_one(&mut self) -> Result<Option<Reply>> {
        loop {
            if let Some((reply, taken)) = Reply::decode(&self.bytes[self.done..])? {
                self.done += taken;
                return Ok(Some(reply));
            }
            self.bytes.drain(..self.done);
            self.done = 0;
            // The buffer doubles each time, so that a long reply is parsed only a few times.
            self.bytes.reserve(self.bytes.len().max(16 << 10));
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.bytes)).await;
            match read.with_context(|| format!("nothing came within {PATIENCE:?}"))? {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A Unix peer that closes with our bytes unread resets the connection.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

//! A TCP stream that is read in batches.

use std::io::{self, Read, Write};
use std::mem;
use std::net::{self, Shutdown};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop;
use tokio::time::{Sleep, sleep};

/// The time after a read in which bytes are left to collect in the kernel.
const PAUSE: Duration = Duration::from_millis(10);
/// The size of a read, in bytes, that is a batch already: the next one follows at once.
const BATCH: usize = 16 * 1024;

/// A TCP stream that is read at most every 10 ms, unless much arrives.
///
/// A sender on the same host wakes the reader for each packet, which can cost it more CPU time than the packet. Nobody is
/// woken for a socket that is not registered for events, and this one is registered only to wait for the first bytes after
/// a pause.
pub(super) struct BatchedStream {
    socket: net::TcpStream,
    /// Bytes collect since the last read.
    pause: Option<Pin<Box<Sleep>>>,
    /// True if the last read was a batch, so that another one follows at once.
    continued: bool,
    /// The registration while nothing has arrived since a pause.
    readable: Option<TcpStream>,
    /// The registration while the socket's send buffer is full.
    writable: Option<TcpStream>,
    /// A second descriptor of the socket for the next registration, so that none has to be opened when there are no more.
    spare: Option<net::TcpStream>,
}

impl BatchedStream {
    /// # Errors
    ///
    /// Returns an error if the stream cannot be taken from the runtime.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        let socket = stream.into_std()?;
        let spare = Some(socket.try_clone()?);
        Ok(Self { socket, pause: None, continued: false, readable: None, writable: None, spare })
    }

    /// Registers the socket for events, until the handle is dropped or deregistered.
    fn register(&mut self) -> io::Result<TcpStream> {
        let handle = match self.spare.take() {
            Some(spare) => spare,
            None => self.socket.try_clone()?,
        };
        TcpStream::from_std(handle)
    }

    fn deregister(&mut self, handle: Option<TcpStream>) {
        self.spare = handle.and_then(|handle| handle.into_std().ok());
    }
}

impl AsyncRead for BatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let progress = ready!(coop::poll_proceed(cx));
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            if let Some(handle) = &this.readable {
                ready!(handle.poll_read_ready(cx))?;
                let handle = this.readable.take();
                this.deregister(handle);
            }
            match this.socket.read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    this.continued = read >= BATCH;
                    this.pause = (!this.continued).then(|| Box::pin(sleep(PAUSE)));
                    progress.made_progress();
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if mem::take(&mut this.continued) {
                        this.pause = Some(Box::pin(sleep(PAUSE)));
                    } else {
                        this.readable = Some(this.register()?);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for BatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            if let Some(handle) = &this.writable {
                ready!(handle.poll_write_ready(cx))?;
                let handle = this.writable.take();
                this.deregister(handle);
            }
            match this.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    this.writable = Some(this.register()?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::clock::boot_micros;

    /// Returns a batched stream and its server's end, which blocks.
    async fn pair() -> (BatchedStream, net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nodelay(true).unwrap();
        (BatchedStream::new(stream).unwrap(), server)
    }

    /// Polls one read. Returns its bytes if it has ended.
    fn poll(stream: &mut BatchedStream) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 64 * 1024];
        let mut buffer = ReadBuf::new(&mut bytes);
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(stream).poll_read(&mut cx, &mut buffer) {
            Poll::Ready(read) => read.map(|()| Some(buffer.filled().to_vec())).unwrap(),
            Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_collect_for_a_pause_and_first_ones_do_not_wait() {
        let (mut stream, mut server) = pair().await;
        for _ in 0..3 {
            assert_eq!(poll(&mut stream), None);
            server.write_all(b"a").unwrap();
            let mut first = [0];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"a");
            let paused_at = tokio::time::Instant::now();
            for _ in 0..9 {
                server.write_all(b"b").unwrap();
                assert_eq!(poll(&mut stream), None);
                tokio::time::advance(Duration::from_millis(1)).await;
            }
            // The kernel may deliver bytes after the call that sent them.
            let deadline = boot_micros() + 30_000_000;
            while stream.socket.peek(&mut [0; 9]).unwrap_or(0) < 9 {
                assert!(boot_micros() < deadline, "bytes are missing");
                std::thread::yield_now();
            }
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(poll(&mut stream).unwrap(), [b'b'; 9]);
            assert_eq!(paused_at.elapsed(), PAUSE);
            tokio::time::advance(PAUSE).await;
        }
    }

    #[tokio::test]
    async fn much_data_passes_unchanged_in_both_directions() {
        let (mut stream, mut server) = pair().await;
        let sent: Vec<u8> = (0..8_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
        let copy = sent.clone();
        let server = std::thread::spawn(move || {
            // Neither end reads while it writes: the client's writes must wait for room.
            let mut received = vec![0; copy.len()];
            server.read_exact(&mut received).unwrap();
            assert!(received == copy);
            server.write_all(&received).unwrap();
        });
        stream.write_all(&sent).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        server.join().unwrap();
    }

    #[tokio::test]
    async fn the_end_is_read_at_once_or_after_a_pause() {
        for bytes in [&b""[..], b"last words"] {
            let (mut stream, mut server) = pair().await;
            server.write_all(bytes).unwrap();
            drop(server);
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, bytes);
        }
    }
}

//! One connection to the agent.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::error::Failure;
use crate::resp::{Command, Parser, Value};

/// The time limit for replies that do not wait for a lock. The agent itself answers within about two seconds.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// The margin after the limit of a wait in which its reply may arrive. Redis may leave the last attempt, and then the
/// release of what it acquired, unanswered for two seconds each.
pub(crate) const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// The minimum time for a connection to start, however short the wait is: a healthy agent may need that long.
pub(crate) const LEAST_LIMIT: Duration = Duration::from_secs(2);

/// A pending reply. It fails if the connection ends first.
pub(crate) type Reply = oneshot::Receiver<Value>;

/// The receiver of a connection's unsolicited reports.
pub(crate) trait Listener: Send + Sync + 'static {
    fn on_push(&self, push: &[Value]);
    fn on_close(&self, connection: &Arc<Connection>);
}

/// A connection whose replies arrive in the order of its commands.
pub(crate) struct Connection {
    /// The runtime of its reader.
    runtime: Id,
    io: Mutex<Io>,
    /// The reader has something to write, or to close.
    wake: Notify,
}

struct Io {
    /// Absent once the connection is closed.
    stream: Option<Arc<UnixStream>>,
    unsent: Vec<u8>,
    replies: VecDeque<oneshot::Sender<Value>>,
    closing: bool,
}

impl Connection {
    /// Connects to a Unix socket and sends HELLO, whose pending reply it returns, too. The listener receives events until the
    /// connection is closed.
    pub(crate) async fn open(
        path: &Path,
        listener: impl Listener,
    ) -> io::Result<(Arc<Self>, Reply)> {
        let stream = Arc::new(UnixStream::connect(path).await?);
        let io = Io {
            stream: Some(stream.clone()),
            unsent: Vec::new(),
            replies: VecDeque::new(),
            closing: false,
        };
        let runtime = Handle::current().id();
        let connection = Arc::new(Self { runtime, io: Mutex::new(io), wake: Notify::new() });
        // An agent may refuse the connection before it has read anything: its reason is the first reply.
        let hello = connection.send(&Command::hello());
        let end = End { connection: connection.clone(), listener };
        tokio::spawn(async move {
            // An error ends the connection like any other end.
            let _ = end.connection.read(&stream, &end.listener).await;
        });
        Ok((connection, hello))
    }

    fn io(&self) -> MutexGuard<'_, Io> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command, as much of it as the socket accepts at once, and returns its pending reply.
    pub(crate) fn send(&self, command: &Command) -> Reply {
        let (sender, reply) = oneshot::channel();
        let mut io = self.io();
        if io.stream.is_some() && !io.closing {
            io.replies.push_back(sender);
            command.write_to(&mut io.unsent);
            io.flush();
            if !io.unsent.is_empty() {
                self.wake.notify_one();
            }
        }
        reply
    }

    /// Sends a command and waits for its reply. If there is none in time, it closes the connection.
    pub(crate) async fn call(&self, command: &Command) -> Result<Value, Failure> {
        self.finish(self.send(command)).await
    }

    /// Waits for a reply that does not depend on a lock.
    pub(crate) async fn finish(&self, reply: Reply) -> Result<Value, Failure> {
        if let Ok(reply) = timeout(REPLY_LIMIT, reply).await {
            return outcome(reply);
        }
        self.close();
        Err(Failure::Disconnected)
    }

    /// Closes the connection at once.
    pub(crate) fn close(&self) {
        self.io().closing = true;
        self.wake.notify_one();
    }

    /// Returns whether its reader runs in the current runtime. Nobody may be driving another one.
    pub(crate) fn runs_here(&self) -> bool {
        Handle::current().id() == self.runtime
    }

    pub(crate) fn is_closed(&self) -> bool {
        let io = self.io();
        io.closing || io.stream.is_none()
    }

    async fn read(&self, stream: &UnixStream, listener: &impl Listener) -> io::Result<()> {
        let mut parser = Parser::default();
        let mut buffer = vec![0; 16 * 1024];
        loop {
            self.ready(stream).await?;
            if self.io().closing {
                return Ok(());
            }
            self.io().flush();
            match stream.try_read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => parser.feed(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            while let Some(value) = parser.next().map_err(|_| io::ErrorKind::InvalidData)? {
                if let Value::Push(push) = value {
                    listener.on_push(&push);
                } else if let Some(reply) = self.io().replies.pop_front() {
                    let _ = reply.send(value); // The caller may have lost interest.
                }
            }
        }
    }

    /// Waits for input, for room for unsent bytes, or for a wake-up.
    async fn ready(&self, stream: &UnixStream) -> io::Result<()> {
        let unsent = !self.io().unsent.is_empty();
        let mut readable = pin!(stream.readable());
        let mut writable = pin!(stream.writable());
        let mut wake = pin!(self.wake.notified());
        poll_fn(|context| {
            if wake.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if unsent && let Poll::Ready(ready) = writable.as_mut().poll(context) {
                return Poll::Ready(ready);
            }
            readable.as_mut().poll(context)
        })
        .await
    }
}

impl Io {
    /// Writes what the socket accepts.
    fn flush(&mut self) {
        while let (Some(stream), false) = (&self.stream, self.unsent.is_empty()) {
            match stream.try_write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The agent has closed the connection. What it sent before, which may be its reason, is read first.
                Err(_) => self.unsent.clear(),
            }
        }
    }
}

/// Returns the outcome of a command.
pub(crate) fn outcome(reply: Result<Value, oneshot::error::RecvError>) -> Result<Value, Failure> {
    match reply {
        Ok(Value::Error(message)) => Err(Failure::Reply(message)),
        Ok(value) => Ok(value),
        Err(_) => Err(Failure::Disconnected),
    }
}

/// The reader's guard, which also runs if its runtime ends and drops it.
struct End<L: Listener> {
    connection: Arc<Connection>,
    listener: L,
}

impl<L: Listener> Drop for End<L> {
    fn drop(&mut self) {
        let mut io = self.connection.io();
        io.stream = None;
        // Callers learn of the failure only after the session has.
        let replies = std::mem::take(&mut io.replies);
        drop(io);
        self.listener.on_close(&self.connection);
        drop(replies);
    }
}

//! Accepts connections up to a limit, and backs off when file descriptors run out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redisson::Moment;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::{TOO_MANY_SESSIONS, TOO_MANY_SESSIONS_OF_USER};
use crate::server::connection::{self, Evicted, Shared};
use crate::server::permits::{Full, Permits};
use crate::server::socket::Socket;
use crate::types::ConnectionId;

/// The pause before a rejected connection is answered, which makes clients that retry at once cheap.
const REJECTION_PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of rejected connections that wait for their answer. The reserve of file descriptors has room for
/// them.
pub(super) const MAX_REJECTED: usize = 64;
/// The kernel's buffer for the replies that a client has not read, of which the kernel allocates twice as much.
const SEND_BUFFER: usize = 32 * 1024;
/// The interval at which connections are closed whose clients do not read.
const EVICTION_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a failed accept, doubled with each further failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections until `closed` is cancelled and serves each as a task of `sessions`, at most `max_sessions` at a time.
/// [`Permits`] limits the part of each user. Cancelling does not end the sessions.
pub async fn accept(
    socket: &mut Socket,
    shared: Shared,
    max_sessions: usize,
    sessions: TaskTracker,
    closed: CancellationToken,
) {
    let pause = REJECTION_PAUSE;
    accept_and_reject(socket, shared, max_sessions, sessions, closed, pause).await;
}

/// Answers rejected connections one by one, with this pause before each. Meanwhile others are accepted.
async fn accept_and_reject(
    socket: &mut Socket,
    shared: Shared,
    max_sessions: usize,
    sessions: TaskTracker,
    closed: CancellationToken,
    rejection_pause: Duration,
) {
    let (rejections, mut rejected) = mpsc::channel(MAX_REJECTED);
    let permits = Permits::new(max_sessions, rustix::process::geteuid().as_raw());
    let admission = Admission { shared: Arc::new(shared), permits, sessions, rejections };
    let rejecting = async {
        while let Some((stream, full)) = rejected.recv().await {
            tokio::time::sleep(rejection_pause).await;
            reject(&stream, full);
        }
    };
    let evicting = async {
        let mut tick = tokio::time::interval(EVICTION_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            evict(&admission.shared);
        }
    };
    let all = async { tokio::join!(admission.accept(socket), rejecting, evicting) };
    closed.run_until_cancelled(all).await;
}

/// The decision about each new connection.
struct Admission {
    shared: Arc<Shared>,
    permits: Permits,
    sessions: TaskTracker,
    rejections: mpsc::Sender<(UnixStream, Full)>,
}

impl Admission {
    /// Accepts connections without end.
    async fn accept(&self, socket: &mut Socket) {
        let mut pause = FAILURE_PAUSE;
        for number in 1.. {
            match socket.accept().await {
                Ok((stream, _)) => {
                    pause = FAILURE_PAUSE;
                    self.admit(stream, ConnectionId(number));
                    // The other tasks have their turn: clients may connect faster than they are accepted.
                    tokio::task::yield_now().await;
                }
                Err(error) if affects_one_client(&error) => {}
                Err(error) => {
                    self.shared.metrics.accept_failures.inc();
                    tracing::warn!(%error, pause_ms = pause.as_millis(), "accept failed");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
    }

    /// Serves a connection, or rejects it.
    fn admit(&self, stream: UnixStream, id: ConnectionId) {
        // The kernel knows the user of every connected socket.
        let Ok(credentials) = stream.peer_cred() else { return };
        // A larger one only costs memory, so a failure is harmless.
        set_socket_send_buffer_size(&stream, SEND_BUFFER).ok();
        match self.permits.take(credentials.uid()) {
            Ok(permit) => {
                let shared = Arc::clone(&self.shared);
                let time = shared.time.clone();
                self.sessions.spawn(time.connection(credentials.uid(), async move {
                    connection::serve(stream, id, shared).await;
                    drop(permit);
                }));
            }
            Err(full) => {
                let reason = match full {
                    Full::All(_) => TOO_MANY_SESSIONS,
                    Full::User(_) => TOO_MANY_SESSIONS_OF_USER,
                };
                self.shared.metrics.sessions_rejected.with_label_values(&[reason]).inc();
                // Too many wait already: this one is answered at once.
                if let Err(error) = self.rejections.try_send((stream, full)) {
                    let (stream, full) = error.into_inner();
                    reject(&stream, full);
                }
            }
        }
    }
}

/// Closes connections whose clients do not read, if others need the memory.
fn evict(shared: &Shared) {
    let now = Moment::from_micros(service_kit::clock::boot_micros());
    for Evicted { connection, uid, bytes, stalled } in shared.buffers.evict(now) {
        shared.metrics.connections_evicted.inc();
        tracing::warn!(
            session = connection.0,
            uid,
            bytes,
            stalled_ms = stalled.as_millis(),
            "connection closed: its client does not read, and its user has too many unread replies"
        );
    }
}

/// Sends the reason for the rejection. A new socket accepts it without blocking.
fn reject(stream: &UnixStream, full: Full) {
    let text = match full {
        Full::All(max) => format!(
            "-LIMIT the agent already serves {max} sessions: close some, or raise max_sessions and the limit of open files\r\n"
        ),
        Full::User(max) => format!(
            "-LIMIT this user already has {max} sessions, three quarters of all: close some, or raise max_sessions and the limit of open files\r\n"
        ),
    };
    if let Err(error) = stream.try_write(text.as_bytes()) {
        tracing::debug!(%error, "could not send the reason to a rejected client");
    }
}

fn affects_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use prometheus::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::core::Input;
    use crate::metrics::Metrics;
    use crate::server::process::Processes;
    use crate::server::socket::SocketSettings;
    use crate::thread_time::ThreadTime;

    const DEADLINE: Duration = Duration::from_secs(30);

    struct Rig {
        folder: tempfile::TempDir,
        inbox: mpsc::Receiver<Input>,
        closed: CancellationToken,
        metrics: Arc<Metrics>,
        task: JoinHandle<()>,
    }

    impl Rig {
        async fn new(max_sessions: usize) -> Self {
            Self::with_pause(max_sessions, REJECTION_PAUSE).await
        }

        async fn with_pause(max_sessions: usize, pause: Duration) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let settings =
                SocketSettings { path: folder.path().join("s"), mode: 0o600, group: None };
            let socket = Socket::bind(&settings).await.unwrap();
            let (core, inbox) = mpsc::channel(100);
            let metrics = Arc::new(Metrics::new(&Registry::new(), "default").unwrap());
            let shared = Shared {
                core,
                processes: Processes::new(10),
                stop: CancellationToken::new(),
                agent: crate::server::handshake::AgentInfo::for_tests().into(),
                metrics: Arc::clone(&metrics),
                buffers: connection::Buffers::new(usize::MAX),
                time: ThreadTime::start(),
            };
            let closed = CancellationToken::new();
            let token = closed.clone();
            let task = tokio::spawn(async move {
                // Moves the whole socket into the task, including its file's cleanup.
                let (mut socket, sessions) = (socket, TaskTracker::new());
                accept_and_reject(&mut socket, shared, max_sessions, sessions, token, pause).await;
            });
            Self { folder, inbox, closed, metrics, task }
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(self.folder.path().join("s")).await.unwrap()
        }

        /// Waits until that many connections were rejected.
        async fn has_rejected(&self, count: usize) {
            let rejected = self.metrics.sessions_rejected.with_label_values(&[TOO_MANY_SESSIONS]);
            let all = async {
                while rejected.get() < count as u64 {
                    tokio::task::yield_now().await;
                }
            };
            timeout(DEADLINE, all).await.expect("the agent accepts no more");
        }

        /// Connects until a connection is served: a permit is free once the task of its connection has ended.
        async fn has_room(&self) {
            let mut replies = Vec::new();
            while !replies.contains(&"+PONG\r\n".to_owned()) {
                assert!(replies.len() < 1000, "{replies:?}");
                replies.push(ping(&mut self.connect().await).await);
            }
        }

        async fn input(&mut self) -> Input {
            timeout(DEADLINE, self.inbox.recv()).await.unwrap().unwrap()
        }
    }

    async fn ping(client: &mut UnixStream) -> String {
        client.write_all(b"PING\r\n").await.ok();
        let mut reply = [0; 7];
        timeout(DEADLINE, client.read_exact(&mut reply)).await.unwrap().unwrap();
        String::from_utf8_lossy(&reply).into_owned()
    }

    #[tokio::test]
    async fn connections_above_the_limit_are_rejected_with_the_reason() {
        let mut rig = Rig::new(2).await;
        let (mut one, mut two) = (rig.connect().await, rig.connect().await);
        let Input::Opened { outbox: _one, .. } = rig.input().await else { panic!() };
        let Input::Opened { outbox: _two, .. } = rig.input().await else { panic!() };
        assert_eq!(ping(&mut one).await, "+PONG\r\n");
        assert_eq!(ping(&mut two).await, "+PONG\r\n");
        let mut reply = String::new();
        timeout(DEADLINE, rig.connect().await.read_to_string(&mut reply)).await.unwrap().unwrap();
        assert!(reply.starts_with("-LIMIT the agent already serves 2 sessions"), "{reply}");
        assert_eq!(rig.metrics.sessions_rejected.with_label_values(&["max_sessions"]).get(), 1);
        drop(one);
        assert!(matches!(rig.input().await, Input::Closed(ConnectionId(1))));
        rig.has_room().await;
    }

    #[tokio::test]
    async fn others_are_accepted_while_rejected_connections_wait_for_their_answer() {
        // In this test no waiting connection is ever answered.
        let mut rig = Rig::with_pause(1, Duration::from_secs(100_000)).await;
        let one = rig.connect().await;
        let Input::Opened { outbox: _one, .. } = rig.input().await else { panic!() };
        let mut rejected = Vec::new();
        // One is about to be answered, so this many wait behind it, and one is too many.
        for count in 1..=MAX_REJECTED + 2 {
            rejected.push(rig.connect().await);
            rig.has_rejected(count).await;
        }
        let mut reply = String::new();
        let mut last = rejected.pop().unwrap();
        timeout(DEADLINE, last.read_to_string(&mut reply)).await.unwrap().unwrap();
        assert!(reply.starts_with("-LIMIT the agent already serves 1 sessions"), "{reply}");
        drop(one);
        assert!(matches!(rig.input().await, Input::Closed(ConnectionId(1))));
        rig.has_room().await;
        for client in rejected {
            let error = client.into_std().unwrap().read(&mut [0]).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::WouldBlock,
                "it is neither answered nor closed"
            );
        }
    }

    #[tokio::test]
    async fn sessions_outlive_the_accept_loop() {
        let mut rig = Rig::new(2).await;
        let mut client = rig.connect().await;
        let Input::Opened { outbox: _outbox, .. } = rig.input().await else { panic!() };
        rig.closed.cancel();
        rig.task.await.unwrap();
        assert_eq!(ping(&mut client).await, "+PONG\r\n");
        assert!(UnixStream::connect(rig.folder.path().join("s")).await.is_err());
    }
}

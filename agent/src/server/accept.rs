//! Takes connections in: no more than there is room for, and without spinning when descriptors run out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::TOO_MANY_SESSIONS;
use crate::server::connection::{self, Shared};
use crate::types::SessionId;

/// The pause after a connection was turned away, so that a client that tries again at once costs little.
const AFTER_REJECTION: Duration = Duration::from_millis(5);
/// The pause after accept has failed, doubled each time it fails again.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Serves connections as tasks of `sessions`, at most `most` at a time, until `closed` is cancelled. The sessions
/// live on after that.
pub async fn accept(
    listener: &UnixListener,
    shared: Shared,
    most: usize,
    sessions: TaskTracker,
    closed: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(most));
    let mut pause = AFTER_FAILURE;
    let accepting = async {
        for number in 1.. {
            let permit = Arc::clone(&permits).try_acquire_owned();
            match listener.accept().await {
                Ok((stream, _)) => {
                    pause = AFTER_FAILURE;
                    // One that ended meanwhile has left its place.
                    match permit.or_else(|_| Arc::clone(&permits).try_acquire_owned()) {
                        Ok(permit) => {
                            let shared = shared.clone();
                            sessions.spawn(async move {
                                connection::serve(stream, SessionId(number), shared).await;
                                drop(permit);
                            });
                        }
                        Err(_) => {
                            shared
                                .figures
                                .sessions_rejected
                                .with_label_values(&[TOO_MANY_SESSIONS])
                                .inc();
                            reject(&stream, most);
                            tokio::time::sleep(AFTER_REJECTION).await;
                        }
                    }
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(error) => {
                    shared.figures.accept_failures.inc();
                    tracing::warn!(%error, pause_ms = pause.as_millis(), "cannot accept a connection");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    };
    closed.run_until_cancelled(accepting).await;
}

/// Says why, if the socket takes it at once, which a new one does.
fn reject(stream: &UnixStream, most: usize) {
    let text = format!(
        "-LIMIT the agent serves {most} sessions already: end some, or raise max_sessions and the limit of open files\r\n"
    );
    if let Err(error) = stream.try_write(text.as_bytes()) {
        tracing::debug!(%error, "a rejected client has not been told why");
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use redisson::Grouping;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::core::Input;
    use crate::metrics::Figures;
    use crate::server::process::Processes;
    use crate::server::socket::{Place, Socket};

    const DEADLINE: Duration = Duration::from_secs(30);

    struct Rig {
        folder: tempfile::TempDir,
        inbox: mpsc::Receiver<Input>,
        closed: CancellationToken,
        figures: Arc<Figures>,
        task: JoinHandle<()>,
    }

    impl Rig {
        async fn new(most: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let place = Place { path: folder.path().join("s"), mode: 0o600, group: None };
            let socket = Socket::bind(&place).await.unwrap();
            let (core, inbox) = mpsc::channel(100);
            let figures =
                Arc::new(Figures::new(Grouping::new(Vec::new(), 5), &Registry::new()).unwrap());
            let shared = Shared {
                core,
                processes: Processes::new(10),
                stop: CancellationToken::new(),
                agent: crate::server::handshake::AgentInfo::unknown().into(),
                figures: Arc::clone(&figures),
            };
            let closed = CancellationToken::new();
            let token = closed.clone();
            let task = tokio::spawn(async move {
                // All of it, its file's fate included.
                let socket = socket;
                accept(&socket.listener, shared, most, TaskTracker::new(), token).await;
            });
            Self { folder, inbox, closed, figures, task }
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(self.folder.path().join("s")).await.unwrap()
        }

        async fn news(&mut self) -> Input {
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
    async fn whom_there_is_no_room_for_is_told_so() {
        let mut rig = Rig::new(2).await;
        let (mut one, mut two) = (rig.connect().await, rig.connect().await);
        let Input::Opened { outbox: _one, .. } = rig.news().await else { panic!() };
        let Input::Opened { outbox: _two, .. } = rig.news().await else { panic!() };
        assert_eq!(ping(&mut one).await, "+PONG\r\n");
        assert_eq!(ping(&mut two).await, "+PONG\r\n");
        let mut reply = String::new();
        timeout(DEADLINE, rig.connect().await.read_to_string(&mut reply)).await.unwrap().unwrap();
        assert!(reply.starts_with("-LIMIT the agent serves 2 sessions already"), "{reply}");
        assert_eq!(rig.figures.sessions_rejected.with_label_values(&["max_sessions"]).get(), 1);
        drop(one);
        assert!(matches!(rig.news().await, Input::Closed(SessionId(1))));
        // Its place is free once its task has ended.
        let mut replies = Vec::new();
        while !replies.contains(&"+PONG\r\n".to_owned()) {
            assert!(replies.len() < 1000, "{replies:?}");
            replies.push(ping(&mut rig.connect().await).await);
        }
    }

    #[tokio::test]
    async fn sessions_live_on_when_no_more_are_taken() {
        let mut rig = Rig::new(2).await;
        let mut client = rig.connect().await;
        let Input::Opened { outbox: _outbox, .. } = rig.news().await else { panic!() };
        rig.closed.cancel();
        rig.task.await.unwrap();
        assert_eq!(ping(&mut client).await, "+PONG\r\n");
        assert!(UnixStream::connect(rig.folder.path().join("s")).await.is_err());
    }
}

//! Detects a worker's disconnect, even while its connection is busy.

use std::io;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::buffers::Eviction;
use crate::server::process::Process;

/// The reason why a connection ends from outside.
#[derive(Debug)]
pub(super) enum Disconnect {
    /// The worker closed the socket or died.
    Worker,
    /// The worker does not read its replies, and others need the memory.
    Evicted,
    Shutdown,
}

/// Waits until the peer closes both directions, the worker's process dies, the agent stops, or the connection is evicted. Unread input and blocked
/// output do not delay it.
pub(super) async fn wait(
    stream: &UnixStream,
    process: Option<&Process>,
    stop: &CancellationToken,
    eviction: &Eviction,
) -> Disconnect {
    let died = async {
        match process {
            Some(process) => process.died().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = hung_up(stream) => Disconnect::Worker,
        () = died => Disconnect::Worker,
        () = stop.cancelled() => Disconnect::Shutdown,
        () = eviction.wait() => Disconnect::Evicted,
    }
}

/// Waits until the peer closes both directions; one that only stopped writing (`nc -N`) still reads.
async fn hung_up(stream: &UnixStream) {
    // Unix sockets have no priority data, so this interest wakes only when the peer stops writing, and never for unread
    // data.
    match stream.ready(Interest::PRIORITY).await {
        Ok(ready) if !ready.is_write_closed() => {}
        _ => return,
    }
    // That state is permanent and causes no further wakeup. A duplicate descriptor shows the rest, because its readiness
    // can be cleared.
    let Ok(copy) = duplicate(stream) else {
        // Without a duplicate, the failure to write the reply reveals the disconnect.
        return std::future::pending().await;
    };
    while let Ok(ready) = copy.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        // Clears the readiness, so that the next call waits for a change.
        let cleared: io::Result<()> =
            copy.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        drop(cleared);
    }
}

fn duplicate(stream: &UnixStream) -> io::Result<UnixStream> {
    UnixStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

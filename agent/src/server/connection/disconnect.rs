//! When a worker is gone, whatever its connection is busy with.

use std::io;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::server::process::Process;

/// Why a connection ends from outside.
#[derive(Debug)]
pub(super) enum Disconnect {
    /// The worker has closed the socket or has died.
    Worker,
    /// The agent ends.
    Shutdown,
}

/// Returns when the other side is closed in both directions, when the worker's process dies, or at the agent's end.
/// It does so while input is unread or output is stuck, too.
pub(super) async fn wait(
    stream: &UnixStream,
    process: Option<&Process>,
    stop: &CancellationToken,
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
    }
}

/// Returns once the other side has closed both directions; one that has only stopped writing (`nc -N`) still reads.
async fn hung_up(stream: &UnixStream) {
    // Interest in priority data, which Unix sockets do not have, is woken by the reading side's end alone, and
    // not by data that lie unread.
    match stream.ready(Interest::PRIORITY).await {
        Ok(ready) if !ready.is_write_closed() => {}
        _ => return,
    }
    // That end is known for good now and wakes nobody any more. What follows shows on a descriptor of our own, of
    // which what is known may be forgotten between two looks.
    let Ok(copy) = duplicate(stream) else {
        // Without one, the reply that nobody reads will tell.
        return std::future::pending().await;
    };
    while let Ok(ready) = copy.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        // Forgets that it can be written to, so that the next look waits for news.
        let forgotten: io::Result<()> =
            copy.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        drop(forgotten);
    }
}

fn duplicate(stream: &UnixStream) -> io::Result<UnixStream> {
    UnixStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

//! Notifications to systemd: readiness and a status line. Without a service manager they do nothing, and one that hangs delays
//! no lock.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::types::Status;

/// The pause before a notification for which there was no room is sent again, and the least time between two status lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Reports changes of the agent's status, at most once a second, until `stop` is cancelled.
pub(crate) async fn report_status(mut status: watch::Receiver<Status>, stop: CancellationToken) {
    let report = async {
        loop {
            let text = describe(&status.borrow_and_update());
            let sent = notify(&NotifyState::Status(&text));
            tokio::time::sleep(PAUSE).await;
            if sent && status.changed().await.is_err() {
                return;
            }
        }
    };
    stop.run_until_cancelled(report).await;
}

fn describe(status: &Status) -> String {
    if let Some(awaited) = &status.awaited {
        return format!("waiting: {awaited}");
    }
    let redis = if status.redis_up { "Redis answers" } else { "Redis is unreachable" };
    let draining = if status.draining { "draining, " } else { "" };
    let holds = if status.holds == 1 { "hold" } else { "holds" };
    format!("{draining}{redis}, {} {holds}, {} waiting", status.holds, status.waiters)
}

/// Reports that the agent serves workers.
pub(crate) async fn report_ready() {
    while !notify(&NotifyState::Ready) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends a notification. Returns false if the service manager has no room for it now.
pub(crate) fn notify(state: &NotifyState<'_>) -> bool {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return true };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to_addr(format!("{state}\n").as_bytes(), &address(&path)?)
    });
    match sent {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, "could not notify the service manager");
            error.kind() != io::ErrorKind::WouldBlock
        }
    }
}

/// Returns the address of a socket in the file system or, after an `@`, of an abstract one.
fn address(path: &OsStr) -> io::Result<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_the_service_manager_may_be_abstract() {
        let abstract_one = address(OsStr::new("@lockscope/notify")).unwrap();
        assert_eq!(abstract_one.as_abstract_name(), Some(&b"lockscope/notify"[..]));
        let file = address(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(file.as_pathname().and_then(|path| path.to_str()), Some("/run/systemd/notify"));
    }
}

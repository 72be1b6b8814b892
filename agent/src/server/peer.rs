//! The process that connected, according to the kernel and /proc.

use std::io;

use tokio::net::UnixStream;

use crate::types::Peer;

/// Returns the process at the other end of `stream`.
///
/// # Errors
/// Fails if the kernel has no credentials, which it has for every connected Unix socket.
pub fn of(stream: &UnixStream) -> io::Result<Peer> {
    let credentials = stream.peer_cred()?;
    // 0 means a process in a pid namespace that is not visible here.
    let pid = credentials.pid().filter(|pid| *pid > 0);
    Ok(Peer { pid, uid: credentials.uid(), gid: credentials.gid(), comm: pid.and_then(comm) })
}

/// Returns the command name of a process: at most 15 bytes, chosen by the process.
fn comm(pid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_peer_of_a_local_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of(&one).unwrap();
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getgid().as_raw());
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(peer.comm.as_deref(), Some(own.trim_end()));
    }

    #[test]
    fn a_missing_process_has_no_name() {
        assert_eq!(comm(i32::MAX), None);
    }
}

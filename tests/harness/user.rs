//! Connections of another user, available if the tests run as root.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_res_gid, set_thread_res_uid,
};

/// A user id that no common system uses.
const ANOTHER: u32 = 3_999_999_999;

/// Turns this thread into another user's, which keeps root's right to open files. Without root's rights it does nothing
/// and returns `false`.
///
/// # Errors
/// Returns an error if the kernel refuses.
pub fn become_another() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    let (group, user) = (Gid::from_raw(ANOTHER), Uid::from_raw(ANOTHER));
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    Ok(true)
}

/// Opens connections to a socket: as another user if run with root's rights. Returns whether they are another user's.
///
/// # Errors
/// Returns an error if one cannot be opened.
pub fn connect_as_another(socket: &Path, count: usize) -> Result<(Vec<UnixStream>, bool)> {
    let socket = socket.to_owned();
    let connect = move || {
        let another = become_another()?;
        let open = |_| UnixStream::connect(&socket).with_context(|| socket.display().to_string());
        Ok(((0..count).map(open).collect::<Result<_>>()?, another))
    };
    std::thread::spawn(connect)
        .join()
        .map_err(|_| anyhow!("the thread of another user panicked"))?
}

//! All descendants of this process according to /proc, including those in other sessions.
//!
//! The process must be a subreaper, so that orphaned descendants become its children.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitid,
};

/// A process according to `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// Start time in ticks since boot, which with the pid identifies the process.
    started: u64,
    dead: bool,
}

/// The descendants of this process.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    /// Children from before, which are left alone.
    excluded: HashSet<i32>,
}

impl ProcessTree {
    /// Makes this process a subreaper, and excludes its existing children.
    ///
    /// # Errors
    /// Fails if the kernel rejects it.
    pub(crate) fn adopt_orphans() -> rustix::io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let own = getpid().as_raw_nonzero().get();
        let excluded =
            processes().filter(|process| process.parent == own).map(|process| process.pid);
        Ok(Self { excluded: excluded.collect() })
    }

    /// Returns the pids of the descendants that are alive.
    pub(crate) fn living(&self) -> Vec<i32> {
        self.descendants()
            .into_iter()
            .filter(|process| !process.dead)
            .map(|process| process.pid)
            .collect()
    }

    /// Sends a signal to all descendants outside a process group.
    pub(crate) fn signal_outside(&self, signal: Signal, group: Pid) {
        self.send(signal, Some(group.as_raw_nonzero().get()));
    }

    /// Sends a signal to all descendants.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(signal, None);
    }

    fn send(&self, signal: Signal, excluded_group: Option<i32>) {
        for process in self.descendants() {
            if !process.dead
                && Some(process.group) != excluded_group
                && let Some(pidfd) = open_pidfd(process)
            {
                // The process may have died meanwhile.
                pidfd_send_signal(pidfd, signal).unwrap_or_default();
            }
        }
    }

    /// Reaps the dead children, except `except`.
    pub(crate) fn reap(&self, except: Pid) {
        let own = getpid().as_raw_nonzero().get();
        for process in self.descendants() {
            if process.dead
                && process.parent == own
                && let Some(pid) = Pid::from_raw(process.pid)
                && pid != except
            {
                // The child may have been reaped already.
                let _reaped: bool =
                    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).is_ok();
            }
        }
    }

    fn descendants(&self) -> Vec<Process> {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in processes() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut parents = vec![getpid().as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if !self.excluded.contains(&child.pid) {
                    parents.push(child.pid);
                    found.push(child);
                }
            }
        }
        found
    }
}

/// Opens a pidfd; `None` if the pid has been reused by another process.
fn open_pidfd(process: Process) -> Option<OwnedFd> {
    let pidfd = match pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return None,
        Err(error) => {
            crate::output::notice(&format!("cannot signal process {}: {error}", process.pid));
            return None;
        }
    };
    (read_process(process.pid)?.started == process.started).then_some(pidfd)
}

/// Returns the parent of a process; `None` if it is not visible.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    Some(read_process(pid)?.parent)
}

/// Returns all visible processes.
fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read_process(entry.file_name().to_str()?.parse().ok()?))
}

fn read_process(pid: i32) -> Option<Process> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &stat)
}

/// Parses `pid (comm) state ppid … starttime`; comm may contain any byte, including parentheses.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_contain_any_byte() {
        let stat = b"77 (a) Z 1 (b) S 42 70 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 8888 1 2";
        let read = parse(77, stat).unwrap();
        assert_eq!(read, Process { pid: 77, parent: 42, group: 70, started: 8888, dead: false });
        assert_eq!(parse(77, b"nonsense"), None);
        assert_eq!(parse(77, b"77 (x) S"), None);
    }

    #[test]
    fn a_child_is_a_descendant_until_it_dies() {
        let tree = ProcessTree::default();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(tree.living().contains(&pid));
        let excluding = ProcessTree { excluded: HashSet::from([pid]) };
        assert!(!excluding.living().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!tree.living().contains(&pid));
    }
}

//! All that has come of a command, grandchildren in sessions of their own included, as /proc tells.
//!
//! Whoever asks must be a subreaper: then a process whose parent has died becomes a child of his, and whatever was
//! started below him stays below him.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitid,
};

/// A process, as its `stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// When it began, in ticks since the host was booted: with the pid it is unique.
    started: u64,
    dead: bool,
}

/// Everything below this process.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Children that were there before, and are none of our business.
    others: HashSet<i32>,
}

impl Tree {
    /// From now on orphans below this process become its children. Those that it has already are left alone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn begin() -> rustix::io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let own = getpid().as_raw_nonzero().get();
        let others = processes().filter(|process| process.parent == own).map(|process| process.pid);
        Ok(Self { others: others.collect() })
    }

    /// The pids of the living.
    pub(crate) fn living(&self) -> Vec<i32> {
        self.below()
            .into_iter()
            .filter(|process| !process.dead)
            .map(|process| process.pid)
            .collect()
    }

    /// Sends a signal to all of them that are not in this process group.
    pub(crate) fn signal_outside(&self, signal: Signal, group: Pid) {
        self.send(signal, Some(group.as_raw_nonzero().get()));
    }

    /// Sends a signal to all of them.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(signal, None);
    }

    fn send(&self, signal: Signal, but: Option<i32>) {
        for process in self.below() {
            if !process.dead
                && Some(process.group) != but
                && let Some(pidfd) = hold(process)
            {
                // It may have died by itself just now.
                pidfd_send_signal(pidfd, signal).unwrap_or_default();
            }
        }
    }

    /// Waits for the dead among the children, `but` aside, so that they go away.
    pub(crate) fn reap(&self, but: Pid) {
        let own = getpid().as_raw_nonzero().get();
        for process in self.below() {
            if process.dead
                && process.parent == own
                && let Some(pid) = Pid::from_raw(process.pid)
                && pid != but
            {
                // Nothing to wait for is what is wanted.
                let _reaped: bool =
                    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).is_ok();
            }
        }
    }

    fn below(&self) -> Vec<Process> {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in processes() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut parents = vec![getpid().as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if !self.others.contains(&child.pid) {
                    parents.push(child.pid);
                    found.push(child);
                }
            }
        }
        found
    }
}

/// A descriptor of this very process, not of another that has got its pid since.
fn hold(process: Process) -> Option<OwnedFd> {
    let pidfd = match pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return None,
        Err(error) => {
            crate::say::say(&format!("cannot reach process {}: {error}", process.pid));
            return None;
        }
    };
    (look(process.pid)?.started == process.started).then_some(pidfd)
}

/// All processes that can be seen.
fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| look(entry.file_name().to_str()?.parse().ok()?))
}

fn look(pid: i32) -> Option<Process> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &stat)
}

/// Reads `pid (comm) state ppid … starttime`; comm may have anything in it, brackets too.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(behind_name..)?).ok()?;
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
    fn a_process_may_call_itself_anything() {
        let stat = b"77 (a) Z 1 (b) S 42 70 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 8888 1 2";
        let read = parse(77, stat).unwrap();
        assert_eq!(read, Process { pid: 77, parent: 42, group: 70, started: 8888, dead: false });
        assert_eq!(parse(77, b"nonsense"), None);
        assert_eq!(parse(77, b"77 (x) S"), None);
    }

    #[test]
    fn one_is_below_oneself_until_one_is_dead() {
        let tree = Tree::default();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(tree.living().contains(&pid));
        let others = Tree { others: HashSet::from([pid]) };
        assert!(!others.living().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!tree.living().contains(&pid));
    }
}

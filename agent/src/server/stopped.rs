//! Checks every second which workers with holds or waits are stopped (SIGSTOP or a debugger).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::Input;

const INTERVAL: Duration = Duration::from_secs(1);
/// The minimum ratio of the pause to the duration of a check, so that many workers do not slow down the agent.
const MIN_PAUSE_RATIO: u32 = 20;

/// Starts the task, which ends with `shutdown`.
pub fn start(core: mpsc::Sender<Input>, shutdown: &Shutdown) {
    let stop = shutdown.token();
    shutdown.spawn("stopped workers", async move {
        stop.run_until_cancelled(watch(core)).await;
    });
}

/// What `/proc` shows of a process.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Stopped,
    /// It is not stopped, or has ended.
    Other,
    /// It lives, and its state cannot be read, as with the mount option `hidepid`.
    Hidden,
}

async fn watch(core: mpsc::Sender<Input>) {
    let mut pause = INTERVAL;
    let mut warned = false;
    loop {
        tokio::time::sleep(pause).await;
        let (reply, busy) = oneshot::channel();
        if core.send(Input::ListBusy(reply)).await.is_err() {
            return;
        }
        let Ok(pids) = busy.await else { return };
        // On another thread than the one that serves locks, since many processes take a while.
        let checked = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let (mut stopped, mut hidden) = (BTreeSet::new(), None);
            for pid in pids {
                match state(Path::new("/proc"), pid) {
                    State::Stopped => {
                        stopped.insert(pid);
                    }
                    State::Hidden => hidden = Some(pid),
                    State::Other => {}
                }
            }
            (stopped, hidden, began.elapsed())
        });
        let Ok((stopped, hidden, took)) = checked.await else { return };
        if let Some(pid) = hidden.filter(|_| !std::mem::replace(&mut warned, true)) {
            tracing::warn!(
                pid,
                "workers' processes are hidden in /proc: stopped ones are not noticed"
            );
        }
        pause = INTERVAL.max(took * MIN_PAUSE_RATIO);
        if core.send(Input::Stopped(stopped)).await.is_err() {
            return;
        }
    }
}

fn state(proc: &Path, pid: i32) -> State {
    let stat = match std::fs::read(proc.join(pid.to_string()).join("stat")) {
        Ok(stat) => stat,
        Err(error) => {
            let hides = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
            let lives = Pid::from_raw(pid)
                .is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)));
            return if hides && lives { State::Hidden } else { State::Other };
        }
    };
    // The name before the state is in parentheses and may contain any byte.
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    if matches!(state, Some(b'T' | b't')) { State::Stopped } else { State::Other }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[tokio::test]
    async fn stopped_processes_are_detected() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let state_of = |pid| state(Path::new("/proc"), pid);
        assert_eq!(state_of(pid), State::Other);
        let hides = tempfile::tempdir().unwrap();
        assert_eq!(state(hides.path(), pid), State::Hidden);
        let process = Pid::from_raw(pid).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        let stopped = async {
            while state_of(pid) != State::Stopped {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), stopped).await.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!([state_of(pid), state_of(i32::MAX)], [State::Other, State::Other]);
    }
}

//! Checks every second which workers with holds or waits are stopped (SIGSTOP or a debugger).

use std::collections::BTreeSet;
use std::time::Duration;

use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::core::Input;

const INTERVAL: Duration = Duration::from_secs(1);
/// The least ratio of the pause to the duration of a check, so that many workers do not slow down the agent.
const MIN_PAUSE_RATIO: u32 = 20;

/// Starts the task, which ends with `shutdown`.
pub fn start(core: mpsc::Sender<Input>, shutdown: &Shutdown) {
    let stop = shutdown.token();
    shutdown.spawn("stopped workers", async move {
        stop.run_until_cancelled(watch(core)).await;
    });
}

async fn watch(core: mpsc::Sender<Input>) {
    let mut pause = INTERVAL;
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
            let stopped: BTreeSet<i32> = pids.into_iter().filter(|pid| is_stopped(*pid)).collect();
            (stopped, began.elapsed())
        });
        let Ok((stopped, took)) = checked.await else { return };
        pause = INTERVAL.max(took * MIN_PAUSE_RATIO);
        if core.send(Input::Stopped(stopped)).await.is_err() {
            return;
        }
    }
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state is in parentheses and may contain any byte.
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'T' | b't'))
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
        assert!(!is_stopped(pid));
        let process = Pid::from_raw(pid).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        let stopped = async {
            while !is_stopped(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), stopped).await.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(pid) && !is_stopped(i32::MAX));
    }
}

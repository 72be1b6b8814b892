//! Tests of signals and logs, in a separate process: this test binary, started again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use service_kit::shutdown::Shutdown;
use service_kit::telemetry::{self, LogFormat, LogSettings};

/// Runs the child process: it receives the first signal and then takes too long to end.
#[tokio::test]
#[ignore = "runs as the child of the test below"]
async fn child() {
    let log = LogSettings { filter: "info".to_owned(), format: LogFormat::Auto };
    let _telemetry = telemetry::init(&log, "kit", "0").unwrap();
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().unwrap();
    let token = shutdown.token();
    shutdown.spawn("dawdler", async move {
        tracing::info!("ready");
        token.cancelled().await;
        std::future::pending::<()>().await;
    });
    shutdown.cancelled().await;
    shutdown.finish(Duration::from_millis(10)).await;
    std::future::pending::<()>().await;
}

/// A child that does not outlive a failed test.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // After a successful test it has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_first_signal_ends_orderly_and_the_second_at_once() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "signals::child"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = KilledOnDrop(child);
    let child = &mut child.0;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // Standard error is not a terminal, so each line is JSON.
    let mut wait_for = |words: &[&str]| {
        let line = lines.find(|line| words.iter().all(|word| line.contains(word)));
        assert!(line.as_ref().is_some_and(|line| line.starts_with('{')), "{words:?}: {line:?}");
    };
    wait_for(&["\"message\":\"ready\"", "\"level\":\"INFO\""]);
    kill_process(pid, Signal::TERM).unwrap();
    wait_for(&["\"signal\":\"SIGTERM\"", "a second signal exits immediately"]);
    wait_for(&["still_running", "dawdler"]);
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

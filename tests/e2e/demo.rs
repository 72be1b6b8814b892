//! The demo starts, shows the documented locks and leaves nothing behind.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::{PATIENCE, eventually, http, programs, within};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;

use crate::dashboard::problems;

/// Returns the pids of all descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// A running demo with its actors.
pub(crate) struct Demo {
    pub(crate) process: Process,
    pub(crate) dashboard: u16,
    pub(crate) agents: Vec<u16>,
    // The temporary folder of the programs, where leftover files would remain.
    folder: TempDir,
}

impl Demo {
    /// Starts the demo, and waits until it has printed all addresses.
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = process::command(&programs::demo()?);
        // The temporary folders of the demo are created where the test can see whether they are gone.
        command.env("TMPDIR", folder.path());
        for (key, value) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("LOCKSCOPE_TEST_") {
                command.env(key, value);
            }
        }
        let log = tempfile::NamedTempFile::new()?;
        let mut process = Process::spawn("demo", command, log.path(), Some(Stdio::piped()))?;
        let stdout = process.take_stdout().context("piped")?;
        let mut lines = BufReader::new(ChildStdout::from_std(stdout)?).lines();
        let (mut dashboard, mut agents) = (None, Vec::new());
        while let Some(line) = lines.next_line().await? {
            let port = line.split_once("http://127.0.0.1:").map(|(_, rest)| rest);
            let port = port.and_then(|rest| rest.split('/').next()?.parse().ok());
            match port {
                Some(port) if line.starts_with("agent ") => agents.push(port),
                Some(port) if line.starts_with("dashboard ") => dashboard = Some(port),
                _ => {}
            }
            if line.contains("Ctrl-C") {
                break;
            }
        }
        let dashboard = dashboard.context("it prints the dashboard's address")?;
        ensure!(agents.len() == 2, "it prints the agents' addresses: {agents:?}");
        Ok(Self { process, dashboard, agents, folder })
    }
}

fn begins(lock: &Value, with: &str) -> bool {
    lock["name"].as_str().is_some_and(|name| name.starts_with(with))
}

#[tokio::test]
async fn the_demo_shows_every_kind_of_lock_and_cleans_up() -> Result<()> {
    let demo = Demo::start().await?;
    let port = demo.dashboard;
    type Wanted = (&'static str, fn(&Value) -> bool);
    let mut wanted: Vec<Wanted> = vec![
        ("a healthy one", |lock| begins(lock, "orders:") && problems(lock).is_empty()),
        ("a contended one", |lock| {
            begins(lock, "contended:") && lock["waiting"].as_u64() > Some(0)
        }),
        ("a fair queue", |lock| {
            lock["kind"] == "fair" && begins(lock, "fair:") && lock["queue"][0]["id"].is_string()
        }),
        ("readers", |lock| lock["kind"] == "read" && begins(lock, "read-write:")),
        ("a writer among readers", |lock| lock["kind"] == "write" && begins(lock, "read-write:")),
        ("a fenced one", |lock| begins(lock, "fenced:") && lock["token"].is_i64()),
        ("a foreign one", |lock| begins(lock, "foreign:") && lock["renewed"] == true),
        ("a stuck one", |lock| begins(lock, "stuck:") && problems(lock) == ["stuck"]),
        ("a frozen one", |lock| {
            let holder = &lock["holders"][0];
            let known = holder["client"]["pid"].is_u64() && holder["client"]["alive"] != false;
            begins(lock, "frozen:") && problems(lock) == ["stuck"] && known
        }),
        ("a leaked one", |lock| begins(lock, "leaked:inv") && problems(lock) == ["leaked"]),
        ("one that leaked before", |lock| {
            begins(lock, "leaked:old") && problems(lock) == ["leaked"] && lock["confirmed"] == false
        }),
        ("an overdue one", |lock| {
            begins(lock, "overdue:") && problems(lock) == ["renewal_overdue"]
        }),
        ("an expired one", |lock| begins(lock, "expired:") && problems(lock) == ["expired"]),
        ("a starving one", |lock| begins(lock, "starving:") && problems(lock) == ["starving"]),
        ("a deadlock", |lock| {
            let circle = lock["problems"][0]["cycle"].as_array().map(Vec::len);
            begins(lock, "deadlock:") && problems(lock) == ["deadlock"] && circle == Some(2)
        }),
        ("a malformed one", |lock| begins(lock, "malformed:") && problems(lock) == ["malformed"]),
        // It is reported as an orphan after another minute, which only the test of Grafana's panels waits for.
        ("what is left of one", |lock| {
            let nobody = lock["holders"].as_array().is_some_and(Vec::is_empty);
            begins(lock, "orphan:") && nobody && lock["queue"][0]["alive"] == false
        }),
        ("an odd one", |lock| lock["name"] == "<script>alert('x')</script>"),
    ];
    // A hold is reported as stuck after twenty seconds here; a renewal is overdue for some seconds out of every seventeen.
    within(4 * PATIENCE, "locks of every sort", async || {
        let list = http::get(port, "/api/v1/locks?limit=100").await?.json()?;
        let locks = list["locks"].as_array().cloned().unwrap_or_default();
        wanted.retain(|(_, fits)| !locks.iter().any(fits));
        let missing: Vec<_> = wanted.iter().map(|(what, _)| *what).collect();
        ensure!(missing.is_empty(), "missing so far: {missing:?} of {list}");
        Ok(())
    })
    .await;
    // The page says that it shows a demo.
    let page = http::get(port, "/").await?.body;
    for word in ["A demo: nothing here is real", "stuck:…", "deadlock:…"] {
        assert!(page.contains(word), "{word} in {page}");
    }
    eventually("a reentered one", async || {
        // A request by name reads the lock again, while the list may show a count from some seconds ago.
        let lock = http::get(port, "/api/v1/lock?name=checkout:cart:77").await?.json()?;
        ensure!(lock["holders"][0]["count"].as_i64() > Some(1), "{lock}");
        Ok(())
    })
    .await;
    ends_without_traces(demo, Signal::TERM).await
}

#[tokio::test]
async fn a_closed_terminal_ends_the_demo_without_traces() -> Result<()> {
    ends_without_traces(Demo::start().await?, Signal::HUP).await
}

async fn ends_without_traces(mut demo: Demo, signal: Signal) -> Result<()> {
    let children = descendants(demo.process.pid());
    assert!(children.len() >= 4, "a Redis, two agents, a dashboard: {children:?}");
    demo.process.signal(signal)?;
    let status = demo.process.end().await;
    assert!(status.success(), "{status}: {}", demo.process.log());
    for child in children {
        let command = std::fs::read_to_string(format!("/proc/{child}/comm"));
        assert!(command.is_err(), "{child} lives on: {command:?}");
    }
    let left: Vec<_> = std::fs::read_dir(demo.folder.path())?.collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

//! Other libraries on the same Redis, each in a small separate program that prints its measurements as one line of
//! JSON.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::on_path;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::report::Round;

/// The time that a peer may need beyond its measuring time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tasks for peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// One worker acquires and releases a free lock.
    Uncontended,
    /// Many workers, each with a different lock.
    Own,
    /// The same, each with its own connection, for a library that otherwise shares one among them.
    OwnConnections,
    /// Many workers, one lock.
    One,
    /// Many workers, one fair lock.
    Fair,
    /// Many workers wait; measures the time until each has held the lock once.
    Drain,
}

impl Task {
    fn word(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Own => "own",
            Self::OwnConnections => "own-connections",
            Self::One => "one",
            Self::Fair => "fair",
            Self::Drain => "drain",
        }
    }
}

/// A library to compare with.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// The agent's socket, for a library that uses the agent rather than Redis.
    socket: Option<PathBuf>,
}

/// Returns all peers; `make bench` installs what they need.
pub(crate) fn all() -> Result<Vec<Peer>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/peers");
    let python = folder.join(".venv/bin/python");
    let script = folder.join("python.py").display().to_string();
    let node = on_path("node").context("there is no node on the PATH")?;
    // `make bench` builds it next to our own programs.
    let ours = std::env::current_exe()?;
    let rslock = ours.with_file_name("bench-rslock");
    let python = |name, library: &str| Peer {
        name,
        program: python.clone(),
        arguments: vec![script.clone(), library.to_owned()],
        socket: None,
    };
    let peers = vec![
        python("redis-py", "redis-py"),
        python("redis-py asyncio", "asyncio"),
        python("python-redis-lock", "python-redis-lock"),
        Peer {
            name: "node-redlock",
            program: node,
            arguments: vec![folder.join("redlock.js").display().to_string()],
            socket: None,
        },
        Peer { name: "rslock", program: rslock, arguments: vec![], socket: None },
    ];
    installed(&peers)?;
    Ok(peers)
}

fn installed(peers: &[Peer]) -> Result<()> {
    for peer in peers {
        let there = peer.program.is_file();
        ensure!(there, "{} is not there: `make bench` installs it", peer.program.display());
    }
    Ok(())
}

/// Returns our client libraries, on the agent with this socket.
pub(crate) fn libraries(socket: &Path) -> Result<Vec<Peer>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients");
    let script = |path: &str| folder.join(path).display().to_string();
    let program = |name| on_path(name).with_context(|| format!("there is no {name} on the PATH"));
    let library = |name, program, arguments| {
        let socket = Some(socket.to_owned());
        Peer { name, program, arguments, socket }
    };
    let python = |api: &str| vec![script("python/conformance/bench.py"), api.to_owned()];
    // `make bench` builds the programs in Go and Rust next to this one.
    let ours = std::env::current_exe()?;
    let libraries = vec![
        library("Lockscope for Rust", ours.with_file_name("examples/bench"), vec![]),
        library("Lockscope for Go", ours.with_file_name("bench-library-go"), vec![]),
        library(
            "Lockscope for Node.js",
            program("node")?,
            vec![script("node/conformance/bench.js")],
        ),
        library("Lockscope for Python", program("python3")?, python("threads")),
        library("Lockscope for Python, asyncio", program("python3")?, python("asyncio")),
    ];
    installed(&libraries)?;
    Ok(libraries)
}

/// Returns the client library for Java on the agent with this socket, and Redisson, in the same program.
pub(crate) fn java(socket: &Path) -> Result<[Peer; 2]> {
    let program = on_path("java").context("there is no java on the PATH")?;
    let ours = std::env::current_exe()?.with_file_name("bench-java");
    let redisson = std::fs::read_to_string(ours.join("classpath"));
    let redisson = redisson.context("`make bench` fetches Redisson and builds its program")?;
    let class_path = format!("{}:{}", ours.display(), redisson.trim());
    let peer = |name, library: &str, socket| {
        // Redisson writes warnings to the standard error, which is shown only after a failure.
        let arguments = ["-Xmx512m", "-cp", &class_path, "Contest", library];
        let arguments = arguments.map(str::to_owned).to_vec();
        Peer { name, program: program.clone(), arguments, socket }
    };
    let socket = Some(socket.to_owned());
    Ok([peer("Lockscope for Java", "lockscope", socket), peer("Redisson 4.7.0", "redisson", None)])
}

impl Peer {
    /// Runs one task with that many workers on the Redis at that port, for `time`, and returns the printed figures by
    /// name.
    pub(crate) async fn run(
        &self,
        task: Task,
        port: u16,
        workers: usize,
        time: Duration,
    ) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(task.word());
        match &self.socket {
            Some(socket) => command.env("LOCKSCOPE_SOCKET", socket),
            None => command.arg(port.to_string()),
        };
        command.args([workers.to_string(), time.as_secs_f64().to_string()]);
        run(self.name, command, time).await
    }

    /// Runs one task in this way, and adds its figures to `round`.
    pub(crate) async fn measure(
        &self,
        round: &mut Round,
        task: Task,
        port: u16,
        workers: usize,
        time: Duration,
    ) -> Result<Value> {
        let figures = self.run(task, port, workers, time).await?;
        for (key, what) in FIGURES {
            if let Some(value) = figures.get(key).and_then(Value::as_f64) {
                round.figure(self.name, what, value);
            }
        }
        Ok(figures)
    }
}

/// The figures that programs print, with their names in the table.
const FIGURES: [(&str, &str); 8] = [
    ("pairs_per_s", PAIRS),
    ("p50_us", P50),
    ("p99_us", P99),
    ("switches_per_s", SWITCHES),
    ("least", LEAST),
    ("most", MOST),
    ("longest_wait_ms", LONGEST),
    ("drain_ms", DRAIN),
];
pub(crate) const PAIRS: &str = "pairs/s";
pub(crate) const P50: &str = "p50 µs";
pub(crate) const P99: &str = "p99 µs";
pub(crate) const SWITCHES: &str = "hand-overs/s";
pub(crate) const LEAST: &str = "fewest of a worker";
pub(crate) const MOST: &str = "most";
pub(crate) const LONGEST: &str = "longest wait ms";
pub(crate) const DRAIN: &str = "ms for all";

/// Returns one of the figures that a program printed.
pub(crate) fn figure(figures: &Value, name: &str) -> Result<f64> {
    figures.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} in {figures}"))
}

/// Measures our agent with a client library, as a worker in Python would use it.
pub(crate) async fn agent_from_python(socket: &Path, time: Duration) -> Result<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/peers");
    let mut command = Command::new(folder.join(".venv/bin/python"));
    command.arg(folder.join("python.py")).args(["agent", "uncontended"]).arg(socket);
    command.args(["1", &time.as_secs_f64().to_string()]);
    run("the agent from Python", command, time).await
}

async fn run(name: &str, mut command: Command, time: Duration) -> Result<Value> {
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = timeout(time + PATIENCE, command.output())
        .await
        .with_context(|| format!("{name} does not end"))?
        .with_context(|| format!("cannot start {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}\n{errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().with_context(|| format!("{name} prints nothing\n{errors}"))?;
    serde_json::from_str(line).with_context(|| format!("{name} prints `{line}`"))
}

//! The workers of docs/workers, run unchanged.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::{Agent, Client, RedisServer, eventually, programs, project};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;
use tokio::time::timeout;

use super::libraries::{folder, go, java, node, python};
use super::relay::Relay;

const LOCK: &str = "orders:42";
/// The time limit for a line: interpreters, compilers and virtual machines start slowly on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);

fn recipe(file: &str) -> PathBuf {
    project::path("docs/workers").join(file)
}

/// A program in some language, which can be started any number of times.
struct Program {
    make: fn(&Path) -> Result<Command>,
    /// True if it resumes its session.
    resumes: bool,
}

const PYTHON: Program = Program { make: in_python, resumes: true };
const NODE: Program = Program { make: in_javascript, resumes: true };
const GO: Program = Program { make: in_go, resumes: true };
const JAVA: Program = Program { make: in_java, resumes: true };
const RUST: Program = Program { make: in_rust, resumes: true };
const SHELL: Program = Program { make: in_shell, resumes: false };

fn in_python(_: &Path) -> Result<Command> {
    let mut command = python()?;
    command.arg(recipe("worker.py"));
    Ok(command)
}

fn in_javascript(_: &Path) -> Result<Command> {
    let mut command = node()?;
    command.arg(recipe("worker.js"));
    Ok(command)
}

fn in_go(place: &Path) -> Result<Command> {
    let program = place.join("worker");
    if !program.exists() {
        for file in ["go.mod", "go.sum"] {
            std::fs::copy(folder().join("go").join(file), place.join(file))?;
        }
        std::fs::copy(recipe("worker.go"), place.join("main.go"))?;
        let mut build = go()?;
        build.args(["build", "-o", "worker", "main.go"]).current_dir(place);
        process::succeed(&mut build, "a program in Go cannot be built")?;
    }
    Ok(process::command(&program))
}

fn in_java(_: &Path) -> Result<Command> {
    let mut command = java()?;
    command.arg(recipe("Worker.java"));
    Ok(command)
}

fn in_rust(_: &Path) -> Result<Command> {
    Ok(process::command(&programs::path("worker-recipe")?))
}

fn in_shell(_: &Path) -> Result<Command> {
    let mut command = process::command(&recipe("worker.sh"));
    command.env("LOCKCTL", programs::path("lockctl")?);
    // A tmux that was started under the lock passes this on.
    command.env("LOCKSCOPE_LOCK", LOCK);
    Ok(command)
}

/// A running program: it reads orders and prints lines.
struct Running {
    process: Process,
    orders: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(program: &Program, place: &Path, socket: &Path) -> Result<Self> {
        let mut command = (program.make)(place)?;
        command.env("LOCKSCOPE_SOCKET", socket);
        command.env("WORKER_TICKET", place.join("ticket"));
        let mut process = Process::spawn_piped("worker", command, &place.join("log"))?;
        let orders = process.take_stdin();
        let lines = process.take_stdout().context("it was started with a pipe")?;
        let lines = BufReader::new(ChildStdout::from_std(lines)?).lines();
        Ok(Self { process, orders, lines })
    }

    async fn says(&mut self, expected: &str) -> Result<()> {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("it does not say `{expected}`"))??;
        ensure!(
            line.as_deref() == Some(expected),
            "{line:?} is not `{expected}`: {}",
            self.process.log()
        );
        Ok(())
    }

    /// Like [`Self::says`], but `before` may be printed any number of times first.
    async fn says_after(&mut self, before: &str, expected: &str) -> Result<()> {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await;
            let line = line.with_context(|| format!("it does not say `{expected}`"))??;
            match line.as_deref() {
                Some(line) if line == expected => return Ok(()),
                Some(line) if line == before => {}
                other => anyhow::bail!("{other:?} is not `{expected}`: {}", self.process.log()),
            }
        }
    }

    async fn does(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders.as_mut().context("there are no more")?, "{order}")?;
        self.says(&format!("did {order}")).await
    }

    /// Closes the input and checks that the program ends successfully.
    async fn finish(&mut self) -> Result<()> {
        self.orders = None;
        self.says("done").await?;
        let status = self.process.end().await;
        ensure!(status.success(), "{status}: {}", self.process.log());
        Ok(())
    }
}

struct Stage {
    redis: RedisServer,
    agent: Agent,
    place: TempDir,
    direct: Client,
}

impl Stage {
    async fn new(lease: &str) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, &["--lease", lease, "--drain-timeout", "10m"]).await?;
        let direct = redis.client().await?;
        Ok(Self { agent, place: tempfile::tempdir()?, direct, redis })
    }

    /// Has the agent drain, for as long as the returned worker holds a lock without grace.
    async fn drain(&mut self) -> Result<Client> {
        let mut other = self.agent.client().await?;
        other.call("LOCK keeper").await?.ok()?;
        self.agent.process().terminate()?;
        eventually("the agent to drain", async || {
            let reply = other.call("LOCK other NOWAIT").await?.text();
            ensure!(reply.contains("DRAINING"), "{reply}");
            Ok(())
        })
        .await;
        Ok(other)
    }

    fn start(&self, program: &Program) -> Result<Running> {
        Running::start(program, self.place.path(), &self.agent.socket())
    }

    async fn holder(&mut self) -> Result<String> {
        Ok(self.direct.call(&format!("HKEYS {LOCK}")).await?.ok()?.text())
    }

    async fn until_free(&mut self) {
        eventually("the lock to be free", async || {
            let left = self.direct.call(&format!("EXISTS {LOCK}")).await?.int()?;
            ensure!(left == 0, "it is there");
            Ok(())
        })
        .await;
    }
}

async fn the_worker_waits_works_and_resumes(program: &Program) -> Result<()> {
    let mut stage = Stage::new("2m").await?;
    let mut other = stage.agent.client().await?;
    other.call(&format!("LOCK {LOCK}")).await?.ok()?;
    let mut worker = stage.start(program)?;
    let waits = timeout(PATIENCE, async {
        loop {
            let rows = other.call(&format!("LOCKS MATCH {LOCK}")).await?.text();
            if rows.contains("waiting") {
                return anyhow::Ok(());
            }
            ensure!(worker.process.ended()?.is_none(), "{}", worker.process.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waits.await.context("it does not wait for the lock")??;
    other.call(&format!("UNLOCK {LOCK}")).await?.ok()?;
    worker.says(&format!("working on {LOCK}")).await?;
    let holder = stage.holder().await?;
    worker.does("one").await?;
    worker.does("two").await?;
    if program.resumes {
        let mode = std::fs::metadata(stage.place.path().join("ticket"))?.permissions().mode();
        ensure!(mode & 0o077 == 0, "others can read the ticket: {mode:o}");
        // The agent is restarted; the lock stays the same.
        stage.agent.restart().await?;
        worker.says("resumed").await?;
        worker.does("three").await?;
        ensure!(stage.holder().await? == holder);
        // The worker's process is replaced too.
        worker.process.kill()?;
        drop(worker);
        worker = stage.start(program)?;
        worker.says("resumed").await?;
        worker.says(&format!("working on {LOCK}")).await?;
        worker.does("four").await?;
        ensure!(stage.holder().await? == holder);
    }
    worker.finish().await?;
    stage.until_free().await;
    Ok(())
}

async fn the_worker_reports_jeopardy_and_loss(program: &Program) -> Result<()> {
    // A shell script may need a second of the time between TERM and KILL, which is at most a third of the lease.
    let mut stage = Stage::new(if program.resumes { "9s" } else { "15s" }).await?;
    let mut worker = stage.start(program)?;
    worker.says(&format!("working on {LOCK}")).await?;
    stage.redis.process().freeze().await?;
    if program.resumes {
        worker.says("jeopardy").await?;
        // On a busy host the lock may have been in danger and safe again before.
        worker.says_after("jeopardy", "lost: unconfirmed").await?;
    } else {
        worker.says("ended in the middle").await?;
    }
    let status = worker.process.end().await;
    ensure!(status.code() == Some(76), "{status}: {}", worker.process.log());
    stage.redis.process().thaw()
}

async fn the_worker_outlives_an_agent_that_drains(program: &Program) -> Result<()> {
    if !program.resumes {
        return Ok(());
    }
    let mut stage = Stage::new("2m").await?;
    let relay = Relay::start(&stage.agent.socket())?;
    let mut worker = Running::start(program, stage.place.path(), &relay.socket())?;
    worker.says(&format!("working on {LOCK}")).await?;
    // A draining agent accepts no other connection: without its second one the worker would resume its session first.
    eventually("it to listen for events", async || {
        let listens = (0..relay.made()).map(|number| relay.commands(number));
        let commands = listens.collect::<Result<Vec<_>>>()?.concat();
        let listens = |command: &String| command.starts_with("EVENTS ") || command.contains("PUSH");
        ensure!(commands.iter().any(listens), "{commands:?}");
        Ok(())
    })
    .await;
    let _keeper = stage.drain().await?;
    // It reenters the lock for this, which the agent refuses.
    writeln!(worker.orders.as_mut().context("there are no more")?, "one")?;
    eventually("two more attempts", async || {
        let attempts = relay.attempts(LOCK)?;
        ensure!(attempts >= 3, "{attempts} of a worker that said: {}", worker.process.log());
        Ok(())
    })
    .await;
    stage.agent.restart().await?;
    worker.says_after("resumed", "did one").await?;
    worker.finish().await
}

/// Redis stays silent, so the worker still waits for the reply to UNLOCK when its agent and its session end.
async fn a_session_that_ends_after_the_release_is_no_loss(program: &Program) -> Result<()> {
    let mut stage = Stage::new("2m").await?;
    let mut worker = stage.start(program)?;
    worker.says(&format!("working on {LOCK}")).await?;
    worker.does("one").await?;
    let mut other = stage.agent.client().await?;
    stage.redis.process().freeze().await?;
    worker.orders = None;
    eventually("the hold to end", async || {
        let rows = other.call(&format!("LOCKS MATCH {LOCK}")).await?.text();
        ensure!(!rows.contains("held"), "{rows}");
        Ok(())
    })
    .await;
    stage.agent.process().kill()?;
    std::fs::remove_dir_all(stage.agent.folder().join("state"))?;
    stage.redis.process().thaw()?;
    stage.agent.restart().await?;
    worker.finish().await
}

/// The agent says so after two seconds, and repeats the release. The lease does not end within the test.
async fn a_last_release_that_redis_does_not_confirm_is_no_failure(program: &Program) -> Result<()> {
    let mut stage = Stage::new("10m").await?;
    let mut worker = stage.start(program)?;
    worker.says(&format!("working on {LOCK}")).await?;
    worker.does("one").await?;
    stage.redis.process().freeze().await?;
    worker.finish().await?;
    stage.redis.process().thaw()?;
    stage.until_free().await;
    Ok(())
}

/// Its last release is called while its connection is being replaced.
async fn a_release_during_a_resumption_releases_once(program: &Program) -> Result<()> {
    if !program.resumes {
        return Ok(());
    }
    let stage = Stage::new("2m").await?;
    let relay = Relay::start(&stage.agent.socket())?;
    let mut worker = Running::start(program, stage.place.path(), &relay.socket())?;
    worker.says(&format!("working on {LOCK}")).await?;
    relay.refuse(true);
    relay.cut();
    let made = relay.made();
    eventually("attempts to connect", async || {
        ensure!(relay.made() > made, "none");
        Ok(())
    })
    .await;
    worker.orders = None;
    // They come each tenth of a second: meanwhile the worker finds the end of its input.
    eventually("more attempts", async || {
        ensure!(relay.made() >= made + 20, "{} of {made}", relay.made());
        Ok(())
    })
    .await;
    relay.refuse(false);
    worker.says("resumed").await?;
    worker.finish().await
}

async fn a_loss_during_a_resumption_is_noticed(program: &Program) -> Result<()> {
    if !program.resumes {
        return Ok(());
    }
    let stage = Stage::new("2m").await?;
    let relay = Relay::start(&stage.agent.socket())?;
    let mut worker = Running::start(program, stage.place.path(), &relay.socket())?;
    worker.says(&format!("working on {LOCK}")).await?;
    // A connection for events that was made after the cut would report the loss by itself.
    eventually("the worker to ask for events", async || {
        let asked = relay.sent("EVENTS ")? + relay.sent("SESSION PUSH on")?;
        ensure!(asked > 0, "it has not");
        Ok(())
    })
    .await;
    // Only the reply to RESUME has this word. The worker does not ask for pushes before it has read it.
    relay.hold_back("grace_ms");
    relay.cut();
    eventually("the reply to RESUME", async || {
        ensure!(relay.holds_back(), "none");
        Ok(())
    })
    .await;
    stage.agent.client().await?.call(&format!("FORCE {LOCK}")).await?.ok()?;
    relay.let_pass();
    worker.says("resumed").await?;
    let status = worker.process.end().await;
    ensure!(status.code() == Some(76), "{status}: {}", worker.process.log());
    Ok(())
}

macro_rules! recipes {
    ($($module:ident $program:expr;)*) => {$(
        mod $module {
            use super::*;

            #[tokio::test]
            async fn the_worker_waits_works_and_resumes() -> Result<()> {
                super::the_worker_waits_works_and_resumes(&$program).await
            }

            #[tokio::test]
            async fn the_worker_reports_jeopardy_and_loss() -> Result<()> {
                super::the_worker_reports_jeopardy_and_loss(&$program).await
            }

            #[tokio::test]
            async fn the_worker_outlives_an_agent_that_drains() -> Result<()> {
                super::the_worker_outlives_an_agent_that_drains(&$program).await
            }

            #[tokio::test]
            async fn a_session_that_ends_after_the_release_is_no_loss() -> Result<()> {
                super::a_session_that_ends_after_the_release_is_no_loss(&$program).await
            }

            #[tokio::test]
            async fn a_last_release_that_redis_does_not_confirm_is_no_failure() -> Result<()> {
                super::a_last_release_that_redis_does_not_confirm_is_no_failure(&$program).await
            }

            #[tokio::test]
            async fn a_release_during_a_resumption_releases_once() -> Result<()> {
                super::a_release_during_a_resumption_releases_once(&$program).await
            }

            #[tokio::test]
            async fn a_loss_during_a_resumption_is_noticed() -> Result<()> {
                super::a_loss_during_a_resumption_is_noticed(&$program).await
            }
        }
    )*};
}

recipes! {
    a_python_worker PYTHON;
    a_node_worker NODE;
    a_go_worker GO;
    a_java_worker JAVA;
    a_rust_worker RUST;
    a_shell_worker SHELL;
}

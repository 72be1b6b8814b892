//! Orders of steps within one program, which the commands to a driver cannot have.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::{NODE, PYTHON_ASYNCIO, Relay, Stage, folder, installed, uvloop_python, with_uvloop};

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// A running program of Python.
struct Program {
    child: Child,
    input: ChildStdin,
    printed: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(python: &Path, program: &str, socket: &Path) -> Result<Self> {
        let mut command = process::command(python);
        command.args(["-c", program]).env("PYTHONPATH", folder("python").join("src"));
        command.env("LOCKSCOPE_SOCKET", socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().context("it has no input")?;
        let output = child.stdout.take().context("it has no output")?;
        Ok(Self { child, input, printed: BufReader::new(output).lines() })
    }

    /// Waits until it has printed this line.
    async fn prints(&mut self, expected: &str) -> Result<()> {
        let line = timeout(Duration::from_secs(120), self.printed.next_line());
        let line = line.await.with_context(|| format!("it does not print {expected}"))??;
        if line.as_deref() == Some(expected) {
            return Ok(());
        }
        let mut error = String::new();
        self.child.stderr.take().context("read before")?.read_to_string(&mut error).await?;
        bail!("{line:?} {error}");
    }

    async fn enter_a_line(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n").await?)
    }
}

/// Returns the variants of asyncio that are installed: the interpreter, and the lines that choose the event loop.
fn event_loops() -> Result<Vec<(PathBuf, &'static str)>> {
    let mut loops = vec![(installed("python3")?, "")];
    if !with_uvloop(Vec::new()).is_empty() {
        loops.push((uvloop_python(), "import uvloop; uvloop.install()\n"));
    }
    Ok(loops)
}

async fn output(mut command: Command) -> Result<Output> {
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// Between the steps of `lockAll`, another task of the owner releases one of the locks.
#[tokio::test]
async fn several_locks_of_node_are_all_acquired_while_one_of_them_is_released() -> Result<()> {
    const PROGRAM: &str = "
        const { Agent } = await import(process.argv[1]);
        const agent = new Agent();
        for (let steps = 0; steps < 40; steps++) {
          const owner = agent.owner();
          const first = await owner.lock('a');
          const all = owner.lockAll(['a', 'b']);
          const release = async () => {
            for (let step = 0; step < steps; step++) await null;
            await first.release();
          };
          const [holds] = await Promise.all([all, release()]);
          const names = holds.all.map((hold) => hold.name).join();
          if (names !== 'a,b') console.log(`${steps} steps: ${names}`);
          await holds.release();
        }
        await agent.close();";
    let stage = Stage::new(&NODE).await?;
    let mut command = process::command(&installed("node")?);
    command.args(["--input-type=module", "-e", PROGRAM]);
    command.arg(folder("node").join("src/index.js"));
    command.env("LOCKSCOPE_SOCKET", stage.agent.socket());
    let output = output(command).await?;
    ensure!(output.status.success() && text(&output).is_empty(), "{}", text(&output));
    Ok(())
}

/// The second wait begins at the instant at which the first one passes its turn to the recovery of the session.
#[tokio::test]
async fn a_wait_of_asyncio_right_after_a_failed_one_has_its_own_limit() -> Result<()> {
    const PROGRAM: &str = "
import asyncio, lockscope, lockscope.aio
async def main():
    agent = lockscope.aio.Agent(grace=180)
    for _ in range(3):
        try:
            await agent.lock('orders:42', wait=3)
        except (lockscope.Unavailable, lockscope.LockTimeout):
            pass
asyncio.run(main())
print('over')";
    let mut stage = Stage::new(&PYTHON_ASYNCIO).await?;
    stage.other_has("LOCK orders:42").await?;
    let mut program = Program::start(&installed("python3")?, PROGRAM, &stage.agent.socket())?;
    stage.waits("orders:42", true).await;
    stage.agent.process().kill()?;
    program.prints("over").await
}

/// The process lives on and may use its agent object again, so the end of its connection cannot end the wait.
#[tokio::test]
async fn a_wait_of_asyncio_ends_with_its_event_loop() -> Result<()> {
    const WAITS: &str = "
import asyncio, sys, lockscope.aio
agent = lockscope.aio.Agent()
async def main():
    waiting = asyncio.ensure_future(agent.lock('orders:42'))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if cancels:
        waiting.cancel()
asyncio.run(main())
print('over', flush=True)
sys.stdin.readline()
asyncio.run(agent.close())
print('closed')";
    for (python, choice) in event_loops()? {
        for cancels in ["True", "False"] {
            let mut stage = Stage::new(&PYTHON_ASYNCIO).await?;
            stage.other_has("LOCK orders:42").await?;
            let program = format!("{choice}cancels = {cancels}{WAITS}");
            let mut program = Program::start(&python, &program, &stage.agent.socket())?;
            stage.waits("orders:42", true).await;
            program.enter_a_line().await?;
            program.prints("over").await?;
            stage.waits("orders:42", false).await;
            program.enter_a_line().await?;
            program.prints("closed").await?;
        }
    }
    Ok(())
}

/// The agent resumes a session only once its earlier connection has ended, of which a forked child has a copy.
#[tokio::test]
async fn the_parent_of_a_forked_child_resumes_its_session() -> Result<()> {
    const PROGRAM: &str = "
import asyncio, os, sys, lockscope, lockscope.aio
async def main():
    agent = lockscope.aio.Agent()
    hold = await agent.lock('orders:42')
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    print('forked', flush=True)
    sys.stdin.readline()
    for _ in range(5):
        try:
            await hold.extend(600)
            print('extended', flush=True)
            break
        except lockscope.Unavailable:
            pass
    await agent.close()
asyncio.run(main())";
    for (python, choice) in event_loops()? {
        let stage = Stage::with(&PYTHON_ASYNCIO, &["--lease", "60s"]).await?;
        let relay = Relay::start(&stage.agent.socket())?;
        let program = format!("{choice}{PROGRAM}");
        let mut program = Program::start(&python, &program, &relay.socket())?;
        program.prints("forked").await?;
        relay.mute();
        program.enter_a_line().await?;
        program.prints("extended").await?;
    }
    Ok(())
}

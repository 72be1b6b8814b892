//! Orders of steps within one program, which the commands to a driver cannot have.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process;
use tokio::time::timeout;

use super::{NODE, PYTHON_ASYNCIO, Stage, folder, installed};

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
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
    let mut command = process::command(&installed("python3")?);
    command.args(["-c", PROGRAM]).env("PYTHONPATH", folder("python").join("src"));
    command.env("LOCKSCOPE_SOCKET", stage.agent.socket());
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    stage.waits("orders:42", true).await;
    stage.agent.process().kill()?;
    let ended = tokio::task::spawn_blocking(move || program.wait_with_output());
    let output =
        timeout(Duration::from_secs(120), ended).await.context("a wait has no limit")???;
    ensure!(text(&output).starts_with("over"), "{}", text(&output));
    Ok(())
}

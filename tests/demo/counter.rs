//! A worker whose work shows whether a lock excludes: it appends the next integer to a list in Redis, but first reads
//! the list's length and waits. If two workers are inside at once, an integer appears twice.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::{Client, Reply};
use rustix::time::{ClockId, clock_gettime};

use crate::worker::say;

/// The worker starts a step only while the lock is valid for at least this much longer.
const MARGIN: Duration = Duration::from_millis(300);
/// The time inside: long compared with the time in which a late script or wrong release would admit another worker.
const INSIDE: Duration = Duration::from_millis(10);

/// The arguments of a counter.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The agent's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The socket of the Redis with the list.
    #[arg(long)]
    resource: PathBuf,
    /// The lock to hold while counting.
    #[arg(long)]
    lock: String,
    /// The list.
    #[arg(long)]
    list: String,
}

/// Counts until it is killed, and prints each integer that was certainly appended. After any failure of the agent it
/// starts again, as workers do.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut resource = Client::unix(&arguments.resource).await?;
        loop {
            let Err(why) = count(arguments, &mut resource).await;
            // Only the resource must not fail.
            ensure!(resource.call("PING").await?.text() == "PONG", "{why:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

async fn count(arguments: &Arguments, resource: &mut Client) -> Result<std::convert::Infallible> {
    let mut agent = Client::unix(&arguments.socket).await?;
    let lock = format!("LOCK {} WAIT 20000", arguments.lock);
    loop {
        let sent = now();
        let granted = agent.call(&lock).await?;
        if granted == Reply::Null {
            continue;
        }
        let granted = granted.ok()?;
        // Counted from the request, since the reply may have been read at any time after it arrived.
        let valid = sent + millis(&granted, "waited_ms")? + millis(&granted, "valid_ms")?;
        let length = resource.call(&format!("LLEN {}", arguments.list)).await?.int()?;
        tokio::time::sleep(INSIDE).await;
        if now() + MARGIN < valid {
            let next = length + 1;
            resource.call(&format!("RPUSH {} {next}", arguments.list)).await?.int()?;
            say(&next.to_string())?;
        }
        let released = agent.call(&format!("UNLOCK {}", arguments.lock)).await?;
        if released.is_error("SYNTAX") {
            bail!("{released}");
        }
    }
}

fn millis(reply: &Reply, field: &str) -> Result<Duration> {
    let millis = reply.field(field)?.int()?;
    Ok(Duration::from_millis(u64::try_from(millis).context("a negative time")?))
}

/// Returns the time since the host's start, including suspensions.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

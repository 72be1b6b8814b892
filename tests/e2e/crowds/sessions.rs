//! Ten thousand workers.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};
use harness::Client;

use super::{Crowd, open_files};

const WORKERS: usize = 10_000;

/// Connects as blocking programs do: the kernel makes them wait while the listener's queue is full.
fn connect(socket: &Path, count: usize) -> Result<Vec<UnixStream>> {
    (0..count).map(|_| Ok(UnixStream::connect(socket)?)).collect()
}

#[tokio::test]
async fn ten_thousand_workers_come_at_once_work_and_go_at_once() -> Result<()> {
    open_files(WORKERS as u64 + 500)?;
    let crowd = Crowd::new(&[]).await?;
    let idle = crowd.memory()?;
    let connecting: Vec<_> = (0..20)
        .map(|_| {
            let socket = crowd.agent.socket();
            tokio::task::spawn_blocking(move || connect(&socket, WORKERS / 20))
        })
        .collect();
    let mut workers = Vec::with_capacity(WORKERS);
    for streams in connecting {
        for stream in streams.await?? {
            workers.push(Client::std(stream)?);
        }
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.send(&format!("LOCK worker:{number}")).await?;
    }
    for worker in &mut workers {
        let held = worker.reply().await?.ok()?;
        ensure!(held.field("holds")?.int()? == 1, "{held}");
    }
    crowd.until_figure("lockscope_agent_sessions", WORKERS as f64).await;
    crowd.until_figure("lockscope_agent_holds", WORKERS as f64).await;
    crowd.until_keys(WORKERS as i64).await?;
    let each = (crowd.memory()? - idle) / WORKERS as u64;
    ensure!(each < 16 << 10, "{each} bytes for each session and its hold");
    crowd.nothing_is_lost().await?;
    drop(workers);
    crowd.until_keys(0).await?;
    crowd.until_figure("lockscope_agent_sessions", 0.0).await;
    Ok(())
}

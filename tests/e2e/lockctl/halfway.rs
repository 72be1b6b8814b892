//! A connection to the agent that ends before a certain reply.

use std::path::Path;

use anyhow::Result;
use harness::{PATIENCE, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A connection that has passed every command on to the agent and withholds the agent's last reply. Both sides see it
/// end when it is dropped.
#[derive(Debug)]
pub(super) struct Halfway {
    asking: JoinHandle<()>,
    replies: OwnedReadHalf,
    back: OwnedWriteHalf,
    kept: Vec<u8>,
}

impl Halfway {
    /// Accepts connections to `door` and relays them to the agent, until a reply of the agent contains `word`.
    pub(super) async fn until(door: &UnixListener, agent: &Path, word: &str) -> Result<Self> {
        loop {
            let (ours, _) =
                within(PATIENCE, "a connection", async || Ok(door.accept().await?)).await;
            let (mut from, back) = ours.into_split();
            let (replies, mut on) = UnixStream::connect(agent).await?.into_split();
            let asking = tokio::spawn(async move {
                // Either side may disconnect.
                copy(&mut from, &mut on).await.ok();
            });
            let mut way = Self { asking, replies, back, kept: Vec::new() };
            // A client without a timely reply connects again.
            if way.reaches(word).await? {
                return Ok(way);
            }
        }
    }

    async fn reaches(&mut self, word: &str) -> Result<bool> {
        let mut chunk = vec![0; 4096];
        loop {
            let read = timeout(PATIENCE, self.replies.read(&mut chunk)).await??;
            if read == 0 {
                return Ok(false);
            }
            if String::from_utf8_lossy(&chunk[..read]).contains(word) {
                self.kept = chunk[..read].to_vec();
                return Ok(true);
            }
            if self.back.write_all(&chunk[..read]).await.is_err() {
                return Ok(false);
            }
        }
    }

    /// Delivers another reply in place of the withheld one, and nothing after it.
    pub(super) async fn answer(mut self, reply: &[u8]) -> Result<()> {
        Ok(self.back.write_all(reply).await?)
    }

    /// Delivers the withheld reply and everything after it until one side disconnects.
    pub(super) async fn go_on(mut self) -> Result<()> {
        self.back.write_all(&self.kept).await?;
        // Either side may disconnect.
        timeout(PATIENCE, copy(&mut self.replies, &mut self.back)).await?.ok();
        Ok(())
    }
}

impl Drop for Halfway {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

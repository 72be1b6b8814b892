//! A relay between a library and the agent: records the commands of the library, and cuts, mutes or refuses its connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use harness::{Reply, eventually};

/// The bytes sent by each connection, in order of creation.
type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

/// What happens to connections.
#[derive(Default)]
struct Faults {
    /// The number of connections, the earliest ones, that carry nothing from the agent.
    muted: AtomicUsize,
    /// New connections end at once.
    refusing: AtomicBool,
    /// The word at which the connection that sends it ends.
    cut_at: Mutex<Option<&'static str>>,
    /// The word of the agent at which its connection carries nothing from it for a while.
    hold_at: Mutex<Option<&'static str>>,
    /// Bytes that are held back may pass.
    open: watch::Sender<bool>,
    /// The agent is asked for no events.
    silent: AtomicBool,
    /// The bytes from the agent that the library can read.
    carried: Mutex<Vec<u8>>,
    /// The next connection that carries something from the agent ends after it.
    cut_after_reply: AtomicBool,
    /// The number of connections that have ended by themselves.
    ended: AtomicUsize,
}

fn has(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Returns whether these bytes have the word, which then is taken away.
fn meets(word: &Mutex<Option<&'static str>>, bytes: &[u8]) -> bool {
    let mut word = word.lock();
    word.take_if(|word| has(bytes, word)).is_some()
}

/// A separate socket in front of the agent's. Its connections end when it is dropped.
pub(crate) struct Relay {
    folder: TempDir,
    sent: Sent,
    connections: Arc<Mutex<JoinSet<Result<()>>>>,
    faults: Arc<Faults>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(crate) fn start(agent: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-relay-").tempdir()?;
        let listener = UnixListener::bind(folder.path().join("relay.sock"))?;
        let sent = Sent::default();
        let connections = Arc::<Mutex<JoinSet<Result<()>>>>::default();
        let faults = Arc::<Faults>::default();
        let (agent, notes, joined, injected) =
            (agent.to_owned(), Arc::clone(&sent), Arc::clone(&connections), Arc::clone(&faults));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = {
                    let mut notes = notes.lock();
                    notes.push(Vec::new());
                    notes.len() - 1
                };
                if injected.refusing.load(Ordering::Relaxed) {
                    continue;
                }
                let mut joined = joined.lock();
                let (notes, injected) = (Arc::clone(&notes), Arc::clone(&injected));
                let carrying = carry(client, agent.clone(), notes, Arc::clone(&injected), number);
                joined.spawn(async move {
                    let outcome = carrying.await;
                    injected.ended.fetch_add(1, Ordering::Relaxed);
                    outcome
                });
            }
        });
        Ok(Self { folder, sent, connections, faults, task })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("relay.sock")
    }

    /// Ends all current connections; new ones are relayed.
    pub(crate) fn cut(&self) {
        self.connections.lock().abort_all();
    }

    /// Ends the next connection that sends this word, once the agent has it and before the reply arrives.
    pub(crate) fn cut_at(&self, word: &'static str) {
        *self.faults.cut_at.lock() = Some(word);
    }

    /// Ends a connection right after the next thing that it carries from the agent, and waits for that.
    pub(crate) async fn cut_after_reply(
        &self,
        cause: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let ended = self.faults.ended.load(Ordering::Relaxed);
        self.faults.cut_after_reply.store(true, Ordering::Relaxed);
        cause.await?;
        eventually("the end of the connection", async || {
            ensure!(self.faults.ended.load(Ordering::Relaxed) > ended, "it lasts");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Keeps back what the agent sends on all current connections; new ones are relayed.
    pub(crate) fn mute(&self) {
        self.faults.muted.store(self.made(), Ordering::Relaxed);
    }

    /// Holds back what the agent sends on a connection, from the next bytes with this word on.
    pub(crate) fn hold_back(&self, word: &'static str) {
        self.faults.open.send_replace(false);
        *self.faults.hold_at.lock() = Some(word);
    }

    /// Returns whether the agent has sent the word at which it is held back.
    pub(crate) fn holds_back(&self) -> bool {
        self.faults.hold_at.lock().is_none()
    }

    /// Lets pass what is held back.
    pub(crate) fn let_pass(&self) {
        self.faults.open.send_replace(true);
    }

    /// Returns whether the agent has sent this word, and the library can read it.
    pub(crate) fn has_carried(&self, word: &str) -> bool {
        has(&self.faults.carried.lock(), word)
    }

    /// Keeps the agent from sending events: later sessions do not ask for them.
    pub(crate) fn silence(&self) {
        self.faults.silent.store(true, Ordering::Relaxed);
    }

    /// Sets whether new connections end at once, like those to an agent that is not there.
    pub(crate) fn refuse(&self, refusing: bool) {
        self.faults.refusing.store(refusing, Ordering::Relaxed);
    }

    /// Returns the number of connections made.
    pub(crate) fn made(&self) -> usize {
        self.sent.lock().len()
    }

    /// Returns the number of commands that tried to acquire the lock.
    pub(crate) fn attempts(&self, name: &str) -> Result<usize> {
        self.sent(&format!("LOCK {name} "))
    }

    /// Returns the number of commands that began with these words.
    pub(crate) fn sent(&self, words: &str) -> Result<usize> {
        let mut count = 0;
        for number in 0..self.made() {
            let commands = self.commands(number)?;
            count += commands.iter().filter(|command| command.starts_with(words)).count();
        }
        Ok(count)
    }

    /// Returns the commands that the `number`th connection has sent, with spaces between their words.
    pub(crate) fn commands(&self, number: usize) -> Result<Vec<String>> {
        let sent = self.sent.lock();
        let mut rest = sent.get(number).map_or(&[][..], Vec::as_slice);
        let mut commands = Vec::new();
        while let Some((command, taken)) = Reply::decode(rest)? {
            let words: Vec<String> = command.items()?.iter().map(Reply::text).collect();
            commands.push(words.join(" "));
            rest = &rest[taken..];
        }
        Ok(commands)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn carry(
    client: UnixStream,
    agent: PathBuf,
    sent: Sent,
    faults: Arc<Faults>,
    number: usize,
) -> Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_agent, mut to_agent) = UnixStream::connect(agent).await?.into_split();
    let there = async {
        let mut bytes = [0; 4096];
        loop {
            let count = from_client.read(&mut bytes).await?;
            if count == 0 {
                return anyhow::Ok(());
            }
            let read = &bytes[..count];
            sent.lock()[number].extend_from_slice(read);
            if faults.silent.load(Ordering::Relaxed) {
                to_agent.write_all(&without_events(read)).await?;
            } else {
                to_agent.write_all(read).await?;
            }
            if meets(&faults.cut_at, read) {
                return Ok(());
            }
        }
    };
    let back = async {
        let mut bytes = [0; 4096];
        loop {
            let count = from_agent.read(&mut bytes).await?;
            if count == 0 {
                return anyhow::Ok(());
            }
            if meets(&faults.hold_at, &bytes[..count]) {
                faults.open.subscribe().wait_for(|open| *open).await?;
            }
            if number >= faults.muted.load(Ordering::Relaxed) {
                to_client.write_all(&bytes[..count]).await?;
                let mut carried = faults.carried.lock();
                carried.extend_from_slice(&bytes[..count]);
                if faults.cut_after_reply.swap(false, Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
    }
}

/// Returns the commands with `PUSH off` in place of `PUSH on`.
fn without_events(commands: &[u8]) -> Vec<u8> {
    const ON: &[u8] = b"PUSH\r\n$2\r\non\r\n";
    let Some(at) = commands.windows(ON.len()).position(|part| part == ON) else {
        return commands.to_vec();
    };
    [&commands[..at], b"PUSH\r\n$3\r\noff\r\n", &commands[at + ON.len()..]].concat()
}

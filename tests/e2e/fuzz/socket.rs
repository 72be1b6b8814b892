//! The agent's socket under random and mutated commands, with an honest worker next to them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use harness::random::Random;
use harness::{Agent, Client, RedisServer, Reply, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::commands::{self, Commands};
use super::{ANSWER_WITHIN, Seeds, ensure_no_panic, mutate, write_in_pieces};
use crate::agent::ensure_released;

const CONNECTIONS: usize = 12;

/// The codes that an error may have while Redis answers.
const ERRORS: [&str; 14] = [
    "SYNTAX",
    "LIMIT",
    "NOTHELD",
    "LOST",
    "WRONGTYPE",
    "WRONGKIND",
    "DEADLOCK",
    "SESSION",
    "GONE",
    "DENIED",
    "UNAVAILABLE",
    "NOSESSION",
    "ERR",
    "NOPROTO",
];

#[tokio::test]
async fn random_commands_harm_no_other_session_and_leave_nothing() -> Result<()> {
    let redis = RedisServer::start().await?;
    // With this lease Redis has two seconds to answer, the most that the agent ever gives it.
    let mut agent = Agent::with(&redis, &["--max-grace", "1s", "--lease", "30s"]).await?;
    let seeds = Seeds::chosen(0..1_500)?;
    let (socket, over) = (agent.socket(), AtomicBool::new(false));
    let attack = async {
        let attackers =
            (0..CONNECTIONS).map(|_| seeds.run(async |seed| attack(&socket, seed).await));
        let ended = try_join_all(attackers).await;
        over.store(true, Ordering::Relaxed);
        ended
    };
    let (attacked, honest) = tokio::join!(attack, work_honestly(&socket, &over));
    ensure_no_panic(&agent.process().log())?;
    attacked?;
    honest.context("the honest worker")?;
    eventually("nothing to be left in the agent", async || {
        let metrics = agent.metrics().await?;
        for metric in ["sessions", "away_sessions", "holds", "waiters", "delayed_holds"] {
            let left = metrics.sum(&format!("lockscope_agent_{metric}"), &[]);
            ensure!(left == 0.0, "{left} {metric}");
        }
        Ok(())
    })
    .await;
    let mut direct = redis.client().await?;
    eventually("nothing to be left in Redis but tokens", async || {
        let keys = direct.call("KEYS *").await?.ok()?;
        let stays = ["lockscope:", "redisson_lock_token:"];
        let left = keys.items()?.iter().map(Reply::text);
        let left: Vec<_> =
            left.filter(|key| !stays.iter().any(|start| key.starts_with(start))).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await;
    ensure!(agent.process().ended()?.is_none(), "the agent has ended");
    Ok(())
}

/// Acquires, pings and releases until `over`. Checks that each reply is correct and that no hold is ever at risk.
async fn work_honestly(socket: &Path, over: &AtomicBool) -> Result<()> {
    let mut worker = Client::unix(socket).await?;
    worker.call("HELLO 3").await?.ok()?;
    worker.call("SESSION PUSH on").await?.ok()?;
    worker.call("LOCK honest").await?.ok()?;
    let mut rounds = 0;
    while !over.load(Ordering::Relaxed) {
        let round = async {
            worker.send(&format!("LOCK honest:{rounds}")).await?;
            worker.send(&format!("PING {rounds}")).await?;
            worker.send(&format!("UNLOCK honest:{rounds}")).await?;
            let held = worker.reply().await?.ok()?;
            ensure!(held.field("lock")?.text() == format!("honest:{rounds}"), "{held}");
            ensure!(held.field("holds")?.int()? == 1, "{held}");
            let pong = worker.reply().await?;
            ensure!(pong.text() == rounds.to_string(), "{pong}");
            ensure_released(&worker.reply().await?)
        };
        let began = Instant::now();
        let ended = timeout(ANSWER_WITHIN, round).await.context("no reply").flatten();
        ended.with_context(|| format!("round {rounds}, {:?} after it began", began.elapsed()))?;
        rounds += 1;
    }
    ensure_released(&worker.call("UNLOCK honest").await?).context("the lock that it kept")?;
    ensure!(worker.pushes() == 0, "{:?}", worker.push().await);
    ensure!(rounds > 10, "{rounds} rounds");
    Ok(())
}

/// The way in which a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It stops writing, and reads the rest.
    HalfClosed,
    /// It closes with unread replies.
    Dropped,
}

/// Sends the bytes that a seed determines, and checks the replies.
async fn attack(socket: &Path, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut stream = UnixStream::connect(socket).await?;
    let session = match random.below(8) {
        0 => None,
        choice => Some(Session::open(&mut stream, choice % 2 == 0, random.one_in(3)).await?),
    };
    let known = session.as_ref().map(|session| (session.id.as_str(), session.secret.as_str()));
    let commands = Commands::new(&mut random, known).any();
    let mut bytes = commands::bytes(&commands);
    let whole = random.one_in(2);
    if !whole {
        if random.one_in(6) {
            bytes = (0..random.index(2_000)).map(|_| random.byte()).collect();
        }
        mutate(&mut random, &mut bytes);
    }
    let end = if random.one_in(4) { End::Dropped } else { End::HalfClosed };
    let (mut reading, mut writing) = stream.into_split();
    let mut received = Vec::new();
    let write = async {
        write_in_pieces(&mut random, &mut writing, &bytes).await?;
        if end == End::HalfClosed {
            // The agent may already have closed the connection.
            writing.shutdown().await.unwrap_or_default();
        }
        anyhow::Ok(())
    };
    let read = async {
        let silent_after = Instant::now() + ANSWER_WITHIN;
        loop {
            match timeout(Duration::from_millis(200), reading.read_buf(&mut received)).await {
                // A peer that closes the connection with unread bytes resets it.
                Ok(Ok(0) | Err(_)) => return Ok(true),
                Ok(Ok(_)) => {}
                Err(_) if end == End::HalfClosed && waits(socket, session.as_ref()).await? => {
                    return Ok(false);
                }
                Err(_) => ensure!(Instant::now() < silent_after, "neither an answer nor a waiter"),
            }
        }
    };
    let closed = match end {
        End::HalfClosed => {
            let (written, closed) = tokio::join!(write, read);
            written?;
            closed?
        }
        End::Dropped => {
            tokio::select! {
                written = write => written?,
                closed = read => drop(closed?),
            }
            false
        }
    };
    let shown = || bytes.escape_ascii().to_string();
    let replies = decoded(&received, closed).with_context(shown)?;
    if whole && closed && replies != commands.len() {
        let may_close = commands::may_close(&commands);
        ensure!(may_close, "{replies} replies to {} commands: {}", commands.len(), shown());
    }
    drop((reading, writing));
    if let Some(session) = session.filter(|session| session.grace) {
        session.resume(socket).await?;
    }
    // The agent is still alive.
    let mut next = Client::unix(socket).await?;
    ensure!(next.call("PING").await?.text() == "PONG");
    Ok(())
}

/// Checks everything that was received, and returns the number of replies without pushes. Only a connection that was
/// abandoned before its end may have half a reply.
fn decoded(mut bytes: &[u8], closed: bool) -> Result<usize> {
    let mut replies = 0;
    while let Some((reply, length)) = Reply::decode(bytes)? {
        if let Some(error) = reply.error() {
            let word = error.split(' ').next().unwrap_or_default();
            ensure!(ERRORS.contains(&word), "an unexpected error: {error}");
            // A name has at most 512 bytes, each of which takes at most six characters.
            ensure!(error.len() < 4_000 && !error.contains(char::is_control), "{error:?}");
        }
        replies += usize::from(!matches!(reply, Reply::Push(_)));
        bytes = &bytes[length..];
    }
    ensure!(bytes.is_empty() || !closed, "half a reply: {}", bytes.escape_ascii());
    Ok(replies)
}

/// Returns whether a connection without an answer waits for a lock, as far as that can be known.
async fn waits(socket: &Path, session: Option<&Session>) -> Result<bool> {
    let Some(session) = session else { return Ok(true) };
    let mut client = Client::unix(socket).await?;
    let mut cursor = "0".to_owned();
    loop {
        let page = client.call(&format!("LOCKS CURSOR {cursor} COUNT 1000")).await?.ok()?;
        for row in page.items()?[1].items()? {
            let waits = row.field("state")?.text() == "waiting";
            if waits && row.field("session")?.text() == session.id {
                return Ok(true);
            }
        }
        cursor = page.items()?[0].text();
        if cursor == "0" {
            return Ok(false);
        }
    }
}

/// The session of a connection, by which its state can be queried later.
struct Session {
    id: String,
    secret: String,
    grace: bool,
}

impl Session {
    async fn open(stream: &mut UnixStream, grace: bool, resp3: bool) -> Result<Self> {
        if resp3 {
            Self::call(stream, "HELLO 3").await?;
            Self::call(stream, "SESSION PUSH on DEADLINES on").await?;
        }
        let command = if grace { "SESSION GRACE 300" } else { "SESSION" };
        let reply = Self::call(stream, command).await?;
        let field = |key| anyhow::Ok(reply.field(key)?.text());
        Ok(Self { id: field("id")?, secret: field("secret")?, grace })
    }

    async fn call(stream: &mut UnixStream, command: &str) -> Result<Reply> {
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut bytes = Vec::new();
        loop {
            if let Some((reply, _)) = Reply::decode(&bytes)? {
                return reply.ok();
            }
            let read = timeout(ANSWER_WITHIN, stream.read_buf(&mut bytes)).await?;
            ensure!(read? > 0, "closed after {command}");
        }
    }

    /// Resumes the session and ends it. It may have ended before, by QUIT, KICK or its grace, or may have changed its
    /// secret. On a busy machine Redis may not have answered its last commands yet.
    async fn resume(&self, socket: &Path) -> Result<()> {
        let mut client = Client::unix(socket).await?;
        let reply = client.call(&format!("RESUME {} {}", self.id, self.secret)).await?;
        let fits = ["GONE", "SESSION", "UNAVAILABLE"].iter().any(|code| reply.is_error(code));
        ensure!(fits || reply.field("id")?.text() == self.id, "{reply}");
        ensure!(client.call("QUIT").await?.text() == "OK");
        Ok(())
    }
}

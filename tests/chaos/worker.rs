//! A worker: acquires, holds and releases locks of one kind, and records what the agent reports to it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::{Client, Reply};
use tokio::time::{Instant, sleep, timeout_at};

use crate::history::{Recorder, What, now};
use harness::random::Random;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    history: PathBuf,
    #[arg(long)]
    kind: String,
    /// The locks; several are acquired with `MLOCK`.
    #[arg(long, required = true)]
    lock: Vec<String>,
    #[arg(long)]
    lease_ms: Option<u64>,
    /// Ignores reported losses and deadlines, to show that the judge finds it.
    #[arg(long)]
    ignore_loss: bool,
    /// Requests grace, and resumes its session when the connection has ended.
    #[arg(long)]
    grace: bool,
    #[arg(long)]
    seed: u64,
}

/// The grace, and the time in which a worker tries to resume its session.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Worker<'a> {
    arguments: &'a Arguments,
    recorder: Recorder,
    random: Random,
    /// The id and secret of a session with grace.
    session: Option<(String, String)>,
    /// The instant until which the worker tries to resume the session.
    resumable: Instant,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let recorder = Recorder::open(&arguments.history, std::process::id())?;
    let random = Random::new(arguments.seed);
    let mut worker =
        Worker { arguments, recorder, random, session: None, resumable: Instant::now() };
    loop {
        // Without grace a session ends with its agent or its connection; the next one starts without a hold.
        let ended = worker.run().await;
        if worker.session.is_none() || Instant::now() > worker.resumable {
            worker.session = None;
            worker.recorder.record(What::Disconnected)?;
        }
        if let Err(error) = ended {
            tracing::debug!(%error, "session ended");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

impl Worker<'_> {
    async fn run(&mut self) -> Result<()> {
        let mut client = Client::unix(&self.arguments.socket).await?;
        client.call("HELLO 3").await?.ok()?;
        self.session(&mut client).await
    }

    async fn session(&mut self, client: &mut Client) -> Result<()> {
        let resumed = self.resume(client).await?;
        let grace = if self.arguments.grace { GRACE.as_millis() } else { 0 };
        let reply = client.call(&format!("SESSION GRACE {grace} PUSH on DEADLINES on")).await?;
        if self.arguments.grace {
            self.remember(&reply.ok()?)?;
        }
        if resumed {
            self.hold(client).await?;
            self.release(client).await?;
        }
        loop {
            if self.acquire(client).await? {
                self.hold(client).await?;
                self.release(client).await?;
            }
            self.resumable = Instant::now() + GRACE;
            sleep(Duration::from_millis(self.random.below(100))).await;
        }
    }

    fn remember(&mut self, session: &Reply) -> Result<()> {
        self.session = Some((session.field("id")?.text(), session.field("secret")?.text()));
        self.resumable = Instant::now() + GRACE;
        Ok(())
    }

    /// Resumes the rest of the last session, and returns whether it holds a lock.
    async fn resume(&mut self, client: &mut Client) -> Result<bool> {
        let Some((id, secret)) = &self.session else { return Ok(false) };
        let reply = client.call(&format!("RESUME {id} {secret}")).await?;
        if reply.is_error("GONE") {
            self.session = None;
        }
        let reply = reply.ok()?;
        self.remember(&reply)?;
        let holds = reply.field("holds")?.items()?;
        for lock in &self.arguments.lock {
            let held =
                holds.iter().find(|hold| hold.field("lock").is_ok_and(|held| held.text() == *lock));
            let lock = lock.clone();
            self.recorder.record(match held {
                Some(hold) => What::Valid {
                    lock,
                    until: u64::try_from(hold.field("valid_until_ns")?.int()?)?,
                },
                // The worker no longer relies on a missing hold.
                None => What::Releasing { lock },
            })?;
        }
        self.recorder.record(What::Resumed { holds: holds.len() })?;
        Ok(!holds.is_empty())
    }

    async fn acquire(&mut self, client: &mut Client) -> Result<bool> {
        let Arguments { kind, lock, lease_ms, .. } = self.arguments;
        let several = lock.len() > 1;
        let command = if several { format!("MLOCK {}", lock.len()) } else { "LOCK".to_owned() };
        let lease = lease_ms.map(|ms| format!(" LEASE {ms}")).unwrap_or_default();
        let command = format!("{command} {} KIND {kind} WAIT 20000{lease}", lock.join(" "));
        let asked = now();
        let reply = client.call(&command).await?;
        let granted = match &reply {
            Reply::Error(_) | Reply::Null => return Ok(false),
            Reply::Array(granted) if several => granted.as_slice(),
            granted => std::slice::from_ref(granted),
        };
        for grant in granted {
            self.recorder.record(What::Grant {
                lock: grant.field("lock")?.text(),
                kind: grant.field("kind")?.text(),
                holder: grant.field("holder")?.text(),
                token: grant.field("token")?.int().ok(),
                until: u64::try_from(grant.field("valid_until_ns")?.int()?)?,
                asked,
            })?;
        }
        Ok(true)
    }

    /// Holds for a while, usually a short one, and records events meanwhile.
    async fn hold(&mut self, client: &mut Client) -> Result<()> {
        let long = self.random.below(8) == 0;
        let ms = if long { self.random.below(8_000) } else { self.random.below(200) };
        let end = Instant::now() + Duration::from_millis(ms);
        while let Ok(push) = timeout_at(end, client.push()).await {
            self.event(&push?)?;
        }
        Ok(())
    }

    fn event(&mut self, push: &[String]) -> Result<()> {
        let (Some(name), Some(lock)) = (push.first(), push.get(1).cloned()) else { return Ok(()) };
        match name.as_str() {
            "lock-valid" => {
                let until = push.get(4).context("a deadline")?.parse()?;
                self.recorder.record(What::Valid { lock, until })
            }
            "lock-lost" if self.arguments.ignore_loss => {
                // Relies on the hold for another minute.
                self.recorder.record(What::Valid { lock, until: now() + 60_000_000_000 })
            }
            "lock-lost" => {
                let reason = push.get(3).context("a reason")?.clone();
                self.recorder.record(What::Lost { lock, reason })
            }
            _ => Ok(()),
        }
    }

    async fn release(&mut self, client: &mut Client) -> Result<()> {
        // Events that have already arrived come first.
        while client.pushes() > 0 {
            let push = client.push().await?;
            self.event(&push)?;
        }
        let Arguments { kind, lock, .. } = self.arguments;
        for lock in lock {
            self.recorder.record(What::Releasing { lock: lock.clone() })?;
        }
        let command =
            if lock.len() > 1 { format!("MUNLOCK {}", lock.len()) } else { "UNLOCK".to_owned() };
        client.call(&format!("{command} {} KIND {kind}", lock.join(" "))).await?;
        // Events about this hold that arrived before the reply no longer matter.
        while client.pushes() > 0 {
            client.push().await?;
        }
        Ok(())
    }
}

//! A worker that keeps its lock across broken connections, agent restarts and its own restarts.
//!
//! Needs the crates `redis` (feature `tokio-comp`) and `tokio`. `LOCKSCOPE_SOCKET` is the agent's socket,
//! `WORKER_TICKET` the file with its session's id and secret. It receives warnings as pushes, on its only
//! connection.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue as _, PushInfo, PushKind, RedisError, Value,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::Instant;

const LOCK: &str = "orders:42";
/// In milliseconds.
const GRACE: u64 = 60_000;
/// In milliseconds.
const WAIT: u64 = 60_000;
/// The exit status of a worker that has lost its lock.
const LOST: u8 = 76;
/// Maximum number of unread pushes.
const PUSHES: usize = 1024;

type Map = HashMap<String, Value>;
type Failed = Box<dyn std::error::Error>;

/// Check `holds` and repeat the command: the connection broke and the session was resumed on a new one, or the agent is
/// shutting down and the next one grants the lock.
struct Repeat;

fn setting(name: &str, usual: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| usual.to_owned())
}

/// The lock is lost: nothing may continue to work under it.
#[derive(Debug)]
struct Lost(String);

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lost: {}", self.0)
    }
}

impl std::error::Error for Lost {}

fn lost(why: &str) -> Failed {
    Lost(why.to_owned()).into()
}

/// Ignores errors: standard output may be closed.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).ok();
}

fn is_unavailable(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<RedisError>().and_then(RedisError::code) == Some("UNAVAILABLE")
}

fn text(value: Option<&Value>) -> String {
    value.and_then(|value| String::from_redis_value_ref(value).ok()).unwrap_or_default()
}

fn count(value: Option<&Value>) -> u64 {
    value.and_then(|value| u64::from_redis_value_ref(value).ok()).unwrap_or(0)
}

struct Session {
    socket: String,
    ticket_file: PathBuf,
    /// Id and secret.
    ticket: Option<(String, String)>,
    connection: Option<MultiplexedConnection>,
    pushes: mpsc::Receiver<PushInfo>,
    /// Hold counts of the locks.
    holds: HashMap<String, u64>,
    /// True while no hold is at risk (jeopardy).
    calm: bool,
}

impl Session {
    async fn begin() -> Result<Self, Failed> {
        let ticket_file = PathBuf::from(setting("WORKER_TICKET", "worker.ticket"));
        let stored = std::fs::read_to_string(&ticket_file).unwrap_or_default();
        let mut session = Self {
            socket: setting("LOCKSCOPE_SOCKET", "/run/lockscope/agent.sock"),
            ticket_file,
            ticket: stored.split_once(' ').map(|(id, secret)| (id.to_owned(), secret.to_owned())),
            connection: None,
            pushes: mpsc::channel(1).1,
            holds: HashMap::new(),
            calm: true,
        };
        session.recover().await?;
        Ok(session)
    }

    /// Resumes the session on a new connection.
    async fn recover(&mut self) -> Result<(), Failed> {
        let deadline = Instant::now() + Duration::from_millis(GRACE);
        loop {
            match self.resume().await {
                Ok(holds) => return self.go_on(&holds),
                Err(error) if error.code() == Some("GONE") => {
                    if self.holds.values().any(|count| *count > 0) {
                        return Err(lost("the session has ended"));
                    }
                    self.ticket = None;
                }
                Err(error) => {
                    let passes = matches!(error.code(), None | Some("SESSION" | "UNAVAILABLE"));
                    if !passes {
                        return Err(error.into());
                    }
                    if Instant::now() > deadline {
                        return Err(lost(&error.to_string()));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Connects and returns the session's holds.
    async fn resume(&mut self) -> Result<Vec<Map>, RedisError> {
        let client = redis::Client::open(format!("redis+unix://{}?protocol=resp3", self.socket))?;
        let (sender, pushes) = mpsc::channel(PUSHES);
        // No timeout: a LOCK may wait for long.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| sender.try_send(push).map_err(drop));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let reply: Map = match &self.ticket {
            Some((id, secret)) => {
                let resume = redis::cmd("RESUME").arg(id).arg(secret).to_owned();
                resume.query_async(&mut connection).await?
            }
            None => {
                let grace = redis::cmd("SESSION").arg("GRACE").arg(GRACE).to_owned();
                grace.query_async(&mut connection).await?
            }
        };
        if self.ticket.is_some() {
            say("resumed");
        }
        let ticket = (text(reply.get("id")), text(reply.get("secret")));
        if let Err(error) = self.store(&format!("{} {}", ticket.0, ticket.1)) {
            say(&format!("the ticket is not kept: {error}"));
        }
        self.ticket = Some(ticket);
        // Pushes belong to the connection, not to the session.
        redis::cmd("SESSION").arg("PUSH").arg("on").query_async::<Value>(&mut connection).await?;
        // A loss before PUSH on is not pushed, so the list in the reply to RESUME is too old.
        let holds = redis::cmd("HOLDS").query_async(&mut connection).await?;
        (self.pushes, self.connection) = (pushes, Some(connection));
        Ok(holds)
    }

    /// Stores the ticket in a file that only this user can read.
    fn store(&self, ticket: &str) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let new = self.ticket_file.with_added_extension("new");
        options.open(&new)?.write_all(ticket.as_bytes())?;
        std::fs::rename(new, &self.ticket_file) // a reader never finds half a ticket
    }

    /// Adopts the reported holds.
    fn go_on(&mut self, holds: &[Map]) -> Result<(), Failed> {
        let row = |row: &Map| (text(row.get("lock")), count(row.get("holds")));
        let now: HashMap<_, _> = holds.iter().map(row).collect();
        if self.holds.iter().any(|(name, count)| *count > 0 && !now.contains_key(name)) {
            return Err(lost("it was not there any more"));
        }
        // Another agent sends no `lock-safe` for its predecessor's `lock-jeopardy`.
        self.calm = true;
        self.holds = now;
        Ok(())
    }

    async fn call(&mut self, command: &Cmd) -> Result<Result<Value, Repeat>, Failed> {
        let Some(connection) = &mut self.connection else { return Ok(Err(Repeat)) };
        match command.query_async(connection).await {
            Ok(reply) => Ok(Ok(reply)),
            Err(error) if error.code() == Some("DRAINING") => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(Err(Repeat))
            }
            Err(error) if error.code().is_some() => Err(error.into()),
            Err(_) => {
                self.recover().await?;
                Ok(Err(Repeat))
            }
        }
    }

    fn command(&self, word: &str, name: &str) -> Cmd {
        let mut command = redis::cmd(word);
        let id = self.ticket.as_ref().map_or("", |(id, _)| id.as_str());
        command.arg(name).arg("IN").arg(id);
        command
    }

    fn held(&self, name: &str) -> u64 {
        self.holds.get(name).copied().unwrap_or(0)
    }

    /// Acquires or reenters the lock. False if it could not be acquired in time.
    async fn lock(&mut self, name: &str) -> Result<bool, Failed> {
        let wanted = self.held(name) + 1;
        while self.held(name) < wanted {
            let mut lock = self.command("LOCK", name);
            lock.arg("WAIT").arg(WAIT);
            match self.call(&lock).await? {
                Ok(Value::Nil) => return Ok(false),
                Ok(held) => {
                    let held = Map::from_redis_value_ref(&held)?;
                    self.holds.insert(name.to_owned(), count(held.get("holds")));
                }
                Err(Repeat) => {}
            }
        }
        Ok(true)
    }

    async fn unlock(&mut self, name: &str) -> Result<(), Failed> {
        let wanted = self.held(name) - 1;
        while self.held(name) > wanted {
            // From here on a loss of the lock does not matter.
            self.holds.insert(name.to_owned(), wanted);
            let unlock = self.command("UNLOCK", name);
            match self.call(&unlock).await {
                // Released: the agent keeps trying until Redis confirms it.
                Err(error) if is_unavailable(error.as_ref()) => {}
                answer => drop(answer?),
            }
        }
        Ok(())
    }

    /// Ends the session. Nothing is held any more, so a broken connection does no harm.
    async fn quit(&mut self) {
        if let Some(connection) = &mut self.connection {
            redis::cmd("QUIT").query_async::<Value>(connection).await.ok();
        }
    }

    async fn on_push(&mut self, push: Option<PushInfo>) -> Result<(), Failed> {
        let Some(PushInfo { kind, data }) = push else { return self.recover().await };
        match kind {
            PushKind::Disconnection => self.recover().await?,
            PushKind::Other(word) if word == "lock-jeopardy" => {
                say("jeopardy");
                self.calm = false;
            }
            PushKind::Other(word) if word == "lock-safe" => self.calm = true,
            PushKind::Other(word) if word == "lock-lost" => return Err(lost(&text(data.last()))),
            _ => {}
        }
        Ok(())
    }
}

/// Called with and without the lock: it reenters the lock, which is always safe.
async fn check_stock(session: &mut Session) -> Result<(), Failed> {
    session.lock(LOCK).await?;
    session.unlock(LOCK).await
}

async fn work() -> Result<(), Failed> {
    let mut session = Session::begin().await?;
    if session.held(LOCK) == 0 && !session.lock(LOCK).await? {
        return Err(format!("could not acquire {LOCK} within a minute").into());
    }
    say(&format!("working on {LOCK}"));
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            biased;
            push = session.pushes.recv() => session.on_push(push).await?,
            // Start nothing new while the lock is at risk.
            order = orders.next_line(), if session.calm => {
                let Some(order) = order? else { break };
                check_stock(&mut session).await?;
                say(&format!("did {order}"));
            }
        }
    }
    session.unlock(LOCK).await?;
    session.quit().await;
    std::fs::remove_file(&session.ticket_file)?;
    say("done");
    Ok(())
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Failed::from).and_then(|runtime| {
        let done = runtime.block_on(work());
        // Exit without waiting for another line of input.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            if error.is::<Lost>() { ExitCode::from(LOST) } else { ExitCode::FAILURE }
        }
    }
}

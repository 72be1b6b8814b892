//! The wait for the locks, with messages about their holders meanwhile.

use std::path::Path;
use std::time::Duration;

use redis::{Cmd, Value};
use redisson::millis;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::grant::Grant;
use crate::cli::ExecArgs;
use crate::client::{ANSWER_TIMEOUT, Agent, Failure};
use crate::duration;
use crate::exit::Exit;
use crate::holders;
use crate::output::notice;
use crate::reply::{Fields as _, printable};
use crate::show;

/// The wait after which the holders are reported.
const QUIET_WAIT: Duration = Duration::from_secs(1);
/// The time limit for an agent to return: longer than one takes to drain and the next one to start.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for ending a session that is no longer needed: longer than an agent takes to notice the end of its
/// connection.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval of attempts to reach an agent.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A session that holds the locks.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) agent: Agent,
    pub(crate) id: String,
    /// The secret to resume the session; `None` if it ends with its connection.
    pub(crate) secret: Option<String>,
    pub(crate) grant: Grant,
}

/// A session with grace whose agent disappeared before it replied. It may hold the locks, and would block them for its
/// whole grace.
#[derive(Debug)]
struct Abandoned {
    id: String,
    secret: String,
}

/// The state of the attempts so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The instant since which no agent has opened a session.
    agent_lost: Option<Instant>,
    abandoned: Option<Abandoned>,
}

impl Attempts {
    /// Ends the session of the last attempt if no command follows: with grace it would outlive its connection, with the
    /// locks that it may have been granted meanwhile.
    pub(crate) async fn end(self, socket: &Path, args: &ExecArgs) {
        let Some(session) = self.abandoned else { return };
        let ended = timeout(END_TIMEOUT, end_session(socket, &session)).await;
        if !matches!(ended, Ok(Ok(()))) {
            let grace = duration::format(args.grace.unwrap_or_default());
            notice(&format!("{}: may stay locked for another {grace}", args.lock_names()));
        }
    }
}

/// Acquires the locks, across restarts of the agent.
///
/// # Errors
/// Returns the exit status after reporting the reason.
pub(crate) async fn acquire(
    socket: &Path,
    args: &ExecArgs,
    traceparent: Option<&str>,
    attempts: &mut Attempts,
) -> Result<Granted, Exit> {
    let began = Instant::now();
    let mut announced = false;
    let deadline = if args.try_once { Some(began) } else { args.wait.map(|wait| began + wait) };
    loop {
        let outcome = attempt(socket, args, deadline, traceparent, attempts).await;
        let is_late = match &outcome {
            // This process was stopped meanwhile, and others may hold the locks.
            Ok(Some(granted)) => granted.grant.is_over(),
            // It was lost before the grant was sent.
            Err(Failure::Refused(code, _)) => code == "LOST",
            Ok(None) | Err(_) => false,
        };
        if is_late {
            // Ends the session, which releases the locks.
            drop(outcome);
            notice(&format!(
                "{} was granted, but its lease had already expired; trying again",
                args.lock_names()
            ));
            sleep(RETRY_INTERVAL).await;
            continue;
        }
        let failure = match outcome {
            Ok(Some(granted)) => return Ok(granted),
            Ok(None) => {
                if !args.quiet {
                    let waited = duration::format(began.elapsed());
                    notice(&format!("gave up on {} after {waited}", args.lock_names()));
                    report_holders(socket, args).await;
                }
                return Err(Exit(args.exits.exit_timeout));
            }
            Err(failure) => failure,
        };
        // A client that an agent has accepted, or would have, also waits for the next agent.
        let now = Instant::now();
        let agent_lost = match &failure {
            Failure::NoAgent(_) => true,
            Failure::Disconnected(_) => {
                attempts.agent_lost.get_or_insert(now);
                true
            }
            Failure::Refused(code, _) if code == "DRAINING" => {
                attempts.agent_lost.get_or_insert(now);
                true
            }
            Failure::Forbidden(_) | Failure::Refused(..) => false,
        };
        let lost = attempts.agent_lost.filter(|_| !args.try_once);
        let retry_until =
            (began + args.agent_wait).max(lost.map_or(began, |since| since + AGENT_TIMEOUT));
        let in_time = now < retry_until && args.wait.is_none_or(|wait| now < began + wait);
        if !agent_lost || !in_time {
            notice(&failure.to_string());
            return Err(failure.exit(args.exits.exit_no_agent, args.exits.exit_usage));
        }
        if !args.quiet && !announced && matches!(failure, Failure::NoAgent(_)) {
            announced = true;
            notice(&format!("waiting for the agent: {failure}"));
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Returns the given name, or one that contains the command's.
fn session_name(args: &ExecArgs) -> String {
    if let Some(name) = args.name.as_ref().filter(|name| !name.is_empty()) {
        return name.to_string_lossy().into_owned();
    }
    let program =
        args.command.first().map(|program| Path::new(program).file_name().unwrap_or(program));
    format!("lockctl:{}", program.unwrap_or_default().to_string_lossy())
}

/// Tries to acquire the locks in a new session, after ending an abandoned one. Returns `None` if the wait timed out.
async fn attempt(
    socket: &Path,
    args: &ExecArgs,
    deadline: Option<Instant>,
    traceparent: Option<&str>,
    attempts: &mut Attempts,
) -> Result<Option<Granted>, Failure> {
    if let Some(session) = &attempts.abandoned {
        end_session(socket, session).await?;
        attempts.abandoned = None;
    }
    let mut agent = Agent::connect(socket).await?;
    agent.set_name(&session_name(args)).await?;
    let session = agent.enable_pushes(args.grace).await?;
    let id = session.text("id").unwrap_or_default();
    let secret = args.grace.and_then(|_| session.text("secret"));
    attempts.abandoned = secret.clone().map(|secret| Abandoned { id: id.clone(), secret });
    attempts.agent_lost = None;
    let sent = Instant::now();
    let wait = deadline.map(|end| end.saturating_duration_since(sent));
    let command = lock_command(args, wait, traceparent);
    let reply = {
        // An agent that is stopped does not end the wait.
        let limit = wait.map(|wait| wait + ANSWER_TIMEOUT);
        let mut reply = std::pin::pin!(agent.call_within(&command, limit));
        match timeout_at(sent + QUIET_WAIT, &mut reply).await {
            Ok(reply) => reply,
            Err(_) => {
                if !args.quiet {
                    notice(&format!("waiting for {}", args.lock_names()));
                    report_holders(socket, args).await;
                }
                reply.await
            }
        }
    };
    match reply? {
        Value::Nil => Ok(None),
        granted => match Grant::read(&granted) {
            Some(grant) => Ok(Some(Granted { agent, id, secret, grant })),
            None => Err(Failure::NoAgent("unexpected reply: this is not an agent".to_owned())),
        },
    }
}

/// Ends a session and releases the locks that it may hold.
async fn end_session(socket: &Path, Abandoned { id, secret }: &Abandoned) -> Result<(), Failure> {
    let mut agent = Agent::connect(socket).await?;
    match agent.call(redis::cmd("RESUME").arg(id).arg(secret)).await {
        Ok(_) => agent.call(&redis::cmd("QUIT")).await.map(drop),
        // The agent has not noticed the end of the connection yet, or has not verified the holds in Redis yet.
        Err(Failure::Refused(code, why)) if code == "SESSION" || code == "UNAVAILABLE" => {
            Err(Failure::Disconnected(why))
        }
        // The session has ended, or belonged to another agent.
        Err(Failure::Refused(..)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Returns LOCK for one name, MLOCK for several.
fn lock_command(args: &ExecArgs, wait: Option<Duration>, traceparent: Option<&str>) -> Cmd {
    let mut command = args.for_locks("LOCK", "MLOCK");
    command.arg("KIND").arg(args.kind.word());
    if let Some(wait) = wait {
        command.arg("WAIT").arg(millis(wait));
    }
    if let Some(lease) = args.lease {
        command.arg("LEASE").arg(millis(lease));
    }
    if let Some(traceparent) = traceparent.filter(|_| args.locks.len() == 1) {
        command.arg("TRACEPARENT").arg(traceparent);
    }
    command
}

/// Reports whether Redis refuses all locks, and the holders, one per line, as far as the agent knows them.
async fn report_holders(socket: &Path, args: &ExecArgs) {
    let Ok(mut agent) = Agent::connect(socket).await else { return };
    if let Ok(Some(error)) = show::refusal(&mut agent).await {
        notice(&format!("Redis refuses locks: {error}"));
    }
    for name in args.names() {
        match holders::describe(&mut agent, name).await {
            Ok(Some(text)) => notice(&format!("{} {text}", printable(name))),
            Ok(None) => {}
            Err(failure) => {
                let lock = printable(name);
                return notice(&format!("cannot find out who holds {lock}: {failure}"));
            }
        }
    }
}

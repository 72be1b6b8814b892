//! The wait for the locks, and what is told of who has them meanwhile.

use std::path::Path;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::grant::Grant;
use crate::cli::{ExecArgs, shown};
use crate::client::{Agent, Failure, text};
use crate::exit::Exit;
use crate::holders;
use crate::say::say;

/// How long one waits before it is told for whom.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the agent may take to come back: longer than one drains, and the next one starts.
const COMEBACK: Duration = Duration::from_secs(60);
/// How often it is looked whether it is back.
const LOOK: Duration = Duration::from_millis(200);

/// A session that has the locks.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) agent: Agent,
    pub(crate) id: String,
    /// With which it can be taken over; none where it ends with its connection.
    pub(crate) secret: Option<String>,
    pub(crate) grant: Grant,
}

/// A session with grace whose agent went before it had answered. It may have the locks, and would keep them from us for
/// the whole of its grace.
#[derive(Debug)]
struct Before {
    id: String,
    secret: String,
}

/// Takes the locks, however long it may take.
///
/// # Errors
/// The exit status; why is told already.
pub(crate) async fn acquire(
    socket: &Path,
    args: &ExecArgs,
    traceparent: Option<&str>,
) -> Result<Granted, Exit> {
    let began = Instant::now();
    let deadline = if args.try_once { Some(began) } else { args.wait.map(|wait| began + wait) };
    let mut away: Option<Instant> = None;
    let mut before: Option<Before> = None;
    loop {
        let tried = attempt(socket, args, deadline, traceparent, (&mut away, &mut before)).await;
        let failure = match tried {
            Ok(Some(granted)) => return Ok(granted),
            Ok(None) => {
                say(&format!(
                    "gave up on {} after {}",
                    args.shown(),
                    crate::duration::show(began.elapsed())
                ));
                if !args.quiet {
                    tell_holders(socket, args).await;
                }
                return Err(Exit(args.exits.exit_timeout));
            }
            Err(failure) => failure,
        };
        // Whom an agent has let in, or would have, also waits for the one that follows.
        let now = Instant::now();
        let gone = match &failure {
            Failure::NoAgent(_) => true,
            Failure::Gone(_) => {
                away.get_or_insert(now);
                true
            }
            Failure::Refused(code, _) if code == "DRAINING" => {
                away.get_or_insert(now);
                true
            }
            Failure::Refused(..) => false,
        };
        let patience = away.map(|since| since + COMEBACK);
        let patient = patience.is_some_and(|end| now < end) && deadline.is_none_or(|end| now < end);
        if !gone || !patient {
            say(&failure.to_string());
            return Err(failure.exit(args.exits.exit_no_agent, args.exits.exit_usage));
        }
        sleep(LOOK).await;
    }
}

/// One session's try, once the one before it is no more. `away`, since when an agent has been waited for, ends when one has
/// opened a session.
async fn attempt(
    socket: &Path,
    args: &ExecArgs,
    deadline: Option<Instant>,
    traceparent: Option<&str>,
    (away, before): (&mut Option<Instant>, &mut Option<Before>),
) -> Result<Option<Granted>, Failure> {
    if let Some(session) = before {
        end(socket, session).await?;
        *before = None;
    }
    let mut agent = Agent::connect(socket).await?;
    let program =
        args.command.first().map(|program| Path::new(program).file_name().unwrap_or(program));
    agent.introduce(&program.unwrap_or_default().to_string_lossy()).await?;
    let mut session = redis::cmd("SESSION");
    session.arg("PUSH").arg("on").arg("DEADLINES").arg("on");
    if let Some(grace) = args.grace {
        session.arg("GRACE").arg(millis(grace));
    }
    let session = agent.call(&session).await?;
    let told = |key| crate::client::field(&session, key).and_then(text);
    let id = told("id").unwrap_or_default();
    let secret = args.grace.and_then(|_| told("secret"));
    *before = secret.clone().map(|secret| Before { id: id.clone(), secret });
    *away = None;
    let asked = Instant::now();
    let command =
        command(args, deadline.map(|end| end.saturating_duration_since(asked)), traceparent);
    let reply = {
        let mut reply = std::pin::pin!(agent.call(&command));
        match timeout_at(asked + SILENCE, &mut reply).await {
            Ok(reply) => reply,
            Err(_) => {
                if !args.quiet {
                    say(&format!("waiting for {}", args.shown()));
                    tell_holders(socket, args).await;
                }
                reply.await
            }
        }
    };
    match reply? {
        Value::Nil => Ok(None),
        granted => match Grant::read(&granted) {
            Some(grant) => Ok(Some(Granted { agent, id, secret, grant })),
            None => Err(Failure::NoAgent("what answers there is no agent".to_owned())),
        },
    }
}

/// Ends a session, and with it what it may hold.
async fn end(socket: &Path, Before { id, secret }: &Before) -> Result<(), Failure> {
    let mut agent = Agent::connect(socket).await?;
    match agent.call(redis::cmd("RESUME").arg(id).arg(secret)).await {
        Ok(_) => agent.call(&redis::cmd("QUIT")).await.map(drop),
        // The end of its connection is not noticed yet, or Redis has not said yet what it holds.
        Err(Failure::Refused(code, why)) if code == "SESSION" || code == "UNAVAILABLE" => {
            Err(Failure::Gone(why))
        }
        // It is no more, or no agent's that answers here.
        Err(Failure::Refused(..)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// LOCK for one name, MLOCK for several.
fn command(args: &ExecArgs, wait: Option<Duration>, traceparent: Option<&str>) -> Cmd {
    let names = args.names();
    let one = names.len() == 1;
    let mut command = redis::cmd(if one { "LOCK" } else { "MLOCK" });
    if !one {
        command.arg(names.len());
    }
    for name in names {
        command.arg(name);
    }
    command.arg("KIND").arg(args.kind.word());
    if let Some(wait) = wait {
        command.arg("WAIT").arg(millis(wait));
    }
    if let Some(lease) = args.lease {
        command.arg("LEASE").arg(millis(lease));
    }
    if let Some(traceparent) = traceparent.filter(|_| one) {
        command.arg("TRACEPARENT").arg(traceparent);
    }
    command
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Says who has the locks, each in a line. It is no failure if that cannot be told.
async fn tell_holders(socket: &Path, args: &ExecArgs) {
    let Ok(mut agent) = Agent::connect(socket).await else { return };
    for name in args.names() {
        match holders::of(&mut agent, name).await {
            Ok(Some(line)) => say(&format!("{} {line}", shown(name))),
            Ok(None) => {}
            Err(failure) => return say(&failure.to_string()),
        }
    }
}

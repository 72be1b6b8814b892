//! The search for an agent after the connection to the previous one was lost.

use std::path::Path;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use crate::client::{Agent, Failure};
use crate::reply::Fields as _;

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The fate of the session according to the agent that answers.
pub(crate) enum Successor {
    /// The agent does not know the session; the leases of its locks run on.
    Unrelated,
    /// The session has ended, and its locks are released.
    SessionEnded,
    Resumed(Box<Resumed>),
}

/// A session that continues with another connection.
pub(crate) struct Resumed {
    pub(crate) agent: Agent,
    /// The new secret to resume the session with.
    pub(crate) secret: String,
    /// The locks that the session still holds, as a list of maps.
    pub(crate) holds: Value,
}

/// Waits for an agent to answer, and resumes the session if it has grace (a secret).
pub(crate) async fn find(socket: &Path, id: &str, secret: Option<String>) -> Successor {
    loop {
        if let Ok(agent) = Agent::connect(socket).await {
            let found = match &secret {
                Some(secret) => resume(agent, id, secret).await,
                None => identify(agent, id).await,
            };
            if let Some(found) = found {
                return found;
            }
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Finds out whether the agent is still the one that had the session, in which case it has ended the session.
async fn identify(mut agent: Agent, id: &str) -> Option<Successor> {
    let session = agent.call(&redis::cmd("SESSION")).await.ok()?;
    let current = session.text("id")?;
    let run = |id: &str| id.rsplit_once('-').map(|(run, _)| run.to_owned());
    let same = run(&current) == run(id);
    Some(if same { Successor::SessionEnded } else { Successor::Unrelated })
}

/// Resumes the session; `None` if a retry may succeed.
async fn resume(mut agent: Agent, id: &str, secret: &str) -> Option<Successor> {
    let reply = match agent.call(redis::cmd("RESUME").arg(id).arg(secret)).await {
        Ok(reply) => reply,
        Err(Failure::Refused(code, _)) if code == "GONE" => return Some(Successor::SessionEnded),
        // The agent has not noticed the end of the connection yet, or has not verified the holds in Redis yet.
        Err(_) => return None,
    };
    let secret = reply.text("secret")?;
    let mut holds = reply.field("holds").cloned()?;
    // No push reports what was lost before pushes are on. A failure means that the connection was lost, which arrives as a
    // push.
    if agent.enable_pushes(None).await.is_ok()
        && let Ok(latest) = agent.call(&redis::cmd("HOLDS")).await
    {
        holds = latest;
    }
    Some(Successor::Resumed(Box::new(Resumed { agent, secret, holds })))
}

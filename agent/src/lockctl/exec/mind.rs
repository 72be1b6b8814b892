//! The guard while the command runs: passes signals on, hears of the locks, ends the command where it must, and lets
//! the locks go when nothing is left that could rely on them.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use redis::Value;
use rustix::process::Signal;
use service_kit::clock::boot_micros;
use tokio::time::{sleep, timeout};

use super::control::{Guard, Order};
use super::grant::Grant;
use super::group::{Ended, Group};
use super::signals::{self, Signals};
use super::waiting::Granted;
use crate::cli::{ExecArgs, OnLost, shown};
use crate::client::{Agent, Failure, Push, field, text};
use crate::duration;
use crate::exit::Exit;
use crate::say::say;

/// How long is slept at most: the clock that leases are measured on goes on while the host is suspended, timers do not.
const TICK: Duration = Duration::from_secs(1);
/// How often it is looked who still lives, while a command is being ended.
const LOOK: Duration = Duration::from_millis(50);
/// After how long it is told who does not end though it was killed.
const STUBBORN: u64 = 5_000_000;
/// How often an agent that has gone is looked for.
const SEEK: Duration = Duration::from_millis(250);

/// A command that is being ended.
#[derive(Debug, Clone, Copy)]
struct Ending {
    /// When all that is left is killed, in microseconds since boot.
    kill_at: u64,
    /// It has been told who does not end.
    told: bool,
}

/// A running command and its locks.
pub(crate) struct Mind<'a> {
    socket: &'a Path,
    args: &'a ExecArgs,
    /// The session; none once its connection has ended.
    agent: Option<Agent>,
    id: String,
    /// With which the session can be taken over; none where it ends with its connection.
    secret: Option<String>,
    grant: Grant,
    group: Group,
    ending: Option<Ending>,
    /// A signal was passed on that asks the command to end.
    asked_to_end: bool,
    lost: bool,
}

impl<'a> Mind<'a> {
    /// Of a command that has just been started.
    pub(crate) fn new(
        socket: &'a Path,
        args: &'a ExecArgs,
        granted: Granted,
        group: Group,
    ) -> Self {
        let Granted { agent, id, secret, grant } = granted;
        let agent = Some(agent);
        Self {
            socket,
            args,
            agent,
            id,
            secret,
            grant,
            group,
            ending: None,
            asked_to_end: false,
            lost: false,
        }
    }

    /// Until the command has ended and the locks are released: the status to end with.
    pub(crate) async fn run(mut self, mut control: Guard, mut signals: Signals) -> Exit {
        let mut front = true;
        let (socket, id) = (self.socket, self.id.clone());
        let mut successor = std::pin::pin!(seek(socket, &id, self.secret.clone()));
        let mut seeking = true;
        loop {
            let pause = self.pause();
            tokio::select! {
                biased;
                order = control.next(), if front => match order {
                    Order::Signal(number) => self.pass_on(number),
                    Order::FrontDied => {
                        front = false;
                        say(&format!("lockctl has been killed: ending {}", self.program()));
                        self.end(Signal::TERM, boot_micros() + micros(self.args.kill_after));
                    }
                },
                number = signals.next() => if number != Signal::CHILD.as_raw() {
                    self.pass_on(number);
                },
                push = next_push(&mut self.agent) => self.hear(push),
                found = &mut successor, if seeking && self.agent.is_none() => {
                    self.found(found);
                    seeking = self.agent.is_some();
                    if seeking {
                        // Should this one go, too.
                        successor.set(seek(socket, &id, self.secret.clone()));
                    }
                }
                () = sleep(pause) => {}
            }
            if self.group.has_stopped() {
                control.stopped().await;
            }
            self.watch_time();
            if let Some(ended) = self.group.ended()
                && self.is_over(ended)
            {
                return self.finish(ended, seeking.then_some(successor)).await;
            }
        }
    }

    fn program(&self) -> String {
        self.args
            .command
            .first()
            .map(|program| shown(program.as_encoded_bytes()))
            .unwrap_or_default()
    }

    fn pause(&self) -> Duration {
        if self.ending.is_some() {
            return LOOK;
        }
        let turn_back = self.grant.turn_back(self.lead());
        Duration::from_micros(turn_back.saturating_sub(boot_micros()))
            .clamp(Duration::from_millis(1), TICK)
    }

    /// How long before the end of validity a command begins to end.
    fn lead(&self) -> Duration {
        match self.args.on_lost {
            OnLost::Signal(Signal::KILL) | OnLost::Ignore => Duration::ZERO,
            OnLost::Signal(_) => self.args.kill_after,
        }
    }

    fn pass_on(&mut self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.group.signal(signal);
        }
        if signals::ends(number) {
            self.asked_to_end = true;
            // One that is stopped would never hear of it.
            self.group.signal(Signal::CONT);
        }
    }

    fn hear(&mut self, push: Push) {
        self.grant.note(&push);
        match push {
            Push::Valid(..) => {}
            Push::Jeopardy(name, left) => say(&format!(
                "{} cannot be renewed: valid for another {}",
                shown(&name),
                duration::show(left)
            )),
            Push::Safe(name) => say(&format!("{} has been renewed again", shown(&name))),
            // The lease goes on in Redis, where nobody else gets the lock before it has run out.
            Push::Lost(name, reason) if reason == "drained" => {
                say(&format!("{}: the agent ends; {}", shown(&name), self.lasting()));
            }
            Push::Lost(name, reason) => {
                let valid = matches!(reason.as_str(), "unconfirmed" | "expired" | "frozen");
                self.lose(&format!("{}: {}", shown(&name), in_words(&reason)), !valid);
            }
            Push::Gone => {
                self.agent = None;
                if !self.lost {
                    say(&format!("the agent has gone; {}", self.lasting()));
                }
            }
        }
    }

    /// An agent answers again.
    fn found(&mut self, found: Found) {
        match found {
            Found::Stranger => {}
            Found::Ended => {
                let what = format!("{}: the agent has ended the session", self.args.shown());
                self.lose(&what, true);
            }
            Found::Resumed(agent, secret, reply) => {
                self.secret = Some(secret);
                self.agent = Some(*agent);
                match self.grant.resumed(&reply) {
                    Ok(()) if self.lost => {}
                    Ok(()) => say(&format!("{}: the next agent has it", self.args.shown())),
                    Err(name) => {
                        self.lose(&format!("{}: it is not held any more", shown(&name)), true);
                    }
                }
            }
        }
    }

    fn lasting(&self) -> String {
        let left = duration::show(self.grant.left(boot_micros()));
        format!("{} stays ours for another {left}, and is not renewed", self.args.shown())
    }

    /// A lock is lost: the command ends within what is left of its validity, which is nothing if `at_once`.
    fn lose(&mut self, what: &str, at_once: bool) {
        if self.lost {
            return;
        }
        self.lost = true;
        let OnLost::Signal(signal) = self.args.on_lost else {
            return say(&format!("lost {what}; {} goes on without it", self.program()));
        };
        say(&format!("lost {what}; ending {}", self.program()));
        let now = boot_micros();
        let latest = if at_once { now } else { self.grant.deadline() };
        self.end(signal, latest.min(now + micros(self.args.kill_after)));
    }

    /// Begins to end the command, or has it killed earlier than planned.
    fn end(&mut self, signal: Signal, kill_at: u64) {
        self.group.end_all(signal);
        let kill_at = self.ending.map_or(kill_at, |ending| ending.kill_at.min(kill_at));
        self.ending = Some(Ending { kill_at, told: false });
    }

    fn watch_time(&mut self) {
        let now = boot_micros();
        if !self.lost && now >= self.grant.turn_back(self.lead()) {
            let left = duration::show(self.grant.left(now));
            let what =
                format!("{}: not renewed in time, valid for another {left}", self.args.shown());
            self.lose(&what, false);
        }
        let Some(ending) = &mut self.ending else { return };
        if now < ending.kill_at {
            return;
        }
        self.group.end_all(Signal::KILL);
        if !ending.told && now > ending.kill_at + STUBBORN {
            ending.told = true;
            let pids: Vec<String> = self.group.living().iter().map(ToString::to_string).collect();
            say(&format!("killed, but do not end: pids {}", pids.join(", ")));
        }
    }

    /// Whether nothing is left that could rely on the locks. What a command that ended by itself has left running is
    /// its own affair; what one that was ended has left is not.
    fn is_over(&mut self, ended: Ended) -> bool {
        let was_ended =
            self.asked_to_end || self.ending.is_some() || matches!(ended, Ended::Signal(_));
        if !was_ended || self.group.living().is_empty() {
            return true;
        }
        if self.ending.is_none() {
            self.end(Signal::TERM, boot_micros() + micros(self.args.kill_after));
        }
        false
    }

    /// Releases the locks. `successor` is what the next agent is looked for by, while it may still be found: it may
    /// have taken the session over already, and only not told so yet.
    async fn finish(
        mut self,
        ended: Ended,
        successor: Option<Pin<&mut impl Future<Output = Found>>>,
    ) -> Exit {
        if self.agent.is_none()
            && self.secret.is_some()
            && let Some(successor) = successor
        {
            // Else it would stay locked for the whole grace.
            say(&format!("{}: waiting for an agent to release it", self.args.shown()));
            let left = self.grant.left(boot_micros());
            if let Ok(Found::Resumed(agent, ..)) = timeout(left, successor).await {
                self.agent = Some(*agent);
            }
        }
        if let Some(agent) = &mut self.agent {
            match release(agent, self.args).await {
                Ok(()) => {}
                Err(Failure::Refused(code, text)) if code == "LOST" && !self.lost => {
                    self.lost = true;
                    say(&format!("lost: {text}"));
                }
                // Told before.
                Err(Failure::Refused(..)) if self.lost => {}
                Err(failure) => say(&failure.to_string()),
            }
            // A session with grace would go on without us.
            agent.call(&redis::cmd("QUIT")).await.ok();
        } else if !self.lost {
            say(&self.lasting());
        }
        if self.lost && self.args.on_lost != OnLost::Ignore {
            return Exit(self.args.exits.exit_lost);
        }
        ended.exit()
    }
}

/// Waits for what the agent tells; for ever where there is none.
async fn next_push(agent: &mut Option<Agent>) -> Push {
    match agent {
        Some(agent) => agent.pushes.recv().await.unwrap_or(Push::Gone),
        None => std::future::pending().await,
    }
}

async fn release(agent: &mut Agent, args: &ExecArgs) -> Result<(), Failure> {
    let names = args.names();
    let one = names.len() == 1;
    let mut command = redis::cmd(if one { "UNLOCK" } else { "MUNLOCK" });
    if !one {
        command.arg(names.len());
    }
    for name in names {
        command.arg(name);
    }
    agent.call(&command).await.map(drop)
}

/// What is found where an agent has gone.
enum Found {
    /// Another one, which knows nothing of the session: its locks' leases go on.
    Stranger,
    /// The session has ended, and its locks are released.
    Ended,
    /// The session goes on: the agent, the new secret, and what it told.
    Resumed(Box<Agent>, String, Value),
}

/// Waits for an agent to answer, and takes the session over where it has grace.
async fn seek(socket: &Path, id: &str, secret: Option<String>) -> Found {
    loop {
        if let Ok(agent) = Agent::connect(socket).await {
            let found = match &secret {
                Some(secret) => resume(agent, id, secret).await,
                None => look(agent, id).await,
            };
            if let Some(found) = found {
                return found;
            }
        }
        sleep(SEEK).await;
    }
}

/// Whether it is the agent that the session was with: then it has ended the session.
async fn look(mut agent: Agent, id: &str) -> Option<Found> {
    let session = agent.call(&redis::cmd("SESSION")).await.ok()?;
    let now = field(&session, "id").and_then(text)?;
    let run = |id: &str| id.rsplit_once('-').map(|(run, _)| run.to_owned());
    Some(if run(&now) == run(id) { Found::Ended } else { Found::Stranger })
}

/// Takes the session over. Nothing where that may be tried again.
async fn resume(mut agent: Agent, id: &str, secret: &str) -> Option<Found> {
    let mut resume = redis::cmd("RESUME");
    let reply = match agent.call(resume.arg(id).arg(secret)).await {
        Ok(reply) => reply,
        Err(Failure::Refused(code, _)) if code == "GONE" => return Some(Found::Ended),
        // The end of the old connection is not noticed yet, or Redis has not said yet what is held.
        Err(_) => return None,
    };
    let secret = field(&reply, "secret").and_then(text)?;
    let mut session = redis::cmd("SESSION");
    session.arg("PUSH").arg("on").arg("DEADLINES").arg("on");
    // Where this fails, the connection has ended, which is told as a push.
    agent.call(&session).await.ok();
    Some(Found::Resumed(Box::new(agent), secret, reply))
}

fn in_words(reason: &str) -> &str {
    match reason {
        "expired" => "its lease has run out",
        "unconfirmed" => "Redis is out of reach, and its validity ends",
        "missing" => "it is gone from Redis",
        "stolen" => "another holder has it",
        "forced" => "an operator released it",
        "frozen" => "its guard was stopped for too long",
        other => other,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 2)
}

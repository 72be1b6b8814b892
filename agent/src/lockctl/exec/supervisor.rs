//! The supervision of the running command: forwards signals, follows the state of the locks, ends the command when a lock
//! is lost, and releases the locks once nothing relies on them.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use rustix::process::Signal;
use service_kit::clock::boot_micros;
use tokio::time::{sleep, timeout};

use super::acquire::Granted;
use super::command::{CommandGroup, Ended};
use super::control::{FrontMessage, GuardControl};
use super::grant::Grant;
use super::successor::{self, Successor};
use crate::cli::{ExecArgs, OnLost};
use crate::client::{Agent, Failure, Push};
use crate::duration::{self, as_micros};
use crate::exit::Exit;
use crate::output::notice;
use crate::reply::printable;
use crate::signals::{self, Signals};

/// The longest sleep, since timers stop while the host is suspended but leases do not.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// The interval of checks for living processes while a command is being ended.
const ENDING_INTERVAL: Duration = Duration::from_millis(50);
/// The time for the agent to confirm the end of the session, which it handles without that too.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for an agent to return after the end of the locks' validity, and take a hold over from the last moments of its
/// TTL.
const RETURN_TIMEOUT: Duration = Duration::from_secs(3);
/// Microseconds after SIGKILL at which processes that are still alive are reported.
const UNKILLABLE_AFTER: u64 = 5_000_000;

/// A command that is being ended.
#[derive(Debug, Clone, Copy)]
struct Ending {
    /// The instant of SIGKILL, in microseconds since boot.
    kill_at: u64,
    /// Processes that survived SIGKILL have been reported.
    reported: bool,
}

/// A running command and its locks.
pub(crate) struct Supervisor<'a> {
    socket: &'a Path,
    args: &'a ExecArgs,
    /// The connection; none once it is lost.
    agent: Option<Agent>,
    id: String,
    /// The secret to resume the session; `None` if it ends with its connection.
    secret: Option<String>,
    grant: Grant,
    group: CommandGroup,
    ending: Option<Ending>,
    /// The instant, in microseconds since boot, until which an exit of the command is due to a forwarded signal.
    asked_to_end_until: u64,
    lost: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        socket: &'a Path,
        args: &'a ExecArgs,
        granted: Granted,
        group: CommandGroup,
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
            asked_to_end_until: 0,
            lost: false,
        }
    }

    /// Runs until the command has ended and the locks are released, and returns the exit status.
    pub(crate) async fn run(mut self, mut control: GuardControl, mut signals: Signals) -> Exit {
        let mut front_alive = true;
        let (socket, id) = (self.socket, self.id.clone());
        let mut search = std::pin::pin!(successor::find(socket, &id, self.secret.clone()));
        let mut searching = true;
        loop {
            let pause = self.pause();
            tokio::select! {
                biased;
                message = control.next(), if front_alive => match message {
                    FrontMessage::Signal(number) => self.forward(number),
                    FrontMessage::FrontDied => {
                        front_alive = false;
                        notice(&format!("lockctl was killed; ending {}", self.program()));
                        self.end(Signal::TERM, boot_micros() + as_micros(self.args.kill_after));
                    }
                },
                number = signals.next() => if number == Signal::CHILD.as_raw() {
                    self.group.reap_orphans();
                } else {
                    self.forward(number);
                },
                push = next_push(&mut self.agent) => self.on_push(push),
                successor = &mut search, if searching && self.agent.is_none() => {
                    self.on_successor(successor);
                    searching = self.agent.is_some();
                    if searching {
                        // Prepared for the loss of this agent.
                        search.set(successor::find(socket, &id, self.secret.clone()));
                    }
                }
                () = sleep(pause) => {}
            }
            if let Some(signal) = self.group.poll_stop() {
                control.report_stopped(signal).await;
            }
            self.check_deadlines();
            if let Some(ended) = self.group.poll_end()
                && self.end_descendants(ended)
            {
                control.report_ended().await;
                let search = searching.then_some(search);
                return self.finish(ended, search, signal_to_end(&mut control, &mut signals)).await;
            }
        }
    }

    fn program(&self) -> String {
        self.args
            .command
            .first()
            .map(|program| printable(program.as_encoded_bytes()))
            .unwrap_or_default()
    }

    fn pause(&self) -> Duration {
        if self.ending.is_some() {
            return ENDING_INTERVAL;
        }
        if self.lost {
            return MAX_SLEEP;
        }
        let terminate_at = self.grant.terminate_at(self.lead_time());
        Duration::from_micros(terminate_at.saturating_sub(boot_micros()))
            .clamp(Duration::from_millis(1), MAX_SLEEP)
    }

    /// Returns the time before the end of validity at which the command is asked to end.
    fn lead_time(&self) -> Duration {
        match self.args.on_lost {
            OnLost::Signal(Signal::KILL) | OnLost::Ignore => Duration::ZERO,
            OnLost::Signal(_) => self.args.kill_after,
        }
    }

    fn forward(&mut self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.group.signal(signal);
        }
        if signals::terminates(number) {
            let until = if number == Signal::HUP.as_raw() {
                // A command that survives it for longer has probably reloaded its settings.
                boot_micros() + as_micros(self.args.kill_after)
            } else {
                u64::MAX
            };
            self.asked_to_end_until = self.asked_to_end_until.max(until);
            // A stopped process would not receive it.
            self.group.signal(Signal::CONT);
        }
    }

    fn on_push(&mut self, push: Push) {
        let is_news = self.grant.apply(&push);
        match push {
            Push::Valid(..) => {}
            Push::Jeopardy(name, valid) => {
                if is_news {
                    let left = Duration::from_micros(valid.until.saturating_sub(boot_micros()));
                    let (name, left) = (printable(&name), duration::format(left));
                    notice(&format!("{name} cannot be renewed: valid for another {left}"));
                }
            }
            Push::Safe(name) => notice(&format!("{} has been renewed again", printable(&name))),
            // The lock stays in Redis, unavailable to others, until its lease expires.
            Push::Lost(name, reason) if reason == "drained" => {
                notice(&format!(
                    "{}: the agent is shutting down; {}",
                    printable(&name),
                    self.remaining()
                ));
            }
            Push::Lost(name, reason) => {
                let valid = matches!(reason.as_str(), "unconfirmed" | "expired" | "frozen");
                self.on_lost(&format!("{}: {}", printable(&name), explain(&reason)), !valid);
            }
            Push::Disconnected => {
                self.agent = None;
                if let Some(grace) = self.grace() {
                    self.grant.limit(boot_micros(), grace);
                }
                if !self.lost {
                    notice(&format!("lost the connection to the agent; {}", self.remaining()));
                }
            }
        }
    }

    /// Handles the answer of an agent after the connection was lost.
    fn on_successor(&mut self, successor: Successor) {
        match successor {
            Successor::Unrelated => {}
            Successor::SessionEnded => {
                let what = format!("{}: the agent ended the session", self.args.lock_names());
                self.on_lost(&what, true);
            }
            Successor::Resumed(resumed) => {
                self.secret = Some(resumed.secret);
                self.agent = Some(resumed.agent);
                match self.grant.resume(&resumed.holds) {
                    Ok(()) if self.lost => {}
                    Ok(()) => {
                        notice(&format!("{}: resumed by the next agent", self.args.lock_names()));
                    }
                    Err(name) => {
                        self.on_lost(&format!("{}: it is no longer held", printable(&name)), true);
                    }
                }
            }
        }
    }

    fn remaining(&self) -> String {
        let left = duration::format(self.grant.left(boot_micros()));
        format!("{} stays locked for another {left} without renewal", self.args.lock_names())
    }

    /// Ends the command after a lock was lost, within the lock's remaining validity, or at once.
    fn on_lost(&mut self, what: &str, at_once: bool) {
        if self.lost {
            if at_once {
                self.on_lost_again(what);
            }
            return;
        }
        self.lost = true;
        let OnLost::Signal(signal) = self.args.on_lost else {
            return notice(&format!("lost {what}; {} continues without it", self.program()));
        };
        notice(&format!("lost {what}; ending {}", self.program()));
        let now = boot_micros();
        // The deadline may have passed while this process was stopped.
        let latest = if at_once { now } else { self.grant.deadline().max(now) };
        self.end(signal, latest.min(now + as_micros(self.args.kill_after)));
    }

    /// Kills the command, which is being ended within a validity that no longer lasts.
    fn on_lost_again(&mut self, what: &str) {
        let now = boot_micros();
        if let Some(ending) = &mut self.ending
            && self.args.on_lost != OnLost::Ignore
            && now < ending.kill_at
        {
            ending.kill_at = now;
            notice(&format!("lost {what}; killing {}", self.program()));
        }
    }

    /// Starts to end the command, or advances the time of its SIGKILL.
    fn end(&mut self, signal: Signal, kill_at: u64) {
        self.group.signal_all(signal);
        let kill_at = self.ending.map_or(kill_at, |ending| ending.kill_at.min(kill_at));
        self.ending = Some(Ending { kill_at, reported: false });
    }

    fn check_deadlines(&mut self) {
        let now = boot_micros();
        if !self.lost && now >= self.grant.terminate_at(self.lead_time()) {
            let left = duration::format(self.grant.left(now));
            let why = match self.args.lease {
                Some(_) => "its lease ends",
                None => "not renewed in time",
            };
            let what = format!("{}: {why}, valid for another {left}", self.args.lock_names());
            self.on_lost(&what, false);
        }
        let Some(ending) = &mut self.ending else { return };
        if now < ending.kill_at {
            return;
        }
        self.group.signal_all(Signal::KILL);
        if !ending.reported
            && now > ending.kill_at + UNKILLABLE_AFTER
            && let Some(report) = survivors(&self.group.living())
        {
            ending.reported = true;
            notice(&report);
        }
    }

    /// Ends the descendants that a command left behind, if the command was ended. Returns whether nothing relies on the locks
    /// any more. Descendants of a command that exited on its own do not count.
    fn end_descendants(&mut self, ended: Ended) -> bool {
        let was_ended = self.ending.is_some()
            || ended.is_by_signal()
            || boot_micros() < self.asked_to_end_until;
        if !was_ended || self.group.living().is_empty() {
            return true;
        }
        if self.ending.is_none() {
            self.end(Signal::TERM, boot_micros() + as_micros(self.args.kill_after));
        }
        false
    }

    /// Releases the locks. `search` is the unfinished search for the next agent, which may already have resumed the
    /// session; `gives_up` ends the wait for it.
    async fn finish(
        mut self,
        ended: Ended,
        search: Option<Pin<&mut impl Future<Output = Successor>>>,
        gives_up: impl Future<Output = ()>,
    ) -> Exit {
        let asked = self.agent.is_some();
        let mut released = self.unlock().await;
        if self.agent.is_none()
            && let (Some(grace), Some(search)) = (self.grace(), search)
        {
            // Otherwise it would stay locked for the whole grace.
            notice(&format!("{}: waiting for an agent to release it", self.args.lock_names()));
            let limit = self.grant.left(boot_micros()).min(grace) + RETURN_TIMEOUT;
            let found = tokio::select! {
                found = timeout(limit, search) => found.ok(),
                () = gives_up => None,
            };
            match found {
                Some(Successor::Resumed(resumed)) => {
                    self.agent = Some(resumed.agent);
                    // The agent that was asked may have unlocked them. The end of the session releases those that are left.
                    released = asked || self.unlock().await;
                }
                Some(Successor::SessionEnded) => released = true,
                Some(Successor::Unrelated) | None => {}
            }
        }
        if let Some(agent) = &mut self.agent {
            // A session with grace would outlive its connection.
            agent.call_within(&redis::cmd("QUIT"), Some(QUIT_TIMEOUT)).await.ok();
        }
        if !released && !self.lost {
            notice(&self.remaining());
        }
        if self.lost && self.args.on_lost != OnLost::Ignore {
            return Exit(self.args.exits.exit_lost);
        }
        ended.exit()
    }

    /// Returns the grace of the session, if it outlives its connection.
    fn grace(&self) -> Option<Duration> {
        self.args.grace.filter(|_| self.secret.is_some())
    }

    /// Unlocks the locks. Returns whether there was an agent to ask, which need not have replied unless the session has grace.
    async fn unlock(&mut self) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        match agent.call(&self.args.for_locks("UNLOCK", "MUNLOCK")).await {
            Ok(_) => {}
            Err(Failure::Refused(code, text)) if code == "LOST" && !self.lost => {
                self.lost = true;
                notice(&format!("lost: {text}"));
            }
            // Reported before.
            Err(Failure::Refused(..)) if self.lost => {}
            Err(failure @ Failure::Refused(..)) => notice(&failure.to_string()),
            Err(failure) => {
                let names = self.args.lock_names();
                notice(&format!("{names}: release not confirmed: {failure}"));
                if self.secret.is_some() {
                    self.agent = None;
                    return false;
                }
            }
        }
        true
    }
}

/// Waits for a signal that asks to end.
async fn signal_to_end(control: &mut GuardControl, caught: &mut Signals) {
    loop {
        let number = tokio::select! {
            message = control.next() => match message {
                FrontMessage::Signal(number) => number,
                FrontMessage::FrontDied => break,
            },
            number = caught.next() => number,
        };
        if signals::terminates(number) {
            return;
        }
    }
    while !signals::terminates(caught.next().await) {}
}

/// Returns the report about processes that are alive after SIGKILL, if there are any.
fn survivors(pids: &[i32]) -> Option<String> {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    (!pids.is_empty()).then(|| format!("still alive after SIGKILL: pids {}", pids.join(", ")))
}

/// Waits for the next push; forever without a connection.
async fn next_push(agent: &mut Option<Agent>) -> Push {
    match agent {
        Some(agent) => agent.pushes.recv().await.unwrap_or(Push::Disconnected),
        None => std::future::pending().await,
    }
}

fn explain(reason: &str) -> &str {
    match reason {
        "expired" => "its lease expired",
        "unconfirmed" => "Redis does not confirm its renewals and its validity ends",
        "missing" => "it is gone from Redis",
        "stolen" => "another holder has it",
        "forced" => "an operator released it",
        "frozen" => "its guard was stopped for too long",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_that_live_are_reported() {
        assert_eq!(survivors(&[]), None);
        assert_eq!(survivors(&[7, 9]).unwrap(), "still alive after SIGKILL: pids 7, 9");
    }
}

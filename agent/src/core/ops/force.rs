//! FORCE and KICK, the commands of operators at the socket. Root and the agent's own user may use them; each use is
//! logged.

use std::time::Duration;

use redisson::script::{
    self, BadReply, Call, ExpectedLock, ExpectedTtl, ForceReleaseOutcome, LockDetails, Publish,
    QueueEntry, Value,
};
use redisson::shape::{Holder, LockHash, MAX_FIELDS};
use redisson::{HolderId, LockName, millis};

use super::operation::Operation;
use super::{Op, printable};
use crate::core::ids::{OpId, ReplyTo};
use crate::core::ops::verb::{AfterCheck, AgentCheck, Force, Look, Seen, Verb};
use crate::core::report::refusals::others;
use crate::core::session::event::Event;
use crate::core::{Core, Effect, LogLine, Report};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{End, SessionId};

/// The time for which a forced release is retried while Redis does not answer: the state that the operator saw becomes
/// outdated.
pub(in crate::core) const WORTH: Duration = Duration::from_secs(2);

impl Operation for Look {
    fn call(&self, _: &Core) -> Call {
        script::show(&self.name)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let shown = script::parse_show(reply)?;
        core.on_looked(self, &shown);
        Ok(())
    }

    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        Some((self.reply_to, &self.name))
    }
}

impl Operation for Force {
    fn call(&self, core: &Core) -> Call {
        self.seen.call(&self.name, &self.dead, core.settings.publish)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let forced = script::parse_force_release(reply)?;
        core.note_message(&self.name, reply);
        // A missing or different lock has no queue to purge, nor has one that several holders share.
        let waiters = if self.seen.only.is_some() { 0 } else { script::parse_purged(reply)? };
        core.on_force_answered(self, op.may_have_run, forced, waiters);
        Ok(())
    }

    fn on_unknown(&self, core: &mut Core) {
        let holders = self.seen.ending_names();
        if !holders.is_empty() || self.seen.shown.queue_length > 0 {
            core.audit(self.reply_to, &self.name, &holders, 0, false);
        }
    }

    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        Some((self.reply_to, &self.name))
    }
}

impl Seen {
    /// Returns what was seen of a lock, of which only the holder that `is_named` is to be released if there are others.
    pub(in crate::core) fn new(shown: &LockDetails, is_named: impl Fn(&Holder) -> bool) -> Self {
        let hash = &shown.hash;
        let several = hash.holders.len() + hash.foreign.len() > 1;
        let named = hash.holders.iter().find(|holder| several && is_named(holder));
        Self { only: named.copied(), shown: Box::new(shown.clone()) }
    }

    /// Returns the release of that state. The time to live is ignored: the operator made no decision about it.
    pub(in crate::core) fn call(
        &self,
        name: &LockName,
        dead: &[QueueEntry],
        publish: Publish,
    ) -> Call {
        let expected = ExpectedLock { hash: &self.shown.hash, ttl: ExpectedTtl::Any };
        match &self.only {
            Some(holder) => script::force_release_holder(name, expected, holder, publish),
            None => script::force_release(name, expected, dead, publish),
        }
    }

    /// Returns the holders of Redisson's form that lose their holds.
    pub(in crate::core) fn ending(&self) -> &[Holder] {
        self.only.as_ref().map_or(&self.shown.hash.holders, std::slice::from_ref)
    }

    /// Returns the ids of all holders that lose their holds.
    fn ending_names(&self) -> Vec<String> {
        self.only
            .map_or_else(|| holder_names(&self.shown.hash), |holder| vec![holder.id.to_string()])
    }
}

/// Returns the ids of all holders as stored, including those of unknown clients.
fn holder_names(hash: &LockHash) -> Vec<String> {
    hash.holders_as_text().into_iter().map(|(holder, _)| holder).collect()
}

/// Returns the reply to FORCE: the number of holders released and, with REPORT, also of waiters removed.
pub(in crate::core) fn forced_frame(report: bool, holders: u64, waiters: u64) -> Frame {
    if report {
        Frame::Map(vec![("holders", Frame::count(holders)), ("waiters", Frame::count(waiters))])
    } else {
        Frame::count(holders)
    }
}

/// The maximum number of holders that a refusal names, since a lock may have thousands of readers.
const MAX_NAMED: usize = 3;

/// Returns the refusal to release a lock that the named holder does not hold. A red lock has the same holder on several
/// servers.
pub(in crate::core) fn not_held_by(name: &LockName, named: &[u8], mut now: Vec<String>) -> String {
    now.sort_unstable();
    now.dedup();
    let hidden = now.len().saturating_sub(MAX_NAMED);
    now.truncate(MAX_NAMED);
    let mut now: Vec<String> = now.iter().map(|holder| printable(holder)).collect();
    if hidden > 0 {
        now.push(others(hidden));
    }
    format!(
        "NOTHELD nothing is released: `{name}` is held by {}, not by `{}`; to release it, name its present holder, or omit the holder",
        now.join(", "),
        printable(&String::from_utf8_lossy(named)),
    )
}

/// Returns the refusal to release a lock that has changed since it was read. If an earlier attempt `may_have_run`, that
/// may be its effect.
pub(in crate::core) fn changed_hands(name: &LockName, may_have_run: bool) -> Frame {
    if may_have_run {
        let why = "it changed holders, and Redis's reply was lost: it may have been released; check it again";
        return Core::unavailable_for(name, why);
    }
    Frame::Error(format!(
        "NOTHELD `{name}` changed holders during the command; nothing was done: check it again"
    ))
}

impl Core {
    /// Starts a forced release. With `holder`, nothing is done unless that holder holds the lock, and other holders keep it.
    pub(in crate::core) fn force(
        &mut self,
        reply_to: ReplyTo,
        name: LockName,
        holder: Option<Vec<u8>>,
        report: bool,
    ) {
        if let Some(refusal) = self.operator_refusal(reply_to, "FORCE") {
            return self.answer(reply_to, refusal);
        }
        let (red, unfit) = (self.is_red_only(&name), self.slot_refusal(&name));
        let look = Look { name, reply_to, holder, report };
        if red {
            return self.look_red(look);
        }
        if let Some(refusal) = unfit {
            return self.answer(reply_to, refusal);
        }
        self.send(Verb::Look(look), WORTH);
    }

    /// Continues a forced release with the lock's state.
    fn on_looked(&mut self, look: &Look, shown: &LockDetails) {
        let Look { name, reply_to, holder, report } = look;
        let (reply_to, report) = (*reply_to, *report);
        let holders = holder_names(&shown.hash);
        let named = |id: &str| holder.as_deref() == Some(id.as_bytes());
        let seen = Seen::new(shown, |holder| named(&holder.id.to_string()));
        let refusal = if shown.key_type == "none" {
            if shown.queue_length == 0 {
                // A lock that is missing here may be a red lock elsewhere.
                if self.settings.red.is_some() {
                    return self.look_red(look.clone());
                }
                return self.answer(reply_to, forced_frame(report, 0, 0));
            }
            None
        } else if shown.key_type != "hash" || shown.fields > MAX_FIELDS || holders.is_empty() {
            Some(format!("WRONGTYPE `{name}` is not a lock; nothing was done"))
        } else if let Some(wanted) = holder
            && !holders.iter().any(|id| named(id))
        {
            Some(not_held_by(name, wanted, holders))
        } else if holder.is_some() && holders.len() > 1 && seen.only.is_none() {
            Some(format!(
                "LIMIT nothing is released: `{name}` has other holders too, and only one with an id of Redisson's form can be released alone; to release all of them, omit the holder"
            ))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.answer(reply_to, Frame::Error(refusal));
        }
        let agents = self.other_agents(&shown.queue);
        let force = Force { name: name.clone(), reply_to, seen, dead: Vec::new(), report };
        self.check_agents(AgentCheck {
            agents,
            vanished: Vec::new(),
            next: AfterCheck::Force(force),
        });
    }

    /// Applies the outcome. If an earlier copy may have run, it may have done what this one found done.
    fn on_force_answered(
        &mut self,
        force: &Force,
        may_have_run: bool,
        forced: ForceReleaseOutcome,
        waiters: u64,
    ) {
        let Force { name, reply_to, seen, .. } = force;
        let mut holders = seen.ending_names();
        if forced == ForceReleaseOutcome::Free && !may_have_run {
            holders.clear();
        }
        let reply = match forced {
            ForceReleaseOutcome::Released | ForceReleaseOutcome::Free => {
                if !holders.is_empty() || waiters > 0 {
                    self.audit(*reply_to, name, &holders, waiters, true);
                }
                forced_frame(force.report, holders.len() as u64, waiters)
            }
            ForceReleaseOutcome::Changed | ForceReleaseOutcome::WrongType if may_have_run => {
                force.on_unknown(self);
                changed_hands(name, true)
            }
            ForceReleaseOutcome::Changed => changed_hands(name, false),
            ForceReleaseOutcome::WrongType => {
                Frame::Error(format!("WRONGTYPE `{name}` is no longer a lock; nothing was done"))
            }
        };
        if !holders.is_empty() && !matches!(reply, Frame::Error(_)) {
            // The message notifies the other agents; our own holds need not wait for it.
            for Holder { id, .. } in seen.ending() {
                self.end_forced(name, id);
            }
        }
        self.answer(*reply_to, reply);
    }

    fn end_forced(&mut self, name: &LockName, id: &HolderId) {
        if self.own_hold(id).is_some_and(|hold| hold.name == *name) {
            self.lose(id.thread, End::Forced);
        }
    }

    /// Logs a forced release. Unless it is `confirmed`, Redis's answer was lost.
    pub(in crate::core) fn audit(
        &mut self,
        reply_to: ReplyTo,
        name: &LockName,
        holders: &[String],
        dead_waiters: u64,
        confirmed: bool,
    ) {
        let peer = self.sessions.get(&reply_to.connection).map(|session| &session.peer);
        self.effects.log(
            self.now,
            LogLine::ForcedRelease {
                lock: name.clone(),
                confirmed,
                holders: holders.join(" "),
                dead_waiters,
                by: peer.cloned(),
            },
        );
    }

    /// Ends a session: reports its locks to its worker as lost, and closes its connection.
    pub(in crate::core) fn kick(&mut self, reply_to: ReplyTo, session: &[u8]) {
        if let Some(refusal) = self.operator_refusal(reply_to, "KICK") {
            return self.answer(reply_to, refusal);
        }
        let Some(connection) =
            SessionId::parse(session).and_then(|id| self.sessions.connection_of(id))
        else {
            let text =
                "NOSESSION there is no such session; `lockctl ls` lists those that hold or wait";
            return self.answer(reply_to, Frame::Error(text.to_owned()));
        };
        let by = self.sessions.get(&reply_to.connection).map(|session| session.peer.clone());
        let Some(kicked) = self.sessions.get(&connection) else { return };
        let numbers = kicked.hold_numbers();
        self.effects.log(
            self.now,
            LogLine::SessionKicked {
                session: kicked.id.to_string(),
                peer: kicked.peer.clone(),
                holds: numbers.len(),
                age_ms: millis(self.now.since(kicked.opened)),
                by,
            },
        );
        for number in &numbers {
            let Some(hold) = self.leases.get(*number) else { continue };
            let (owner, name, kind) = (hold.owner, hold.name.clone(), hold.kind);
            let group = self.group_label(&name);
            self.effects.report(Report::Lost { group, end: End::Forced });
            self.notify(owner, &name, kind, &Event::Lost(End::Forced));
        }
        self.answer(reply_to, Frame::count(numbers.len() as u64));
        self.effects.push(Effect::Deliver(connection, Outgoing::Close));
        self.end_session(connection, self.now);
    }

    /// Returns the refusal of an operator's command, unless the session may give it.
    fn operator_refusal(&self, reply_to: ReplyTo, command: &str) -> Option<Frame> {
        self.sees_only(reply_to.connection).map(|uid| {
            Frame::Error(format!(
                "DENIED {command} is for root and the agent's own user, and you are user {uid}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_holders_without_their_control_characters() {
        let name = LockName::new(*b"a").unwrap();
        let refusal = not_held_by(&name, b"x\x1b[2J", vec!["y\u{1b}[2J".to_owned()]);
        assert!(refusal.contains("held by y[2J, not by `x[2J`"), "{refusal}");
    }
}

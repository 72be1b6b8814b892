//! Workers read replies and pushes.

use std::time::Duration;

use redisson::Kind;

use super::super::seeds::CheckResult;
use super::event::Event;
use super::names::NAMES;
use super::session::{KnownHold, OWNERS, Pending};
use super::simulation::{Phase, Simulation};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::ConnectionId;

/// Converts a duration in a reply.
pub(super) fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

impl Simulation {
    /// A worker reads what arrived at `came`. Validity counts from that instant.
    pub(super) fn read(
        &mut self,
        host: usize,
        id: ConnectionId,
        came: u64,
        outgoing: Outgoing,
    ) -> CheckResult {
        self.log(|| format!("host {host} worker {id:?} reads {}", brief(&outgoing)));
        match outgoing {
            Outgoing::Push(frames) | Outgoing::Loss(frames) => {
                self.read_push(host, id, came, &frames)
            }
            Outgoing::Reply(frame) => self.read_reply(host, id, came, &frame),
            other => Err(format!("{id:?} was sent {other:?}")),
        }
    }

    fn read_push(
        &mut self,
        host: usize,
        id: ConnectionId,
        came: u64,
        frames: &[Frame],
    ) -> CheckResult {
        let [Frame::Bulk(word), Frame::Bulk(name), ..] = frames else {
            return Err(format!("an unknown push: {frames:?}"));
        };
        let lock = NAMES.iter().find(|lock| lock.as_bytes() == &name[..]).expect("a lock of ours");
        let came = self.hosts[host].boot(came);
        let lost = word.as_ref() == b"lock-lost";
        let valid_until = match (word.as_ref(), frames.get(3)) {
            (b"lock-valid", Some(Frame::Int(ms))) => Some(came + millis(*ms)),
            _ => None,
        };
        // Pushes do not name the owner. A lock has one holder, so at most one owner holds it.
        let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
        let mut valid = None;
        for owner in 0..OWNERS {
            if lost {
                session.owners[owner].known_holds.remove(lock);
            } else if let (Some(until), Some(known_hold)) =
                (valid_until, session.owners[owner].known_holds.get_mut(lock))
            {
                known_hold.valid_until = known_hold.valid_until.max(until);
                valid = Some(owner);
            }
        }
        match valid {
            Some(owner) => self.check_exclusive(host, id, owner, lock),
            None => Ok(()),
        }
    }

    fn read_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        came: u64,
        frame: &Frame,
    ) -> CheckResult {
        let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
        let Some((_, pending)) = session.pending.pop_front() else {
            return Err(format!("{id:?} was sent a reply without a command: {frame:?}"));
        };
        let (owner, outcome) = match pending {
            Pending::Lock { owner, lock, kind } => {
                (Some(owner), self.on_lock_reply(host, id, owner, (lock, kind), came, frame))
            }
            Pending::Unlock { owner, lock } => {
                (Some(owner), self.on_unlock_reply(host, id, owner, lock, frame))
            }
            Pending::Extend { owner, lock } => {
                (Some(owner), self.on_extend_reply(host, id, owner, lock, came, frame))
            }
            Pending::Holds => (None, self.check_holds_reply(host, id, frame)),
            Pending::Token(token) if *frame == Frame::Int(token) => (None, Ok(())),
            Pending::Token(token) => (None, Err(format!("{frame:?} in place of {token}"))),
            Pending::Grace => (None, self.on_grace_reply(host, id, frame)),
            Pending::Resume => return self.on_resume_reply(host, id, came, frame),
            Pending::Other => (None, Ok(())),
        };
        outcome.map_err(|violation| format!("host {host} {id:?}: {violation}"))?;
        let run = self.hosts[host].run;
        let pause = self.think(host);
        if let Some(owner) = owner {
            let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
            session.owners[owner].unanswered -= 1;
            self.after(pause, Event::Act { host, run, connection: id, owner });
        } else if self.phase == Phase::Ending {
            self.after(pause, Event::Act { host, run, connection: id, owner: 0 });
        }
        Ok(())
    }

    fn on_lock_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        (lock, kind): (&'static str, Kind),
        came: u64,
        frame: &Frame,
    ) -> CheckResult {
        let Frame::Map(pairs) = frame else {
            return match code(frame) {
                "null" if self.is_valid(host, id, owner, lock) => Err("a reentry timed out".into()),
                "null" | "UNAVAILABLE" | "LIMIT" | "WRONGTYPE" | "WRONGKIND" | "DEADLOCK" => Ok(()),
                "LOST" => {
                    self.forget(host, id, owner, lock);
                    Ok(())
                }
                _ => Err(format!("LOCK {lock} was answered {frame:?}")),
            };
        };
        let field = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        let (Some(Frame::Bulk(holder)), Some(Frame::Int(holds)), Some(Frame::Int(valid))) =
            (field("holder"), field("holds"), field("valid_ms"))
        else {
            return Err(format!("an unknown grant: {frame:?}"));
        };
        let holder = String::from_utf8_lossy(holder).into_owned();
        let token = match field("token") {
            Some(Frame::Int(token)) => Some(*token),
            Some(Frame::NullValue) => None,
            other => return Err(format!("a grant with {other:?} for a token")),
        };
        if token.is_some() != (kind == Kind::Fenced) {
            return Err(format!("a grant of kind {kind:?} with token {token:?}"));
        }
        if self.phase == Phase::Repaired {
            self.history.granted_since += 1;
        }
        let valid_until = self.hosts[host].boot(came) + millis(*valid);
        let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
        match session.owners[owner].known_holds.get_mut(lock) {
            Some(known_hold) if known_hold.holder == holder => {
                if i64::from(known_hold.count) + 1 != *holds {
                    return Err(format!("{lock} was held {} times, now {holds}", known_hold.count));
                }
                if known_hold.token != token {
                    return Err(format!("{lock} had token {:?}, now {token:?}", known_hold.token));
                }
                known_hold.count += 1;
                known_hold.valid_until = known_hold.valid_until.max(valid_until);
            }
            // A session without pushes is not notified of losses, so its known hold may be outdated.
            _ => {
                if *holds != 1 {
                    return Err(format!("{lock} was granted at count {holds}"));
                }
                let known_hold = KnownHold {
                    holder: holder.clone(),
                    count: 1,
                    token,
                    valid_until,
                    leaving: false,
                };
                session.owners[owner].known_holds.insert(lock, known_hold);
                self.history.granted(&mut self.hosts[host], lock, &holder)?;
                self.grants.push((host, id));
            }
        }
        self.check_exclusive(host, id, owner, lock)
    }

    fn on_unlock_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        lock: &'static str,
        frame: &Frame,
    ) -> CheckResult {
        let valid = self.is_valid(host, id, owner, lock);
        let Some(known_hold) = self.known_hold(host, id, owner, lock).cloned() else {
            return match code(frame) {
                // The reply may have preceded the loss, behind another owner's reply.
                "LOST" | "NOTHELD" | "UNAVAILABLE" => Ok(()),
                _ => Err(format!("UNLOCK of {lock}, which was lost, was answered {frame:?}")),
            };
        };
        match (frame, code(frame)) {
            (Frame::Int(left), _) if *left != i64::from(known_hold.count) - 1 => {
                Err(format!("{lock} was held {} times, now {left}", known_hold.count))
            }
            (Frame::Int(_), _) | (_, "UNAVAILABLE") if known_hold.count > 1 => {
                let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
                session.owners[owner].known_holds.get_mut(lock).expect("looked up above").count -=
                    1;
                Ok(())
            }
            (Frame::Int(_), _) | (_, "UNAVAILABLE" | "LOST") => {
                self.forget(host, id, owner, lock);
                Ok(())
            }
            (_, "NOTHELD") if !valid => {
                self.forget(host, id, owner, lock);
                Ok(())
            }
            _ => Err(format!("UNLOCK {lock} was answered {frame:?}")),
        }
    }

    fn on_extend_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        lock: &'static str,
        came: u64,
        frame: &Frame,
    ) -> CheckResult {
        let came = self.hosts[host].boot(came);
        match (frame, code(frame)) {
            (Frame::Int(ms), _) => {
                let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
                if let Some(known_hold) = session.owners[owner].known_holds.get_mut(lock) {
                    known_hold.valid_until = came + millis(*ms);
                    return self.check_exclusive(host, id, owner, lock);
                }
                Err(format!("{lock} was extended after it was lost"))
            }
            (_, "LOST") => {
                self.forget(host, id, owner, lock);
                Ok(())
            }
            (_, "UNAVAILABLE") => Ok(()),
            (_, "NOTHELD") if !self.is_valid(host, id, owner, lock) => {
                self.forget(host, id, owner, lock);
                Ok(())
            }
            _ => Err(format!("EXTEND {lock} was answered {frame:?}")),
        }
    }

    /// Checks that HOLDS lists no hold that is unknown to the worker.
    fn check_holds_reply(&self, host: usize, id: ConnectionId, frame: &Frame) -> CheckResult {
        let Frame::Array(rows) = frame else { return Err(format!("HOLDS was answered {frame:?}")) };
        let session = &self.hosts[host].sessions[&id];
        for row in rows {
            let Frame::Map(pairs) = row else { return Err(format!("a row of HOLDS: {row:?}")) };
            let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| v);
            let (Some(Frame::Int(owner)), Some(Frame::Bulk(lock))) =
                (value("owner"), value("lock"))
            else {
                return Err(format!("a row of HOLDS: {row:?}"));
            };
            let owner = usize::try_from(*owner).map_err(|e| e.to_string())?;
            let known =
                session.owners[owner].known_holds.keys().any(|name| name.as_bytes() == &lock[..]);
            // A grant may be on its way.
            if !known && session.owners[owner].unanswered == 0 {
                return Err(format!("HOLDS lists a hold that owner {owner} never had: {row:?}"));
            }
        }
        Ok(())
    }

    /// Reports whether the agent must know of a hold. A worker without pushes may rely on a lost hold during the margin.
    fn is_valid(&self, host: usize, id: ConnectionId, owner: usize, lock: &str) -> bool {
        let now = self.hosts[host].boot(self.now) + self.hosts[host].settings.lost_margin;
        let excused = |known_hold: &KnownHold| self.history.is_excused(lock, &known_hold.holder);
        self.known_hold(host, id, owner, lock).is_some_and(|v| now < v.valid_until && !excused(v))
    }

    pub(super) fn known_hold(
        &self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        lock: &str,
    ) -> Option<&KnownHold> {
        self.hosts[host].sessions.get(&id)?.owners[owner].known_holds.get(lock)
    }

    fn forget(&mut self, host: usize, id: ConnectionId, owner: usize, lock: &str) {
        if let Some(session) = self.hosts[host].sessions.get_mut(&id) {
            session.owners[owner].known_holds.remove(lock);
        }
    }
}

/// Formats a reply or push for the trace.
fn brief(outgoing: &Outgoing) -> String {
    match outgoing {
        Outgoing::Reply(reply) => brief_frame(reply),
        Outgoing::Push(frames) | Outgoing::Loss(frames) => {
            format!("push: {}", brief_frames(frames))
        }
        other => format!("{other:?}"),
    }
}

fn brief_frames(frames: &[Frame]) -> String {
    frames.iter().map(brief_frame).collect::<Vec<_>>().join(" ")
}

fn brief_frame(frame: &Frame) -> String {
    match frame {
        Frame::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Frame::Array(items) => format!("[{}]", brief_frames(items)),
        Frame::Map(pairs) => {
            let pair = |(key, value): &(&str, Frame)| format!("{key}={}", brief_frame(value));
            pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}

/// Returns `null`, the first word of an error, or an empty text for other replies.
pub(super) fn code(frame: &Frame) -> &str {
    match frame {
        Frame::Null => "null",
        Frame::Error(sentence) => sentence.split(' ').next().unwrap_or_default(),
        _ => "",
    }
}

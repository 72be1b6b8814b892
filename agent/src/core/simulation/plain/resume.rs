//! Sessions with grace that outlive connections, and the journal that a restarted agent reads.

use redisson::{HolderId, Moment};

use super::super::seeds::CheckResult;
use super::event::{Event, Input};
use super::event_loop::secret;
use super::names::{NAMES, name_of};
use super::replies::{code, millis};
use super::session::{KnownHold, OWNERS, Pending, Ticket};
use super::simulation::{Phase, Simulation};
use crate::core::Settings;
use crate::journal::{Record, Restored};
use crate::protocol::command::Command;
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

impl Simulation {
    /// Writes a record to the journal.
    pub(super) fn journal(&mut self, host: usize, record: Record) {
        let rewrite = self.rng.one_in(50);
        let now = self.hosts[host].boot(self.now);
        let state = &mut self.hosts[host];
        state.disk.records += 1;
        let upto = state.disk.records;
        if state.disk.full {
            state.disk.broken = true;
            return state.core.on_journal_failed(now, upto, "it is full");
        }
        if std::mem::take(&mut state.disk.broken) || rewrite {
            state.disk.past = Restored::default();
            state.core.journal_records().into_iter().for_each(|r| state.disk.past.add(r));
        }
        state.disk.past.add(record);
        state.core.on_journalled(now, upto);
    }

    /// Requests grace for a worker's session.
    pub(super) fn request_grace(&mut self, host: usize, id: ConnectionId) {
        let lease = self.hosts[host].lease();
        let grace = lease * u32::try_from(self.rng.pick(&[1, 2, 4])).expect("small") / 2;
        if let Some(session) = self.hosts[host].sessions.get_mut(&id) {
            session.grace = grace;
        }
        let command =
            Command::Session { grace: Some(grace), push: None, deadlines: None, process: None };
        self.send_command(host, id, Pending::Grace, command);
    }

    pub(super) fn on_grace_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        frame: &Frame,
    ) -> CheckResult {
        if code(frame) == "UNAVAILABLE" {
            return Ok(());
        }
        let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
        session.ticket = Some(ticket(frame)?);
        Ok(())
    }

    /// Breaks a worker's connection. The worker resumes its session on another one.
    pub(super) fn break_session_connection(&mut self, host: usize, id: ConnectionId) {
        let run = self.hosts[host].run;
        self.after(20, Event::Input { host, run, input: Input::Closed(id) });
        self.reconnect_later(host, id);
    }

    /// Reconnects a worker after a pause.
    pub(super) fn reconnect_later(&mut self, host: usize, id: ConnectionId) {
        let state = &mut self.hosts[host];
        let now = state.boot(self.now);
        let Some(mut session) = state.sessions.remove(&id) else { return };
        session.break_off(now);
        state.next_connection += 1;
        let (new, run) = (ConnectionId(state.next_connection), state.run);
        state.sessions.insert(new, session);
        self.log(|| format!("host {host} worker {id:?} will reconnect as {new:?}"));
        let pause = self.think(host);
        self.after(pause + 30, Event::Reconnect { host, run, connection: new });
    }

    pub(super) fn reconnect(&mut self, host: usize, id: ConnectionId) {
        let run = self.hosts[host].run;
        let session = self.hosts[host].sessions.get(&id);
        let Some((session, secret)) = session.and_then(|session| session.ticket.clone()) else {
            return;
        };
        if let Some(session) = self.hosts[host].sessions.get_mut(&id) {
            session.connected = true;
        }
        self.after(10, Event::Input { host, run, input: Input::Opened(id, true) });
        self.send_command(host, id, Pending::Resume, Command::Resume { session, secret });
    }

    pub(super) fn on_resume_reply(
        &mut self,
        host: usize,
        id: ConnectionId,
        came: u64,
        frame: &Frame,
    ) -> CheckResult {
        let run = self.hosts[host].run;
        match code(frame) {
            "UNAVAILABLE" => {
                // Retries on a new connection, since this one may have been granted the session.
                self.after(20, Event::Input { host, run, input: Input::Closed(id) });
                self.reconnect_later(host, id);
                return Ok(());
            }
            "GONE" => {
                self.hosts[host].sessions.get_mut(&id).expect("it reads").forget_all();
                self.hang_up(host, id);
                return Ok(());
            }
            "" => {}
            other => return Err(format!("RESUME was answered {other}: {frame:?}")),
        }
        let new = ticket(frame)?;
        let session = &self.hosts[host].sessions[&id];
        // A secret that cannot be recorded leaves the old one valid.
        let is_old = session.ticket.as_ref().is_some_and(|old| old.1 == new.1);
        if !secret(id).matches(&new.1) && !is_old {
            return Err(format!("RESUME returned another session's secret: {frame:?}"));
        }
        let Frame::Map(pairs) = frame else { return Err(format!("RESUME: {frame:?}")) };
        let Some((_, Frame::Array(rows))) = pairs.iter().find(|(key, _)| *key == "holds") else {
            return Err(format!("RESUME returned no holds: {frame:?}"));
        };
        let now = self.hosts[host].boot(came);
        let mut known_holds: [std::collections::BTreeMap<&'static str, KnownHold>; OWNERS] =
            Default::default();
        for row in rows {
            let (owner, lock, known_hold) = held(row, now)?;
            known_holds[owner].insert(lock, known_hold);
        }
        let session = self.hosts[host].sessions.get_mut(&id).expect("it reads");
        session.ticket = Some(new);
        let unsure = session.take_unsure();
        for (owner, known_holds) in known_holds.into_iter().enumerate() {
            let before = self.hosts[host].sessions.get_mut(&id).map(|session| {
                std::mem::replace(&mut session.owners[owner].known_holds, known_holds)
            });
            for (lock, known_hold) in before.unwrap_or_default() {
                let sure = !unsure.contains(&(owner, lock)) && !known_hold.leaving;
                // A renewed hold may be lost a margin before its validity ends.
                let state = &self.hosts[host];
                let Settings { lease, lost_margin, .. } = state.settings;
                let counts = lease.lost_at(known_hold.valid_until, lost_margin)
                    > state.boot(self.now)
                    && !self.history.is_excused(lock, &known_hold.holder);
                match self.known_hold(host, id, owner, lock) {
                    None if sure && counts => {
                        return Err(format!(
                            "RESUME did not restore {} on {lock}",
                            known_hold.holder
                        ));
                    }
                    Some(now)
                        if sure
                            && now.holder == known_hold.holder
                            && now.count != known_hold.count =>
                    {
                        let (then, now) = (known_hold.count, now.count);
                        return Err(format!(
                            "{lock} came back with hold count {now} instead of {then}"
                        ));
                    }
                    _ => {}
                }
            }
            for lock in NAMES {
                self.check_exclusive(host, id, owner, lock)?;
            }
        }
        let shared = self.hosts[host].sessions[&id].shared;
        for owner in 0..if shared { OWNERS } else { 1 } {
            self.after(20, Event::Act { host, run, connection: id, owner });
        }
        Ok(())
    }

    /// Handles the death of an agent whose journal fails: its successor does not know that these holds ended, and may find
    /// them in Redis before their late release.
    pub(super) fn excuse_unjournalled_ends(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        if !state.disk.broken {
            return;
        }
        let holds = state.disk.past.sessions.values().flat_map(|session| session.holds.values());
        for hold in holds {
            if state.removed.remove(&hold.number) {
                let field = HolderId::new(state.client, hold.number).to_string();
                self.history.excuse(name_of(&hold.lock), field);
            }
        }
    }

    /// Returns the workers that reconnect after their agent's death: most of those with grace.
    pub(super) fn survivors(&mut self, host: usize) -> Vec<ConnectionId> {
        let sessions: Vec<_> = self.hosts[host]
            .sessions
            .iter()
            .filter(|(_, session)| session.ticket.is_some())
            .map(|(id, _)| *id)
            .collect();
        let ending = self.phase == Phase::Ending;
        sessions.into_iter().filter(|_| ending || !self.rng.one_in(4)).collect()
    }
}

fn ticket(frame: &Frame) -> Result<Ticket, String> {
    let Frame::Map(pairs) = frame else {
        return Err(format!("an unknown session reply: {frame:?}"));
    };
    let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| v);
    match (value("id"), value("secret")) {
        (Some(Frame::Bulk(id)), Some(Frame::Bulk(secret))) => Ok((id.to_vec(), secret.to_vec())),
        _ => Err(format!("a session without id and secret: {frame:?}")),
    }
}

/// Parses a row of holds into its owner, lock and hold.
fn held(row: &Frame, came: Moment) -> Result<(usize, &'static str, KnownHold), String> {
    let Frame::Map(pairs) = row else { return Err(format!("a row of holds: {row:?}")) };
    let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| v);
    let (
        Some(Frame::Int(owner)),
        Some(Frame::Bulk(lock)),
        Some(Frame::Bulk(holder)),
        Some(Frame::Int(count)),
        Some(Frame::Int(valid)),
    ) = (value("owner"), value("lock"), value("holder"), value("holds"), value("valid_ms"))
    else {
        return Err(format!("a row of holds: {row:?}"));
    };
    let token = match value("token") {
        Some(Frame::Int(token)) => Some(*token),
        _ => None,
    };
    let lock = NAMES.into_iter().find(|name| name.as_bytes() == &lock[..]).expect("a lock of ours");
    let known_hold = KnownHold {
        holder: String::from_utf8_lossy(holder).into_owned(),
        count: u32::try_from(*count).map_err(|error| error.to_string())?,
        token,
        valid_until: came + millis(*valid),
        leaving: false,
    };
    Ok((usize::try_from(*owner).map_err(|error| error.to_string())?, lock, known_hold))
}

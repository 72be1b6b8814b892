//! HOLDS, LOCKS and SHOW.

use redisson::script::LockDetails;
use redisson::shape::MAX_FIELDS;
use redisson::{HolderId, Kind, LockName, Moment, group, keys, millis};

use crate::core::Core;
use crate::core::ids::{Owner, ReplyTo};
use crate::core::lease::hold::Hold;
use crate::core::lock::waiter::Waiter;
use crate::core::report::process::HolderProcess;
use crate::core::report::{ListPage, ListRow, SessionRow};
use crate::core::session::state::Session;
use crate::protocol::command::{ListRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::{ConnectionId, Number, Peer};

/// The worker behind a hold or a wait.
pub(in crate::core) struct Worker {
    /// The id of its session.
    pub(in crate::core) session: String,
    pub(in crate::core) peer: Peer,
    /// The name set with CLIENT SETNAME.
    pub(in crate::core) client: Option<String>,
}

/// A hold or a wait.
pub(super) struct Entry<'a> {
    pub(super) number: Number,
    pub(super) name: &'a LockName,
    kind: Kind,
    pub(super) owner: Owner,
    pub(super) since: Moment,
    /// `None` for a wait.
    pub(super) hold: Option<&'a Hold>,
    /// `None` for a hold.
    pub(super) wait: Option<Wait>,
}

impl<'a> From<&'a Hold> for Entry<'a> {
    fn from(hold: &'a Hold) -> Self {
        let Hold { number, kind, owner, granted: since, .. } = *hold;
        Self { number, name: &hold.name, kind, owner, since, hold: Some(hold), wait: None }
    }
}

impl<'a> From<(Number, &'a Waiter)> for Entry<'a> {
    fn from((number, waiter): (Number, &'a Waiter)) -> Self {
        let Waiter { kind, owner, since, wait, .. } = *waiter;
        Self { number, name: &waiter.name, kind, owner, since, hold: None, wait: Some(wait) }
    }
}

impl Core {
    pub(in crate::core) fn holds_frame(&self, connection: ConnectionId) -> Frame {
        let Some(session) = self.sessions.get(&connection) else { return Frame::Array(Vec::new()) };
        let rows = session
            .hold_numbers()
            .into_iter()
            .filter_map(|number| self.leases.get(number))
            .map(|hold| {
                Frame::Map(vec![
                    ("lock", Frame::bytes(hold.name.as_bytes())),
                    ("kind", Frame::word(hold.kind.as_str())),
                    (
                        "holder",
                        Frame::bytes(self.numbers.field(hold.kind, hold.number).to_string()),
                    ),
                    ("owner", Frame::Int(hold.owner.owner)),
                    ("holds", Frame::count(hold.count.into())),
                    ("token", Frame::or_null(hold.token.map(Frame::count))),
                    ("valid_ms", Frame::count(hold.valid_ms(self.now))),
                    ("valid_until_ns", Frame::count(hold.valid_until.as_nanos())),
                    ("age_ms", Frame::count(millis(self.now.since(hold.granted)))),
                ])
            })
            .collect();
        Frame::Array(rows)
    }

    pub(in crate::core) fn list_locks(&mut self, reply_to: ReplyTo, request: &ListRequest) {
        let page = self.list(request, self.sees_only(reply_to.connection));
        let rows = page.rows.into_iter().map(row_frame).collect();
        let next = Frame::bytes(page.next.to_string());
        self.answer(reply_to, Frame::Array(vec![next, Frame::Array(rows)]));
    }

    /// Returns one page of holds and waits, in order of their numbers. As with SCAN, a page visits `count` entries and
    /// may show fewer; it is the last one if its cursor is 0.
    #[must_use]
    pub fn list(&self, request: &ListRequest, only_uid: Option<u32>) -> ListPage<ListRow> {
        let after = i64::try_from(request.cursor).unwrap_or(i64::MAX);
        let from = after.saturating_add(1);
        let holds = self.leases.range(from..).take(request.count).map(Entry::from);
        let waits = self.locks.waiters(from..).take(request.count).map(Entry::from);
        let mut entries: Vec<_> = holds.chain(waits).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        let more = entries.len() > request.count;
        entries.truncate(request.count);
        let last = entries.last().map_or(0, |entry| entry.number.unsigned_abs());
        let rows = entries
            .into_iter()
            // Filters first: a row costs far more than a comparison.
            .filter(|entry| self.is_listed(entry, request, only_uid))
            .map(|entry| self.row(&entry))
            .collect();
        // Exactly `count` entries may or may not be the end: the next page, perhaps empty, shows it.
        ListPage { next: if more || last == 0 { last } else { self.beyond(last) }, rows }
    }

    fn is_listed(&self, entry: &Entry<'_>, request: &ListRequest, only_uid: Option<u32>) -> bool {
        let has_user = |uid| self.peer(entry).is_some_and(|peer| peer.uid == uid);
        only_uid.is_none_or(has_user)
            && request
                .pattern
                .as_ref()
                .is_none_or(|pattern| group::glob_matches(pattern, entry.name.as_bytes()))
    }

    /// Returns the process behind a hold or a wait, alive or dead.
    fn peer(&self, entry: &Entry<'_>) -> Option<&Peer> {
        let dead = || self.leases.get(entry.number)?.delayed.as_ref().map(|dead| &dead.peer);
        let live = self.sessions.get(&entry.owner.connection);
        live.map(|live| &live.peer).or_else(dead)
    }

    /// Returns the cursor itself if anything is numbered above it, else 0.
    fn beyond(&self, cursor: u64) -> u64 {
        let from = i64::try_from(cursor).unwrap_or(i64::MAX).saturating_add(1);
        let more = self.leases.range(from..).next().is_some()
            || self.locks.waiters(from..).next().is_some();
        if more { cursor } else { 0 }
    }

    fn row(&self, entry: &Entry<'_>) -> ListRow {
        let Entry { number, name, kind, owner, since, hold, .. } = *entry;
        let worker = self.worker(number, owner.connection);
        ListRow {
            session: worker.session,
            lock: name.to_string(),
            name: name.as_bytes().to_vec(),
            kind: kind.as_str(),
            holder: hold.map(|hold| self.numbers.field(kind, hold.number).to_string()),
            state: match hold {
                Some(hold) if hold.delayed.is_some() => "delayed",
                Some(_) => "held",
                None => "waiting",
            },
            frozen: self.sessions.is_stopped(owner.connection),
            pid: worker.peer.pid,
            uid: worker.peer.uid,
            comm: worker.peer.comm,
            client: worker.client,
            age_ms: millis(self.now.since(since)),
            valid_ms: hold.map(|hold| hold.valid_ms(self.now)),
            valid_until_ns: hold.map(|hold| hold.valid_until.as_nanos()),
        }
    }

    /// Returns the worker of a hold or a wait, alive or dead.
    pub(in crate::core) fn worker(&self, number: Number, connection: ConnectionId) -> Worker {
        if let Some(live) = self.sessions.get(&connection) {
            let (peer, client) = (live.peer.clone(), client_name(live));
            return Worker { session: live.id.to_string(), peer, client };
        }
        let hold = self.leases.get(number);
        match hold.and_then(|hold| hold.delayed.as_ref()) {
            Some(dead) => Worker {
                session: dead.session.to_string(),
                peer: dead.peer.clone(),
                client: dead.client.clone(),
            },
            None => Worker {
                session: self.session_name(connection),
                peer: Peer { uid: u32::MAX, ..Peer::default() },
                client: None,
            },
        }
    }

    /// Returns one page of the sessions, in order of their connections: those after number `after`, at most `count`.
    #[must_use]
    pub fn list_sessions(&self, after: u64, count: usize) -> ListPage<SessionRow> {
        let mut connections: Vec<ConnectionId> =
            self.sessions.connections().filter(|connection| connection.0 > after).collect();
        connections.sort_unstable();
        let more = connections.len() > count;
        connections.truncate(count);
        let next = connections.last().map_or(0, |last| last.0);
        let rows = connections
            .into_iter()
            .filter_map(|connection| Some((connection, self.sessions.get(&connection)?)))
            .map(|(connection, session)| SessionRow {
                session: session.id.to_string(),
                pid: session.peer.pid,
                uid: session.peer.uid,
                comm: session.peer.comm.clone(),
                client: client_name(session),
                age_ms: millis(self.now.since(session.opened)),
                grace_ms: session.grace.as_ref().map(|grace| millis(grace.time)),
                away_ms: session.away_since().map(|since| millis(self.now.since(since))),
                frozen: self.sessions.is_stopped(connection),
                holds: session.holds.len(),
                waits: session.waits.len(),
            })
            .collect();
        ListPage { next: if more { next } else { 0 }, rows }
    }

    /// Returns the only user whose holds and waits a session may see; `None` if it may see all, as root and the agent's
    /// own user may.
    pub(in crate::core) fn sees_only(&self, connection: ConnectionId) -> Option<u32> {
        let peer = &self.sessions.get(&connection)?.peer;
        (!peer.is_administrator()).then_some(peer.uid)
    }

    /// Returns the row of a holder that belongs to this agent.
    pub(in crate::core) fn known(&self, id: &HolderId, only_uid: Option<u32>) -> Option<ListRow> {
        let row = self.row(&self.own_hold(id)?.into());
        only_uid.is_none_or(|uid| row.uid == uid).then_some(row)
    }

    /// Returns the hold of a holder that belongs to this agent. Redis may not have its count yet, and not all of its
    /// kind.
    pub(in crate::core) fn own_hold(&self, id: &HolderId) -> Option<&Hold> {
        self.leases.get(id.thread).filter(|_| self.numbers.is_own(id))
    }
}

pub(in crate::core) fn client_name(session: &Session) -> Option<String> {
    session.client_name.as_deref().map(|name| String::from_utf8_lossy(name).into_owned())
}

fn row_frame(row: ListRow) -> Frame {
    let text = |text: Option<String>| Frame::or_null(text.map(Frame::bytes));
    Frame::Map(vec![
        ("lock", Frame::bytes(row.name)),
        ("kind", Frame::word(row.kind)),
        ("holder", text(row.holder)),
        ("state", Frame::word(row.state)),
        ("session", Frame::bytes(row.session)),
        ("pid", Frame::or_null(row.pid.map(|pid| Frame::Int(pid.into())))),
        ("uid", Frame::Int(row.uid.into())),
        ("comm", text(row.comm)),
        ("name", text(row.client)),
        ("frozen", Frame::Int(row.frozen.into())),
        ("age_ms", Frame::count(row.age_ms)),
        ("valid_ms", Frame::or_null(row.valid_ms.map(Frame::count))),
        ("valid_until_ns", Frame::or_null(row.valid_until_ns.map(Frame::count))),
    ])
}

/// Returns warnings about a name.
pub(in crate::core) fn name_warnings(name: &LockName) -> Vec<String> {
    let mut warnings = Vec::new();
    if name.as_str().is_none() {
        warnings.push("the name is not UTF-8: Java clients cannot express it".to_owned());
    }
    if !keys::companions_share_slot(name) {
        warnings.push(
            "unbalanced braces: in a cluster its channel and companions fall into other slots"
                .to_owned(),
        );
    }
    warnings
}

/// Returns a holder as SHOW displays it, with its process if known.
pub(in crate::core) fn holder_frame(
    holder: impl Into<Vec<u8>>,
    count: i64,
    alive: Option<bool>,
    process: Option<HolderProcess>,
) -> Frame {
    let process = process.unwrap_or_default();
    let text = |text: Option<String>| Frame::or_null(text.map(Frame::bytes));
    let number = |number: Option<i64>| Frame::or_null(number.map(Frame::Int));
    Frame::Map(vec![
        ("holder", Frame::bytes(holder)),
        ("holds", Frame::Int(count)),
        ("alive", number(alive.map(i64::from))),
        ("host", text(process.host)),
        ("pid", number(process.pid.map(i64::from))),
        ("uid", number(process.uid.map(i64::from))),
        ("comm", text(process.comm)),
        ("name", text(process.name)),
        ("age_ms", Frame::or_null(process.age_ms.map(Frame::count))),
    ])
}

/// Returns warnings about the state of a lock.
fn warnings(name: &LockName, shown: &LockDetails) -> Vec<String> {
    let mut warnings = Vec::new();
    if shown.key_type != "hash" && shown.key_type != "none" {
        warnings.push(other_type(shown));
    } else if shown.fields > MAX_FIELDS {
        warnings
            .push(format!("a hash of {} fields: too large to be a lock, not read", shown.fields));
    } else if shown.fields > 0 && !shown.hash.is_possible_lock() {
        warnings.push("a hash, but its fields are not holders with counts".to_owned());
    } else if let Some(malformed) = shown.hash.malformed() {
        warnings.push(malformed);
    }
    if !shown.hash.foreign.is_empty() {
        warnings.push("held by an unknown client: its ids have another form".to_owned());
    }
    if shown.key_type == "hash" && shown.pttl_ms.is_none() {
        warnings.push(NO_TTL.to_owned());
    }
    warnings.extend(name_warnings(name));
    if shown.readers.iter().any(|reader| !reader.alive) {
        warnings.push(
            "a reader whose lease has run out: its field is removed with the last living reader's"
                .to_owned(),
        );
    }
    warnings
}

/// The warning about a lock that does not expire.
pub(in crate::core) const NO_TTL: &str = "no TTL: it will never expire";

/// Returns the warning about a key that is not a hash.
pub(in crate::core) fn other_type(shown: &LockDetails) -> String {
    format!("the key is not a lock but a {}", shown.key_type)
}

pub(in crate::core) fn show_frame<'a>(
    name: &LockName,
    shown: &LockDetails,
    process: impl Fn(&HolderId) -> Option<HolderProcess>,
    own_hold: impl Fn(&HolderId) -> Option<&'a Hold>,
) -> Frame {
    // Only readers have markers; every other hold lives as long as the key.
    let alive = |id: &HolderId| {
        shown.readers.iter().find(|reader| reader.id == *id).map(|reader| reader.alive)
    };
    let foreign = &shown.hash.foreign;
    let foreign =
        foreign.iter().map(|holder| holder_frame(holder.field.clone(), holder.count, None, None));
    let holders = shown
        .hash
        .holders
        .iter()
        .map(|holder| {
            let count = own_hold(&holder.id).map_or(holder.count, |hold| hold.count.into());
            let id = &holder.id;
            holder_frame(id.to_string(), count, alive(id), process(id))
        })
        .chain(foreign)
        .collect();
    let queue = shown
        .queue
        .iter()
        .map(|position| {
            Frame::Map(vec![
                ("waiter", Frame::bytes(position.waiter.clone())),
                ("deadline_ms", Frame::or_null(position.deadline_ms.map(Frame::count))),
            ])
        })
        .collect();
    let kind = match shown.hash.kind() {
        Kind::Lock if shown.queue_length > 0 => Kind::Fair,
        Kind::Lock => shown
            .hash
            .holders
            .iter()
            .find_map(|holder| own_hold(&holder.id))
            .map_or(Kind::Lock, |hold| hold.kind),
        kind => kind,
    };
    Frame::Map(vec![
        ("lock", Frame::bytes(name.as_bytes())),
        ("kind", Frame::word(kind.as_str())),
        ("holders", Frame::Array(holders)),
        ("token", Frame::or_null(shown.token.map(Frame::count))),
        ("pttl_ms", Frame::or_null(shown.pttl_ms.map(Frame::count))),
        ("queue_length", Frame::count(shown.queue_length)),
        ("queue", Frame::Array(queue)),
        ("warnings", Frame::list(warnings(name, shown))),
    ])
}

#[cfg(test)]
mod tests {
    use redisson::shape::LockHash;

    use super::*;
    use crate::protocol::resp::{Protocol, encode};

    #[test]
    fn an_unknown_client_is_shown_in_the_form_of_other_holders() {
        let shown = |holder: &str| {
            let details = LockDetails {
                key_type: "hash".to_owned(),
                pttl_ms: Some(1),
                fields: 1,
                hash: LockHash::parse([(holder, "1")]),
                queue_length: 0,
                queue: Vec::new(),
                token: None,
                readers: Vec::new(),
            };
            let name = LockName::new(*b"a").unwrap();
            let frame = show_frame(&name, &details, |_| None, |_| None);
            let Frame::Map(pairs) = frame else { panic!("{frame:?}") };
            let (_, holders) = pairs.into_iter().find(|(key, _)| *key == "holders").unwrap();
            let mut bytes = Vec::new();
            encode(&holders, Protocol::Resp2, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        let known = "285475da-9152-4c83-822a-67ee2f116a79:52";
        let unknown = "x".repeat(known.len());
        assert_eq!(shown(&unknown), shown(known).replace(known, &unknown));
    }
}

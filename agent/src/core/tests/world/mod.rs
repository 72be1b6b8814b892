//! A core with a small model of Redis behind it, which can lose replies.

mod redis;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use redisson::script::{Call, Value};
use redisson::{ClientId, Grouping, Kind, Lease, LockName, Moment, keys};

use crate::core::ids::OpId;
use crate::core::{
    Confirmed, Core, Effect, Failure, Lane, LogLine, Node, Report, Settings, tests::settings,
};
use crate::journal::{Record, Restored};
use crate::protocol::command::{Command, HoldRequest, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, Peer, Secret};

pub(super) const LEASE: Duration = Duration::from_secs(30);
/// A holder or waiter of another client.
pub(super) const FOREIGN: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";

/// The fate of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// They run and are answered.
    Good,
    /// They run, but the replies are lost.
    LosesReplies,
    /// One runs, its reply is lost, and the connection breaks.
    Breaks,
    /// One runs only when the test delivers it, its reply is lost, and the connection breaks.
    Holds,
    /// There is no connection.
    Down,
    /// No node of the cluster serves the slot.
    Unserved,
    /// Redis refuses everything: it is loading, say, or a replica.
    Refuses,
    /// Redis refuses scripts that create fields.
    Full,
    /// Redis refuses scripts that use this lock.
    Forbids(&'static str),
    /// The slot moves: Redis refuses scripts that could make readers' markers.
    Moves,
    /// They run at once, but the replies take that many milliseconds; beyond the response timeout they are lost.
    Slow(u64),
}

/// The state of the connection for grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replicas {
    /// That many confirm.
    Confirm(u32),
    /// One confirms the next grant, and none confirms later ones.
    Once,
    /// So few are connected that nothing is sent.
    TooFew,
    /// Its scripts are sent only when the test sends them.
    Late,
}

/// The fate of the journal's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// They are written.
    Good,
    Slow,
    /// They are refused.
    Full,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Hash {
    pub(super) fields: BTreeMap<String, i64>,
    pub(super) expires: Option<Moment>,
}

pub(super) struct World {
    pub(super) core: Core,
    runs: i64,
    pub(super) now: Moment,
    pub(super) redis: BTreeMap<String, Hash>,
    pub(super) network: Network,
    pub(super) replicas: Replicas,
    /// The replicas that the agent requires.
    min_replicas: u32,
    /// Scripts in flight whose grants replicas must have.
    grants: BTreeSet<OpId>,
    /// Renewals in flight that replicas must confirm.
    replicated: BTreeSet<OpId>,
    /// Scripts of grants that have not been sent yet.
    waiting_grants: Vec<(OpId, Call)>,
    pub(super) replies: Vec<(ConnectionId, Outgoing)>,
    pub(super) listening: Vec<LockName>,
    /// Queues of fair locks.
    pub(super) queues: BTreeMap<String, Vec<String>>,
    /// Fair waiters with a message of their turn (true) or a confirmed subscription (false).
    turns: VecDeque<(LockName, i64, bool)>,
    /// Messages to fair waiters are lost, and their subscriptions are not active yet.
    pub(super) unsubscribed: bool,
    /// Scripts served, by name.
    pub(super) served: Vec<&'static str>,
    /// The number of scripts refused by [`Network::Forbids`].
    pub(super) forbidden: usize,
    /// The number of other subscribers.
    pub(super) other_subscribers: i64,
    /// The token counters of fenced locks contain something else.
    pub(super) spoilt_counters: bool,
    /// Readers' markers are missing, until a script restores them.
    pub(super) missing_markers: bool,
    /// The state that the journal's records describe.
    pub(super) past: Restored,
    pub(super) disk: Disk,
    /// The outcomes of LOCKs, as reported.
    pub(super) acquisitions: Vec<&'static str>,
    /// The losses and overruns that were counted or logged.
    pub(super) losses: Vec<&'static str>,
    /// The lines of the log.
    pub(super) logged: Vec<LogLine>,
    /// The outcomes of grants that replicas had to confirm, as reported.
    pub(super) confirmations: Vec<&'static str>,
    /// The number of records, including those on the slow disk.
    records: u64,
    slow: Vec<Record>,
    held_back: VecDeque<Call>,
    /// Outcomes in flight.
    pub(super) in_flight: Vec<(Moment, OpId, Result<Value, Failure>)>,
    next_connection: u64,
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text.as_bytes()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(super) fn lock_command(lock: &str) -> LockRequest {
    LockRequest::new(name(lock))
}

pub(super) fn hold_command(lock: &str) -> HoldRequest {
    HoldRequest::new(name(lock))
}

fn core(run: i64, now: Moment, min_replicas: u32) -> Core {
    let lease = Lease::new(LEASE).unwrap();
    let settings = Settings { lease, min_replicas, ..settings::settings() };
    let client = ClientId::from_random([9; 16]);
    Core::new(settings, client, (1_800_000_000 + run) << 30, Grouping::new(vec![], 50), now)
}

impl World {
    pub(super) fn new() -> Self {
        let now = Moment::from_micros(1_000_000);
        Self {
            core: core(7, now, 0),
            runs: 7,
            now,
            redis: BTreeMap::new(),
            network: Network::Good,
            replicas: Replicas::Confirm(0),
            min_replicas: 0,
            grants: BTreeSet::new(),
            replicated: BTreeSet::new(),
            waiting_grants: Vec::new(),
            replies: Vec::new(),
            listening: Vec::new(),
            queues: BTreeMap::new(),
            turns: VecDeque::new(),
            unsubscribed: false,
            served: Vec::new(),
            forbidden: 0,
            other_subscribers: 0,
            spoilt_counters: false,
            missing_markers: false,
            past: Restored::default(),
            disk: Disk::Good,
            acquisitions: Vec::new(),
            losses: Vec::new(),
            logged: Vec::new(),
            confirmations: Vec::new(),
            records: 0,
            slow: Vec::new(),
            held_back: VecDeque::new(),
            in_flight: Vec::new(),
            next_connection: 0,
        }
    }

    /// Creates a world whose agent requires that many replicas for its grants.
    pub(super) fn with_replicas(wanted: u32) -> Self {
        let world = Self::new();
        let core = core(7, world.now, wanted);
        Self { core, min_replicas: wanted, replicas: Replicas::Confirm(wanted), ..world }
    }

    pub(super) fn open(&mut self) -> ConnectionId {
        self.open_as(0, [1; 16])
    }

    /// Opens a connection of that user, with that secret.
    pub(super) fn open_as(&mut self, uid: u32, secret: [u8; 16]) -> ConnectionId {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let pid = i32::try_from(self.next_connection).ok();
        let peer = Peer { pid, uid, ..Peer::default() };
        self.core.on_open(self.now, id, peer, Secret(secret));
        id
    }

    fn journal(&mut self, record: Record) {
        self.records += 1;
        match self.disk {
            Disk::Good => {
                self.past.add(record);
                self.core.on_journalled(self.now, self.records);
            }
            Disk::Slow => self.slow.push(record),
            Disk::Full => self.core.on_journal_failed(self.now, self.records, "it is full"),
        }
    }

    /// Completes the records on a slow disk: all of them, or none.
    pub(super) fn disk_answers(&mut self, disk: Disk) {
        self.disk = disk;
        let slow = std::mem::take(&mut self.slow);
        match disk {
            Disk::Full => self.core.on_journal_failed(self.now, self.records, "it is full"),
            _ => {
                slow.into_iter().for_each(|record| self.past.add(record));
                self.core.on_journalled(self.now, self.records);
            }
        }
        self.work();
    }

    /// Kills the agent, and starts another one after that time with the journal that it left.
    pub(super) fn kill_and_restart(&mut self, after: Duration) {
        self.now = self.now + after;
        self.runs += 1;
        let past = std::mem::take(&mut self.past);
        self.past = past.clone();
        (self.core, self.records) = (core(self.runs, self.now, self.min_replicas), 0);
        self.listening.clear();
        self.slow.clear();
        self.in_flight.clear();
        self.core.restore(self.now, past);
        self.work();
    }

    pub(super) fn close(&mut self, id: ConnectionId) {
        self.core.on_close(self.now, id);
        self.work();
    }

    /// Reports the death of a session's watched process.
    pub(super) fn die(&mut self, id: ConnectionId) {
        self.core.on_died(self.now, id);
        self.work();
    }

    pub(super) fn command(&mut self, id: ConnectionId, command: Command) {
        self.core.on_command(self.now, id, command);
        self.work();
    }

    pub(super) fn lock(&mut self, id: ConnectionId, lock: &str) {
        self.command(id, Command::Lock(lock_command(lock)));
    }

    pub(super) fn lock_as(&mut self, id: ConnectionId, lock: &str, kind: Kind) {
        self.command(id, Command::Lock(LockRequest { kind, ..lock_command(lock) }));
    }

    /// Acquires a free lock.
    #[track_caller]
    pub(super) fn hold(&mut self, id: ConnectionId, lock: &str) {
        self.lock(id, lock);
        assert_eq!(self.reply(id), "held 1");
    }

    #[track_caller]
    pub(super) fn hold_as(&mut self, id: ConnectionId, lock: &str, kind: Kind) {
        self.lock_as(id, lock, kind);
        assert_eq!(self.reply(id), "held 1");
    }

    /// Releases a lock's only hold.
    #[track_caller]
    pub(super) fn leave(&mut self, id: ConnectionId, lock: &str) {
        self.unlock(id, lock);
        assert_eq!(self.reply(id), "0");
    }

    pub(super) fn lock_within(&mut self, id: ConnectionId, lock: &str, ms: u64) {
        let wait = Wait::AtMost(Duration::from_millis(ms));
        self.command(id, Command::Lock(LockRequest { wait, ..lock_command(lock) }));
    }

    pub(super) fn unlock(&mut self, id: ConnectionId, lock: &str) {
        self.command(id, Command::Unlock(hold_command(lock)));
    }

    pub(super) fn extend(&mut self, id: ConnectionId, lock: &str, lease: Option<Lease>) {
        self.command(id, Command::Extend(hold_command(lock), lease));
    }

    /// Lets time pass in steps no longer than the agent's tick.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let step = self.now + Duration::from_millis(100);
            let due = self.core.next_deadline().unwrap_or(Moment::NEVER).max(self.now);
            self.now = end.min(step).min(due.max(self.now + Duration::from_micros(1)));
            self.core.on_time(self.now);
            self.work();
            self.arrive();
        }
    }

    /// Delivers the replies that are due to the core, in order of arrival.
    fn arrive(&mut self) {
        loop {
            self.in_flight.sort_by_key(|(at, op, _)| (*at, *op));
            if self.in_flight.first().is_none_or(|(at, ..)| *at > self.now) {
                return;
            }
            let (_, op, outcome) = self.in_flight.remove(0);
            match outcome {
                Ok(reply) => self.answer(op, &reply),
                Err(failure) => self.core.on_failure(self.now, op, &failure),
            }
            self.work();
        }
    }

    /// Performs the core's actions until there are none.
    pub(super) fn work(&mut self) {
        while let Some(action) = self.core.next_effect() {
            match action {
                Effect::Send { op, lane: Lane::Grants, call, .. } => match self.replicas {
                    Replicas::TooFew => {
                        let failure = Failure::TooFewReplicas("0 are connected".to_owned());
                        self.core.on_failure(self.now, op, &failure);
                    }
                    Replicas::Late => self.waiting_grants.push((op, call)),
                    Replicas::Confirm(_) | Replicas::Once => {
                        self.grants.insert(op);
                        self.serve(op, call);
                    }
                },
                Effect::Send { op, lane, call, .. } => {
                    if lane == Lane::ReplicatedRenewals {
                        self.replicated.insert(op);
                    }
                    self.serve(op, call);
                }
                Effect::Deliver(id, outgoing) => self.replies.push((id, outgoing)),
                Effect::Subscribe(_, channel) => {
                    // If two names share a channel, these tests use the one without braces.
                    let name = keys::locks_of_channel(&channel).remove(0);
                    self.listening.push(name.clone());
                    match keys::waiter_of_channel(&channel) {
                        Some(waiter) => self.turns.push_back((name, waiter.thread, false)),
                        None => self.core.on_subscribed(self.now, Node::Main, &name),
                    }
                }
                Effect::Journal(record) => self.journal(record),
                Effect::Report(Report::Confirmation(outcome)) => self.confirmations.push(outcome),
                Effect::Report(Report::Acquisition { outcome, .. }) => {
                    self.acquisitions.push(outcome);
                }
                Effect::Report(Report::Lost { .. }) => self.losses.push("loss counted"),
                Effect::Report(Report::LeaseOverrun { .. }) => self.losses.push("overrun counted"),
                Effect::Report(_) => {}
                Effect::Log(line) => {
                    match line {
                        LogLine::LockLost { .. } => self.losses.push("loss logged"),
                        LogLine::LeaseOverrun { .. } => self.losses.push("overrun logged"),
                        _ => {}
                    }
                    self.logged.push(line);
                }
                Effect::Unsubscribe(_, channel) => {
                    let name = keys::locks_of_channel(&channel).remove(0);
                    let at = self.listening.iter().position(|other| *other == name).unwrap();
                    self.listening.remove(at);
                }
            }
            self.announce_turns();
        }
    }

    /// Sends the scripts that the connection for grants held back. Their effects are not applied yet.
    pub(super) fn send_grants(&mut self, replicas: u32) {
        self.replicas = Replicas::Confirm(replicas);
        for (op, call) in std::mem::take(&mut self.waiting_grants) {
            self.grants.insert(op);
            self.serve(op, call);
        }
    }

    fn answer(&mut self, op: OpId, reply: &Value) {
        if self.replicated.remove(&op) {
            let replicas =
                if let Replicas::Confirm(replicas) = self.replicas { replicas } else { 0 };
            let confirmed = Confirmed { replicas, refusal: None };
            return self.core.on_confirmed(self.now, op, reply, confirmed);
        }
        if !self.grants.remove(&op) {
            return self.core.on_reply(self.now, op, reply);
        }
        let replicas = match self.replicas {
            Replicas::Confirm(replicas) => replicas,
            Replicas::Once => 1,
            other => panic!("{other:?}"),
        };
        if self.replicas == Replicas::Once {
            self.replicas = Replicas::Confirm(0);
        }
        self.core.on_confirmed(self.now, op, reply, Confirmed { replicas, refusal: None });
    }

    fn announce_turns(&mut self) {
        while !self.unsubscribed
            && let Some((name, number, has_turn)) = self.turns.pop_front()
        {
            if has_turn {
                self.core.on_turn(self.now, &name, number);
            } else {
                self.core.on_turn_subscribed(self.now, &name, number);
            }
        }
    }

    /// Activates the subscriptions of fair waiters.
    pub(super) fn subscribed(&mut self) {
        self.unsubscribed = false;
        self.announce_turns();
        self.work();
    }

    fn serve(&mut self, op: OpId, call: Call) {
        let lost = || Failure::Lost("time-out".to_owned());
        match self.network {
            Network::Good => match self.run(&call) {
                Some(reply) => self.answer(op, &reply),
                None => self.core.on_failure(self.now, op, &Failure::Refused("OOM".to_owned())),
            },
            Network::LosesReplies => {
                self.run(&call);
                // The network heals at once after this failure, or the core would repeat forever without time passing.
                self.network = Network::Good;
                self.core.on_failure(self.now, op, &lost());
            }
            Network::Refuses => {
                let refused = Failure::Refused("READONLY".to_owned());
                self.core.on_failure(self.now, op, &refused);
            }
            Network::Breaks => {
                self.run(&call);
                self.network = Network::Down;
                self.core.on_failure(self.now, op, &lost());
            }
            Network::Holds => {
                self.held_back.push_back(call);
                self.network = Network::Down;
                self.core.on_failure(self.now, op, &lost());
            }
            Network::Down => {
                self.core.on_failure(self.now, op, &Failure::Unsent("no connection".to_owned()));
            }
            Network::Unserved => {
                let error = Failure::Unsent("CLUSTERDOWN it is down".to_owned());
                self.core.on_failure(self.now, op, &error);
            }
            Network::Slow(ms) => {
                let timeout = Duration::from_secs(2);
                let delay = Duration::from_millis(ms);
                let reply = self.run(&call);
                let outcome = match reply {
                    Some(reply) if delay < timeout => Ok(reply),
                    Some(_) => Err(lost()),
                    None => Err(Failure::Refused("OOM".to_owned())),
                };
                self.in_flight.push((self.now + delay.min(timeout), op, outcome));
            }
            Network::Forbids(lock) if call.keys.iter().any(|key| key == lock.as_bytes()) => {
                self.forbidden += 1;
                let error = "NOPERM this user has no permissions to access one of the keys";
                self.core.on_failure(self.now, op, &Failure::Refused(error.to_owned()));
            }
            Network::Moves if call.keys.iter().any(|key| key.ends_with(b":rwlock_timeout")) => {
                let error = "TRYAGAIN Multiple keys request during rehashing of slot";
                self.core.on_failure(self.now, op, &Failure::Refused(error.to_owned()));
            }
            Network::Forbids(_) | Network::Moves => {
                let reply = self.run(&call).unwrap();
                self.answer(op, &reply);
            }
            Network::Full => match call.script.name {
                "acquire" | "acquire_fair" | "hand_over" => {
                    self.core.on_failure(self.now, op, &Failure::Refused("OOM".to_owned()));
                }
                _ => {
                    let reply = self.run(&call).unwrap();
                    self.answer(op, &reply);
                }
            },
        }
    }

    /// Delivers the scripts that were held back.
    pub(super) fn deliver_late(&mut self) {
        while let Some(call) = self.held_back.pop_front() {
            self.run(&call);
        }
        self.work();
    }

    pub(super) fn foreign(&mut self, lock: &str, holder: &str, ttl: Duration) {
        let fields = BTreeMap::from([(holder.to_owned(), 1)]);
        self.redis.insert(lock.to_owned(), Hash { fields, expires: Some(self.now + ttl) });
    }

    /// Lets a foreign holder release the lock and publish a message.
    pub(super) fn foreign_release(&mut self, lock: &str) {
        self.redis.remove(lock);
        self.core.on_message(self.now, Node::Main, &name(lock));
        self.work();
    }

    pub(super) fn holders(&mut self, lock: &str) -> Vec<String> {
        self.expire();
        self.redis.get(lock).map_or(vec![], |hash| hash.fields.keys().cloned().collect())
    }

    /// Takes the replies of a session, in order.
    pub(super) fn replies_of(&mut self, id: ConnectionId) -> Vec<Frame> {
        let (own, rest) =
            std::mem::take(&mut self.replies).into_iter().partition(|(to, _)| *to == id);
        self.replies = rest;
        let own: Vec<(ConnectionId, Outgoing)> = own;
        own.into_iter()
            .map(|(_, outgoing)| match outgoing {
                Outgoing::Reply(frame) => frame,
                Outgoing::Push(frames) | Outgoing::Loss(frames) => Frame::Array(frames),
                other => panic!("unexpected {other:?}"),
            })
            .collect()
    }

    /// Returns the only reply to a session, in short form: `held`, `null`, a number, or an error's first word.
    pub(super) fn reply(&mut self, id: ConnectionId) -> String {
        let replies = self.replies_of(id);
        assert_eq!(replies.len(), 1, "{replies:?}");
        short(&replies[0])
    }

    /// Returns all replies to a session, in short form.
    pub(super) fn short_replies(&mut self, id: ConnectionId) -> Vec<String> {
        self.replies_of(id).iter().map(short).collect()
    }

    pub(super) fn has_no_reply(&mut self, id: ConnectionId) -> bool {
        self.replies_of(id).is_empty()
    }

    /// Returns the events of a session, as `word lock detail`.
    pub(super) fn events(&mut self, id: ConnectionId) -> Vec<String> {
        self.events_of(id, id)
    }

    /// Returns the events of a session, as read by another one.
    pub(super) fn events_of(&mut self, by: ConnectionId, whose: ConnectionId) -> Vec<String> {
        let (session, secret) = self.credentials(whose);
        self.command(by, Command::Events { session, secret, wait: Duration::ZERO });
        let Some(Frame::Array(events)) = self.replies_of(by).pop() else { panic!("no events") };
        events.iter().map(short).collect()
    }

    /// Returns the id and the secret of a session.
    pub(super) fn credentials(&self, id: ConnectionId) -> (Vec<u8>, Vec<u8>) {
        let secret = self.core.sessions.get(&id).unwrap().secret.to_string();
        (self.core.session_name(id).into_bytes(), secret.into_bytes())
    }
}

/// Returns the short form of a frame.
pub(super) fn short(frame: &Frame) -> String {
    match frame {
        Frame::Error(sentence) => sentence.split(' ').next().unwrap().to_owned(),
        Frame::Null | Frame::NullValue => "null".to_owned(),
        Frame::Int(n) => n.to_string(),
        Frame::Map(pairs) if pairs.iter().any(|(key, _)| *key == "holder") => {
            let holds = pairs.iter().find(|(key, _)| *key == "holds").unwrap();
            format!("held {}", short(&holds.1))
        }
        Frame::Array(items) => items.iter().map(short).collect::<Vec<_>>().join(" "),
        Frame::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

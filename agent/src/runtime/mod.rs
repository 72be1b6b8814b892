//! Runs the core: the one task that owns it, feeds it events and applies its effects.
//!
//! Urgent work comes first: deadlines (renewals among them), then replies to renewals, then all other replies,
//! then messages, then the workers' commands for a bounded time. Commands that exceed it wait in [`Turns`].

mod alarm;
mod batches;
mod confirmed_calls;
mod heartbeat;
mod log;
mod outcome;
mod redis_cluster;
mod redis_node;
mod servers;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redisson::script::{Call, MAX_CALLS};
use redisson::{ClientId, Grouping, Moment, keys};
use service_kit::shutdown::Shutdown;
use service_kit::trace::TraceParent;
use tokio::sync::{mpsc, oneshot, watch};

use crate::collections::HashMap;
use crate::core::{Core, Effect, Gauges, Input, Lane, Node, OpId, PUSHES, Settings};
use crate::journal::{self, Restored, Writer};
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::protocol::resp::Outgoing;
use crate::thread_time::ThreadTime;
use crate::types::{ConnectionId, Number, Status};
use alarm::Alarm;
use batches::{Answers, Script, ScriptBatch};
use confirmed_calls::Replicas;
use heartbeat::Heartbeat;
use outcome::{Outcome, Reply};
use redis_node::FromRedis;
pub use servers::{Backend, ServersStart};
use servers::{EventStream, Servers};
use turns::{Turns, User};

/// The maximum number of inputs of workers that wait for the core.
const INBOX: usize = 4096;
/// The number of inputs in fair order from which further ones wait in the inbox.
const BACKLOG: usize = 16_384;
/// The number of scripts to send for which memory is kept.
const KEPT_DISPATCHES: usize = 4096;
/// The longest time without an event for the core while there are holds, so that it notices after it has slept.
const TICK: Duration = Duration::from_millis(100);
/// The time limit for writing the journal's last records.
const JOURNAL_END: Duration = Duration::from_secs(2);
/// The delay of a tick that shows a stalled process.
const STALL: Duration = Duration::from_millis(200);
/// The time for which scripts are sent alone after Redis has refused a batch: a script that is refused each time would
/// cost all of the others two calls.
const ALONE_AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// The interval at which the status repeats that Redis still refuses.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);

/// The parameters of the core's task.
#[derive(Debug)]
pub struct Start {
    pub settings: Settings,
    /// The labels under which metrics count locks.
    pub grouping: Grouping,
    /// A number above every one that this client id has used.
    pub first_number: Number,
    pub servers: ServersStart,
    /// The time for holders to finish once the agent drains.
    pub drain_timeout: Duration,
    /// The journal of sessions with grace and the records that an earlier run left there, or the reason for its absence.
    pub journal: Result<(journal::File, Restored), String>,
    /// The policy for LOCKs; without one all are allowed.
    pub policy: Option<Policy>,
    /// The thread's time, which connections and the core share.
    pub thread_time: ThreadTime,
    /// The time within which the service manager expects a sign of life, if it does.
    pub watchdog: Option<Duration>,
}

/// The channels to and from the core, which exist before it starts.
#[derive(Debug)]
pub struct Channels {
    inbox: mpsc::Sender<Input>,
    from_sessions: mpsc::Receiver<Input>,
    /// The sender of the agent's status.
    pub status: watch::Sender<Status>,
}

impl Default for Channels {
    fn default() -> Self {
        let (inbox, from_sessions) = mpsc::channel(INBOX);
        Self { inbox, from_sessions, status: watch::Sender::default() }
    }
}

impl Channels {
    /// Returns the channel for the workers' commands.
    #[must_use]
    pub fn sender(&self) -> mpsc::Sender<Input> {
        self.inbox.clone()
    }
}

/// A handle to a running core.
#[derive(Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Input>,
    drain: Option<oneshot::Sender<()>>,
    status: watch::Receiver<Status>,
    done: oneshot::Receiver<()>,
}

impl Handle {
    /// Returns the channel for the workers' commands.
    #[must_use]
    pub fn sender(&self) -> mpsc::Sender<Input> {
        self.inbox.clone()
    }

    /// Grants no more locks from now on.
    pub fn drain(&mut self) {
        if let Some(drain) = self.drain.take() {
            // Without a receiver the core has already ended.
            drain.send(()).ok();
        }
    }

    /// Returns the latest status, and its changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Waits for the core's end: after [`Self::drain`], when nothing is held any more or the time is over.
    pub async fn done(&mut self) {
        // The sender is dropped when the core's task ends, in whatever way.
        (&mut self.done).await.ok();
    }
}

/// Starts the core's task on this runtime. Its connections to Redis belong to `shutdown`, which must outlive it.
pub fn start(
    start: Start,
    channels: Channels,
    metrics: Arc<Metrics>,
    shutdown: &Shutdown,
) -> Handle {
    let Channels { inbox, from_sessions, status: status_sender } = channels;
    let status = status_sender.subscribe();
    let (drain, drained) = oneshot::channel();
    let (done_sender, done) = oneshot::channel();
    let (drain_timeout, client) = (start.drain_timeout, start.servers.client);
    let timeout = start.settings.response_timeout;
    // Half, so that a NOWAIT learns that replicas are missing before its own timeout.
    let replicas = Replicas { wanted: start.settings.min_replicas, timeout: timeout / 2 };
    let (servers, news) = Servers::start(start.servers, timeout, replicas, &metrics, shutdown);
    let grants_grace = !start.settings.max_grace.is_zero();
    let mut core = Core::new(start.settings, client, start.first_number, start.grouping, now());
    core.set_policy(start.policy);
    let journal = match start.journal {
        Ok((file, past)) => {
            core.restore(now(), past);
            Some(Writer::new(file))
        }
        Err(why) => {
            if grants_grace {
                status_sender.send_modify(|status| status.journal_missing = Some(why.clone()));
            }
            core.without_journal(why);
            None
        }
    };
    let runtime = Runtime {
        core,
        journal,
        heartbeat: Heartbeat::new(start.watchdog),
        client,
        servers,
        news,
        redis_state: None,
        metrics,
        gauges: Gauges::default(),
        outboxes: HashMap::default(),
        turns: Turns::new(start.thread_time),
        senders: VecDeque::new(),
        sharing: Vec::new(),
        status: status_sender,
        drain_timeout,
        drain_ends: None,
        tick_at: Moment::default(),
        last_read: now(),
        alone_until: Moment::default(),
    };
    shutdown.spawn("core", async move {
        runtime.run(from_sessions, drained).await;
        done_sender.send(()).ok();
    });
    Handle { inbox, drain: Some(drain), status, done }
}

fn now() -> Moment {
    Moment::from_micros(service_kit::clock::boot_micros())
}

/// Waits for the outcome of the records being written. Never returns without a journal.
async fn written(journal: &mut Option<Writer>) -> journal::Outcome {
    match journal {
        Some(journal) => journal.written().await,
        None => std::future::pending().await,
    }
}

struct Runtime {
    core: Core,
    journal: Option<Writer>,
    heartbeat: Heartbeat,
    client: ClientId,
    servers: Servers,
    news: EventStream,
    /// The main server's state and its details, if they have changed.
    redis_state: Option<(bool, String)>,
    metrics: Arc<Metrics>,
    /// The sizes that metrics show now.
    gauges: Gauges,
    outboxes: HashMap<ConnectionId, mpsc::Sender<Outgoing>>,
    turns: Turns,
    /// The user of each script that is about to be sent for a command.
    senders: VecDeque<User>,
    /// Scripts of commands that may share a call, while effects are applied.
    sharing: Vec<Script>,
    status: watch::Sender<Status>,
    drain_timeout: Duration,
    /// The end of the time for holders to finish, once the agent drains.
    drain_ends: Option<Moment>,
    /// The latest instant for the next event of the core while there are holds.
    tick_at: Moment,
    /// The instant at which the clock was last read.
    last_read: Moment,
    /// Until this instant each script is sent alone.
    alone_until: Moment,
}

/// A script that an effect requests.
enum Dispatch {
    Renewal(Node, OpId, Lane, Call, TraceParent),
    Commands(ScriptBatch),
}

impl Runtime {
    async fn run(mut self, mut inbox: mpsc::Receiver<Input>, mut drained: oneshot::Receiver<()>) {
        let mut renewals = FuturesUnordered::new();
        let mut replies = FuturesUnordered::new();
        let mut dispatches = Vec::new();
        let mut arrived = Vec::new();
        let mut alarm = Alarm::new();
        loop {
            self.apply_effects(&mut dispatches);
            for dispatch in dispatches.drain(..) {
                match dispatch {
                    Dispatch::Renewal(node, op, lane, call, trace_parent) => {
                        renewals.push(self.servers.call(node, op, lane, call, &trace_parent));
                    }
                    Dispatch::Commands(batch) => replies.push(self.servers.send(batch)),
                }
            }
            dispatches.shrink_to(KEPT_DISPATCHES);
            self.show_gauges();
            if let Some(journal) = &mut self.journal {
                journal.start(|| self.core.journal_records());
            }
            let time = self.read_clock();
            if self.core.has_effects() {
                continue;
            }
            if self.finish_drain(time) {
                return self.finish_journal().await;
            }
            self.publish_status(self.drain_ends.is_some());
            let turn_at = self.turns.next_at();
            let due = self.next_due(time, turn_at);
            if due <= time {
                self.tick_at = time + TICK;
                self.core.on_time(time);
                continue;
            }
            alarm.set(due, time);
            tokio::select! {
                biased;
                () = alarm.ring() => {}
                Some(outcome) = renewals.next(), if !renewals.is_empty() => self.on_outcome(outcome),
                Some(answers) = replies.next(), if !replies.is_empty() => {
                    let left = self.on_answers(answers).into_iter().map(ScriptBatch::alone);
                    replies.extend(left.map(|batch| self.servers.send(batch)));
                }
                Some((node, event)) = self.news.next() => self.on_redis(node, event),
                written = written(&mut self.journal) => self.on_written(&written),
                count = inbox.recv_many(&mut arrived, INBOX), if self.turns.len() < BACKLOG => {
                    if count == 0 && self.turns.len() == 0 {
                        // Every connection and the listener have closed: no more requests can arrive.
                        return;
                    }
                    self.on_inputs(&mut arrived);
                }
                // Yielding lets connections run and renews this task's budget, so that replies are seen first.
                () = tokio::task::yield_now(), if turn_at <= time => self.on_inputs(&mut arrived),
                _ = &mut drained, if self.drain_ends.is_none() => self.begin_drain(),
            }
        }
    }

    /// Applies the waiting effects, and adds the scripts among them to `dispatches`, in order.
    fn apply_effects(&mut self, dispatches: &mut Vec<Dispatch>) {
        while let Some(effect) = self.core.next_effect() {
            match effect {
                Effect::Send { op, node, lane, call, trace_parent } => match lane {
                    Lane::Renewals | Lane::ReplicatedRenewals => {
                        dispatches.push(Dispatch::Renewal(node, op, lane, call, trace_parent));
                    }
                    Lane::Commands | Lane::Grants => {
                        let script = Script { user: self.sender(lane), op, call };
                        let shares = lane == Lane::Commands
                            && trace_parent.is_empty()
                            && self.last_read >= self.alone_until
                            && self.servers.may_share(node, &script.call);
                        // Commands are sent in order.
                        if !shares || self.sharing.len() == MAX_CALLS {
                            dispatches.extend(
                                ScriptBatch::take(&mut self.sharing).map(Dispatch::Commands),
                            );
                        }
                        if shares {
                            self.sharing.push(script);
                        } else {
                            let alone = ScriptBatch::Alone(node, lane, script, trace_parent);
                            dispatches.push(Dispatch::Commands(alone));
                        }
                    }
                },
                other => self.apply(other),
            }
        }
        dispatches.extend(ScriptBatch::take(&mut self.sharing).map(Dispatch::Commands));
    }

    /// Begins to drain: no more locks are granted, and holders have a limited time to finish.
    fn begin_drain(&mut self) {
        tracing::info!(holds = self.core.holds(), "draining: no more locks are granted");
        self.core.drain();
        self.drain_ends = Some(now() + self.drain_timeout);
    }

    /// Ends the remaining holds once the time to drain is over. Returns whether the agent has drained.
    fn finish_drain(&mut self, time: Moment) -> bool {
        let Some(ends) = self.drain_ends else { return false };
        if !self.core.is_idle() && time < ends {
            return false;
        }
        self.core.end_drain();
        while let Some(effect) = self.core.next_effect() {
            match effect {
                Effect::Send { .. } | Effect::Subscribe(..) | Effect::Unsubscribe(..) => {}
                other => self.apply(other),
            }
        }
        self.show_gauges();
        true
    }

    /// Returns the instant of the next deadline: the core's, the tick's, the heartbeat's, or that of a turn to come.
    fn next_due(&mut self, time: Moment, turn_at: Moment) -> Moment {
        let mut due = self.core.next_deadline().unwrap_or(Moment::NEVER);
        if self.core.holds() > 0 || self.drain_ends.is_some() {
            due = due.min(self.tick_at);
        }
        due = due.min(self.heartbeat.beat(time));
        // A turn that may begin at once is not a deadline.
        if turn_at > time { due.min(turn_at) } else { due }
    }

    /// Handles the answers to scripts of commands. Returns those to send again alone.
    fn on_answers(&mut self, answers: Answers) -> Vec<Script> {
        match answers {
            Answers::Alone(user, outcome) => {
                self.on_answer(user, outcome);
                Vec::new()
            }
            Answers::Batch(scripts) => {
                let mut left = Vec::new();
                for (script, result) in scripts {
                    match result {
                        Some(result) => self.on_answer(script.user, (script.op, result)),
                        None => left.push(script),
                    }
                }
                left
            }
            Answers::Refused(scripts) => {
                self.alone_until = self.last_read + ALONE_AFTER_REFUSAL;
                scripts
            }
        }
    }

    /// Returns the time. After a stall the core first handles its deadlines, so that no late reply passes on a hold
    /// that has ended meanwhile.
    fn read_clock(&mut self) -> Moment {
        let time = now();
        if time.since(self.last_read) > STALL {
            self.core.on_time(time);
        }
        self.last_read = time;
        time
    }

    /// Writes the last records of the journal.
    async fn finish_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.finish(JOURNAL_END, || self.core.journal_records()).await;
        }
    }

    fn on_written(&mut self, written: &journal::Outcome) {
        let time = self.read_clock();
        match &written.error {
            None => self.core.on_journalled(time, written.upto),
            Some(why) => self.core.on_journal_failed(time, written.upto, why),
        }
    }

    /// Applies any effect except a script to send.
    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Send { .. } => {}
            Effect::Deliver(connection, outgoing) => self.deliver(connection, outgoing),
            Effect::Subscribe(node, channel) => self.servers.subscribe(node, channel),
            Effect::Unsubscribe(node, channel) => self.servers.unsubscribe(node, channel),
            Effect::Journal(record) => {
                if let Some(journal) = &mut self.journal {
                    journal.push(record);
                }
            }
            Effect::Report(report) => self.metrics.apply(&report),
            Effect::Log(line) => log::write(line),
        }
    }

    fn show_gauges(&mut self) {
        let gauges = self.core.gauges();
        if gauges != self.gauges {
            self.gauges = gauges;
            self.metrics.show(gauges);
        }
    }

    fn on_answer(&mut self, user: User, outcome: Outcome) {
        self.on_outcome(outcome);
        self.turns.on_answered(user, self.last_read);
    }

    fn on_outcome(&mut self, (op, outcome): Outcome) {
        let time = self.read_clock();
        match outcome {
            Ok(Reply::Plain(value)) => self.core.on_reply(time, op, &value),
            Ok(Reply::Confirmed(value, confirmed)) => {
                self.core.on_confirmed(time, op, &value, confirmed);
            }
            Err(failure) => self.core.on_failure(time, op, &failure),
        }
    }

    fn on_redis(&mut self, node: Node, event: FromRedis) {
        let time = self.read_clock();
        match event {
            FromRedis::Message { channel } => {
                let turn = self.own_waiter(&channel);
                for name in keys::locks_of_channel(&channel) {
                    self.core.on_message(time, node, &name);
                    if let Some(number) = turn {
                        self.core.on_turn(time, &name, number);
                    }
                }
            }
            FromRedis::Subscribed { channel } => {
                let turn = self.own_waiter(&channel);
                for name in keys::locks_of_channel(&channel) {
                    self.core.on_subscribed(time, node, &name);
                    if let Some(number) = turn {
                        self.core.on_turn_subscribed(time, &name, number);
                    }
                }
            }
            FromRedis::Unsubscribed => self.core.on_unsubscribed(node),
            FromRedis::Forced { name, number } => self.core.on_forced(time, node, &name, number),
            FromRedis::State { up, detail, in_doubt, publish } => {
                if let Some(publish) = publish {
                    self.core.set_publish(publish);
                }
                if node == Node::Main {
                    self.redis_state = Some((up, detail));
                }
                if let Node::Red(red) = node
                    && in_doubt
                    && let Some((server, other)) = self.servers.same_server(red)
                {
                    tracing::warn!(
                        redis.node = server,
                        other,
                        "two red-lock addresses lead to one server; a majority that counts it twice protects nothing"
                    );
                }
                if in_doubt {
                    // The server was replaced or restarted, or its data or clock has changed: verify rather than guess.
                    self.core.verify(time, node);
                }
            }
            FromRedis::SlotElsewhere { .. } | FromRedis::SubscriptionRefused { .. } => {}
        }
    }

    /// Returns the number of this agent's fair waiter that owns the channel, if any.
    fn own_waiter(&self, channel: &[u8]) -> Option<Number> {
        let waiter = keys::waiter_of_channel(channel)?;
        (waiter.client == self.client).then_some(waiter.thread)
    }

    /// Handles inputs for one turn.
    fn on_inputs(&mut self, arrived: &mut Vec<Input>) {
        let began = self.read_clock();
        let mut turn = self.turns.begin(arrived, began);
        // Sorting a backlog takes time, which is no user's.
        let mut time = self.read_clock();
        while let Some((user, input)) = turn.next(&mut self.turns) {
            let commands = self.core.commands_to_send();
            self.on_input(time, input);
            let after = self.read_clock();
            for _ in commands..self.core.commands_to_send() {
                self.turns.on_sent(user, after);
                self.senders.push_back(user);
            }
            self.turns.charge(user, after.since(time));
            time = after;
            if turn.is_over(time) {
                break;
            }
        }
        turn.end(&mut self.turns);
    }

    /// Returns the user whose command sends the next script; `None` if no command caused it, or replicas must confirm it.
    fn sender(&mut self, lane: Lane) -> User {
        if lane == Lane::Commands { self.senders.pop_front().flatten() } else { None }
    }

    fn on_input(&mut self, time: Moment, input: Input) {
        match input {
            Input::Opened { connection, peer, secret, outbox } => {
                self.outboxes.insert(connection, outbox);
                self.core.on_open(time, connection, peer, secret);
            }
            Input::ClientName(connection, name) => self.core.on_named(connection, name),
            Input::Resp3(connection, on) => self.core.on_protocol(connection, on),
            Input::Command(connection, command) => {
                self.core.on_command(time, connection, command);
            }
            Input::Answered(connection, reply) => {
                self.core.on_answered(time, connection, reply);
            }
            Input::PolicyReloaded(policy) => self.core.set_policy(Some(policy)),
            Input::Quit(connection) => self.core.on_quit(connection),
            Input::Watched(connection, watch) => self.core.on_watched(connection, watch),
            Input::Died(connection) => {
                self.core.on_died(time, connection);
            }
            Input::Closed(connection) => {
                self.outboxes.remove(&connection);
                self.turns.on_closed(connection);
                self.core.on_close(time, connection);
            }
            // Nobody waits for these lists any more.
            Input::ListLocks(_, answer) if answer.is_closed() => {}
            Input::ListSessions(.., answer) if answer.is_closed() => {}
            Input::ListLocks(request, answer) => {
                self.core.on_time(time);
                // The receiver of the answer may have been dropped since.
                answer.send(self.core.list(&request, None)).ok();
            }
            Input::ListSessions(after, count, answer) => {
                self.core.on_time(time);
                answer.send(self.core.list_sessions(after, count)).ok();
            }
            Input::ListBusy(answer) => {
                // The receiver of the answer may have been dropped.
                answer.send(self.core.busy_pids()).ok();
            }
            Input::Stopped(pids) => {
                self.core.on_stopped(time, &pids);
            }
            Input::DiffPublished(noted, answer) => {
                self.core.on_time(time);
                answer.send(self.core.diff_published(&noted)).ok();
            }
            Input::ListAwaited { red, min_age, answer } => {
                self.core.on_time(time);
                answer.send(self.core.awaited(red, min_age)).ok();
            }
        }
    }

    fn deliver(&mut self, connection: ConnectionId, outgoing: Outgoing) {
        let Some(outbox) = self.outboxes.get(&connection) else { return };
        let waiting = || outbox.max_capacity() - outbox.capacity();
        // An event of each hold may come at once, before the connection has its turn.
        if matches!(outgoing, Outgoing::Push(_))
            && waiting() >= PUSHES + self.core.holds_of(connection)
        {
            self.metrics.events_dropped.inc();
            return;
        }
        // Fails only if the connection has ended.
        outbox.try_send(outgoing).ok();
    }

    fn publish_status(&mut self, draining: bool) {
        let (holds, waiters) = (self.core.holds(), self.core.waiters());
        let news = self.redis_state.take();
        let refusal = self.core.redis_refusal();
        self.status.send_if_modified(|status| {
            let is_new = refusal.is_some_and(|refusal| {
                status.refusal.as_ref().is_none_or(|known| {
                    known.error != refusal.error || refusal.at.since(known.at) >= REFUSAL_INTERVAL
                })
            });
            let same =
                status.draining == draining && status.holds == holds && status.waiters == waiters;
            if same && news.is_none() && !is_new {
                return false;
            }
            if is_new {
                status.refusal = refusal.cloned();
            }
            (status.draining, status.holds, status.waiters) = (draining, holds, waiters);
            if let Some((redis_up, detail)) = news {
                (status.redis_up, status.detail) = (redis_up, detail);
            }
            true
        });
    }
}

//! One owner's session with the agent, and its grants.
//!
//! A session serves one owner at a time. Replies on a connection keep the order of its commands, so a shared connection
//! would report one owner's grant only after another owner's wait has ended.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::clock::boot;
use crate::connection::{
    ANSWER_MARGIN, Connection, LEAST_LIMIT, Listener, REPLY_LIMIT, Reply, outcome,
};
use crate::detached::Cancel;
use crate::error::{Error, Failure, Result};
use crate::grant::{Grant, Key};
use crate::request::Request;
use crate::resp::{Command, Value};
use crate::timer::Timer;

/// The time for which a request waits for an agent that is not running.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(1);
const CLOSED: &str = "the Agent was closed";

/// Receives sessions that have no calls and no grants left.
pub(crate) trait OnIdle: Send + Sync {
    fn on_idle(&self, session: &Arc<Session>);
}

/// A connection to the agent, and the state that outlives it.
pub(crate) struct Session {
    pub(crate) path: PathBuf,
    pub(crate) grace: Duration,
    pool: Weak<dyn OnIdle>,
    /// Held while a command of the owner runs.
    pub(crate) turn: Arc<AsyncMutex<()>>,
    /// The deadlines are being read.
    pub(crate) reading: AtomicBool,
    state: Mutex<SessionState>,
}

#[derive(Default)]
pub(crate) struct SessionState {
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) id: Option<String>,
    pub(crate) secret: String,
    /// The grace that the agent gives this session.
    pub(crate) given: Duration,
    /// The last instant at which the agent certainly had this session, on the boot clock.
    pub(crate) proven: Duration,
    /// A command went unanswered, so that the agent may have holds unknown here.
    pub(crate) uncertain: bool,
    pub(crate) grants: HashMap<Key, Arc<Grant>>,
    /// The last event of each lock that has no grant here: its grant may be recorded only later.
    pub(crate) unclaimed: HashMap<Key, Vec<Value>>,
    pub(crate) timer: Option<Timer>,
    pub(crate) closing: bool,
    /// True while the command that has the turn waits for a lock.
    waiting: bool,
    /// Calls in progress.
    pub(crate) users: usize,
    owner: Option<usize>,
}

/// A call in progress. A session with neither calls nor grants may serve another owner.
pub(crate) struct Use(Arc<Session>);

impl Use {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.users -= 1;
        let idle = state.is_idle();
        drop(state);
        if idle && let Some(pool) = self.0.pool.upgrade() {
            pool.on_idle(&self.0);
        }
    }
}

impl SessionState {
    /// Returns a command about this session for another connection.
    pub(crate) fn outside(&self, word: &str) -> Command {
        let id = self.id.as_deref().unwrap_or_default();
        Command::new(word).word(id).word(&self.secret)
    }

    /// Returns whether the agent may have holds of this session.
    pub(crate) fn may_hold(&self) -> bool {
        !self.grants.is_empty() || self.uncertain
    }

    pub(crate) fn prove(&mut self, sent: Duration) {
        self.proven = self.proven.max(sent);
    }

    /// Limits the holds of a session without a connection to the time for which the agent certainly keeps it.
    pub(crate) fn limit(&self) {
        if self.connection.is_none() {
            for grant in self.grants.values() {
                grant.state().limit_to(self.proven + self.given);
                grant.warn(true);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.users == 0 && !self.may_hold()
    }
}

impl Session {
    pub(crate) fn new(path: PathBuf, grace: Duration, pool: Weak<dyn OnIdle>) -> Arc<Self> {
        let (turn, state) = (Arc::default(), Mutex::default());
        Arc::new(Self { path, grace, pool, turn, reading: AtomicBool::new(false), state })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(self: &Arc<Self>) -> Use {
        self.state().users += 1;
        Use(self.clone())
    }

    pub(crate) fn is_owned_by(&self, owner: usize) -> bool {
        self.state().owner == Some(owner)
    }

    pub(crate) fn serve(&self, owner: usize) {
        self.state().owner = Some(owner);
    }

    /// Returns whether the agent gives this session the grace that it wants.
    pub(crate) fn is_graced(&self) -> bool {
        self.state().given == self.grace
    }

    /// Returns whether it can work in the current runtime.
    pub(crate) fn runs_here(&self) -> bool {
        self.connected().is_none_or(|connection| connection.runs_here())
    }

    /// Detaches a session without work from its owner. Returns whether it did.
    pub(crate) fn leave_owner(&self) -> bool {
        let mut state = self.state();
        state.is_idle() && state.owner.take().is_some()
    }

    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        self.state().connection.clone()
    }

    pub(crate) fn grants(&self) -> Vec<Arc<Grant>> {
        self.state().grants.values().cloned().collect()
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Arc<Grant>> {
        self.state().grants.get(key).cloned()
    }

    /// Acquires the locks, or reenters them. A request to cancel withdraws it.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        request: &Request,
        cancel: &Cancel,
    ) -> Result<Vec<Arc<Grant>>> {
        let end = request.wait.map(|wait| boot().saturating_add(wait));
        let Some(turn) = cancel.unless_requested(self.turn_until(end, request)).await else {
            return Err(withdrawn());
        };
        let _turn = turn?;
        let mut unanswered = false;
        loop {
            let patience = boot() + CONNECT_LIMIT;
            self.connect(end.map_or(patience, |end| end.min(patience)), Some(cancel)).await?;
            if cancel.is_requested() {
                return Err(withdrawn());
            }
            let known = self.known(request);
            // By a command whose reply was lost.
            let may_be_granted = unanswered && !request.several;
            if self.clear(&known, !may_be_granted).await? {
                continue;
            }
            if may_be_granted && known.iter().any(|grant| grant.state().has_surplus()) {
                return Ok(self.handed_out(known, request));
            }
            let Some((connection, id)) = self.link() else { continue };
            let left = end.map(|end| end.saturating_sub(boot()));
            self.state().unclaimed.clear(); // They tell of earlier grants.
            let sent = boot();
            let mut reply = connection.send(&request.command(left, &id));
            self.state().waiting = true;
            let answer = cancel.unless_requested(within(left, &mut reply)).await;
            self.state().waiting = false;
            let Some(answer) = answer else {
                self.withdraw(&connection, reply, request, sent).await;
                return Err(withdrawn());
            };
            let Some(answer) = answer else {
                self.doubt(&connection);
                let name = request.describe();
                let message = format!("could not acquire {name}: no reply from the agent");
                return Err(Error::Unavailable(message));
            };
            let expired = end.is_some_and(|end| boot() >= end);
            match answer {
                Ok(Value::Null) if self.state().closing => return Err(Error::Closed),
                Ok(Value::Null) => {
                    let wait = request.wait.unwrap_or_default();
                    return Err(Error::Timeout { name: request.describe(), wait });
                }
                Ok(reply) => {
                    let grants = self.granted_all(&reply, request, sent);
                    let current = self.connected();
                    if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                        // The connection ended before these grants were known: resuming the session settles them.
                        if current.is_none() {
                            self.doubt(&connection);
                        }
                        unanswered = true;
                    } else if grants.iter().all(|grant| grant.is_held()) {
                        return Ok(self.handed_out(grants, request));
                    }
                }
                Err(Failure::Disconnected) => {
                    self.doubt(&connection);
                    unanswered = true;
                }
                Err(failure) => match failure.code() {
                    "DRAINING" if !expired => {
                        cancel.unless_requested(sleep(RETRY_PAUSE)).await;
                        if !self.grants().is_empty() {
                            // A draining agent accepts no other connection to read the deadlines.
                            let _ = self.refresh().await;
                        }
                    }
                    // Granted and lost before the agent could report it: the wait continues.
                    "LOST" if known.is_empty() => {}
                    "LOST" => return Err(lost(request, failure)),
                    _ => return Err(failure.into()),
                },
            }
        }
    }

    /// Waits for the end of the session's command in progress, until the instant `end`. A command that does not wait
    /// for a lock gets at least [`LEAST_LIMIT`].
    async fn turn_until(
        &self,
        end: Option<Duration>,
        request: &Request,
    ) -> Result<AsyncMutexGuard<'_, ()>> {
        let Some(end) = end else { return Ok(self.turn.lock().await) };
        let least = if self.state().waiting { Duration::ZERO } else { LEAST_LIMIT };
        let left = end.saturating_sub(boot()).max(least);
        timeout(left, self.turn.lock()).await.map_err(|_| {
            let name = request.describe();
            if self.state().waiting {
                return Error::Timeout { name, wait: request.wait.unwrap_or_default() };
            }
            Error::Unavailable(format!(
                "could not acquire {name}: no reply from the agent to an earlier command"
            ))
        })
    }

    /// Returns the owner's grants of the locks.
    fn known(&self, request: &Request) -> Vec<Arc<Grant>> {
        let kind = request.kind.word().as_bytes();
        let key = |name: &Vec<u8>| (name.clone(), kind.to_vec());
        request.names.iter().filter_map(|name| self.find(&key(name))).collect()
    }

    /// Releases grants that arrived after their deadline and, if so requested, the `surplus` of earlier commands.
    /// Returns whether there were any. Fails if an open hold was lost.
    async fn clear(self: &Arc<Self>, known: &[Arc<Grant>], surplus: bool) -> Result<bool> {
        let mut cleared = false;
        for grant in known {
            let lost = grant.check().err();
            if lost.is_some() || (surplus && grant.state().has_surplus()) {
                self.settle(grant).await?;
                cleared = true;
            }
            if let Some(lost) = lost
                && grant.state().handles > 0
            {
                return Err(lost.into());
            }
        }
        Ok(cleared)
    }

    fn handed_out(self: &Arc<Self>, grants: Vec<Arc<Grant>>, request: &Request) -> Vec<Arc<Grant>> {
        for grant in &grants {
            grant.state().open(request.lease.is_some());
        }
        self.arm();
        grants
    }

    fn link(&self) -> Option<(Arc<Connection>, String)> {
        let state = self.state();
        Some((state.connection.clone()?, state.id.clone()?))
    }

    fn granted_all(&self, reply: &Value, request: &Request, sent: Duration) -> Vec<Arc<Grant>> {
        let fixed = request.lease.is_some();
        let rows = if request.several { reply.list() } else { std::slice::from_ref(reply) };
        for row in rows {
            self.state().prove(sent + millis(row.get("waited_ms")));
        }
        let grants: Vec<_> = rows.iter().map(|row| self.granted(row, fixed)).collect();
        if !fixed {
            for grant in &grants {
                grant.state().note_watched();
            }
        }
        grants
    }

    /// Records a grant or a reentry that the agent reports.
    pub(crate) fn granted(&self, row: &Value, fixed: bool) -> Arc<Grant> {
        let key = (row.get("lock").bytes().to_vec(), row.get("kind").bytes().to_vec());
        let holder = row.get("holder").text();
        let mut event = None;
        let grant = self.find(&key).filter(|grant| grant.holder == holder).unwrap_or_else(|| {
            let token = row.get("token").integer();
            let grant = Arc::new(Grant::new(key.clone(), holder, token, !fixed));
            let mut state = self.state();
            event = state.unclaimed.remove(&key);
            if let Some(old) = state.grants.insert(key, grant.clone()) {
                old.lose("it was granted again");
            }
            drop(state);
            grant
        });
        let count = row.get("holds").integer().unwrap_or(1);
        grant.state().granted(count, fixed, valid_until(row));
        if let Some(event) = event {
            grant.apply(&event);
        }
        if self.state().closing {
            grant.lose(CLOSED);
        }
        grant
    }

    /// Closes a hold and releases its share of the grant.
    pub(crate) async fn unlock(self: &Arc<Self>, grant: &Grant) -> Result<()> {
        let _using = self.enter();
        grant.state().handles -= 1;
        let _turn = self.turn.lock().await;
        self.settle(grant).await?;
        grant.state().lost().map_or(Ok(()), |lost| Err(lost.into()))
    }

    /// Closes a hold without waiting. The command is sent at once if no other runs.
    pub(crate) fn unlock_soon(self: &Arc<Self>, grant: &Arc<Grant>, runtime: &Handle) {
        grant.state().handles -= 1;
        let using = self.enter();
        let turn = self.turn.clone().try_lock_owned().ok();
        let surplus = grant.state().has_surplus();
        let sent = if turn.is_some() && surplus { self.send_unlock(grant) } else { None };
        let grant = grant.clone();
        runtime.spawn(async move {
            let session = using.session();
            let _turn = match turn {
                Some(turn) => turn,
                None => session.turn.clone().lock_owned().await,
            };
            // Nobody sees a failure any more. The agent releases the remaining holds after the grace.
            let _ = session.release_surplus(&grant, sent).await;
            session.forget(&grant);
        });
    }

    /// Releases what the agent has beyond the open holds. The caller has the turn.
    pub(crate) async fn settle(self: &Arc<Self>, grant: &Grant) -> Result<()> {
        let outcome = self.release_surplus(grant, None).await;
        self.forget(grant);
        outcome
    }

    fn forget(&self, grant: &Grant) {
        let mut state = self.state();
        if grant.state().handles == 0
            && let Some(current) = state.grants.get(&grant.key)
            && std::ptr::eq(&raw const **current, grant)
        {
            state.grants.remove(&grant.key);
        }
    }

    fn send_unlock(&self, grant: &Grant) -> Option<(Arc<Connection>, Reply)> {
        let (connection, id) = self.link()?;
        let (name, kind) = &grant.key;
        grant.note_release();
        let command = Command::new("UNLOCK").word(name).word("KIND").word(kind);
        let reply = connection.send(&command.word("IN").word(id));
        Some((connection, reply))
    }

    async fn release_surplus(
        self: &Arc<Self>,
        grant: &Grant,
        mut sent: Option<(Arc<Connection>, Reply)>,
    ) -> Result<()> {
        while sent.is_some() || grant.state().has_surplus() {
            let Some((connection, reply)) = sent.take().or_else(|| self.send_unlock(grant)) else {
                if !grant.is_held() {
                    break;
                }
                let deadline = grant.state().ends();
                self.connect(deadline, None).await?;
                continue;
            };
            let now = boot();
            match connection.finish(reply).await {
                Ok(left) => {
                    self.state().prove(now);
                    let left = left.integer().unwrap_or(0);
                    grant.state().count = left;
                    if left > 0 && grant.key.1 == b"read" && !grant.state().is_followed() {
                        // The lease of a reader's entry ends with it. A lost connection is noticed elsewhere.
                        let _ = self.refresh().await;
                        self.arm();
                    }
                }
                Err(Failure::Disconnected) => self.doubt(&connection),
                Err(Failure::Reply(message)) => match crate::error::code(&message) {
                    "LOST" | "NOTHELD" => grant.lose(&message),
                    // It no longer belongs to this owner: the agent keeps trying to release it.
                    "UNAVAILABLE" => grant.state().count -= 1,
                    _ => return Err(Error::from_reply(message)),
                },
            }
        }
        Ok(())
    }

    /// Sets a fixed lease from now, or returns the hold to the watchdog.
    pub(crate) async fn extend(
        self: &Arc<Self>,
        grant: &Grant,
        lease: Option<Duration>,
    ) -> Result<()> {
        let millis = lease.unwrap_or_default().as_millis();
        if lease.is_some() && millis == 0 {
            // The agent would treat it as a return to renewal.
            return Err(Error::from_reply("LIMIT a lease must be at least 100 ms".to_owned()));
        }
        let _using = self.enter();
        let _turn = self.turn.lock().await;
        self.connect(boot() + REPLY_LIMIT, None).await?;
        let Some((connection, id)) = self.link() else { return Err(Failure::Disconnected.into()) };
        let (name, kind) = &grant.key;
        let command = Command::new("EXTEND").word(name).number(millis).word("KIND").word(kind);
        let sent = boot();
        grant.extending(lease, sent);
        self.arm();
        let answer = connection.call(&command.word("IN").word(id)).await;
        match &answer {
            Ok(valid) => {
                self.state().prove(sent);
                grant.extended(lease.is_none(), sent + self::millis(valid));
                self.state().limit(); // The connection may have ended together with this reply.
            }
            Err(Failure::Disconnected) => {
                grant.not_extended(false);
                self.doubt(&connection);
            }
            // Redis may have set it nevertheless.
            Err(failure) => grant.not_extended(failure.code() != "UNAVAILABLE"),
        }
        self.arm();
        match answer {
            Err(Failure::Reply(message))
                if matches!(crate::error::code(&message), "LOST" | "NOTHELD") =>
            {
                grant.lose(&message);
            }
            Err(failure) => return Err(failure.into()),
            Ok(_) => {}
        }
        grant.check().map_err(Error::from)
    }

    /// Ends an abandoned wait, and releases what it was granted.
    async fn withdraw(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        reply: Reply,
        request: &Request,
        sent: Duration,
    ) {
        let cancel = self.state().outside("CANCEL");
        let answer = match self.call_once(&cancel).await {
            Ok(_) => connection.finish(reply).await,
            Err(_) => Err(Failure::Disconnected),
        };
        match answer {
            Ok(Value::Null) | Err(Failure::Reply(_)) => {}
            Ok(granted) => {
                for grant in self.granted_all(&granted, request, sent) {
                    let _ = self.settle(&grant).await; // Without a connection, resuming settles it.
                }
            }
            Err(Failure::Disconnected) => self.doubt(connection),
        }
    }

    /// Runs one command on a separate connection.
    pub(crate) async fn call_once(&self, command: &Command) -> Result<Value, Failure> {
        let opened = Connection::open(&self.path, Nobody).await;
        let (connection, _) = opened.map_err(|_| Failure::Disconnected)?;
        let outcome = connection.call(command).await;
        connection.close();
        outcome
    }

    /// Ends the session with everything it holds. Returns the wait for the agent's confirmation.
    pub(crate) fn begin_close(self: &Arc<Self>) -> Option<impl Future<Output = ()> + use<>> {
        let mut state = self.state();
        state.closing = true;
        let held = state.may_hold();
        let timer = state.timer.take();
        let grants: Vec<_> = state.grants.drain().collect();
        let connection = state.connection.clone();
        let cancel = state.outside("CANCEL");
        drop(state);
        if let Some(timer) = timer {
            timer.stop();
        }
        for (_, grant) in grants {
            grant.lose(CLOSED);
        }
        let runtime = Handle::try_current().ok();
        let session = self.clone();
        let ending = match (&connection, &runtime) {
            (None, Some(runtime)) if held => {
                Some(runtime.spawn(async move { session.end_at_agent().await }))
            }
            (None, _) => return None,
            (Some(_), Some(runtime)) if self.turn.try_lock().is_err() => {
                // The agent reads QUIT once a pending wait has ended.
                runtime.spawn(async move { drop(session.call_once(&cancel).await) });
                None
            }
            _ => None,
        };
        let reply = connection.as_ref().map(|connection| connection.send(&Command::new("QUIT")));
        let end = Instant::now() + CLOSE_LIMIT;
        Some(async move {
            if let Some(ending) = ending {
                let _ = timeout_at(end, ending).await;
            }
            if let (Some(connection), Some(reply)) = (connection, reply) {
                let _ = timeout_at(end, reply).await; // The connection ends either way.
                connection.close();
            }
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.state();
        if let Some(timer) = state.timer.take() {
            timer.stop();
        }
        if let Some(connection) = state.connection.take() {
            connection.close();
        }
    }
}

/// Returns the reply, or `None` if the agent is late with it.
async fn within(left: Option<Duration>, reply: &mut Reply) -> Option<Result<Value, Failure>> {
    match left {
        Some(left) => timeout(left.saturating_add(ANSWER_MARGIN), reply).await.ok().map(outcome),
        None => Some(outcome(reply.await)),
    }
}

/// Returns the error of a request that was withdrawn, which nobody sees.
fn withdrawn() -> Error {
    Error::Closed
}

fn lost(request: &Request, failure: Failure) -> Error {
    match failure {
        Failure::Reply(reason) => crate::Lost { name: request.describe(), reason }.into(),
        failure @ Failure::Disconnected => failure.into(),
    }
}

pub(crate) fn millis(value: &Value) -> Duration {
    Duration::from_millis(value.integer().map_or(0, |millis| u64::try_from(millis).unwrap_or(0)))
}

/// Returns the instant of the boot clock until which the agent guarantees a hold.
pub(crate) fn valid_until(row: &Value) -> Duration {
    let nanos = row.get("valid_until_ns").integer().unwrap_or(0);
    Duration::from_nanos(nanos.unsigned_abs())
}

/// Ignores everything.
struct Nobody;

impl Listener for Nobody {
    fn on_push(&self, _: &[Value]) {}
    fn on_close(&self, _: &Arc<Connection>) {}
}

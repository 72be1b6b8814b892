//! Keeps a link's connection: makes it, watches it, replaces it.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, cmd};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::aim::Aim;
use super::backoff::Backoff;
use super::check::{Known, questions};
use super::error::ConnectError;
use super::greeting::{self, Greeting};
use super::server_info::ServerInfo;
use super::shared::{CLOSED, Connection, READ_ONLY, Shared};
use super::target::Address;
use crate::clock::boot_micros;

/// A connection that lasted this long is followed by another at once; one that ended sooner counts
/// as another failure, or a server that accepts and drops would be hammered.
pub(super) const PROVEN: Duration = Duration::from_secs(1);

/// Commands on their way to the connection; further ones wait in their callers.
const SEND_QUEUE: usize = 1024;

/// How often a connection is looked after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// How long it may be silent.
    pub(super) heartbeat: Duration,
    /// How often the server is asked who it is.
    pub(super) check: Option<Duration>,
}

pub(super) async fn run(
    aim: Aim,
    greeting: Greeting,
    (pace, alone): (Pace, bool),
    shared: Arc<Shared>,
    stopped: CancellationToken,
) {
    let supervisor = Supervisor {
        aim,
        greeting,
        pace,
        alone,
        shared: Arc::clone(&shared),
        generation: 0,
        tried: None,
    };
    let mut keeping = pin!(supervisor.keep_connected());
    match stopped.run_until_cancelled(keeping.as_mut()).await {
        Some(never) => match never {},
        // While the supervisor still exists: its end closes the connection, and calls that end
        // with it should know why.
        None => shared.stop(),
    }
}

struct Supervisor {
    aim: Aim,
    greeting: Greeting,
    pace: Pace,
    /// Whether a part of a cluster is the wrong server.
    alone: bool,
    shared: Arc<Shared>,
    generation: u64,
    /// Where the latest attempt to connect led.
    tried: Option<Address>,
}

impl Supervisor {
    async fn keep_connected(mut self) -> Infallible {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let pause = match self.connect().await {
                Ok((driver, info, address)) => {
                    last_failure = None;
                    let since = Instant::now();
                    self.watch(driver, Known::new(info), &address).await;
                    self.aim.doubt();
                    if since.elapsed() >= PROVEN {
                        backoff.reset();
                        continue;
                    }
                    backoff.after_failure(false)
                }
                Err(error) => {
                    self.report(&error, &mut last_failure);
                    self.aim.doubt();
                    backoff.after_failure(error.needs_patience())
                }
            };
            self.aim.rest(pause, self.tried.as_ref()).await;
        }
    }

    /// Makes a connection the link's current one. It lives as long as the driver's task.
    async fn connect(
        &mut self,
    ) -> Result<(AbortOnDropHandle<()>, ServerInfo, Address), ConnectError> {
        self.tried = None;
        let target = self.aim.target().await?;
        let address = target.address().clone();
        self.tried = Some(address.clone());
        let (wire, info) = greeting::connect(&target, &self.greeting).await?;
        if self.shared.refuses(&info) {
            return Err(ConnectError::Replica { address: address.to_string() });
        }
        if self.alone && info.cluster {
            return Err(ConnectError::InCluster { address: address.to_string() });
        }
        let stream = wire.into_stream().map_err(ConnectError::Broken)?;
        // The greeting is done and time-outs are the link's: redis-rs has only to pair up replies.
        let nothing_to_say = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(SEND_QUEUE);
        let (mux, driver) = MultiplexedConnection::new_with_config(&nothing_to_say, stream, config)
            .await
            .map_err(|error| ConnectError::Broken(error.to_string()))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(driver));
        self.generation += 1;
        self.log_up(&info, &address);
        let connection =
            Connection { generation: self.generation, mux, driver: driver.abort_handle() };
        self.shared.set_up(connection, info.clone());
        Ok((driver, info, address))
    }

    /// Returns when the connection has ended, for whatever reason.
    async fn watch(&self, mut driver: AbortOnDropHandle<()>, mut known: Known, address: &Address) {
        let mut left = pin!(self.aim.left(address));
        let mut why = CLOSED;
        // The first check, at once, learns the server's clock.
        let mut check_at = self.pace.check.map(|_| Instant::now());
        loop {
            let idle_until = self.shared.last_answer() + self.pace.heartbeat;
            let wake_at = check_at.map_or(idle_until, |at| at.min(idle_until));
            tokio::select! {
                _ended = &mut driver => break,
                reason = &mut left => {
                    why = reason;
                    break;
                }
                () = tokio::time::sleep_until(wake_at) => {}
            }
            let now = Instant::now();
            let lives = if check_at.is_some_and(|at| at <= now) {
                check_at = self.pace.check.map(|every| now + every);
                self.check(&mut known).await
            } else if self.shared.last_answer() + self.pace.heartbeat <= now {
                // Nobody else has been answered meanwhile.
                let ping = cmd("PING");
                self.shared
                    .exchange(async |mut mux| mux.send_packed_command(&ping).await)
                    .await
                    .is_ok()
            } else {
                true
            };
            if !lives {
                break;
            }
        }
        let reason = self.shared.fail(self.generation, why);
        tracing::warn!(redis.target = %self.aim, link = self.greeting.name, reason, "lost the connection to Redis");
    }

    /// Looks whether the server is still what it was, and tells if not. False when the connection is
    /// of no use any more.
    async fn check(&self, known: &mut Known) -> bool {
        let mut pipeline = Pipeline::new();
        for question in questions() {
            pipeline.add_command(question);
        }
        let replies = pipeline.len();
        let sent = boot_micros();
        let answered = self
            .shared
            .exchange(async |mut mux| mux.send_packed_commands(&pipeline, 0, replies).await)
            .await;
        let Ok((generation, answers)) = answered else { return false };
        let changed = known.learn(&answers, sent, boot_micros());
        if !changed.is_empty() {
            tracing::warn!(
                redis.target = %self.aim, link = self.greeting.name, changed = changed.join(", "),
                "this Redis is not what it was"
            );
            if self.shared.refuses(known.info()) {
                self.shared.fail(generation, READ_ONLY);
                return false;
            }
            self.shared.tell_changed(generation, known.info().clone());
        }
        true
    }

    fn log_up(&self, info: &ServerInfo, address: &Address) {
        tracing::info!(
            redis.target = %self.aim,
            redis.address = %address,
            redis.version = info.version.as_deref().unwrap_or("unknown"),
            link = self.greeting.name,
            generation = self.generation,
            "connected to Redis"
        );
    }

    /// Tells a failure in the state, and once in the log.
    fn report(&self, error: &ConnectError, last: &mut Option<ConnectError>) {
        if last.as_ref() != Some(error) {
            tracing::warn!(redis.target = %self.aim, link = self.greeting.name, %error, "cannot connect to Redis");
        }
        self.shared.set_down(self.generation, &error.to_string());
        *last = Some(error.clone());
    }
}

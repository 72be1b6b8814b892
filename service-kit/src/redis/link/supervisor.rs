//! The task behind a link: it connects, watches the connection and replaces it.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, cmd};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::shared::{CLOSED, Connection, READ_ONLY, Shared};
use crate::clock::boot_micros;
use crate::redis::backoff::{Backoff, PROVEN};
use crate::redis::endpoint::{Endpoint, Route};
use crate::redis::error::ConnectError;
use crate::redis::handshake::Handshake;
use crate::redis::server_info::{Role, ServerInfo};
use crate::redis::server_watch::{ServerWatch, commands};
use crate::redis::target::Address;

/// Commands queued for the connection; further ones wait in their callers.
const SEND_QUEUE: usize = 1024;

/// The rules for a link's connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkRules {
    /// The silence after which the server is sent a PING.
    pub(super) heartbeat: Duration,
    /// The interval between checks of the server's identity and clock.
    pub(super) check: Option<Duration>,
    /// Rejects nodes of a cluster.
    pub(super) alone: bool,
}

pub(super) async fn run(
    endpoint: Endpoint,
    handshake: Handshake,
    rules: LinkRules,
    shared: Arc<Shared>,
    stopped: CancellationToken,
) {
    let supervisor = Supervisor {
        endpoint,
        handshake,
        rules,
        shared: Arc::clone(&shared),
        generation: 0,
        tried: None,
    };
    let mut keeping = pin!(supervisor.keep_connected());
    match stopped.run_until_cancelled(keeping.as_mut()).await {
        Some(never) => match never {},
        // The supervisor still exists here. Its drop closes the connection, and the calls that end with it should
        // have the reason.
        None => shared.stop(),
    }
}

struct Supervisor {
    endpoint: Endpoint,
    handshake: Handshake,
    rules: LinkRules,
    shared: Arc<Shared>,
    generation: u64,
    /// The address of the latest attempt to connect.
    tried: Option<Address>,
}

impl Supervisor {
    async fn keep_connected(mut self) -> Infallible {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let pause = match self.connect().await {
                Ok((driver, info, route)) => {
                    last_failure = None;
                    let since = Instant::now();
                    self.watch(driver, ServerWatch::new(info), route).await;
                    self.endpoint.suspect();
                    if since.elapsed() >= PROVEN {
                        backoff.reset();
                        continue;
                    }
                    backoff.after_failure(false)
                }
                Err(error) => {
                    self.report(&error, &mut last_failure);
                    self.endpoint.suspect();
                    backoff.after_failure(error.needs_patience())
                }
            };
            self.endpoint.pause(pause, self.tried.as_ref()).await;
        }
    }

    /// Connects, and makes the connection the link's current one. It lives as long as the driver's task.
    async fn connect(
        &mut self,
    ) -> Result<(AbortOnDropHandle<()>, ServerInfo, Route), ConnectError> {
        let (wire, info, route) = self.endpoint.connect(&self.handshake, &mut self.tried).await?;
        if self.shared.refuses(&info) {
            return Err(ConnectError::Replica { address: route.address.to_string() });
        }
        if self.rules.alone && info.cluster {
            return Err(ConnectError::InCluster { address: route.address.to_string() });
        }
        let stream = wire.into_stream().map_err(ConnectError::Broken)?;
        let refusal = stream.refusal();
        // The handshake is done and the link has the timeouts: redis-rs only matches replies with commands.
        let no_handshake = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(SEND_QUEUE);
        let (mux, driver) = MultiplexedConnection::new_with_config(&no_handshake, stream, config)
            .await
            .map_err(|error| ConnectError::Broken(error.to_string()))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(driver));
        self.generation += 1;
        self.log_up(&info, &route.address);
        let connection =
            Connection { generation: self.generation, mux, driver: driver.abort_handle(), refusal };
        self.shared.set_up(connection, info.clone());
        Ok((driver, info, route))
    }

    /// Returns when the connection has ended, for any reason.
    async fn watch(
        &self,
        mut driver: AbortOnDropHandle<()>,
        mut server: ServerWatch,
        route: Route,
    ) {
        let mut left = pin!(self.endpoint.left(&route));
        let mut why = CLOSED;
        // The first check happens at once and reads the server's clock.
        let mut check_at = self.rules.check.map(|_| Instant::now());
        loop {
            let idle_until = self.shared.last_answer() + self.rules.heartbeat;
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
                check_at = self.rules.check.map(|every| now + every);
                self.check(&mut server, &route).await
            } else if self.shared.last_answer() + self.rules.heartbeat <= now {
                // No call has been answered meanwhile.
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
        if reason == READ_ONLY {
            // A refused write may be the first sign of that, and the next connection may lead to the new master.
            let demoted = ServerInfo { role: Some(Role::Replica), ..server.info().clone() };
            route.found(&demoted);
        }
        tracing::warn!(
            redis.target = %self.endpoint, redis.address = %route.address, link = self.handshake.name, reason,
            "lost the connection to Redis"
        );
    }

    /// Checks whether the server has changed, and reports it. Returns `false` when the connection is unusable.
    async fn check(&self, server: &mut ServerWatch, route: &Route) -> bool {
        let mut pipeline = Pipeline::new();
        for command in commands() {
            pipeline.add_command(command);
        }
        let replies = pipeline.len();
        let sent = boot_micros();
        let answered = self
            .shared
            .exchange(async |mut mux| mux.send_packed_commands(&pipeline, 0, replies).await)
            .await;
        let Ok((generation, answers)) = answered else { return false };
        let changed = server.update(&answers, sent, boot_micros());
        if !changed.is_empty() {
            tracing::warn!(
                redis.target = %self.endpoint, link = self.handshake.name, changed = changed.join(", "),
                "the Redis server has changed"
            );
            route.found(server.info());
            if self.shared.refuses(server.info()) {
                self.shared.fail(generation, READ_ONLY);
                return false;
            }
            self.shared.report_changed(generation, server.info().clone());
        }
        true
    }

    fn log_up(&self, info: &ServerInfo, address: &Address) {
        tracing::info!(
            redis.target = %self.endpoint,
            redis.address = %address,
            redis.version = info.version.as_deref().unwrap_or("unknown"),
            link = self.handshake.name,
            generation = self.generation,
            "connected to Redis"
        );
    }

    /// Reports a failure in the state, and once in the log.
    fn report(&self, error: &ConnectError, last: &mut Option<ConnectError>) {
        if last.as_ref() != Some(error) {
            tracing::warn!(redis.target = %self.endpoint, link = self.handshake.name, %error, "cannot connect to Redis");
        }
        self.shared.set_down(self.generation, &error.to_string());
        *last = Some(error.clone());
    }
}

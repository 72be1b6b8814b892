//! Calls to the server: connections that send commands, and the limits of one call.

use redis::{Cmd, Pipeline, Value, cmd};
use service_kit::redis::{CallError, Link, Redirect, ServerError};
use thiserror::Error;

use super::server_facts::ServerFacts;
use crate::clock::{Time, now};
use crate::model::types::Stamp;

/// The reason why nothing could be read.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// There was no reply, or a refusal that concerns more than one key.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The reply has an unexpected form.
    #[error("unexpected reply to {0}")]
    UnexpectedReply(&'static str),
}

/// A connection that sends commands, paced or not.
pub trait Caller: Send {
    /// Sends all commands at once.
    fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Result<Value, ServerError>>, CallError>> + Send;

    fn facts(&self) -> &ServerFacts;

    /// Returns the most that one call may read.
    fn call_size(&self) -> CallSize {
        CallSize::LARGE
    }
}

/// The limits of what one call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSize {
    /// The number of keys visited by a SCAN.
    pub keys: usize,
    /// The number of hashes that are checked for a lock's shape.
    pub(super) hashes: usize,
    /// The number of locks that are read as a whole, each in a transaction.
    pub(super) locks: usize,
}

impl CallSize {
    /// The limits for as few round trips as possible.
    pub const LARGE: Self = Self { keys: 200, hashes: 100, locks: 64 };
    /// The limits for about a tenth of a millisecond of the server's time, for which other clients wait.
    pub const SHORT: Self = Self { keys: 100, hashes: 25, locks: 8 };

    /// Returns the number of locks that are read as a whole in one transaction, which costs less for each of them.
    pub(super) fn locks_together(self) -> usize {
        self.locks * 5 / 4
    }

    /// Returns this part of each limit, at least one.
    #[must_use]
    pub fn percent(self, percent: usize) -> Self {
        let of = |limit: usize| (limit * percent / 100).max(1);
        Self { keys: of(self.keys), hashes: of(self.hashes), locks: of(self.locks) }
    }
}

/// An unpaced connection.
#[derive(Debug)]
pub struct Unpaced<'a>(pub &'a Link, pub &'a ServerFacts);

impl Caller for Unpaced<'_> {
    async fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        self.0.pipeline(pipeline(commands)).await
    }

    fn facts(&self) -> &ServerFacts {
        self.1
    }
}

/// Returns the commands as one pipeline, which is sent as a whole and in order.
#[must_use]
pub fn pipeline(commands: Vec<Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Returns the redirect in a reply, if another node of the cluster has the key, or is about to.
pub(super) fn redirect_of(reply: &Result<Value, ServerError>) -> Option<Redirect> {
    reply.as_ref().err()?.redirect()
}

pub(super) fn command(verb: &str, key: &[u8]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(key);
    command
}

pub(super) async fn send(
    caller: &mut impl Caller,
    commands: Vec<Cmd>,
) -> Result<(Stamp, Vec<Result<Value, ServerError>>), ReadError> {
    let sent = now();
    let replies = if commands.is_empty() { Vec::new() } else { caller.send(commands).await? };
    Ok((Stamp { sent, received: Time::now() }, replies))
}

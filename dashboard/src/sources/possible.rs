//! The possible locks that a scan meets: hashes with a lock's shape that never expire.
//!
//! Each may be a leaked lock, so they are read and followed, up to a limit. Beyond it they are an application's hashes: then
//! only those are read that somebody waits for, or that another source points out, so that any number of them delays neither the
//! scan nor the reads of confirmed locks.

use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::shape::MODE_FIELD;
use redisson::{LockName, keys};
use service_kit::redis::CallError;
use tokio::time::Instant;

use super::read::{Caller, PossibleLock, ReadError, integer};

/// Channels in one command.
const CHANNELS: usize = 100;
/// The interval after a refusal: each one adds to the server's log.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1_800);

/// The possible locks of one pass.
#[derive(Debug, Default)]
pub(super) struct PossibleLocks {
    /// Further ones that are read.
    room: usize,
    skipped: u64,
    /// Skipped ones whose listeners are not counted yet, with their channels.
    uncounted: Vec<(LockName, Vec<u8>)>,
    /// The last time that the account was not permitted to count listeners.
    refused: Option<Instant>,
}

impl PossibleLocks {
    /// Begins a pass that reads this many.
    pub(super) fn begin(&mut self, room: usize) {
        self.room = room;
        self.skipped = 0;
        self.uncounted.clear();
    }

    /// Returns the number that was not read in this pass.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Takes room for an unknown one, which is then read. Returns false if there is none left: it is skipped.
    pub(super) fn admit(&mut self, PossibleLock { name, fields }: PossibleLock<'_>) -> bool {
        if let Some(room) = self.room.checked_sub(1) {
            self.room = room;
            return true;
        }
        self.skipped += 1;
        if self.refused.is_none_or(|refused| refused.elapsed() >= REFUSED_INTERVAL) {
            let read_write = fields.iter().any(|field| field == MODE_FIELD);
            let channel = if read_write { keys::read_write_channel } else { keys::channel };
            self.uncounted.push((name.clone(), channel(name)));
        }
        false
    }

    /// Returns the skipped ones that somebody listens for.
    pub(super) async fn take_awaited(
        &mut self,
        caller: &mut impl Caller,
        shards: bool,
    ) -> Result<Vec<LockName>, ReadError> {
        let mut awaited = Vec::new();
        let uncounted = std::mem::take(&mut self.uncounted);
        for part in uncounted.chunks(CHANNELS) {
            let verbs = ["NUMSUB", "SHARDNUMSUB"].into_iter().take(1 + usize::from(shards));
            let commands = verbs.map(|verb| count(verb, part)).collect();
            for reply in caller.send(commands).await? {
                match reply {
                    Ok(Value::Array(counts)) => {
                        let counts = counts.chunks_exact(2).map(|pair| integer(&pair[1]));
                        let listened = part.iter().zip(counts).filter(|(_, n)| *n > Some(0));
                        awaited.extend(listened.map(|((name, _), _)| name.clone()));
                    }
                    Ok(_) => return Err(ReadError::UnexpectedReply("PUBSUB NUMSUB")),
                    Err(error) if error.is_transient() => {
                        return Err(CallError::Refused(error).into());
                    }
                    Err(_) => {
                        self.refused = Some(Instant::now());
                        return Ok(awaited);
                    }
                }
            }
        }
        Ok(awaited)
    }
}

fn count(verb: &str, locks: &[(LockName, Vec<u8>)]) -> Cmd {
    let mut command = cmd("PUBSUB");
    command.arg(verb);
    for (_, channel) in locks {
        command.arg(channel);
    }
    command
}

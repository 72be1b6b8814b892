//! The possible locks that a scan finds: hashes with a lock's shape that never expire.
//!
//! Each of them may be a leaked lock, so they are read and followed, up to a limit. Beyond it they are an application's
//! hashes. Then only those are read that have listeners, or that another source reports, so that any number of them
//! delays neither the scan nor the reads of confirmed locks.

use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::shape::MODE_FIELD;
use redisson::{LockName, keys};
use service_kit::redis::CallError;
use tokio::time::Instant;

use super::read::{Caller, PossibleLock, ReadError, integer};

/// The number of channels in one command.
const CHANNELS: usize = 100;
/// The interval after a refusal, since each refusal adds to the server's log.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1_800);

/// The possible locks of one scan.
#[derive(Debug, Default)]
pub(super) struct PossibleLocks {
    /// The number of further ones that are read.
    room: usize,
    skipped: u64,
    /// The skipped ones whose listeners have not been counted yet, with their channels.
    uncounted: Vec<(LockName, Vec<u8>)>,
    /// The last time at which the Redis user was not permitted to count listeners.
    refused: Option<Instant>,
}

impl PossibleLocks {
    /// Begins a scan that reads this number of possible locks.
    pub(super) fn begin(&mut self, room: usize) {
        self.room = room;
        self.skipped = 0;
        self.uncounted.clear();
    }

    /// Returns the number of possible locks that were not read in this scan.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Reserves room for an unknown possible lock, which is then read. Returns false if no room is left, and skips the
    /// lock.
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

    /// Returns the skipped ones that have listeners.
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

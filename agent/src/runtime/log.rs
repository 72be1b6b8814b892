//! Writes the core's log lines.

use crate::core::LogLine;

/// Writes one line.
pub(super) fn write(line: LogLine) {
    match line {
        LogLine::Jeopardy { lock, pid, trace, valid_ms, why } => {
            tracing::warn!(lock.name = %lock, worker.pid = pid, trace.parent = trace, valid_ms, "lock in jeopardy: {why}");
        }
        LogLine::LockLost { lock, holder, pid, trace, end } => tracing::warn!(
            lock.name = %lock,
            lock.holder = %holder,
            worker.pid = pid,
            trace.parent = trace,
            reason = end.as_str(),
            "lock lost: {}",
            end.explained()
        ),
        LogLine::LeaseOverrun { lock, holder, pid, trace } => tracing::warn!(
            lock.name = %lock,
            lock.holder = %holder,
            worker.pid = pid,
            trace.parent = trace,
            "lease overrun: the fixed lease ran out before the worker released the lock"
        ),
        LogLine::Slept { gap_ms } => {
            tracing::warn!(gap_ms, "agent was suspended; verifying every hold");
        }
        LogLine::WorkerStopped { pid, holds } => {
            tracing::info!(worker.pid = pid, holds, "worker stopped by a signal");
        }
        LogLine::SessionLapsed { session, holds, grace_ms } => {
            tracing::info!(%session, holds, grace_ms, "session grace expired");
        }
        LogLine::TooFewReplicas { lock, replicas, wanted, refusal } => tracing::warn!(
            lock.name = %lock,
            replicas,
            wanted,
            refusal,
            "too few replicas: the lock is not granted, reentered or extended"
        ),
        LogLine::ReleaseUnannounced { lock, error } => tracing::warn!(
            lock.name = %lock,
            error,
            "Redis refuses the message about a release: waiters elsewhere notice it later"
        ),
        LogLine::JournalFailed { why } => {
            tracing::warn!(why, "the journal cannot be written: sessions with grace get no locks");
        }
        LogLine::ForcedRelease { lock, confirmed, holders, dead_waiters, by } => {
            let message = match confirmed {
                true => "lock force-released by an operator",
                false => "lock may have been force-released by an operator",
            };
            tracing::warn!(
                lock.name = %lock,
                lock.holders = holders,
                lock.dead_waiters = dead_waiters,
                by.uid = by.as_ref().map(|peer| peer.uid),
                by.pid = by.as_ref().and_then(|peer| peer.pid),
                by.comm = by.as_ref().and_then(|peer| peer.comm.as_deref()),
                "{message}"
            );
        }
        LogLine::WaitersRemoved { lock, agent, waiters } => tracing::info!(
            lock.name = %lock,
            agent = %agent,
            waiters,
            "removed the waiters of a vanished agent"
        ),
        LogLine::SessionKicked { session, peer, holds, age_ms, by } => tracing::warn!(
            session,
            pid = peer.pid,
            uid = peer.uid,
            holds,
            age_ms,
            by.uid = by.as_ref().map(|peer| peer.uid),
            by.pid = by.as_ref().and_then(|peer| peer.pid),
            by.comm = by.as_ref().and_then(|peer| peer.comm.as_deref()),
            "session ended by an operator"
        ),
        LogLine::NodeRestored { lock, node } => tracing::info!(
            lock.name = %lock,
            redis.node = node,
            "red lock restored on a server"
        ),
        LogLine::Withheld(line, withheld) => {
            tracing::warn!(line, withheld, "log lines withheld");
        }
    }
}

//! Workers whose process is stopped (SIGSTOP, Ctrl-Z, a debugger): they are counted and shown, and where it is set so
//! (`--frozen lapse`) nothing renews what they hold until they go on.

use std::collections::BTreeSet;

use redisson::Moment;

use crate::core::{Core, Frozen, LogLine};
use crate::types::ConnectionId;

impl Core {
    /// The processes whose sessions hold or wait for something: of these [`Self::on_stopped`] wants to know.
    #[must_use]
    pub fn busy_pids(&self) -> BTreeSet<i32> {
        self.sessions.busy_pids()
    }

    /// Of the processes of [`Self::busy_pids`] these are stopped, the others go on.
    pub fn on_stopped(&mut self, now: Moment, pids: &BTreeSet<i32>) {
        self.advance_clock(now);
        let (go_on, stopped) = self.sessions.set_stopped(pids);
        for connection in go_on {
            self.let_lapse(connection, false);
        }
        for connection in stopped {
            self.let_lapse(connection, true);
            if let Some(session) = self.sessions.get(&connection) {
                let (pid, holds) = (session.peer.pid, session.holds.len());
                self.effects.log_bounded(now, || LogLine::WorkerStopped { pid, holds });
            }
        }
        self.run_ready();
    }

    /// A session's connection has gone, and with it whatever its process was.
    pub(in crate::core) fn forget_stopped(&mut self, connection: ConnectionId) {
        if self.sessions.forget_stopped(connection) {
            self.let_lapse(connection, false);
        }
    }

    /// Returns whether the holds of this session are left to lapse.
    pub(in crate::core) fn lapses(&self, connection: ConnectionId) -> bool {
        self.settings.frozen == Frozen::Lapse && self.sessions.is_stopped(connection)
    }

    /// Stops renewing what a session holds, or goes on with it, at once.
    fn let_lapse(&mut self, connection: ConnectionId, lapsing: bool) {
        if self.settings.frozen == Frozen::Keep {
            return;
        }
        let holds = self.sessions.get(&connection).map(|session| session.holds.values().copied());
        for number in holds.into_iter().flatten().collect::<BTreeSet<_>>() {
            self.leases.set_lapsing(number, lapsing, self.now);
        }
    }
}

//! Workers whose process is stopped (SIGSTOP, Ctrl-Z, a debugger).
//!
//! They are counted and shown. With `--frozen lapse`, their holds are not renewed until they continue.

use std::collections::BTreeSet;

use redisson::Moment;

use crate::core::session::state::Session;
use crate::core::{Core, Frozen, LogLine};
use crate::types::ConnectionId;

impl Core {
    /// Returns the processes whose sessions hold or wait for something. The caller checks which of them are stopped, and
    /// reports that to [`Self::on_stopped`].
    #[must_use]
    pub fn busy_pids(&self) -> BTreeSet<i32> {
        self.sessions.busy_pids()
    }

    /// Handles a check of the processes in [`Self::busy_pids`]: those in `pids` are stopped, the others run.
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
                self.effects.log(self.now, LogLine::WorkerStopped { pid, holds });
            }
        }
        self.run_ready();
    }

    /// Handles the end of a session's connection: its process no longer counts as stopped, and its holds are renewed again.
    pub(in crate::core) fn forget_stopped(&mut self, connection: ConnectionId) {
        if self.sessions.forget_stopped(connection) {
            self.let_lapse(connection, false);
        }
    }

    /// Returns whether the holds of a session are left to lapse.
    pub(in crate::core) fn lapses(&self, connection: ConnectionId) -> bool {
        self.settings.frozen == Frozen::Lapse && self.sessions.is_stopped(connection)
    }

    /// Stops the renewals of a session's holds, or resumes them at once.
    fn let_lapse(&mut self, connection: ConnectionId, lapsing: bool) {
        if self.settings.frozen == Frozen::Keep {
            return;
        }
        let holds = self.sessions.get(&connection).map(Session::hold_numbers);
        for number in holds.into_iter().flatten() {
            self.leases.set_lapsing(number, lapsing, self.now);
        }
    }
}

//! The lock delay: locks of dead workers are kept from others for a while (`--lock-delay`). Requests that a worker sent
//! before it died may still be on their way to a resource that cannot check a token.

use redisson::Moment;

use crate::core::Core;
use crate::core::lease::hold::Delayed;
use crate::core::report::list::client_name;
use crate::core::session::state::Session;
use crate::types::Number;

impl Core {
    /// Returns the end of the lock delay of a worker that disconnected at that instant.
    pub(in crate::core) fn delayed_until(&self, gone: Moment) -> Moment {
        gone + self.settings.lock_delay
    }

    /// Keeps one of a dead worker's holds until that instant.
    pub(in crate::core) fn delay(&mut self, number: Number, session: &Session, until: Moment) {
        // The worker's pending update no longer matters; an EXTEND could even end the hold before its time.
        self.leases.take_waiting_extend(number);
        let update = self.leases.take_update(number);
        if let Some(update) = update.and_then(|id| self.take_update(id)) {
            self.on_update_failed(&update);
        }
        let (peer, client) = (session.peer.clone(), client_name(session));
        let delayed = Delayed { until, session: session.id, peer, client };
        self.leases.delay(number, delayed, self.now);
        if let Some(hold) = self.leases.get(number) {
            let (name, kind) = (hold.name.clone(), hold.kind);
            self.journal_orphan(number, &name, kind, until);
        }
    }
}

//! The locks of dead workers are kept back for a while (`--lock-delay`): what a worker has sent out before it died may
//! still be on its way to a resource that cannot check a token.

use redisson::Moment;

use crate::core::lease::hold::LeaseMode;
use crate::core::report::list::client_name;
use crate::core::session::Session;
use crate::core::{Core, spans};
use crate::types::Number;
use crate::types::{Peer, SessionKey};

/// A hold whose worker is dead and which nobody else gets yet. The watchdog renews it.
#[derive(Debug)]
pub(in crate::core) struct KeptBack {
    pub(in crate::core) until: Moment,
    /// The session that it was in,
    pub(in crate::core) session: SessionKey,
    /// whose that was,
    pub(in crate::core) peer: Peer,
    /// and what it called itself.
    pub(in crate::core) client: Option<String>,
}

impl Core {
    /// Until when the locks of a worker are kept back that has been gone since then.
    pub(in crate::core) fn kept_back_until(&self, gone: Moment) -> Moment {
        gone + self.settings.lock_delay
    }

    /// Keeps one of a dead worker's holds until that instant.
    pub(in crate::core) fn keep_back(&mut self, number: Number, session: &Session, until: Moment) {
        let now = self.now;
        // Whatever its worker still wanted of it matters no more; an EXTEND could even end it before its time.
        let asking = self.holds.get_mut(&number).and_then(|hold| hold.asking.take());
        if let Some(asked) = asking.and_then(|id| self.take_question(id)) {
            spans::outcome(&asked.span, "error");
        }
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.mode == LeaseMode::Fixed {
            hold.mode = LeaseMode::Renewed;
            hold.renew_at = now;
            let node_leases =
                hold.node_leases.iter_mut().flat_map(|node_leases| &mut node_leases.0);
            node_leases.for_each(|lease_on_node| lease_on_node.renew_at = now);
        }
        if std::mem::take(&mut hold.jeopardy) {
            self.gauges.jeopardy_holds -= 1;
        }
        let (peer, client) = (session.peer.clone(), client_name(session));
        hold.kept_back = Some(Box::new(KeptBack { until, session: session.key, peer, client }));
        let (name, kind) = (hold.name.clone(), hold.kind);
        self.gauges.delayed_holds += 1;
        self.journal_trace(number, &name, kind, until);
        self.arm(number);
    }
}

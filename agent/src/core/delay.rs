//! The locks of dead workers are kept back for a while (`--lock-delay`): what a worker has sent out before it died may
//! still be on its way to a resource that cannot check a token.

use redisson::Moment;

use super::hold::Care;
use super::list::client_name;
use super::session::Session;
use super::{Core, trace};
use crate::types::Number;
use crate::types::{Peer, SessionKey};

/// A hold whose worker is dead and which nobody else gets yet. The watchdog renews it.
#[derive(Debug)]
pub(super) struct KeptBack {
    pub(super) until: Moment,
    /// The session that it was in,
    pub(super) session: SessionKey,
    /// whose that was,
    pub(super) peer: Peer,
    /// and what it called itself.
    pub(super) client: Option<String>,
}

impl Core {
    /// Until when the locks of a worker are kept back that has been gone since then.
    pub(super) fn kept_back_until(&self, gone: Moment) -> Moment {
        gone + self.settings.lock_delay
    }

    /// Keeps one of a dead worker's holds until that instant.
    pub(super) fn keep_back(&mut self, number: Number, session: &Session, until: Moment) {
        let now = self.now;
        // Whatever its worker still wanted of it matters no more; an EXTEND could even end it before its time.
        let asking = self.holds.get_mut(&number).and_then(|hold| hold.asking.take());
        if let Some(asked) = asking.and_then(|id| self.take_question(id)) {
            trace::outcome(&asked.span, "error");
        }
        let Some(hold) = self.holds.get_mut(&number) else { return };
        if hold.care == Care::Fixed {
            hold.care = Care::Watched;
            hold.renew_at = now;
            let votes = hold.votes.iter_mut().flat_map(|votes| &mut votes.0);
            votes.for_each(|vote| vote.renew_at = now);
        }
        if std::mem::take(&mut hold.jeopardy) {
            self.figures.jeopardy_holds.dec();
        }
        let (peer, client) = (session.peer.clone(), client_name(session));
        hold.kept_back = Some(Box::new(KeptBack { until, session: session.key, peer, client }));
        let (name, kind) = (hold.name.clone(), hold.kind);
        self.figures.delayed_holds.inc();
        self.note_trace(number, &name, kind, until);
        self.arm(number);
    }
}

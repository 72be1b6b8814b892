//! What agents and the list of clients tell of a lock's holders and waiters.

use redisson::{HolderId, Moment};

use super::Record;
use crate::clock::SteadyMillis;
use crate::model::clients::Clients;
use crate::model::observation::Source;
use crate::model::problem::Gone;
use crate::model::who::{Known, Who};

impl Record {
    /// Whether its holder is gone. What is renewed has a living one, whatever else is seen. True when that is news.
    pub fn find_gone(&mut self, clients: &Clients) -> bool {
        let denied = |id: &HolderId| {
            let since = self.told(id)?.denied_since()?;
            let seen = format!("its agent lives, and tells nothing of {id}");
            Some(Gone { since, seen })
        };
        let gone = self
            .holds
            .iter()
            .find_map(|hold| clients.gone(&hold.id.client).or_else(|| denied(&hold.id)));
        let rose_since = |gone: &Gone| self.rose.is_some_and(|rose| rose >= gone.since);
        let gone = gone.filter(|gone| !self.lease.renewed() && !rose_since(gone));
        let before = self.rare.as_ref().and_then(|rare| rare.gone.as_ref());
        if before == gone.as_ref() {
            return false;
        }
        self.seen_by(Source::Identity);
        self.rare().gone = gone;
        self.thin_out();
        self.news = true;
        true
    }

    /// Its agent tells who a holder or waiter is, or nothing of it; `denies`: which it would if it knew of such a holder.
    /// True when that is news.
    pub fn tell(
        &mut self,
        id: HolderId,
        who: Option<Who>,
        denies: bool,
        at: Moment,
        steady: SteadyMillis,
    ) -> bool {
        let holds = self.holds.iter().any(|hold| hold.id == id);
        // A wait may be too young to be told of, or over by now: only a holder is denied.
        let heard = match who {
            Some(_) => holds || self.waits_by_name(&id),
            None => holds && denies,
        };
        if !heard {
            return false;
        }
        if who.is_some() {
            self.confirm();
            self.seen_by(Source::Identity);
        }
        let told = &mut self.rare().told;
        let place = told.iter().position(|known| known.id == id).unwrap_or_else(|| {
            told.push(Known::new(id));
            told.len() - 1
        });
        let news = match who {
            Some(who) => told[place].told(who),
            None => told[place].denied(at, steady),
        };
        self.news |= news;
        news
    }

    fn waits_by_name(&self, id: &HolderId) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.waiting.waiters().any(|w| w.id == *id))
    }

    /// What is told of a holder or waiter.
    pub(super) fn told(&self, id: &HolderId) -> Option<&Known> {
        self.rare.as_ref()?.told.iter().find(|known| known.id == *id)
    }

    /// Drops what was told of holders that are no longer of interest.
    pub(super) fn forget_told(&mut self) {
        let Some(rare) = self.rare.as_mut().filter(|rare| !rare.told.is_empty()) else { return };
        let expired = rare.expired.as_ref().map(|expired| expired.holder);
        let holds = &self.holds;
        let waits = |id| rare.waiting.waiters().any(|waiter| waiter.id == id);
        rare.told.retain(|known| {
            expired == Some(known.id)
                || holds.iter().any(|hold| hold.id == known.id)
                || waits(known.id)
        });
        self.thin_out();
    }
}

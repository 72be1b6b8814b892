//! Which script does what is wanted of Redis, and with which arguments.

use redisson::script::{self, Call};
use redisson::{Kind, LockName};

use crate::core::Core;
use crate::core::lock::release::Ending;
use crate::core::lock::waiter::Waiter;
use crate::core::ops::{Asked, Attempt, FAIR_WAIT, Purpose};
use crate::types::Number;

impl Core {
    /// The call that does what it is for.
    pub(in crate::core) fn call(&self, purpose: &Purpose) -> Call {
        let lease = self.settings.lease;
        match purpose {
            Purpose::Acquire(attempt) => self.acquire_call(attempt),
            // Never less than a watched lease, whatever is asked: a key without a time to live is given this one,
            // and a shorter lease is kept by the agent, which releases at its end.
            Purpose::Keep(Asked { name, kind, number, count, .. }, change) => {
                let wanted = change.lease().unwrap_or(lease);
                let hold = [(name, self.field(*kind, *number), *count)];
                match kind {
                    Kind::Read => script::renew_read(hold, wanted),
                    _ => script::renew(hold, wanted),
                }
            }
            Purpose::Renew { reads, holds, .. } => {
                let holds = holds
                    .iter()
                    .map(|hold| (&hold.name, self.field(hold.kind, hold.number), hold.count));
                if *reads { script::renew_read(holds, lease) } else { script::renew(holds, lease) }
            }
            Purpose::Adopt { reads, holds } => {
                let holds = holds
                    .iter()
                    .map(|hold| (&hold.lock, self.field(hold.kind, hold.number), hold.count));
                if *reads { script::renew_read(holds, lease) } else { script::renew(holds, lease) }
            }
            Purpose::Release(Ending { name, kind, number, .. })
            | Purpose::Undo { name, kind, number } => self.release_call(name, *kind, *number),
            Purpose::HandOver { from, to } => {
                let old = self.field(from.kind, from.number);
                let new = self.field(to.kind, to.number);
                match to.kind {
                    Kind::Fenced => script::hand_over_fenced(
                        &to.name,
                        &old,
                        &new,
                        to.lease,
                        self.fences.least(&to.name),
                    ),
                    _ => script::hand_over(&to.name, &old, &new, to.lease),
                }
            }
            Purpose::Show { name, .. } | Purpose::Look { name, .. } => script::show(name),
            Purpose::Force(force) => force.call(self.settings.publish),
            Purpose::Red(ask) => self.red_call(ask),
        }
    }

    fn acquire_call(&self, attempt: &Attempt) -> Call {
        let Attempt { name, kind, number, lease, .. } = attempt;
        let holder = self.field(*kind, *number);
        match kind {
            // A red lock is a plain one on each of its servers.
            Kind::Lock | Kind::Red => script::acquire(name, &holder, *lease),
            Kind::Fenced => script::acquire_fenced(name, &holder, *lease, self.fences.least(name)),
            Kind::Write => script::acquire_write(name, &holder, *lease),
            Kind::Read => {
                let under = attempt.under.map(|number| self.field(Kind::Write, number));
                script::acquire_read(name, &holder, *lease, under.as_ref())
            }
            Kind::Fair => {
                // Who does not wait takes no place either.
                let waits = |waiter: &Waiter| !waiter.is_now_or_never();
                let queue = self.waiters.get(&attempt.waiter).is_some_and(waits);
                script::acquire_fair(name, &holder, *lease, FAIR_WAIT, queue)
            }
        }
    }

    fn release_call(&self, name: &LockName, kind: Kind, number: Number) -> Call {
        let (holder, publish) = (self.field(kind, number), self.settings.publish);
        match kind {
            Kind::Lock | Kind::Fenced | Kind::Red => script::release(name, &holder, publish),
            Kind::Write => script::release_write(name, &holder, publish),
            Kind::Read => script::release_read(name, &holder, publish),
            Kind::Fair => script::release_fair(name, &holder, FAIR_WAIT, publish),
        }
    }
}

//! The end of a hold: removal, loss, and forced release.

use std::time::Duration;

use redisson::{Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use crate::core::ids::{OpId, Owner};
use crate::core::lease::hold::Hold;
use crate::core::lease::node_leases::NodeLeases;
use crate::core::ops::verb::Ending;
use crate::core::session::event::Event;
use crate::core::{Core, LogLine, Node, Report, spans};
use crate::types::{End, Number};

/// The time after the end of a fixed lease before the agent removes its remains from Redis.
const EXPIRY_SLACK: Duration = Duration::from_millis(100);

impl Core {
    /// Removes a hold from every table, and counts its end. Returns the facts for its release in Redis, and the hand-over in
    /// flight if Redis does not have the hold yet.
    pub(in crate::core) fn remove_hold(
        &mut self,
        number: Number,
        end: End,
    ) -> Option<(Ending, Option<OpId>)> {
        let hold = self.leases.remove(number)?;
        let update = hold.update.and_then(|id| self.take_update(id));
        let state = self.locks.get(&hold.name).filter(|_| hold.early);
        let hand_over = state.and_then(|state| state.early);
        if let Some(asked) = update.or_else(|| hold.extend.map(|extend| *extend)) {
            // There is no hold left to change. A pending update would extend in Redis what is about to be released
            // there.
            self.on_update_failed(&asked);
            self.answer(asked.reply_to, Self::lost(&hold.name, end));
        }
        self.sessions.remove_hold(hold.owner, &hold.name, hold.kind);
        self.track(&hold.name);
        self.locks.remove_hold(&hold.name, number, hold.uid);
        let group = self.group_label(&hold.name);
        let (kind, granted) = (hold.kind, hold.granted);
        let held = self.now.since(granted);
        self.effects.report(Report::HoldEnded { group, kind, number, granted, end, held });
        spans::ended(&hold.span, end);
        let trace_parent = TraceParent::of(&hold.span);
        let nodes = hold.node_leases.as_ref().map_or_else(Vec::new, NodeLeases::asked);
        if kind == Kind::Read
            && let Some(writer) = self.locks.get(&hold.name).and_then(|state| state.hold)
        {
            self.leases.add_read_lease(writer, hold.longest);
        }
        let Hold { name, kind, valid_until, lease, longest, read_lease, forced_claim, .. } = hold;
        let longest = read_lease.map_or(longest, |read| longest.max(read));
        let ending = Ending {
            name,
            kind,
            number,
            end,
            reply_to: None,
            valid_until,
            longest,
            shortened: lease < longest,
            nodes,
            trace_parent,
            claimed_forced: forced_claim.is_some(),
        };
        self.journal_orphan(number, &ending.name, kind, ending.relied_on_until());
        Some((ending, hand_over))
    }

    /// Ends a hold that is lost: notifies its owner, and releases it in Redis if Redis may still have it.
    pub(in crate::core) fn lose(&mut self, number: Number, end: End) {
        let Some(hold) = self.leases.get(number) else { return };
        let end = match end {
            End::Missing | End::Stolen if hold.forced_claim.is_some() => End::Forced,
            end => end,
        };
        let (owner, kind, name) = (hold.owner, hold.kind, hold.name.clone());
        let lag = hold.lease.safety_margin() + EXPIRY_SLACK;
        // The end of a dead worker's hold is not a loss.
        if hold.delayed.is_none() || !end.is_loss() {
            let trace = hold.trace().to_owned();
            self.report_loss(owner, &name, kind, number, trace, end);
        }
        self.void_replies(owner, number, &name, end);
        if !self.on_member_lost(owner, number, &name, end) {
            self.notify(owner, &name, kind, &Event::Lost(end));
        }
        let Some((ending, hand_over)) = self.remove_hold(number, end) else { return };
        // If Redis does not have the hold yet, the reply to its hand-over decides what happens to it.
        let ending = match hand_over {
            Some(hand_over) => self.ops.add_ended(hand_over, ending),
            None => Some(ending),
        };
        let Some(ending) = ending else { return };
        match end {
            // The lease expires in Redis, which other clients see. The release removes a key that
            // lives longer than it should, as after an EXTEND with a shorter lease.
            End::Expired => {
                self.release_after(ending.valid_until + lag, ending);
                self.poll_queue(&name);
            }
            // Redis may still have the hold. Its owner may rely on it until `valid_until`, so it is released only then.
            End::Unconfirmed | End::Frozen => self.release_after(ending.valid_until, ending),
            // A minority of the servers may still have the hold.
            _ if kind == Kind::Red && end != End::Drained => self.release(ending),
            _ => {
                self.journal_gone(number);
                self.poll_queue(&name);
            }
        }
    }

    /// Counts and logs the loss of a hold, or the end of its fixed lease. Does nothing for other ends.
    pub(in crate::core) fn report_loss(
        &mut self,
        owner: Owner,
        name: &LockName,
        kind: Kind,
        number: Number,
        trace: String,
        end: End,
    ) {
        let (group, lock) = (self.group_label(name), name.clone());
        let (holder, pid) = (self.numbers.field(kind, number), self.worker_pid(owner));
        if end.is_loss() {
            self.effects.log(self.now, LogLine::LockLost { lock, holder, pid, trace, end });
            self.effects.report(Report::Lost { group, end });
        } else if end == End::Expired {
            self.effects.log(self.now, LogLine::LeaseOverrun { lock, holder, pid, trace });
            self.effects.report(Report::LeaseOverrun { group });
        }
    }

    /// Handles the message of a forced release of a hold of this agent. Anyone may publish such a message, so the hold
    /// ends only once Redis no longer has it.
    pub fn on_forced(&mut self, now: Moment, node: Node, name: &LockName, number: Number) {
        self.advance_clock(now);
        if let Some(hold) = self.leases.get(number).filter(|hold| hold.name == *name) {
            match node {
                Node::Red(node) => {
                    self.leases.claim_node_forced(number, node, self.now);
                    self.renew_red(&[number]);
                }
                Node::Main if hold.node_leases.is_none() => {
                    if let Some(index) = self.leases.claim_forced(number, self.now) {
                        self.renew(vec![index]);
                    }
                }
                // The main server has no red locks, so the message is about a hold of another agent.
                Node::Main => {}
            }
        } else if node == Node::Main {
            // The hold may have ended just now. Then the message explains why its release finds nothing.
            self.ops.claim_forced(number);
        }
        self.run_ready();
    }
}

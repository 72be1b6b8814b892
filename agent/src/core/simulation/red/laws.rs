//! What must hold of red locks at every instant, and when all is over.

use std::collections::BTreeSet;

use redisson::{HolderId, Moment};

use super::World;
use crate::core::lease::hold::LeaseMode;

/// Holds that a server has forgotten by itself, which no majority of the others makes up for: of them nothing is promised.
#[derive(Debug, Default)]
pub(in crate::core::simulation) struct Forgotten(BTreeSet<(String, String)>);

impl Forgotten {
    pub(in crate::core::simulation) fn note(&mut self, lock: &str, field: &str) {
        self.0.insert((lock.to_owned(), field.to_owned()));
    }

    fn excuses(&self, lock: &str, field: &str) -> bool {
        self.0.contains(&(lock.to_owned(), field.to_owned()))
    }
}

pub(super) const NAMES: [&str; 2] = ["x", "y"];

impl World {
    /// After every event.
    pub(in crate::core::simulation) fn check(&self) -> Result<(), String> {
        let now = self.boot();
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        for lock in NAMES {
            let mut valid = Vec::new();
            for (index, agent) in self.agents.iter().enumerate() {
                let core = &agent.core;
                for hold in core.holds.values() {
                    if hold.name.as_bytes() != lock.as_bytes() {
                        continue;
                    }
                    let field = HolderId::new(core.client, hold.number).to_string();
                    if self.forgotten.excuses(lock, &field) {
                        continue;
                    }
                    if now < hold.valid_until {
                        valid.push(field.clone());
                    }
                    self.check_votes(lock, &field, hold, now)?;
                    if agent.stalled_until > self.now {
                        continue;
                    }
                    // What is due at this very instant may still be in the queue of events.
                    let then = Moment::from_micros(self.now - 1);
                    let watched = hold.mode == LeaseMode::Renewed;
                    if watched && then >= lease.lost_at(hold.valid_until, margin) {
                        return Err(format!("agent {index}: {lock}'s loss is not told in time"));
                    }
                    if watched && !hold.jeopardy && then >= lease.at_risk_at(hold.valid_until) {
                        return Err(format!("agent {index}: {lock}'s jeopardy is not told"));
                    }
                    if then >= hold.valid_until {
                        return Err(format!("agent {index} holds {lock} beyond its lease"));
                    }
                }
            }
            if valid.len() > 1 {
                return Err(format!("two majorities of {lock} are valid: {valid:?}"));
            }
        }
        Ok(())
    }

    /// A server that is counted on keeps the hold for as long as it is counted on.
    fn check_votes(
        &self,
        lock: &str,
        field: &str,
        hold: &crate::core::lease::hold::Hold,
        now: Moment,
    ) -> Result<(), String> {
        let Some(votes) = &hold.node_leases else {
            return Err(format!("{field} has no votes"));
        };
        if hold.valid_until > votes.valid_until(self.servers.len() / 2 + 1) {
            return Err(format!("{field} is thought to be valid beyond its majority"));
        }
        for (node, vote) in votes.0.iter().enumerate().filter(|(_, vote)| vote.valid_until > now) {
            let there = self.servers[node].redis.has(lock, field);
            if !there {
                return Err(format!("node {node} is counted on for {field} and does not have it"));
            }
            let until = vote.valid_until.as_micros();
            if self.expiry(node, lock).is_some_and(|expires| expires < until) {
                return Err(format!("node {node} is counted on for {field} for too long"));
            }
        }
        Ok(())
    }

    /// When everybody has finished, everything was mended, and a lease has passed.
    pub(super) fn check_end(&self) -> Result<(), String> {
        for (index, agent) in self.agents.iter().enumerate() {
            let core = &agent.core;
            if !core.ops.is_empty() || !core.holds.is_empty() || !core.waiters.is_empty() {
                return Err(format!("agent {index} still has {:?} {:?}", core.ops, core.holds));
            }
            if !core.locks.is_empty() || !core.red.quorum_ops.is_empty() || !agent.wishes.is_empty()
            {
                return Err(format!(
                    "agent {index} remembers {:?} {:?} {:?}",
                    core.locks, core.red.quorum_ops, agent.wishes
                ));
            }
            if core.next_deadline().is_some() {
                return Err(format!("agent {index} has a deadline for nothing: {:?}", core.timers));
            }
        }
        for (node, server) in self.servers.iter().enumerate() {
            if !server.redis.keys().is_empty() {
                return Err(format!("node {node} still has {:?}", server.redis.keys()));
            }
        }
        Ok(())
    }
}

//! Invariants of red locks, at every instant and at the end.

use std::collections::BTreeSet;

use redisson::{HolderId, Moment};

use super::super::seeds::CheckResult;
use super::World;
use crate::core::lease::hold::{Hold, LeaseMode};

/// Holds that a server lost and its agent did not give up. Nothing is promised for them.
#[derive(Debug, Default)]
pub(super) struct ForgottenHolds(BTreeSet<(String, String)>);

impl ForgottenHolds {
    pub(super) fn note(&mut self, lock: &str, field: &str) {
        self.0.insert((lock.to_owned(), field.to_owned()));
    }

    fn contains(&self, lock: &str, field: &str) -> bool {
        self.0.contains(&(lock.to_owned(), field.to_owned()))
    }
}

pub(super) const NAMES: [&str; 2] = ["x", "y"];

impl World {
    pub(super) fn check(&self) -> CheckResult {
        let now = self.boot();
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        for lock in NAMES {
            let mut valid = Vec::new();
            for (index, agent) in self.agents.iter().enumerate() {
                let core = &agent.core;
                for hold in core.leases.iter() {
                    if hold.name.as_bytes() != lock.as_bytes() {
                        continue;
                    }
                    let field = HolderId::new(core.numbers.client(), hold.number).to_string();
                    if self.scenario.forgotten.contains(lock, &field) {
                        continue;
                    }
                    if now < hold.valid_until {
                        valid.push(field.clone());
                    }
                    self.check_node_leases(lock, &field, hold, now)?;
                    if agent.stalled_until > self.now {
                        continue;
                    }
                    // Events of this very instant may still be in the queue.
                    let then = Moment::from_micros(self.now - 1);
                    let watched = hold.mode == LeaseMode::Renewed;
                    if watched && then >= lease.lost_at(hold.valid_until, margin) {
                        return Err(format!("agent {index}: {lock}'s loss is reported too late"));
                    }
                    if watched && !hold.jeopardy && then >= lease.at_risk_at(hold.valid_until) {
                        return Err(format!(
                            "agent {index}: {lock}'s jeopardy is reported too late"
                        ));
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

    /// Checks that each server keeps the hold for as long as the agent assumes.
    fn check_node_leases(&self, lock: &str, field: &str, hold: &Hold, now: Moment) -> CheckResult {
        let Some(leases) = &hold.node_leases else {
            return Err(format!("{field} has no node leases"));
        };
        if hold.valid_until > leases.valid_until(self.servers.len() / 2 + 1) {
            return Err(format!("{field} is assumed valid beyond its majority"));
        }
        for (node, lease) in
            leases.0.iter().enumerate().filter(|(_, lease)| lease.valid_until > now)
        {
            let there = self.servers[node].redis.has(lock, field);
            if !there {
                return Err(format!("node {node} is assumed to have {field} and does not"));
            }
            let until = lease.valid_until.as_micros();
            if self.expiry(node, lock).is_some_and(|expires| expires < until) {
                return Err(format!("node {node} is assumed to have {field} for too long"));
            }
        }
        Ok(())
    }

    /// Checks that nothing is left after all workers have left, all faults are repaired and a lease has passed.
    pub(super) fn check_end(&self) -> CheckResult {
        self.check_idle()?;
        for (node, server) in self.servers.iter().enumerate() {
            if !server.redis.keys().is_empty() {
                return Err(format!("node {node} still has {:?}", server.redis.keys()));
            }
        }
        Ok(())
    }
}

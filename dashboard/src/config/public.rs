//! The settings that every visitor may see. They contain no password, token, user name or path.

use serde_json::{Value, json};

use super::{Config, History, MonitorMode, ReadFrom};
use crate::clock::millis;
use crate::model::types::Rule;

impl Config {
    /// Returns the settings for the bundle of an incident. A setting that is not named here is left out. Before you add
    /// one, decide whether it is a secret.
    #[must_use]
    pub fn public(&self) -> Value {
        let deployments = self.deployments.iter().map(|deployment| {
            json!({
                "name": deployment.name,
                "node": deployment.target.place(),
                "tls": deployment.target.uses_tls(),
                "dbs": deployment.dbs,
            })
        });
        let groups = self.model.groups.iter();
        let groups =
            groups.map(|group| json!({"name": group.name, "deployments": group.deployments}));
        let rules = self.model.rules.iter().map(|row| {
            let mut rule = rule(*row.rule);
            rule["match"] = json!(String::from_utf8_lossy(&row.pattern));
            rule
        });
        let ignore = self.model.ignore.iter().map(|glob| String::from_utf8_lossy(glob));
        json!({
            "deployments": deployments.collect::<Vec<_>>(),
            "groups": groups.collect::<Vec<_>>(),
            "usual": rule(*self.model.usual),
            "locks": rules.collect::<Vec<_>>(),
            "ignore": ignore.collect::<Vec<_>>(),
            "max_locks": self.model.max_locks,
            "poll_rate": self.model.poll_rate,
            "read_from": match self.read_from {
                ReadFrom::Master => "master",
                ReadFrom::Replica => "replica",
            },
            "scan": {
                "rate": self.scan.rate,
                "every_ms": millis(self.scan.every),
                "match": self.scan.pattern,
            },
            "monitor": {
                "mode": match self.monitor.mode {
                    MonitorMode::Off => "off",
                    MonitorMode::On => "on",
                    MonitorMode::Auto => "auto",
                },
                "max_ops": self.monitor.max_ops,
                "budget_bytes": self.monitor.budget.0,
                "unbounded": self.monitor.unbounded,
            },
            "allow_release": self.allow_release,
            "history": self.history != History::Off,
            "asks_who_it_is": self.access.is_needed(),
            "agent_keys": self.agent_keys.is_some(),
            "tls": self.tls.is_some(),
        })
    }
}

fn rule(rule: Rule) -> Value {
    json!({
        "stuck_after_ms": rule.stuck_after.map(millis),
        "starving_after_ms": rule.starving_after.map(millis),
    })
}

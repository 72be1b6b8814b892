//! The servers in the settings' file, and the groups of them that share red locks.

use std::sync::Arc;

use serde::Deserialize;
use service_kit::redis::Deployment;

use super::{NamedUrl, deployment_name};
use crate::model::types::Group;

/// A row of `[[redis]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisTable {
    pub(super) name: String,
    url: String,
    /// The databases of the server, instead of those that are set for all servers.
    #[serde(default)]
    pub(super) db: Vec<u16>,
    /// The group of independent servers with which the server shares red locks.
    group: Option<String>,
}

impl RedisTable {
    /// Returns the server with its name.
    pub(super) fn named(&self) -> Result<NamedUrl, String> {
        let name = deployment_name(&self.name)?;
        let target = self.url.parse::<Deployment>().map_err(|error| error.to_string())?;
        Ok(NamedUrl { name: Some(name), target })
    }
}

/// Returns the groups that the rows form.
pub(super) fn groups(tables: &[RedisTable], mistakes: &mut Vec<String>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for table in tables {
        let Some(group) = &table.group else { continue };
        if let Err(error) = deployment_name(group) {
            mistakes.push(format!("[[redis]] `{}`: group: {error}", table.name));
            continue;
        }
        if table.url.parse().is_ok_and(|url: Deployment| url.is_cluster()) {
            mistakes.push(format!(
                "[[redis]] `{}`: group: red locks need standalone servers, and this is a cluster",
                table.name
            ));
            continue;
        }
        let member = Arc::from(table.name.as_str());
        match groups.iter_mut().find(|known| *known.name == **group) {
            Some(known) => known.deployments.push(member),
            None => groups.push(Group { name: group.as_str().into(), deployments: vec![member] }),
        }
    }
    for group in groups.iter().filter(|group| group.deployments.len() < 2) {
        mistakes.push(format!(
            "[[redis]] group `{}` has only one server: red locks need several",
            group.name
        ));
    }
    groups
}

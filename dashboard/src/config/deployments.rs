//! The deployments to watch, from the URLs in the flags and in the settings' file, with their databases and
//! credentials.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use service_kit::redis::{self, Password};
use service_kit::settings::Raw;

use super::parsers::NamedUrl;
use super::redis_table::RedisTable;
use super::{Deployment, Flags, MAX_DEPLOYMENTS};

/// The Redis server that is watched if none is named.
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

pub(super) fn build(
    raw: &Raw<Flags>,
    tables: &[RedisTable],
    mistakes: &mut Vec<String>,
) -> Vec<Deployment> {
    let flags = &raw.values;
    let urls = urls(&flags.redis_url, tables, mistakes);
    if urls.len() > MAX_DEPLOYMENTS || flags.db.len() > MAX_DEPLOYMENTS {
        mistakes.push(format!("at most {MAX_DEPLOYMENTS} servers and as many databases"));
    }
    let credentials = Credentials::read(raw, &urls, mistakes);
    let mut deployments = named_deployments(raw, tables, urls, &credentials, mistakes);
    if !flags.allow_release && !flags.release_redis_url.is_empty() {
        mistakes
            .push(raw.mistake("release_redis_url", "nothing is released without --allow-release"));
    }
    if mistakes.is_empty() {
        let others = |deployments: &[Deployment], field, urls, mistakes: &mut Vec<String>| {
            other_users(raw, field, urls, deployments, &credentials, mistakes)
        };
        let urls = &flags.monitor_redis_url;
        for (index, target) in others(&deployments, "monitor_redis_url", urls, mistakes) {
            deployments[index].monitor = target;
        }
        let urls = &flags.release_redis_url;
        for (index, target) in others(&deployments, "release_redis_url", urls, mistakes) {
            deployments[index].release = target;
        }
    }
    deployments
}

/// Returns the URLs of flags and rows, or [`DEFAULT_URL`] if there are none.
fn urls(flags: &[NamedUrl], tables: &[RedisTable], mistakes: &mut Vec<String>) -> Vec<NamedUrl> {
    let mut urls = flags.to_vec();
    for table in tables {
        match table.named() {
            Ok(named) => urls.push(named),
            Err(error) => mistakes.push(format!("[[redis]] `{}`: {error}", table.name)),
        }
    }
    if urls.is_empty() && mistakes.is_empty() {
        match DEFAULT_URL.parse() {
            Ok(target) => urls.push(NamedUrl { name: None, target }),
            Err(error) => mistakes.push(format!("{DEFAULT_URL}: {error}")),
        }
    }
    urls
}

/// The passwords from files, which override those in URLs.
struct Credentials {
    password: Option<Password>,
    sentinel_password: Option<Password>,
}

impl Credentials {
    /// Reads the files, and checks that each of them is useful with these URLs.
    fn read(raw: &Raw<Flags>, urls: &[NamedUrl], mistakes: &mut Vec<String>) -> Self {
        let flags = &raw.values;
        let mut secret = |field, file: Option<&Path>| {
            file.map(Password::from_file).transpose().unwrap_or_else(|error| {
                mistakes.push(raw.mistake(field, error));
                None
            })
        };
        let password = secret("redis_password_file", flags.redis_password_file.as_deref());
        let sentinel_password =
            secret("sentinel_password_file", flags.sentinel_password_file.as_deref());
        if flags.sentinel_password_file.is_some()
            && !urls.iter().any(|url| url.target.has_sentinels())
        {
            let why = "no master is named by redis+sentinel://";
            mistakes.push(raw.mistake("sentinel_password_file", why));
        }
        if flags.redis_ca_file.is_some() && !urls.iter().any(|url| url.target.uses_tls()) {
            mistakes.push(raw.mistake("redis_ca_file", "no server is reached by rediss://"));
        }
        if let Some(Err(error)) = flags.redis_ca_file.as_deref().map(redis::check_ca_file) {
            mistakes.push(raw.mistake("redis_ca_file", error));
        }
        Self { password, sentinel_password }
    }

    fn apply_to(&self, mut target: redis::Deployment) -> redis::Deployment {
        if let Some(password) = &self.password {
            target = target.with_password(password.clone());
        }
        self.apply_to_sentinels(target)
    }

    fn apply_to_sentinels(&self, target: redis::Deployment) -> redis::Deployment {
        match &self.sentinel_password {
            Some(password) => target.with_sentinel_password(password),
            None => target,
        }
    }
}

/// Gives each deployment its name, its databases and its credentials.
fn named_deployments(
    raw: &Raw<Flags>,
    tables: &[RedisTable],
    urls: Vec<NamedUrl>,
    credentials: &Credentials,
    mistakes: &mut Vec<String>,
) -> Vec<Deployment> {
    let flags = &raw.values;
    let own_dbs: HashMap<&str, &[u16]> =
        tables.iter().map(|table| (table.name.as_str(), table.db.as_slice())).collect();
    let mut names = HashSet::new();
    let mut deployments = Vec::new();
    let alone = urls.len() == 1;
    for NamedUrl { name, target } in urls {
        let target = with_ca_file(raw, credentials.apply_to(target));
        let name = match name {
            Some(name) => name,
            None if alone => "default".to_owned(),
            None => default_name(&target),
        };
        if !names.insert(name.clone()) {
            mistakes.push(format!("two servers are called `{name}`; name them apart"));
        }
        let mut dbs = match own_dbs.get(name.as_str()) {
            Some(dbs) if !dbs.is_empty() => dbs.iter().copied().map(u32::from).collect(),
            _ if flags.db.is_empty() => vec![target.db()],
            _ => flags.db.clone(),
        };
        if dbs.len() > MAX_DEPLOYMENTS {
            mistakes.push(format!("`{name}`: at most {MAX_DEPLOYMENTS} databases"));
        }
        dbs.sort_unstable();
        dbs.dedup();
        if target.is_cluster() && dbs != [0] {
            mistakes.push(format!("`{name}`: a cluster has no database but 0"));
        }
        match target.validate() {
            Ok(target) => {
                let (monitor, release) = (target.clone(), target.clone());
                deployments.push(Deployment { name: name.into(), target, dbs, monitor, release });
            }
            Err(error) => mistakes.push(raw.mistake("redis_url", error)),
        }
    }
    deployments
}

/// Returns the deployments to which one purpose connects as another user, each as its index and that target.
fn other_users(
    raw: &Raw<Flags>,
    field: &'static str,
    urls: &[NamedUrl],
    deployments: &[Deployment],
    credentials: &Credentials,
    mistakes: &mut Vec<String>,
) -> Vec<(usize, redis::Deployment)> {
    let mut mistake = |error: String| mistakes.push(raw.mistake(field, error));
    let mut found = Vec::new();
    for NamedUrl { name, target } in urls {
        let index = match name {
            Some(name) => deployments.iter().position(|deployment| *deployment.name == **name),
            None => (deployments.len() == 1).then_some(0),
        };
        let Some((index, deployment)) = index.and_then(|i| Some((i, deployments.get(i)?))) else {
            let names: Vec<_> = deployments.iter().map(|deployment| &*deployment.name).collect();
            mistake(format!("expected NAME=URL, where NAME is one of: {}", names.join(", ")));
            continue;
        };
        let (place, known) = (target.place(), deployment.target.place());
        if place != known
            || target.is_cluster() != deployment.target.is_cluster()
            || target.has_sentinels() != deployment.target.has_sentinels()
        {
            mistake(format!("it is {place} and that server is {known}: only the user may differ"));
            continue;
        }
        // All users have the same sentinels.
        let target = with_ca_file(raw, credentials.apply_to_sentinels(target.clone()));
        match target.validate() {
            Ok(target) => found.push((index, target)),
            Err(error) => mistake(error.to_string()),
        }
    }
    found
}

/// Adds `--redis-ca-file` to a target with TLS.
fn with_ca_file(raw: &Raw<Flags>, target: redis::Deployment) -> redis::Deployment {
    match &raw.values.redis_ca_file {
        Some(file) if target.uses_tls() => target.with_ca_file(file.clone()),
        _ => target,
    }
}

/// Returns the default name of one of several deployments.
fn default_name(target: &redis::Deployment) -> String {
    match target {
        redis::Deployment::Server(target) => target.address().to_string(),
        redis::Deployment::Cluster(target) => {
            target.seeds().first().map(ToString::to_string).unwrap_or_default()
        }
        redis::Deployment::Sentinel(target) => target.name().to_owned(),
    }
}

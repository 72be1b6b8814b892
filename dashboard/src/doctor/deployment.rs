//! The check of one deployment: a server, the master that sentinels report, or every master of a cluster.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, LockName};
use service_kit::redis::{
    Address, CallError, Cluster, Deployment, Endpoint, Link, LinkStatus, ServerInfo, resolve,
};
use service_kit::shutdown::Shutdown;
use tokio::time::{Instant, sleep, timeout};

use super::account::{Features, Rights};
use super::connection::{CONNECT_LIMIT, link_options, resolver_options};
use super::finding::{Finding, FindingId, Severity, Subject};
use super::locks::{Holders, LockSummary, Standing, judge, suspects};
use super::report::Parts;
use super::server::ServerState;
use super::survey::{Bounds, GAP, Surveyor};
use crate::config::{self, Config};
use crate::model::types::Presence;
use crate::sources::read::ReadError;
use crate::sources::registry::{Lookup, Registry};
use crate::sources::scan::supports_no_touch;
use crate::sources::slot_share::{Nodes, SlotShare};

/// The maximum number of masters of a cluster that are checked.
const MAX_MASTERS: usize = 64;
/// The maximum number of locks whose listeners are counted.
const MAX_COUNTED: usize = 20_000;
/// The number of holders in one lookup of the holder registry, and the maximum number of lookups.
const LOOKUP: usize = 1_000;
const MAX_LOOKUPS: usize = 10;

/// One server of a deployment, connected.
struct Node {
    subject: Subject,
    endpoint: Endpoint,
    link: Link,
    info: Arc<ServerInfo>,
    share: SlotShare,
}

/// One database of a node, with the results of reading it.
struct Database {
    subject: Subject,
    surveyor: Surveyor,
    registry: Registry,
    suspects: BTreeSet<LockName>,
}

/// Checks a deployment, and adds the results to `parts`.
///
/// # Errors
/// The reason why a server cannot be reached, as a clause.
pub(super) async fn check(
    config: &Config,
    deployment: &config::Deployment,
    time_limit: Duration,
    limit: usize,
    parts: &mut Parts,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let nodes = connect(deployment, shutdown).await?;
    let until = Instant::now() + time_limit;
    let mut databases = Vec::new();
    let mut rights_of_nodes = Vec::new();
    for node in &nodes {
        let check = NodeCheck { config, deployment, node, until, shutdown };
        rights_of_nodes.push(check.run(&mut databases, parts).await?);
    }
    if rights_of_nodes.iter().all(|(rights, _)| rights.may_count_subscribers()) {
        let shards = rights_of_nodes.iter().any(|(_, features)| features.shards);
        count_listeners(&mut databases, shards).await.map_err(describe)?;
    }
    read_again(&mut databases).await?;
    let mut holders = Holders::default();
    for database in &databases {
        holders.count_active(database.surveyor.survey());
        look_up(database, &mut holders).await;
    }
    for database in databases {
        let (findings, summary) = finish(database, &holders, limit, parts).await?;
        parts.findings.extend(findings);
        parts.databases.push(summary);
    }
    Ok(())
}

/// One server to check, and the settings of the check.
struct NodeCheck<'a> {
    config: &'a Config,
    deployment: &'a config::Deployment,
    node: &'a Node,
    until: Instant,
    shutdown: &'a Shutdown,
}

impl NodeCheck<'_> {
    /// Checks the server and what the Redis user may do, and surveys its databases. Returns the user's rights.
    async fn run(
        &self,
        databases: &mut Vec<Database>,
        parts: &mut Parts,
    ) -> Result<(Rights, Features), String> {
        let Self { config, deployment, node, shutdown, .. } = self;
        let state = ServerState::read(&node.link, config.monitor.budget).await.map_err(describe)?;
        parts.servers.push(state.summary(&node.subject));
        parts.findings.extend(state.judge(&node.subject, &deployment.dbs, config.monitor.max_ops));
        if node.info.cluster && !deployment.target.is_cluster() {
            let evidence = "This server is one node of a cluster: the locks of its other nodes are not checked.";
            let scheme = if deployment.target.uses_tls() { "rediss" } else { "redis" };
            let next = format!("Name it as `{scheme}+cluster://{}`.", deployment.target.place());
            parts.findings.push(Finding::new(
                FindingId::Incomplete,
                Severity::Warning,
                &node.subject,
                evidence,
                next,
            ));
        }
        let features = Features {
            cluster: node.info.cluster,
            shards: node.info.has_shards(),
            no_touch: supports_no_touch(&node.info),
        };
        // A separate connection is used, since a refusal may leave it in a transaction.
        let trial = connected(node.endpoint.clone(), shutdown).await?.0;
        let user = deployment.target.user();
        let rights = Rights::try_all(user, (&trial, &node.endpoint), features, shutdown).await;
        let rights = rights.map_err(describe)?;
        let (mut unreadable, mut hashes) = (0, 0);
        if rights.can_read_locks() && !state.is_too_old() {
            for db in &deployment.dbs {
                let database = self.survey(*db, &rights).await?;
                unreadable += database.surveyor.survey().unreadable;
                hashes += database.surveyor.survey().hashes;
                databases.push(database);
            }
        }
        let old = node.info.version.as_deref().is_some_and(|version| version.starts_with("6."));
        parts.findings.extend(rights.judge(&node.subject, old, unreadable, hashes));
        Ok((rights, features))
    }

    /// Reads the locks of one database.
    async fn survey(&self, db: u32, rights: &Rights) -> Result<Database, String> {
        let Self { config, node, .. } = self;
        let bounds = Bounds {
            until: self.until,
            max_locks: config.model.max_locks,
            pattern: config.scan.pattern.clone(),
            ignore: config.model.ignore.clone(),
            idle_first: rights.may_read_idle_time && !rights.reads_leave_no_trace,
        };
        let (link, _) = connected(node.endpoint.with_db(db), self.shutdown).await?;
        let mut surveyor = Surveyor::new(link.clone(), config.scan.rate, bounds);
        surveyor.run().await.map_err(read_failure)?;
        let keys = config.agent_keys.clone();
        Ok(Database {
            subject: node.subject.with_db(db),
            surveyor,
            registry: Registry { link, share: node.share.clone(), keys },
            suspects: BTreeSet::new(),
        })
    }
}

/// Connects to every server of the deployment.
async fn connect(
    deployment: &config::Deployment,
    shutdown: &Shutdown,
) -> Result<Vec<Node>, String> {
    let Deployment::Cluster(target) = &deployment.target else {
        let Ok(endpoint) = resolve(&deployment.target, resolver_options(), shutdown) else {
            return Err("a cluster has no single server".to_owned());
        };
        // This is the first database of the settings, since the Redis user's right to SELECT may be limited to it.
        let db = deployment.dbs.first().copied().unwrap_or(0);
        let (link, info) = connected(endpoint.with_db(db), shutdown).await?;
        let Some(address) = &info.address else {
            return Err("the server's address is unknown".to_owned());
        };
        let subject = Subject::of_server(Arc::clone(&deployment.name), address, false);
        let endpoint = endpoint.with_db(db);
        let node = Node { subject, endpoint, link, info, share: SlotShare::Whole };
        return Ok(vec![node]);
    };
    let cluster = Cluster::start(target.clone(), resolver_options(), shutdown);
    let mut state = cluster.state();
    let known = timeout(CONNECT_LIMIT, state.wait_for(|state| !state.slots.masters().is_empty()));
    let slots = match known.await {
        Ok(Ok(state)) => Arc::clone(&state.slots),
        _ => {
            let trouble = cluster.state().borrow().trouble.clone();
            return Err(trouble.unwrap_or_else(|| "no node serves a slot".to_owned()));
        }
    };
    let masters = slots.masters();
    if masters.len() > MAX_MASTERS {
        return Err(format!("it has {} masters; at most {MAX_MASTERS} are checked", masters.len()));
    }
    let shared = Arc::new(Nodes::new(cluster.clone(), shutdown));
    let mut nodes = Vec::new();
    let mut links: HashMap<Address, Link> = HashMap::new();
    for address in masters {
        let endpoint: Endpoint = target.node(address.clone()).into();
        let (link, info) = connected(endpoint.clone(), shutdown).await?;
        links.insert(address.clone(), link.clone());
        let share = SlotShare::Node(Arc::clone(&shared), address.clone());
        let subject = Subject::of_server(Arc::clone(&deployment.name), address, true);
        nodes.push(Node { subject, endpoint, link, info, share });
    }
    shared.set(Arc::clone(&slots), links);
    Ok(nodes)
}

/// Connects to a server within the limit.
async fn connected(
    endpoint: Endpoint,
    shutdown: &Shutdown,
) -> Result<(Link, Arc<ServerInfo>), String> {
    let link = Link::start(endpoint, link_options(), shutdown);
    match timeout(CONNECT_LIMIT, link.up()).await {
        Ok(Some(info)) => Ok((link, info)),
        _ => Err(match &link.state().borrow().status {
            LinkStatus::Down { reason, .. } => reason.clone(),
            LinkStatus::Up(_) => "the connection was closed".to_owned(),
        }),
    }
}

/// Counts listeners on all nodes, since a message in a cluster reaches each of them.
async fn count_listeners(databases: &mut [Database], shards: bool) -> Result<(), CallError> {
    let channels: Vec<Vec<u8>> =
        databases.iter().flat_map(|database| database.surveyor.channels(MAX_COUNTED)).collect();
    let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut servers = BTreeSet::new();
    for database in databases.iter_mut() {
        // Channels have no databases.
        if !servers.insert(Arc::clone(&database.subject.server)) {
            continue;
        }
        let mut all = database.surveyor.listeners("NUMSUB", &channels).await?;
        if shards {
            let own = database.surveyor.channels(MAX_COUNTED);
            for (channel, count) in database.surveyor.listeners("SHARDNUMSUB", &own).await? {
                *all.entry(channel).or_default() += count;
            }
        }
        for (channel, count) in all {
            *counts.entry(channel).or_default() += count;
        }
    }
    databases.iter_mut().for_each(|database| database.surveyor.set_subscribers(&counts));
    Ok(())
}

/// Reads suspicious locks a second time, some seconds later. Locks that are being changed are sound by then.
async fn read_again(databases: &mut [Database]) -> Result<(), String> {
    let mut any = false;
    for Database { surveyor, suspects: found, .. } in databases.iter_mut() {
        *found = suspects(surveyor.survey(), surveyor.clock()).into_iter().collect();
        any |= !found.is_empty();
    }
    if !any {
        return Ok(());
    }
    sleep(GAP).await;
    for Database { surveyor, suspects: found, .. } in databases {
        let holders = |surveyor: &Surveyor, name: &LockName| {
            let lock = surveyor.survey().locks.get(name)?;
            Some(lock.hash.holders.iter().map(|holder| holder.id).collect::<Vec<_>>())
        };
        let names: Vec<LockName> = found.iter().cloned().collect();
        let before: Vec<_> =
            names.iter().map(|name| (name.clone(), holders(surveyor, name))).collect();
        surveyor.reread(&names).await.map_err(read_failure)?;
        // Another holder has not held the lock for that long.
        *found = before
            .into_iter()
            .filter(|(name, before)| holders(surveyor, name) == *before)
            .map(|(name, _)| name)
            .collect();
    }
    Ok(())
}

/// Looks up the suspicious locks' holders in the holder registry, as far as the Redis user and the nodes allow.
async fn look_up(database: &Database, holders: &mut Holders) {
    let survey = database.surveyor.survey();
    let lookups = database.suspects.iter().filter_map(|name| Some((name, survey.locks.get(name)?)));
    let lookups: Vec<Lookup> = lookups
        .flat_map(|(name, lock)| lock.hash.holders.iter().map(|holder| (holder.id, name.clone())))
        .collect();
    for lookups in lookups.chunks(LOOKUP).take(MAX_LOOKUPS) {
        let Ok(report) = database.registry.look_up(lookups.to_vec()).await else { return };
        let agents: HashMap<ClientId, Presence> = report.agents.into_iter().collect();
        for (_, id, identity) in report.holders {
            let standing = match (identity, agents.get(&id.client)) {
                (Some(identity), _) => Standing::Published(identity.description()),
                (None, Some(Presence::Present)) => Standing::Unpublished,
                (None, Some(Presence::Missing)) => Standing::AgentGone,
                // It is no agent, or one that may not publish itself.
                (None, Some(Presence::Unknown) | None) => continue,
            };
            holders.standing.insert(id, standing);
        }
    }
}

/// Judges one database.
async fn finish(
    mut database: Database,
    holders: &Holders,
    limit: usize,
    parts: &mut Parts,
) -> Result<(Vec<Finding>, LockSummary), String> {
    let names: Vec<LockName> = database.suspects.iter().take(limit).cloned().collect();
    database.surveyor.measure(&names).await.map_err(describe)?;
    let (survey, usage) = database.surveyor.finish();
    parts.cost.keys += survey.keys;
    parts.cost.commands += usage.commands;
    parts.cost.server_seconds += usage.server_time.as_secs_f64();
    let findings = judge(&survey, &database.suspects, holders, &database.subject);
    Ok((findings, LockSummary::of(&survey, &database.subject, limit)))
}

fn read_failure(error: ReadError) -> String {
    match error {
        ReadError::Call(error) => describe(error),
        ReadError::UnexpectedReply(_) => error.to_string(),
    }
}

/// Describes a call without an answer.
fn describe(error: CallError) -> String {
    match error {
        CallError::Unsent { reason } | CallError::Lost { reason } => {
            format!("the connection was lost during the pass: {reason}")
        }
        CallError::Refused(refused) => format!("Redis refused a command: {refused}"),
    }
}

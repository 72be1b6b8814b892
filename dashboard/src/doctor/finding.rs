//! Findings: facts that put locks at risk, with their evidence and the next step.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use service_kit::redis::Address;

use crate::model::types::Certainty;
use crate::text::{quoted, redis_command};

/// The severity of a finding, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// A client waits in vain, or may lose a lock at any moment.
    Problem,
    /// Locks are at risk, or cannot be seen.
    Warning,
    /// The finding is worth knowing.
    Note,
}

/// The kinds of findings, in the order of a report. Their names in JSON are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FindingId {
    Leaked,
    Malformed,
    DeadWaiter,
    Orphan,
    Evicts,
    RefusesWrites,
    UnsupportedVersion,
    AccountCommands,
    AccountKeys,
    AccountChannels,
    CommandsMissing,
    PersistenceOff,
    ReplicasNotRequired,
    ReplicaLagging,
    IsReplica,
    Incomplete,
    LookAlike,
    Tokens,
    UncheckedDatabases,
    SnapshotsOnly,
    NotificationsOff,
    MonitorUnbounded,
    MonitorBusy,
}

/// The subject of a finding: a server, one of its databases, or one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Subject {
    pub deployment: Arc<str>,
    pub server: Arc<str>,
    pub db: Option<u32>,
    /// The lock or key, with control characters escaped.
    pub name: Option<String>,
    /// The program and the options that reach the server: `redis-cli -h … -p …`.
    #[serde(skip)]
    pub cli: Arc<str>,
}

impl Subject {
    /// Describes a server, which is one of a cluster or a single one.
    pub(super) fn of_server(deployment: Arc<str>, address: &Address, cluster: bool) -> Self {
        let place = match address {
            Address::Tcp { host, port, tls } => {
                let tls = if *tls { " --tls" } else { "" };
                format!("-h {} -p {port}{tls}", quoted(host.as_bytes()))
            }
            Address::Unix(path) => format!("-s {}", quoted(path.as_os_str().as_bytes())),
        };
        let follow = if cluster { "-c " } else { "" };
        let cli = format!("redis-cli {follow}{place}").into();
        Self { deployment, server: address.to_string().into(), db: None, name: None, cli }
    }

    /// Returns a line for a shell that runs a Redis command with a key in this database.
    pub(super) fn command(&self, command: &str, key: &[u8], rest: &str) -> String {
        let db = self.db.filter(|db| *db != 0).map_or_else(String::new, |db| format!(" -n {db}"));
        redis_command(&format!("{}{db}", self.cli), command, key, rest)
    }

    pub(super) fn with_db(&self, db: u32) -> Self {
        Self { db: Some(db), ..self.clone() }
    }

    pub(super) fn named(&self, name: String) -> Self {
        Self { name: Some(name), ..self.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub id: FindingId,
    pub severity: Severity,
    /// The certainty, or `None` if the finding needs no proof.
    #[serde(serialize_with = "certainty_word")]
    pub certainty: Option<Certainty>,
    #[serde(flatten)]
    pub subject: Subject,
    /// The holders of the lock.
    pub holders: Vec<String>,
    /// A sentence that contains names and numbers.
    pub evidence: String,
    /// A sentence that contains a command or a page.
    pub next_step: String,
}

impl Finding {
    pub(super) fn new(
        id: FindingId,
        severity: Severity,
        subject: &Subject,
        evidence: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self {
            id,
            severity,
            certainty: None,
            subject: subject.clone(),
            holders: Vec::new(),
            evidence: evidence.into(),
            next_step: next_step.into(),
        }
    }

    /// The order of findings in a report: worst first, certain before suspected.
    fn rank(&self) -> impl Ord + '_ {
        (self.severity, self.id, self.certainty, &self.subject)
    }
}

/// Writes the word that pages use. The dashboard's API has an older one for the certain case.
fn certainty_word<S: Serializer>(certainty: &Option<Certainty>, to: S) -> Result<S::Ok, S::Error> {
    let word = certainty.map(|certainty| match certainty {
        Certainty::Certain => "certain",
        Certainty::Suspected => "suspected",
    });
    word.serialize(to)
}

/// Findings that a report leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Omitted {
    pub id: FindingId,
    pub severity: Severity,
    pub count: u64,
}

/// Sorts findings, and returns `limit` of each kind and severity with the number of the others.
pub(super) fn select(mut findings: Vec<Finding>, limit: usize) -> (Vec<Finding>, Vec<Omitted>) {
    findings.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let (mut selected, mut omitted) = (Vec::new(), Vec::new());
    let mut findings = findings.into_iter().peekable();
    while let Some(first) = findings.peek() {
        let (id, severity) = (first.id, first.severity);
        let mut count = 0;
        while let Some(finding) =
            findings.next_if(|next| (next.id, next.severity) == (id, severity))
        {
            count += 1;
            if count <= limit {
                selected.push(finding);
            }
        }
        if let Some(left) = count.checked_sub(limit).filter(|left| *left > 0) {
            let count = u64::try_from(left).unwrap_or(u64::MAX);
            omitted.push(Omitted { id, severity, count });
        }
    }
    (selected, omitted)
}

#[cfg(test)]
pub(super) mod fixtures {
    use super::*;

    /// Returns a server without findings.
    pub(in super::super) fn server() -> Subject {
        let address = Address::Tcp { host: "a".into(), port: 1, tls: false };
        Subject::of_server("default".into(), &address, false)
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::server;
    use super::*;

    #[test]
    fn a_command_names_server_and_database() {
        let command = |address: &Address, cluster| {
            Subject::of_server("default".into(), address, cluster).with_db(2)
        };
        let (tcp, path) = (|tls| Address::Tcp { host: "r;1".into(), port: 7, tls }, "/run/a b");
        assert_eq!(
            command(&tcp(true), false).command("DEL", b"x\0", ""),
            r#"redis-cli -h 'r;1' -p 7 --tls -n 2 --quoted-input DEL '"x\x00"'"#
        );
        assert_eq!(
            command(&tcp(false), true).with_db(0).command("LRANGE", b"it's", " 0 9"),
            r"redis-cli -c -h 'r;1' -p 7 LRANGE 'it'\''s' 0 9"
        );
        let socket = command(&Address::Unix(path.into()), false);
        assert_eq!(socket.command("HGETALL", b"x", ""), "redis-cli -s '/run/a b' -n 2 HGETALL 'x'");
    }

    fn finding(id: FindingId, severity: Severity, name: &str) -> Finding {
        let subject = server().with_db(0);
        Finding::new(id, severity, &subject.named(name.to_owned()), "", "")
    }

    #[test]
    fn findings_are_sorted_worst_first_and_limited_by_kind_and_severity() {
        let all = vec![
            finding(FindingId::Tokens, Severity::Note, "t"),
            finding(FindingId::Leaked, Severity::Warning, "w"),
            finding(FindingId::Leaked, Severity::Problem, "c"),
            finding(FindingId::Leaked, Severity::Problem, "a"),
            finding(FindingId::Leaked, Severity::Problem, "b"),
            finding(FindingId::Evicts, Severity::Problem, "e"),
        ];
        let (selected, omitted) = select(all, 2);
        let names: Vec<_> = selected.iter().filter_map(|f| f.subject.name.as_deref()).collect();
        assert_eq!(names, ["a", "b", "e", "w", "t"]);
        let left = Omitted { id: FindingId::Leaked, severity: Severity::Problem, count: 1 };
        assert_eq!(omitted, [left]);
    }
}

//! The report as JSON and as text.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::finding::{Finding, Omitted, Severity, select};
use super::locks::LockSummary;
use super::server::ServerSummary;
use super::shown::{amount, bytes, count, counted, duration};

/// The version of the JSON form. It is incremented when a field changes its meaning or is removed.
const SCHEMA: u32 = 1;
/// The number of contended locks that the text names.
const CONTENDED: usize = 5;

/// Everything that one run found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    pub schema: u32,
    pub version: &'static str,
    pub exit_status: u8,
    pub servers: Vec<ServerSummary>,
    pub databases: Vec<LockSummary>,
    pub findings: Vec<Finding>,
    pub omitted: Vec<Omitted>,
    pub unreachable: Vec<Unreachable>,
    pub cost: Cost,
}

/// A deployment that could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Unreachable {
    pub deployment: Arc<str>,
    pub server: String,
    pub reason: String,
}

/// The load that the scan put on the servers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Cost {
    pub keys: u64,
    pub commands: u64,
    pub seconds: f64,
    /// The servers' own time for the scan, as far as measured.
    pub server_seconds: f64,
}

/// The unsorted parts of a report.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub servers: Vec<ServerSummary>,
    pub databases: Vec<LockSummary>,
    pub findings: Vec<Finding>,
    pub unreachable: Vec<Unreachable>,
    pub cost: Cost,
}

impl Report {
    /// Assembles a report with at most `limit` findings of each kind.
    pub(super) fn new(parts: Parts, limit: usize) -> Self {
        let Parts { servers, databases, findings, unreachable, cost } = parts;
        let worst = findings.iter().map(|finding| finding.severity).min();
        let exit_status = match worst {
            _ if !unreachable.is_empty() => super::EXIT_UNREACHABLE,
            Some(Severity::Problem) => super::EXIT_PROBLEMS,
            Some(Severity::Warning) => super::EXIT_WARNINGS,
            Some(Severity::Note) | None => 0,
        };
        let (findings, omitted) = select(findings, limit);
        let version = env!("CARGO_PKG_VERSION");
        Self {
            schema: SCHEMA,
            version,
            exit_status,
            servers,
            databases,
            findings,
            omitted,
            unreachable,
            cost,
        }
    }

    fn count(&self, severity: Severity) -> u64 {
        let listed = self.findings.iter().filter(|finding| finding.severity == severity).count();
        let omitted = self.omitted.iter().filter(|omitted| omitted.severity == severity);
        u64::try_from(listed).unwrap_or(u64::MAX)
            + omitted.map(|omitted| omitted.count).sum::<u64>()
    }

    fn write_findings(&self, text: &mut impl fmt::Write) -> fmt::Result {
        let several = self.servers.len() > 1;
        for (index, finding) in self.findings.iter().enumerate() {
            let subject = &finding.subject;
            let mut place = Vec::new();
            place.extend(subject.name.clone());
            place.extend(several.then(|| subject.server.to_string()));
            place.extend(subject.db.filter(|db| *db != 0).map(|db| format!("db {db}")));
            let suspected = match finding.certainty {
                Some(crate::model::types::Certainty::Suspected) => ", suspected",
                _ => "",
            };
            let id = word(&finding.id);
            let severity = word(&finding.severity).to_uppercase();
            writeln!(
                text,
                "{severity:<8} {}",
                [format!("{id}{suspected}"), place.join(", ")].join("  ").trim_end()
            )?;
            writeln!(text, "         {}", finding.evidence)?;
            writeln!(text, "         Next: {}\n", finding.next_step)?;
            let last = self
                .findings
                .get(index + 1)
                .is_none_or(|next| (next.id, next.severity) != (finding.id, finding.severity));
            let left =
                self.omitted.iter().find(|o| (o.id, o.severity) == (finding.id, finding.severity));
            if let Some(left) = left.filter(|_| last) {
                writeln!(text, "         and {} more {id} (--limit)\n", count(left.count))?;
            }
        }
        Ok(())
    }
}

/// Returns the word of an enumeration in JSON.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for server in &self.servers {
            writeln!(f, "{}", describe(server))?;
            let own = |db: &&LockSummary| {
                (&db.deployment, &db.server) == (&server.deployment, &server.server)
            };
            let databases: Vec<&LockSummary> = self.databases.iter().filter(own).collect();
            for database in &databases {
                let label = if databases.len() > 1 || database.db != 0 {
                    format!("db {}: ", database.db)
                } else {
                    String::new()
                };
                write_locks(f, &label, database)?;
            }
            if let (Some(commands), Some(input), Some(monitor)) = (
                server.commands_per_second,
                server.input_bytes_per_second,
                server.monitor_bytes_per_second,
            ) {
                row(
                    f,
                    "traffic",
                    &format!(
                        "{} and {} a second in; MONITOR would send about {} a second",
                        counted(commands, "command"),
                        bytes(input),
                        bytes(monitor)
                    ),
                )?;
            }
            f.write_char('\n')?;
        }
        self.write_findings(f)?;
        for place in &self.unreachable {
            writeln!(f, "{}  {}  not checked: {}\n", place.deployment, place.server, place.reason)?;
        }
        let cost = &self.cost;
        writeln!(
            f,
            "{}, {}, {}. {} in {:.1} s: {}, {:.0} ms of server time.",
            counted(self.count(Severity::Problem), "problem"),
            counted(self.count(Severity::Warning), "warning"),
            counted(self.count(Severity::Note), "note"),
            counted(cost.keys, "key"),
            cost.seconds,
            counted(cost.commands, "command"),
            cost.server_seconds * 1_000.0,
        )
    }
}

fn row(f: &mut impl fmt::Write, label: &str, text: &str) -> fmt::Result {
    writeln!(f, "  {label:<10} {text}")
}

fn describe(server: &ServerSummary) -> String {
    let mut facts = vec![server.version.clone().unwrap_or_else(|| "version unknown".to_owned())];
    facts.extend(server.role.clone());
    if let Some(replicas) = server.replicas.filter(|replicas| *replicas > 0) {
        facts.push(counted(replicas, "replica"));
    }
    facts.extend(server.clients.map(|clients| counted(clients, "client")));
    format!("{}  {}  {}", server.deployment, server.server, facts.join(", "))
}

fn write_locks(f: &mut impl fmt::Write, label: &str, database: &LockSummary) -> fmt::Result {
    let mut kinds: Vec<String> = Vec::new();
    for (kind, n) in &database.by_kind {
        kinds.push(format!("{} {kind}", count(*n)));
    }
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    let locks = amount(database.locks, "lock held", "locks held");
    row(f, "locks", &format!("{label}{locks}{kinds}; {}", counted(database.keys, "key")))?;
    if database.locks > 0 {
        let longest = database.longest_ttl.as_ref().map(|longest| {
            let left = duration(Duration::from_millis(longest.milliseconds));
            format!("longest {left} ({}); ", longest.name)
        });
        let without = count(database.without_ttl);
        row(f, "TTL", &format!("{label}{}{without} without", longest.unwrap_or_default()))?;
    }
    let contended: Vec<String> = database
        .contended
        .iter()
        .take(CONTENDED)
        .map(|lock| format!("{} ({})", lock.name, counted(lock.waiters, "waiter")))
        .collect();
    if !contended.is_empty() {
        row(f, "contended", &format!("{label}{}", contended.join(", ")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingId;
    use super::super::finding::fixtures::server;
    use super::*;

    fn finding(severity: Severity, name: &str) -> Finding {
        let subject = server().with_db(3).named(name.to_owned());
        Finding::new(FindingId::Leaked, severity, &subject, "It has no TTL.", "Look at it.")
    }

    fn report(findings: Vec<Finding>) -> Report {
        Report::new(Parts { findings, ..Parts::default() }, 2)
    }

    #[test]
    fn the_exit_status_is_that_of_the_worst_finding() {
        let status = |severities: &[Severity]| {
            report(severities.iter().map(|s| finding(*s, "x")).collect()).exit_status
        };
        use Severity::{Note, Problem, Warning};
        assert_eq!([status(&[]), status(&[Note])], [0, 0]);
        assert_eq!([status(&[Note, Warning]), status(&[Warning, Problem])], [1, 2]);
        let unreachable =
            vec![Unreachable { deployment: "d".into(), server: "s".into(), reason: "r".into() }];
        let parts =
            Parts { findings: vec![finding(Problem, "x")], unreachable, ..Parts::default() };
        assert_eq!(Report::new(parts, 2).exit_status, 69);
    }

    #[test]
    fn the_text_has_the_worst_first_and_counts_the_others() {
        let mut findings = vec![finding(Severity::Warning, "w")];
        findings.extend(["a", "b", "c"].map(|name| finding(Severity::Problem, name)));
        let text = report(findings).to_string();
        let expected = "PROBLEM  leaked  a, db 3\n         It has no TTL.\n         Next: Look at it.\n\n\
                        PROBLEM  leaked  b, db 3\n         It has no TTL.\n         Next: Look at it.\n\n         \
                        and 1 more leaked (--limit)\n\nWARNING  leaked  w, db 3\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("3 problems, 1 warning, 0 notes."), "{text}");
    }
}

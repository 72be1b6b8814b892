//! The Redis user's rights. Every command, key pattern and channel that the dashboard uses is tried once, on keys that
//! do not exist.
//!
//! Each refusal adds a row to the server's ACL log.

use redis::{Cmd, Value, cmd};
use redisson::{ClientId, HolderId, LockName, keys};
use service_kit::redis::{CallError, Endpoint, Link, PubSubEvent, ServerError, Subscriber};
use service_kit::shutdown::Shutdown;
use tokio::time::timeout;

use super::connection::{CONNECT_LIMIT, subscriber_options};
use super::finding::{Finding, FindingId, Severity, Subject};
use super::shown::{amount, count};
use crate::sources::read::{concerns_key, pipeline};
use crate::text::visible;

/// The name of the lock whose keys are tried.
const PROBE: &str = "lockscope-doctor";
/// Commands without which no lock can be read.
const ESSENTIAL: [&str; 10] =
    ["ping", "scan", "hlen", "hrandfield", "hstrlen", "hmget", "pttl", "type", "multi", "exec"];

/// The features of a server that decide which commands the dashboard uses there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Features {
    pub cluster: bool,
    pub shards: bool,
    pub no_touch: bool,
}

/// The rights that a Redis user lacks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rights {
    user: String,
    /// Commands as in an ACL rule, without the `+`.
    commands: Vec<&'static str>,
    /// Commands that the server itself does not offer, such as those that a managed service removes.
    missing: Vec<&'static str>,
    /// Key patterns, without the `%R~` or `~`.
    keys: Vec<String>,
    channels: Vec<String>,
    pub may_read_idle_time: bool,
    pub reads_leave_no_trace: bool,
}

/// A command to try, with its name in an ACL rule.
struct Probe {
    rule: &'static str,
    command: Cmd,
}

fn probe(rule: &'static str, args: &[&[u8]]) -> Probe {
    let mut words = rule.split('|');
    let mut command = cmd(&words.next().unwrap_or_default().to_uppercase());
    for word in words {
        command.arg(word.to_uppercase());
    }
    for arg in args {
        command.arg(*arg);
    }
    Probe { rule, command }
}

/// Returns the keys to try, with the patterns that match them.
fn key_patterns() -> [(Vec<u8>, String); 8] {
    let name = LockName::new(PROBE.as_bytes()).expect("it is neither empty nor long");
    let client = ClientId::from_random([0; 16]);
    let holder = HolderId::new(client, 1);
    let with_star = |prefix: &[u8]| format!("{}*", String::from_utf8_lossy(prefix));
    [
        (name.as_bytes().to_vec(), "*".to_owned()),
        (keys::queue(&name), with_star(keys::QUEUE)),
        (keys::deadlines(&name), with_star(keys::DEADLINES)),
        (keys::token(&name), with_star(keys::TOKEN)),
        (keys::read_marker_prefix(&name, &holder), "{*".to_owned()),
        (keys::agent(&client), with_star(keys::AGENT)),
        (keys::agent_holders(&client), with_star(keys::AGENT_HOLDERS)),
        (keys::agent_waiters(&client), with_star(keys::AGENT_WAITERS)),
    ]
}

fn probes(features: Features) -> Vec<Probe> {
    let (key, one): (&[u8], &[u8]) = (PROBE.as_bytes(), b"1");
    let mut probes = vec![
        probe("ping", &[]),
        probe("info", &[b"server"]),
        probe("dbsize", &[]),
        probe("config|get", &[b"notify-keyspace-events"]),
        probe("client|setname", &[crate::redis::CLIENT_NAME.as_bytes()]),
        probe("client|list", &[b"ID", one]),
        probe("scan", &[b"0", b"COUNT", one]),
        probe("type", &[key]),
        probe("exists", &[key]),
        probe("hlen", &[key]),
        probe("hrandfield", &[key]),
        probe("hstrlen", &[key, one]),
        probe("hmget", &[key, one]),
        probe("pttl", &[key]),
        probe("pubsub|numsub", &[]),
        probe("llen", &[key]),
        probe("lrange", &[key, b"0", b"0"]),
        probe("memory|usage", &[key]),
        probe("zcard", &[key]),
        probe("zcount", &[key, b"0", b"0"]),
        probe("zmscore", &[key, one]),
        probe("getrange", &[key, b"0", b"0"]),
        probe("time", &[]),
    ];
    if features.shards {
        probes.push(probe("pubsub|shardnumsub", &[]));
    }
    if features.no_touch {
        probes.push(probe("client|no-touch", &[b"on"]));
    }
    if features.cluster {
        probes.extend(["cluster|slots", "cluster|info", "asking"].map(|rule| probe(rule, &[])));
    }
    // These come last: if one of them is refused, the connection may stay in a transaction.
    probes.extend(["multi", "exec"].map(|rule| probe(rule, &[])));
    probes
}

impl Rights {
    /// Tries commands, keys and channels on separate connections.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn try_all(
        user: &str,
        (link, endpoint): (&Link, &Endpoint),
        features: Features,
        shutdown: &Shutdown,
    ) -> Result<Self, CallError> {
        let mut rights = Self {
            user: visible(user.as_bytes()),
            reads_leave_no_trace: features.no_touch,
            ..Self::default()
        };
        let idle = cmd("OBJECT").arg("IDLETIME").arg(PROBE).clone();
        let idle = link.call(idle).await;
        rights.may_read_idle_time = !is_refused(&idle, |error| !concerns_key(error));
        for (key, pattern) in key_patterns() {
            let reply = link.call(cmd("TYPE").arg(key).clone()).await;
            if is_refused(&reply, concerns_key) {
                rights.keys.push(pattern);
            }
        }
        let probes = probes(features);
        let commands = probes.iter().map(|probe| probe.command.clone()).collect();
        for (probe, reply) in probes.iter().zip(link.pipeline(pipeline(commands)).await?) {
            if let Err(error) = reply {
                rights.refuse(probe.rule, &error);
            }
        }
        rights.try_channels(endpoint, shutdown).await;
        Ok(rights)
    }

    fn refuse(&mut self, rule: &'static str, error: &ServerError) {
        if error.is_unknown_command() {
            self.missing.push(rule);
        }
        if !error.is_denied() || concerns_key(error) {
            return;
        }
        self.reads_leave_no_trace &= rule != "client|no-touch";
        self.commands.push(rule);
    }

    /// Subscribes like the dashboard, until each subscription is confirmed or refused.
    async fn try_channels(&mut self, endpoint: &Endpoint, shutdown: &Shutdown) {
        let (subscriber, mut events) =
            Subscriber::start(endpoint.clone(), subscriber_options(), shutdown);
        let patterns = [keys::LOCK_CHANNEL, keys::READ_WRITE_CHANNEL].map(|p| [p, b"*"].concat());
        let channels = ["__keyspace@", "__keyevent@"];
        let mut waiting = patterns.len() + channels.len();
        subscriber.psubscribe(patterns);
        subscriber.subscribe(channels.map(|channel| format!("{channel}0__:{PROBE}").into_bytes()));
        let replies = async {
            while waiting > 0 {
                match events.recv().await {
                    Some(PubSubEvent::Refused { channel, reason }) => {
                        waiting -= 1;
                        self.refuse_channel(&channel, &reason);
                    }
                    Some(PubSubEvent::Subscribed(_) | PubSubEvent::PSubscribed(_)) => waiting -= 1,
                    Some(PubSubEvent::Down { .. }) | None => return,
                    Some(_) => {}
                }
            }
        };
        // Without an answer, nothing is known or reported.
        drop(timeout(CONNECT_LIMIT, replies).await);
        // Refusals may arrive in any order.
        self.channels.sort();
        self.channels.dedup();
    }

    fn refuse_channel(&mut self, channel: &[u8], reason: &str) {
        if !reason.contains("NOPERM") {
            return;
        }
        let channel = String::from_utf8_lossy(channel);
        let (rule, pattern) = match channel.split_once("0__:") {
            Some((prefix, _)) => ("subscribe", format!("{prefix}*")),
            None => ("psubscribe", channel.into_owned()),
        };
        if reason.contains("channel") {
            self.channels.push(pattern);
        } else if !self.commands.contains(&rule) {
            self.commands.push(rule);
        }
    }

    /// Returns whether the Redis user may run every command that is needed to read a lock.
    pub(super) fn can_read_locks(&self) -> bool {
        !ESSENTIAL
            .iter()
            .any(|command| self.commands.contains(command) || self.missing.contains(command))
    }

    pub(super) fn may_count_subscribers(&self) -> bool {
        !self.commands.contains(&"pubsub|numsub")
    }

    /// Returns the missing rights. `unreadable` out of `hashes` could not be read.
    pub(super) fn judge(
        &self,
        subject: &Subject,
        old: bool,
        unreadable: u64,
        hashes: u64,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let user = &self.user;
        let mut add = |id, severity, evidence: String, rules: Vec<String>| {
            let next = format!(
                "Run `{} ACL SETUSER {user} {}`; docs/howto/acl.md has the smallest user.",
                subject.cli,
                rules.join(" ")
            );
            findings.push(Finding::new(id, severity, subject, evidence, next));
        };
        if !self.commands.is_empty() {
            let blind = if self.can_read_locks() { "" } else { ", so its locks were not read" };
            let severity = if blind.is_empty() { Severity::Warning } else { Severity::Problem };
            let list = self.commands.join(", ").replace('|', " ");
            let rules = self.commands.iter().map(|rule| format!("'+{rule}'")).collect();
            let evidence = format!("The Redis user {user} may not run {list}{blind}.");
            add(FindingId::AccountCommands, severity, evidence, rules);
        }
        if !self.keys.is_empty() || unreadable > 0 {
            // Redis 7.0 introduced the right to read without a right to write.
            let sign = if old { "~" } else { "%R~" };
            let all = unreadable > 0 || self.keys.iter().any(|pattern| pattern == "*");
            let patterns = if all { vec!["*".to_owned()] } else { self.keys.clone() };
            let severity = if all && unreadable == 0 { Severity::Note } else { Severity::Warning };
            let evidence = if all {
                format!(
                    "The Redis user {user} may read only keys of some names: {} of {} could not be read, and may be locks.",
                    count(unreadable),
                    amount(hashes, "hash", "hashes")
                )
            } else {
                format!("The Redis user {user} may not read keys like {}.", self.keys.join(", "))
            };
            let rules = patterns.iter().map(|pattern| format!("'{sign}{pattern}'")).collect();
            add(FindingId::AccountKeys, severity, evidence, rules);
        }
        if !self.channels.is_empty() {
            let list = self.channels.join(", ");
            let evidence = format!(
                "The Redis user {user} may not subscribe to {list}: a dashboard learns of releases later, by polling."
            );
            let rules = self.channels.iter().map(|channel| format!("'&{channel}'")).collect();
            add(FindingId::AccountChannels, Severity::Warning, evidence, rules);
        }
        if !self.missing.is_empty() {
            let (severity, blind) = match self.can_read_locks() {
                true => (Severity::Note, ""),
                false => (Severity::Problem, ", so its locks were not read"),
            };
            let list = self.missing.join(", ").replace('|', " ").to_uppercase();
            let evidence = format!("The server does not offer {list}{blind}.");
            let next = "docs/howto/managed-redis.md says what works without them.";
            findings.push(Finding::new(
                FindingId::CommandsMissing,
                severity,
                subject,
                evidence,
                next,
            ));
        }
        findings
    }
}

/// Returns whether the Redis user may not do this, for a reason that `concerns` accepts.
fn is_refused(reply: &Result<Value, CallError>, concerns: fn(&ServerError) -> bool) -> bool {
    let refused = reply.as_ref().err().and_then(CallError::refused);
    refused.is_some_and(|error| error.is_denied() && concerns(error))
}

#[cfg(test)]
mod tests {
    use super::super::finding::fixtures::server;
    use super::*;

    fn denied(message: &str) -> ServerError {
        ServerError { code: "NOPERM".into(), message: message.into() }
    }

    #[test]
    fn refused_commands_and_refused_keys_are_distinguished() {
        let mut rights = Rights::default();
        rights.refuse("hlen", &denied("No permissions to access a key"));
        rights.refuse(
            "llen",
            &denied("this user has no permissions to access one of the keys used as arguments"),
        );
        let unknown = ServerError { code: "ERR".into(), message: "unknown command".into() };
        rights.refuse("config|get", &unknown);
        assert_eq!(rights.commands, Vec::<&str>::new());
        assert!(rights.can_read_locks());
        let found = rights.judge(&server(), false, 0, 9);
        assert_eq!((found[0].id, found[0].severity), (FindingId::CommandsMissing, Severity::Note));
        assert_eq!(found[0].evidence, "The server does not offer CONFIG GET.");
        rights.refuse(
            "memory|usage",
            &denied("User alice has no permissions to run the 'memory|usage' command"),
        );
        assert!(rights.can_read_locks());
        rights.refuse(
            "scan",
            &denied("this user has no permissions to run the 'scan' command or its subcommand"),
        );
        assert!(!rights.can_read_locks());
        assert_eq!(rights.commands, ["memory|usage", "scan"]);
    }

    #[test]
    fn the_next_step_is_the_smallest_rule_for_the_user() {
        let rights = Rights {
            user: "alice".into(),
            commands: vec!["memory|usage", "time"],
            keys: vec!["lockscope:agent:*".into()],
            channels: vec!["redisson_rwlock:*".into()],
            ..Rights::default()
        };
        let found = rights.judge(&server(), false, 0, 9);
        let steps: Vec<_> = found.iter().map(|found| found.next_step.as_str()).collect();
        assert!(
            steps[0].starts_with(
                "Run `redis-cli -h 'a' -p 1 ACL SETUSER alice '+memory|usage' '+time'`"
            ),
            "{steps:?}"
        );
        assert!(
            steps[1].contains("'%R~lockscope:agent:*'")
                && steps[2].contains("'&redisson_rwlock:*'"),
            "{steps:?}"
        );
        assert_eq!(found[0].severity, Severity::Warning);
        let blind = Rights { user: "default".into(), commands: vec!["scan"], ..Rights::default() };
        let found = blind.judge(&server(), true, 0, 0);
        assert_eq!(found[0].severity, Severity::Problem);
        assert!(found[0].next_step.contains("SETUSER default '+scan'"));
        let narrow = Rights { keys: vec!["*".into()], ..Rights::default() };
        let found = narrow.judge(&server(), true, 3, 9);
        assert!(found[0].evidence.contains("3 of 9 hashes") && found[0].next_step.contains("'~*'"));
        let narrower = Rights { keys: vec!["lockscope:agent:*".into()], ..Rights::default() };
        assert_eq!(narrower.judge(&server(), true, 3, 9), found, "nothing read is left out");
        assert_eq!(Rights::default().judge(&server(), true, 0, 9), []);
    }

    #[test]
    fn refused_channels_name_their_pattern() {
        let mut rights = Rights::default();
        let channel = "NOPERM No permissions to access a channel";
        rights.refuse_channel(b"redisson_lock__channel:*", channel);
        rights.refuse_channel(b"__keyspace@0__:lockscope-doctor", channel);
        rights.refuse_channel(
            b"redisson_rwlock:*",
            "NOPERM User a has no permissions to run the 'psubscribe' command",
        );
        assert_eq!(rights.channels, ["redisson_lock__channel:*", "__keyspace@*"]);
        assert_eq!(rights.commands, ["psubscribe"]);
    }

    #[test]
    fn every_essential_command_is_tried() {
        let probes = probes(Features { cluster: true, shards: true, no_touch: true });
        for command in ESSENTIAL {
            assert!(probes.iter().any(|probe| probe.rule == command), "{command}");
        }
        let last: Vec<_> = probes.iter().rev().take(2).map(|probe| probe.rule).collect();
        assert_eq!(last, ["exec", "multi"]);
    }
}

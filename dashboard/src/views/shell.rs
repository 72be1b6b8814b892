//! Read-only commands to check a lock by hand. They are safe to paste, whatever the name contains.

use redisson::{Kind, LockName, keys};
use service_kit::redis::Address;

use crate::model::types::LockId;
use crate::text::{self, quoted, redis_command};

/// A command and its purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// The explanation of the command.
    pub(super) purpose: &'static str,
    /// The line to paste.
    pub(super) line: String,
}

/// Returns commands that show a lock of some kind without this dashboard.
pub(super) fn commands(
    id: &LockId,
    kind: &str,
    home: Option<&(u16, Option<Address>)>,
) -> Vec<Command> {
    let name = id.name.as_bytes();
    let at = match home {
        None => format!("-n {}", id.db),
        // The option `-c` also follows a slot that moves in the meantime.
        Some((_, Some(Address::Tcp { host, port, .. }))) => {
            format!("-c -h {} -p {port}", quoted(host.as_bytes()))
        }
        Some(_) => "-c".to_owned(),
    };
    let program = format!("redis-cli -u \"$REDIS_URL\" {at}");
    let line = |command: &str, key: &[u8], rest: &str| redis_command(&program, command, key, rest);
    let mut commands = vec![
        Command {
            purpose: "Holders and their counts (empty: free)",
            line: line("HGETALL", name, ""),
        },
        Command {
            purpose: "Milliseconds to live (-1: never ends, -2: free)",
            line: line("PTTL", name, ""),
        },
        Command {
            purpose: "Clients that wait for its release, at least",
            line: line("PUBSUB NUMSUB", &channel(&id.name, kind), ""),
        },
    ];
    if home.is_some() {
        commands.push(Command {
            purpose: "The same on its shard’s channel (since Redis 7)",
            line: line("PUBSUB SHARDNUMSUB", &channel(&id.name, kind), ""),
        });
    }
    if kind == Kind::Fair.as_str() {
        commands.push(Command {
            purpose: "Its queue, the next one first",
            line: line("LRANGE", &keys::queue(&id.name), " 0 99"),
        });
    }
    commands
}

/// Returns the channel on which a release of a lock of this kind is published.
pub(super) fn channel(name: &LockName, kind: &str) -> Vec<u8> {
    if [Kind::Read, Kind::Write].iter().any(|k| k.as_str() == kind) {
        keys::read_write_channel(name)
    } else {
        keys::channel(name)
    }
}

/// A key of Redis that belongs to a lock.
#[derive(Debug, Clone)]
pub(super) struct RawKey {
    /// The description of the key, and its text.
    pub(super) role: &'static str,
    pub(super) shown: String,
    /// The content of the copy button: the text itself, or a word quoted for a shell if pasting the text could do harm.
    pub(super) copied: String,
    /// True if `copied` is quoted for a shell.
    pub(super) quoted: bool,
}

impl RawKey {
    pub(super) fn new(role: &'static str, bytes: &[u8]) -> Self {
        let shown = text::visible(bytes);
        // If the text is unchanged, no character in it is hidden, breaks a line or is invalid.
        let plain = shown.as_bytes() == bytes;
        let copied = if plain { shown.clone() } else { quoted(bytes) };
        Self { role, shown, copied, quoted: !plain }
    }
}

/// Returns every key and channel of a lock of some kind.
pub(super) fn raw_keys(name: &LockName, kind: &str) -> Vec<RawKey> {
    let mut raw = vec![
        RawKey::new("Lock (hash)", name.as_bytes()),
        RawKey::new("Channel", &channel(name, kind)),
    ];
    if kind == Kind::Fair.as_str() {
        raw.push(RawKey::new("Queue (list)", &keys::queue(name)));
        raw.push(RawKey::new("Deadlines (sorted set)", &keys::deadlines(name)));
    }
    if kind == Kind::Fenced.as_str() {
        raw.push(RawKey::new("Token (counter)", &keys::token(name)));
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command as Process;

    fn id(name: &[u8]) -> LockId {
        LockId { deployment: "main".into(), db: 2, name: LockName::new(name).unwrap() }
    }

    #[test]
    fn a_command_names_database_and_key() {
        let lines: Vec<String> =
            commands(&id(b"a'b"), "lock", None).into_iter().map(|c| c.line).collect();
        assert_eq!(lines[0], r#"redis-cli -u "$REDIS_URL" -n 2 HGETALL 'a'\''b'"#);
        assert_eq!(
            lines[2],
            r#"redis-cli -u "$REDIS_URL" -n 2 PUBSUB NUMSUB 'redisson_lock__channel:{a'\''b}'"#
        );
        let zero = &commands(&id(b"a\0\"'b"), "lock", None)[1].line;
        assert_eq!(
            zero,
            r#"redis-cli -u "$REDIS_URL" -n 2 --quoted-input PTTL '"a\x00\x22\x27b"'"#
        );
    }

    #[test]
    fn in_a_cluster_the_node_is_asked_that_has_the_lock() {
        let node = Address::Tcp { host: "10.0.0.1".into(), port: 7001, tls: false };
        let lines = |home| commands(&id(b"a"), "lock", Some(&home)).into_iter().map(|c| c.line);
        let known: Vec<String> = lines((15_495, Some(node))).collect();
        assert_eq!(known[0], r#"redis-cli -u "$REDIS_URL" -c -h '10.0.0.1' -p 7001 HGETALL 'a'"#);
        assert!(known[3].ends_with("PUBSUB SHARDNUMSUB 'redisson_lock__channel:{a}'"), "{known:?}");
        let none: Vec<String> = lines((15_495, None)).collect();
        assert_eq!(none[1], r#"redis-cli -u "$REDIS_URL" -c PTTL 'a'"#);
    }

    #[test]
    fn a_copy_never_carries_hidden_characters() {
        assert_eq!(RawKey::new("Lock", b"orders:42").copied, "orders:42");
        let odd = RawKey::new("Lock", b"a\nrm -rf /\n");
        assert_eq!(odd.copied, r"'a'$'\x0a''rm -rf /'$'\x0a'");
        assert!(odd.quoted);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_reads_the_very_bytes(bytes in prop::collection::vec(1_u8.., 1..80)) {
            let out = Process::new("bash")
                .args(["-c", &format!("LC_ALL=C; printf %s {}", quoted(&bytes))])
                .output()
                .unwrap();
            prop_assert_eq!(out.stdout, bytes);
        }
    }
}

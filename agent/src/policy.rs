//! The policy: a file of rules about which users may acquire which locks, reloaded on SIGHUP.

use std::path::Path;
use std::time::Duration;

use redisson::{Kind, LockName, group};
use serde::Deserialize;
use service_kit::settings::{HumanDuration, changeable_by_all};

use crate::protocol::command::{LockRequest, Wait};
use crate::types::Peer;

/// The longest policy file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The rules in the order of the file. The first one that matches a worker and a lock name decides; without a match the
/// lock is denied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    uids: Vec<u32>,
    gids: Vec<u32>,
    names: Vec<String>,
    kinds: Vec<Kind>,
    max_locks: Option<usize>,
    max_wait: Option<Duration>,
}

/// The reason why a LOCK is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The failed check: `name`, `kind`, `count` or `wait`.
    pub reason: &'static str,
    /// An explanation that completes a sentence starting with the lock's name.
    pub text: String,
}

impl Denial {
    /// The checks that a LOCK can fail.
    pub const REASONS: [&'static str; 4] = ["name", "kind", "count", "wait"];
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    allow: Vec<Allow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    uid: Option<Vec<u32>>,
    gid: Option<Vec<u32>>,
    names: Vec<String>,
    kinds: Option<Vec<String>>,
    max_locks: Option<usize>,
    max_wait: Option<HumanDuration>,
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// Returns a message with the file, the position and the expected value if the file cannot be read or is invalid, or if
    /// every user of the host may change it.
    pub fn read(path: &Path) -> Result<Self, String> {
        if let Some(mistake) = changeable_by_all(path) {
            return Err(mistake);
        }
        let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let length = std::fs::metadata(path).map_err(|error| in_file(&error))?.len();
        if length > MAX_FILE {
            return Err(in_file(&format_args!(
                "{length} bytes is too long, the limit is {MAX_FILE}"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| in_file(&error))?;
        Self::parse(&text).map_err(|error| in_file(&error))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let rules = (1..).zip(file.allow).map(|(number, allow)| {
            Rule::new(allow).map_err(|error| format!("rule {number} ([[allow]]): {error}"))
        });
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Returns the first rule that covers the worker and the name.
    fn rule(&self, peer: &Peer, name: &LockName) -> Result<&Rule, Denial> {
        self.rules.iter().find(|rule| rule.matches(peer, name)).ok_or_else(|| Denial {
            reason: "name",
            text: format!(
                "is denied to user {} of group {}: no rule of the policy allows it",
                peer.uid, peer.gid
            ),
        })
    }

    /// Checks whether a worker may look at a lock: whether a rule covers both.
    ///
    /// # Errors
    /// Returns the denial if no rule does.
    pub fn check_look(&self, peer: &Peer, name: &LockName) -> Result<(), Denial> {
        self.rule(peer, name).map(drop)
    }

    /// Checks a request of a worker whose user already holds, waits for or has requested `locks` locks.
    ///
    /// # Errors
    /// Returns the denial if no rule allows the request.
    pub fn check(&self, peer: &Peer, request: &LockRequest, locks: usize) -> Result<(), Denial> {
        let rule = self.rule(peer, &request.name)?;
        let deny = |reason, text| Err(Denial { reason, text });
        let who = format!("user {} of group {}", peer.uid, peer.gid);
        if !rule.kinds.is_empty() && !rule.kinds.contains(&request.kind) {
            return deny("kind", format!("is denied to {who} as kind {}", request.kind));
        }
        if let Some(most) = rule.max_locks.filter(|most| locks >= *most) {
            let text = format!(
                "exceeds the limit of {who}: {locks} of {most} locks held, awaited or requested"
            );
            return deny("count", text);
        }
        match (rule.max_wait, request.wait) {
            (Some(most), Wait::Forever) => {
                let most = most.as_millis();
                deny(
                    "wait",
                    format!(
                        "may be awaited by {who} for at most {most} ms: add WAIT (lockctl exec: --wait)"
                    ),
                )
            }
            (Some(most), Wait::AtMost(wait)) if wait > most => {
                let (wait, most) = (wait.as_millis(), most.as_millis());
                deny("wait", format!("may be awaited by {who} for at most {most} ms, not {wait}"))
            }
            _ => Ok(()),
        }
    }
}

impl Rule {
    fn new(allow: Allow) -> Result<Self, String> {
        let kind = |word: &String| {
            Kind::parse(word.as_bytes()).ok_or_else(|| {
                let known = Kind::ALL.map(Kind::as_str).join(", ");
                format!("kinds: `{word}` is not a kind of lock; expected {known}")
            })
        };
        if allow.names.is_empty() {
            return Err("names: expected at least one, such as \"orders:*\"".to_owned());
        }
        let kinds = limited("kinds", "without it the rule allows every kind", allow.kinds)?;
        let everyone = "without `uid` and `gid` the rule allows everyone";
        Ok(Self {
            uids: limited("uid", everyone, allow.uid)?,
            gids: limited("gid", everyone, allow.gid)?,
            names: allow.names,
            kinds: kinds.iter().map(kind).collect::<Result<_, _>>()?,
            max_locks: allow.max_locks,
            max_wait: allow.max_wait.map(Duration::from),
        })
    }

    /// Returns whether the rule covers the worker, by user or group, and the name. Without users and groups it covers
    /// everyone.
    fn matches(&self, peer: &Peer, name: &LockName) -> bool {
        let everyone = self.uids.is_empty() && self.gids.is_empty();
        let named = |glob: &String| group::glob_matches(glob.as_bytes(), name.as_bytes());
        (everyone || self.uids.contains(&peer.uid) || self.gids.contains(&peer.gid))
            && self.names.iter().any(named)
    }
}

/// Returns a list that limits a rule, or an empty one if it is left out. `without`: what the rule then allows.
fn limited<T>(key: &str, without: &str, list: Option<Vec<T>>) -> Result<Vec<T>, String> {
    match list {
        // A template may have written it for a group without members, which is not everyone.
        Some(list) if list.is_empty() => {
            Err(format!("{key}: expected at least one, or leave it out ({without})"))
        }
        list => Ok(list.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [[allow]]
        uid = [1000]
        names = ["orders:*", "a*z"]
        kinds = ["lock", "fenced"]
        max_locks = 2
        max_wait = "1m"

        [[allow]]
        gid = [50, 51]
        names = ["orders:*"]

        [[allow]]
        names = ["public:*"]
        max_wait = "0s"
    "#;

    fn request(name: &str, kind: Kind, wait: Wait) -> LockRequest {
        let name = LockName::new(name.as_bytes()).unwrap();
        LockRequest { kind, wait, ..LockRequest::new(name) }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let policy = Policy::parse(RULES).unwrap();
        let minute = Wait::AtMost(Duration::from_secs(60));
        let now = Wait::AtMost(Duration::ZERO);
        for (uid, gid, name, kind, wait, locks, denied) in [
            (1000, 1, "orders:1", Kind::Lock, minute, 1, None),
            (1000, 1, "az", Kind::Fenced, now, 0, None),
            (1000, 1, "orders", Kind::Lock, now, 0, Some("name")),
            (1000, 50, "orders:1", Kind::Fair, now, 0, Some("kind")),
            (1000, 1, "orders:1", Kind::Lock, now, 2, Some("count")),
            (1000, 1, "orders:1", Kind::Lock, Wait::Forever, 0, Some("wait")),
            (
                1000,
                1,
                "orders:1",
                Kind::Lock,
                Wait::AtMost(Duration::from_secs(61)),
                0,
                Some("wait"),
            ),
            (7, 51, "orders:1", Kind::Fair, Wait::Forever, 99, None),
            (7, 52, "orders:1", Kind::Lock, now, 0, Some("name")),
            (7, 52, "public:x", Kind::Write, now, 0, None),
            (0, 0, "orders:1", Kind::Lock, now, 0, Some("name")),
        ] {
            let peer = Peer { uid, gid, ..Peer::default() };
            let request = request(name, kind, wait);
            let may_look = policy.check_look(&peer, &request.name).is_ok();
            assert_eq!(may_look, denied != Some("name"), "{uid} {gid} {name}");
            let verdict = policy.check(&peer, &request, locks);
            let reason = verdict.as_ref().err().map(|denial| denial.reason);
            assert_eq!(reason, denied, "{uid} {gid} {name} {kind} {wait:?}: {verdict:?}");
            if let Err(denial) = verdict {
                assert!(Denial::REASONS.contains(&denial.reason));
                assert!(denial.text.contains(&format!("user {uid} of group {gid}")), "{denial:?}");
            }
        }
    }

    #[test]
    fn an_empty_policy_denies_everything() {
        let policy = Policy::parse("").unwrap();
        assert_eq!(policy.rules(), 0);
        let request = request("a", Kind::Lock, Wait::Forever);
        assert_eq!(policy.check(&Peer::default(), &request, 0).unwrap_err().reason, "name");
    }

    #[test]
    fn errors_name_the_position_and_the_expected_value() {
        for (text, words) in [
            ("[[allow]]\nuid = [1]", &["names"][..]),
            ("[[allow]]\nnames = []", &["rule 1", "names", "orders:*"]),
            ("[[allow]]\nnames = [\"a\"]\nuid = []", &["rule 1", "uid", "allows everyone"]),
            ("[[allow]]\nnames = [\"a\"]\nuid = []\ngid = [1]", &["rule 1", "uid: expected"]),
            ("[[allow]]\nnames = [\"a\"]\ngid = []", &["rule 1", "gid", "allows everyone"]),
            ("[[allow]]\nnames = [\"a\"]\nkinds = []", &["rule 1", "kinds", "every kind"]),
            ("[[allow]]\nnames = [\"a\"]\nuser = [1]", &["user", "line 3"]),
            ("[[allow]]\nnames = [\"a\"]\nuid = [-1]", &["-1", "line 3"]),
            (
                "[[allow]]\nnames = [\"a\"]\n[[allow]]\nnames = [\"a\"]\nkinds = [\"mutex\"]",
                &["rule 2", "mutex", "fenced"],
            ),
            ("[[allow]]\nnames = [\"a\"]\nmax_wait = \"soon\"", &["max_wait", "line 3"]),
            ("[[deny]]\nnames = [\"a\"]", &["deny"]),
            ("[[allow", &["line 1"]),
        ] {
            let error = Policy::parse(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        let error = Policy::read(Path::new("/no/such/policy.toml")).unwrap_err();
        assert!(error.contains("/no/such/policy.toml"), "{error}");
    }
}

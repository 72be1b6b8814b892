//! Identifiers and small values that every part of the agent shares. Imports nothing else of the crate.

use std::fmt;
use std::time::Duration;

use redisson::Moment;
use serde::{Deserialize, Serialize};

/// The number of a holder: the `threadId` of `uuid:threadId`, unique to one grant.
pub type Number = i64;

/// The number of a client's connection, unique within this run of the agent.
///
/// The core stores a session under the number of its latest connection, even after that has closed. A restored session
/// that nobody has resumed yet has a separate number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The id of a session, which it keeps when another connection resumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// The run of the agent in which the session began.
    pub run: u64,
    /// The number of its first connection in that run.
    pub number: u64,
}

impl SessionId {
    /// Parses exactly the text that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (run, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        let run = u64::from_str_radix(run, 16).ok()?;
        let id = Self { run, number: number.parse().ok()? };
        (id.to_string().as_bytes() == text).then_some(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.run, self.number)
    }
}

impl Serialize for SessionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(text.as_bytes()).ok_or_else(|| serde::de::Error::custom("not a session name"))
    }
}

/// The secret of a session, which authorizes RESUME, and HOLDS, EVENTS and CANCEL from other connections. Its text is its
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Returns whether this is its text. Compares in constant time: a local process must not find the secret byte by
    /// byte.
    #[must_use]
    pub fn matches(self, text: &[u8]) -> bool {
        let own = self.to_string();
        let differ = own.bytes().zip(text).fold(0, |differ, (a, b)| differ | (a ^ b));
        own.len() == text.len() && differ == 0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| text.len() == 32);
        let secret = number.map(|number| Self(number.to_be_bytes()));
        secret.ok_or_else(|| serde::de::Error::custom("not a secret"))
    }
}

/// The JSON form of a lock's name: its text if it is UTF-8, otherwise an array of its bytes.
pub(crate) mod lock_name {
    use redisson::LockName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(crate) fn serialize<S: Serializer>(name: &LockName, to: S) -> Result<S::Ok, S::Error> {
        match name.as_str() {
            Some(text) => text.serialize(to),
            None => Form::Bytes(name.as_bytes().to_vec()).serialize(to),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LockName, D::Error> {
        let bytes = match Form::deserialize(from)? {
            Form::Text(text) => text.into_bytes(),
            Form::Bytes(bytes) => bytes,
        };
        LockName::new(bytes).map_err(D::Error::custom)
    }
}

/// The process that connected, according to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Peer {
    /// `None` if its pid namespace is not visible to the agent.
    pub pid: Option<i32>,
    pub uid: u32,
    pub gid: u32,
    /// The name of its command, from `/proc/<pid>/comm`.
    pub comm: Option<String>,
}

impl Peer {
    /// Returns whether the process runs as root or as the agent's own user, to whom no user's share applies.
    #[must_use]
    pub fn is_administrator(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The part of a limited number that one user may take, and the part that users may take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) of_user: usize,
    pub(crate) in_all: usize,
}

impl Share {
    /// Returns the share of `max` that a user has: administrators everything, any other three quarters of it. A sixteenth is
    /// reserved for administrators.
    pub(crate) const fn of(max: usize, administrator: bool) -> Self {
        if administrator {
            Self { of_user: max, in_all: max }
        } else {
            Self { of_user: max - max / 4, in_all: max - max / 16 }
        }
    }
}

/// A setting that limits a number, and the number's subject and verb for one and for several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) setting: &'static str,
    pub(crate) max: usize,
    pub(crate) what: [&'static str; 2],
}

impl Limit {
    /// Returns a sentence about this limit if it keeps a user from another one. `in_all` count against it, `own` of them are
    /// the user's.
    pub(crate) fn reached(self, peer: &Peer, in_all: usize, own: usize) -> Option<String> {
        let Self { setting, max, what: [one, several] } = self;
        let counted = |count| format!("{count} {}", if count == 1 { one } else { several });
        let share = Share::of(max, peer.is_administrator());
        if in_all >= share.in_all {
            let reserved = match max - share.in_all {
                0 => String::new(),
                some => format!(", with {some} reserved for root and the agent's user"),
            };
            return Some(format!("{} already ({setting} is {max}{reserved})", counted(in_all)));
        }
        (own >= share.of_user).then(|| {
            format!(
                "{} already for user {}, and one user may have three quarters of {setting} ({max})",
                counted(own),
                peer.uid
            )
        })
    }
}

/// The reason why a hold ended, as shown in events, metrics and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Released,
    /// The session ended.
    Disconnected,
    /// The fixed lease expired.
    Expired,
    /// The validity ran out: Redis was unreachable, or too few replicas confirmed.
    Unconfirmed,
    /// The hold was no longer in Redis.
    Missing,
    /// Another holder has the lock.
    Stolen,
    /// An operator released the lock.
    Forced,
    /// The worker was stopped and the lease was left to lapse.
    Frozen,
    /// The agent shut down before the worker did.
    Drained,
    /// The lock is a red lock, and the agent that held it has ended.
    Restarted,
}

impl End {
    /// The reasons that count as a loss.
    pub const LOST: [Self; 7] = [
        Self::Unconfirmed,
        Self::Missing,
        Self::Stolen,
        Self::Forced,
        Self::Frozen,
        Self::Drained,
        Self::Restarted,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::Expired => "expired",
            Self::Unconfirmed => "unconfirmed",
            Self::Missing => "missing",
            Self::Stolen => "stolen",
            Self::Forced => "forced",
            Self::Frozen => "frozen",
            Self::Drained => "drained",
            Self::Restarted => "restarted",
        }
    }

    /// Returns whether the owner lost the lock while it relied on it.
    #[must_use]
    pub fn is_loss(self) -> bool {
        Self::LOST.contains(&self)
    }

    /// Returns an explanation that completes a sentence such as "lock x is lost: ...".
    pub(crate) fn explained(self) -> &'static str {
        match self {
            Self::Released => "it was released",
            Self::Disconnected => "its session ended",
            Self::Expired => "its fixed lease ran out",
            Self::Unconfirmed => "its validity ran out: Redis did not confirm a renewal in time",
            Self::Missing => {
                "it is gone from Redis (expired early or while no agent ran, deleted, evicted, or lost in a restart or failover)"
            }
            Self::Stolen => "another holder has it",
            Self::Forced => "an operator released it",
            Self::Frozen => "its process was stopped for longer than the lease (--frozen lapse)",
            Self::Drained => "the agent was shut down",
            Self::Restarted => "the agent was restarted, which a red lock does not outlive",
        }
    }
}

/// An error with which Redis refuses scripts, no matter which lock they are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub at: Moment,
    pub error: String,
}

/// A summary of the agent's health, for readiness checks, INFO and systemd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The obstacle for which the agent serves no workers yet, as a sentence.
    pub awaited: Option<String>,
    pub redis_up: bool,
    /// The reason why Redis is unreachable, or the server that answers.
    pub detail: String,
    /// The latest error with which Redis refused a script for all locks.
    pub refusal: Option<Refusal>,
    /// The socket's file is missing, so that no worker can connect.
    pub socket_missing: bool,
    /// The reason why there is no journal, so that sessions get no grace; `None` if there is one, or none is needed.
    pub journal_missing: Option<String>,
    /// New locks are refused because the agent is shutting down.
    pub draining: bool,
    pub holds: usize,
    /// The number of commands waiting for locks.
    pub waiters: usize,
}

impl Status {
    /// Returns the error with which Redis refuses scripts at present. A refused script is repeated more than once a
    /// second, so an older refusal is over.
    #[must_use]
    pub fn refusal(&self, now: Moment) -> Option<&str> {
        const PRESENT: Duration = Duration::from_secs(5);
        let refusal = self.refusal.as_ref().filter(|refusal| now.since(refusal.at) <= PRESENT);
        refusal.map(|refusal| &*refusal.error)
    }
}

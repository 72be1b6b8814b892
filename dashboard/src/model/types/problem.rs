//! Problems of locks, as pages and the API show them.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::id::LockId;
use super::source::Source;
use crate::clock::SteadyMillis;

/// The certainty of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, PartialOrd, Ord, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    Certain,
    Suspected,
}

impl Certainty {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Suspected => "suspected",
        }
    }
}

/// The kinds of problems, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, PartialOrd, Ord, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// Owners wait for one another in a cycle.
    Deadlock,
    /// The lock will not expire, or not soon, and its holder appears to be gone.
    Leaked,
    /// The watchdog has missed a renewal.
    RenewalOverdue,
    /// A hold's lease expired although it had been renewed.
    Expired,
    /// The lock has been renewed and held for too long.
    Stuck,
    /// A client has waited for too long.
    Starving,
    /// The hash has a field that does not belong there.
    Malformed,
    /// Companion keys were left behind.
    Orphan,
}

impl ProblemKind {
    /// Every kind, worst first.
    pub const ALL: [Self; 8] = [
        Self::Deadlock,
        Self::Leaked,
        Self::RenewalOverdue,
        Self::Expired,
        Self::Stuck,
        Self::Starving,
        Self::Malformed,
        Self::Orphan,
    ];

    /// Returns its word in filters, the API and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::Leaked => "leaked",
            Self::RenewalOverdue => "renewal_overdue",
            Self::Expired => "expired",
            Self::Stuck => "stuck",
            Self::Starving => "starving",
            Self::Malformed => "malformed",
            Self::Orphan => "orphan",
        }
    }

    /// Returns the problem of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|problem| problem.as_str() == word)
    }

    /// Returns its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RenewalOverdue => "renewal overdue",
            other => other.as_str(),
        }
    }

    /// Returns the certainties that a problem of this kind can have.
    #[must_use]
    pub fn certainties(self) -> &'static [Certainty] {
        match self {
            Self::Deadlock | Self::Leaked | Self::Expired | Self::Stuck | Self::Starving => {
                &[Certainty::Certain, Certainty::Suspected]
            }
            Self::RenewalOverdue | Self::Malformed | Self::Orphan => &[Certainty::Certain],
        }
    }
}

/// One observation that supports a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Evidence {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    #[schema(value_type = Source)]
    pub source: &'static str,
    /// A sentence.
    pub text: String,
}

/// One wait of a deadlock's cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Wait)]
pub struct WaitView {
    pub waiter: String,
    pub lock: LockId,
    /// The lock's holder, which is the next wait's waiter.
    pub holder: String,
}

/// A problem of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LockProblem)]
pub struct ProblemView {
    pub problem: ProblemKind,
    pub certainty: Certainty,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub since: SteadyMillis,
    pub evidence: Vec<Evidence>,
    /// The next step, a sentence.
    pub advice: String,
    /// The cycle of a deadlock; empty for all other kinds.
    pub cycle: Arc<[WaitView]>,
    /// The number of times that it has occurred since then: late renewals in short succession, and holds that expire
    /// within an hour of each other, are one problem. 1 for all other kinds.
    pub times: u32,
    /// The acknowledgement in force, if any.
    pub acknowledged: Option<Arc<Acknowledgement>>,
}

/// An operator's statement that a problem is known and being handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Acknowledgement {
    pub by: String,
    /// The reason why it may wait.
    pub reason: String,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// The end of its validity, unless the problem ends before.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub until: SteadyMillis,
}

//! Plain values: the model's input and its output.

mod by_hash;
mod by_number;
mod classes;
mod client_view;
mod events;
mod holder_field;
mod id;
mod identity;
mod json;
mod lock_view;
mod observation;
mod part;
mod past;
mod problem;
mod read_request;
mod renewals;
mod settings;
mod since;
mod snapshot;
mod source;
mod sums;
mod thread;

pub use by_number::ByNumber;
pub use classes::is_plain;
pub use client_view::ClientView;
pub use events::{EndCause, EventLog, EventView, LockEvent};
pub use holder_field::HolderField;
pub use id::{LockId, ScopeId};
pub use identity::{
    AgentReport, AgentWaiters, AwaitedLock, GONE_AFTER, HolderIdentity, Presence, TrackedHolder,
    Verification,
};
pub use lock_view::{
    HolderView, LockView, Observed, QueueEntryView, RedView, State, WaiterView, client_of,
};
pub use observation::{
    Companions, Connections, Marker, Observation, Queue, QueueEntry, Reading, SlotAssignment,
    Stamp, SubscriberCount, Token, Traffic,
};
pub use part::{Entry, Part};
pub use past::{
    ArchiveEntry, EVENT_WORDS, Ending, EventFields, HistoryView, OperatorAction, PastEnding,
    PastHold, PastHoldView, PastOfLock, PastWait, PastWaitView,
};
pub use problem::{Acknowledgement, Certainty, Evidence, ProblemKind, ProblemView, WaitView};
pub use read_request::{KnownParts, LastReading, ReadRequest};
pub use renewals::Renewals;
pub use settings::{Group, LockRule, Rule, Settings};
pub use since::Since;
pub use snapshot::{ClearedProblem, Counts, Delta, Notice, Section, Snapshot, Walk};
pub use source::{Source, SourceSet};
#[cfg(test)]
pub(crate) use sums::tests::by_looking as sums_by_looking;
pub use sums::{GroupSums, Sums};
pub use thread::Thread;

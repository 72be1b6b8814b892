//! Locks and problems for tests.

use std::sync::Arc;
use thin_vec::ThinVec;

use redisson::LockName;

use super::Published;
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, Certainty, EventLog, HistoryView, HolderView, LockId, LockView, Observed,
    ProblemKind, ProblemView, Since, Snapshot, Source, State,
};

/// Returns the published state with these locks, and without counts.
pub(crate) fn published(locks: impl IntoIterator<Item = LockView>) -> Published {
    let mut snapshot = Snapshot::empty();
    for lock in locks {
        snapshot.put(Arc::new(lock));
    }
    Published { snapshot: Arc::new(snapshot), contention: Arc::default() }
}

pub(crate) fn lock(name: &str) -> LockView {
    LockView {
        id: LockId {
            deployment: "main".into(),
            db: 0,
            name: LockName::new(name.as_bytes()).unwrap(),
        },
        state: State::Held,
        confirmed: true,
        kind: redisson::Kind::Lock,
        holders: vec![HolderView {
            id: "285475da-9152-4c83-822a-67ee2f116a79:52".into(),
            mode: redisson::Kind::Lock,
            count: 1,
            marker_ttl_ms: None,
            zombie: false,
            client: None,
            since: Since { at: SteadyMillis(1_000_000), exact: true },
        }],
        expires_at: Some(SteadyMillis(1_090_000)),
        observed: Observed::new(SteadyMillis(1_060_000)),
        lease_ms: None,
        renewed: false,
        problems: ThinVec::new(),
        events: EventLog::default(),
        history: HistoryView::default(),
        red: None,
        sources: [Source::Scan].into_iter().collect(),
        queued: false,
        waiters: ThinVec::new(),
        waiting: 0,
        waiters_exact: false,
        queue: ThinVec::new(),
        token: None,
        group: "x".into(),
        renewals: None,
        expected_long: false,
    }
}

pub(crate) fn leaked() -> ProblemView {
    ProblemView {
        problem: ProblemKind::Leaked,
        certainty: Certainty::Certain,
        since: SteadyMillis(0),
        evidence: Vec::new(),
        advice: String::new(),
        cycle: Arc::default(),
        times: 1,
        acknowledged: None,
    }
}

/// Returns the problem with an acknowledgement.
pub(crate) fn acknowledged() -> ProblemView {
    let (at, until) = (SteadyMillis(0), SteadyMillis(9));
    let word = Acknowledgement { by: "anna".into(), reason: "known".into(), at, until };
    ProblemView { acknowledged: Some(Arc::new(word)), ..leaked() }
}

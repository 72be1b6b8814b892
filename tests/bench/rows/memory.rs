//! The memory of an idle agent.

use anyhow::Result;
use harness::Agent;
use tokio::time::sleep;

use super::{AT_REST, Stage};
use crate::report::{Bound, Round};
use crate::stats::resident_bytes;

/// Measures a fresh agent each round, once it is at rest.
pub(super) async fn memory(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let agent = Agent::start(&stage.redis).await?;
        sleep(AT_REST).await;
        let mib = resident_bytes(agent.pid())? / f64::from(1 << 20);
        let mut round = Round::default();
        round.figure("lockscope-agent", "MiB idle", mib);
        round.target("idle < 15 MiB", "MiB", mib, Bound::AtMost(15.0));
        rounds.push(round);
    }
    Ok(rounds)
}

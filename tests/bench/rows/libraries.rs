//! Our client libraries next to a bare connection to the agent's socket, and other libraries on the same Redis.

use anyhow::Result;

use super::uncontended::pairs;
use super::{CONTENDERS, Stage, blocking, workers};
use crate::crowd::{Crowd, Turns};
use crate::peers::{self, P50, P99, SWITCHES, Task};
use crate::report::Round;

/// Measures one worker with a free lock, then workers that compete for one lock.
pub(super) async fn libraries(stage: Stage) -> Result<Vec<Round>> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let mut libraries = peers::libraries(&stage.agent.socket())?;
    libraries.extend(peers::java(&stage.agent.socket())?);
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let socket = stage.agent.socket();
        let (p50, p99) = blocking(move || pairs(&socket, time)).await?;
        round.figure(BARE, P50, p50);
        round.figure(BARE, P99, p99);
        let plans = workers(&stage.agent, CONTENDERS, |_| "bench:libraries".to_owned())?;
        let seen = blocking(move || {
            let mut crowd = Crowd::rivals(plans)?;
            crowd.ask()?;
            crowd.run(Turns::For(time))
        })
        .await?;
        round.figure(BARE, SWITCHES, seen.per_second(seen.switches));
        for library in libraries.iter().chain(&stage.peers) {
            library.measure(&mut round, Task::Uncontended, port, 1, time).await?;
            library.measure(&mut round, Task::One, port, CONTENDERS, time).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

const BARE: &str = "bare socket";

//! The agent compared with Redisson, with the same number of workers on each side.

use anyhow::Result;

use super::{CONTENDERS, Stage, blocking, workers};
use crate::crowd::{Crowd, Measurements, Plan, Turns};
use crate::peers::{self, LONGEST, PAIRS, Peer, SWITCHES, Task};
use crate::report::Round;
use crate::wire::encode;

const FAIR: &str = "fair hand-overs/s";
const LONGEST_FAIR: &str = "longest fair wait ms";
/// The figures of one side in one round.
struct Side {
    pairs: f64,
    switches: f64,
    longest: f64,
    fair: f64,
    longest_fair: f64,
}

impl Side {
    fn note(&self, round: &mut Round, who: &str) {
        round.figure(who, PAIRS, self.pairs);
        round.figure(who, SWITCHES, self.switches);
        round.figure(who, LONGEST, self.longest);
        round.figure(who, FAIR, self.fair);
        round.figure(who, LONGEST_FAIR, self.longest_fair);
    }

    fn compare(&self, round: &mut Round, who: &str, redisson: &Self) {
        round.figure(who, "pairs × Redisson", self.pairs / redisson.pairs);
        round.figure(who, "hand-overs × Redisson", self.switches / redisson.switches);
        round.figure(who, "longest wait ÷ Redisson", self.longest / redisson.longest);
        round.figure(who, "fair × Redisson", self.fair / redisson.fair);
    }
}

/// Measures threads with one lock each, threads that compete for one lock, and threads that compete for one fair lock.
pub(super) async fn redisson(stage: Stage) -> Result<Vec<Round>> {
    let [client, redisson] = peers::java(&stage.agent.socket())?;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let theirs = program(&stage, &redisson).await?;
        let sides = [
            ("lockscope-agent", agent(&stage).await?),
            (client.name, program(&stage, &client).await?),
        ];
        for (who, side) in &sides {
            side.note(&mut round, who);
        }
        theirs.note(&mut round, redisson.name);
        for (who, side) in &sides {
            side.compare(&mut round, who, &theirs);
        }
        rounds.push(round);
    }
    Ok(rounds)
}

async fn program(stage: &Stage, peer: &Peer) -> Result<Side> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let own = peer.run(Task::Own, port, CONTENDERS, time).await?;
    let one = peer.run(Task::One, port, CONTENDERS, time).await?;
    let fair = peer.run(Task::Fair, port, CONTENDERS, time).await?;
    Ok(Side {
        pairs: peers::figure(&own, "pairs_per_s")?,
        switches: peers::figure(&one, "switches_per_s")?,
        longest: peers::figure(&one, "longest_wait_ms")?,
        fair: peers::figure(&fair, "switches_per_s")?,
        longest_fair: peers::figure(&fair, "longest_wait_ms")?,
    })
}

async fn agent(stage: &Stage) -> Result<Side> {
    let time = stage.options.time;
    let crowd = async |plans, rivals: bool| -> Result<Measurements> {
        blocking(move || {
            let mut crowd = if rivals { Crowd::rivals(plans)? } else { Crowd::new(plans)? };
            crowd.ask()?;
            crowd.run(Turns::For(time))
        })
        .await
    };
    let agent = &stage.agent;
    let own = workers(agent, CONTENDERS, |worker| format!("bench:redisson:{worker}"))?;
    let own = crowd(own, false).await?;
    let one = crowd(workers(agent, CONTENDERS, |_| "bench:redisson".to_owned())?, true).await?;
    let (take, give) =
        (encode(&["LOCK", "bench:fair", "KIND", "fair"]), encode(&["UNLOCK", "bench:fair"]));
    let plan = |_| Plan::unix(&agent.socket(), take.clone(), give.clone());
    let fair = crowd((0..CONTENDERS).map(plan).collect::<Result<_>>()?, true).await?;
    Ok(Side {
        pairs: own.per_second(own.total()),
        switches: one.per_second(one.switches),
        longest: one.longest_wait.as_secs_f64() * 1000.0,
        fair: fair.per_second(fair.switches),
        longest_fair: fair.longest_wait.as_secs_f64() * 1000.0,
    })
}

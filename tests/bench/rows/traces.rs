//! The cost of traces: off, for one in a hundred, and for all.

use std::hint::black_box;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use harness::Agent;
use service_kit::trace::{self, TraceParent};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tracing::Span;

use super::{OWN_WORKERS, Stage, blocking, workers};
use crate::crowd::{Crowd, Turns};
use crate::report::{Bound, Round};
use crate::stats::cpu_micros;

const CPU: &str = "µs of a core a pair";
/// The number of checks measured while traces are off.
const TIMES: u32 = 1_000_000;

/// Returns the cost in microseconds of the trace checks of a LOCK and UNLOCK while traces are off: the agent's functions, in
/// this process, which has no traces either. There is no other cost: an agent without traces has no layer for them.
fn cost_while_off() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        // The spans of the LOCK and of the hold, the two scripts, and the attributes of both spans.
        black_box(trace::is_on());
        let span = black_box(trace::root(black_box(&TraceParent::default()), Span::none));
        for _ in 0..2 {
            black_box(trace::is_on());
            let place = black_box(TraceParent::of(black_box(&span)));
            black_box(place.is_empty());
            for field in ["lock.outcome", "lock.end", "lock.wait_ms"] {
                black_box(&span).record(field, 1);
            }
        }
        black_box(span.is_disabled());
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
}

/// Measures the same workers on three agents, one after the other in each round. The receiver drops the spans.
pub(super) async fn traces(stage: Stage) -> Result<Vec<Round>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let forget = Router::new().route("/v1/traces", post(|_: Bytes| async {}));
    let receiver = tokio::spawn(async move { axum::serve(listener, forget).await });
    let few = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
    ];
    let some = Agent::in_environment(&stage.redis, &[], &few).await?;
    let all = Agent::in_environment(&stage.redis, &[], &few[..1]).await?;
    let time = stage.options.time;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let mut costs = Vec::new();
        for (who, agent) in [("off", &stage.agent), ("one in 100", &some), ("all", &all)] {
            let plans = workers(agent, OWN_WORKERS, |worker| format!("bench:traces:{worker}"))?;
            let before = cpu_micros(agent.pid())?;
            let (pairs, rate) = blocking(move || {
                let mut crowd = Crowd::new(plans)?;
                crowd.ask()?;
                let seen = crowd.run(Turns::For(time))?;
                Ok((seen.total(), seen.per_second(seen.total())))
            })
            .await?;
            let cost = (cpu_micros(agent.pid())? - before) / crate::stats::float(pairs.max(1));
            round.figure(who, "pairs/s", rate);
            round.figure(who, CPU, cost);
            costs.push(cost);
        }
        let asked = blocking(|| Ok(cost_while_off())).await?;
        round.figure("asking while off", CPU, asked);
        if let [off, some, all] = costs[..] {
            round.target("asking ≤ 1 % of off", "of its CPU", asked / off, Bound::AtMost(0.01));
            round.target("one in 100 ≤ 1.1 × off", "times its CPU", some / off, Bound::AtMost(1.1));
            round.target("(all of them)", "times its CPU", all / off, Bound::AtMost(f64::INFINITY));
        }
        rounds.push(round);
    }
    receiver.abort();
    Ok(rounds)
}

//! Measures this library: `bench uncontended|one WORKERS SECONDS` prints one line of JSON.
//!
//! `uncontended` is one worker that acquires and releases a free lock, `one` is many workers that compete for one lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockscope_client::{Agent, Error, Result};
use serde_json::{Value, json};
use tokio::time::Instant;

async fn uncontended(agent: &Agent, name: &str, end: Instant) -> Result<Value> {
    let mut times = Vec::new();
    loop {
        let began = Instant::now();
        if began >= end {
            break;
        }
        agent.lock(name).await?.release().await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let micros = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    Ok(json!({ "p50_us": micros(50), "p99_us": micros(99) }))
}

#[derive(Default)]
struct Contest {
    switches: u32,
    last: Option<usize>,
}

async fn one(agent: &Agent, name: &str, workers: usize, end: Instant) -> Result<Value> {
    let contest = Arc::<Mutex<Contest>>::default();
    let start = Instant::now();
    let work = |worker| {
        let (owner, name, contest) = (agent.owner(), name.to_owned(), contest.clone());
        tokio::spawn(async move {
            while Instant::now() < end {
                let hold = owner.lock(&name).await?;
                {
                    let mut contest = contest.lock().expect("no panic");
                    contest.switches += u32::from(contest.last.replace(worker) != Some(worker));
                }
                hold.release().await?;
            }
            Ok::<_, Error>(())
        })
    };
    let tasks: Vec<_> = (0..workers).map(work).collect();
    for task in tasks {
        task.await.expect("no panic")?;
    }
    let switches = contest.lock().expect("no panic").switches;
    Ok(json!({ "switches_per_s": f64::from(switches) / start.elapsed().as_secs_f64() }))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let workers = arguments[2].parse().expect("a number of workers");
    let seconds = arguments[3].parse().expect("a number of seconds");
    let (agent, name) = (Agent::new(), format!("bench:{}", std::process::id()));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let figures = if arguments[1] == "one" {
        one(&agent, &name, workers, end).await?
    } else {
        // A task, as workers are: waits in the main future cost an additional thread switch.
        let agent = agent.clone();
        let work = tokio::spawn(async move { uncontended(&agent, &name, end).await });
        work.await.expect("no panic")?
    };
    println!("{figures}");
    agent.close().await;
    Ok(())
}

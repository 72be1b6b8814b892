//! The throughput of Redisson and of the agent at the same work, each alone on the same Redis, in sections a second.
//! The test prints it (`make interop ARGS='throughput --nocapture'`) and checks only that the work was done: machines
//! differ.

use anyhow::Result;
use tokio::time::Instant;

use super::bed::{kinds, version};
use super::sections::{Crowd, Guard, tally};
use super::{Bed, Kind};

const WORKERS: usize = 4;
const SECTIONS: usize = 250;

#[derive(Clone, Copy)]
enum Side {
    Java,
    Agent,
}

/// Returns the sections a second of four workers, on one lock or on one each.
async fn measure(kind: Kind, side: Side, shared: bool) -> Result<f64> {
    let mut bed = Bed::with(&[], "").await?;
    let name = |worker: usize| if shared { "till".to_owned() } else { format!("till{worker}") };
    let counter = |worker: usize| format!("counter:{}", name(worker));
    let mut seconds = 0.0;
    // The first round warms up connections and compilers.
    for _ in 0..2 {
        let from = Instant::now();
        let mut crowd = Crowd::default();
        for worker in 0..WORKERS {
            let (guard, counter) = (Guard::one(kind, &name(worker)), counter(worker));
            let threads = [bed.thread("a", u32::try_from(worker)? + 1)];
            let (threads, sessions) = match side {
                Side::Java => (threads.as_slice(), 0),
                Side::Agent => ([].as_slice(), 1),
            };
            let (counter, agents) = ((&bed.redis, counter.as_str()), [&bed.agent]);
            crowd.add(&guard, counter, (threads, SECTIONS), (&agents, sessions, SECTIONS)).await?;
        }
        crowd.done().await?;
        seconds = from.elapsed().as_secs_f64();
    }
    let counters: std::collections::BTreeSet<String> = (0..WORKERS).map(counter).collect();
    let mut total = 0;
    for counter in counters {
        total += tally(&mut bed.direct, &counter).await?.total;
    }
    assert_eq!(total, 2 * WORKERS * SECTIONS);
    Ok((WORKERS * SECTIONS) as f64 / seconds)
}

#[tokio::test]
async fn the_throughput_of_both_sides_is_printed() -> Result<()> {
    for kind in kinds()? {
        for shared in [true, false] {
            let java = measure(kind, Side::Java, shared).await?;
            let agents = measure(kind, Side::Agent, shared).await?;
            let locks = if shared { "one lock" } else { "a lock each" };
            println!(
                "{} by {WORKERS} on {locks}: Redisson {} {java:.0} sections/s, the agent {agents:.0}",
                kind.word,
                version()?
            );
        }
    }
    Ok(())
}

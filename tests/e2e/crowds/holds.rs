//! A hundred thousand holds, and renewals during a flood.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Crowd, all};

const HOLDS: usize = 100_000;

#[tokio::test]
async fn a_hundred_thousand_holds_are_renewed_listed_and_released() -> Result<()> {
    let crowd = Crowd::new(&[]).await?;
    let idle = crowd.memory()?;
    let mut worker = crowd.agent.client().await?;
    let locks: Vec<String> = (0..HOLDS).map(|i| format!("LOCK many:{i}")).collect();
    for reply in all(&mut worker, &locks).await? {
        ensure!(reply.field("holds")?.int()? == 1, "{reply}");
    }
    crowd.until_keys(HOLDS as i64).await?;
    let each = (crowd.memory()? - idle) / HOLDS as u64;
    ensure!(each < 1_536, "{each} bytes a hold");
    // A listing by pages returns each of them once while they are renewed.
    let mut looker = crowd.agent.client().await?;
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    loop {
        let page = looker.call(&format!("LOCKS CURSOR {cursor} COUNT 1000")).await?.ok()?;
        seen += page.items()?[1].items()?.len();
        cursor = page.items()?[0].text();
        if cursor == "0" {
            break;
        }
    }
    ensure!(seen == HOLDS, "{seen} were listed");
    eventually("all to be renewed", async || {
        let renewed =
            crowd.figure("lockscope_agent_renewals_total", &[("outcome", "renewed")]).await?;
        ensure!(renewed >= HOLDS as f64, "{renewed} renewals");
        Ok(())
    })
    .await;
    crowd.nothing_is_lost().await?;
    drop(worker);
    crowd.until_keys(0).await?;
    Ok(())
}

#[tokio::test]
async fn renewals_continue_during_a_flood() -> Result<()> {
    const FLOODERS: usize = 50;
    let crowd = Crowd::new(&["--lease", "12s"]).await?;
    let mut worker = crowd.agent.client().await?;
    let locks: Vec<String> = (0..1_000).map(|i| format!("LOCK dear:{i}")).collect();
    for reply in all(&mut worker, &locks).await? {
        ensure!(reply.field("holds")?.int()? == 1, "{reply}");
    }
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut flood = Vec::new();
    for number in 0..FLOODERS {
        let mut client = crowd.agent.client().await?;
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        let burst = match number % 3 {
            0 => vec!["PING".to_owned(); 500],
            1 => {
                (0..100).map(|i| format!("{} flood:{number}", ["LOCK", "UNLOCK"][i % 2])).collect()
            }
            _ => vec!["HOLDS".to_owned(); 100],
        };
        flood.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                for reply in all(&mut client, &burst).await? {
                    reply.ok()?;
                }
                answered.fetch_add(burst.len() as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }));
    }
    eventually("each to be renewed twice", async || {
        let group = ("lock_group", "dear:*");
        let labels = [group, ("outcome", "renewed")];
        let renewed = crowd.figure("lockscope_agent_renewals_total", &labels).await?;
        ensure!(renewed >= 2_000.0, "{renewed} renewals");
        Ok(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for task in flood {
        task.await??;
    }
    let answered = answered.load(Ordering::Relaxed);
    ensure!(answered > 10_000, "a flood of {answered} commands is none");
    crowd.nothing_is_lost().await?;
    let holds = worker.call("HOLDS").await?;
    ensure!(holds.items()?.len() == 1_000, "{} are held", holds.items()?.len());
    ensure!(worker.call("UNLOCK dear:0").await? == Reply::Int(0));
    Ok(())
}

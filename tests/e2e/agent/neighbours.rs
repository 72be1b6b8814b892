//! A worker next to the workers of a user that floods the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::process::status_bytes;
use harness::{Client, eventually, user};

use super::{Bench, assert_error};

/// The number of connections that flood the agent.
const FLOODERS: usize = 300;
/// The number of commands that the quiet worker sends.
const COMMANDS: usize = 20;

/// Lists locks without end, with a pattern that is slow to match and matches none.
async fn flood(mut client: Client, served: Arc<AtomicUsize>) -> Result<()> {
    let pattern = format!("*{}*b", "a*".repeat(20));
    let list = encode(&["LOCKS", "COUNT", "1000", "MATCH", &pattern]);
    loop {
        client.send_bytes(&list).await?;
        client.reply().await?.ok()?;
        served.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_quiet_user_is_served_in_turn_with_a_user_who_floods() -> Result<()> {
    let bench = Bench::new().await?;
    let (streams, another) = user::connect_as_another(&bench.agent.socket(), FLOODERS + 1)?;
    let mut clients = streams.into_iter().map(Client::std).collect::<Result<Vec<_>>>()?;
    let mut holder = clients.pop().expect("one more than the flooders");
    let lock = |number| encode(&["LOCK", &format!("{number:a>500}")]);
    for first in [0, 500] {
        let locks: Vec<u8> = (first..first + 500).flat_map(lock).collect();
        holder.send_bytes(&locks).await?;
        for _ in 0..500 {
            holder.reply().await?.ok()?;
        }
    }
    let served = Arc::<AtomicUsize>::default();
    for client in clients {
        tokio::spawn(flood(client, Arc::clone(&served)));
    }
    let mut quiet = bench.session().await?;
    eventually("a reply to each of the flood", async || {
        ensure!(served.load(Ordering::Relaxed) >= FLOODERS, "{served:?}");
        Ok(())
    })
    .await;
    let before = served.load(Ordering::Relaxed);
    // One after another: a worker that waits for the others has a whole round of the flood before it.
    for _ in 0..COMMANDS {
        assert_error(&quiet.call("UNLOCK nothing").await?, "NOTHELD", "nothing");
    }
    let first = served.load(Ordering::Relaxed) - before;
    // A command of another user waits for one command of the flood, that of another session for one of each session.
    // Whenever this test is not scheduled, it finds up to one more reply for each session.
    let bound = COMMANDS * if another { FLOODERS / 4 } else { 2 * FLOODERS };
    ensure!(first < bound, "{first} commands of the flood came before {COMMANDS} quiet ones");
    Ok(())
}

#[tokio::test]
async fn clients_that_read_nothing_are_closed_and_take_no_memory_from_others() -> Result<()> {
    let bench = Bench::new().await?;
    let (streams, another) = user::connect_as_another(&bench.agent.socket(), FLOODERS)?;
    let mut clients = streams.into_iter().map(Client::std).collect::<Result<Vec<_>>>()?;
    for number in 0..1_000 {
        let lock = encode(&["LOCK", &format!("{number:a>500}")]);
        clients[0].send_bytes(&lock).await?;
        clients[0].reply().await?.ok()?;
    }
    for client in &mut clients {
        client.send_bytes(&encode(&["LOCKS", "COUNT", "1000"])).await?;
    }
    if another {
        let mut quiet = bench.session().await?;
        quiet.call("LOCKS COUNT 1000").await?.ok()?;
    }
    eventually("a connection to be closed", async || {
        let metrics = bench.agent.metrics().await?;
        let evicted = metrics.sum("lockscope_agent_connections_evicted_total", &[]);
        ensure!(evicted > 0.0, "{evicted}");
        Ok(())
    })
    .await;
    let most = status_bytes(bench.agent.pid(), "VmHWM")?;
    // 300 listings of 700 KiB are 205 MiB.
    ensure!(most < 150_000 << 10, "{most} bytes");
    // The user is still served.
    let mut last = clients.pop().expect("one of many");
    drop(clients);
    last.reply().await?.ok()?;
    Ok(())
}

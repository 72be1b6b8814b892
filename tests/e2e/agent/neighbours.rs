//! A worker next to those of a user who floods the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::{Client, eventually, user};

use super::{Bench, assert_error};

/// The connections that flood the agent.
const FLOODERS: usize = 300;
/// The commands of the quiet worker.
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
    // Sent at once, so a wait of this test for a processor counts only once.
    quiet.send_bytes("UNLOCK nothing\r\n".repeat(COMMANDS).as_bytes()).await?;
    for _ in 0..COMMANDS {
        assert_error(&quiet.reply().await?, "NOTHELD", "nothing");
    }
    let first = served.load(Ordering::Relaxed) - before;
    // Another user's command waits for one command of the flood, another session's for one of each session.
    let bound = if another { FLOODERS / 2 } else { FLOODERS * (COMMANDS + 1) };
    ensure!(first < bound, "{first} commands of the flood came before {COMMANDS} quiet ones");
    Ok(())
}

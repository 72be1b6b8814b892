//! Sessions that outlive their connection, and the agent itself.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::status_bytes;
use harness::{Client, Reply, Worker, eventually};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Bench, answered, assert_error, credentials, holder, lock, pushed};

/// Requests a grace and returns the session's id and secret as two words.
pub(super) async fn graced(client: &mut Client, grace: Duration) -> Result<String> {
    let reply = client.call(&format!("SESSION GRACE {}", grace.as_millis())).await?.ok()?;
    Ok(format!("{} {}", reply.field("id")?, reply.field("secret")?))
}

/// Parses the reply to RESUME: id and secret as two words, and `lock kind count` for each hold.
pub(super) async fn resume(client: &mut Client, ticket: &str) -> Result<(String, Vec<String>)> {
    let reply = answered(client, &format!("RESUME {ticket}")).await.ok()?;
    let mut holds = Vec::new();
    for hold in reply.field("holds")?.items()? {
        let word = |key| Ok::<_, anyhow::Error>(hold.field(key)?.text());
        ensure!(hold.field("valid_ms")?.int()? > 0, "{hold}");
        holds.push(format!("{} {} {}", word("lock")?, word("kind")?, word("holds")?));
    }
    Ok((format!("{} {}", reply.field("id")?, reply.field("secret")?), holds))
}

pub(super) const GRACE: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_lock_survives_a_broken_connection() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "20s"]).await?;
    let mut worker = bench.agent.client3().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    let before = holder(&lock(&mut worker, "LOCK a").await?)?;
    let mut rival = bench.session().await?;
    rival.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    drop(worker);
    bench.until_metric("lockscope_agent_away_sessions", &[], 1.0).await;
    let mut again = bench.agent.client3().await?;
    let (new, holds) = resume(&mut again, &ticket).await?;
    assert_eq!(holds, ["a lock 1"]);
    assert_eq!(bench.holders("a").await?, [(before, "1".to_owned())]);
    // The session has the same id and settings.
    let (id, _) = new.split_once(' ').context("id and secret")?;
    assert_eq!(credentials(&mut again).await?, new);
    again.call("SESSION PUSH on").await?.ok()?;
    assert_error(&again.call(&format!("RESUME {new}")).await?, "SESSION", id);
    let mut thief = bench.session().await?;
    assert_error(&thief.call(&format!("RESUME {ticket}")).await?, "SESSION", "secret");
    assert_error(&thief.call(&format!("RESUME {new}")).await?, "SESSION", "open connection");
    bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(pushed(&mut again).await?, ["lock-lost", "a", "lock", "missing"]);
    rival.reply().await?.ok()?;
    assert_error(&again.call(&format!("UNLOCK a IN {id}")).await?, "LOST", "a");
    let metrics = bench.agent.metrics().await?;
    let resumed =
        |outcome| metrics.sum("lockscope_agent_sessions_resumed_total", &[("outcome", outcome)]);
    assert_eq!((resumed("resumed"), resumed("alive"), resumed("refused")), (1.0, 2.0, 1.0));
    Ok(())
}

#[tokio::test]
async fn every_kind_of_lock_survives_a_killed_agent() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "2m"]).await?;
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    let mut before = Vec::new();
    for command in [
        "LOCK plain",
        "LOCK fair KIND fair",
        "LOCK fenced KIND fenced",
        "LOCK rw KIND write",
        "LOCK rw KIND read",
        "LOCK owned OWNER 7",
    ] {
        lock(&mut worker, command).await?;
    }
    lock(&mut worker, "LOCK plain").await?;
    eventually("the count in Redis", async || {
        let holders = bench.holders("plain").await?;
        ensure!(holders[0].1 == "2", "{holders:?}");
        Ok(())
    })
    .await;
    for name in ["plain", "fair", "fenced", "rw", "owned"] {
        before.push(bench.holders(name).await?);
    }
    // A waiter for the fair lock leaves a dead position in its queue.
    let mut waiting = bench.session().await?;
    graced(&mut waiting, GRACE).await?;
    waiting.send("LOCK fair KIND fair").await?;
    bench.until_waiting("fair", 1).await?;
    // The journal is written in order, and a grant is reported only once it is stored there. So the earlier wait is stored too.
    lock(&mut worker, "LOCK barrier").await?;
    worker.call("UNLOCK barrier").await?.ok()?;
    let oldest = "lockscope_agent_oldest_hold_start_timestamp_seconds";
    let granted = bench.agent.metrics().await?.sum(oldest, &[("lock_group", "plain")]);
    bench.agent.restart().await?;
    let queue = "redisson_lock_queue:{fair}";
    eventually("the dead waiter's position to be removed", async || {
        let length = bench.direct.call(&format!("LLEN {queue}")).await?.int()?;
        ensure!(length == 0, "{length} in the queue");
        Ok(())
    })
    .await;
    let mut again = bench.session().await?;
    let (_, mut holds) = resume(&mut again, &ticket).await?;
    holds.sort();
    let kinds = [
        "fair fair 1",
        "fenced fenced 1",
        "owned lock 1",
        "plain lock 2",
        "rw read 1",
        "rw write 1",
    ];
    assert_eq!(holds, kinds);
    let adopted = bench.agent.metrics().await?.sum(oldest, &[("lock_group", "plain")]);
    assert!((adopted - granted).abs() < 0.1, "granted at {granted}, adopted as of {adopted}");
    for (name, before) in ["plain", "fair", "fenced", "rw", "owned"].into_iter().zip(before) {
        assert_eq!(bench.holders(name).await?, before, "{name}");
        assert!(bench.pttl(name).await? > 0);
    }
    let token = lock(&mut again, "LOCK fenced KIND fenced").await?.field("token")?.int()?;
    let counter = bench.direct.call("GET redisson_lock_token:{fenced}").await?.text();
    assert_eq!(token.to_string(), counter, "the token of the grant");
    assert_eq!(again.call("UNLOCK plain").await?, Reply::Int(1));
    assert_eq!(again.call("UNLOCK plain").await?, Reply::Int(0));
    assert_error(&again.call("UNLOCK owned").await?, "NOTHELD", "owned");
    again.call("QUIT").await?.ok()?;
    for name in ["plain", "fair", "fenced", "rw", "owned"] {
        bench.until_free(name).await;
    }
    Ok(())
}

#[tokio::test]
async fn locks_of_unresumed_sessions_are_released_even_by_a_successor_agent() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["SESSION GRACE 200", "LOCK a"])?;
    worker.line().await?;
    worker.line().await?;
    worker.process().kill()?;
    bench.until_free("a").await;
    let mut worker = Worker::start(&socket, &folder, &["SESSION GRACE 200", "LOCK a"])?;
    worker.line().await?;
    worker.line().await?;
    bench.agent.restart().await?;
    bench.until_free("a").await;
    bench
        .until_metric("lockscope_agent_sessions_resumed_total", &[("outcome", "lapsed")], 1.0)
        .await;
    Ok(())
}

/// An agent is killed while Redis hangs, and its successor cannot query Redis for longer than the lease that it renews.
#[tokio::test]
async fn a_fixed_lease_survives_an_outage_that_begins_before_the_restart() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let (mut long, mut renewed) = (bench.session().await?, bench.session().await?);
    let long_ticket = graced(&mut long, GRACE).await?;
    lock(&mut long, "LOCK a LEASE 600000").await?;
    // The reentry has it renewed, but its worker was promised the long lease.
    lock(&mut long, "LOCK c LEASE 600000").await?;
    answered(&mut long, "LOCK c").await.ok()?;
    let renewed_ticket = graced(&mut renewed, GRACE).await?;
    lock(&mut renewed, "LOCK b").await?;
    bench.redis.process().freeze().await?;
    bench.agent.process().kill()?;
    bench.agent.restart().await?;
    let renewed_ticket = eventually("the loss of the renewed hold", async || {
        let mut again = bench.agent.client().await?;
        let (ticket, holds) = resume(&mut again, &renewed_ticket).await?;
        ensure!(holds.is_empty(), "{holds:?}");
        Ok(ticket)
    })
    .await;
    let events = bench.session().await?.call(&format!("EVENTS {renewed_ticket}")).await?.ok()?;
    assert_eq!(events.items()?[0].items()?[3].text(), "unconfirmed");
    bench.redis.process().thaw()?;
    eventually("the holds with a fixed lease", async || {
        let mut again = bench.agent.client().await?;
        let (_, mut holds) = resume(&mut again, &long_ticket).await?;
        holds.sort();
        ensure!(holds == ["a lock 1", "c lock 2"], "{holds:?}");
        Ok(())
    })
    .await;
    bench.until_free("b").await;
    Ok(())
}

#[tokio::test]
async fn a_damaged_journal_loses_only_the_damaged_part() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let journal = bench.agent.folder().join("state/journal");
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    lock(&mut worker, "LOCK b").await?;
    let mode = std::fs::metadata(&journal)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "there are secrets in it");
    bench.agent.process().kill()?;
    let mut bytes = std::fs::read(&journal)?;
    bytes.truncate(bytes.len() - 9);
    bytes.extend_from_slice(b"\n\xff\0garbage\n");
    std::fs::write(&journal, bytes)?;
    bench.agent.restart().await?;
    let mut again = bench.session().await?;
    let (ticket, holds) = resume(&mut again, &ticket).await?;
    assert_eq!(holds, ["a lock 1"]);
    bench.agent.process().kill()?;
    std::fs::write(&journal, [0; 100_000])?;
    bench.agent.restart().await?;
    assert_error(&bench.session().await?.call(&format!("RESUME {ticket}")).await?, "GONE", "ended");
    assert!(bench.agent.process().log().contains("the first line of the journal is damaged"));
    Ok(())
}

#[tokio::test]
async fn a_host_that_refuses_another_thread_has_no_effect() -> Result<()> {
    let bench = Bench::new().await?;
    let pid = bench.agent.pid();
    // No stack of a thread fits into what is left, which is the same to the agent as the limit of processes.
    let limit = status_bytes(pid, "VmSize")? + (1 << 20);
    let limit = Rlimit { current: Some(limit), maximum: None };
    let process = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    prlimit(Some(process), Resource::As, limit)?;
    let mut worker = bench.session().await?;
    graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_state_folder_that_is_removed_while_the_agent_runs_is_created_again() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let state = bench.agent.folder().join("state");
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    std::fs::remove_dir_all(&state)?;
    // Nothing happens in the meantime that the agent would have to record.
    eventually("a new state folder", async || {
        ensure!(state.join("journal").exists());
        Ok(())
    })
    .await;
    std::fs::remove_file(state.join("journal"))?;
    lock(&mut worker, "LOCK b").await?;
    assert!(state.join("journal").exists(), "a grant is in the journal before it is reported");
    assert!(bench.agent.process().log().contains("the state folder was removed"));
    bench.agent.process().kill()?;
    bench.agent.restart().await?;
    let (_, holds) = resume(&mut bench.session().await?, &ticket).await?;
    assert_eq!(holds, ["a lock 1", "b lock 1"]);
    Ok(())
}

#[tokio::test]
async fn a_state_folder_of_another_host_is_rejected() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    let before = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.agent.process().kill()?;
    // Simulates a copied folder: the file that the identity is bound to is a different one.
    let file = bench.agent.folder().join("state/lock");
    std::fs::rename(&file, file.with_extension("old"))?;
    bench.agent.restart().await?;
    let mut again = bench.session().await?;
    let refused = again.call(&format!("RESUME {ticket}")).await?;
    // Runs of different identities may have the same number if they began within the same second.
    assert!(refused.is_error("GONE") || refused.is_error("SESSION"), "{refused}");
    assert_eq!(bench.holders("a").await?, [(before, "1".to_owned())], "the hold is not affected");
    graced(&mut again, GRACE).await?;
    Ok(())
}

#[tokio::test]
async fn without_a_state_folder_there_are_locks_but_no_grace() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.agent.process().kill()?;
    let folder = bench.agent.folder().join("state");
    std::fs::remove_dir_all(&folder)?;
    std::fs::write(&folder, "no folder")?;
    bench.agent.restart().await?;
    let mut worker = bench.session().await?;
    assert_error(&worker.call("SESSION GRACE 5000").await?, "UNAVAILABLE", "state-dir");
    lock(&mut worker, "LOCK a").await?;
    assert_error(&worker.call("SESSION GRACE 99999999").await?, "LIMIT", "max-grace");
    Ok(())
}

#[tokio::test]
async fn an_operator_can_end_a_disconnected_session() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    drop(worker);
    bench.until_metric("lockscope_agent_away_sessions", &[], 1.0).await;
    assert!(!bench.is_free("a").await?);
    let (id, _) = ticket.split_once(' ').context("id and secret")?;
    let mut operator = bench.session().await?;
    assert_eq!(operator.call(&format!("KICK {id}")).await?, Reply::Int(1));
    bench.until_free("a").await;
    assert_error(&operator.call(&format!("RESUME {ticket}")).await?, "GONE", "ended");
    // The end of the session is in the journal too.
    bench.agent.restart().await?;
    let mut again = bench.session().await?;
    assert_error(&again.call(&format!("RESUME {ticket}")).await?, "GONE", "ended");
    Ok(())
}

#[tokio::test]
async fn holds_survive_a_restart_of_the_agent_on_a_full_disk() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "2m"]).await?;
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    let before = bench.holders("a").await?;
    // There is no space to replace the identity, and the replacement of the journal cannot be written.
    let state = bench.agent.folder().join("state");
    std::os::unix::fs::symlink("/dev/full", state.join(".identity.new"))?;
    std::fs::create_dir(state.join(".journal.new"))?;
    bench.agent.restart().await?;
    let mut again = bench.session().await?;
    let (_, holds) = resume(&mut again, &ticket).await?;
    assert_eq!(holds, ["a lock 1"]);
    assert_eq!(bench.holders("a").await?, before);
    assert_error(&again.call("LOCK b").await?, "UNAVAILABLE", "journal");
    assert_eq!(again.call("UNLOCK a").await?, Reply::Int(0));
    bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn the_holds_of_a_connected_session_are_listed_on_any_connection() -> Result<()> {
    let bench = Bench::new().await?;
    let mut other = bench.session().await?;
    lock(&mut other, "LOCK taken").await?;
    let mut worker = bench.session().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    lock(&mut worker, "LOCK a").await?;
    worker.send("LOCK taken").await?;
    bench.until_waiting("taken", 1).await?;
    let rows = other.call(&format!("HOLDS {ticket}")).await?.ok()?;
    ensure!(rows.items()?.len() == 1 && rows.items()?[0].field("lock")?.text() == "a", "{rows}");
    drop(worker);
    bench.until_metric("lockscope_agent_away_sessions", &[], 1.0).await;
    assert_error(&other.call(&format!("HOLDS {ticket}")).await?, "SESSION", "RESUME");
    let mut again = bench.session().await?;
    let (new, _) = resume(&mut again, &ticket).await?;
    let rows = other.call(&format!("HOLDS {new}")).await?.ok()?;
    ensure!(rows.items()?.len() == 1, "{rows}");
    Ok(())
}

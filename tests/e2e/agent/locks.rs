//! LOCK, UNLOCK, reentry, owners, sessions, listings.

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Bench, answered, assert_error, credentials, holder, lock, rows};

#[tokio::test]
async fn a_lock_has_redissons_layout_in_redis() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let reply = lock(&mut worker, "LOCK orders:42").await?;
    assert_eq!(reply.field("lock")?.text(), "orders:42");
    assert_eq!(reply.field("kind")?.text(), "lock");
    assert_eq!(reply.field("holds")?.int()?, 1);
    assert_eq!(reply.field("token")?, &Reply::Null);
    let valid = reply.field("valid_ms")?.int()?;
    assert!((1..30_000).contains(&valid), "{valid}");
    let held_by = holder(&reply)?;
    assert!(redisson::HolderId::parse(held_by.as_bytes()).is_some(), "{held_by}");
    assert_eq!(bench.holders("orders:42").await?, [(held_by, "1".to_owned())]);
    let pttl = bench.pttl("orders:42").await?;
    assert!((25_000..=30_000).contains(&pttl), "{pttl}");
    assert_eq!(worker.call("UNLOCK orders:42").await?, Reply::Int(0));
    assert_eq!(bench.direct.call("EXISTS orders:42").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn every_grant_has_a_higher_number() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(holder(&lock(&mut worker, "LOCK a").await?)?);
        worker.call("UNLOCK a").await?.ok()?;
    }
    bench.agent.restart().await?;
    let mut worker = bench.session().await?;
    for _ in 0..5 {
        let later = holder(&lock(&mut worker, "LOCK a").await?)?;
        let (client, number) = later.split_once(':').unwrap();
        let (before, last) = seen.last().unwrap().split_once(':').unwrap();
        assert_eq!(client, before, "the same agent");
        assert!(number.parse::<i64>()? > last.parse()?, "{later} after {seen:?}");
        seen.push(later);
        worker.call("UNLOCK a").await?.ok()?;
    }
    Ok(())
}

/// Waits until `a` has this holder and this hold count in Redis.
async fn count_in_redis(bench: &mut Bench, holder: &str, count: i64) {
    eventually("the count in Redis", async || {
        let holders = bench.holders("a").await?;
        ensure!(holders == [(holder.to_owned(), count.to_string())], "{holders:?}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn re_entry_counts_up_and_down() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    for count in 2..=4 {
        let reply = lock(&mut worker, "LOCK a NOWAIT").await?;
        assert_eq!(reply.field("holds")?.int()?, count);
        assert_eq!(holder(&reply)?, first);
        let shown = worker.call("SHOW a").await?.ok()?;
        let holders = shown.field("holders")?.items()?;
        assert_eq!(holders[0].field("holds")?.int()?, count, "before Redis has it");
        count_in_redis(&mut bench, &first, count).await;
    }
    for left in (1..=3).rev() {
        assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(left));
        count_in_redis(&mut bench, &first, left).await;
    }
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    assert_error(&worker.call("UNLOCK a").await?, "NOTHELD", "a");
    Ok(())
}

#[tokio::test]
async fn sessions_and_owners_exclude_each_other() -> Result<()> {
    let bench = Bench::new().await?;
    let mut one = bench.session().await?;
    let mut two = bench.session().await?;
    lock(&mut one, "LOCK a OWNER 1").await?;
    assert_eq!(two.call("LOCK a NOWAIT OWNER 1").await?, Reply::Null, "another session");
    assert_eq!(one.call("LOCK a NOWAIT OWNER 2").await?, Reply::Null, "another owner");
    assert_eq!(one.call("LOCK a NOWAIT").await?, Reply::Null, "owner 0 is one too");
    assert_error(&one.call("UNLOCK a OWNER 2").await?, "NOTHELD", "a");
    assert_error(&two.call("UNLOCK a OWNER 1").await?, "NOTHELD", "a");
    assert_eq!(one.call("LOCK a NOWAIT OWNER 1").await?.field("holds")?, &Reply::Int(2));
    Ok(())
}

#[tokio::test]
async fn owners_on_one_connection_do_not_block_each_other() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a OWNER 1").await?;
    // Owner 2 waits for the lock of owner 1; only the UNLOCK of owner 1, sent after it, can end that wait.
    worker.send("LOCK a OWNER 2").await?;
    worker.send("PING").await?;
    worker.send("UNLOCK a OWNER 1").await?;
    assert_eq!(worker.reply().await?.field("holds")?, &Reply::Int(1), "replies keep their order");
    assert_eq!(worker.reply().await?.text(), "PONG");
    assert_eq!(worker.reply().await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn one_owners_commands_run_one_after_another() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    let mut worker = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    worker.send("LOCK a").await?;
    worker.send("LOCK b").await?;
    bench.until_waiting("a", 1).await?;
    assert_eq!(lock(&mut holder, "LOCK b NOWAIT").await?.field("holds")?, &Reply::Int(1));
    holder.call("UNLOCK b").await?.ok()?;
    holder.call("UNLOCK a").await?.ok()?;
    assert_eq!(worker.reply().await?.field("lock")?.text(), "a");
    assert_eq!(worker.reply().await?.field("lock")?.text(), "b");
    Ok(())
}

#[tokio::test]
async fn a_command_for_another_session_does_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    let id = ticket.split(' ').next().unwrap_or_default();
    lock(&mut worker, &format!("LOCK a IN {id}")).await?;
    let mut stranger = bench.session().await?;
    for command in ["LOCK b", "UNLOCK a", "EXTEND a 5000"] {
        let reply = stranger.call(&format!("{command} IN {id}")).await?;
        assert_error(&reply, "SESSION", "reconnected");
    }
    assert!(bench.is_free("b").await?);
    assert_eq!(worker.call(&format!("UNLOCK a IN {id}")).await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn an_agent_can_require_sessions() -> Result<()> {
    let bench = Bench::with(&["--require-session"]).await?;
    let mut worker = bench.session().await?;
    assert_error(&worker.call("LOCK a").await?, "SESSION", "a");
    credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn holds_lists_only_the_holds_of_its_session() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut other = bench.session().await?;
    assert_eq!(worker.call("HOLDS").await?, Reply::Array(vec![]));
    let reply = lock(&mut worker, "LOCK a OWNER 7").await?;
    lock(&mut worker, "LOCK a OWNER 7").await?;
    lock(&mut worker, "LOCK b LEASE 20000").await?;
    lock(&mut other, "LOCK c").await?;
    let holds = worker.call("HOLDS").await?;
    let [a, b] = holds.items()? else { panic!("two holds: {holds}") };
    assert_eq!(a.field("holder")?, reply.field("holder")?);
    assert_eq!((a.field("owner")?.int()?, a.field("holds")?.int()?), (7, 2));
    assert_eq!((b.field("lock")?.text(), b.field("owner")?.int()?), ("b".to_owned(), 0));
    let valid = b.field("valid_ms")?.int()?;
    assert!((1..20_000).contains(&valid), "{valid}");
    assert!(b.field("age_ms")?.int()? >= 0);
    assert_eq!(b.field("kind")?.text(), "lock");
    assert_eq!(b.field("token")?, &Reply::Null);
    Ok(())
}

#[tokio::test]
async fn locks_lists_holds_and_waits_of_all_in_pages() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    worker.call("CLIENT SETNAME importer").await?.ok()?;
    for i in 0..25 {
        lock(&mut worker, &format!("LOCK page:{i}")).await?;
    }
    let mut waiter = bench.session().await?;
    waiter.send("LOCK page:3").await?;
    bench.until_waiting("page:3", 1).await?;
    let mut reader = bench.session().await?;
    let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
    loop {
        let page = reader.call(&format!("LOCKS MATCH page:* CURSOR {cursor} COUNT 7")).await?;
        let [next, rows] = page.items()? else { panic!("{page}") };
        for row in rows.items()? {
            names.push(row.field("lock")?.text());
        }
        assert!(rows.items()?.len() <= 7);
        cursor = next.text();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(names.len(), 26, "{names:?}");
    let three = rows(&mut reader, "page:3").await?;
    assert_eq!(three.len(), 2);
    let held = &three[0];
    assert_eq!((held.lock.as_str(), held.state.as_str()), ("page:3", "held"));
    assert_eq!(held.whole.field("name")?.text(), "importer");
    assert_eq!(held.whole.field("pid")?.int()?, i64::from(std::process::id()));
    assert_eq!(three[1].state, "waiting");
    assert_eq!(three[1].whole.field("holder")?, &Reply::Null);
    Ok(())
}

#[tokio::test]
async fn show_describes_the_lock_in_redis() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    assert_eq!(worker.call("SHOW a").await?, Reply::Null);
    let reply = lock(&mut worker, "LOCK a").await?;
    let shown = worker.call("SHOW a").await?;
    let holders = shown.field("holders")?.items()?;
    assert_eq!(holders[0].field("holder")?, reply.field("holder")?);
    assert_eq!(holders[0].field("holds")?.int()?, 1);
    assert_eq!(shown.field("kind")?.text(), "lock");
    assert!(shown.field("pttl_ms")?.int()? > 0);
    assert_eq!(shown.field("warnings")?, &Reply::Array(vec![]));
    bench.direct.call("SET string x").await?.ok()?;
    let odd = worker.call("SHOW string").await?;
    assert!(odd.field("warnings")?.text().contains("string"), "{odd}");
    bench.direct.call("HSET mine colour red").await?.ok()?;
    assert!(worker.call("SHOW mine").await?.field("warnings")?.items()?.len() >= 2);
    Ok(())
}

#[tokio::test]
async fn keys_of_other_types_are_rejected() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    bench.direct.call("SET text x").await?.ok()?;
    bench.direct.call("HSET mine colour red").await?.ok()?;
    let reader = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    bench.direct.call(&format!("HSET shared mode read {reader} 1")).await?.ok()?;
    for wait in ["", " NOWAIT", " WAIT 100000"] {
        let reply = worker.call(&format!("LOCK text{wait}")).await?;
        assert_error(&reply, "WRONGTYPE", "text");
        let reply = worker.call(&format!("LOCK mine{wait}")).await?;
        assert_error(&reply, "WRONGTYPE", "mine");
        let reply = worker.call(&format!("LOCK shared{wait}")).await?;
        assert_error(&reply, "WRONGKIND", "shared");
    }
    assert_eq!(bench.direct.call("GET text").await?.text(), "x");
    assert_eq!(bench.pttl("shared").await?, -1, "the key is not changed");
    Ok(())
}

#[tokio::test]
async fn a_deadlock_is_reported_at_once() -> Result<()> {
    let bench = Bench::new().await?;
    let mut one = bench.session().await?;
    let mut two = bench.session().await?;
    lock(&mut one, "LOCK a").await?;
    lock(&mut two, "LOCK b").await?;
    one.send("LOCK b").await?;
    bench.until_waiting("b", 1).await?;
    assert_error(&two.call("LOCK a").await?, "DEADLOCK", "a");
    assert_eq!(two.call("LOCK a WAIT 50").await?, Reply::Null, "a wait with an end is no deadlock");
    two.call("UNLOCK b").await?.ok()?;
    assert_eq!(one.reply().await?.field("lock")?.text(), "b");
    Ok(())
}

#[tokio::test]
async fn a_holder_of_an_unknown_client_excludes_others() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let uuids = "6f1c2a3b-5a43-4f9f-8d11-6a2b3c4d5e6f:8b2d9f10-0c1d-4e2f-9a3b-4c5d6e7f8091";
    for (n, field) in [uuids, "a", "worker-1"].iter().enumerate() {
        let name = format!("foreign{n}");
        bench.direct.call(&format!("HSET {name} {field} 1")).await?.ok()?;
        bench.direct.call(&format!("PEXPIRE {name} 600000")).await?.ok()?;
        for kind in ["lock", "fair", "fenced"] {
            let reply = answered(&mut worker, &format!("LOCK {name} KIND {kind} WAIT 20")).await;
            assert_eq!(reply, Reply::Null, "{field} {kind}: held by another client");
        }
        for kind in ["read", "write"] {
            let reply = worker.call(&format!("LOCK {name} KIND {kind} NOWAIT")).await?;
            assert_error(&reply, "WRONGKIND", &name);
        }
        let shown = worker.call(&format!("SHOW {name}")).await?;
        let holders = shown.field("holders")?.items()?;
        assert_eq!(holders[0].field("holder")?.text(), *field);
        assert_eq!(holders[0].field("holds")?.int()?, 1);
        assert!(shown.field("warnings")?.text().contains("unknown client"), "{shown}");
        let reply = worker.call(&format!("FORCE {name} HOLDER other")).await?;
        assert_error(&reply, "NOTHELD", field);
        let reply = worker.call(&format!("FORCE {name} HOLDER {field}")).await?;
        assert_eq!(reply, Reply::Int(1));
        lock(&mut worker, &format!("LOCK {name} NOWAIT")).await?;
    }
    Ok(())
}

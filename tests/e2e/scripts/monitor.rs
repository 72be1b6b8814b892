//! The events that MONITOR yields for each script, on the server and on a replica.

use std::time::Duration;

use anyhow::ensure;
use harness::eventually;
use redisson::monitor::{Action, Certainty, Decoder, Event, ServerRole};
use redisson::script::MissingMarkers;

use super::*;

/// A decoded MONITOR stream of a server.
struct Watcher {
    client: Client,
    decoder: Decoder,
}

impl Watcher {
    async fn new(server: &RedisServer, role: ServerRole) -> Result<Self> {
        let mut client = server.client().await?;
        client.call("MONITOR").await?.ok()?;
        Ok(Self { client, decoder: Decoder::new(role) })
    }

    /// Returns the events until the key `mark` is written.
    async fn until(&mut self, mark: &str) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            let line = self.client.reply().await?.text();
            self.decoder.feed_line(line.as_bytes(), &mut events);
            if line.ends_with(&format!("\"{mark}\" \"1\"")) {
                return Ok(events);
            }
        }
    }
}

fn shown(events: &[Event]) -> Vec<String> {
    let one = |event: &Event| {
        let sure = if event.certainty == Certainty::Certain { "" } else { "?" };
        let kind = event.kind.map_or("-", redisson::Kind::as_str);
        let holder = event.holder.map_or_else(|| "-".to_owned(), |h| h.thread.to_string());
        let write = if event.holder.is_some_and(|h| h.write) { "w" } else { "" };
        format!("{}{sure} {} {kind} {holder}{write}", event.action.as_str(), event.lock)
    };
    events.iter().map(one).collect()
}

#[tokio::test]
async fn each_script_yields_the_matching_event() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut watcher = Watcher::new(&bench.redis, ServerRole::Master).await?;
    let (one, two) = (ours(1), ours(2));
    let write = HolderId { write: true, ..one };
    let (a, b, f, t, rw) = (name("a"), name("b"), name("fair"), name("token"), name("rw"));
    let (l, p) = (lease(30_000), Publish::Plain);
    let wait = Duration::from_secs(60);
    let holder = |id, count| shape::Holder { id, count };
    let hash = |holders, mode: Option<&str>| shape::LockHash {
        holders,
        mode: mode.map(Into::into),
        ..Default::default()
    };
    let (held, read) = (hash(vec![holder(one, 1)], None), hash(vec![holder(two, 2)], Some("read")));
    let seen = |hash| script::ExpectedLock { hash, ttl: script::ExpectedTtl::Any };
    let steps: Vec<(Call, &[&str])> = vec![
        (script::acquire(&a, &one, l), &["acquired a lock 1"]),
        (script::acquire(&a, &theirs(), l), &["refused a lock 47"]),
        (script::renew([(&a, one)], 2, Some(lease(60_000))), &["recounted a - 1"]),
        (script::renew([(&a, one)], 2, Some(lease(90_000))), &["renewed a - 1"]),
        (script::renew([(&a, two)], 1, Some(l)), &["renewal_found_nothing a - 2"]),
        (script::hand_over(&a, &one, &two, l), &["handed_over a - 1"]),
        (script::release(&a, &one, p), &["release_found_nothing? a lock 1"]),
        (script::release(&a, &two, p), &["released a lock 2"]),
        (
            script::batch(&[script::acquire(&a, &one, l), script::acquire(&b, &two, l)]),
            &["acquired a lock 1", "acquired b lock 2"],
        ),
        (
            script::batch(&[
                script::release(&a, &two, p),
                script::acquire(&a, &two, l),
                script::release(&b, &two, p),
                script::acquire(&b, &one, l),
            ]),
            &["released b lock 2", "acquired b lock 1"],
        ),
        (script::acquire_fenced(&t, &one, l, 1), &["acquired token fenced 1"]),
        (script::acquire_fenced(&t, &two, l, 1), &["refused token fenced 2"]),
        (script::force_release(&t, seen(&held), &[], p), &["force_released token - -"]),
        (queued(&f, one, 30_000, ours(0)), &["acquired fair fair 1"]),
        (script::acquire_fair(&f, &two, l, wait, None, &ours(0), p), &["refused fair fair 2"]),
        (queued(&f, two, 30_000, ours(0)), &["queued fair fair 2"]),
        (queued(&f, two, 30_000, ours(0)), &["refused fair fair 2"]),
        (
            script::hand_over_fair(&f, (&one, &two), l, wait, &ours(0), p),
            &["handed_over fair fair 1"],
        ),
        (script::hand_over_fair(&f, (&two, &one), l, wait, &ours(0), p), &["released fair fair 2"]),
        (queued(&f, one, 30_000, ours(0)), &["acquired fair fair 1"]),
        (queued(&f, two, 30_000, ours(0)), &["queued fair fair 2"]),
        (script::release_fair(&f, &two, wait, &ours(0), p), &["left_queue fair fair 2"]),
        (script::release_fair(&f, &one, wait, &ours(0), p), &["released fair fair 1"]),
        (script::acquire_write(&rw, &write, l), &["acquired rw write 1w"]),
        (script::acquire_read(&rw, &two, l, None), &["refused rw read 2"]),
        (script::acquire_read(&rw, &one, l, Some(&write)), &["acquired rw read 1"]),
        (script::release_write(&rw, &write, p), &["released rw write 1w"]),
        (script::acquire_read(&rw, &two, l, None), &["acquired rw read 2"]),
        (
            script::renew_read([(&rw, two)], 2, Some(l), MissingMarkers::Restore),
            &["recounted rw read 2"],
        ),
        (
            script::renew_read([(&rw, two)], 2, Some(l), MissingMarkers::Report),
            &["renewed rw read 2"],
        ),
        (script::verify_read([(&rw, two, Some(lease(1_000)))], 2, MissingMarkers::Report), &[]),
        (script::release_read(&rw, &one, p), &["released rw read 1"]),
        (script::release_read(&rw, &one, p), &["release_found_nothing rw read 1"]),
        (
            script::force_release_holder(&rw, seen(&read), &holder(two, 2), p),
            &["force_released rw - -"],
        ),
        (script::release_write(&rw, &write, p), &["release_found_nothing rw write 1w"]),
        (script::show(&a), &[]),
    ];
    for (i, (call, expected)) in steps.iter().enumerate() {
        bench.call(call).await?;
        let mark = format!("mark:{i}");
        bench.client.call(&format!("SET {mark} 1")).await?.ok()?;
        let events = watcher.until(&mark).await?;
        let text = shown(&events);
        assert_eq!(text, *expected, "step {i}, {}", call.script.name);
    }
    let counts = watcher.decoder.counts();
    assert_eq!((counts.garbage, counts.cut), (0, 0));
    Ok(())
}

#[tokio::test]
async fn a_release_by_an_account_that_may_not_publish_is_probably_a_release() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut watcher = Watcher::new(&bench.redis, ServerRole::Master).await?;
    let a = name("a");
    bench.acquire(&a, ours(1), 30_000).await?;
    bench.client.call("ACL SETUSER default resetchannels").await?.ok()?;
    assert_eq!(bench.release(&a, ours(1)).await?, ReleaseOutcome::Released);
    bench.client.call("SET mark 1").await?.ok()?;
    let events = watcher.until("mark").await?;
    assert_eq!(shown(&events), ["acquired a lock 1", "released? a lock 1"]);
    Ok(())
}

#[tokio::test]
async fn a_replica_shows_the_changes() -> Result<()> {
    let mut bench = Bench::new().await?;
    let replica = RedisServer::start().await?;
    replica.follow(&bench.redis).await?;
    let mut watcher = Watcher::new(&replica, ServerRole::Replica).await?;
    let a = name("a");
    bench.acquire(&a, ours(1), 30_000).await?;
    bench.acquire(&a, theirs(), 30_000).await?;
    bench.renew(&a, ours(1), 1, 3_600_000).await?;
    bench.hand_over(&a, ours(1), ours(2), 30_000).await?;
    bench.release(&a, ours(2)).await?;
    bench.acquire(&a, ours(3), 100).await?;
    // An access makes Redis expire the key.
    eventually("the lease to end", async || {
        ensure!(bench.pttl(&a).await? == -2, "still there");
        Ok(())
    })
    .await;
    bench.client.call("SET mark 1").await?.ok()?;
    let events = watcher.until("mark").await?;
    let expected = [
        "acquired? a - 1",
        "renewed? a - 1",
        "handed_over? a - 1",
        "released? a - 2",
        "acquired? a - 3",
        "vanished? a - -",
    ];
    assert_eq!(shown(&events), expected);
    let Action::Renewed { lease: Some(lease) } = events[1].action else { panic!("{events:?}") };
    // The replica stream contains the lease's end as an instant, so a delay of the replica shortens it.
    assert!(lease.abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(300), "{lease:?}");
    assert!(events.iter().all(|event| event.client.is_none()), "{events:?}");
    Ok(())
}

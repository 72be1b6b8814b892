//! A Redis that refuses commands temporarily: the script fails and is repeated, and no key is taken for one of another type.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use redisson::script::{
    Call, ForceReleaseOutcome, Publish, ReleaseOutcome, parse_force_release, parse_purged,
    parse_release, unannounced,
};

use super::{Bench, lease, name, ours, queued, script};

const FAIR_WAIT: Duration = Duration::from_secs(15);

/// The words of Redis 7.0, and of later versions, for a script's command that the account may not run.
const NOT_PERMITTED: [&str; 2] =
    ["The user executing the script can't run", "ACL failure in script"];

/// Asserts that Redis refuses this call with an error that contains any of these words.
async fn assert_refused(bench: &mut Bench, call: &Call, words: &[&str]) -> Result<()> {
    let name = call.script.name;
    match bench.call(call).await {
        Ok(reply) => bail!("{name} is not refused: {reply:?}"),
        Err(refused) => {
            let refused = refused.to_string();
            ensure!(words.iter().any(|words| refused.contains(words)), "{name}: {refused}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn each_script_that_ends_a_hold_is_refused() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (publish, length) = (Publish::Plain, lease(30_000));
    let [plain, fair, read, write] = ["plain", "fair", "read", "write"].map(name);
    let writer = redisson::HolderId { write: true, ..ours(1) };
    bench.acquire(&plain, ours(1), 30_000).await?;
    let calls = [
        script::acquire_fair(&fair, &ours(1), length, FAIR_WAIT, None, &ours(1), publish),
        script::acquire_read(&read, &ours(1), length, None),
        script::acquire_write(&write, &writer, length),
    ];
    for call in &calls {
        bench.call(call).await?;
    }
    let before = bench.dump().await?;
    let shown = bench.show(&plain).await?;
    let seen = script::ExpectedLock { hash: &shown.hash, ttl: script::ExpectedTtl::Any };
    bench.client.call("CONFIG SET min-replicas-to-write 1").await?.ok()?;
    for call in [
        script::release(&plain, &ours(1), publish),
        script::release_fair(&fair, &ours(1), FAIR_WAIT, &ours(1), publish),
        script::release_read(&read, &ours(1), publish),
        script::release_write(&write, &writer, publish),
        script::hand_over(&plain, &ours(1), &ours(2), length),
        script::hand_over_fair(&fair, (&ours(1), &ours(2)), length, FAIR_WAIT, &ours(1), publish),
        script::force_release(&plain, seen, &[], publish),
        script::force_release_holder(&plain, seen, &shown.hash.holders[0], publish),
    ] {
        assert_refused(&mut bench, &call, &["NOREPLICAS"]).await?;
    }
    bench.client.call("CONFIG SET min-replicas-to-write 0").await?.ok()?;
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

/// A lock that cannot be read does not count as gone.
#[tokio::test]
async fn an_account_that_may_not_read_proves_no_loss() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (plain, read) = (name("plain"), name("read"));
    bench.acquire(&plain, ours(1), 30_000).await?;
    bench.call(&script::acquire_read(&read, &ours(1), lease(30_000), None)).await?;
    let shown = bench.show(&plain).await?;
    let seen = script::ExpectedLock { hash: &shown.hash, ttl: script::ExpectedTtl::Any };
    bench.client.call("ACL SETUSER default -hget -hexists -hlen").await?.ok()?;
    let report = script::MissingMarkers::Report;
    for call in [
        script::renew([(&plain, ours(1))], 1, None),
        script::renew_read([(&read, ours(1))], 1, None, report),
        script::release_read(&read, &ours(1), Publish::Plain),
        script::hand_over(&plain, &ours(1), &ours(2), lease(30_000)),
        script::force_release(&plain, seen, &[], Publish::Plain),
        script::force_release_holder(&plain, seen, &shown.hash.holders[0], Publish::Plain),
    ] {
        assert_refused(&mut bench, &call, &NOT_PERMITTED).await?;
    }
    Ok(())
}

/// A user of Redis 7 has no channels unless it gets some.
#[tokio::test]
async fn a_release_whose_message_is_refused_is_a_release() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (publish, length) = (Publish::Plain, lease(30_000));
    let [plain, fair, passed, read, write] = ["plain", "fair", "passed", "read", "write"].map(name);
    let writer = redisson::HolderId { write: true, ..ours(1) };
    bench.acquire(&plain, ours(1), 30_000).await?;
    for call in [
        script::acquire_fair(&fair, &ours(1), length, FAIR_WAIT, None, &ours(1), publish),
        queued(&fair, ours(2), 30_000, ours(1)),
        script::acquire_fair(&passed, &ours(1), length, FAIR_WAIT, None, &ours(1), publish),
        queued(&passed, ours(2), 30_000, ours(1)),
        script::acquire_read(&read, &ours(1), length, None),
        script::acquire_write(&write, &writer, length),
    ] {
        bench.call(&call).await?;
    }
    bench.client.call("ACL SETUSER default resetchannels").await?.ok()?;
    for call in [
        script::release(&plain, &ours(1), publish),
        script::release_fair(&fair, &ours(1), FAIR_WAIT, &ours(1), publish),
        // The waiter that would get it is not the next one.
        script::hand_over_fair(&passed, (&ours(1), &ours(3)), length, FAIR_WAIT, &ours(1), publish),
        script::release_read(&read, &ours(1), publish),
        script::release_write(&write, &writer, publish),
    ] {
        let name = call.script.name;
        let reply = bench.call(&call).await?;
        assert_eq!(parse_release(&reply)?, ReleaseOutcome::Released, "{name}");
        let error = unannounced(&reply).unwrap_or_default();
        ensure!(error.contains("channel"), "{name}: {reply:?}");
    }
    for lock in [&plain, &fair, &passed, &read, &write] {
        assert_eq!(bench.show(lock).await?.key_type, "none", "{lock}");
    }
    Ok(())
}

#[tokio::test]
async fn a_forced_release_whose_messages_are_refused_is_a_release() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (publish, length) = (Publish::Plain, lease(30_000));
    let [whole, part, fair] = ["whole", "part", "fair"].map(name);
    for lock in [&whole, &part] {
        bench.acquire(lock, ours(1), 30_000).await?;
    }
    let joins = Some(Duration::ZERO);
    for (holder, waits) in [(ours(1), None), (ours(2), joins), (ours(3), joins)] {
        let call =
            script::acquire_fair(&fair, &holder, length, FAIR_WAIT, waits, &ours(1), publish);
        bench.call(&call).await?;
    }
    let shown = bench.show(&whole).await?;
    let seen = script::ExpectedLock { hash: &shown.hash, ttl: script::ExpectedTtl::Any };
    bench.client.call("DEL fair").await?.ok()?;
    // Its deadline is over.
    bench.client.call(&format!("ZADD redisson_lock_timeout:{{fair}} 1 {}", ours(2))).await?.ok()?;
    bench.client.call("ACL SETUSER default resetchannels").await?.ok()?;
    for call in [
        script::force_release(&whole, seen, &[], publish),
        script::force_release_holder(&part, seen, &shown.hash.holders[0], publish),
        script::remove_waiter(&fair, &ours(2), Some(1), publish),
    ] {
        let name = call.script.name;
        let reply = bench.call(&call).await?;
        assert_eq!(parse_force_release(&reply)?, ForceReleaseOutcome::Released, "{name}");
        let error = unannounced(&reply).unwrap_or_default();
        ensure!(error.contains("channel"), "{name}: {reply:?}");
    }
    let reply = bench.call(&script::purge_queue(&fair, &[], publish)).await?;
    assert_eq!(parse_purged(&reply)?, 0, "the waiter behind it lives");
    ensure!(unannounced(&reply).unwrap_or_default().contains("channel"), "{reply:?}");
    for lock in [&whole, &part] {
        assert_eq!(bench.show(lock).await?.key_type, "none", "{lock}");
    }
    Ok(())
}

#[tokio::test]
async fn an_account_that_may_set_no_lease_leaves_no_lock_without_one() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (length, before) = (lease(30_000), bench.dump().await?);
    let writer = redisson::HolderId { write: true, ..ours(1) };
    bench.client.call("ACL SETUSER default -pexpire").await?.ok()?;
    for call in [
        script::acquire(&name("plain"), &ours(1), length),
        script::acquire_fair(
            &name("fair"),
            &ours(1),
            length,
            FAIR_WAIT,
            None,
            &ours(1),
            Publish::Plain,
        ),
        script::acquire_read(&name("read"), &ours(1), length, None),
        script::acquire_write(&name("write"), &writer, length),
    ] {
        assert_refused(&mut bench, &call, &NOT_PERMITTED).await?;
    }
    let both = [
        script::acquire(&name("a"), &ours(1), length),
        script::acquire(&name("b"), &ours(2), length),
    ];
    let reply = bench.call(&script::batch(&both)).await?;
    assert_eq!(script::parse_batch(&reply, 2)?, [None, None], "each asks alone");
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

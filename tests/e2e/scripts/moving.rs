//! Scripts for fair and read-write locks on a node from which the slot moves. It refuses commands on keys that do not exist, even within a
//! script that has just removed the last entry of a key.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use harness::RedisCluster;
use redisson::script::{
    AcquireOutcome, ExpectedLock, ExpectedTtl, ForceReleaseOutcome, HandOverOutcome, Publish,
    QueueEntry, ReleaseOutcome, parse_acquire, parse_force_release, parse_hand_over_fair,
    parse_purged, parse_release,
};
use redisson::{HolderId, LockName};

use super::{Client, eval, keys, lease, name, ours, queued, script, shape, theirs};

const WAIT: Duration = Duration::from_secs(15);
const PUBLISH: Publish = Publish::Plain;

/// Stores a held lock with one waiter, whose deadline is over.
async fn store(client: &mut Client, lock: &LockName, held: HolderId, dead: HolderId) -> Result<()> {
    let (held, dead) = (held.to_string(), dead.to_string());
    let (queue, deadlines) = (keys::queue(lock), keys::deadlines(lock));
    for command in [
        [b"HSET".as_slice(), lock.as_bytes(), held.as_bytes(), b"1"].as_slice(),
        &[b"PEXPIRE", lock.as_bytes(), b"60000"],
        &[b"RPUSH", &queue, dead.as_bytes()],
        &[b"ZADD", &deadlines, b"1", dead.as_bytes()],
    ] {
        client.call_args(command).await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn no_script_fails_after_it_has_removed_the_last_waiter() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let tag = cluster.names("fair").swap_remove(0);
    let lock = |what: &str| name(&format!("{what}:{{{tag}}}"));
    let slot = redisson::slot(tag.as_bytes());
    let mut client = cluster.client(0).await?;

    let released = ["released", "passed", "forced"].map(lock);
    let [plain, passed, forced] = &released;
    let kept = ["left", "refused", "purged", "reduced"].map(lock);
    let [left, refused, purged, reduced] = &kept;
    for name in &released {
        store(&mut client, name, ours(1), theirs()).await?;
    }
    for name in &kept {
        store(&mut client, name, theirs(), ours(2)).await?;
    }
    let shared = lock("shared");
    let fields = format!("mode write {}:write 1 {} 1", ours(1), theirs());
    client.call(&format!("HSET {shared} {fields}")).await?.ok()?;
    client.call(&format!("PEXPIRE {shared} 60000")).await?.ok()?;
    cluster.begin_move(slot, 0, 1).await?;

    let reply =
        eval(&mut client, &script::release_fair(plain, &ours(1), WAIT, &ours(1), PUBLISH)).await?;
    assert_eq!(parse_release(&reply)?, ReleaseOutcome::Released);

    let (between, length) = ((&ours(1), &ours(3)), lease(60_000));
    let call = script::hand_over_fair(passed, between, length, WAIT, &ours(1), PUBLISH);
    let reply = eval(&mut client, &call).await?;
    assert_eq!(parse_hand_over_fair(&reply)?, HandOverOutcome::Released);

    let holders = vec![shape::Holder { id: ours(1), count: 1 }];
    let hash = shape::LockHash { holders, ..shape::LockHash::default() };
    let seen = ExpectedLock { hash: &hash, ttl: ExpectedTtl::Any };
    let reply = eval(&mut client, &script::force_release(forced, seen, &[], PUBLISH)).await?;
    assert_eq!(parse_force_release(&reply)?, ForceReleaseOutcome::Released);

    let reply =
        eval(&mut client, &script::release_fair(left, &ours(2), WAIT, &ours(1), PUBLISH)).await?;
    assert_eq!(parse_release(&reply)?, ReleaseOutcome::Stolen);

    let call = queued(refused, ours(4), 60_000, ours(3));
    let AcquireOutcome::Held { holders, .. } = parse_acquire(&eval(&mut client, &call).await?)?
    else {
        panic!("others hold it")
    };
    assert_eq!(holders, [theirs()]);

    let waiter = ours(2).to_string().into_bytes();
    let dead = [QueueEntry { waiter, deadline_ms: Some(1) }];
    let reply = eval(&mut client, &script::purge_queue(purged, &dead, PUBLISH)).await?;
    assert_eq!(parse_purged(&reply)?, 1);

    let call = script::remove_waiter(reduced, &ours(2), Some(1), PUBLISH);
    let reply = eval(&mut client, &call).await?;
    assert_eq!(parse_force_release(&reply)?, ForceReleaseOutcome::Released);

    // A reader's marker that is missing here may be on the other node.
    let writer = HolderId { write: true, ..ours(1) };
    let call = script::release_write(&shared, &writer, PUBLISH);
    assert_eq!(parse_release(&eval(&mut client, &call).await?)?, ReleaseOutcome::Released);

    // Nothing but the held locks remains, and no key is on both nodes.
    let there = client.call(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).await?.ok()?;
    let there: BTreeSet<String> = there.items()?.iter().map(harness::Reply::text).collect();
    assert_eq!(there, kept.iter().chain([&shared]).map(ToString::to_string).collect());
    cluster.move_keys(slot, 0, 1).await?;
    cluster.end_move(slot, 0, 1).await
}

//! `force_release`: for an operator, who acts on what was seen.

use std::time::Duration;

use anyhow::Result;
use redisson::HolderId;
use redisson::script::{Forced, Publish, parse_force_release};
use redisson::shape::Holder;

use super::{Bench, keys, lease, messages, name, ours, script, strangers, theirs};

#[tokio::test]
async fn frees_the_lock_as_seen_and_tells_waiters_and_the_agent() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 5_000).await?;
    bench.keep(&lock, ours(1), 2, 5_000).await?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    let seen = [Holder { id: ours(1), count: 2 }];
    assert_eq!(bench.force_release(&lock, &seen).await?, Forced::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    assert_eq!(messages(&mut agent).await?, [format!("{} a", ours(1))]);
    assert_eq!(bench.force_release(&lock, &seen).await?, Forced::Free);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn never_hits_what_the_operator_did_not_see() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(2), 5_000).await?;
    let before = bench.dump().await?;
    let holder = |id, count| Holder { id, count };
    let others: [&[Holder]; 5] = [
        &[holder(ours(1), 1)],
        &[holder(ours(2), 2)],
        &[holder(ours(2), 1), holder(theirs(), 1)],
        &[holder(theirs(), 1)],
        &[],
    ];
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    for seen in others {
        assert_eq!(bench.force_release(&lock, seen).await?, Forced::Changed, "{seen:?}");
    }
    assert_eq!(bench.dump().await?, before);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn several_holders_are_each_compared_and_told() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.client.call(&format!("HSET a {} 1 {} 4", ours(1), theirs())).await?.ok()?;
    let mut first = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    let mut second = bench.subscriber(&keys::forced_channel(&theirs().client)).await?;
    let seen = [Holder { id: theirs(), count: 4 }, Holder { id: ours(1), count: 1 }];
    let reply = bench.call(&script::force_release(&lock, &seen, Publish::Both)).await?;
    assert_eq!(parse_force_release(&reply)?, Forced::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut first).await?, [format!("{} a", ours(1))]);
    assert_eq!(messages(&mut second).await?, [format!("{} a", theirs())]);
    Ok(())
}

#[tokio::test]
async fn leaves_what_is_no_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = strangers(&mut bench.client, "x").await?;
    let before = bench.dump().await?;
    let seen = [Holder { id: ours(1), count: 1 }];
    for lock in &locks {
        let forced = bench.force_release(&name(lock), &seen).await?;
        let is_hash = bench.client.call(&format!("TYPE {lock}")).await?.text() == "hash";
        assert_eq!(forced, if is_hash { Forced::Changed } else { Forced::WrongType }, "{lock}");
    }
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_read_write_lock_goes_with_its_markers() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    for n in [1, 2] {
        bench.call(&script::acquire_read(&lock, &ours(n), lease(5_000), None)).await?;
    }
    bench.call(&script::keep_read([(&lock, ours(2), 2)], lease(5_000))).await?;
    let seen = [Holder { id: ours(1), count: 1 }, Holder { id: ours(2), count: 2 }];
    assert_eq!(bench.force_release(&lock, &seen[..1]).await?, Forced::Changed);
    assert_eq!(bench.force_release(&lock, &seen).await?, Forced::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    assert_eq!(messages(&mut waiter).await?, ["1"]);
    assert_eq!(messages(&mut agent).await?.len(), 2);

    let writer = HolderId { write: true, ..ours(3) };
    bench.call(&script::acquire_write(&lock, &writer, lease(5_000))).await?;
    let seen = [Holder { id: writer, count: 1 }];
    assert_eq!(bench.force_release(&lock, &seen).await?, Forced::Released);
    assert_eq!(messages(&mut waiter).await?, ["1"]);
    Ok(())
}

#[tokio::test]
async fn a_fair_locks_living_head_is_told() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let wait = Duration::from_secs(15);
    bench.call(&script::acquire_fair(&lock, &theirs(), lease(5_000), wait, true)).await?;
    bench.client.call("RPUSH redisson_lock_queue:{a} somebody-dead").await?;
    bench.call(&script::acquire_fair(&lock, &ours(1), lease(5_000), wait, true)).await?;
    let mut head = bench.subscriber(&keys::fair_channel(&lock, &ours(1))).await?;
    let seen = [Holder { id: theirs(), count: 1 }];
    assert_eq!(bench.force_release(&lock, &seen).await?, Forced::Released);
    assert_eq!(messages(&mut head).await?, ["0"]);
    assert_eq!(bench.client.call("LLEN redisson_lock_queue:{a}").await?.int()?, 1);
    Ok(())
}

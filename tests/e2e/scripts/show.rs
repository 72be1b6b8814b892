//! `show`: reads only what is known to be small, and writes nothing.

use anyhow::Result;
use redisson::script::{QueueEntry, Reader};
use redisson::shape::Holder;

use super::{Bench, keys, lease, name, ours, script, theirs};

#[tokio::test]
async fn describes_holders_ttl_and_queue() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let free = bench.show(&lock).await?;
    assert_eq!((free.key_type.as_str(), free.pttl_ms, free.fields), ("none", None, 0));
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.renew(&lock, ours(1), 2, 300_000).await?;
    bench.client.call(&format!("RPUSH redisson_lock_queue:{{a}} {} x", theirs())).await?.ok()?;
    bench
        .client
        .call(&format!("ZADD redisson_lock_timeout:{{a}} 1800000000123 {}", theirs()))
        .await?
        .ok()?;
    let shown = bench.show(&lock).await?;
    assert_eq!(shown.key_type, "hash");
    assert!(shown.pttl_ms.is_some_and(|ms| (240_000..=300_000).contains(&ms)));
    assert_eq!(shown.hash.holders, [Holder { id: ours(1), count: 2 }]);
    assert_eq!(shown.queue_length, 2);
    let place = |waiter: String, deadline_ms| QueueEntry { waiter: waiter.into(), deadline_ms };
    let first = place(theirs().to_string(), Some(1_800_000_000_123));
    assert_eq!(shown.queue, [first, place("x".to_owned(), None)]);
    Ok(())
}

#[tokio::test]
async fn describes_any_key_and_changes_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = bench.other_keys().await?;
    bench.client.call("SET redisson_lock_queue:{x.read} text").await?.ok()?;
    bench.client.call("RPUSH redisson_lock_queue:{x.write} someone").await?.ok()?;
    bench.client.call("SET redisson_lock_timeout:{x.write} text").await?.ok()?;
    let before = bench.dump().await?;
    for lock in &locks {
        let shown = bench.show(&name(lock)).await?;
        let is_hash = shown.key_type == "hash";
        assert_eq!(shown.fields > 0, is_hash, "{lock}");
    }
    let read = bench.show(&name("x.read")).await?;
    assert_eq!(read.hash.mode.as_deref(), Some(b"read".as_slice()));
    assert_eq!(read.queue_length, 0);
    assert_eq!(bench.show(&name("x.write")).await?.queue[0].deadline_ms, None);
    assert_eq!(bench.show(&name("x.alien")).await?.hash.unexpected, [b"colour".to_vec()]);
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn reads_little_of_large_keys() -> Result<()> {
    let mut bench = Bench::new().await?;
    let fields: String = (0..2_000).map(|n| format!(" field{n} {n}")).collect();
    bench.client.call(&format!("HSET big{fields}")).await?.ok()?;
    let big = bench.show(&name("big")).await?;
    assert_eq!((big.fields, big.hash.unexpected.len()), (2_000, 0), "counted, not read");
    let long = "x".repeat(1 << 20);
    bench.client.call_args(&["HSET", "long", &long, "1", &ours(1).to_string(), &long]).await?;
    let long = bench.show(&name("long")).await?;
    assert!(long.hash.unexpected.iter().all(|field| field.len() < 100), "long fields are cut");
    assert_eq!(long.hash.holders, [], "a long value is no count");
    assert!(!bench.ran("hget").await?, "nor is it read");
    let waiters: String = (0..500).map(|n| format!(" w{n}")).collect();
    bench.client.call(&format!("RPUSH redisson_lock_queue:{{q}}{waiters}")).await?.ok()?;
    let queue = bench.show(&name("q")).await?;
    assert_eq!((queue.queue_length, queue.queue.len()), (500, 100));
    Ok(())
}

#[tokio::test]
async fn a_user_without_write_permission_may_run_it() -> Result<()> {
    // It writes nothing, so a read-only user can call it.
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    let user = "ACL SETUSER eye on nopass ~* +@read +eval";
    bench.client.call(user).await?.ok()?;
    bench.client.call("AUTH eye any").await?.ok()?;
    assert_eq!(bench.show(&lock).await?.hash.holders.len(), 1);
    assert_eq!(keys::channel(&lock), b"redisson_lock__channel:{a}");
    Ok(())
}

#[tokio::test]
async fn describes_the_token_and_the_living_readers() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.show(&lock).await?.token, None);
    bench.call(&script::acquire_fenced(&lock, &ours(1), lease(300_000), 7)).await?;
    let shown = bench.show(&lock).await?;
    assert!(shown.token > Some(7), "at least the server's time: {:?}", shown.token);
    assert_eq!(shown.readers, vec![]);
    bench.client.call("SET redisson_lock_token:{a} nonsense").await?.ok()?;
    assert_eq!(bench.show(&lock).await?.token, None);

    let shared = name("b");
    bench.client.call(&format!("HSET b mode read {} 1", theirs())).await?.ok()?;
    bench.call(&script::acquire_read(&shared, &ours(1), lease(300_000), None)).await?;
    bench.renew_read(&shared, ours(1), 3, 300_000).await?;
    bench.client.call(&format!("DEL {{b}}:{}:rwlock_timeout:1", ours(1))).await?;
    let mut readers =
        vec![Reader { id: ours(1), alive: true }, Reader { id: theirs(), alive: false }];
    readers.sort_by_key(|reader| reader.id);
    assert_eq!(bench.show(&shared).await?.readers, readers);
    Ok(())
}

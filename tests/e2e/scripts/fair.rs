//! Fair locks: all clients share a queue in which dead waiters do not block and living ones keep their order.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redisson::script::{
    AcquireOutcome, HandOverOutcome, Publish, ReleaseOutcome, parse_acquire, parse_hand_over_fair,
    parse_release,
};
use redisson::{HolderId, LockName};

use super::{Bench, GRANTED, full, keys, lease, messages, name, ours, queued, script, theirs};

const WAIT: Duration = Duration::from_secs(15);

impl Bench {
    async fn fair(&mut self, lock: &LockName, who: HolderId) -> Result<AcquireOutcome> {
        self.fair_after(lock, who, Some(0)).await
    }

    async fn fair_once(&mut self, lock: &LockName, who: HolderId) -> Result<AcquireOutcome> {
        self.fair_after(lock, who, None).await
    }

    /// Makes an attempt that many seconds after the previous one; with `None` it joins no queue.
    async fn fair_after(
        &mut self,
        lock: &LockName,
        who: HolderId,
        seconds: Option<u64>,
    ) -> Result<AcquireOutcome> {
        let (queue, publish) = (seconds.map(Duration::from_secs), Publish::Plain);
        let call = script::acquire_fair(lock, &who, lease(60_000), WAIT, queue, &ours(0), publish);
        Ok(parse_acquire(&self.call(&call).await?)?)
    }

    async fn release_fair(&mut self, lock: &LockName, who: HolderId) -> Result<ReleaseOutcome> {
        let call = script::release_fair(lock, &who, WAIT, &ours(0), Publish::Plain);
        Ok(parse_release(&self.call(&call).await?)?)
    }

    async fn hand_over_fair(
        &mut self,
        lock: &LockName,
        from: HolderId,
        to: HolderId,
    ) -> Result<HandOverOutcome> {
        let (between, lease) = ((&from, &to), lease(40_000));
        let call = script::hand_over_fair(lock, between, lease, WAIT, &ours(0), Publish::Plain);
        Ok(parse_hand_over_fair(&self.call(&call).await?)?)
    }

    async fn now(&mut self) -> Result<i64> {
        let time = self.client.call("TIME").await?;
        let part = |i: usize| -> Result<i64> { Ok(time.items()?[i].text().parse()?) };
        Ok(part(0)? * 1000 + part(1)? / 1000)
    }

    /// Returns the queue with each waiter's deadline, in milliseconds of the server's clock.
    async fn queue_entries(&mut self, lock: &LockName) -> Result<Vec<(String, Option<i64>)>> {
        let queue = String::from_utf8(keys::queue(lock))?;
        let deadlines = String::from_utf8(keys::deadlines(lock))?;
        let mut queue_entries = Vec::new();
        for waiter in self.client.call(&format!("LRANGE {queue} 0 -1")).await?.items()? {
            let score = self.client.call(&format!("ZSCORE {deadlines} {}", waiter.text())).await?;
            queue_entries.push((waiter.text(), score.text().parse().ok()));
        }
        let scores = self.client.call(&format!("ZCARD {deadlines}")).await?.int()?;
        let scored = queue_entries.iter().filter(|(_, deadline)| deadline.is_some()).count();
        assert_eq!(i64::try_from(scored)?, scores, "deadlines of nobody's place");
        Ok(queue_entries)
    }

    /// Asserts that exactly these wait, in this order, each with a deadline that many seconds after a moment between
    /// `begun` and now. All actions of a test are within that range, however slow the machine is.
    async fn assert_queue(
        &mut self,
        lock: &LockName,
        begun: i64,
        expected: &[(HolderId, i64)],
    ) -> Result<()> {
        let entries = self.queue_entries(lock).await?;
        let now = self.now().await?;
        let waiters: Vec<_> = entries.iter().map(|(waiter, _)| waiter.clone()).collect();
        let due: Vec<_> = expected.iter().map(|(waiter, _)| waiter.to_string()).collect();
        assert_eq!(waiters, due);
        for ((waiter, deadline), (_, seconds)) in entries.iter().zip(expected) {
            let after = deadline.with_context(|| format!("{waiter} has no deadline"))? - begun;
            // The remaining lease is rounded to milliseconds.
            let range = seconds * 1_000 - 2..=seconds * 1_000 + now - begun + 2;
            assert!(range.contains(&after), "{waiter}: {after} ms, not {seconds} s: {entries:?}");
        }
        Ok(())
    }

    /// Adds another client's queue entry with a deadline `ms` from now, if given.
    async fn foreign_entry(&mut self, lock: &str, who: HolderId, ms: Option<i64>) -> Result<()> {
        let at = self.now().await? + ms.unwrap_or(0);
        self.client.call(&format!("RPUSH redisson_lock_queue:{{{lock}}} {who}")).await?.ok()?;
        if ms.is_some() {
            let add = format!("ZADD redisson_lock_timeout:{{{lock}}} {at} {who}");
            self.client.call(&add).await?.ok()?;
        }
        Ok(())
    }
}

const PASSED: HandOverOutcome = HandOverOutcome::Passed { subscribers: None, token: None };

#[tokio::test]
async fn a_lock_is_handed_over_to_the_next_waiter_alone() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    for n in 1..4 {
        bench.fair(&lock, ours(n)).await?;
    }
    bench.foreign_entry("a", theirs(), Some(60_000)).await?;
    let others = bench.other_keys().await?;
    full::fill(&mut bench).await?;
    let mut turns = bench.subscriber(&keys::fair_channel(&lock, &theirs())).await?;
    for copy in 0..2 {
        assert_eq!(bench.hand_over_fair(&lock, ours(1), ours(2)).await?, PASSED, "copy {copy}");
        bench.assert_held(&lock, ours(2), 1, 30_000..=40_000).await?;
    }
    let waiters = async |bench: &mut Bench| -> Result<Vec<String>> {
        Ok(bench.queue_entries(&lock).await?.into_iter().map(|(waiter, _)| waiter).collect())
    };
    assert_eq!(waiters(&mut bench).await?, [ours(3).to_string(), theirs().to_string()]);
    assert_eq!(bench.hand_over_fair(&lock, ours(1), ours(3)).await?, HandOverOutcome::Stolen);
    assert_eq!(bench.hand_over_fair(&lock, ours(2), ours(3)).await?, PASSED);
    assert_eq!(messages(&mut turns).await?, Vec::<String>::new());
    assert_eq!(bench.hand_over_fair(&lock, ours(3), ours(4)).await?, HandOverOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(waiters(&mut bench).await?, [theirs().to_string()]);
    assert_eq!(messages(&mut turns).await?, ["0"]);
    assert_eq!(bench.hand_over_fair(&lock, ours(3), ours(4)).await?, HandOverOutcome::Missing);
    for lock in others {
        let outcome = bench.hand_over_fair(&name(lock), ours(3), ours(4)).await?;
        assert!(!matches!(outcome, HandOverOutcome::Passed { .. }), "{lock}");
    }
    Ok(())
}

#[tokio::test]
async fn a_free_lock_without_a_queue_is_granted_at_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.fair(&lock, ours(1)).await?, GRANTED);
    assert_eq!(bench.fair(&lock, ours(1)).await?, GRANTED, "sent twice");
    bench.assert_held(&lock, ours(1), 1, 50_000..=60_000).await?;
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1, "no queue");
    bench.foreign_entry("a", ours(1), Some(20_000)).await?;
    assert_eq!(
        bench.fair(&lock, ours(1)).await?,
        GRANTED,
        "a late copy, after it was queued again"
    );
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1, "no place for who is inside");
    assert!(matches!(bench.fair_once(&lock, ours(2)).await?, AcquireOutcome::Held { .. }));
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1, "who does not wait does not queue");
    assert_eq!(bench.release_fair(&lock, ours(1)).await?, ReleaseOutcome::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}

#[tokio::test]
async fn each_waiters_deadline_is_one_wait_after_the_one_ahead() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    for n in [2, 3, 4, 3] {
        let AcquireOutcome::Held { pttl_ms: Some(50_000..=60_000), holders } =
            bench.fair(&lock, ours(n)).await?
        else {
            panic!("held")
        };
        assert!(holders.contains(&ours(1)));
        assert_eq!(holders.contains(&ours(2)), n != 2, "others hear of the head");
    }
    let line = [(ours(2), 75), (ours(3), 90), (ours(4), 105)];
    bench.assert_queue(&lock, begun, &line).await
}

#[tokio::test]
async fn waiters_are_served_in_order_each_on_its_own_channel() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    let mut second = bench.subscriber(&keys::fair_channel(&lock, &ours(2))).await?;
    let mut third = bench.subscriber(&keys::fair_channel(&lock, &theirs())).await?;
    bench.fair(&lock, ours(2)).await?;
    bench.fair(&lock, theirs()).await?;
    bench.release_fair(&lock, ours(1)).await?;
    assert_eq!(messages(&mut second).await?, ["0"]);
    assert_eq!(messages(&mut third).await?, Vec::<String>::new());
    let AcquireOutcome::Held { pttl_ms: Some(ms), holders } = bench.fair(&lock, theirs()).await?
    else {
        panic!("it is not its turn")
    };
    assert_eq!(holders, [ours(2)]);
    let elapsed = bench.now().await? - begun;
    let ms = i64::try_from(ms)?;
    assert!(
        (75_000 - elapsed - 2..=75_000).contains(&ms),
        "look again when the head counts as dead: {ms}"
    );
    assert_eq!(
        bench.acquire(&lock, ours(9), 5_000).await?,
        AcquireOutcome::WrongKind("fair".to_owned())
    );
    assert_eq!(bench.fair(&lock, ours(2)).await?, GRANTED);
    // Its deadline now counts one wait less.
    bench.assert_queue(&lock, begun, &[(theirs(), 75)]).await?;
    bench.release_fair(&lock, ours(2)).await?;
    assert_eq!(messages(&mut third).await?, ["0"]);
    assert_eq!(bench.fair(&lock, theirs()).await?, GRANTED);
    bench.release_fair(&lock, theirs()).await?;
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0, "no leftovers");
    Ok(())
}

#[tokio::test]
async fn leaving_advances_the_waiters_behind_and_wakes_the_next() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    for n in [2, 3, 4] {
        bench.fair(&lock, ours(n)).await?;
    }
    let mut fourth = bench.subscriber(&keys::fair_channel(&lock, &ours(4))).await?;
    for _ in 0..2 {
        assert_eq!(
            bench.release_fair(&lock, ours(3)).await?,
            ReleaseOutcome::Stolen,
            "it held nothing"
        );
        bench.assert_queue(&lock, begun, &[(ours(2), 75), (ours(4), 90)]).await?;
    }
    assert_eq!(messages(&mut fourth).await?, Vec::<String>::new());
    bench.release_fair(&lock, ours(1)).await?;
    assert_eq!(bench.release_fair(&lock, ours(2)).await?, ReleaseOutcome::Missing);
    assert_eq!(messages(&mut fourth).await?, ["0"], "the lock is free and it is its turn");
    assert_eq!(bench.fair(&lock, ours(4)).await?, GRANTED);
    assert_eq!(bench.queue_entries(&lock).await?, []);
    Ok(())
}

#[tokio::test]
async fn dead_heads_are_removed_by_any_client() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.foreign_entry("a", ours(7), Some(-1)).await?;
    bench.foreign_entry("a", ours(8), None).await?;
    bench.foreign_entry("a", theirs(), Some(-300_000)).await?;
    assert_eq!(bench.fair_once(&lock, ours(1)).await?, GRANTED);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1);
    // A dead waiter behind a living one stays until it becomes the head.
    bench.foreign_entry("a", theirs(), Some(20_000)).await?;
    bench.foreign_entry("a", ours(8), Some(-1)).await?;
    let mut head = bench.subscriber(&keys::fair_channel(&lock, &theirs())).await?;
    bench.release_fair(&lock, ours(1)).await?;
    assert_eq!(messages(&mut head).await?, ["0"]);
    assert_eq!(bench.queue_entries(&lock).await?.len(), 2);
    assert_eq!(bench.fair(&lock, theirs()).await?, GRANTED);
    bench.release_fair(&lock, theirs()).await?;
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}

#[tokio::test]
async fn a_living_waiter_keeps_its_position_and_the_order_of_deadlines() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    bench.client.call("PEXPIRE a 20000").await?;
    bench.fair(&lock, ours(2)).await?;
    bench.foreign_entry("a", theirs(), Some(40_000)).await?;
    bench.client.call("PEXPIRE a 60000").await?;
    bench.assert_queue(&lock, begun, &[(ours(2), 35), (theirs(), 40)]).await?;
    bench.fair(&lock, ours(2)).await?;
    bench.assert_queue(&lock, begun, &[(ours(2), 40), (theirs(), 40)]).await?;
    // Its deadline has passed, but this call shows that it is alive.
    let deadlines = String::from_utf8(keys::deadlines(&lock))?;
    bench.client.call(&format!("ZADD {deadlines} 5 {}", ours(2))).await?;
    bench.fair(&lock, ours(2)).await?;
    bench.assert_queue(&lock, begun, &[(ours(2), 40), (theirs(), 40)]).await?;
    // Another waiter has removed it as dead, so it joins the end of the queue again.
    bench.client.call(&format!("ZADD {deadlines} 5 {}", ours(2))).await?;
    bench.fair(&lock, theirs()).await?;
    bench.fair(&lock, ours(2)).await?;
    let order: Vec<String> =
        bench.queue_entries(&lock).await?.into_iter().map(|(who, _)| who).collect();
    assert_eq!(order, [theirs().to_string(), ours(2).to_string()]);
    Ok(())
}

#[tokio::test]
async fn a_late_copy_leaves_a_queue_entry_that_one_release_removes() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.fair(&lock, theirs()).await?;
    bench.fair(&lock, ours(1)).await?;
    assert_eq!(bench.release_fair(&lock, ours(1)).await?, ReleaseOutcome::Stolen);
    bench.fair(&lock, ours(1)).await?;
    let AcquireOutcome::Held { holders, .. } = bench.fair(&lock, ours(2)).await? else {
        panic!("held")
    };
    assert_eq!(holders, [theirs(), ours(1)], "the ghost is seen");
    bench.release_fair(&lock, ours(1)).await?;
    assert_eq!(bench.queue_entries(&lock).await?.len(), 1);
    bench.assert_held(&lock, theirs(), 1, 50_000..=60_000).await
}

#[tokio::test]
async fn keys_other_than_a_fair_lock_are_reported_and_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = bench.other_keys().await?;
    for companion in ["redisson_lock_queue:{list}", "redisson_lock_timeout:{set}"] {
        bench.client.call(&format!("SET {companion} x")).await?.ok()?;
    }
    let before = bench.dump().await?;
    for lock in locks.into_iter().chain(["list", "set"]) {
        let reply = bench.fair(&name(lock), ours(1)).await?;
        let expected = match lock {
            "x.read" | "x.write" => matches!(reply, AcquireOutcome::WrongKind(_)),
            _ => matches!(reply, AcquireOutcome::WrongType(_)),
        };
        assert!(expected, "{lock} {reply:?}");
        let released = bench.release_fair(&name(lock), ours(1)).await?;
        assert!(released != ReleaseOutcome::Released, "{lock}");
    }
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_waiter_leaves_the_queue_of_a_lock_whose_key_has_another_type() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    for n in [1, 2, 3] {
        bench.fair(&lock, ours(n)).await?;
    }
    bench.client.call("SET a x").await?.ok()?;
    for (n, left) in [(2, 1), (3, 0)] {
        assert_eq!(bench.release_fair(&lock, ours(n)).await?, ReleaseOutcome::WrongType);
        assert_eq!(bench.queue_entries(&lock).await?.len(), left);
    }
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1);
    Ok(())
}

#[tokio::test]
async fn a_full_redis_accepts_leaving_and_releasing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    for n in [2, 3] {
        bench.fair(&lock, ours(n)).await?;
    }
    full::fill(&mut bench).await?;
    let refused = bench.fair(&lock, ours(4)).await.unwrap_err().to_string();
    assert!(refused.starts_with("OOM"), "{refused}");
    bench.release_fair(&lock, ours(2)).await?;
    bench.assert_queue(&lock, begun, &[(ours(3), 75)]).await?;
    assert_eq!(bench.release_fair(&lock, ours(1)).await?, ReleaseOutcome::Released);
    bench.release_fair(&lock, ours(3)).await?;
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}

/// Returns the holder id of an agent's waiter, which has a large number.
fn agents(run: i64, n: i64) -> HolderId {
    HolderId { thread: (1_800_000_000 + run) << 30 | n, ..ours(0) }
}

#[tokio::test]
async fn agents_waiters_share_one_deadline_however_many_they_are() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    bench.fair(&lock, ours(1)).await?;
    let other_agents = |n| HolderId { client: theirs().client, ..agents(0, n) };
    let waiter = |n| if n % 2 == 0 { agents(0, n) } else { other_agents(n) };
    for n in 0..8 {
        bench.fair(&lock, waiter(n)).await?;
    }
    bench.fair(&lock, theirs()).await?;
    // Behind them is a client that computes its deadline from the last score.
    let line: Vec<_> = (0..8).map(|n| (waiter(n), 75)).chain([(theirs(), 90)]).collect();
    bench.assert_queue(&lock, begun, &line).await?;

    // Waiters in the middle leave nothing behind; only the last one removes its wait.
    for n in [3, 4, 0, 1, 2, 5, 6] {
        bench.release_fair(&lock, waiter(n)).await?;
    }
    bench.assert_queue(&lock, begun, &[(waiter(7), 75), (theirs(), 90)]).await?;
    bench.release_fair(&lock, waiter(7)).await?;
    bench.assert_queue(&lock, begun, &[(theirs(), 75)]).await
}

/// Redisson moves all deadlines earlier by the whole wait of a waiter that it grants the lock to.
#[tokio::test]
async fn an_agents_deadline_behind_another_client_grows_by_the_time_waited() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    let (before, behind) = (theirs(), HolderId { thread: 48, ..theirs() });
    let (one, two) = (agents(0, 1), agents(0, 2));
    bench.fair(&lock, ours(1)).await?;
    bench.fair(&lock, before).await?;
    // A position that was lost begins again.
    bench.fair_after(&lock, one, Some(40)).await?;
    bench.assert_queue(&lock, begun, &[(before, 75), (one, 90)]).await?;
    bench.fair_after(&lock, one, Some(20)).await?;
    bench.fair_after(&lock, one, Some(0)).await?;
    bench.fair_after(&lock, two, Some(0)).await?;
    // Agents' waiters that follow one another share one deadline.
    bench.fair_after(&lock, two, Some(20)).await?;
    bench.assert_queue(&lock, begun, &[(before, 75), (one, 110), (two, 110)]).await?;
    bench.release_fair(&lock, two).await?;
    bench.foreign_entry("a", behind, Some(200_000)).await?;
    bench.fair_after(&lock, one, Some(50)).await?;
    bench.assert_queue(&lock, begun, &[(before, 75), (one, 160), (behind, 200)]).await?;
    bench.fair_after(&lock, one, Some(50)).await?;
    bench.assert_queue(&lock, begun, &[(before, 75), (one, 200), (behind, 200)]).await?;
    // Nobody is ahead of the next one.
    let lock = name("b");
    bench.fair(&lock, ours(1)).await?;
    bench.fair(&lock, one).await?;
    bench.fair_after(&lock, one, Some(20)).await?;
    bench.assert_queue(&lock, begun, &[(one, 75)]).await
}

/// Callers of Redisson's asynchronous API may choose any number.
#[tokio::test]
async fn only_numbers_of_a_second_from_2020_on_and_not_far_ahead_are_an_agents() -> Result<()> {
    let mut bench = Bench::new().await?;
    let begun = bench.now().await?;
    let (first, end) = (1_600_000_000, begun / 1000 + (1 << 29));
    let numbers = [
        (47, false),
        ((first - 1) << 30, false),
        (first << 30, true),
        ((end - 1) << 30, true),
        // The test takes less than a minute.
        ((end + 60) << 30, false),
        (i64::MAX, false),
        (-(first << 30), false),
    ];
    for (thread, is_agents) in numbers {
        let (lock, before) = (name(&format!("a{thread}")), HolderId { thread, ..theirs() });
        for who in [ours(1), before, agents(0, 1)] {
            bench.fair(&lock, who).await?;
        }
        // Agents' waiters that follow one another share one deadline.
        let behind = if is_agents { 75 } else { 90 };
        bench.assert_queue(&lock, begun, &[(before, 75), (agents(0, 1), behind)]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_attempt_that_removes_dead_heads_of_a_free_lock_notifies_the_next_waiter() -> Result<()>
{
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut next = bench.subscriber(&keys::fair_channel(&lock, &theirs())).await?;
    for (attempt, seconds) in [None, Some(0)].into_iter().enumerate() {
        bench.foreign_entry("a", ours(7), Some(-1)).await?;
        bench.foreign_entry("a", ours(8), None).await?;
        bench.foreign_entry("a", theirs(), Some(60_000)).await?;
        for copy in 0..2 {
            let reply = bench.fair_after(&lock, ours(1), seconds).await?;
            assert!(matches!(reply, AcquireOutcome::Held { .. }), "{attempt}: {reply:?}");
            let due: &[&str] = if copy == 0 { &["0"] } else { &[] };
            assert_eq!(messages(&mut next).await?, due, "{attempt}, {copy}");
        }
        bench.client.call("DEL redisson_lock_queue:{a} redisson_lock_timeout:{a}").await?.int()?;
    }
    // A held lock is no waiter's turn.
    bench.fair(&lock, ours(1)).await?;
    bench.foreign_entry("a", ours(7), Some(-1)).await?;
    bench.foreign_entry("a", theirs(), Some(60_000)).await?;
    bench.fair(&lock, ours(2)).await?;
    assert_eq!(messages(&mut next).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_restarted_agent_waits_for_none_of_its_own_dead_waiters() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let other_agent = HolderId { client: theirs().client, ..agents(0, 7) };
    bench.fair(&lock, ours(1)).await?;
    for waiter in [agents(0, 1), agents(0, 2), other_agent] {
        bench.fair(&lock, waiter).await?;
    }
    bench.release_fair(&lock, ours(1)).await?;
    let call = queued(&lock, agents(1, 1), 60_000, agents(1, 0));
    let reply = parse_acquire(&bench.call(&call).await?)?;
    let AcquireOutcome::Held { holders, .. } = reply else { panic!("another agent's is next") };
    assert_eq!(holders, [other_agent], "which lives, for all that is known");
    bench.release_fair(&lock, other_agent).await?;
    assert_eq!(parse_acquire(&bench.call(&call).await?)?, GRANTED);
    Ok(())
}

#[tokio::test]
async fn a_release_by_a_restarted_agent_wakes_the_waiter_behind_its_own_dead_ones() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, begun) = (name("a"), bench.now().await?);
    let holder = agents(0, 1);
    for who in [holder, agents(0, 2), agents(0, 3), theirs()] {
        bench.fair(&lock, who).await?;
    }
    let mut next = bench.subscriber(&keys::fair_channel(&lock, &theirs())).await?;
    let call = script::release_fair(&lock, &holder, WAIT, &agents(1, 0), Publish::Plain);
    assert_eq!(parse_release(&bench.call(&call).await?)?, ReleaseOutcome::Released);
    assert_eq!(messages(&mut next).await?, ["0"]);
    bench.assert_queue(&lock, begun, &[(theirs(), 90)]).await
}

#[tokio::test]
async fn the_keys_of_a_queue_expire() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.fair(&lock, ours(1)).await?;
    bench.fair(&lock, agents(0, 1)).await?;
    for key in ["redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"] {
        let pttl = bench.client.call(&format!("PTTL {key}")).await?.int()?;
        assert!((31_000_000_000..=31_536_000_000).contains(&pttl), "{key}: {pttl}");
    }
    Ok(())
}

fn entry(who: HolderId, deadline_ms: Option<u64>) -> script::QueueEntry {
    script::QueueEntry { waiter: who.to_string().into_bytes(), deadline_ms }
}

#[tokio::test]
async fn a_purge_removes_only_waiters_that_will_never_come() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let (late, slow) = (theirs(), HolderId { thread: 48, ..theirs() });
    let places = [
        (agents(1, 1), Some(50_000)),
        (late, Some(60_000)),
        (agents(1, 2), Some(-1)),
        (slow, Some(-1)),
        (agents(1, 3), Some(90_000)),
        (agents(1, 4), None),
    ];
    for (who, ms) in places {
        bench.foreign_entry("a", who, ms).await?;
    }
    let deadline = async |bench: &mut Bench, waiter: HolderId| -> Result<Option<u64>> {
        let score = format!("ZSCORE redisson_lock_timeout:{{a}} {waiter}");
        Ok(bench.client.call(&score).await?.text().parse().ok())
    };
    let first = deadline(&mut bench, agents(1, 1)).await?;
    let dead = [entry(agents(1, 1), first), entry(agents(1, 3), first), entry(agents(1, 9), None)];
    let purge = script::purge_queue(&lock, &dead, Publish::Plain);
    let mut next = bench.subscriber(&keys::fair_channel(&lock, &late)).await?;
    assert_eq!(script::parse_purged(&bench.call(&purge).await?)?, 3);
    let left: Vec<_> = bench.queue_entries(&lock).await?.into_iter().map(|(who, _)| who).collect();
    let stay = [late, slow, agents(1, 3)].map(|who| who.to_string());
    assert_eq!(left, stay, "behind a living waiter only agents are known to be dead");
    assert_eq!(messages(&mut next).await?, ["0"]);
    // A late copy changes nothing, not even for a waiter that has queued again since.
    bench.foreign_entry("a", agents(1, 1), Some(55_000)).await?;
    assert_eq!(script::parse_purged(&bench.call(&purge).await?)?, 0);
    assert_eq!(bench.queue_entries(&lock).await?.len(), 4);
    bench.client.call("DEL redisson_lock_queue:{a}").await?.ok()?;
    bench.client.call("SET redisson_lock_queue:{a} x").await?.ok()?;
    assert_eq!(script::parse_purged(&bench.call(&purge).await?)?, 0, "that is no queue");
    Ok(())
}

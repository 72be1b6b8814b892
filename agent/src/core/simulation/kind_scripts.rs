//! Scripts of read-write and fair locks as they run in the model of Redis.

use redisson::script::Value;

use super::commands::{Run, Stop};
use super::scripts::{bytes, ints, living_head, number, occupant};

fn other_kind(kind: &str) -> Result<Value, Stop> {
    Ok(Value::Array(vec![Value::Int(2), bytes(kind)]))
}

fn no_lock(what: &str) -> Result<Value, Stop> {
    Ok(Value::Array(vec![Value::Int(3), bytes(what)]))
}

fn held(pttl: i64, holders: &[String]) -> Result<Value, Stop> {
    let mut reply = vec![Value::Int(0), Value::Int(pttl)];
    reply.extend(holders.iter().map(|holder| bytes(holder)));
    Ok(Value::Array(reply))
}

/// Gives the key at least the lease.
fn raise(run: &mut Run<'_>, key: &str, lease: i64) {
    if run.pttl(key) < lease {
        run.pexpire(key, lease);
    }
}

/// Sets a marker that lives at least so long.
fn mark(run: &mut Run<'_>, marker: &str, lease: i64) -> Result<(), Stop> {
    let left = run.pttl(marker).max(lease);
    run.set(marker, "1", false)?;
    run.pexpire(marker, left);
    Ok(())
}

/// What a name is in use as, if not as a read-write lock.
fn used_as(run: &Run<'_>, keys: &[String], kind: &str) -> Result<Value, Stop> {
    other_kind(if living_head(run, &keys[1], &keys[2]).is_some() { "fair" } else { kind })
}

pub(super) fn acquire_read(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, marker) = (&keys[0], format!("{}:1", keys[3]));
    let (me, lease, own) = (&args[0], number(&args[1]), &args[2]);
    let (kind, holders) = match occupant(run, lock, 64)? {
        Ok(occupant) => occupant,
        Err(other) => return no_lock(&other),
    };
    match kind.as_str() {
        "none" => {
            if living_head(run, &keys[1], &keys[2]).is_some() {
                return other_kind("fair");
            }
            run.hset(lock, "mode", "read")?;
        }
        "write" => {
            let under = !own.is_empty() && run.hexists(lock, own)?;
            if !under && !run.hexists(lock, me)? {
                return held(run.pttl(lock), &holders);
            }
        }
        "read" => {}
        _ => return used_as(run, keys, &kind),
    }
    run.hset(lock, me, "1")?;
    raise(run, lock, lease);
    mark(run, &marker, lease)?;
    Ok(ints(&[1]))
}

pub(super) fn acquire_write(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, me, lease) = (&keys[0], &args[0], number(&args[1]));
    let (kind, holders) = match occupant(run, lock, 64)? {
        Ok(occupant) => occupant,
        Err(other) => return no_lock(&other),
    };
    match kind.as_str() {
        "none" => {
            if living_head(run, &keys[1], &keys[2]).is_some() {
                return other_kind("fair");
            }
            run.hset(lock, "mode", "write")?;
            run.hset(lock, me, "1")?;
            run.pexpire(lock, lease);
            Ok(ints(&[1]))
        }
        "write" if run.hexists(lock, me)? => {
            raise(run, lock, lease);
            run.hset(lock, me, "1")?;
            Ok(ints(&[1]))
        }
        "read" | "write" => held(run.pttl(lock), &holders),
        _ => used_as(run, keys, &kind),
    }
}

pub(super) fn keep_read(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lease, most) = (number(&args[0]), number(&args[1]));
    let mut replies = Vec::new();
    for (place, holder) in keys.chunks(2).zip(args[2..].chunks(2)) {
        let (lock, prefix, me, count) = (&place[0], &place[1], &holder[0], &holder[1]);
        replies.push(match run.hget(lock, me) {
            Err(_) => 3,
            Ok(Some(had)) => {
                let left = run.pttl(lock).max(lease);
                run.pexpire(lock, left);
                if had != *count {
                    run.hset(lock, me, count)?;
                }
                let wanted = number(count);
                for n in 1..=wanted {
                    mark(run, &format!("{prefix}:{n}"), lease)?;
                }
                for n in wanted + 1..=had.parse().unwrap_or(0).min(most) {
                    run.del(&format!("{prefix}:{n}"));
                }
                1
            }
            Ok(None) if run.exists(lock) => 2,
            Ok(None) => 0,
        });
    }
    Ok(ints(&replies))
}

/// Gives a lock that only readers have the time of the longest living one; whether it has ended with the last of them.
fn ends_with_readers(run: &mut Run<'_>, lock: &str, tagged: &str, most: i64) -> Result<bool, Stop> {
    let mut longest = 0;
    for field in run.hkeys(lock)?.into_iter().filter(|field| field != "mode") {
        let count = run.hget(lock, &field)?.and_then(|count| count.parse().ok()).unwrap_or(1);
        for n in 1..=most.min(count) {
            let left = run.pttl(&format!("{tagged}:{field}:rwlock_timeout:{n}"));
            if left == -1 {
                return Ok(false);
            }
            longest = longest.max(left);
        }
    }
    if longest <= 0 {
        run.del(lock);
        return Ok(true);
    }
    if longest < run.pttl(lock) {
        run.pexpire(lock, longest);
    }
    Ok(false)
}

/// What a release that removed nothing replies.
fn not_there(run: &Run<'_>, lock: &str) -> Value {
    ints(&[if run.exists(lock) { 2 } else { 0 }])
}

pub(super) fn release_read(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, prefix, tagged) = (&keys[0], &keys[1], &keys[2]);
    let (me, most) = (&args[0], number(&args[1]));
    let Ok(had) = run.hget(lock, me) else { return Ok(ints(&[3])) };
    let Some(had) = had else { return Ok(not_there(run, lock)) };
    run.hdel(lock, me)?;
    for n in 1..=had.parse().unwrap_or(1).min(most) {
        run.del(&format!("{prefix}:{n}"));
    }
    let reads = run.hget(lock, "mode")?.as_deref() == Some("read");
    if reads && ends_with_readers(run, lock, tagged, most)? {
        args[4..].iter().for_each(|_| run.publish(&args[2]));
    }
    Ok(ints(&[1]))
}

pub(super) fn release_write(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, tagged, most) = (&keys[0], &keys[1], number(&args[1]));
    match run.hdel(lock, &args[0]) {
        Err(_) => return Ok(ints(&[3])),
        Ok(false) => return Ok(not_there(run, lock)),
        Ok(true) => {}
    }
    let has_mode = run.hexists(lock, "mode")?;
    if run.hkeys(lock)?.len() == usize::from(has_mode) {
        run.del(lock);
    } else if has_mode {
        run.hset(lock, "mode", "read")?;
        ends_with_readers(run, lock, tagged, most)?;
    }
    for _ in &args[5..] {
        run.publish(&args[2]);
        run.publish(&args[2]);
    }
    Ok(ints(&[1]))
}

/// The first waiter that is alive, `me` being so in any case, and its deadline; dead ones before it are removed.
fn head_of(run: &mut Run<'_>, keys: &[String], me: Option<&str>) -> Option<(String, f64)> {
    let (queue, deadlines) = (&keys[1], &keys[2]);
    while let Some(head) = run.list(queue).into_iter().next() {
        let deadline = run.zscore(deadlines, &head);
        if Some(head.as_str()) == me {
            return Some((head, 0.0));
        }
        if let Some(deadline) = deadline.filter(|deadline| *deadline > run.now_ms_f64()) {
            return Some((head, deadline));
        }
        run.lpop(queue);
        run.zrem(deadlines, &head);
    }
    None
}

/// Takes a waiter out; those behind have one wait less before them.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of a wait")]
fn take_out(run: &mut Run<'_>, keys: &[String], waiter: &str, wait: i64) -> Result<(), Stop> {
    let (queue, deadlines) = (&keys[1], &keys[2]);
    let items = run.list(queue);
    if let Some(place) = items.iter().position(|item| item == waiter) {
        for behind in &items[place + 1..] {
            if let Some(score) = run.zscore(deadlines, behind) {
                run.zadd(deadlines, score - wait as f64, behind)?;
            }
        }
        run.lrem(queue, waiter);
    }
    run.zrem(deadlines, waiter);
    Ok(())
}

/// Why the companions are no queue, if they are none.
fn odd_companion(run: &Run<'_>, keys: &[String]) -> Option<String> {
    let (list, set) = (run.type_of(&keys[1]), run.type_of(&keys[2]));
    if list != "none" && list != "list" {
        Some(format!("lock whose queue key is a {list}"))
    } else if set != "none" && set != "zset" {
        Some(format!("lock whose deadlines key is a {set}"))
    } else {
        None
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "epoch ms")]
pub(super) fn acquire_fair(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, queue, deadlines) = (&keys[0], &keys[1], &keys[2]);
    let (me, lease, wait) = (args[0].as_str(), number(&args[1]), number(&args[2]));
    let (kind, mut holders) = match occupant(run, lock, 0)? {
        Ok((kind, _)) if kind == "read" || kind == "write" => return other_kind(&kind),
        Ok(occupant) => occupant,
        Err(other) => return no_lock(&other),
    };
    if let Some(odd) = odd_companion(run, keys) {
        return no_lock(&odd);
    }
    if kind == "lock" && run.hexists(lock, me)? {
        raise(run, lock, lease);
        run.hset(lock, me, "1")?;
        take_out(run, keys, me, wait)?;
        return Ok(ints(&[1]));
    }
    let head = head_of(run, keys, Some(me));
    let first = head.as_ref().is_none_or(|(head, _)| head == me);
    if kind == "none" && first {
        run.hset(lock, me, "1")?;
        run.pexpire(lock, lease);
        take_out(run, keys, me, wait)?;
        return Ok(ints(&[1]));
    }
    let (now, mut pttl) = (run.now_ms_f64(), run.pttl(lock));
    if args[3] == "1" {
        let items = run.list(queue);
        let place = items.iter().position(|item| item == me);
        let before = match place {
            None => items.last(),
            Some(place) => place.checked_sub(1).map(|before| &items[before]),
        };
        let score = before.and_then(|before| run.zscore(deadlines, before));
        let mut mine = score.unwrap_or(now + pttl as f64).max(now) + wait as f64;
        if let Some(place) = place {
            let behind = items.get(place + 1).and_then(|behind| run.zscore(deadlines, behind));
            let had = run.zscore(deadlines, me).unwrap_or(0.0);
            mine = mine.min(behind.unwrap_or(mine)).max(had);
        } else {
            run.rpush(queue, me)?;
        }
        run.zadd(deadlines, mine, me)?;
    }
    if kind == "none" {
        pttl = head.as_ref().map_or(0, |(_, deadline)| (deadline - now) as i64);
    }
    holders.extend(head.map(|(head, _)| head).filter(|head| head != me));
    held(pttl, &holders)
}

pub(super) fn release_fair(
    run: &mut Run<'_>,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    let (lock, me) = (&keys[0], &args[0]);
    let Ok(removed) = run.hdel(lock, me) else { return Ok(ints(&[3])) };
    let left = run.exists(lock);
    if odd_companion(run, keys).is_none() {
        take_out(run, keys, me, number(&args[1]))?;
        if !left && let Some((head, _)) = head_of(run, keys, None) {
            args[4..].iter().for_each(|_| run.publish(&format!("{}{head}", args[2])));
        }
    }
    Ok(ints(&[if removed {
        1
    } else if left {
        2
    } else {
        0
    }]))
}

//! Our scripts as they run in the model of Redis, command by command.

use redisson::script::Value;

use super::commands::{Run, Stop};
use super::kind_scripts;
use super::redis::Content;

/// Runs the script of that name.
pub(super) fn serve(
    run: &mut Run<'_>,
    script: &str,
    keys: &[String],
    args: &[String],
) -> Result<Value, Stop> {
    match script {
        "acquire" => acquire(run, keys, args),
        "keep" => keep(run, keys, args),
        "release" => release(run, keys, args),
        "hand_over" => hand_over(run, keys, args),
        "force_release" => force_release(run, keys, args),
        "show" => show(run, keys, args),
        "acquire_read" => kind_scripts::acquire_read(run, keys, args),
        "acquire_write" => kind_scripts::acquire_write(run, keys, args),
        "keep_read" => kind_scripts::keep_read(run, keys, args),
        "release_read" => kind_scripts::release_read(run, keys, args),
        "release_write" => kind_scripts::release_write(run, keys, args),
        "acquire_fair" => kind_scripts::acquire_fair(run, keys, args),
        "release_fair" => kind_scripts::release_fair(run, keys, args),
        other => panic!("the model of Redis lacks the script {other}"),
    }
}

pub(super) fn number(text: &str) -> i64 {
    text.parse().expect("scripts are called with whole numbers there")
}

fn int(n: usize) -> Value {
    Value::Int(i64::try_from(n).expect("a small count"))
}

pub(super) fn ints(ints: &[i64]) -> Value {
    Value::Array(ints.iter().map(|n| Value::Int(*n)).collect())
}

pub(super) fn bytes(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

/// Whether a field has the form of a holder: `uuid:thread`, perhaps with `:write`.
fn is_holder(field: &str) -> bool {
    let Some((uuid, rest)) = field.split_once(':') else { return false };
    let parts: Vec<&str> = uuid.split('-').collect();
    let hex = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    field.len() <= 96
        && parts.len() == 5
        && parts.iter().all(hex)
        && digits.starts_with(|c: char| c.is_ascii_digit())
}

/// What stands at a lock's key: `none`, `lock` or a read-write lock's mode, and its holders where it is a lock. Or, as
/// an error of its own, what it is instead.
pub(super) fn occupant(
    run: &Run<'_>,
    lock: &str,
    most: usize,
) -> Result<Result<(String, Vec<String>), String>, Stop> {
    let kind = run.type_of(lock);
    if kind == "none" {
        return Ok(Ok((kind.to_owned(), Vec::new())));
    }
    if kind != "hash" {
        return Ok(Err(kind.to_owned()));
    }
    let fields = run.hkeys(lock)?;
    let mode = run.hget(lock, "mode")?;
    let mode = mode.map(|mode| if mode.len() < 8 { mode } else { "read".to_owned() });
    if mode.is_some() && fields.len() > most {
        return Ok(Ok((mode.unwrap_or_default(), Vec::new())));
    }
    let few = mode.is_some() || fields.len() <= 8;
    let holders: Vec<String> = fields.into_iter().filter(|field| is_holder(field)).collect();
    if !few || holders.is_empty() {
        return Ok(Err("hash with other fields".to_owned()));
    }
    Ok(Ok((mode.unwrap_or_else(|| "lock".to_owned()), holders)))
}

fn acquire(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let (lock, queue, deadlines) = (&keys[0], &keys[1], &keys[2]);
    let (me, lease) = (&args[0], number(&args[1]));
    let counter = keys.get(3).zip(args.get(2));
    if let Some((counter, _)) = counter
        && !can_count(run, counter)
    {
        let reason = bytes("lock whose token key holds no number");
        return Ok(Value::Array(vec![Value::Int(3), reason]));
    }
    let (kind, holders) = match occupant(run, lock, 0)? {
        Ok(occupant) => occupant,
        Err(other) => return Ok(Value::Array(vec![Value::Int(3), bytes(&other)])),
    };
    if kind == "lock" && run.hexists(lock, me)? {
        if run.pttl(lock) < lease {
            run.pexpire(lock, lease);
        }
        run.hset(lock, me, "1")?;
        return had(token_of_grant(run, counter)?);
    }
    if living_head(run, queue, deadlines).is_some() {
        return Ok(Value::Array(vec![Value::Int(2), bytes("fair")]));
    }
    if kind == "none" {
        let token = next_token(run, counter)?;
        run.hset(lock, me, "1")?;
        run.pexpire(lock, lease);
        return had(token);
    }
    if kind != "lock" {
        return Ok(Value::Array(vec![Value::Int(2), bytes(&kind)]));
    }
    let mut reply = vec![Value::Int(0), Value::Int(run.pttl(lock))];
    reply.extend(holders.iter().map(|holder| bytes(holder)));
    Ok(Value::Array(reply))
}

/// The lock is had, with its token if it is a fenced one.
fn had(token: Option<String>) -> Result<Value, Stop> {
    Ok(Value::Array([Value::Int(1)].into_iter().chain(token.map(|token| bytes(&token))).collect()))
}

fn can_count(run: &Run<'_>, counter: &str) -> bool {
    match run.type_of(counter) {
        "none" => true,
        "string" => run.text(counter).is_some_and(|text| Content::Text(text).is_counter()),
        _ => false,
    }
}

/// A fenced lock's counter with the least token that it may give.
type Counter<'a> = Option<(&'a String, &'a String)>;

fn next_token(run: &mut Run<'_>, counter: Counter<'_>) -> Result<Option<String>, Stop> {
    let Some((counter, least)) = counter else { return Ok(None) };
    run.incr(counter)?;
    if run.text(counter).is_some_and(|token| number(&token) < number(least)) {
        run.set(counter, least, false)?;
    }
    Ok(run.text(counter))
}

fn token_of_grant(run: &mut Run<'_>, counter: Counter<'_>) -> Result<Option<String>, Stop> {
    match counter.and_then(|(counter, _)| run.text(counter)) {
        Some(token) => Ok(Some(token)),
        None => next_token(run, counter),
    }
}

/// A fair lock's first waiter, if its deadline is still to come.
pub(super) fn living_head(run: &Run<'_>, queue: &str, deadlines: &str) -> Option<String> {
    let head = run.list(queue).into_iter().next()?;
    run.zscore(deadlines, &head).filter(|score| *score > run.now_ms_f64()).map(|_| head)
}

/// The same, with the dead ones before it taken out.
fn head_without_the_dead(run: &mut Run<'_>, queue: &str, deadlines: &str) -> Option<String> {
    while let Some(head) = run.list(queue).into_iter().next() {
        if living_head(run, queue, deadlines).is_some() {
            return Some(head);
        }
        run.lpop(queue);
        run.zrem(deadlines, &head);
    }
    None
}

fn keep(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let lease = number(&args[0]);
    let mut replies = Vec::new();
    for (lock, pair) in keys.iter().zip(args[1..].chunks(2)) {
        let (me, count) = (&pair[0], &pair[1]);
        replies.push(match run.hget(lock, me) {
            Err(_) => 3,
            Ok(Some(had)) => {
                let ttl = run.pttl(lock);
                if ttl < lease {
                    run.pexpire(lock, lease);
                }
                if had != *count {
                    if ttl >= lease {
                        run.pexpire(lock, ttl);
                    }
                    run.hset(lock, me, count)?;
                }
                1
            }
            Ok(None) => {
                if run.exists(lock) {
                    2
                } else {
                    0
                }
            }
        });
    }
    Ok(ints(&replies))
}

fn release(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let lock = &keys[0];
    let Ok(removed) = run.hdel(lock, &args[0]) else { return Ok(ints(&[3])) };
    let left = run.exists(lock);
    if !removed {
        return Ok(ints(&[if left { 2 } else { 0 }]));
    }
    if !left {
        for _ in &args[3..] {
            run.publish(&args[1]);
        }
    }
    Ok(ints(&[1]))
}

fn hand_over(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let (lock, from, to, lease) = (&keys[0], &args[0], &args[1], number(&args[2]));
    let counter = keys.get(1).zip(args.get(4));
    let token = match run.hexists(lock, from) {
        Err(_) => return Ok(ints(&[3])),
        Ok(true) => {
            run.pexpire(lock, lease);
            let token = next_token(run, counter)?;
            run.hset(lock, to, "1")?;
            run.hdel(lock, from)?;
            token
        }
        Ok(false) if run.hexists(lock, to)? => {
            if run.pttl(lock) < lease {
                run.pexpire(lock, lease);
            }
            token_of_grant(run, counter)?
        }
        Ok(false) => return Ok(ints(&[if run.exists(lock) { 2 } else { 0 }])),
    };
    let mut reply = vec![Value::Int(1), int(run.subscribers(&args[3]))];
    reply.extend(token.map(|token| bytes(&token)));
    Ok(Value::Array(reply))
}

fn force_release(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let (lock, queue, deadlines) = (&keys[0], &keys[1], &keys[2]);
    let Ok(fields) = run.hkeys(lock) else { return Ok(ints(&[3])) };
    if fields.is_empty() {
        return Ok(ints(&[0]));
    }
    assert_eq!(args[5], "-1", "nobody compares times to live here");
    let small = |text: &str| usize::try_from(number(text)).expect("a small count");
    let (alien, verbs) = (small(&args[6]), small(&args[7]));
    let (alien, rest) = args[8..].split_at(alien);
    let seen: Vec<&[String]> = rest[verbs..].chunks(4).collect();
    let mode = run.hget(lock, "mode")?;
    let read_write = mode.is_some();
    let others = fields.len() - usize::from(read_write);
    if mode.unwrap_or_default() != args[4] || others != alien.len() + seen.len() {
        return Ok(ints(&[2]));
    }
    for field in alien {
        if !run.hexists(lock, field)? {
            return Ok(ints(&[2]));
        }
    }
    for holder in &seen {
        if run.hget(lock, &holder[0])?.as_ref() != Some(&holder[1]) {
            return Ok(ints(&[2]));
        }
    }
    run.del(lock);
    let mut channels = if read_write { vec![args[1].clone(); 2] } else { vec![args[0].clone()] };
    if !read_write {
        let head = head_without_the_dead(run, queue, deadlines);
        channels.extend(head.map(|head| format!("{}{head}", args[2])));
    }
    for channel in channels {
        for _ in 0..verbs {
            run.publish(&channel);
        }
    }
    for holder in seen {
        for n in 1..=number(&holder[1]).min(number(&args[3])) {
            run.del(&format!("{}:{n}", holder[2]));
        }
        run.publish(&holder[3]);
    }
    Ok(ints(&[1]))
}

fn show(run: &mut Run<'_>, keys: &[String], args: &[String]) -> Result<Value, Stop> {
    let (lock, queue, deadlines) = (&keys[0], &keys[1], &keys[2]);
    let kind = run.type_of(lock);
    let pttl = run.pttl(lock);
    let (mut pairs, mut markers) = (Vec::new(), Vec::new());
    let mut count = 0;
    if kind == "hash" {
        let fields = run.hkeys(lock)?;
        count = fields.len();
        if count <= usize::try_from(number(&args[0])).expect("a small count") {
            let read_write = run.hexists(lock, "mode")?;
            for field in fields {
                let value = run.hget(lock, &field)?.unwrap_or_default();
                if read_write {
                    let count = value.parse().unwrap_or(0).min(number(&args[4]));
                    let prefix = format!("{}:{field}:rwlock_timeout", keys[4]);
                    let left = (1..=count).map(|n| run.pttl(&format!("{prefix}:{n}")));
                    markers.push(Value::Int(left.max().unwrap_or(-2).max(-2)));
                }
                pairs.push(bytes(&field));
                pairs.push(bytes(&value));
            }
        }
    }
    let longest = usize::try_from(number(&args[2])).expect("a small length");
    let token = run.text(&keys[3]).filter(|text| text.len() <= longest).unwrap_or_default();
    let mut places = Vec::new();
    let waiters = run.list(queue);
    for waiter in &waiters {
        let score = run.zscore(deadlines, waiter).map_or(String::new(), |score| score.to_string());
        places.push(bytes(waiter));
        places.push(bytes(&score));
    }
    Ok(Value::Array(vec![
        bytes(kind),
        Value::Int(pttl),
        int(count),
        Value::Array(pairs),
        int(waiters.len()),
        Value::Array(places),
        bytes(&token),
        Value::Array(markers),
    ]))
}

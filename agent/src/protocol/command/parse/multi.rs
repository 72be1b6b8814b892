//! Parses MLOCK and MUNLOCK into one request per name.

use redisson::LockName;

use super::{
    Args, Command, HoldRequest, LockRequest, MEMBERS, MLOCK, MUNLOCK, Options, Parsed, hold, limit,
    lock, name_at, number, shown, syntax, usage,
};

/// The maximum number of locks of one command.
const MAX_MEMBERS: u64 = 64;

pub(super) fn lock_all(args: Args<'_>) -> Parsed<Command> {
    let names = members(args, MLOCK)?;
    let request = lock(names[0].clone(), Options::new(args, 2 + names.len(), MLOCK))?;
    let each = names.into_iter().map(|name| LockRequest { name, ..request.clone() });
    Ok(Command::LockAll(each.collect()))
}

pub(super) fn unlock_all(args: Args<'_>) -> Parsed<Command> {
    let names = members(args, MUNLOCK)?;
    let request = hold(names[0].clone(), Options::new(args, 2 + names.len(), MUNLOCK))?;
    let each = names.into_iter().map(|name| HoldRequest { name, ..request.clone() });
    Ok(Command::UnlockAll(each.collect()))
}

/// Parses the names; at least one.
fn members(args: Args<'_>, form: &'static str) -> Parsed<Vec<LockName>> {
    let count = number(MEMBERS, args.get(1).ok_or_else(|| usage(form))?)?
        .filter(|count| (1..=MAX_MEMBERS).contains(count))
        .and_then(|count| usize::try_from(count).ok())
        .ok_or_else(|| limit(format!("{MEMBERS} must be from 1 to {MAX_MEMBERS}: {form}")))?;
    let mut names = Vec::with_capacity(count);
    for at in 2..2 + count {
        let name = name_at(args, at, form)?;
        if names.contains(&name) {
            let name = shown(name.as_bytes());
            return Err(syntax(format!("`{name}` appears twice, name each lock once: {form}")));
        }
        names.push(name);
    }
    Ok(names)
}

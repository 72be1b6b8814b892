//! Several acquires and releases in one call. Each has the same effect as its own script, so a batch saves Redis and its
//! clients the cost of calls and changes nothing else.

use super::reply::bad;
use super::{ACQUIRE, Args, BATCH, BadReply, Call, Publish, RELEASE, Value};
use crate::keys;

/// The maximum number of calls in one [`batch`]. Redis takes about 0.1 ms for as many.
pub const MAX_CALLS: usize = 32;

/// Returns whether a call may be part of a [`batch`]: the acquire of a plain lock, or a release that is published by `PUBLISH`
/// alone. In a cluster a batch would need all of its keys in one slot.
#[must_use]
pub fn may_share(call: &Call) -> bool {
    let script = |script| std::ptr::eq(call.script, script);
    // A fenced lock has another key.
    (script(&ACQUIRE) && call.keys.len() == 3)
        || (script(&RELEASE)
            && call.args.len() == 4
            && call.args[2] == *keys::RELEASED
            && call.args[3] == *Publish::Plain.commands()[0].as_bytes())
}

/// Joins calls for each of which [`may_share`] is true. Parse the reply with [`parse_batch`]. With an error no call has
/// been carried out.
#[must_use]
pub fn batch<'a>(calls: impl IntoIterator<Item = &'a Call, IntoIter: Clone>) -> Call {
    let calls = calls.into_iter();
    let letters: Vec<u8> = calls
        .clone()
        .map(|call| if std::ptr::eq(call.script, &ACQUIRE) { b'a' } else { b'r' })
        .collect();
    let count = letters.len();
    let mut keys = Args::with_capacity(2 * count, 80 * count);
    let mut args = Args::with_capacity(2 * count + 1, 100 * count);
    args.push(&letters);
    for (call, letter) in calls.zip(letters) {
        keys.extend(call.keys.iter().take(if letter == b'a' { 2 } else { 1 }));
        args.extend(call.args.iter().take(2));
    }
    Call { script: &BATCH, keys, args }
}

/// Parses the reply to a [`batch`] of that many calls. Returns for each the reply of its own script if it was carried out; `None`
/// if nothing was done for it, so that its own script has to be called.
///
/// # Errors
/// Returns an error for any other reply.
pub fn parse_batch(reply: &Value, calls: usize) -> Result<Vec<Option<Value>>, BadReply> {
    let read = || {
        let done = Value::Array(vec![Value::Int(1)]);
        let mut replies = vec![Some(done.clone()); calls];
        for item in reply.array()? {
            let (place, own) = match item.array() {
                Some([place, error @ Value::Bytes(_)]) => {
                    (place, Some(Value::Array(vec![Value::Int(1), error.clone()])))
                }
                _ => (item, None),
            };
            let place = usize::try_from(place.int()?).ok()?.checked_sub(1)?;
            let reply = replies.get_mut(place)?;
            reply.take_if(|reply| *reply == done)?;
            *reply = own;
        }
        Some(replies)
    };
    read().ok_or_else(|| bad(&BATCH, reply))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{acquire, acquire_fenced, release};
    use super::*;
    use crate::{ClientId, HolderId, Lease, LockName};

    #[test]
    fn plain_calls_of_one_server_are_joined_in_order() {
        let (a, b) = (LockName::new(*b"a").unwrap(), LockName::new(*b"b").unwrap());
        let holder = |n| HolderId::new(ClientId::from_random([7; 16]), n);
        let lease = Lease::new(Duration::from_secs(30)).unwrap();
        let calls = [
            release(&a, &holder(1), Publish::Plain),
            acquire(&b, &holder(2), lease),
            acquire(&a, &holder(3), lease),
        ];
        assert!(calls.iter().all(may_share));
        let Call { keys, args, .. } = batch(&calls);
        let [one, two, three] = [1, 2, 3].map(|n| holder(n).to_string());
        let a_queue = "redisson_lock_queue:{a}";
        assert_eq!(keys, Args::from(["a", "b", "redisson_lock_queue:{b}", "a", a_queue]));
        let channel = "redisson_lock__channel:{a}";
        let expected = Args::from(["raa", &one, channel, &two, "30000", &three, "30000"]);
        assert_eq!(args, expected);

        let others = [
            acquire_fenced(&a, &holder(1), lease, 1),
            release(&a, &holder(1), Publish::Both),
            release(&a, &holder(1), Publish::Sharded),
        ];
        assert!(!others.iter().any(may_share));
    }

    #[test]
    fn a_reply_names_what_was_left() {
        let reply = |places: &[i64]| Value::Array(places.iter().copied().map(Value::Int).collect());
        let done = Some(reply(&[1]));
        assert_eq!(parse_batch(&reply(&[]), 2).unwrap(), [done.clone(), done.clone()]);
        assert_eq!(parse_batch(&reply(&[1, 3]), 3).unwrap(), [None, done, None]);
        let error = Value::Bytes(b"NOPERM".to_vec());
        let refused = Value::Array(vec![Value::Int(2), error.clone()]);
        let two = Value::Array(vec![Value::Int(1), refused.clone()]);
        let own = Some(Value::Array(vec![Value::Int(1), error]));
        assert_eq!(parse_batch(&two, 2).unwrap(), [None, own]);
        for bad in [
            Value::Array(vec![refused.clone(), refused]),
            reply(&[0]),
            reply(&[3]),
            reply(&[1, 1]),
            Value::Int(1),
        ] {
            assert!(parse_batch(&bad, 2).is_err(), "{bad:?}");
        }
    }
}

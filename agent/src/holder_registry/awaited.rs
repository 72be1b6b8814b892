//! The value that lists the locks that workers of this agent wait for, `lockscope:waiters:{<uuid>}`.

use redisson::LockName;
use serde::Serialize;

use crate::core::report::AwaitedLock;
use crate::types::{Number, lock_name};

/// The longest value, bytes. Dashboards read no more.
const MAX_VALUE: usize = 60 * 1024;

/// The whole value.
#[derive(Debug, Serialize)]
struct Value<'a> {
    locks: &'a [Row],
    /// The instant of the writing in epoch milliseconds, by the clock that the beginnings of waits have too. It shows a
    /// dashboard how far that clock is off.
    at: u64,
    /// The end of the signature's validity, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// The id of the key that signs the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// A lock with its waiters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    #[serde(serialize_with = "lock_name::serialize")]
    lock: LockName,
    /// The number of all its waiters at this agent.
    count: usize,
    /// The numbers of the first ones, each with the beginning of its wait in epoch milliseconds.
    first: Vec<(Number, u64)>,
}

/// Returns the rows of these locks, as many as fit into a value. `booted`: the boot time of the host in epoch
/// milliseconds.
pub(super) fn rows(awaited: &[AwaitedLock], booted: u64) -> Vec<Row> {
    let mut room = MAX_VALUE;
    let row = |awaited: &AwaitedLock| Row {
        lock: awaited.lock.clone(),
        count: awaited.count,
        first: awaited
            .named
            .iter()
            .map(|(number, since)| (*number, booted + since.as_micros() / 1_000))
            .collect(),
    };
    let fits = |row: &Row| {
        let length = serde_json::to_string(row).map_or(usize::MAX, |text| text.len() + 1);
        let left = room.checked_sub(length);
        room = left.unwrap_or(0);
        left.is_some()
    };
    awaited.iter().map(row).take_while(fits).collect()
}

/// Returns the value with these rows, written at that instant in epoch milliseconds. `signed`: the end of the signature's
/// validity and the id of the key.
pub(super) fn value(rows: &[Row], at: u64, signed: Option<(u64, &str)>) -> String {
    let (expires, key) = signed.unzip();
    let value = Value { locks: rows, at, expires, key };
    serde_json::to_string(&value).expect("numbers and text are always valid JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(name: &[u8]) -> AwaitedLock {
        let lock = LockName::new(name).unwrap();
        let at = |ms: u64| redisson::Moment::from_micros(ms * 1_000);
        AwaitedLock { lock, count: 10, named: vec![(7, at(1_500)), (8, at(1_800))] }
    }

    #[test]
    fn a_value_lists_locks_with_their_count_and_first_waiters() {
        let rows = rows(&[awaited(b"orders:\"1\""), awaited(b"\xff\x01")], 100_000);
        let text = value(&rows, 102_000, Some((5, "k")));
        assert_eq!(
            text,
            r#"{"locks":[{"lock":"orders:\"1\"","count":10,"first":[[7,101500],[8,101800]]},"#
                .to_owned()
                + r#"{"lock":[255,1],"count":10,"first":[[7,101500],[8,101800]]}],"at":102000,"expires":5,"key":"k"}"#
        );
        assert_eq!(value(&[], 5, None), r#"{"locks":[],"at":5}"#);
    }

    #[test]
    fn a_value_is_bounded() {
        let long: Vec<AwaitedLock> =
            (0..200_u8).map(|n| awaited(&[&[n][..], &[b'x'; 400]].concat())).collect();
        let rows = rows(&long, 0);
        assert!(value(&rows, 0, None).len() <= MAX_VALUE + 30 && rows.len() > 10);
    }
}

//! Parsers of replies, and descriptions of refusals.

use redis::Value;
use redisson::shape;
use service_kit::redis::{CallError, ServerError};

use super::call::ReadError;

/// The reading of a key that the Redis user's patterns exclude.
pub const UNPERMITTED_KEY: &str = "a key that this user may not read";

/// Turns a refusal that concerns all keys into an error. Other refusals concern only this key.
pub(super) fn permitted(
    reply: Result<Value, ServerError>,
) -> Result<Result<Value, ServerError>, ReadError> {
    match reply {
        Err(error) if error.is_transient() || concerns_all(&error) => {
            Err(CallError::Refused(error).into())
        }
        reply => Ok(reply),
    }
}

fn concerns_all(error: &ServerError) -> bool {
    (error.is_denied() && !concerns_key(error)) || error.message.starts_with("unknown command")
}

/// Returns whether the Redis user may run the command, but not on this key.
#[must_use]
pub fn concerns_key(error: &ServerError) -> bool {
    error.code == "NOPERM" && error.message.contains("key")
}

/// Returns the text of a reply, or an empty text if the reply is of another type.
#[must_use]
pub fn text(reply: &Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

/// Parses a reply to TIME into microseconds since 1970.
#[must_use]
pub fn clock_micros(reply: &Value) -> Option<u64> {
    let parts = strings(reply)?;
    let number = |i: usize| std::str::from_utf8(parts.get(i)?).ok()?.parse::<u64>().ok();
    number(0)?.checked_mul(1_000_000)?.checked_add(number(1)?)
}

pub(super) fn unreadable(error: &ServerError) -> String {
    if error.is_wrong_type() {
        "a key of another type than a hash".to_owned()
    } else if error.is_denied() {
        UNPERMITTED_KEY.to_owned()
    } else {
        format!("a key that cannot be read: {error}")
    }
}

pub(super) fn too_large(fields: u64) -> String {
    format!("a hash of {fields} fields, too many for a lock; it is not read")
}

pub(super) fn not_a_lock() -> String {
    "a hash whose fields are not a lock's".to_owned()
}

/// Describes a hash whose fields are those of another synchronizer of Redisson, if they are.
pub(super) fn other_hash(fields: &[Vec<u8>]) -> String {
    match shape::other_synchronizer(fields) {
        Some(what) => format!("{what}, which is not a lock"),
        None => not_a_lock(),
    }
}

pub(super) fn is_list(reply: &Result<Value, ServerError>) -> bool {
    is_of(reply, "list")
}

/// Returns whether a reply to TYPE names that type.
pub(super) fn is_of(reply: &Result<Value, ServerError>, of: &str) -> bool {
    match reply {
        Ok(Value::SimpleString(kind)) => kind == of,
        Ok(Value::BulkString(kind)) => kind == of.as_bytes(),
        _ => false,
    }
}

pub(super) fn signed(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        _ => None,
    }
}

#[must_use]
pub fn integer(value: &Value) -> Option<u64> {
    signed(value).and_then(|n| u64::try_from(n).ok())
}

/// Parses a list of strings.
#[must_use]
pub fn strings(value: &Value) -> Option<Vec<Vec<u8>>> {
    optional_strings(value)?.into_iter().collect()
}

pub(super) fn optional_strings(value: &Value) -> Option<Vec<Option<Vec<u8>>>> {
    let Value::Array(values) = value else { return None };
    let string = |value: &Value| match value {
        Value::BulkString(bytes) => Some(Some(bytes.clone())),
        Value::SimpleString(text) => Some(Some(text.clone().into_bytes())),
        Value::Nil => Some(None),
        _ => None,
    };
    values.iter().map(string).collect()
}

//! Outcomes of scripts, in the forms that the core and metrics need.

use redis::Value as RedisValue;
use redisson::script::Value;
use service_kit::redis::CallError;

use super::confirmed_calls::Answer;
use crate::core::{Confirmed, Failure, OpId};
use crate::metrics;

/// The outcome of a script.
pub(super) type Outcome = (OpId, Result<Reply, Failure>);

/// The reply to a script.
#[derive(Debug)]
pub(super) enum Reply {
    Plain(Value),
    /// The reply, with the replicas that have its writes.
    Confirmed(Value, Confirmed),
}

/// Returns the outcome of a script for the core.
pub(super) fn settled(result: Result<Answer, CallError>) -> Result<Reply, Failure> {
    let known =
        |value| read(value).ok_or_else(|| Failure::Refused("a reply of no known type".to_owned()));
    match result {
        Ok(Answer::Plain(value)) => Ok(Reply::Plain(known(value)?)),
        Ok(Answer::Confirmed(value, confirmed)) => Ok(Reply::Confirmed(known(value)?, confirmed)),
        Ok(Answer::TooFewReplicas(why)) => Err(Failure::TooFewReplicas(why)),
        Err(error) => Err(failure(error)),
    }
}

/// The codes of errors that metrics tell apart. A server that invents codes must not create series.
const CODES: [&str; 21] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "DENIED",
    "ERR",
    "EXECABORT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGPASS",
    "WRONGTYPE",
];

/// Returns the word by which metrics count a failed call.
pub(super) fn word(error: &CallError) -> &'static str {
    match error {
        CallError::Unsent { .. } => metrics::UNSENT,
        CallError::Lost { .. } => metrics::LOST,
        CallError::Refused(error) => {
            CODES.into_iter().find(|code| *code == error.code).unwrap_or("other")
        }
    }
}

/// Converts a failed call for the core.
pub(super) fn failure(error: CallError) -> Failure {
    match error {
        CallError::Unsent { reason } => Failure::Unsent(reason),
        CallError::Lost { reason } => Failure::Lost(reason),
        CallError::Refused(error) => Failure::Refused(error.to_string()),
    }
}

fn read(value: RedisValue) -> Option<Value> {
    Some(match value {
        RedisValue::Nil => Value::Nil,
        RedisValue::Int(n) => Value::Int(n),
        RedisValue::BulkString(bytes) => Value::Bytes(bytes.to_vec()),
        RedisValue::SimpleString(text) => Value::Bytes(text.into_bytes()),
        RedisValue::Okay => Value::Bytes(b"OK".to_vec()),
        RedisValue::Array(items) => {
            Value::Array(items.into_iter().map(read).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use service_kit::redis::ServerError;

    use super::*;

    #[test]
    fn a_server_that_invents_codes_creates_no_series() {
        let word_of = |code: &str| {
            let error = ServerError { code: code.to_owned(), message: String::new() };
            word(&CallError::Refused(error))
        };
        assert_eq!(["OOM", "ERR", "AAAB", "AAAC"].map(word_of), ["OOM", "ERR", "other", "other"]);
    }
}

//! Replies and error sentences: each names the lock and the cause.

use redisson::{Kind, LockName, millis};

use crate::core::Core;
use crate::core::ids::ReplyTo;
use crate::core::session::reply::Grant;
use crate::protocol::resp::Frame;
use crate::types::End;

impl Core {
    pub(in crate::core) fn lock_reply(&self, grant: &Grant) -> Frame {
        let holder = self.numbers.field(grant.kind, grant.number);
        Frame::Map(vec![
            ("lock", Frame::bytes(grant.name.as_bytes())),
            ("kind", Frame::word(grant.kind.as_str())),
            ("holder", Frame::bytes(holder.to_string())),
            ("holds", Frame::count(grant.count.into())),
            ("token", Frame::or_null(grant.token.map(Frame::count))),
            ("valid_ms", Frame::count(millis(grant.valid_until.since(self.now)))),
            ("valid_until_ns", Frame::count(grant.valid_until.as_nanos())),
            ("waited_ms", Frame::count(grant.waited_ms)),
        ])
    }

    /// Returns the refusal of a command that names a different session from the connection's: its client has reconnected
    /// without the worker's knowledge, and the worker's supposed holds are gone.
    pub(in crate::core) fn session_refusal(
        &self,
        reply_to: ReplyTo,
        wanted: Option<&[u8]>,
        name: &LockName,
    ) -> Option<Frame> {
        let wanted = wanted?;
        let own = self.session_name(reply_to.connection);
        (own.as_bytes() != wanted).then(|| {
            Frame::Error(format!(
                "SESSION `{name}` was left unchanged: this connection is session {own}, not the one in IN; the client has \
                 reconnected, and what the old session held is released"
            ))
        })
    }

    pub(in crate::core) fn not_held(name: &LockName, owner: i64, kind: Option<Kind>) -> Frame {
        let kind = kind.map_or(String::new(), |kind| format!(" as {kind}"));
        Frame::Error(format!("NOTHELD `{name}` is not held{kind} by owner {owner} of this session"))
    }

    pub(in crate::core) fn lost(name: &LockName, end: End) -> Frame {
        Frame::Error(format!("LOST `{name}` was held, but {} ({})", end.explained(), end.as_str()))
    }

    pub(in crate::core) fn other_kind(name: &LockName, used: &str) -> Frame {
        Frame::Error(wrong_kind(name, used, None))
    }

    /// Returns the refusal of a reader's request for the write side, which would wait for itself.
    pub(in crate::core) fn upgrade(name: &LockName) -> Frame {
        Frame::Error(format!(
            "DEADLOCK a wait to write `{name}` would never end: you hold it for reading; release that first, or take \
             the write side before the read side"
        ))
    }

    pub(in crate::core) fn read_or_write(name: &LockName) -> Frame {
        Frame::Error(format!(
            "SYNTAX `{name}` is held twice, for reading and for writing: specify KIND read or KIND write"
        ))
    }

    pub(in crate::core) fn draining(name: &LockName) -> Frame {
        Frame::Error(format!("DRAINING `{name}` is not granted: this agent is shutting down"))
    }

    pub(in crate::core) fn limit(name: &LockName, what: &str) -> Frame {
        Frame::Error(format!("LIMIT `{name}`: {what}"))
    }

    pub(in crate::core) fn unavailable_for(name: &LockName, what: &str) -> Frame {
        Frame::Error(format!("UNAVAILABLE `{name}`: {}", one_line(what)))
    }

    /// Returns the answer to a command that waits for the end of a hold, which Redis does not confirm.
    pub(in crate::core) fn unconfirmed_end(name: &LockName, why: &str) -> Frame {
        Frame::Error(format!(
            "UNAVAILABLE `{name}` is no longer yours, and the agent keeps trying to release it in Redis: {}",
            one_line(why)
        ))
    }

    pub(in crate::core) fn deadlock(&self, name: &LockName) -> Frame {
        let holder = self
            .locks
            .get(name)
            .and_then(|state| state.hold)
            .and_then(|number| self.leases.get(number))
            .map_or_else(String::new, |hold| {
                format!(" {}", self.numbers.field(hold.kind, hold.number))
            });
        Frame::Error(format!(
            "DEADLOCK a wait for `{name}` would never end: its holder{holder} waits, directly or through others, for \
             a lock that you hold; release that first, or wait with a limit"
        ))
    }
}

/// Returns the refusal of a name that is in use as another kind, `used`, perhaps on one of several servers.
pub(in crate::core) fn wrong_kind(name: &LockName, used: &str, server: Option<&str>) -> String {
    let used = if used == Kind::Lock.as_str() { "plain" } else { used };
    let place = on(server);
    format!("WRONGKIND `{name}` is in use as a {used} lock{place}: kinds do not mix under one name")
}

/// Returns the refusal of a name whose key is something else, `found`, perhaps on one of several servers.
pub(in crate::core) fn wrong_type(name: &LockName, found: &str, server: Option<&str>) -> String {
    let place = on(server);
    format!(
        "WRONGTYPE `{name}` cannot be locked, because its key{place} is a {found}: use another name"
    )
}

fn on(server: Option<&str>) -> String {
    server.map_or_else(String::new, |server| format!(" on {server}"))
}

/// Returns the phrase for those that a list does not name.
pub(in crate::core) fn others(count: usize) -> String {
    if count == 1 { "1 other".to_owned() } else { format!("{count} others") }
}

/// Puts a foreign sentence on one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_a_name_in_other_use_state_that_use() {
        let name = LockName::new(&b"a"[..]).unwrap();
        let kind = |used, on| wrong_kind(&name, used, on);
        let found = |found, on| wrong_type(&name, found, on);
        let mix = "kinds do not mix under one name";
        for (sentence, expected) in [
            (kind("lock", None), format!("WRONGKIND `a` is in use as a plain lock: {mix}")),
            (kind("fair", None), format!("WRONGKIND `a` is in use as a fair lock: {mix}")),
            (kind("read", Some("r:1")), format!("WRONGKIND `a` is in use as a read lock on r:1: {mix}")),
            (
                found("string", None),
                "WRONGTYPE `a` cannot be locked, because its key is a string: use another name".into(),
            ),
            (
                found("lock whose queue key is a string", Some("r:1")),
                "WRONGTYPE `a` cannot be locked, because its key on r:1 is a lock whose queue key is a string: use \
                 another name"
                    .into(),
            ),
            (others(1), "1 other".into()),
            (others(2), "2 others".into()),
        ] {
            assert_eq!(sentence, expected);
        }
    }
}

//! The process behind a holder, as SHOW displays it.

use redisson::script::HolderEntry;
use serde::Deserialize;

use crate::core::report::ListRow;

/// The maximum number of characters of a text that another agent has published.
const MAX_TEXT: usize = 100;

/// A process behind a hold or a wait. Deserializing reads what an agent publishes.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(in crate::core) struct HolderProcess {
    /// The host of another agent; `None` for this one's own workers.
    #[serde(skip)]
    pub(in crate::core) host: Option<String>,
    pub(in crate::core) pid: Option<u32>,
    pub(in crate::core) uid: Option<u32>,
    /// The name of the worker's command.
    pub(in crate::core) comm: Option<String>,
    /// The name set with CLIENT SETNAME.
    #[serde(rename = "client")]
    pub(in crate::core) name: Option<String>,
    /// Milliseconds since the grant; `None` for the workers of another agent, whose clock may differ.
    #[serde(skip)]
    pub(in crate::core) age_ms: Option<u64>,
}

impl From<ListRow> for HolderProcess {
    fn from(row: ListRow) -> Self {
        Self {
            host: None,
            pid: row.pid.and_then(|pid| u32::try_from(pid).ok()),
            uid: Some(row.uid),
            comm: row.comm,
            name: row.client,
            age_ms: Some(row.age_ms),
        }
    }
}

impl HolderProcess {
    /// Returns what another agent publishes about a holder. A user without the right to see all workers gets only the host:
    /// users of another host are not those of this one.
    pub(in crate::core) fn published(entry: &HolderEntry, only_uid: Option<u32>) -> Self {
        let host = String::from_utf8_lossy(&entry.host);
        let host = Some(host).filter(|host| !host.is_empty()).map(|host| cut(&host));
        if only_uid.is_some() {
            return Self { host, ..Self::default() };
        }
        // Of a malformed entry nothing is known.
        let published: Self = serde_json::from_slice(&entry.process).unwrap_or_default();
        let text = |text: Option<String>| text.map(|text| cut(&text));
        Self { host, comm: text(published.comm), name: text(published.name), ..published }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(process: &str, only_uid: Option<u32>) -> HolderProcess {
        let entry = HolderEntry { host: b"web-8".to_vec(), process: process.into() };
        HolderProcess::published(&entry, only_uid)
    }

    #[test]
    fn malformed_entries_of_other_agents_are_read_as_far_as_possible() {
        let long = "x".repeat(MAX_TEXT + 1);
        let process =
            published(&format!(r#"{{"pid":7,"uid":1000,"client":"{long}","new":1}}"#), None);
        assert_eq!((process.pid, process.uid, process.comm), (Some(7), Some(1000), None));
        assert_eq!(process.name.unwrap().len(), MAX_TEXT);
        let host = || HolderProcess { host: Some("web-8".to_owned()), ..HolderProcess::default() };
        for unsound in ["", "7", r#"{"pid":"text"}"#] {
            assert_eq!(published(unsound, None), host(), "{unsound}");
        }
        assert_eq!(
            HolderProcess::published(&HolderEntry::default(), None),
            HolderProcess::default()
        );
        assert_eq!(published(r#"{"pid":7}"#, Some(1000)), host(), "other users see only the host");
    }
}

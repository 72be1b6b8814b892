//! SHOW of red locks: the state of the name on each of their servers.

use std::collections::{BTreeMap, BTreeSet};

use redisson::script::LockDetails;
use redisson::{HolderId, LockName};

use super::quorum::{Answer, QuorumOp, QuorumRequest};
use crate::core::Core;
use crate::core::ops::verb::{NodeOp, NodeVerb, Show, Verb};
use crate::core::report::list::{NO_TTL, holder_frame, name_warnings, other_type};
use crate::core::report::process::HolderProcess;
use crate::protocol::resp::Frame;
use crate::types::Number;

/// One server's part: its name, and the state of the lock, or why there is none.
type Part<'a> = (&'a str, Result<&'a LockDetails, String>);

impl Core {
    /// Asks all nodes for the state of the lock, and answers when all have replied, or when their time is over.
    pub(in crate::core) fn show_red(&mut self, show: Show) {
        let name = show.name.clone();
        self.ask_red(QuorumRequest::Show(show), &name);
    }

    /// Asks all nodes for the state of the lock, for this request.
    pub(super) fn ask_red(&mut self, request: QuorumRequest, name: &LockName) {
        let (nodes, patience) = (self.nodes().len(), self.settings.response_timeout);
        let quorum = QuorumOp::new(request, self.now, nodes);
        let id = self.open(quorum, self.now + patience);
        for node in 0..nodes {
            let verb = NodeVerb::Show { quorum: id, name: name.clone() };
            self.send(Verb::Node(NodeOp { node, verb }), patience);
        }
    }

    pub(super) fn on_show_decided(&mut self, quorum: &QuorumOp, show: &Show) {
        let Show { name, reply_to } = show;
        let majority = self.majority();
        let parts: Vec<Part<'_>> = self
            .nodes()
            .iter()
            .zip(&quorum.answers)
            .map(|(node, answer)| {
                let part = match answer {
                    Answer::Shown(shown) => Ok(&**shown),
                    Answer::Failed { reason, .. } => Err(reason.clone()),
                    _ => Err("no reply in time".to_owned()),
                };
                (node.as_str(), part)
            })
            .collect();
        let shown: Vec<&LockDetails> =
            parts.iter().filter_map(|(_, part)| part.as_ref().ok().copied()).collect();
        let reply = if shown.len() < majority {
            Self::unavailable_for(name, &self.errors_of(quorum))
        } else if shown.iter().all(|shown| shown.key_type == "none") {
            self.absent(name).unwrap_or(Frame::Null)
        } else {
            self.red_frame(name, &parts, self.sees_only(reply_to.connection))
        };
        self.answer(*reply_to, reply);
    }

    fn red_frame(&self, name: &LockName, parts: &[Part<'_>], only_uid: Option<u32>) -> Frame {
        let (majority, all) = (self.majority(), parts.len());
        let mut warnings = name_warnings(name);
        // In Redisson the holder of a red lock is a thread, with a different client's id on each server.
        let mut threads: BTreeMap<Number, Vec<Option<u64>>> = BTreeMap::new();
        let mut holders: BTreeMap<HolderId, i64> = BTreeMap::new();
        let mut servers = Vec::new();
        for (server, part) in parts {
            let found: &[_] = part.as_ref().map_or(&[], |shown| &shown.hash.holders);
            let mut here = BTreeSet::new();
            for holder in found {
                let count = holders.entry(holder.id).or_default();
                *count = (*count).max(holder.count);
                here.insert(holder.id.thread);
            }
            let pttl = part.as_ref().ok().and_then(|shown| shown.pttl_ms);
            for thread in here {
                threads.entry(thread).or_default().push(pttl);
            }
            let trouble = match part {
                Ok(shown) => trouble(shown),
                Err(why) => Some(why.clone()),
            };
            warnings.extend(trouble.iter().map(|trouble| format!("{server}: {trouble}")));
            servers.push(Frame::Map(vec![
                ("server", Frame::bytes(*server)),
                ("holders", Frame::list(found.iter().map(|holder| holder.id.to_string()))),
                ("pttl_ms", Frame::or_null(pttl.map(Frame::count))),
                ("trouble", Frame::or_null(trouble.map(Frame::bytes))),
            ]));
        }
        let most = threads.into_values().max_by_key(Vec::len).unwrap_or_default();
        if most.len() < majority {
            warnings.push(format!(
                "nobody has a majority: the holder on most servers has {} of {all}",
                most.len()
            ));
        }
        let holders = holders
            .iter()
            .map(|(id, count)| {
                let process = self.known(id, only_uid).map(HolderProcess::from);
                holder_frame(id.to_string(), *count, None, process)
            })
            .collect();
        Frame::Map(vec![
            ("lock", Frame::bytes(name.as_bytes())),
            ("kind", Frame::word("red")),
            ("holders", Frame::Array(holders)),
            ("token", Frame::or_null(None)),
            ("pttl_ms", Frame::or_null(left(most, majority).map(Frame::count))),
            ("queue_length", Frame::Int(0)),
            ("queue", Frame::Array(Vec::new())),
            ("warnings", Frame::list(warnings)),
            ("servers", Frame::Array(servers)),
        ])
    }
}

/// Returns the reason why a server's key is no lock that ends by itself.
fn trouble(shown: &LockDetails) -> Option<String> {
    match shown.key_type.as_str() {
        "none" => None,
        "hash" if shown.hash.holders.is_empty() => {
            Some("a hash, but no field has a holder's form".to_owned())
        }
        "hash" => shown.pttl_ms.is_none().then(|| NO_TTL.to_owned()),
        _ => Some(other_type(shown)),
    }
}

/// Returns the time for which a majority keeps a key with these times to live on some of the servers; `None` if no
/// majority has it, or if it does not expire.
fn left(mut pttls: Vec<Option<u64>>, majority: usize) -> Option<u64> {
    // Keys that do not expire come first.
    pttls.sort_unstable_by_key(|pttl| std::cmp::Reverse(pttl.unwrap_or(u64::MAX)));
    pttls.get(majority - 1).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_lasts_as_long_as_its_shortest_lease() {
        assert_eq!(left(vec![Some(10), Some(30), Some(20)], 2), Some(20));
        assert_eq!(left(vec![Some(10), None, Some(20)], 2), Some(20));
        assert_eq!(left(vec![None, None, Some(20)], 2), None);
        assert_eq!(left(vec![Some(10)], 2), None);
    }
}

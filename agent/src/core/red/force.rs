//! FORCE of a red lock: what an operator saw on each server is compared and released there. It is complete once no
//! holder can have a majority any more.

use redisson::LockName;
use redisson::script::{ForceReleaseOutcome, LockDetails};
use redisson::shape::{Holder, MAX_FIELDS};

use super::quorum::{Answer, No, QuorumOp, QuorumRequest};
use crate::core::Core;
use crate::core::ids::OpId;
use crate::core::ops::force::{WORTH, changed_hands, forced_frame, not_held_by};
use crate::core::ops::verb::{Look, NodeOp, NodeVerb, Seen, Verb};
use crate::protocol::resp::Frame;

impl Core {
    /// Asks all servers for the state of the lock.
    pub(in crate::core) fn look_red(&mut self, look: Look) {
        let name = look.name.clone();
        self.ask_red(QuorumRequest::Look(look), &name);
    }

    /// Handles the servers' answers, once all have arrived or their time is over.
    pub(super) fn on_look_decided(&mut self, quorum: &QuorumOp, look: &Look) {
        let Look { name, reply_to, holder, report } = look;
        let shown: Vec<(usize, &LockDetails)> = quorum
            .answers
            .iter()
            .enumerate()
            .filter_map(|(node, answer)| match answer {
                Answer::Shown(shown) => Some((node, &**shown)),
                _ => None,
            })
            .collect();
        if shown.len() < self.majority() {
            let reply = Self::unavailable_for(name, &self.errors_of(quorum));
            return self.answer(*reply_to, reply);
        }
        if shown.iter().all(|(_, shown)| shown.key_type == "none") {
            let reply = self.absent(name).unwrap_or_else(|| forced_frame(*report, 0, 0));
            return self.answer(*reply_to, reply);
        }
        let is_lock = |shown: &LockDetails| {
            let few = shown.fields <= MAX_FIELDS;
            shown.key_type == "hash" && few && !shown.hash.holders.is_empty()
        };
        let targets: Vec<_> = shown.into_iter().filter(|(_, shown)| is_lock(shown)).collect();
        if targets.is_empty() {
            let sentence = format!("WRONGTYPE `{name}` is not a lock; nothing was done");
            return self.answer(*reply_to, Frame::Error(sentence));
        }
        let mut wanted_id = None;
        if let Some(wanted) = holder {
            let holders = || targets.iter().flat_map(|(_, shown)| &shown.hash.holders);
            let Some(named) = holders().find(|h| h.id.to_string().as_bytes() == *wanted) else {
                let now: Vec<String> = holders().map(|holder| holder.id.to_string()).collect();
                return self.answer(*reply_to, Frame::Error(not_held_by(name, wanted, now)));
            };
            // In Redisson the holder of a red lock is a thread, with a different client's id on each server.
            wanted_id = Some((named.id.thread, named.id.write));
        }
        let is_named = |holder: &Holder| wanted_id == Some((holder.id.thread, holder.id.write));
        let mut seen = vec![None; self.nodes().len()];
        for (node, shown) in targets {
            if wanted_id.is_none() || shown.hash.holders.iter().any(is_named) {
                seen[node] = Some(Seen::new(shown, is_named));
            }
        }
        self.force_seen(quorum, look, seen);
    }

    /// Releases the lock on each server that showed it. `quorum` has the earlier answers of the others.
    fn force_seen(&mut self, quorum: &QuorumOp, look: &Look, seen: Vec<Option<Seen>>) {
        let request = QuorumRequest::Force { look: look.clone(), seen: seen.clone() };
        let mut forcing = QuorumOp::new(request, self.now, seen.len());
        for (node, answer) in forcing.answers.iter_mut().enumerate() {
            if seen[node].is_none() {
                // Its earlier answer, if there is one, counts.
                *answer = quorum.answers[node].clone();
                if *answer == Answer::Awaited {
                    *answer = Answer::unchanged("no reply in time");
                }
            }
        }
        let id = self.open(forcing, self.now + self.settings.response_timeout);
        for (node, seen) in seen.into_iter().enumerate() {
            if let Some(seen) = seen {
                let verb = NodeVerb::Force { quorum: id, name: look.name.clone(), seen };
                self.send(Verb::Node(NodeOp { node, verb }), WORTH);
            }
        }
    }

    /// Handles one server's answer to a forced release.
    pub(super) fn on_node_forced(
        &mut self,
        node: usize,
        quorum: OpId,
        may_have_run: bool,
        forced: ForceReleaseOutcome,
    ) {
        let answer = match forced {
            ForceReleaseOutcome::Released | ForceReleaseOutcome::Free => Answer::Yes(self.now),
            // An earlier copy of the script may have released it.
            _ if may_have_run => {
                let reason = "it changed holders during the command".to_owned();
                Answer::Failed { reason, may_have_run }
            }
            ForceReleaseOutcome::Changed => {
                Answer::No(No::Unfit("it changed holders during the command".into()))
            }
            ForceReleaseOutcome::WrongType => {
                Answer::No(No::Unfit("it is no longer a lock".into()))
            }
        };
        self.record_answer(quorum, node, answer);
    }

    /// Handles the servers' answers to the releases, once all have arrived or their time is over.
    pub(super) fn on_force_decided(
        &mut self,
        quorum: &QuorumOp,
        look: &Look,
        seen: &[Option<Seen>],
    ) {
        let Look { name, reply_to, report, .. } = look;
        // The servers on which the released holder may still have it.
        let unsure = |answer: &&Answer| !matches!(answer, Answer::Yes(_) | Answer::Shown(_));
        let unsure = quorum.answers.iter().filter(unsure).count();
        let holders = |nodes: Vec<usize>| -> Vec<(usize, &Holder)> {
            let seen = nodes.into_iter().filter_map(|node| Some((node, seen[node].as_ref()?)));
            seen.flat_map(|(node, seen)| seen.ending().iter().map(move |h| (node, h))).collect()
        };
        let released = holders(quorum.yes().map(|(node, _)| node).collect());
        let unknown = self.forced_in_doubt(quorum, name);
        let in_doubt = !unknown.is_empty();
        for (holders, confirmed) in [(&released, true), (&holders(unknown), false)] {
            if !holders.is_empty() {
                let ids: Vec<String> = holders.iter().map(|(_, h)| h.id.to_string()).collect();
                self.audit(*reply_to, name, &ids, 0, confirmed);
            }
        }
        // The messages notify the other agents; our own holds need not wait for them.
        for (node, holder) in &released {
            if self.own_hold(&holder.id).is_some_and(|hold| hold.name == *name) {
                self.forced_on(*node, holder.id.thread);
            }
        }
        let mut threads: Vec<_> = released.iter().map(|(_, holder)| holder.id.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let reply = if unsure < self.majority() {
            forced_frame(*report, threads.len() as u64, 0)
        } else if quorum.answers.iter().any(|answer| {
            matches!(answer, Answer::No(_) | Answer::Failed { may_have_run: true, .. })
        }) {
            changed_hands(name, in_doubt)
        } else {
            Self::unavailable_for(name, &self.errors_of(quorum))
        };
        self.answer(*reply_to, reply);
    }

    /// Returns the servers on which a forced release may have run, or may yet run, without a confirmation.
    fn forced_in_doubt(&self, quorum: &QuorumOp, name: &LockName) -> Vec<usize> {
        let in_flight = |node: usize| {
            self.ops.values().any(|op| match &op.verb {
                Verb::Node(NodeOp { node: asked, verb: NodeVerb::Force { name: forced, .. } }) => {
                    *asked == node && forced == name && (op.may_have_run || op.is_on_its_way())
                }
                _ => false,
            })
        };
        let doubt = |(node, answer): (usize, &Answer)| match answer {
            Answer::Failed { may_have_run, .. } => may_have_run.then_some(node),
            Answer::Awaited => in_flight(node).then_some(node),
            Answer::Yes(_) | Answer::No(_) | Answer::Shown(_) => None,
        };
        quorum.answers.iter().enumerate().filter_map(doubt).collect()
    }
}

//! LOCK's attempts at a red lock.

use std::collections::HashMap;
use std::time::Duration;

use redisson::script::Acquired;
use redisson::{HolderId, Moment};

use super::ballot::{Answer, Ballot, No, Question, Undoing, Verdict};
use super::votes::Votes;
use super::{Ask, What};
use crate::core::Core;
use crate::core::op::{Attempt, OpId, Purpose};
use crate::core::timer::Timer;
use crate::core::wait::{Left, Waiter};
use crate::types::Number;

impl Core {
    /// Lets a waiter try on all nodes at once.
    pub(in crate::core) fn attempt_red(&mut self, attempt: &Attempt) -> OpId {
        if let Some(state) = self.names.get_mut(&attempt.name) {
            state.ears.begin();
        }
        let nodes = self.nodes().len();
        let asked: Vec<_> = (0..nodes).filter(|node| self.is_asked(*node)).collect();
        let mut ballot = Ballot::new(Question::Take(attempt.clone()), self.now, nodes);
        for (node, answer) in ballot.answers.iter_mut().enumerate() {
            if !asked.contains(&node) {
                let said = "it has just left a question unanswered".to_owned();
                *answer = Answer::Failed { said, doubt: false };
            }
        }
        // Whoever asks needs the ballot's name before its outcome.
        let deadline = if ballot.awaited().next().is_some() {
            self.now + self.node_timeout()
        } else {
            self.now
        };
        let id = self.open(ballot, deadline);
        for node in asked {
            let what = What::Take { ballot: id, attempt: attempt.clone() };
            self.send(Purpose::Red(Ask { node, what }), Duration::MAX);
        }
        id
    }

    /// Enters a ballot, to be decided at that instant at the latest.
    pub(super) fn open(&mut self, ballot: Ballot, deadline: Moment) -> OpId {
        let id = self.draw_op();
        let ballot = self.red.ballots.entry(id).or_insert(ballot);
        self.timers.set(&mut ballot.armed, deadline, Timer::Ballot(id));
        id
    }

    /// Decides a ballot if it can be, or if its time is over.
    pub(super) fn count(&mut self, id: OpId, over: bool) {
        let majority = self.majority();
        let Some(ballot) = self.red.ballots.get(&id) else { return };
        let settled = match &ballot.question {
            // What the last ones have to say is worth their time: who has it, what is to be taken back.
            Question::Take(_) => {
                ballot.verdict(majority) == Verdict::Won || ballot.awaited().next().is_none()
            }
            Question::Keep(..) => ballot.verdict(majority) != Verdict::Open,
            Question::Release(_) => {
                ballot.verdict(majority) == Verdict::Won || ballot.gone(majority).is_some()
            }
            Question::Undo(_) | Question::Show(..) | Question::Look(..) | Question::Force(..) => {
                ballot.awaited().next().is_none()
            }
        };
        if !settled && !over {
            return;
        }
        let Some(mut ballot) = self.red.ballots.remove(&id) else { return };
        self.timers.set(&mut ballot.armed, Moment::NEVER, Timer::Ballot(id));
        match &ballot.question {
            Question::Take(attempt) => {
                let attempt = attempt.clone();
                self.stop_asking(&attempt, id);
                if ballot.verdict(majority) == Verdict::Won {
                    self.won(ballot, &attempt);
                } else {
                    self.not_won(ballot, &attempt);
                }
                self.advance(&attempt.name);
            }
            Question::Keep(..) => self.keep_decided(&ballot),
            Question::Release(_) => self.release_decided(ballot),
            Question::Undo(_) => self.undo_decided(ballot),
            Question::Show(..) => self.show_decided(&ballot),
            Question::Look(..) => self.look_decided(&ballot),
            Question::Force(..) => self.force_decided(&ballot),
        }
    }

    /// One node answered an attempt.
    pub(super) fn node_took(
        &mut self,
        node: usize,
        sent: Moment,
        ballot: OpId,
        attempt: &Attempt,
        acquired: Acquired,
    ) {
        let name = &attempt.name;
        let answer = match acquired {
            Acquired::Granted { .. } => Answer::Yes(attempt.lease.valid_until(sent)),
            Acquired::Held { pttl_ms, holders } => Answer::No(No::Held { pttl_ms, holders }),
            Acquired::WrongKind(kind) => Answer::No(No::Unfit(format!(
                "WRONGKIND `{name}` is in use as a {} lock on {}: kinds do not mix under one name",
                crate::core::acquire::printable(&kind),
                self.nodes()[node],
            ))),
            Acquired::WrongType(kind) => Answer::No(No::Unfit(format!(
                "WRONGTYPE the key `{name}` is no lock but a {} on {}: use another name",
                crate::core::acquire::printable(&kind),
                self.nodes()[node],
            ))),
        };
        let word = match &answer {
            Answer::Yes(_) => "granted",
            Answer::No(No::Held { .. }) => "refused",
            _ => "unfit",
        };
        self.figures.red_vote(&self.nodes()[node], word);
        if self.red.ballots.contains_key(&ballot) {
            return self.cast(ballot, node, answer);
        }
        // The others had decided without it: if for a hold that is still there, it is one vote more. If not, an undoing
        // is on its way behind it.
        if let (Answer::Yes(until), Some(hold)) = (answer, self.holds.get_mut(&attempt.number))
            && let Some(votes) = &mut hold.votes
        {
            let vote = &mut votes.0[node];
            vote.valid_until = vote.valid_until.max(until.min(attempt.lease.valid_until(sent)));
            self.weigh(attempt.number, None);
        }
    }

    /// A majority said yes.
    fn won(&mut self, ballot: Ballot, attempt: &Attempt) {
        let Attempt { name, number, lease, .. } = attempt;
        let now = self.now;
        if let Some(state) = self.names.get_mut(name) {
            state.failures = 0;
            state.trouble = None;
        }
        let Some(heir) = self.heir(attempt, ballot.sent) else {
            return self.give_up_got(ballot, attempt);
        };
        self.grant(heir, *number, ballot.sent, None);
        let jitter = self.jitter();
        let again = now + self.settings.lease.duration() / 15;
        let mut votes = Votes::new(self.nodes().len(), again);
        for (node, until) in ballot.yes() {
            votes.confirm(node, ballot.sent, until);
            votes.0[node].renew_at = lease.renew_at(ballot.sent, jitter);
        }
        if let Some(hold) = self.holds.get_mut(number) {
            hold.votes = Some(votes);
        }
        self.weigh(*number, None);
        if let Some((slot, reply)) = ballot.last_word {
            self.answer(slot, reply);
        }
    }

    /// Takes back what an attempt has got, and what it may have got.
    fn give_up_got(&mut self, ballot: Ballot, attempt: &Attempt) {
        let Attempt { name, waiter, number, lease, .. } = attempt;
        self.renumber(*waiter);
        let nodes: Vec<_> = ballot.may_have_done().collect();
        let sure: Vec<_> = ballot.yes().map(|(node, _)| node).collect();
        let undoing = Undoing {
            name: name.clone(),
            number: *number,
            lease: *lease,
            waiter: Some(*waiter),
            wakes: false,
        };
        let undo = self.undo_red(undoing, &nodes, &sure);
        if let Some(waiter) = self.waiters.get_mut(waiter) {
            waiter.undoing = undo;
        }
        match (ballot.last_word, undo.and_then(|id| self.red.ballots.get_mut(&id))) {
            (word @ Some(_), Some(undo)) => undo.last_word = word,
            (Some((slot, reply)), None) => self.answer(slot, reply),
            (None, _) => {}
        }
    }

    /// No majority: what was got is given back, and the waiter tries again later, or leaves.
    fn not_won(&mut self, mut ballot: Ballot, attempt: &Attempt) {
        let (name, asked, majority) = (&attempt.name, attempt.waiter, self.majority());
        let last_word = ballot.last_word.take();
        let view = View::of(&ballot, majority);
        let troubles = self.troubles(&ballot);
        for node in ballot.awaited() {
            self.figures.red_vote(&self.nodes()[node], "silent");
        }
        ballot.last_word = last_word;
        let free: Vec<_> = ballot.yes().map(|(node, _)| node).collect();
        self.give_up_got(ballot, attempt);
        self.remove_node_ghosts(attempt, &view.holders);
        if let Some(sentence) = view.unfit {
            return self.leave(asked, Left::Failed(sentence));
        }
        let served = view.answered >= majority;
        let Some(state) = self.names.get_mut(name) else { return };
        state.trouble = (!served).then_some(troubles);
        let Some(waiter) = self.waiters.get_mut(&asked) else { return };
        waiter.refused |= served;
        if waiter.is_now_or_never() {
            return self.leave(asked, Left::TimedOut);
        }
        if state.queue.front() != Some(&asked) {
            return;
        }
        if !served || !view.held {
            // Nodes that are away, or several that have split them: whoever comes back soonest must not be all of them.
            state.failures = state.failures.saturating_add(1);
            let failures = state.failures;
            return self.stand_aside(name, served, failures);
        }
        state.failures = 0;
        state.others = Some(true);
        self.listen(name);
        let Some(state) = self.names.get_mut(name) else { return };
        // Releases that were told of while the answers were under way count too.
        free.iter().for_each(|node| state.ears.add_free(*node));
        if state.ears.free() >= majority {
            return;
        }
        let poll = self.poll(view.pttl_ms);
        self.sleep(name, self.now + poll);
    }

    /// Leaves the lock alone for a random while, longer the more often that happens in a row.
    fn stand_aside(&mut self, name: &redisson::LockName, split: bool, failures: u32) {
        let share = u32::try_from(self.jitter() % 200).unwrap_or(0);
        let once = self.node_timeout() * (100 + share) / 100;
        let pause = if split {
            (once * (1 << (failures - 1).min(4))).min(self.settings.poll_max)
        } else {
            once.max(self.pause(failures))
        };
        let until = self.now + pause;
        if let Some(state) = self.names.get_mut(name) {
            state.stand_back_until = until;
        }
        self.sleep(name, until);
    }

    /// Removes from single nodes what late copies of old scripts have left there. Then the waiter tries again.
    fn remove_node_ghosts(&mut self, attempt: &Attempt, holders: &[(usize, Vec<HolderId>)]) {
        let mut ghosts: HashMap<Number, Vec<usize>> = HashMap::new();
        for (node, holders) in holders {
            for holder in holders.iter().filter(|holder| holder.client == self.client) {
                if self.is_ghost(holder.thread) {
                    ghosts.entry(holder.thread).or_default().push(*node);
                }
            }
        }
        let mut ghosts: Vec<_> = ghosts.into_iter().collect();
        ghosts.sort_unstable();
        for (number, nodes) in ghosts {
            self.figures.doubt("undone_late");
            let undoing = Undoing {
                name: attempt.name.clone(),
                number,
                lease: self.settings.lease,
                waiter: None,
                wakes: true,
            };
            self.undo_red(undoing, &nodes, &nodes);
        }
    }

    /// A node's release message for a red lock.
    pub(in crate::core) fn heard_free(&mut self, node: usize, name: &redisson::LockName) {
        let (now, majority, soon) = (self.now, self.majority(), self.node_timeout());
        let Some(state) = self.names.get_mut(name) else { return };
        let news = !state.ears.knows_free(node);
        state.ears.add_free(node);
        let all = state.ears.free() >= majority;
        if state.stand_back_until > now {
            return;
        }
        if all {
            return self.wake(name);
        }
        // The holder may have had no more nodes than those heard of, or the others' messages may be lost.
        if let crate::core::name::Contest::Asleep(until) = state.contest
            && news
            && until > now + soon
        {
            self.sleep(name, now + soon);
        }
    }

    /// A LOCK's waiter has left. What its attempts have got is gone from the nodes before its worker hears so.
    pub(in crate::core) fn tell_once_undone(
        &mut self,
        waiter: &Waiter,
        reply: crate::protocol::resp::Frame,
    ) {
        let open = [waiter.asking, waiter.undoing].into_iter().flatten();
        let open: Vec<_> = open.filter(|id| self.red.ballots.contains_key(id)).collect();
        match open.first().and_then(|id| self.red.ballots.get_mut(id)) {
            Some(ballot) => ballot.last_word = Some((waiter.slot, reply)),
            None => self.answer(waiter.slot, reply),
        }
    }
}

/// What a ballot without a majority shows.
struct View {
    /// How many nodes said yes or who has it.
    answered: usize,
    /// Whether one has a majority of the nodes, so that its release is to be waited for. In Redisson that is a thread: for
    /// each server it has a client of its own, with an id of its own.
    held: bool,
    /// When a majority may be had, by the leases of those who have the nodes; none where that cannot be told.
    pttl_ms: Option<u64>,
    unfit: Option<String>,
    holders: Vec<(usize, Vec<HolderId>)>,
}

impl View {
    fn of(ballot: &Ballot, majority: usize) -> Self {
        let mut view =
            Self { answered: 0, held: false, pttl_ms: None, unfit: None, holders: Vec::new() };
        let mut waits = Vec::new();
        let mut counts: HashMap<Number, usize> = HashMap::new();
        for (node, answer) in ballot.answers.iter().enumerate() {
            match answer {
                Answer::Yes(_) => waits.push(Some(0)),
                Answer::No(No::Held { pttl_ms, holders }) => {
                    waits.push(*pttl_ms);
                    for holder in holders {
                        *counts.entry(holder.thread).or_default() += 1;
                    }
                    view.holders.push((node, holders.clone()));
                }
                Answer::No(No::Unfit(sentence)) => {
                    view.unfit.get_or_insert_with(|| sentence.clone());
                }
                _ => {}
            }
        }
        view.answered = waits.len();
        view.held = counts.values().any(|nodes| *nodes >= majority);
        waits.sort_unstable_by_key(|wait| wait.unwrap_or(u64::MAX));
        view.pttl_ms = waits.get(majority - 1).copied().flatten();
        view
    }
}

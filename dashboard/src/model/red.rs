//! Red locks: one name on several independent servers; a quorum of them decides the holder.
//!
//! A Redisson client has a different uuid on each server and the same thread number on all of them. An agent has the
//! same holder id on all. Holds of one name therefore belong together if the thread's number is the same.

use std::sync::Arc;
use std::time::Duration;

use redisson::{LockName, millis};

use super::Model;
use super::record::Record;
use crate::model::problem::Expired;
use crate::model::types::{Group, ProblemKind, RedView, ScopeId};

/// The longest time between the ends of one hold on its servers: they are renewed separately.
const ONE_LOSS: Duration = Duration::from_secs(60);

impl Model {
    fn group_of(&self, deployment: &Arc<str>) -> Option<&Group> {
        self.settings.groups.iter().find(|group| group.deployments.contains(deployment))
    }

    /// Returns the scopes with the same database number in the group of that scope's deployment, including itself.
    pub(super) fn members(&self, scope: ScopeId) -> Vec<ScopeId> {
        let of = &self.scopes[scope.0];
        let Some(group) = self.group_of(&of.deployment) else { return Vec::new() };
        let member = |(i, other): (usize, &super::Scope)| {
            let same = other.db == of.db && group.deployments.contains(&other.deployment);
            same.then_some(ScopeId(i))
        };
        self.scopes.iter().enumerate().filter_map(member).collect()
    }

    /// Returns the lock's holders in its group, or `None` if the lock is known on only one server.
    pub(super) fn red(&self, scope: ScopeId, name: &LockName) -> Option<RedView> {
        let members = self.members(scope);
        let known: Vec<_> = members
            .iter()
            .filter_map(|member| {
                let member = &self.scopes[member.0];
                let record = &member.locks.get(name)?.record;
                Some((&member.deployment, record, member.is_current(record)))
            })
            .collect();
        if known.len() < 2 {
            return None;
        }
        let (current, unread): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|(_, _, is_current)| *is_current);
        let unread = unread.into_iter().map(|(deployment, ..)| Arc::clone(deployment)).collect();
        let on = |thread: i64| -> Vec<Arc<str>> {
            let holds =
                current.iter().filter(|(_, record, _)| record.threads().any(|t| t == thread));
            holds.map(|(deployment, ..)| Arc::clone(deployment)).collect()
        };
        let threads = current.iter().flat_map(|(_, record, _)| record.threads());
        let held = threads.map(on).max_by_key(Vec::len).unwrap_or_default();
        let group = self.group_of(&self.scopes[scope.0].deployment)?;
        Some(RedView { group: Arc::clone(&group.name), held, unread, of: group.deployments.len() })
    }

    /// Returns whether another server of a red lock has shown this problem as often, or the same expiry, so that it is counted
    /// already. Renewals are sent to each server separately, and each late one counts.
    pub(super) fn is_shown_elsewhere(
        &self,
        scope: ScopeId,
        name: &LockName,
        problem: ProblemKind,
    ) -> bool {
        let record = |scope: ScopeId| Some(&self.scopes[scope.0].locks.get(name)?.record);
        let Some(shown) = record(scope) else { return false };
        let others = self.members(scope).into_iter().filter(|member| *member != scope);
        let mut others = others.filter_map(record);
        match problem {
            ProblemKind::RenewalOverdue => false,
            ProblemKind::Expired => others.any(|other| is_same_loss(shown, other)),
            _ => others.any(|other| other.times(problem) >= shown.times(problem)),
        }
    }
}

/// Returns whether the newest hold that expired is the same one on two servers. `other` may still show an earlier one, which
/// had expired before the hold on this server began.
fn is_same_loss(record: &Record, other: &Record) -> bool {
    let Some((lost, other)) = record.expired().zip(other.expired()) else { return false };
    let thread = |expired: &Expired| Some(expired.holder.as_ref()?.id()?.thread);
    let same_holder = thread(lost).zip(thread(other)).is_none_or(|(one, other)| one == other);
    let (at, other) = (lost.at.steady(), other.at.steady());
    let apart = at.millis_since(other).max(other.millis_since(at));
    same_holder && other >= lost.began && apart <= millis(ONE_LOSS)
}

#[cfg(test)]
mod tests {
    use redisson::monitor::Action;
    use redisson::{ClientId, Grouping, HolderId, shape};

    use super::super::tests::{at, event, settings, stamp, traffic};
    use super::*;
    use crate::clock::SteadyMillis;
    use crate::model::Effect;
    use crate::model::types::{
        Certainty, Companions, Group, LockId, LockView, Observation, Reading, Settings, Source,
    };

    fn model() -> Model {
        let group =
            Group { name: "red".into(), deployments: ["a", "b", "c"].map(Arc::from).into() };
        let scopes = ["a", "b", "c", "alone"].map(|name| (Arc::from(name), 0));
        let settings = Settings { groups: vec![group], ..settings() };
        let mut model = Model::new(settings, Grouping::new(Vec::new(), 10), &scopes, at(0));
        for scope in (0..scopes.len()).map(ScopeId) {
            let (since, at) = (at(0), SteadyMillis(0));
            let up = Observation::ServerUp { since, at, run_id: None, cluster: false };
            model.observe(scope, up);
        }
        model
    }

    /// Reads the lock `l` on that server, held by that thread of a separate client, or free.
    fn read(model: &mut Model, scope: usize, ms: u64, thread: Option<i64>) {
        read_left(model, scope, ms, thread.map(|thread| (thread, 30_000)));
    }

    /// Like [`read`], with the milliseconds left of the lease.
    fn read_left(model: &mut Model, scope: usize, ms: u64, held: Option<(i64, u64)>) {
        let client = ClientId::from_random([u8::try_from(scope).unwrap(); 16]);
        let companions = Companions::default();
        let reading = match held {
            None => Reading::Absent { companions },
            Some((thread, left)) => {
                let id = HolderId::new(client, thread);
                let holders = vec![shape::Holder { id, count: 1 }];
                let hash = shape::LockHash { holders, ..Default::default() };
                Reading::Lock { hash, ttl: Some(Duration::from_millis(left)), companions }
            }
        };
        let name = LockName::new(*b"l").unwrap();
        let (stamp, source) = (stamp(ms), Source::Poll);
        model.observe(ScopeId(scope), Observation::Read { name, stamp, source, reading });
    }

    /// Reads the lock `l` on that server, held without a time to live.
    fn lasting(model: &mut Model, scope: usize, ms: u64) {
        let id = HolderId::new(ClientId::from_random([9; 16]), 52);
        let holders = vec![shape::Holder { id, count: 1 }];
        let hash = shape::LockHash { holders, ..Default::default() };
        let reading = Reading::Lock { hash, ttl: None, companions: Companions::default() };
        let name = LockName::new(*b"l").unwrap();
        let (stamp, source) = (stamp(ms), Source::Poll);
        model.observe(ScopeId(scope), Observation::Read { name, stamp, source, reading });
    }

    /// Returns the servers on which a problem was counted.
    fn counted(model: &Model, problem: ProblemKind) -> Vec<usize> {
        let found = |(scope, effect): &(ScopeId, Effect)| {
            matches!(effect, Effect::Detected(found, ..) if *found == problem).then_some(scope.0)
        };
        model.effects.iter().filter_map(found).collect()
    }

    /// Lets a thread renew the lock `l` on these servers for a while, and lose it after 50 s.
    fn lose(model: &mut Model, scopes: &[usize], from: u64, thread: i64) {
        for ms in (0..50_000).step_by(500) {
            for scope in scopes {
                let left = if ms < 30_000 { 20_000 + 10_000 - ms % 10_000 } else { 50_000 - ms };
                read_left(model, *scope, from + ms, Some((thread, left)));
            }
        }
        for scope in scopes {
            read_left(model, *scope, from + 50_100, None);
        }
    }

    #[test]
    fn each_loss_of_a_red_lock_counts_once() {
        let mut model = model();
        lose(&mut model, &[1], 0, 52);
        assert_eq!(counted(&model, ProblemKind::Expired), [1]);
        // Neither the loss on another server nor one on all of them is the same.
        lose(&mut model, &[0, 2], 600_000, 53);
        assert_eq!(counted(&model, ProblemKind::Expired), [1, 0]);
        lose(&mut model, &[0, 1, 2], 1_200_000, 54);
        assert_eq!(counted(&model, ProblemKind::Expired), [1, 0, 0]);
        lose(&mut model, &[0, 1, 2], 1_800_000, 54);
        assert_eq!(counted(&model, ProblemKind::Expired), [1, 0, 0, 0]);
        // Nor is the next loss within a minute.
        lose(&mut model, &[0, 1, 2], 1_851_000, 54);
        assert_eq!(counted(&model, ProblemKind::Expired), [1, 0, 0, 0, 0]);
        // Nor if another server shows it first.
        lose(&mut model, &[0, 2], 2_400_000, 55);
        lose(&mut model, &[1, 0, 2], 2_451_000, 55);
        assert_eq!(counted(&model, ProblemKind::Expired), [1, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_problem_of_a_red_lock_is_counted_on_the_first_server_that_shows_it() {
        let mut model = model();
        for ms in [1_000, 7_000] {
            (0..4).for_each(|scope| lasting(&mut model, scope, ms + scope as u64));
        }
        assert_eq!(counted(&model, ProblemKind::Leaked), [0, 3], "the last one is in no group");
        let is_shown = |deployment| !view(&mut model, deployment).problems.is_empty();
        assert!(["a", "b", "c", "alone"].into_iter().all(is_shown));
    }

    #[test]
    fn a_problem_of_a_red_lock_counts_once_if_its_servers_differ_in_certainty() {
        let mut model = model();
        let lease = Some(Duration::from_secs(30));
        traffic(&mut model, 500, vec![event("l", 52, Action::Renewed { lease })]);
        for ms in [1_000, 7_000] {
            lasting(&mut model, 1, ms);
            lasting(&mut model, 0, ms + 1);
        }
        let mut certainty = |deployment| view(&mut model, deployment).problems[0].certainty;
        assert_eq!([certainty("a"), certainty("b")], [Certainty::Certain, Certainty::Suspected]);
        assert_eq!(counted(&model, ProblemKind::Leaked), [1]);
    }

    fn view(model: &mut Model, deployment: &str) -> Arc<LockView> {
        while model.publish(SteadyMillis(0)).is_some() {}
        let name = LockName::new(*b"l").unwrap();
        let id = LockId { deployment: deployment.into(), db: 0, name };
        Arc::clone(model.snapshot.get(&id).unwrap())
    }

    fn red(model: &mut Model, deployment: &str) -> Option<(Vec<String>, usize, bool)> {
        let red = view(model, deployment).red.clone()?;
        let held = red.held.iter().map(ToString::to_string).collect();
        Some((held, red.of, red.is_majority()))
    }

    #[test]
    fn a_server_that_cannot_be_read_counts_for_no_holder_until_it_is_read_again() {
        let mut model = model();
        for scope in 0..3 {
            read(&mut model, scope, 1_000, Some(52));
        }
        let parts = |model: &mut Model| {
            let red = view(model, "a").red.clone().unwrap();
            (red.held.len(), red.unread.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(parts(&mut model), (3, vec![]));
        model.observe(ScopeId(1), Observation::ServerDown);
        assert_eq!(parts(&mut model), (2, vec!["b".to_owned()]), "the others' views change too");
        let (since, at) = (at(2_000), SteadyMillis(2_000));
        let up = Observation::ServerUp { since, at, run_id: None, cluster: false };
        model.observe(ScopeId(1), up);
        read(&mut model, 1, 2_100, Some(52));
        assert_eq!(parts(&mut model), (3, vec![]));
    }

    #[test]
    fn one_name_on_the_servers_of_a_group_is_one_lock() {
        let mut model = model();
        read(&mut model, 0, 1_000, Some(52));
        read(&mut model, 3, 1_000, Some(52));
        assert_eq!(red(&mut model, "a"), None, "one server does not make a red lock");
        read(&mut model, 1, 1_100, Some(52));
        let two = |of: [&str; 2]| Some((of.map(str::to_owned).to_vec(), 3, true));
        for deployment in ["a", "b"] {
            assert_eq!(red(&mut model, deployment), two(["a", "b"]), "{deployment} is updated too");
        }
        assert_eq!(red(&mut model, "alone"), None);
        // Another thread holds the lock on the third server, without a quorum.
        read(&mut model, 2, 1_200, Some(7));
        assert_eq!(red(&mut model, "c"), two(["a", "b"]));
        read(&mut model, 0, 2_000, None);
        for deployment in ["a", "b", "c"] {
            let (held, _, majority) = red(&mut model, deployment).unwrap();
            assert_eq!((held.len(), majority), (1, false), "{deployment}");
        }
    }
}

//! Tests of properties that hold for any observations in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Input {
    Read(u64, u64, Box<Reading>),
    Released(u64),
}

fn any_reading() -> impl Strategy<Value = Reading> {
    let ttl = prop::option::of(0_u64..40_000);
    prop_oneof![
        Just(absent()),
        Just(Reading::Absent { companions: queued(&[(9, 99_000)]) }),
        Just(Reading::Other("a string".to_owned())),
        (0_u8..3, 1_i64..3, ttl).prop_map(|(by, count, ttl)| held(by, count, ttl)),
    ]
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (0_u64..60_000, 0_u64..500, any_reading()).prop_map(|(a, b, c)| Input::Read(a, b, Box::new(c))),
        1 => (0_u64..60_000).prop_map(Input::Released),
    ]
}

fn observe(model: &mut Model, input: &Input) {
    match input {
        Input::Read(ms, slack, reading) => {
            let stamp = Stamp { sent: at(*ms), received: time(ms + slack) };
            let (name, source, reading) = (name("a"), Source::Scan, reading.clone());
            model.observe(MAIN, Observation::Read { name, stamp, source, reading: *reading });
        }
        Input::Released(ms) => release(model, "a", *ms),
    }
}

/// Returns the parts of a view that do not depend on the order of observations.
fn facts(view: &LockView) -> impl PartialEq + std::fmt::Debug + use<> {
    let holders: Vec<_> = view.holders.iter().map(|h| (h.id.to_string(), h.count)).collect();
    (view.state, holders, view.last_reading())
}

proptest! {
    #[test]
    fn the_newest_reading_applies_in_any_order(
        // The name is known as a lock from the start, since the order may decide whether a hash of this form counts as
        // one.
        mut inputs in prop::collection::vec(any_input(), 1..12), seed: u64,
    ) {
        let start = |model: &mut Model| {
            // Without release messages, no reading waits for one.
            model.observe(MAIN, Observation::PubSubActive { on: false, at: at(0) });
            release(model, "a", 0);
            read(model, "a", 0, absent());
        };
        let mut straight = model();
        start(&mut straight);
        inputs.iter().for_each(|one| observe(&mut straight, one));
        let mut state = seed;
        for i in (1..inputs.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            inputs.swap(i, usize::try_from(state >> 33).unwrap() % (i + 1));
        }
        let mut shuffled = model();
        start(&mut shuffled);
        inputs.iter().for_each(|one| observe(&mut shuffled, one));
        let (one, other) = (shown(&mut straight, "a").unwrap(), shown(&mut shuffled, "a").unwrap());
        // Either of two readings with equal instants may apply.
        let mut stamps: Vec<_> = inputs.iter().filter_map(|s| match s {
            Input::Read(sent, slack, _) => Some((*sent, *slack)),
            Input::Released(_) => None,
        }).collect();
        stamps.sort_unstable();
        let unique = stamps.windows(2).all(|pair| pair[0] != pair[1]);
        prop_assume!(unique && stamps.first().is_none_or(|first| first.0 > 0));
        prop_assert_eq!(facts(&one), facts(&other));
    }

    #[test]
    fn deltas_lead_to_the_snapshot(
        steps in prop::collection::vec((0_u8..6, 0_u64..100, any_reading(), 0_u8..8), 1..60),
    ) {
        let mut model = model_with(Settings { max_locks: 4, ..settings() });
        let mut copy: HashMap<LockId, Arc<LockView>> = HashMap::new();
        let mut seq = 0;
        for (i, (lock, ms, reading, what)) in steps.into_iter().enumerate() {
            let now = i as u64 * 100 + ms;
            let lock = format!("lock:{lock}");
            match what {
                0 => release(&mut model, &lock, now),
                1 => model.observe(MAIN, Observation::ServerDown),
                2 => model.observe(MAIN, Observation::ServerUp {
                    since: at(now), at: SteadyMillis(now), run_id: Some(ms.to_string()), cluster: false,
                }),
                3 => model.tick(at(now * 1000)),
                _ => read(&mut model, &lock, now, reading),
            }
            prop_assert!(model.lock_count <= 4);
            prop_assert_eq!(model.lock_count, model.scopes[0].locks.len());
            let Some((snapshot, delta)) = model.publish(SteadyMillis(now)) else { continue };
            prop_assert_eq!(delta.seq, seq + 1);
            seq = delta.seq;
            for lock in &delta.changed {
                copy.insert(lock.id.clone(), Arc::clone(lock));
            }
            for id in &delta.removed {
                prop_assert!(copy.remove(id).is_some());
            }
            prop_assert_eq!(copy.len(), snapshot.len());
            let mut rebuilt = Snapshot::empty();
            rebuilt.not_kept = snapshot.not_kept;
            snapshot.locks().for_each(|lock| rebuilt.put(Arc::clone(lock)));
            prop_assert_eq!(snapshot.counts(), rebuilt.counts());
            let is_notable = |lock: &&Arc<LockView>| !lock.problems.is_empty() || lock.is_awaited();
            let notable = snapshot.locks().filter(is_notable);
            prop_assert!(snapshot.notable().map(Arc::as_ptr).eq(notable.map(Arc::as_ptr)));
            for lock in snapshot.locks() {
                prop_assert!(copy.get(&lock.id).is_some_and(|known| Arc::ptr_eq(known, lock)));
            }
        }
    }
}

//! Tests that the model is deterministic: equal input leads to equal output.

use super::*;

impl Scenario {
    /// Replays the recorded input on a new model and returns its output.
    fn replayed(&self) -> (Vec<String>, Snapshot) {
        let mut model = model_with(self.settings.clone());
        let mut outputs = Vec::new();
        for given in &self.inputs {
            match given {
                Input::Seen(observation) => model.observe(MAIN, (**observation).clone()),
                Input::Due(ms) => outputs.push(format!("{:?}", model.due(MAIN, at(*ms), 64))),
                Input::Tick(ms) => model.tick(at(*ms)),
                Input::Publish(ms) => {
                    if let Some((_, delta)) = model.publish(SteadyMillis(WALL + ms)) {
                        outputs.push(delta.json().to_string());
                    }
                }
            }
        }
        (outputs, model.snapshot)
    }
}

#[test]
fn a_replay_of_the_input_gives_the_same_output() {
    const LOCKS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    for sources in EnabledSources::every() {
        let mut scenario = Scenario::new(sources);
        scenario.recorded = true;
        scenario.begin();
        for (n, lock) in (1..).zip(LOCKS) {
            scenario.take_and_renew(lock, holder(n));
        }
        scenario.advance(25_000);
        // These are cycles, waiters, a dead client, a leak and a restart. Each changes several locks at once.
        for (n, lock) in (1..).zip(LOCKS) {
            scenario.enqueue(lock, holder(n % 6 + 1));
            scenario.wait_for(lock, holder(10 + n));
        }
        scenario.advance(30_000);
        scenario.kill_client(holder(1));
        scenario.set_ttl("b", None);
        scenario.advance(45_000);
        for (n, lock) in (1..).zip(LOCKS) {
            scenario.release(lock, holder(n), n % 2 == 0);
        }
        scenario.advance(10_000);
        scenario.stop_server();
        scenario.clear_server();
        scenario.advance(2_000);
        scenario.start_server("two");
        scenario.advance(20_000);
        assert!(scenario.changes().len() > 8, "{:?}", scenario.changes());

        let (outputs, snapshot) = scenario.replayed();
        for (n, (one, other)) in scenario.outputs.iter().zip(&outputs).enumerate() {
            assert_eq!(one, other, "{sources:?}, at {n}");
        }
        assert_eq!(scenario.outputs.len(), outputs.len(), "{sources:?}");
        assert_eq!(snapshot.len(), scenario.model.snapshot.len());
        for lock in scenario.model.snapshot.locks() {
            assert_eq!(snapshot.get(&lock.id), Some(lock), "{sources:?}");
        }
    }
}

//! The same input gives the same output.

use super::*;

impl Play {
    /// Gives a new model what this one was given, and tells what that gives out.
    fn replayed(&self) -> (Vec<String>, Snapshot) {
        let mut model = model_with(self.settings.clone());
        let mut gave = Vec::new();
        for given in &self.given {
            match given {
                Given::Seen(observation) => model.observe(MAIN, (**observation).clone()),
                Given::Due(ms) => gave.push(format!("{:?}", model.due(MAIN, at(*ms), 64))),
                Given::Tick(ms) => model.tick(at(*ms)),
                Given::Publish(ms) => {
                    if let Some((_, delta)) = model.publish(SteadyMillis(WALL + ms)) {
                        gave.push(delta.json().to_string());
                    }
                }
            }
        }
        (gave, model.snapshot)
    }
}

#[test]
fn what_was_recorded_gives_the_same_again() {
    const LOCKS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    for seeing in Seeing::every() {
        let mut play = Play::new(seeing);
        play.recorded = true;
        play.begin();
        for (n, lock) in (1..).zip(LOCKS) {
            play.take_and_renew(lock, holder(n));
        }
        play.pass(25_000);
        // Circles, those who wait, one that dies, one that leaks, a restart: several locks change at once each time.
        for (n, lock) in (1..).zip(LOCKS) {
            play.queues(lock, holder(n % 6 + 1));
            play.waits_for(lock, holder(10 + n));
        }
        play.pass(30_000);
        play.dies(holder(1));
        play.set_ends("b", None);
        play.pass(45_000);
        for (n, lock) in (1..).zip(LOCKS) {
            play.release(lock, holder(n), n % 2 == 0);
        }
        play.pass(10_000);
        play.goes_down();
        play.forgets_all();
        play.pass(2_000);
        play.comes_back("two");
        play.pass(20_000);
        assert!(play.turns().len() > 8, "{:?}", play.turns());

        let (gave, snapshot) = play.replayed();
        for (n, (one, other)) in play.gave.iter().zip(&gave).enumerate() {
            assert_eq!(one, other, "{seeing:?}, at {n}");
        }
        assert_eq!(play.gave.len(), gave.len(), "{seeing:?}");
        assert_eq!(snapshot.len(), play.model.snapshot.len());
        for lock in play.model.snapshot.locks() {
            assert_eq!(snapshot.get(&lock.id), Some(lock), "{seeing:?}");
        }
    }
}

//! Results that are reused for a while, which is longer if they cost more.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The time for which a result is reused, as a multiple of the time that it took.
const USED_FOR: u32 = 20;
/// The longest such time.
const LONGEST: Duration = Duration::from_secs(10);
/// The shortest such time for which a result is stored.
const SHORTEST: Duration = Duration::from_millis(20);

/// Recent results by their keys. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Recent<K, V>(Arc<Mutex<HashMap<K, V>>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Clone + Send + 'static> Recent<K, V> {
    /// Returns the recent result, or a new one if there is none.
    pub(super) fn get(&self, key: &K, make: impl FnOnce() -> V) -> V {
        if let Some(recent) = self.with(|results| results.get(key).cloned()) {
            return recent;
        }
        let began = Instant::now();
        let made = make();
        self.remember(key, &made, began.elapsed());
        made
    }

    fn remember(&self, key: &K, result: &V, took: Duration) {
        let used_for = (took * USED_FOR).min(LONGEST);
        if used_for < SHORTEST {
            return;
        }
        self.with(|results| results.insert(key.clone(), result.clone()));
        let (results, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            sleep(used_for).await;
            results.with(|results| results.remove(&key));
        });
    }

    fn with<R>(&self, act: impl FnOnce(&mut HashMap<K, V>) -> R) -> R {
        act(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_costly_result_is_used_for_a_while_and_a_cheap_one_once() {
        let recent = Recent::default();
        recent.remember(&"cheap", &1, Duration::from_micros(900));
        assert_eq!(recent.get(&"cheap", || 2), 2);
        recent.remember(&"costly", &1, Duration::from_millis(100));
        sleep(Duration::from_millis(1_990)).await;
        assert_eq!(recent.get(&"costly", || 2), 1);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(recent.get(&"costly", || 2), 2);
        assert!(recent.with(|results| results.is_empty()));
    }
}

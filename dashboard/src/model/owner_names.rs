//! The names of owners. They are remembered after the owners are gone, so that past holds and events still show them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use redisson::ClientId;

/// The maximum number of names in each of the two generations.
const MAX_NAMES: usize = 25_000;

/// Names such as `invoices@web-7`, by holder id or by client uuid. Cheap to clone, and clones share the names.
#[derive(Debug, Clone, Default)]
pub struct OwnerNames(Arc<Names>);

#[derive(Debug, Default)]
struct Names {
    generations: RwLock<Generations>,
    /// The number of new names of clients so far.
    of_clients: AtomicU64,
}

/// Two generations of names. A name that is recorded again moves to the young generation. Once the young generation is
/// full, it becomes the old one.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Arc<str>>,
    old: HashMap<Box<str>, Arc<str>>,
}

impl OwnerNames {
    /// Stores the name of a holder or client. Returns true if it is new.
    pub fn record(&self, owner: &str, name: &str) -> bool {
        let mut generations = self.0.generations.write();
        let generations = &mut *generations;
        if generations.young.get(owner).is_some_and(|known| **known == *name) {
            return false;
        }
        if generations.young.len() >= MAX_NAMES {
            generations.old = std::mem::take(&mut generations.young);
        }
        let known = generations.old.remove(owner);
        let is_new = known.as_deref() != Some(name);
        let name = known.filter(|_| !is_new).unwrap_or_else(|| name.into());
        generations.young.insert(owner.into(), name);
        if is_new && ClientId::parse(owner.as_bytes()).is_some() {
            self.0.of_clients.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// Returns the name of a holder or of its client. A client's uuid is accepted too.
    #[must_use]
    pub fn name(&self, owner: &str) -> Option<Arc<str>> {
        let client =
            owner.split(':').next().filter(|uuid| ClientId::parse(uuid.as_bytes()).is_some());
        let generations = self.0.generations.read();
        let of = |id: &str| generations.young.get(id).or_else(|| generations.old.get(id)).cloned();
        of(owner).or_else(|| of(client?))
    }

    /// Returns a number that grows with each new name of a client.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.of_clients.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_without_a_name_has_that_of_its_client() {
        let names = OwnerNames::default();
        let client = "285475da-9152-4c83-822a-67ee2f116a79";
        let holder = format!("{client}:52");
        assert_eq!(names.name(&holder), None);
        assert!(names.record(client, "invoices@web-7"));
        assert!(!names.record(client, "invoices@web-7"));
        assert_eq!(names.name(&holder).as_deref(), Some("invoices@web-7"));
        assert!(names.record(&holder, "python3@web-7"));
        assert_eq!(names.name(&holder).as_deref(), Some("python3@web-7"));
        assert_eq!(names.name(client).as_deref(), Some("invoices@web-7"));
        assert!(names.record(&holder, "python3@web-8"));
        assert_eq!(names.version(), 1, "one name of a client");
        assert_eq!(names.name("odd:id"), None);
    }

    #[test]
    fn names_are_bounded_and_those_in_use_are_retained() {
        let names = OwnerNames::default();
        for i in 0..MAX_NAMES * 3 {
            names.record(&format!("holder {i}"), "a");
            names.record("in use", "b");
        }
        let generations = names.0.generations.read();
        assert!(generations.young.len() + generations.old.len() <= 2 * MAX_NAMES);
        drop(generations);
        assert!(names.name("in use").is_some() && names.name("holder 0").is_none());
    }
}

//! A part of a snapshot: some of the locks, and next to them the data about all of them that lists need. A pass over
//! all locks therefore reads little memory, in order, and looks at few of the locks themselves.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::classes::{Classes, ClassesOfLock};
use super::id::LockId;
use super::lock_view::LockView;
use super::thread::Thread;
use crate::clock::SteadyMillis;

/// Some of the locks, sorted by name. Locks of the same name are sorted by deployment and database.
#[derive(Debug, Clone, Default)]
pub struct Part {
    locks: Vec<Arc<LockView>>,
    /// The rows of the locks, in the same order.
    rows: Vec<Row>,
    /// The names of the locks, one after the other.
    names: Vec<u8>,
    /// The indices of the locks in the order of their first holders, and then of their names.
    by_holder: Vec<u32>,
    /// The locks with a problem or a waiter.
    notable: Vec<Arc<LockView>>,
}

/// The data of a lock that lists need.
#[derive(Debug, Clone, Copy)]
struct Row {
    classes: ClassesOfLock,
    thread: Thread,
    since: Instant,
    expires: Instant,
    /// The end of its name among those of the part.
    name_end: u32,
}

impl Row {
    fn of(lock: &LockView, name_end: u32, classes: ClassesOfLock) -> Self {
        Self {
            classes,
            thread: Thread::of(lock),
            since: Instant::new(lock.held_since().map(|since| since.at)),
            expires: Instant::new(lock.expires_at),
            name_end,
        }
    }
}

/// An instant in 48 bits, or none.
#[derive(Debug, Clone, Copy)]
struct Instant([u8; 6]);

impl Instant {
    fn new(at: Option<SteadyMillis>) -> Self {
        let millis = at.map_or(u64::MAX, |at| at.min(SteadyMillis::LAST).0);
        let [a, b, c, d, e, f, ..] = millis.to_le_bytes();
        Self([a, b, c, d, e, f])
    }

    fn get(self) -> Option<SteadyMillis> {
        let Self([a, b, c, d, e, f]) = self;
        let at = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Some(SteadyMillis(at)).filter(|at| *at <= SteadyMillis::LAST)
    }
}

/// A lock of a part, read without its view.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    classes: ClassesOfLock,
    /// The thread of the only holder.
    pub thread: Thread,
    since: Instant,
    expires: Instant,
    pub name: &'a [u8],
    pub lock: &'a Arc<LockView>,
}

impl Entry<'_> {
    /// Returns the number of the lock's class. Locks of a class are equal in everything that filters, sorts and counts
    /// read, except for names, owners, groups and times.
    #[must_use]
    pub fn class(&self) -> usize {
        self.classes.class as usize
    }

    /// Returns the number of the lock's class with its owners: the clients that hold it and the processes of these.
    #[must_use]
    pub fn class_with_owners(&self) -> usize {
        self.classes.with_owners as usize
    }

    /// Returns the number of the lock's class with its lock group.
    #[must_use]
    pub fn class_with_group(&self) -> usize {
        self.classes.with_group as usize
    }

    /// Returns the beginning of the longest hold, or `None` while the lock is free.
    #[must_use]
    pub fn since(&self) -> Option<SteadyMillis> {
        self.since.get()
    }

    /// Returns the end of the time to live, or `None` if the lock does not expire.
    #[must_use]
    pub fn expires_at(&self) -> Option<SteadyMillis> {
        self.expires.get()
    }
}

impl Part {
    /// Returns the locks in order.
    #[must_use]
    pub fn locks(&self) -> &[Arc<LockView>] {
        &self.locks
    }

    /// Returns the locks with a problem or a waiter.
    #[must_use]
    pub fn notable(&self) -> &[Arc<LockView>] {
        &self.notable
    }

    /// Returns the names of the locks, one after the other.
    #[must_use]
    pub fn names(&self) -> &[u8] {
        &self.names
    }

    /// Returns the range of a lock's name among the names.
    #[must_use]
    #[inline]
    pub fn name(&self, i: usize) -> Range<usize> {
        let end = |i: usize| self.rows[i].name_end as usize;
        i.checked_sub(1).map_or(0, end)..end(i)
    }

    #[must_use]
    #[inline]
    pub fn entry(&self, i: usize) -> Entry<'_> {
        let Row { classes, thread, since, expires, .. } = self.rows[i];
        let (name, lock) = (&self.names[self.name(i)], &self.locks[i]);
        Entry { classes, thread, since, expires, name, lock }
    }

    /// Returns the indices of the locks in the order of their first holders, and then of their names.
    pub fn by_holder(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + Clone {
        self.by_holder.iter().map(|i| *i as usize)
    }

    /// Returns the entries of the locks in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.locks.len()).map(|i| self.entry(i))
    }

    #[must_use]
    pub fn get(&self, id: &LockId) -> Option<&Arc<LockView>> {
        self.find(id).ok().map(|i| &self.locks[i])
    }

    /// Inserts or replaces a lock. Returns the view that it replaces.
    pub(super) fn put(
        &mut self,
        lock: Arc<LockView>,
        classes: &mut Classes,
    ) -> Option<Arc<LockView>> {
        let is_notable = !lock.problems.is_empty() || lock.is_awaited();
        self.set_notable(&lock.id, is_notable.then_some(&lock));
        match self.find(&lock.id) {
            Ok(i) => {
                let Row { classes: of, name_end, .. } = self.rows[i];
                let classes = classes.replace(&self.locks[i], of, &lock);
                self.rows[i] = Row::of(&lock, name_end, classes);
                let before = std::mem::replace(&mut self.locks[i], lock);
                if first_holder(&before) != first_holder(&self.locks[i]) {
                    self.by_holder.retain(|at| *at as usize != i);
                    self.place_by_holder(i);
                }
                Some(before)
            }
            Err(i) => {
                let name = lock.id.name.as_bytes();
                let start = i.checked_sub(1).map_or(0, |i| self.rows[i].name_end);
                let length = narrow(name.len());
                let row = Row::of(&lock, start + length, classes.add(&lock));
                self.names.reserve_exact(name.len());
                self.names.splice(start as usize..start as usize, name.iter().copied());
                insert(&mut self.rows, i, row);
                self.rows[i + 1..].iter_mut().for_each(|row| row.name_end += length);
                insert(&mut self.locks, i, lock);
                self.by_holder.iter_mut().for_each(|at| *at += u32::from(*at as usize >= i));
                self.place_by_holder(i);
                None
            }
        }
    }

    /// Removes a lock and returns it.
    pub(super) fn remove(&mut self, id: &LockId, classes: &mut Classes) -> Option<Arc<LockView>> {
        let i = self.find(id).ok()?;
        self.set_notable(id, None);
        let name = self.name(i);
        let length = narrow(name.len());
        self.names.drain(name);
        classes.remove(&self.locks[i], self.rows.remove(i).classes);
        self.rows[i..].iter_mut().for_each(|row| row.name_end -= length);
        self.by_holder.retain(|at| *at as usize != i);
        self.by_holder.iter_mut().for_each(|at| *at -= u32::from(*at as usize > i));
        Some(self.locks.remove(i))
    }

    /// Returns the index of a lock, or the index at which it would be inserted. Few names are equal, so it looks at few
    /// locks.
    fn find(&self, id: &LockId) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.locks.len());
        while low < high {
            let middle = low.midpoint(high);
            let names = self.names[self.name(middle)].cmp(id.name.as_bytes());
            match names.then_with(|| self.locks[middle].id.cmp(id)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Adds a lock's index to those in the order of holders.
    fn place_by_holder(&mut self, i: usize) {
        let place = |i: usize| {
            let lock = &self.locks[i];
            (first_holder(lock), lock.id.name.as_bytes(), i)
        };
        let its = place(i);
        let at = self.by_holder.partition_point(|other| place(*other as usize) < its);
        insert(&mut self.by_holder, at, narrow(i));
    }

    fn set_notable(&mut self, id: &LockId, lock: Option<&Arc<LockView>>) {
        match (self.notable.binary_search_by(|known| known.id.cmp(id)), lock) {
            (Ok(i), Some(lock)) => self.notable[i] = Arc::clone(lock),
            (Ok(i), None) => drop(self.notable.remove(i)),
            (Err(i), Some(lock)) => insert(&mut self.notable, i, Arc::clone(lock)),
            (Err(_), None) => {}
        }
    }
}

/// Narrows an index or a length. Parts are small, and so are the names of locks.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the id of a lock's first holder, or an empty text without one.
fn first_holder(lock: &LockView) -> &str {
    lock.holders.first().map_or("", |holder| &holder.id)
}

/// Inserts an item without spare capacity, since there are many parts.
fn insert<T>(items: &mut Vec<T>, at: usize, item: T) {
    items.reserve_exact(1);
    items.insert(at, item);
}

//! Ends that the history has missed. When entries were lost, holds, problems and acknowledgements may be over whose rows do
//! not say so.

use std::sync::Arc;

use rusqlite::{Connection, Row, params};

use super::columns::{lock, stored};
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, Snapshot};

/// The rows that may lack an end.
#[derive(Debug)]
pub(super) struct OpenRows {
    at: SteadyMillis,
    last_hold: i64,
    last_problem: i64,
    /// True if every database had been scanned.
    pub(super) complete: bool,
    /// The databases that had been scanned. Of others, a snapshot lacks locks that an earlier run knew.
    scanned: Vec<(Arc<str>, u32)>,
}

impl OpenRows {
    /// Returns the present rows, after entries were lost.
    pub(super) fn new(
        connection: &Connection,
        now: &Snapshot,
        at: SteadyMillis,
    ) -> rusqlite::Result<Self> {
        let last = |table: &str| {
            let query = format!("SELECT coalesce(max(rowid), 0) FROM {table}");
            connection.query_row(&query, [], |row| row.get(0))
        };
        let (last_hold, last_problem) = (last("hold")?, last("problem")?);
        let (complete, scanned) = (now.complete, now.scanned.clone());
        Ok(Self { at, last_hold, last_problem, complete, scanned })
    }

    fn had_scanned(&self, lock: &LockId) -> bool {
        let is_of = |(of, db): &(Arc<str>, u32)| (of, *db) == (&lock.deployment, lock.db);
        self.complete || self.scanned.iter().any(is_of)
    }

    /// Ends the holds, problems and acknowledgements that a snapshot no longer has. The snapshot has those of all these
    /// rows that last, so it must be later by more than the time for which a change may be unpublished.
    pub(super) fn end(self, connection: &mut Connection, now: &Snapshot) -> rusqlite::Result<()> {
        let Self { at, last_hold, last_problem, .. } = self;
        let transaction = connection.transaction()?;
        let is_held = |lock: &LockView, holder: &str| lock.holders.iter().any(|h| *h.id == *holder);
        let holds = "SELECT rowid, deployment, db, name, holder FROM hold WHERE ended IS NULL AND rowid <= ?1";
        for row in self.over(&transaction, holds, last_hold, now, is_held)? {
            let end = "UPDATE hold SET ended = max(began, ?2), how = 'unseen' WHERE rowid = ?1";
            transaction.execute(end, params![row, stored(at)])?;
        }
        let has = |lock: &LockView, problem: &str| {
            lock.problems.iter().any(|known| known.problem.as_str() == problem)
        };
        let problems = "SELECT rowid, deployment, db, name, problem FROM problem WHERE cleared IS NULL AND rowid <= ?1";
        for row in self.over(&transaction, problems, last_problem, now, has)? {
            let end = "UPDATE problem SET cleared = max(began, ?2) WHERE rowid = ?1";
            transaction.execute(end, params![row, stored(at)])?;
        }
        let acknowledges = |lock: &LockView, problem: &str| {
            let mut known = lock.problems.iter().filter(|known| known.acknowledged.is_some());
            known.any(|known| known.problem.as_str() == problem)
        };
        let words = "SELECT rowid, deployment, db, name, problem FROM acknowledged WHERE at <= ?1";
        for row in self.over(&transaction, words, stored(at), now, acknowledges)? {
            transaction.execute("DELETE FROM acknowledged WHERE rowid = ?1", [row])?;
        }
        transaction.commit()
    }

    /// Returns the rows of a query whose locks lack what the row describes.
    fn over(
        &self,
        connection: &Connection,
        query: &str,
        last: i64,
        now: &Snapshot,
        lasts: impl Fn(&LockView, &str) -> bool,
    ) -> rusqlite::Result<Vec<i64>> {
        let is_over = |row: &Row<'_>| -> rusqlite::Result<bool> {
            let (lock, subject) = (lock(row, 1)?, row.get::<_, String>(4)?);
            let Some(id) = lock else { return Ok(self.complete) };
            let lasts = || now.get(&id).is_some_and(|lock| lasts(lock, &subject));
            Ok(self.had_scanned(&id) && !lasts())
        };
        let mut query = connection.prepare(query)?;
        let mut rows = query.query([last])?;
        let mut over = Vec::new();
        while let Some(row) = rows.next()? {
            if is_over(row)? {
                over.push(row.get(0)?);
            }
        }
        Ok(over)
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;
    use crate::model::types::{ProblemKind, ProblemView};
    use crate::query::fixtures::{acknowledged, leaked, lock as lock_view, published};

    /// Returns a snapshot after scans of the first databases of these deployments, and not of another one.
    fn scanned(deployments: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        snapshot.scanned = deployments.iter().map(|name| (Arc::from(*name), 0)).collect();
        snapshot
    }

    #[test]
    fn ends_of_a_deployment_are_missed_although_another_one_was_never_reached() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open(&folder.path().join("history.db")).unwrap();
        for (deployment, db) in [("main", 0), ("main", 1), ("off", 0)] {
            let hold = "INSERT INTO hold VALUES (?1, ?2, x'61', 'a', 1000, 1, NULL, NULL)";
            connection.execute(hold, params![deployment, db]).unwrap();
        }
        let open_rows =
            OpenRows::new(&connection, &scanned(&["main"]), SteadyMillis(5_000)).unwrap();
        // What has been scanned since may not be published yet.
        open_rows.end(&mut connection, &scanned(&["main", "off"])).unwrap();
        let mut open =
            connection.prepare("SELECT deployment, db FROM hold WHERE ended IS NULL").unwrap();
        let open = open.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let open: Vec<(String, u32)> = open.map(Result::unwrap).collect();
        assert_eq!(open, [("main".to_owned(), 1), ("off".to_owned(), 0)]);
    }

    #[test]
    fn acknowledgements_whose_withdrawal_was_missed_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open(&folder.path().join("history.db")).unwrap();
        let view = |name: &str, problem: ProblemView| LockView {
            problems: [problem].into_iter().collect(),
            ..lock_view(name)
        };
        let at = SteadyMillis(5_000);
        for (name, of) in [("withdrawn", at), ("lasts", at), ("new", at.plus(1))] {
            let row = "INSERT INTO acknowledged VALUES ('main', 0, ?1, 'leaked', 'a', 'b', ?2, 9)";
            connection.execute(row, params![name.as_bytes(), stored(of)]).unwrap();
        }
        let open_rows = OpenRows::new(&connection, &scanned(&["main"]), at).unwrap();
        let views = [("withdrawn", leaked()), ("lasts", acknowledged()), ("new", leaked())];
        let views = views.map(|(name, problem)| view(name, problem));
        open_rows.end(&mut connection, &published(views).snapshot).unwrap();
        let mut rows = connection.prepare("SELECT CAST(name AS TEXT) FROM acknowledged").unwrap();
        let rows = rows.query_map([], |row| row.get(0)).unwrap();
        let rows: Vec<String> = rows.map(Result::unwrap).collect();
        assert_eq!(rows, ["lasts", "new"]);
    }

    #[test]
    fn rows_of_holds_and_problems_that_are_over_get_their_missed_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open(&folder.path().join("history.db")).unwrap();
        let mut view = lock_view("a");
        view.problems.push(leaked());
        let holder = view.holders[0].id.to_string();
        let add = |connection: &Connection, name: &str, holder: &str, problem: ProblemKind| {
            let hold = "INSERT INTO hold VALUES ('main', 0, ?1, ?2, 1000, 1, NULL, NULL)";
            connection.execute(hold, params![name.as_bytes(), holder]).unwrap();
            let row = "INSERT INTO problem VALUES ('main', 0, ?1, ?2, 'certain', 1000, NULL, 1000)";
            connection.execute(row, params![name.as_bytes(), problem.as_str()]).unwrap();
        };
        add(&connection, "a", &holder, ProblemKind::Leaked);
        add(&connection, "a", "another", ProblemKind::Stuck);
        add(&connection, "gone", &holder, ProblemKind::Leaked);
        let now = SteadyMillis(5_000);
        let open_rows = OpenRows::new(&connection, &scanned(&["main"]), now).unwrap();
        // It began after the snapshot.
        add(&connection, "new", &holder, ProblemKind::Leaked);
        open_rows.end(&mut connection, &published([view]).snapshot).unwrap();
        let rows = |query: &str| -> Vec<(String, Option<i64>)> {
            let mut rows = connection.prepare(query).unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let over = Some(stored(SteadyMillis(5_000)));
        let expected = [("a", None), ("a", over), ("gone", over), ("new", None)];
        let expected = expected.map(|(name, end)| (name.to_owned(), end));
        assert_eq!(rows("SELECT CAST(name AS TEXT), ended FROM hold ORDER BY rowid"), expected);
        assert_eq!(
            rows("SELECT CAST(name AS TEXT), cleared FROM problem ORDER BY rowid"),
            expected
        );
        let unseen = "SELECT how, count(*) FROM hold WHERE ended IS NOT NULL GROUP BY how";
        assert_eq!(rows(unseen), [("unseen".to_owned(), Some(2))]);
    }
}

//! The rows of earlier runs, as opposed to those of this one.

use rusqlite::{Connection, Transaction};

/// The tables, with the columns of instants that a row has from its beginning, those that it gets later, and the condition
/// under which it may still get them.
const TABLES: [(&str, &[&str], &[&str], &str); 6] = [
    ("hold", &["began"], &["ended"], "ended IS NULL"),
    ("problem", &["began"], &["cleared", "latest"], "cleared IS NULL"),
    ("act", &["at"], &[], "FALSE"),
    ("acknowledged", &["at", "until"], &[], "FALSE"),
    ("span", &["began", "alive"], &[], "FALSE"),
    ("owner", &["seen"], &[], "FALSE"),
];

/// The rows that were there at the start of this run. Their instants do not distinguish them: the wall clock may have been
/// behind at the start.
#[derive(Debug)]
pub(super) struct EarlierRows {
    /// For each table the last row, and a JSON array of those that may get an end.
    of_tables: Vec<(i64, String)>,
}

impl EarlierRows {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let read = |(table, _, _, open): (&str, _, _, &str)| {
            let query = format!(
                "SELECT (SELECT coalesce(max(rowid), 0) FROM {table}),
                 (SELECT json_group_array(rowid) FROM {table} WHERE {open})"
            );
            connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        };
        let of_tables = TABLES.into_iter().map(read).collect::<rusqlite::Result<_>>()?;
        Ok(Self { of_tables })
    }

    /// Notes that rows may have been deleted: a new row gets the number after the last one that is left.
    pub(super) fn follow_deletions(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        for ((table, ..), (last, _)) in TABLES.into_iter().zip(&mut self.of_tables) {
            let query = format!("SELECT coalesce(max(rowid), 0) FROM {table}");
            let left: i64 = connection.prepare_cached(&query)?.query_row([], |row| row.get(0))?;
            *last = left.min(*last);
        }
        Ok(())
    }

    /// Adds `by` to the instants that this run has written, all of which are at `first` or later.
    pub(super) fn shift_others(
        &self,
        transaction: &Transaction<'_>,
        by: i64,
        first: i64,
    ) -> rusqlite::Result<()> {
        for ((table, beginnings, ends, _), (last, open)) in TABLES.into_iter().zip(&self.of_tables)
        {
            for column in beginnings {
                let update = format!(
                    "UPDATE {table} SET {column} = {column} + ?1 WHERE {column} >= ?2 AND rowid > ?3"
                );
                transaction.execute(&update, (by, first, last))?;
            }
            for column in ends {
                let update = format!(
                    "UPDATE {table} SET {column} = {column} + ?1 WHERE {column} >= ?2
                     AND (rowid > ?3 OR rowid IN (SELECT value FROM json_each(?4)))"
                );
                transaction.execute(&update, (by, first, last, open))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;

    #[test]
    fn rows_of_this_run_follow_the_wall_clock_when_it_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open(&folder.path().join("history.db")).unwrap();
        let add = |connection: &Connection, holds: &[(&str, i64, Option<i64>)]| {
            let hold = "INSERT INTO hold VALUES ('main', 0, x'61', ?1, ?2, 1, ?3, NULL)";
            for row in holds {
                connection.execute(hold, *row).unwrap();
            }
        };
        let rows = |connection: &Connection| -> Vec<(i64, Option<i64>)> {
            let rows = "SELECT began, ended FROM hold ORDER BY holder";
            let mut rows = connection.prepare(rows).unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        // The clock is behind at the start of this run, at 1,000, so that some of the earlier rows are later.
        let before = [
            ("a", 10, Some(20)),
            ("b", 30, None),
            ("c", 900, Some(1_800)),
            ("d", 1_700, Some(1_900)),
            ("e", 1_950, None),
        ];
        add(&connection, &before);
        let earlier = EarlierRows::read(&connection).unwrap();
        connection.execute("UPDATE hold SET ended = 1_005 WHERE holder = 'b'", []).unwrap();
        add(&connection, &[("f", 1_001, Some(1_002)), ("g", 1_003, None)]);
        let unshifted = rows(&connection);
        let mut shift = |by, first| {
            let transaction = connection.transaction().unwrap();
            earlier.shift_others(&transaction, by, first).unwrap();
            transaction.commit().unwrap();
            rows(&connection)
        };
        let right = [
            (10, Some(20)),
            (30, Some(1_505)),
            (900, Some(1_800)),
            (1_700, Some(1_900)),
            (1_950, None),
            (1_501, Some(1_502)),
            (1_503, None),
        ];
        assert_eq!(shift(500, 1_000), right);
        assert_eq!(shift(-500, 1_500), unshifted);
    }

    #[test]
    fn a_row_with_the_number_of_a_deleted_one_belongs_to_this_run() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = schema::open(&folder.path().join("history.db")).unwrap();
        let owner = "INSERT INTO owner VALUES (?1, 'jobs', ?2)";
        connection.execute(owner, ("a", 2_000)).unwrap();
        connection.execute(owner, ("b", 2_000)).unwrap();
        let mut earlier = EarlierRows::read(&connection).unwrap();
        connection.execute("DELETE FROM owner WHERE id = 'b'", []).unwrap();
        earlier.follow_deletions(&connection).unwrap();
        connection.execute(owner, ("c", 1_000)).unwrap();
        earlier.follow_deletions(&connection).unwrap();
        let transaction = connection.transaction().unwrap();
        earlier.shift_others(&transaction, 500, 1_000).unwrap();
        let seen = "SELECT group_concat(id || seen) FROM owner ORDER BY id";
        let seen: String = transaction.query_row(seen, [], |row| row.get(0)).unwrap();
        assert_eq!(seen, "a2000,c1500");
    }
}

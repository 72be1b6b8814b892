//! The addresses of pages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{LocksPage, Order, Sort};
use crate::model::view::LockId;

/// What a query's value may hold as it is; the rest is percent-encoded.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':')
    .remove(b'/')
    .remove(b'*')
    .remove(b',');

fn encoded(value: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(value, VALUE)
}

/// The query that names a lock, for pages and API alike: `name`, or `name64` (standard base64) where it is not UTF-8.
fn lock_query(id: &LockId) -> String {
    let place = format!("deployment={}&db={}", encoded(&id.deployment), id.db);
    match id.name.as_str() {
        Some(name) => format!("{place}&name={}", encoded(name)),
        None => format!("{place}&name64={}", encoded(&STANDARD.encode(id.name.as_bytes()))),
    }
}

/// A lock's page.
pub(super) fn lock(id: &LockId) -> String {
    format!("/lock?{}", lock_query(id))
}

/// A lock as JSON.
pub(super) fn lock_json(id: &LockId) -> String {
    format!("/api/v1/lock?{}", lock_query(id))
}

/// Where a look by MONITOR is asked for.
pub(super) fn watch(deployment: &str) -> String {
    format!("/sources/watch?deployment={}", encoded(deployment))
}

/// The table with a filter, else as usual.
pub(super) fn filtered(filter: &str) -> String {
    locks("/", filter, Sort::default(), Order::usual(Sort::default()), None)
}

/// The table as it is, sorted otherwise.
pub(super) fn sorted(page: &LocksPage, sort: Sort, order: Order) -> String {
    locks("/", &page.filter, sort, order, None)
}

/// The table as it is, from a cursor.
pub(super) fn at(page: &LocksPage, cursor: Option<&str>) -> String {
    locks("/", &page.filter, page.sort, page.order, cursor)
}

/// The table's rows as JSON.
pub(super) fn locks_json(page: &LocksPage) -> String {
    locks("/api/v1/locks", &page.filter, page.sort, page.order, page.cursor.as_deref())
}

fn locks(path: &str, filter: &str, sort: Sort, order: Order, cursor: Option<&str>) -> String {
    let mut query = Vec::new();
    if !filter.is_empty() {
        query.push(format!("filter={}", encoded(filter)));
    }
    if sort != Sort::default() {
        query.push(format!("sort={}", sort.as_str()));
    }
    if order != Order::usual(sort) {
        query.push(format!("order={}", order.as_str()));
    }
    if let Some(cursor) = cursor {
        query.push(format!("cursor={}", encoded(cursor)));
    }
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// The live stream of the page at `address`.
pub(super) fn live(address: &str) -> String {
    format!("/live?path={}", encoded(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redisson::LockName;

    fn id(name: &[u8]) -> LockId {
        LockId { deployment: "main".into(), db: 3, name: LockName::new(name).unwrap() }
    }

    #[test]
    fn names_survive_as_addresses() {
        assert_eq!(lock(&id(b"orders:42/a")), "/lock?deployment=main&db=3&name=orders:42/a");
        assert_eq!(
            lock(&id(b"a&b=c d#%+\"<")),
            "/lock?deployment=main&db=3&name=a%26b%3Dc%20d%23%25%2B%22%3C"
        );
        assert_eq!(lock(&id(b"\xff\xfe")), "/lock?deployment=main&db=3&name64=//4%3D");
    }

    #[test]
    fn only_what_differs_from_the_usual_is_in_the_address() {
        assert_eq!(filtered(""), "/");
        assert_eq!(filtered("owner:a b"), "/?filter=owner:a%20b");
        assert_eq!(locks("/", "", Sort::Age, Order::Descending, None), "/?sort=age");
        assert_eq!(
            locks("/", "x", Sort::Ttl, Order::Descending, Some("c=")),
            "/?filter=x&sort=ttl&order=desc&cursor=c%3D"
        );
    }
}

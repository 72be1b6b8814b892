//! The addresses of pages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::clock::SteadyMillis;
use crate::model::types::LockId;
use crate::query::incidents::IncidentRow;
use crate::query::with_term;

/// The characters of a query's value that are not percent-encoded.
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

/// Returns the parameter that names a lock, for pages and API alike: `name`, or `name64` (standard base64) if the name
/// is not UTF-8. A query is decoded with U+FFFD for each invalid byte, so a name with that character needs `name64`
/// too.
fn name_param(id: &LockId) -> (&'static str, String) {
    match id.name.as_str() {
        Some(name) if !name.contains(char::REPLACEMENT_CHARACTER) => ("name", name.to_owned()),
        _ => ("name64", STANDARD.encode(id.name.as_bytes())),
    }
}

fn lock_query(id: &LockId) -> String {
    let (param, name) = name_param(id);
    format!("deployment={}&db={}&{param}={}", encoded(&id.deployment), id.db, encoded(&name))
}

/// Returns the address of a lock's page.
pub(super) fn lock(id: &LockId) -> String {
    format!("/lock?{}", lock_query(id))
}

/// Returns the address of a forced release.
pub(super) fn release(id: &LockId) -> String {
    format!("/release?{}", lock_query(id))
}

/// Returns the address of acknowledgements.
pub(super) fn acknowledge(id: &LockId) -> String {
    format!("/acknowledge?{}", lock_query(id))
}

/// Returns the address that requests a trace.
pub(super) fn trace(id: &LockId) -> String {
    format!("/trace?{}", lock_query(id))
}

/// Returns the address of the trace on a lock's page.
#[must_use]
pub fn lock_trace(id: &LockId) -> String {
    format!("{}#trace", lock(id))
}

/// Returns the address for withdrawing an acknowledgement.
pub(super) fn unacknowledge(id: &LockId) -> String {
    format!("/unacknowledge?{}", lock_query(id))
}

/// Returns the query that identifies an incident.
fn incident_query(incident: &IncidentRow) -> String {
    let (deployment, key) = incident.place();
    let (deployment, key) = (encoded(deployment), encoded(key));
    format!("deployment={deployment}&problem={}&key={key}", incident.problem.as_str())
}

/// Returns the address of an incident's page.
pub(super) fn incident(incident: &IncidentRow) -> String {
    format!("/incident?{}", incident_query(incident))
}

/// Returns the address for acknowledging all problems of an incident.
pub(super) fn acknowledge_incident(incident: &IncidentRow) -> String {
    format!("/incident/acknowledge?{}", incident_query(incident))
}

/// Returns the address for a forced release of all locks of an incident.
pub(super) fn release_incident(incident: &IncidentRow) -> String {
    format!("/incident/release?{}", incident_query(incident))
}

/// Returns the address of a lock as JSON.
pub(super) fn lock_json(id: &LockId) -> String {
    format!("/api/v1/lock?{}", lock_query(id))
}

/// Returns the address of the bundle of everything known about a lock. With an instant, it includes the holders at that
/// time.
pub(super) fn lock_bundle(id: &LockId, at: Option<SteadyMillis>) -> String {
    let at = at.map(|at| format!("&at={}", encoded(&super::rfc3339(at)))).unwrap_or_default();
    format!("{}{at}&format=bundle", lock(id))
}

/// Returns the address of a lock's page with more parameters.
pub(super) fn lock_with(
    id: &LockId,
    query: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    query
        .into_iter()
        .fold(lock(id), |link, (key, value)| format!("{link}&{key}={}", encoded(&value)))
}

/// Returns the address of a lock's page as of an instant.
pub(super) fn lock_at(id: &LockId, at: SteadyMillis) -> String {
    lock_with(id, [("at", super::rfc3339(at))])
}

/// Returns the address of a lock's events.
pub(super) fn lock_events(id: &LockId) -> String {
    with("/history", &event_query(Some(id)))
}

/// Returns the part of an event query that names the lock; it is empty for all locks.
pub(super) fn event_query(lock: Option<&LockId>) -> Vec<(&'static str, String)> {
    let Some(id) = lock else { return Vec::new() };
    vec![("deployment", id.deployment.to_string()), ("db", id.db.to_string()), name_param(id)]
}

/// Returns the address of a client's page.
pub(super) fn owner(deployment: &str, id: &str) -> String {
    format!("/owner?deployment={}&id={}", encoded(deployment), encoded(id))
}

/// Returns a path with those parameters that have a value.
pub(super) fn address(path: &str, query: &[(&str, Option<&str>)]) -> String {
    let query = query.iter().filter_map(|(key, value)| Some((*key, (*value)?.to_owned())));
    with(path, &query.collect::<Vec<_>>())
}

/// Returns a path with these parameters.
pub(super) fn with(path: &str, query: &[(&str, String)]) -> String {
    let query: Vec<String> =
        query.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Returns the address that requests MONITOR for a while.
pub(super) fn watch(deployment: &str) -> String {
    format!("/sources/watch?deployment={}", encoded(deployment))
}

/// Returns the address of the list of locks with a filter.
pub(super) fn filtered(filter: &str) -> String {
    address("/", &[("filter", Some(filter).filter(|filter| !filter.is_empty()))])
}

/// Returns a filter for one of several deployments, or the filter itself if there is only one.
pub(super) fn in_deployment(filter: String, deployment: Option<&str>) -> String {
    match deployment {
        Some(deployment) => with_term(&filter, "deployment", deployment),
        None => filter,
    }
}

/// Returns the address of the locks of a group, of one of several deployments.
pub(super) fn group(group: &str, deployment: Option<&str>) -> String {
    filtered(&in_deployment(with_term("", "group", group), deployment))
}

/// Returns the address of the live stream of the page at `address`.
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
        let replaced = id("\u{fffd}".as_bytes());
        assert_eq!(lock(&replaced), "/lock?deployment=main&db=3&name64=77%2B9");
    }

    #[test]
    fn a_group_of_one_of_several_deployments_leads_to_its_locks_there() {
        assert_eq!(group("orders", None), "/?filter=group:orders");
        assert_eq!(group("orders", Some("eu")), "/?filter=group:orders%20deployment:eu");
    }

    #[test]
    fn an_empty_filter_is_left_out() {
        assert_eq!(filtered(""), "/");
        assert_eq!(filtered("owner:a b"), "/?filter=owner:a%20b");
    }
}

//! The process behind a holder or waiter, and the name by which people know it.

use std::hash::Hash;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::SteadyMillis;

/// The process behind a holder. Unless it is verified, anyone who can write to Redis may have written what agents publish
/// of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
#[schema(as = Client)]
pub struct ClientView {
    /// The address from which it was last seen to connect.
    pub addr: Option<String>,
    /// The name that it gave itself.
    pub name: Option<String>,
    pub host: Option<Arc<str>>,
    /// The process id on that host.
    pub pid: Option<u32>,
    /// The user id on that host.
    pub uid: Option<u32>,
    /// The name of the process.
    pub comm: Option<String>,
    /// The session at its agent.
    pub session: Option<String>,
    /// The beginning of its hold, by its agent's clock.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub since: Option<SteadyMillis>,
    /// The task within its session that keeps its holds while it waits, if its agent publishes it.
    #[serde(skip)]
    #[schema(ignore)]
    pub task: Option<Arc<str>>,
    /// True if it is alive; none if that is unknown.
    pub alive: Option<bool>,
    /// True if its agent signed what it publishes about the process; false if nothing proves that its agent published it;
    /// none if the dashboard has no keys of agents, or no agent publishes it.
    pub verified: Option<bool>,
    /// The name of the key that signed it.
    pub signed_by: Option<Arc<str>>,
    /// The reason why it is not verified, as a clause.
    pub unverified_because: Option<&'static str>,
}

impl ClientView {
    /// Returns `service@host`, as far as either is known, or `None` if only an address is.
    #[must_use]
    pub fn label(&self) -> Option<String> {
        let service = self.own_name()?;
        Some(match self.host() {
            Some(host) => format!("{service}@{host}"),
            None => service.to_owned(),
        })
    }

    /// Returns the service and the host in a label.
    #[must_use]
    pub fn parts(label: &str) -> (&str, Option<&str>) {
        match label.split_once('@') {
            Some((name, host)) => (without_pod(name), Some(host)),
            None => (without_pod(label), None),
        }
    }

    /// Returns the service: the client's name, or its process' name, without a host and without the suffix that
    /// Kubernetes gives to pods.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        self.own_name().map(without_pod)
    }

    /// Returns the host as the agent reports it, otherwise the host in the client's name, otherwise the client's
    /// address.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let named = || self.name.as_deref()?.split_once('@').map(|(_, host)| host);
        self.host.as_deref().or_else(named).or(self.addr.as_deref())
    }

    /// Returns the fields by which lists distinguish clients: all but those of its session and its hold.
    pub(super) fn identity(&self) -> impl Hash + use<'_> {
        let Self { addr, name, host, pid, comm, alive, verified, unverified_because, .. } = self;
        (addr, name, host, pid, comm, alive, verified, unverified_because)
    }

    /// Returns the name without the host in it.
    fn own_name(&self) -> Option<&str> {
        let name = self.name.as_deref().or(self.comm.as_deref());
        let name = name.or_else(|| self.host.as_ref().map(|_| "worker"))?;
        Some(name.split_once('@').map_or(name, |(service, _)| service))
            .filter(|name| !name.is_empty())
    }
}

/// Returns a pod's name without the suffixes that Kubernetes appends to it.
fn without_pod(name: &str) -> &str {
    let random = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len())
            && part.bytes().any(|byte| byte.is_ascii_digit())
            && part.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    };
    let Some((rest, last)) = name.rsplit_once('-') else { return name };
    if !last.is_empty() && last.len() <= 4 && last.bytes().all(|byte| byte.is_ascii_digit()) {
        return rest;
    }
    // The last part may be without digits.
    let pod = last.len() == 5 && last.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match rest.rsplit_once('-') {
        Some((service, set)) if pod && random(set, 6..=10) && !service.is_empty() => service,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_service_and_host_as_far_as_they_are_known() {
        let worker = ClientView {
            host: Some("web-7".into()),
            comm: Some("python3".to_owned()),
            addr: Some("10.0.0.7".to_owned()),
            ..ClientView::default()
        };
        let named = ClientView { name: Some("invoices".to_owned()), ..worker.clone() };
        let connection = |name: &str| ClientView {
            name: Some(name.to_owned()),
            addr: Some("10.0.0.7".to_owned()),
            ..ClientView::default()
        };
        let only_host = ClientView { comm: None, ..worker.clone() };
        let only_address = ClientView { addr: worker.addr.clone(), ..ClientView::default() };
        for (client, label, service, host) in [
            (&worker, Some("python3@web-7"), Some("python3"), Some("web-7")),
            (&named, Some("invoices@web-7"), Some("invoices"), Some("web-7")),
            (&connection("a@b"), Some("a@b"), Some("a"), Some("b")),
            (&connection("a"), Some("a@10.0.0.7"), Some("a"), Some("10.0.0.7")),
            (&connection("@b"), None, None, Some("b")),
            (&only_host, Some("worker@web-7"), Some("worker"), Some("web-7")),
            (&only_address, None, None, Some("10.0.0.7")),
            (&ClientView::default(), None, None, None),
        ] {
            assert_eq!(client.label().as_deref(), label, "{client:?}");
            assert_eq!((client.service(), client.host()), (service, host), "{client:?}");
            let parts = label.map(|label| {
                let (service, host) = ClientView::parts(label);
                (Some(service), host)
            });
            assert!(parts.is_none_or(|parts| parts == (service, host)), "{client:?}");
        }
    }

    #[test]
    fn a_service_is_a_pod_without_its_suffix() {
        for (pod, service) in [
            ("payments-6f7d9c5b44-x2k9p", "payments"),
            ("payments-eu-7d9c5b4f-abcde", "payments-eu"),
            ("postgres-0", "postgres"),
            ("invoice-worker", "invoice-worker"),
            ("a-b-plain", "a-b-plain"),
            ("order-service-steps", "order-service-steps"),
            ("web-7d9", "web-7d9"),
        ] {
            assert_eq!(without_pod(pod), service);
        }
    }
}

//! The options of the doctor's connections. They wait longer than the dashboard's: a pass ends with the first missing
//! reply, and the servers that it checks may be in trouble.

use std::time::Duration;

use service_kit::redis::{LinkOptions, ResolverOptions, SubscriberOptions};

use crate::redis;

/// The longest time for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for connecting to a server, or for finding it. It includes a reply.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(12);

pub(super) fn link_options() -> LinkOptions {
    LinkOptions { response_timeout: REPLY_TIMEOUT, ..redis::link_options() }
}

pub(super) fn subscriber_options() -> SubscriberOptions {
    SubscriberOptions { response_timeout: REPLY_TIMEOUT, ..redis::subscriber_options() }
}

pub(super) fn resolver_options() -> ResolverOptions {
    ResolverOptions { response_timeout: REPLY_TIMEOUT, ..redis::resolver_options(redis::TIMEOUT) }
}

//! The dashboard's connections to Redis: their name and options.

use std::time::Duration;

use service_kit::redis::{LinkOptions, ResolverOptions, SubscriberOptions};

/// The name of the connections in CLIENT LIST.
pub const CLIENT_NAME: &str = "lockscope-dashboard";
/// The longest time for a server to connect or to answer.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the options of a connection whose reads do not count as uses of the keys.
#[must_use]
pub fn link_options() -> LinkOptions {
    LinkOptions {
        response_timeout: TIMEOUT,
        connect_timeout: TIMEOUT,
        no_touch: true,
        ..LinkOptions::new(CLIENT_NAME)
    }
}

#[must_use]
pub fn subscriber_options() -> SubscriberOptions {
    SubscriberOptions {
        response_timeout: TIMEOUT,
        batched: true,
        ..SubscriberOptions::new(CLIENT_NAME)
    }
}

/// Returns the options of connections to sentinels, and to the nodes of a cluster for the map of slots.
#[must_use]
pub fn resolver_options(timeout: Duration) -> ResolverOptions {
    ResolverOptions {
        name: CLIENT_NAME.to_owned(),
        connect_timeout: timeout,
        response_timeout: timeout,
    }
}

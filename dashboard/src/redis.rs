//! The dashboard's connections to Redis: their name and options.

use std::time::Duration;

use service_kit::redis::{ClusterOptions, LinkOptions, SentinelOptions, SubscriberOptions};

/// The name that connections bear in CLIENT LIST.
pub const CLIENT_NAME: &str = "lockscope-dashboard";
/// The longest that a server may take to connect or to answer.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the options of a connection that reads, without counting as a use of the keys.
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
    SubscriberOptions { response_timeout: TIMEOUT, ..SubscriberOptions::new(CLIENT_NAME) }
}

#[must_use]
pub fn sentinel_options() -> SentinelOptions {
    SentinelOptions {
        name: CLIENT_NAME.to_owned(),
        connect_timeout: TIMEOUT,
        response_timeout: TIMEOUT,
    }
}

/// Returns the options by which a cluster's nodes are asked for their slots.
#[must_use]
pub fn cluster_options(timeout: Duration) -> ClusterOptions {
    ClusterOptions {
        name: CLIENT_NAME.to_owned(),
        connect_timeout: timeout,
        response_timeout: timeout,
    }
}

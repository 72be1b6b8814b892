//! Requests that change something: acknowledgements, releases by force, logins, and MONITOR on demand.

pub mod acknowledge;
pub mod incident;
pub mod incident_api;
pub mod login;
pub mod release;
pub mod trace;
pub mod watch;

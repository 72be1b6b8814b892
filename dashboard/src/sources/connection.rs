//! Connections of sources: starting them, waiting for them, and reporting their loss.

use std::sync::Arc;
use std::time::Duration;

use service_kit::redis::{CallError, Endpoint, Link, LinkOptions, LinkStatus, ServerInfo};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

use super::read::ReadError;
use super::status::SourceStatus;
use super::view::SourceState;
use crate::redis::link_options;

/// The time between two checks whether a connected server has changed: its eviction policy, role or data.
const CHECK: Duration = Duration::from_secs(5);
/// The pause before a retry of a call that was refused or failed.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Starts a connection for reading.
pub(super) fn link(endpoint: Endpoint, shutdown: &Shutdown) -> Link {
    let options = LinkOptions { check: Some(CHECK), ..link_options() };
    Link::start(endpoint, options, shutdown)
}

/// Reports the failure of a source, and waits if an immediate retry is pointless.
pub(super) async fn report_failure(status: &SourceStatus, link: &Link, error: &ReadError) {
    let state = match error {
        ReadError::Call(CallError::Refused(refused)) if !refused.is_transient() => {
            SourceState::Denied
        }
        ReadError::UnexpectedReply(_) => SourceState::Denied,
        ReadError::Call(_) => SourceState::Down,
    };
    status.set(state, error.to_string());
    if let ReadError::Call(CallError::Unsent { .. } | CallError::Lost { .. }) = error {
        // The link reconnects. If the server is already back, this returns at once.
        link.up().await;
    } else {
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Waits for the connection, and reports the source as down in the meantime: if the server is lost just as a pause
/// ends, nothing else reports it. Returns `None` once the connection has been given up.
pub(super) async fn wait_until_up(link: &Link, status: &SourceStatus) -> Option<Arc<ServerInfo>> {
    let report = async {
        let mut state = link.state();
        loop {
            if let LinkStatus::Down { reason, .. } = &state.borrow_and_update().status {
                status.set(SourceState::Down, reason.clone());
            }
            if state.changed().await.is_err() {
                return std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        biased;
        info = link.up() => info,
        () = report => None,
    }
}

/// Pauses until that instant. The loss of the server is reported at once, and ends the pause.
pub(super) async fn pause_until(link: &Link, status: &SourceStatus, until: Instant) {
    let mut state = link.state();
    let lost = state.wait_for(|link| matches!(link.status, LinkStatus::Down { .. }));
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        Ok(link) = lost => {
            if let LinkStatus::Down { reason, .. } = &link.status {
                status.set(SourceState::Down, reason.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use service_kit::redis::Target;

    use super::*;
    use crate::model::types::Source;
    use crate::sources::status::Sources;

    #[tokio::test]
    async fn a_source_that_waits_for_a_lost_server_is_reported_as_down() {
        let stage = Shutdown::new();
        // No server listens on that socket.
        let folder = tempfile::tempdir().unwrap();
        let target = format!("unix://{}", folder.path().join("redis.sock").display());
        let target: Target = target.parse().unwrap();
        let link = link(target.into(), &stage);
        let status = Sources::default().add(&"default".into(), "here", Source::Identity);
        // The server was lost when a pause had just ended.
        status.set(SourceState::On, "");
        let waiting = wait_until_up(&link, &status);
        let reported = tokio::time::timeout(Duration::from_secs(60), async {
            while status.state() != SourceState::Down {
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            _ = waiting => panic!("there is no server"),
            reported = reported => reported.expect("the loss was not reported"),
        }
    }
}

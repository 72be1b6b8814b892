//! Notifications to systemd: readiness and a status line. Without a service manager they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::types::Status;

/// Reports changes of the agent's status, at most once a second, until `stop` is cancelled.
pub(crate) async fn report_status(mut status: watch::Receiver<Status>, stop: CancellationToken) {
    let report = async {
        loop {
            let text = describe(&status.borrow_and_update());
            notify(&[NotifyState::Status(&text)]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            if status.changed().await.is_err() {
                return;
            }
        }
    };
    stop.run_until_cancelled(report).await;
}

fn describe(status: &Status) -> String {
    if let Some(awaited) = &status.awaited {
        return format!("waiting: {awaited}");
    }
    let redis = if status.redis_up { "Redis answers" } else { "Redis is unreachable" };
    let draining = if status.draining { "draining, " } else { "" };
    let holds = if status.holds == 1 { "hold" } else { "holds" };
    format!("{draining}{redis}, {} {holds}, {} waiting", status.holds, status.waiters)
}

pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "could not notify the service manager");
    }
}

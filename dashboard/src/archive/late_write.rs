//! Writes whose disk does not answer.

use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout};

/// The time that a write may take before it is reported. A removal of old rows on a slow disk takes some seconds.
const LATE: Duration = Duration::from_secs(10);
/// The interval at which a late write is reported.
const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the outcome of a write. While it is late, `report` receives the reason.
pub(super) async fn outcome<T>(
    mut write: JoinHandle<T>,
    report: &mut impl FnMut(Option<String>),
) -> Result<T, JoinError> {
    let began = Instant::now();
    let mut reported = false;
    loop {
        if let Ok(outcome) = timeout(INTERVAL, &mut write).await {
            if reported {
                tracing::info!("history folder answers again");
            }
            return outcome;
        }
        let waited = began.elapsed();
        if waited < LATE {
            continue;
        }
        if !std::mem::replace(&mut reported, true) {
            tracing::error!("history not written: its folder does not answer");
        }
        let seconds = waited.as_secs();
        report(Some(format!(
            "The history is not written: its folder has not answered for {seconds} s."
        )));
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_reported_until_it_ends() {
        let (end, ended) = oneshot::channel();
        let (tell, mut told) = mpsc::channel(8);
        let waiting = tokio::spawn(async move {
            let mut report = |trouble: Option<String>| drop(tell.try_send(trouble));
            outcome(tokio::spawn(ended), &mut report).await
        });
        for seconds in [10, 11] {
            let expected =
                format!("The history is not written: its folder has not answered for {seconds} s.");
            assert_eq!(told.recv().await.unwrap(), Some(expected));
        }
        end.send(1).unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Ok(1));
        assert_eq!(told.recv().await, None);
    }
}

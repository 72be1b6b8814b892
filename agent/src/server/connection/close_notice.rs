//! The notice that a connection has closed, sent to the core exactly once.

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::core::Input;
use crate::types::ConnectionId;

/// Reports a closed connection to the core: by [`CloseNotice::send`], or on drop when the task is cancelled or panics.
/// Without the notice a session would keep its locks forever.
#[derive(Debug)]
pub(super) struct CloseNotice {
    connection: ConnectionId,
    core: Option<mpsc::Sender<Input>>,
}

impl CloseNotice {
    pub(super) fn new(connection: ConnectionId, core: mpsc::Sender<Input>) -> Self {
        Self { connection, core: Some(core) }
    }

    pub(super) async fn send(mut self) {
        // Cleared only once there is room, so that a cancellation while waiting still sends the notice on drop.
        if let Some(core) = &self.core
            && let Ok(permit) = core.reserve().await
        {
            permit.send(Input::Closed(self.connection));
        }
        self.core = None;
    }
}

impl Drop for CloseNotice {
    fn drop(&mut self) {
        let Some(core) = self.core.take() else { return };
        if let Err(TrySendError::Full(notice)) = core.try_send(Input::Closed(self.connection))
            && let Ok(runtime) = Handle::try_current()
        {
            // Fails only if the core has ended, and its sessions with it.
            runtime.spawn(async move { core.send(notice).await.ok() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_closed(inbox: &mut mpsc::Receiver<Input>) -> bool {
        matches!(inbox.recv().await, Some(Input::Closed(ConnectionId(5))))
    }

    #[tokio::test]
    async fn the_notice_is_sent_once() {
        let (core, mut inbox) = mpsc::channel(4);
        CloseNotice::new(ConnectionId(5), core).send().await;
        assert!(is_closed(&mut inbox).await);
        assert!(inbox.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_dropped_notice_is_sent_even_to_a_full_core() {
        let (core, mut inbox) = mpsc::channel(1);
        core.try_send(Input::Closed(ConnectionId(1))).unwrap();
        drop(CloseNotice::new(ConnectionId(5), core.clone()));
        // Cancelled while waiting for room.
        assert!(
            futures_util::poll!(Box::pin(CloseNotice::new(ConnectionId(5), core).send()))
                .is_pending()
        );
        inbox.recv().await.unwrap();
        assert!(is_closed(&mut inbox).await);
        assert!(is_closed(&mut inbox).await);
        assert!(inbox.recv().await.is_none());
    }
}

//! The last word about a session, told exactly once.

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::core::Input;
use crate::types::SessionId;

/// Tells the core of a session's end: by [`CloseNotice::send`], or by being dropped when the task is cancelled or panics.
/// A session whose end was never told would keep its locks for ever.
#[derive(Debug)]
pub(super) struct CloseNotice {
    session: SessionId,
    core: Option<mpsc::Sender<Input>>,
}

impl CloseNotice {
    pub(super) fn new(session: SessionId, core: mpsc::Sender<Input>) -> Self {
        Self { session, core: Some(core) }
    }

    pub(super) async fn send(mut self) {
        // Taken only once there is room: a task that is cancelled while it waits is still told of by the drop.
        if let Some(core) = &self.core
            && let Ok(permit) = core.reserve().await
        {
            permit.send(Input::Closed(self.session));
        }
        self.core = None;
    }
}

impl Drop for CloseNotice {
    fn drop(&mut self) {
        let Some(core) = self.core.take() else { return };
        if let Err(TrySendError::Full(news)) = core.try_send(Input::Closed(self.session))
            && let Ok(runtime) = Handle::try_current()
        {
            // The core may have ended meanwhile, and its sessions with it.
            runtime.spawn(async move { core.send(news).await.ok() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_closed(inbox: &mut mpsc::Receiver<Input>) -> bool {
        matches!(inbox.recv().await, Some(Input::Closed(SessionId(5))))
    }

    #[tokio::test]
    async fn it_is_said_once() {
        let (core, mut inbox) = mpsc::channel(4);
        CloseNotice::new(SessionId(5), core).send().await;
        assert!(is_closed(&mut inbox).await);
        assert!(inbox.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_dropped_one_speaks_even_to_a_full_core() {
        let (core, mut inbox) = mpsc::channel(1);
        core.try_send(Input::Closed(SessionId(1))).unwrap();
        drop(CloseNotice::new(SessionId(5), core.clone()));
        // Cancelled while it waits for room.
        assert!(
            futures_util::poll!(Box::pin(CloseNotice::new(SessionId(5), core).send())).is_pending()
        );
        inbox.recv().await.unwrap();
        assert!(is_closed(&mut inbox).await);
        assert!(is_closed(&mut inbox).await);
        assert!(inbox.recv().await.is_none());
    }
}

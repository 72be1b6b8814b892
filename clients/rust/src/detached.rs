//! Work that runs to its end even if its caller loses interest or is busy.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// A request to end a wait early.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    requested: AtomicBool,
    notify: Notify,
}

impl Cancel {
    fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
        self.notify.notify_one();
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Returns the output of the work, or `None` if the request comes first.
    pub(crate) async fn unless_requested<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut requested = pin!(self.notify.notified());
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            requested.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

/// Work that moves to a separate task unless its first poll completes it.
pub(crate) struct Detached<T: 'static> {
    /// Absent once it was polled.
    work: Option<Pin<Box<dyn Future<Output = Result<T>> + Send>>>,
    task: Option<JoinHandle<Result<T>>>,
    cancel: Option<Arc<Cancel>>,
}

impl<T: Send + 'static> Detached<T> {
    pub(crate) fn new(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), task: None, cancel: None }
    }

    /// Requests the end of the work when it is dropped.
    pub(crate) fn cancelling(mut self, cancel: Arc<Cancel>) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Some(mut work) = self.work.take() {
            let output = work.as_mut().poll(context);
            if output.is_ready() {
                return output;
            }
            self.task = Some(tokio::spawn(work));
        }
        let Some(task) = &mut self.task else { return Poll::Pending };
        let output = ready!(Pin::new(task).poll(context));
        self.task = None;
        Poll::Ready(output.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Error::Unavailable("the runtime of this call has ended".to_owned())),
        }))
    }
}

impl<T: 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let (Some(_), Some(cancel)) = (&self.task, &self.cancel) {
            cancel.request();
        }
    }
}

impl<T: 'static> fmt::Debug for Detached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_although_nobody_polls_it() {
        let (go_on, condition) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut work = pin!(Detached::new(async {
            let _ = condition.await;
            let _ = done.send(());
            Ok(())
        }));
        let first = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        assert!(first.is_pending());
        let _ = go_on.send(());
        assert!(timeout(Duration::from_secs(10), ended).await.is_ok());
        assert!(work.await.is_ok());
    }
}

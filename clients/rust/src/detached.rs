//! Work that runs to its end even if its caller loses interest.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Notify;

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

/// Work polled in the caller's task. If it is dropped before the end, the work continues in a separate task.
pub(crate) struct Detached<T: 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    cancel: Option<Arc<Cancel>>,
    /// The runtime that polled it first.
    runtime: Option<Handle>,
}

impl<T: 'static> Detached<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), cancel: None, runtime: None }
    }

    /// Requests the end of the work when it is dropped.
    pub(crate) fn cancelling(mut self, cancel: Arc<Cancel>) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl<T: 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if self.runtime.is_none() {
            self.runtime = Some(Handle::current());
        }
        let Some(work) = &mut self.work else { return Poll::Pending };
        let output = work.as_mut().poll(context);
        if output.is_ready() {
            self.work = None;
        }
        output
    }
}

impl<T: 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        // Work that was never polled has had no effect.
        let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) else { return };
        if let Some(cancel) = &self.cancel {
            cancel.request();
        }
        runtime.spawn(async move { drop(work.await) });
    }
}

impl<T: 'static> fmt::Debug for Detached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").finish_non_exhaustive()
    }
}

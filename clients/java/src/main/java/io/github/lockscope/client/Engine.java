package io.github.lockscope.client;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The daemon threads of an agent object. */
final class Engine {
    private static final long RETRY_PAUSE = TimeUnit.MILLISECONDS.toNanos(100);

    final Poller poller = new Poller();
    // Neither is ever shut down, since work that has the turn of a session must be done. Idle threads end.
    private final ExecutorService background = new ThreadPoolExecutor(
            0, Integer.MAX_VALUE, 30, TimeUnit.SECONDS, new SynchronousQueue<>(), work -> daemon(work, "lockscope"));
    private final ScheduledThreadPoolExecutor timer =
            new ScheduledThreadPoolExecutor(1, work -> daemon(work, "lockscope-timer"));

    Engine() {
        timer.setRemoveOnCancelPolicy(true);
        timer.setKeepAliveTime(30, TimeUnit.SECONDS);
        timer.allowCoreThreadTimeOut(true);
    }

    static Thread daemon(Runnable work, String name) {
        var thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    /**
     * Runs work that may block, or a listener of a hold. While the system refuses another thread, the work is delayed: the
     * thread that serves all connections must not end with that error.
     */
    void run(Runnable work) {
        try {
            background.execute(work);
        } catch (OutOfMemoryError refused) {
            after(RETRY_PAUSE, () -> run(work));
        }
    }

    /** Runs short work after a time. */
    ScheduledFuture<?> after(long nanos, Runnable work) {
        return timer.schedule(work, nanos, TimeUnit.NANOSECONDS);
    }

    void close() {
        poller.close();
    }
}

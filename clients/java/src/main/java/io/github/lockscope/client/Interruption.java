package io.github.lockscope.client;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The effect of an interrupt on a thread that waits. */
enum Interruption {
    /** Ends the wait with an {@link InterruptedException}. */
    ENDS,
    /** Leaves the wait alone; the thread finds its interrupt status set afterwards. */
    DEFERRED;

    /** A time without end, small enough to be added to a clock. */
    static final long FOREVER = Long.MAX_VALUE / 4;

    /** A wait that returns whether it ended before the time was over. */
    interface Wait {
        boolean await(long nanos) throws InterruptedException;
    }

    boolean await(long nanos, Wait wait) throws InterruptedException {
        return this == ENDS ? wait.await(nanos) : deferring(nanos, wait);
    }

    void pause(long nanos) throws InterruptedException {
        var never = new CountDownLatch(1);
        await(nanos, left -> never.await(left, TimeUnit.NANOSECONDS));
    }

    static boolean deferring(long nanos, Wait wait) {
        long end = System.nanoTime() + nanos;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return wait.await(end - System.nanoTime());
                } catch (InterruptedException interrupt) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

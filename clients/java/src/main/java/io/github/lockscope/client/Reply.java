package io.github.lockscope.client;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The reply to a command, which may not have arrived yet. */
final class Reply {
    private final CountDownLatch done = new CountDownLatch(1);
    private Object value;
    private Failure failure;

    void complete(Object value) {
        this.value = value;
        done.countDown();
    }

    void fail(Failure failure) {
        this.failure = failure;
        done.countDown();
    }

    /** Waits for the reply, and returns whether it arrived in time. */
    boolean await(long nanos) throws InterruptedException {
        return done.await(nanos, TimeUnit.NANOSECONDS);
    }

    /** Returns the value of a reply that has arrived. */
    Object get() throws Failure {
        if (failure != null) {
            throw failure;
        }
        return value;
    }
}

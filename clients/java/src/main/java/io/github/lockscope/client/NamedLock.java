package io.github.lockscope.client;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/**
 * A lock in Redis. It is reentrant; its owner is the current thread, or the {@link Owner} that returned it.
 *
 * <p>{@link #acquire(Duration)} returns a {@link Hold}, which reports a loss. Code that knows only
 * {@link java.util.concurrent.locks.Lock} uses the methods of that interface, and learns of a loss from {@link #unlock}.
 * Unlike the locks of the JDK, this one can be lost while it is held, and all methods that acquire it can fail with a
 * {@link LockscopeException}.
 */
public final class NamedLock implements Lock {
    /** The longest wait that the agent limits: a year. */
    private static final long LONGEST_WAIT = TimeUnit.DAYS.toNanos(365);

    private final Agent agent;
    private final Supplier<Owner> owner;
    private final Request request;

    NamedLock(Agent agent, Supplier<Owner> owner, Request request) {
        this.agent = agent;
        this.owner = owner;
        this.request = request;
    }

    /** Returns the name of the lock. */
    public String name() {
        return request.names().get(0);
    }

    /** Returns the kind of the lock. */
    public Kind kind() {
        return request.kind();
    }

    @Override
    public String toString() {
        return "NamedLock " + name() + " (" + kind().word() + ")";
    }

    /** Returns the same lock, acquired with a fixed lease, which nothing renews. */
    public NamedLock withLease(Duration lease) {
        return new NamedLock(agent, owner, request.withLease(lease));
    }

    /**
     * Acquires the lock, or reenters it. Waits for as long as it takes.
     *
     * @throws InterruptedException if the thread is interrupted; it acquires nothing then
     * @throws UnavailableException if the agent cannot be reached within 30 s, or it cannot reach Redis
     * @throws RejectedException if the agent refuses
     * @throws LockLostException if the owner lost the lock and has not released it yet
     */
    public Hold acquire() throws InterruptedException {
        return acquire(Interruption.FOREVER, Interruption.ENDS);
    }

    /**
     * Acquires the lock, or reenters it. A wait of more than a year has no limit.
     *
     * @throws LockTimeoutException when the wait is over
     * @throws InterruptedException if the thread is interrupted; it acquires nothing then
     * @throws LockscopeException as {@link #acquire()} does
     */
    public Hold acquire(Duration wait) throws InterruptedException {
        return acquire(nanos(wait), Interruption.ENDS);
    }

    /** Acquires the lock if it is free, or reenters it. */
    public Optional<Hold> tryAcquire() {
        return agent.tryAcquire(owner.get(), request).map(holds -> holds.get(0));
    }

    /** Returns the hold that the owner opened last and has not closed. It may have been lost. */
    public Optional<Hold> hold() {
        return Optional.ofNullable(agent.newestHold(owner.get(), name(), kind()));
    }

    /** Returns the number of holds that the owner has open, 0 if they have been lost. */
    public int holdCount() {
        return agent.holdCount(owner.get(), name(), kind());
    }

    /** Acquires the lock. An interrupt does not end the wait. */
    @Override
    public void lock() {
        try {
            acquire(Interruption.FOREVER, Interruption.DEFERRED);
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
    }

    /** Acquires the lock. */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        acquire();
    }

    /** Acquires the lock if it is free, and returns whether it did. */
    @Override
    public boolean tryLock() {
        return tryAcquire().isPresent();
    }

    /** Acquires the lock within a time, and returns whether it did. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        try {
            acquire(nanos(unit.toNanos(time)), Interruption.ENDS);
            return true;
        } catch (LockTimeoutException timeout) {
            return false;
        }
    }

    /**
     * Releases the hold that the owner opened last.
     *
     * @throws IllegalMonitorStateException if the owner has none
     * @throws LockLostException if the hold was lost before
     */
    @Override
    public void unlock() {
        Hold newest;
        do {
            newest = hold().orElseThrow(() -> new IllegalMonitorStateException("not held by this owner: " + name()));
        } while (!newest.closeIfOpen()); // Another thread may have closed it since.
    }

    /** Conditions are not supported. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock in Redis has no conditions");
    }

    private Hold acquire(long wait, Interruption interruption) throws InterruptedException {
        return agent.acquire(owner.get(), request, wait, interruption).get(0);
    }

    static long nanos(Duration wait) {
        return nanos(TimeUnit.NANOSECONDS.convert(wait));
    }

    private static long nanos(long wait) {
        return wait > LONGEST_WAIT ? Interruption.FOREVER : Math.max(0, wait);
    }
}

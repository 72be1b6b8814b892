package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Hold;
import io.github.lockscope.client.Kind;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RFuture;

/** Redisson's fenced lock on the agent. */
final class LockscopeFencedLock extends LockscopeLock implements RFencedLock {
    private final Agent agent;

    LockscopeFencedLock(Agent agent, Owners owners, ExecutorService executor, String name) {
        super(agent, owners, executor, name, Kind.FENCED);
        this.agent = agent;
    }

    private static Long token(Optional<Hold> hold) {
        return hold.map(granted -> granted.token().orElseThrow()).orElse(null);
    }

    /** Returns the latest token while the lock is held, null otherwise. */
    @Override
    public Long getToken() {
        var state = agent.show(getName());
        return state.isPresent() && state.get().token().isPresent() ? state.get().token().getAsLong() : null;
    }

    @Override
    public Long lockAndGetToken() {
        return lockAndGetToken(NONE, TimeUnit.MILLISECONDS);
    }

    @Override
    public Long lockAndGetToken(long lease, TimeUnit unit) {
        return token(acquire(currentThread(), lease, unit, LockscopeLock::untilHeld));
    }

    @Override
    public Long tryLockAndGetToken() {
        return token(tryAcquire(NONE, TimeUnit.MILLISECONDS));
    }

    @Override
    public Long tryLockAndGetToken(long wait, TimeUnit unit) {
        return tryLockAndGetToken(wait, NONE, unit);
    }

    /**
     * Acquires the lock within a time. An interrupt ends the wait without an exception, because the interface declares
     * none.
     */
    @Override
    public Long tryLockAndGetToken(long wait, long lease, TimeUnit unit) {
        try {
            return token(tryAcquire(currentThread(), wait, lease, unit));
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return null;
        }
    }

    @Override
    public RFuture<Long> getTokenAsync() {
        return async(this::getToken);
    }

    @Override
    public RFuture<Long> lockAndGetTokenAsync() {
        return lockAndGetTokenAsync(NONE, TimeUnit.MILLISECONDS);
    }

    @Override
    public RFuture<Long> lockAndGetTokenAsync(long lease, TimeUnit unit) {
        long threadId = currentThread();
        return async(() -> token(acquire(threadId, lease, unit, within(NONE, unit))), token -> unlock(threadId));
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync() {
        return tryLockAndGetTokenAsync(0, TimeUnit.MILLISECONDS);
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync(long wait, TimeUnit unit) {
        return tryLockAndGetTokenAsync(wait, NONE, unit);
    }

    @Override
    public RFuture<Long> tryLockAndGetTokenAsync(long wait, long lease, TimeUnit unit) {
        long threadId = currentThread();
        return async(() -> token(tryAcquire(threadId, wait, lease, unit)), token -> {
            if (token != null) {
                unlock(threadId);
            }
        });
    }
}

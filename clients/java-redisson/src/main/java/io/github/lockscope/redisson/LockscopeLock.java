package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Hold;
import io.github.lockscope.client.Kind;
import io.github.lockscope.client.LockLostException;
import io.github.lockscope.client.LockState;
import io.github.lockscope.client.LockTimeoutException;
import io.github.lockscope.client.LockscopeException;
import io.github.lockscope.client.NamedLock;
import io.github.lockscope.client.Owner;
import io.github.lockscope.client.RejectedException;
import io.github.lockscope.client.UnavailableException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.function.Consumer;
import org.redisson.api.ObjectListener;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.misc.CompletableFutureWrapper;

/** Redisson's lock on the agent. A lease of zero or less is renewed, as in Redisson. */
class LockscopeLock implements RLock {
    /** Means no fixed lease, or a wait without a limit. */
    static final long NONE = -1;
    /** The remaining time of a key that does not exist. */
    private static final long ABSENT = -2;

    private final Agent agent;
    private final Owners owners;
    private final ExecutorService executor;
    private final String name;
    private final Kind kind;

    LockscopeLock(Agent agent, Owners owners, ExecutorService executor, String name, Kind kind) {
        this.agent = agent;
        this.owners = owners;
        this.executor = executor;
        this.name = name;
        this.kind = kind;
    }

    static long currentThread() {
        return Thread.currentThread().getId();
    }

    private NamedLock of(Owner owner) {
        return owner.lock(name, kind);
    }

    /** A way to acquire a lock. Returns an empty result if the lock was not acquired. */
    interface Acquisition<E extends Exception> {
        Optional<Hold> from(NamedLock lock) throws E;
    }

    /** Acquires the lock without a time limit. An interrupt does not end the wait. */
    static Optional<Hold> untilHeld(NamedLock lock) {
        lock.lock();
        return lock.hold();
    }

    /** Returns an acquisition within a time; a negative time means no limit. */
    static Acquisition<InterruptedException> within(long wait, TimeUnit unit) {
        return lock -> Optional.of(
                wait < 0 ? lock.acquire() : lock.acquire(Duration.ofNanos(unit.toNanos(wait))));
    }

    <E extends Exception> Optional<Hold> acquire(long threadId, long lease, TimeUnit unit, Acquisition<E> acquisition)
            throws E {
        return owners.with(threadId, owner -> {
            dropLost(owner);
            var lock = lease > 0 ? of(owner).withLease(Duration.ofNanos(unit.toNanos(lease))) : of(owner);
            try {
                var hold = acquisition.from(lock);
                hold.ifPresent(held -> held.onLost(loss -> owners.with(threadId, same -> closeLost(held))));
                return hold;
            } catch (LockTimeoutException timeout) {
                return Optional.empty();
            }
        });
    }

    /**
     * Acquires the lock within a time. Returns an empty result, as Redisson does, to a reader that tries to acquire the
     * write side.
     */
    Optional<Hold> tryAcquire(long threadId, long wait, long lease, TimeUnit unit) throws InterruptedException {
        return orEmpty(() -> acquire(threadId, lease, unit, within(Math.max(0, wait), unit)));
    }

    /** Acquires the lock if it is free. */
    Optional<Hold> tryAcquire(long lease, TimeUnit unit) {
        return orEmpty(() -> acquire(currentThread(), lease, unit, NamedLock::tryAcquire));
    }

    interface Attempt<E extends Exception> {
        Optional<Hold> run() throws E;
    }

    static <E extends Exception> Optional<Hold> orEmpty(Attempt<E> attempt) throws E {
        try {
            return attempt.run();
        } catch (RejectedException rejected) {
            if (rejected.code().equals("DEADLOCK")) {
                return Optional.empty();
            }
            throw rejected;
        }
    }

    /** Closes holds that were lost, in case that their listeners have not done so yet. */
    private void dropLost(Owner owner) {
        for (var hold = of(owner).hold(); hold.isPresent() && !hold.get().isHeld(); hold = of(owner).hold()) {
            closeLost(hold.get());
        }
    }

    /**
     * Closes a hold that was lost. Redisson forgets an expired lock, but the client library keeps a lost hold until its
     * owner closes it.
     */
    private static Void closeLost(Hold hold) {
        try {
            hold.close();
        } catch (LockscopeException lost) {
            // Nobody needs this hold any more.
        }
        return null;
    }

    void unlock(long threadId) {
        owners.with(threadId, owner -> {
            try {
                of(owner).unlock();
            } catch (IllegalMonitorStateException | LockLostException notHeld) {
                var error = new IllegalMonitorStateException(
                        "attempt to unlock lock, not locked by current thread. name: " + name + " thread-id: " + threadId);
                error.initCause(notHeld);
                throw error;
            }
            return null;
        });
    }

    /**
     * Returns this lock's state in Redis, empty if the lock is free or only the other side of a read-write lock is
     * held.
     */
    private Optional<LockState> state() {
        return agent.show(name).filter(state -> isExclusive(kind) ? isExclusive(state.kind()) : state.kind() == kind);
    }

    private static boolean isExclusive(Kind kind) {
        return kind != Kind.READ && kind != Kind.WRITE;
    }

    @Override
    public String getName() {
        return name;
    }

    @Override
    public void lock() {
        lock(NONE, TimeUnit.MILLISECONDS);
    }

    @Override
    public void lock(long lease, TimeUnit unit) {
        acquire(currentThread(), lease, unit, LockscopeLock::untilHeld);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        lockInterruptibly(NONE, TimeUnit.MILLISECONDS);
    }

    @Override
    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        acquire(currentThread(), lease, unit, within(NONE, unit));
    }

    @Override
    public boolean tryLock() {
        return tryAcquire(NONE, TimeUnit.MILLISECONDS).isPresent();
    }

    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return tryLock(wait, NONE, unit);
    }

    @Override
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return tryAcquire(currentThread(), wait, lease, unit).isPresent();
    }

    @Override
    public void unlock() {
        unlock(currentThread());
    }

    @Override
    public boolean forceUnlock() {
        return state().isPresent() && agent.forceRelease(name) > 0;
    }

    @Override
    public boolean isLocked() {
        return state().isPresent();
    }

    @Override
    public boolean isHeldByThread(long threadId) {
        return holdCount(threadId) > 0;
    }

    @Override
    public boolean isHeldByCurrentThread() {
        return isHeldByThread(currentThread());
    }

    @Override
    public int getHoldCount() {
        return holdCount(currentThread());
    }

    /**
     * Returns the hold count in Redis if the thread has a hold, as Redisson does. Without an answer it is the count known
     * here: code that releases a lock only if it is held must not fail before the release.
     */
    private int holdCount(long threadId) {
        var hold = owners.with(threadId, owner -> of(owner).hold()).filter(Hold::isHeld);
        if (hold.isEmpty()) {
            return 0;
        }
        try {
            return agent.show(name)
                    .map(state -> state.holders().getOrDefault(hold.get().holder(), 0L))
                    .orElse(0L)
                    .intValue();
        } catch (UnavailableException noAnswer) {
            return owners.with(threadId, owner -> of(owner).holdCount());
        }
    }

    @Override
    public long remainTimeToLive() {
        return agent.show(name)
                .map(state -> state.remaining().map(Duration::toMillis).orElse(NONE))
                .orElse(ABSENT);
    }

    /** Conditions are not supported. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock in Redis has no conditions");
    }

    <T> RFuture<T> async(Callable<T> work) {
        return async(work, result -> {});
    }

    /** Runs work in the background. If the future has ended before, as by a cancellation, undoes the work, as Redisson does. */
    <T> RFuture<T> async(Callable<T> work, Consumer<T> undo) {
        var future = new CompletableFuture<T>();
        executor.execute(() -> {
            try {
                var result = work.call();
                if (!future.complete(result)) {
                    undo.accept(result);
                }
            } catch (Exception error) {
                future.completeExceptionally(error);
            }
        });
        return new CompletableFutureWrapper<>(future);
    }

    @Override
    public RFuture<Void> lockAsync() {
        return lockAsync(currentThread());
    }

    @Override
    public RFuture<Void> lockAsync(long threadId) {
        return lockAsync(NONE, TimeUnit.MILLISECONDS, threadId);
    }

    @Override
    public RFuture<Void> lockAsync(long lease, TimeUnit unit) {
        return lockAsync(lease, unit, currentThread());
    }

    @Override
    public RFuture<Void> lockAsync(long lease, TimeUnit unit, long threadId) {
        return async(() -> {
            acquire(threadId, lease, unit, within(NONE, unit));
            return null;
        }, acquired -> unlock(threadId));
    }

    @Override
    public RFuture<Boolean> tryLockAsync() {
        return tryLockAsync(currentThread());
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long threadId) {
        return tryLockAsync(0, NONE, TimeUnit.MILLISECONDS, threadId);
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long wait, TimeUnit unit) {
        return tryLockAsync(wait, NONE, unit);
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long wait, long lease, TimeUnit unit) {
        return tryLockAsync(wait, lease, unit, currentThread());
    }

    @Override
    public RFuture<Boolean> tryLockAsync(long wait, long lease, TimeUnit unit, long threadId) {
        return async(() -> tryAcquire(threadId, wait, lease, unit).isPresent(), acquired -> {
            if (acquired) {
                unlock(threadId);
            }
        });
    }

    @Override
    public RFuture<Void> unlockAsync() {
        return unlockAsync(currentThread());
    }

    @Override
    public RFuture<Void> unlockAsync(long threadId) {
        return async(() -> {
            unlock(threadId);
            return null;
        });
    }

    @Override
    public RFuture<Boolean> forceUnlockAsync() {
        return async(this::forceUnlock);
    }

    @Override
    public RFuture<Boolean> isLockedAsync() {
        return async(this::isLocked);
    }

    @Override
    public RFuture<Boolean> isHeldByThreadAsync(long threadId) {
        return async(() -> isHeldByThread(threadId));
    }

    @Override
    public RFuture<Integer> getHoldCountAsync() {
        long threadId = currentThread();
        return async(() -> holdCount(threadId));
    }

    @Override
    public RFuture<Long> remainTimeToLiveAsync() {
        return async(this::remainTimeToLive);
    }

    /** Listeners for keyspace events are not supported. */
    @Override
    public int addListener(ObjectListener listener) {
        throw new UnsupportedOperationException("the agent has no keyspace events");
    }

    /** Listeners for keyspace events are not supported. */
    @Override
    public void removeListener(int listenerId) {
        throw new UnsupportedOperationException("the agent has no keyspace events");
    }

    /** Listeners for keyspace events are not supported. */
    @Override
    public RFuture<Integer> addListenerAsync(ObjectListener listener) {
        throw new UnsupportedOperationException("the agent has no keyspace events");
    }

    /** Listeners for keyspace events are not supported. */
    @Override
    public RFuture<Void> removeListenerAsync(int listenerId) {
        throw new UnsupportedOperationException("the agent has no keyspace events");
    }
}

package io.github.lockscope.client;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * Several locks, of which all or none are acquired. Calls never deadlock with each other, whatever the order of the
 * names.
 */
public final class LockSet {
    private final Agent agent;
    private final Supplier<Owner> owner;
    private final Request request;

    LockSet(Agent agent, Supplier<Owner> owner, Collection<String> names) {
        this(agent, owner, new Request(List.copyOf(names), true, Kind.PLAIN, null));
    }

    private LockSet(Agent agent, Supplier<Owner> owner, Request request) {
        this.agent = agent;
        this.owner = owner;
        this.request = request;
    }

    /** Returns the same locks of another kind. */
    public LockSet ofKind(Kind kind) {
        return new LockSet(agent, owner, new Request(request.names(), true, kind, request.lease()));
    }

    /** Returns the same locks, acquired with a fixed lease, which nothing renews. */
    public LockSet withLease(Duration lease) {
        return new LockSet(agent, owner, request.withLease(lease));
    }

    /**
     * Acquires the locks, or reenters them. Waits for as long as it takes.
     *
     * @throws InterruptedException if the thread is interrupted; it acquires nothing then
     * @throws LockscopeException as {@link NamedLock#acquire()} does
     */
    public Holds acquire() throws InterruptedException {
        return new Holds(agent.acquire(owner.get(), request, Interruption.FOREVER, Interruption.ENDS));
    }

    /**
     * Acquires the locks, or reenters them. A wait of more than a year has no limit.
     *
     * @throws LockTimeoutException when the wait is over
     * @throws InterruptedException if the thread is interrupted; it acquires nothing then
     * @throws LockscopeException as {@link NamedLock#acquire()} does
     */
    public Holds acquire(Duration wait) throws InterruptedException {
        return new Holds(agent.acquire(owner.get(), request, NamedLock.nanos(wait), Interruption.ENDS));
    }

    /** Acquires the locks if all of them are free. */
    public Optional<Holds> tryAcquire() {
        return agent.tryAcquire(owner.get(), request).map(Holds::new);
    }
}

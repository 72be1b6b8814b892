package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Kind;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;

/**
 * The locks of a {@code RedissonClient}, acquired through the Lockscope agent of this host.
 *
 * <p>They have Redisson's names and layout in Redis, so both can be used on the same names at once. Each thread id is a
 * separate owner, as in Redisson.
 */
public final class LockscopeLocks implements AutoCloseable {
    private final Agent agent;
    private final Owners owners;
    /** Runs asynchronous calls; once it is shut down, in the caller's thread, where they fail like other calls. */
    private final ExecutorService executor = new ThreadPoolExecutor(0, Integer.MAX_VALUE, 1, TimeUnit.MINUTES,
            new SynchronousQueue<>(), LockscopeLocks::newThread, (call, closed) -> call.run());

    private static Thread newThread(Runnable calls) {
        var thread = new Thread(calls, "lockscope-async");
        thread.setDaemon(true);
        return thread;
    }

    /** Creates locks that are acquired through this agent, which {@link #close} closes. */
    public LockscopeLocks(Agent agent) {
        this.agent = agent;
        owners = new Owners(agent);
    }

    /** Returns the plain lock of this name. */
    public RLock getLock(String name) {
        return lock(name, Kind.PLAIN);
    }

    /** Returns the fair lock of this name. */
    public RLock getFairLock(String name) {
        return lock(name, Kind.FAIR);
    }

    /** Returns the fenced lock of this name. */
    public RFencedLock getFencedLock(String name) {
        return new LockscopeFencedLock(agent, owners, executor, name);
    }

    /** Returns the read-write lock of this name. */
    public RReadWriteLock getReadWriteLock(String name) {
        var read = lock(name, Kind.READ);
        var write = lock(name, Kind.WRITE);
        return new RReadWriteLock() {
            @Override
            public RLock readLock() {
                return read;
            }

            @Override
            public RLock writeLock() {
                return write;
            }
        };
    }

    private RLock lock(String name, Kind kind) {
        return new LockscopeLock(agent, owners, executor, name, kind);
    }

    /** Releases everything and closes the agent object. */
    @Override
    public void close() {
        agent.close();
        executor.shutdownNow();
    }
}

package io.github.lockscope.client;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * The agent of this host. One object serves all threads of a process.
 *
 * <pre>{@code
 * try (var agent = new Agent(); var hold = agent.lock("orders:42").acquire(Duration.ofMinutes(1))) {
 *     while (workLeft()) {
 *         hold.check();
 *         step();
 *     }
 * }
 * }</pre>
 *
 * <p>Each thread is a separate owner. Owners exclude each other, and each can reenter its own locks.
 */
public final class Agent implements AutoCloseable {
    private static final Path DEFAULT_SOCKET = Path.of("/run/lockscope/agent.sock");
    private static final Duration DEFAULT_GRACE = Duration.ofMinutes(1);
    /** The number of connections without a hold that are kept for the next owner. */
    private static final int SPARE_SESSIONS = 32;
    /** The time for which a close waits for the end of the sessions. Those of a slow agent end in the background. */
    private static final long CLOSE_LIMIT = TimeUnit.SECONDS.toNanos(5);

    private final Path socket;
    private final Duration grace;
    private final Engine engine = new Engine();
    private final ThreadLocal<Owner> current = ThreadLocal.withInitial(() -> new Owner(this));

    // Guarded by this.
    private final Set<Session> sessions = new HashSet<>();
    private final Deque<Session> spare = new ArrayDeque<>();
    private boolean closed;

    /**
     * Creates an object for the agent at {@code LOCKSCOPE_SOCKET}, else at {@code /run/lockscope/agent.sock}, else at
     * {@code $XDG_RUNTIME_DIR/lockscope/agent.sock}. It connects when it acquires the first lock.
     */
    public Agent() {
        this(defaultSocket());
    }

    /** Creates an object for the agent at this socket. */
    public Agent(Path socket) {
        this(socket, DEFAULT_GRACE);
    }

    /**
     * Creates an object for the agent at this socket.
     *
     * @param grace how long holds outlive a lost connection or a restart of the agent, a minute by default; zero disables
     *     that
     * @throws IllegalArgumentException if the grace is negative
     */
    public Agent(Path socket, Duration grace) {
        if (grace.isNegative()) {
            throw new IllegalArgumentException("a grace must not be negative: " + grace);
        }
        this.socket = socket;
        this.grace = grace;
    }

    /** Returns {@code LOCKSCOPE_SOCKET}, else the first of the usual sockets that exists. */
    public static Path defaultSocket() {
        var named = System.getenv("LOCKSCOPE_SOCKET");
        if (named != null && !named.isEmpty()) {
            return Path.of(named);
        }
        var runtime = System.getenv("XDG_RUNTIME_DIR");
        if (runtime != null && !runtime.isEmpty() && !Files.exists(DEFAULT_SOCKET)) {
            var own = Path.of(runtime, "lockscope", "agent.sock");
            if (Files.exists(own)) {
                return own;
            }
        }
        return DEFAULT_SOCKET;
    }

    /** Returns the plain lock of this name, whose owner is the thread that uses it. */
    public NamedLock lock(String name) {
        return lock(name, Kind.PLAIN);
    }

    /** Returns the lock of this name and kind, whose owner is the thread that uses it. */
    public NamedLock lock(String name, Kind kind) {
        return new NamedLock(this, current::get, Request.of(name, kind));
    }

    /** Returns both sides of a read-write lock, whose owner is the thread that uses it. */
    public ReadWriteLock readWriteLock(String name) {
        var read = lock(name, Kind.READ);
        var write = lock(name, Kind.WRITE);
        return new ReadWriteLock() {
            @Override
            public Lock readLock() {
                return read;
            }

            @Override
            public Lock writeLock() {
                return write;
            }
        };
    }

    /**
     * Returns a set of up to 64 plain locks, of which all or none are acquired. Their owner is the thread that uses
     * them.
     */
    public LockSet lockAll(Collection<String> names) {
        return new LockSet(this, current::get, names);
    }

    /** Returns a new owner, for work that moves between threads. */
    public Owner newOwner() {
        return new Owner(this);
    }

    /** Returns the state of a lock in Redis, empty if it is free. */
    public Optional<LockState> show(String name) {
        var reply = callOnce("SHOW", name);
        return reply == null ? Optional.empty() : Optional.of(LockState.of(Fields.map(reply)));
    }

    /**
     * Releases a lock in Redis, no matter which client holds it, and returns how many holders it had. The loss is
     * reported to its holders.
     *
     * @throws RejectedException if the process runs neither as root nor as the agent's user
     */
    public long forceRelease(String name) {
        return Fields.number(callOnce("FORCE", name));
    }

    private Object callOnce(Object... words) {
        try {
            return Link.callOnce(engine, socket, words);
        } catch (Failure failure) {
            throw failure.toException();
        }
    }

    /**
     * Releases everything and closes the connections. Waits and later calls fail with an {@link UnavailableException},
     * and holds that are still open are lost. If the agent does not answer, this returns after five seconds at most and
     * continues in the background.
     */
    @Override
    public void close() {
        List<Session> all;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            all = new ArrayList<>(sessions);
            sessions.clear();
            spare.clear();
        }
        var closing = new CountDownLatch(all.size());
        for (var session : all) {
            engine.run(() -> {
                try {
                    session.close();
                } finally {
                    closing.countDown();
                }
            });
        }
        Interruption.Wait ended = nanos -> closing.await(nanos, TimeUnit.NANOSECONDS);
        if (Interruption.deferring(CLOSE_LIMIT, ended)) {
            engine.close();
            return;
        }
        // A session that is being resumed needs the poller until it has ended.
        engine.run(() -> {
            Interruption.deferring(Interruption.FOREVER, ended);
            engine.close();
        });
    }

    List<Hold> acquire(Owner owner, Request request, long wait, Interruption interruption) throws InterruptedException {
        var session = sessionOf(owner);
        try {
            return session.lock(request, wait, interruption);
        } finally {
            session.leave();
        }
    }

    Optional<List<Hold>> tryAcquire(Owner owner, Request request) {
        try {
            return Optional.of(acquire(owner, request, 0, Interruption.DEFERRED));
        } catch (LockTimeoutException timeout) {
            return Optional.empty();
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
    }

    Hold newestHold(Owner owner, String name, Kind kind) {
        var grant = grantOf(owner, name, kind);
        return grant == null ? null : grant.newest();
    }

    int holdCount(Owner owner, String name, Kind kind) {
        var grant = grantOf(owner, name, kind);
        return grant == null || !grant.isHeld() ? 0 : grant.openHolds();
    }

    synchronized boolean isIdle(Owner owner) {
        var session = owner.session;
        return session == null || session.owner != owner || session.isIdle();
    }

    private synchronized Grant grantOf(Owner owner, String name, Kind kind) {
        var session = owner.session;
        return session == null || session.owner != owner ? null : session.grants().find(name, kind);
    }

    /** Enters and returns the owner's session, which the caller must leave. */
    private synchronized Session sessionOf(Owner owner) {
        if (closed) {
            throw UnavailableException.closed();
        }
        var session = owner.session;
        if (session == null || session.owner != owner) {
            session = spare.isEmpty() ? new Session(engine, socket, grace, this::onIdle) : spare.pop();
            session.owner = owner;
            owner.session = session;
            sessions.add(session);
        }
        session.enter();
        return session;
    }

    private synchronized void onIdle(Session session) {
        if (session.owner == null || !session.isIdle()) {
            return;
        }
        session.owner = null;
        if (spare.size() < SPARE_SESSIONS && session.isGraced() && !closed) {
            spare.push(session);
            return;
        }
        sessions.remove(session);
        engine.run(session::close);
    }
}

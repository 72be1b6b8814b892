package io.github.lockscope.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.Consumer;

/**
 * One acquisition of a lock. It ends with {@link #close}.
 *
 * <p>Only {@link #extend}, {@link #renew} and {@link #close} cost a round trip. After its deadline a hold is never
 * valid again, even in a process that was stopped. Any thread may use it.
 */
public final class Hold implements AutoCloseable {
    private final Session session;
    private final Grant grant;
    // Guarded by the grant.
    final List<Consumer<LockLostException>> lossListeners = new ArrayList<>();
    final List<Runnable> riskListeners = new ArrayList<>();

    Hold(Session session, Grant grant) {
        this.session = session;
        this.grant = grant;
    }

    /** Returns the name of the lock. */
    public String name() {
        return grant.name;
    }

    /** Returns the kind of the lock. */
    public Kind kind() {
        return grant.kind;
    }

    /** Returns the holder's id in Redis, new with each grant. */
    public String holder() {
        return grant.holder;
    }

    /** Returns the fencing token of a lock of kind {@link Kind#FENCED}. */
    public OptionalLong token() {
        return grant.token;
    }

    /**
     * Checks that the hold is certain.
     *
     * @throws LockLostException if it is not, or was released
     */
    public void check() {
        grant.check();
        if (!grant.isOpen(this)) {
            throw new LockLostException(grant.name, "it was released");
        }
    }

    /** Returns whether the hold is certain. */
    public boolean isHeld() {
        return grant.isHeld() && grant.isOpen(this);
    }

    /** Returns the time for which the hold is certain, zero once it is uncertain. */
    public Duration remaining() {
        return isHeld() ? Duration.ofNanos(Math.max(0, grant.left())) : Duration.ZERO;
    }

    /** Returns whether renewals are failing while the hold is still valid. Start no new work meanwhile. */
    public boolean isAtRisk() {
        return grant.isAtRisk() && isHeld();
    }

    @Override
    public String toString() {
        return "Hold of " + name() + " (" + kind().word() + "), " + (isHeld() ? "held" : "not held");
    }

    /** Calls the listener once, in a thread of the library, when the hold is lost. */
    public void onLost(Consumer<LockLostException> listener) {
        grant.whenLost(this, listener);
    }

    /** Calls the listener, in a thread of the library, whenever renewals begin to fail. */
    public void onRisk(Runnable listener) {
        grant.whenAtRisk(this, listener);
    }

    /**
     * Sets a fixed lease from now and ends renewal.
     *
     * @throws IllegalArgumentException if the lease is shorter than a millisecond
     * @throws LockLostException if the hold has been lost
     */
    public void extend(Duration lease) {
        if (lease.toMillis() <= 0) {
            throw new IllegalArgumentException("a lease must be positive: " + lease);
        }
        check();
        session.extend(grant, lease.toMillis());
    }

    /**
     * Ends a fixed lease: the agent renews the hold from now on.
     *
     * @throws LockLostException if the hold has been lost
     */
    public void renew() {
        check();
        session.extend(grant, 0);
    }

    /**
     * Releases the hold. Further calls do nothing.
     *
     * @throws LockLostException if the hold was lost before
     */
    @Override
    public void close() {
        closeIfOpen();
    }

    /** Releases the hold as {@link #close} does. Returns whether it was open. */
    boolean closeIfOpen() {
        return session.release(this, grant);
    }
}

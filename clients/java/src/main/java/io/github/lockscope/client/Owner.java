package io.github.lockscope.client;

import java.util.Collection;

/**
 * An owner of locks that is not a thread, for work that moves between threads. Owners exclude each other, and each can
 * reenter its locks. Commands of one owner run one after another.
 */
public final class Owner {
    private final Agent agent;
    /** The session that serves this owner. Guarded by the agent object. */
    Session session;

    Owner(Agent agent) {
        this.agent = agent;
    }

    /** Returns the plain lock of this name, for this owner. */
    public NamedLock lock(String name) {
        return lock(name, Kind.PLAIN);
    }

    /** Returns the lock of this name and kind, for this owner. */
    public NamedLock lock(String name, Kind kind) {
        return new NamedLock(agent, () -> this, Request.of(name, kind));
    }

    /** Returns a set of plain locks for this owner, of which all or none are acquired. */
    public LockSet lockAll(Collection<String> names) {
        return new LockSet(agent, () -> this, names);
    }

    /** Returns whether this owner holds no lock and waits for none. */
    public boolean isIdle() {
        return agent.isIdle(this);
    }
}

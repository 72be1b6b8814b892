package io.github.lockscope.client;

import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** Follows the deadlines of a session's grants as the agent renews them. */
final class Renewals {
    /** Renewed deadlines are read again after the remaining validity divided by this. */
    private static final long DIVISOR = 3;
    private static final long SHORTEST_PAUSE = TimeUnit.MILLISECONDS.toNanos(50);

    private final Engine engine;
    private final Session session;
    private final Link link;
    private final Grants grants;

    // Guarded by this.
    private ScheduledFuture<?> timer;
    private boolean stopped;
    /** The deadlines are being read. */
    private boolean reading;

    Renewals(Engine engine, Session session, Link link, Grants grants) {
        this.engine = engine;
        this.session = session;
        this.link = link;
        this.grants = grants;
    }

    /**
     * Sets the timer for the next deadline, or for the next reading of renewed ones unless one is in progress. The
     * reading also proves that the agent has the session, from which its grace would count, or requests a grace that the
     * agent could not give before.
     */
    synchronized void arm() {
        long next = Interruption.FOREVER;
        for (var grant : grants.all()) {
            if (grant.isHeld()) {
                next = Math.min(next, grant.isRenewed() && !reading ? grant.left() / DIVISOR : grant.left());
                if (link.grace() > 0 && !reading) {
                    next = Math.min(next, link.grace() / DIVISOR);
                }
            }
        }
        if (timer != null) {
            timer.cancel(false);
            timer = null;
        }
        if (next != Interruption.FOREVER && !stopped) {
            timer = engine.after(Math.max(next, SHORTEST_PAUSE), () -> engine.run(this::tend));
        }
    }

    synchronized void stop() {
        stopped = true;
        if (timer != null) {
            timer.cancel(false);
        }
    }

    /** Ends grants whose deadline has passed, and reads the deadlines of the others. */
    void tend() {
        boolean live = false;
        for (var grant : grants.all()) {
            live = grant.isHeld() || live;
        }
        if (live && link.isConnected() && beginReading()) {
            arm(); // A deadline may pass before the agent answers.
            try {
                if (!session.ifFree(this::refreshWithGrace)) {
                    refreshFromOutside();
                }
            } finally {
                endReading();
            }
        }
        arm();
    }

    /** Returns whether no other reading of the deadlines is in progress. */
    private synchronized boolean beginReading() {
        boolean begins = !reading;
        reading = true;
        return begins;
    }

    private synchronized void endReading() {
        reading = false;
    }

    private void refreshWithGrace() {
        refresh();
        try {
            link.requestGrace();
        } catch (Failure failure) {
            return; // The next reading requests it again.
        }
    }

    /**
     * Reads the deadlines on the owner's connection, for which the caller must have the turn. Only what has the turn
     * records grants, so a grant that is not listed was recorded before.
     */
    void refresh() {
        var connection = link.connection();
        long sent = BootClock.atLeast();
        long asked = System.nanoTime();
        try {
            var rows = Fields.list(link.call("HOLDS"));
            link.ifCurrent(connection, () -> grants.renew(rows, sent, asked));
            grants.endUnlisted(rows);
        } catch (Failure failure) {
            // The next connection brings the list, or the deadlines end the grants.
            return;
        }
    }

    /**
     * Reads the deadlines on another connection: on the owner's, the reply would arrive only after the wait for a lock.
     */
    private void refreshFromOutside() {
        var connection = link.connection();
        long sent = BootClock.atLeast();
        long asked = System.nanoTime();
        try {
            var rows = Fields.list(link.holdsFromOutside());
            link.ifCurrent(connection, () -> grants.renew(rows, sent, asked));
        } catch (Failure failure) {
            return;
        }
    }
}

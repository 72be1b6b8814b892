package io.github.lockscope.client;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.Consumer;

/** A granted lock, shared by the holds of an owner that reentered it. */
final class Grant {
    final String name;
    final Kind kind;
    final String holder;
    final OptionalLong token;
    private final Engine engine;

    // Guarded by this.
    private boolean renewed;
    private long deadline;
    /**
     * When another command than HOLDS last set it, by {@link System#nanoTime}: the reply to an earlier HOLDS may be
     * older.
     */
    private long dated = System.nanoTime();
    /** An earlier deadline, while a new lease is being set. */
    private long ceiling = Long.MAX_VALUE;
    /** The validity that renewal gives, as far as is known. */
    private long watched = Connection.REPLY_LIMIT;
    private long count;
    /** True if the last hold was certain when its release was sent. */
    private boolean releasing;
    private final Deque<Hold> open = new ArrayDeque<>();
    private boolean atRisk;
    private String lossReason;

    Grant(Engine engine, String name, Kind kind, String holder, OptionalLong token) {
        this.engine = engine;
        this.name = name;
        this.kind = kind;
        this.holder = holder;
        this.token = token;
    }

    /** Returns whether the hold is certain. Once it is uncertain, it remains so. */
    synchronized boolean isHeld() {
        if (lossReason == null && left() <= 0) {
            lose("its deadline has passed");
        }
        return lossReason == null;
    }

    /** Throws unless the hold is certain. */
    void check() {
        if (!isHeld()) {
            throw loss();
        }
    }

    /** Throws if the hold has been lost. */
    synchronized void checkNotLost() {
        if (lossReason != null) {
            throw loss();
        }
    }

    synchronized LockLostException loss() {
        return new LockLostException(name, lossReason);
    }

    synchronized void lose(String reason) {
        if (lossReason != null) {
            return;
        }
        lossReason = reason;
        open.forEach(hold -> hold.lossListeners.forEach(this::report));
    }

    /** Ends a grant of which the agent holds nothing any more. */
    synchronized void loseAll(String reason) {
        count = 0;
        lose(reason);
    }

    /** Ends a grant that the agent does not list, without a loss if only the reply to its release was lost. */
    synchronized void endUnlisted() {
        count = 0;
        if (!releasing) {
            lose("the agent does not hold it any more");
        }
    }

    /** Returns whether a loss was noticed. */
    synchronized boolean hasEnded() {
        return lossReason != null;
    }

    /** Records an event that the agent reports. */
    synchronized void apply(List<Object> event) {
        switch (Fields.text(event.get(0))) {
            case "lock-lost" -> loseAll(Fields.text(event.get(event.size() - 1)));
            case "lock-jeopardy" -> setAtRisk(true);
            case "lock-safe" -> setAtRisk(false);
            default -> { }
        }
    }

    synchronized void whenLost(Hold hold, Consumer<LockLostException> listener) {
        hold.lossListeners.add(listener);
        if (lossReason != null && isOpen(hold)) {
            report(listener);
        }
    }

    private void report(Consumer<LockLostException> listener) {
        var loss = loss();
        engine.run(() -> listener.accept(loss));
    }

    synchronized void whenAtRisk(Hold hold, Runnable listener) {
        hold.riskListeners.add(listener);
    }

    synchronized void setAtRisk(boolean atRisk) {
        if (atRisk && !this.atRisk && lossReason == null) {
            open.forEach(hold -> hold.riskListeners.forEach(engine::run));
        }
        this.atRisk = atRisk;
    }

    synchronized boolean isAtRisk() {
        return atRisk && isHeld();
    }

    /** Records a grant or a reentry that the agent reports. */
    synchronized void granted(long count, boolean fixed, long deadline) {
        this.count = count;
        renewed = renewed || !fixed;
        this.deadline = Math.max(this.deadline, deadline);
        dated = System.nanoTime();
    }

    /**
     * Records a deadline in a list that was requested at the instant {@code asked} of {@link System#nanoTime}, unless the
     * previous one has passed. Redis may have set a shorter fixed lease than the agent knows.
     */
    synchronized void renew(long deadline, long asked) {
        if (isHeld() && asked - dated >= 0 && (renewed || deadline < this.deadline)) {
            this.deadline = deadline;
        }
    }

    /** Records the deadline in the list of a resumed session, unless the previous one has passed. */
    synchronized void resume(long deadline) {
        if (isHeld()) {
            this.deadline = deadline;
        }
        dated = System.nanoTime();
    }

    /**
     * Records the time left as the validity that renewal gives, unless this is a reentry, which may find a fixed
     * lease.
     */
    synchronized void noteWatched() {
        if (count == 1) {
            watched = left();
        }
    }

    /**
     * Limits the deadline to the new lease, counted from the instant {@code sent}, until the reply arrives.
     *
     * @param lease the lease in nanoseconds, 0 for renewal
     */
    synchronized void extending(long sent, long lease) {
        ceiling = sent + (lease > 0 ? lease : watched);
    }

    /** Records the reply to an extension, unless the previous deadline has passed. */
    synchronized void extended(boolean renewed, long deadline) {
        if (isHeld()) {
            this.renewed = renewed;
            this.deadline = deadline;
        }
        ceiling = Long.MAX_VALUE;
        dated = System.nanoTime();
    }

    /** Records that an extension failed. Unless it {@code surely} did, the earlier of the two deadlines counts. */
    synchronized void notExtended(boolean surely) {
        isHeld(); // Ends the grant if its deadline has passed.
        if (!surely) {
            deadline = Math.min(deadline, ceiling);
        }
        ceiling = Long.MAX_VALUE;
        dated = System.nanoTime();
    }

    /** Moves a later deadline to this instant. */
    synchronized void limitTo(long limit) {
        deadline = Math.min(deadline, limit);
    }

    synchronized long deadline() {
        return deadline;
    }

    synchronized long left() {
        return Math.min(deadline, ceiling) - BootClock.atMost();
    }

    /** Returns whether renewals move the deadline, so that it must be read again. */
    synchronized boolean isRenewed() {
        return renewed && ceiling == Long.MAX_VALUE;
    }

    /** Returns whether a reader's entries are left, each with a fixed lease that ends with it. */
    synchronized boolean hasFixedEntries() {
        return count > 0 && kind == Kind.READ && !renewed;
    }

    synchronized void setCount(long count) {
        this.count = count;
    }

    /** Notes that a release is being sent. */
    synchronized void noteRelease() {
        releasing = isHeld() && open.isEmpty();
    }

    synchronized void releaseOne() {
        count--;
    }

    /** Returns whether the agent has more holds than are open here. */
    synchronized boolean hasSurplus() {
        return count > open.size();
    }

    /** Opens a hold. The agent may have granted it to a call whose reply was lost. */
    synchronized void open(Hold hold, boolean fixed) {
        renewed = !fixed || (renewed && !open.isEmpty());
        open.push(hold);
    }

    /** Closes a hold, and returns whether it was open. */
    synchronized boolean close(Hold hold) {
        return open.remove(hold);
    }

    synchronized boolean isOpen(Hold hold) {
        return open.contains(hold);
    }

    synchronized int openHolds() {
        return open.size();
    }

    /** Returns the open hold that was opened last, null if there is none. */
    synchronized Hold newest() {
        return open.peek();
    }
}

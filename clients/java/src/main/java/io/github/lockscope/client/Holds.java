package io.github.lockscope.client;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/** Several locks that were acquired together. They end with {@link #close}. */
public final class Holds implements AutoCloseable {
    private final List<Hold> all;

    Holds(List<Hold> all) {
        this.all = List.copyOf(all);
    }

    /** Returns the holds in the order in which their names were given. */
    public List<Hold> all() {
        return all;
    }

    /**
     * Checks that every hold is certain.
     *
     * @throws LockLostException if one is not
     */
    public void check() {
        all.forEach(Hold::check);
    }

    /** Returns the time for which all holds are certain, zero once one is uncertain. */
    public Duration remaining() {
        return all.stream().map(Hold::remaining).min(Duration::compareTo).orElse(Duration.ZERO);
    }

    /** Calls the listener for each hold that is lost. */
    public void onLost(Consumer<LockLostException> listener) {
        all.forEach(hold -> hold.onLost(listener));
    }

    /** Calls the listener whenever renewals of a hold begin to fail. */
    public void onRisk(Runnable listener) {
        all.forEach(hold -> hold.onRisk(listener));
    }

    /**
     * Releases all of them. Further calls do nothing.
     *
     * @throws LockLostException if one was lost before
     */
    @Override
    public void close() {
        LockscopeException first = null;
        for (var hold : all) {
            try {
                hold.close();
            } catch (LockscopeException error) {
                if (first == null) {
                    first = error;
                } else {
                    first.addSuppressed(error);
                }
            }
        }
        if (first != null) {
            throw first;
        }
    }
}

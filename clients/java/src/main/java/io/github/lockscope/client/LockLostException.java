package io.github.lockscope.client;

/** A hold has ended, and not by its owner: stop working under the lock. */
public final class LockLostException extends LockscopeException {
    private static final long serialVersionUID = 1;

    private final String lock;
    private final String reason;

    LockLostException(String lock, String reason) {
        super("lost " + lock + ": " + reason);
        this.lock = lock;
        this.reason = reason;
    }

    /** Returns the name of the lock. */
    public String lock() {
        return lock;
    }

    /** Returns the agent's reason, such as {@code missing}, {@code expired} or {@code forced}, or a sentence. */
    public String reason() {
        return reason;
    }
}

package io.github.lockscope.client;

/** A failure of a lock or of the agent. */
public abstract class LockscopeException extends RuntimeException {
    private static final long serialVersionUID = 1;

    LockscopeException(String message) {
        super(message);
    }
}

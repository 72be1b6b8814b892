package io.github.lockscope.client;

/** A lock could not be acquired in time. */
public final class LockTimeoutException extends LockscopeException {
    private static final long serialVersionUID = 1;

    LockTimeoutException(String message) {
        super(message);
    }
}

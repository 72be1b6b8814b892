package io.github.lockscope.client;

/** The agent cannot be reached, or it cannot reach Redis. */
public class UnavailableException extends LockscopeException {
    private static final long serialVersionUID = 1;

    UnavailableException(String message) {
        super(message);
    }

    static UnavailableException closed() {
        return new UnavailableException("this Agent is closed");
    }
}

package io.github.lockscope.client;

/** The agent is shutting down and grants no more locks. */
public final class DrainingException extends UnavailableException {
    private static final long serialVersionUID = 1;

    DrainingException(String message) {
        super(message);
    }
}

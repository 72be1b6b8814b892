package io.github.lockscope.client;

/** The agent refuses a request. */
public final class RejectedException extends LockscopeException {
    private static final long serialVersionUID = 1;

    private final String code;

    RejectedException(String code, String message) {
        super(message);
        this.code = code;
    }

    /** Returns the agent's code, such as {@code WRONGKIND}, {@code DENIED} or {@code DEADLOCK}. */
    public String code() {
        return code;
    }
}

package io.github.lockscope.client;

/** A command without a good reply. */
final class Failure extends Exception {
    private static final long serialVersionUID = 1;

    private final String code;

    private Failure(String code, String message) {
        super(message, null, false, false);
        this.code = code;
    }

    /** A failure that the agent reported. */
    static Failure reply(String message) {
        int end = message.indexOf(' ');
        return new Failure(end < 0 ? message : message.substring(0, end), message);
    }

    /** A connection without a reply. */
    static Failure disconnected(String message) {
        return new Failure("", message);
    }

    /** Returns the agent's code, empty without a reply. */
    String code() {
        return code;
    }

    boolean isDisconnected() {
        return code.isEmpty();
    }

    /** Returns the exception that callers see. */
    LockscopeException toException() {
        return switch (code) {
            case "", "UNAVAILABLE" -> new UnavailableException(getMessage());
            case "DRAINING" -> new DrainingException(getMessage());
            default -> new RejectedException(code, getMessage());
        };
    }
}

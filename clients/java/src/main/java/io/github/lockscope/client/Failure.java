package io.github.lockscope.client;

/** The failure of a command: an error reply, or no reply. */
final class Failure extends Exception {
    private static final long serialVersionUID = 1;

    private final String code;

    private Failure(String code, String message) {
        super(message, null, false, false);
        this.code = code;
    }

    /** Returns a failure that the agent reported. */
    static Failure reply(String message) {
        int end = message.indexOf(' ');
        return new Failure(end < 0 ? message : message.substring(0, end), message);
    }

    /** Returns the failure of a command whose connection brought no reply. */
    static Failure disconnected(String message) {
        return new Failure("", message);
    }

    /** Returns the agent's error code, empty if there was no reply. */
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

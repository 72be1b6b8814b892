package io.github.lockscope.client;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A session's connection to the agent, and the connections that resume it. */
final class Link implements Connection.Listener {
    static final long RETRY_PAUSE = TimeUnit.MILLISECONDS.toNanos(100);
    /**
     * The shortest time limit for opening a connection, however short the wait is: the agent may take this long to
     * answer.
     */
    static final long LEAST_LIMIT = TimeUnit.SECONDS.toNanos(2);

    /** Receives the events of a connection. Its methods must not block. */
    interface Listener {
        /**
         * Called when a connection has been made, with the holds of a resumed session as the agent listed them in reply
         * to a command sent at the instant {@code sent}.
         */
        void onConnect(Collection<?> holds, long sent);

        void onPush(List<Object> event);

        /** Called when a session has been resumed, before pushes begin, and with false if they do not. */
        void onResume(boolean resumed);

        /** Called when a connection has ended. The session can be resumed until the instant {@code limit}. */
        void onDisconnect(long limit);

        /** Called when a command went unanswered and there is no connection. */
        void onDoubt();

        /** Called when the session has ended, and with it all its holds. */
        void onEnd(String reason);
    }

    private final Engine engine;
    private final Path path;
    private final long grace;
    private final Listener listener;

    // Guarded by this.
    private Connection connection;
    private String id = "";
    private String secret = "";
    /** The grace that the agent gives this session. */
    private long given;
    /** The last instant at which the agent certainly had this session. */
    private long proven;
    /** True after a command went unanswered: the agent may have holds that are unknown here. */
    private boolean uncertain;
    private boolean closing;

    Link(Engine engine, Path path, Duration grace, Listener listener) {
        this.engine = engine;
        this.path = path;
        this.grace = TimeUnit.NANOSECONDS.convert(grace);
        this.listener = listener;
    }

    /** Returns the connection, null if there is none. */
    synchronized Connection connection() {
        return connection;
    }

    synchronized boolean isConnected() {
        return connection != null;
    }

    /**
     * Runs the work if this connection is still the current one, and returns whether it was run. If the connection ends
     * meanwhile, that is handled after the work.
     */
    synchronized boolean ifCurrent(Connection expected, Runnable work) {
        if (connection == null || connection != expected) {
            return false;
        }
        work.run();
        return true;
    }

    synchronized boolean isUncertain() {
        return uncertain;
    }

    synchronized boolean isClosing() {
        return closing;
    }

    synchronized String id() {
        return id;
    }

    synchronized long given() {
        return given;
    }

    /** Returns whether the agent gives this session the grace that it wants. */
    boolean isGraced() {
        return given() == grace;
    }

    /** Returns the grace that this session wants. */
    long grace() {
        return grace;
    }

    /** Returns the instant until which the session can be resumed. */
    private synchronized long limit() {
        return proven + given;
    }

    synchronized void prove(long sent) {
        proven = Math.max(proven, sent);
    }

    /** Makes the next connection a new session. */
    synchronized void forget() {
        id = "";
    }

    /** Connects, or resumes the session, and retries until the instant {@code end}. */
    void connect(long end, Interruption interruption) throws InterruptedException {
        while (true) {
            if (isClosing()) {
                throw UnavailableException.closed();
            }
            if (isConnected()) {
                return;
            }
            LockscopeException error;
            try {
                open(end, interruption);
                continue;
            } catch (IOException failure) {
                error = absent(failure);
            } catch (Failure failure) {
                switch (failure.code()) {
                    case "" -> error = absent(failure);
                    case "GONE" -> {
                        end("the agent has ended the session");
                        continue;
                    }
                    case "SESSION", "UNAVAILABLE", "DRAINING" -> error = failure.toException();
                    default -> throw failure.toException();
                }
            }
            if (!isClosing() && BootClock.atMost() >= end) {
                throw error;
            }
            interruption.pause(RETRY_PAUSE);
        }
    }

    private UnavailableException absent(Exception cause) {
        return new UnavailableException("no agent at " + path + ": " + cause.getMessage());
    }

    /** Tries once to connect, until the instant {@code end}, but for at least {@link #LEAST_LIMIT}. */
    private void open(long end, Interruption interruption) throws IOException, Failure, InterruptedException {
        long left = Math.min(Math.max(end - BootClock.atMost(), LEAST_LIMIT), Connection.REPLY_LIMIT);
        long begun = System.nanoTime();
        var fresh = Connection.open(path, engine, this, left, interruption);
        var limit = engine.after(left - (System.nanoTime() - begun), fresh::close);
        long sent = BootClock.atLeast();
        Listed listed;
        try {
            listed = begin(fresh, interruption);
        } catch (Failure failure) {
            fresh.close();
            throw limit.getDelay(TimeUnit.NANOSECONDS) <= 0 ? Failure.disconnected("no reply in time") : failure;
        } finally {
            limit.cancel(false);
        }
        boolean late;
        synchronized (this) {
            late = closing;
            if (!late) {
                connection = fresh;
                proven = sent;
                uncertain = false;
            }
        }
        if (late) {
            forget();
            fresh.quit();
            return;
        }
        listener.onConnect(listed.holds(), listed.sent());
        if (fresh.isClosed()) {
            onClose(fresh);
        }
    }

    /** A session's holds, in reply to a command sent at that instant. */
    private record Listed(List<?> holds, long sent) {
        static Listed none() {
            return new Listed(List.of(), BootClock.atLeast());
        }
    }

    /**
     * Begins a session on a connection, or resumes the existing one. Returns the session's holds, which are read once the
     * agent reports losses: one before PUSH on is never reported.
     */
    private Listed begin(Connection fresh, Interruption interruption) throws Failure, InterruptedException {
        String id;
        String secret;
        synchronized (this) {
            id = this.id;
            secret = this.secret;
        }
        if (!id.isEmpty()) {
            remember(fresh.call(interruption, "RESUME", id, secret), given());
            // After it, the agent reports the holds that are at risk.
            listener.onResume(true);
            boolean pushes = false;
            try {
                fresh.call(interruption, "SESSION", "PUSH", "on", "PROCESS", "on");
                long sent = BootClock.atLeast();
                var holds = Fields.list(fresh.call(interruption, "HOLDS"));
                pushes = true;
                return new Listed(holds, sent);
            } finally {
                if (!pushes) {
                    listener.onResume(false);
                }
            }
        }
        if (grace > 0) {
            try {
                remember(fresh.call(interruption, gracedSession()), grace);
                return Listed.none();
            } catch (Failure failure) {
                // An agent without a journal grants locks but no grace.
                if (!failure.code().equals("UNAVAILABLE")) {
                    throw failure;
                }
            }
        }
        remember(fresh.call(interruption, "SESSION", "PUSH", "on"), 0);
        return Listed.none();
    }

    private Object[] gracedSession() {
        // With PROCESS the grace ends with this process, since nothing else knows the secret.
        return new Object[] {
            "SESSION", "GRACE", TimeUnit.NANOSECONDS.toMillis(grace), "PUSH", "on", "PROCESS", "on"
        };
    }

    /** Requests the grace that the agent could not give before. The caller must have the turn. */
    void requestGrace() throws Failure {
        if (!isGraced()) {
            remember(call(gracedSession()), grace);
        }
    }

    private synchronized void remember(Object reply, long grace) {
        var ticket = Fields.map(reply);
        given = grace;
        id = Fields.text(ticket.get("id"));
        secret = Fields.text(ticket.get("secret"));
    }

    /** Runs a command in this session that does not wait for a lock. */
    Object call(Object... words) throws Failure {
        var current = connection();
        if (current == null) {
            throw Failure.disconnected("not connected to the agent");
        }
        long sent = BootClock.atLeast();
        try {
            var reply = current.call(words);
            prove(sent);
            return reply;
        } catch (Failure failure) {
            if (failure.isDisconnected()) {
                doubt(current);
            } else {
                prove(sent);
            }
            throw failure;
        }
    }

    /** Ends the wait in progress in this session. */
    void cancel() throws Failure {
        callOutside("CANCEL");
    }

    /** Lists the holds of this session, without waiting for the replies to its earlier commands. */
    Object holdsFromOutside() throws Failure {
        long sent = BootClock.atLeast();
        var rows = callOutside("HOLDS");
        prove(sent);
        return rows;
    }

    /** Runs a command about this session on a separate connection. */
    private Object callOutside(String command) throws Failure {
        String id;
        String secret;
        synchronized (this) {
            id = this.id;
            secret = this.secret;
        }
        return callOnce(engine, path, command, id, secret);
    }

    /** Runs one command on a separate connection. */
    static Object callOnce(Engine engine, Path path, Object... words) throws Failure {
        Connection once;
        try {
            once = Connection.open(path, engine, new Ignored(), Connection.REPLY_LIMIT, Interruption.DEFERRED);
        } catch (IOException error) {
            throw Failure.disconnected("no agent at " + path + ": " + error.getMessage());
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
        try {
            return once.call(words);
        } finally {
            once.close();
        }
    }

    private static final class Ignored implements Connection.Listener {
        @Override
        public void onPush(List<Object> event) {}

        @Override
        public void onClose(Connection connection) {}
    }

    /**
     * Closes a connection on which a command went unanswered. Resuming the session settles the effect of the command.
     */
    void doubt(Connection unsure) {
        synchronized (this) {
            uncertain = true;
        }
        unsure.close();
        onClose(unsure); // Another thread may be closing it, and not have come so far yet.
        if (!isConnected()) {
            listener.onDoubt();
        }
    }

    @Override
    public void onPush(List<Object> event) {
        listener.onPush(event);
    }

    @Override
    public void onClose(Connection ended) {
        synchronized (this) {
            if (connection != ended) {
                return;
            }
            connection = null;
        }
        listener.onDisconnect(limit());
    }

    /** Gives up a session that cannot be resumed. */
    void end(String reason) {
        synchronized (this) {
            id = "";
            uncertain = false;
        }
        listener.onEnd(reason);
    }

    /** Makes {@link #connect} fail from now on. */
    synchronized void beginClosing() {
        closing = true;
    }

    /** Ends the session here and at the agent. */
    void close() {
        beginClosing();
        var last = connection();
        if (last != null) {
            last.quit();
        }
    }

    /** Ends a session without a connection at the agent, on a new one. The caller must have the turn. */
    void endAtAgent() {
        if (id().isEmpty()) {
            return;
        }
        try {
            open(BootClock.atLeast(), Interruption.DEFERRED);
        } catch (IOException | Failure absent) {
            // The agent ends the session after its grace.
            return;
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
    }
}

package io.github.lockscope.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.CancelledKeyException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.TimeUnit;

/** Speaks RESP3 over a Unix socket. Replies arrive in the order of the commands. */
final class Connection {
    /** The time limit for replies that do not wait for a lock. The agent itself answers within about two seconds. */
    static final long REPLY_LIMIT = TimeUnit.SECONDS.toNanos(10);

    /**
     * The time after its limit within which the reply to a wait must arrive. Redis may leave the last attempt
     * unanswered for two seconds, and then the release of what it acquired for another two.
     */
    static final long ANSWER_MARGIN = TimeUnit.SECONDS.toNanos(5);

    /** Receives pushes and the end of the connection. Its methods must not block. */
    interface Listener {
        void onPush(List<Object> event);

        /** Called when the connection has ended, before the commands without a reply fail. */
        void onClose(Connection connection);
    }

    private final SocketChannel channel;
    private final Poller poller;
    private final Listener listener;
    private final RespReader reader = new RespReader();
    private volatile SelectionKey key;
    private boolean greeted;
    /** The reason that an agent that refuses the connection gives in place of its first reply. */
    private volatile String refusal;

    // Guarded by this.
    private final Queue<Reply> pending = new ArrayDeque<>();
    private final Deque<ByteBuffer> unsent = new ArrayDeque<>();
    private boolean blocked;
    /** True once the agent accepts nothing more. */
    private boolean unwritable;
    private boolean closed;

    private Connection(SocketChannel channel, Poller poller, Listener listener) {
        this.channel = channel;
        this.poller = poller;
        this.listener = listener;
    }

    /** Connects within the limit in nanoseconds. */
    static Connection open(Path path, Engine engine, Listener listener, long limit, Interruption interruption)
            throws IOException, InterruptedException {
        var channel = connect(path, engine, limit, interruption);
        try {
            channel.configureBlocking(false);
            var connection = new Connection(channel, engine.poller, listener);
            connection.key = engine.poller.register(channel, connection);
            connection.send(hello());
            return connection;
        } catch (IOException error) {
            channel.close();
            throw error;
        }
    }

    /** Returns the first command of a connection. It names the connection as {@code LOCKSCOPE_NAME} says. */
    private static Object[] hello() {
        var given = System.getenv("LOCKSCOPE_NAME");
        var name = given == null ? "" : given.replaceAll("[^!-~]", "");
        if (name.isEmpty()) {
            return new Object[] {"HELLO", 3};
        }
        return new Object[] {"HELLO", 3, "SETNAME", name.substring(0, Math.min(name.length(), 100))};
    }

    /** An interrupt closes a channel that is connecting. If it is deferred, another channel is tried. */
    private static SocketChannel connect(Path path, Engine engine, long limit, Interruption interruption)
            throws IOException, InterruptedException {
        long end = System.nanoTime() + limit;
        boolean interrupted = false;
        try {
            while (true) {
                if (Thread.interrupted()) {
                    if (interruption == Interruption.ENDS) {
                        throw new InterruptedException();
                    }
                    interrupted = true;
                }
                var channel = SocketChannel.open(StandardProtocolFamily.UNIX);
                var overdue = engine.after(end - System.nanoTime(), () -> closeQuietly(channel));
                try {
                    channel.connect(UnixDomainSocketAddress.of(path));
                    return channel;
                } catch (ClosedByInterruptException interrupt) {
                    continue;
                } catch (ClosedChannelException late) {
                    throw new IOException("it accepts no connection", late);
                } catch (IOException error) {
                    closeQuietly(channel);
                    throw error;
                } finally {
                    overdue.cancel(false);
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Sends a command of strings and whole numbers. */
    Reply send(Object... words) {
        var reply = new Reply();
        boolean broken = false;
        synchronized (this) {
            if (closed) {
                reply.fail(disconnected());
                return reply;
            }
            pending.add(reply);
            if (!unwritable) {
                unsent.add(ByteBuffer.wrap(encode(words)));
            }
            try {
                flush();
            } catch (IOException | CancelledKeyException error) {
                broken = true;
            }
        }
        if (broken) {
            close();
        }
        return reply;
    }

    /** Sends a command and waits for its reply. Closes the connection if no reply arrives in time. */
    Object call(Object... words) throws Failure {
        try {
            return call(Interruption.DEFERRED, words);
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
    }

    /**
     * Sends a command and waits for its reply. Closes the connection if no reply arrives in time, or if an interrupt
     * ends the wait.
     */
    Object call(Interruption interruption, Object... words) throws Failure, InterruptedException {
        var reply = send(words);
        boolean arrived;
        try {
            arrived = interruption.await(REPLY_LIMIT, reply::await);
        } catch (InterruptedException interrupt) {
            close();
            throw interrupt;
        }
        if (!arrived) {
            close();
            long seconds = TimeUnit.NANOSECONDS.toSeconds(REPLY_LIMIT);
            throw Failure.disconnected("no reply to " + words[0] + " within " + seconds + " s");
        }
        return reply.get();
    }

    /** Ends the session at the agent, waits for that for up to a second, and closes the connection. */
    void quit() {
        send("QUIT");
        // The end of the connection fails this command.
        var ended = send("PING");
        Interruption.deferring(TimeUnit.SECONDS.toNanos(1), ended::await);
        close();
    }

    synchronized boolean isClosed() {
        return closed;
    }

    /** Closes the connection and notifies the listener before the commands without a reply fail. */
    void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        closeQuietly(channel);
        poller.wakeUp();
        listener.onClose(this);
        List<Reply> unanswered;
        synchronized (this) {
            unanswered = new ArrayList<>(pending);
            pending.clear();
        }
        unanswered.forEach(reply -> reply.fail(disconnected()));
    }

    /** Reads and writes what is possible without waiting. Called by the poller. */
    void onReady() {
        try {
            synchronized (this) {
                flush();
            }
            int count;
            while ((count = channel.read(reader.room())) > 0) {
                reader.arrived(count);
                while (reader.next()) {
                    dispatch(reader.value());
                }
            }
            if (count < 0) {
                close();
            }
        } catch (IOException | RuntimeException error) {
            close();
        }
    }

    private void dispatch(Object value) throws IOException {
        if (value instanceof RespReader.Push push) {
            listener.onPush(push.items());
            return;
        }
        if (!greeted && value instanceof Failure failure) {
            refusal = failure.getMessage();
        }
        greeted = true;
        Reply reply;
        synchronized (this) {
            reply = pending.poll();
        }
        if (reply == null) {
            throw new IOException("the agent sent a reply to nothing");
        }
        if (value instanceof Failure failure) {
            reply.fail(failure);
        } else {
            reply.complete(value);
        }
    }

    /**
     * Writes what the socket accepts; the poller continues with the rest. If the agent has closed the connection, the
     * poller first reads what it sent before, which may be its reason, and then closes.
     */
    private void flush() throws IOException {
        while (!unsent.isEmpty()) {
            var bytes = unsent.peek();
            try {
                channel.write(bytes);
            } catch (ClosedChannelException closedHere) {
                throw closedHere;
            } catch (IOException closedByAgent) {
                unwritable = true;
                unsent.clear();
                continue;
            }
            if (bytes.hasRemaining()) {
                blocked = true;
                key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                poller.wakeUp();
                return;
            }
            unsent.remove();
        }
        if (blocked) {
            blocked = false;
            key.interestOps(SelectionKey.OP_READ);
        }
    }

    private static byte[] encode(Object... words) {
        var bytes = new ByteArrayOutputStream();
        bytes.writeBytes(ascii("*" + words.length + "\r\n"));
        for (var word : words) {
            byte[] text = word.toString().getBytes(StandardCharsets.UTF_8);
            bytes.writeBytes(ascii("$" + text.length + "\r\n"));
            bytes.writeBytes(text);
            bytes.writeBytes(ascii("\r\n"));
        }
        return bytes.toByteArray();
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private Failure disconnected() {
        return Failure.disconnected("connection to the agent lost" + (refusal == null ? "" : ": " + refusal));
    }

    private static void closeQuietly(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException error) {
            // Nothing else can be done with it.
        }
    }
}

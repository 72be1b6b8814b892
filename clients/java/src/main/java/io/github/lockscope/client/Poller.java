package io.github.lockscope.client;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;

/** A thread that serves all connections. */
final class Poller {
    private final Selector selector;

    Poller() {
        try {
            selector = Selector.open();
        } catch (IOException error) {
            throw new UncheckedIOException("cannot open a selector", error);
        }
        Engine.daemon(this::run, "lockscope-io").start();
    }

    SelectionKey register(SocketChannel channel, Connection connection) throws IOException {
        try {
            var key = channel.register(selector, SelectionKey.OP_READ, connection);
            selector.wakeup();
            return key;
        } catch (ClosedSelectorException closed) {
            throw new IOException("this Agent is closed", closed);
        }
    }

    /** Applies changes to keys at once, such as after the close of a channel. */
    void wakeUp() {
        selector.wakeup();
    }

    void close() {
        try {
            selector.close();
        } catch (IOException error) {
            throw new UncheckedIOException("cannot close a selector", error);
        }
    }

    private void run() {
        try {
            while (selector.isOpen()) {
                selector.select(key -> ((Connection) key.attachment()).onReady());
            }
        } catch (ClosedSelectorException closed) {
            // The agent object was closed.
        } catch (IOException error) {
            throw new UncheckedIOException("cannot wait for replies of the agent", error);
        }
    }
}

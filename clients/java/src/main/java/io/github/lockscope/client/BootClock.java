package io.github.lockscope.client;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;

/**
 * The clock of deadlines: nanoseconds since the host booted, including the time it was suspended (CLOCK_BOOTTIME).
 *
 * <p>{@link System#nanoTime} stops during a suspend, so this reads {@code /proc/uptime}. The kernel cuts it to hundredths
 * of a second: an instant is known to lie between {@link #atLeast} and {@link #atMost}.
 */
final class BootClock {
    private static final long NANOS_PER_TICK = 10_000_000;
    private static final RandomAccessFile UPTIME = open();
    private static final byte[] BYTES = new byte[64];

    private BootClock() {}

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException error) {
            throw new UncheckedIOException("cannot open the clock /proc/uptime", error);
        }
    }

    /** Returns an instant that is not after now, to mark when something began. */
    static long atLeast() {
        return ticks() * NANOS_PER_TICK;
    }

    /** Returns an instant that is not before now, to compare with a deadline. */
    static long atMost() {
        return (ticks() + 1) * NANOS_PER_TICK;
    }

    // This is not a channel, which an interrupt of one thread would close for all threads.
    private static long ticks() {
        synchronized (BYTES) {
            try {
                UPTIME.seek(0);
                int size = UPTIME.read(BYTES);
                long ticks = 0;
                for (int i = 0; i < size && BYTES[i] != ' '; i++) {
                    if (BYTES[i] != '.') {
                        ticks = 10 * ticks + BYTES[i] - '0';
                    }
                }
                return ticks;
            } catch (IOException error) {
                throw new UncheckedIOException("cannot read the clock /proc/uptime", error);
            }
        }
    }
}

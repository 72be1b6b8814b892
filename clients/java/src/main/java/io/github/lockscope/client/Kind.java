package io.github.lockscope.client;

import java.util.Locale;

/** A kind of lock. All users of a name must use it as the same kind at any one time. */
public enum Kind {
    /** One holder: Redisson's {@code RLock}. */
    PLAIN("lock"),
    /** One holder, first come, first served among all clients: {@code RFairLock}. */
    FAIR,
    /** The side of any number of readers: {@code RReadWriteLock}. */
    READ,
    /** The side of one writer: {@code RReadWriteLock}. */
    WRITE,
    /** One holder, with a token that grows with each grant: {@code RFencedLock}. */
    FENCED,
    /** One holder, which holds the lock on a majority of several independent servers: {@code RedissonRedLock}. */
    RED;

    private final String word;

    Kind() {
        word = name().toLowerCase(Locale.ROOT);
    }

    Kind(String word) {
        this.word = word;
    }

    String word() {
        return word;
    }

    static Kind ofWord(String word) {
        for (var kind : values()) {
            if (kind.word.equals(word)) {
                return kind;
            }
        }
        return PLAIN;
    }
}

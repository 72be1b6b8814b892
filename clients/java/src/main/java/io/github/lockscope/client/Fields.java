package io.github.lockscope.client;

import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/** Reads values in the agent's replies as the types that the protocol defines. */
final class Fields {
    private Fields() {}

    /** Returns a string, empty if there is none. */
    static String text(Object value) {
        return value instanceof String text ? text : "";
    }

    static OptionalLong integer(Object value) {
        return value instanceof Long number ? OptionalLong.of(number) : OptionalLong.empty();
    }

    /** Returns a whole number, 0 if there is none. */
    static long number(Object value) {
        return integer(value).orElse(0);
    }

    /** Returns milliseconds as nanoseconds. */
    static long millis(Object value) {
        return TimeUnit.MILLISECONDS.toNanos(number(value));
    }

    static List<?> list(Object value) {
        return value instanceof List<?> list ? list : List.of();
    }

    static Map<?, ?> map(Object value) {
        return value instanceof Map<?, ?> map ? map : Map.of();
    }
}

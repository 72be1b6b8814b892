package io.github.lockscope.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads RESP2 and RESP3 values from bytes as they arrive: null, Boolean, Long, String, List, Map, {@link Push} or, for an
 * error, {@link Failure}.
 */
final class RespReader {
    /** An event that the agent sent unsolicited. */
    record Push(List<Object> items) {}

    private static final int SMALLEST = 8192;

    /** Ends the parsing of a value whose end has not arrived yet. */
    private static final class Incomplete extends Exception {
        private static final long serialVersionUID = 1;
        private static final Incomplete SIGNAL = new Incomplete();

        private Incomplete() {
            super(null, null, false, false);
        }
    }

    private byte[] bytes = new byte[SMALLEST];
    private int begin;
    private int end;
    private int at;
    private Object value;

    /** Returns a buffer for more bytes, whose number is then passed to {@link #arrived}. */
    ByteBuffer room() {
        if (begin > 0) {
            System.arraycopy(bytes, begin, bytes, 0, end - begin);
            end -= begin;
            begin = 0;
        }
        if (end == bytes.length) {
            bytes = Arrays.copyOf(bytes, 2 * end);
        }
        return ByteBuffer.wrap(bytes, end, bytes.length - end);
    }

    void arrived(int count) {
        end += count;
    }

    /** Moves to the next value, and returns whether it is complete. */
    boolean next() throws IOException {
        at = begin;
        try {
            value = parse();
        } catch (Incomplete incomplete) {
            return false;
        }
        begin = at;
        return true;
    }

    Object value() {
        return value;
    }

    private Object parse() throws IOException, Incomplete {
        String line = line();
        if (line.isEmpty()) {
            throw new IOException("the agent sent an empty line");
        }
        String rest = line.substring(1);
        switch (line.charAt(0)) {
            case '+', ',' -> {
                return rest;
            }
            case '-' -> {
                return Failure.reply(rest);
            }
            case ':' -> {
                return Long.valueOf(number(rest));
            }
            case '_' -> {
                return null;
            }
            case '#' -> {
                return rest.equals("t");
            }
            default -> {
                // All other types begin with a size.
            }
        }
        int size = Math.toIntExact(number(rest));
        if (size < 0) {
            return null;
        }
        return switch (line.charAt(0)) {
            case '$' -> blob(size);
            case '*', '~' -> items(size);
            case '>' -> new Push(items(size));
            case '%' -> map(size);
            default -> throw new IOException("the agent sent an unknown type: " + line);
        };
    }

    private static long number(String text) throws IOException {
        try {
            return Long.parseLong(text);
        } catch (NumberFormatException error) {
            throw new IOException("the agent sent no number: " + text, error);
        }
    }

    private String line() throws Incomplete {
        for (int i = at; i + 1 < end; i++) {
            if (bytes[i] == '\r' && bytes[i + 1] == '\n') {
                var line = new String(bytes, at, i - at, StandardCharsets.UTF_8);
                at = i + 2;
                return line;
            }
        }
        throw Incomplete.SIGNAL;
    }

    private String blob(int size) throws Incomplete {
        if (end - at < size + 2) {
            throw Incomplete.SIGNAL;
        }
        var blob = new String(bytes, at, size, StandardCharsets.UTF_8);
        at += size + 2;
        return blob;
    }

    private List<Object> items(int size) throws IOException, Incomplete {
        var items = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            items.add(parse());
        }
        return items;
    }

    private Map<String, Object> map(int size) throws IOException, Incomplete {
        var map = new LinkedHashMap<String, Object>();
        for (int i = 0; i < size; i++) {
            String name = Fields.text(parse());
            map.put(name, parse());
        }
        return map;
    }
}

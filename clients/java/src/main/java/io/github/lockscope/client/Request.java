package io.github.lockscope.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.nio.charset.StandardCharsets;

/** The locks of a request, and its options. Without a lease, the agent renews the locks. */
record Request(List<String> names, boolean several, Kind kind, Duration lease) {
    Request {
        names = List.copyOf(names);
        for (var name : names) {
            // Different names must not become the same bytes.
            if (!StandardCharsets.UTF_8.newEncoder().canEncode(name)) {
                throw new IllegalArgumentException("not a valid Unicode string: " + name);
            }
        }
        if (new HashSet<>(names).size() < names.size()) {
            throw new IllegalArgumentException("a name occurs twice: " + names);
        }
        if (lease != null && (lease.isNegative() || lease.isZero())) {
            throw new IllegalArgumentException("a lease must be positive: " + lease);
        }
    }

    static Request of(String name, Kind kind) {
        return new Request(List.of(name), false, kind, null);
    }

    Request withLease(Duration lease) {
        return new Request(names, several, kind, lease);
    }

    boolean isFixed() {
        return lease != null;
    }

    /** Returns the command. A negative wait has no limit. */
    Object[] words(long waitMillis, String session) {
        var words = new ArrayList<>();
        if (several) {
            words.add("MLOCK");
            words.add(names.size());
        } else {
            words.add("LOCK");
        }
        words.addAll(names);
        words.addAll(List.of("KIND", kind.word()));
        if (waitMillis >= 0) {
            words.addAll(List.of("WAIT", waitMillis));
        }
        if (lease != null) {
            words.addAll(List.of("LEASE", lease.toMillis()));
        }
        words.addAll(List.of("IN", session));
        return words.toArray();
    }

    /** Returns the rows of a reply. */
    List<?> rows(Object reply) {
        return several ? Fields.list(reply) : List.of(reply);
    }

    @Override
    public String toString() {
        return String.join(", ", names);
    }
}

package io.github.lockscope.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The grants of a session. */
final class Grants {
    private record Key(String name, Kind kind) {}

    private final Engine engine;
    private final Map<Key, Grant> grants = new LinkedHashMap<>();
    /** The last event of each lock that has no grant here: its grant may be recorded only later. */
    private final Map<Key, List<Object>> unclaimed = new HashMap<>();

    Grants(Engine engine) {
        this.engine = engine;
    }

    synchronized boolean isEmpty() {
        return grants.isEmpty();
    }

    synchronized Grant find(String name, Kind kind) {
        return grants.get(new Key(name, kind));
    }

    /** Returns the existing grants of these locks. */
    List<Grant> known(Request request) {
        var known = new ArrayList<Grant>();
        for (var name : request.names()) {
            var grant = find(name, request.kind());
            if (grant != null) {
                known.add(grant);
            }
        }
        return known;
    }

    synchronized List<Grant> all() {
        return new ArrayList<>(grants.values());
    }

    synchronized void forgetClosed(Grant grant) {
        if (grant.openHolds() == 0) {
            grants.remove(new Key(grant.name, grant.kind), grant);
        }
    }

    /** Drops the events of locks without a grant. They tell of earlier grants. */
    synchronized void forgetUnclaimed() {
        unclaimed.clear();
    }

    /** Records an event that the agent reports. */
    synchronized void apply(List<Object> event) {
        var key = new Key(Fields.text(event.get(1)), Kind.ofWord(Fields.text(event.get(2))));
        var grant = grants.get(key);
        if (grant == null || grant.hasEnded()) {
            unclaimed.put(key, event);
        }
        if (grant != null) {
            grant.apply(event);
        }
    }

    /** Records a grant or a reentry that the agent reports. */
    synchronized Grant granted(Map<?, ?> fields, boolean fixed, long sent) {
        String holder = Fields.text(fields.get("holder"));
        var key = new Key(Fields.text(fields.get("lock")), Kind.ofWord(Fields.text(fields.get("kind"))));
        var grant = grants.get(key);
        if (grant == null || !grant.holder.equals(holder)) {
            if (grant != null) {
                grant.loseAll("it was granted again");
            }
            grant = new Grant(engine, key.name, key.kind, holder, Fields.integer(fields.get("token")));
            grants.put(key, grant);
        }
        grant.granted(Fields.number(fields.get("holds")), fixed, deadline(fields, sent));
        var event = unclaimed.remove(key);
        if (event != null) {
            grant.apply(event);
        }
        return grant;
    }

    /**
     * Returns the instant until which the agent guarantees a hold, according to the reply to a command sent at the
     * instant {@code sent}. Where {@code /proc/uptime} is not the host's, as under lxcfs, an instant of the agent's
     * clock means nothing here, but the validity in the reply does.
     */
    private static long deadline(Map<?, ?> fields, long sent) {
        long validity = Fields.millis(fields.get("waited_ms")) + Fields.millis(fields.get("valid_ms"));
        return Math.min(Fields.number(fields.get("valid_until_ns")), sent + validity);
    }

    /**
     * Reads the deadlines in a list of holds that was requested at the instant {@code sent}, which is {@code asked} by
     * {@link System#nanoTime}.
     */
    void renew(Collection<?> rows, long sent, long asked) {
        for (var row : rows) {
            var fields = Fields.map(row);
            var grant = find(Fields.text(fields.get("lock")), Kind.ofWord(Fields.text(fields.get("kind"))));
            var until = Fields.integer(fields.get("valid_until_ns"));
            if (grant != null && until.isPresent() && grant.holder.equals(fields.get("holder"))) {
                grant.renew(deadline(fields, sent), asked);
            }
        }
    }

    /** Ends the grants that are not in a list of holds, which was requested after they were recorded. */
    void endUnlisted(Collection<?> rows) {
        var listed = new HashSet<Object>();
        rows.forEach(row -> listed.add(Fields.map(row).get("holder")));
        for (var grant : all()) {
            if (!listed.contains(grant.holder)) {
                grant.endUnlisted();
            }
        }
    }

    /** Compares the grants with the list of holds of a session that was resumed. */
    void takeOver(Collection<?> rows, long sent) {
        var listed = new HashMap<String, Map<?, ?>>();
        for (var row : rows) {
            var fields = Fields.map(row);
            listed.put(Fields.text(fields.get("holder")), fields);
        }
        for (var grant : all()) {
            var fields = listed.remove(grant.holder);
            if (fields == null) {
                grant.endUnlisted();
                continue;
            }
            grant.setCount(Fields.number(fields.get("holds")));
            grant.resume(deadline(fields, sent));
        }
        // These were granted by a command whose reply was lost. If that call continues, it finds them here; otherwise they
        // are released.
        listed.values().forEach(fields -> granted(fields, false, sent));
    }
}

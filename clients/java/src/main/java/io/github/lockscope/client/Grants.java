package io.github.lockscope.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The grants of a session. */
final class Grants {
    private record Key(String name, Kind kind) {}

    private final Engine engine;
    private final Map<Key, Grant> grants = new LinkedHashMap<>();

    Grants(Engine engine) {
        this.engine = engine;
    }

    synchronized boolean isEmpty() {
        return grants.isEmpty();
    }

    synchronized Grant find(String name, Kind kind) {
        return grants.get(new Key(name, kind));
    }

    /** Returns what there is of these locks. */
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

    /** Notes a grant or a reentry that the agent reports. */
    synchronized Grant granted(Map<?, ?> fields, boolean fixed) {
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
        grant.granted(Fields.number(fields.get("holds")), fixed, Fields.number(fields.get("valid_until_ns")));
        return grant;
    }

    /** Reads the deadlines in a list of holds. */
    void renew(Collection<?> rows) {
        for (var row : rows) {
            var fields = Fields.map(row);
            var grant = find(Fields.text(fields.get("lock")), Kind.ofWord(Fields.text(fields.get("kind"))));
            var until = Fields.integer(fields.get("valid_until_ns"));
            if (grant != null && until.isPresent() && grant.holder.equals(fields.get("holder"))) {
                grant.renew(until.getAsLong());
            }
        }
    }

    /** Compares the grants with the list of holds of a session that was resumed. */
    void takeOver(Collection<?> rows) {
        var listed = new HashMap<String, Map<?, ?>>();
        for (var row : rows) {
            var fields = Fields.map(row);
            listed.put(Fields.text(fields.get("holder")), fields);
        }
        for (var grant : all()) {
            var fields = listed.remove(grant.holder);
            if (fields == null) {
                grant.loseAll("the agent does not hold it any more");
                continue;
            }
            grant.setCount(Fields.number(fields.get("holds")));
            grant.renew(Fields.number(fields.get("valid_until_ns")));
            grant.setAtRisk(false);
        }
        // Granted by a command whose reply was lost. Its caller finds it here; otherwise it is released.
        listed.values().forEach(fields -> granted(fields, false));
    }
}

package io.github.lockscope.client;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * The state of a lock in Redis, no matter which client holds it.
 *
 * @param kind the kind; {@link Kind#PLAIN} where that and a fenced or fair lock cannot be distinguished
 * @param holders the hold count of each holder's id
 * @param token the latest token, if the lock was ever fenced
 * @param remaining the time after which the lock expires unless it is renewed, empty if it never expires
 */
public record LockState(Kind kind, Map<String, Long> holders, OptionalLong token, Optional<Duration> remaining) {
    static LockState of(Map<?, ?> fields) {
        var holders = new HashMap<String, Long>();
        for (var row : Fields.list(fields.get("holders"))) {
            var holder = Fields.map(row);
            holders.put(Fields.text(holder.get("holder")), Fields.number(holder.get("holds")));
        }
        var millis = Fields.integer(fields.get("pttl_ms"));
        return new LockState(
                Kind.ofWord(Fields.text(fields.get("kind"))),
                Map.copyOf(holders),
                Fields.integer(fields.get("token")),
                millis.isPresent() && millis.getAsLong() >= 0
                        ? Optional.of(Duration.ofMillis(millis.getAsLong())) : Optional.empty());
    }
}

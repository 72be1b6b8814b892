package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Owner;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The owners of thread ids, for as long as they hold or wait for something. */
final class Owners {
    /** The number of owners that is always accepted. */
    private static final int FEW = 100;

    private record Entry(Owner owner, int users) {}

    /** Work for an owner. */
    interface Work<T, E extends Exception> {
        T run(Owner owner) throws E;
    }

    private final Agent agent;
    private final Map<Long, Entry> entries = new ConcurrentHashMap<>();
    /** The number of owners beyond which idle ones are looked for. */
    private volatile int limit = FEW;

    Owners(Agent agent) {
        this.agent = agent;
    }

    <T, E extends Exception> T with(long threadId, Work<T, E> work) throws E {
        var entry = entries.compute(threadId, (id, old) -> old == null
                ? new Entry(agent.newOwner(), 1) : new Entry(old.owner, old.users + 1));
        try {
            return work.run(entry.owner);
        } finally {
            entries.compute(threadId, (id, old) -> old.users == 1 && old.owner.isIdle()
                    ? null : new Entry(old.owner, old.users - 1));
            // The owner of an interrupted wait becomes idle only later.
            if (size() > limit) {
                entries.values().removeIf(left -> left.users == 0 && left.owner.isIdle());
                limit = Math.max(FEW, 2 * size());
            }
        }
    }

    int size() {
        return entries.size();
    }
}

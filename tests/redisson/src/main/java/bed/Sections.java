package bed;

import java.util.List;
import java.util.Map;
import java.util.Objects;

import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.client.codec.StringCodec;

/**
 * Critical sections that reveal broken mutual exclusion: {@code sections <how many> <counter> <lock>…} reads the
 * counter, and writes one more in a separate call, together with a note in the list {@code <counter>:log}. Two holders
 * at the same time write the same number twice. The sections run without pause, because that is how one side could
 * starve the other. {@code readings <how many> <counter> <lock>…} reads the counter twice under a reader's lock, and
 * fails if the value changed in between.
 */
final class Sections {
    private static final String WRITE = "redis.call('set', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], ARGV[1] .. ' java')";

    private Sections() {}

    static Object read(Client client, Map<String, Client> all, List<String> words) throws Exception {
        var many = Integer.parseInt(words.get(0));
        var lock = (RLock) Calls.object(client, all, words.subList(2, words.size()));
        var bucket = client.redisson().<String>getBucket(words.get(1), StringCodec.INSTANCE);
        for (int i = 0; i < many; i++) {
            lock.lock();
            try {
                var first = bucket.get();
                var second = bucket.get();
                if (!Objects.equals(first, second)) {
                    throw new IllegalStateException(first + " became " + second + " beside a reader");
                }
            } finally {
                lock.unlock();
            }
        }
        return many;
    }

    static Object run(Client client, Map<String, Client> all, List<String> words) throws Exception {
        var many = Integer.parseInt(words.get(0));
        var counter = words.get(1);
        var lock = (RLock) Calls.object(client, all, words.subList(2, words.size()));
        var bucket = client.redisson().<String>getBucket(counter, StringCodec.INSTANCE);
        var script = client.redisson().getScript(StringCodec.INSTANCE);
        for (int i = 0; i < many; i++) {
            lock.lock();
            try {
                var value = bucket.get();
                var next = value == null ? 1 : Long.parseLong(value) + 1;
                script.eval(RScript.Mode.READ_WRITE, WRITE, RScript.ReturnType.VALUE,
                        List.<Object>of(counter, counter + ":log"), Long.toString(next));
            } finally {
                lock.unlock();
            }
        }
        return many;
    }
}

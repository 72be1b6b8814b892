package bed;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.redisson.api.RedissonClient;

/**
 * A Redisson client and the objects it returned. They are kept, as in a service, because some remember their last
 * lease.
 */
record Client(RedissonClient redisson, Map<String, Object> objects) {
    Client(RedissonClient redisson) {
        this(redisson, new ConcurrentHashMap<>());
    }
}

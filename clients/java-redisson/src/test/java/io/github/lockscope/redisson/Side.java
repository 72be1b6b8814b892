package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import java.nio.file.Path;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A client with locks: a Redisson or an agent. */
interface Side extends AutoCloseable {
    /** A lease that a watchdog renews, in milliseconds, so short that a test can wait longer. */
    long SHORT_LEASE = 6000;

    RLock plain(String name);

    RLock fair(String name);

    RFencedLock fenced(String name);

    RReadWriteLock readWrite(String name);

    @Override
    void close();

    /** An implementation of {@link Side}. */
    enum Kind {
        REDISSON(SHORT_LEASE) {
            @Override
            Side open() {
                return new OfRedisson();
            }

            @Override
            Side openWithShortLease() {
                return open();
            }
        },
        /** An agent waits for Redis for a fifteenth of its lease, at most two seconds: here, two seconds. */
        AGENT(30_000) {
            @Override
            Side open() {
                return new OfAgent(new Agent());
            }

            @Override
            Side openWithShortLease() {
                return new OfAgent(new Agent(Path.of(System.getenv("SHORT_LEASE_SOCKET"))));
            }
        };

        /** The lease that the watchdog renews, in milliseconds. */
        final long lease;

        Kind(long lease) {
            this.lease = lease;
        }

        abstract Side open();

        /** Opens a client whose watchdog renews {@link #SHORT_LEASE}. */
        abstract Side openWithShortLease();
    }

    final class OfRedisson implements Side {
        private final RedissonClient client = Redisson.create(config());

        private static Config config() {
            var config = new Config();
            config.setLockWatchdogTimeout(SHORT_LEASE);
            config.useSingleServer().setAddress(System.getenv("REDIS_URL")).setConnectionMinimumIdleSize(2);
            return config;
        }

        /** Returns the number of waiters of a fair lock. */
        int queueLength(String name) {
            return client.getQueue("redisson_lock_queue:{" + name + "}").size();
        }

        @Override
        public RLock plain(String name) {
            return client.getLock(name);
        }

        @Override
        public RLock fair(String name) {
            return client.getFairLock(name);
        }

        @Override
        public RFencedLock fenced(String name) {
            return client.getFencedLock(name);
        }

        @Override
        public RReadWriteLock readWrite(String name) {
            return client.getReadWriteLock(name);
        }

        @Override
        public void close() {
            client.shutdown();
        }
    }

    final class OfAgent implements Side {
        private final LockscopeLocks locks;

        OfAgent(Agent agent) {
            locks = new LockscopeLocks(agent);
        }

        @Override
        public RLock plain(String name) {
            return locks.getLock(name);
        }

        @Override
        public RLock fair(String name) {
            return locks.getFairLock(name);
        }

        @Override
        public RFencedLock fenced(String name) {
            return locks.getFencedLock(name);
        }

        @Override
        public RReadWriteLock readWrite(String name) {
            return locks.getReadWriteLock(name);
        }

        @Override
        public void close() {
            locks.close();
        }
    }
}

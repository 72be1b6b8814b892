// A worker that keeps its lock across broken connections, agent restarts and its own restarts.
// Needs Jedis and junixsocket. LOCKSCOPE_SOCKET is the agent's socket, WORKER_TICKET the file with its session's id and secret.
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import org.newsclub.net.unix.AFUNIXSocket;
import org.newsclub.net.unix.AFUNIXSocketAddress;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.SafeEncoder;

public class Worker {
    static final String SOCKET = setting("LOCKSCOPE_SOCKET", "/run/lockscope/agent.sock");
    static final Path TICKET = Path.of(setting("WORKER_TICKET", "worker.ticket"));
    static final String LOCK = "orders:42";
    static final Duration GRACE = Duration.ofSeconds(60);
    static final int LOST = 76; // exit status

    static String setting(String name, String usual) {
        var value = System.getenv(name);
        return value == null || value.isEmpty() ? usual : value;
    }

    /** Nothing more may be done under the lock, whatever other threads are doing. */
    static void lost(Object why) {
        System.out.println("lost: " + why);
        Runtime.getRuntime().halt(LOST);
    }

    static Jedis connect() {
        var settings = DefaultJedisClientConfig.builder().socketTimeoutMillis(0).build();
        return new Jedis(() -> {
            try {
                return AFUNIXSocket.connectTo(AFUNIXSocketAddress.of(new File(SOCKET)));
            } catch (IOException error) {
                throw new JedisConnectionException(error);
            }
        }, settings);
    }

    static Object ask(Jedis agent, String word, String... words) {
        return agent.sendCommand(() -> SafeEncoder.encode(word), words);
    }

    static String text(Object value) {
        return value instanceof byte[] bytes ? SafeEncoder.encode(bytes) : String.valueOf(value);
    }

    /** Converts a map, which arrives as a list: name, value, name, value. */
    static Map<String, Object> map(Object reply) {
        var map = new HashMap<String, Object>();
        var list = (List<?>) reply;
        for (int i = 0; i + 1 < list.size(); i += 2) {
            map.put(text(list.get(i)), list.get(i + 1));
        }
        return map;
    }

    static String code(JedisDataException error) {
        return error.getMessage().split(" ")[0];
    }

    static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The connection broke and the session was resumed on a new one: check the holds and repeat the command. */
    static class Resumed extends Exception {
    }

    static class Session {
        Jedis agent;
        String id;
        String secret;
        Map<String, Long> holds = new HashMap<>(); // hold counts of the locks
        int generation;
        final Semaphore calm = new Semaphore(1); // taken while a hold is at risk (jeopardy)

        Session() throws IOException {
            if (Files.exists(TICKET)) {
                var words = Files.readString(TICKET).split(" ");
                id = words[0];
                secret = words[1];
            }
            recover(0, true);
            var ear = new Thread(this::listen);
            ear.setDaemon(true);
            ear.start();
        }

        /** Resumes the session on a new connection, unless that has been done or the old connection is alive. */
        synchronized void recover(int seen, boolean broken) {
            for (var deadline = Instant.now().plus(GRACE); generation == seen; pause()) {
                try {
                    var fresh = connect();
                    var reply = id != null ? ask(fresh, "RESUME", id, secret)
                            : ask(fresh, "SESSION", "GRACE", String.valueOf(GRACE.toMillis()));
                    if (id != null) System.out.println("resumed");
                    goOn(fresh, map(reply));
                    return;
                } catch (JedisDataException error) {
                    switch (code(error)) {
                        case "GONE" -> {
                            if (holds.values().stream().anyMatch(count -> count > 0)) lost("the session has ended");
                            id = null;
                        }
                        case "SESSION", "UNAVAILABLE" -> {
                            if (code(error).equals("SESSION") && !broken) return;
                            if (Instant.now().isAfter(deadline)) lost(error.getMessage());
                        }
                        default -> throw error;
                    }
                } catch (JedisConnectionException error) {
                    if (Instant.now().isAfter(deadline)) lost("there is no agent");
                } catch (IOException error) {
                    throw new IllegalStateException(error);
                }
            }
        }

        private void goOn(Jedis fresh, Map<String, Object> reply) throws IOException {
            id = text(reply.get("id"));
            secret = text(reply.get("secret"));
            var file = Path.of(TICKET + ".new");
            if (!Files.exists(file)) {
                Files.createFile(file, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
            }
            Files.writeString(file, id + " " + secret);
            Files.move(file, TICKET, StandardCopyOption.ATOMIC_MOVE); // a reader never finds half a ticket
            var now = new HashMap<String, Long>();
            if (reply.get("holds") instanceof List<?> rows) {
                for (var row : rows) now.put(text(map(row).get("lock")), (Long) map(row).get("holds"));
            }
            holds.forEach((name, count) -> {
                if (count > 0 && !now.containsKey(name)) lost("it was not there any more");
            });
            calmDown(); // another agent sends no `safe` for its predecessor's `jeopardy`
            agent = fresh;
            holds = now;
            generation++;
        }

        private void calmDown() {
            if (calm.availablePermits() == 0) calm.release();
        }

        Object call(String word, String... words) throws Resumed {
            Jedis mine;
            int seen;
            synchronized (this) {
                mine = agent;
                seen = generation;
            }
            try {
                return ask(mine, word, words);
            } catch (JedisConnectionException error) {
                recover(seen, true);
                throw new Resumed();
            }
        }

        synchronized long held(String name) {
            return holds.getOrDefault(name, 0L);
        }

        synchronized void set(String name, long count) {
            holds.put(name, count);
        }

        synchronized String name() {
            return id;
        }

        /** Acquires or reenters the lock. False if it could not be acquired in time. */
        boolean lock(String name, Duration wait) {
            var wanted = held(name) + 1;
            while (held(name) < wanted) {
                try {
                    var reply = call("LOCK", name, "WAIT", String.valueOf(wait.toMillis()), "IN", name());
                    if (reply == null) return false;
                    set(name, (Long) map(reply).get("holds"));
                } catch (Resumed resumed) {
                    // The holds have been updated.
                } catch (JedisDataException error) {
                    if (!code(error).equals("DRAINING")) throw error;
                    pause(); // the next agent grants it
                }
            }
            return true;
        }

        void unlock(String name) {
            var wanted = held(name) - 1;
            while (held(name) > wanted) {
                set(name, wanted); // from here on a loss of the lock does not matter
                try {
                    set(name, (Long) call("UNLOCK", name, "IN", name()));
                } catch (Resumed resumed) {
                    // The holds have been updated.
                } catch (JedisDataException error) {
                    if (!code(error).equals("UNAVAILABLE")) throw error; // released: the agent keeps trying
                }
            }
        }

        /** Ends the session. Nothing is held any more, so a broken connection does no harm. */
        synchronized void quit() {
            try {
                ask(agent, "QUIT");
            } catch (JedisConnectionException error) {
                // The session ends with its grace.
            }
        }

        /** Receives events on a separate connection, while the other one waits or is busy. */
        void listen() {
            for (Jedis ear = null; ; ) {
                int seen;
                String[] ticket;
                synchronized (this) {
                    seen = generation;
                    ticket = new String[] {id, secret, "WAIT", "60000"};
                }
                try {
                    if (ear == null) ear = connect();
                    for (var event : (List<?>) ask(ear, "EVENTS", ticket)) {
                        var words = (List<?>) event;
                        switch (text(words.get(0))) {
                            case "jeopardy" -> {
                                System.out.println("jeopardy");
                                calm.drainPermits();
                            }
                            case "safe" -> calmDown();
                            case "lost" -> lost(text(words.get(words.size() - 1)));
                            default -> { }
                        }
                    }
                } catch (JedisDataException error) {
                    pause(); // resumed meanwhile, with a new secret
                } catch (JedisConnectionException error) {
                    recover(seen, false);
                    if (ear != null) ear.close();
                    ear = null;
                    pause();
                }
            }
        }
    }

    /** Called with and without the lock: it reenters the lock, which is always safe. */
    static void checkStock(Session session) {
        session.lock(LOCK, Duration.ofMinutes(1));
        session.unlock(LOCK);
    }

    public static void main(String[] args) throws Exception {
        var session = new Session();
        if (session.held(LOCK) == 0 && !session.lock(LOCK, Duration.ofMinutes(1))) {
            throw new IllegalStateException("could not acquire " + LOCK + " within a minute");
        }
        System.out.println("working on " + LOCK);
        var orders = new BufferedReader(new InputStreamReader(System.in));
        for (var order = orders.readLine(); order != null; order = orders.readLine()) {
            session.calm.acquire(); // start nothing new while the lock is at risk
            session.calm.release();
            checkStock(session);
            System.out.println("did " + order);
        }
        session.unlock(LOCK);
        session.quit();
        Files.delete(TICKET);
        System.out.println("done");
        Runtime.getRuntime().halt(0);
    }
}

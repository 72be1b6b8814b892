import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Hold;
import io.github.lockscope.client.Kind;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;

/**
 * Measures Redisson, or the client library for Java: {@code Contest redisson TASK PORT WORKERS SECONDS} or
 * {@code Contest lockscope TASK WORKERS SECONDS}, with the agent's socket in {@code LOCKSCOPE_SOCKET}. Prints one line of JSON.
 *
 * <p>The tasks: {@code uncontended}, one thread with a free lock; {@code own}, threads with one lock each; {@code one} and
 * {@code fair}, threads that compete for one lock. Each task first runs once unmeasured, to warm up the JVM.
 */
final class Contest {
    /** A lock of a library. */
    interface Mutex {
        void lock();

        void unlock();
    }

    /** A library with a connection to its server. */
    interface Library extends AutoCloseable {
        Mutex lock(String name, boolean fair);

        @Override
        void close();
    }

    static final class RedissonLocks implements Library {
        private final org.redisson.api.RedissonClient client;

        RedissonLocks(String port) {
            var config = new Config();
            config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
            client = Redisson.create(config);
        }

        @Override
        public Mutex lock(String name, boolean fair) {
            RLock lock = fair ? client.getFairLock(name) : client.getLock(name);
            return new Mutex() {
                @Override
                public void lock() {
                    lock.lock();
                }

                @Override
                public void unlock() {
                    lock.unlock();
                }
            };
        }

        @Override
        public void close() {
            client.shutdown(0, 2, TimeUnit.SECONDS);
        }
    }

    static final class AgentLocks implements Library {
        private final Agent agent = new Agent();

        @Override
        public Mutex lock(String name, boolean fair) {
            var lock = agent.lock(name, fair ? Kind.FAIR : Kind.PLAIN);
            return new Mutex() {
                private Hold hold; // of the thread that holds the lock

                @Override
                public void lock() {
                    try {
                        hold = lock.acquire();
                    } catch (InterruptedException interrupt) {
                        throw new IllegalStateException(interrupt);
                    }
                }

                @Override
                public void unlock() {
                    hold.close();
                }
            };
        }

        @Override
        public void close() {
            agent.close();
        }
    }

    /** The turns of one thread. */
    static final class Worker extends Thread {
        private final Mutex mutex;
        private final Turns turns;
        private final long end;
        final ArrayList<Long> times = new ArrayList<>();
        long longestWait;

        Worker(Mutex mutex, Turns turns, long end) {
            this.mutex = mutex;
            this.turns = turns;
            this.end = end;
        }

        @Override
        public void run() {
            for (long began; (began = System.nanoTime()) < end;) {
                mutex.lock();
                longestWait = Math.max(longestWait, System.nanoTime() - began);
                turns.note(this);
                mutex.unlock();
                times.add(System.nanoTime() - began);
            }
        }
    }

    /** The hand-overs of a lock from one thread to another; used by its holder only. */
    static final class Turns {
        private volatile Worker last;
        private volatile int switches;

        void note(Worker worker) {
            if (last != worker) {
                last = worker;
                switches = switches + 1;
            }
        }
    }

    private final Library library;
    private final String task;
    private final int workers;
    private final double seconds;

    Contest(Library library, String task, int workers, double seconds) {
        this.library = library;
        this.task = task;
        this.workers = workers;
        this.seconds = seconds;
    }

    String run(String name) throws InterruptedException {
        boolean fair = task.equals("fair");
        boolean own = task.equals("own");
        long start = System.nanoTime();
        long end = start + (long) (seconds * 1e9);
        var one = library.lock(name, fair);
        var turns = new Turns();
        var all = new ArrayList<Worker>();
        for (int i = 0; i < (task.equals("uncontended") ? 1 : workers); i++) {
            all.add(own ? new Worker(library.lock(name + ":" + i, false), new Turns(), end) : new Worker(one, turns, end));
        }
        all.forEach(Thread::start);
        for (var worker : all) {
            worker.join();
        }
        double took = (System.nanoTime() - start) / 1e9;
        long[] times = all.stream().flatMap(worker -> worker.times.stream()).mapToLong(time -> time).sorted().toArray();
        if (fair || task.equals("one")) {
            var counts = all.stream().mapToInt(worker -> worker.times.size()).summaryStatistics();
            double longest = all.stream().mapToLong(worker -> worker.longestWait).max().orElse(0) / 1e6;
            return json("switches_per_s", turns.switches / took, "least", counts.getMin(), "most", counts.getMax(),
                    "longest_wait_ms", longest);
        }
        return json("pairs_per_s", times.length / took, "p50_us", quantile(times, 0.5), "p99_us", quantile(times, 0.99));
    }

    private static double quantile(long[] times, double share) {
        return times.length == 0 ? 0 : times[(int) ((times.length - 1) * share)] / 1e3;
    }

    private static String json(Object... fields) {
        var parts = new ArrayList<String>();
        for (int i = 0; i < fields.length; i += 2) {
            parts.add(String.format(Locale.ROOT, "\"%s\": %s", fields[i], fields[i + 1]));
        }
        return "{" + String.join(", ", parts) + "}";
    }

    public static void main(String[] arguments) throws InterruptedException {
        var rest = Arrays.asList(arguments).subList(arguments.length - 2, arguments.length);
        try (var library = arguments[0].equals("redisson") ? new RedissonLocks(arguments[2]) : new AgentLocks()) {
            var contest = new Contest(library, arguments[1], Integer.parseInt(rest.get(0)), Double.parseDouble(rest.get(1)));
            String name = "bench:" + ProcessHandle.current().pid();
            contest.run(name + ":warm");
            System.out.println(contest.run(name));
        }
        System.exit(0);
    }
}

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Hold;
import io.github.lockscope.client.Holds;
import io.github.lockscope.client.Kind;
import io.github.lockscope.client.LockLostException;
import io.github.lockscope.client.LockTimeoutException;
import io.github.lockscope.client.LockscopeException;
import io.github.lockscope.client.RejectedException;
import io.github.lockscope.client.UnavailableException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;

/**
 * Drives this library for the conformance suite.
 *
 * <p>Reads one command per line: {@code <tag> <task> <verb> <arguments>}. A task is a thread, which runs its commands one after
 * another. Answers {@code <tag> <JSON>}; a loss and a warning are reported as {@code event <JSON>}. The verbs:
 *
 * <pre>
 * lock HANDLE NAME[,NAME…] [wait=MS] [lease=MS] [kind=KIND]
 * check HANDLE | release HANDLE | extend HANDLE MS
 * part HANDLE    releases the first of two; the handle is that of the other
 * spoil HANDLE   adds listeners that throw
 * misname        locks under a name that cannot be sent
 * graced MS      locks and releases with another agent object, of this grace
 * close          closes the agent object
 * many COUNT   one lock for each of that many tasks; unmany releases them
 * cancel TAG   interrupts the thread that runs a command
 * </pre>
 */
public final class Driver {
    private record Command(String tag, String verb, List<String> words) {}

    /** One or several holds, with the checks of the scenarios. */
    private record Held(AutoCloseable closing, List<Hold> all, Runnable check) {
        static Held of(Hold hold) {
            return new Held(hold, List.of(hold), hold::check);
        }

        static Held of(Holds holds) {
            return new Held(holds, holds.all(), holds::check);
        }

        String describe() {
            var token = all.get(0).token();
            return json("token", token.isPresent() ? token.getAsLong() : null,
                    "holder", all.stream().map(Hold::holder).collect(Collectors.joining(",")),
                    "remaining", all.stream().mapToLong(hold -> hold.remaining().toMillis()).min().orElse(0));
        }
    }

    private final Agent agent =
            new Agent(Agent.defaultSocket(), millis(System.getenv().getOrDefault("GRACE_MS", "60000")));
    private final Map<String, Held> holds = new ConcurrentHashMap<>();
    private final Map<String, BlockingQueue<Command>> queues = new HashMap<>();
    private final Map<String, Thread> running = new ConcurrentHashMap<>();

    private final List<String> errors = Collections.synchronizedList(new ArrayList<>());
    private final List<Thread> manyThreads = new ArrayList<>();
    private final CountDownLatch unmany = new CountDownLatch(1);

    public static void main(String[] arguments) throws Exception {
        new Driver().run();
    }

    private void run() throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var words = List.of(line.split(" "));
            var command = new Command(words.get(0), words.get(2), words.subList(3, words.size()));
            if (command.verb.equals("cancel")) {
                interrupt(command.words.get(0));
                say(command.tag, json());
                continue;
            }
            queues.computeIfAbsent(words.get(1), this::startTask).add(command);
        }
        agent.close();
    }

    private BlockingQueue<Command> startTask(String name) {
        var queue = new LinkedBlockingQueue<Command>();
        start(() -> {
            while (true) {
                var command = queue.take();
                running.put(command.tag, Thread.currentThread());
                var answer = answer(command);
                ended(command.tag);
                say(command.tag, answer);
            }
        });
        return queue;
    }

    private synchronized void interrupt(String tag) {
        var thread = running.get(tag);
        if (thread != null) {
            thread.interrupt();
        }
    }

    /** Ends a command, and clears an interrupt that arrived too late for it: it is not for the next one. */
    private synchronized void ended(String tag) {
        running.remove(tag);
        Thread.interrupted();
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread start(Work work) {
        var thread = new Thread(null, () -> {
            try {
                work.run();
            } catch (Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }, "task", 1 << 18);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private String answer(Command command) throws Exception {
        try {
            return execute(command);
        } catch (LockscopeException | InterruptedException error) {
            return json("error", word(error), "text", String.valueOf(error.getMessage()));
        } catch (IllegalArgumentException error) { // Other libraries let the agent check the lease.
            return json("error", "LIMIT", "text", error.getMessage());
        }
    }

    private static String word(Exception error) {
        if (error instanceof RejectedException rejected) {
            return rejected.code();
        }
        return error instanceof LockTimeoutException ? "timeout"
                : error instanceof LockLostException ? "lost"
                : error instanceof UnavailableException ? "unavailable"
                : "cancelled";
    }

    private String execute(Command command) throws Exception {
        var words = command.words;
        switch (command.verb) {
            case "lock" -> {
                return lock(words.get(0), List.of(words.get(1).split(",")), options(words)).describe();
            }
            case "check" -> {
                holds.get(words.get(0)).check.run();
                return holds.get(words.get(0)).describe();
            }
            case "release" -> {
                release(words.get(0));
                return json();
            }
            case "extend" -> {
                var hold = holds.get(words.get(0)).all.get(0);
                if (words.get(1).equals("0")) {
                    hold.renew();
                } else {
                    hold.extend(millis(words.get(1)));
                }
                return holds.get(words.get(0)).describe();
            }
            case "part" -> {
                var both = holds.get(words.get(0)).all;
                both.get(0).close();
                holds.put(words.get(0), Held.of(both.get(1)));
                return json();
            }
            case "spoil" -> {
                holds.get(words.get(0)).all.get(0).onLost(loss -> fail());
                holds.get(words.get(0)).all.get(0).onRisk(Driver::fail);
                return json();
            }
            case "misname" -> {
                return misname();
            }
            case "graced" -> {
                try (var other = new Agent(Agent.defaultSocket(), millis(words.get(0)));
                        var hold = other.lock("graced").acquire()) {
                    return Held.of(hold).describe();
                }
            }
            case "close" -> {
                agent.close();
                return json();
            }
            case "many" -> many(Integer.parseInt(words.get(0)));
            case "unmany" -> {
                unmany.countDown();
                for (var thread : manyThreads) {
                    thread.join();
                }
            }
            default -> throw new AssertionError(command.verb);
        }
        return "{\"errors\":[" + errors.stream().map(Driver::quoted).collect(Collectors.joining(",")) + "]}";
    }

    private Held lock(String handle, List<String> names, Map<String, String> options) throws InterruptedException {
        var word = options.getOrDefault("kind", "lock");
        var kind = word.equals("lock") ? Kind.PLAIN : Kind.valueOf(word.toUpperCase(Locale.ROOT));
        var wait = options.get("wait");
        var lease = options.get("lease");
        Held held;
        if (names.size() > 1) {
            var locks = agent.lockAll(names).ofKind(kind);
            locks = lease == null ? locks : locks.withLease(millis(lease));
            held = Held.of(wait == null ? locks.acquire() : locks.acquire(millis(wait)));
        } else {
            var lock = agent.lock(names.get(0), kind);
            lock = lease == null ? lock : lock.withLease(millis(lease));
            held = Held.of(wait == null ? lock.acquire() : lock.acquire(millis(wait)));
        }
        holds.put(handle, held);
        for (var hold : held.all) {
            hold.onLost(loss -> say("event", json("lost", handle, "reason", loss.reason())));
            hold.onRisk(() -> say("event", json("risk", handle)));
        }
        return held;
    }

    /** Releases in an interrupted thread, as a {@code finally} block does. */
    private void release(String handle) throws Exception {
        Thread.currentThread().interrupt();
        try {
            holds.get(handle).closing.close();
        } finally {
            if (!Thread.interrupted()) {
                throw new IllegalStateException("the interrupt was swallowed");
            }
        }
    }

    private static void fail() {
        throw new IllegalStateException("a listener failed");
    }

    private String misname() throws InterruptedException {
        try {
            return Held.of(agent.lock("\ud800").acquire()).describe();
        } catch (IllegalArgumentException error) {
            return json("error", "misnamed", "text", error.getMessage());
        }
    }

    private void many(int count) throws InterruptedException {
        var granted = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            var lock = agent.lock("many:" + i);
            manyThreads.add(start(() -> {
                try (var hold = lock.acquire(Duration.ofMinutes(10))) {
                    granted.countDown();
                    unmany.await();
                    hold.check();
                } catch (LockscopeException error) {
                    errors.add(error.getMessage());
                    granted.countDown();
                }
            }));
        }
        granted.await();
    }

    private static Map<String, String> options(List<String> words) {
        var options = new HashMap<String, String>();
        for (var word : words.subList(2, words.size())) {
            var parts = word.split("=");
            options.put(parts[0], parts[1]);
        }
        return options;
    }

    private static Duration millis(String word) {
        double millis = Double.parseDouble(word);
        return Duration.ofMillis((long) millis).plusNanos((long) (millis % 1 * 1e6));
    }

    private static synchronized void say(String tag, String json) {
        System.out.println(tag + " " + json);
    }

    private static String json(Object... fields) {
        var parts = new ArrayList<String>();
        for (int i = 0; i < fields.length; i += 2) {
            var value = fields[i + 1] instanceof String text ? quoted(text) : String.valueOf(fields[i + 1]);
            parts.add(quoted((String) fields[i]) + ":" + value);
        }
        return "{" + String.join(",", parts) + "}";
    }

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }
}

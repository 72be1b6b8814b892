package bed;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * Redisson on a pipe: many clients and threads in one JVM, driven line by line.
 *
 * <p>A line is {@code <number> <client>/<thread> <command>…}, its words percent-encoded. Threads are created when they
 * are first named; the commands of one run one after another, those of different threads at the same time. The answer
 * is {@code <number> ok <value>} or {@code <number> error <exception> <message>}, as soon as it is known.
 *
 * <p>Commands: {@code open <url> <setting>=<value>…} and {@code close} (see {@link Settings}); {@code thread}, the Java
 * thread's id; {@code interrupt <thread>}; {@code sleeps <thread>}, whether it waits for a message; {@code sections} and
 * {@code readings} (see {@link Sections}); anything else is a chain of calls on the client (see {@link Calls}).
 */
public final class Bed {
    private final Map<String, Client> clients = new ConcurrentHashMap<>();
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();
    private final PrintStream answers;

    private Bed(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws IOException {
        var bed = new Bed(new PrintStream(System.out, true, UTF_8));
        // The output of a library must not be mistaken for an answer.
        System.setOut(System.err);
        var lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            bed.take(line);
        }
        // The driver has ended: end at once, as if killed, so that held locks end with their leases.
        Runtime.getRuntime().halt(0);
    }

    private void take(String line) {
        List<String> words = Arrays.stream(line.split(" ")).map(word -> URLDecoder.decode(word, UTF_8)).toList();
        var number = words.get(0);
        var who = words.get(1).split("/");
        var command = words.subList(2, words.size());
        var worker = workers.computeIfAbsent(words.get(1), Worker::new);
        worker.queue.execute(() -> answer(number, () -> run(who[0], command)));
    }

    private Object run(String client, List<String> command) throws Exception {
        return switch (command.get(0)) {
            case "open" -> {
                var opened = Settings.open(command.get(1), command.subList(2, command.size()));
                clients.put(client, new Client(opened));
                yield opened.getId();
            }
            case "close" -> {
                clients.remove(client).redisson().shutdown();
                yield null;
            }
            case "interrupt" -> {
                worker(client, command).interrupt();
                yield null;
            }
            case "sleeps" -> Arrays.stream(worker(client, command).getStackTrace())
                    .anyMatch(frame -> frame.getClassName().equals(Semaphore.class.getName()));
            case "thread" -> Thread.currentThread().getId();
            case "sections" -> Sections.run(clients.get(client), clients, command.subList(1, command.size()));
            case "readings" -> Sections.read(clients.get(client), clients, command.subList(1, command.size()));
            default -> Calls.run(clients.get(client), clients, command);
        };
    }

    private Thread worker(String client, List<String> command) {
        return workers.get(client + "/" + command.get(1)).thread;
    }

    private void answer(String number, Callable<Object> work) {
        String answer;
        try {
            answer = "ok " + encode(String.valueOf(work.call()));
        } catch (Exception | LinkageError error) {
            answer = "error " + error.getClass().getSimpleName() + " " + encode(String.valueOf(error.getMessage()));
        }
        synchronized (answers) {
            answers.println(number + " " + answer);
        }
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, UTF_8);
    }

    /** One Java thread, an owner of locks. */
    private static final class Worker {
        private final ExecutorService queue;
        private volatile Thread thread;

        Worker(String name) {
            queue = Executors.newSingleThreadExecutor(task -> {
                thread = new Thread(task, name);
                thread.setDaemon(true);
                return thread;
            });
        }
    }
}

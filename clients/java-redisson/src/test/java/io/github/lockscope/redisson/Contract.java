package io.github.lockscope.redisson;

import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs the contract of Redisson's lock interfaces with two clients, each {@code REDISSON} or {@code AGENT}, which use the same
 * names. Needs a Redis at {@code REDIS_URL}, and two agents on it: one with the lease of {@link Side.Kind#AGENT} at
 * {@code LOCKSCOPE_SOCKET}, one with {@link Side#SHORT_LEASE} at {@code SHORT_LEASE_SOCKET}.
 *
 * <p>A test is a public method without arguments; {@link #first}, of the kind {@link #kind}, and {@link #second} are its clients. A test with
 * {@link Differs} must fail in that way if its first client is of that kind.
 */
abstract class Contract {
    /** A test that fails with clients of one kind. */
    @Retention(RetentionPolicy.RUNTIME)
    @interface Differs {
        Side.Kind of();

        /** The behaviour of those clients. */
        String behaviour();

        /** The class of the failure. */
        Class<? extends Throwable> failure() default AssertionError.class;
    }

    static final long PATIENCE = 30;

    Side.Kind kind;
    Side first;
    Side second;
    String name;

    public static void main(String[] arguments) throws Exception {
        var firstKind = Side.Kind.valueOf(arguments[0]);
        var secondKind = Side.Kind.valueOf(arguments[1]);
        int failures;
        try (var first = firstKind.open(); var second = secondKind.open()) {
            failures = run(firstKind, secondKind, first, second);
        }
        Runtime.getRuntime().halt(failures == 0 ? 0 : 1);
    }

    private static int run(Side.Kind firstKind, Side.Kind secondKind, Side first, Side second) throws Exception {
        int passed = 0;
        var differing = new ArrayList<String>();
        var failed = new ArrayList<String>();
        for (var contract : List.of(PlainContract.class, KindsContract.class)) {
            var tests = Arrays.stream(contract.getDeclaredMethods())
                    .filter(method -> Modifier.isPublic(method.getModifiers()))
                    .sorted(Comparator.comparing(Method::getName)).toList();
            for (var test : tests) {
                var subject = contract.getDeclaredConstructor().newInstance();
                subject.kind = firstKind;
                subject.first = first;
                subject.second = second;
                subject.name = "contract:" + firstKind + ":" + secondKind + ":" + test.getName();
                var failure = failure(subject, test);
                var difference = test.getAnnotation(Differs.class);
                boolean differs = difference != null && difference.of() == firstKind;
                if (differs ? !difference.failure().isInstance(failure) : failure != null) {
                    failed.add(test.getName() + ": " + (failure == null ? "it does not differ" : failure));
                } else if (differs) {
                    differing.add(test.getName() + ": " + difference.behaviour());
                } else {
                    passed++;
                }
            }
        }
        System.out.println(firstKind + " and " + secondKind + ": " + passed + " passed, " + differing.size()
                + " differ, " + failed.size() + " failed");
        differing.forEach(test -> System.out.println("  differs: " + test));
        failed.forEach(test -> System.out.println("  FAILED: " + test));
        return failed.size();
    }

    /** Returns the cause of a failure, null if there is none. */
    private static Throwable failure(Contract subject, Method test) throws Exception {
        var run = new FutureTask<Throwable>(() -> {
            try {
                test.invoke(subject);
                return null;
            } catch (InvocationTargetException error) {
                return error.getCause();
            }
        });
        // Each test runs in its own thread, so that it inherits no hold.
        daemon(run, test.getName());
        try {
            return run.get(2 * PATIENCE, TimeUnit.SECONDS);
        } catch (TimeoutException timeout) {
            return timeout;
        }
    }

    private static Thread daemon(Runnable work, String name) {
        var thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    /** A command that another thread runs. */
    record Running<T>(Thread thread, Future<T> result) {
        T get() throws Exception {
            try {
                return result.get(PATIENCE, TimeUnit.SECONDS);
            } catch (ExecutionException error) {
                throw error.getCause() instanceof Exception cause ? cause : error;
            }
        }

        /** Waits until the thread waits for something each time of several that this looks. Fails if its work ends. */
        void untilItWaits() throws Exception {
            int[] seen = {0};
            eventually(() -> {
                Thread.sleep(50);
                if (result.isDone()) {
                    get();
                    check(false, "it waits");
                }
                var state = thread.getState();
                seen[0] = state == Thread.State.WAITING || state == Thread.State.TIMED_WAITING ? seen[0] + 1 : 0;
                return seen[0] == 6;
            });
        }
    }

    static <T> Running<T> start(Callable<T> work) {
        var task = new FutureTask<>(work);
        return new Running<>(daemon(task, "other"), task);
    }

    /** Runs work in another thread. */
    static <T> T elsewhere(Callable<T> work) throws Exception {
        return start(work).get();
    }

    interface Work {
        void run() throws Exception;
    }

    /** Runs work that returns nothing. */
    static boolean run(Work work) throws Exception {
        work.run();
        return true;
    }

    static void check(boolean condition, String expectation) {
        if (!condition) {
            throw new AssertionError("expected: " + expectation);
        }
    }

    static void equal(Object actual, Object expected) {
        check(expected.equals(actual), expected + ", not " + actual);
    }

    static void fails(Class<? extends Exception> expected, Callable<?> work) throws Exception {
        try {
            work.call();
        } catch (Exception error) {
            check(expected.isInstance(error), expected.getSimpleName() + ", not " + error);
            return;
        }
        throw new AssertionError("expected: " + expected.getSimpleName());
    }

    /** Waits for a condition. */
    static void eventually(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        while (!condition.call()) {
            check(System.nanoTime() < end, "a condition in time");
            Thread.sleep(20);
        }
    }
}

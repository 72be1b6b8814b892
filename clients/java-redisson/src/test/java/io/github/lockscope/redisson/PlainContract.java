package io.github.lockscope.redisson;

import io.github.lockscope.client.Agent;
import io.github.lockscope.client.Hold;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.api.RLock;

/** The contract of {@link RLock}. */
public final class PlainContract extends Contract {
    private RLock mine() {
        return first.plain(name);
    }

    private RLock other() {
        return second.plain(name);
    }

    public void aLockIsHeldFromLockToUnlock() {
        check(!mine().isLocked() && !mine().isHeldByCurrentThread(), "a free lock");
        equal(mine().getHoldCount(), 0);
        mine().lock();
        check(mine().isLocked() && other().isLocked(), "a lock that both sides see");
        check(mine().isHeldByCurrentThread(), "the holder's thread");
        check(!other().isHeldByCurrentThread(), "another client with the same thread");
        mine().unlock();
        check(!mine().isLocked() && !other().isLocked(), "a free lock");
        check(!mine().isHeldByCurrentThread(), "no holder");
    }

    public void theOwnerReentersAndReleasesAsOften() throws Exception {
        mine().lock();
        check(mine().tryLock(), "a reentry");
        mine().lock();
        equal(mine().getHoldCount(), 3);
        mine().unlock();
        mine().unlock();
        equal(mine().getHoldCount(), 1);
        check(!elsewhere(() -> other().tryLock()), "exclusion until the last release");
        mine().unlock();
        check(elsewhere(() -> other().tryLock()), "a free lock");
    }

    public void threadsOfOneClientExcludeEachOther() throws Exception {
        mine().lock();
        check(!elsewhere(() -> mine().tryLock()), "exclusion");
        equal(elsewhere(() -> mine().getHoldCount()), 0);
        check(!elsewhere(() -> mine().isHeldByCurrentThread()), "another thread");
        mine().unlock();
    }

    public void holdersAreKnownByTheirThreadId() throws Exception {
        mine().lock();
        long id = Thread.currentThread().getId();
        check(elsewhere(() -> mine().isHeldByThread(id)), "the holder's thread id");
        check(!mine().isHeldByThread(id + 1000), "no other thread id");
        mine().unlock();
        check(!mine().isHeldByThread(id), "no thread id");
    }

    /** Only the adaptor answers then. */
    public void theHolderIsKnownWhileItsAgentIsAway() throws Exception {
        var socket = Files.createTempDirectory("contract").resolve("agent.sock");
        Files.createSymbolicLink(socket, Agent.defaultSocket());
        try (var agent = new Agent(socket); var locks = new LockscopeLocks(agent)) {
            var lock = locks.getLock(name);
            lock.lock();
            lock.lock();
            Files.delete(socket); // New connections fail.
            check(lock.isHeldByCurrentThread(), "the holder's thread");
            equal(lock.getHoldCount(), 2);
            lock.unlock();
            lock.unlock();
            check(!lock.isHeldByCurrentThread(), "no holder");
        }
    }

    public void onlyTheHolderUnlocks() throws Exception {
        fails(IllegalMonitorStateException.class, () -> run(() -> mine().unlock()));
        mine().lock();
        fails(IllegalMonitorStateException.class, () -> elsewhere(() -> run(() -> mine().unlock())));
        fails(IllegalMonitorStateException.class, () -> run(() -> other().unlock()));
        mine().unlock();
        fails(IllegalMonitorStateException.class, () -> run(() -> mine().unlock()));
    }

    public void tryLockDoesNotWait() {
        other().lock();
        check(!mine().tryLock(), "no lock");
        other().unlock();
        check(mine().tryLock(), "a lock");
        mine().unlock();
    }

    public void aWaitEndsAfterItsTime() throws Exception {
        other().lock();
        long began = System.nanoTime();
        check(!mine().tryLock(1, TimeUnit.SECONDS), "no lock");
        long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        check(took >= 950 && took < 25_000, "a second, not " + took + " ms");
        check(!mine().tryLock(0, TimeUnit.SECONDS) && !mine().tryLock(-1, TimeUnit.SECONDS), "no wait");
        other().unlock();
    }

    public void theLongestWaitIsAccepted() throws Exception {
        check(mine().tryLock(Long.MAX_VALUE, TimeUnit.DAYS), "a free lock");
        mine().unlock();
    }

    public void aReleaseWakesAWaiter() throws Exception {
        other().lock();
        var waiting = start(() -> {
            mine().lock();
            return mine().getHoldCount();
        });
        var limited = start(() -> mine().tryLock(20, TimeUnit.SECONDS) && run(() -> mine().unlock()));
        waiting.untilItWaits();
        limited.untilItWaits();
        other().unlock();
        equal(waiting.get(), 1);
        check(mine().forceUnlock(), "a forced release");
        check(limited.get(), "a lock");
    }

    public void aLeaseRunsOut() throws Exception {
        mine().lock(5, TimeUnit.SECONDS);
        check(!elsewhere(() -> other().tryLock()), "exclusion");
        check(elsewhere(() -> other().tryLock(20, TimeUnit.SECONDS)), "a lock once the lease has run out");
        check(!mine().isHeldByCurrentThread(), "no hold");
        fails(IllegalMonitorStateException.class, () -> run(() -> mine().unlock()));
    }

    public void aLockWithALeaseCanBeAcquiredAgainOnceItRanOut() throws Exception {
        check(mine().tryLock(30, 5, TimeUnit.SECONDS), "a lock");
        eventually(() -> !mine().isLocked());
        check(mine().tryLock(), "a lock");
        equal(mine().getHoldCount(), 1);
        mine().unlock();
    }

    public void theWatchdogRenews() throws Exception {
        try (var side = kind.openWithShortLease()) {
            var lock = side.plain(name);
            lock.lock();
            Thread.sleep(2 * Side.SHORT_LEASE);
            check(lock.isHeldByCurrentThread(), "a hold");
            check(!elsewhere(() -> other().tryLock()), "exclusion");
            lock.unlock();
        }
    }

    /** Only the adaptor has a connection for each thread. */
    public void aLeaseThatRanOutLeavesNoConnection() throws Exception {
        try (var agent = new Agent(); var locks = new LockscopeLocks(agent)) {
            long before = openFiles();
            for (int i = 0; i < 60; i++) {
                var lock = locks.getLock(name + ":" + i);
                check(elsewhere(() -> lock.tryLock(0, 2, TimeUnit.SECONDS)), "a lock");
            }
            // A few remain for the next owners.
            eventually(() -> openFiles() < before + 45);
        }
    }

    /** Only the adaptor has owners. */
    public void interruptedWaitsLeaveFewOwners() throws Exception {
        other().lock();
        try (var agent = new Agent()) {
            var owners = new Owners(agent);
            int made = 0;
            while (made < 500 || owners.size() >= made / 2) {
                check(made < 2000, "owners of fewer than half of the waits, not " + owners.size());
                var waiting = new ArrayList<Running<Hold>>();
                for (int i = 0; i < 100; i++) {
                    long id = made++;
                    waiting.add(start(() -> owners.with(id, owner -> owner.lock(name).acquire())));
                }
                waiting.get(99).untilItWaits();
                for (var wait : waiting) {
                    wait.thread().interrupt();
                    fails(InterruptedException.class, wait::get);
                }
            }
        }
        other().unlock();
    }

    private static long openFiles() throws IOException {
        try (var files = Files.list(Path.of("/proc/self/fd"))) {
            return files.count();
        }
    }

    public void theRemainingTimeIsThatOfTheKey() {
        equal(mine().remainTimeToLive(), -2L);
        mine().lock(20, TimeUnit.SECONDS);
        long left = other().remainTimeToLive();
        check(left > 15_000 && left <= 20_000, "up to 20 s, not " + left + " ms");
        mine().unlock();
        mine().lock();
        left = mine().remainTimeToLive();
        check(left > 0 && left <= kind.lease, "up to the watchdog's lease, not " + left + " ms");
        mine().unlock();
    }

    public void aReentryKeepsTheLongerLease() {
        mine().lock(20, TimeUnit.SECONDS);
        mine().lock(60, TimeUnit.SECONDS);
        long left = mine().remainTimeToLive();
        check(left > 50_000, "about a minute, not " + left + " ms");
        mine().unlock();
        mine().unlock();
    }

    @Differs(of = Side.Kind.AGENT, behaviour = "A reentry never makes a lease shorter.")
    public void aReentryMakesTheLeaseShorter() {
        mine().lock(60, TimeUnit.SECONDS);
        mine().lock(20, TimeUnit.SECONDS);
        long left = mine().remainTimeToLive();
        mine().unlock();
        mine().unlock();
        check(left <= 20_000, "up to 20 s, not " + left + " ms");
    }

    public void anInterruptEndsAWaitAndLeavesNothing() throws Exception {
        other().lock();
        var waiting = start(() -> run(() -> mine().lockInterruptibly()));
        var limited = start(() -> mine().tryLock(1, TimeUnit.MINUTES));
        waiting.untilItWaits();
        limited.untilItWaits();
        waiting.thread().interrupt();
        limited.thread().interrupt();
        fails(InterruptedException.class, waiting::get);
        fails(InterruptedException.class, limited::get);
        other().unlock();
        // An interrupted wait is withdrawn in the background, and may get the lock before that.
        eventually(() -> mine().tryLock());
        mine().unlock();
    }

    public void anInterruptDoesNotEndLock() throws Exception {
        other().lock();
        var waiting = start(() -> run(() -> mine().lock()) && mine().isHeldByCurrentThread());
        waiting.untilItWaits();
        waiting.thread().interrupt();
        waiting.untilItWaits();
        other().unlock();
        check(waiting.get(), "a lock");
        mine().forceUnlock();
    }

    public void aForcedReleaseEndsAnyHold() throws Exception {
        check(!mine().forceUnlock(), "nothing to release");
        mine().lock();
        mine().lock();
        check(other().forceUnlock(), "a release");
        check(!mine().isLocked() && !mine().isHeldByCurrentThread(), "a free lock");
        // The agent counts the releases of reentries itself, so the loss may be reported only by the last unlock.
        fails(IllegalMonitorStateException.class, () -> {
            run(() -> mine().unlock());
            return run(() -> mine().unlock());
        });
        check(elsewhere(() -> other().tryLock()), "a lock");
    }

    public void asynchronousCallsBelongToTheThreadIdThatTheyName() throws Exception {
        mine().lockAsync(71).toCompletableFuture().get();
        check(mine().isHeldByThread(71) && !mine().isHeldByCurrentThread(), "a hold of that thread id");
        check(!mine().tryLockAsync(72).toCompletableFuture().get(), "exclusion");
        check(mine().tryLockAsync(71).toCompletableFuture().get(), "a reentry");
        mine().unlockAsync(71).toCompletableFuture().get();
        mine().unlockAsync(71).toCompletableFuture().get();
        check(!mine().isLockedAsync().toCompletableFuture().get(), "a free lock");
        var again = mine().unlockAsync(71).toCompletableFuture();
        fails(IllegalMonitorStateException.class, () -> new Running<>(null, again).get());
    }

    public void simultaneousReleasesEndOneHoldEach() throws Exception {
        for (int round = 0; round < 100; round++) {
            mine().lockAsync(71).toCompletableFuture().get();
            mine().lockAsync(71).toCompletableFuture().get();
            var first = mine().unlockAsync(71).toCompletableFuture();
            var second = mine().unlockAsync(71).toCompletableFuture();
            first.get(PATIENCE, TimeUnit.SECONDS);
            second.get(PATIENCE, TimeUnit.SECONDS);
            check(!mine().isLocked(), "a free lock");
        }
    }

    public void anAsynchronousWaitIsGranted() throws Exception {
        other().lock();
        var waiting = mine().lockAsync(71).toCompletableFuture();
        var limited = mine().tryLockAsync(1000, -1, TimeUnit.MILLISECONDS, 72).toCompletableFuture();
        check(!limited.get(PATIENCE, TimeUnit.SECONDS), "no lock");
        check(!waiting.isDone(), "a wait");
        other().unlock();
        waiting.get(PATIENCE, TimeUnit.SECONDS);
        mine().unlockAsync(71).toCompletableFuture().get();
    }

    public void aCancelledAsynchronousWaitLeavesNoLock() throws Exception {
        for (boolean limited : new boolean[] {false, true}) {
            other().lock();
            var waiting = limited
                    ? mine().tryLockAsync(PATIENCE, TimeUnit.SECONDS).toCompletableFuture()
                    : mine().lockAsync().toCompletableFuture();
            waiting.cancel(true);
            other().unlock();
            // A lock that was granted to the call is renewed for longer than this test waits.
            eventually(() -> elsewhere(() -> other().tryLock(1, TimeUnit.SECONDS) && run(() -> other().unlock())));
            // The call may have been granted the lock only after that.
            eventually(() -> !mine().isLocked());
        }
    }

    public void anAsynchronousCallOfAClosedClientFails() throws Exception {
        RLock closed;
        try (var client = kind.open()) {
            closed = client.plain(name);
        }
        var attempt = closed.tryLockAsync().toCompletableFuture();
        fails(Exception.class, () -> new Running<>(null, attempt).get());
        check(!mine().isLocked(), "a free lock");
    }

    public void conditionsAreNotSupported() throws Exception {
        fails(UnsupportedOperationException.class, () -> mine().newCondition());
    }

    public void manyThreadsOfBothSidesExcludeEachOther() throws Exception {
        var inside = new AtomicInteger();
        int[] count = {0};
        var running = new ArrayList<Running<Boolean>>();
        for (int i = 0; i < 10; i++) {
            var lock = i % 2 == 0 ? mine() : other();
            running.add(start(() -> {
                for (int round = 0; round < 20; round++) {
                    lock.lock();
                    check(inside.incrementAndGet() == 1, "exclusion");
                    count[0]++;
                    inside.decrementAndGet();
                    lock.unlock();
                }
                return true;
            }));
        }
        for (var thread : running) {
            thread.get();
        }
        equal(count[0], 200);
        check(!mine().isLocked(), "a free lock");
    }
}

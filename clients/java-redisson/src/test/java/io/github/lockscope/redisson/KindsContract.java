package io.github.lockscope.redisson;

import io.github.lockscope.client.RejectedException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RReadWriteLock;

/** The contract of {@link RFencedLock}, {@link RReadWriteLock} and fair locks. */
public final class KindsContract extends Contract {
    private RReadWriteLock mine() {
        return first.readWrite(name);
    }

    private RReadWriteLock other() {
        return second.readWrite(name);
    }

    public void fairLocksAreGrantedInTheOrderOfTheirWaits() throws Exception {
        second.fair(name).lock();
        var order = Collections.synchronizedList(new ArrayList<Integer>());
        var waiting = new ArrayList<Running<Boolean>>();
        try (var redis = new Side.OfRedisson()) {
            for (int i = 0; i < 6; i++) {
                int number = i;
                var lock = (i % 2 == 0 ? first : second).fair(name);
                waiting.add(start(() -> run(() -> {
                    lock.lock();
                    order.add(number);
                    lock.unlock();
                })));
                eventually(() -> redis.queueLength(name) == number + 1);
            }
        }
        second.fair(name).unlock();
        for (var thread : waiting) {
            thread.get();
        }
        equal(order.toString(), "[0, 1, 2, 3, 4, 5]");
    }

    public void aFairWaitThatTimesOutBlocksNobody() throws Exception {
        second.fair(name).lock();
        check(!elsewhere(() -> first.fair(name).tryLock(1, TimeUnit.SECONDS)), "no lock");
        second.fair(name).unlock();
        check(first.fair(name).tryLock(5, TimeUnit.SECONDS), "a lock");
        first.fair(name).unlock();
    }

    @Differs(of = Side.Kind.REDISSON, behaviour = "An interrupted wait for a fair lock keeps its queue position.")
    public void aFairWaitThatIsInterruptedBlocksNobody() throws Exception {
        second.fair(name).lock();
        var interrupted = start(() -> run(() -> first.fair(name).lockInterruptibly()));
        try (var redis = new Side.OfRedisson()) {
            eventually(() -> redis.queueLength(name) == 1);
        }
        interrupted.untilItWaits();
        interrupted.thread().interrupt();
        fails(InterruptedException.class, interrupted::get);
        second.fair(name).unlock();
        check(first.fair(name).tryLock(5, TimeUnit.SECONDS), "a lock");
        first.fair(name).unlock();
    }

    public void fairLocksAreReentrant() throws Exception {
        var lock = first.fair(name);
        lock.lock();
        check(lock.tryLock(), "a reentry");
        equal(lock.getHoldCount(), 2);
        lock.unlock();
        check(!elsewhere(() -> second.fair(name).tryLock()), "exclusion");
        lock.unlock();
        check(!lock.isLocked(), "a free lock");
    }

    public void tokensGrowWithEachGrant() throws Exception {
        long last = 0;
        for (var side : new Side[] {first, second, first, second}) {
            long token = side.fenced(name).lockAndGetToken();
            check(token > last, "a token above " + last + ", not " + token);
            equal(side.fenced(name).getToken(), token);
            side.fenced(name).unlock();
            last = token;
        }
    }

    public void aReentryOfAFencedLock() throws Exception {
        var lock = first.fenced(name);
        long token = lock.lockAndGetToken();
        check(lock.tryLockAndGetToken() != null, "a reentry");
        equal(lock.getHoldCount(), 2);
        check(elsewhere(() -> second.fenced(name).tryLockAndGetToken(1, TimeUnit.SECONDS)) == null, "no token");
        check(lock.getToken() >= token, "no smaller token");
        lock.unlock();
        lock.unlock();
    }

    @Differs(of = Side.Kind.AGENT, behaviour = "A reentry of a fenced lock keeps the token of its grant.")
    public void aReentryOfAFencedLockHasANewToken() {
        var lock = first.fenced(name);
        long token = lock.lockAndGetToken();
        long again = lock.lockAndGetToken();
        lock.unlock();
        lock.unlock();
        check(again > token, "a token above " + token + ", not " + again);
    }

    @Differs(of = Side.Kind.AGENT, behaviour = "The token of a free fenced lock is not known.")
    public void theTokenOfAFreeLockIsTheLatest() {
        var lock = first.fenced(name);
        Long token = lock.lockAndGetToken();
        lock.unlock();
        equal(lock.getToken(), token);
    }

    public void readersShareAndExcludeWriters() throws Exception {
        mine().readLock().lock();
        check(elsewhere(() -> other().readLock().tryLock() && other().readLock().isHeldByCurrentThread()), "two readers");
        check(!elsewhere(() -> other().writeLock().tryLock()), "no writer");
        check(mine().readLock().isLocked() && !mine().writeLock().isLocked(), "the read side alone");
        mine().readLock().unlock();
        check(!elsewhere(() -> mine().writeLock().tryLock()), "no writer before the last reader has left");
        check(other().readLock().forceUnlock(), "a forced release");
        check(elsewhere(() -> mine().writeLock().tryLock()), "a writer");
    }

    public void aWriterExcludesAll() throws Exception {
        mine().writeLock().lock();
        check(mine().writeLock().isLocked() && !mine().readLock().isLocked(), "the write side alone");
        check(!elsewhere(() -> other().readLock().tryLock()), "no reader");
        check(!elsewhere(() -> other().writeLock().tryLock()), "no writer");
        var readers = new ArrayList<Running<Boolean>>();
        for (int i = 0; i < 4; i++) {
            var side = i % 2 == 0 ? mine() : other();
            readers.add(start(() -> run(() -> {
                side.readLock().lock();
                side.readLock().unlock();
            })));
        }
        for (var reader : readers) {
            reader.untilItWaits();
        }
        mine().writeLock().unlock();
        for (var reader : readers) {
            reader.get();
        }
    }

    public void aWriterCanReadAndGoOnReading() throws Exception {
        mine().writeLock().lock();
        check(mine().readLock().tryLock(), "the read side");
        mine().writeLock().unlock();
        check(elsewhere(() -> other().readLock().tryLock() && run(() -> other().readLock().unlock())), "another reader");
        check(!elsewhere(() -> other().writeLock().tryLock()), "no writer");
        mine().readLock().unlock();
        check(elsewhere(() -> other().writeLock().tryLock()), "a writer");
    }

    public void bothSidesAreReentrant() {
        mine().readLock().lock();
        mine().readLock().lock();
        equal(mine().readLock().getHoldCount(), 2);
        mine().readLock().unlock();
        mine().readLock().unlock();
        mine().writeLock().lock();
        mine().writeLock().lock();
        equal(mine().writeLock().getHoldCount(), 2);
        mine().writeLock().unlock();
        check(mine().writeLock().isHeldByCurrentThread(), "the write side");
        mine().writeLock().unlock();
        check(!mine().writeLock().isLocked() && !mine().readLock().isLocked(), "free sides");
    }

    public void aReaderDoesNotGetTheWriteSide() throws Exception {
        mine().readLock().lock();
        check(!mine().writeLock().tryLock(), "no lock");
        check(!mine().writeLock().tryLock(1, TimeUnit.SECONDS), "no lock");
        mine().readLock().unlock();
        check(mine().writeLock().tryLock(), "a lock");
        mine().writeLock().unlock();
    }

    @Differs(of = Side.Kind.AGENT, behaviour = "A reader that would wait for itself fails at once.",
            failure = RejectedException.class)
    public void aReaderWaitsForTheWriteSide() throws Exception {
        var waiting = start(() -> run(() -> {
            mine().readLock().lock();
            mine().writeLock().lockInterruptibly();
        }));
        try {
            if (kind == Side.Kind.AGENT) {
                waiting.get(); // It fails without an interrupt.
            }
            waiting.untilItWaits();
        } finally {
            waiting.thread().interrupt();
        }
    }

    public void theWatchdogRenewsBothSides() throws Exception {
        try (var side = kind.openWithShortLease()) {
            var lock = side.readWrite(name);
            lock.readLock().lock();
            Thread.sleep(2 * Side.SHORT_LEASE);
            check(lock.readLock().isHeldByCurrentThread(), "a reader");
            lock.readLock().unlock();
            lock.writeLock().lock();
            Thread.sleep(2 * Side.SHORT_LEASE);
            check(!elsewhere(() -> other().readLock().tryLock()), "no reader");
            lock.writeLock().unlock();
        }
    }

    public void aReadersLeaseRunsOut() throws Exception {
        mine().readLock().lock(1, TimeUnit.SECONDS);
        check(elsewhere(() -> other().writeLock().tryLock(10, TimeUnit.SECONDS)), "a writer");
        fails(IllegalMonitorStateException.class, () -> run(() -> mine().readLock().unlock()));
    }

    public void onlyTheHolderUnlocksASide() throws Exception {
        mine().readLock().lock();
        fails(IllegalMonitorStateException.class, () -> run(() -> mine().writeLock().unlock()));
        fails(IllegalMonitorStateException.class, () -> elsewhere(() -> run(() -> other().readLock().unlock())));
        mine().readLock().unlock();
    }
}
